//! Folders of the library that kept tasks before the log: they are recognized, and nothing in them is touched.
//!
//! ```text
//! version      "FJL" and a byte            keyspaces/    a folder            N.jnl    journals
//! ```
//! This module reads no records.

use std::fs;
use std::path::Path;

use crate::store::errors::Error;

/// The beginning of the file `version`.
const MAGIC: &[u8] = b"FJL";

/// Refuses a folder of that library.
///
/// # Errors
/// [`Error::Earlier`].
pub fn refuse_earlier(folder: &Path) -> Result<(), Error> {
    let is_marked = fs::read(folder.join("version")).is_ok_and(|bytes| bytes.starts_with(MAGIC));
    let has_spaces = folder.join("keyspaces").is_dir();
    let has_journal = || {
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        names.into_iter().any(|path| path.extension().is_some_and(|ending| ending == "jnl"))
    };
    match is_marked || has_spaces || has_journal() {
        true => Err(Error::Earlier(folder.to_owned())),
        false => Ok(()),
    }
}
