//! A walk over an index in an order that no split changes.
//!
//! # Order
//!
//! The *position* of a key is its hash with the bits in reverse order. A bucket of depth d holds the keys whose hash
//! ends in the d bits of its number. So it holds a range of positions, all those that begin with these bits in reverse
//! order. A split divides the range in two halves, one for each bucket:
//!
//! ```text
//! position      0 ─────────────────────────────────────────────────────────────────────────────► 2^64 − 1
//! one bucket    │                                      0                                        │
//! split         │                  0                   │                   1                    │
//! and again     │        0         │         2         │                   1                    │
//! ```
//! A key keeps its position as long as the table lives, whatever is split, moved, inserted or deleted. A walk goes up
//! the positions, so it meets every slot that is in the index from its beginning to its end.
//!
//! # Races
//!
//! A reading of a bucket takes no lock. It reads the depth, then the cells, then the depth again.
//!
//! - **A split.** It shows the moved slots in the new bucket, raises the depth of the old one, and then clears the old
//!   cells. A reader that has read a cell after it was cleared therefore sees the raised depth in its second reading,
//!   and reads again. If the second reading shows the same depth, no cell that was read had been cleared, and the range
//!   of that depth is complete. Slots that are still shown in the old bucket and belong to the new one are left out:
//!   their position is not in the range.
//! - **A slot that moves between lines** of its bucket (`bucket.rs`). The reader compares the shape of the bucket as well.
//!   Of two cells that show the same key one is left out.
//! - **A move.** The cell shows the old slot or the new one. The caller finds the old one Moved.
//! - **A writer that inserts a slot, or removes a dead one.** The element was not there before, or not any more. It
//!   may be met or missed.
//!
//! This module looks at no element.

use crossbeam::epoch::Guard;

use super::bucket_number::low_bits;
use super::segments::SegmentsView;
use super::{CELLS, DEPTH_MAX, Index, prefetch};
use crate::tables::failpoint::{Failpoint, reach};
use crate::tables::slot::SlotRef;

/// A view of the index for a walk.
pub(in crate::tables) struct IndexWalk<'i> {
    index: &'i Index,
    view: SegmentsView<'i>,
}

/// A slot and its position.
pub(in crate::tables) type PlacedSlot<'g> = (u64, SlotRef<'g>);

impl Index {
    pub(in crate::tables) fn walk<'i>(&'i self, guard: &'i Guard) -> IndexWalk<'i> {
        IndexWalk { index: self, view: self.segments.view(guard) }
    }
}

impl IndexWalk<'_> {
    /// Replaces `slots` by those from `position` to the end of its bucket, in the order of their positions. Returns the
    /// position behind the bucket. `None`: it is the last one.
    pub(in crate::tables) fn read<'g>(
        &self,
        position: u64,
        guard: &'g Guard,
        hash: impl Fn(&[u8]) -> u64,
        slots: &mut Vec<PlacedSlot<'g>>,
    ) -> Option<u64> {
        let last = self.read_cells(position, guard, slots);
        slots.iter().for_each(|(_, slot)| slot.prefetch());
        let next = last.checked_add(1);
        if let Some(next) = next {
            self.prefetch(next, guard);
        }
        slots.retain_mut(|(at, slot)| {
            *at = hash(slot.key()).reverse_bits();
            (position..=last).contains(at)
        });
        slots.iter().for_each(|(_, slot)| slot.prefetch_entry(guard));
        slots.sort_unstable_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.key().cmp(other.key())));
        slots.dedup_by(|(a, one), (b, other)| a == b && one.key() == other.key());
        next
    }

    /// Replaces `slots` by all of the position's bucket, with no positions yet. Returns the bucket's last position.
    fn read_cells<'g>(&self, position: u64, guard: &'g Guard, slots: &mut Vec<PlacedSlot<'g>>) -> u64 {
        let hash = position.reverse_bits();
        loop {
            let (number, bucket) = self.index.bucket(hash, &self.view);
            let depth = bucket.depth();
            debug_assert!(depth <= DEPTH_MAX, "an absent bucket is not found, and none becomes absent");
            if low_bits(hash, depth) != number {
                continue;
            }
            let shape = bucket.shape();
            reach(Failpoint::DepthRead);
            slots.clear();
            slots.reserve(CELLS);
            for (_, line) in bucket.lines(&self.index.lines, guard) {
                slots.extend(line.0.iter().filter_map(|cell| cell.get(guard)).map(|slot| (0, slot)));
                reach(Failpoint::LineRead);
            }
            if bucket.is_still(depth, shape) {
                return position | u64::MAX.checked_shr(depth.into()).unwrap_or(0);
            }
        }
    }

    /// Asks the processor to fetch the lines of a position's bucket, and the bucket behind it, if they are where most
    /// buckets are.
    fn prefetch(&self, position: u64, guard: &Guard) {
        let depth = self.index.likely_depth();
        let likely = |position: u64| self.view.bucket_at(low_bits(position.reverse_bits(), depth));
        let lines = likely(position).into_iter().flat_map(|bucket| bucket.lines(&self.index.lines, guard));
        lines.for_each(|(_, line)| prefetch(line));
        let behind =
            (1_u64 << 63).checked_shr(u32::from(depth).saturating_sub(1)).and_then(|width| position.checked_add(width));
        behind.and_then(likely).into_iter().for_each(prefetch);
    }
}
