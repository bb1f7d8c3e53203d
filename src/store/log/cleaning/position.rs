//! The position of the cleaner in an old segment, and how much it copies.
//!
//! Space is bounded by the ratio of used to live bytes: nothing is copied below twice the live bytes, unless the log is
//! idle. Above, each batch carries copies in proportion to its own bytes, and more of them towards three times the live
//! bytes. A bound of the folder lowers both.
//!
//! This module copies nothing; see `copies.rs`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::store::errors::Error;
use crate::store::format::{BATCH_HEAD, BatchHead, SECTOR, Space, index};
use crate::store::record::CleanedUpTo;
use crate::store::segment::{Place, Segment};
use crate::store::table::BatchTable;

/// The bytes of copies in any batch. More would delay its sync.
pub(in crate::store) const COPY_BYTES_MAX: u64 = 4 << 20;
/// The largest ratio of the bytes of copies to the bytes of a batch.
pub(in crate::store) const SHARE_MAX: u64 = 16;

/// A cleaned segment of a log of effects goes with the batch so many epochs later. While its records were judged, the next
/// epoch was open. So all changes that made its records dead are in the next epoch at the latest.
pub(in crate::store) const EPOCHS_BEHIND: u64 = 2;

/// The longest pause of a cleaner that could not read, in batches.
const PAUSE_MAX: u32 = 64;

/// A part of a segment whose table cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableRange {
    /// The number of the segment.
    pub segment: u32,
    /// The offset of its first byte.
    pub from: u64,
    /// The offset behind its last byte.
    pub to: u64,
}

impl UnreadableRange {
    /// Whether a body at this place stands in it.
    #[must_use]
    pub fn contains(&self, place: Place) -> bool {
        // A body without bytes may stand behind the last one.
        place.segment == self.segment && (self.from + 1..=self.to).contains(&u64::from(place.offset))
    }
}

/// A record of an old segment.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct OldRecord<'b> {
    pub(in crate::store) space: Space,
    pub(in crate::store) key: &'b [u8],
    /// `None` if it removes its key.
    pub(in crate::store) place: Option<Place>,
}

/// A batch of an old segment.
#[derive(Debug)]
pub(in crate::store) struct OldBatch {
    pub(in crate::store) segment: u32,
    pub(in crate::store) offset: u64,
    /// The offset of the next batch.
    pub(in crate::store) next: u64,
    records: OldRecords,
    /// The bytes that were read.
    pub(in crate::store) read: u64,
    /// Whether it cannot be read.
    pub(in crate::store) is_damaged: bool,
}

/// The records of a batch of an old segment.
#[derive(Debug, Default)]
struct OldRecords {
    /// The keys of all.
    keys: Vec<u8>,
    all: Vec<OldRecordAt>,
}

/// A record, and where its key ends.
#[derive(Clone, Copy, Debug)]
struct OldRecordAt {
    space: Space,
    key_end: u32,
    place: Option<Place>,
}

impl OldRecords {
    fn with_room(records: usize, keys: usize) -> Self {
        Self { keys: Vec::with_capacity(keys), all: Vec::with_capacity(records) }
    }

    fn push(&mut self, OldRecord { space, key, place }: OldRecord<'_>) {
        self.keys.extend_from_slice(key);
        // A table has less than 4 GiB.
        let key_end = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.all.push(OldRecordAt { space, key_end, place });
    }

    /// The records from this one on.
    fn from(&self, first: usize) -> impl Iterator<Item = OldRecord<'_>> {
        let before = first.checked_sub(1).and_then(|before| self.all.get(before));
        let mut begin = before.map_or(0, |before| before.key_end as usize);
        self.all.get(first..).unwrap_or_default().iter().map(move |&OldRecordAt { space, key_end, place }| {
            let key = self.keys.get(begin..key_end as usize).unwrap_or_default();
            begin = key_end as usize;
            OldRecord { space, key, place }
        })
    }
}

impl OldBatch {
    /// A part of a segment that cannot be read, up to the next batch.
    pub(super) fn damaged(segment: u32, offset: u64, next: u64) -> Self {
        let records = OldRecords::default();
        Self { segment, offset, next, records, read: next - offset, is_damaged: true }
    }

    /// Its records from this one on.
    pub(super) fn records_from(&self, first: usize) -> impl Iterator<Item = OldRecord<'_>> {
        self.records.from(first)
    }
}

/// The position in an old segment.
#[derive(Debug, Default)]
pub(in crate::store) struct Cleaner {
    /// `None`: no segment is begun.
    pub(in crate::store) at: Option<CleanedUpTo>,
    /// The batch that was last read.
    pub(in crate::store) batch: Option<OldBatch>,
    /// Segments with a table that cannot be read. Removals may stand in it, so they are cleaned as the oldest ones alone.
    pub(in crate::store) unfit: BTreeSet<u32>,
    /// The pause since a segment could not be read.
    pub(in crate::store) pause: Pause,
    /// The number of epochs that the owner has closed, in a log of effects.
    pub(in crate::store) epoch: u64,
    /// Segments that are cleaned, the oldest first, and go in a later epoch.
    pub(in crate::store) leaving: VecDeque<LeavingSegment>,
}

