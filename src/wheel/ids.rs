//! The table that leads from the id of a timer to its position. Free ids are chained through the same table.
//!
//! ```text
//! id ──► | 0 | position: 31   |   armed
//!        | 1 | next free: 31  |   free; all ones: the end of the list
//! ```
//! This table never looks at a timer.

use super::chunks::{ChunkPosition, PLACE_BITS};
use super::pool::{PoolPiece, TimerPool};

/// Marks an id that is free.
const FREE: u32 = 1 << PLACE_BITS;
/// All ids are below it.
const IDS_MAX: u32 = FREE - 1;

/// Ids of a segment, as a power of two: 64 KiB, small enough to be made without a noticeable delay.
const SEGMENT_BITS: u32 = 14;

/// A word of the table.
#[derive(Debug)]
struct IdWord(u32);

impl PoolPiece for IdWord {
    fn empty() -> Self {
        Self(FREE)
    }

    fn next_free(&self) -> u32 {
        self.0 & !FREE
    }

    fn set_next_free(&mut self, next: u32) {
        self.0 = FREE | next;
    }
}

/// All ids, armed and free.
#[derive(Debug)]
pub(super) struct Ids(TimerPool<IdWord, SEGMENT_BITS>);

impl Ids {
    pub(super) const fn new() -> Self {
        Self(TimerPool::new())
    }

    /// The position of an armed id. `None` if the id is free or was never used.
    pub(super) fn position(&self, id: u32) -> Option<ChunkPosition> {
        let IdWord(word) = *self.0.look_for(id)?;
        (word & FREE == 0).then_some(ChunkPosition::from_bits(word))
    }

    /// The timer of `id` is at this position now.
    pub(super) fn set_position(&mut self, id: u32, at: ChunkPosition) {
        self.0.get_mut(id).0 = at.bits();
    }

    /// Takes an id. The caller gives it a position before any lookup.
    pub(super) fn take(&mut self) -> u32 {
        self.0.take(IDS_MAX)
    }

    /// Gives an id back.
    pub(super) fn release(&mut self, id: u32) {
        self.0.release(id);
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_free_or_were_never_used_have_no_position() {
        let mut ids = Ids::new();
        assert_eq!(ids.position(0), None);
        let id = ids.take();
        ids.set_position(id, ChunkPosition::new(5, 3));
        assert_eq!(ids.position(id), Some(ChunkPosition::new(5, 3)));
        ids.release(id);
        assert_eq!(ids.position(id), None);
        assert_eq!(ids.position(id + 1), None);
        assert_eq!(ids.position(u32::MAX), None);
    }

    #[test]
    fn the_last_id_released_is_the_first_one_taken() {
        let mut ids = Ids::new();
        let taken = [ids.take(), ids.take(), ids.take()];
        assert_eq!(taken, [0, 1, 2]);
        ids.release(1);
        ids.release(2);
        assert_eq!([ids.take(), ids.take(), ids.take()], [2, 1, 3]);
    }
}
