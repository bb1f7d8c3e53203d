//! The bounds of the tables that only they and the server's composition need.
//!
//! This module measures nothing.

use crate::limits::{CHANGES_PER_WRITER, MANY_MAX};

/// Changes of all writers together that may be on the way to the publisher. A slot keeps 25 bits of the version that was
/// announced last, and counts its references, one for each change on the way, in 25.
pub(super) const CHANGES_MAX: usize = 1 << 24;
/// Writers that are no workers, at most: the expiry thread, the reaper, and the frontends with sessions of their own.
const OTHER_WRITERS: usize = 16;
/// Most workers, for which each writer has fewer credits: see `serve --workers`.
const WORKERS_MANY: usize = 1_024;

// Each writer needs the credits of an UPDATE_MANY.
const _: () = assert!(changes_per_writer(WORKERS_MANY) >= 4 * MANY_MAX);

/// Credits of each writer beside this many workers: as many as all of them together may have.
#[must_use]
pub const fn changes_per_writer(workers: usize) -> usize {
    let share = CHANGES_MAX / (workers + OTHER_WRITERS);
    let credits = 1 << share.ilog2();
    if credits < CHANGES_PER_WRITER { credits } else { CHANGES_PER_WRITER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_workers_have_fewer_credits_each_and_never_more_than_all_may_have() {
        assert_eq!([1, 64, 240, 241, 1_024].map(changes_per_writer), [65_536, 65_536, 65_536, 32_768, 16_384 / 2]);
        for workers in 1..=WORKERS_MANY {
            assert!(changes_per_writer(workers) * (workers + OTHER_WRITERS) <= CHANGES_MAX);
        }
    }
}
