//! The timers of each slot in a chain of chunks, and the map from an id to its timer.
//!
//! ```text
//! ends[slot] ──────────┐
//!                      ▼ the next entry goes here
//!              | e e e . . . | ──next──► | e e e e e e | ──next──► | e e e e e e |
//!                 ▲ only the first chunk has room
//! ids[id] ────────┘
//! ```
//! Filing appends to the first chunk, and taking takes its last entry. Both touch little memory, and emptying a slot
//! runs through whole chunks instead of hopping from timer to timer. If a timer is removed by its id, the last entry of
//! its slot fills the gap. So a chain never has more chunks than its entries need.
//!
//! Chains do not know the time, nor the meaning of a slot: the caller that files a timer gives the slot.

#![expect(clippy::indexing_slicing, reason = "there is an end for each slot that can be made")]

use super::chunks::{CHUNK_ENTRIES, ChunkPosition, Chunks, NO_CHUNK, Timer};
use super::ids::Ids;
use super::slots::{SLOTS, WheelSlot};

/// The end of an empty chain.
const EMPTY: ChunkPosition = ChunkPosition::from_bits(u32::MAX);

/// An entry that was removed from its slot.
#[derive(Debug)]
pub(super) struct RemovedTimer<T> {
    pub(super) entry: Timer<T>,
    /// Whether it was the last one of its slot.
    pub(super) emptied: bool,
}

/// All slots with their timers.
#[derive(Debug)]
pub(super) struct Chains<T> {
    /// For each slot, the position after its last entry, which is never the first position of a chunk, or `EMPTY`.
    ends: Box<[ChunkPosition; SLOTS]>,
    chunks: Chunks<T>,
    ids: Ids,
}

impl<T> Chains<T> {
    pub(super) fn new() -> Self {
        Self { ends: Box::new([EMPTY; SLOTS]), chunks: Chunks::new(), ids: Ids::new() }
    }

    /// Files a new timer and returns its id.
    pub(super) fn insert(&mut self, slot: WheelSlot, deadline: u64, payload: T) -> u32 {
        let id = self.ids.take();
        let entry = Timer { deadline, payload, id };
        self.file(slot, entry);
        id
    }

    /// Files a timer that has an id.
    pub(super) fn file(&mut self, slot: WheelSlot, entry: Timer<T>) {
        let at = self.position_for(slot);
        self.ids.set_position(entry.id, at);
        self.chunks.get_mut(at.chunk()).set_entry(at.position(), entry);
        self.ends[slot.index()] = at.next();
    }

    /// The position for the next entry of a slot: in its first chunk, or in another chunk before it.
    fn position_for(&mut self, slot: WheelSlot) -> ChunkPosition {
        let end = self.ends[slot.index()];
        let next = if end == EMPTY {
            NO_CHUNK
        } else if end.position() == CHUNK_ENTRIES {
            end.chunk()
        } else {
            return end;
        };
        ChunkPosition::new(self.chunks.take(slot.number(), next), 0)
    }

    /// Takes a timer out of a slot that is being emptied. The timer keeps its id: the caller files it again or releases
    /// the id.
    pub(super) fn take(&mut self, slot: WheelSlot) -> Option<RemovedTimer<T>> {
        let end = self.ends[slot.index()];
        if end != EMPTY && end.position() == CHUNK_ENTRIES {
            self.chunks.touch_next(end.chunk());
        }
        self.pop(slot)
    }

    /// Takes the last entry out of a slot.
    fn pop(&mut self, slot: WheelSlot) -> Option<RemovedTimer<T>> {
        let end = self.ends[slot.index()];
        if end == EMPTY {
            return None;
        }
        let last = end.previous();
        let entry = self.chunks.get_mut(last.chunk()).take_entry(last.position());
        let end = if last.position() == 0 { self.drop_first_chunk(last.chunk()) } else { last };
        self.ends[slot.index()] = end;
        Some(RemovedTimer { entry, emptied: end == EMPTY })
    }

    /// Gives back the first chunk of a chain. Returns the end of the chain that remains.
    fn drop_first_chunk(&mut self, chunk: u32) -> ChunkPosition {
        match self.chunks.release(chunk) {
            NO_CHUNK => EMPTY,
            next => ChunkPosition::new(next, CHUNK_ENTRIES),
        }
    }

    /// Takes a timer out by its id, and releases the id. `None` if no timer has the id.
    pub(super) fn remove(&mut self, id: u32) -> Option<(WheelSlot, RemovedTimer<T>)> {
        let at = self.ids.position(id)?;
        let slot = WheelSlot::from_number(self.chunks.get(at.chunk()).slot());
        let last = self.pop(slot)?;
        let taken = if last.entry.id == id { last } else { self.fill(at, last) };
        self.ids.release(id);
        Some((slot, taken))
    }

