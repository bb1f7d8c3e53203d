//! How a thread of the tables falls asleep while others send to it, and when they must wake it: the publisher and the
//! expiry thread.
//!
//! It does not know what is sent, it neither parks nor wakes a thread: it says when that is to be done.
//!
//! ```text
//! sleeper                                        sender
//! prepare:  level := what it sleeps through      send
//!           fence (SeqCst)                       must_wake: fence (SeqCst)
//!           has anything come? level := AWAKE               more urgent than the level? level := AWAKE, wake
//! ```
//! If the sender's fence comes first, the sleeper sees what was sent; if the sleeper's comes first, the sender sees the
//! level. So nothing that is urgent enough waits for a thread that sleeps. Of several senders one wakes it: the one that
//! sets the level back. Until it is set anew, the others find the sleeper awake, and it looks before it sleeps again.

use crossbeam::utils::CachePadded;

use super::sync::{AtomicU64, Ordering, fence};

/// A level or an urgency; what has the smaller number is more urgent.
pub(super) type Urgency = u64;

/// What can wait for nothing. It wakes every sleeper.
pub(super) const URGENT: Urgency = 0;
/// What wakes a sleeper that sleeps for want of anything to do.
pub(super) const ORDINARY: Urgency = 1;
/// The level of a sleeper that only what is urgent shall wake.
pub(super) const BUT_FOR_URGENT: Urgency = 1;
/// The level of a sleeper that everything shall wake.
pub(super) const SOUND: Urgency = u64::MAX;

/// The level of a thread that is awake: nothing is more urgent.
const AWAKE: Urgency = 0;

/// How one thread sleeps.
pub(super) struct SleepState {
    /// What is more urgent than this wakes the sleeper. Set by the sleeper; set back by it or by the sender that wakes it.
    level: CachePadded<AtomicU64>,
}

impl SleepState {
    pub(super) fn new() -> Self {
        Self { level: CachePadded::new(AtomicU64::new(AWAKE)) }
    }

    /// Sleeper: it is going to sleep, and what is more urgent than `level` shall wake it, unless `look` finds that
    /// something has come. True: sleep.
    pub(super) fn prepare(&self, level: Urgency, look: impl FnOnce() -> bool) -> bool {
        self.level.store(level, Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `must_wake`.
        fence(Ordering::SeqCst);
        let something = look();
        if something {
            self.end();
        }
        !something
    }

    /// Sleeper: it is awake. False: a sender has set the level back, and wakes it or has done so.
    pub(super) fn end(&self) -> bool {
        // Relaxed: what was sent comes through a queue that orders. No store if there is nothing to change: senders read
        // this line.
        self.is_asleep() && self.level.swap(AWAKE, Ordering::Relaxed) != AWAKE
    }

    /// Whether no sender has taken it upon itself to wake the sleeper.
    pub(super) fn is_asleep(&self) -> bool {
        self.level.load(Ordering::Relaxed) != AWAKE
    }

    /// Sender: something has just been sent, as urgent as `urgency` says; it is only asked while the sleeper sleeps. True:
    /// the caller wakes the sleeper.
    pub(super) fn must_wake(&self, urgency: impl FnOnce() -> Urgency) -> bool {
        // SeqCst fence: pairs with the one in `prepare`.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order what matters; the exchange picks one of several senders.
        let level = self.level.load(Ordering::Relaxed);
        level != AWAKE
            && urgency() < level
            && self.level.compare_exchange(level, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
