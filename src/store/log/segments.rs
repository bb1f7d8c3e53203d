//! The segments of a log: the places in them, what is live in them, and their removal.
//!
//! ```text
//! in use ─► all that counts is copied: cleaned
//!        ─► the oldest one: retired ─► the batch that says so is synced, no reader is left: removed, or a spare
//!        └► another one: the head of the next segment names it, and it is retired ─► as above
//! ```
//! A reader of a value holds its segment, and the file stays until no
//! reader is left. A backup holds all segments.
//!
//! This module writes no batch.

use std::sync::Arc;

use super::chores::Chore;
use super::cleaning::position::{EPOCHS_BEHIND, LeavingSegment};
use super::in_use::UsedSegment;
use crate::store::failure::{Failure, failure};
use crate::store::fault::{Fault, planted};
use crate::store::format::LogKind;
use crate::store::format::Space;
use crate::store::gaps::Gaps;
use crate::store::log::Log;
use crate::store::log::live::reserve_of;
use crate::store::record::{Cleaned, record_bytes};
use crate::store::segment::{Place, StoredValue, name_of, whole};

impl Log {
    /// A body that other threads can read, as long as they like. `None`: its segment is no longer in use.
    #[must_use]
    pub fn value(&self, place: Place) -> Option<StoredValue> {
        let segment = Arc::clone(&self.used(place.segment)?.segment);
        Some(StoredValue { segment, place })
    }

    /// The segment with this number.
    pub(in crate::store) fn used(&self, number: u32) -> Option<&UsedSegment> {
        self.segments.with_number(number)
    }

    /// A record with a key of this length is no longer the last of its key.
    pub fn replaced(&mut self, space: Space, place: Place, key: usize) {
        let body = u64::from(place.length);
        self.live.reserved = self.live.reserved.saturating_sub(reserve_of(space, key, body));
        self.segments.replace(place.segment, record_bytes(key, body));
    }

    /// A record is the last of its key. Opening says so of each record once.
    pub(in crate::store) fn revived(&mut self, space: Space, place: Place, key: usize) {
        let body = u64::from(place.length);
        self.live.reserved += reserve_of(space, key, body);
        self.segments.revive(place.segment, record_bytes(key, body));
    }

    /// The number of the oldest segment in use.
    pub(in crate::store) fn first_segment(&self) -> u32 {
        self.segments.front().map_or(0, |at| at.segment.head.number)
    }

    /// Heads name the oldest segment in use again. All that is needed of older ones is synced.
    pub(in crate::store) fn let_go(&mut self) {
        self.heads.keeps = None;
    }

    /// Notes the end of the copies that the next batch carries. Retires the oldest segments if they are cleaned.
    pub(in crate::store) fn retire_cleaned(&mut self, cleaned: Option<&Cleaned>) {
        let Some(cleaned) = cleaned else { return };
        self.cleaner.at = cleaned.at;
        for number in &cleaned.finished {
            self.note_cleaned(*number);
            self.cleaner.unfit.remove(number);
        }
        if planted(Fault::GapUnnamed) {
            let gone = self.segments.take_cleaned(|_| true);
            gone.into_iter().for_each(|at| self.retired.push(at, self.heads.numbers.next));
        }
        while let Some(at) = self.segments.pop_oldest_cleaned() {
            self.retired.push(at, self.heads.numbers.next);
            if planted(Fault::RemovedEarly) {
                self.remove_retired();
            }
        }
    }

    /// All that counts in this segment is in batches that are written.
    pub(in crate::store) fn note_cleaned(&mut self, number: u32) {
        match self.config.kind {
            LogKind::States => self.segments.cleaned(number),
            LogKind::Effects => self.cleaner.leaving.push_back(LeavingSegment { number, epoch: self.cleaner.epoch }),
        }
    }

    /// The owner has closed another epoch, and its batch comes next. From here on the owner may judge a record by an effect of
    /// the epoch that is open. So segments that were judged until now go with the batch of the next epoch but one.
    pub fn begin_epoch(&mut self) {
        self.cleaner.epoch += 1;
        let epoch = self.cleaner.epoch + if planted(Fault::SegmentGoneEarly) { EPOCHS_BEHIND - 1 } else { 0 };
        while let Some(leaving) = self.cleaner.leaving.pop_front_if(|leaving| leaving.epoch + EPOCHS_BEHIND <= epoch) {
            self.segments.cleaned(leaving.number);
        }
    }

    /// So many bytes of a log of effects are live.
    pub fn set_live_bytes(&mut self, bytes: u64) {
        self.segments.set_live(bytes);
    }

    /// The head that names these gaps is durable.
    pub(in crate::store) fn named(&mut self, gaps: Gaps, gone: Vec<UsedSegment>) {
        self.heads.gaps = gaps;
        gone.into_iter().for_each(|at| self.retired.push(at, self.heads.numbers.synced));
    }

    /// Whether the cleaner gets further than it is, or a segment can be retired.
    pub(in crate::store) fn advances(&self, cleaned: Option<&Cleaned>) -> bool {
        let retires = self.segments.front().is_some_and(|at| at.is_cleaned);
        cleaned.is_some_and(|cleaned| retires || cleaned.at != self.cleaner.at || !cleaned.finished.is_empty())
    }

    /// Whether a retired segment waits for its readers, or a file is being laid out. [`Log::rest`] removes the segment
    /// when they are gone, and the file if it is one too many.
    #[must_use]
    pub fn waits_for_files(&self) -> bool {
        !self.retired.is_empty() || self.chores.are_coming()
    }

    /// Removes the segments that no synced batch needs and nobody reads. Where spares are lacking, they become some.
    pub(in crate::store) fn remove_retired(&mut self) {
        for retired in self.retired.take_unused(self.heads.numbers.synced) {
            let number = retired.segment.head.number;
            let is_whole = || whole(retired.segment.file(), self.config.segment_bytes).is_some();
            let is_needed = self.chores.takes_blocks() && is_whole();
            self.chores.give(match is_needed {
                true => Chore::UseAgain { name: name_of(number) },
                false => Chore::Remove { number },
            });
            self.counters.removed += 1;
        }
    }

    /// Gives back the blocks behind the ends of closed segments, if they are many. Nothing behind a named end is read.
    /// Where space is short they stay: a cleaned segment becomes a spare.
    pub(in crate::store) fn free_ends(&mut self) {
        if !self.disk.has_holes || self.is_space_short() {
            return;
        }
        let has_holes = &mut self.disk.has_holes;
        self.segments.free_closed(|at| {
            let size = at.segment.head.size;
            let is_freed = at.disk <= at.end + size / 16;
            if is_freed {
                return at.disk;
            }
            match at.segment.file().and_then(|file| file.punch(at.end, size - at.end)) {
                Ok(()) => at.end,
                // The blocks stay, and count. Not every file system has holes.
                Err(error) => {
                    *has_holes = failure(&error) == Failure::Descriptors;
                    at.disk
                }
            }
        });
    }
}
