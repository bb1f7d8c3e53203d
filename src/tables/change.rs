//! The change queue: it takes changes from the writers to the one publisher, bounded, each slot's changes in commit
//! order.
//!
//! It drops no change.
//!
//! ```text
//! writer 0 ──► ring 0 ─┐                 next version of its slot? ── yes ──► announce, give the credit back
//! writer 1 ──► ring 1 ─┼──► publisher ──►      │ no                                  │ is its successor held back?
//! writer 2 ──► ring 2 ─┘                       └──► held back ◄──────────────────────┘
//! ```
//! This file has the writers' end, `announce.rs` has the publisher's end.
//!
//! **Order.** A writer pushes after its CAS, so two writers of one slot may push in either order. Versions of a slot
//! grow by one with each change. The publisher holds a change back until it has announced the predecessor, unless that
//! was committed while there was no audience.
//!
//! **Bound.** A writer has a fixed number of credits. It takes one before its CAS, and gets it back when the publisher has
//! dealt with the change. So rings and held-back changes together are bounded, and a push always finds room. A writer never
//! waits between CAS and push: the publisher could then wait for that change for ever.
//!
//! **Audience.** While nobody can receive a stored value, its change is not pushed: see `announce/audience.rs`.
//!
//! **Settling.** If an older table of the same name still has the key, the publisher announces the new table's changes
//! of the key after the last change of the older slot.
//!
//! This module sends no message and knows no subscriber.

mod announced;
mod credits;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam::utils::CachePadded;

use super::index::CELLS;
use super::limits::CHANGES_MAX;
use super::sleep_state::{ORDINARY, SleepState, URGENT, Urgency};
use super::sleeper::{Sleeper, Waker};
use super::slot::{Ring, RingReader, RingWriter, SlotHandle, TABLE_NUMBERS};
use crate::feed::Cause;
use crate::lock::Mutex;
pub(super) use announced::full_version;
pub use announced::{AnnouncedChange, ChangeSink};
pub(super) use credits::Credits;

/// A waiting thread looks again by itself after this time. Normally the publisher wakes it. The time only bounds the
/// cost of a wake-up lost to a bug, which is counted.
pub(super) const WAIT_RECHECK: Duration = Duration::from_millis(100);
/// A waiting writer is woken when this share of its ring is free, or all the credits that it wants if they are more. It
/// then has work for longer than the wake-up takes.
const PORTION_SHARE: usize = 4;

/// One committed change of one slot, on its way to the publisher.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) slot: SlotHandle,
    /// Low bits of the version: at most [`CHANGES_MAX`] changes of one slot are on the way at a time.
    pub(super) version: u32,
    /// ```text
    /// table:23 │ sets a deadline:1 │ quiet:1 │ follows quiet:1 │ same transaction as the next:1, reserved: 0 │
    /// replaces a value:1 │ number of the cause, less 1:4
    /// ```
    /// One word: a copy of a change that reads single bytes together waits until they have left the processor's store
    /// buffer.
    table_and_cause: u32,
}

const _: () = assert!(size_of::<Change>() == 16 && TABLE_NUMBERS == 1 << (u32::BITS - TABLE_SHIFT));

/// In `table_and_cause`: the bits below the number of the table.
const TABLE_SHIFT: u32 = 9;
/// In `table_and_cause`: the request that stored the value gave it a deadline.
const SETS_DEADLINE: u32 = 0x100;
/// In `table_and_cause`: the change was committed without an audience.
const IS_QUIET: u32 = 0x80;
/// In `table_and_cause`: the change before it, of the same slot, was.
const FOLLOWS_QUIET: u32 = 0x40;
/// In `table_and_cause`: the element had a value before the change.
const REPLACES_VALUE: u32 = 0x10;
const CAUSE_MASK: u32 = 0x0f;

const _: () = assert!(Cause::ALL.len() <= CAUSE_MASK as usize + 1);

/// What a thread has committed in a slot.
#[derive(Clone, Copy)]
pub(super) struct Commit {
    pub(super) version: u64,
    pub(super) committed: Committed,
    /// Whether there is no audience.
    pub(super) is_quiet: bool,
    /// Whether there was none at the change before.
    pub(super) follows_quiet: bool,
}

