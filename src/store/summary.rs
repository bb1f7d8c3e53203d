//! The summary of a closed segment: its records without the values, so that opening need not read the segment.
//!
//! ```text
//! file N.sum   magic:8 store:16 nonce:16 number:u32 oldest:u32 first:u64 last:u64 end:u64 marks:4×u64 length:u64,
//!              records …, checksum:u64
//! record       as in a table, offset:u32 of its first body, the body unless it is a value
//! ```
//! A record is in it once, in its last state in this segment. A summary is a copy of what the segment holds. If it is
//! missing or damaged, opening reads the segment. The nonce binds it to its segment. If the head of the segment is
//! damaged, it is made anew with what the summary says.
//!
//! This module decides nothing about the records.

use std::collections::HashMap;
use std::io;

use ahash::RandomState;

use super::folder::{Folder, ReadPatience, read_exact, write_all};
use super::format::{BatchHead, Kind, Marks, SECTOR, SegmentHead, Space, is_sealed, seal};
use super::segment::{NEW, Place};
use super::table::{BodyHead, BodyHeads, RecordHead};
use crate::byte_reader::ByteReader;

const MAGIC: [u8; 8] = *b"spinsum\n";
/// The bytes before the records, and the checksum behind them.
const HEAD_AND_SEAL: usize = 8 + 16 + 16 + 4 + 4 + 3 * 8 + 4 * 8 + 8 + 8;
/// The ending of the name of a summary.
pub(super) const SUM: &str = ".sum";

/// The name of the summary of a segment.
pub(super) fn summary_name(number: u32) -> String {
    format!("{number:010}{SUM}")
}

/// What a summary says of all batches together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SummaryHead {
    /// The number of the first batch, 0 if there is none.
    pub(super) first: u64,
    /// The number of the last batch.
    pub(super) last: u64,
    /// The offset behind the last batch.
    pub(super) end: u64,
    pub(super) oldest: u32,
    pub(super) marks: Marks,
}

/// The records of a segment while it is being written.
#[derive(Debug, Default)]
pub(super) struct Summary {
    head: SummaryHead,
    records: Vec<u8>,
    /// The offset of each record in `records`.
    starts: Vec<usize>,
}

/// A record of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SummaryRecord<'b> {
    pub(super) space: Space,
    pub(super) key: &'b [u8],
    /// `None` if the record removes its key.
    pub(super) place: Option<Place>,
    /// Its body, unless it is a value.
    pub(super) body: Option<&'b [u8]>,
}

impl Summary {
    /// Whether it has no batch.
    pub(super) fn is_empty(&self) -> bool {
        self.head.first == 0
    }

    /// The bytes that its file has at most. It has fewer if the segment has several records of a key.
    pub(super) fn bytes_max(&self) -> u64 {
        (HEAD_AND_SEAL + self.records.len()) as u64
    }

    /// Whether a summary is of the same batches.
    pub(super) fn has_range_of(&self, other: &SummaryHead) -> bool {
        (self.head.first, self.head.last) == (other.first, other.last)
    }

    /// Adds the records of a batch.
    pub(super) fn add<'b>(&mut self, head: &BatchHead, records: impl Iterator<Item = SummaryRecord<'b>>) {
        records.for_each(|record| self.add_record(record));
        self.add_head(head);
    }

    /// Adds the head of a batch whose records were added.
    pub(super) fn add_head(&mut self, head: &BatchHead) {
        if self.head.first == 0 {
            self.head.first = head.number;
        }
        self.head.last = head.number;
        self.head.end = head.offset + head.length();
        (self.head.oldest, self.head.marks) = (head.oldest, head.marks);
    }

    /// Adds a record of a batch.
    pub(super) fn add_record(&mut self, SummaryRecord { space, key, place, body: bytes }: SummaryRecord<'_>) {
        self.starts.push(self.records.len());
        let (offset, body, checksum) = place.map_or((0, 0, 0), |at| (at.offset, at.length, u64::from(at.checksum)));
        let kind = match place {
            Some(place) if place.is_set_aside() => Kind::SetAside,
            Some(_) => Kind::Bytes,
            None => Kind::Removed,
        };
        let encoded = BodyHead { length: body, checksum }.encode();
        let bodies = if kind == Kind::Bytes { BodyHeads::of(&encoded) } else { BodyHeads::default() };
        RecordHead { kind, space, key, bodies }.encode(&mut self.records);
        self.records.extend(offset.to_le_bytes());
        if let Some(bytes) = bytes.filter(|_| space != Space::Values && kind == Kind::Bytes) {
            self.records.extend_from_slice(bytes);
        }
    }

    /// Calls `each` with all records that were added, the last one first.
    pub(super) fn each_back(&self, segment: u32, each: &mut dyn FnMut(SummaryRecord<'_>)) {
        for &start in self.starts.iter().rev() {
            let mut fields = ByteReader::new(self.records.get(start..).unwrap_or_default());
            record(&mut fields, segment).into_iter().for_each(&mut *each);
        }
    }

    /// Writes the summary beside its segment.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn write(&self, folder: &dyn Folder, segment: &SegmentHead) -> io::Result<()> {
        let name = summary_name(segment.number);
        let new = format!("{name}{NEW}");
        let write = || {
            let file = folder.create(&new)?;
            write_all(&*file, &self.encode(segment), 0)?;
            file.sync()?;
            folder.rename(&new, &name)
        };
        write().inspect_err(|_| {
            // Opening removes what stays.
            let _stays = folder.remove(&new);
        })
    }

    /// The bytes of the summary's file.
    pub(super) fn encode(&self, segment: &SegmentHead) -> Vec<u8> {
        let records = self.last_of_each();
        let SummaryHead { first, last, end, oldest, marks } = self.head;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(segment.store);
        bytes.extend(segment.nonce);
        bytes.extend(segment.number.to_le_bytes());
        bytes.extend(oldest.to_le_bytes());
        for number in [first, last, end].into_iter().chain(marks).chain([records.len() as u64]) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(records);
        seal(&mut bytes, 0);
        bytes
    }

    /// The records, each key once.
    fn last_of_each(&self) -> Vec<u8> {
        let ends = self.starts.iter().skip(1).copied().chain([self.records.len()]);
        let parts = || self.starts.iter().zip(ends.clone()).filter_map(|(&start, end)| self.records.get(start..end));
        let mut last: HashMap<(u8, &[u8]), usize, RandomState> = HashMap::default();
        for (index, part) in parts().enumerate() {
            if let Some(record) = record(&mut ByteReader::new(part), 0) {
                last.insert((record.space as u8, record.key), index);
            }
        }
        let mut kept: Vec<usize> = last.into_values().collect();
        kept.sort_unstable();
        let all: Vec<&[u8]> = parts().collect();
        let kept: Vec<&[u8]> = kept.into_iter().filter_map(|index| all.get(index).copied()).collect();
        kept.concat()
    }
}

