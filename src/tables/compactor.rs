//! The compactor compares the memory budget of the tables with the memory of the process, and has memory given back.
//!
//! The process has more memory than the budget says: holes between elements, memory that an allocator keeps, and growth
//! outside the tables. This excess counts against `memory_max` as elements do. A write that lacks room only because of
//! the excess waits while the compactor has memory given back. The write is refused only if that does not help.
//!
//! ```text
//! every look: resident − slack − used ─► MemoryBudget::set_excess
//!
//!  idle ── a write lacks room that the budget has ──► collecting ── room enough ──► idle
//!   │                                                  ▲     │ enough holes          ▲
//!   │ much more than the budget, and it has changed    │     ▼                       │
//!   └► calls once: every thread collects               └── moving, 1/n of them ── no more to move, little room:
//!                                                                                 exhausted, until that has changed
//! ```
//! **Collecting.** If one thread frees memory of another, an allocator gives it back only in that other thread. So
//! every session hears the call, between two batches or where its thread waits for work, and collects its own part.
//!
//! **Moving.** Where few elements are left on each page, the compactor copies entries into new memory, with the same
//! version, value and deadline, and swaps them in by the CAS of their slot. A move is no change and is not announced. A
//! writer whose CAS fails because of a move tries again. Slots move as well, except those with a deadline or with a
//! change that is not announced (`slot`). Each pass moves only the entries and slots in some regions of memory. So
//! whole pages become free soon, and moving takes little extra memory. The compactor's thread keeps no memory that it
//! frees: otherwise jemalloc would fill the hole of the last copy with the next copy. The index keeps its size.
//!
//! The counters and flags are Relaxed where no comment says otherwise: they carry no other data, and a late reading
//! costs one look.
//!
//! The compactor does not know the source of the resident size. It commits no change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam::epoch::{self, Guard};

use super::TablesShared;
use super::failpoint::{Failpoint, reach};
use super::garbage::Garbage;
use super::index::CELLS;
use super::memory_budget::signed;
use super::sleeper::Sleeper;
use super::slot::{ENTRY_HEADER_BYTES, EntryBox, SlotHandle, SlotRef, SlotState};
use super::table::Table;
use crate::allocator;
use crate::clock::Now;
use crate::limits::{COMPACTOR_HURRY, COMPACTOR_LOOK};
use crate::lock::{Mutex, MutexGuard};
use crate::stats::SharedCounter;

/// Looks after which the compactor no longer waits for sessions that have not heard a call. Sessions sleep shorter than
/// that.
const HEARD_LOOKS_MAX: u32 = 30;
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

/// The part of the compactor that sessions share.
#[derive(Default)]
pub(super) struct CompactorShared {
    /// The number of calls to collect. Written by the compactor; read by sessions.
    calls: AtomicU64,
    /// Sessions that have heard the last call. Added to by sessions; set to 0 and read by the compactor.
    heard: AtomicUsize,
    /// Wakes the sessions' threads at each call.
    sessions: Mutex<Vec<Arc<Sleeper>>>,
    /// A write waits for memory. Set by writers. Cleared by the compactor, under the lock of `sleepers`, when it has
    /// done all it can.
    wanted: AtomicBool,
    /// Sessions with writes that wait. The compactor wakes them when it clears `wanted`.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
    /// No more memory can be given back. Written by the compactor; read by writers.
    exhausted: AtomicBool,
    moved: SharedCounter,
    closed: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl CompactorShared {
    pub(super) fn enter(&self, sleeper: &Arc<Sleeper>) {
        self.sessions().push(Arc::clone(sleeper));
    }

    pub(super) fn leave(&self, sleeper: &Arc<Sleeper>) {
        self.sessions().retain(|other| !Arc::ptr_eq(other, sleeper));
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sessions.lock()
    }

    /// Whether a write waits for memory. Sessions whose threads a call does not wake look for one more often meanwhile.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The number of the last call. A session that has heard an older one calls [`CompactorShared::collect`].
    #[inline]
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn collect(&self) {
        allocator::collect_thread();
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    fn call(&self) {
        // A session that hears the previous call late is counted for this one. The compactor then goes on before that
        // session has collected for this call, and its part comes back later.
        self.heard.store(0, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let sessions = self.sessions().clone();
        sessions.iter().for_each(|sleeper| sleeper.wake());
    }

    fn sleepers(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sleepers.lock()
    }

    /// Whether a write that waited for memory is worth another try. If not, the compactor wakes `sleeper` when it is.
    pub(super) fn watch(&self, sleeper: &Arc<Sleeper>) -> bool {
        let mut sleepers = self.sleepers();
        if !self.wanted.load(Ordering::Relaxed) {
            return true;
        }
        if !sleepers.iter().any(|other| Arc::ptr_eq(other, sleeper)) {
            sleepers.push(Arc::clone(sleeper));
        }
        false
    }

    /// The compactor has done all it can: waiting writes try again.
    fn finish(&self) {
        let mut sleepers = self.sleepers();
        self.wanted.store(false, Ordering::Relaxed);
        let woken = std::mem::take(&mut *sleepers);
        drop(sleepers);
        woken.iter().for_each(|sleeper| sleeper.wake());
    }

    fn all_have_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed) >= self.sessions().len()
    }

    /// A write lacks memory that the budget would grant. Returns whether waiting is worthwhile.
    ///
    /// The compactor may finish after this returns true and before the session calls [`CompactorShared::watch`]. Then
    /// `watch` finds `wanted` cleared, and the write tries again.
    pub(super) fn may_give_back(&self) -> bool {
        if self.exhausted.load(Ordering::Relaxed) {
            return false;
        }
        if !self.wanted.swap(true, Ordering::Relaxed) {
            self.wake();
        }
        true
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.lock().as_ref() {
            thread.unpark();
        }
    }

    pub(super) fn close(&self) {
        // Release: pairs with the Acquire in `run`.
        self.closed.store(true, Ordering::Release);
        self.wake();
    }

    /// Entries that were moved.
    pub(super) fn moved(&self) -> u64 {
        self.moved.get()
    }
}

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
    /// Whether entries have been moved since a write lacked room.
    moved: bool,
    /// The memory in use at the last call to collect, and the looks since then.
    called: (MemoryLevel, i64),
    /// The room at the time when a write began to wait.
    room_before: i64,
    /// The used bytes and the room at the time when no more memory could be given back.
    exhausted_at: (i64, i64),
}

