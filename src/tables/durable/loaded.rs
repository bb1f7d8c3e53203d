//! What is counted of loaded elements.

use super::records::{live_bytes, logged_bytes};
use crate::allocator::size_class;
use crate::feed::Digest;
use crate::tables::memory_budget::{entry_cost, signed};
use crate::tables::slot::{EntryBox, EntryRef};
use crate::tables::table::ElementTotals;

/// The sums over loaded elements.
#[derive(Clone, Debug, Default)]
pub(in crate::tables) struct LoadedTotals {
    pub(in crate::tables) sums: ElementTotals,
    /// For the feed.
    pub(in crate::tables) digest: Digest,
}

impl LoadedTotals {
    /// Counts an entry that takes the place of another one.
    pub(super) fn count(&mut self, key: &[u8], before: Option<LoadedEntry>, after: Option<LoadedEntry>) {
        let difference = |of: fn(LoadedEntry) -> i64| after.map_or(0, of) - before.map_or(0, of);
        self.sums.bytes += difference(|entry| entry.cost);
        self.sums.logged += difference(|entry| entry.logged);
        self.sums.count(before.map(|entry| entry.deadline), after.map(|entry| entry.deadline));
        before.iter().for_each(|entry| self.digest.remove(key, entry.version));
        after.iter().for_each(|entry| self.digest.add(key, entry.version));
    }
}

/// What counts of an entry.
#[derive(Clone, Copy)]
pub(super) struct LoadedEntry {
    version: u64,
    deadline: u64,
    cost: i64,
    /// Bytes of its records.
    logged: i64,
}

impl LoadedEntry {
    pub(super) fn of(entry: &EntryBox, key: &[u8]) -> Self {
        let logged = live_bytes(key.len(), entry.value_bytes(), entry.is_touched());
        Self { version: entry.version(), deadline: entry.deadline(), cost: signed(size_class(entry.bytes())), logged }
    }

    pub(super) fn of_published(entry: EntryRef<'_>, key: &[u8]) -> Self {
        let logged = logged_bytes(key, entry);
        Self { version: entry.version(), deadline: entry.deadline(), cost: entry_cost(entry), logged }
    }
}
