//! The compactor compares the memory budget of the tables with the memory of the process, and has memory given back.
//!
//! The process has more memory than the budget says: holes between elements, memory that an allocator keeps, and growth
//! outside the tables. This excess counts against `memory_max` as elements do. A write that lacks room only because of
//! the excess waits while the compactor has memory given back. The write is refused only if that does not help.
//!
//! ```text
//! every look: resident − slack − used ─► MemoryBudget::set_excess ─► writes that waited for a look
//!
//!  idle ── a write lacks room that the budget has ──► collecting ── room enough ──► idle
//!   │                                                  ▲     │ enough holes          ▲
//!   │ much more than the budget, and it has changed    │     ▼                       │
//!   └► calls once: every thread collects               └── moving, 1/n of them ── no more to move, little room:
//!                                                                                 exhausted, until that has changed
//! ```
//! **Collecting.** If one thread frees memory of another, an allocator gives the memory back only in the thread that
//! owns it. So every session receives the call, between two batches or where its thread waits for work, and collects
//! its own part.
//!
//! **Moving.** Where few elements are left on each page, the compactor copies entries into new memory, with the same
//! version, value and deadline, and swaps them in by the CAS of their slot. A move is no change and is not announced. A
//! writer whose CAS fails because of a move tries again. Slots move as well, except those with a deadline or with a
//! change that is not announced (`slot`). Each pass moves only the entries and slots in some regions of memory. So
//! whole pages become free soon, and moving takes little extra memory. The compactor's thread keeps no memory that it
//! frees: otherwise jemalloc would fill the hole of the last copy with the next copy. The index keeps its size.
//!
//! **Looks and steps.** The compactor looks at once when a write waits for that (`memory_budget`), however often. It
//! takes a step of the picture only when its time has come, or when the first write waits for memory. While too much
//! garbage waits for its epoch, or elements are to be evicted for the write, the compactor wakes no write that waited for a
//! look.
//!
//! The counters and flags are Relaxed where no comment says otherwise: they carry no other data, and a late reading
//! costs one look.
//!
//! # Races
//!
//! | between the compactor and | at |
//! |---|---|
//! | a session that collects, comes or goes | `CompactorShared::call` |
//! | a writer that waits for memory | `CompactorShared::may_give_back`, `watch` |
//! | a writer that waits for a look | `CompactorShared::note_look` |
//! | a writer, a reader or the expiry thread, over an entry that moves | [`relocate`] |
//! | a writer, the publisher or the reaper, over a slot that moves | [`Compactor::move_slots`] |
//!
//! The compactor does not know the source of the resident size. It commits no change.

mod holes;
mod shared;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crossbeam::epoch::{self, Guard};

use super::TablesShared;
use super::failpoint::{Failpoint, reach};
use super::garbage::Garbage;
use super::index::CELLS;
use super::memory_budget::{BudgetReading, settle, signed, slot_bytes, unsigned};
use super::slot::{EntryBox, SlotHandle, SlotRef, SlotState, give_back_memory};
use super::table::Table;
use crate::allocator;
use crate::clock::Now;
use crate::limits::{COMPACTOR_HURRY, COMPACTOR_LOOK};
use holes::EvictedHoles;
pub(super) use shared::CompactorShared;

