//! The change queue: from the writers to the one publisher, bounded, each slot's changes in commit order.
//!
//! It does not send anything and does not know what a subscriber is; it never drops a change.
//!
//! ```text
//! writer 0 ──► ring 0 ─┐                 next version of its slot? ── yes ──► announce, give the credit back
//! writer 1 ──► ring 1 ─┼──► publisher ──►      │ no                                  │ was somebody waiting for it?
//! writer 2 ──► ring 2 ─┘                       └──► held back ◄──────────────────────┘
//! ```
//!
//! This file has the writers' end; `announce.rs` has the publisher's.
//!
//! **Order.** A writer pushes after its CAS, so two writers of one slot may push in either order. Versions grow by one
//! for each change of a slot; a change whose predecessor has not been announced is held back until it has.
//!
//! **Bound.** A writer has a fixed number of credits, takes one before its CAS and gets it back when the change has
//! been announced. So rings and held-back changes together are bounded, a push always finds room, and a writer never
//! waits between CAS and push, where the publisher could wait for it for ever.
//!
//! **Settling.** While an older table of the same name still has the key, the new table's changes of it wait for the
//! last change of the older slot.

mod credits;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;

use super::ChangeKind;
use super::index::CELLS;
use super::sleep_state::{ORDINARY, SleepState, URGENT, Urgency};
use super::sleeper::{Sleeper, Waker};
use super::slot::SlotHandle;
pub(super) use credits::Credits;

/// How long a waiting thread sleeps before it looks again by itself. It is woken when what it waits for has come; this
/// only bounds what a wake-up lost to a bug could cost, and such a one is counted.
pub(super) const WAIT_RECHECK: Duration = Duration::from_millis(100);
/// A writer that waits is woken when this share of its ring is free, or all that it wanted if that is more: it then has
/// work for longer than waking it takes.
const PORTION_SHARE: usize = 4;

/// One committed change of one slot, on its way to the publisher.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) slot: SlotHandle,
    /// Low bits of the version: fewer changes than 2^31 of one slot are ever on the way.
    pub(super) version: u32,
    pub(super) kind: Committed,
}

/// What was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// A value was stored.
    Updated,
    /// A value went: by a delete or by its deadline.
    Deleted,
    /// A value went with its table; nothing follows in this slot.
    SealedLive,
    /// There was no value when the table went; nothing follows in this slot, and nobody is told.
    SealedAbsent,
}

impl Committed {
    pub(super) fn is_last(self) -> bool {
        matches!(self, Self::SealedLive | Self::SealedAbsent)
    }

