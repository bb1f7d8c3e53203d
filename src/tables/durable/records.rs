//! The records of the tables' log: what became of an element, or of a table.
//!
//! ```text
//! Elements, Touches   key  incarnation:u64 version:u64 deadline:u64 cause:u8, the element's key
//!                     body the value; a removal and a touch have none
//! Tables              key  incarnation:u64 number:u64
//!                     body durability:u8, the name as CREATE_TABLE gave it; the removal drops the table
//! the clock           incarnation 0          body a mark of the clock
//! a clean end         incarnation 2^64 - 1   body the feed's epoch:u64, and for each table
//!                                            incarnation:u64 of_feed:u64 next:u64 elements:u64 digest:u64
//! ```
//! Integers are little-endian. A deadline is in milliseconds of the log's clock, 0 for none. Of an element's records in one
//! life of its table the highest version counts. A touch says that the element with the newest value below its version has
//! another deadline. Of the records of one life of a table the highest number counts.
//!
//! This file reads and writes nothing.

use crate::byte_reader::ByteReader;
use crate::clock::lasting::ClockMark;
use crate::feed::{Cause, Digest};
use crate::store::{EncodedRecords, Space};
use crate::tables::Durability;
use crate::tables::memory_budget::signed;
use crate::tables::slot::EntryRef;
use crate::tables::table::Table;

/// The incarnation in the record of a clean end, above those of all tables.
pub(in crate::tables) const END: u64 = u64::MAX;

/// Bytes before the key of an element.
const ELEMENT_HEAD: usize = 25;
/// Bytes of the key of a table.
const TABLE_HEAD: usize = 16;

/// What a record says of an element beside key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tables) struct ElementHead {
    /// The life of its table.
    pub(in crate::tables) incarnation: u64,
    pub(in crate::tables) version: u64,
    /// In milliseconds of the log's clock. 0: it has none.
    pub(in crate::tables) deadline: u64,
    pub(in crate::tables) cause: Cause,
}

impl ElementHead {
    fn encode(self) -> [u8; ELEMENT_HEAD] {
        let mut bytes = [0; ELEMENT_HEAD];
        for (to, number) in bytes.chunks_exact_mut(8).zip([self.incarnation, self.version, self.deadline]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes[ELEMENT_HEAD - 1] = self.cause as u8;
        bytes
    }

    /// The head and the element's key. `None`: no server has written it.
    pub(in crate::tables) fn decode(key: &[u8]) -> Option<(Self, &[u8])> {
        let mut fields = ByteReader::new(key);
        let (incarnation, version, deadline) = (fields.u64_le()?, fields.u64_le()?, fields.u64_le()?);
        let cause = Cause::of_number(fields.byte()?)?;
        Some((Self { incarnation, version, deadline, cause }, fields.rest()))
    }
}

/// The bytes of a record of an element in the log, at most.
pub(in crate::tables) const fn element_bytes(key: usize, value: usize) -> usize {
    EncodedRecords::bytes_of(ELEMENT_HEAD + key, value)
}

/// The bytes of all records of an element, as [`live_bytes`].
pub(in crate::tables) fn logged_bytes(key: &[u8], entry: EntryRef<'_>) -> i64 {
    live_bytes(key.len(), entry.value().len(), entry.is_touched())
}

/// The bytes of the records that count of an element.
pub(in crate::tables) fn live_bytes(key: usize, value: usize, is_touched: bool) -> i64 {
    let touch = if is_touched { element_bytes(key, 0) } else { 0 };
    signed(element_bytes(key, value) + touch)
}

/// Records an element as it is. `deadline` is in milliseconds of the log's clock.
pub(in crate::tables) fn encode_element(
    records: &mut EncodedRecords,
    incarnation: u64,
    key: &[u8],
    entry: EntryRef<'_>,
    deadline: u64,
) {
    let head = ElementHead { incarnation, version: entry.version(), deadline, cause: Cause::Restore };
    put(records, ElementHead { version: entry.version_of_value(), ..head }, key, entry.value());
    if entry.is_touched() {
        touch(records, head, key);
    }
}

/// An element has this value.
pub(in crate::tables) fn put(records: &mut EncodedRecords, head: ElementHead, key: &[u8], value: &[u8]) {
    records.put(Space::Elements, [&head.encode(), key], value);
}

/// An element has another deadline, and keeps its value.
pub(in crate::tables) fn touch(records: &mut EncodedRecords, head: ElementHead, key: &[u8]) {
    records.put(Space::Touches, [&head.encode(), key], &[]);
}

/// An element is gone.
pub(in crate::tables) fn remove(records: &mut EncodedRecords, head: ElementHead, key: &[u8]) {
    records.remove(Space::Elements, [&head.encode(), key]);
}

/// A record of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tables) struct TableHead {
    pub(in crate::tables) incarnation: u64,
    /// Records of one life are numbered in their order.
    pub(in crate::tables) number: u64,
}

