//! What the heads of segments and batches say.
//!
//! This module writes nothing.

use super::in_use::{UsedSegment, UsedSegments};
use crate::store::format::{BatchHead, Marks};
use crate::store::gaps::Gaps;

/// What the next heads say.
#[derive(Debug)]
pub(in crate::store) struct HeadState {
    pub(in crate::store) store: [u8; 16],
    pub(in crate::store) marks: Marks,
    /// The oldest segment that heads name in place of the oldest in use, as long as a repair reads older ones.
    pub(in crate::store) keeps: Option<u32>,
    /// The gaps that the head of the newest segment names.
    pub(in crate::store) gaps: Gaps,
    pub(in crate::store) numbers: BatchNumbers,
}

/// The numbers of batches.
#[derive(Debug)]
pub(in crate::store) struct BatchNumbers {
    /// The number of the next batch.
    pub(in crate::store) next: u64,
    /// The number of the last batch that is known to be on disk.
    pub(in crate::store) synced: u64,
    /// Whether a batch with records is on disk, and no head records its sync yet.
    pub(in crate::store) unrecorded: bool,
}

impl BatchNumbers {
    /// Those behind the last batch, which is on disk.
    pub(super) fn after(last: u64) -> Self {
        Self { next: last + 1, synced: last, unrecorded: false }
    }

    /// The number of the last batch that was written.
    pub(super) fn written(&self) -> u64 {
        self.next - 1
    }
}

impl HeadState {
    /// The head of a batch with a table and bodies of these bytes, at the end of this segment.
    pub(super) fn of_batch(&self, newest: &UsedSegment, oldest: u32, table: u64, bodies: u64) -> BatchHead {
        let segment = newest.segment.head;
        BatchHead {
            store: segment.store,
            nonce: segment.nonce,
            segment: segment.number,
            offset: newest.end,
            number: self.numbers.next,
            table,
            bodies,
            synced: self.numbers.synced,
            oldest: self.keeps.unwrap_or(oldest),
            marks: self.marks,
        }
    }

    /// Takes the cleaned segments for which there is room among the gaps, and adds their gaps. The state keeps its gaps
    /// until the head that names the new ones is durable.
    pub(super) fn take_gaps(&self, segments: &mut UsedSegments) -> (Gaps, Vec<UsedSegment>) {
        let mut gaps = self.gaps.clone();
        let gone = segments.take_cleaned(|at| {
            let has_room = gaps.has_room_for(at.number());
            if has_room {
                gaps.add(at.number(), at.segment.head.first);
            }
            has_room
        });
        (gaps, gone)
    }
}
