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

use super::winners::{Winner, Winners};
use crate::store::errors::Error;
use crate::store::failure::is_unreadable;
use crate::store::folder::{Folder, ReadPatience, remove_if_there};
use crate::store::format::index;
use crate::store::log::Log;
use crate::store::log::in_use::UsedSegment;
use crate::store::notes::{self, REPAIR};
use crate::store::record::{Body, Record, RecordBatch, record_bytes};
use crate::store::segment::{BAD, number_of};
use crate::store::summary::summary_name;

/// The bytes of a batch that a repair writes.
const REPAIR_BATCH_BYTES: u64 = 8 << 20;

/// Segments of a repair beside its copies: the segment that is not full, and three that are laid out when the last
/// segment is begun.
const SEGMENTS_BESIDE: u64 = 4;

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
    old: &[UsedSegment],
    winners: &mut Winners,
    lost: &mut Vec<String>,
) -> Result<(), Error> {
    let mut batch = RecordBatch::default();
    let mut bytes = 0;
    let first = log.first_segment();
    let patience = ReadPatience::default();
    for (space, key, winner) in winners.below(first) {
        bytes += record_bytes(key.len(), u64::from(winner.place.length));
        let is_set_aside = winner.place.is_set_aside();
        let body = body_of(winner, old, &patience, log)?;
        if body == Body::SetAside && !is_set_aside {
            lost.push(format!("the value of {}", key.escape_ascii()));
        }
        batch.records.push(Record { space, key, body });
        if bytes >= REPAIR_BATCH_BYTES {
            winners.write_and_take(log, std::mem::take(&mut batch))?;
            bytes = 0;
        }
    }
    winners.write_and_take(log, batch)?;
    log.replace_old()
}

impl Log {
    /// All that counts in the segments of before is written again: they count no more.
    pub(in crate::store) fn replace_old(&mut self) -> Result<(), Error> {
        self.sync()?;
        let first = self.first_segment();
        notes::leave(&*self.disk.files.folder, REPAIR, |_| Ok([first.into()]))
            .map_err(|error| self.disk.explain(&error))?;
        self.let_go();
        self.append(&RecordBatch::default()).map(drop)
    }
}

/// The body of a winner. If the device never returns its bytes, it is set aside: the old file is kept. Any other error
/// ends the repair, which can be repeated.
fn body_of(winner: Winner, old: &[UsedSegment], patience: &ReadPatience, log: &Log) -> Result<Body, Error> {
    let Winner { place, body } = winner;
    if let Some(body) = body {
        return Ok(Body::Bytes(body));
    }
    let found = old.binary_search_by_key(&place.segment, UsedSegment::number);
    let Some(at) = found.ok().and_then(|index| old.get(index)) else { return Ok(Body::SetAside) };
    match patience.read(|| at.segment.read(u64::from(place.offset), index(u64::from(place.length)))) {
        Ok(bytes) if !place.is_set_aside() && place.is_of(&bytes) => Ok(Body::Bytes(bytes.into())),
        Err(error) if !is_unreadable(&error) => Err(log.disk.explain(&error)),
        Ok(_) | Err(_) => Ok(Body::SetAside),
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
    remove_if_there(folder, REPAIR)
}

/// A name that no earlier repair has given: a log that began anew has the same numbers.
fn name_to_keep(name: &str, there: &[String]) -> String {
    let names = (2_u64..).map(|repair| format!("{name}.{repair}{BAD}"));
    let mut names = std::iter::once(format!("{name}{BAD}")).chain(names);
    names.find(|name| !there.contains(name)).unwrap_or_else(|| format!("{name}{BAD}"))
}
