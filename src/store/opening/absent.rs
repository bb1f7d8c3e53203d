//! Folders without a log. A command that reads one is refused, and the error names the folders with a log.
//!
//! ```text
//! a segment, a summary, `begun`, the note of a backup, a segment that a repair has kept ─► a log, or what is left of it
//! none of these                                                                        ─► refused
//! ```
//! This module opens no file.

use std::fs;
use std::io;
use std::path::Path;

use crate::store::disk::LOCK_FILE;
use crate::store::errors::Error;
use crate::store::notes::{BACKUP, BEGUN, UNFINISHED};
use crate::store::segment::{BAD, number_of};
use crate::store::summary::SUM;

/// The folders that a message names, at most.
const NAMED_MAX: usize = 5;

/// Refuses a folder in which no log is, and nothing that is left of one. A folder that cannot be listed is not refused.
///
/// # Errors
/// [`Error::NoStore`]
pub fn refuse_without_log(folder: &Path) -> Result<(), Error> {
    let Ok(names) = names(folder) else { return Ok(()) };
    if holds_log(&names) {
        return Ok(());
    }
    let logs = folders_with_logs(folder);
    let found = match (names.len(), &logs[..]) {
        (0, _) => "it is empty".to_owned(),
        (1, []) => "it has 1 other file".to_owned(),
        (others, []) => format!("it has {others} other files"),
        (_, logs) => format!("name one of those in it: {}", listed(logs)),
    };
    Err(Error::NoStore { folder: folder.to_owned(), found })
}

/// The names of the folders directly in this one that hold a log, in their order.
#[must_use]
pub fn folders_with_logs(folder: &Path) -> Vec<String> {
    let all = names(folder).unwrap_or_default();
    let holds = |name: &String| names(&folder.join(name)).is_ok_and(|names| holds_log(&names));
    let mut found: Vec<_> = all.into_iter().filter(holds).collect();
    found.sort();
    found
}

/// The first of these names, and the number of the others.
fn listed(names: &[String]) -> String {
    let (named, others) = names.split_at(names.len().min(NAMED_MAX));
    match others.len() {
        0 => named.join(", "),
        others => format!("{}, and {others} more", named.join(", ")),
    }
}

/// The names in a folder, but that of the lock: it proves nothing.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().filter(|name| name != LOCK_FILE).collect())
}

fn holds_log(names: &[String]) -> bool {
    let is_summary = |name: &str| name.strip_suffix(SUM).is_some_and(|digits| digits.parse::<u32>().is_ok());
    let is_kept = |name: &str| name.strip_suffix(BAD).is_some_and(|name| name.contains(".log"));
    names.iter().any(|name| {
        number_of(name).is_some()
            || [BEGUN, BACKUP, UNFINISHED].contains(&name.as_str())
            || is_summary(name)
            || is_kept(name)
    })
}
