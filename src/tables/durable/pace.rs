//! The pauses of the log while it looks for records that count, so that sessions have the processor meanwhile.
//!
//! This file knows nothing of records.

use std::time::Duration;

/// Records between two pauses: some 100 microseconds of work.
const RECORDS: usize = 256;
/// A pause. With the time until the thread runs again it is about twice the work before it.
pub(super) const PAUSE: Duration = Duration::from_micros(150);
/// The pauses of one batch, at most: about a quarter of a second, for which its epoch is on disk later.
const PAUSES_MAX: u32 = 1_000;

/// Where the log stands between two pauses.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Records since the last pause.
    records: usize,
    /// Pauses of this batch.
    pauses: u32,
}

impl Pace {
    /// The log has looked at so many records. Returns whether a pause is due, unless somebody waits for the log.
    pub(super) fn is_due(&mut self, records: usize, is_awaited: impl FnOnce() -> bool) -> bool {
        self.records += records;
        if self.records < RECORDS || self.pauses == PAUSES_MAX {
            return false;
        }
        self.records = 0;
        let is_due = !is_awaited();
        self.pauses += u32::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_due_behind_some_records_unless_somebody_waits() {
        let mut pace = Pace::default();
        assert!(!pace.is_due(RECORDS - 1, || false));
        assert!(pace.is_due(1, || false));
        assert!(!pace.is_due(RECORDS - 1, || false));
        assert!(!pace.is_due(1, || true));
        assert!(!pace.is_due(RECORDS - 1, || false), "the pause that was left out does not come later");
        assert!(pace.is_due(1, || false));
    }

    #[test]
    fn the_pauses_of_a_batch_are_bounded() {
        let mut pace = Pace::default();
        let due = (0..PAUSES_MAX * 2).filter(|_| pace.is_due(RECORDS, || false)).count();
        assert_eq!(due, PAUSES_MAX as usize);
    }
}
