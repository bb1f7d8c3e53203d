//! Reading the batches that a folder holds, in their order, up to their end.
//!
//! ```text
//! files ─► segments with right heads ─► synced: the highest that any head of the tail names ─► the oldest one named
//!       ─► from there on: all heads right, numbers without a gap
//!       ─► batches in order, up to the first one behind `synced` that is not whole: the end
//! ```
//! A segment's head has the number of its first batch, which says where the segment before it ends. So nothing behind
//! a named end is ever read, and the log has synced all batches before that number. All batches up
//! to the last one known synced must be right, and damage there is damage. Behind it the first batch that is not whole
//! is the end: it was never acknowledged.
//!
//! After a bad head only multiples of 512 are tried, each in constant time. So neither the time nor the result depends
//! on the bytes that clients wrote.
//!
//! The newest segment is read first, so that a dead record is known as such when it is read. This module changes nothing.
//! It reads single batches in `batches.rs`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::cut::CutOff;
use super::files::FolderFiles;
use super::missing::{FoundFile, limits, named_gaps};
use crate::store::errors::Error;
use crate::store::failure::is_unreadable;
use crate::store::fault::{Fault, planted};
use crate::store::folder::ReadPatience;
use crate::store::format::{Marks, SECTOR, Space};
use crate::store::gaps::Gaps;
use crate::store::log::in_use::UsedSegment;
use crate::store::metrics::OpeningShape;
use crate::store::record::{Value, removal_bytes};
use crate::store::segment::{OpenFiles, Place, Segment, name_of};
use crate::store::summary::{ReadSummary, Summary, SummaryRecord};

/// The bytes of a segment in memory at a time: one of the usual size is read in one pass, but beside clients.
pub(super) const BLOCK_BYTES: u64 = 64 << 20;
const VERIFIED_BYTES: u64 = 1 << 20;

/// What the history is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Purpose {
    /// To open the log. Damage is an error.
    Open,
    /// To open it without what is lost. Damage is named.
    Repair,
    /// To find all damage: each body is read, and each summary is compared with its segment. Damage is named.
    Check,
}

/// A record behind the last batch known synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct ReadRecord {
    pub(in crate::store) space: Space,
    pub(in crate::store) key: Box<[u8]>,
    /// `None` if the record removes its key.
    pub(in crate::store) place: Option<Place>,
    /// Its body, unless it is set aside.
    pub(in crate::store) body: Option<Value>,
}

/// What the heads of the batches known synced say.
#[derive(Debug, Default)]
pub(in crate::store) struct KnownState {
    /// The number of the last batch known synced.
    pub(in crate::store) synced: u64,
    /// The oldest segment that this batch names.
    pub(in crate::store) oldest: u32,
    /// The marks, those of batches behind it included.
    pub(in crate::store) marks: Marks,
}

impl KnownState {
    /// Raises each mark to that of a head.
    pub(super) fn raise_marks(&mut self, marks: &Marks) {
        self.marks.iter_mut().zip(marks).for_each(|(mark, other)| *mark = (*mark).max(*other));
    }

    pub(super) fn raise_oldest(&mut self, oldest: u32) {
        self.oldest = self.oldest.max(oldest);
    }
}

/// The damage that reading has found.
#[derive(Debug, Default)]
pub(in crate::store) struct Damage {
    /// What a repair leaves out.
    pub(in crate::store) lost: Vec<String>,
    /// What costs nothing.
    pub(in crate::store) harmless: Vec<String>,
    /// Values whose bytes have changed, for a check: the place, and the text that names it.
    pub(in crate::store) rotten: Vec<(Place, String)>,
}

