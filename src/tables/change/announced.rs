//! What the publisher shows of a change whose turn has come, and the sink that takes it.
//!
//! This module puts no changes in order and sends nothing.

use crossbeam::epoch::Guard;

use super::Change;
use crate::feed::{Cause, PublishedMessage};
use crate::tables::slot::SlotRef;

/// The version whose low half is `low`, of a slot whose version is `present`: the same one or a later one.
pub(in crate::tables) fn full_version(present: u64, low: u32) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what a change carries")]
    let ahead = (present as u32).wrapping_sub(low);
    present - u64::from(ahead)
}

/// A change whose turn has come, as the publisher shows it.
pub struct AnnouncedChange<'c> {
    /// The name of the table exactly as it was created.
    pub table: &'c [u8],
    /// The key.
    pub key: &'c [u8],
    /// The cause, which says whether the element has a value after the change.
    pub cause: Cause,
    /// Whether the request that stored a value gave it a deadline.
    pub sets_deadline: bool,
    /// Whether it comes in the commit order of its key. If not, it is an end for the holders of
    /// [`AudienceKind::Ends`](crate::tables::AudienceKind) alone: the audience of all changes began after the end, or is over.
    pub is_in_order: bool,
    slot: SlotRef<'c>,
    /// The low half of the version.
    low_version: u32,
    guard: &'c Guard,
}

impl<'c> AnnouncedChange<'c> {
    /// `None`: no element has changed. The change has not been marked as announced, so its slot stays.
    pub(in crate::tables) fn new(table: &'c [u8], change: &'c Change, guard: &'c Guard) -> Option<Self> {
        let (committed, slot) = (change.committed(), change.slot.slot());
        let (cause, sets_deadline) = (committed.changes()?, committed.sets_deadline);
        let low_version = change.version;
        Some(Self { table, key: slot.key(), cause, sets_deadline, is_in_order: true, slot, low_version, guard })
    }

    /// The same, for those who receive ends alone.
    pub(in crate::tables) fn out_of_order(self) -> Self {
        Self { is_in_order: false, ..self }
    }

    /// The version of the element, or of its deletion. Computed when it is asked for: it may cost a cache miss.
    #[must_use]
    pub fn version(&self) -> u64 {
        full_version(self.slot.load(self.guard).version(), self.low_version)
    }
}

/// Sends what the publisher has drained.
pub trait ChangeSink {
    /// A few changes follow. It may send what it has collected, since the publisher holds no lock now.
    fn begin(&mut self) {}

    /// Sends a notification of a change, if its cause is notified ([`ChangeKind::of`](crate::tables::ChangeKind::of)).
    /// Called under a guard and, with a feed, under its lock, so it must not wait, and with a feed not send either.
    fn announce(&mut self, change: &AnnouncedChange<'_>);

    /// Sends a message of the feed.
    fn publish(&mut self, message: &PublishedMessage);
}
