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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crossbeam::epoch;

    use super::*;
    use crate::tables::trials::{settings, with_table};

    #[test]
    fn a_run_takes_as_many_keys_as_it_holds_and_knows_a_single_one() {
        let mut keys = std::iter::repeat_n(&b"key"[..], LOOK_AHEAD + 2);
        let lengths = [(); 3].map(|()| KeyRun::of(&mut keys).length);
        assert_eq!(lengths, [LOOK_AHEAD, 2, 0]);
        let is_alone = |count| KeyRun::of(&mut std::iter::repeat_n(&b"key"[..], count)).is_alone();
        assert_eq!([0, 1, 2, LOOK_AHEAD].map(is_alone), [true, true, false, false]);
    }

    #[test]
    fn a_loop_takes_the_next_keys_when_it_has_reached_all_that_are_fetched() {
        let taken = Cell::new(0);
        let count = 2 * LOOK_AHEAD + 1;
        let keys = std::iter::repeat_n(&b"key"[..], count).inspect(|_| taken.set(taken.get() + 1));
        let mut ahead = Prefetch::of(keys);
        let (tables, _background) = with_table(settings());
        let guard = epoch::pin();
        let table = tables.0.catalog.find(b"t", &guard).expect("it was created");
        for reached in 0..count {
            ahead.step(table, &guard);
            assert_eq!(taken.get(), count.min((reached / LOOK_AHEAD + 1) * LOOK_AHEAD), "at key {reached}");
        }
    }
}
