//! The segments in use, with the sums of their bytes.
//!
//! ```text
//! push ─► wrote: end, live ─► revived, replaced: live ─► freed: disk ─► cleaned ─► taken out: retired
//! ```
//! Each batch asks for the sums, so they are kept: a log may have thousands of segments. Their numbers grow, with gaps.
//!
//! This module writes and removes no file.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use crate::store::format::SECTOR;
use crate::store::segment::Segment;

/// A segment in use.
#[derive(Debug)]
pub(in crate::store) struct UsedSegment {
    pub(in crate::store) segment: Arc<Segment>,
    /// The offset behind its last batch.
    pub(in crate::store) end: u64,
    /// The bytes of the records in it that are the last of their keys.
    pub(in crate::store) live: u64,
    /// The bytes of the removals in it, which have to stay while there is an older segment.
    pub(in crate::store) removals: u64,
    /// The bytes of its blocks.
    pub(in crate::store) disk: u64,
    /// The bytes of its summary, 0 if it has none.
    pub(in crate::store) sum: u64,
    /// Whether its records are copied or dead. It stays until the head of a later segment names its number as a gap.
    pub(in crate::store) is_cleaned: bool,
    /// Whether a backup may have a link to it: its space does not come back then.
    pub(in crate::store) is_linked: bool,
}

impl UsedSegment {
    /// A segment without a batch.
    pub(in crate::store) fn new(segment: Arc<Segment>, disk: u64) -> Self {
        let end = SECTOR;
        Self { segment, end, live: 0, removals: 0, disk, sum: 0, is_cleaned: false, is_linked: false }
    }

    pub(in crate::store) fn number(&self) -> u32 {
        self.segment.head.number
    }

    /// Whether anybody but the log holds it.
    pub(in crate::store) fn is_read(&self) -> bool {
        Arc::strong_count(&self.segment) > 1
    }
}

/// The segments in use, the oldest first. The last one is being written.
#[derive(Debug, Default)]
pub(in crate::store) struct UsedSegments {
    all: VecDeque<UsedSegment>,
    /// The sums over `all`, field by field.
    end: u64,
    live: u64,
    removals: u64,
    disk: u64,
    sum: u64,
    /// The number of segments that are cleaned.
    cleaned: usize,
    /// The bytes of all records that are live, in a log of effects. Those of each segment are not known there.
    judged: Option<u64>,
}

impl UsedSegments {
    /// The bytes of all segments, and of the records in them that are the last of their keys.
    pub(in crate::store) fn bytes(&self) -> (u64, u64) {
        (self.end, self.judged.unwrap_or(self.live))
    }

    /// The bytes of the removals in all segments.
    pub(in crate::store) fn removals(&self) -> u64 {
        self.removals
    }

    /// The bytes of the blocks of all segments.
    pub(in crate::store) fn disk(&self) -> u64 {
        self.disk
    }

    /// The bytes of the summaries of all segments.
    pub(in crate::store) fn sums(&self) -> u64 {
        self.sum
    }

    /// The segment with this number gets a summary of this many bytes.
    pub(in crate::store) fn summed(&mut self, number: u32, bytes: u64) {
        let Some(at) = self.index_of(number).and_then(|index| self.all.get_mut(index)) else { return };
        self.sum = self.sum - at.sum + bytes;
        at.sum = bytes;
    }

    pub(in crate::store) fn push(&mut self, at: UsedSegment) {
        self.sum += at.sum;
        self.end += at.end;
        self.live += at.live;
        self.removals += at.removals;
        self.disk += at.disk;
        self.all.push_back(at);
    }

    pub(in crate::store) fn pop_newest(&mut self) -> Option<UsedSegment> {
        let at = self.all.pop_back();
        self.without(at)
    }

    /// The segment with this number is cleaned.
    pub(in crate::store) fn cleaned(&mut self, number: u32) {
        let found = self.index_of(number).and_then(|index| self.all.get_mut(index));
        if let Some(at) = found.filter(|at| !at.is_cleaned) {
            at.is_cleaned = true;
            self.cleaned += 1;
        }
    }

    /// The number of segments that are cleaned, and stay until the head of a later one names them.
    pub(in crate::store) fn cleaned_count(&self) -> usize {
        self.cleaned
    }

    /// A backup holds all segments, and may link the closed ones.
    pub(in crate::store) fn linked(&mut self) {
        self.all.iter_mut().for_each(|at| at.is_linked = true);
    }

