//! The base of the versions: where a server begins to count, so that no version comes twice.
//!
//! A version is one number inside the server and outside. The first one of a server is the base and one. From there a
//! version grows by one with each change of an element, and a key that comes back starts above the
//! version floor (`VersionFloor::get`), above what older tables of its name have, and above its dead slot:
//! `Ops::create` takes the largest.
//!
//! The base is the wall clock at the start, in ticks of 16 ns since the beginning of 2025:
//!
//! ```text
//! a start       its highest version      the next start
//! base ─────────► base + n ─────────────► base' = base + ticks between the starts, and n is less than that
//! ```
//!
//! - **Rate.** Versions would overtake the ticks if one grew 62.5 million times a second, kept up for the whole life of
//!   a server. Each step follows the step before: it is a CAS on the word that the step before has written. Its thread
//!   has found this word, and has allocated and filled an entry. That takes 50 ns at least, even in one thread that
//!   does nothing else, and more where threads take turns. So a version grows at most 20 million times a second.
//! - **Range.** A version has 58 bits in a slot: ticks for 146 years. The base of a clock after 2134 is that of 2134,
//!   and versions come again after a restart. At that base a server has 2^56 versions left, at 20 million a second for
//!   114 years.
//! - **A clock before 2025** gives the base 0. It is wrong, because this program is younger. Versions are then unique
//!   as long as the server runs, and come again after a restart, as after any clock that went back.
//!
//! This module does not read the clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use super::slot::VERSION_BITS;
use crate::clock::Now;

/// The beginning of 2025, UTC, in nanoseconds since 1970.
const ORIGIN_NANOS: u64 = 1_735_689_600 * 1_000_000_000;
/// Nanoseconds of a tick.
const TICK_NANOS: u64 = 16;
/// How far the clock of another server may be ahead of this one's, in nanoseconds: a day.
const AHEAD_NANOS: u64 = 86_400 * 1_000_000_000;
/// Versions that fit above any base.
const ROOM: u64 = 1 << 56;

/// The highest base.
const BASE_MAX: u64 = (1 << VERSION_BITS) - ROOM - 1;

/// The base for a server that starts at this time, in nanoseconds since 1970: see [`TablesConfig::version_base`].
///
/// [`TablesConfig::version_base`]: super::TablesConfig::version_base
#[must_use]
pub const fn version_base(wall_nanos: u64) -> u64 {
    let ticks = wall_nanos.saturating_sub(ORIGIN_NANOS) / TICK_NANOS;
    if ticks < BASE_MAX { ticks } else { BASE_MAX }
}

/// The highest version that a server with a clock within a day of ours can have given, this long after a start with this
/// base. A key with a higher one would soon have no version left.
pub(super) const fn highest_version(base: u64, nanos: u64) -> u64 {
    let ahead = nanos.saturating_add(AHEAD_NANOS) / TICK_NANOS;
    let highest = base.saturating_add(ahead);
    if highest < BASE_MAX { highest } else { BASE_MAX }
}

/// The versions that new slots start above, in all tables.
pub(super) struct VersionFloor {
    /// The highest version of a slot that has left an index, at first the base. Written by the reaper before the slot
    /// leaves; read under the bucket's lock. So a thread that misses the slot reads the raised floor.
    floor: CachePadded<AtomicU64>,
    base: u64,
}

impl VersionFloor {
    pub(super) fn new(base: u64) -> Self {
        Self { floor: CachePadded::new(AtomicU64::new(base)), base }
    }

    /// Every new slot must start above this version.
    pub(super) fn get(&self) -> u64 {
        // Acquire: pairs with the Release in `raise`. The bucket's lock orders the two for one key.
        self.floor.load(Ordering::Acquire)
    }

    /// Called by the reaper: slots that ended at `version` or below are about to leave their indexes. The reaper calls
    /// it once for many slots, because each insertion reads the floor.
    pub(super) fn raise(&self, version: u64) {
        // Relaxed: only the reaper writes the floor, so it reads its own last value.
        if self.floor.load(Ordering::Relaxed) < version {
            // Release: pairs with the Acquire in `get`.
            self.floor.store(version, Ordering::Release);
        }
    }

