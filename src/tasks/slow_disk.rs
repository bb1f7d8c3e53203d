//! The backoff of the frontends on a slow disk: whether they may commit by themselves.
//!
//! ```text
//!        a commit takes longer than SLOW_COMMIT: until = its end + SLOW_DISK_PAUSE_FACTOR × its time
//!  Off ─────────────────────────────────────────────────────────────────────────────────────────────► On
//!   ▲                                                                                                  │
//!   └── a commit that began after `until` was fast ────────────────────────────────────────────────────┘
//! ```
//! Every commit counts, of a frontend and of the committer. While the backoff is on, only the committer commits, so it
//! also finds out whether the disk is fast again. A frontend therefore stands still behind the first slow sync at most,
//! and never behind one that was to be expected.
//!
//! This module reads no clock and commits nothing; see `inbox.rs` and `committer.rs`.

use crate::clock::ClockReading;
use crate::limits::{SLOW_COMMIT, SLOW_DISK_PAUSE_FACTOR, SLOW_DISK_PAUSE_MAX};

/// The backoff.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowDiskBackoff {
    /// The uptime, in nanoseconds, before which a fast commit does not end the backoff. `None`: it is off.
    until: Option<u64>,
}

impl SlowDiskBackoff {
    /// Whether frontends leave their commits to the committer.
    pub(super) fn is_on(self) -> bool {
        self.until.is_some()
    }

    /// Takes note of a commit that has written or synced something.
    pub(super) fn note(&mut self, start: ClockReading, end: ClockReading) {
        let nanos = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let took = end.up.saturating_sub(start.up);
        if took > nanos(SLOW_COMMIT) {
            let pause = took.saturating_mul(SLOW_DISK_PAUSE_FACTOR).min(nanos(SLOW_DISK_PAUSE_MAX));
            self.until = self.until.max(Some(end.up.saturating_add(pause)));
        } else if self.until.is_some_and(|until| until <= start.up) {
            self.until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> ClockReading {
        ClockReading::from_millis(millis)
    }

    /// A backoff after one commit that took `took` milliseconds and ended at `took`.
    fn after(took: u64) -> SlowDiskBackoff {
        let mut backoff = SlowDiskBackoff::default();
        backoff.note(at(0), at(took));
        backoff
    }

    /// The first start of a fast commit that ends the backoff, in milliseconds after the end of the slow one.
    fn ended_after(took: u64) -> u64 {
        let backoff = after(took);
        let is_ended = |pause: u64| {
            let mut backoff = backoff;
            backoff.note(at(took + pause), at(took + pause + 1));
            !backoff.is_on()
        };
        let (mut no, mut yes) = (0, 10_000_000);
        assert!(!is_ended(no) && is_ended(yes));
        while yes - no > 1 {
            let middle = no.midpoint(yes);
            if is_ended(middle) { yes = middle } else { no = middle }
        }
        yes
    }

    #[test]
    fn the_pause_grows_with_the_time_of_the_slow_commit_up_to_a_bound() {
        assert!(!after(20).is_on(), "this one was fast enough");
        assert!(after(21).is_on());
        for (took, pause) in [(21, 1_050), (200, 10_000), (2_000, 100_000), (60_000, 300_000)] {
            assert_eq!(ended_after(took), pause, "{took} ms");
        }
    }

    #[test]
    fn only_a_commit_that_is_fast_ends_the_backoff() {
        let mut backoff = after(100);
        backoff.note(at(9_000), at(9_500));
        backoff.note(at(5_200), at(5_201));
        assert!(backoff.is_on(), "the pause began again");
        backoff.note(at(90_000), at(90_030));
        assert!(backoff.is_on(), "the disk is still slow after the pause, and the committer has found out");
        backoff.note(at(92_000), at(92_001));
        assert!(!backoff.is_on());
    }

    #[test]
    fn a_shorter_pause_does_not_end_a_longer_one() {
        let mut backoff = after(1_000);
        backoff.note(at(2_000), at(2_021));
        backoff.note(at(50_999), at(51_000));
        assert!(backoff.is_on());
        backoff.note(at(51_000), at(51_001));
        assert!(!backoff.is_on());
    }
}
