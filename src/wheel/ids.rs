//! The table that leads from the id of a timer to its position. Free ids are chained through the same table.
//!
//! ```text
//! id ──► | 0 | position: 31   |   armed
//!        | 1 | next free: 31  |   free; all ones: the end of the list
//! ```
//! This table never looks at a timer.

#![expect(
    clippy::indexing_slicing,
    reason = "ids that come from callers are looked up with get; the others come from this table"
)]

use super::chunks::{ChunkPosition, PLACE_BITS};

/// Marks an id that is free.
const FREE: u32 = 1 << PLACE_BITS;
/// Ends the list of free ids. All ids are below it.
const NO_ID: u32 = FREE - 1;

/// Ids of a segment, as a power of two: 64 KiB, small enough to be made without a noticeable delay.
const SEGMENT_BITS: u32 = 14;
const SEGMENT_IDS: usize = 1 << SEGMENT_BITS;

/// All ids, armed and free.
#[derive(Debug)]
pub(super) struct Ids {
    segments: Vec<Box<[u32; SEGMENT_IDS]>>,
    /// Ids that were ever used. Higher ids are new.
    used: u32,
    /// Head of the list of free ids. The id that was freed last is used first, while it is in the cache.
    free: u32,
}

impl Ids {
    pub(super) const fn new() -> Self {
        Self { segments: Vec::new(), used: 0, free: NO_ID }
    }

    /// The position of an armed id. `None` if the id is free or was never used.
    pub(super) fn position(&self, id: u32) -> Option<ChunkPosition> {
        let (segment, index) = split(id);
        let word = *self.segments.get(segment)?.get(index)?;
        (word & FREE == 0).then_some(ChunkPosition::from_bits(word))
    }

    /// The timer of `id` is at this position now.
    pub(super) fn set_position(&mut self, id: u32, at: ChunkPosition) {
        let (segment, index) = split(id);
        self.segments[segment][index] = at.bits();
    }

    /// Takes an id. The caller gives it a position before any lookup.
    pub(super) fn take(&mut self) -> u32 {
        let id = if self.free == NO_ID { self.grow() } else { self.free };
        let (segment, index) = split(id);
        self.free = self.segments[segment][index] & !FREE;
        id
    }

    /// Gives an id back.
    pub(super) fn release(&mut self, id: u32) {
        let (segment, index) = split(id);
        self.segments[segment][index] = FREE | self.free;
        self.free = id;
    }

    /// An id that was never used, as a free list of its own.
    fn grow(&mut self) -> u32 {
        let id = self.used;
        assert!(id < NO_ID, "more timers than ids");
        if split(id).0 == self.segments.len() {
            self.add_segment();
        }
        self.used += 1;
        id
    }

    /// Out of line, because it takes a segment's size of stack.
    #[cold]
    #[inline(never)]
    fn add_segment(&mut self) {
        self.segments.push(Box::new([FREE | NO_ID; SEGMENT_IDS]));
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.segments.capacity() * size_of::<Box<[u32; SEGMENT_IDS]>>()
            + self.segments.len() * SEGMENT_IDS * size_of::<u32>()
    }
}

/// The segment of an id, and its index there.
const fn split(id: u32) -> (usize, usize) {
    let id = id as usize;
    (id >> SEGMENT_BITS, id & (SEGMENT_IDS - 1))
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

    #[test]
    fn the_table_grows_by_segments() {
        let mut ids = Ids::new();
        let count = u32::try_from(SEGMENT_IDS).expect("a small number") + 1;
        assert!((0..count).all(|id| ids.take() == id));
        assert_eq!(ids.segments.len(), 2);
    }

    #[test]
    fn the_bytes_are_those_of_all_segments_and_of_their_list() {
        let mut ids = Ids::new();
        assert_eq!(ids.bytes(), 0);
        let words = 4 * SEGMENT_IDS;
        ids.take();
        assert!((words + 8..words + 8 * 9).contains(&ids.bytes()), "{}", ids.bytes());
        (0..2 * SEGMENT_IDS).for_each(|_| {
            ids.take();
        });
        assert!((3 * words + 24..3 * words + 8 * 9).contains(&ids.bytes()), "{}", ids.bytes());
    }
}