    /// The highest version that is restored.
    pub(super) fn highest_restored(&self, now: Now) -> u64 {
        highest_version(self.base, now.nanos())
    }
}

/// The versions of one table. They decide which version a restored element may have.
pub(super) struct TableVersions {
    /// Versions up to this one may have been given out before the table was made. Only restored elements have such.
    pub(super) base: u64,
    /// Whether an older table of the name was being taken down when the table was made. Its keys may have higher versions.
    has_older: bool,
    /// The highest version of a slot that has left the index, as long as all elements are restored. Written by the reaper.
    floor: AtomicU64,
    /// Whether an element has come that was not restored. Set once, by any session.
    has_own: AtomicBool,
}

impl TableVersions {
    pub(super) fn new(base: u64, has_older: bool) -> Self {
        Self { base, has_older, floor: AtomicU64::new(0), has_own: AtomicBool::new(false) }
    }

    /// Whether the next version of an element with this one does not follow it (`ops/restore.rs`).
    pub(super) fn jumps(&self, version: u64) -> bool {
        version < self.base
    }

    /// Whether a key may have had this version in an older table of the name.
    pub(super) fn may_be_older(&self, version: u64) -> bool {
        self.has_older && !self.jumps(version)
    }

    /// An element has come that was not restored.
    pub(super) fn note_own(&self) {
        // Relaxed: see `restore_floor`. It is read first, since all writers read the line.
        if !self.has_own.load(Ordering::Relaxed) {
            self.has_own.store(true, Ordering::Relaxed);
        }
    }

    /// A slot of the table is about to leave the index, with this version. The reaper calls it before that.
    pub(super) fn note_left(&self, version: u64) {
        // Relaxed: see `restore_floor`. The reaper alone writes it.
        if version > self.floor.load(Ordering::Relaxed) && !self.has_own.load(Ordering::Relaxed) {
            self.floor.store(version, Ordering::Relaxed);
        }
    }

    /// A key without a slot is not restored up to this version: it was perhaps given out before. `None`: as high as that
    /// of all tables, since elements have come that were not restored.
    pub(super) fn restore_floor(&self) -> Option<u64> {
        // Relaxed: the bucket's lock orders it for one key.
        (!self.has_own.load(Ordering::Relaxed)).then(|| self.floor.load(Ordering::Relaxed))
    }
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
    fn a_clock_far_ahead_gives_a_base_with_room_above_it() {
        const YEAR: u64 = 31_557_600_000_000_000;
        assert!(version_base(ORIGIN_NANOS + 109 * YEAR) < BASE_MAX);
        for wall_nanos in [ORIGIN_NANOS + 110 * YEAR, u64::MAX] {
            assert_eq!(version_base(wall_nanos), BASE_MAX);
        }
    }

    #[test]
    fn a_server_a_day_ahead_is_believed_and_none_further_ahead() {
        const SECOND: u64 = 1_000_000_000;
        let (start, day) = (ORIGIN_NANOS + 60_000_000 * SECOND, 86_400 * SECOND);
        let highest = highest_version(version_base(start), 7 * SECOND);
        assert_eq!(highest, version_base(start + day + 7 * SECOND));
        assert_eq!([highest_version(u64::MAX, 0), highest_version(0, u64::MAX)], [BASE_MAX; 2]);
    }

    #[test]
    fn a_clock_before_the_origin_gives_the_base_0() {
        for wall_nanos in [0, 1, ORIGIN_NANOS - 1, ORIGIN_NANOS, ORIGIN_NANOS + TICK_NANOS - 1] {
            assert_eq!(version_base(wall_nanos), 0, "{wall_nanos}");
        }
        assert_eq!(version_base(ORIGIN_NANOS + TICK_NANOS), 1);
    }
}
