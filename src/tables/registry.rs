//! The registry: the map from numbers to tables. Slots carry the number of their table. A table is registered from its
//! creation until it is settled.
//!
//! A lookup takes no lock and counts no reference: the table is borrowed for as long as the guard lives. The registry
//! knows no names.
//!
//! ```text
//! number    0–63     64–127    128–255    256–511    …    2^23 – 2^24−1
//! shelf     0        1         2          3               18           made when its first number is given out
//! ```
//! Numbers are used again. A slot that may still emit a change keeps its table unsettled, and so registered. For any
//! other slot a lookup may find no table, or a younger one: see `expiry.rs`.

use std::iter;
use std::ptr;
use std::sync::{Arc, OnceLock};

use crossbeam::epoch::Guard;

use super::slot::{ArcCell, TABLE_NUMBERS};
use super::table::Table;
use crate::lock::{Mutex, MutexGuard};

/// Numbers of the first shelf, as a power of two.
const FIRST_BITS: u32 = 6;
/// The number of shelves. Each shelf but the first has as many numbers as all shelves before it.
const SHELVES: usize = (TABLE_NUMBERS.ilog2() - FIRST_BITS + 1) as usize;

const _: () = assert!(TABLE_NUMBERS.is_power_of_two());

/// Bytes of a table's cell. They count twice, because a shelf is half full on average while it fills.
pub(super) const REGISTRY_CELL_BYTES: usize = 2 * size_of::<ArcCell<Table>>();

type RegistryShelf = Box<[ArcCell<Table>]>;

pub(super) struct Registry {
    shelves: [OnceLock<RegistryShelf>; SHELVES],
    numbers: Mutex<TableNumbers>,
}

#[derive(Default)]
struct TableNumbers {
    /// Numbers from this one on were never given out.
    next: u32,
    free: Vec<u32>,
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

impl Registry {
    pub(super) fn new() -> Self {
        Self { shelves: [const { OnceLock::new() }; SHELVES], numbers: Mutex::default() }
    }

    fn numbers(&self) -> MutexGuard<'_, TableNumbers> {
        self.numbers.lock()
    }

    /// Holds the lock of the numbers: `reserve` and `leave` wait.
    #[cfg(test)]
    pub(super) fn lock(&self) -> impl Sized + '_ {
        self.numbers()
    }

    /// The cell of a number, if its shelf exists.
    fn cell(&self, number: u32) -> Option<&ArcCell<Table>> {
        let (shelf, offset) = locate(number);
        self.shelves.get(shelf)?.get()?.get(offset)
    }

    /// The table of this number.
    #[inline]
    pub(super) fn get<'g>(&self, number: u32, guard: &'g Guard) -> Option<&'g Table> {
        self.cell(number)?.get(guard)
    }

    /// The table of this number, for holders that outlive the guard.
    pub(super) fn share(&self, number: u32, guard: &Guard) -> Option<Arc<Table>> {
        self.cell(number)?.share(guard)
    }

    /// The same table, for holders that outlive the guard. `None` if it has been forgotten.
    pub(super) fn keep(&self, table: &Table, guard: &Guard) -> Option<Arc<Table>> {
        self.share(table.number(), guard).filter(|shared| ptr::eq(&raw const **shared, table))
    }

    /// Reserves a number that no registered table has, and makes its shelf. `None` if all numbers are taken.
    pub(super) fn reserve(&self) -> Option<u32> {
        let mut numbers = self.numbers();
        if let Some(number) = numbers.free.pop() {
            return Some(number);
        }
        let number = numbers.next;
        if number >= TABLE_NUMBERS {
            return None;
        }
        numbers.next += 1;
        drop(numbers);
        let (shelf, _) = locate(number);
        let make = || iter::repeat_with(ArcCell::empty).take(len_of(shelf)).collect();
        self.shelves.get(shelf)?.get_or_init(make);
        Some(number)
    }

    /// Makes a table visible under its number, which `reserve` gave out for it.
    pub(super) fn enter(&self, table: Arc<Table>, guard: &Guard) {
        let cell = self.cell(table.number()).expect("a reserved number has a cell");
        cell.put(table, guard);
    }

    /// Releases a settled table. Its number may be given out again.
    pub(super) fn leave(&self, number: u32, guard: &Guard) {
        if let Some(cell) = self.cell(number) {
            cell.clear(guard);
            self.numbers().free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_cell_of_its_own() {
        let mut next = 0;
        for shelf in 0..SHELVES {
            assert_eq!(start_of(u32::try_from(shelf).unwrap_or(0)), next);
            let last = next + u32::try_from(len_of(shelf)).unwrap_or(0) - 1;
            assert_eq!((locate(next), locate(last)), ((shelf, 0), (shelf, len_of(shelf) - 1)));
            next = last + 1;
        }
        assert_eq!(next, TABLE_NUMBERS);
    }

    #[test]
    fn numbers_are_given_out_once_until_they_come_back() {
        let registry = Registry::new();
        let guard = crossbeam::epoch::pin();
        let given: Vec<_> = (0..1_000).filter_map(|_| registry.reserve()).collect();
        assert_eq!(given, (0..1_000).collect::<Vec<_>>());
        assert!(registry.get(999, &guard).is_none() && registry.get(5_000, &guard).is_none());
        registry.leave(70, &guard);
        assert_eq!((registry.reserve(), registry.reserve()), (Some(70), Some(1_000)));
    }
}
