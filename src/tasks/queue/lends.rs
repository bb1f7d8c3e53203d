//! What a lease gives back to the rate of its queue when it is undone.
//!
//! ```text
//! a bucket of tokens   lend ─► refilled in part ─► lend ─► full ─► lend        the first one has nothing to give back
//! ```
//! Without a lease the bucket would have been fuller by one token from then on. But it is never more than full: what was
//! refilled before a later lend, and would have run over, is gone. So a lease gives back no more than was missing before
//! any later lend. So the lends at one time are noted, with the debt before the first. Of several
//! such times the last ones with the least missing suffice: each begins a step of a stair.
//!
//! What is noted is not stored. A lease from before a start, or before the rate was set, gives nothing back.
//!
//! This module reads no clock.

use std::collections::VecDeque;

use crate::tasks::reservation::RESERVATIONS;

/// The steps that are kept. Where there are more, leases from before the oldest ones give nothing back.
const STEPS_MAX: usize = 64;

/// Lends at one time.
#[derive(Clone, Copy, Debug)]
struct LendStep {
    /// The token of the first of them.
    token: u64,
    /// What was missing before them, in nanoseconds of refilling.
    debt: u128,
}

/// The lends of a queue with a rate.
#[derive(Debug, Default)]
pub(super) struct RatedLends {
    /// By their tokens, and by their debts too. The first one has none.
    steps: VecDeque<LendStep>,
    /// The time of the last lend, in milliseconds of the leases' clock.
    at: u64,
    /// The highest token of a lease so far, those of connections aside.
    last: u64,
}

impl RatedLends {
    /// Forgets all lends: another rate is set.
    pub(super) fn clear(&mut self) {
        self.steps.clear();
    }

    /// A task is lent, and `debt` was missing before.
    pub(super) fn note(&mut self, token: u64, now: u64, debt: u128) {
        // The token of a connection does not grow from lease to lease.
        let token = if token < RESERVATIONS { token } else { self.last + 1 };
        self.last = self.last.max(if token < RESERVATIONS { token } else { 0 });
        if self.steps.is_empty() {
            self.steps.push_back(LendStep { token, debt: 0 });
        } else if now > self.at {
            self.push(LendStep { token, debt });
        }
        self.at = now;
    }

    fn push(&mut self, step: LendStep) {
        while self.steps.back().is_some_and(|last| last.debt >= step.debt) {
            self.steps.pop_back();
        }
        self.steps.push_back(step);
        if self.steps.len() > STEPS_MAX {
            self.steps.pop_front();
            self.steps.front_mut().into_iter().for_each(|first| first.debt = 0);
        }
    }

    /// A lease is undone that has taken `interval`. Returns what it gives back.
    pub(super) fn undo(&mut self, token: u64, interval: u128) -> u128 {
        if token >= RESERVATIONS || self.steps.is_empty() {
            return 0;
        }
        let later = self.steps.partition_point(|step| step.token <= token);
        let time = self.steps.get(later).map_or(interval, |step| step.debt.min(interval));
        self.steps.range_mut(later..).for_each(|step| step.debt -= time);
        // A step that is as low as the one before it takes its place.
        let debts = |at: usize| self.steps.get(at).map(|step| step.debt);
        if let Some(before) = later.checked_sub(1)
            && debts(later).is_some_and(|debt| Some(debt) <= debts(before))
        {
            self.steps.remove(before);
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lend of each token at its time, at a rate of one in 200: what is missing before.
    fn lent(lends: &[(u64, u64)]) -> RatedLends {
        let (mut noted, mut full_at) = (RatedLends::default(), 0);
        for &(token, now) in lends {
            noted.note(token, now, u128::from(full_at - full_at.min(now)));
            full_at = full_at.max(now) + 200;
        }
        noted
    }

    #[test]
    fn what_was_refilled_before_a_later_lend_is_not_given_back() {
        let at_once: Vec<(u64, u64)> = (1..=10).map(|token| (token, 1_000)).collect();
        let mut all = lent(&at_once);
        assert!((1..=10).all(|token| all.undo(token, 200) == 200), "nothing was lent behind them");
        let later: Vec<(u64, u64)> = (11..=20).map(|token| (token, 3_200)).collect();
        let mut all = lent(&[at_once.clone(), later].concat());
        assert!((1..=10).all(|token| all.undo(token, 200) == 0), "all was refilled");
        assert!((11..=20).all(|token| all.undo(token, 200) == 200));
        let mut in_part = lent(&[(1, 0), (2, 150), (3, 160)]);
        assert_eq!(
            [1, 2, 3].map(|token| in_part.undo(token, 200)),
            [50, 190, 200],
            "240 were missing before the third"
        );
    }

    #[test]
    fn a_lease_of_which_nothing_is_known_gives_nothing_back() {
        let mut lends = RatedLends::default();
        assert_eq!(lends.undo(7, 200), 0);
        lends.note(8, 10, 100);
        assert_eq!([lends.undo(7, 200), lends.undo(8, 200)], [0, 200]);
        lends.note(RESERVATIONS + 1, 11, 200);
        assert_eq!(lends.undo(RESERVATIONS + 1, 200), 0);
        lends.clear();
        assert_eq!(lends.undo(8, 200), 0);
        (0..1_000).for_each(|number| lends.note(100 + number, 20 + number, u128::from(number) * 199));
        assert!(lends.steps.len() <= STEPS_MAX && lends.undo(100, 200) == 0 && lends.undo(1_099, 200) == 200);
    }
}
