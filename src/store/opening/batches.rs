//! Reading the batches of one segment, for [`super::history`].
//!
//! ```text
//! head at the expected offset, with the expected number ─► table ─► records, each with its place
//!   └─ not right: behind the last known sync the end; before it damage, and a repair looks for the next head
//! ```
//! Behind the last known sync a body decides whether its batch is whole. Before it a bad body concerns its record
//! alone, and a bad piece of a table the records in that piece.
//!
//! This module does not decide which segments count.

use std::io;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;

use super::cut::CutOff;
use super::history::{HistoryReader, Purpose, ReadBlock, ReadHistory, ReadRecord};
use crate::store::errors::Error;
use crate::store::fault::{Fault, planted};
use crate::store::format::LogKind;
use crate::store::format::{BATCH_HEAD, BatchHead, Kind, SECTOR, Space, checksum, index};
use crate::store::record::Value;
use crate::store::segment::{Place, Segment, name_of};
use crate::store::summary::{Summary, SummaryRecord, resized};
use crate::store::table::{BatchTable, FoundRecords, PIECE};

/// The bytes that are read at a time from a segment whose device does not return all. A larger piece would be read for
/// nothing again and again.
const PIECE_BYTES: u64 = 64 << 10;

impl HistoryReader<'_> {
    /// The head of the batch at this offset. `None` if there is none.
    pub(in crate::store) fn head_at(&self, segment: &Arc<Segment>, offset: u64) -> Result<Option<BatchHead>, Error> {
        match self.head_in(segment, offset, offset)? {
            None if planted(Fault::HeadOnce) => Ok(None),
            None => Ok(self.head_in(segment, offset, offset + SECTOR)?.filter(BatchHead::is_twice)),
            head => Ok(head),
        }
    }

    /// The head of the batch at this offset, if it stands at byte `at`.
    fn head_in(&self, segment: &Arc<Segment>, offset: u64, at: u64) -> Result<Option<BatchHead>, Error> {
        if at + BATCH_HEAD as u64 > segment.head.size {
            return Ok(None);
        }
        let bytes = self.bytes_at(segment, at, BATCH_HEAD as u64)?;
        Ok(bytes.and_then(|bytes| BatchHead::decode(&bytes, &segment.head, offset)))
    }

    /// Bytes of a segment from memory, after reading the part of it that has them. `None`: they are read alone.
    fn in_block(&self, segment: &Arc<Segment>, offset: u64, length: usize) -> Option<ReadBytes> {
        let mut block = self.block.borrow_mut();
        let cut = |block: &ReadBlock| {
            let from = index(offset.checked_sub(block.from).filter(|_| block.segment == segment.head.number)?);
            let range = from..from.checked_add(length)?;
            (range.end <= block.bytes.len()).then(|| ReadBytes { block: Rc::clone(&block.bytes), range })
        };
        if let Some(bytes) = block.as_ref().and_then(cut) {
            return Some(bytes);
        }
        if length as u64 > self.block_bytes {
            return None;
        }
        // A segment of the usual size is read from its start on.
        let is_rough = self.rough.get() == Some(segment.head.number);
        let from = if segment.head.size <= self.block_bytes && !is_rough { 0 } else { offset };
        let most = if is_rough { PIECE_BYTES.max(length as u64) } else { self.block_bytes };
        let length = most.min(segment.head.size.checked_sub(from)?);
        let memory = block.take().and_then(|block| Rc::try_unwrap(block.bytes).ok()).unwrap_or_default();
        let (bytes, is_whole) = read_block(segment, from, length, memory);
        if !is_whole {
            self.rough.set(Some(segment.head.number));
        }
        self.bytes.set(self.bytes.get() + bytes.len() as u64);
        let read = block.insert(ReadBlock { segment: segment.head.number, from, bytes: Rc::new(bytes) });
        cut(read)
    }

    /// Reads bytes of a segment. `None` if the file is shorter. In a repair also if the device does not return them.
    pub(super) fn bytes_at(
        &self,
        segment: &Arc<Segment>,
        offset: u64,
        length: u64,
    ) -> Result<Option<ReadBytes>, Error> {
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        if let Some(bytes) = self.in_block(segment, offset, length) {
            return Ok(Some(bytes));
        }
        self.bytes.set(self.bytes.get() + length as u64);
        match self.patience.read(|| segment.read(offset, length)) {
            Ok(bytes) => Ok(Some(ReadBytes { range: 0..bytes.len(), block: Rc::new(bytes) })),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) if self.leaves_out(&error) => {
                let name = name_of(segment.head.number);
                self.unreadable.borrow_mut().push(format!("the device does not return byte {offset} of {name}"));
                Ok(None)
            }
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Reads batches one by one, and adds their records up to the last batch known synced. Returns the offset behind
    /// that batch.
    pub(in crate::store) fn read_batches(
        &self,
        segment: &Arc<Segment>,
        limit: Option<u64>,
        history: &mut ReadHistory,
        sink: &mut dyn BatchSink,
    ) -> Result<u64, Error> {
        let (mut expected, mut offset, mut end) = (segment.head.first, SECTOR, SECTOR);
        let synced = history.known.synced;
        while limit.is_none_or(|limit| expected <= limit) {
            let head = self.head_at(segment, offset)?.filter(|head| head.number == expected);
            let (is_behind, mut behind) = (expected > synced, Vec::new());
            let mut add = |record: SummaryRecord<'_>| match is_behind {
                true => behind.push(ReadRecord::of(&record)),
                false => sink.record(record),
            };
            let batch = match head {
                Some(head) => self.batch(segment, &head, is_behind, &mut add)?.map(|bad| (head, bad)),
                None => None,
            };
            let Some((head, bad)) = batch else {
                if expected > synced {
                    history.cut.extend(self.cut_off(segment, offset)?);
                    break;
                }
                let name = name_of(segment.head.number);
                self.damage(history, format!("batch {expected} at byte {offset} of {name}"))?;
                match self.head_behind(segment, offset, expected)? {
                    Some(head) => (expected, offset) = (head.number, head.offset),
                    None => break,
                }
                continue;
            };
            self.name_bad_parts(segment, &head, bad, history)?;
            history.known.raise_marks(&head.marks);
            history.shape.batches += 1;
            if is_behind {
                history.shape.behind += 1;
                history.behind.extend(behind);
            } else {
                if head.is_twice() && self.head_in(segment, offset, offset)?.is_none() {
                    history
                        .damage
                        .harmless
                        .push(format!("a head of batch {expected} of {}", name_of(segment.head.number)));
                }
                history.known.raise_oldest(head.oldest);
                sink.head(&head);
                end = offset + head.length();
            }
            expected += 1;
            offset += head.length();
        }
        Ok(end)
    }

    /// What a segment has behind this offset, where the log ends. `None`: only zeros.
    pub(in crate::store) fn cut_off(&self, segment: &Arc<Segment>, offset: u64) -> Result<Option<CutOff>, Error> {
        let (mut at, mut end) = (offset, offset);
        while at < segment.head.size {
            let length = PIECE_BYTES.min(segment.head.size - at);
            let Some(piece) = self.bytes_at(segment, at, length)? else { break };
            // Without an early end the loop takes many bytes at a time.
            if piece.iter().fold(0, |all, byte| all | byte) != 0 {
                end = piece.iter().rposition(|byte| *byte != 0).map_or(end, |last| at + last as u64 + 1);
            }
            at += length;
        }
        Ok((end > offset).then_some(CutOff { segment: segment.head.number, offset, bytes: end - offset }))
    }

    /// Names what is not right in a batch known synced.
    fn name_bad_parts(
        &self,
        segment: &Arc<Segment>,
        head: &BatchHead,
        bad: BadParts,
        history: &mut ReadHistory,
    ) -> Result<(), Error> {
        let batch = format!("batch {} of {}", head.number, name_of(segment.head.number));
        for at in bad.pieces {
            self.damage(history, format!("records of {batch}, named at byte {at}"))?;
        }
        for BadRecord { key, value } in bad.records {
            let name = format!("of {} in {batch}", key.escape_ascii());
            match value {
                Some(place) => history.damage.rotten.push((place, format!("the value {name}"))),
                None => self.damage(history, format!("a state {name}"))?,
            }
        }
        Ok(())
    }

    /// The table of a batch. Parts that cannot be read are zeros, so their pieces are not right.
    fn table(&self, segment: &Arc<Segment>, head: &BatchHead) -> Result<ReadBytes, Error> {
        if let Some(bytes) = self.bytes_at(segment, head.table_at(), head.table)? {
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < head.table {
            let at = bytes.len();
            let length = (head.table - at as u64).min(PIECE as u64);
            match self.bytes_at(segment, head.table_at() + at as u64, length)? {
                Some(piece) => bytes.extend_from_slice(&piece),
                None => bytes.resize(at + index(length), 0),
            }
        }
        Ok(ReadBytes { range: 0..bytes.len(), block: Rc::new(bytes) })
    }

    /// The first head behind a batch that is not right, for a repair. The batch has this number and this offset.
    pub(in crate::store) fn head_behind(
        &self,
        segment: &Arc<Segment>,
        mut offset: u64,
        bad: u64,
    ) -> Result<Option<BatchHead>, Error> {
        while offset < segment.head.size {
            if let Some(head) = self.head_at(segment, offset)?.filter(|head| head.number > bad) {
                return Ok(Some(head));
            }
            offset += SECTOR;
        }
        Ok(None)
    }

    /// Calls `each` with the records of a batch. `None`: it is not right. With `whole`, that is any body, and `each` may
    /// have been called for some records; otherwise a bad body concerns its record alone, and values are not read.
    /// Returns the parts that are not right.
    pub(in crate::store) fn batch(
        &self,
        segment: &Arc<Segment>,
        head: &BatchHead,
        whole: bool,
        each: &mut dyn FnMut(SummaryRecord<'_>),
    ) -> Result<Option<BadParts>, Error> {
        let bytes = self.table(segment, head)?;
        let table = BatchTable::new(head, &bytes);
        let FoundRecords { records, damaged } = table.records().map_err(|_unknown| Error::Unknown {
            folder: self.files.folder.path().to_owned(),
            segment: name_of(segment.head.number),
        })?;
        if (whole || planted(Fault::TableAsOne)) && !damaged.is_empty() {
            return Ok(None);
        }
        let mut bad = BadParts { records: Vec::new(), pieces: damaged };
        for (record, at) in records {
            let offset = head.bodies_at() + at;
            let place = Place::of_record(&record, segment.head.number, offset);
            let of_body = record.bodies.first();
            let (is_value, is_effect) = (record.space == Space::Values, record.space.is_of_effects());
            if is_effect != (self.files.kind == LogKind::Effects) {
                return Err(Error::OtherKind {
                    folder: self.files.folder.path().to_owned(),
                    segment: name_of(segment.head.number),
                });
            }
            let needed = record.kind == Kind::Bytes && (whole || !is_value || self.purpose == Purpose::Check);
            let body = match needed {
                true => self.bytes_at(segment, offset, u64::from(of_body.length))?,
                false => None,
            };
            if needed && body.as_deref().map(checksum) != Some(of_body.checksum) {
                if whole {
                    return Ok(None);
                }
                bad.records.push(BadRecord { key: record.key.into(), value: place.filter(|_| is_value) });
                if is_effect {
                    // No older effect of the key takes its place.
                    let place = place.map(|place| Place::of_set_aside(place.segment, place.offset.into()));
                    each(SummaryRecord { space: record.space, key: record.key, place, body: None });
                    continue;
                }
                if !is_value {
                    continue;
                }
            }
            let body = body.as_deref().filter(|_| whole || !is_value);
            each(SummaryRecord { space: record.space, key: record.key, place, body });
        }
        Ok(Some(bad))
    }
}

/// Reads this many bytes, or up to the end of the file, or up to bytes that the device does not return. Then the second
/// result is false.
fn read_block(segment: &Arc<Segment>, from: u64, length: u64, memory: Vec<u8>) -> (Vec<u8>, bool) {
    let Ok(file) = segment.file() else { return (Vec::new(), false) };
    let mut bytes = resized(memory, index(length));
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, from + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                bytes.truncate(read);
                return (bytes, false);
            }
        }
    }
    bytes.truncate(read);
    (bytes, true)
}

