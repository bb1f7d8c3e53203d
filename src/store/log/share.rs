//! What several logs take of one `--max-disk`, and of the free bytes of one file system.
//!
//! Each log publishes the bytes of its files and its reserve with each sync, and subtracts those of the others. So the logs
//! together keep the bound, and no two of them count on the same free bytes. A figure of another log may be one sync old.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The logs that share a disk: that of the tasks, and that of the tables.
const LOGS: usize = 2;

/// What one log takes. Written by it.
#[derive(Debug, Default)]
struct LogTake {
    files: AtomicU64,
    reserve: AtomicU64,
}

/// A disk with several logs.
#[derive(Debug, Default)]
pub struct SharedDisk {
    logs: [LogTake; LOGS],
}

/// One log's part of a shared disk.
#[derive(Clone, Debug)]
pub struct DiskMember {
    disk: Arc<SharedDisk>,
    place: usize,
}

impl SharedDisk {
    /// A member for each log.
    #[must_use]
    pub fn members() -> [DiskMember; LOGS] {
        let disk = Arc::<Self>::default();
        std::array::from_fn(|place| DiskMember { disk: Arc::clone(&disk), place })
    }
}

impl DiskMember {
    /// This log takes so many bytes, and counts on so many free ones.
    pub(super) fn publish(&self, files: u64, reserve: u64) {
        if let Some(own) = self.disk.logs.get(self.place) {
            // Relaxed, here and below: each number stands by itself.
            own.files.store(files, Ordering::Relaxed);
            own.reserve.store(reserve, Ordering::Relaxed);
        }
    }

    /// The bytes of the other logs' files.
    pub(super) fn files_of_others(&self) -> u64 {
        self.others().map(|log| log.files.load(Ordering::Relaxed)).sum()
    }

    /// The free bytes that the other logs count on.
    pub(super) fn reserve_of_others(&self) -> u64 {
        self.others().map(|log| log.reserve.load(Ordering::Relaxed)).sum()
    }

    fn others(&self) -> impl Iterator<Item = &LogTake> {
        self.disk.logs.iter().enumerate().filter(|(place, _)| *place != self.place).map(|(_, log)| log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_subtracts_what_the_others_take_and_not_its_own() {
        let [tasks, tables] = SharedDisk::members();
        tasks.publish(100, 10);
        assert_eq!((tasks.files_of_others(), tasks.reserve_of_others()), (0, 0));
        assert_eq!((tables.files_of_others(), tables.reserve_of_others()), (100, 10));
        tables.publish(7, 1);
        tasks.publish(90, 20);
        assert_eq!((tasks.files_of_others(), tables.files_of_others()), (7, 90));
        assert_eq!((tasks.reserve_of_others(), tables.reserve_of_others()), (1, 20));
    }
}
