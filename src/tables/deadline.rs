//! The deadline that a write gives to its element: the one that the element has, none, or a time.
//!
//! ```text
//! number      0 … 2^43 − 2                            2^43 − 1    2^64 − 1
//! meaning     milliseconds since the clock started    none        that of the element
//! ```
//! A TTL becomes a deadline where a protocol hands a request to the tables, by the batch's reading of the clock. So a
//! request that waits gets its deadline anew with its next batch.
//!
//! This module does not compare a deadline with the time: `lookup.rs` does.

use super::slot::{EntryRef, NEVER};
use crate::clock::{Now, Ttl};
use crate::limits::TTL_MILLIS_MAX;

/// The deadline that a write gives to its element. It has the size of a number.
///
/// A time that has passed is a deadline like any other: the element is stored with its version, is absent at once for
/// every command, and its expiry is committed and announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(u64);

/// The last deadline that an entry can hold: 278 years after the clock started.
const LAST: u64 = NEVER - 1;

const _: () = assert!(TTL_MILLIS_MAX <= LAST / 2);

impl Deadline {
    /// The deadline that the element has. A new element has none.
    pub const KEEP: Self = Self(u64::MAX);
    /// No deadline.
    pub const NONE: Self = Self(NEVER);

    /// At so many milliseconds since the clock started. A time beyond the last one that an entry can hold, in 43 bits,
    /// counts as the last one.
    #[must_use]
    pub const fn at(millis: u64) -> Self {
        Self(if millis < LAST { millis } else { LAST })
    }

    /// After a TTL from `now` on. [`Ttl::NONE`] is no deadline. `None` keeps the one of the element.
    #[must_use]
    #[inline]
    pub fn after(now: Now, ttl: Option<Ttl>) -> Self {
        match ttl {
            None => Self::KEEP,
            Some(Ttl::NONE) => Self::NONE,
            Some(ttl) => Self::at(now.deadline_after(ttl)),
        }
    }

    /// Whether it is a time: neither none nor that of the element.
    pub(super) fn is_time(self) -> bool {
        self.0 <= LAST
    }

    /// The deadline of an entry that replaces `old`.
    #[inline]
    pub(super) fn of_successor(self, old: Option<EntryRef<'_>>) -> u64 {
        if self == Self::KEEP { old.map_or(NEVER, |old| old.deadline()) } else { self.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_counts_from_now_and_without_one_the_deadline_stays() {
        let now = Now::from_nanos(7_000_001);
        assert_eq!(Deadline::after(now, None), Deadline::KEEP);
        assert_eq!(Deadline::after(now, Some(Ttl::NONE)), Deadline::NONE);
        assert_eq!(Deadline::after(now, Ttl::from_millis(1)), Deadline::at(9));
        assert_eq!(Deadline::after(now, Some(Ttl::MAX)), Deadline::at(8 + (1 << 42) - 1));
    }

    #[test]
    fn a_time_is_a_deadline_up_to_the_last_that_an_entry_holds() {
        let kept = |deadline: Deadline| deadline.of_successor(None);
        for millis in [0, 1, (1 << 42) - 1, 1 << 42, (1 << 43) - 2] {
            assert_eq!(kept(Deadline::at(millis)), millis);
        }
        for beyond in [(1 << 43) - 1, 1 << 43, u64::MAX] {
            assert_eq!(kept(Deadline::at(beyond)), (1 << 43) - 2, "a deadline all the same");
        }
        let late = Now::from_millis(1 << 42);
        assert_eq!(Deadline::after(late, Some(Ttl::MAX)), Deadline::at((1 << 43) - 2));
        assert_eq!((kept(Deadline::NONE), kept(Deadline::KEEP)), (NEVER, NEVER));
    }
}
