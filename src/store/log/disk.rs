//! The folder of a log, and what the log knows of its file system.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::share::{DiskMember, SharedDisk};
use crate::store::errors::Error;
use crate::store::folder::DiskSpace;
use crate::store::segment::OpenFiles;

/// The folder and its space.
#[derive(Debug)]
pub(in crate::store) struct LogDisk {
    pub(in crate::store) files: Arc<OpenFiles>,
    /// The space of the file system when the log last asked.
    pub(in crate::store) space: DiskSpace,
    /// Whether the file system has given back the blocks of each range that it was asked for.
    pub(in crate::store) has_holes: bool,
    /// Whether a backup is to end: the log needs the segments that it holds.
    pub(in crate::store) backup_gives_way: Arc<AtomicBool>,
    /// What other logs take of the same disk.
    pub(in crate::store) share: DiskMember,
}

impl LogDisk {
    /// # Errors
    /// [`Error`] if the file system does not report its space.
    pub(super) fn new(files: Arc<OpenFiles>) -> Result<Self, Error> {
        let space = files.folder.space().map_err(|error| Error::of(files.folder.path(), &error))?;
        // Alone, until it shares the disk.
        let [share, _] = SharedDisk::members();
        Ok(Self { files, space, has_holes: true, backup_gives_way: Arc::default(), share })
    }

    /// Asks for the space of the file system, without the bytes of files that are being laid out. If that fails, the
    /// last answer stays.
    pub(super) fn measure(&mut self, coming: u64) {
        if let Ok(DiskSpace { free, total }) = self.files.folder.space() {
            self.space = DiskSpace { free: free.saturating_sub(coming), total };
        }
    }

    pub(in crate::store) fn explain(&self, error: &io::Error) -> Error {
        Error::of_open_store(self.files.folder.path(), error)
    }
}
