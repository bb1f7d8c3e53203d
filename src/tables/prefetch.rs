//! Prefetch: the keys that are looked up next are fetched together, so that their cache misses overlap.
//!
//! A look-up is a chain of dependent loads. Look-ups of different keys do not depend on each other. A prefetch is a
//! hint to the processor: this module finds, changes and remembers no element.

use crossbeam::epoch::Guard;

use super::table::Table;
use crate::limits::LOOK_AHEAD;

/// Keys of one table that are fetched together.
pub(super) struct KeyRun<'k> {
    keys: [&'k [u8]; LOOK_AHEAD],
    length: usize,
}

impl<'k> KeyRun<'k> {
    /// Takes as many keys as one run holds.
    pub(super) fn of(keys: &mut impl Iterator<Item = &'k [u8]>) -> Self {
        let mut run = Self { keys: [&[]; LOOK_AHEAD], length: 0 };
        for (slot, key) in run.keys.iter_mut().zip(keys) {
            *slot = key;
            run.length += 1;
        }
        run
    }

    /// Whether there is no second key. The cache misses of a single key overlap with no others.
    pub(super) fn is_alone(&self) -> bool {
        self.length < 2
    }

    /// Asks the processor to fetch the memory that look-ups of the keys read.
    pub(super) fn fetch(&self, table: &Table, guard: &Guard) {
        table.prefetch(self.keys.get(..self.length).unwrap_or(&self.keys), guard);
    }
}

/// The prefetch for a loop over keys.
pub(super) struct Prefetch<I> {
    /// The keys that have not been fetched yet.
    keys: I,
    /// The number of fetched keys that the loop has not reached.
    left: usize,
}

impl<'k, I: Iterator<Item = &'k [u8]>> Prefetch<I> {
    pub(super) fn of(keys: I) -> Self {
        Self { keys, left: 0 }
    }

    /// Advances by one key. The loop calls it for each key before the look-up.
    pub(super) fn step(&mut self, table: &Table, guard: &Guard) {
        if self.left == 0 {
            let run = KeyRun::of(&mut self.keys);
            if !run.is_alone() {
                run.fetch(table, guard);
            }
            self.left = run.length;
        }
        self.left = self.left.saturating_sub(1);
    }
}
