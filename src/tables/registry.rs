//! The registry: the map from numbers to tables. Changes carry the number of their table. A table is registered from its
//! creation until it is settled.
//!
//! A lookup takes no lock and counts no reference: the table is borrowed for as long as the guard lives. The registry
//! knows no names.
//!
//! ```text
//! number ─► Shelves, which are made when the first of their numbers is given out ─► table
//! ```
//! Numbers are used again. A slot that may still emit a change keeps its table unsettled, and so registered. For any
//! other slot a lookup may find no table, or a younger one: see `expiry.rs`.

use std::ptr;
use std::sync::Arc;

use crossbeam::epoch::Guard;

use super::shelves::{Shelves, shelves_for};
use super::slot::{ArcCell, TABLE_NUMBERS};
use super::table::Table;
use crate::lock::{Mutex, MutexGuard};

/// The number of shelves for all numbers.
const SHELVES: usize = shelves_for(TABLE_NUMBERS);

/// Bytes of a table's cell. They count twice, because a shelf is half full on average while it fills.
pub(super) const REGISTRY_CELL_BYTES: usize = 2 * size_of::<ArcCell<Table>>();

pub(super) struct Registry {
    tables: Shelves<Table, SHELVES>,
    numbers: Mutex<TableNumbers>,
}

#[derive(Default)]
struct TableNumbers {
    /// Numbers from this one on were never given out.
    next: u32,
    free: Vec<u32>,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self { tables: Shelves::new(), numbers: Mutex::default() }
    }

    fn numbers(&self) -> MutexGuard<'_, TableNumbers> {
        self.numbers.lock()
    }

    /// Holds the lock of the numbers: `reserve` and `leave` wait.
    #[cfg(test)]
    pub(super) fn lock(&self) -> impl Sized + '_ {
        self.numbers()
    }

    /// Has only so many numbers left.
    #[cfg(test)]
    pub(super) fn leave_only(&self, numbers: u32) {
        self.numbers().next = TABLE_NUMBERS - numbers;
    }

    /// The table of this number.
    #[inline]
    pub(super) fn get<'g>(&self, number: u32, guard: &'g Guard) -> Option<&'g Table> {
        self.tables.get(number, guard)
    }

    /// The table of this number, for holders that outlive the guard.
    pub(super) fn share(&self, number: u32, guard: &Guard) -> Option<Arc<Table>> {
        self.tables.share(number, guard)
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
        self.tables.make(number)?;
        Some(number)
    }

    /// Makes a table visible under its number, which `reserve` gave out for it.
    pub(super) fn enter(&self, table: Arc<Table>, guard: &Guard) {
        let cell = self.tables.cell(table.number()).expect("a reserved number has a cell");
        cell.put(table, guard);
    }

    /// Releases a settled table. Its number may be given out again.
    pub(super) fn leave(&self, number: u32, guard: &Guard) {
        if let Some(cell) = self.tables.cell(number) {
            cell.clear(guard);
            self.numbers().free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