/// Looks after which the compactor no longer waits for sessions that have not acknowledged a call. Sessions sleep
/// shorter than that.
const ACKNOWLEDGED_LOOKS_MAX: u32 = 30;
/// Looks after which writes continue although garbage waits: the thread that holds it back may take long. Each look frees
/// what can be freed.
const WITHHELD_LOOKS_MAX: u32 = 30;
/// Flushes of one look while writes wait for garbage to be freed. Two of them let the epoch move twice.
const LOOK_FLUSHES: usize = 8;
/// Looks between two calls while no write waits, and as many again for each GiB of elements: collecting takes some
/// milliseconds for a GiB.
const IDLE_LOOKS: i64 = 20;
/// The compactor calls for collection when the process has this many bytes, and an eighth of the budget, beyond the
/// budget.
const LOOSE_BYTES: i64 = 8 << 20;
/// A pass moves at most the limit divided by this. Writers wait meanwhile: `perf/memory.md` has their waits.
const PASS_SHARE: i64 = 32;
/// The limit divided by this is enough room: the compactor stops looking for more.
const ROOM_SHARE: i64 = 8;
/// The limit divided by this is the smallest gain of room that is worth another attempt.
const TIGHT_SHARE: i64 = 64;
/// Entries and slots are moved by regions of this many bytes, as a power of two: sixteen pages of mimalloc.
const REGION_BITS: u32 = 20;

/// Memory in use, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct MemoryLevel {
    /// As the memory budget counts it.
    used: i64,
    /// As the process has it.
    resident: i64,
}

/// The state of the compactor: see the picture on this page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompactorState {
    /// No write waits.
    Idle,
    /// Called `looks` looks ago. `next` is the pass that follows, if entries are to be moved.
    Collecting { looks: u32, next: Option<MovePass> },
}

/// The part of the entries and slots that a pass moves: number `number` of `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MovePass {
    number: usize,
    count: usize,
}

/// The work of the compactor thread. One thread owns it.
pub struct Compactor {
    shared: Arc<TablesShared>,
    garbage: Garbage,
    /// Bytes that the process may have beyond the budget without counting against the limit.
    slack: i64,
    state: CompactorState,
    /// The time of the next step.
    due: Now,
    /// Looks since writes wait for garbage to be freed.
    withheld: u32,
    /// Whether entries have been moved since a write lacked room.
    moved: bool,
    /// The memory in use at the last call to collect, and the looks since then.
    called: (MemoryLevel, i64),
    /// The room at the time when a write began to wait.
    room_before: i64,
    /// The used bytes and the room at the time when no more memory could be given back.
    exhausted_at: (i64, i64),
    holes: EvictedHoles,
}

