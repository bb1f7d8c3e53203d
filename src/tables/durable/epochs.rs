//! Epochs: which changes of durable tables are on disk together.
//!
//! ```text
//! writer: load the word ─► enter: read the open epoch ─► CAS ─► record into its buffer of that epoch ─► leave
//! log:    close: open := next ─► wait until no writer is inside the closed one ─► take its records ─► write, sync
//! ```
//! An epoch is one batch of the log, so all of its changes are on disk, or none.
//!
//! # Why no effect is earlier than its cause
//!
//! A writer reads the number of the epoch after it has loaded the word that its CAS replaces. The writer of that word had
//! read a number before its own CAS. The number only grows. So a change never has a lower number than the change before it
//! in the slot, or than any change that its client has seen.
//!
//! # Races
//!
//! - **A writer enters while the epoch is closed.** The writer stores its place, then reads the number again. If the close
//!   comes before this read, the writer reads the next number, and enters the next epoch. If the read comes first, the log
//!   finds the place behind the close, and waits until the writer has left.
//! - **A writer leaves.** The writer stores its place after its records. The log reads the place before it takes the records.
//! - **Two epochs share a buffer.** Records of an epoch are in the buffer of its parity. The epoch after the next one is
//!   opened by the log alone, when it has taken the records of this one.
//! - **A copy is made of an element that is being removed.** The writer of the removal may be in the epoch before the open
//!   one. Then the removal would stand before the copy, and be cleaned first. So the copier waits until all writers have left
//!   the earlier epoch.
//! - **A session comes.** The session is in the list before it first enters. If the log reads the list earlier, the close is
//!   earlier too, and the session reads the next number.
//!
//! This file encodes nothing and writes nothing.

use crossbeam::utils::CachePadded;

use crate::tables::sync::{AtomicU64, Ordering, fence};

/// In `inside`: the writer is in no epoch.
const OUTSIDE: u64 = 0;

/// The number of the open epoch, and the last one that all writers have left.
#[derive(Debug)]
pub(in crate::tables) struct OpenEpoch {
    /// Written by the log.
    number: CachePadded<AtomicU64>,
    /// Written by the log.
    left: AtomicU64,
}

/// Where a writer is. Written by it, read by the log.
#[derive(Debug)]
pub(in crate::tables) struct WriterPlace(CachePadded<AtomicU64>);

impl OpenEpoch {
    /// The first epoch behind this one is open.
    pub(in crate::tables) fn behind(epoch: u64) -> Self {
        Self { number: CachePadded::new(AtomicU64::new(epoch + 1)), left: AtomicU64::new(epoch) }
    }

    /// The last epoch that all writers have left. All of its changes are visible.
    pub(super) fn left(&self) -> u64 {
        // Acquire: pairs with the Release in `note_left`.
        self.left.load(Ordering::Acquire)
    }

    /// Log: no writer is in this epoch, which is closed, and none will be.
    pub(super) fn note_left(&self, closed: u64) {
        // Release: pairs with the Acquire in `left`. The log has found each writer outside.
        self.left.store(closed, Ordering::Release);
    }

    /// Its number. All that this thread has seen was committed in this epoch, or in one before it.
    pub(in crate::tables) fn number(&self) -> u64 {
        // Acquire: pairs with the close. A thread that has seen a change has seen the number that its writer read.
        self.number.load(Ordering::Acquire)
    }

    /// The writer at this place enters. It has loaded the word that its CAS expects. Returns the number of the epoch.
    pub(in crate::tables) fn enter(&self, place: &WriterPlace) -> u64 {
        // Relaxed: it is read again below.
        let mut epoch = self.number.load(Ordering::Relaxed);
        loop {
            // Release: pairs with the load in `is_left`. A log that finds the writer in a later epoch sees all its records of
            // the earlier ones.
            place.0.store(epoch, Ordering::Release);
            // SeqCst fence: pairs with the fence in `close`. Either the log finds this writer inside, or the writer finds the
            // epoch closed.
            fence(Ordering::SeqCst);
            // Acquire: pairs with the store in `close`.
            let open = self.number.load(Ordering::Acquire);
            if open == epoch {
                return epoch;
            }
            epoch = open;
        }
    }

    /// Log: closes the open epoch, and opens the next one. Returns the number of the closed one.
    pub(in crate::tables) fn close(&self) -> u64 {
        // Relaxed: only the log writes the number.
        let closed = self.number.load(Ordering::Relaxed);
        // Release: pairs with the loads in `number` and `enter`.
        self.number.store(closed + 1, Ordering::Release);
        // SeqCst fence: pairs with the fence in `enter`, before the log looks where the writers are.
        fence(Ordering::SeqCst);
        closed
    }
}

impl WriterPlace {
    pub(in crate::tables) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(OUTSIDE)))
    }

    /// The writer has recorded what it has committed, or has committed nothing.
    pub(in crate::tables) fn leave(&self) {
        // Release: pairs with the load in `is_left`.
        self.0.store(OUTSIDE, Ordering::Release);
    }

    /// Log: whether the writer is not in this epoch, which is closed, and will not be. Its records are visible then.
    pub(in crate::tables) fn is_left(&self, closed: u64) -> bool {
        // Acquire: pairs with the stores in `enter` and `leave`. The log has fenced in `close`.
        self.0.load(Ordering::Acquire) != closed
    }
}

#[cfg(all(test, not(feature = "models")))]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_in_the_epoch_that_is_open_and_the_next_one_follows() {
        let (open, place) = (OpenEpoch::behind(7), WriterPlace::new());
        assert_eq!((open.number(), open.enter(&place)), (8, 8));
        assert_eq!(open.close(), 8);
        assert!(!place.is_left(8), "its record may come");
        place.leave();
        assert!(place.is_left(8));
        assert_eq!(open.enter(&place), 9);
        assert!(place.is_left(8) && !place.is_left(9));
    }
}