/// A segment that was cleaned in this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct LeavingSegment {
    pub(in crate::store) number: u32,
    pub(in crate::store) epoch: u64,
}

/// The pause of a cleaner that could not read, in batches: 1, 2, 4 … [`PAUSE_MAX`]. An idle log counts its looks.
#[derive(Debug, Default)]
pub(in crate::store) struct Pause {
    length: u32,
    left: u32,
}

impl Pause {
    /// A read has failed for a reason that may pass.
    pub(in crate::store) fn begin(&mut self) {
        self.length = (2 * self.length).clamp(1, PAUSE_MAX);
        self.left = self.length;
    }

    /// Reads succeed again.
    pub(in crate::store) fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether this batch is part of the pause.
    pub(in crate::store) fn covers_batch(&mut self) -> bool {
        let is_covered = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_covered
    }

    /// Whether the last read has failed.
    pub(in crate::store) fn is_on(&self) -> bool {
        self.length > 0
    }
}

/// The reason to clean, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Pressure {
    /// The bytes of batches above those that the log may have.
    pub(in crate::store) excess: u64,
    /// The excess from which on the share of copies is the largest.
    range: u64,
}

impl Pressure {
    /// The pressure of a log with so many bytes used and live. `slack` is no reason to clean, and the log had better
    /// not use more than `most`.
    pub(in crate::store) fn of(used: u64, live: u64, slack: u64, most: u64) -> Self {
        let free_running = live.saturating_mul(2).saturating_add(slack);
        // Below this the copies would cost more than they give back.
        let bounded = most.max(live.saturating_add(live / 8).saturating_add(slack / 2));
        let (least, range) = match bounded < free_running {
            true => (bounded, slack),
            false => (free_running, live.max(slack)),
        };
        Self { excess: used.saturating_sub(least), range }
    }

    /// The bytes of copies that a batch of `own` bytes carries.
    pub(in crate::store) fn copy_budget(self, own: u64) -> u64 {
        if self.excess == 0 {
            return 0;
        }
        // One for one at the bound, SHARE_MAX for one at the end of the range.
        let share = 1 + (SHARE_MAX - 1) * self.excess.min(self.range) / self.range.max(1);
        own.saturating_mul(share).min(COPY_BYTES_MAX)
    }
}

/// The batch at this offset. `None`: its head or its table is damaged.
///
/// # Errors
/// [`Error::Unread`]: it cannot be read at present.
pub(in crate::store) fn read_batch(segment: &Arc<Segment>, offset: u64) -> Result<Option<OldBatch>, Error> {
    let Some(bytes) = segment.read_if_there(offset, BATCH_HEAD)? else { return Ok(None) };
    let Some(head) = BatchHead::decode(&bytes, &segment.head, offset) else { return Ok(None) };
    let Some(table) = segment.read_if_there(head.table_at(), index(head.table))? else { return Ok(None) };
    let table = BatchTable::new(&head, &table);
    // With a damaged piece the owner writes its records of all places in this batch again, and none is lost.
    let Some(found) = table.records().ok().filter(|found| found.damaged.is_empty()) else { return Ok(None) };
    let (bodies, number) = (head.bodies_at(), segment.head.number);
    let mut records = OldRecords::with_room(found.records.len(), index(head.table));
    for (record, at) in &found.records {
        let place = Place::of_record(record, number, bodies + at);
        records.push(OldRecord { space: record.space, key: record.key, place });
    }
    let (read, next) = (BATCH_HEAD as u64 + head.table, offset + head.length());
    Ok(Some(OldBatch { segment: number, offset, next, records, read, is_damaged: false }))
}

/// The offset of the first batch from this offset on whose head is right, `end` if there is none.
///
/// # Errors
/// As [`read_batch`].
pub(in crate::store) fn next_batch(segment: &Arc<Segment>, mut offset: u64, end: u64) -> Result<u64, Error> {
    while offset < end {
        let bytes = segment.read_if_there(offset, BATCH_HEAD)?;
        if bytes.is_some_and(|bytes| BatchHead::decode(&bytes, &segment.head, offset).is_some()) {
            return Ok(offset);
        }
        offset += SECTOR;
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copies_of_a_batch_are_bounded() {
        assert_eq!(Pressure::of(u64::MAX, 0, 1, u64::MAX).copy_budget(1 << 30), COPY_BYTES_MAX);
        assert_eq!(Pressure::of(2000, 1000, 0, u64::MAX).copy_budget(512), 0);
        assert_eq!(Pressure::of(3000, 1000, 0, u64::MAX).copy_budget(512), 512 * SHARE_MAX);
    }

    #[test]
    fn a_bound_of_the_folder_is_a_reason_to_clean_before_twice_the_live_bytes() {
        assert_eq!(Pressure::of(1500, 1000, 100, 2000).excess, 0);
        assert_eq!(Pressure::of(1500, 1000, 100, 1300).excess, 200);
        assert_eq!(Pressure::of(1500, 1000, 100, 0).excess, 1500 - 1000 - 125 - 50);
    }
}
