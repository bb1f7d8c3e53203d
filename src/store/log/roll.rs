//! The next segment: it is begun when the next batch does not fit into the newest one.
//!
//! ```text
//! sync the newest segment ─► a spare gets its head, with the gaps that the cleaned segments leave ─► durable
//!   ─► the cleaned segments are retired, and become spares where some are lacking
//! ```
//! This module writes no batch.

use super::in_use::UsedSegment;
use super::writer::no_segment;
use crate::store::errors::Error;
use crate::store::failure::{Failure, failure};
use crate::store::fault::{Fault, planted};
use crate::store::format::{SECTOR, SegmentHead};
use crate::store::log::Log;
use crate::store::segment::{Segment, SpareFile, name_of, whole};
use crate::store::summary::summary_name;

impl Log {
    /// Syncs the newest segment and begins another one that has room for a batch of this length. A batch that gives a
    /// segment back may have the last spare. When the batch is on disk, nothing counts in the segment that it gives
    /// back. Otherwise the next opening begins the new segment again.
    pub(super) fn roll(&mut self, length: u64, gives_back: bool) -> Result<(), Error> {
        match planted(Fault::RotationUnsynced) {
            true => self.heads.numbers.synced = self.written(),
            false => self.sync_segment()?,
        }
        let Some(at) = self.segments.back() else { return Err(self.disk.explain(&no_segment())) };
        let (closed, number, is_empty) = (at.segment.head, at.segment.head.number, at.end == SECTOR);
        // The last batch names the oldest segment, and is synced.
        self.heads.gaps.forget_before(self.heads.keeps.unwrap_or(self.first_segment()));
        // The segments that go may make room for this one.
        self.tidy_up();
        if self.is_space_short() {
            self.segments.look_for_links();
        }
        let is_usual = self.size_for(length) == self.config.segment_bytes;
        let left = usize::from(!(is_usual && gives_back && self.is_space_short()));
        let spare = self.next_file(length, left)?;
        if is_empty {
            // The first batch does not fit: a larger file takes its place, so each segment has a batch.
            self.segments.pop_newest();
            return self.start_segment(number, spare);
        }
        let summary = self.writer.take_summary();
        self.start_segment(number + 1, spare)?;
        self.free_ends();
        if let Some(summary) = summary {
            self.summarise_one(closed, summary);
        }
        self.measure();
        self.look_at_backup();
        Ok(())
    }

    /// The size of a segment with room for a batch of this length.
    pub(in crate::store) fn size_for(&self, length: u64) -> u64 {
        self.config.segment_bytes.max(SECTOR + length)
    }

    /// A file with room for a batch of this length: a spare, of which so many others are left, or a cleaned segment.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if no space is left. Another [`Error`] ends the log.
    pub(super) fn next_file(&mut self, length: u64, left: usize) -> Result<SpareFile, Error> {
        match self.chores.take(self.size_for(length), left, self.is_space_short()) {
            Err(error) if failure(&error) == Failure::Full => match self.take_cleaned_file(length) {
                Some(cleaned) => Ok(cleaned),
                None => Err(Error::NoRoom(self.disk.files.folder.path().to_owned())),
            },
            spare => spare.map_err(|error| self.disk.explain(&error)),
        }
    }

    /// The file of a cleaned segment with room for a batch of this length. With the head of the next segment it gets its
    /// name: until then it is a file with a wrong name, which an opening knows as cleaned.
    fn take_cleaned_file(&mut self, length: u64) -> Option<SpareFile> {
        let size = self.config.segment_bytes;
        if self.size_for(length) > size {
            return None;
        }
        let fits = |at: &UsedSegment| at.is_cleaned && !at.is_read() && self.heads.gaps.has_room_for(at.number());
        let mut free = self.segments.iter().filter(|at| fits(at));
        let (number, file) = free.find_map(|at| Some((at.number(), whole(at.segment.file(), size)?)))?;
        let taken = self.segments.take_cleaned(|at| at.number() == number).pop()?;
        self.heads.gaps.add(number, taken.segment.head.first);
        // Without a summary, opening reads the segment.
        let _stays = self.disk.files.folder.remove(&summary_name(number));
        Some(SpareFile { name: name_of(number), file, size })
    }

    /// Begins a segment in this file. It and its name are durable when this returns.
    pub(super) fn start_segment(&mut self, number: u32, spare: SpareFile) -> Result<(), Error> {
        let nonce = self.disk.files.folder.nonce().map_err(|error| self.disk.explain(&error))?;
        let size = spare.size;
        let head = SegmentHead { store: self.heads.store, number, nonce, size, first: self.heads.numbers.next };
        let (gaps, gone) = self.heads.take_gaps(&mut self.segments);
        let (folder, segments) = (&self.disk.files.folder, &mut self.segments);
        // A folder may need a block for a name. Without a summary, opening reads the segment.
        let frees = &mut || {
            let summed = segments.iter().find(|at| at.sum > 0).map(UsedSegment::number);
            summed.is_some_and(|number| {
                let _stays = folder.remove(&summary_name(number));
                segments.summed(number, 0);
                true
            })
        };
        let started = Segment::start(&self.disk.files, head, &gaps, &spare, frees);
        let (segment, file) = started.map_err(|error| self.disk.explain(&error))?;
        self.writer.begin(file);
        self.named(gaps, gone);
        self.segments.push(UsedSegment::new(segment, size));
        self.remove_retired();
        Ok(())
    }
}