impl Compactor {
    pub(super) fn new(shared: &Arc<TablesShared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            garbage: Garbage::default(),
            slack: 0,
            state: CompactorState::Idle,
            moved: false,
            called: (MemoryLevel::default(), 0),
            room_before: 0,
            exhausted_at: (0, 0),
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
            if let Some(bytes) = resident().map(signed) {
                let first = *first.get_or_insert_with(|| bytes - self.shared.memory_budget.used());
                self.look(bytes - first, reading);
            } else {
                self.go_blind();
            }
            self.garbage.rest(reading);
            thread::park_timeout(self.patience());
        }
        shared.exhausted.store(true, Ordering::Relaxed);
        shared.finish();
    }

    /// The time until the next look, unless a write that waits wakes the thread.
    fn patience(&self) -> Duration {
        if self.state == CompactorState::Idle { COMPACTOR_LOOK } else { COMPACTOR_HURRY }
    }

    /// Takes the next step. `resident` is the memory that the tables seem to take, in bytes.
    pub(super) fn look(&mut self, resident: i64, now: Now) {
        let level = MemoryLevel { used: self.shared.memory_budget.used(), resident };
        self.shared.memory_budget.set_excess((resident - self.slack - level.used).max(0));
        self.called.1 += 1;
        match self.state {
            CompactorState::Idle => self.watch(level),
            CompactorState::Collecting { looks, .. }
                if looks < HEARD_LOOKS_MAX && !self.shared.compactor.all_have_heard() =>
            {
                self.count_look();
            }
            CompactorState::Collecting { next, .. } => self.decide(level, next, now),
        }
    }

    /// The memory of the process is unknown: only the budget counts, and no write waits for more.
    fn go_blind(&mut self) {
        self.shared.memory_budget.set_excess(0);
        self.state = CompactorState::Idle;
        self.shared.compactor.finish();
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
        allocator::collect_thread();
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
        let armed = self.move_slots(table, bucket, passes, (&guard, now));
        drop(guard);
        armed.into_iter().for_each(|slot| self.shared.expiry.cancel(slot));
    }

    /// Moves slots of a bucket. Returns the old slots of which the wheel has a record, or will have one: a writer armed
    /// them after they had moved. The caller cancels the records.
    fn move_slots(
        &mut self,
        table: &Table,
        bucket: u32,
        passes: MovePass,
        (guard, now): (&Guard, Now),
    ) -> Vec<SlotHandle> {
        let (mut armed, mut retired) = (Vec::new(), 0);
        table.index().renew(bucket, guard, |slot| {
            // Checked under the bucket's lock. The reaper finds slots to seal under the same lock, after the table was
            // closed. So a slot that it seals does not move.
            if table.is_closed() || !passes.include(slot.address()) {
                return None;
            }
            let next = slot.move_out(slot.load(guard))?;
            reach(Failpoint::MovedOut);
            retired += slot.bytes();
            if slot.is_armed() {
                armed.push(slot.handle());
            }
            Some(next)
        });
        if retired > 0 {
            self.garbage.add(retired, guard, now);
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
fn relocate<'g>(slot: SlotRef<'g>, passes: MovePass, guard: &'g Guard) -> Option<usize> {
    let seen = slot.load(guard);
    let SlotState::Live(old) = seen.state() else { return None };
    if !passes.include(old.address()) {
        return None;
    }
    let mut entry = EntryBox::new(old.value());
    entry.stamp(old.version(), old.deadline());
    // If a writer was faster, the CAS fails, and the writer has made a new entry itself.
    slot.replace(seen, entry, guard).is_ok().then_some(old.value().len() + ENTRY_HEADER_BYTES)
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
