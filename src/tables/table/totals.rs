//! The sums over the elements of a table.
//!
//! This file changes no element, but for those that have expired before a start.

use std::sync::atomic::{AtomicI64, Ordering};

use crossbeam::epoch::Guard;

use super::Table;
use crate::clock::Now;
use crate::tables::TableSummary;
use crate::tables::eviction::EvictionHand;
use crate::tables::slot::{NEVER, SlotRef, SlotState};

/// Written when an element comes, goes, or changes its size or its deadline.
#[derive(Default)]
pub(super) struct TableTotals {
    elements: AtomicI64,
    pub(super) bytes: AtomicI64,
    /// Its bytes when it was deleted.
    pub(super) leaving: AtomicI64,
    /// Elements with a deadline.
    expiring: AtomicI64,
    /// The sum of their deadlines modulo [`EARLY`], and of how often that is in them: each fits for any number of
    /// elements, and the second changes rarely.
    deadlines: [AtomicI64; 2],
    /// Written by the reaper.
    hand: EvictionHand,
    /// Bytes of the records that count of a durable table.
    logged: AtomicI64,
}

/// Totals of elements, as one thread counts them.
#[derive(Clone, Debug, Default)]
pub(in crate::tables) struct ElementTotals {
    pub(in crate::tables) elements: i64,
    pub(in crate::tables) bytes: i64,
    expiring: i64,
    early: i64,
    late: i64,
    /// Bytes of the records that count.
    pub(in crate::tables) logged: i64,
}

impl ElementTotals {
    /// Counts a change of an element. The deadlines are `None` while it is not there.
    #[inline]
    pub(in crate::tables) fn count(&mut self, before: Option<u64>, after: Option<u64>) {
        let difference =
            |of: fn(u64) -> i64, before: Option<u64>, after: Option<u64>| after.map_or(0, of) - before.map_or(0, of);
        self.elements += difference(|_| 1, before, after);
        let [before, after] = [before, after].map(|deadline| deadline.filter(|deadline| *deadline != NEVER));
        if before != after {
            self.expiring += difference(|_| 1, before, after);
            self.early += difference(|deadline| (deadline % EARLY).cast_signed(), before, after);
            self.late += difference(|deadline| (deadline / EARLY).cast_signed(), before, after);
        }
    }

    /// Adds those of another thread.
    pub(in crate::tables) fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.bytes += other.bytes;
        self.expiring += other.expiring;
        self.early += other.early;
        self.late += other.late;
        self.logged += other.logged;
    }
}

/// Milliseconds: 70 minutes.
const EARLY: u64 = 1 << 22;

impl Table {
    // Relaxed, all accesses: sums that order nothing. A reader may see the parts of one write at different times.

    /// Counts a change of an element. The deadlines are `None` while it is not there.
    pub(in crate::tables) fn count_element(&self, before: Option<u64>, after: Option<u64>) {
        let mut changed = ElementTotals::default();
        changed.count(before, after);
        self.add(&changed);
    }

    /// Whether the element of this slot has kept its value, and so has a record of its deadline apart from the value.
    pub(in crate::tables) fn is_touched(slot: SlotRef<'_>, guard: &Guard) -> bool {
        matches!(slot.load(guard).state(), SlotState::Live(entry) | SlotState::Expired(entry) if entry.is_touched())
    }

    /// Adds these totals.
    pub(in crate::tables) fn add(&self, changed: &ElementTotals) {
        let add = |total: &AtomicI64, change: i64| {
            if change != 0 {
                total.fetch_add(change, Ordering::Relaxed);
            }
        };
        let TableTotals { elements, bytes, expiring, deadlines: [early, late], logged, .. } = &*self.totals;
        add(elements, changed.elements);
        add(bytes, changed.bytes);
        add(expiring, changed.expiring);
        add(early, changed.early);
        add(late, changed.late);
        add(logged, changed.logged);
    }

    /// Counts so many more bytes of the records that count of the element of a key. While the table is copied, those are
    /// counted by the walk that it has not come to.
    pub(in crate::tables) fn count_logged(&self, key: &[u8], change: i64) {
        if change != 0 && self.durability.counts(|| self.hash(key).reverse_bits()) {
            self.totals.logged.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Nothing is recorded of its elements.
    pub(in crate::tables) fn reset_logged(&self) {
        self.totals.logged.store(0, Ordering::Relaxed);
    }

    /// Bytes of the records that count.
    pub(in crate::tables) fn logged(&self) -> i64 {
        self.totals.logged.load(Ordering::Relaxed)
    }

    /// Counts `change` bytes more for the elements.
    pub(in crate::tables) fn count_bytes(&self, change: i64) {
        self.totals.bytes.fetch_add(change, Ordering::Relaxed);
    }

    pub(in crate::tables) fn bytes(&self) -> i64 {
        self.totals.bytes.load(Ordering::Relaxed)
    }

    /// Whether some of its elements have deadlines.
    pub(in crate::tables) fn has_deadlines(&self) -> bool {
        self.totals.expiring.load(Ordering::Relaxed) > 0
    }

    /// Bytes of the elements that may be evicted. 0 if there are none.
    pub(in crate::tables) fn evictable_bytes(&self) -> i64 {
        let is_empty = self.totals.elements.load(Ordering::Relaxed) <= 0;
        if is_empty || !self.eviction.is_allowed() { 0 } else { self.bytes().max(0) }
    }

    /// Reaper: how far the eviction has come in this table.
    pub(in crate::tables) fn hand(&self) -> &EvictionHand {
        &self.totals.hand
    }

    pub(in crate::tables) fn summary(&self) -> TableSummary {
        let TableTotals { elements, expiring, deadlines, .. } = &*self.totals;
        let expiring = expiring.load(Ordering::Relaxed).max(0);
        let [early, late] = deadlines.each_ref().map(|sum| i128::from(sum.load(Ordering::Relaxed)));
        let mean = (late * i128::from(EARLY) + early) / i128::from(expiring.max(1));
        TableSummary {
            durability: self.durability.said(),
            name: self.announced_name.clone(),
            elements: u64::try_from(elements.load(Ordering::Relaxed)).unwrap_or(0),
            bytes: u64::try_from(self.bytes()).unwrap_or(0),
            expiring: expiring.unsigned_abs(),
            mean_deadline: Now::from_millis(u64::try_from(mean).unwrap_or(0)),
        }
    }
}
