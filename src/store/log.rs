//! The writer: appends batches to the newest segment, syncs, and begins new segments.
//!
//! ```text
//! append(records) ─► one write ─► sync ─► acknowledged
//!        └─ no room ─► sync the segment ─► take a spare: write its head, sync, rename, sync the folder
//! ```
//! A batch is durable when a sync that began after its write has returned. The log syncs a segment before it writes the
//! first batch of the next one, so at most one segment has unsynced batches. Batches are numbered without a gap, and
//! the first number of a segment says where the one before ends.
//!
//! After a failed write or sync the content of the device is unknown. The log then refuses everything.
//!
//! This module does not interpret records, starts no thread, and does not decide when to sync.

pub(super) mod admission;
pub(super) mod chores;
pub(super) mod cleaning;
pub(super) mod in_use;
mod roll;
mod segments;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::encoding::{check_bounds, encode, lengths};
use super::errors::Error;
use super::fault::{Fault, planted};
use super::folder::{DiskSpace, LogFile, write_all};
use super::format::{BATCH_BYTES_MAX, BatchHead, Marks, SegmentHead, Space, batch_length};
use super::gaps::Gaps;
use super::metrics::{LogMetrics, OpeningShape};
use super::record::{Body, Record, RecordBatch, removal_bytes};
use super::segment::{OpenFiles, Place, Segment};
use super::summary::{Summary, SummaryRecord};
use chores::{Chore, Chores};
use cleaning::position::Cleaner;
use in_use::UsedSegments;

/// Write-back is started after this many bytes that no sync has covered.
const WRITE_BACK_BYTES: u64 = 8 << 20;

/// The configuration of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// The size of a segment in bytes.
    pub segment_bytes: u64,
    /// The number of files that are kept open.
    pub files: usize,
    /// The bytes that the folder may take. `None`: 95 % of the file system.
    pub max_disk: Option<u64>,
}

/// A segment that is no longer in use.
#[derive(Debug)]
pub(in crate::store) struct RetiredSegment {
    pub(in crate::store) segment: Arc<Segment>,
    /// The bytes of its blocks and of its summary.
    pub(in crate::store) disk: u64,
    /// The batch that names a later oldest segment. The file may go when that batch is synced.
    pub(in crate::store) named_by: u64,
}

impl RetiredSegment {
    /// Whether somebody reads it. Nobody can begin to: it is not in use.
    pub(in crate::store) fn is_read(&self) -> bool {
        Arc::strong_count(&self.segment) > 1
    }
}

/// A log that one thread writes.
#[derive(Debug)]
pub struct Log {
    pub(in crate::store) files: Arc<OpenFiles>,
    pub(in crate::store) config: LogConfig,
    store: [u8; 16],
    pub(in crate::store) chores: Chores,
    pub(in crate::store) segments: UsedSegments,
    /// The sum of `disk` over `retired`.
    pub(in crate::store) retired_disk: u64,
    /// The gaps that the head of the newest segment names.
    pub(in crate::store) gaps: Gaps,
    /// The descriptor that writes the newest segment. Only it reports all errors of its write-back.
    newest: Option<Arc<dyn LogFile>>,
    /// The oldest segment that heads name in place of the oldest in use, as long as a repair reads older ones.
    pub(in crate::store) keeps: Option<u32>,
    pub(in crate::store) retired: Vec<RetiredSegment>,
    /// The number of the next batch.
    pub(in crate::store) next: u64,
    /// The number of the last batch that is known to be on disk.
    pub(in crate::store) synced: u64,
    /// Whether a batch with records is on disk, and no head says so yet.
    untold: bool,
    /// The bytes since the last sync or start of write-back.
    behind: u64,
    marks: Marks,
    /// The records of the newest segment, for its summary.
    summary: Summary,
    /// Why the log takes nothing more.
    failed: Option<Error>,
    /// Whether the file system has given back the blocks of each range that it was asked for.
    pub(in crate::store) has_holes: bool,
    /// The most bytes of a batch: [`BATCH_BYTES_MAX`], except in tests.
    pub(in crate::store) batch_bytes_max: u64,
    buffer: Vec<u8>,
    pub(in crate::store) cleaner: Cleaner,
    /// The bytes of the states of all tasks, or of their removals.
    pub(in crate::store) reserved: u64,
    /// Whether all live records are counted.
    is_opened: bool,
    /// The records whose bytes are lost.
    pub(in crate::store) set_aside: BTreeSet<(Space, Box<[u8]>)>,
    /// Whether a backup is to end: the log needs the segments that it holds.
    pub(in crate::store) backup_gives_way: Arc<AtomicBool>,
    /// The space of the file system when the log last asked.
    pub(in crate::store) space: DiskSpace,
    /// What the log has done. Of its metrics only these are counted here.
    pub(in crate::store) counters: LogMetrics,
}