impl Change {
    /// The change of a commit in the table of this number.
    pub(super) fn new(slot: SlotHandle, table: u32, commit: Commit) -> Self {
        debug_assert!(table < TABLE_NUMBERS, "the registry limits the number");
        let Commit { version, committed, is_quiet, follows_quiet } = commit;
        let Committed { cause, replaces_value, sets_deadline } = committed;
        let flags = if sets_deadline { SETS_DEADLINE } else { 0 }
            | if is_quiet { IS_QUIET } else { 0 }
            | if follows_quiet { FOLLOWS_QUIET } else { 0 }
            | if replaces_value { REPLACES_VALUE } else { 0 };
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what a change carries")]
        let version = version as u32;
        Self { slot, version, table_and_cause: table << TABLE_SHIFT | flags | (cause as u32 - 1) }
    }

    /// Whether it was committed without an audience.
    pub(super) fn is_quiet(&self) -> bool {
        self.table_and_cause & IS_QUIET != 0
    }

    /// Whether the change before it, of the same slot, was committed without an audience. It may not even come.
    pub(super) fn follows_quiet(&self) -> bool {
        self.table_and_cause & FOLLOWS_QUIET != 0
    }

    /// Whether the low half of this version is its own.
    pub(super) fn is_of(&self, version: u64) -> bool {
        version & u64::from(u32::MAX) == u64::from(self.version)
    }

    /// The number of the table.
    pub(super) fn table(&self) -> u32 {
        self.table_and_cause >> TABLE_SHIFT
    }

    pub(super) fn committed(&self) -> Committed {
        let cause = Cause::of_number((self.table_and_cause & CAUSE_MASK) as u8 + 1);
        Committed {
            cause: cause.unwrap_or_else(|| unreachable!("`new` stores a cause")),
            replaces_value: self.table_and_cause & REPLACES_VALUE != 0,
            sets_deadline: self.table_and_cause & SETS_DEADLINE != 0,
        }
    }
}

/// What a commit did to its element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) cause: Cause,
    /// Whether the element had a value before. A slot without one is sealed with its table too, which changes no
    /// element.
    pub(super) replaces_value: bool,
    /// Whether the request that stored a value gave it a deadline.
    pub(super) sets_deadline: bool,
}

impl Committed {
    /// The cause. `None`: the element was absent before and after.
    pub(super) fn changes(self) -> Option<Cause> {
        Some(self.cause).filter(|cause| cause.is_live() || self.replaces_value)
    }

    /// Whether it is the last change of the slot.
    pub(super) fn is_last(self) -> bool {
        self.cause == Cause::DeleteWithTable
    }

    /// Whether the slot is free afterwards, and may be retired.
    pub(super) fn vacates(self) -> bool {
        !self.cause.is_live() && !self.is_last()
    }

    /// Whether the cause says more than that the element has a value, or has none.
    pub(super) fn has_specific_cause(self) -> bool {
        self.cause != Cause::plain(self.cause.is_live())
    }
}

// ------------------------------------------------------------------------------------------------------------ queue

/// The state that the writers and the publisher share.
pub(super) struct ChangeQueue {
    pub(super) rings: Mutex<Vec<Arc<ChangeRing>>>,
    /// Grows with every ring that comes, and with every writer that goes, so that the publisher reads the list again.
    pub(super) generation: AtomicUsize,
    /// The publisher's sleep. Normally the first change wakes it. Without subscribers only an urgent state wakes it
    /// before its time-out: a ring that is half full, or a writer that waits.
    pub(super) sleep_state: SleepState,
    pub(super) waker: OnceLock<Waker>,
    pub(super) closed: AtomicBool,
    pub(super) capacity: usize,
    /// Counted by writers that have to wait, off the cache line that all of them read.
    waits: CachePadded<AtomicU64>,
    lost_wakeups: AtomicU64,
}

/// The changes of one writer.
pub(super) struct ChangeRing {
    pub(super) queue: Arc<Ring<Change>>,
    /// The publisher's end, until it has found the ring.
    pub(super) reader: Mutex<Option<RingReader<Change>>>,
    pub(super) credits: Credits,
    /// Wakes the writer when it waits for credits.
    pub(super) sleeper: Arc<Sleeper>,
    /// Whether the writer is gone. The publisher then removes the ring when it is empty.
    pub(super) abandoned: AtomicBool,
}

impl ChangeRing {
    /// How urgently the ring's changes need the publisher. Urgent: a ring more than half full, or a ring with changes
    /// whose writer waits.
    pub(super) fn urgency(&self, capacity: usize) -> Urgency {
        let many = if self.credits.is_registered() { 0 } else { capacity / 2 };
        if self.queue.len() > many { URGENT } else { ORDINARY }
    }
}

