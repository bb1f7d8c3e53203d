//! Looking ahead: the keys that are looked up next are fetched together, so that their cache misses overlap.
//!
//! A look-up is a chain of loads that wait for each other; look-ups of different keys do not. What is fetched is a hint
//! to the processor: nothing here finds, changes or remembers an element.

use crossbeam::epoch::Guard;

use super::table::Table;
use crate::limits::LOOK_AHEAD;

/// Keys of one table that are fetched together.
pub(super) struct KeyRun<'k> {
    keys: [&'k [u8]; LOOK_AHEAD],
    length: usize,
}

impl<'k> KeyRun<'k> {
    /// As many keys as go into one run.
    pub(super) fn of(keys: &mut impl Iterator<Item = &'k [u8]>) -> Self {
        let mut run = Self { keys: [&[]; LOOK_AHEAD], length: 0 };
        for (place, key) in run.keys.iter_mut().zip(keys) {
            *place = key;
            run.length += 1;
        }
        run
    }

    /// A key that is alone has nothing to overlap with.
    pub(super) fn is_alone(&self) -> bool {
        self.length < 2
    }

    /// Has them fetched.
    pub(super) fn fetch(&self, table: &Table, guard: &Guard) {
        table.prefetch(self.keys.get(..self.length).unwrap_or(&self.keys), guard);
    }
}

/// Runs ahead of a loop over keys.
pub(super) struct Prefetch<I> {
    /// What has not been fetched yet.
    keys: I,
    /// Keys that have been fetched, and that the loop has not come to.
    left: usize,
}

impl<'k, I: Iterator<Item = &'k [u8]>> Prefetch<I> {
    pub(super) fn of(keys: I) -> Self {
        Self { keys, left: 0 }
    }

    /// To be called for each key before it is looked up.
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
