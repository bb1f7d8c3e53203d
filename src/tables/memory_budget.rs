//! The cost of the elements, and the check that there is room for more.
//!
//! Costs are the bytes that an allocator really takes: sizes are rounded up to its classes, and the index and the wheel
//! count. The `compactor` measures the memory that the process has beyond that. This excess counts against the limit as
//! well: memory that was replaced and is not given back yet, and holes between elements.
//!
//! ```text
//! element = slot (header 32 + key) + entry (header 16 + value) + a wheel record if it has a TTL
//! table   = its structure, its names, and its index, as large as it ever was: buckets stay when their elements go
//! ```
//! The index is charged as it grows, after the fact. An insert may exceed the limit by the segments, of 8 KiB, that its
//! splits need, and the next insert is refused. An UPDATE_MANY is admitted as a whole. It may exceed the limit by the
//! segments of all its inserts, seldom more than ten.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use super::slot::{ENTRY_HEADER_BYTES, SLOT_HEADER_BYTES};
use crate::allocator::size_class;

/// Bytes of a record of the wheel, with its share of half-filled chunks.
pub(super) const TIMER_BYTES: i64 = 32;
/// A session keeps back at most the limit divided by this before it writes to the shared budget.
const SLACK_SHARE: i64 = 1024;
/// A session keeps back at most this many bytes.
const SLACK_BYTES_MAX: i64 = 64 << 10;

/// The cost of a slot with a key of this length, in bytes.
pub(super) fn slot_bytes(key_bytes: usize) -> i64 {
    signed(size_class(SLOT_HEADER_BYTES + key_bytes))
}

/// The cost of an entry with a value of this length, in bytes.
pub(super) fn entry_bytes(value_bytes: usize) -> i64 {
    signed(size_class(ENTRY_HEADER_BYTES + value_bytes))
}

/// Bytes as a signed number, which a difference of two counts needs.
pub(super) fn signed(bytes: impl TryInto<i64>) -> i64 {
    bytes.try_into().unwrap_or(i64::MAX)
}

/// The shared budget of all tables.
pub(super) struct MemoryBudget {
    used: CachePadded<AtomicI64>,
    /// Records of the wheel. Written by the expiry thread when the number has changed; read with `used`.
    timers: CachePadded<AtomicU64>,
    /// Bytes that the process has beyond the budget. Written by the compactor when they have changed; read with `used`.
    excess: CachePadded<AtomicI64>,
    limit: i64,
    slack: i64,
}

impl MemoryBudget {
    pub(super) fn new(limit: u64) -> Self {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Self {
            used: CachePadded::new(AtomicI64::new(0)),
            timers: CachePadded::new(AtomicU64::new(0)),
            excess: CachePadded::new(AtomicI64::new(0)),
            limit,
            slack: (limit / SLACK_SHARE).min(SLACK_BYTES_MAX),
        }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> i64 {
        let timers = i64::try_from(self.timers.load(Ordering::Relaxed)).unwrap_or(0);
        self.used.load(Ordering::Relaxed) + timers * TIMER_BYTES
    }

    /// Bytes that the process has beyond those in use.
    pub(super) fn excess(&self) -> i64 {
        self.excess.load(Ordering::Relaxed)
    }

    pub(super) fn set_excess(&self, bytes: i64) {
        // Relaxed: as in `set_timers`.
        if self.excess() != bytes {
            self.excess.store(bytes, Ordering::Relaxed);
        }
    }

    /// All bytes that count against the limit.
    pub(super) fn taken(&self) -> i64 {
        self.used() + self.excess()
    }

    /// The wheel holds `timers` records.
    pub(super) fn set_timers(&self, timers: u64) {
        // Relaxed: one number, with one writer. Each write that needs room reads it, so it is written only when it
        // changes.
        if self.timers.load(Ordering::Relaxed) != timers {
            self.timers.store(timers, Ordering::Relaxed);
        }
    }

    pub(super) fn timers(&self) -> u64 {
        self.timers.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> i64 {
        self.limit
    }
}

/// Whether an allocation fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryRoom {
    /// It fits.
    Enough,
    /// It would fit if the process had no more memory than the budget says.
    Blocked,
    /// It does not fit.
    None,
}

/// One thread's part of the budget. It gathers changes and writes them to the shared budget now and then.
#[derive(Default)]
pub(super) struct LocalBudget {
    kept: i64,
}

impl LocalBudget {
    /// Whether `bytes` more fit.
    #[inline]
    pub(super) fn room(&self, memory_budget: &MemoryBudget, bytes: i64) -> MemoryRoom {
        if bytes <= 0 || memory_budget.taken() + self.kept + bytes <= memory_budget.limit {
            MemoryRoom::Enough
        } else if memory_budget.used() + self.kept + bytes <= memory_budget.limit {
            MemoryRoom::Blocked
        } else {
            MemoryRoom::None
        }
    }

