//! The clock of what outlives the process, leases and durable elements: milliseconds since 1970 that never go back and never jump.
//!
//! ```text
//! first start                      the time of the wall clock
//! while the server runs            runs as the system's uptime does. The wall clock is not asked
//! next start, same system start    continues as the uptime does, also for the time in between
//! next start, after a reboot       continues as the wall clock does, and stands still if that went back
//! ```
//! Each batch stores a mark: this clock, the uptime and the wall clock at the same moment. So a step of the wall clock
//! while the server runs is no passed time at the next start. A clock that continues from the last mark is never before
//! the grant of a stored lease, so no lease lasts longer after a restart than its length from the restart. A step
//! between the last mark and the first start after a reboot is the only one that counts as passed time: it looks
//! like a long pause.
//!
//! This module reads no clock: callers pass [`ClockReading`]s in.

use super::ClockReading;
use crate::byte_reader::ByteReader;

/// Nanoseconds in a millisecond.
const NANOS_PER_MILLI: u64 = 1_000_000;
/// A change of the wall clock against this clock, in milliseconds, that is marked also without a batch.
const STEP: u64 = 1_000;

/// This clock and a reading of the other clocks, at one moment. Stored as
/// `time:u64 wall:u64 up:u64 boot:u128`, big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockMark {
    /// Milliseconds since 1970 by this clock.
    time: u64,
    reading: ClockReading,
}

impl ClockMark {
    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        let ClockReading { wall, up, boot } = self.reading;
        [&[self.time, wall, up].map(u64::to_be_bytes).concat()[..], &boot.to_be_bytes()].concat()
    }

    /// `None`: no server has written it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = ByteReader::new(bytes);
        let mut take = || {
            let time = fields.u64_be()?;
            let (wall, up) = (fields.u64_be()?, fields.u64_be()?);
            Some(Self { time, reading: ClockReading { wall, up, boot: u128::from_be_bytes(fields.array()?) } })
        };
        take().filter(|_| fields.is_empty())
    }

    /// This clock at a later reading.
    fn time_at(&self, later: ClockReading) -> u64 {
        let ClockReading { wall, up, boot } = self.reading;
        let is_same = boot != ClockReading::UNKNOWN_BOOT && boot == later.boot && up <= later.up;
        let passed = if is_same { (later.up - up) / NANOS_PER_MILLI } else { later.wall.saturating_sub(wall) };
        self.time.saturating_add(passed)
    }
}

/// A clock that lasts.
#[derive(Clone, Debug)]
pub struct LastingClock {
    /// The start of this server.
    start: ClockMark,
    latest: ClockMark,
    /// The mark that was stored last.
    stored: Option<ClockMark>,
}

impl LastingClock {
    /// Continues from the mark of an earlier server, or begins with the time of the wall clock.
    pub fn resume(mark: Option<ClockMark>, reading: ClockReading) -> Self {
        let start = ClockMark { time: mark.map_or(reading.wall, |mark| mark.time_at(reading)), reading };
        Self { start, latest: start, stored: None }
    }

    /// Takes a reading, and returns the time of this clock. A reading that another thread took earlier changes nothing.
    pub fn advance(&mut self, reading: ClockReading) -> u64 {
        if reading.up >= self.latest.reading.up {
            let passed = (reading.up - self.start.reading.up) / NANOS_PER_MILLI;
            self.latest = ClockMark { time: self.start.time.saturating_add(passed), reading };
        }
        self.latest.time
    }

    /// The time of the latest reading.
    pub fn now(&self) -> u64 {
        self.latest.time
    }

    /// What to add to the uptime in milliseconds for the time of this clock, modulo 2^64.
    pub fn ahead_of_uptime(&self) -> u64 {
        self.start.time.wrapping_sub(self.start.reading.up / NANOS_PER_MILLI)
    }

    /// Whether the wall clock was set since the mark that was stored last.
    pub fn is_stepped(&self) -> bool {
        let passed = |to: u64, from: u64| i128::from(to) - i128::from(from);
        self.stored.is_none_or(|stored| {
            let (latest, by_wall) = (self.latest, passed(self.latest.reading.wall, stored.reading.wall));
            (by_wall - passed(latest.time, stored.time)).unsigned_abs() > u128::from(STEP)
        })
    }

