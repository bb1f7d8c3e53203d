//! The places of the requests that wait for a task, and the share of each connection.
//!
//! ```text
//! WAITERS_MAX places   ┌── first ──┬── second ──┬───── free ─────┐
//!                                                 a connection that has fewer than the free ones may take one more
//! ```
//! A request that waits in many queues takes a place in each. So one connection takes at most half of the places, the next one a quarter, and the places are gone only when 17
//! connections took all they could. A share grows again when other connections leave.
//!
//! This module does not know which Lends these are; see `responder`.

use crate::limits::WAITERS_MAX;

/// Counts the places that are taken.
#[derive(Debug, Default)]
pub(super) struct WaitingPlaces {
    taken: usize,
}

impl WaitingPlaces {
    /// Whether a connection that has taken `own` places may take so many others.
    pub(super) fn is_open_to(&self, own: usize, more: usize) -> bool {
        own + more <= WAITERS_MAX.saturating_sub(self.taken)
    }

    /// A request takes a place in each of its queues.
    pub(super) fn take(&mut self, places: usize) {
        self.taken += places;
    }

    /// A request that had places is answered.
    pub(super) fn give_back(&mut self, places: usize) {
        self.taken -= places;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places that a connection with `own` places takes in addition.
    fn fill(places: &mut WaitingPlaces, own: usize) -> usize {
        let mut taken = 0;
        while places.is_open_to(own + taken, 1) {
            places.take(1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_connection_takes_no_more_places_than_it_leaves_free() {
        let mut places = WaitingPlaces::default();
        let first = fill(&mut places, 0);
        assert_eq!(first, WAITERS_MAX / 2);
        assert_eq!(fill(&mut places, first), 0);
        let second = fill(&mut places, 0);
        assert_eq!(second, WAITERS_MAX / 4);
        (0..first).for_each(|_| places.give_back(1));
        assert_eq!(fill(&mut places, second), WAITERS_MAX / 2 - second, "its share grows when another one leaves");
    }

    #[test]
    fn the_places_are_gone_when_17_connections_took_all_they_could() {
        let mut places = WaitingPlaces::default();
        let shares: Vec<usize> = (0..17).map(|_| fill(&mut places, 0)).collect();
        assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
        assert_eq!((shares.iter().sum::<usize>(), places.is_open_to(0, 1)), (WAITERS_MAX, false));
    }
}
