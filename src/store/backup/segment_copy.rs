//! The copy of one segment. What the device does not return, and what is damaged, is named, and the copy continues.
//!
//! ```text
//! source ─► pieces of 1 MiB; of one that the device does not return blocks of 4 KiB, each tried again ─► zeros, named
//! copy   ─► all heads, tables and bodies against their checksums ─► damage, named
//! ```
//! So what a backup lacks is what a check of it finds. Whether a server needs a value that is damaged is not known here:
//! the check finds it.
//!
//! This module repairs nothing.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::HeldSegment;
use crate::store::errors::Error;
use crate::store::failure::is_unreadable;
use crate::store::folder::{Folder, LogFile, write_all};
use crate::store::format::index;
use crate::store::interface::BackupReport;
use crate::store::opening::history::damage_of;
use crate::store::segment::{OpenFiles, Segment, name_of};

/// The bytes that are copied at a time.
pub(super) const COPY_BYTES: u64 = 1 << 20;
/// The bytes that are tried alone if the device does not return a piece with them.
const BLOCK_BYTES: u64 = 4 << 10;
/// How often a block is tried.
const READS_MAX: u32 = 3;
/// The parts that a report names, at most. The others are counted.
const NAMED_MAX: usize = 100;
/// The bytes of a name in a report, at most.
const NAME_BYTES_MAX: usize = 500;

impl BackupReport {
    /// Counts a part that is lost, and names it if there is room.
    fn lose(&mut self, mut part: String) {
        self.lost += 1;
        if self.damages.len() < NAMED_MAX {
            part.truncate(part.floor_char_boundary(NAME_BYTES_MAX));
            self.damages.push(part);
        }
    }
}

/// Copies the bytes of a segment up to its end, in pieces. `turn` is asked before each.
///
/// # Errors
/// [`Error`] of either folder, unless the device does not return bytes of the segment. What `turn` says.
pub(super) fn copy_bytes(
    held: &HeldSegment,
    from: &dyn Folder,
    to: &dyn Folder,
    copy: &dyn LogFile,
    turn: &mut dyn FnMut() -> Result<(), Error>,
    report: &mut BackupReport,
) -> Result<(), Error> {
    let mut unread = UnreadRanges::default();
    let mut at = 0;
    while at < held.end {
        turn()?;
        let length = COPY_BYTES.min(held.end - at);
        let bytes = read_piece(&held.segment, at, length, turn, &mut unread);
        let bytes = bytes?.map_err(|error| Error::of(from.path(), &error))?;
        write_all(copy, &bytes, at).map_err(|error| Error::of(to.path(), &error))?;
        // The sync at the end finds little left to write, so the next turn comes soon.
        copy.start_write_back(at, length);
        at += length;
    }
    let name = name_of(held.segment.head.number);
    for (range, why) in unread.0 {
        report.lose(format!("the bytes {} to {} of {name} cannot be read ({why})", range.start, range.end - 1));
    }
    Ok(())
}

/// Names what is damaged in the copy of a segment.
///
/// # Errors
/// [`Error`] if the copy cannot be read.
pub(super) fn verify(held: &HeldSegment, to: &Arc<dyn Folder>, report: &mut BackupReport) -> Result<(), Error> {
    let files = OpenFiles::new(Arc::clone(to), held.segment.kind(), 1);
    let copy = Segment::new(&files, held.segment.head);
    damage_of(&files, &copy, held.last)?.into_iter().for_each(|part| report.lose(part));
    Ok(())
}

/// The ranges of a segment that the device does not return, with its reason.
#[derive(Default)]
struct UnreadRanges(Vec<(Range<u64>, String)>);

impl UnreadRanges {
    fn add(&mut self, range: Range<u64>, error: &io::Error) {
        match self.0.last_mut() {
            Some((last, _)) if last.end == range.start => last.end = range.end,
            _ => self.0.push((range, error.to_string())),
        }
    }
}

/// Reads a piece. Bytes that the device does not return are zeros. The outer error is what `turn` says.
fn read_piece(
    segment: &Arc<Segment>,
    at: u64,
    length: u64,
    turn: &mut dyn FnMut() -> Result<(), Error>,
    unread: &mut UnreadRanges,
) -> Result<io::Result<Vec<u8>>, Error> {
    match segment.read(at, index(length)) {
        Err(error) if is_unreadable(&error) => {}
        read => return Ok(read),
    }
    let mut bytes = Vec::with_capacity(index(length));
    while (bytes.len() as u64) < length {
        // A device that fails takes its time.
        turn()?;
        let from = at + bytes.len() as u64;
        let size = BLOCK_BYTES.min(at + length - from);
        match read_block(segment, from, size) {
            Ok(block) => bytes.extend_from_slice(&block),
            Err(error) if is_unreadable(&error) => {
                unread.add(from..from + size, &error);
                bytes.resize(bytes.len() + index(size), 0);
            }
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(bytes))
}

fn read_block(segment: &Arc<Segment>, at: u64, length: u64) -> io::Result<Vec<u8>> {
    for _ in 1..READS_MAX {
        match segment.read(at, index(length)) {
            Err(error) if is_unreadable(&error) => {}
            read => return read,
        }
    }
    segment.read(at, index(length))
}
