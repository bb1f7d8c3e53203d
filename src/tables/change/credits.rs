//! One writer's credits, and its wait for them: the protocol between the writer and the publisher.
//!
//! ```text
//! writer                                         publisher
//! register: target := the count that it needs    give back: announced := the count that is announced
//!           fence (SeqCst)                                  fence (SeqCst)
//!           announced ≥ target? withdraw, continue          target ≤ announced? target := NONE, wake the writer
//! ```
//! If the writer's fence comes first, the publisher sees the target. If the publisher's fence comes first, the writer
//! sees the credits. So a writer never waits for credits that are there. If each sees the other's store, the writer
//! continues, and a wake-up finds a writer that is awake.
//!
//! This module knows no changes, and parks and wakes no thread: the callers do, by its results.

use crossbeam::utils::CachePadded;

use crate::tables::sync::{AtomicU64, Ordering, fence};

/// The `target` of a writer that does not wait. No writer commits so many changes.
const NONE: u64 = u64::MAX;

/// The state of one writer's credits, shared by the writer and the publisher.
pub(in crate::tables) struct Credits {
    /// Changes of this writer that have been announced. Written by the publisher, read by the writer and by STATS.
    announced: CachePadded<AtomicU64>,
    /// The count of announced changes at which the publisher wakes the writer. [`NONE`]: the writer does not wait. Set
    /// and withdrawn by the writer, taken by the publisher.
    target: AtomicU64,
}

impl Credits {
    pub(in crate::tables) fn new() -> Self {
        Self { announced: CachePadded::new(AtomicU64::new(0)), target: AtomicU64::new(NONE) }
    }

    /// How many changes have been announced.
    pub(in crate::tables) fn announced(&self) -> u64 {
        // Acquire: pairs with the Release in `give_back`.
        self.announced.load(Ordering::Acquire)
    }

    /// Writer: registers for a wake-up when `target` changes have been announced. False: they have been already, and no
    /// registration is left. A wake-up may come all the same.
    pub(in crate::tables) fn register(&self, target: u64) -> bool {
        // Release: pairs with the Acquire of the exchange in `give_back`.
        self.target.store(target, Ordering::Release);
        // SeqCst fence: pairs with the fence in `give_back`.
        fence(Ordering::SeqCst);
        if self.announced() < target {
            return true;
        }
        self.withdraw();
        false
    }

    /// Writer: ends the registration. False: the publisher has taken it, and wakes the writer.
    pub(in crate::tables) fn withdraw(&self) -> bool {
        // Acquire: pairs with the Release of the exchange in `give_back`.
        self.target.swap(NONE, Ordering::Acquire) != NONE
    }

    /// Writer: whether the registration still stands, not taken by the publisher.
    pub(in crate::tables) fn is_registered(&self) -> bool {
        // Acquire: pairs with the Release of the exchange in `give_back`. A writer that is woken sees the credits.
        self.target.load(Ordering::Acquire) != NONE
    }

    /// Publisher: `announced` changes have been announced. True: the publisher wakes the writer.
    pub(in crate::tables) fn give_back(&self, announced: u64) -> bool {
        // Release: pairs with the Acquire in `announced`.
        self.announced.store(announced, Ordering::Release);
        // SeqCst fence: pairs with the fence in `register`.
        fence(Ordering::SeqCst);
        // Relaxed: the exchange fails if the target has changed.
        let target = self.target.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `register`. Release: pairs with the Acquires in `withdraw` and
        // `is_registered`.
        target <= announced && self.target.compare_exchange(target, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_ends_when_the_publisher_takes_it_or_the_writer_withdraws_it() {
        let credits = Credits::new();
        assert!(!credits.withdraw() && !credits.is_registered());
        assert!(credits.register(2) && credits.is_registered());
        assert!(!credits.give_back(1) && credits.is_registered());
        assert!(credits.give_back(2) && !credits.is_registered());
        assert!(!credits.withdraw(), "the publisher has taken it");
        assert!(credits.register(3) && credits.withdraw());
        assert!(!credits.give_back(3) && !credits.is_registered(), "the writer does not wait any more");
    }

    #[test]
    fn a_writer_does_not_wait_for_what_is_announced_already() {
        let credits = Credits::new();
        assert!(!credits.give_back(2));
        for target in [1, 2] {
            assert!(!credits.register(target) && !credits.is_registered(), "{target}");
        }
        assert!(credits.register(3));
    }
}
