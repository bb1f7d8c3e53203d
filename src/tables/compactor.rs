//! The compactor: compares what the tables' account says with what the process has, and has memory given back.
//!
//! What the process has beyond the account, by holes between elements, by what an allocator keeps, or by what else has
//! grown, counts against `memory_max` like elements do. When a write is refused for that alone, it waits while the compactor
//! has memory given back, and is refused only if that does not help.
//!
//! ```text
//! every look: resident − account ─► Account::set_excess
//!
//!  calm ── a write lacks room that the account has ──► collecting ── room enough ──► calm
//!   │                                                   ▲     │ enough holes          ▲
//!   │ much more than the account, and it has changed    │     ▼                       │
//!   └► calls once: every thread collects                └── moving, 1/n of them ── no more to move, little room:
//!                                                                                     exhausted, until that has changed
//! ```
//! **Collecting.** An allocator frees what one thread has freed of another's memory only in that other thread. So every
//! session hears the call, between two batches or where its thread waits for work, and collects its own part.
//!
//! **Moving.** Where few elements are left on each page, entries get a new place: the same version, value and deadline in
//! new memory, by the CAS of their slot. That is no change, and is not announced; a writer whose CAS it made fail tries again.
//! Slots get a new place as well, but for those with a deadline or with a change that is yet to be announced (`slot`).
//! Each pass moves what is in some regions of memory and nothing else, so that whole pages become free soon, and moving
//! takes little more memory than there is. The compactor's thread keeps nothing of what it frees: jemalloc would have the next copy
//! fill the hole that the last one left. The index keeps its size.
//!
//! The counters and flags are Relaxed where nothing is said: they carry no other data, and one that is seen late costs a look.
//!
//! It does not know where the figure of the process comes from, and commits nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use crossbeam::epoch::{self, Guard};

use super::TablesShared;
use super::failpoint::{Failpoint, reach};
use super::garbage::Garbage;
use super::index::CELLS;
use super::sleeper::Sleeper;
use super::slot::{ENTRY_HEADER_BYTES, EntryBox, SLOT_HEADER_BYTES, SlotHandle, SlotRef, SlotState};
use super::table::Table;
use crate::allocator;
use crate::clock::Now;
use crate::limits::{COMPACTOR_HURRY, COMPACTOR_LOOK};
use crate::stats::SharedCounter;

/// Looks after which the compactor waits no longer for sessions that have not heard a call: they sleep shorter than that.
const HEARD_LOOKS_MAX: u32 = 30;
/// Looks between two calls that no write waits for, and as many for each GiB of elements: collecting takes some ms for a GiB.
const CALM_LOOKS: i64 = 20;
/// What the process may have beyond the account before it is called to collect, besides an eighth.
const LOOSE_BYTES: i64 = 8 << 20;
/// A pass moves at most this share of the limit.
const PASS_SHARE: i64 = 32;
/// Room that ends the search for more, as a share of the limit.
const ROOM_SHARE: i64 = 8;
/// Room that is not worth another search, as a share of the limit.
const TIGHT_SHARE: i64 = 64;
/// Entries and slots are moved by regions of this many bytes, as a power of two: sixteen pages of mimalloc.
const REGION_BITS: u32 = 20;

