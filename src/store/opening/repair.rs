//! A repair writes all readable records again, and keeps the damaged files aside.
//!
//! ```text
//! new segment: what stood behind, then copies of all winners; its heads name the oldest old segment ─► sync
//!   ─► the note `repair` with the number of the new segment ─► sync ─► a head that names the new segment as the oldest
//!   ─► sync ─► the old files become `N.log.bad` ─► sync ─► the note goes
//! ```
//! Until a head names the new segment, the old ones count, and a repair that was interrupted can be repeated. Behind it
//! the note says that the old files are to be kept, if the repair is interrupted before they are renamed.
//!
//! This module finds no damage.

use std::io;

use super::history::ReadSegment;
use super::winners::{Winner, Winners};
use crate::store::errors::Error;
use crate::store::failure::is_unreadable;
use crate::store::fault::{Fault, planted};
use crate::store::folder::{Folder, Patience, remove_if_there, write_all};
use crate::store::format::{Fields, Space, index, is_sealed, seal};
use crate::store::log::Log;
use crate::store::record::{Body, Record, RecordBatch, record_bytes};
use crate::store::segment::{BAD, NEW, number_of};
use crate::store::summary::{read_file, summary_name};

/// The bytes of a batch that a repair writes.
const REPAIR_BATCH_BYTES: u64 = 8 << 20;
/// The name of the note that a repair has replaced the segments before a number.
const NOTE: &str = "repair";

/// Writes records and takes their places.
pub(in crate::store) fn write(log: &mut Log, batch: RecordBatch, winners: &mut Winners) -> Result<(), Error> {
    let places = log.append(&batch)?;
    for (record, place) in batch.records.into_iter().zip(places) {
        let body = match record.body {
            Body::Bytes(ref body) if record.space != Space::Values => Some(&**body),
            Body::Bytes(_) | Body::Removed | Body::SetAside => None,
        };
        winners.later(record.space, &record.key, place, body);
    }
    Ok(())
}

/// Segments that a repair needs beside its copies: the one that is not full, and three that are laid out when the last
/// one is begun.
const SEGMENTS_BESIDE: u64 = 4;

/// The bytes of all records that a repair writes: the last of each key, and those behind the last known sync.
pub(in crate::store) fn bytes_to_copy(winners: &Winners, behind: &RecordBatch) -> u64 {
    let mut bytes = behind.records.iter().map(Record::bytes).sum();
    winners.each(|_, key, place| bytes += record_bytes(key.len(), u64::from(place.length)));
    bytes
}

/// Checks that a repair of this many bytes finds room: it keeps the old files, and changes nothing before it knows.
///
/// # Errors
/// [`Error::NoRepairRoom`] if there is none. Another [`Error`] if the file system does not say.
pub(in crate::store) fn check_room(folder: &dyn Folder, bytes: u64, segment: u64) -> Result<(), Error> {
    // Heads, tables, and the ends of segments in which the next batch finds no room.
    let needed = bytes + bytes / 7 + SEGMENTS_BESIDE * segment;
    let free = folder.space().map_err(|error| Error::of(folder.path(), &error))?.free;
    let folder = folder.path().to_owned();
    if free < needed { Err(Error::NoRepairRoom { folder, needed, free }) } else { Ok(()) }
}

/// Writes all records of the old segments again. Names the values that cannot be read, and sets them aside.
pub(in crate::store) fn copy_winners(
    log: &mut Log,
    old: &[ReadSegment],
    winners: &mut Winners,
    lost: &mut Vec<String>,
) -> Result<(), Error> {
    let mut batch = RecordBatch::default();
    let mut bytes = 0;
    let first = log.first_segment();
    let patience = Patience::default();
    for (space, key, winner) in winners.below(first) {
        bytes += record_bytes(key.len(), u64::from(winner.place.length));
        let is_set_aside = winner.place.is_set_aside();
        let body = body_of(winner, old, &patience, log)?;
        if body == Body::SetAside && !is_set_aside {
            lost.push(format!("the value of {}", key.escape_ascii()));
        }
        batch.records.push(Record { space, key, body });
        if bytes >= REPAIR_BATCH_BYTES {
            write(log, std::mem::take(&mut batch), winners)?;
            bytes = 0;
        }
    }
    write(log, batch, winners)?;
    log.sync()?;
    if !planted(Fault::RepairUnnoted) {
        write_note(&*log.files.folder, first).map_err(|error| log.explain(&error))?;
    }
    log.let_go();
    write(log, RecordBatch::default(), winners)
}

