//! The cost of the elements, and the check that there is room for more.
//!
//! Costs are the bytes that an allocator really takes: sizes are rounded up to its classes, and the index and the wheel
//! count. The `compactor` measures the memory that the process has beyond that. This excess counts against the limit as
//! well: memory that was replaced and is not given back yet, and holes between elements.
//!
//! # Between two looks
//!
//! A write allocates more than the budget grows: memory that was replaced or deleted is free only later, and for
//! elements of other sizes later still. So the budget takes the excess of the last look and adds the bytes retired
//! since then, which all may still be there. The next look shows the truth.
//!
//! ```text
//! resident, at most = resident at the look + growth of `used` + bytes retired since    all three without the slack
//!                   = used + excess at the look + bytes retired since                  must be within the limit
//! ```
//! - **A write that takes more room** is admitted only if this sum stays within the limit. If the excess at the look
//!   would admit it, it waits for the next look ([`MemoryRoom::Unknown`]).
//! - **A write that takes no more room**, a replacement, is always admitted. But when the sum is beyond the limit, and
//!   the threads together have retired an [allowance](ALLOWANCE_SHARE) since the look, or so much is not freed yet,
//!   then a thread that has flushed its garbage makes no such write before the next look.
//!
//! So until the next look the process grows beyond the limit and its slack by an allowance at most, and by the bytes
//! that each thread keeps back, of 96 KiB, and one request. Deletions allocate no memory, and continue.
//!
//!
//! ```text
//! element = slot (header 16 + key) + entry (header 16 + value)
//!           if it has a TTL: + deadline part (16 in the slot, more outside it) + a wheel record
//! table   = its structure, its names, and its index, as large as it ever was: buckets stay when their elements go
//! ```
//! The index is charged as it grows, after the fact. An insert may exceed the limit by the groups of buckets that its
//! splits need, and the next insert is refused. An UPDATE_MANY is admitted as a whole. It may exceed the limit by the
//! groups of all its inserts, of 1.5 KiB.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam::utils::CachePadded;

use super::garbage::GarbageCounts;
use super::slot::{ENTRY_HEADER_BYTES, EXTENSION_BYTES, EntryRef, NEVER, SlotRef, bytes_of_slot};
use crate::allocator::size_class;
use crate::clock::Now;

/// Bytes of a record of the wheel, with its share of half-filled chunks.
pub(super) const TIMER_BYTES: i64 = 32;
/// Bytes of the part of a slot that it gets with its first deadline.
pub(super) const EXTENSION_COST: i64 = EXTENSION_BYTES;
/// Bytes of the wheel that count for no record: of pieces that it keeps for the next ones.
const WHEEL_SPARE_BYTES: usize = 256 << 10;
/// A session keeps back at most the limit divided by this before it writes to the shared budget.
const SLACK_SHARE: i64 = 1024;
/// A session keeps back at most this many bytes.
const SLACK_BYTES_MAX: i64 = 64 << 10;
/// The limit divided by this is the allowance: bytes that all threads together may retire beyond the limit until the
/// compactor has to look again. As much as one of its passes moves.
const ALLOWANCE_SHARE: i64 = 32;
/// The largest allowance, in bytes. A thread that replaces a GiB a second has the compactor look each 8 ms then.
const ALLOWANCE_BYTES_MAX: i64 = 8 << 20;
/// The limit divided by this is the reserve: bytes that the eviction keeps free. It evicts while they are taken, and a
/// look follows. Writers wait if they take the whole reserve in the meantime.
const RESERVE_SHARE: i64 = 32;
/// The largest reserve, in bytes: what a thread takes in a tenth of a second that stores 160 MiB in each.
const RESERVE_BYTES_MAX: i64 = 16 << 20;
/// A session that rests keeps nothing back for longer than that.
const SETTLE_AFTER: Duration = Duration::from_millis(100);
/// `excess_base` while there are no looks: whatever is retired adds nothing.
const BLIND: i64 = i64::MIN / 2;

/// The cost of a slot with a key of this length, in bytes. A slot that is made for an element with a deadline takes
/// more.
pub(super) fn slot_bytes(key_bytes: usize, has_deadline: bool) -> i64 {
    signed(size_class(bytes_of_slot(key_bytes, has_deadline)))
}

/// The bytes that an extension of the slot would cost, which it needs for `deadline`.
pub(super) fn extension_bytes(slot: SlotRef<'_>, deadline: u64) -> i64 {
    if deadline == NEVER || slot.has_deadline_part() { 0 } else { EXTENSION_BYTES }
}