/// What others know of the compactor.
#[derive(Default)]
pub(super) struct CompactorState {
    /// Grows with each call to collect. Written by the compactor; read by sessions.
    calls: AtomicU64,
    /// Sessions that have heard the last one.
    heard: AtomicUsize,
    /// How the sessions' threads are woken, at each call.
    sessions: Mutex<Vec<Arc<Sleeper>>>,
    /// A write waits for memory. Set by writers, taken back by the compactor when it has done what it can, under the lock
    /// of `sleepers`.
    wanted: AtomicBool,
    /// Sessions with writes that wait, to be woken in the end.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
    /// What could be given back has been. Written by the compactor; read by writers.
    exhausted: AtomicBool,
    moved: SharedCounter,
    closed: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl CompactorState {
    pub(super) fn enter(&self, sleeper: &Arc<Sleeper>) {
        self.sessions().push(Arc::clone(sleeper));
    }

    pub(super) fn leave(&self, sleeper: &Arc<Sleeper>) {
        self.sessions().retain(|other| !Arc::ptr_eq(other, sleeper));
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write waits for memory: sessions whose threads are not woken at a call look for one often.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The number of the last call. A session that has heard an older one collects, and says so.
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
        // A session that hears the last call late counts for this one: then something is collected later.
        self.heard.store(0, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let sessions = self.sessions().clone();
        sessions.iter().for_each(|sleeper| sleeper.wake());
    }

    fn sleepers(&self) -> MutexGuard<'_, Vec<Arc<Sleeper>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write that waited for memory is worth another try. If not, `sleeper` is woken when it is.
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

    /// The compactor has done what it can: writes that wait try again.
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

    /// A write lacks memory that the account would grant. Whether it is worth to wait for it.
    ///
    /// If it says so and the compactor finishes before the session asks [`Link::watch`], that finds nothing wanted any more.
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
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
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

/// What there is, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct MemoryLevel {
    /// By the account.
    used: i64,
    /// By what the process has.
    resident: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompactorStage {
    /// No write waits.
    Calm,
    /// Called so many looks ago; the pass that follows, if entries are to be moved.
    Collecting { looks: u32, next: Option<MovePass> },
}

/// Which part of the entries and slots is moved: this one of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MovePass {
    number: usize,
    count: usize,
}

/// The compactor thread's work. One thread owns it.
pub struct Compactor {
    shared: Arc<TablesShared>,
    garbage: Garbage,
    /// What the process may have beyond the account for free.
    slack: i64,
    stage: CompactorStage,
    /// Whether entries have been moved since a write lacked room.
    moved: bool,
    /// What there was when it was last called to collect, and how many looks ago that was.
    called: (MemoryLevel, i64),
    /// The room that there was when a write began to wait.
    room_before: i64,
    /// The account, and the room, when nothing more could be given back.
    exhausted_at: (i64, i64),
}

impl Compactor {
    pub(super) fn new(shared: &Arc<TablesShared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            garbage: Garbage::default(),
            slack: 0,
            stage: CompactorStage::Calm,
            moved: false,
            called: (MemoryLevel::default(), 0),
            room_before: 0,
            exhausted_at: (0, 0),
        }
    }

    /// The loop of the compactor thread; returns when the tables are closed. `resident` says what the process has in
    /// memory, in bytes; what it has at first is not the tables', and `slack` more may come of other things.
    pub fn run(mut self, slack: u64, mut now: impl FnMut() -> Now, mut resident: impl FnMut() -> Option<u64>) {
        let link = &Arc::clone(&self.shared).compactor;
        *link.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        allocator::keep_nothing();
        let mut first = None;
        self.slack = signed(slack);
        // Acquire: pairs with the Release in `close`, which unparks after it.
        while !link.closed.load(Ordering::Acquire) {
            let reading = now();
            if let Some(bytes) = resident().map(signed) {
                let first = *first.get_or_insert_with(|| bytes - self.shared.memory_budget.used());
                self.look(bytes - first, reading);
            } else {
                self.go_blind();
            }
            self.garbage.rest(reading);
            thread::park_timeout(if self.stage == CompactorStage::Calm { COMPACTOR_LOOK } else { COMPACTOR_HURRY });
        }
        link.exhausted.store(true, Ordering::Relaxed);
        link.finish();
    }

    /// The tables seem to take so many bytes. Takes the next step.
    pub(super) fn look(&mut self, resident: i64, now: Now) {
        let level = MemoryLevel { used: self.shared.memory_budget.used(), resident };
        self.shared.memory_budget.set_excess((resident - self.slack - level.used).max(0));
        self.called.1 += 1;
        match self.stage {
            CompactorStage::Calm => self.watch(level),
            CompactorStage::Collecting { looks, .. }
                if looks < HEARD_LOOKS_MAX && !self.shared.compactor.all_have_heard() =>
            {
                self.count_look();
            }
            CompactorStage::Collecting { next, .. } => self.decide(level, next, now),
        }
    }

    /// It is not known what the process has: the account alone counts, and no write waits for more.
    fn go_blind(&mut self) {
        self.shared.memory_budget.set_excess(0);
        self.stage = CompactorStage::Calm;
        self.shared.compactor.finish();
    }

    fn count_look(&mut self) {
        if let CompactorStage::Collecting { looks, .. } = &mut self.stage {
            *looks += 1;
        }
    }

    /// What is free by both, the account and what the process has.
    fn room(&self) -> i64 {
        self.shared.memory_budget.limit() - self.shared.memory_budget.taken()
    }

    fn tight(&self) -> i64 {
        self.shared.memory_budget.limit() / TIGHT_SHARE
    }

    fn watch(&mut self, level: MemoryLevel) {
        let link = &self.shared.compactor;
        let (used, room) = self.exhausted_at;
        let is_another = level.used < used - self.tight() || (self.room() - room).abs() >= self.tight();
        if is_another && link.exhausted.load(Ordering::Relaxed) {
            link.exhausted.store(false, Ordering::Relaxed);
        }
        if link.wanted.load(Ordering::Relaxed) {
            self.moved = false;
            self.room_before = self.room();
            self.call(level);
            self.stage = CompactorStage::Collecting { looks: 0, next: None };
        } else if self.is_loose(level) {
            self.call(level);
        }
    }

    /// Whether the process has much more than the account says, and it is worth another call.
    fn is_loose(&self, level: MemoryLevel) -> bool {
        let (before, looks) = self.called;
        let has_changed = |before: i64, now: i64| (now - before).abs() > now / 16 + (1 << 20);
        level.resident - level.used > level.used / 8 + LOOSE_BYTES
            && looks > CALM_LOOKS + CALM_LOOKS * (level.used >> 30)
            && (has_changed(before.used, level.used) || has_changed(before.resident, level.resident))
    }

    fn call(&mut self, level: MemoryLevel) {
        self.called = (level, 0);
        self.garbage.sweep();
        self.shared.compactor.call();
        allocator::collect_thread();
        allocator::collect_process();
    }

    /// All have collected. Moves entries, if there are enough holes, or says how it went.
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
            self.stage = CompactorStage::Collecting { looks: 0, next };
            return;
        }
        if self.room() < self.room_before + self.tight() {
            // A write that lacks more than there is now is refused, and others that lack it, until more is deleted.
            self.exhausted_at = (level.used, self.room());
            self.shared.compactor.exhausted.store(true, Ordering::Relaxed);
        }
        self.stage = CompactorStage::Calm;
        self.shared.compactor.finish();
    }

    /// Moves all entries and slots that may move.
    #[cfg(test)]
    pub(super) fn move_all(&mut self, now: Now) {
        self.move_entries(MovePass { number: 0, count: 1 }, now);
    }

    /// Moves a part of the entries and slots of all tables. What comes and goes meanwhile may be left out.
    fn move_entries(&mut self, passes: MovePass, now: Now) {
        for number in self.shared.catalog.numbers() {
            let Some(table) = self.shared.catalog.registry().share(number, &epoch::pin()) else { continue };
            let mut prefetch = vec![0];
            while let Some(bucket) = prefetch.pop() {
                self.move_bucket(&table, bucket, &mut prefetch, passes, now);
            }
        }
        self.garbage.sweep();
    }

    fn move_bucket(&mut self, table: &Table, bucket: u32, prefetch: &mut Vec<u32>, passes: MovePass, now: Now) {
        let guard = epoch::pin();
        let mut slots = Vec::with_capacity(CELLS);
        table.index().visit(bucket, &guard, prefetch, |slot| slots.push(slot));
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

    /// Moves slots of a bucket. Gives those of which the wheel has, or will have, a record, which is to go: a writer has armed them too late.
    fn move_slots(
        &mut self,
        table: &Table,
        bucket: u32,
        passes: MovePass,
        (guard, now): (&Guard, Now),
    ) -> Vec<SlotHandle> {
        let (mut armed, mut retired) = (Vec::new(), 0);
        table.index().renew(bucket, guard, |slot| {
            // Asked under the bucket's lock: what is sealed has been found under it, after the table was closed, and stays.
            if table.is_closed() || !passes.include(slot.address()) {
                return None;
            }
            let next = slot.move_out(slot.load(guard))?;
            reach(Failpoint::MovedOut);
            retired += SLOT_HEADER_BYTES + slot.key().len();
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
    /// Whether what is at this address is moved now.
    fn include(self, address: usize) -> bool {
        (address >> REGION_BITS) % self.count == self.number
    }
}

/// Gives an entry of these regions another place; how many bytes were retired.
fn relocate<'g>(slot: SlotRef<'g>, passes: MovePass, guard: &'g Guard) -> Option<usize> {
    let seen = slot.load(guard);
    let SlotState::Live(old) = seen.state() else { return None };
    if !passes.include(old.address()) {
        return None;
    }
    let mut entry = EntryBox::new(old.value());
    entry.stamp(old.version(), old.deadline());
    // A writer that was faster has made a new entry itself.
    slot.replace(seen, entry, guard).is_ok().then_some(old.value().len() + ENTRY_HEADER_BYTES)
}

/// In how many passes entries are to be moved: none if there are few holes between them.
fn passes(level: MemoryLevel, limit: i64) -> Option<MovePass> {
    let holes = level.resident - level.used;
    let enough = holes >= level.resident / 4 && holes >= limit / PASS_SHARE;
    let count = usize::try_from(level.used / (limit / PASS_SHARE).max(1)).unwrap_or(0) + 1;
    enough.then_some(MovePass { number: 0, count })
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_passes_as_bound_what_each_moves_and_none_for_few_holes() {
        const LIMIT: i64 = 320 << 20;
        let count = |used: i64, resident: i64| {
            let level = MemoryLevel { used: used << 20, resident: resident << 20 };
            passes(level, LIMIT).map(|MovePass { number, count }| (number, count))
        };
        // A pass moves at most a 32nd of the limit, which is 10 MiB here.
        assert_eq!(count(5, 40), Some((0, 1)));
        assert_eq!(count(95, 300), Some((0, 10)));
        assert_eq!(count(101, 300), Some((0, 11)));
        assert_eq!(count(226, 300), None, "less than a quarter are holes");
        assert_eq!(count(2, 11), None, "less than a 32nd of the limit");
        let regions =
            |number| (0..100_usize).filter(move |at| MovePass { number, count: 7 }.include(at << REGION_BITS));
        assert_eq!((0..7).flat_map(regions).collect::<std::collections::HashSet<_>>().len(), 100, "each in one pass");
        assert_eq!((0..7).map(|number| regions(number).count()).sum::<usize>(), 100);
    }
}
