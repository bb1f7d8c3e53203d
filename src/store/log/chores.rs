//! Work beside the writer: segments are laid out, summed up and removed.
//!
//! ```text
//! writer ─► chore ─► thread "store": lay out, summarise, remove ─► spare ─► writer
//! ```
//! A segment that is no longer in use becomes a spare as it is. So a log that cleans as much as it writes lays out nothing.
//! On a nearly full file system, others may take blocks that are given back. Each batch has the nonce of its segment, so no
//! opening takes the old bytes for batches (`opening/heads.rs`).
//!
//! With a thread of its own, the writer seldom waits for it. Without one, the work is done at once.
//!
//! A segment that cannot be laid out for want of space is no failure of the log: [`Chores::lacks_space`] says so until
//! one can. Any other failure shows itself when the writer needs the segment.
//!
//! This module writes no batch.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::space_lack::SpaceLack;
use crate::store::failure::{Failure, failure};
use crate::store::folder::{Folder, remove_if_there};
use crate::store::format::SegmentHead;
use crate::store::segment::{SpareFile, lay_out, name_of, number_of, spare_name, whole};
use crate::store::summary::{Summary, summary_name};
use crate::threads::spawn;

/// The least number of segments that stay laid out: one for removals and the copies of old segments, and one for the
/// next opening.
pub(in crate::store) const SPARES: usize = 2;
/// The name of the thread.
const THREAD: &str = "store";

/// Where the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoreMode {
    /// In a thread of its own.
    Thread,
    /// By the writer, at once.
    Writer,
    /// By the writer, when a test says so.
    #[cfg(test)]
    Queue,
}

/// A piece of work.
#[derive(Debug)]
pub(in crate::store) enum Chore {
    /// Lays out a segment of this size.
    LayOut { size: u64 },
    /// Writes the summary of a closed segment.
    Summarise { segment: SegmentHead, summary: Summary },
    /// Makes a spare of the file with this name, which has the size and the blocks of a segment: one that is no longer in
    /// use, or a spare of an earlier process.
    UseAgain { name: String },
    /// Removes a segment and its summary.
    Remove { number: u32 },
}

/// The work of one log.
#[derive(Debug)]
pub(in crate::store) struct Chores {
    folder: Arc<dyn Folder>,
    segment_bytes: u64,
    spares: VecDeque<SpareFile>,
    target: SpareTarget,
    /// A file of another size, for the batch that waits for it.
    odd: Option<SpareFile>,
    /// A file of another size that is kept for the next batch, see [`Chores::prepare`].
    prepared: Option<SpareFile>,
    /// Files that were asked for and have not come, and among these the files with their blocks.
    coming: usize,
    coming_again: usize,
    /// The failure of the last lay-out that has failed.
    failed: Option<io::Error>,
    /// The number in the name of the next spare.
    next: u64,
    lack: SpaceLack,
    worker: ChoreWorker,
}

/// The spares that are to be there.
#[derive(Clone, Copy, Debug)]
struct SpareTarget {
    /// The number of segments that are to be laid out.
    count: usize,
    /// The files with their blocks that may be there beside these: none while the log rests.
    more: usize,
}

/// A file that was to be laid out.
#[derive(Debug)]
struct LaidOut {
    size: u64,
    /// Whether it takes new blocks.
    is_new: bool,
    file: io::Result<SpareFile>,
}

#[derive(Debug)]
enum ChoreWorker {
    Thread(ChoreThread),
    Writer,
    #[cfg(test)]
    Queue(VecDeque<(u64, Chore)>),
}