impl Compactor {
    pub(super) fn new(shared: &Arc<TablesShared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            garbage: Garbage::new(shared.memory_budget.garbage()),
            slack: 0,
            state: CompactorState::Idle,
            due: Now::from_nanos(0),
            withheld: 0,
            moved: false,
            called: (MemoryLevel::default(), 0),
            room_before: 0,
            exhausted_at: (0, 0),
            holes: EvictedHoles::default(),
        }
    }

    /// The loop of the compactor thread. Returns when the tables are closed. `resident` returns the memory of the
    /// process, in bytes. Its first value, less the used bytes, does not belong to the tables. `slack` more bytes may
    /// come of other things.
    pub fn run(mut self, slack: u64, mut now: impl FnMut() -> Now, mut resident: impl FnMut() -> Option<u64>) {
        let shared = &Arc::clone(&self.shared).compactor;
        *shared.thread.lock() = Some(thread::current());
        allocator::keep_nothing();
        let mut first = None;
        self.slack = signed(slack);
        // Acquire: pairs with the Release in `close`, which unparks after it.
        while !shared.closed.load(Ordering::Acquire) {
            let reading = now();
            let budget = self.shared.memory_budget.read();
            if let Some(bytes) = resident().map(signed) {
                let first = *first.get_or_insert_with(|| bytes - budget.used);
                let level = self.measure(bytes - first, budget);
                if self.is_due(reading) {
                    self.step(level, reading);
                    self.due = reading.after(self.patience());
                }
            } else {
                self.go_blind();
            }
            self.garbage.rest(reading);
            thread::park_timeout(self.patience());
        }
        shared.exhausted.store(true, Ordering::Relaxed);
        self.shared.memory_budget.go_blind();
        shared.finish();
        shared.note_look();
    }

    /// The time until the next look, unless a write that waits wakes the thread.
    fn patience(&self) -> Duration {
        if self.state == CompactorState::Idle && self.withheld == 0 { COMPACTOR_LOOK } else { COMPACTOR_HURRY }
    }

    /// Whether it is time for a step, or a write has begun to wait for memory.
    fn is_due(&self, now: Now) -> bool {
        now >= self.due || self.state == CompactorState::Idle && self.shared.compactor.is_wanted()
    }

    /// Looks and takes the next step. `resident` is the memory that the tables seem to take, in bytes.
    #[cfg(test)]
    pub(super) fn look(&mut self, resident: i64, now: Now) {
        let level = self.measure(resident, self.shared.memory_budget.read());
        self.step(level, now);
    }

    /// Reports the excess of the process to the budget, and wakes the writes that waited for a look. `budget` was read
    /// before `resident`.
    fn measure(&mut self, resident: i64, budget: BudgetReading) -> MemoryLevel {
        let level = MemoryLevel { used: budget.used, resident };
        let excess = (resident - self.slack - level.used).max(-self.slack);
        let counted =
            if self.shared.catalog.eviction.has_tables() { self.without_holes(level, excess) } else { excess };
        self.shared.memory_budget.set_excess(counted, budget);
        self.shared.wake_evictor_if_full();
        if self.withholds_look() {
            self.withheld += 1;
            (0..LOOK_FLUSHES).for_each(|_| epoch::pin().flush());
        } else {
            self.withheld = 0;
            self.shared.compactor.note_look();
        }
        level
    }

    /// Whether a write that waits for a look had better wait until garbage is freed, or a table has been taken down.
    fn withholds_look(&self) -> bool {
        self.shared.compactor.is_look_wanted()
            && self.withheld < WITHHELD_LOOKS_MAX
            && (self.shared.memory_budget.is_table_leaving()
                || self.shared.evictor.is_wanted()
                || self.shared.memory_budget.has_garbage_beyond_allowance())
    }

    fn step(&mut self, level: MemoryLevel, now: Now) {
        self.called.1 += 1;
        match self.state {
            CompactorState::Idle => self.watch(level),
            CompactorState::Collecting { looks, .. }
                if looks < ACKNOWLEDGED_LOOKS_MAX && !self.shared.compactor.all_have_acknowledged() =>
            {
                self.count_look();
            }
            CompactorState::Collecting { next, .. } => self.decide(level, next, now),
        }
    }

    /// The memory of the process is unknown: only the budget counts, and no write waits for more.
    fn go_blind(&mut self) {
        self.shared.memory_budget.set_excess(0, self.shared.memory_budget.read());
        self.shared.memory_budget.go_blind();
        self.state = CompactorState::Idle;
        self.withheld = 0;
        self.shared.compactor.finish();
        self.shared.compactor.note_look();
    }

    fn count_look(&mut self) {
        if let CompactorState::Collecting { looks, .. } = &mut self.state {
            *looks += 1;
        }
    }

    /// Bytes that are free by both measures, the budget and the memory of the process.
    fn room(&self) -> i64 {
        self.shared.memory_budget.limit() - self.shared.memory_budget.taken()
    }

    fn tight(&self) -> i64 {
        self.shared.memory_budget.limit() / TIGHT_SHARE
    }

    fn watch(&mut self, level: MemoryLevel) {
        let shared = &self.shared.compactor;
        let (used, room) = self.exhausted_at;
        let is_another = level.used < used - self.tight() || (self.room() - room).abs() >= self.tight();
        if is_another && shared.exhausted.load(Ordering::Relaxed) {
            shared.exhausted.store(false, Ordering::Relaxed);
        }
        if shared.wanted.load(Ordering::Relaxed) {
            self.moved = false;
            self.room_before = self.room();
            self.call(level);
            self.state = CompactorState::Collecting { looks: 0, next: None };
        } else if self.is_loose(level) {
            self.call(level);
        }
    }

    /// Whether the process has much more memory than the budget says, and another call is worthwhile.
    fn is_loose(&self, level: MemoryLevel) -> bool {
        let (before, looks) = self.called;
        let has_changed = |before: i64, now: i64| (now - before).abs() > now / 16 + (1 << 20);
        level.resident - level.used > level.used / 8 + LOOSE_BYTES
            && looks > IDLE_LOOKS + IDLE_LOOKS * (level.used >> 30)
            && (has_changed(before.used, level.used) || has_changed(before.resident, level.resident))
    }

    fn call(&mut self, level: MemoryLevel) {
        self.called = (level, 0);
        self.garbage.sweep();
        self.shared.compactor.call();
        shared::collect_thread();
        allocator::collect_process();
    }

    /// All sessions have collected, or the compactor no longer waits for them. Moves entries if there are enough holes.
    /// Otherwise becomes idle again.
    fn decide(&mut self, level: MemoryLevel, next: Option<MovePass>, now: Now) {
        let limit = self.shared.memory_budget.limit();
        let enough = self.room() >= limit / ROOM_SHARE;
        let next = next.or_else(|| (!self.moved).then(|| passes(level, limit)).flatten()).filter(|_| !enough);
        if let Some(passes) = next {
            self.moved = true;
            self.move_entries(passes, now);
            self.call(level);
            let number = passes.number + 1;
            let next = (number < passes.count).then_some(MovePass { number, ..passes });
            self.state = CompactorState::Collecting { looks: 0, next };
            return;
        }
        if self.room() < self.room_before + self.tight() {
            // Until the room changes or elements are deleted, a write that lacks more than the present room is refused
            // at once.
            self.exhausted_at = (level.used, self.room());
            self.shared.compactor.exhausted_below.store(level.used - self.tight(), Ordering::Relaxed);
            self.shared.compactor.exhausted.store(true, Ordering::Relaxed);
        }
        self.state = CompactorState::Idle;
        self.shared.compactor.finish();
    }

    /// Moves all entries and slots that may move.
    #[cfg(test)]
    pub(super) fn move_all(&mut self, now: Now) {
        self.move_entries(MovePass { number: 0, count: 1 }, now);
    }

    /// Moves a part of the entries and slots of all tables. It may miss those that come or go meanwhile.
    fn move_entries(&mut self, passes: MovePass, now: Now) {
        for number in self.shared.catalog.numbers() {
            let Some(table) = self.shared.catalog.registry().share(number, &epoch::pin()) else { continue };
            let mut buckets = vec![0];
            while let Some(bucket) = buckets.pop() {
                self.move_bucket(&table, bucket, &mut buckets, passes, now);
            }
        }
        self.garbage.sweep();
    }

    fn move_bucket(&mut self, table: &Table, bucket: u32, buckets: &mut Vec<u32>, passes: MovePass, now: Now) {
        let guard = epoch::pin();
        let mut slots = Vec::with_capacity(CELLS);
        table.index().visit(bucket, &guard, buckets, |slot| slots.push(slot));
        for slot in slots {
            if let Some(bytes) = relocate(slot, passes, &guard) {
                self.shared.compactor.moved.add(1);
                self.garbage.add(bytes, &guard, now);
            }
        }
        let armed = self.move_slots(table, bucket, passes, &guard, now);
        drop(guard);
        armed.into_iter().for_each(|slot| self.shared.expiry.cancel(slot));
    }

    /// Moves slots of a bucket. Returns the old slots of which the wheel has a record, or will have one: a writer armed
    /// them after they had moved. The caller cancels the records.
    ///
    /// Each move is a CAS of the old slot's word to Moved, under the bucket's lock, before the cell shows the new slot:
    ///
    /// - **A writer** changes the word by a CAS, without the lock. If it comes first, this CAS fails, and the slot
    ///   stays. If this CAS comes first, the writer's fails, or it finds Moved, and waits for the lock
    ///   (`Table::find_moved`).
    /// - **The publisher** raises `announced` after it has sent a change. If it comes first, the new slot starts with
    ///   that version as announced. If this thread reads the lower version, the slot stays, unless its entry is quiet.
    /// - **The reaper**, or a writer of a younger table of the name, takes the lock to find the slots that it seals,
    ///   after the table was closed. If it comes first, this thread finds the table closed, and the slot stays. If this
    ///   thread comes first, the other one finds the new slot.
    /// - **The expiry thread** may get a due message of the old slot. A touch sets a deadline, a second one removes it,
    ///   the slot moves, and only then the first touch arms the old slot. `SlotRef::is_armed` has that race.
    fn move_slots(&mut self, table: &Table, bucket: u32, passes: MovePass, guard: &Guard, now: Now) -> Vec<SlotHandle> {
        let (mut armed, mut retired, mut gained) = (Vec::new(), 0, 0);
        table.index().renew(bucket, guard, |slot| {
            // Under the bucket's lock: a slot that is being sealed does not move.
            if table.is_closed() || !passes.include(slot.address()) {
                return None;
            }
            let next = slot.move_out(slot.load(guard))?;
            reach(Failpoint::MovedOut);
            let cost = settle(slot);
            retired += unsigned(cost);
            gained += cost - slot_bytes(next.slot().key().len(), false);
            if slot.is_armed() {
                armed.push(slot.handle());
            }
            Some(next)
        });
        if retired > 0 {
            self.garbage.add(retired, guard, now);
        }
        if gained > 0 {
            table.count_bytes(-gained);
            self.shared.memory_budget.add(-gained);
        }
        armed
    }
}

