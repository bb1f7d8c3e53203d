//! Checks a folder that no process uses, and changes nothing in it.
//!
//! ```text
//! lock (by the caller) ─► all heads, tables and bodies ─► summaries against their segments ─► report
//! ```
//! This module repairs nothing.

use std::sync::Arc;

use super::backup::mark_of;
use super::errors::Error;
use super::folder::Folder;
use super::history::{Purpose, ReadRecord, read};
use super::record::record_bytes;
use super::segment::OpenFiles;
use super::winners::Winners;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Segments in use.
    pub segments: u64,
    /// Batches in them.
    pub batches: u64,
    /// Batches behind the last one that is known to be on disk. They are whole.
    pub behind: u64,
    /// Records in the batches up to that one.
    pub records: u64,
    /// Records that are the last of their keys.
    pub live: u64,
    /// The other records.
    pub dead: u64,
    /// Records whose bytes were lost earlier.
    pub set_aside: u64,
    /// Bytes of the segments up to their ends.
    pub bytes: u64,
    /// Bytes of the live records.
    pub live_bytes: u64,
    /// Whether the folder is a backup that was not opened yet.
    pub is_backup: bool,
    /// All damage, by name. Without any the folder can be opened.
    pub damages: Vec<String>,
}

/// Reads all of the log in a folder. The caller has locked it ([`super::RealFolder::lock_existing`]).
///
/// # Errors
/// [`Error`] if the folder cannot be read, or holds no log of this format. Damage is no error: the report names it.
pub fn check(folder: &Arc<dyn Folder>) -> Result<CheckReport, Error> {
    let files = OpenFiles::new(Arc::clone(folder), 1);
    let mark = mark_of(&**folder, true)?;
    let mut winners = Winners::default();
    let mut records = 0;
    let last = mark.map_or(0, |mark| mark.last);
    let history = read(&files, Purpose::Check, last, &mut |ReadRecord { space, key, place, .. }| {
        records += 1;
        winners.earlier(space, &key, place, None);
    })?;
    winners.forget_removed();
    let mut damages = history.lost;
    if mark.is_some_and(|mark| mark.last == 0) {
        damages.insert(0, "the note of the backup".to_owned());
    }
    let live = winners.len() as u64;
    let bytes_of = |key: &[u8], length| record_bytes(key.len(), u64::from(length));
    Ok(CheckReport {
        segments: history.shape.segments,
        batches: history.shape.batches,
        behind: history.shape.behind,
        records,
        live,
        dead: records - live,
        set_aside: winners.iter().filter(|(_, _, winner)| winner.place.is_set_aside()).count() as u64,
        bytes: history.segments.iter().map(|at| at.end).sum(),
        live_bytes: winners.iter().map(|(_, key, winner)| bytes_of(key, winner.place.length)).sum(),
        is_backup: mark.is_some(),
        damages,
    })
}