/// What reading leaves to the writer.
#[derive(Debug, Default)]
pub(in crate::store) struct ReadHistory {
    pub(in crate::store) store: Option<[u8; 16]>,
    /// The segments that count, the oldest first.
    pub(in crate::store) segments: Vec<UsedSegment>,
    /// The number of the newest segment with a batch. After a loss, of any segment.
    pub(in crate::store) newest: u32,
    /// The oldest segment that the last whole batch names.
    pub(in crate::store) oldest: u32,
    /// The gaps between the segments.
    pub(in crate::store) gaps: Gaps,
    pub(in crate::store) files: FolderFiles,
    /// The summaries of segments that have none, up to the last batch known synced.
    pub(in crate::store) summaries: Vec<(Arc<Segment>, Summary)>,
    pub(in crate::store) known: KnownState,
    /// The records behind the last batch known synced, in their order.
    pub(in crate::store) behind: Vec<ReadRecord>,
    /// The bytes behind the end, which the log leaves out.
    pub(in crate::store) cut: Vec<CutOff>,
    pub(in crate::store) damage: Damage,
    pub(in crate::store) shape: OpeningShape,
}

/// Reads the history. Calls `each` with each record up to the last batch known synced, the newest first. It returns
/// whether it is the last of a removed key. `synced` is a batch that is known synced from elsewhere, or 0.
///
/// # Errors
/// [`Error`] if a file cannot be read, or is damaged and the log is to be opened.
pub(in crate::store) fn read(
    files: &Arc<OpenFiles>,
    purpose: Purpose,
    synced: u64,
    each: &mut dyn FnMut(SummaryRecord<'_>) -> bool,
) -> Result<ReadHistory, Error> {
    let reader = HistoryReader::new(files, purpose, synced, BLOCK_BYTES);
    let (mut history, found) = reader.begin()?;
    for FoundSegment { segment, limit } in found.iter().rev() {
        reader.read_segment(segment, *limit, &mut history, each)?;
    }
    history.segments.reverse();
    reader.end(&mut history);
    Ok(history)
}

/// What is damaged in a segment whose last batch has this number, by name. All of its batches are known synced.
///
/// # Errors
/// [`Error`] if the segment cannot be read for another reason than its device's.
pub(in crate::store) fn damage_of(
    files: &Arc<OpenFiles>,
    segment: &Arc<Segment>,
    last: u64,
) -> Result<Vec<String>, Error> {
    let reader = HistoryReader::new(files, Purpose::Check, last, VERIFIED_BYTES);
    let mut history =
        ReadHistory { known: KnownState { synced: last, ..KnownState::default() }, ..ReadHistory::default() };
    let number = segment.head.number;
    if let FoundFile::Damaged(what) = reader.open(number, &name_of(number))? {
        history.damage.lost.push(what);
    }
    reader.read_batches(segment, Some(last), &mut history, &mut Summary::default())?;
    let unreadable = reader.unreadable.into_inner();
    let values = history.damage.rotten.into_iter().map(|(_, name)| format!("{name} has changed"));
    Ok(history.damage.lost.into_iter().chain(unreadable).chain(values).collect())
}

/// Reads one folder.
pub(in crate::store) struct HistoryReader<'h> {
    pub(in crate::store) files: &'h Arc<OpenFiles>,
    pub(in crate::store) purpose: Purpose,
    /// The number of a batch that is known synced, whatever the heads say.
    pub(super) synced: u64,
    /// The bytes of a segment that are in memory at a time.
    pub(in crate::store) block_bytes: u64,
    /// The bytes that the device does not return.
    pub(in crate::store) unreadable: RefCell<Vec<String>>,
    /// The gaps that the head of each segment names.
    pub(in crate::store) gaps: RefCell<BTreeMap<u32, Gaps>>,
    /// The segments whose heads are damaged, with the stores that their batches name.
    pub(in crate::store) remade: RefCell<BTreeMap<u32, [u8; 16]>>,
    /// The part of a segment that was last read.
    pub(in crate::store) block: RefCell<Option<ReadBlock>>,
    /// The memory of the summary that was last read, for the next one.
    sums: RefCell<Vec<u8>>,
    /// The segment that was last found to have bytes that the device does not return.
    pub(in crate::store) rough: Cell<Option<u32>>,
    /// The number of bytes that were read.
    pub(in crate::store) bytes: Cell<u64>,
    /// For reads that fail for a reason that may pass.
    pub(in crate::store) patience: ReadPatience,
}

/// A segment that counts.
pub(super) struct FoundSegment {
    pub(super) segment: Arc<Segment>,
    /// The number of its last batch. `None`: it is the newest one.
    pub(super) limit: Option<u64>,
}