/// The state with which a log begins to write.
pub(in crate::store) struct Beginning {
    pub(in crate::store) store: [u8; 16],
    pub(in crate::store) segments: UsedSegments,
    pub(in crate::store) gaps: Gaps,
    /// The number of the last batch that counts.
    pub(in crate::store) last: u64,
    pub(in crate::store) marks: Marks,
    /// The number of the segment to begin.
    pub(in crate::store) segment: u32,
    /// The oldest segment that stays until [`Log::let_go`].
    pub(in crate::store) keeps: Option<u32>,
    /// The length of the first batch.
    pub(in crate::store) first_batch: u64,
    /// The segments of which nothing counts.
    pub(in crate::store) dead: Vec<u32>,
    /// The bytes of the states of all tasks, or of their removals.
    pub(in crate::store) reserved: u64,
}

impl Log {
    /// A log that goes on in a new segment.
    pub(in crate::store) fn begin(
        files: Arc<OpenFiles>,
        config: LogConfig,
        chores: Chores,
        beginning: Beginning,
    ) -> Result<Self, Error> {
        let Beginning { store, segments, gaps, last, marks, segment, keeps, first_batch, dead, reserved } = beginning;
        let space = files.folder.space().map_err(|error| Error::of(files.folder.path(), &error))?;
        let mut log = Self {
            files,
            config,
            store,
            chores,
            segments,
            gaps,
            retired_disk: 0,
            newest: None,
            keeps,
            retired: Vec::new(),
            next: last + 1,
            synced: last,
            untold: false,
            behind: 0,
            marks,
            summary: Summary::default(),
            failed: None,
            has_holes: true,
            batch_bytes_max: BATCH_BYTES_MAX,
            buffer: Vec::new(),
            cleaner: Cleaner::default(),
            reserved,
            is_opened: false,
            set_aside: BTreeSet::new(),
            backup_gives_way: Arc::default(),
            space,
            counters: LogMetrics::default(),
        };
        // The first segment comes before the spares: it may be larger than they are.
        dead.into_iter().for_each(|number| log.segments.cleaned(number));
        let spare = log.next_file(first_batch, 0)?;
        // Segments that are given back become spares as long as some lack.
        log.chores.aim(log.spares_needed());
        log.start_segment(segment, spare)?;
        Ok(log)
    }

    /// The values that every head keeps.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Raises a high-water mark. It is durable with the next synced batch.
    pub fn raise(&mut self, mark: usize, value: u64) {
        if let Some(mark) = self.marks.get_mut(mark) {
            *mark = value.max(*mark);
        }
    }

