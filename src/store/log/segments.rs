//! The segments of a log: the places in them, what is live in them, and their removal.
//!
//! ```text
//! in use ─► all live records copied: retired ─► the batch that says so is synced, no reader is left: removed
//! ```
//! Segments in use are numbered without a gap. A reader of a value holds its segment, and the file stays until no
//! reader is left. A backup holds all segments.
//!
//! This module writes no batch.

use std::sync::Arc;

use super::chores::Chore;
use super::in_use::UsedSegment;
use crate::store::failure::{Failure, failure};
use crate::store::fault::{Fault, planted};
use crate::store::log::{Log, RetiredSegment};
use crate::store::record::{CleanedUpTo, record_bytes, removal_bytes};
use crate::store::segment::{Place, StoredValue};

impl Log {
    /// A body that other threads can read, as long as they like. `None`: its segment is no longer in use.
    #[must_use]
    pub fn value(&self, place: Place) -> Option<StoredValue> {
        let segment = Arc::clone(&self.used(place.segment)?.segment);
        Some(StoredValue { segment, place })
    }

    /// The segment with this number. Segments in use are numbered without a gap.
    pub(in crate::store) fn used(&self, number: u32) -> Option<&UsedSegment> {
        self.segments.with_number(number)
    }

    /// A record with a key of this length is no longer the last of its key.
    pub fn replaced(&mut self, place: Place, key: usize) {
        let bytes = record_bytes(key, u64::from(place.length));
        self.reserved = self.reserved.saturating_sub(removal_bytes(key));
        self.segments.replace(place.segment, bytes);
    }

    /// A record is the last of its key. Opening says so of each record once.
    pub(in crate::store) fn revived(&mut self, place: Place, key: usize) {
        self.reserved += removal_bytes(key);
        self.segments.revive(place.segment, record_bytes(key, u64::from(place.length)));
    }

    /// The number of the oldest segment in use.
    pub(in crate::store) fn first_segment(&self) -> u32 {
        self.segments.front().map_or(0, |at| at.segment.head.number)
    }

    /// Counts nothing as live. Opening does so before it counts all records.
    pub(in crate::store) fn forget_live(&mut self) {
        self.segments.forget_live();
        self.reserved = 0;
    }

    /// Heads name the oldest segment in use again. All that is needed of older ones is synced.
    pub(in crate::store) fn let_go(&mut self) {
        self.keeps = None;
    }

    /// Retires the segments below the end of the copies that the next batch carries.
    pub(in crate::store) fn retire_cleaned(&mut self, cleaned: Option<CleanedUpTo>) {
        let Some(cleaned) = cleaned else { return };
        self.cleaner.reach(cleaned);
        while self.segments.len() > 1
            && let Some(at) = self.segments.pop_oldest_below(cleaned.segment)
        {
            let disk = at.disk + at.sum;
            self.retired_disk += disk;
            self.retired.push(RetiredSegment { segment: at.segment, disk, named_by: self.next });
            if planted(Fault::RemovedEarly) {
                self.remove_retired();
            }
        }
    }

    /// Whether the cleaner gets further than it is, or a segment can be retired.
    pub(in crate::store) fn goes_on(&self, cleaned: Option<CleanedUpTo>) -> bool {
        cleaned.is_some_and(|cleaned| cleaned > self.cleaner.reached || cleaned.segment > self.first_segment())
    }

    /// Whether a retired segment waits for its readers. [`Log::rest`] removes it when they are gone.
    #[must_use]
    pub fn waits_for_readers(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Removes the segments that no synced batch needs and nobody reads.
    pub(in crate::store) fn remove_retired(&mut self) {
        let synced = self.synced;
        let chores = &mut self.chores;
        let (counters, retired_disk) = (&mut self.counters, &mut self.retired_disk);
        self.retired.retain(|retired| {
            // A reader has a clone. No reader can get one any more: the segment is not in use.
            let is_named = retired.named_by <= synced || planted(Fault::RemovedEarly);
            let goes = is_named && (Arc::strong_count(&retired.segment) == 1 || planted(Fault::ReadersIgnored));
            if goes {
                chores.give(Chore::Remove { number: retired.segment.head.number });
                counters.removed += 1;
                *retired_disk -= retired.disk;
            }
            !goes
        });
    }

    /// Gives back the blocks behind the ends of closed segments, if they are many. Nothing behind a named end is read.
    pub(in crate::store) fn free_ends(&mut self) {
        if !self.has_holes {
            return;
        }
        let has_holes = &mut self.has_holes;
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
