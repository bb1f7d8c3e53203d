//! The table of a batch: its records, in pieces that are damaged one by one.
//!
//! ```text
//! piece     0        first:u32 body:u32 checksum:u64
//!           16       records: the next 4,080 bytes of them, fewer in the last piece
//! ```
//! Records stand one behind the other, across the pieces. `first` says where the first one begins that begins in the
//! piece or behind it, counted from the first byte of records in the piece. `body` is the offset of the first body of
//! that record, counted from the first body of the batch. So a piece that is damaged costs the records of which a byte
//! is in it, and all others are found. The checksum is of all other bytes of the piece. Its seed is of the nonce and of
//! the place in the segment, so a piece is right in one place of one segment alone.
//!
//! The bytes of a record are drawn in `format.rs`. This module reads and writes no file.

use std::borrow::Cow;

use super::format::{BATCH_HEADS, BatchHead, Kind, SECTOR, Space, checksum, checksum_at};
use crate::byte_reader::ByteReader;

/// The length of a piece.
pub(super) const PIECE: usize = 4_096;
/// The length of the head of a piece.
pub(super) const PIECE_HEAD: usize = 16;
/// The bytes of records in a piece.
pub(super) const PIECE_RECORDS: usize = PIECE - PIECE_HEAD;
/// The length of a record without its bodies' heads and its key.
pub(super) const RECORD_HEAD: usize = 4;
/// The length of a body's head.
pub(super) const BODY_HEAD: usize = 12;
/// The most bodies of a record.
pub(super) const BODIES_MAX: usize = 15;

/// A record in the table of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead<'b> {
    pub(super) kind: Kind,
    pub(super) space: Space,
    pub(super) key: &'b [u8],
    pub(super) bodies: BodyHeads<'b>,
}

/// The length of a body, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BodyHead {
    pub(super) length: u32,
    pub(super) checksum: u64,
}

/// The heads of the bodies of a record, as they stand in its table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BodyHeads<'b>(&'b [u8]);

/// The reason why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordFault {
    /// They end within it.
    Cut,
    /// A later version has written it.
    Unknown,
}

/// The length of a table whose records have so many bytes.
pub(super) fn table_length(records: u64) -> u64 {
    records + records.div_ceil(PIECE_RECORDS as u64) * PIECE_HEAD as u64
}

/// The bytes of records and bodies for which a batch of this length has room, however many they are.
pub(super) fn records_within(batch: u64) -> u64 {
    let rest = batch.saturating_sub(BATCH_HEADS + SECTOR + PIECE_HEAD as u64);
    rest.saturating_sub(rest.div_ceil(PIECE as u64) * PIECE_HEAD as u64)
}

/// Records on their way into a table.
#[derive(Debug, Default)]
pub(super) struct TableRecords {
    bytes: Vec<u8>,
    /// `first` and `body` of each piece.
    pieces: Vec<PieceStart>,
    /// The bytes of all bodies.
    bodies: u64,
}

/// What the head of a piece says of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PieceStart {
    first: u32,
    body: u32,
}

impl PieceStart {
    /// Segments are too small for larger numbers.
    fn new(first: usize, body: u64) -> Self {
        Self { first: u32::try_from(first).unwrap_or(u32::MAX), body: u32::try_from(body).unwrap_or(u32::MAX) }
    }
}

