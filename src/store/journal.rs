//! Repair of fjall's journals, before fjall opens them: a torn end is cut off, and damage in the middle is an error.
//!
//! When the power fails during a write, parts of the last batch may be on disk, in any order. That batch was never
//! acknowledged, and the repair cuts it off. All batches before the last were synced. If a whole batch follows an
//! unreadable part, the journal is damaged, and the repair leaves it as it is. (fjall itself cuts off everything from
//! the first unreadable entry on, and refuses a last batch whose middle is missing.)
//!
//! ```text
//! batch   start:  1 items:u32 seqno:u64
//!         items:  2 type:u8 compression:u8 keyspace:u64 key:u16 value:u32 stored:u32, key, value as stored
//!                 4 keyspace:u64
//!         end:    3 checksum:u64 "FJL" 3                       XXH3 of all bytes of the items
//! ```
//! Integers are little-endian. Sequence numbers grow from batch to batch. After the last batch a journal holds zeros,
//! up to its preallocated length. Source: fjall 3.1, `journal/entry.rs`. A store of another format is left to fjall.
//!
//! This module does not interpret batches.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::byte_reader::ByteReader;

/// The file that holds fjall's format version.
const VERSION_FILE: &str = "version";
/// The content of that file, and the end of each batch.
const FORMAT: [u8; 4] = *b"FJL\x03";
/// The extension of journals. The name before it is a number.
const EXTENSION: &str = "jnl";

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;

/// The reason why the repair fails.
#[derive(Debug)]
pub(super) enum RepairError {
    /// The system reports an error while the journal is read or cut.
    Io(io::Error),
    /// A batch in the middle cannot be read.
    Damaged {
        /// The journal.
        file: PathBuf,
        /// The offset of the first unreadable batch.
        at: usize,
    },
}

impl From<io::Error> for RepairError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Cuts off a torn end of the last journal. No other process may have the store open.
///
/// `lazy`: batches may be unsynced when the next one is written, so a hole in the last journal is no damage. Everything
/// from the first hole on is cut off. All synced batches are before it. (A journal that is not the last was synced when
/// the next one was begun.)
pub(super) fn mend(folder: &Path, lazy: bool) -> Result<(), RepairError> {
    if fs::read(folder.join(VERSION_FILE)).is_ok_and(|version| version != FORMAT) {
        return Ok(());
    }
    let journals = journals(folder)?;
    let mut newest = None;
    for (number, path) in journals.iter().enumerate() {
        let bytes = fs::read(path)?;
        let end = end_of_batches(&bytes, &mut newest);
        let rest = bytes.get(end..).unwrap_or_default();
        if rest.iter().all(|byte| *byte == 0) {
            continue;
        }
        let is_last = number + 1 == journals.len();
        let is_disordered = batch(rest).is_some();
        if !is_last || is_disordered || (!lazy && has_batch(rest, newest)) {
            return Err(RepairError::Damaged { file: path.clone(), at: end });
        }
        let file = File::options().write(true).open(path)?;
        file.set_len(end as u64)?;
        file.sync_all()?;
    }
    Ok(())
}

/// The journals, the oldest first.
fn journals(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if let Some(number) = number.filter(|_| path.extension().is_some_and(|extension| extension == EXTENSION)) {
            journals.push((number, path));
        }
    }
    journals.sort();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

/// The offset of the first batch that is not whole, or is not newer than the batch before it. `newest` is the sequence
/// number of the batch before.
fn end_of_batches(bytes: &[u8], newest: &mut Option<u64>) -> usize {
    let mut end = 0;
    while let Some((length, number)) = bytes.get(end..).and_then(batch) {
        if newest.is_some_and(|newest| newest >= number) {
            break;
        }
        *newest = Some(number);
        end += length;
    }
    end
}

/// Whether a whole batch that is newer than `newest` begins at any offset.
fn has_batch(bytes: &[u8], newest: Option<u64>) -> bool {
    let is_newer = |number: u64| newest.is_none_or(|newest| number > newest);
    (0..bytes.len()).any(|at| bytes.get(at..).and_then(batch).is_some_and(|(_, number)| is_newer(number)))
}

