//! The pace at which a client with pending replies reads, and whether it is too slow.
//!
//! Two clocks run for each client: one starts again when the system takes any byte, the other only when it has taken
//! [`SLOW_READER_BYTES`]. A client that reads [`SLOW_READER_PACE`](crate::limits::SLOW_READER_PACE) bytes a second
//! reaches the end of neither. One that reads a byte now and then reaches the end of the second.
//!
//! This module knows neither replies nor sockets.

use crate::clock::Now;
use crate::limits::{CLIENT_STALLS_MAX, SLOW_READER_BYTES, SLOW_READER_MAX};

/// The pace of one client since its oldest pending reply began to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPace {
    /// How many bytes the system had taken when it last took some, and when that was seen.
    last: (u64, Now),
    /// The same, when it had last taken [`SLOW_READER_BYTES`] together.
    start: (u64, Now),
}

impl ReadPace {
    /// Begins to watch a client for which the system has taken `taken` bytes.
    pub(super) fn begin(taken: u64, now: Now) -> Self {
        Self { last: (taken, now), start: (taken, now) }
    }

    /// Notes that the system has taken `taken` bytes by now. Returns whether the client is too slow.
    pub(super) fn is_too_slow(&mut self, taken: u64, now: Now) -> bool {
        if taken != self.last.0 {
            self.last = (taken, now);
        }
        if taken - self.start.0 >= SLOW_READER_BYTES {
            self.start = (taken, now);
        }
        self.last.1.after(CLIENT_STALLS_MAX) <= now || self.start.1.after(SLOW_READER_MAX) <= now
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::{ROOM_RECHECK, SLOW_READER_PACE};

    /// When a client is closed that has taken `taken(second)` bytes at each sweep, in seconds, within a day.
    fn closed_at(taken: impl Fn(u64) -> u64) -> Option<u64> {
        let at = |second: u64| Now::from_millis(1_000 * second);
        let mut pace = ReadPace::begin(taken(0), at(0));
        let sweep = ROOM_RECHECK.as_secs();
        (1..=86_400 / sweep).map(|sweeps| sweeps * sweep).find(|second| pace.is_too_slow(taken(*second), at(*second)))
    }

    /// Any byte between two sweeps kept replies, and the snapshot of the store for them, for ever.
    #[test]
    fn a_client_that_takes_a_byte_between_two_sweeps_is_closed_in_the_end() {
        assert_eq!(closed_at(|second| second), Some(SLOW_READER_MAX.as_secs()));
        assert_eq!(closed_at(|second| second / 30), Some(SLOW_READER_MAX.as_secs()));
    }

    #[test]
    fn a_client_that_takes_nothing_is_closed_soon() {
        assert_eq!(closed_at(|_| 7), Some(CLIENT_STALLS_MAX.as_secs()));
        let stops = Duration::from_secs(3_600).as_secs();
        assert_eq!(closed_at(|second| second.min(stops) << 20), Some(stops + CLIENT_STALLS_MAX.as_secs()));
    }

    #[test]
    fn a_client_that_reads_at_the_promised_pace_is_not_closed() {
        assert_eq!(closed_at(|second| second * SLOW_READER_PACE), None);
        // The system takes the next bytes when a third of its buffer is free.
        let step = 2 << 20;
        assert_eq!(closed_at(|second| second * SLOW_READER_PACE / step * step), None);
    }
}