    /// The mark to store. The caller stores it with the next batch.
    pub fn take_mark(&mut self) -> ClockMark {
        self.stored = Some(self.latest);
        self.latest
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    const YEAR: u64 = 365 * 86_400_000;

    fn reading(boot: u128, up_millis: u64, wall: u64) -> ClockReading {
        ClockReading { wall, up: up_millis * NANOS_PER_MILLI, boot }
    }

    #[test]
    fn a_mark_is_stored_byte_by_byte_as_described() {
        let mark = ClockMark { time: 1, reading: ClockReading { wall: 2, up: 3, boot: 4 } };
        let bytes = mark.encode();
        assert_eq!(bytes, [&[1_u64, 2, 3].map(u64::to_be_bytes).concat()[..], &4_u128.to_be_bytes()].concat());
        assert_eq!(ClockMark::decode(&bytes), Some(mark));
        assert!(ClockMark::decode(&bytes[..39]).is_none() && ClockMark::decode(&[&bytes[..], b"x"].concat()).is_none());
    }

    #[test]
    fn a_running_clock_does_not_follow_the_wall_clock() {
        let mut clock = LastingClock::resume(None, reading(1, 50, YEAR));
        assert_eq!(clock.now(), YEAR);
        assert_eq!(clock.advance(reading(1, 60, 3 * YEAR)), YEAR + 10);
        assert_eq!(clock.advance(reading(1, 70, 0)), YEAR + 20);
        assert_eq!(clock.advance(reading(1, 65, YEAR)), YEAR + 20, "an earlier reading of another thread");
        assert_eq!(clock.ahead_of_uptime(), YEAR - 50);
    }

    #[test]
    fn readings_that_come_often_add_up_and_one_at_the_same_moment_counts() {
        let at = |nanos, wall| ClockReading { wall, up: nanos, boot: 1 };
        let mut clock = LastingClock::resume(None, at(0, YEAR));
        let times: Vec<u64> = (1..=10).map(|step| clock.advance(at(step * 400_000, YEAR)) - YEAR).collect();
        assert_eq!(times, [0, 0, 1, 1, 2, 2, 2, 3, 3, 4]);
        clock.take_mark();
        assert_eq!(clock.advance(at(4_000_000, YEAR + 5 * STEP)), YEAR + 4);
        assert!(clock.is_stepped(), "it is as new as the one before");
        // Another thread took this one before that step.
        assert_eq!(clock.advance(at(3_999_999, YEAR)), YEAR + 4);
        assert!(clock.is_stepped() && clock.take_mark().reading.wall == YEAR + 5 * STEP);
    }

    #[test]
    fn a_step_of_the_wall_clock_is_noticed_until_it_is_marked() {
        let mut clock = LastingClock::resume(None, reading(1, 0, YEAR));
        assert!(clock.is_stepped(), "nothing is marked");
        clock.take_mark();
        for (up, wall, stepped) in [(10_000, YEAR + 11_000, false), (10_000, YEAR + 11_001, true), (20_000, 5, true)] {
            clock.advance(reading(1, up, wall));
            assert_eq!(clock.is_stepped(), stepped, "{wall}");
        }
        clock.take_mark();
        assert!(!clock.is_stepped());
    }

    #[test]
    fn between_two_starts_it_continues_as_the_best_clock_says() {
        let mark = ClockMark { time: 2 * YEAR, reading: reading(1, 1_000, 5 * YEAR) };
        let starts = [
            (reading(1, 1_500, 9 * YEAR), 500, "the system runs on, and its wall clock is set"),
            (reading(1, 1_500, 0), 500, "and set back"),
            (reading(2, 3, 5 * YEAR + 700), 700, "after a reboot"),
            (reading(2, 3, 4 * YEAR), 0, "a wall clock that went back adds nothing"),
            (reading(1, 999, 5 * YEAR + 700), 700, "an uptime that went back is another one"),
        ];
        for (start, passed, why) in starts {
            assert_eq!(LastingClock::resume(Some(mark), start).now(), 2 * YEAR + passed, "{why}");
        }
        let unknown = |up, wall| reading(ClockReading::UNKNOWN_BOOT, up, wall);
        let mark = ClockMark { time: 7, reading: unknown(1_000, 70) };
        assert_eq!(LastingClock::resume(Some(mark), unknown(9_000, 75)).now(), 12, "two unknown starts are two starts");
        let end = ClockMark { time: u64::MAX - 1, reading: reading(1, 0, 0) };
        assert_eq!(LastingClock::resume(Some(end), reading(2, 0, u64::MAX)).now(), u64::MAX);
    }
}
