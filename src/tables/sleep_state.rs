//! The protocol by which a thread of the tables falls asleep while other threads send to it. The publisher and the
//! expiry thread use it.
//!
//! ```text
//! sleeper                                        sender
//! prepare:  level := bound for wake-ups          send
//!           fence (SeqCst)                       must_wake: fence (SeqCst)
//!           has a message come? level := AWAKE              more urgent than the level? level := AWAKE, wake
//! ```
//! If the sender's fence comes first, the sleeper sees the message. If the sleeper's fence comes first, the sender sees
//! the level. So no message that is urgent enough waits for a sleeping thread. Of several senders, the one that sets
//! the level back wakes the sleeper. Until the level is set again, the others find the sleeper awake, and it looks for
//! messages before it sleeps again.
//!
//! This module does not know the messages. It parks and wakes no thread: the callers do, by its results.

use crossbeam::utils::CachePadded;

use super::sync::{AtomicU64, Ordering, fence};

/// A level or an urgency. The smaller number is the more urgent one.
pub(super) type Urgency = u64;

/// The urgency of a message that cannot wait. It wakes every sleeper.
pub(super) const URGENT: Urgency = 0;
/// The urgency that wakes a sleeper that sleeps for want of work.
pub(super) const ORDINARY: Urgency = 1;
/// The level of a sleeper that only an urgent message wakes.
pub(super) const WAKE_FOR_URGENT: Urgency = 1;
/// The level of a sleeper that every message wakes.
pub(super) const WAKE_FOR_ANY: Urgency = u64::MAX;

/// The level of a thread that is awake: no urgency is below it.
const AWAKE: Urgency = 0;

/// The sleep state of one thread.
pub(super) struct SleepState {
    /// A message that is more urgent than this wakes the sleeper. Set by the sleeper. Set back by the sleeper, or by
    /// the sender that wakes it.
    level: CachePadded<AtomicU64>,
}

impl SleepState {
    pub(super) fn new() -> Self {
        Self { level: CachePadded::new(AtomicU64::new(AWAKE)) }
    }

    /// Called by the sleeper before it sleeps: a message that is more urgent than `level` wakes it. `look` says whether
    /// a message has come. True: the caller sleeps.
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

    /// Called by the sleeper: it is awake. A sender may have set the level back already, and wakes the sleeper or has
    /// done so.
    pub(super) fn end(&self) {
        // Relaxed: the message itself comes through a queue that orders. An unchanged level is not stored, because
        // senders read this line.
        if self.is_asleep() {
            self.level.store(AWAKE, Ordering::Relaxed);
        }
    }

    /// Whether no sender has taken over the waking of the sleeper.
    pub(super) fn is_asleep(&self) -> bool {
        self.level.load(Ordering::Relaxed) != AWAKE
    }

    /// Called by a sender after it has sent a message. `urgency` gives the urgency of the message, and is called only
    /// while the sleeper sleeps. True: the caller wakes the sleeper.
    pub(super) fn must_wake(&self, urgency: impl FnOnce() -> Urgency) -> bool {
        // SeqCst fence: pairs with the one in `prepare`.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order message and level, and the exchange picks one of several senders.
        let level = self.level.load(Ordering::Relaxed);
        level != AWAKE
            && urgency() < level
            && self.level.compare_exchange(level, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_wakes_a_sleeper_once_and_only_if_it_is_more_urgent_than_the_level() {
        let state = SleepState::new();
        assert!(!state.is_asleep() && !state.must_wake(|| unreachable!("asked only while the sleeper sleeps")));
        assert!(state.prepare(5, || false) && state.is_asleep());
        assert!(!state.must_wake(|| 5), "the sleeper wakes by itself in time");
        assert!(state.must_wake(|| 4) && !state.is_asleep());
        assert!(!state.must_wake(|| URGENT), "one sender wakes it");
    }

    #[test]
    fn a_sleeper_that_is_awake_again_or_has_found_a_message_is_not_woken() {
        let state = SleepState::new();
        assert!(state.prepare(WAKE_FOR_ANY, || false));
        state.end();
        assert!(!state.is_asleep() && !state.must_wake(|| URGENT));
        assert!(!state.prepare(WAKE_FOR_ANY, || true) && !state.is_asleep(), "a message has come");
    }
}
