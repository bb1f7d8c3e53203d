//! The settings of a queue, and when it lends: its pause, and its rate.
//!
//! ```text
//! full_at   the time at which no lease counts any more: each moves it on by one interval
//! now ──────┼──────────────► full_at ≤ now + burst × interval: another one may be lent
//! ```
//! That is the generic cell rate algorithm. Over any span at most `burst` + rate × span tasks are lent, as long as the
//! clock and `full_at` survive: both are stored. A lease that is undone gives back what `queue/lends.rs` finds.
//!
//! This module knows no task.

use super::Policy;
use super::terms::{QueueChange, QueueTerms, Rate};

/// Nanoseconds in a millisecond, for intervals that are no whole number of milliseconds.
const NANOS: u128 = 1_000_000;

/// The settings of a queue, and what it has to remember for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueSettings {
    pub(super) terms: QueueTerms,
    pub(super) gate: QueueGate,
    /// `None`: as the server has it for queues of this kind.
    pub(super) sync: Option<Policy>,
}

impl QueueSettings {
    /// Whether anything is set that holds at this time.
    pub(super) fn is_set(&self, now: u64) -> bool {
        let Self { terms, gate: QueueGate { paused_until, rate, .. }, sync } = self;
        *terms != QueueTerms::default() || *paused_until > now || rate.is_some() || sync.is_some()
    }

    /// Changes the settings.
    pub(super) fn change(&mut self, change: &QueueChange, now: u64) {
        let &QueueChange { tries, backoff, group_limit, rate, pause, sync } = change;
        self.terms.group_limit = group_limit.unwrap_or(self.terms.group_limit);
        self.terms.tries = tries.unwrap_or(self.terms.tries);
        self.terms.backoff = backoff.unwrap_or(self.terms.backoff);
        self.sync = sync.unwrap_or(self.sync);
        if let Some(pause) = pause {
            self.gate.paused_until = if pause == 0 { 0 } else { now.saturating_add(pause) };
        }
        if let Some(rate) = rate {
            self.gate.set_rate(rate, now);
        }
    }
}

/// Whether a queue lends at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueGate {
    /// Nothing is lent before this time, in milliseconds of the leases' clock. `u64::MAX`: until it is resumed.
    pub(super) paused_until: u64,
    pub(super) rate: Option<Rate>,
    /// In nanoseconds of the leases' clock.
    pub(super) full_at: u128,
}

impl QueueGate {
    /// When the next task may be lent. A time that has passed: now.
    pub(super) fn opens_at(&self) -> u64 {
        self.paused_until.max(self.has_token_at())
    }

    /// When the next task may be lent, pauses aside.
    pub(super) fn has_token_at(&self) -> u64 {
        self.rate.map_or(0, |rate| {
            // The whole burst may be lent at once: the last of it moves `full_at` to its end.
            let at = self.full_at.saturating_sub(rate.interval() * u128::from(rate.burst - 1));
            u64::try_from(at.div_ceil(NANOS)).unwrap_or(u64::MAX)
        })
    }

    /// A task is lent.
    pub(super) fn lend(&mut self, now: u64) {
        if let Some(rate) = self.rate {
            self.full_at = self.full_at.max(u128::from(now) * NANOS) + rate.interval();
        }
    }

    /// Sets another rate. What was lent counts as far as the new burst goes.
    fn set_rate(&mut self, rate: Option<Rate>, now: u64) {
        let latest = rate.map_or(0, |rate| u128::from(now) * NANOS + rate.interval() * u128::from(rate.burst));
        (self.rate, self.full_at) = (rate, self.full_at.min(latest));
    }

    /// The time for which the lends up to now keep the queue from its whole burst, in nanoseconds.
    pub(super) fn debt(&self, now: u64) -> u128 {
        self.full_at.saturating_sub(u128::from(now) * NANOS)
    }

    /// A lease is undone. So much of its time was not refilled before a later lend, and does not count any more.
    pub(super) fn undo(&mut self, time: u128, now: u64) {
        self.full_at -= time.min(self.debt(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(gate: &mut QueueGate, now: u64) -> bool {
        let is_open = gate.opens_at() <= now;
        if is_open {
            gate.lend(now);
        }
        is_open
    }

    /// A bucket that began full and was refilled by and by, as a client would reckon it.
    #[test]
    fn over_any_span_no_more_is_lent_than_burst_and_rate() {
        for (count, per, burst) in [(10, 1_000, 1), (10, 1_000, 7), (30, 60_000, 3), (7, 1_000, 2), (3_000, 1_000, 50)]
        {
            let rate = Rate { count, per, burst };
            let mut gate = QueueGate { rate: Some(rate), ..QueueGate::default() };
            let mut lends: Vec<u64> = Vec::new();
            for now in 5_000..7_000 {
                while lent(&mut gate, now) {
                    lends.push(now);
                }
            }
            let allowed = |span: u64| u64::from(burst) + span * u64::from(count) / u64::from(per);
            for (first, &from) in lends.iter().enumerate() {
                for (last, &to) in lends.iter().enumerate().skip(first) {
                    assert!((last - first + 1) as u64 <= allowed(to - from), "{rate:?}: {from} to {to}");
                }
            }
            let least = u64::from(burst) + 1_998 * u64::from(count) / u64::from(per);
            assert!(lends.len() as u64 >= least, "{rate:?}: {} of {least}", lends.len());
        }
    }

    #[test]
    fn a_lease_that_is_undone_gives_its_token_back() {
        let rate = Some(Rate { count: 1, per: 1_000, burst: 1 });
        let mut gate = QueueGate { rate, ..QueueGate::default() };
        assert!(lent(&mut gate, 10_000) && !lent(&mut gate, 10_500));
        gate.undo(1_000 * NANOS, 10_500);
        assert!(lent(&mut gate, 10_500) && !lent(&mut gate, 11_499) && lent(&mut gate, 11_500));
    }

    #[test]
    fn a_pause_ends_by_itself_or_never() {
        let gate = |paused_until| QueueGate { paused_until, ..QueueGate::default() };
        assert_eq!([gate(0), gate(500), gate(u64::MAX)].map(|gate| gate.opens_at()), [0, 500, u64::MAX]);
    }
}
