//! The want of space for a segment, and the pause before a segment is laid out again.
//!
//! This module lays nothing out.

/// A segment that could not be laid out is tried again after this many syncs, whatever the file system says of its
/// space: a quota does not show there.
const SYNCS_UNTIL_RETRY: u32 = 1000;

/// Whether the file system lacks space for a segment, and when to try again.
#[derive(Debug, Default)]
pub(super) struct SpaceLack {
    /// The syncs since a lay-out has failed for want of space. `None`: the last one has succeeded.
    syncs: Option<u32>,
    /// The free bytes of the file system when a lay-out was last tried again.
    tried_at: Option<u64>,
}

impl SpaceLack {
    pub(super) fn is_on(&self) -> bool {
        self.syncs.is_some()
    }

    /// A segment cannot be laid out.
    pub(super) fn begin(&mut self) {
        self.syncs = Some(0);
    }

    /// Counts a sync. Whether a segment is to be laid out now: until one is, there is no room for adds.
    pub(super) fn ends_wait(&mut self, free: u64, segment_bytes: u64) -> bool {
        let syncs = self.syncs.map_or(0, |syncs| syncs + 1);
        // Where a quota is used up, free bytes are no room. A change of them may come with a change of the quota.
        let is_other = self.tried_at.is_none_or(|at| at.abs_diff(free) >= segment_bytes / 2);
        let tries = is_other && free >= segment_bytes || syncs >= SYNCS_UNTIL_RETRY;
        if tries {
            self.tried_at = Some(free);
        }
        self.syncs = Some(if tries { 0 } else { syncs });
        tries
    }

    /// No segment is missing.
    pub(super) fn end_wait(&mut self) {
        self.syncs = None;
    }
}
