//! The real disk: a folder of the file system.
//!
//! ```text
//! lay out: write zeros, fdatasync, rename, fsync of the folder        batch: pwrite, fdatasync
//! space: statvfs      probe: stat, futimens      blocks behind an end: fallocate(PUNCH_HOLE)     write-back: posix_fadvise
//! ```
//! Of the store only this file and `failure` name rustix.
//!
//! This module knows no format.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use rustix::fs::{Advice, FallocateFlags, Timespec, Timestamps, UTIME_NOW, fadvise, fallocate, futimens, statvfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::rand::{GetRandomFlags, getrandom};

use super::errors::Error;
use super::folder::{DiskSpace, FileIdentity, Folder, LogFile};

/// Permissions of the folder: all for its owner, none for others.
const FOLDER_MODE: u32 = 0o700;
/// Permissions of its files: their owner may read and write them.
const FILE_MODE: u32 = 0o600;
/// The file that a process locks as long as it has the log open.
pub(super) const LOCK_FILE: &str = "lock";
/// The unit in which the system counts the blocks of a file, in bytes.
const BLOCK_UNIT: u64 = 512;

/// A folder of the file system, locked by this process.
#[derive(Debug)]
pub struct RealFolder {
    path: PathBuf,
    /// Open, so that a sync needs no new descriptor.
    folder: File,
    /// Locked as long as this exists.
    lock: File,
    /// Whether files are opened for writing.
    is_writable: bool,
}

impl Drop for RealFolder {
    /// A process that is being started has a copy of each descriptor, until it executes its program. So closing does
    /// not always unlock.
    fn drop(&mut self) {
        // No caller receives an error. The lock ends with the last copy at the latest.
        let _failed = self.lock.unlock();
    }
}

impl RealFolder {
    /// Locks the folder, and makes it if it does not exist, for its owner alone.
    ///
    /// # Errors
    /// [`Error`] if the folder cannot be made, or another process has it.
    pub fn lock(path: &Path) -> Result<Self, Error> {
        make_own(path)?;
        Self::lock_made(path)
    }

    /// Locks a folder in another one. Both are made if they do not exist, for their owner alone.
    ///
    /// # Errors
    /// As [`RealFolder::lock`].
    pub fn lock_below(path: &Path) -> Result<Self, Error> {
        path.parent().filter(|around| !around.as_os_str().is_empty()).map_or(Ok(()), make_own)?;
        Self::lock(path)
    }

    /// Locks a folder that is there against processes that write, and makes no file. Files in it are opened for reading.
    ///
    /// # Errors
    /// [`Error`] if it is not there, or another process writes to it.
    pub fn lock_to_read(path: &Path) -> Result<Self, Error> {
        let explain = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => Error::Missing(path.to_owned()),
            ErrorKind::NotADirectory => Error::NoFolder(path.to_owned()),
            _ => Error::of(path, &error),
        };
        if !fs::metadata(path).map_err(explain)?.is_dir() {
            return Err(Error::NoFolder(path.to_owned()));
        }
        let folder = File::open(path).map_err(explain)?;
        let lock = match File::open(path.join(LOCK_FILE)) {
            // Each process that writes makes the lock first, so there is none.
            Err(error) if error.kind() == ErrorKind::NotFound => folder.try_clone(),
            lock => lock,
        };
        let lock = lock.map_err(explain)?;
        locked(path, lock.try_lock_shared())?;
        Ok(Self { path: path.to_owned(), folder, lock, is_writable: false })
    }

    /// Locks a folder for a backup of the log in `data`, and makes it if it does not exist. A folder that is refused is
    /// left as it is. `is_free` says of the names in it whether it may be used.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoTarget`], or another [`Error`] if it cannot be made.
    pub(in crate::store) fn lock_for_backup(
        path: &Path,
        data: &Path,
        is_free: impl Fn(&[String]) -> bool,
    ) -> Result<TargetFolder, Error> {
        let refused = |why: &str| Error::NoTarget { folder: path.to_owned(), why: why.to_owned() };
        let explain = |error: io::Error| Error::of(path, &error);
        if !path.is_absolute() {
            return Err(refused("not an absolute path"));
        }
        let existing = path.ancestors().find(|part| part.exists()).unwrap_or(path);
        if path.strip_prefix(existing).is_ok_and(|rest| rest.components().any(|part| part == Component::ParentDir)) {
            return Err(refused("a path with \"..\" behind a folder that is not there"));
        }
        if is_inside(existing, data).map_err(explain)? {
            return Err(refused("inside of the folder of the server"));
        }
        let is_made = match names(path) {
            Ok(names) if is_free(&names) => false,
            Ok(_) => return Err(Error::NotEmpty(path.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) if error.kind() == ErrorKind::NotADirectory => return Err(refused("no folder")),
            Err(error) => return Err(explain(error)),
        };
        match Self::lock(path) {
            Ok(folder) => Ok(TargetFolder { folder, is_made }),
            Err(Error::InUse { .. }) => Err(refused("in use by another process")),
            Err(error) => Err(error),
        }
    }

    /// Removes the lock, and the folder too if `is_made`.
    ///
    /// # Errors
    /// The system's error.
    pub(in crate::store) fn unlock(&self, is_made: bool) -> io::Result<()> {
        fs::remove_file(self.path.join(LOCK_FILE))?;
        if is_made { fs::remove_dir(&self.path) } else { Ok(()) }
    }

    fn lock_made(path: &Path) -> Result<Self, Error> {
        let name = path.join(LOCK_FILE);
        let mut options = File::options();
        let lock = options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(name);
        let lock = lock.map_err(|error| match error.kind() {
            ErrorKind::ReadOnlyFilesystem => Error::NotWritable(path.to_owned()),
            _ => Error::of(path, &error),
        })?;
        let folder = File::open(path).map_err(|error| Error::of(path, &error))?;
        locked(path, lock.try_lock())?;
        Ok(Self { path: path.to_owned(), folder, lock, is_writable: true })
    }
}

