//! The arguments of a command, and the numbers and times among them.
//!
//! This module carries nothing out.

use super::answer::{Failure, NOT_AN_INTEGER, SYNTAX, refused};
use crate::clock::Clock;
use crate::resp3::integer;
use crate::tables::Deadline;

/// The first arguments of a command, and those that follow them.
type SplitArguments<'b, const N: usize> = ([&'b [u8]; N], &'b [&'b [u8]]);

/// The arguments of a command, its name first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'b>(pub(super) &'b [&'b [u8]]);

impl<'b> Arguments<'b> {
    /// The arguments behind the name, if they are so many.
    pub(super) fn exactly<const N: usize>(self) -> Result<[&'b [u8]; N], Failure> {
        self.behind(1).try_into().map_err(|_| SYNTAX)
    }

    /// The first arguments behind the name, and those that follow them.
    pub(super) fn split<const N: usize>(self) -> Result<SplitArguments<'b, N>, Failure> {
        let (first, rest) = self.behind(1).split_first_chunk::<N>().ok_or(SYNTAX)?;
        Ok((*first, rest))
    }

    /// The arguments from this number on. The name is number 0.
    pub(super) fn behind(self, number: usize) -> &'b [&'b [u8]] {
        self.0.get(number..).unwrap_or_default()
    }

    /// The name of the command, in small letters.
    pub(super) fn name(self) -> String {
        lower(self.0.first().copied().unwrap_or_default())
    }
}

/// Text in small letters, for an error.
pub(super) fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_lowercase()
}

/// The beginning of an argument as Redis shows it in an error: up to a NUL, and at most so many bytes.
pub(super) fn shown(argument: &[u8], most: usize) -> &[u8] {
    let end = argument.iter().position(|byte| *byte == 0).unwrap_or(argument.len()).min(most);
    argument.get(..end).unwrap_or_default()
}

/// Whether this argument is that word, in letters of any size.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// The number that an argument is.
pub(super) fn number(argument: &[u8]) -> Result<i64, Failure> {
    integer(argument).ok_or(NOT_AN_INTEGER)
}

/// The unit of a time, and where it counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    /// Seconds from now on.
    Seconds,
    /// Milliseconds from now on.
    Millis,
    /// Seconds since 1970.
    UnixSeconds,
    /// Milliseconds since 1970.
    UnixMillis,
}

impl TimeUnit {
    /// The unit of an option of SET and GETEX.
    pub(super) fn of_option(option: &[u8]) -> Option<Self> {
        [("ex", Self::Seconds), ("px", Self::Millis), ("exat", Self::UnixSeconds), ("pxat", Self::UnixMillis)]
            .into_iter()
            .find_map(|(word, unit)| is(option, word).then_some(unit))
    }

    /// Milliseconds since 1970 by the server's clock, or `None` if they are beyond 64 bits. `now` is of that clock.
    pub(super) fn unix_millis(self, number: i64, now: i64) -> Option<i64> {
        let millis = match self {
            Self::Seconds | Self::UnixSeconds => number.checked_mul(1_000)?,
            Self::Millis | Self::UnixMillis => number,
        };
        match self {
            Self::Seconds | Self::Millis => millis.checked_add(now),
            Self::UnixSeconds | Self::UnixMillis => Some(millis),
        }
    }
}

/// The refusal of a time.
pub(super) fn invalid_time(command: &str) -> Failure {
    refused(format!("ERR invalid expire time in '{command}' command"))
}

/// Converts times of the server's clock: milliseconds since 1970, and since the clock started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    start: i64,
    now: i64,
}

/// The last deadline that the tables hold, in milliseconds since the clock started.
const LAST: i64 = (1 << 43) - 2;

impl Times {
    /// The times at a reading of the clock, in milliseconds since it started.
    pub(super) fn new(clock: Clock, now: u64) -> Self {
        let [start, now] = [clock.start_wall_millis(), now].map(|millis| i64::try_from(millis).unwrap_or(i64::MAX));
        Self { start, now: start.saturating_add(now) }
    }

    /// Now, in milliseconds since 1970.
    pub(super) fn now(self) -> i64 {
        self.now
    }

    /// A deadline in milliseconds since 1970, if the tables can hold it. A time before the start has passed.
    pub(super) fn deadline(self, unix_millis: i64) -> Option<Deadline> {
        let since = unix_millis.saturating_sub(self.start).max(0);
        (since <= LAST).then(|| Deadline::at(since.unsigned_abs()))
    }

    /// Milliseconds since 1970 of a deadline that an element has.
    pub(super) fn unix_millis(self, deadline: u64) -> i64 {
        self.start.saturating_add(i64::try_from(deadline).unwrap_or(i64::MAX))
    }
}
