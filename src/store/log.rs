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
mod disk;
mod heads;
pub(super) mod in_use;
pub(super) mod live;
mod retired;
mod roll;
mod segments;
pub(super) mod share;
mod space_lack;
mod writer;

use std::sync::Arc;

use super::encoding::{check_bounds, lengths};
use super::errors::Error;
use super::fault::{Fault, planted};
use super::format::{LogKind, Marks, SegmentHead, Space, batch_length};
use super::gaps::Gaps;
use super::metrics::{LogCounters, LogMetrics, LogSpace, OpeningShape};
use super::record::RecordBatch;
use super::segment::{OpenFiles, Place, Segment};
use super::summary::Summary;
use chores::{Chore, Chores};
use cleaning::position::Cleaner;
use disk::LogDisk;
use heads::{BatchNumbers, HeadState};
use in_use::UsedSegments;
use live::LiveRecords;
use retired::RetiredSegments;
use writer::{SegmentWriter, no_segment};

/// The configuration of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// How the owner knows which record counts.
    pub kind: LogKind,
    /// The size of a segment in bytes.
    pub segment_bytes: u64,
    /// The number of files that are kept open.
    pub files: usize,
    /// The bytes that the folder may take. `None`: 95 % of the file system.
    pub max_disk: Option<u64>,
}

/// The stage of a log.
#[derive(Debug)]
enum LogStage {
    /// Not all live records are counted.
    Opening,
    Open,
    /// It takes nothing more.
    Failed(Error),
}

/// A log that one thread writes.
#[derive(Debug)]
pub struct Log {
    pub(in crate::store) disk: LogDisk,
    pub(in crate::store) config: LogConfig,
    pub(in crate::store) chores: Chores,
    pub(in crate::store) segments: UsedSegments,
    pub(in crate::store) retired: RetiredSegments,
    pub(in crate::store) heads: HeadState,
    pub(in crate::store) writer: SegmentWriter,
    cleaner: Cleaner,
    pub(in crate::store) live: LiveRecords,
    stage: LogStage,
    counters: LogCounters,
    opening: OpeningShape,
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
    /// A log that continues in a new segment.
    pub(in crate::store) fn begin(
        files: Arc<OpenFiles>,
        config: LogConfig,
        chores: Chores,
        beginning: Beginning,
    ) -> Result<Self, Error> {
        let Beginning { store, segments, gaps, last, marks, segment, keeps, first_batch, dead, reserved } = beginning;
        let numbers = BatchNumbers::after(last);
        let mut log = Self {
            disk: LogDisk::new(files)?,
            writer: SegmentWriter::new(config.kind, config.segment_bytes),
            config,
            chores,
            segments,
            retired: RetiredSegments::default(),
            heads: HeadState { store, marks, keeps, gaps, numbers },
            cleaner: Cleaner::default(),
            live: LiveRecords { reserved, ..LiveRecords::default() },
            stage: LogStage::Opening,
            counters: LogCounters::default(),
            opening: OpeningShape::default(),
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
        &self.heads.marks
    }

    /// Raises a high-water mark. It is durable with the next synced batch.
    pub fn raise(&mut self, mark: usize, value: u64) {
        if let Some(mark) = self.heads.marks.get_mut(mark) {
            *mark = value.max(*mark);
        }
    }

    /// The number of the last batch that was written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.heads.numbers.written()
    }

