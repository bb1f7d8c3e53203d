//! Whether the log takes adds: records that make it larger for longer than their removal does.
//!
//! ```text
//! live bytes and their removals > 3/4 of the bound ─┐
//! free bytes < the reserve                          ├─► adds refused; removals, cleaning and opening go on
//! a segment could not be laid out                  ─┘
//! ```
//! The bound is `--max-disk`, and at most 95 % of the file system, without the summaries. Where `--max-disk` is fewer than
//! about 25 segments, the segments beside the live bytes take more than the last quarter, and adds are refused earlier.
//! The reserve is two segments, and the bytes of
//! the removals of all live records: each add reserves that of its own. Beside it two segments are laid out. So when
//! adds are refused, cleaning has room for the oldest segment, also after a restart, and one is left for the next
//! opening. The state ends when there is room again. The log asks the file system when it begins a segment, when it has
//! removed one, and while it refuses adds with each sync and each second.
//!
//! Records that are larger than a segment have no part in that reserve: there must be room for them beside it.
//!
//! While adds are refused, a value that replaces one of the same length takes no more room in the end, and yet needs a
//! place for its batch before the old one is given back. [`Log::prepare`] lays that out, or says that it cannot.
//!
//! The log does not know which record is an add. Its owner asks, and refuses.

use std::fmt;

use super::cleaner::Pressure;
use crate::store::fault::{Fault, planted};
use crate::store::folder::DiskSpace;
use crate::store::format::{BATCH_HEADS, align};
use crate::store::log::Log;

/// The share of the bound that live bytes may have, in quarters. The last one is room for cleaning: at three quarters
/// each byte that is given back costs at most three bytes of copies.
const LIVE_QUARTERS: u64 = 3;
/// The share of the file system that the log may have, in percent. File systems slow down when they are full.
const FILE_SYSTEM_PERCENT: u64 = 95;
/// The least bound of the folder, in segments: those beside those in use, the one that is being written, and one for
/// what is alive.
pub const SEGMENTS_MIN: u64 = SEGMENTS_BESIDE + 2;
/// Segments that the folder has beside those in use: two that are laid out, and one that waits for its removal.
const SEGMENTS_BESIDE: u64 = 3;

/// Segments that the file system has to have room for beside those that are laid out. An add may fill one before the
/// log asks for the space again. A restart may leave the room of one in two parts, of which neither has a segment.
const RESERVE_SEGMENTS: u64 = 2;

/// The share of a segment that a batch may take beyond what it was prepared for: the records of queues and leases.
const PREPARED_SLACK_FRACTION: u64 = 64;

/// The reason why the log takes no adds at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddsRefused {
    /// No space is left to lay out a segment.
    NoSegment,
    /// The live bytes, with those reserved for their removal, exceed three quarters of what the log may take.
    LiveBytes {
        /// The live and reserved bytes.
        live: u64,
        /// The most of them.
        most: u64,
    },
    /// The file system has fewer bytes free than two segments and the removals of all live records take.
    FreeBytes {
        /// The free bytes.
        free: u64,
        /// The reserve.
        reserve: u64,
    },
}

impl fmt::Display for AddsRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSegment => f.write_str("no space is left for another segment: make room on the device of --data"),
            Self::LiveBytes { live, most } => {
                write!(f, "live records take {live} of {most} bytes: finish tasks, or raise --max-disk")
            }
            Self::FreeBytes { free, reserve } => write!(
                f,
                "the device of --data has {free} bytes free of {reserve} that removals need: make room on it, or finish tasks"
            ),
        }
    }
}

impl Log {
    /// Why the log takes no adds at present. `None`: it takes them.
    #[must_use]
    pub fn adds_refused(&self) -> Option<AddsRefused> {
        self.adds_room().err()
    }

    /// The bytes that the records of the next batch may add. A segment of the usual size is always part of the reserve.
    /// A larger batch gets a segment of its own, for which there must be room beside the reserve.
    ///
    /// # Errors
    /// Why the log takes no adds at present.
    pub fn adds_room(&self) -> Result<u64, AddsRefused> {
        let most = self.most_live_bytes();
        let live = self.bytes().1 + self.reserved;
        let (free, reserve) = (self.space.free, self.reserve());
        match () {
            () if planted(Fault::AddsUnbounded) => {}
            () if self.chores.lacks_space() => return Err(AddsRefused::NoSegment),
            () if live > most => return Err(AddsRefused::LiveBytes { live, most }),
            () if free < reserve => return Err(AddsRefused::FreeBytes { free, reserve }),
            () => {}
        }
        Ok(most.saturating_sub(live).min(free.saturating_sub(reserve)).max(self.config.segment_bytes))
    }

    /// Makes sure that the next batch finds a segment if its records have these bytes. False: there is none, and none can
    /// be laid out.
    pub(in crate::store) fn prepare(&mut self, bytes: u64) -> bool {
        let length = align(BATCH_HEADS + bytes + self.config.segment_bytes / PREPARED_SLACK_FRACTION);
        if length <= self.room() {
            return true;
        }
        let (size, small) = self.sizes_for(length);
        self.chores.prepare(size) || small < size && self.chores.prepare(small)
    }

    /// The bytes that the file system has to have free.
    fn reserve(&self) -> u64 {
        self.reserved + RESERVE_SEGMENTS * self.config.segment_bytes
    }

    /// Whether a segment that is to be laid out may find no room.
    pub(in crate::store) fn is_space_short(&self) -> bool {
        self.space.free < self.reserve()
    }

    /// The most bytes that the segments may have: the bound of the folder without the summaries.
    fn most_bytes(&self) -> u64 {
        let share = self.space.total / 100 * FILE_SYSTEM_PERCENT;
        let most = self.config.max_disk.map_or(share, |most| most.min(share));
        most.saturating_sub(self.segments.sums())
    }

    /// The most live bytes, with those reserved for their removal.
    fn most_live_bytes(&self) -> u64 {
        let most = self.most_bytes();
        let share = most / 4 * LIVE_QUARTERS;
        match self.config.max_disk {
            // The cleaner leaves the live bytes, an eighth of them, and a segment.
            Some(_) => share.min(most.saturating_sub((SEGMENTS_BESIDE + 1) * self.config.segment_bytes) / 9 * 8),
            // The free bytes of the file system bound the segments beside.
            None => share,
        }
    }

    /// Whether the log may not find room for another segment.
    pub(in crate::store) fn is_without_space(&self) -> bool {
        self.chores.lacks_space() || self.space.free < self.reserve()
    }

    /// The reason to clean.
    pub(in crate::store) fn pressure(&self) -> Pressure {
        let (used, live) = self.bytes();
        let segment = self.config.segment_bytes;
        if self.is_without_space() {
            return Pressure::without_space(used, live, segment);
        }
        let most = self.most_bytes().saturating_sub(SEGMENTS_BESIDE * segment + self.reserved);
        Pressure::of(used, live, self.slack(), most)
    }

    /// Asks for the space of the file system. If that fails, the last answer stays.
    pub(in crate::store) fn measure(&mut self) {
        if let Ok(DiskSpace { free, total }) = self.files.folder.space() {
            // The files that are being laid out will take theirs.
            self.space = DiskSpace { free: free.saturating_sub(self.chores.coming_bytes()), total };
        }
    }

    /// A sync has ended: looks whether there is room again.
    pub(in crate::store) fn look_for_room(&mut self, has_removed: bool) {
        let is_refused = self.chores.lacks_space() || self.adds_refused().is_some();
        if is_refused || has_removed {
            self.measure();
        }
        self.chores.retry(self.space.free);
    }
}