    /// The number of the last batch that was written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.next - 1
    }

    /// The state of the log, and what it has done since it was opened.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        let (used, live) = self.bytes();
        LogMetrics {
            segments: self.segments.len() as u64,
            used,
            live,
            dead: used.saturating_sub(live),
            disk: self.disk_bytes(),
            free: self.space.free,
            reserved: self.reserved,
            set_aside: self.set_aside.len() as u64,
            ..self.counters
        }
    }

    /// The records whose bytes are lost, in the order of their keys. Each stays listed until the owner writes or
    /// removes it, over restarts.
    pub fn set_aside(&self) -> impl Iterator<Item = (Space, &[u8])> {
        self.set_aside.iter().map(|(space, key)| (*space, &**key))
    }

    /// Notes how the log was opened. From here on it takes adds.
    pub(in crate::store) fn opened(&mut self, shape: OpeningShape) {
        self.is_opened = true;
        self.chores.aim(self.spares_needed());
        self.measure();
        self.counters = LogMetrics { opening: shape, ..LogMetrics::default() };
    }

    /// The bytes of all segments in use, and of the records in them that are the last of their keys.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.segments.bytes()
    }

    /// The bytes of all files, those laid out and those that wait for their removal included.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.segments.disk() + self.segments.sums() + self.retired_disk + self.chores.spare_bytes()
    }

    // -------------------------------------------------------------------------------------------------------- writing

    /// Writes a batch. Returns the places of its bodies, `None` for a record that removes its key. The batch is durable
    /// after the next [`Log::sync`].
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoRoom`]: nothing was written, and the log goes on. Any other [`Error`]: the log
    /// takes nothing more.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<Vec<Option<Place>>, Error> {
        check_bounds(batch, self.batch_bytes_max)?;
        self.guarded(|log| log.append_once(batch))
    }

    /// Has all batches on disk that were written before.
    ///
    /// # Errors
    /// [`Error`]: the log takes nothing more, and what was written since the last sync may be lost.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.guarded(|log| {
            log.sync_segment()?;
            log.tidy_up();
            Ok(())
        })
    }

    /// Tells a later opening that the last batch was synced: writes an empty batch that says so, and syncs. Call it
    /// when there is nothing else to write.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn rest(&mut self) -> Result<(), Error> {
        self.guarded(|log| {
            log.sync_segment()?;
            if log.untold {
                match log.append_once(&RecordBatch::default()) {
                    // The next batch tells it, or the next rest.
                    Err(Error::NoRoom { .. }) => {}
                    written => {
                        written?;
                        log.sync_segment()?;
                        log.untold = false;
                    }
                }
            }
            log.tidy_up();
            Ok(())
        })
    }

    /// Removes what no synced batch needs, and looks for room.
    fn tidy_up(&mut self) {
        let removed = self.counters.removed;
        self.remove_retired();
        self.look_for_room(self.counters.removed > removed);
    }

    pub(in crate::store) fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        work(self).inspect_err(|error| {
            if !error.leaves_the_log() {
                self.failed = Some(error.clone());
            }
        })
    }

    fn append_once(&mut self, batch: &RecordBatch) -> Result<Vec<Option<Place>>, Error> {
        let (table, bodies) = lengths(batch);
        let length = batch_length(table, bodies);
        if planted(Fault::RetiredWithoutRoom) {
            self.retire_cleaned(batch.cleaned.as_ref());
        }
        if self.room() < length {
            self.roll(length, batch.cleaned.as_ref().is_some_and(|cleaned| !cleaned.finished.is_empty()))?;
        }
        // From here on the batch is written, or the log ends.
        self.retire_cleaned(batch.cleaned.as_ref());
        let Some((at, file)) = self.segments.back().zip(self.newest.clone()) else { return Err(self.no_segment()) };
        let (segment, offset) = (at.segment.head, at.end);
        let oldest = self.segments.front().map_or(segment.number, |at| at.segment.head.number);
        let head = BatchHead {
            store: segment.store,
            nonce: segment.nonce,
            segment: segment.number,
            offset,
            number: self.next,
            table,
            bodies,
            synced: self.synced,
            oldest: self.keeps.unwrap_or(oldest),
            marks: self.marks,
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let places = encode(&head, batch, &mut buffer);
        let written = write_all(&*file, &buffer, offset);
        self.behind += length;
        if self.behind >= WRITE_BACK_BYTES {
            file.start_write_back(offset + length - self.behind.min(offset + length), self.behind);
            self.behind = 0;
        }
        self.keep(buffer);
        written.map_err(|error| self.explain(&error))?;
        self.note(&head, batch, &places);
        Ok(places)
    }

    /// Counts a batch that was written.
    fn note(&mut self, head: &BatchHead, batch: &RecordBatch, places: &[Option<Place>]) {
        let (mut live, mut removals) = (0, 0);
        for record in &batch.records {
            let (key, body) = (record.key.len(), record.body.bytes().len() as u64);
            match record.body {
                Body::Removed => removals += removal_bytes(key),
                Body::Bytes(_) | Body::SetAside => {
                    live += record.bytes();
                    self.reserved += Self::reserve_of(record.space, key, body);
                }
            }
        }
        for Record { space, key, body } in &batch.records {
            match body {
                Body::SetAside => drop(self.set_aside.insert((*space, key.clone()))),
                Body::Bytes(_) | Body::Removed if self.set_aside.is_empty() => {}
                Body::Bytes(_) | Body::Removed => drop(self.set_aside.remove(&(*space, key.clone()))),
            }
        }
        self.segments.wrote(head.length(), live, removals);
        self.summary.add(
            head,
            batch.records.iter().zip(places).map(|(record, place)| SummaryRecord {
                space: record.space,
                key: &record.key,
                place: *place,
                body: Some(record.body.bytes()),
            }),
        );
        self.untold |= !batch.records.is_empty();
        self.chores.discard_prepared();
        if self.is_opened {
            self.chores.aim(self.spares_needed());
        }
        self.next += 1;
        self.counters.batches += 1;
        self.counters.bytes += head.length();
        self.counters.largest_batch = self.counters.largest_batch.max(head.length());
    }

    /// Keeps the buffer for the next batch, unless it is large.
    fn keep(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() as u64 <= self.config.segment_bytes.min(WRITE_BACK_BYTES) {
            self.buffer = buffer;
        }
    }

    /// The number of the segment that is being written.
    pub(in crate::store) fn written_segment(&self) -> u32 {
        self.segments.back().map_or(0, |at| at.segment.head.number)
    }

    /// The bytes that are left in the newest segment.
    pub(in crate::store) fn room(&self) -> u64 {
        self.segments.back().map_or(0, |at| at.segment.head.size - at.end)
    }

    pub(in crate::store) fn sync_segment(&mut self) -> Result<(), Error> {
        if self.synced == self.written() {
            return Ok(());
        }
        let Some(file) = &self.newest else { return Err(self.no_segment()) };
        let written = self.written();
        file.sync().map_err(|error| self.explain(&error))?;
        (self.synced, self.behind) = (written, 0);
        self.counters.syncs += 1;
        Ok(())
    }

    pub(in crate::store) fn explain(&self, error: &io::Error) -> Error {
        Error::of_open_store(self.files.folder.path(), error)
    }

    /// Writes the summaries of segments that opening has read.
    pub(in crate::store) fn summarise(&mut self, summaries: Vec<(Arc<Segment>, Summary)>) {
        summaries.into_iter().for_each(|(segment, summary)| self.summarise_one(segment.head, summary));
    }

    fn summarise_one(&mut self, segment: SegmentHead, summary: Summary) {
        self.segments.summed(segment.number, summary.bytes_max());
        self.chores.give(Chore::Summarise { segment, summary });
    }

    fn no_segment(&self) -> Error {
        let folder = self.files.folder.path().to_owned();
        Error::Failed { folder, why: "the log has no segment".to_owned() }
    }
}