    /// The state of the log, and what it has done since it was opened.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        let (used, live) = self.bytes();
        let space = LogSpace {
            segments: self.segments.len() as u64,
            oldest: self.first_segment().into(),
            newest: self.written_segment().into(),
            used,
            live,
            dead: used.saturating_sub(live),
            disk: self.disk_bytes(),
            free: self.disk.space.free,
            reserved: self.live.reserved,
            set_aside: self.live.set_aside.len() as u64,
        };
        let refuses_adds = self.adds_refused().is_some();
        LogMetrics { refuses_adds, space, counters: self.counters, opening: self.opening }
    }

    /// The records whose bytes are lost, in the order of their keys. Each stays listed until the owner writes or
    /// removes it, over restarts.
    pub fn set_aside(&self) -> impl Iterator<Item = (Space, &[u8])> {
        self.live.set_aside.iter().map(|(space, key)| (*space, &**key))
    }

    /// Notes how the log was opened. From here on it takes adds.
    pub(in crate::store) fn opened(&mut self, shape: OpeningShape) {
        self.stage = LogStage::Open;
        self.chores.aim(self.spares_needed());
        self.measure();
        (self.counters, self.opening) = (LogCounters::default(), shape);
    }

    /// The bytes of all segments in use, and of the records in them that are the last of their keys.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.segments.bytes()
    }

    /// The bytes of all files, those laid out and those that wait for their removal included.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.segments.disk() + self.segments.sums() + self.retired.disk() + self.chores.spare_bytes()
    }

    // -------------------------------------------------------------------------------------------------------- writing

    /// Writes a batch. Returns the places of its bodies, `None` for a record that removes its key. The batch is durable
    /// after the next [`Log::sync`].
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoRoom`]: nothing was written, and the log takes more. Any other [`Error`]: the
    /// log takes nothing more.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<Vec<Option<Place>>, Error> {
        check_bounds(batch, self.writer.batch_bytes_max)?;
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

    /// Records for a later opening that the last batch was synced: writes an empty batch that says so, and syncs. Call
    /// it when there is nothing else to write.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn rest(&mut self) -> Result<(), Error> {
        self.guarded(|log| {
            log.sync_segment()?;
            if log.heads.numbers.unrecorded {
                match log.append_once(&RecordBatch::default()) {
                    // The next batch records it, or the next rest.
                    Err(Error::NoRoom { .. }) => {}
                    written => {
                        written?;
                        log.sync_segment()?;
                        log.heads.numbers.unrecorded = false;
                    }
                }
            }
            log.chores.rest();
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
        if let LogStage::Failed(error) = &self.stage {
            return Err(error.clone());
        }
        work(self).inspect_err(|error| {
            if !error.leaves_the_log() {
                self.stage = LogStage::Failed(error.clone());
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
        let Some(newest) = self.segments.back() else { return Err(self.disk.explain(&no_segment())) };
        let head = self.heads.of_batch(newest, self.first_segment(), table, bodies);
        let places = self.writer.write(&head, batch).map_err(|error| self.disk.explain(&error))?;
        self.note(head.length(), batch);
        Ok(places)
    }

    /// Counts a batch of this length that was written.
    fn note(&mut self, length: u64, batch: &RecordBatch) {
        let (live, removals) = self.live.wrote(batch);
        self.segments.wrote(length, live, removals);
        self.heads.numbers.unrecorded |= !batch.is_empty();
        self.heads.numbers.next += 1;
        self.chores.discard_prepared();
        if matches!(self.stage, LogStage::Open) {
            self.chores.aim(self.spares_needed());
        }
        self.counters.batches += 1;
        self.counters.bytes += length;
        self.counters.largest_batch = self.counters.largest_batch.max(length);
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
        let written = self.written();
        if self.heads.numbers.synced == written {
            return Ok(());
        }
        self.writer.sync().map_err(|error| self.disk.explain(&error))?;
        self.heads.numbers.synced = written;
        self.counters.syncs += 1;
        Ok(())
    }

    /// Writes the summaries of segments that opening has read.
    pub(in crate::store) fn summarise(&mut self, summaries: Vec<(Arc<Segment>, Summary)>) {
        summaries.into_iter().for_each(|(segment, summary)| self.summarise_one(segment.head, summary));
    }

    fn summarise_one(&mut self, segment: SegmentHead, summary: Summary) {
        self.segments.summed(segment.number, summary.bytes_max());
        self.chores.give(Chore::Summarise { segment, summary });
    }
}