#[derive(Debug)]
struct ChoreThread {
    /// `None` when the thread is to end.
    chores: Option<Sender<(u64, Chore)>>,
    spares: Receiver<LaidOut>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ChoreThread {
    fn drop(&mut self) {
        self.chores = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl ChoreThread {
    fn start(folder: Arc<dyn Folder>, segment_bytes: u64) -> io::Result<Self> {
        let (chores, todo) = channel::<(u64, Chore)>();
        let (laid_out, spares) = channel();
        let thread = spawn(THREAD, None, move || {
            while let Ok((number, chore)) = todo.recv() {
                if let Some(spare) = work(&*folder, segment_bytes, number, &chore) {
                    // The log may be gone.
                    let _gone = laid_out.send(spare);
                }
            }
        })?;
        Ok(Self { chores: Some(chores), spares, thread: Some(thread) })
    }
}

impl Chores {
    /// The work of a log in this folder. The names of its spares have numbers from `next` on.
    ///
    /// # Errors
    /// The system's error if the thread cannot start.
    pub(in crate::store) fn new(
        folder: Arc<dyn Folder>,
        segment_bytes: u64,
        mode: ChoreMode,
        next: u64,
    ) -> io::Result<Self> {
        let worker = match mode {
            ChoreMode::Thread => ChoreWorker::Thread(ChoreThread::start(Arc::clone(&folder), segment_bytes)?),
            ChoreMode::Writer => ChoreWorker::Writer,
            #[cfg(test)]
            ChoreMode::Queue => ChoreWorker::Queue(VecDeque::new()),
        };
        Ok(Self {
            folder,
            segment_bytes,
            spares: VecDeque::new(),
            target: SpareTarget { count: SPARES, more: 1 },
            odd: None,
            prepared: None,
            coming: 0,
            coming_again: 0,
            failed: None,
            next,
            lack: SpaceLack::default(),
            worker,
        })
    }

    /// Takes cleaned segments with the head of a later segment that was not begun. The first of them becomes the next
    /// segment before any file is laid out: no other head may name its number as a gap.
    pub(in crate::store) fn take_begun(&mut self, names: &[String]) {
        for name in names {
            // One that cannot be used is removed by the next opening.
            if let Some(file) = whole(self.folder.open(name), self.segment_bytes) {
                self.spares.push_front(SpareFile { name: name.clone(), file, size: self.segment_bytes });
            }
        }
    }

    /// Gives a piece of work. A failure to lay out shows itself in [`Chores::take`].
    pub(in crate::store) fn give(&mut self, chore: Chore) {
        let number = self.next_number();
        let is_again = matches!(chore, Chore::UseAgain { .. });
        let lays_out = is_again || matches!(chore, Chore::LayOut { .. });
        match &mut self.worker {
            ChoreWorker::Thread(ChoreThread { chores: Some(chores), .. }) => {
                self.coming += usize::from(lays_out);
                self.coming_again += usize::from(is_again);
                // The thread ends only with the log.
                let _sent = chores.send((number, chore));
            }
            #[cfg(test)]
            ChoreWorker::Queue(queue) => {
                self.coming += usize::from(lays_out);
                self.coming_again += usize::from(is_again);
                queue.push_back((number, chore));
            }
            ChoreWorker::Thread(_) | ChoreWorker::Writer => {
                if let Some(laid_out) = work(&*self.folder, self.segment_bytes, number, &chore) {
                    self.receive(laid_out);
                }
            }
        }
    }

    /// Takes a file of this size that is laid out, and has the next one laid out. As many others are to be left, laid
    /// out or on their way. With `sure` they are laid out: where space is short, a file on its way may never come.
    ///
    /// # Errors
    /// The system's error if there is none and none can be laid out.
    pub(in crate::store) fn take(&mut self, size: u64, left: usize, sure: bool) -> io::Result<SpareFile> {
        self.failed = None;
        if size != self.segment_bytes {
            return self.take_odd(size, left == 0);
        }
        self.have(left + 1, if sure { left + 1 } else { 1 });
        let is_full = self.failed.as_ref().is_some_and(|error| failure(error) == Failure::Full);
        if is_full && self.spares.len() + self.coming <= left {
            return Err(self.failure());
        }
        let spare = self.spares.pop_front().ok_or_else(|| self.failure())?;
        self.refill();
        Ok(spare)
    }

    /// Takes a file of another size: the one that is prepared, or a new one. With `all`, for an opening, spares make room
    /// for it: its first batch may have been alone in such a segment.
    fn take_odd(&mut self, size: u64, all: bool) -> io::Result<SpareFile> {
        if let Some(spare) = self.prepared.take_if(|spare| spare.size >= size) {
            return Ok(spare);
        }
        // The thread does it when it has done all that may make room for it.
        self.give(Chore::LayOut { size });
        self.wait(usize::MAX);
        while all
            && self.odd.is_none()
            && let Some(SpareFile { name, .. }) = self.spares.pop_back_if(|spare| number_of(&spare.name).is_none())
        {
            self.folder.remove(&name)?;
            self.folder.sync()?;
            self.give(Chore::LayOut { size });
            self.wait(usize::MAX);
        }
        self.odd.take().ok_or_else(|| self.failure())
    }

    /// Makes sure that [`Chores::take`] has a file of this size for the next batch. False: none can be laid out. A file
    /// that was prepared before stays then.
    pub(in crate::store) fn prepare(&mut self, size: u64) -> bool {
        if size == self.segment_bytes {
            self.have(SPARES, SPARES);
            return self.spares.len() >= SPARES;
        }
        if self.prepared.as_ref().is_none_or(|spare| spare.size < size) {
            let Ok(larger) = self.take_odd(size, false) else { return false };
            self.discard_prepared();
            self.prepared = Some(larger);
        }
        true
    }

    /// Removes the file that is kept for the next batch: the batch did not need it.
    pub(in crate::store) fn discard_prepared(&mut self) {
        if let Some(spare) = self.prepared.take() {
            // Opening removes what stays.
            let _stays = self.folder.remove(&spare.name);
        }
    }

    /// Tries to have so many spares, or that they are on their way, and waits for some of them.
    fn have(&mut self, spares: usize, waits_for: usize) {
        self.gather(false);
        self.wait(waits_for);
        if self.spares.len() + self.coming < spares {
            self.give(Chore::LayOut { size: self.segment_bytes });
            self.wait(waits_for);
        }
    }

    /// Waits until so many spares are there, or no more are on their way.
    fn wait(&mut self, spares: usize) {
        while self.spares.len() < spares && self.coming > 0 {
            self.gather(true);
        }
    }

    fn failure(&mut self) -> io::Error {
        self.failed.take().unwrap_or_else(|| io::Error::other("no segment was laid out"))
    }

    /// The log is written, and needs so many segments laid out. Gives back those that are too many.
    pub(in crate::store) fn aim(&mut self, spares: usize) {
        self.target = SpareTarget { count: spares, more: 1 };
        self.give_back();
        self.refill();
    }

    /// The log rests, and needs no more than are to be laid out.
    pub(in crate::store) fn rest(&mut self) {
        self.target.more = 0;
        self.gather(false);
        self.give_back();
    }

    /// Gives back the space of spares that are too many.
    fn give_back(&mut self) {
        while self.spares.len() > self.target.count + self.target.more {
            let Some(spare) = self.spares.pop_back() else { break };
            // Opening removes what stays.
            let _stays = self.folder.remove(&spare.name);
        }
    }

    /// Has segments laid out until there are enough, or no space is left for one.
    fn refill(&mut self) {
        while !self.lack.is_on() && self.missing() > 0 {
            let before = self.spares.len() + self.coming;
            self.give(Chore::LayOut { size: self.segment_bytes });
            if self.spares.len() + self.coming == before {
                break; // It failed. Taking a spare tries again, and reports the error if there is still none.
            }
        }
    }

    /// A sync has ended, and the file system has this many free bytes. Tries again to lay out what could not be.
    pub(in crate::store) fn retry(&mut self, free: u64) {
        self.gather(false);
        // New ones may have come beside segments that are used again.
        self.give_back();
        if self.lack.is_on() {
            if !self.lack.ends_wait(free, self.segment_bytes) {
                return;
            }
            match self.missing() > 0 {
                true => self.give(Chore::LayOut { size: self.segment_bytes }),
                false => self.lack.end_wait(),
            }
        }
        self.refill();
    }

    /// The number of segments that lack, beside those on their way.
    pub(in crate::store) fn missing(&self) -> usize {
        self.target.count.saturating_sub(self.spares.len() + self.coming)
    }

    /// Whether a file that has its blocks is needed as a spare. A new file on its way does not count: it may find no space,
    /// and others may take blocks that are given back.
    pub(in crate::store) fn lacks_blocks(&self) -> bool {
        self.with_blocks() < self.target.count
    }

    /// Whether a file that has its blocks becomes a spare. While the log is written, one more than is needed does: so no
    /// file is laid out when the log takes the next one.
    pub(in crate::store) fn takes_blocks(&self) -> bool {
        self.with_blocks() < self.target.count + self.target.more
    }

    /// Whether a file is on its way.
    pub(in crate::store) fn are_coming(&self) -> bool {
        self.coming > 0
    }

    /// Whether no more files with their blocks are left than have to be.
    pub(in crate::store) fn is_nearly_used_up(&self) -> bool {
        self.with_blocks() <= SPARES
    }

    /// The number of spares, those on their way among them if they have their blocks.
    fn with_blocks(&self) -> usize {
        self.spares.len() + self.coming_again
    }

    /// Whether a segment could not be laid out for want of space.
    pub(in crate::store) fn lacks_space(&self) -> bool {
        self.lack.is_on()
    }

    /// The bytes of the files that are laid out.
    pub(in crate::store) fn spare_bytes(&self) -> u64 {
        let prepared = self.prepared.as_ref().map_or(0, |spare| spare.size);
        (self.spares.len() + self.coming) as u64 * self.segment_bytes + prepared
    }

    /// The bytes of the files that are being laid out.
    pub(in crate::store) fn coming_bytes(&self) -> u64 {
        self.coming as u64 * self.segment_bytes
    }

    fn next_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Takes a file that was asked for.
    fn has_come(&mut self, laid_out: LaidOut) {
        self.coming = self.coming.saturating_sub(1);
        self.coming_again = self.coming_again.saturating_sub(usize::from(!laid_out.is_new));
        self.receive(laid_out);
    }

    fn receive(&mut self, LaidOut { size, is_new, file }: LaidOut) {
        let is_usual = size == self.segment_bytes;
        match file {
            Ok(spare) if is_usual => {
                if is_new {
                    self.lack = SpaceLack::default();
                }
                self.spares.push_back(spare);
            }
            Ok(spare) => self.odd = Some(spare),
            Err(error) => {
                // A larger file lacks space that a segment may have.
                if is_usual && failure(&error) == Failure::Full {
                    self.lack.begin();
                }
                self.failed = Some(error);
            }
        }
    }

    /// Takes the spares that the thread has laid out. With `wait`, waits for one.
    fn gather(&mut self, wait: bool) {
        match &mut self.worker {
            ChoreWorker::Thread(thread) => {
                let first = if wait { thread.spares.recv().ok() } else { None };
                let is_gone = wait && first.is_none();
                let came: Vec<_> = first.into_iter().chain(thread.spares.try_iter()).collect();
                for spare in came {
                    self.has_come(spare);
                }
                if is_gone {
                    (self.coming, self.coming_again) = (0, 0);
                }
            }
            ChoreWorker::Writer => {}
            #[cfg(test)]
            ChoreWorker::Queue(_) => {
                if wait {
                    self.work_off();
                }
            }
        }
    }

    /// Does the oldest piece of queued work.
    #[cfg(test)]
    pub(in crate::store) fn work_off(&mut self) {
        let ChoreWorker::Queue(queue) = &mut self.worker else { return };
        let Some((number, chore)) = queue.pop_front() else { return };
        if let Some(laid_out) = work(&*self.folder, self.segment_bytes, number, &chore) {
            self.has_come(laid_out);
        }
    }
}

/// Does a piece of work. Returns the file if it is to lay one out.
fn work(folder: &dyn Folder, segment_bytes: u64, number: u64, chore: &Chore) -> Option<LaidOut> {
    match chore {
        Chore::LayOut { size } => {
            Some(LaidOut { size: *size, is_new: true, file: lay_out(folder, &spare_name(number), *size) })
        }
        Chore::UseAgain { name } => {
            let file = use_again(folder, name, &spare_name(number), segment_bytes);
            Some(LaidOut { size: segment_bytes, is_new: false, file })
        }
        Chore::Summarise { segment, summary } => {
            // Without a summary, opening reads the segment.
            let _unwritten = summary.write(folder, segment);
            None
        }
        Chore::Remove { number } => {
            // What stays is removed by the next opening: the log names a later segment as its oldest.
            let _stays = folder.remove(&summary_name(*number));
            let _stays = folder.remove(&name_of(*number));
            // The next lay-out may take its space: a power failure must not bring the file back beside it.
            let _perhaps_back = folder.sync();
            None
        }
    }
}

/// Makes a file a spare.
fn use_again(folder: &dyn Folder, name: &str, spare: &str, size: u64) -> io::Result<SpareFile> {
    if let Some(number) = number_of(name) {
        remove_if_there(folder, &summary_name(number))?;
    }
    folder.rename(name, spare)?;
    folder.sync()?;
    Ok(SpareFile { name: spare.to_owned(), file: folder.open(spare)?, size })
}
