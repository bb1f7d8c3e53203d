//! The files of a log, behind two traits: the real folder is in `disk.rs`, a simulated one in `tests/simulated_disk.rs`.
//!
//! A file keeps the size that it was created with. Names are made, replaced and removed in the folder, and each such
//! step is durable only after [`Folder::sync`].
//!
//! This module knows no format.

use std::cell::Cell;
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::failure::failure;

/// The space of the file system that holds a folder, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Free for this process.
    pub free: u64,
    /// In use and free.
    pub total: u64,
}

/// What distinguishes a file from a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The number that the file system has given it.
    pub inode: u64,
    /// When the file was made, in nanoseconds since 1970. 0: the file system does not know.
    pub birth: u64,
}

/// A folder of files. All names are of files directly in it.
pub trait Folder: Send + Sync + Debug {
    /// Where it is, for messages.
    fn path(&self) -> &Path;

    /// The names of all files.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file, and replaces one with this name.
    ///
    /// # Errors
    /// The system's error.
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// The system's error.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// Renames a file.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Open ones stay readable.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives the file with this name in the folder at `from` the same name here. Both are one file then.
    ///
    /// # Errors
    /// The system's error.
    fn link(&self, name: &str, from: &Path) -> io::Result<()>;

    /// What distinguishes the file with this name from a copy of it.
    ///
    /// # Errors
    /// The system's error.
    fn identity(&self, name: &str) -> io::Result<FileIdentity>;

    /// Makes all names durable that were made, replaced or removed before.
    ///
    /// # Errors
    /// The system's error.
    fn sync(&self) -> io::Result<()>;

    /// Checks that this is still the folder at its path, has a file with this name, and takes changes.
    ///
    /// # Errors
    /// The system's error, [`ErrorKind::NotFound`] if another folder is at the path.
    fn probe(&self, name: &str) -> io::Result<()>;

    /// The space of the file system.
    ///
    /// # Errors
    /// The system's error.
    fn space(&self) -> io::Result<DiskSpace>;

    /// Sixteen bytes that no other call has returned.
    ///
    /// # Errors
    /// The system's error.
    fn nonce(&self) -> io::Result<[u8; 16]>;
}

/// An open file.
pub trait LogFile: Send + Sync + Debug {
    /// Its length in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn size(&self) -> io::Result<u64>;

    /// Reads at most `bytes.len()` bytes and returns their number, 0 at the end.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize>;

    /// Reads as [`LogFile::read_at`] does, from memory alone. `None`: the disk would have to be asked.
    ///
    /// # Errors
    /// The system's error.
    fn read_cached(&self, bytes: &mut [u8], at: u64) -> io::Result<Option<usize>>;

    /// Writes at most `bytes.len()` bytes and returns their number.
    ///
    /// # Errors
    /// The system's error.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Makes all writes durable that returned before this call, and the length.
    ///
    /// # Errors
    /// The system's error.
    fn sync(&self) -> io::Result<()>;

    /// Gives the file this length. What is added reads as zeros.
    ///
    /// # Errors
    /// The system's error.
    fn set_size(&self, bytes: u64) -> io::Result<()>;

    /// The bytes of the blocks that the file has.
    ///
    /// # Errors
    /// The system's error.
    fn allocated(&self) -> io::Result<u64>;

    /// The number of names that the file has, in all folders.
    ///
    /// # Errors
    /// The system's error.
    fn names(&self) -> io::Result<u64>;

    /// Gives back the blocks of a range, which then reads as zeros. The length stays.
    ///
    /// # Errors
    /// The system's error.
    fn punch(&self, from: u64, length: u64) -> io::Result<()>;

    /// Starts to write a range to the device, and does not wait for it.
    fn start_write_back(&self, from: u64, length: u64);
}

/// Reads all of `bytes`.
///
/// # Errors
/// The system's error. [`ErrorKind::UnexpectedEof`] if the file is shorter.
pub(super) fn read_exact(file: &dyn LogFile, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.read_at(bytes, at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                bytes = bytes.get_mut(read..).unwrap_or_default();
                at += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes`.
///
/// # Errors
/// The system's error.
pub(super) fn write_all(file: &dyn LogFile, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, at) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                at += written as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes a file that may not be there.
pub(in crate::store) fn remove_if_there(folder: &dyn Folder, name: &str) -> io::Result<()> {
    match folder.remove(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The pause before a read is tried again for the first time. Each later one is twice as long. Tests do not wait.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 20 });
/// Tries that an opening has, beside the first ones of all reads: they take five seconds.
const TRIES_MAX: u32 = 8;

/// Reads again what failed for a reason that may pass. The tries are counted for all reads of an opening together: a
/// device that returns many places no more must not take hours.
#[derive(Debug, Default)]
pub(super) struct ReadPatience {
    tries: Cell<u32>,
}

impl ReadPatience {
    /// The result of the first read that does not fail so, or of the last one.
    ///
    /// # Errors
    /// That of the last read.
    pub(super) fn read<T>(&self, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            let tries = self.tries.get();
            match read() {
                Err(error) if failure(&error).may_pass() && tries < TRIES_MAX => {
                    tracing::warn!("the store cannot be read at present ({error}): it is read again");
                    self.tries.set(tries + 1);
                    thread::park_timeout(PAUSE * 2_u32.pow(tries));
                }
                done => return done,
            }
        }
    }
}
