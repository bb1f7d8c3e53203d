//! How many tables may be on their way down at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{CLOSING_PER_NAME_MAX, Index, Table};

/// With this many tables of all names on their way down, until their memory is given back, `create` answers `Busy` too.
/// They are fewer if their indexes may be large.
const CLOSING_MAX: usize = 1_024;
/// All of them together have no more bytes than that when they were created, unless they are few.
const CLOSING_BYTES_MAX: usize = 64 << 20;

/// The number of tables that are deleted, and whose memory is not given back.
pub(in crate::tables) struct ClosingTables {
    /// Raised under `admission`.
    count: AtomicUsize,
    max: usize,
}

// Relaxed, all of them: the number only bounds how many they are. A session that is refused watches the reaper, which
// counts them under a lock afterwards.
impl ClosingTables {
    /// As many as the indexes of tables for so many keys allow.
    pub(super) fn new(expected_keys: usize) -> Self {
        let bytes = usize::try_from(Index::new(expected_keys).bytes()).unwrap_or(usize::MAX / 2);
        let max = (CLOSING_BYTES_MAX / (Table::ALLOCATED_BYTES + bytes)).clamp(CLOSING_PER_NAME_MAX, CLOSING_MAX);
        Self { count: AtomicUsize::new(0), max }
    }

    pub(super) fn are_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.max
    }

    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Called by the reaper: the memory of a forgotten table is given back.
    pub(in crate::tables) fn note_freed(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
