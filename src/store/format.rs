//! The bytes of a segment. All integers are little-endian, all checksums are XXH3-64.
//!
//! ```text
//! segment   0        magic:8 format:u32 number:u32 store:16 nonce:16 size:u64 first:u64
//!           64       checksum:u64 of the bytes before it
//!           72       the gaps before it, twice; see `gaps.rs`                                     up to 504: zeros
//!           504      checksum:u64 of the 504 bytes before it, in every format
//!           512      batch, at a multiple of 512 bytes
//!           …        batch …
//!
//! batch     0        store:16 nonce:16 segment:u32 oldest:u32 offset:u64 number:u64 table:u64 bodies:u64 synced:u64
//!                    marks:4×u64 checksum:u64                                                     120 bytes
//!           512      in a batch of more than 16 KiB: the head again, and zeros before it
//!           …        table: pieces of 4,096 bytes, the last one shorter; see `table.rs`
//!           …        bodies, one after the other                        up to the next multiple of 512: zeros
//!
//! record    kind:u4 bodies:u4 space:u8 key:u16, of each body: length:u32 checksum:u64; then the key
//! kind      0 bytes, 1 removed, 2 set aside: its bytes are lost
//! ```
//! `first` is the number of the segment's first batch. It is known before the first batch is written, so the segment
//! before ends in front of this batch even if the batch is damaged. `synced` is the number of the last batch that was
//! known to be on disk when this one was written. `oldest` is the oldest segment that is still in use. A batch belongs
//! to its segment only if store, nonce, segment number and offset match: bytes of another file, or of an earlier use of
//! the same blocks, never do. A segment's head that is damaged is made anew from them; see `opening/heads.rs`. A head
//! costs nothing while the other one of its batch is right.
//!
//! # What a later version may write
//!
//! The format has room for records that this version does not write: up to 15 bodies, 13 more kinds, and 250 more
//! spaces. A second body of a task is the reason beside its value. None of this changes the layout, so the version stays.
//! A server that finds a record of an unknown kind refuses the folder with a sentence of its own, and never counts the
//! record as damage.
//!
//! This module reads and writes no file.

use crate::byte_reader::ByteReader;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// How the owner of a log knows which record counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// The later record of a key does, and the owner knows its place. Closed segments get summaries.
    States,
    /// The owner judges each record by its key. The owner's memory may be newer than the disk. So only the oldest segment is
    /// cleaned, and the segment goes two epochs after its cleaning has ended. There are no summaries: they would have nearly
    /// all bytes of their segments.
    Effects,
}

/// The kinds of records. Each has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// A few records about the others.
    Meta = 0,
    /// Small records that are all read when the store is opened.
    Tasks = 1,
    /// Records of any size, read one by one.
    Values = 2,
    /// In a log of effects: what became of a table.
    Tables = 3,
    /// What became of an element, with its value.
    Elements = 4,
    /// What became of an element that kept its value.
    Touches = 5,
}

impl Space {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Meta, Self::Tasks, Self::Values, Self::Tables, Self::Elements, Self::Touches];

    /// Whether it is one of a log of effects.
    #[must_use]
    pub fn is_of_effects(self) -> bool {
        matches!(self, Self::Tables | Self::Elements | Self::Touches)
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|space| *space as u8 == number)
    }
}

/// The state of a record, as its table says. The first four bits of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It has a body.
    Bytes = 0,
    /// It is no longer there.
    Removed = 1,
    /// It is there, and its bytes are lost.
    SetAside = 2,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Bytes, Self::Removed, Self::SetAside];
}

/// The unit of alignment, in bytes. No disk tears a smaller one.
pub(super) const SECTOR: u64 = 512;
/// The first bytes of a segment.
const MAGIC: [u8; 8] = *b"spindle\n";
/// The largest segment: offsets in it have 32 bits.
pub(super) const SEGMENT_BYTES_MAX: u64 = align_down(u32::MAX as u64);
/// The largest batch, which has a segment of its own.
pub(super) const BATCH_BYTES_MAX: u64 = SEGMENT_BYTES_MAX - SECTOR;
/// The version of this format.
pub(super) const FORMAT: u32 = 2;
/// The length of a segment's head with its own checksum.
const SEGMENT_HEAD: usize = 72;
/// The length of a batch's head.
pub(super) const BATCH_HEAD: usize = 120;
/// The length of both heads of a batch, with what is between them.
pub(super) const BATCH_HEADS: u64 = SECTOR + BATCH_HEAD as u64;
/// The length of the longest batch with one head. If it is damaged, about as much is lost as with a piece of a table.
const ONE_HEAD_MAX: u64 = 16 << 10;
/// The length of a checksum.
pub(super) const CHECKSUM: usize = 8;
/// The number of high-water marks.
pub(super) const MARKS: usize = 4;

