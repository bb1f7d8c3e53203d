//! The base of the versions: where a server begins to count, so that no version comes twice.
//!
//! A version is one number inside the server and outside. The first one of a server is the base and one. From there a
//! version grows by one with each change of an element, and a key that comes back starts above the
//! version floor (`Catalog::version_floor`), above what older tables of its name have, and above its dead slot:
//! `Ops::create` takes the largest.
//!
//! The base is the wall clock at the start, in ticks of 16 ns since the beginning of 2025:
//!
//! ```text
//! a start       its highest version      the next start
//! base ─────────► base + n ─────────────► base' = base + ticks between the starts, and n is less than that
//! ```
//!
//! - **Rate.** Versions would overtake the ticks at 62.5 million changes a second, kept up for the whole life of a
//!   server. Each change passes the one publisher, which takes 40 to 50 ns for it. The writers' credits let no writer
//!   get further ahead than its ring is long. So a server makes at most 25 million changes a second.
//! - **Range.** A version has 60 bits in a slot: ticks for 584 years. A wall clock in 64 bits of nanoseconds ends in
//!   2554. At that base a server has 2^56 versions left, at 25 million a second for 91 years.
//! - **A clock before 2025** gives the base 0. It is wrong, because this program is younger. Versions are then unique
//!   as long as the server runs, and come again after a restart, as after any clock that went back.
//!
//! This module does not read the clock.

use super::slot::VERSION_BITS;

/// The beginning of 2025, UTC, in nanoseconds since 1970.
const ORIGIN_NANOS: u64 = 1_735_689_600 * 1_000_000_000;
/// Nanoseconds of a tick.
const TICK_NANOS: u64 = 16;
/// Versions that fit above any base.
const ROOM: u64 = 1 << 56;

const _: () = assert!(version_base(u64::MAX) + ROOM < 1 << VERSION_BITS);

/// The base for a server that starts at this time, in nanoseconds since 1970: see [`TablesConfig::version_base`].
///
/// [`TablesConfig::version_base`]: super::TablesConfig::version_base
#[must_use]
pub const fn version_base(wall_nanos: u64) -> u64 {
    wall_nanos.saturating_sub(ORIGIN_NANOS) / TICK_NANOS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_above_all_versions_of_an_earlier_start() {
        const SECOND: u64 = 1_000_000_000;
        let start = ORIGIN_NANOS + 60_000_000 * SECOND;
        for seconds in [1, 60, 31_536_000] {
            let changes = 25_000_000 * seconds;
            assert!(version_base(start + seconds * SECOND) > version_base(start) + changes, "{seconds} s");
        }
    }

    #[test]
    fn a_clock_before_the_origin_gives_the_base_0() {
        for wall_nanos in [0, 1, ORIGIN_NANOS - 1, ORIGIN_NANOS, ORIGIN_NANOS + TICK_NANOS - 1] {
            assert_eq!(version_base(wall_nanos), 0, "{wall_nanos}");
        }
        assert_eq!(version_base(ORIGIN_NANOS + TICK_NANOS), 1);
    }
}