impl ChangeQueue {
    /// # Panics
    /// If `capacity` is below the credits that the reaper needs for one bucket.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        assert!(capacity >= CELLS, "a writer needs at least {CELLS} credits");
        Arc::new(Self {
            rings: Mutex::new(Vec::new()),
            generation: AtomicUsize::new(0),
            sleep_state: SleepState::new(),
            waker: OnceLock::new(),
            closed: AtomicBool::new(false),
            capacity,
            waits: CachePadded::new(AtomicU64::new(0)),
            lost_wakeups: AtomicU64::new(0),
        })
    }

    /// # Panics
    /// If all writers together have more than [`CHANGES_MAX`] credits.
    pub(super) fn writer(self: &Arc<Self>) -> ChangeWriter {
        let (queue, changes, reader) = Ring::new(self.capacity);
        let ring = Arc::new(ChangeRing {
            queue,
            reader: Mutex::new(Some(reader)),
            credits: Credits::new(),
            sleeper: Arc::default(),
            abandoned: AtomicBool::new(false),
        });
        let mut rings = self.rings.lock();
        rings.push(Arc::clone(&ring));
        assert!(rings.len() * self.capacity <= CHANGES_MAX, "a slot counts the changes that are on the way");
        drop(rings);
        // Release: pairs with the SeqCst load in `Rings::refresh`, which then finds the ring in the list.
        self.generation.fetch_add(1, Ordering::Release);
        let (change_queue, usable) = (Arc::clone(self), self.capacity);
        ChangeWriter { change_queue, ring, changes, announced: 0, checked: 0, registered: None, usable }
    }

    fn wake(&self) {
        if let Some(wake) = self.waker.get() {
            wake();
        }
    }

    /// Wakes the publisher, if it sleeps, to look around.
    pub(super) fn nudge(&self) {
        self.wake();
    }

    /// No new writer comes from now on. The publisher ends when the last writer is gone and all changes are announced.
    pub(super) fn close(&self) {
        // SeqCst: pairs with the load in `prepare_sleep`. If the store comes first, the publisher sees it and stays
        // awake. If the load comes first, the waker ends the sleep.
        self.closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Changes pushed that the publisher has not dealt with yet.
    pub(super) fn waiting(&self) -> u64 {
        let rings = self.rings.lock();
        rings.iter().map(|ring| ring.queue.pushed().saturating_sub(ring.credits.announced())).sum()
    }

    /// The number of times a writer had to wait for credits.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// The number of times a writer's time-out found credits without a wake-up. Each is a bug.
    pub(super) fn lost_wakeups(&self) -> u64 {
        self.lost_wakeups.load(Ordering::Relaxed)
    }
}

// ----------------------------------------------------------------------------------------------------------- writer

/// One thread's end of the queue.
pub(super) struct ChangeWriter {
    change_queue: Arc<ChangeQueue>,
    ring: Arc<ChangeRing>,
    changes: RingWriter<Change>,
    /// The last reading of the announced changes: a lower bound.
    announced: u64,
    /// The count of pushed changes when the writer last checked that the publisher is awake.
    checked: u64,
    /// The count of announced changes for which the writer waits, until it has found that the wait is over.
    registered: Option<u64>,
    /// The credits that changes may take: all but those that are kept.
    usable: usize,
}

impl ChangeWriter {
    /// How many changes can be committed now, at least. None while the writer waits for the publisher: a later write
    /// must not overtake a refused one, nor use up the returning credits one by one.
    pub(super) fn credits(&mut self, wanted: usize) -> usize {
        if self.registered.is_some() && !self.is_woken() {
            return 0;
        }
        if self.left() < wanted {
            self.announced = self.ring.credits.announced();
        }
        self.left()
    }

    /// Whether the publisher has taken the registration, which ends the wait.
    fn is_woken(&mut self) -> bool {
        let woken = !self.ring.credits.is_registered();
        if woken {
            self.registered = None;
        }
        woken
    }