impl TableRecords {
    /// No record, with memory for so many bytes of them.
    pub(super) fn with_bytes(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds a record. Returns the offset of its first body from the first one of the batch.
    pub(super) fn add(&mut self, record: &RecordHead<'_>) -> u64 {
        let body = self.bodies;
        self.begin(self.bytes.len() / PIECE_RECORDS + 1);
        record.encode(&mut self.bytes);
        self.bodies += record.bodies.bytes();
        body
    }

    /// Adds encoded records.
    pub(super) fn append(&mut self, heads: &[u8]) {
        let mut rest = ByteReader::new(heads);
        while let (before, Ok(record)) = (rest.rest(), RecordHead::decode(&mut rest)) {
            self.begin(self.bytes.len() / PIECE_RECORDS + 1);
            self.bytes.extend_from_slice(before.get(..before.len() - rest.rest().len()).unwrap_or_default());
            self.bodies += record.bodies.bytes();
        }
    }

    /// Has at least so many pieces. The next record is the first one in those that are new.
    fn begin(&mut self, pieces: usize) {
        for piece in self.pieces.len()..pieces {
            self.pieces.push(PieceStart::new(self.bytes.len() - piece * PIECE_RECORDS, self.bodies));
        }
    }

    /// Appends the table to the heads of its batch.
    pub(super) fn encode(mut self, head: &BatchHead, to: &mut Vec<u8>) {
        self.begin(self.bytes.len().div_ceil(PIECE_RECORDS));
        for (index, (records, start)) in self.bytes.chunks(PIECE_RECORDS).zip(&self.pieces).enumerate() {
            let sum = piece_checksum(head, index, *start, records);
            to.extend(start.first.to_le_bytes());
            to.extend(start.body.to_le_bytes());
            to.extend(sum.to_le_bytes());
            to.extend(records);
        }
    }
}

/// The checksum of a piece. Both numbers of its head are in the seed.
fn piece_checksum(head: &BatchHead, index: usize, start: PieceStart, records: &[u8]) -> u64 {
    let place = head.table_at() + (index * PIECE) as u64;
    let numbers = u64::from(start.first) << 32 | u64::from(start.body);
    let mut seed = [0; 32];
    let nonce = ByteReader::new(&head.nonce).u64_le().unwrap_or_default();
    for (to, number) in seed.chunks_exact_mut(8).zip([nonce, head.number, place, numbers]) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    checksum_at(records, checksum(&seed))
}

/// A table that was read.
#[derive(Debug)]
pub(super) struct BatchTable<'b> {
    /// The records of all pieces. Those of a damaged piece are any bytes.
    records: Cow<'b, [u8]>,
    /// `None` for a damaged piece.
    pieces: Vec<Option<PieceStart>>,
    at: u64,
    bodies: u64,
}

/// The records of a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FoundRecords<'t> {
    /// Each with the offset of its first body from the first one of the batch.
    pub(super) records: Vec<(RecordHead<'t>, u64)>,
    /// The offsets in the segment of the pieces that are damaged.
    pub(super) damaged: Vec<u64>,
}

impl<'b> BatchTable<'b> {
    /// Reads the pieces of a batch's table.
    pub(super) fn new(head: &BatchHead, bytes: &'b [u8]) -> Self {
        let parts = || bytes.chunks(PIECE).map(|piece| piece.split_at_checked(PIECE_HEAD).unwrap_or_default());
        let start = |(index, (numbers, records)): (usize, (&[u8], &[u8]))| {
            let mut fields = ByteReader::new(numbers);
            let (start, sum) = (PieceStart { first: fields.u32_le()?, body: fields.u32_le()? }, fields.u64_le()?);
            (piece_checksum(head, index, start, records) == sum).then_some(start)
        };
        let pieces = parts().enumerate().map(start).collect();
        let records = match bytes.len() <= PIECE {
            true => Cow::Borrowed(bytes.get(PIECE_HEAD..).unwrap_or_default()),
            false => Cow::Owned(parts().flat_map(|(_, records)| records).copied().collect()),
        };
        Self { records, pieces, at: head.table_at(), bodies: head.bodies }
    }

