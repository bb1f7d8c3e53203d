//! Notes beside the segments: small files that are there whole, or not at all.
//!
//! ```text
//! N.new: numbers of 8 bytes, checksum ─► sync ─► N ─► sync of the folder
//! ```
//! This module does not know what a note says.

use std::io::{self, ErrorKind};

use super::errors::Error;
use super::failure::{Failure, failure};
use super::folder::{Folder, write_all};
use super::format::{CHECKSUM, is_sealed, seal};
use super::segment::NEW;
use super::summary::read_file;
use crate::byte_reader::ByteReader;

/// The note that the log has had a segment. It is an empty file.
pub(super) const BEGUN: &str = "begun";
/// The note of where the log is.
pub(super) const ORIGIN: &str = "origin";
/// The note that a repair has replaced the segments before a number.
pub(super) const REPAIR: &str = "repair";
/// The note of a whole backup.
pub(super) const BACKUP: &str = "backup";
/// The note of a backup that is being written.
pub(super) const UNFINISHED: &str = "backup.unfinished";

/// Leaves a note with these numbers, which may depend on the file that gets its name. It is durable when this returns.
///
/// # Errors
/// The system's error.
pub(super) fn leave<const N: usize>(
    folder: &dyn Folder,
    name: &str,
    numbers: impl FnOnce(&str) -> io::Result<[u64; N]>,
) -> io::Result<()> {
    let new = format!("{name}{NEW}");
    let file = folder.create(&new)?;
    let mut bytes = numbers(&new)?.map(u64::to_le_bytes).concat();
    seal(&mut bytes, 0);
    write_all(&*file, &bytes, 0)?;
    file.sync()?;
    folder.rename(&new, name)?;
    folder.sync()
}

/// The numbers of a note, 0 for each that is damaged. `None`: there is no note.
///
/// # Errors
/// The system's error.
pub(super) fn read<const N: usize>(folder: &dyn Folder, name: &str) -> io::Result<Option<[u64; N]>> {
    let bytes = match read_file(folder, name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let is_right = bytes.len() == N * 8 + CHECKSUM && is_sealed(&bytes, bytes.len());
    let mut fields = ByteReader::new(if is_right { &bytes } else { &[] });
    Ok(Some([(); N].map(|()| fields.u64_le().unwrap_or_default())))
}

/// The number of the last batch of the backup in a folder. `None`: the folder is no backup. With `is_lenient` it is 0 if
/// the note is damaged.
///
/// # Errors
/// [`Error::Unfinished`] if the backup was interrupted. Another [`Error`] if a note cannot be read, or is damaged.
pub(super) fn backup_end(folder: &dyn Folder, is_lenient: bool) -> Result<Option<u64>, Error> {
    let read = |name| read::<1>(folder, name).map_err(|error| Error::of(folder.path(), &error));
    if read(UNFINISHED)?.is_some() {
        return Err(Error::Unfinished(folder.path().to_owned()));
    }
    match read(BACKUP)? {
        Some([0]) if !is_lenient => Err(Error::Damaged { folder: folder.path().to_owned(), what: BACKUP.to_owned() }),
        last => Ok(last.map(|[last]| last)),
    }
}

/// The result of leaving a note that may be left later. Without space, the next opening does.
///
/// # Errors
/// All others.
pub(super) fn unless_full(left: io::Result<()>) -> io::Result<()> {
    match left {
        Err(error) if failure(&error) == Failure::Full => Ok(()),
        left => left,
    }
}
