//! The rooms that connections share: memory for bodies and answers, and places to wait. What they hold is counted.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::SemaphorePermit;

use crate::net::budget::Budget;
use crate::services::jobs::context::{JobRooms, WaitingPlace};
use crate::services::jobs::pace::RoomKind;

/// The rooms of all connections.
pub(super) struct CountedRooms {
    rooms: JobRooms,
    budget: Arc<Budget>,
    /// Connections that wait for room, of each kind.
    takers: [Cell<usize>; 2],
}

/// A connection waits for room, until this is dropped.
struct Taker<'r>(&'r Cell<usize>);

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Room that a connection holds.
pub(super) struct RoomPermit<'r> {
    permit: SemaphorePermit<'r>,
    budget: &'r Budget,
}

impl CountedRooms {
    /// So many bytes for bodies, and as many for answers.
    pub(super) fn new(bytes: usize, budget: Arc<Budget>) -> Self {
        Self { rooms: JobRooms::new(bytes), budget, takers: Default::default() }
    }

    /// A place to wait for a job of so many tubes, if there is one.
    pub(super) fn place_to_wait(&self, tubes: usize) -> Option<WaitingPlace<'_>> {
        self.rooms.place_to_wait(tubes)
    }

    /// Whether a connection waits for room. Then one that holds some, and stands still, loses it.
    pub(super) fn is_short(&self, kind: RoomKind) -> bool {
        self.takers_of(kind).get() > 0
    }

    fn takers_of(&self, kind: RoomKind) -> &Cell<usize> {
        let [coming, going] = &self.takers;
        if kind == RoomKind::Coming { coming } else { going }
    }

    /// Room for so many bytes, if it is there.
    pub(super) fn try_take(&self, kind: RoomKind, bytes: u32) -> Option<RoomPermit<'_>> {
        self.rooms.of(kind).try_acquire_many(bytes).ok().map(|permit| self.counted(permit))
    }

    /// Waits for room for so many bytes.
    pub(super) async fn take(&self, kind: RoomKind, bytes: u32) -> RoomPermit<'_> {
        let takers = self.takers_of(kind);
        takers.set(takers.get() + 1);
        let _taker = Taker(takers);
        let permit = self.rooms.of(kind).acquire_many(bytes).await;
        self.counted(permit.expect("the semaphore is never closed"))
    }

    fn counted<'r>(&'r self, permit: SemaphorePermit<'r>) -> RoomPermit<'r> {
        self.budget.change(0, permit.num_permits() as u64);
        RoomPermit { permit, budget: &self.budget }
    }
}

impl RoomPermit<'_> {
    /// The room of both. It was counted when each was taken.
    pub(super) fn merge(&mut self, mut other: Self) {
        let all = other.permit.num_permits();
        self.permit.merge(other.permit.split(all).expect("it has as many"));
    }
}

impl Drop for RoomPermit<'_> {
    fn drop(&mut self) {
        self.budget.change(self.permit.num_permits() as u64, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_until_it_is_given_back() {
        let budget = Budget::new(1_000);
        let rooms = CountedRooms::new(100, Arc::clone(&budget));
        let mut first = rooms.try_take(RoomKind::Going, 60);
        assert!(rooms.try_take(RoomKind::Going, 41).is_none());
        let coming = rooms.try_take(RoomKind::Coming, 100);
        assert_eq!(budget.held(), 160);
        if let (Some(first), Some(second)) = (&mut first, rooms.try_take(RoomKind::Going, 40)) {
            first.merge(second);
        }
        assert_eq!(budget.held(), 200);
        drop(coming);
        assert_eq!(budget.held(), 100);
        drop(first);
        assert_eq!(budget.held(), 0);
        assert!(rooms.try_take(RoomKind::Going, 100).is_some(), "all of it came back");
    }
}