/// A part of a segment, in memory.
#[derive(Debug)]
pub(in crate::store) struct ReadBlock {
    pub(in crate::store) segment: u32,
    pub(in crate::store) from: u64,
    pub(in crate::store) bytes: Rc<Vec<u8>>,
}

impl<'h> HistoryReader<'h> {
    pub(super) fn new(files: &'h Arc<OpenFiles>, purpose: Purpose, synced: u64, block_bytes: u64) -> Self {
        let (unreadable, gaps, remade, block, sums) = Default::default();
        Self {
            files,
            purpose,
            synced,
            block_bytes,
            unreadable,
            gaps,
            remade,
            block,
            sums,
            rough: Cell::new(None),
            bytes: Cell::new(0),
            patience: ReadPatience::default(),
        }
    }
}

impl HistoryReader<'_> {
    pub(in crate::store) fn explain(&self, error: &io::Error) -> Error {
        Error::of(self.files.folder.path(), error)
    }

    /// Names damage: an error if the log is to be opened.
    pub(in crate::store) fn damage(&self, history: &mut ReadHistory, what: String) -> Result<(), Error> {
        match self.purpose {
            Purpose::Repair | Purpose::Check => {
                history.damage.lost.push(what);
                Ok(())
            }
            Purpose::Open => Err(Error::Damaged { folder: self.files.folder.path().to_owned(), what }),
        }
    }

    /// Whether these bytes count as lost, and reading continues behind them. They were read patiently.
    pub(in crate::store) fn leaves_out(&self, error: &io::Error) -> bool {
        self.purpose != Purpose::Open && is_unreadable(error)
    }

    /// Finds the segments that count, the oldest first, and what the heads say of them.
    pub(super) fn begin(&self) -> Result<(ReadHistory, Vec<FoundSegment>), Error> {
        let mut history = ReadHistory::default();
        let mut all = self.find(&mut history)?;
        history.gaps = named_gaps(&all, &self.gaps.borrow());
        for (number, file) in all.extract_if(.., |number, _| history.gaps.contains(*number)) {
            let is_begun = matches!(file, FoundFile::Cleaned);
            if is_begun { &mut history.files.begun } else { &mut history.files.leftovers }.push(name_of(number));
        }
        let segments = all.values().filter_map(|file| match file {
            FoundFile::Segment(segment) => Some(Arc::clone(segment)),
            FoundFile::Damaged(_) | FoundFile::Cleaned => None,
        });
        let mut found: Vec<Arc<Segment>> = segments.collect();
        history.store = found.first().map(|segment| segment.head.store);
        let (begun, synced) = self.begun(&found)?;
        for segment in found.split_off(begun) {
            self.check_size(&segment, &mut history)?;
            history.cut.extend(self.cut_off(&segment, SECTOR)?);
            history.files.leftovers.push(name_of(segment.head.number));
        }
        let newest = found.last().map_or(0, |segment| segment.head.number);
        history.known.synced = synced;
        if synced > 0 && found.is_empty() {
            self.damage(&mut history, "the first batch of the oldest segment is missing".to_owned())?;
        }
        history.oldest = self.oldest(&found, synced, &history.gaps)?.unwrap_or(1);
        self.judge(&all, &mut found, &mut history)?;
        let remade =
            self.remade.borrow().range(history.oldest..).map(|(number, _)| name_of(*number)).collect::<Vec<_>>();
        history.damage.harmless.extend(remade.into_iter().map(|name| format!("the head of {name} has changed")));
        history.shape.segments = found.len() as u64;
        let limits = limits(&found, &history.gaps);
        // Without a loss the files behind the newest segment go, and its number is followed by the next one.
        let highest = all.keys().next_back().copied();
        history.newest = newest;
        history.files.highest = highest.unwrap_or(newest);
        let found = found
            .into_iter()
            .zip(limits)
            .map(|(segment, limit)| FoundSegment { segment, limit: limit.filter(|_| !planted(Fault::EndIgnored)) });
        Ok((history, found.collect()))
    }

    /// All segments were read.
    pub(super) fn end(self, history: &mut ReadHistory) {
        history.shape.bytes += self.bytes.get();
        history.damage.lost.extend(self.unreadable.into_inner());
        if !history.damage.lost.is_empty() {
            history.newest = history.files.highest;
        }
    }

    /// The bytes of a segment's blocks, and whether its file has other names.
    pub(super) fn file_of(&self, segment: &Arc<Segment>) -> Result<(u64, bool), Error> {
        let disk = self.patience.read(|| segment.file()?.allocated()).map_err(|error| self.explain(&error))?;
        let names = self.patience.read(|| segment.file()?.names()).map_err(|error| self.explain(&error))?;
        Ok((disk, names > 1))
    }

    /// The number of segments that are begun, and the highest number of a batch that is known synced.
    ///
    /// A segment is begun when its first batch is known synced, or whole. Its first batch may be torn, with the head in
    /// place: it then ends nothing, because the segment before may hold batches that were acknowledged and that no head
    /// names. But all batches before its first one were synced before the log laid out its head.
    fn begun(&self, found: &[Arc<Segment>]) -> Result<(usize, u64), Error> {
        let mut synced = self.synced;
        for (index, segment) in found.iter().enumerate().rev() {
            synced = synced.max(self.synced_in(segment)?).max(segment.head.first - 1);
            // Behind a first batch that was synced, damage is damage.
            if synced >= segment.head.first && !planted(Fault::FirstIgnored) {
                return Ok((index + 1, synced));
            }
            let Some(head) = self.head_at(segment, SECTOR)? else { continue };
            let is_whole = planted(Fault::TornFirstCounts) || self.batch(segment, &head, true, &mut |_| {})?.is_some();
            if head.number == segment.head.first && is_whole {
                return Ok((index + 1, synced));
            }
        }
        Ok((0, synced))
    }

    /// The highest number of a synced batch that any head in this segment names.
    fn synced_in(&self, segment: &Arc<Segment>) -> Result<u64, Error> {
        let (mut synced, mut offset) = (0, SECTOR);
        while offset < segment.head.size {
            let head = self.head_at(segment, offset)?;
            synced = synced.max(head.map_or(0, |head| head.synced));
            offset += head.map_or(SECTOR, |head| head.length());
        }
        Ok(synced)
    }

    /// The oldest segment as the last whole batch names it. The head of a batch that is not whole says nothing: the
    /// copies that it relies on may be missing.
    fn oldest(&self, found: &[Arc<Segment>], synced: u64, gaps: &Gaps) -> Result<Option<u32>, Error> {
        let limits = limits(found, gaps);
        for (segment, limit) in found.iter().zip(limits).rev() {
            let oldest = self.oldest_named(segment, limit, synced)?;
            if oldest.is_some() {
                return Ok(oldest);
            }
        }
        Ok(found.first().map(|segment| segment.head.number))
    }

    /// The oldest segment as the last whole batch of this segment names it. `None`: it has no whole batch.
    fn oldest_named(&self, segment: &Arc<Segment>, limit: Option<u64>, synced: u64) -> Result<Option<u32>, Error> {
        let (mut oldest, mut offset, mut expected) = (None, SECTOR, segment.head.first);
        while limit.is_none_or(|limit| expected <= limit) {
            let head = self.head_at(segment, offset)?.filter(|head| head.number == expected);
            let whole = match head {
                Some(head) if expected > synced => self.batch(segment, &head, true, &mut |_| {})?.map(|_| head),
                head => head,
            };
            match whole {
                Some(head) => (oldest, offset, expected) = (Some(head.oldest), offset + head.length(), expected + 1),
                // Damage: a repair continues behind it.
                None if expected <= synced => match self.head_behind(segment, offset, expected)? {
                    Some(head) => (offset, expected) = (head.offset, head.number),
                    None => break,
                },
                None => break,
            }
        }
        Ok(oldest)
    }

    /// Leaves out the segments below the oldest one, whatever their state. Demands the others, but those in gaps.
    fn judge(
        &self,
        all: &BTreeMap<u32, FoundFile>,
        found: &mut Vec<Arc<Segment>>,
        history: &mut ReadHistory,
    ) -> Result<(), Error> {
        let oldest = history.oldest;
        found.retain(|segment| segment.head.number >= oldest);
        history.files.leftovers.extend(all.range(..oldest).map(|(number, _)| name_of(*number)));
        for (_, file) in all.range(oldest..) {
            if let FoundFile::Damaged(what) = file {
                self.damage(history, what.clone())?;
            }
        }
        let mut expected = oldest;
        for segment in found.iter() {
            let number = segment.head.number;
            let is_missing = |missing: &u32| !all.contains_key(missing) && !history.gaps.contains(*missing);
            if let Some(missing) = (expected..number).find(is_missing) {
                self.damage(history, format!("{} is missing", name_of(missing)))?;
            }
            expected = number + 1;
            self.check_size(segment, history)?;
        }
        Ok(())
    }

    /// A segment is laid out whole before it gets its head, so a file that is shorter was cut, whatever it holds.
    fn check_size(&self, segment: &Arc<Segment>, history: &mut ReadHistory) -> Result<(), Error> {
        let size = self.patience.read(|| segment.file()?.size()).map_err(|error| self.explain(&error))?;
        match size < segment.head.size {
            true => {
                let name = name_of(segment.head.number);
                self.damage(history, format!("{name} has {size} of {} bytes", segment.head.size))
            }
            false => Ok(()),
        }
    }

    /// Reads a segment, up to the batch numbered `limit`, or to the end.
    fn read_segment(
        &self,
        segment: &Arc<Segment>,
        limit: Option<u64>,
        history: &mut ReadHistory,
        each: &mut dyn FnMut(SummaryRecord<'_>) -> bool,
    ) -> Result<(), Error> {
        let (disk, is_linked) = self.file_of(segment)?;
        let range = limit.map(|limit| (segment.head.first, limit));
        let summary = ReadSummary::of(&*self.files.folder, &segment.head, self.sums.take())
            .filter(|summary| Some((summary.head.first, summary.head.last)) == range);
        let sum = summary.as_ref().map_or(0, |summary| summary.bytes.len() as u64);
        let read = |end, removals| {
            let unread = UsedSegment::new(Arc::clone(segment), disk);
            UsedSegment { end, sum, removals, is_linked, ..unread }
        };
        let mut removals = 0;
        let each = &mut |record: SummaryRecord<'_>| {
            let bytes = removal_bytes(record.key.len());
            removals += if each(record) { bytes } else { 0 };
        };
        let summary = match summary {
            Some(summary) if self.purpose == Purpose::Open => {
                // The segments before it have one, too.
                drop(self.block.take());
                self.take_summary(&summary, history, each);
                history.segments.push(read(summary.head.end, removals));
                self.sums.replace(summary.bytes);
                return Ok(());
            }
            summary => summary,
        };
        let (mut sums, losses) = (Summary::default(), history.damage.lost.len());
        let end = self.read_batches(segment, limit, history, &mut sums)?;
        let is_right = history.damage.lost.len() == losses;
        match summary {
            // A repair finds the damage that a summary hides, and takes from the summary what the damage has lost.
            Some(summary) if self.purpose == Purpose::Repair && !is_right => {
                self.take_summary(&summary, history, each);
                history.segments.push(read(summary.head.end, removals));
                return Ok(());
            }
            summary => {
                sums.each_back(segment.head.number, each);
                match summary {
                    None if is_right && !sums.is_empty() && self.purpose != Purpose::Check => {
                        history.summaries.push((Arc::clone(segment), sums));
                    }
                    _ if is_right && self.purpose == Purpose::Check => self.check_summary(segment, &sums, history),
                    _ => {}
                }
            }
        }
        history.segments.push(read(end, removals));
        Ok(())
    }

    /// Takes the records of a summary in place of those of its segment.
    fn take_summary(&self, summary: &ReadSummary, history: &mut ReadHistory, each: &mut dyn FnMut(SummaryRecord<'_>)) {
        history.shape.summaries += 1;
        self.bytes.set(self.bytes.get() + summary.bytes.len() as u64);
        history.known.raise_marks(&summary.head.marks);
        history.known.raise_oldest(summary.head.oldest);
        summary.each(each);
    }
}