/// A summary that was read. Its records are decoded from `bytes`.
#[derive(Debug)]
pub(super) struct ReadSummary {
    pub(super) store: [u8; 16],
    pub(super) nonce: [u8; 16],
    pub(super) head: SummaryHead,
    segment: u32,
    pub(super) bytes: Vec<u8>,
    records: std::ops::Range<usize>,
}

impl ReadSummary {
    /// Reads the summary of a segment into this memory. `None` if there is none, or it is not right.
    pub(super) fn of(folder: &dyn Folder, segment: &SegmentHead, memory: Vec<u8>) -> Option<Self> {
        let read = Self::of_any(folder, segment.number, memory)?;
        let is_of_it = (read.store, read.nonce) == (segment.store, segment.nonce);
        (is_of_it && read.head.end <= segment.size && read.each(&mut |_| {})).then_some(read)
    }

    /// Reads the summary of a segment whose head is not known. Its records may not be right.
    pub(super) fn of_any(folder: &dyn Folder, number: u32, memory: Vec<u8>) -> Option<Self> {
        let bytes = read_file_into(folder, &summary_name(number), memory).ok()?;
        if !is_sealed(&bytes, bytes.len()) {
            return None;
        }
        let mut fields = ByteReader::new(&bytes);
        let magic: [u8; 8] = fields.array()?;
        let (store, nonce) = (fields.array()?, fields.array()?);
        let (segment, oldest) = (fields.u32_le()?, fields.u32_le()?);
        let (first, last, end) = (fields.u64_le()?, fields.u64_le()?, fields.u64_le()?);
        let marks = [fields.u64_le()?, fields.u64_le()?, fields.u64_le()?, fields.u64_le()?];
        let length = usize::try_from(fields.u64_le()?).ok()?;
        if (magic, segment) != (MAGIC, number) {
            return None;
        }
        let start = bytes.len() - fields.rest().len();
        let records = start..start.checked_add(length)?;
        let head = SummaryHead { first, last, end, oldest, marks };
        let is_whole = end >= SECTOR && bytes.get(records.clone()).is_some();
        is_whole.then_some(Self { store, nonce, head, segment, bytes, records })
    }

    /// Calls `each` with all records. False: one cannot be read.
    pub(super) fn each(&self, each: &mut dyn FnMut(SummaryRecord<'_>)) -> bool {
        let mut fields = ByteReader::new(self.bytes.get(self.records.clone()).unwrap_or_default());
        while !fields.is_empty() {
            let Some(record) = record(&mut fields, self.segment) else { return false };
            each(record);
        }
        true
    }
}

fn record<'b>(fields: &mut ByteReader<'b>, segment: u32) -> Option<SummaryRecord<'b>> {
    // A later version may have written others. Opening then reads the segment.
    let record @ RecordHead { kind, space, key, bodies } = RecordHead::decode_known(fields).ok()?;
    let place = Place::of_record(&record, segment, fields.u32_le()?.into());
    let inline = kind == Kind::Bytes && space != Space::Values;
    let body = if inline { Some(fields.take(bodies.first().length as usize)?) } else { None };
    Some(SummaryRecord { space, key, place, body })
}

/// All bytes of a file.
///
/// # Errors
/// The system's error.
pub(super) fn read_file(folder: &dyn Folder, name: &str) -> io::Result<Vec<u8>> {
    ReadPatience::default().read(|| read_file_into(folder, name, Vec::new()))
}

fn read_file_into(folder: &dyn Folder, name: &str, memory: Vec<u8>) -> io::Result<Vec<u8>> {
    let file = folder.open(name)?;
    let mut bytes = resized(memory, usize::try_from(file.size()?).map_err(io::Error::other)?);
    read_exact(&*file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Memory of this length, whatever its bytes. New memory comes from the system, which has it clear.
pub(super) fn resized(mut memory: Vec<u8>, length: usize) -> Vec<u8> {
    if memory.capacity() < length {
        return vec![0; length];
    }
    memory.resize(length, 0);
    memory
}
