//! What a slot knows of the uses of its element, by which the eviction selects (`tables/eviction.rs`).
//!
//! ```text
//! used │ kept │ the hand comes by: the element
//! yes  │  –   │ stays, and is kept from now on
//! no   │ yes  │ stays, and is not kept any more
//! no   │ no   │ goes
//! ```
//! # Races
//!
//! The flags carry no other data. If a thread sees a flag late, an element goes a round earlier or later.
//!
//! - **A use and another use.** The first one sets the flag. A thread that finds it set writes nothing. So an element that
//!   many threads read costs one write in each round of the hand.
//! - **A use and the hand.** If the use comes first, the hand finds the flag, and the element stays. If the hand comes
//!   first, it may evict the element, as if the use had come a round later.
//! - **A use and a move.** The new slot takes over the flags of the old one. A later use sets a flag of the old slot, which
//!   no thread reads any more.
//! - **A use and a change of another flag, or of the count.** Each is one atomic step on the word, and keeps what other
//!   threads have set. The announced version is in another word, because the publisher stores that one plainly.
//!
//! This module selects no table and evicts nothing.

use super::{KEPT, SlotRef, USED};
use crate::tables::sync::Ordering;

// Relaxed, all accesses: see the races above.
impl SlotRef<'_> {
    /// The element is used.
    #[inline]
    pub(in crate::tables) fn note_use(&self) {
        if self.header().references.load(Ordering::Relaxed) & USED == 0 {
            self.header().references.fetch_or(USED, Ordering::Relaxed);
        }
    }

    /// Reaper: the hand comes by. Returns whether the element goes.
    pub(in crate::tables) fn is_unused(&self) -> bool {
        let references = &self.header().references;
        let flags = references.load(Ordering::Relaxed);
        if flags & USED != 0 {
            if flags & KEPT == 0 {
                references.fetch_or(KEPT, Ordering::Relaxed);
            }
            references.fetch_and(!USED, Ordering::Relaxed);
        } else if flags & KEPT != 0 {
            references.fetch_and(!KEPT, Ordering::Relaxed);
        }
        flags & (USED | KEPT) == 0
    }

    /// The element of another slot continues in this one, which no other thread knows yet.
    pub(super) fn take_recency(&self, before: SlotRef<'_>) {
        let flags = before.header().references.load(Ordering::Relaxed) & (USED | KEPT);
        self.header().references.fetch_or(flags, Ordering::Relaxed);
    }
}
