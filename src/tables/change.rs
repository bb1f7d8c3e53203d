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

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;

use super::ChangeKind;
use super::index::CELLS;
use super::slot::SlotHandle;

/// How long a waiting writer sleeps before it looks again by itself. It is woken when credits come back; this only
/// bounds what a wake-up lost to a bug could cost.
const WAIT_RECHECK: Duration = Duration::from_millis(100);

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

/// Publisher awake: it looks at the rings before it sleeps, nobody needs to wake it.
pub(super) const AWAKE: u8 = 0;
/// Asleep with a time-out because nobody subscribes: woken when a ring is half full.
pub(super) const LAZY: u8 = 1;
/// Asleep: woken by the first change.
pub(super) const ASLEEP: u8 = 2;

pub(super) type Waker = Box<dyn Fn() + Send + Sync>;

/// What writers and publisher share.
pub(super) struct Hub {
    pub(super) rings: Mutex<Vec<Arc<Ring>>>,
    /// Grows with every new ring, so that the publisher knows when to read the list again.
    pub(super) generation: AtomicUsize,
    /// How the publisher sleeps. Written by it; read by writers after a push.
    pub(super) sleep: CachePadded<AtomicU8>,
    pub(super) waker: OnceLock<Waker>,
    pub(super) closed: AtomicBool,
    pub(super) capacity: usize,
    waits: AtomicU64,
}

/// One writer's changes.
pub(super) struct Ring {
    pub(super) queue: ArrayQueue<Change>,
    /// Changes of this ring announced so far. Written by the publisher; read by the writer.
    pub(super) announced: CachePadded<AtomicU64>,
    /// Changes pushed so far. Written by the writer; read for STATS.
    pushed: CachePadded<AtomicU64>,
    /// The writer sleeps until credits come back.
    pub(super) waiting: AtomicBool,
    pub(super) sleeper: Mutex<Option<Thread>>,
    /// The writer is gone; the ring goes when it is empty.
    pub(super) abandoned: AtomicBool,
}

impl Hub {
    /// # Panics
    /// If a writer could not have the credits of one piece of the reaper's work.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        assert!(capacity >= CELLS, "a writer needs at least {CELLS} credits");
        Arc::new(Self {
            rings: Mutex::new(Vec::new()),
            generation: AtomicUsize::new(0),
            sleep: CachePadded::new(AtomicU8::new(AWAKE)),
            waker: OnceLock::new(),
            closed: AtomicBool::new(false),
            capacity,
            waits: AtomicU64::new(0),
        })
    }

    pub(super) fn writer(self: &Arc<Self>) -> Writer {
        let ring = Arc::new(Ring {
            queue: ArrayQueue::new(self.capacity),
            announced: CachePadded::new(AtomicU64::new(0)),
            pushed: CachePadded::new(AtomicU64::new(0)),
            waiting: AtomicBool::new(false),
            sleeper: Mutex::new(None),
            abandoned: AtomicBool::new(false),
        });
        lock(&self.rings).push(Arc::clone(&ring));
        // Release: pairs with the Acquire in `Changes::refresh`.
        self.generation.fetch_add(1, Ordering::Release);
        Writer { hub: Arc::clone(self), ring, pushed: 0, announced: 0, told: 0 }
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
        rings
            .iter()
            .map(|ring| ring.pushed.load(Ordering::Relaxed).saturating_sub(ring.announced.load(Ordering::Relaxed)))
            .sum()
    }

    /// How often a writer had to wait for credits.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ----------------------------------------------------------------------------------------------------------- writer

/// One thread's end of the queue.
pub(super) struct Writer {
    hub: Arc<Hub>,
    ring: Arc<Ring>,
    pushed: u64,
    /// The last reading of what was announced: a lower bound.
    announced: u64,
    /// `pushed` when the publisher was last looked after.
    told: u64,
}

impl Writer {
    /// How many changes can be committed now, at least.
    pub(super) fn credits(&mut self, wanted: usize) -> usize {
        if self.left() < wanted {
            // Acquire: pairs with the Release of the publisher's `give_back`.
            self.announced = self.ring.announced.load(Ordering::Acquire);
        }
        self.left()
    }

    fn left(&self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "at most the capacity, which is a usize")]
        let outstanding = (self.pushed - self.announced) as usize;
        self.hub.capacity - outstanding
    }

    /// The most credits that there ever are.
    pub(super) fn capacity(&self) -> usize {
        self.hub.capacity
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
        // SeqCst fence: pairs with the one in `prepare_sleep`. If ours comes first, the publisher sees the push; if
        // its comes first, we see that it sleeps.
        fence(Ordering::SeqCst);
        match self.hub.sleep.load(Ordering::Relaxed) {
            AWAKE => {}
            LAZY if self.ring.queue.len() <= self.hub.capacity / 2 => {}
            _ => self.hub.wake(),
        }
    }

    /// Sleeps until `wanted` credits are there. Counted. The caller holds no guard.
    pub(super) fn wait(&mut self, wanted: usize) {
        if self.credits(wanted) >= wanted {
            return;
        }
        self.hub.waits.fetch_add(1, Ordering::Relaxed);
        *lock(&self.ring.sleeper) = Some(thread::current());
        loop {
            // SeqCst: pairs with the swap in `give_back`. If the flag comes first, the publisher sees it and wakes us;
            // if the credits come first, we see them.
            self.ring.waiting.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if self.credits(wanted) >= wanted {
                break;
            }
            self.hub.wake();
            thread::park_timeout(WAIT_RECHECK);
        }
        self.ring.waiting.store(false, Ordering::Relaxed);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.tell();
        // Release: pairs with the Acquire in `Changes::refresh`: what was pushed comes before.
        self.ring.abandoned.store(true, Ordering::Release);
        self.hub.generation.fetch_add(1, Ordering::Release);
    }
}