    pub(super) fn told_as(self) -> Option<ChangeKind> {
        match self {
            Self::Updated => Some(ChangeKind::Updated),
            Self::Deleted | Self::SealedLive => Some(ChangeKind::Deleted),
            Self::SealedAbsent => None,
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- hub

/// What writers and publisher share.
pub(super) struct ChangeQueue {
    pub(super) rings: Mutex<Vec<Arc<ChangeRing>>>,
    /// Grows with every new ring, so that the publisher knows when to read the list again.
    pub(super) generation: AtomicUsize,
    /// How the publisher sleeps: soundly, and the first change wakes it; or, while nobody subscribes, so that only what is
    /// urgent wakes it before its time-out, which is a ring that is half full or a writer that waits.
    pub(super) sleep_state: SleepState,
    pub(super) waker: OnceLock<Waker>,
    pub(super) closed: AtomicBool,
    pub(super) capacity: usize,
    /// How often the publisher has given credits back. Written by it; read by a writer that suspects a lost wake-up.
    passes: CachePadded<AtomicU64>,
    /// Counted by writers that have to wait, off the line that all of them read.
    waits: CachePadded<AtomicU64>,
    lost_wakeups: AtomicU64,
}

/// One writer's changes.
pub(super) struct ChangeRing {
    pub(super) queue: ArrayQueue<Change>,
    pub(super) credits: Credits,
    /// Changes pushed so far. Written by the writer; read for STATS.
    pushed: CachePadded<AtomicU64>,
    /// How the writer is woken when it waits for credits.
    pub(super) sleeper: Arc<Sleeper>,
    /// The writer is gone; the ring goes when it is empty.
    pub(super) abandoned: AtomicBool,
}

impl ChangeRing {
    /// How urgently what is in the ring wants to be announced.
    pub(super) fn urgency(&self, capacity: usize) -> Urgency {
        let many = if self.credits.is_registered() { 0 } else { capacity / 2 };
        if self.queue.len() > many { URGENT } else { ORDINARY }
    }
}

impl ChangeQueue {
    /// # Panics
    /// If a writer could not have the credits of one piece of the reaper's work.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        assert!(capacity >= CELLS, "a writer needs at least {CELLS} credits");
        Arc::new(Self {
            rings: Mutex::new(Vec::new()),
            generation: AtomicUsize::new(0),
            sleep_state: SleepState::new(),
            waker: OnceLock::new(),
            closed: AtomicBool::new(false),
            capacity,
            passes: CachePadded::new(AtomicU64::new(0)),
            waits: CachePadded::new(AtomicU64::new(0)),
            lost_wakeups: AtomicU64::new(0),
        })
    }

    pub(super) fn writer(self: &Arc<Self>) -> ChangeWriter {
        let ring = Arc::new(ChangeRing {
            queue: ArrayQueue::new(self.capacity),
            credits: Credits::new(),
            pushed: CachePadded::new(AtomicU64::new(0)),
            sleeper: Arc::default(),
            abandoned: AtomicBool::new(false),
        });
        lock(&self.rings).push(Arc::clone(&ring));
        // Release: pairs with the Acquire in `Changes::refresh`.
        self.generation.fetch_add(1, Ordering::Release);
        ChangeWriter { change_queue: Arc::clone(self), ring, pushed: 0, announced: 0, told: 0, registered: None }
    }

    fn wake(&self) {
        if let Some(wake) = self.waker.get() {
            wake();
        }
    }

    /// Lets the publisher look around, if it sleeps.
    pub(super) fn nudge(&self) {
        self.wake();
    }

    /// No new writer will come: the publisher ends when the last one is gone and all is announced.
    pub(super) fn close(&self) {
        // SeqCst: pairs with the load in `prepare_sleep`, after which the publisher would sleep for ever.
        self.closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Changes committed and not announced yet.
    pub(super) fn waiting(&self) -> u64 {
        let rings = lock(&self.rings);
        rings.iter().map(|ring| ring.pushed.load(Ordering::Relaxed).saturating_sub(ring.credits.announced())).sum()
    }

    /// How often a writer had to wait for credits.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// How often a writer's time-out found credits of which it had not been told. Each is a bug.
    pub(super) fn lost_wakeups(&self) -> u64 {
        self.lost_wakeups.load(Ordering::Relaxed)
    }

    /// Publisher: all credits that there are have been given back, and all writers woken that are to be.
    pub(super) fn has_given_back(&self) {
        // Release: pairs with the Acquire in `passes`: who sees the count sees what was taken before it.
        self.passes.fetch_add(1, Ordering::Release);
    }

    fn passes(&self) -> u64 {
        // Acquire: pairs with the Release in `has_given_back`.
        self.passes.load(Ordering::Acquire)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ----------------------------------------------------------------------------------------------------------- writer

/// One thread's end of the queue.
pub(super) struct ChangeWriter {
    change_queue: Arc<ChangeQueue>,
    ring: Arc<ChangeRing>,
    pushed: u64,
    /// The last reading of what was announced: a lower bound.
    announced: u64,
    /// `pushed` when the publisher was last looked after.
    told: u64,
    /// What the writer waits for, until it has found that the wait is over.
    registered: Option<RegisteredWriter>,
}

/// A writer's registration with the publisher.
struct RegisteredWriter {
    /// The count of announced changes at which the publisher wakes it.
    target: u64,
    /// The publisher's passes when the target was first found reached, and the writer not woken.
    overdue: Option<u64>,
}

impl ChangeWriter {
    /// How many changes can be committed now, at least. None while the writer waits for the publisher: what comes later
    /// must not overtake what is refused already, and must not use the portion up crumb by crumb.
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
        let outstanding = (self.pushed - self.announced) as usize;
        self.change_queue.capacity - outstanding
    }

    /// The most credits that there ever are.
    pub(super) fn capacity(&self) -> usize {
        self.change_queue.capacity
    }

    /// Pushes what has just been committed. The caller had a credit before its CAS.
    ///
    /// # Panics
    /// Without a credit.
    pub(super) fn push(&mut self, change: Change) {
        let pushed = self.ring.queue.push(change);
        assert!(pushed.is_ok(), "a change is committed only with a credit");
        self.pushed += 1;
        self.ring.pushed.store(self.pushed, Ordering::Relaxed);
    }

    /// Sees to it that what was pushed will be looked at. Called once for a batch.
    pub(super) fn tell(&mut self) {
        if self.told == self.pushed {
            return;
        }
        self.told = self.pushed;
        if self.change_queue.sleep_state.must_wake(|| self.ring.urgency(self.change_queue.capacity)) {
            self.change_queue.wake();
        }
    }

    /// How the writer is woken.
    pub(super) fn sleeper(&self) -> &Arc<Sleeper> {
        &self.ring.sleeper
    }

    /// Whether `wanted` credits are there. If not, the writer is woken once when they are, and a portion with them; until
    /// then it has no credits.
    pub(super) fn watch(&mut self, wanted: usize) -> bool {
        if self.registered.is_some() && !self.is_woken() {
            return self.is_forgotten();
        }
        if self.credits(wanted) >= wanted {
            return true;
        }
        let portion = wanted.max(self.change_queue.capacity / PORTION_SHARE);
        let target = self.pushed - (self.change_queue.capacity - portion) as u64;
        if !self.ring.credits.register(target) {
            return true;
        }
        self.registered = Some(RegisteredWriter { target, overdue: None });
        self.change_queue.waits.fetch_add(1, Ordering::Relaxed);
        if self.change_queue.sleep_state.must_wake(|| URGENT) {
            self.change_queue.wake();
        }
        false
    }

    /// Whether the publisher has given back what the writer waits for, and has not woken it: counted, and the wait is over.
    ///
    /// A publisher that is between the two is not meant. The first look at which the credits are there notes the count of
    /// its passes; once that has grown, the pass which gave them back is over.
    fn is_forgotten(&mut self) -> bool {
        let passes = self.change_queue.passes();
        let Some(registered) = &mut self.registered else { return false };
        if self.ring.credits.announced() < registered.target {
            return false;
        }
        let Some(before) = registered.overdue else {
            // Read after the credits were seen: of the pass that gave them back, or later.
            registered.overdue = Some(self.change_queue.passes());
            self.change_queue.wake();
            return false;
        };
        if passes == before {
            return false;
        }
        self.registered = None;
        if self.ring.credits.withdraw() {
            self.change_queue.lost_wakeups.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Sleeps until `wanted` credits are there. Counted. The caller holds no guard.
    pub(super) fn wait(&mut self, wanted: usize) {
        let sleeper = Arc::clone(&self.ring.sleeper);
        sleeper.park(WAIT_RECHECK, || self.watch(wanted));
    }
}

impl Drop for ChangeWriter {
    fn drop(&mut self) {
        self.tell();
        // Release: pairs with the Acquire in `Changes::refresh`: what was pushed comes before.
        self.ring.abandoned.store(true, Ordering::Release);
        // SeqCst, both: pair with the store in `close` and the load in `Changes::refresh`. If the queue was closed first, the
        // publisher is woken here; if not, `close` wakes it, and it finds that this writer is gone.
        self.change_queue.generation.fetch_add(1, Ordering::SeqCst);
        if self.change_queue.closed.load(Ordering::SeqCst) {
            self.change_queue.wake();
        }
    }
}