impl MovePass {
    /// Whether this pass moves an object at this address.
    fn include(self, address: usize) -> bool {
        (address >> REGION_BITS) % self.count == self.number
    }
}

/// Moves an entry that is in the regions of this pass. Returns the bytes that were retired.
///
/// The move is one CAS of the slot's word, from the entry that was seen to a copy of it:
///
/// - **A writer, an expiry or a seal.** If its CAS comes first, this one fails, and the copy is freed: the other thread
///   has dealt with the old entry. If this CAS comes first, the other one fails. Its thread looks again, and finds the
///   same version in the copy (`Ops::overwrite`).
/// - **A reader that marks the entry as expired** (`lookup::mark`). If the mark comes first, this CAS fails. If this
///   CAS comes first, the mark fails, and the reader looks again and marks the copy.
/// - **A reader that has loaded the word** continues with the old entry, which is freed after its guard.
/// - **The expiry thread** finds the same deadline in the copy. The wheel's record is of the slot, which stays.
/// - **The publisher** reads no entry but for the feed, and version and quietness stay.
fn relocate<'g>(slot: SlotRef<'g>, passes: MovePass, guard: &'g Guard) -> Option<usize> {
    let seen = slot.load(guard);
    let SlotState::Live(old) = seen.state() else { return None };
    if !passes.include(old.address()) {
        return None;
    }
    // The new entry is not to take the place of one that was moved before.
    give_back_memory();
    let mut entry = EntryBox::copy(old);
    entry.stamp(old.version(), old.deadline());
    if old.is_quiet() {
        entry.make_quiet();
    }
    slot.replace(seen, entry, guard).is_ok().then_some(old.bytes())
}

/// The first of the passes in which entries are to be moved. `None` if there are few holes between them.
fn passes(level: MemoryLevel, limit: i64) -> Option<MovePass> {
    let holes = level.resident - level.used;
    let enough = holes >= level.resident / 4 && holes >= limit / PASS_SHARE;
    let count = usize::try_from(level.used / (limit / PASS_SHARE).max(1)).unwrap_or(0) + 1;
    enough.then_some(MovePass { number: 0, count })
}

#[cfg(test)]
mod tests;