/// The values that the log keeps in every head. They only grow.
pub type Marks = [u64; MARKS];

/// The head of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHead {
    pub(super) store: [u8; 16],
    pub(super) number: u32,
    pub(super) nonce: [u8; 16],
    pub(super) size: u64,
    /// The number of its first batch.
    pub(super) first: u64,
}

/// The reason why a segment's head cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadFault {
    /// The bytes are no head.
    Damaged,
    /// Another version of this format.
    Version(u32),
}

/// The head of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchHead {
    pub(super) store: [u8; 16],
    pub(super) nonce: [u8; 16],
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) number: u64,
    /// The length of the table, with all pieces' heads.
    pub(super) table: u64,
    /// The length of all bodies.
    pub(super) bodies: u64,
    pub(super) synced: u64,
    pub(super) oldest: u32,
    pub(super) marks: Marks,
}

/// The next multiple of [`SECTOR`].
pub(super) fn align(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR)
}

const fn align_down(bytes: u64) -> u64 {
    bytes - bytes % SECTOR
}

/// A number of bytes in memory.
pub(super) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// A checksum that the same bytes have only with this seed.
pub(super) fn checksum_at(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

impl SegmentHead {
    /// The first sector of the segment, with the lists of gaps.
    pub(super) fn encode(&self, gaps: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(index(SECTOR));
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.store);
        bytes.extend(self.nonce);
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.first.to_le_bytes());
        seal(&mut bytes, 0);
        bytes.extend(gaps);
        bytes.resize(index(SECTOR) - CHECKSUM, 0);
        seal(&mut bytes, 0);
        bytes
    }

    /// Whether all bytes of the first sector are right, those that say nothing included.
    pub(super) fn is_whole(bytes: &[u8]) -> bool {
        is_sealed(bytes, index(SECTOR))
    }

    /// The lists of gaps in the first sector.
    pub(super) fn gaps(bytes: &[u8]) -> &[u8] {
        bytes.get(SEGMENT_HEAD..).unwrap_or_default()
    }

    /// Reads the first sector. Its gaps and zeros may be damaged.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeadFault> {
        let mut fields = ByteReader::new(bytes);
        let magic: Option<[u8; 8]> = fields.array();
        let version = fields.u32_le();
        let is_whole = Self::is_whole(bytes);
        // Of another version only the last checksum is known, and a version is another one only if its bytes are right.
        let is_own = version == Some(FORMAT) && is_sealed(bytes, SEGMENT_HEAD);
        if magic != Some(MAGIC) || !(is_whole || is_own) {
            return Err(HeadFault::Damaged);
        }
        match version {
            Some(FORMAT) => {}
            Some(other) => return Err(HeadFault::Version(other)),
            None => return Err(HeadFault::Damaged),
        }
        let read = |fields: &mut ByteReader<'_>| {
            let number = fields.u32_le()?;
            let (store, nonce) = (fields.array()?, fields.array()?);
            let head = Self { number, store, nonce, size: fields.u64_le()?, first: fields.u64_le()? };
            (head.size <= SEGMENT_BYTES_MAX && head.first > 0).then_some(head)
        };
        read(&mut fields).ok_or(HeadFault::Damaged)
    }
}

/// The length of what stands before the table in a batch with a table and bodies of these lengths.
fn heads_length(table: u64, bodies: u64) -> u64 {
    let is_long = BATCH_HEAD as u64 + table + bodies > ONE_HEAD_MAX;
    if is_long { BATCH_HEADS } else { BATCH_HEAD as u64 }
}

/// The length of a batch with a table and bodies of these lengths.
pub(super) fn batch_length(table: u64, bodies: u64) -> u64 {
    align(heads_length(table, bodies) + table + bodies)
}

impl BatchHead {
    /// The number of bytes from the start of this batch to the start of the next one.
    pub(super) fn length(&self) -> u64 {
        batch_length(self.table, self.bodies)
    }

    /// Whether a copy of this head stands one sector behind it.
    pub(super) fn is_twice(&self) -> bool {
        heads_length(self.table, self.bodies) > BATCH_HEAD as u64
    }