    /// Takes the timer at this position out, and puts the last timer of its slot there.
    fn fill(&mut self, at: ChunkPosition, last: RemovedTimer<T>) -> RemovedTimer<T> {
        let chunk = self.chunks.get_mut(at.chunk());
        let entry = chunk.take_entry(at.position());
        self.ids.set_position(last.entry.id, at);
        chunk.set_entry(at.position(), last.entry);
        RemovedTimer { entry, emptied: last.emptied }
    }

    /// Gives back the id of a timer that was taken.
    pub(super) fn release(&mut self, id: u32) {
        self.ids.release(id);
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.ends) + self.record_bytes()
    }

    /// Memory held for entries, in bytes.
    pub(super) fn record_bytes(&self) -> usize {
        self.chunks.bytes() + self.ids.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: WheelSlot = WheelSlot::at(1, 77);
    const OTHER: WheelSlot = WheelSlot::at(2, 77);

    fn filled(count: u64) -> (Chains<u64>, Vec<u32>) {
        let mut chains = Chains::new();
        let ids = (0..count).map(|payload| chains.insert(SLOT, 1_000 + payload, payload)).collect();
        (chains, ids)
    }

    fn drain(chains: &mut Chains<u64>, slot: WheelSlot) -> Vec<u64> {
        let mut payloads = Vec::new();
        while let Some(taken) = chains.take(slot) {
            assert_eq!(taken.entry.deadline, 1_000 + taken.entry.payload);
            chains.release(taken.entry.id);
            payloads.push(taken.entry.payload);
        }
        payloads.sort_unstable();
        payloads
    }

    #[test]
    fn the_bytes_are_those_of_the_ends_the_chunks_and_the_ids() {
        let (chains, ids) = filled(0);
        assert_eq!((chains.bytes(), ids.len()), (SLOTS * size_of::<ChunkPosition>(), 0));
        let (chains, _) = filled(1);
        assert_eq!(chains.bytes(), SLOTS * size_of::<ChunkPosition>() + chains.chunks.bytes() + chains.ids.bytes());
    }

    #[test]
    fn an_empty_slot_gives_nothing() {
        assert!(Chains::<u64>::new().take(SLOT).is_none());
    }

    #[test]
    fn emptying_a_slot_gives_each_of_its_timers_once() {
        for count in 1..40 {
            let (mut chains, _) = filled(count);
            assert!(chains.take(OTHER).is_none());
            assert_eq!(drain(&mut chains, SLOT), (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn only_the_last_timer_taken_says_that_the_slot_is_empty() {
        let (mut chains, _) = filled(13);
        let emptied: Vec<bool> = (0..13).filter_map(|_| chains.take(SLOT)).map(|taken| taken.emptied).collect();
        assert_eq!(emptied.iter().position(|&emptied| emptied), Some(12));
    }

    #[test]
    fn removing_any_timer_leaves_the_others_where_their_ids_lead() {
        for count in 1..20 {
            for removed in 0..count {
                let (mut chains, mut ids) = filled(count);
                let id = ids.swap_remove(usize::try_from(removed).expect("a small number"));
                let (slot, taken) = chains.remove(id).expect("it is armed");
                assert_eq!((slot, taken.entry.payload), (SLOT, removed));
                assert_eq!(taken.emptied, count == 1);
                assert!(chains.remove(id).is_none());
                for id in ids {
                    assert_eq!(chains.remove(id).map(|(_, taken)| taken.entry.id), Some(id));
                }
                assert!(chains.take(SLOT).is_none());
            }
        }
    }

    #[test]
    fn a_timer_that_moves_to_another_slot_is_found_by_its_id() {
        let (mut chains, ids) = filled(20);
        while let Some(taken) = chains.take(SLOT) {
            chains.file(OTHER, taken.entry);
        }
        for id in ids {
            assert_eq!(chains.remove(id).map(|(slot, _)| slot), Some(OTHER));
        }
    }

    #[test]
    fn chunks_and_ids_are_used_again() {
        let (mut chains, _) = filled(10_000);
        let mut bytes = Vec::new();
        for _ in 0..10 {
            drain(&mut chains, SLOT);
            for payload in 0..10_000 {
                chains.insert(OTHER, 1_000 + payload, payload);
            }
            drain(&mut chains, OTHER);
            for payload in 0..10_000 {
                chains.insert(SLOT, 1_000 + payload, payload);
            }
            bytes.push(chains.bytes());
        }
        assert!(bytes.iter().all(|now| bytes.first() == Some(now)), "{bytes:?}");
    }
}
