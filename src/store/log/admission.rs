//! Whether the log takes adds: records that make it larger for longer than their removal does.
//!
//! ```text
//! live bytes > 3/4 of the bound        ─┐
//! free bytes < two segments             ├─► adds refused; all else, cleaning and opening continue
//! fewer spares than the reserve demands ─┘
//! ```
//! The bound is `--max-disk`, and at most 95 % of the file system, without the summaries, the spares of the reserve, and
//! the files of another log that shares the disk (`share.rs`).
//! Where `--max-disk` is fewer than about 25 segments, the segments beside the live bytes take more than the last
//! quarter, and adds are refused earlier.
//!
//! The reserve is laid out, so other programs cannot take it: three segments, and 2 R, where R is the sum of the largest
//! state of each task, or of its removals. Whatever is done with the tasks, three segments of it are laid out, or in
//! segments that are worth their copies:
//!
//! - A segment is worth its copies if half of its file comes back, or a quarter of it was written and is dead. So states
//!   and removals take 4/3 R in segments that are full, and 2 R at most.
//! - Values are copied only from segments that are worth it. Copies of them take no more of a file than they had.
//! - Some files give nothing back: the file of a segment without all its blocks, a file with readers, and a file with
//!   links from a backup. Nothing is copied from them, and the states in them are a part of R.
//!
//! Segments are cleaned before the last three are taken, see `cleaning/choice.rs`, and the next opening has one of
//! these. So when adds are refused all else should find room, as often as it may be done. A backup holds what dies
//! after its start. The reserve bears one backup, if all of the reserve is laid out when the backup begins. A later
//! backup links nothing, and ends when the log needs the space that the backup holds. A spare that is on its way counts
//! as laid out, though others may take its space. The state ends when there is room again. The log asks the file system
//! when it begins a segment and when it has removed a segment. While it refuses adds, it also asks with each sync and
//! each second.
//!
//! While adds are refused, a value that replaces one of the same length takes no more room in the end, and yet needs a
//! place for its batch before the old one is given back. [`Log::prepare`] lays that out, or says that it cannot.
//!
//! The log does not know which record is an add. Its owner asks, and refuses.

use std::fmt;

use super::chores::SPARES;
use super::cleaning::position::Pressure;
use super::share::DiskMember;
use crate::store::fault::{Fault, planted};
use crate::store::format::{BATCH_HEADS, align, index};
use crate::store::log::Log;

/// The share of the bound that live bytes may have, in quarters. The last one is room for cleaning: at three quarters
/// each byte that is given back costs at most three bytes of copies.
const LIVE_QUARTERS: u64 = 3;
/// The share of the file system that the log may have, in percent. File systems slow down when they are full.
const FILE_SYSTEM_PERCENT: u64 = 95;
/// The least bound of the folder, in segments: the segments beside those in use, the segment under way, and one for
/// what is alive.
pub const SEGMENTS_MIN: u64 = SEGMENTS_BESIDE + 2;
/// Segments of the folder beside those in use: two that are laid out, and a segment that waits for its removal.
const SEGMENTS_BESIDE: u64 = 3;

/// Segments that the file system has to have room for beside those that are laid out. An add may fill one before the
/// log asks for the space again. A restart may leave the room of one in two parts, of which neither has a segment.
pub(in crate::store) const RESERVE_SEGMENTS: u64 = 2;
/// The share of a segment that a batch may take beyond what it was prepared for: the records of queues and leases.
const PREPARED_SLACK_FRACTION: u64 = 64;

/// The reason why the log takes no adds at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddsRefused {
    /// No space is left to lay out a segment.
    NoSegment,
    /// The live bytes exceed three quarters of what the log may take.
    LiveBytes {
        /// The live bytes.
        live: u64,
        /// The most of them.
        most: u64,
    },
    /// The file system has fewer bytes free than two segments take.
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
                "the device of --data has {free} bytes free of {reserve} that have to be: make room on it, or finish tasks"
            ),
        }
    }
}

/// The segments of this size that are to be laid out for states of so many bytes. Those that fit into a corner of a
/// segment need none of their own.
pub(in crate::store) fn spares_for(reserved: u64, segment: u64) -> usize {
    let states = 2 * reserved;
    if states < segment / 8 { SPARES } else { SPARES + 1 + index(states / segment) }
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
        let live = self.bytes().1;
        let (free, reserve) = (self.disk.space.free, self.reserve() + self.disk.share.reserve_of_others());
        match () {
            () if planted(Fault::AddsUnbounded) => {}
            () if self.chores.lacks_space() || self.chores.missing() > 0 => return Err(AddsRefused::NoSegment),
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
        length <= self.room() || self.chores.prepare(self.size_for(length))
    }

    /// The segments that are to be laid out.
    pub(in crate::store) fn spares_needed(&self) -> usize {
        spares_for(self.live.reserved, self.config.segment_bytes)
    }

    /// The bytes that the file system has to have free.
    fn reserve(&self) -> u64 {
        RESERVE_SEGMENTS * self.config.segment_bytes
    }

    /// Whether a segment that is to be laid out may find no room.
    pub(in crate::store) fn is_space_short(&self) -> bool {
        self.chores.lacks_space() || self.disk.space.free < self.reserve()
    }

    /// The most bytes that the segments may have: the bound of the folder without the summaries, and the spares that the
    /// live records demand.
    fn most_bytes(&self) -> u64 {
        let share = self.disk.space.total / 100 * FILE_SYSTEM_PERCENT;
        let most = self.config.max_disk.map_or(share, |most| most.min(share));
        let spares = (self.spares_needed() - SPARES) as u64 * self.config.segment_bytes;
        most.saturating_sub(self.segments.sums() + spares + self.disk.share.files_of_others())
    }

    /// The most live bytes.
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

    /// The reason to clean while there is space.
    pub(in crate::store) fn pressure(&self) -> Pressure {
        let (used, live) = self.bytes();
        let most = self.most_bytes().saturating_sub(SEGMENTS_BESIDE * self.config.segment_bytes);
        Pressure::of(used, live, self.slack(), most)
    }

    /// Asks for the space of the file system. If that fails, the last answer stays.
    pub(in crate::store) fn measure(&mut self) {
        self.disk.measure(self.chores.coming_bytes());
    }

    /// Shares the disk with other logs.
    pub(in crate::store) fn share_disk(&mut self, share: DiskMember) {
        self.disk.share = share;
        self.publish_share();
    }

    fn publish_share(&self) {
        self.disk.share.publish(self.disk_bytes(), self.reserve());
    }

    /// A sync has ended: looks whether there is room again.
    pub(in crate::store) fn look_for_room(&mut self, has_removed: bool) {
        self.publish_share();
        let is_refused = self.chores.lacks_space() || self.adds_refused().is_some();
        if is_refused || has_removed {
            self.measure();
        }
        self.chores.retry(self.disk.space.free);
    }
}