/// The length and the sequence number of the batch at the beginning of `bytes`, if it is whole.
fn batch(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut fields = ByteReader::new(bytes);
    if fields.byte()? != START {
        return None;
    }
    let count = fields.u32_le()?;
    if count == 0 {
        return None;
    }
    let number = fields.u64_le()?;
    let items = fields.rest();
    for _ in 0..count {
        match fields.byte()? {
            ITEM => {
                fields.take(2 + 8)?;
                let key = fields.u16_le()?;
                fields.take(4)?;
                let stored = fields.u32_le()?;
                fields.take(usize::from(key))?;
                fields.take(stored as usize)?;
            }
            CLEAR => {
                fields.take(8)?;
            }
            _ => return None,
        }
    }
    let sum = xxh3_64(items.get(..items.len() - fields.rest().len())?);
    let whole = fields.byte()? == END && fields.u64_le()? == sum && fields.array()? == FORMAT;
    whole.then_some((bytes.len() - fields.rest().len(), number))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;
    use crate::store::{Disk, Space, Store, WriteBatch};

    /// A folder with this many committed batches, its journal, the journal's bytes, and the end of each batch.
    fn written(batches: u8) -> (tempfile::TempDir, PathBuf, Vec<u8>, Vec<usize>) {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = Disk::open(folder.path()).unwrap();
        for number in 0..batches {
            let mut batch = WriteBatch::new();
            batch.put(Space::Tasks, &[number], &[number; 40]);
            batch.delete(Space::Values, &[number]);
            disk.commit(batch, true).unwrap();
        }
        drop(disk);
        let journal = journals(folder.path()).unwrap().pop().unwrap();
        let bytes = fs::read(&journal).unwrap();
        let mut ends = vec![0];
        while let Some((length, _)) = batch(&bytes[ends[ends.len() - 1]..]) {
            ends.push(ends[ends.len() - 1] + length);
        }
        (folder, journal, bytes, ends)
    }

    fn keys(folder: &Path) -> usize {
        let mut count = 0;
        Disk::open(folder).unwrap().scan(Space::Tasks, &mut |_, _| count += 1).unwrap();
        count
    }

    #[test]
    fn what_fjall_writes_is_read_batch_by_batch() {
        let (folder, _, bytes, ends) = written(5);
        assert!(ends.len() > 5, "five batches of ours, and what fjall wrote for itself");
        assert!(bytes[ends[ends.len() - 1]..].iter().all(|byte| *byte == 0));
        mend(folder.path(), false).unwrap();
        assert_eq!(keys(folder.path()), 5);
    }

    #[test]
    fn a_last_batch_that_is_there_in_part_is_cut_off_whichever_part_is_missing() {
        let (folder, journal, bytes, ends) = written(3);
        let (from, to) = (ends[ends.len() - 2], ends[ends.len() - 1]);
        for first in (from..to).step_by(7) {
            for missing in [first..to, first..(first + 5).min(to), from..first + 1] {
                let mut torn = bytes.clone();
                torn[missing.clone()].fill(0);
                if torn == bytes {
                    continue; // the part was already zero
                }
                fs::write(&journal, &torn).unwrap();
                assert_eq!(keys(folder.path()), 2, "{missing:?} of {from}..{to}");
                fs::write(&journal, &bytes).unwrap();
            }
        }
        assert_eq!(keys(folder.path()), 3);
    }

    #[test]
    fn damage_before_a_whole_batch_is_refused_and_nothing_changes() {
        let (folder, journal, bytes, ends) = written(3);
        for at in (0..ends[ends.len() - 2]).step_by(11) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(&journal, &damaged).unwrap();
            let found = mend(folder.path(), false);
            // The next batch shows a sequence number that has grown, because it then seems older.
            let next = ends.iter().find(|end| **end > at).unwrap();
            assert!(matches!(found, Err(RepairError::Damaged { at: batch, .. }) if batch <= *next), "{at}: {found:?}");
            assert!(fs::read(&journal).unwrap() == damaged);
        }
    }

    #[test]
    fn where_syncs_were_late_everything_from_the_first_hole_on_goes() {
        let (folder, journal, bytes, ends) = written(5);
        let mut holed = bytes.clone();
        holed[ends[ends.len() - 4] + 20..ends[ends.len() - 3]].fill(0);
        fs::write(&journal, &holed).unwrap();
        assert!(matches!(mend(folder.path(), false), Err(RepairError::Damaged { .. })));
        mend(folder.path(), true).unwrap();
        assert_eq!(keys(folder.path()), 2);
    }
}
