//! The rings of all writers, as the publisher reads them, and the credits that go back to them.
//!
//! This module announces nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ahash::AHashMap;

use crate::tables::change::{Change, ChangeQueue, ChangeRing};
use crate::tables::sleep_state::Urgency;
use crate::tables::slot::RingReader;

/// The publisher's record of a ring.
struct RingState {
    ring: Arc<ChangeRing>,
    changes: RingReader<Change>,
    /// Changes of this ring whose credits have been given back after they were announced.
    announced: u64,
    /// Changes taken from the ring. Those not announced are held back.
    taken: u64,
}

impl RingState {
    /// Whether the writer is gone and all its changes are announced.
    fn is_finished(&self) -> bool {
        // Acquire: pairs with the Release in the drop of `ChangeWriter`. Its pushes are visible, so an empty ring stays
        // empty.
        self.ring.abandoned.load(Ordering::Acquire) && self.ring.queue.is_empty() && self.taken == self.announced
    }
}

/// The ring that is drained.
pub(super) struct DrainedRing {
    pub(super) ring: u64,
    /// Changes that may still be taken from it.
    pub(super) left: usize,
    /// It was found empty.
    pub(super) is_dry: bool,
}

/// Announced changes whose credits have yet to be given back to a ring.
struct OwedCredits {
    ring: u64,
    changes: u64,
}

/// All rings, by their numbers.
#[derive(Default)]
pub(super) struct Rings {
    states: AHashMap<u64, RingState>,
    /// The generation of the list of rings that was read last. `None`: it is to be read again.
    generation: Option<usize>,
    /// The rings' numbers in the order in which they are served.
    order: Vec<u64>,
    /// Memory for the numbers of the rings that may have more changes to take. Empty between two drains.
    turns: Vec<u64>,
    next_number: u64,
    /// Credits that are given back at the end of the drain. Changes of one ring come in runs, so a ring may be there
    /// more than once, and the list is short.
    owed: Vec<OwedCredits>,
}

impl Rings {
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Changes that wait in all rings.
    pub(super) fn waiting(&self) -> usize {
        self.states.values().map(|state| state.ring.queue.len()).sum()
    }

    pub(super) fn waiting_in(&self, number: u64) -> usize {
        self.states.get(&number).map_or(0, |state| state.ring.queue.len())
    }

    /// The numbers of all rings, with the changes that wait in each.
    pub(super) fn all_waiting(&self) -> Vec<(u64, usize)> {
        self.order.iter().map(|number| (*number, self.waiting_in(*number))).collect()
    }

    /// Whether the changes of a ring are a reason not to sleep at this level.
    pub(super) fn are_urgent(&self, capacity: usize, level: Urgency) -> bool {
        self.states.values().any(|RingState { ring, .. }| !ring.queue.is_empty() && ring.urgency(capacity) < level)
    }

    /// Whether a writer waits for credits.
    pub(super) fn are_awaited(&self) -> bool {
        self.states.values().any(|state| state.ring.credits.is_registered())
    }

    /// The numbers of all rings, for a drain.
    pub(super) fn begin_turns(&mut self) -> Vec<u64> {
        let mut numbers = std::mem::take(&mut self.turns);
        numbers.extend_from_slice(&self.order);
        numbers
    }

    /// Keeps the memory of the numbers for the next drain.
    pub(super) fn end_turns(&mut self, mut numbers: Vec<u64>) {
        numbers.clear();
        self.turns = numbers;
    }

    /// Takes as many changes as `most` and the source allow.
    #[inline]
    pub(super) fn take(&mut self, source: &mut DrainedRing, most: usize, mut each: impl FnMut(Change)) {
        let count = most.min(source.left);
        let Some(state) = self.states.get_mut(&source.ring).filter(|_| count > 0 && !source.is_dry) else { return };
        let mut taken = 0;
        while taken < count
            && let Some(change) = state.changes.pop()
        {
            each(change);
            taken += 1;
        }
        state.taken += taken as u64;
        source.left -= taken;
        // What comes meanwhile has its turn in the next drain.
        source.is_dry = taken < count;
    }

    /// Notes that a credit goes back to this ring.
    #[inline]
    pub(super) fn owe(&mut self, ring: u64) {
        match self.owed.last_mut().filter(|owed| owed.ring == ring) {
            Some(owed) => owed.changes += 1,
            None => self.owed.push(OwedCredits { ring, changes: 1 }),
        }
    }

    /// Gives back the credits of the changes announced in this drain, and wakes the writers whose portion of credits is
    /// complete.
    pub(super) fn give_back(&mut self) {
        for OwedCredits { ring, changes } in self.owed.drain(..) {
            let Some(state) = self.states.get_mut(&ring) else { continue };
            state.announced += changes;
            if state.ring.credits.give_back(state.announced) {
                state.ring.sleeper.wake();
            }
        }
    }

    /// Adds new rings and removes finished ones.
    pub(super) fn refresh(&mut self, change_queue: &ChangeQueue) {
        // SeqCst: pairs with the additions in `ChangeQueue::writer` and in the drop of `ChangeWriter`.
        let generation = change_queue.generation.load(Ordering::SeqCst);
        if self.generation == Some(generation) {
            return;
        }
        let mut rings = change_queue.rings.lock();
        for ring in rings.iter() {
            if let Some(changes) = ring.reader.lock().take() {
                let ring = Arc::clone(ring);
                self.states.insert(self.next_number, RingState { ring, changes, announced: 0, taken: 0 });
                self.next_number += 1;
            }
        }
        rings.retain(|ring| !self.states.values().any(|state| Arc::ptr_eq(&state.ring, ring) && state.is_finished()));
        self.states.retain(|_, state| !state.is_finished());
        // While an abandoned ring still has changes, the generation is not noted, and the next drain looks again.
        // Relaxed: a writer that goes later raises the generation, so a later drain looks again.
        let all_alive = !rings.iter().any(|ring| ring.abandoned.load(Ordering::Relaxed));
        drop(rings);
        self.order = self.states.keys().copied().collect();
        self.order.sort_unstable();
        self.generation = all_alive.then_some(generation);
    }
}
