//! Opening the file of a segment, whose head may be damaged: its batches, and its summary, say what it said.
//!
//! ```text
//! number     the name of the file              size     the length of the file
//! store, nonce, first     the head of the batch at byte 512, or its copy; the batch behind it agrees, if there is one
//!                         else the summary, if the head of any batch agrees with it
//!                         else two batches or more, if all agree: the first batch is lost, `first` is its number, and
//!                         one of them says that it was synced
//! ```
//! No client writes the bytes at 512, and none knows the id of the store or the nonce. So bytes that look like a head are
//! of this segment, of another store, or of an earlier use of the same blocks. Those of another store do not agree with
//! the other segments. A file in which heads disagree counts as damaged, as does one without a batch.
//!
//! The damaged head stays as it is: a closed segment is never written to, and backups have links to it. The next opening
//! reads it in the same way, until the segment is cleaned.
//!
//! This module writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::files::FolderFiles;
use super::history::{HistoryReader, ReadHistory};
use super::missing::{FoundFile, newest_missing};
use crate::store::errors::Error;
use crate::store::fault::{Fault, planted};
use crate::store::folder::{LogFile, read_exact};
use crate::store::format::{BATCH_HEAD, BatchHead, HeadFault, SECTOR, SEGMENT_BYTES_MAX, SegmentHead, index};
use crate::store::gaps::Gaps;
use crate::store::segment::{Segment, name_of, number_of};
use crate::store::summary::ReadSummary;

/// A file with the name of a segment, for its batches' heads.
struct SegmentFile<'r, 'h> {
    reader: &'r HistoryReader<'h>,
    file: &'r dyn LogFile,
    number: u32,
    size: u64,
}

impl HistoryReader<'_> {
    /// The files with the name of a segment, in the order of their numbers. Those that no log needs are leftovers.
    pub(super) fn find(&self, history: &mut ReadHistory) -> Result<BTreeMap<u32, FoundFile>, Error> {
        let names = self.patience.read(|| self.files.folder.list()).map_err(|error| self.explain(&error))?;
        let mut found = BTreeMap::new();
        let mut stores: BTreeMap<[u8; 16], Vec<String>> = BTreeMap::new();
        for name in &names {
            let Some(number) = number_of(name) else { continue };
            found.insert(number, self.open(number, name)?);
        }
        self.refuse_other_stores(&mut found);
        for (number, file) in &found {
            if let FoundFile::Segment(segment) = file {
                stores.entry(segment.head.store).or_default().push(name_of(*number));
            }
        }
        // Most segments are of this store.
        if stores.len() > 1
            && let Some(segment) = stores.into_values().min_by_key(Vec::len).and_then(|names| names.into_iter().next())
        {
            return Err(Error::Foreign { folder: self.files.folder.path().to_owned(), segment });
        }
        if let Some(what) = newest_missing(&names) {
            self.damage(history, what)?;
        }
        history.files = FolderFiles::of(names, &found);
        Ok(found)
    }

    /// A head that was made anew from bytes of another store says nothing.
    fn refuse_other_stores(&self, found: &mut BTreeMap<u32, FoundFile>) {
        let mut remade = self.remade.borrow_mut();
        let stores: BTreeSet<[u8; 16]> = found
            .iter()
            .filter(|(number, _)| !remade.contains_key(number))
            .filter_map(
                |(_, file)| if let FoundFile::Segment(segment) = file { Some(segment.head.store) } else { None },
            )
            .collect();
        remade.retain(|number, store| {
            let is_ours = stores.is_empty() || stores.contains(store);
            if !is_ours {
                found.insert(*number, FoundFile::Damaged(format!("the head of {}", name_of(*number))));
            }
            is_ours
        });
    }

    /// Opens a file with the name of a segment.
    pub(in crate::store) fn open(&self, number: u32, name: &str) -> Result<FoundFile, Error> {
        let file = self.patience.read(|| self.files.folder.open(name)).map_err(|error| self.explain(&error))?;
        let mut bytes = vec![0; index(SECTOR)];
        let decoded = match self.patience.read(|| read_exact(&*file, &mut bytes, 0)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(FoundFile::Damaged(format!("{name} is empty")));
            }
            Err(error) if self.leaves_out(&error) => Err(HeadFault::Damaged),
            Err(error) => return Err(self.explain(&error)),
            Ok(()) => SegmentHead::decode(&bytes),
        };
        // Their checksums are their own: damage elsewhere in the sector costs them nothing.
        let gaps = Gaps::decode(SegmentHead::gaps(&bytes));
        let names_itself = gaps.contains(number);
        self.gaps.borrow_mut().insert(number, gaps);
        let head = match decoded {
            Ok(head) if head.number > number && names_itself => return Ok(FoundFile::Cleaned),
            Ok(head) if head.number != number => {
                return Ok(FoundFile::Damaged(format!("{name} is a copy of {}", name_of(head.number))));
            }
            Ok(head) => {
                if !SegmentHead::is_whole(&bytes) {
                    self.remade.borrow_mut().insert(number, head.store);
                }
                head
            }
            Err(HeadFault::Version(found)) => {
                return Err(Error::Version { folder: self.files.folder.path().to_owned(), found });
            }
            Err(HeadFault::Damaged) => match self.make_anew(number, &*file)? {
                Some(head) => {
                    self.remade.borrow_mut().insert(number, head.store);
                    head
                }
                None => return Ok(FoundFile::Damaged(format!("the head of {name}"))),
            },
        };
        Ok(FoundFile::Segment(Segment::new(self.files, head)))
    }

    /// The head of a segment as its batches and its summary have it. `None` if they do not.
    fn make_anew(&self, number: u32, file: &dyn LogFile) -> Result<Option<SegmentHead>, Error> {
        let size = self.patience.read(|| file.size()).map_err(|error| self.explain(&error))?;
        if size > SEGMENT_BYTES_MAX || !size.is_multiple_of(SECTOR) {
            return Ok(None);
        }
        let file = SegmentFile { reader: self, file, number, size };
        match file.by_first_batch()? {
            None => file.by_later_batches(),
            head => Ok(head),
        }
    }
}