/// Takes the batches of a segment that are known synced.
pub(in crate::store) trait BatchSink {
    /// A record of the next batch.
    fn record(&mut self, record: SummaryRecord<'_>);

    /// The head of the batch whose records have come.
    fn head(&mut self, head: &BatchHead);
}

impl BatchSink for Summary {
    fn record(&mut self, record: SummaryRecord<'_>) {
        self.add_record(record);
    }

    fn head(&mut self, head: &BatchHead) {
        self.add_head(head);
    }
}

/// What is not right in a batch.
#[derive(Default)]
pub(in crate::store) struct BadParts {
    records: Vec<BadRecord>,
    /// The offsets of the pieces of its table that are damaged. Their records are lost.
    pieces: Vec<u64>,
}

/// A record whose body is not right.
struct BadRecord {
    key: Box<[u8]>,
    /// The place of its body if it is a value. A state without its body is lost, and a value without it has a place.
    value: Option<Place>,
}

/// Bytes that were read. They share the memory of the part of the segment.
pub(super) struct ReadBytes {
    block: Rc<Vec<u8>>,
    range: Range<usize>,
}

impl Deref for ReadBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.get(self.range.clone()).unwrap_or_default()
    }
}

impl ReadRecord {
    fn of(record: &SummaryRecord<'_>) -> Self {
        let SummaryRecord { space, key, place, body } = *record;
        Self { space, key: key.into(), place, body: body.map(Value::from) }
    }
}
