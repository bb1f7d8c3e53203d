//! Chunks: the pieces of 128 bytes in which the timers of a slot are chained.
//!
//! They live in a [`TimerPool`]. This module does not know slots, nor the order of chunks in a chain.
//!
//! ```text
//! Chunk (payloads of 8 bytes with a niche)   +0 6 deadlines   +48 6 payloads   +96 6 ids   +120 next   +124 slot
//! ChunkPosition (31 bits)                    number of the chunk: 28 | position in the chunk: 3
//! ```

#![expect(
    clippy::indexing_slicing,
    reason = "positions come from here and from the chains; a wrong one must stop the server"
)]

use super::pool::{PoolPiece, TimerPool};

/// Entries of a chunk. With payloads of 8 bytes, they and their header fill two cache lines.
pub(super) const CHUNK_ENTRIES: u32 = 6;

/// The value for "no chunk".
pub(super) const NO_CHUNK: u32 = u32::MAX;

/// Bits of a `ChunkPosition`. The bit that is left over marks ids that are free.
pub(super) const PLACE_BITS: u32 = 31;
const POSITION_BITS: u32 = 3;
/// Chunks that a `ChunkPosition` can name: 1.6 billion timers, for which the wheel alone would take 40 GB.
const CHUNKS_MAX: u32 = 1 << (PLACE_BITS - POSITION_BITS);

/// Chunks of a segment, as a power of two: 64 KiB with payloads of 8 bytes, small enough to be made without a
/// noticeable delay.
const SEGMENT_BITS: u32 = 9;

const _: () = assert!(size_of::<TimerChunk<std::num::NonZeroU64>>() == 128);
const _: () = assert!(CHUNK_ENTRIES < 1 << POSITION_BITS);

/// One timer: the arguments of `arm`, and its id.
#[derive(Debug)]
pub(super) struct Timer<T> {
    pub(super) deadline: u64,
    pub(super) payload: T,
    pub(super) id: u32,
}

/// A position in a chunk. `CHUNK_ENTRIES` is the position after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPosition(u32);

impl ChunkPosition {
    pub(super) const fn new(chunk: u32, position: u32) -> Self {
        Self(chunk << POSITION_BITS | position)
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    pub(super) const fn chunk(self) -> u32 {
        self.0 >> POSITION_BITS
    }

    pub(super) const fn position(self) -> u32 {
        self.0 & ((1 << POSITION_BITS) - 1)
    }

    /// The next position in the same chunk.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The previous position. This one is not the first of its chunk.
    pub(super) const fn previous(self) -> Self {
        Self(self.0 - 1)
    }
}

/// Some timers of one slot, in no order. An unused position holds no payload.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct TimerChunk<T> {
    deadlines: [u64; CHUNK_ENTRIES as usize],
    payloads: [Option<T>; CHUNK_ENTRIES as usize],
    ids: [u32; CHUNK_ENTRIES as usize],
    /// The next chunk of the slot, or of the free list.
    next: u32,
    /// The number of the slot.
    slot: u32,
}

impl<T> TimerChunk<T> {
    /// The number of the slot that the chunk belongs to.
    pub(super) const fn slot(&self) -> u32 {
        self.slot
    }

    /// Takes out the timer at a used position.
    pub(super) fn take_entry(&mut self, position: u32) -> Timer<T> {
        let position = position as usize;
        let Some(payload) = self.payloads[position].take() else {
            unreachable!("positions lead to timers");
        };
        Timer { deadline: self.deadlines[position], payload, id: self.ids[position] }
    }

    pub(super) fn set_entry(&mut self, position: u32, entry: Timer<T>) {
        let position = position as usize;
        self.deadlines[position] = entry.deadline;
        self.payloads[position] = Some(entry.payload);
        self.ids[position] = entry.id;
    }
}

impl<T> PoolPiece for TimerChunk<T> {
    fn empty() -> Self {
        Self {
            deadlines: [0; CHUNK_ENTRIES as usize],
            payloads: [const { None }; CHUNK_ENTRIES as usize],
            ids: [0; CHUNK_ENTRIES as usize],
            next: NO_CHUNK,
            slot: 0,
        }
    }

    fn next_free(&self) -> u32 {
        self.next
    }

    fn set_next_free(&mut self, next: u32) {
        self.next = next;
    }
}

/// All chunks, used and free.
#[derive(Debug)]
pub(super) struct Chunks<T>(TimerPool<TimerChunk<T>, SEGMENT_BITS>);

impl<T> Chunks<T> {
    pub(super) const fn new() -> Self {
        Self(TimerPool::new())
    }

    pub(super) fn get(&self, chunk: u32) -> &TimerChunk<T> {
        self.0.get(chunk)
    }

    pub(super) fn get_mut(&mut self, chunk: u32) -> &mut TimerChunk<T> {
        self.0.get_mut(chunk)
    }

    /// Takes an empty chunk for `slot`, and places it before the chunk `next`.
    pub(super) fn take(&mut self, slot: u32, next: u32) -> u32 {
        let number = self.0.take(CHUNKS_MAX);
        let chunk = self.0.get_mut(number);
        (chunk.next, chunk.slot) = (next, slot);
        number
    }

    /// Gives a chunk back. Returns the chunk that came after it.
    pub(super) fn release(&mut self, number: u32) -> u32 {
        let next = self.get(number).next;
        self.0.release(number);
        next
    }

    /// Reads the chunk that comes after `chunk`, so that it is on its way from memory when its turn comes.
    pub(super) fn touch_next(&self, chunk: u32) {
        let next = self.get(chunk).next;
        if next != NO_CHUNK {
            let next = self.get(next);
            std::hint::black_box((next.next, next.deadlines[0]));
        }
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
    fn the_two_parts_of_a_chunk_position_stay_apart() {
        let last = ChunkPosition::new(CHUNKS_MAX - 1, CHUNK_ENTRIES);
        assert_eq!(last.chunk(), CHUNKS_MAX - 1);
        assert_eq!(last.position(), CHUNK_ENTRIES);
        assert_eq!(last.previous().next(), last);
        assert_eq!(ChunkPosition::from_bits(last.bits()), last);
        assert!(last.bits() < 1 << PLACE_BITS);
    }

    #[test]
    fn the_last_chunk_released_is_the_first_one_taken() {
        let mut chunks = Chunks::<u64>::new();
        let first = chunks.take(7, NO_CHUNK);
        let second = chunks.take(7, first);
        assert_eq!(chunks.release(second), first);
        assert_eq!(chunks.release(first), NO_CHUNK);
        assert_eq!(chunks.take(8, NO_CHUNK), first);
        assert_eq!(chunks.take(9, first), second);
        assert_eq!(chunks.get(second).slot(), 9);
        assert_ne!(chunks.take(9, second), first);
    }

    #[test]
    fn chunks_do_not_move_when_storage_grows() {
        let mut chunks = Chunks::new();
        let count = u32::try_from(3 << SEGMENT_BITS).expect("a small number");
        for number in 0..count {
            let id = number;
            assert_eq!(chunks.take(number, NO_CHUNK), number);
            chunks.get_mut(number).set_entry(5, Timer { deadline: 1, payload: 2_u64, id });
        }
        assert!((0..count).all(|number| chunks.get_mut(number).take_entry(5).id == number));
    }
}
