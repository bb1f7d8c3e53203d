//! The bytes of a segment. All integers are little-endian, all checksums are XXH3-64.
//!
//! ```text
//! segment   0        magic:8 format:u32 number:u32 store:16 nonce:16 size:u64 first:u64           up to 504: zeros
//!           504      checksum:u64 of the 504 bytes before it, in every format
//!           512      batch, at a multiple of 512 bytes
//!           …        batch …
//!
//! batch     0        nonce:16 segment:u32 oldest:u32 offset:u64 number:u64 table:u64 bodies:u64 synced:u64
//!                    marks:4×u64 checksum:u64                                                     104 bytes
//!           104      table: records …, checksum:u64                     `table` is its length with the checksum
//!           …        bodies, one after the other                        up to the next multiple of 512: zeros
//!
//! record    kind:u8 space:u8 key:u16 body:u32 checksum:u64 (of the body), key
//! kind      0 bytes, 1 removed, 2 set aside: its bytes are lost
//! ```
//! `first` is the number of the segment's first batch. It is known before that batch is written, so the segment before
//! ends in front of it even if that batch is damaged.
//! `synced` is the number of the last batch that was known to be on disk when this one was written. `oldest` is the
//! oldest segment that is still in use. A batch belongs to its segment only if nonce, segment number and offset match:
//! bytes of another file, or of an earlier use of the same blocks, never do.
//!
//! This module reads and writes no file.

use xxhash_rust::xxh3::xxh3_64;

/// The kinds of records. Each has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// A few records about the others.
    Meta = 0,
    /// Small records that are all read when the store is opened.
    Tasks = 1,
    /// Records of any size, read one by one.
    Values = 2,
}

impl Space {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Meta, Self::Tasks, Self::Values];

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|space| *space as u8 == number)
    }
}

/// The state of a record, as its table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It has a body.
    Bytes = 0,
    /// It is no longer there.
    Removed = 1,
    /// It is there, and its bytes are lost.
    SetAside = 2,
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
pub(super) const FORMAT: u32 = 1;
/// The length of a batch's head.
pub(super) const BATCH_HEAD: usize = 104;
/// The length of a checksum.
pub(super) const CHECKSUM: usize = 8;
/// The length of a record's fixed part in the table.
pub(super) const RECORD_HEAD: usize = 16;
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
    pub(super) nonce: [u8; 16],
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) number: u64,
    /// The length of the table, with its checksum.
    pub(super) table: u64,
    /// The length of all bodies.
    pub(super) bodies: u64,
    pub(super) synced: u64,
    pub(super) oldest: u32,
    pub(super) marks: Marks,
}

/// A record in the table of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead<'b> {
    pub(super) kind: Kind,
    pub(super) space: Space,
    pub(super) key: &'b [u8],
    /// The length of its body.
    pub(super) body: u32,
    pub(super) checksum: u64,
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

impl SegmentHead {
    /// The first sector of the segment.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(index(SECTOR));
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.store);
        bytes.extend(self.nonce);
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.first.to_le_bytes());
        bytes.resize(index(SECTOR) - CHECKSUM, 0);
        seal(&mut bytes, 0);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeadFault> {
        let mut fields = Fields(bytes);
        let magic: Option<[u8; 8]> = fields.take();
        let version = fields.u32();
        // The checksum comes first: a version is another one only if its bytes are right.
        if magic != Some(MAGIC) || !is_sealed(bytes, index(SECTOR)) {
            return Err(HeadFault::Damaged);
        }
        match version {
            Some(FORMAT) => {}
            Some(other) => return Err(HeadFault::Version(other)),
            None => return Err(HeadFault::Damaged),
        }
        let read = |fields: &mut Fields<'_>| {
            let number = fields.u32()?;
            let (store, nonce) = (fields.take()?, fields.take()?);
            let head = Self { number, store, nonce, size: fields.u64()?, first: fields.u64()? };
            (head.size <= SEGMENT_BYTES_MAX && head.first > 0).then_some(head)
        };
        read(&mut fields).ok_or(HeadFault::Damaged)
    }
}

impl BatchHead {
    /// The number of bytes from the start of this batch to the start of the next one.
    pub(super) fn length(&self) -> u64 {
        align(BATCH_HEAD as u64 + self.table + self.bodies)
    }

    /// Appends the head to `bytes`.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
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
        let mut fields = Fields(bytes);
        let nonce = fields.take()?;
        if nonce != segment.nonce {
            return None;
        }
        let head = Self {
            nonce,
            segment: fields.u32()?,
            oldest: fields.u32()?,
            offset: fields.u64()?,
            number: fields.u64()?,
            table: fields.u64()?,
            bodies: fields.u64()?,
            synced: fields.u64()?,
            marks: [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?],
        };
        let room = segment.size.checked_sub(offset)?;
        let is_here = head.segment == segment.number && head.offset == offset && is_sealed(bytes, BATCH_HEAD);
        let fits = head.table >= CHECKSUM as u64 && head.table <= room && head.bodies <= room && head.length() <= room;
        (is_here && fits).then_some(head)
    }
}

impl<'b> RecordHead<'b> {
    /// Appends the record to a table.
    ///
    /// # Panics
    /// If the key has more than 65,535 bytes.
    pub(super) fn encode(&self, table: &mut Vec<u8>) {
        table.push(self.kind as u8);
        table.push(self.space as u8);
        table.extend(u16::try_from(self.key.len()).expect("a key has at most 65,535 bytes").to_le_bytes());
        table.extend(self.body.to_le_bytes());
        table.extend(self.checksum.to_le_bytes());
        table.extend(self.key);
    }

    pub(super) fn decode(fields: &mut Fields<'b>) -> Option<Self> {
        let [kind, space] = fields.take()?;
        let key = usize::from(fields.u16()?);
        let (body, checksum) = (fields.u32()?, fields.u64()?);
        let kind = [Kind::Bytes, Kind::Removed, Kind::SetAside].into_iter().find(|known| *known as u8 == kind)?;
        let fits = kind == Kind::Bytes || body == 0;
        fits.then_some(())?;
        Some(Self { kind, space: Space::from_number(space)?, key: fields.bytes(key)?, body, checksum })
    }
}

/// The records of a table, each with the offset of its body from the first body. `None`: the table is damaged.
pub(super) fn records<'b>(table: &'b [u8], bodies: u64) -> Option<Vec<(RecordHead<'b>, u64)>> {
    if !is_sealed(table, table.len()) {
        return None;
    }
    let mut fields = Fields(table.get(..table.len().checked_sub(CHECKSUM)?)?);
    let (mut records, mut at) = (Vec::new(), 0_u64);
    while !fields.0.is_empty() {
        let record = RecordHead::decode(&mut fields)?;
        records.push((record, at));
        at += u64::from(record.body);
    }
    (at == bodies).then_some(records)
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

/// Bytes from which fields are taken, first to last.
pub(super) struct Fields<'b>(pub(super) &'b [u8]);

impl<'b> Fields<'b> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}
