//! Times to live.

use std::num::NonZero;
use std::time::Duration;

use super::{MILLIS_PER_SECOND, NANOS_PER_MILLI};
use crate::limits::TTL_MILLIS_MAX;

/// A time to live: up to [`TTL_MILLIS_MAX`] milliseconds. [`Ttl::NONE`] means that there is no deadline.
///
/// ```
/// use std::time::Duration;
///
/// use spindle::clock::Ttl;
///
/// assert_eq!(Ttl::from_secs(2).millis(), 2_000);
/// assert_eq!(Ttl::from_millis(1_500).map(Ttl::whole_secs), Some(None));
/// assert_eq!(Ttl::from_millis(1 << 42), None);
/// assert_eq!(Ttl::from_duration(Duration::from_micros(1_001)).map(Ttl::millis), Some(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl {
    /// The milliseconds and one more, so that an `Option<Ttl>` has the size of a number.
    successor: NonZero<u64>,
}

const _: () = assert!(size_of::<Option<Ttl>>() == size_of::<u64>());
const _: () = assert!(u32::MAX as u64 * MILLIS_PER_SECOND <= TTL_MILLIS_MAX);

impl Ttl {
    /// No deadline.
    pub const NONE: Self = Self::from_secs(0);
    /// The longest one, of 139 years.
    pub const MAX: Self = Self::known(TTL_MILLIS_MAX);

    /// Seconds. Each number of 32 bits is a TTL. 0 is [`Ttl::NONE`].
    #[must_use]
    pub const fn from_secs(seconds: u32) -> Self {
        Self::known(seconds as u64 * MILLIS_PER_SECOND)
    }

    /// Milliseconds. 0 is [`Ttl::NONE`]. `None` above [`TTL_MILLIS_MAX`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Option<Self> {
        if millis <= TTL_MILLIS_MAX { Some(Self::known(millis)) } else { None }
    }

    /// A duration, rounded up to milliseconds. `None` above [`TTL_MILLIS_MAX`].
    #[must_use]
    pub fn from_duration(duration: Duration) -> Option<Self> {
        u64::try_from(duration.as_nanos().div_ceil(u128::from(NANOS_PER_MILLI))).ok().and_then(Self::from_millis)
    }

    /// Milliseconds that are known to be within the limit.
    const fn known(millis: u64) -> Self {
        Self { successor: NonZero::<u64>::MIN.saturating_add(millis) }
    }

    /// Milliseconds. 0: no deadline.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.successor.get() - 1
    }

    /// Seconds, if it is a whole number of them that has 32 bits.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "compared before")]
    pub const fn whole_secs(self) -> Option<u32> {
        let seconds = self.millis() / MILLIS_PER_SECOND;
        let is_whole = self.millis().is_multiple_of(MILLIS_PER_SECOND) && seconds <= u32::MAX as u64;
        if is_whole { Some(seconds as u32) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_milliseconds_are_the_same_times() {
        for seconds in [0, 1, 60, u32::MAX] {
            let ttl = Ttl::from_secs(seconds);
            assert_eq!(Ttl::from_millis(u64::from(seconds) * 1_000), Some(ttl));
            assert_eq!(ttl.whole_secs(), Some(seconds));
        }
        assert_eq!(Ttl::NONE.millis(), 0);
        for parts in [1, 999, 1_001, 4_294_967_296_000, TTL_MILLIS_MAX] {
            let ttl = Ttl::from_millis(parts);
            assert_eq!((ttl.map(Ttl::millis), ttl.and_then(Ttl::whole_secs)), (Some(parts), None));
        }
        assert_eq!(Ttl::from_millis(TTL_MILLIS_MAX), Some(Ttl::MAX));
        assert_eq!((Ttl::from_millis(TTL_MILLIS_MAX + 1), Ttl::from_millis(u64::MAX)), (None, None));
    }

    #[test]
    fn a_duration_is_rounded_up_so_that_no_element_expires_early() {
        let millis = |duration| Ttl::from_duration(duration).map(Ttl::millis);
        assert_eq!(millis(Duration::ZERO), Some(0));
        assert_eq!(millis(Duration::from_nanos(1)), Some(1));
        assert_eq!(millis(Duration::from_micros(1_500)), Some(2));
        assert_eq!(millis(Duration::from_secs(7)), Some(7_000));
        assert_eq!(millis(Duration::from_millis(TTL_MILLIS_MAX)), Some(TTL_MILLIS_MAX));
        assert_eq!(millis(Duration::from_millis(TTL_MILLIS_MAX) + Duration::from_nanos(1)), None);
        assert_eq!(millis(Duration::MAX), None);
    }
}
