//! The note of a backup: it says whether the files beside it are whole, and which batch is the last one.
//!
//! ```text
//! backup.unfinished ─► the files are there and synced ─► backup        last:u64 checksum
//! ```
//! This module copies no file.

use std::io;

use super::errors::Error;
use super::folder::{Folder, remove_if_there, write_all};
use super::format::{Fields, is_sealed, seal};
use super::summary::read_file;

/// The name of the note of a whole backup.
pub(super) const WHOLE: &str = "backup";
/// The name of the note while a backup is being written.
pub(super) const UNFINISHED: &str = "backup.unfinished";

/// Whether this is the name of the note of a backup.
pub(super) fn is_note(name: &str) -> bool {
    name == WHOLE || name == UNFINISHED
}

/// Writes a note. It and its name are durable when this returns.
pub(super) fn write_note(folder: &dyn Folder, name: &str, last: u64) -> io::Result<()> {
    let file = folder.create(name)?;
    let mut bytes = last.to_le_bytes().to_vec();
    seal(&mut bytes, 0);
    write_all(&*file, &bytes, 0)?;
    file.sync()?;
    folder.sync()
}

/// A folder is a whole backup, and nothing was written to it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackupMark {
    /// The number of its last batch, 0 if the note is not right.
    pub(super) last: u64,
}

/// Whether the folder is a backup. With `goes_on`, a note that is damaged says nothing but this.
///
/// # Errors
/// [`Error::Unfinished`] if it is one that was interrupted. Another [`Error`] if the note cannot be read.
pub(super) fn mark_of(folder: &dyn Folder, goes_on: bool) -> Result<Option<BackupMark>, Error> {
    let read = |name| match read_file(folder, name) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::of(folder.path(), &error)),
    };
    if read(UNFINISHED)?.is_some() {
        return Err(Error::Unfinished { folder: folder.path().to_owned() });
    }
    let Some(bytes) = read(WHOLE)? else { return Ok(None) };
    match Fields(&bytes).u64().filter(|_| is_sealed(&bytes, bytes.len())) {
        Some(last) => Ok(Some(BackupMark { last })),
        None if goes_on => Ok(Some(BackupMark { last: 0 })),
        None => Err(Error::Damaged { folder: folder.path().to_owned(), what: WHOLE.to_owned() }),
    }
}

/// The folder is no backup any more: its marks have jumped, and that is synced.
pub(super) fn forget_mark(folder: &dyn Folder) -> io::Result<()> {
    remove_if_there(folder, WHOLE)?;
    folder.sync()
}