    /// The records that are right, in their order.
    ///
    /// # Errors
    /// [`RecordFault::Unknown`] if a later version has written one.
    pub(super) fn records(&self) -> Result<FoundRecords<'_>, RecordFault> {
        let mut found = FoundRecords::default();
        let mut piece = 0;
        while let Some(start) = self.pieces.get(piece) {
            let Some(start) = *start else {
                found.damaged.push(self.at + (piece * PIECE) as u64);
                piece += 1;
                continue;
            };
            let rest = self.pieces.get(piece..).unwrap_or_default();
            let end = piece + rest.iter().take_while(|piece| piece.is_some()).count();
            if !self.run(piece, end, start, &mut found.records)? {
                found.damaged.push(self.at + (piece * PIECE) as u64);
            }
            piece = end;
        }
        Ok(found)
    }

    /// Reads the records of pieces that are right. False: they do not fit to the head of the batch.
    fn run<'t>(
        &'t self,
        piece: usize,
        end: usize,
        start: PieceStart,
        records: &mut Vec<(RecordHead<'t>, u64)>,
    ) -> Result<bool, RecordFault> {
        let is_last = end == self.pieces.len();
        let to = if is_last { self.records.len() } else { end * PIECE_RECORDS };
        let from = piece * PIECE_RECORDS + start.first as usize;
        let mut fields = ByteReader::new(self.records.get(from..to).unwrap_or_default());
        let mut body = u64::from(start.body);
        while !fields.is_empty() {
            let record = match RecordHead::decode_known(&mut fields) {
                Ok(record) => record,
                // Its other bytes are in a damaged piece.
                Err(RecordFault::Cut) => return Ok(!is_last),
                Err(RecordFault::Unknown) => return Err(RecordFault::Unknown),
            };
            let next = body + record.bodies.bytes();
            if next > self.bodies {
                return Ok(false);
            }
            records.push((record, body));
            body = next;
        }
        Ok(!is_last || body == self.bodies)
    }
}

impl BodyHead {
    pub(super) fn encode(self) -> [u8; BODY_HEAD] {
        let [a, b, c, d] = self.length.to_le_bytes();
        let [e, f, g, h, i, j, k, l] = self.checksum.to_le_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }
}

impl<'b> BodyHeads<'b> {
    /// The heads of these encoded bodies, of which there are at most [`BODIES_MAX`].
    pub(super) fn of(encoded: &'b [u8]) -> Self {
        debug_assert!(encoded.len().is_multiple_of(BODY_HEAD) && encoded.len() <= BODIES_MAX * BODY_HEAD);
        Self(encoded)
    }

    /// The number of bodies.
    pub(super) fn len(self) -> usize {
        self.0.len() / BODY_HEAD
    }

    /// The first one, or a body without bytes.
    pub(super) fn first(self) -> BodyHead {
        self.each().next().unwrap_or_default()
    }

    /// The bytes of all bodies.
    pub(super) fn bytes(self) -> u64 {
        self.each().map(|body| u64::from(body.length)).sum()
    }

    pub(super) fn each(self) -> impl Iterator<Item = BodyHead> + 'b {
        self.0.chunks_exact(BODY_HEAD).filter_map(|head| {
            let mut fields = ByteReader::new(head);
            Some(BodyHead { length: fields.u32_le()?, checksum: fields.u64_le()? })
        })
    }
}

impl<'b> RecordHead<'b> {
    /// Appends the record to a table.
    ///
    /// # Panics
    /// If the key has more than 65,535 bytes.
    pub(super) fn encode(&self, table: &mut Vec<u8>) {
        // At most 15, so the shift loses nothing.
        let bodies = u8::try_from(self.bodies.len().min(BODIES_MAX)).unwrap_or_default() << 4;
        table.push(self.kind as u8 | bodies);
        table.push(self.space as u8);
        table.extend(u16::try_from(self.key.len()).expect("a key has at most 65,535 bytes").to_le_bytes());
        table.extend(self.bodies.0);
        table.extend(self.key);
    }

