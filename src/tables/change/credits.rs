//! One writer's credits, and how it waits for them: the protocol between the writer and the publisher.
//!
//! It does not know what a change is, and it neither parks nor wakes a thread: it says when that is to be done.
//!
//! ```text
//! writer                                         publisher
//! register: target := the count that it needs    give back: announced := the count that is announced
//!           fence (SeqCst)                                  fence (SeqCst)
//!           announced ≥ target? withdraw, go on             target ≤ announced? target := NONE, wake the writer
//! ```
//! If the writer's fence comes first, the publisher sees the target; if the publisher's comes first, the writer sees the
//! credits. So none waits for credits that are there. If both see each other, the writer goes on, and the wake-up finds
//! nothing to do.

use crossbeam::utils::CachePadded;

use crate::tables::sync::{AtomicU64, Ordering, fence};

/// `target` of a writer that does not wait. No writer commits so many changes.
const NONE: u64 = u64::MAX;

/// What writer and publisher know of one writer's credits.
pub(in crate::tables) struct Credits {
    /// Changes of this writer that have been announced. Written by the publisher; read by the writer and for STATS.
    announced: CachePadded<AtomicU64>,
    /// The count of announced changes at which the writer is to be woken; [`NONE`]: it does not wait. Set and withdrawn
    /// by the writer, taken by the publisher.
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

    /// Writer: it is to be woken when `target` changes have been announced. False: they have been already, and nothing is
    /// registered; a wake-up may come all the same.
    pub(in crate::tables) fn register(&self, target: u64) -> bool {
        // Release: pairs with the Acquire of the exchange in `give_back`.
        self.target.store(target, Ordering::Release);
        // SeqCst fence: pairs with the one in `give_back`.
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

    /// Writer: whether the publisher has yet to take what was registered.
    pub(in crate::tables) fn is_registered(&self) -> bool {
        // Acquire: pairs with the Release of the exchange in `give_back`: the credits are visible to a writer that is woken.
        self.target.load(Ordering::Acquire) != NONE
    }

    /// Publisher: so many changes have been announced. True: the writer is to be woken.
    pub(in crate::tables) fn give_back(&self, announced: u64) -> bool {
        // Release: pairs with the Acquire in `announced`.
        self.announced.store(announced, Ordering::Release);
        // SeqCst fence: pairs with the one in `register`.
        fence(Ordering::SeqCst);
        // Relaxed: the exchange finds out whether it is still the same.
        let target = self.target.load(Ordering::Relaxed);
        // AcqRel: pairs with the Acquires of the writer, and with the Release in `register`.
        target <= announced && self.target.compare_exchange(target, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
