//! The only reader of the clock.
//!
//! All other code receives the time as an argument. The monotonic clock is for the deadlines of elements. The wall clock is for the
//! base of the versions, and for the start of the deadlines in the rows of mirrors: both are read once. The deadlines of
//! leases outlive the process: for them a [`ClockReading`] has the uptime of the system, and the wall clock for the time
//! in which the system did not run. Nothing here sleeps.
//!
//! ```text
//! nanoseconds since the server started:   0 ............ now ............ deadline
//! a reading rounds down to milliseconds:             now.millis()
//! a deadline rounds up:                                         now.deadline_after(ttl)
//! the remaining time rounds down:                          now.millis_until(deadline)
//! ```
//! So an element never expires early, and `now.millis() >= deadline` means that the deadline has passed. The remaining
//! time is never more than the TTL, for any reading that is not before the one that the deadline was made from.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub mod lasting;
mod ttl;

pub use ttl::Ttl;

/// Milliseconds in a second.
const MILLIS_PER_SECOND: u64 = 1_000;
/// Nanoseconds in a millisecond.
const NANOS_PER_MILLI: u64 = 1_000_000;
/// Readings with less between them are of one moment.
const AT_ONCE_NANOS: u64 = 20_000;
/// How often the clocks are read for one moment at most.
const READINGS_MAX: u32 = 100;

/// A clock that starts at zero. Cheap to copy. All copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    start_wall_millis: u64,
    /// The milliseconds that a fake clock shows.
    #[cfg(test)]
    fake: Option<&'static std::sync::atomic::AtomicU64>,
}

impl Clock {
    /// Starts a clock at zero.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            start_wall_millis: wall_millis(),
            #[cfg(test)]
            fake: None,
        }
    }

    /// Milliseconds since 1970 by the wall clock when this clock started. A later step of the wall clock does not
    /// change it, so one deadline is reported as one time everywhere.
    #[must_use]
    pub fn start_wall_millis(&self) -> u64 {
        self.start_wall_millis
    }

    /// A clock that stands still, and shows the milliseconds that a test sets.
    #[cfg(test)]
    pub(crate) fn fake(millis: &'static std::sync::atomic::AtomicU64) -> Self {
        Self { fake: Some(millis), ..Self::start() }
    }

    /// The milliseconds of a fake clock.
    #[cfg(test)]
    fn faked(&self) -> Option<u64> {
        // Relaxed: a test sets it between the steps of one thread.
        self.fake.map(|millis| millis.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Reads the monotonic clock.
    #[must_use]
    pub fn now(&self) -> Now {
        #[cfg(test)]
        if let Some(millis) = self.faked() {
            return Now::from_millis(millis);
        }
        Now { nanos: u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX) }
    }

    /// This clock and those that run on when the process ends, at one moment. A thread that loses its core between the two
    /// readings reads again.
    #[must_use]
    pub fn now_and_reading(&self) -> (Now, ClockReading) {
        let attempt = || {
            let (before, reading, after) = (self.now(), self.reading(), self.now());
            (after.nanos() - before.nanos(), before, reading)
        };
        let mut best = attempt();
        for _ in 1..READINGS_MAX {
            if best.0 < AT_ONCE_NANOS {
                break;
            }
            let next = attempt();
            if next.0 < best.0 {
                best = next;
            }
        }
        (best.1, best.2)
    }

    /// Reads the clocks that run on when the process ends.
    #[must_use]
    pub fn reading(&self) -> ClockReading {
        #[cfg(test)]
        if let Some(millis) = self.faked() {
            return ClockReading::from_millis(millis);
        }
        let up = clock_gettime(ClockId::Boottime);
        let nanos = i128::from(up.tv_sec) * i128::from(NANOS_PER_MILLI * MILLIS_PER_SECOND) + i128::from(up.tv_nsec);
        ClockReading { wall: wall_nanos() / NANOS_PER_MILLI, up: u64::try_from(nanos).unwrap_or(0), boot: boot() }
    }
}

/// The clocks that run on when the process ends, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Milliseconds since 1970 by the wall clock, which can be set at any time.
    pub wall: u64,
    /// Nanoseconds since the system started, those in which it was suspended included. Nobody can set them.
    pub up: u64,
    /// The start of the system that `up` counts from.
    pub boot: u128,
}

impl ClockReading {
    /// The system does not report its start.
    pub const UNKNOWN_BOOT: u128 = 0;

    /// An invented reading for a test or a simulation: the wall clock and the uptime show the same milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self { wall: millis, up: millis * NANOS_PER_MILLI, boot: 1 }
    }
}

/// The random id of this start of the system, from `/proc/sys/kernel/random/boot_id` (random(4)).
fn boot() -> u128 {
    static BOOT: OnceLock<u128> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(ClockReading::UNKNOWN_BOOT)
    })
}

/// Nanoseconds since 1970 by the wall clock, 0 if the clock shows an earlier time.
#[must_use]
pub fn wall_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Milliseconds since 1970 by the wall clock, 0 if the clock shows an earlier time.
#[must_use]
pub fn wall_millis() -> u64 {
    wall_nanos() / NANOS_PER_MILLI
}

/// A time by the wall clock as HTTP writes it, such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).
/// `millis` are since 1970.
#[must_use]
pub fn http_date(millis: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(millis))
}

/// One reading of the clock: nanoseconds since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    nanos: u64,
}

