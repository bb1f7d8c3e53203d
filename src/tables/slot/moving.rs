//! An element that moves to another slot of its key.
//!
//! This module decides neither when an element moves nor what its new slot looks like to the index.

use crossbeam::epoch::Guard;

use super::entry::{EntryBox, NEVER};
use super::{Announced, MOVED, SeenWord, SlotHandle, SlotRef, SlotState, numbered};

impl<'g> SlotRef<'g> {
    /// Live, announced or quiet, without a deadline → Moved. Returns the slot that the element continues in, which has no
    /// deadline part. The caller holds the bucket's lock, and replaces this slot by that one in the index before it
    /// unlocks. `None`: the element stays here.
    pub(in crate::tables) fn move_out(&self, seen: SeenWord<'g>) -> Option<SlotHandle> {
        let SlotState::Live(entry) = seen.state() else { return None };
        let version = entry.version();
        if !self.may_move(seen) || entry.deadline() != NEVER || self.armed() != Some(NEVER) {
            return None;
        }
        let announced = Announced::new((!entry.is_quiet()).then_some(version));
        let next = SlotHandle::make(self.key(), entry.entry.as_ptr(), announced, None);
        if self.exchange(seen, numbered(version, MOVED)) {
            next.slot().take_recency(*self);
            return Some(next);
        }
        next.disown();
        None
    }

    /// Live, Expired or Absent, announced or quiet → Moved. The element continues with `entry`, of any higher version, in the
    /// returned slot, which is announced up to the version before that. The caller has the bucket's lock, and does as with
    /// [`SlotRef::move_out`].
    ///
    /// # Errors
    /// Returns the entry if the word has changed since `seen`.
    pub(in crate::tables) fn supersede(
        &self,
        seen: SeenWord<'g>,
        table: u32,
        entry: EntryBox,
        guard: &'g Guard,
    ) -> Result<SlotHandle, EntryBox> {
        debug_assert!(entry.version() > seen.version(), "the caller has checked it");
        let next = SlotHandle::new(table, self.key(), entry);
        if self.leave(seen, numbered(seen.version(), MOVED), guard) { Ok(next) } else { Err(next.into_entry()) }
    }

    /// Whether no change of the slot that is received is on its way to the publisher.
    pub(in crate::tables) fn may_move(&self, seen: SeenWord<'g>) -> bool {
        seen.is_quiet() || self.announced().is(seen.version())
    }
}