/// The memory of a slot is no longer charged. Returns its cost until now, with that of an extension.
pub(super) fn settle(slot: SlotRef<'_>) -> i64 {
    signed(size_class(slot.bytes())) + if slot.settle() { EXTENSION_BYTES } else { 0 }
}

/// The cost of an entry with a value of this length, in bytes.
pub(super) fn entry_bytes(value_bytes: usize) -> i64 {
    signed(size_class(ENTRY_HEADER_BYTES + value_bytes))
}

/// The cost of an entry, in bytes.
pub(super) fn entry_cost(entry: EntryRef<'_>) -> i64 {
    signed(size_class(entry.bytes()))
}

/// Bytes as a signed number, which a difference of two counts needs.
pub(super) fn signed(bytes: impl TryInto<i64>) -> i64 {
    bytes.try_into().unwrap_or(i64::MAX)
}

/// A cost as a number of bytes.
pub(super) fn unsigned(cost: i64) -> usize {
    usize::try_from(cost).unwrap_or(0)
}

/// The shared budget of all tables.
pub(super) struct MemoryBudget {
    used: CachePadded<AtomicI64>,
    /// Records of the wheel. Written by the expiry thread when the number has changed; read with `used`.
    timers: CachePadded<TimersHeld>,
    /// Read with `used`.
    last_look: CachePadded<LastLook>,
    garbage: Arc<GarbageCounts>,
    /// Bytes of the tables that are being taken down, when they were deleted. They are within `used` until they are
    /// settled.
    leaving: AtomicI64,
    limit: i64,
    slack: i64,
    allowance: i64,
}

/// The records of the wheel. The expiry thread writes them.
#[derive(Default)]
struct TimersHeld {
    count: AtomicU64,
    /// Their memory, in bytes.
    bytes: AtomicI64,
}

/// The result of the compactor's last look. The compactor writes it when it has changed.
struct LastLook {
    /// Bytes that the process had beyond those in use. Negative if there was slack left.
    excess: AtomicI64,
    /// The same, less all bytes that were retired until then. The sum with the bytes that are retired now is the
    /// excess, as far as it can be known before the next look. [`BLIND`]: there are no looks.
    excess_base: AtomicI64,
}

/// The budget at the moment before the compactor measures the memory of the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct BudgetReading {
    /// Bytes in use.
    pub(super) used: i64,
    /// Bytes that were retired until then.
    retired: i64,
}

/// The memory budget, for STATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMetrics {
    /// Bytes of all elements and tables.
    pub used: u64,
    /// The limit, in bytes.
    pub max: u64,
    /// Bytes that count against the limit beside these: memory that the process has for other reasons.
    pub excess: u64,
    /// Bytes of replaced and deleted entries and slots that are not freed yet. Each thread keeps back up to 32 KiB.
    pub garbage_bytes: u64,
    /// The number of these objects. Each thread keeps back up to 127.
    pub garbage_objects: u64,
}

impl MemoryBudget {
    pub(super) fn new(limit: u64) -> Self {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Self {
            used: CachePadded::new(AtomicI64::new(0)),
            timers: CachePadded::default(),
            last_look: CachePadded::new(LastLook { excess: AtomicI64::new(0), excess_base: AtomicI64::new(BLIND) }),
            garbage: Arc::default(),
            leaving: AtomicI64::new(0),
            limit,
            slack: (limit / SLACK_SHARE).min(SLACK_BYTES_MAX),
            allowance: (limit / ALLOWANCE_SHARE).min(ALLOWANCE_BYTES_MAX),
        }
    }

    pub(super) fn metrics(&self) -> MemoryMetrics {
        let [used, max, excess, garbage_bytes, garbage_objects] =
            [self.used(), self.limit, self.excess(), self.garbage.waiting(), self.garbage.waiting_objects()]
                .map(|number| u64::try_from(number).unwrap_or(0));
        MemoryMetrics { used, max, excess, garbage_bytes, garbage_objects }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> i64 {
        self.used.load(Ordering::Relaxed) + self.timers.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that the process had beyond those in use, at the last look.
    pub(super) fn excess(&self) -> i64 {
        self.last_look.excess.load(Ordering::Relaxed).max(0)
    }

    /// The excess if no byte was freed that was retired since the last look.
    fn excess_at_most(&self) -> i64 {
        (self.last_look.excess_base.load(Ordering::Relaxed) + self.garbage.retired()).max(0)
    }

    /// Bytes that are on their way to be free: of tables that are being taken down, and of what was retired and is not freed.
    fn returning(&self) -> i64 {
        self.leaving.load(Ordering::Relaxed) + self.garbage.waiting()
    }

    /// Whether a table with elements is being taken down.
    pub(super) fn is_table_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed) > 0
    }