    /// `bytes` more are in use.
    pub(super) fn add(&mut self, memory_budget: &MemoryBudget, bytes: i64) {
        if bytes == 0 {
            return;
        }
        self.kept += bytes;
        if self.kept.abs() > memory_budget.slack {
            self.settle(memory_budget);
        }
    }

    /// Writes the bytes that were kept back to the shared budget.
    pub(super) fn settle(&mut self, memory_budget: &MemoryBudget) {
        memory_budget.used.fetch_add(self.kept, Ordering::Relaxed);
        self.kept = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_admits_exactly_what_fits() {
        let memory_budget = MemoryBudget::new(1000);
        let mut local_budget = LocalBudget::default();
        local_budget.add(&memory_budget, 900);
        assert_eq!(local_budget.room(&memory_budget, 100), MemoryRoom::Enough);
        assert_eq!(local_budget.room(&memory_budget, 101), MemoryRoom::None);
        memory_budget.set_excess(50);
        assert_eq!(
            (local_budget.room(&memory_budget, 50), local_budget.room(&memory_budget, 51)),
            (MemoryRoom::Enough, MemoryRoom::Blocked)
        );
        memory_budget.set_excess(5_000);
        assert_eq!(local_budget.room(&memory_budget, -1), MemoryRoom::Enough, "what shrinks always fits");
    }

    #[test]
    fn what_a_session_keeps_back_is_bounded() {
        let memory_budget = MemoryBudget::new(1 << 30);
        let mut local_budget = LocalBudget::default();
        for _ in 0..1000 {
            local_budget.add(&memory_budget, 1000);
        }
        assert!((memory_budget.used() - 1_000_000).abs() <= SLACK_BYTES_MAX);
        local_budget.settle(&memory_budget);
        assert_eq!(memory_budget.used(), 1_000_000);
    }

    #[test]
    fn timers_count() {
        let memory_budget = MemoryBudget::new(1 << 20);
        memory_budget.set_timers(10);
        assert_eq!(memory_budget.used(), 10 * TIMER_BYTES);
    }

    #[test]
    fn a_session_keeps_back_a_share_of_the_limit_and_no_more() {
        for (limit, slack) in [(1 << 20, 1 << 10), (1 << 40, 64 << 10)] {
            let memory_budget = MemoryBudget::new(limit);
            let mut local_budget = LocalBudget::default();
            local_budget.add(&memory_budget, slack);
            assert_eq!(memory_budget.used(), 0);
            local_budget.add(&memory_budget, 1);
            assert_eq!(memory_budget.used(), slack + 1);
        }
    }

    #[test]
    fn bytes_that_a_session_keeps_back_take_room_for_it() {
        let memory_budget = MemoryBudget::new(1 << 20);
        let mut local_budget = LocalBudget::default();
        local_budget.add(&memory_budget, 1_000);
        memory_budget.set_excess(1);
        let room = (1 << 20) - 1_000;
        assert_eq!(local_budget.room(&memory_budget, room), MemoryRoom::Blocked);
        assert_eq!(local_budget.room(&memory_budget, room + 1), MemoryRoom::None);
    }
}