    /// Asks for the segments that a backup may have links to whether one still has.
    pub(in crate::store) fn look_for_links(&mut self) {
        for at in self.all.iter_mut().filter(|at| at.is_linked && !at.is_read()) {
            let is_alone = at.segment.file().and_then(|file| file.names()).is_ok_and(|names| names == 1);
            at.is_linked = !is_alone;
        }
    }

    /// Takes the oldest segment out if it is cleaned.
    pub(in crate::store) fn pop_oldest_cleaned(&mut self) -> Option<UsedSegment> {
        let at = self.all.pop_front_if(|at| at.is_cleaned);
        self.without(at)
    }

    /// Takes out all segments that are cleaned and that nobody reads, as far as `takes` agrees.
    pub(in crate::store) fn take_cleaned(&mut self, mut takes: impl FnMut(&UsedSegment) -> bool) -> Vec<UsedSegment> {
        let (gone, stay) = self.all.drain(..).partition(|at| at.is_cleaned && !at.is_read() && takes(at));
        self.all = stay;
        let gone: VecDeque<_> = gone;
        gone.into_iter().filter_map(|at| self.without(Some(at))).collect()
    }

    fn without(&mut self, at: Option<UsedSegment>) -> Option<UsedSegment> {
        let at = at?;
        self.sum -= at.sum;
        self.end -= at.end;
        self.live -= at.live;
        self.removals -= at.removals;
        self.disk -= at.disk;
        self.cleaned -= usize::from(at.is_cleaned);
        Some(at)
    }

    fn index_of(&self, number: u32) -> Option<usize> {
        self.all.binary_search_by_key(&number, |at| at.segment.head.number).ok()
    }

    /// The segment with this number.
    pub(in crate::store) fn with_number(&self, number: u32) -> Option<&UsedSegment> {
        self.all.get(self.index_of(number)?)
    }

    /// A batch of this length was written to the newest segment. Its records take `live` bytes, and its removals
    /// `removals`.
    pub(in crate::store) fn wrote(&mut self, length: u64, live: u64, removals: u64) {
        if let Some(at) = self.all.back_mut() {
            at.end += length;
            at.live += live;
            at.removals += removals;
            self.end += length;
            self.live += live;
            self.removals += removals;
        }
    }

    /// Bytes in the segment with this number are live.
    pub(in crate::store) fn revive(&mut self, number: u32, bytes: u64) {
        let Some(at) = self.index_of(number).and_then(|index| self.all.get_mut(index)) else { return };
        at.live += bytes;
        self.live += bytes;
    }

    /// Bytes in the segment with this number are live no more.
    pub(in crate::store) fn replace(&mut self, number: u32, bytes: u64) {
        let Some(at) = self.index_of(number).and_then(|index| self.all.get_mut(index)) else { return };
        debug_assert!(at.live >= bytes, "each record is replaced once");
        let bytes = bytes.min(at.live);
        at.live -= bytes;
        self.live -= bytes;
    }

    /// So many bytes are live, wherever they are: their owner knows no places.
    pub(in crate::store) fn set_live(&mut self, bytes: u64) {
        self.judged = Some(bytes);
    }

    /// Counts nothing as live.
    pub(in crate::store) fn forget_live(&mut self) {
        self.all.iter_mut().for_each(|at| at.live = 0);
        self.live = 0;
    }

    /// Whether the sums are those of the segments.
    #[cfg(test)]
    pub(in crate::store) fn are_summed(&self) -> bool {
        let sum = |of: fn(&UsedSegment) -> u64| self.all.iter().map(of).sum::<u64>();
        let of_bytes = (sum(|at| at.end), sum(|at| at.live)) == (self.end, self.live);
        of_bytes && (sum(|at| at.disk), sum(|at| at.sum), sum(|at| at.removals)) == (self.disk, self.sum, self.removals)
    }

    /// Calls `free` for each closed segment. It returns the bytes of its blocks.
    pub(in crate::store) fn free_closed(&mut self, mut free: impl FnMut(&UsedSegment) -> u64) {
        let closed = self.all.len().saturating_sub(1);
        for at in self.all.iter_mut().take(closed) {
            let disk = free(at);
            self.disk = self.disk - at.disk + disk;
            at.disk = disk;
        }
    }
}

impl FromIterator<UsedSegment> for UsedSegments {
    fn from_iter<I: IntoIterator<Item = UsedSegment>>(segments: I) -> Self {
        let mut used = Self::default();
        segments.into_iter().for_each(|at| used.push(at));
        used
    }
}

impl Deref for UsedSegments {
    type Target = VecDeque<UsedSegment>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}