    /// The offset of the table in the segment.
    pub(super) fn table_at(&self) -> u64 {
        self.offset + heads_length(self.table, self.bodies)
    }

    /// The offset of the first body in the segment.
    pub(super) fn bodies_at(&self) -> u64 {
        self.table_at() + self.table
    }

    /// Appends what stands before the table.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        self.encode_once(bytes);
        if self.is_twice() {
            bytes.resize(start + index(SECTOR), 0);
            self.encode_once(bytes);
        }
    }

    fn encode_once(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend(self.store);
        bytes.extend(self.nonce);
        bytes.extend(self.segment.to_le_bytes());
        bytes.extend(self.oldest.to_le_bytes());
        for number in [self.offset, self.number, self.table, self.bodies, self.synced] {
            bytes.extend(number.to_le_bytes());
        }
        self.marks.iter().for_each(|mark| bytes.extend(mark.to_le_bytes()));
        seal(bytes, start);
    }

    /// Reads the head of a batch at `offset` of this segment. `None` if there is none. Takes constant time.
    pub(super) fn decode(bytes: &[u8], segment: &SegmentHead, offset: u64) -> Option<Self> {
        let mut fields = ByteReader::new(bytes);
        if (fields.array()?, fields.array()?) != (segment.store, segment.nonce) {
            return None;
        }
        Self::decode_alone(bytes, segment.number, offset, segment.size)
    }

    /// Reads the head of a batch in any segment of this number and size. Bytes of clients may look like one.
    pub(super) fn decode_alone(bytes: &[u8], segment: u32, offset: u64, size: u64) -> Option<Self> {
        let mut fields = ByteReader::new(bytes);
        let head = Self {
            store: fields.array()?,
            nonce: fields.array()?,
            segment: fields.u32_le()?,
            oldest: fields.u32_le()?,
            offset: fields.u64_le()?,
            number: fields.u64_le()?,
            table: fields.u64_le()?,
            bodies: fields.u64_le()?,
            synced: fields.u64_le()?,
            marks: [fields.u64_le()?, fields.u64_le()?, fields.u64_le()?, fields.u64_le()?],
        };
        let room = size.checked_sub(offset)?;
        let is_here = head.segment == segment && head.offset == offset && is_sealed(bytes, BATCH_HEAD);
        let fits = head.table <= room && head.bodies <= room && head.length() <= room;
        (is_here && fits).then_some(head)
    }
}

/// Appends the checksum of all bytes from `start` on.
pub(super) fn seal(bytes: &mut Vec<u8>, start: usize) {
    let sum = checksum(bytes.get(start..).unwrap_or_default());
    bytes.extend(sum.to_le_bytes());
}

/// Whether the first `length` bytes end with their checksum.
pub(super) fn is_sealed(bytes: &[u8], length: usize) -> bool {
    let Some(body) = length.checked_sub(CHECKSUM) else { return false };
    let sum = bytes.get(body..length).and_then(|sum| sum.try_into().ok()).map(u64::from_le_bytes);
    sum.is_some() && bytes.get(..body).map(checksum) == sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_segment_bears_damage_where_it_says_nothing() {
        let head = SegmentHead { store: [1; 16], number: 7, nonce: [2; 16], size: 1 << 20, first: 9 };
        let bytes = head.encode(&[]);
        assert_eq!((bytes.len() as u64, SegmentHead::decode(&bytes)), (SECTOR, Ok(head)));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged.get_mut(at).into_iter().for_each(|byte| *byte ^= 1);
            let expected = if at < SEGMENT_HEAD { Err(HeadFault::Damaged) } else { Ok(head) };
            assert_eq!(SegmentHead::decode(&damaged), expected, "byte {at}");
            assert!(!SegmentHead::is_whole(&damaged), "byte {at}");
        }
    }

    #[test]
    fn another_version_is_known_by_the_last_checksum() {
        let head = SegmentHead { store: [1; 16], number: 7, nonce: [2; 16], size: 1 << 20, first: 9 };
        for version in [1, 3] {
            let mut bytes = head.encode(&[]);
            bytes.truncate(index(SECTOR) - CHECKSUM);
            bytes.get_mut(8).into_iter().for_each(|byte| *byte = version);
            // The other version may have any bytes here.
            bytes.get_mut(70).into_iter().for_each(|byte| *byte ^= 1);
            seal(&mut bytes, 0);
            assert_eq!(SegmentHead::decode(&bytes), Err(HeadFault::Version(u32::from(version))));
        }
    }
}
