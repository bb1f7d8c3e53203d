//! The jobs that a connection has reserved, as far as it has been answered.
//!
//! This module ends no reservation.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::clock::Now;

/// Before the end of a reservation its connection does not wait for so long.
const MARGIN: Duration = Duration::from_secs(1);

/// Jobs whose time is over that are given back at the end: another protocol may have extended their leases.
const OVERDUE_MAX: usize = 1 << 10;

/// A job that is reserved.
#[derive(Clone, Copy, Debug)]
struct HeldJob {
    end: Now,
    lease: Duration,
}

/// The jobs of a connection, by id.
#[derive(Debug, Default)]
pub(super) struct HeldJobs {
    jobs: HashMap<u64, HeldJob>,
    ends: BTreeSet<(Now, u64)>,
    /// Jobs whose time is over, the latest last.
    overdue: VecDeque<u64>,
    /// The client does not have the answers about these yet.
    unsent: Vec<u64>,
}

impl HeldJobs {
    /// A job is reserved for so long.
    pub(super) fn add(&mut self, id: u64, now: Now, lease: Duration) {
        self.remove(id);
        self.pass_overdue(now);
        let end = now.after(lease);
        self.jobs.insert(id, HeldJob { end, lease });
        self.ends.insert((end, id));
        self.unsent.push(id);
    }

    /// A job is reserved for as long again.
    pub(super) fn touch(&mut self, id: u64, now: Now) {
        if let Some(job) = self.jobs.get_mut(&id) {
            self.ends.remove(&(job.end, id));
            job.end = now.after(job.lease);
            self.ends.insert((job.end, id));
        }
    }

    /// A job is not reserved any more.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some(job) = self.jobs.remove(&id) {
            self.ends.remove(&(job.end, id));
        }
    }

    /// The client has all answers.
    pub(super) fn has_sent(&mut self) {
        self.unsent.clear();
    }

    /// When the next margin begins. Reservations whose time is over have none.
    pub(super) fn next_margin(&mut self, now: Now) -> Option<Now> {
        self.pass_overdue(now);
        let (end, _) = self.ends.first()?;
        Some(now.after(now.time_until(*end).saturating_sub(MARGIN)))
    }

    /// Notes which reservations are over. The oldest are forgotten.
    fn pass_overdue(&mut self, now: Now) {
        while let Some(&(end, id)) = self.ends.first().filter(|(end, _)| *end <= now) {
            self.ends.remove(&(end, id));
            self.jobs.remove(&id);
            self.overdue.push_back(id);
            if self.overdue.len() > OVERDUE_MAX {
                self.overdue.pop_front();
            }
        }
    }

    /// All jobs, and whether the client has the answer about each.
    pub(super) fn take(&mut self) -> Vec<(u64, bool)> {
        let unsent: HashSet<u64> = self.unsent.drain(..).collect();
        self.ends.clear();
        let jobs = self.jobs.drain().map(|(id, _)| id).chain(self.overdue.drain(..));
        jobs.map(|id| (id, !unsent.contains(&id))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Now {
        Now::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_margin_is_the_last_second_of_the_first_reservation_that_ends() {
        let mut held = HeldJobs::default();
        assert_eq!(held.next_margin(at(0)), None);
        held.add(1, at(0), Duration::from_secs(10));
        held.add(2, at(0), Duration::from_secs(5));
        assert_eq!(held.next_margin(at(0)), Some(at(4_000)));
        assert_eq!(held.next_margin(at(4_500)), Some(at(4_500)), "it has begun");
        held.touch(2, at(4_500));
        held.touch(3, at(4_500));
        assert_eq!(held.next_margin(at(4_500)), Some(at(8_500)));
        held.remove(2);
        assert_eq!(held.next_margin(at(4_500)), Some(at(9_000)));
        assert_eq!(held.next_margin(at(10_000)), None, "it is over");
        held.add(4, at(0), Duration::from_secs(1));
        held.has_sent();
        held.add(5, at(10_000), Duration::from_secs(1));
        let mut left = held.take();
        left.sort_unstable();
        // Those whose time was over may have been extended.
        assert_eq!(left, [(1, true), (4, true), (5, false)]);
        assert!(held.take().is_empty());
    }

    /// A client that always finds a job, and leaves each to its end, made the list longer and longer.
    #[test]
    fn reservations_that_are_over_are_forgotten_without_a_wait() {
        let mut held = HeldJobs::default();
        for id in 0..10 * OVERDUE_MAX as u64 {
            held.add(id, at(2_000 * id), Duration::from_secs(1));
            held.has_sent();
        }
        assert_eq!(held.take().len(), OVERDUE_MAX + 1);
    }
}