fn locked(path: &Path, tried: Result<(), TryLockError>) -> Result<(), Error> {
    tried.map_err(|error| match error {
        TryLockError::WouldBlock => Error::InUse(path.to_owned()),
        TryLockError::Error(error) => Error::of(path, &error),
    })
}

/// A folder that is locked for a backup.
pub(in crate::store) struct TargetFolder {
    pub(in crate::store) folder: RealFolder,
    /// Whether it was made for the backup.
    pub(in crate::store) is_made: bool,
}

/// Whether the path is the folder, or leads into it, by whatever name.
fn is_inside(path: &Path, folder: &Path) -> io::Result<bool> {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let (path, own) = (path.canonicalize()?, identity(folder)?);
    Ok(path.ancestors().any(|part| identity(part).is_ok_and(|other| other == own)))
}

/// The names in a folder, without that of the lock.
fn names(path: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().filter(|name| name != LOCK_FILE).collect())
}

/// Takes a file's permissions from all but its owner.
fn keep_for_owner(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?.permissions();
    if found.mode() & 0o777 == FILE_MODE {
        Ok(())
    } else {
        fs::set_permissions(path, PermissionsExt::from_mode(FILE_MODE))
    }
}

/// Makes the folder if it does not exist, readable by its owner alone. Parent folders get the user's default
/// permissions. Each name that is made is durable: `sync` is called with the folder around it.
/// Makes a folder for its owner alone, unless it exists.
fn make_own(path: &Path) -> Result<(), Error> {
    make(path, &mut |around| File::open(around)?.sync_all()).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => Error::NoFolder(path.to_owned()),
        ErrorKind::ReadOnlyFilesystem => Error::NotWritable(path.to_owned()),
        _ => Error::of(path, &error),
    })
}

fn make(folder: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    make_with(folder, Some(FOLDER_MODE), sync)
}

fn make_with(folder: &Path, mode: Option<u32>, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    // A relative path of one part has an empty parent.
    let around = folder.parent().map(|around| if around.as_os_str().is_empty() { Path::new(".") } else { around });
    if let Some(around) = around {
        make_with(around, None, sync)?;
    }
    let mut builder = DirBuilder::new();
    if let Some(mode) = mode {
        builder.mode(mode);
    }
    match builder.create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made?,
    }
    around.map_or(Ok(()), sync)
}