    /// Reads a record of any number of bodies.
    pub(super) fn decode(fields: &mut ByteReader<'b>) -> Result<Self, RecordFault> {
        let [first, space] = fields.array().ok_or(RecordFault::Cut)?;
        let known = Kind::ALL.into_iter().find(|known| *known as u8 == first & 0xf);
        let (kind, space) = known.zip(Space::from_number(space)).ok_or(RecordFault::Unknown)?;
        let mut rest = || {
            let key = usize::from(fields.u16_le()?);
            let bodies = fields.take(usize::from(first >> 4) * BODY_HEAD)?;
            Some(Self { kind, space, bodies: BodyHeads(bodies), key: fields.take(key)? })
        };
        rest().ok_or(RecordFault::Cut)
    }

    /// Reads a record that this version could have written: one body, or none if there are no bytes.
    pub(super) fn decode_known(fields: &mut ByteReader<'b>) -> Result<Self, RecordFault> {
        let record = Self::decode(fields)?;
        let is_known = record.bodies.len() == usize::from(record.kind == Kind::Bytes);
        is_known.then_some(record).ok_or(RecordFault::Unknown)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;
    use crate::store::format::batch_length;

    #[test]
    fn a_record_has_up_to_fifteen_bodies_and_the_longest_key() {
        let key = vec![7; usize::from(u16::MAX)];
        for count in 0..=15_u32 {
            let heads: Vec<BodyHead> =
                (0..count).map(|at| BodyHead { length: at * 100, checksum: u64::from(at) << 40 }).collect();
            let encoded: Vec<u8> = heads.iter().flat_map(|head| head.encode()).collect();
            for kind in Kind::ALL {
                let bodies = BodyHeads::of(&encoded);
                let record = RecordHead { kind, space: Space::Tasks, key: &key, bodies };
                let mut bytes = Vec::new();
                record.encode(&mut bytes);
                assert_eq!(bytes.len(), RECORD_HEAD + BODY_HEAD * count as usize + key.len());
                let mut fields = ByteReader::new(&bytes);
                assert_eq!(RecordHead::decode(&mut fields), Ok(record));
                assert!(fields.is_empty() && record.bodies.each().eq(heads.iter().copied()));
                let is_known = count == u32::from(kind == Kind::Bytes);
                let known = RecordHead::decode_known(&mut ByteReader::new(&bytes));
                assert_eq!(known, if is_known { Ok(record) } else { Err(RecordFault::Unknown) });
                bytes.pop();
                assert_eq!(RecordHead::decode(&mut ByteReader::new(&bytes)), Err(RecordFault::Cut));
            }
        }
        for unknown in [[3, 0, 0, 0], [0, 6, 0, 0]] {
            assert_eq!(RecordHead::decode(&mut ByteReader::new(&unknown)), Err(RecordFault::Unknown));
        }
    }

    /// A batch of records with keys of these lengths, each with a body of its index in bytes. Returns head and table.
    fn table_of(keys: &[Vec<u8>]) -> (BatchHead, Vec<u8>) {
        let mut records = TableRecords::default();
        let mut bodies = 0;
        for (key, length) in keys.iter().zip(0..) {
            let encoded = BodyHead { length, checksum: 9 }.encode();
            let record = RecordHead { kind: Kind::Bytes, space: Space::Tasks, key, bodies: BodyHeads::of(&encoded) };
            assert_eq!(records.add(&record), bodies);
            bodies += u64::from(length);
        }
        let bytes: usize = keys.iter().map(|key| RECORD_HEAD + BODY_HEAD + key.len()).sum();
        let head = BatchHead {
            store: [1; 16],
            nonce: [2; 16],
            segment: 3,
            offset: 512,
            number: 4,
            table: table_length(bytes as u64),
            bodies,
            synced: 0,
            oldest: 1,
            marks: [0; 4],
        };
        let mut table = Vec::new();
        records.encode(&head, &mut table);
        assert_eq!(table.len() as u64, head.table);
        (head, table)
    }

    fn keys(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
        lengths.into_iter().map(|length| vec![7; length]).collect()
    }

    /// The indexes of the records that are found, each with the offset of its body.
    fn found(head: &BatchHead, table: &[u8]) -> (Vec<usize>, usize) {
        let table = BatchTable::new(head, table);
        let FoundRecords { records, damaged } = table.records().expect("all are known");
        let indexes = records.iter().map(|(record, body)| {
            let index = record.bodies.first().length as usize;
            assert_eq!(*body, (0..index as u64).sum::<u64>());
            index
        });
        (indexes.collect(), damaged.len())
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let longest = usize::from(u16::MAX);
        let of_one_piece = PIECE_RECORDS - RECORD_HEAD - BODY_HEAD;
        for lengths in [
            vec![],
            vec![12; 3],
            vec![12; 1_000],
            vec![of_one_piece; 3],
            vec![of_one_piece + 1; 3],
            vec![longest; 3],
            vec![12, longest, 12, 0, longest],
        ] {
            let keys = keys(lengths);
            let (head, table) = table_of(&keys);
            assert_eq!(found(&head, &table), ((0..keys.len()).collect(), 0));
            let whole = BatchTable::new(&head, &table);
            let read = whole.records().expect("all are known").records;
            assert!(read.iter().map(|(record, _)| record.key).eq(keys.iter().map(|key| &**key)));
        }
    }

    #[test]
    fn a_damaged_piece_costs_the_records_in_it() {
        for lengths in [vec![12; 1_000], vec![500; 60], vec![12, 9_000, 12, 65_535, 12, 12], vec![4_064; 9]] {
            let keys = keys(lengths);
            let (head, table) = table_of(&keys);
            let ends: Vec<usize> = keys
                .iter()
                .scan(0, |end, key| {
                    *end += RECORD_HEAD + BODY_HEAD + key.len();
                    Some(*end)
                })
                .collect();
            let start_of = |index: usize| if index == 0 { 0 } else { ends[index - 1] };
            for at in (0..table.len()).step_by(101) {
                let mut damaged = table.clone();
                damaged[at] ^= 4;
                let piece = at / PIECE;
                let (from, to) = (piece * PIECE_RECORDS, (piece + 1) * PIECE_RECORDS);
                let is_right = |index: &usize| ends[*index] <= from || start_of(*index) >= to;
                let right: Vec<usize> = (0..keys.len()).filter(is_right).collect();
                assert_eq!(found(&head, &damaged), (right, 1), "byte {at}");
            }
        }
    }

    #[test]
    fn a_piece_is_right_in_its_place_alone() {
        let (head, table) = table_of(&keys([12; 1_000]));
        for other in
            [BatchHead { nonce: [3; 16], ..head }, BatchHead { number: 5, ..head }, BatchHead { offset: 1_024, ..head }]
        {
            assert_eq!(found(&other, &table), (vec![], table.len().div_ceil(PIECE)));
        }
        let mut swapped = table[PIECE..2 * PIECE].to_vec();
        swapped.extend(&table[..PIECE]);
        swapped.extend(&table[2 * PIECE..]);
        assert_eq!(found(&head, &swapped).1, 2);
    }

    #[test]
    fn a_batch_has_room_for_the_records_that_are_said_to_fit() {
        for batch in (1..600).map(|sectors| sectors * SECTOR) {
            let most = records_within(batch);
            assert!(batch_length(table_length(most), 0) <= batch || most == 0, "{batch}: {most}");
        }
    }

    #[test]
    fn a_record_of_a_later_version_is_no_damage() {
        let mut records = TableRecords::default();
        let bodies = [BodyHead::default().encode(); 2].concat();
        let record = RecordHead { kind: Kind::Bytes, space: Space::Tasks, key: b"k", bodies: BodyHeads::of(&bodies) };
        records.add(&record);
        let (head, _) = table_of(&[]);
        let mut bytes = Vec::new();
        let head = BatchHead { table: table_length((RECORD_HEAD + bodies.len() + 1) as u64), ..head };
        records.encode(&head, &mut bytes);
        assert_eq!(BatchTable::new(&head, &bytes).records(), Err(RecordFault::Unknown));
    }
}