impl TableHead {
    fn encode(self) -> [u8; TABLE_HEAD] {
        let mut bytes = [0; TABLE_HEAD];
        for (to, number) in bytes.chunks_exact_mut(8).zip([self.incarnation, self.number]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None`: no server has written it.
    pub(in crate::tables) fn decode(key: &[u8]) -> Option<Self> {
        let mut fields = ByteReader::new(key);
        let head = Self { incarnation: fields.u64_le()?, number: fields.u64_le()? };
        fields.is_empty().then_some(head)
    }
}

/// A table is there, with this durability and name.
pub(in crate::tables) fn put_table(records: &mut EncodedRecords, head: TableHead, durability: Durability, name: &[u8]) {
    records.put(Space::Tables, [&head.encode(), &[]], &[&[durability as u8], name].concat());
}

/// The log's clock shows this.
pub(in crate::tables) fn put_clock(records: &mut EncodedRecords, head: TableHead, mark: &ClockMark) {
    records.put(Space::Tables, [&head.encode(), &[]], &mark.encode());
}

/// What the feed has published of a life of a table by its clean end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tables) struct EndedLife {
    pub(in crate::tables) incarnation: u64,
    /// The incarnation in the feed. It is another one if the table has become durable again.
    pub(in crate::tables) of_feed: u64,
    /// The sequence that comes next.
    pub(in crate::tables) next: u64,
    pub(in crate::tables) digest: Digest,
}

/// The tables have ended in order: all that was committed is on disk. The feed had this epoch, 0 if there was none.
pub(in crate::tables) fn put_end(records: &mut EncodedRecords, number: u64, epoch: u64, lives: &[EndedLife]) {
    let mut body = epoch.to_le_bytes().to_vec();
    for EndedLife { incarnation, of_feed, next, digest } in lives {
        [*incarnation, *of_feed, *next, digest.elements, digest.sum]
            .iter()
            .for_each(|field| body.extend(field.to_le_bytes()));
    }
    records.put(Space::Tables, [&TableHead { incarnation: END, number }.encode(), &[]], &body);
}

/// The epoch and the lives. `None`: no server has written them.
pub(in crate::tables) fn decode_end(body: &[u8]) -> Option<(u64, Vec<EndedLife>)> {
    let mut fields = ByteReader::new(body);
    let epoch = fields.u64_le()?;
    let mut lives = Vec::new();
    while !fields.is_empty() {
        let (incarnation, of_feed, next) = (fields.u64_le()?, fields.u64_le()?, fields.u64_le()?);
        let digest = Digest { elements: fields.u64_le()?, sum: fields.u64_le()? };
        lives.push(EndedLife { incarnation, of_feed, next, digest });
    }
    Some((epoch, lives))
}

/// A table is gone.
pub(in crate::tables) fn remove_table(records: &mut EncodedRecords, head: TableHead) {
    records.remove(Space::Tables, [&head.encode(), &[]]);
}

/// The bytes of the records when a table is replaced, at most. 0: it is not durable.
pub(in crate::tables) fn table_record_bytes(table: &Table) -> usize {
    let bytes = 2 * EncodedRecords::bytes_of(TABLE_HEAD, 1 + table.announced_name().len());
    if table.is_durable() { bytes } else { 0 }
}

/// Durability and name of a table. `None`: no server has written them.
pub(in crate::tables) fn decode_table(body: &[u8]) -> Option<(Durability, &[u8])> {
    let (durability, name) = body.split_first()?;
    Some((Durability::of_number(*durability)?, name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn a_head_is_decoded_as_it_was_encoded() {
        let head = ElementHead { incarnation: 7, version: u64::MAX >> 5, deadline: 1 << 43, cause: Cause::CopyTo };
        let key = [&head.encode()[..], b"key"].concat();
        assert_eq!(ElementHead::decode(&key), Some((head, &b"key"[..])));
        assert_eq!(ElementHead::decode(&key[..ELEMENT_HEAD - 1]), None);
        let table = TableHead { incarnation: 1, number: 2 };
        assert_eq!(TableHead::decode(&table.encode()), Some(table));
        assert_eq!(TableHead::decode(&key), None);
        assert_eq!(decode_table(b"\x02birds\0"), Some((Durability::Always, &b"birds\0"[..])));
        assert_eq!((decode_table(b""), decode_table(b"\x03x")), (None, None));
    }

    #[test]
    fn an_end_is_decoded_as_it_was_encoded() {
        let lives = [1, 2].map(|number| EndedLife {
            incarnation: number,
            of_feed: 5 * number,
            next: 10 * number,
            digest: Digest { elements: 100 * number, sum: u64::MAX - number },
        });
        let mut body = 7_u64.to_le_bytes().to_vec();
        assert_eq!(decode_end(&body), Some((7, Vec::new())));
        body.extend(
            [1_u64, 5, 10, 100, u64::MAX - 1, 2, 10, 20, 200, u64::MAX - 2].map(u64::to_le_bytes).as_flattened(),
        );
        assert_eq!(decode_end(&body), Some((7, lives.to_vec())));
        assert_eq!((decode_end(&body[..87]), decode_end(b"")), (None, None));
    }
}