    /// A table of so many bytes was deleted. With a negative number: it has been taken down.
    pub(super) fn leave(&self, bytes: i64) {
        // Relaxed: a sum. A write that reads it late is refused or waits as if it had come earlier or later.
        self.leaving.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The retired memory of all threads.
    pub(super) fn garbage(&self) -> &Arc<GarbageCounts> {
        &self.garbage
    }

    /// Reads the budget. The compactor measures the memory of the process after that. So bytes that are retired or
    /// charged in between count twice until the next look, and none is left out.
    pub(super) fn read(&self) -> BudgetReading {
        BudgetReading { used: self.used(), retired: self.garbage.retired() }
    }

    /// The result of a look: the bytes that the process has beyond those of `reading`. Negative if there is slack left.
    pub(super) fn set_excess(&self, bytes: i64, reading: BudgetReading) {
        // Relaxed: as in `set_timers`. A write that reads one of the two before this and one after it may wait once
        // more for a look, or take its allowance once more.
        let LastLook { excess, excess_base } = &*self.last_look;
        for (number, next) in [(excess, bytes), (excess_base, bytes - reading.retired)] {
            if number.load(Ordering::Relaxed) != next {
                number.store(next, Ordering::Relaxed);
            }
        }
    }

    /// There are no looks any more: only the bytes in use count.
    pub(super) fn go_blind(&self) {
        self.last_look.excess_base.store(BLIND, Ordering::Relaxed);
    }

    /// Whether all is beyond the limit, and more than an allowance of it may be retired memory that is still there.
    pub(super) fn is_beyond_allowance(&self) -> bool {
        let LastLook { excess, excess_base } = &*self.last_look;
        let base = excess_base.load(Ordering::Relaxed);
        let retired_since = base + self.garbage.retired() - excess.load(Ordering::Relaxed);
        base != BLIND && self.taken() > self.limit && retired_since.max(self.garbage.waiting()) > self.allowance
    }

    /// Whether all is beyond the limit, and more than an allowance of it is retired memory that is not freed.
    pub(super) fn has_garbage_beyond_allowance(&self) -> bool {
        self.taken() > self.limit && self.garbage.waiting() > self.allowance
    }

    /// Whether half of the reserve is taken, as far as can be known before the next look.
    pub(super) fn is_reserve_low(&self) -> bool {
        self.taken() + self.reserve() / 2 > self.limit
    }

    /// All bytes that count against the limit, as far as can be known before the next look.
    pub(super) fn taken(&self) -> i64 {
        self.used() + self.excess_at_most()
    }

    /// The wheel holds `timers` records in `held` bytes.
    pub(super) fn set_timers(&self, timers: u64, held: usize) {
        // Relaxed: two numbers, with one writer. Each write that needs room reads the bytes, so they are written only
        // when they change.
        if self.timers.count.load(Ordering::Relaxed) != timers {
            self.timers.count.store(timers, Ordering::Relaxed);
        }
        let bytes = signed(held.saturating_sub(WHEEL_SPARE_BYTES)).max(signed(timers).saturating_mul(TIMER_BYTES));
        if self.timers.bytes.load(Ordering::Relaxed) != bytes {
            self.timers.bytes.store(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn timers(&self) -> u64 {
        self.timers.count.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> i64 {
        self.limit
    }

    /// Bytes that the eviction keeps free.
    pub(super) fn reserve(&self) -> i64 {
        (self.limit / RESERVE_SHARE).min(RESERVE_BYTES_MAX)
    }

    /// Bytes beyond those at which the eviction begins, by the last look. Negative: so many fit before that.
    pub(super) fn beyond_reserve(&self) -> i64 {
        self.used() + self.excess() + self.reserve() - self.limit
    }

    /// `bytes` more are in use, counted by a thread that keeps none back.
    pub(super) fn add(&self, bytes: i64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Whether an allocation fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryRoom {
    /// It fits.
    Enough,
    /// It fits if memory that was retired since the last look is free now, or the memory of tables which are being
    /// taken down. The next look shows that.
    Unknown,
    /// It would fit if the process had no more memory than the budget says.
    Blocked,
    /// It does not fit.
    None,
}

/// One thread's part of the budget. It gathers changes and writes them to the shared budget now and then.
pub(super) struct LocalBudget {
    kept: i64,
    /// Writes wait for a look of the compactor after this one.
    awaited_look: Option<u64>,
    /// When it is written to the shared budget next, however little it is.
    due: Now,
}

impl Default for LocalBudget {
    fn default() -> Self {
        Self { kept: 0, awaited_look: None, due: Now::from_nanos(0) }
    }
}

impl LocalBudget {
    /// The number of the look after which writes wait for the next one, if they do.
    #[inline]
    pub(super) fn awaited_look(&self) -> Option<u64> {
        self.awaited_look
    }

    /// No write is admitted until the compactor has looked once more than `looks` times.
    pub(super) fn await_look(&mut self, looks: u64) {
        self.awaited_look = Some(looks);
    }

    /// Writes the bytes that were kept back to the shared budget, at most every tenth of a second.
    pub(super) fn rest(&mut self, memory_budget: &MemoryBudget, now: Now) {
        if self.kept != 0 && now >= self.due {
            self.settle(memory_budget);
            self.due = now.after(SETTLE_AFTER);
        }
    }

    /// The look has been.
    pub(super) fn end_wait(&mut self) {
        self.awaited_look = None;
    }

    /// Whether `bytes` more fit.
    #[inline]
    pub(super) fn room(&self, memory_budget: &MemoryBudget, bytes: i64) -> MemoryRoom {
        if bytes <= 0 || memory_budget.taken() + self.kept + bytes <= memory_budget.limit {
            MemoryRoom::Enough
        } else {
            self.little_room(memory_budget, bytes)
        }
    }

    #[cold]
    fn little_room(&self, memory_budget: &MemoryBudget, bytes: i64) -> MemoryRoom {
        let used = memory_budget.used() + self.kept + bytes;
        let beyond = used + memory_budget.excess() - memory_budget.limit;
        if used > memory_budget.limit {
            if used - memory_budget.leaving.load(Ordering::Relaxed) > memory_budget.limit {
                MemoryRoom::None
            } else {
                MemoryRoom::Unknown
            }
        } else if beyond > memory_budget.returning() {
            MemoryRoom::Blocked
        } else {
            MemoryRoom::Unknown
        }
    }

    /// `bytes` more are in use. Returns whether the shared budget was written to.
    pub(super) fn add(&mut self, memory_budget: &MemoryBudget, bytes: i64) -> bool {
        self.kept += bytes;
        let is_much = self.kept.abs() > memory_budget.slack;
        if is_much {
            self.settle(memory_budget);
        }
        is_much
    }

    /// Writes the bytes that were kept back to the shared budget.
    pub(super) fn settle(&mut self, memory_budget: &MemoryBudget) {
        memory_budget.add(self.kept);
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
        memory_budget.set_excess(50, memory_budget.read());
        assert_eq!(
            (local_budget.room(&memory_budget, 50), local_budget.room(&memory_budget, 51)),
            (MemoryRoom::Enough, MemoryRoom::Blocked)
        );
        memory_budget.set_excess(5_000, memory_budget.read());
        assert_eq!(local_budget.room(&memory_budget, -1), MemoryRoom::Enough, "what shrinks always fits");
    }

    #[test]
    fn what_a_deleted_table_gives_back_is_waited_for() {
        let memory_budget = MemoryBudget::new(1000);
        let mut local_budget = LocalBudget::default();
        local_budget.add(&memory_budget, 900);
        memory_budget.set_excess(50, memory_budget.read());
        memory_budget.leave(200);
        let room = |bytes| local_budget.room(&memory_budget, bytes);
        assert_eq!([50, 51, 100].map(room), [MemoryRoom::Enough, MemoryRoom::Unknown, MemoryRoom::Unknown]);
        assert_eq!([300, 301].map(room), [MemoryRoom::Unknown, MemoryRoom::None], "it is counted as used until then");
        assert!(memory_budget.is_table_leaving());
        memory_budget.leave(-200);
        assert_eq!([51, 101].map(room), [MemoryRoom::Blocked, MemoryRoom::None]);
        assert!(!memory_budget.is_table_leaving());
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
        memory_budget.set_timers(10, 1_000);
        assert_eq!((memory_budget.used(), memory_budget.timers()), (10 * TIMER_BYTES, 10));
        memory_budget.set_timers(0, WHEEL_SPARE_BYTES + 1_000);
        assert_eq!((memory_budget.used(), memory_budget.timers()), (1_000, 0), "what the wheel holds is its own");
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
        memory_budget.set_excess(1, memory_budget.read());
        let room = (1 << 20) - 1_000;
        assert_eq!(local_budget.room(&memory_budget, room), MemoryRoom::Blocked);
        assert_eq!(local_budget.room(&memory_budget, room + 1), MemoryRoom::None);
    }
}
