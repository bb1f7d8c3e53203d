//! Segments that are no longer in use, and whose files are still there.
//!
//! This module removes no file.

use std::sync::Arc;

use super::in_use::UsedSegment;
use crate::store::fault::{Fault, planted};
use crate::store::segment::Segment;

/// A segment that is no longer in use.
#[derive(Debug)]
pub(in crate::store) struct RetiredSegment {
    pub(in crate::store) segment: Arc<Segment>,
    /// The bytes of its blocks and of its summary.
    disk: u64,
    /// The batch that names a later oldest segment. The file may go when that batch is synced.
    named_by: u64,
}

impl RetiredSegment {
    /// Whether its file may go. A reader has a clone of the segment. No reader can get one any more: it is not in use.
    fn may_go(&self, synced: u64) -> bool {
        let is_named = self.named_by <= synced || planted(Fault::RemovedEarly);
        is_named && (Arc::strong_count(&self.segment) == 1 || planted(Fault::ReadersIgnored))
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(in crate::store) struct RetiredSegments {
    all: Vec<RetiredSegment>,
    /// The sum of `disk` over `all`.
    disk: u64,
}

impl RetiredSegments {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn disk(&self) -> u64 {
        self.disk
    }

    /// A segment is no longer in use. Its file may go when the batch with this number is synced.
    pub(super) fn push(&mut self, at: UsedSegment, named_by: u64) {
        let disk = at.disk + at.sum;
        self.disk += disk;
        self.all.push(RetiredSegment { segment: at.segment, disk, named_by });
    }

    /// Takes out the segments that no synced batch needs and nobody reads.
    pub(super) fn take_unused(&mut self, synced: u64) -> Vec<RetiredSegment> {
        let unused: Vec<_> = self.all.extract_if(.., |retired| retired.may_go(synced)).collect();
        self.disk -= unused.iter().map(|retired| retired.disk).sum::<u64>();
        unused
    }

    /// Whether the sum is that of the segments.
    #[cfg(test)]
    pub(in crate::store) fn are_summed(&self) -> bool {
        self.all.iter().map(|retired| retired.disk).sum::<u64>() == self.disk
    }
}