    fn left(&self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "at most the capacity, which is a usize")]
        let outstanding = (self.changes.pushed() - self.announced) as usize;
        self.usable - outstanding
    }

    /// Keeps so many credits for a transaction that waits for its latch, or as many as were kept before. Until
    /// [`ChangeWriter::keep_none`] other changes get none of them. Returns false if they are not there.
    pub(super) fn keep(&mut self, wanted: usize) -> bool {
        let kept = self.kept();
        self.usable += kept;
        let are_there = self.credits(wanted) >= wanted;
        self.usable -= if are_there { wanted.max(kept) } else { kept };
        are_there
    }

    /// No transaction waits for its latch.
    #[inline]
    pub(super) fn keep_none(&mut self) {
        self.usable = self.change_queue.capacity;
    }

    /// The credits that are kept.
    pub(super) fn kept(&self) -> usize {
        self.change_queue.capacity - self.usable
    }

    /// The number of credits when no change is on the way.
    pub(super) fn capacity(&self) -> usize {
        self.change_queue.capacity
    }

    /// Pushes a change that has just been committed. The caller took a credit before its CAS.
    ///
    /// # Panics
    /// Without a credit.
    pub(super) fn push(&mut self, change: Change) {
        let pushed = self.changes.push(change);
        assert!(pushed.is_ok(), "a change is committed only with a credit");
    }

    /// Wakes the publisher, if need be, for the pushed changes. Called once for a batch.
    pub(super) fn wake_publisher(&mut self) {
        if self.checked == self.changes.pushed() {
            return;
        }
        self.checked = self.changes.pushed();
        if self.change_queue.sleep_state.must_wake(|| self.ring.urgency(self.change_queue.capacity)) {
            self.change_queue.wake();
        }
    }

    /// The sleeper through which the publisher wakes the writer.
    pub(super) fn sleeper(&self) -> &Arc<Sleeper> {
        &self.ring.sleeper
    }

    /// Whether `wanted` credits are there. If not, the writer registers, and has no credits until the awaited ones have
    /// come back: `wanted`, or a quarter of the ring if that is more. Then the publisher wakes it once. `overslept`: the
    /// writer has slept for [`WAIT_RECHECK`] and nobody has woken it, so credits that are there are a lost wake-up.
    pub(super) fn watch(&mut self, wanted: usize, overslept: bool) -> bool {
        if let Some(target) = self.registered.filter(|_| !self.is_woken()) {
            if self.ring.credits.announced() < target {
                return false;
            }
            // Mostly the publisher is between giving back and taking the registration.
            let is_not_woken = self.ring.credits.withdraw();
            self.registered = None;
            self.change_queue.lost_wakeups.fetch_add(u64::from(is_not_woken && overslept), Ordering::Relaxed);
        }
        // What is kept is not waited for here: whoever tries is refused for the latch.
        if self.credits(wanted) >= wanted || self.kept() > 0 {
            return true;
        }
        let portion = wanted.max(self.change_queue.capacity / PORTION_SHARE);
        let target = self.changes.pushed() - (self.change_queue.capacity - portion) as u64;
        if !self.ring.credits.register(target) {
            return true;
        }
        self.registered = Some(target);
        self.change_queue.waits.fetch_add(1, Ordering::Relaxed);
        if self.change_queue.sleep_state.must_wake(|| URGENT) {
            self.change_queue.wake();
        }
        false
    }

    /// From here on the writer waits for what is announced already, and nobody wakes it.
    #[cfg(test)]
    pub(super) fn lose_wake_up(&mut self) {
        self.registered = Some(0);
        assert!(self.ring.credits.register(u64::MAX - 1), "so many are never announced");
    }

    /// Sleeps until `wanted` credits are there. The wait is counted. The caller holds no guard.
    pub(super) fn wait(&mut self, wanted: usize) {
        let sleeper = Arc::clone(&self.ring.sleeper);
        sleeper.park(WAIT_RECHECK, || self.watch(wanted, false));
    }
}

impl Drop for ChangeWriter {
    fn drop(&mut self) {
        self.wake_publisher();
        // Release: pairs with the Acquire in `Rings::refresh`. The pushes above are visible to the publisher.
        self.ring.abandoned.store(true, Ordering::Release);
        // SeqCst, both: pair with the store in `close` and the load in `Rings::refresh`. If the close comes first,
        // this thread sees it and wakes the publisher. If the load below comes first, `close` wakes the publisher,
        // which sees the new generation and finds this writer gone.
        self.change_queue.generation.fetch_add(1, Ordering::SeqCst);
        if self.change_queue.closed.load(Ordering::SeqCst) {
            self.change_queue.wake();
        }
    }
}

#[cfg(test)]
mod tests;