impl Now {
    /// An invented reading for a test or a simulation, in nanoseconds since the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// The reading `millis` milliseconds after the start: that of a deadline, or an invented one for a test or a
    /// simulation.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self { nanos: millis * NANOS_PER_MILLI }
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.nanos
    }

    /// Milliseconds since the start, rounded down.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.nanos / NANOS_PER_MILLI
    }

    /// The reading of the clock after this time.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self { nanos: self.nanos.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// The deadline, in milliseconds since the start, for a TTL from now on. Rounded up, so never early.
    #[must_use]
    pub const fn deadline_after(self, ttl: Ttl) -> u64 {
        self.nanos.div_ceil(NANOS_PER_MILLI) + ttl.millis()
    }

    /// Nanoseconds from this reading to another. 0 if the other is not later.
    #[must_use]
    pub const fn nanos_until(self, other: Self) -> u64 {
        other.nanos.saturating_sub(self.nanos)
    }

    /// The time from this reading to another. Zero if the other is not later.
    #[must_use]
    pub const fn time_until(self, other: Self) -> Duration {
        Duration::from_nanos(self.nanos_until(other))
    }

    /// Whole milliseconds until a deadline, rounded down: 0 in its last millisecond and after it has passed.
    #[must_use]
    pub const fn millis_until(self, deadline: u64) -> u64 {
        deadline.saturating_sub(self.nanos.div_ceil(NANOS_PER_MILLI))
    }
}

/// The latest end of work that has begun: the work waits no longer than [`TimeLimit::left`] at once, and ends when
/// [`TimeLimit::is_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    end: Now,
}

impl TimeLimit {
    /// The limit of work that begins now and may take `most`.
    #[must_use]
    pub fn begin(now: Now, most: Duration) -> Self {
        Self { end: now.after(most) }
    }

    /// The time that is left.
    #[must_use]
    pub fn left(self, now: Now) -> Duration {
        now.time_until(self.end)
    }

    /// Whether no time is left.
    #[must_use]
    pub fn is_over(self, now: Now) -> bool {
        self.end <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_rounds_down_and_a_deadline_rounds_up() {
        let now = Now::from_nanos(1_500_000);
        assert_eq!(now.millis(), 1);
        assert_eq!(now.deadline_after(Ttl::from_secs(1)), 1_002);
        assert_eq!(Ttl::from_millis(3).map(|ttl| now.deadline_after(ttl)), Some(5));
        assert_eq!(Now::from_millis(7).deadline_after(Ttl::NONE), 7);
    }

    #[test]
    fn what_is_left_is_never_more_than_the_ttl_at_any_nanosecond() {
        for set in [0, 1, 499_999, 999_999, 1_000_000, 1_000_001, 1_999_999, 7_123_456_789] {
            let deadline = Now::from_nanos(set).deadline_after(Ttl::from_secs(300));
            assert_eq!(Now::from_nanos(set).millis_until(deadline), 300_000, "set at {set} ns, read at once");
            assert!(Now::from_nanos(set + 1).millis_until(deadline) <= 300_000);
            let end = deadline * NANOS_PER_MILLI;
            assert_eq!(Now::from_nanos(end - 1_000_001).millis_until(deadline), 1);
            assert_eq!(Now::from_nanos(end - 1_000_000).millis_until(deadline), 1);
            assert_eq!(Now::from_nanos(end - 999_999).millis_until(deadline), 0);
            assert_eq!(Now::from_nanos(end - 1).millis_until(deadline), 0, "still there, for less than a millisecond");
            assert_eq!(Now::from_nanos(end + 5_000_000).millis_until(deadline), 0);
        }
    }

    #[test]
    fn the_time_until_an_earlier_reading_is_none() {
        let (first, second) = (Now::from_nanos(1_000_000_007), Now::from_millis(1_001));
        assert_eq!(first.time_until(second), Duration::from_nanos(999_993));
        assert_eq!((second.time_until(first), first.time_until(first)), (Duration::ZERO, Duration::ZERO));
        assert_eq!(first.nanos_until(second), 999_993);
    }

    #[test]
    fn the_largest_ttl_does_not_overflow() {
        let century = Now::from_millis(100 * 365 * 86_400 * 1_000);
        assert_eq!(century.deadline_after(Ttl::MAX), century.millis() + Ttl::MAX.millis());
    }

    #[test]
    fn a_limit_is_over_when_no_time_is_left_and_not_before() {
        let limit = TimeLimit::begin(Now::from_millis(500), Duration::from_secs(2));
        for (millis, left) in [(500, 2_000), (501, 1_999), (2_499, 1), (2_500, 0), (9_999, 0)] {
            let now = Now::from_millis(millis);
            assert_eq!(limit.left(now), Duration::from_millis(left));
            assert_eq!(limit.is_over(now), left == 0);
        }
        assert!(!TimeLimit::begin(Now::from_millis(1), Duration::MAX).is_over(Now::from_millis(u64::MAX >> 20)));
    }

    #[test]
    fn a_reading_knows_the_start_of_the_system_and_grows() {
        let clock = Clock::start();
        let (first, second) = (clock.reading(), Clock::start().reading());
        assert!(first.boot != ClockReading::UNKNOWN_BOOT && first.boot == second.boot);
        assert!(0 < first.up && first.up <= second.up && first.wall > 0);
    }

    #[test]
    fn copies_of_a_clock_agree() {
        let clock = Clock::start();
        let copy = clock;
        let first = clock.now();
        assert!(copy.now() >= first);
    }
}
