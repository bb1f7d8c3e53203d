//! The room on the disk that the writers claim before they add something.
//!
//! This file asks no disk: the log does.

use std::sync::atomic::{AtomicU64, Ordering};

use super::limits::{EPOCH_BYTES_MAX, FULL_EPOCH_BYTES_MAX};

/// What a writer claims of the disk at once, in bytes: so claims are rare.
const CLAIM_BYTES: usize = 64 << 10;

/// Why nothing can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tables) enum NotEntered {
    /// There is no room in the buffer.
    Full,
    /// The log takes nothing more.
    Failed,
    /// There is no room on the disk.
    NoRoom,
}

/// The bytes that the log has room for, beside what the writers have claimed in the two epochs that are not written.
#[derive(Default)]
pub(super) struct DiskRoom {
    /// Written by the log behind each batch. 0: nothing may be added.
    room: AtomicU64,
    /// By the parity of the epoch. Raised by the writers inside the epoch, and cleared by the log behind its batch.
    claimed: [AtomicU64; 2],
}

impl DiskRoom {
    fn claimed(&self, epoch: u64) -> &AtomicU64 {
        let [even, odd] = &self.claimed;
        if epoch.is_multiple_of(2) { even } else { odd }
    }

    /// Claims bytes of this epoch, in which the caller is.
    fn claim(&self, epoch: u64, bytes: u64) -> Result<(), NotEntered> {
        // Relaxed, here and below: sums. A writer that reads an old room has claimed what the log then finds claimed.
        let room = self.room.load(Ordering::Relaxed);
        if bytes > room {
            return Err(NotEntered::NoRoom);
        }
        let of_epoch = self.claimed(epoch).fetch_add(bytes, Ordering::Relaxed) + bytes;
        let claimed: u64 = self.claimed.iter().map(|claimed| claimed.load(Ordering::Relaxed)).sum();
        if claimed > room || of_epoch > EPOCH_BYTES_MAX {
            self.claimed(epoch).fetch_sub(bytes, Ordering::Relaxed);
            return Err(NotEntered::Full);
        }
        Ok(())
    }

    /// While nothing may be added, the removals of an epoch are so few that they find room in a segment that is laid out.
    pub(super) fn claim_removal(&self, epoch: u64, bytes: u64) -> Result<(), NotEntered> {
        if !self.is_full() {
            return Ok(());
        }
        let before = self.claimed(epoch).fetch_add(bytes, Ordering::Relaxed);
        if before > 0 && before + bytes > FULL_EPOCH_BYTES_MAX {
            self.claimed(epoch).fetch_sub(bytes, Ordering::Relaxed);
            return Err(NotEntered::Full);
        }
        Ok(())
    }

    /// Log: this epoch is written, and behind it there is room for so many bytes.
    pub(super) fn report(&self, epoch: u64, room: u64) {
        self.room.store(room, Ordering::Relaxed);
        self.claimed(epoch).store(0, Ordering::Relaxed);
    }

    /// Log: whether nothing may be added at present.
    pub(super) fn is_full(&self) -> bool {
        // Relaxed: the log writes it.
        self.room.load(Ordering::Relaxed) == 0
    }
}

/// What a writer has claimed of the disk.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    epoch: u64,
    bytes: usize,
}

impl Claimed {
    /// Claims more, so that the writer's records of the epoch may have so many bytes.
    pub(super) fn raise(&mut self, room: &DiskRoom, epoch: u64, bytes: usize) -> Result<(), NotEntered> {
        if self.epoch != epoch {
            *self = Self { epoch, bytes: 0 };
        }
        if bytes <= self.bytes {
            return Ok(());
        }
        let more = (bytes - self.bytes).max(CLAIM_BYTES);
        room.claim(epoch, more as u64)?;
        self.bytes += more;
        Ok(())
    }
}
