//! Prefetch: the keys that are looked up next are fetched together, so that their cache misses overlap.
//!
//! A look-up is a chain of dependent loads. Look-ups of different keys do not depend on each other. A prefetch is a
//! hint to the processor: this module finds and changes no element. It remembers where the slots were seen, so that the
//! look-up need not go through the chain again.

use crossbeam::epoch::Guard;

use super::index::Place;
use super::table::Table;
use crate::limits::LOOK_AHEAD;

/// Where the slots of requests were seen. Each place is checked when it is used, so an old one does no harm.
#[derive(Debug)]
pub struct Fetched([Place; LOOK_AHEAD]);

impl Fetched {
    /// No slot was seen.
    pub(super) const NOTHING: Self = Self([Place::NONE; LOOK_AHEAD]);

    /// The place of the request with this number.
    #[inline]
    pub(super) fn place(&self, request: usize) -> Place {
        self.0.get(request).copied().unwrap_or(Place::NONE)
    }
}

/// Keys of one table that are fetched together, each with the number of its request.
pub(super) struct KeyRun<'k> {
    keys: [&'k [u8]; LOOK_AHEAD],
    requests: [usize; LOOK_AHEAD],
    length: usize,
}

impl<'k> KeyRun<'k> {
    /// Takes as many keys as one run holds.
    pub(super) fn of(keys: &mut impl Iterator<Item = (&'k [u8], usize)>) -> Self {
        let mut run = Self { keys: [&[]; LOOK_AHEAD], requests: [0; LOOK_AHEAD], length: 0 };
        for ((slot, request), (key, number)) in run.keys.iter_mut().zip(&mut run.requests).zip(keys) {
            (*slot, *request) = (key, number);
            run.length += 1;
        }
        run
    }

    /// Whether there is no second key. The cache misses of a single key overlap with no others.
    pub(super) fn is_alone(&self) -> bool {
        self.length < 2
    }

    /// Asks the processor to fetch the memory that look-ups of the keys read, and notes where their slots are.
    pub(super) fn fetch(&self, table: &Table, fetched: &mut Fetched, guard: &Guard) {
        let mut places = [Place::NONE; LOOK_AHEAD];
        table.prefetch(self.keys.get(..self.length).unwrap_or(&self.keys), &mut places, guard);
        for (place, request) in places.into_iter().zip(self.requests).take(self.length) {
            fetched.0.get_mut(request).into_iter().for_each(|noted| *noted = place);
        }
    }
}

/// The prefetch for a loop over keys.
pub(super) struct Prefetch<I> {
    /// The keys that have not been fetched yet.
    keys: I,
    fetched: Fetched,
    /// The number of fetched keys, and of those that the loop has reached.
    length: usize,
    reached: usize,
}

impl<'k, I: Iterator<Item = &'k [u8]>> Prefetch<I> {
    pub(super) fn of(keys: I) -> Self {
        Self { keys, fetched: Fetched::NOTHING, length: 0, reached: 0 }
    }

    /// Advances by one key. The loop calls it for each key before the look-up. Returns where the key's slot was seen.
    pub(super) fn step(&mut self, table: &Table, guard: &Guard) -> Place {
        if self.reached == self.length {
            let run = KeyRun::of(&mut self.keys.by_ref().zip(0..));
            (self.length, self.reached) = (run.length, 0);
            if run.is_alone() {
                self.fetched = Fetched::NOTHING;
            } else {
                run.fetch(table, &mut self.fetched, guard);
            }
        }
        let place = self.fetched.place(self.reached);
        self.reached = self.length.min(self.reached + 1);
        place
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crossbeam::epoch;

    use super::*;
    use crate::tables::tests::{settings, with_table};

    #[test]
    fn a_run_takes_as_many_keys_as_it_holds_and_knows_a_single_one() {
        let mut keys = std::iter::repeat_n((&b"key"[..], 0), LOOK_AHEAD + 2);
        let lengths = [(); 3].map(|()| KeyRun::of(&mut keys).length);
        assert_eq!(lengths, [LOOK_AHEAD, 2, 0]);
        let is_alone = |count| KeyRun::of(&mut std::iter::repeat_n((&b"key"[..], 0), count)).is_alone();
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