impl SegmentFile<'_, '_> {
    /// The head of a batch at this offset, whatever its segment, if it stands at byte `at`.
    fn head(&self, offset: u64, at: u64) -> Result<Option<BatchHead>, Error> {
        let mut bytes = vec![0; BATCH_HEAD];
        match self.reader.patience.read(|| read_exact(self.file, &mut bytes, at)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) if self.reader.leaves_out(&error) => Ok(None),
            Err(error) => Err(self.reader.explain(&error)),
            Ok(()) => Ok(BatchHead::decode_alone(&bytes, self.number, offset, self.size)),
        }
    }

    fn segment_head(&self, of: &BatchHead, first: u64) -> SegmentHead {
        SegmentHead { store: of.store, number: self.number, nonce: of.nonce, size: self.size, first }
    }

    /// By the batch at the start of the segment, where no client writes.
    fn by_first_batch(&self) -> Result<Option<SegmentHead>, Error> {
        let first = match self.head(SECTOR, SECTOR)? {
            None => self.head(SECTOR, 2 * SECTOR)?.filter(BatchHead::is_twice),
            head => head,
        };
        let Some(first) = first else { return Ok(None) };
        let behind = SECTOR + first.length();
        let agrees = self.head(behind, behind)?.is_none_or(|next| {
            (next.store, next.nonce, next.number) == (first.store, first.nonce, first.number.wrapping_add(1))
        });
        Ok(agrees.then(|| self.segment_head(&first, first.number)))
    }

    /// By the other batches, and by the summary. The first batch is damaged.
    fn by_later_batches(&self) -> Result<Option<SegmentHead>, Error> {
        let summary = ReadSummary::of_any(&*self.reader.files.folder, self.number, Vec::new());
        let (mut earliest, mut synced): (Option<BatchHead>, u64) = (None, 0);
        for at in (2 * SECTOR..self.size).step_by(index(SECTOR)) {
            let Some(head) = self.head(at, at)? else { continue };
            let same = |store, nonce| (store, nonce) == (head.store, head.nonce);
            match (&summary, &earliest) {
                (Some(summary), _) if same(summary.store, summary.nonce) => {
                    return Ok(Some(self.segment_head(&head, summary.head.first)));
                }
                (Some(_), _) => {}
                (None, None) => earliest = Some(head),
                (None, Some(earliest)) if same(earliest.store, earliest.nonce) => synced = synced.max(head.synced),
                (None, Some(_)) if planted(Fault::HeadsDisagree) => synced = synced.max(head.synced),
                (None, Some(_)) => return Ok(None),
            }
        }
        let lost_first = |head: BatchHead| {
            // A first batch that is not known synced ends the log, and no damage would be reported.
            let first = head.number.checked_sub(1).filter(|first| (1..=synced).contains(first))?;
            Some(self.segment_head(&head, first))
        };
        Ok(earliest.and_then(lost_first))
    }
}
