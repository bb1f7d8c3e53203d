//! Cells by number, on shelves that are made when they are first needed. A cell stays in its place for ever.
//!
//! ```text
//! number    0–63     64–127    128–255    256–511    …
//! shelf     0        1         2          3
//! ```
//! Each shelf but the first has as many cells as all shelves before it. A reader finds a cell by two loads, and takes
//! no lock.
//!
//! This module gives out no numbers.

use std::iter;
use std::sync::{Arc, OnceLock};

use crossbeam::epoch::Guard;

use super::slot::ArcCell;

/// Numbers of the first shelf, as a power of two.
const FIRST_BITS: u32 = 6;

/// The number of shelves for this many numbers, which is a power of two.
pub(super) const fn shelves_for(numbers: u32) -> usize {
    assert!(numbers.is_power_of_two() && numbers >= 1 << FIRST_BITS);
    (numbers.ilog2() - FIRST_BITS + 1) as usize
}

/// Cells for values that threads share.
pub(super) struct Shelves<T: Send + Sync + 'static, const SHELVES: usize> {
    shelves: [OnceLock<Box<[ArcCell<T>]>>; SHELVES],
}

/// The shelf of a number, and the offset of its cell there.
fn locate(number: u32) -> (usize, usize) {
    let shelf = (number >> FIRST_BITS).checked_ilog2().map_or(0, |high| high + 1);
    (shelf as usize, (number - start_of(shelf)) as usize)
}

/// The first number of a shelf.
fn start_of(shelf: u32) -> u32 {
    if shelf == 0 { 0 } else { 1 << (FIRST_BITS + shelf - 1) }
}

/// The count of numbers in a shelf.
fn len_of(shelf: usize) -> usize {
    1 << (FIRST_BITS as usize + shelf.saturating_sub(1))
}

impl<T: Send + Sync + 'static, const SHELVES: usize> Shelves<T, SHELVES> {
    pub(super) const fn new() -> Self {
        Self { shelves: [const { OnceLock::new() }; SHELVES] }
    }

    /// The cell of a number, if its shelf exists.
    #[inline]
    pub(super) fn cell(&self, number: u32) -> Option<&ArcCell<T>> {
        let (shelf, offset) = locate(number);
        self.shelves.get(shelf)?.get()?.get(offset)
    }

    /// The value of a number, for as long as the guard lives.
    #[inline]
    pub(super) fn get<'g>(&self, number: u32, guard: &'g Guard) -> Option<&'g T> {
        self.cell(number)?.get(guard)
    }

    /// The value of a number, for holders that outlive the guard.
    pub(super) fn share(&self, number: u32, guard: &Guard) -> Option<Arc<T>> {
        self.cell(number)?.share(guard)
    }

    /// Makes the shelf of a number. Returns the bytes that it takes, 0 if it was there. `None`: the number is too large.
    pub(super) fn make(&self, number: u32) -> Option<usize> {
        let (shelf, _) = locate(number);
        let mut bytes = 0;
        self.shelves.get(shelf)?.get_or_init(|| {
            bytes = len_of(shelf) * size_of::<ArcCell<T>>();
            iter::repeat_with(ArcCell::empty).take(len_of(shelf)).collect()
        });
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use crossbeam::epoch;

    use super::*;

    const SHELVES: usize = shelves_for(1 << 9);

    #[test]
    fn every_number_has_a_cell_of_its_own() {
        let mut next = (0, 0);
        for number in 0..1 << 9 {
            assert_eq!(locate(number), next, "{number}");
            next = if next.1 + 1 < len_of(next.0) { (next.0, next.1 + 1) } else { (next.0 + 1, 0) };
        }
        assert_eq!(next, (SHELVES, 0), "the shelves end with the numbers");
    }

    #[test]
    fn a_shelf_is_made_once_and_shows_what_is_put_there() {
        let shelves = Shelves::<u32, SHELVES>::new();
        let guard = epoch::pin();
        assert!(shelves.cell(64).is_none() && shelves.get(64, &guard).is_none());
        assert_eq!([64, 127, 128].map(|number| shelves.make(number)), [Some(64 * 8), Some(0), Some(128 * 8)]);
        assert_eq!(shelves.make(1 << 9), None);
        shelves.cell(127).unwrap().put(Arc::new(7), &guard);
        assert_eq!([64, 127, 0].map(|number| shelves.get(number, &guard)), [None, Some(&7), None]);
        assert_eq!(shelves.share(127, &guard).as_deref(), Some(&7));
    }
}