impl Folder for RealFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().filter(|name| name != LOCK_FILE).collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        Ok(Arc::new(RealFile(options.open(self.path.join(name))?)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        Ok(Arc::new(RealFile(File::options().read(true).write(self.is_writable).open(self.path.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn link(&self, name: &str, from: &Path) -> io::Result<()> {
        let there = from.join(name);
        // A log of an earlier version has files that others may read.
        keep_for_owner(&there)?;
        fs::hard_link(there, self.path.join(name))
    }

    fn identity(&self, name: &str) -> io::Result<FileIdentity> {
        let found = fs::metadata(self.path.join(name))?;
        // Not every file system knows it.
        let birth = found.created().ok().and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
        let birth = birth.and_then(|birth| u64::try_from(birth.as_nanos()).ok()).unwrap_or_default();
        Ok(FileIdentity { inode: found.ino(), birth })
    }

    fn sync(&self) -> io::Result<()> {
        self.folder.sync_all()
    }

    fn probe(&self, name: &str) -> io::Result<()> {
        let (own, there) = (self.lock.metadata()?, fs::metadata(self.path.join(LOCK_FILE))?);
        if (own.dev(), own.ino()) != (there.dev(), there.ino()) {
            return Err(ErrorKind::NotFound.into());
        }
        fs::metadata(self.path.join(name))?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        match futimens(&self.lock, &Timestamps { last_access: now, last_modification: now }) {
            Err(error) if matches!(error, Errno::ROFS | Errno::IO) => Err(error.into()),
            // Another failure to note the time is no failure to write.
            _ => Ok(()),
        }
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let space = statvfs(&self.path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        // Some file systems do not know their size.
        Ok(match space.f_blocks {
            0 => DiskSpace { free: u64::MAX, total: u64::MAX },
            blocks => DiskSpace { free: bytes(space.f_bavail), total: bytes(blocks) },
        })
    }

    fn nonce(&self) -> io::Result<[u8; 16]> {
        let mut nonce = [0; 16];
        // The system returns this few bytes whole.
        match getrandom(&mut nonce, GetRandomFlags::empty())? {
            16 => Ok(nonce),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A file of the file system.
#[derive(Debug)]
struct RealFile(File);

impl LogFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(&self.0, bytes, at)
    }

    fn read_cached(&self, bytes: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        match preadv2(&self.0, &mut [IoSliceMut::new(bytes)], at, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(Some(read)),
            // They are not in memory, or the file system cannot say.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        FileExt::write_at(&self.0, bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(MetadataExt::blocks(&self.0.metadata()?) * BLOCK_UNIT)
    }

    fn names(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.nlink())
    }

    fn punch(&self, from: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.0, flags, from, length)?)
    }

    fn start_write_back(&self, from: u64, length: u64) {
        // A hint: a failure shows itself in the next sync.
        let _started = start_write_back(&self.0, from, length);
    }
}

/// Starts the writing of dirty pages. rustix has no `sync_file_range`: POSIX_FADV_DONTNEED starts the same write-back
/// without waiting, and drops the pages of the range that are clean.
fn start_write_back(file: &File, from: u64, length: u64) -> io::Result<()> {
    Ok(fadvise(file, from, NonZeroU64::new(length), Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::store::folder::write_all;

    #[test]
    fn the_folders_around_a_made_folder_are_synced_the_outermost_first() {
        let around = tempfile::tempdir().unwrap();
        let mut synced = Vec::new();
        let folder = around.path().join("a/b/data");
        let mut sync = |path: &Path| {
            synced.push(path.to_owned());
            Ok(())
        };
        make(&folder, &mut sync).unwrap();
        assert_eq!(synced, [around.path().to_owned(), around.path().join("a"), around.path().join("a/b")]);
        make(&folder, &mut |_| panic!("the folder is there")).unwrap();
    }

    #[test]
    fn a_folder_that_is_moved_replaced_or_misses_a_file_is_found_by_a_probe() {
        let around = tempfile::tempdir().unwrap();
        let (data, other) = (around.path().join("data"), around.path().join("other"));
        let folder = RealFolder::lock(&data).unwrap();
        folder.create("f").unwrap();
        folder.probe("f").unwrap();
        let missing = |name| folder.probe(name).unwrap_err().kind();
        assert_eq!(missing("g"), ErrorKind::NotFound);
        fs::rename(&data, &other).unwrap();
        assert_eq!(missing("f"), ErrorKind::NotFound);
        let _another = RealFolder::lock(&data).unwrap().create("f").unwrap();
        assert_eq!(missing("f"), ErrorKind::NotFound, "another folder took its place");
        fs::remove_dir_all(&data).unwrap();
        fs::rename(&other, &data).unwrap();
        folder.probe("f").unwrap();
        fs::remove_dir_all(&data).unwrap();
        fs::write(&data, "").unwrap();
        assert_eq!(missing("f"), ErrorKind::NotADirectory);
    }

    #[test]
    fn a_hole_gives_blocks_back_and_keeps_the_length() {
        let around = tempfile::tempdir().unwrap();
        let folder = RealFolder::lock(around.path()).unwrap();
        let file = folder.create("f").unwrap();
        write_all(&*file, &vec![7; 1 << 20], 0).unwrap();
        file.sync().unwrap();
        let before = file.allocated().unwrap();
        // Not every file system has holes.
        if file.punch(4096, (1 << 20) - 4096).is_ok() {
            assert!(before >= 1 << 20 && file.allocated().unwrap() <= 64 << 10);
        }
        assert_eq!(file.size().unwrap(), 1 << 20);
    }
}