/// The body of a winner. If the device never returns its bytes, it is set aside: the old file is kept. Any other error
/// ends the repair, which can be repeated.
fn body_of(winner: Winner, old: &[ReadSegment], patience: &Patience, log: &Log) -> Result<Body, Error> {
    let Winner { place, body } = winner;
    if let Some(body) = body {
        return Ok(Body::Bytes(body));
    }
    let found = old.binary_search_by_key(&place.segment, |at| at.segment.head.number);
    let Some(at) = found.ok().and_then(|index| old.get(index)) else { return Ok(Body::SetAside) };
    match patience.read(|| at.segment.read(u64::from(place.offset), index(u64::from(place.length)))) {
        Ok(bytes) if !place.is_set_aside() && place.is_of(&bytes) => Ok(Body::Bytes(bytes.into())),
        Err(error) if !is_unreadable(&error) => Err(log.explain(&error)),
        Ok(_) | Err(_) => Ok(Body::SetAside),
    }
}

fn write_note(folder: &dyn Folder, first: u32) -> io::Result<()> {
    let new = format!("{NOTE}{NEW}");
    let file = folder.create(&new)?;
    let mut bytes = first.to_le_bytes().to_vec();
    seal(&mut bytes, 0);
    write_all(&*file, &bytes, 0)?;
    file.sync()?;
    folder.rename(&new, NOTE)?;
    folder.sync()
}

/// The number before which a repair has replaced all segments, if a repair has left its note.
pub(in crate::store) fn noted(folder: &dyn Folder) -> io::Result<Option<u32>> {
    match read_file(folder, NOTE) {
        Ok(bytes) if is_sealed(&bytes, bytes.len()) => Ok(Fields(&bytes).u32()),
        // A note that is not right keeps nothing. All that it concerns are files that no batch needs.
        Ok(_) => Ok(Some(0)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Renames the segments that a repair has replaced, and removes their summaries. Nothing reads them again. The note
/// goes when that is durable.
pub(in crate::store) fn keep_aside(folder: &dyn Folder, names: &[String]) -> io::Result<()> {
    let there = folder.list()?;
    // A cleaned segment may have become the next one.
    for name in names.iter().filter(|name| there.contains(name)) {
        folder.rename(name, &name_to_keep(name, &there))?;
        if let Some(number) = number_of(name) {
            remove_if_there(folder, &summary_name(number))?;
        }
    }
    folder.sync()?;
    forget_note(folder)
}

/// A name that no earlier repair has given: a log that began anew has the same numbers.
fn name_to_keep(name: &str, there: &[String]) -> String {
    let names = (2_u64..).map(|repair| format!("{name}.{repair}{BAD}"));
    let mut names = std::iter::once(format!("{name}{BAD}")).chain(names);
    names.find(|name| !there.contains(name)).unwrap_or_else(|| format!("{name}{BAD}"))
}

/// Removes the note of a repair.
pub(in crate::store) fn forget_note(folder: &dyn Folder) -> io::Result<()> {
    remove_if_there(folder, NOTE)
}

/// The files among `leftovers` that a repair has replaced. They are kept.
pub(in crate::store) fn replaced(leftovers: &mut Vec<String>, first: Option<u32>, oldest: u32) -> Vec<String> {
    let Some(first) = first.filter(|first| oldest >= *first) else { return Vec::new() };
    let (kept, rest) =
        std::mem::take(leftovers).into_iter().partition(|name| number_of(name).is_some_and(|number| number < first));
    *leftovers = rest;
    kept
}

/// Removes files that no batch needs, with their summaries. The batches that say so are on disk.
pub(in crate::store) fn clear(folder: &dyn Folder, names: &[String]) -> io::Result<()> {
    for name in names {
        if let Some(number) = number_of(name) {
            remove_if_there(folder, &summary_name(number))?;
        }
        remove_if_there(folder, name)?;
    }
    Ok(())
}
