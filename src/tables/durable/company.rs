//! The answers that share a sync, as the log expects them.
//!
//! ```text
//! sync ─► answers go ─► their clients ask again, soon ┐
//!         others have begun to wait meanwhile ────────┴─► the log closes the epoch when all of them wait, or its patience ends
//! ```
//! Clients that ask again as soon as they are answered would otherwise take turns at two syncs: one half would wait while
//! the log syncs for the other half.
//!
//! This file reads no clock and closes no epoch.

use std::time::Duration;

/// After a sync with more answers the log does not wait: their requests take longer than a sync, and are better carried out
/// beside one.
const ANSWERS_MAX: u64 = 16;
/// The longest time that the log waits before it closes an epoch.
const PATIENCE_MAX: Duration = Duration::from_micros(200);

/// What the log expects after a sync.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// Answers that had begun to wait, ever, when the last epoch was closed.
    closed: u64,
    /// How many have begun to wait, ever, when the clients of the last sync have asked again.
    expected: u64,
    /// How long the log waits for them.
    patience: Duration,
}

impl Company {
    /// An epoch is on disk, and the sync took this time. `closed` and `asked`: the answers that had begun to wait, ever, when
    /// the epoch was closed, and by now.
    pub(super) fn note_synced(&mut self, closed: u64, asked: u64, sync: Duration) {
        let answered = closed - self.closed;
        let is_expected = (1..=ANSWERS_MAX).contains(&answered);
        let patience = if is_expected { (sync / 2).min(PATIENCE_MAX) } else { Duration::ZERO };
        *self = Self { closed, expected: asked + answered, patience };
    }

    /// Answers that had begun to wait, ever, when the last epoch was closed.
    pub(super) fn answered(&self) -> u64 {
        self.closed
    }

    /// Whether the log waits, so long after the sync, if the company is not complete.
    pub(super) fn has_patience(&self, since: Duration) -> bool {
        since < self.patience
    }

    /// Whether all wait that are expected. `asked`: the answers that have begun to wait, ever.
    pub(super) fn is_complete(&self, asked: u64) -> bool {
        asked >= self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_micros(100);

    #[test]
    fn the_clients_of_a_sync_and_those_that_wait_are_awaited_for_half_a_sync() {
        let mut company = Company::default();
        company.note_synced(4, 8, SYNC);
        assert!(!company.is_complete(11) && company.is_complete(12));
        assert!(company.has_patience(Duration::from_micros(49)) && !company.has_patience(SYNC / 2));
        company.note_synced(12, 12, Duration::from_secs(1));
        assert!(!company.is_complete(19) && company.is_complete(20));
        assert!(company.has_patience(Duration::from_micros(199)) && !company.has_patience(PATIENCE_MAX));
    }

    #[test]
    fn nobody_is_awaited_after_a_sync_without_answers_or_with_many() {
        let mut company = Company::default();
        for answered in [0, ANSWERS_MAX + 1] {
            company.note_synced(answered, answered, SYNC);
            assert!(!company.has_patience(Duration::ZERO));
        }
    }

    #[test]
    fn a_client_alone_has_no_company() {
        let mut company = Company::default();
        company.note_synced(1, 1, SYNC);
        assert!(company.is_complete(2));
    }
}
