//! The messages of the feed: two frames, a topic and a payload.
//!
//! ```text
//! topic     length of the name (1) │ name of the table, without its NUL
//! payload   format (1) = 2 │ type (1) │ epoch (8) │ incarnation (8) │ sequence (8) │ …
//!
//! type 1    CHANGES    count (2), 1–64 │ count × change
//! type 2    BOOKMARK   elements (8) │ digest (8) │ durable (8)
//! type 3    DROPPED    –
//! change    cause (1) │ version (8) │ deadline (8), 0: none │ key: length (2), bytes │ value: length (4), bytes
//! cause     bit 7: the element has a value. The rest is a number: 1 set │ 2 touch │ 3 delete │ 4 expire │ 5 delete with
//!           the table │ 6 compare-and-swap │ 7 increment │ 8 evict │ 9 restore │ 10 append │ 11 persist │
//!           12 set a range │ 13 increment by a float │ 14 rename from │ 15 rename to │ 16 copy to
//! ```
//! Integers are unsigned and big-endian. A subscription to a topic fits one table exactly, because the length comes
//! first.
//!
//! Format 1 had keys with one byte for their length, and causes without bit 7.
//!
//! Decoding borrows from the payload and allocates nothing. It refuses any payload that no server of this format sends,
//! so the fields of a decoded message are within their bounds. A later server may send other causes: of such a cause only
//! bit 7 counts, and it is decoded as set or delete.

use thiserror::Error;

use super::limits::{FEED_CHANGES_MAX, FEED_FRAME_BYTES_MAX};
use crate::byte_reader::ByteReader;
use crate::limits::{KEY_BYTES_MAX, TABLE_NAME_BYTES_MAX, VALUE_BYTES_MAX};

/// The format of the payloads.
const FORMAT: u8 = 2;
/// In the byte of a cause: the element has a value.
const LIVE: u8 = 0x80;
const CHANGES: u8 = 1;
const BOOKMARK: u8 = 2;
const DROPPED: u8 = 3;

/// Bytes of the head of a payload.
const HEAD_BYTES: usize = 2 + 3 * size_of::<u64>();
/// Bytes of a payload of changes before its first change.
pub(crate) const CHANGES_HEAD_BYTES: usize = HEAD_BYTES + size_of::<u16>();
/// Bytes of a change without its key and its value.
pub(crate) const CHANGE_BYTES: usize = 1 + 2 * size_of::<u64>() + size_of::<u16>() + size_of::<u32>();
const _: () = assert!(CHANGES_HEAD_BYTES + CHANGE_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX <= FEED_FRAME_BYTES_MAX);

/// A payload that no server of this format sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{rule}, not {given}")]
pub struct MessageFault {
    /// The rule of the format, with the unit of `given`.
    pub rule: &'static str,
    /// The number that came instead.
    pub given: usize,
}

const fn fault(rule: &'static str, given: usize) -> MessageFault {
    MessageFault { rule, given }
}

/// A place in the feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FeedPosition {
    /// One start of the server.
    pub epoch: u64,
    /// One life of a table under its name. It only grows within an epoch. 0: there is no such table.
    pub incarnation: u64,
    /// The number of a change, from 1 in each incarnation.
    pub sequence: u64,
}

/// The cause of a change. The discriminant is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// A value was stored.
    Set = 1,
    /// A deadline was set, and the value kept.
    Touch = 2,
    /// A client deleted the element.
    Delete = 3,
    /// The deadline has passed.
    Expire = 4,
    /// The element was deleted with its table.
    DeleteWithTable = 5,
    /// A value was stored by a compare-and-swap.
    CompareAndSwap = 6,
    /// The sum of an addition was stored.
    Increment = 7,
    /// The element was removed to make room for others.
    Evict = 8,
    /// The element was stored as it was elsewhere, or at another time.
    Restore = 9,
    /// Bytes were added to the end of the value.
    Append = 10,
    /// The deadline was removed, and the value kept.
    Persist = 11,
    /// A part of the value was replaced.
    SetRange = 12,
    /// The sum of an addition with a fraction was stored.
    IncrementByFloat = 13,
    /// The element went to another key.
    RenameFrom = 14,
    /// The element came from another key.
    RenameTo = 15,
    /// The value was copied from another key.
    CopyTo = 16,
}

impl Cause {
    /// All causes, in the order of their numbers, which begin at 1.
    pub const ALL: [Self; 16] = [
        Self::Set,
        Self::Touch,
        Self::Delete,
        Self::Expire,
        Self::DeleteWithTable,
        Self::CompareAndSwap,
        Self::Increment,
        Self::Evict,
        Self::Restore,
        Self::Append,
        Self::Persist,
        Self::SetRange,
        Self::IncrementByFloat,
        Self::RenameFrom,
        Self::RenameTo,
        Self::CopyTo,
    ];

    /// Whether the element has a value after such a change.
    #[must_use]
    pub const fn is_live(self) -> bool {
        !matches!(self, Self::Delete | Self::Expire | Self::DeleteWithTable | Self::Evict | Self::RenameFrom)
    }

    /// The cause that says no more than that the element has a value, or has none.
    #[must_use]
    pub const fn plain(is_live: bool) -> Self {
        if is_live { Self::Set } else { Self::Delete }
    }

    /// Its byte on the wire: its number, and whether the element has a value.
    const fn byte(self) -> u8 {
        self as u8 | if self.is_live() { LIVE } else { 0 }
    }

    /// The cause of a byte on the wire. One that is not known is the plain one. `None`: it has no number.
    fn of_byte(byte: u8) -> Option<Self> {
        let (number, is_live) = (byte & !LIVE, byte & LIVE != 0);
        let known = Self::of_number(number).filter(|cause| cause.is_live() == is_live);
        (number != 0).then(|| known.unwrap_or(Self::plain(is_live)))
    }

    /// The cause of this number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// One change of one element: its state from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedChange<'m> {
    /// The cause, which says whether the element has a value.
    pub cause: Cause,
    /// The version of the element, or of its deletion.
    pub version: u64,
    /// The deadline, in milliseconds since 1970. `None`: no deadline, or no element.
    pub deadline_millis: Option<u64>,
    /// The key.
    pub key: &'m [u8],
    /// The value. Empty after a deletion.
    pub value: &'m [u8],
}

impl<'m> FeedChange<'m> {
    /// The bytes of its encoding.
    pub(crate) fn bytes(&self) -> usize {
        CHANGE_BYTES + self.key.len() + self.value.len()
    }

    /// Appends its encoding. A key has less than 2^16 bytes, and a value less than 2^32.
    #[inline]
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        // Room is made once: to append each field costs more than to write it.
        let begin = out.len();
        out.resize(begin + self.bytes(), 0);
        let written = out.get_mut(begin..).and_then(|change| self.write(change));
        debug_assert!(written.is_some(), "there is room for each field");
    }

    /// Writes its encoding to `change`, which has as many bytes. `None` if it has not.
    #[inline]
    fn write(&self, change: &mut [u8]) -> Option<()> {
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the limits of keys and values")]
        let (key_length, value_length) = (self.key.len() as u16, self.value.len() as u32);
        let (cause, change) = change.split_first_mut()?;
        let (version, change) = change.split_first_chunk_mut()?;
        let (deadline, change) = change.split_first_chunk_mut()?;
        let (key_bytes, change) = change.split_first_chunk_mut()?;
        let (key, change) = change.split_at_mut_checked(self.key.len())?;
        let (value_bytes, value) = change.split_first_chunk_mut()?;
        *cause = self.cause.byte();
        *version = self.version.to_be_bytes();
        *deadline = self.deadline_millis.unwrap_or(0).to_be_bytes();
        *key_bytes = key_length.to_be_bytes();
        key.copy_from_slice(self.key);
        *value_bytes = value_length.to_be_bytes();
        value.copy_from_slice(self.value);
        Some(())
    }

    fn decode(reader: &mut ByteReader<'m>) -> Result<Self, MessageFault> {
        let left = reader.rest().len();
        let cut = fault("the changes of a message fill it", left);
        let cause = Cause::of_byte(reader.byte().ok_or(cut)?).ok_or(fault("a cause is 1 to 127", 0))?;
        let version = reader.u64_be().ok_or(cut)?;
        let deadline = reader.u64_be().ok_or(cut)?;
        let key = reader.run_u16_be().ok_or(cut)?;
        let value = reader.run_u32_be().ok_or(cut)?;
        if version == 0 {
            return Err(fault("a version is above 0", 0));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(fault("a key has at most 4,096 bytes", key.len()));
        }
        if !cause.is_live() && (deadline != 0 || !value.is_empty()) {
            return Err(fault("a deletion has neither value nor deadline, and 0 bytes", value.len()));
        }
        Ok(Self { cause, version, deadline_millis: (deadline != 0).then_some(deadline), key, value })
    }
}

/// The changes of a message, in their order. An iterator that borrows from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedChanges<'m> {
    count: u16,
    /// Checked: so many changes, and no more bytes.
    bytes: &'m [u8],
}

impl<'m> Iterator for FeedChanges<'m> {
    type Item = FeedChange<'m>;

    fn next(&mut self) -> Option<FeedChange<'m>> {
        let mut reader = ByteReader::new(self.bytes);
        let change = FeedChange::decode(&mut reader).ok()?;
        self.bytes = reader.rest();
        self.count = self.count.saturating_sub(1);
        Some(change)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.count), Some(usize::from(self.count)))
    }
}

impl ExactSizeIterator for FeedChanges<'_> {}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedContent<'m> {
    /// Changes. The position is that of the first.
    Changes(FeedChanges<'m>),
    /// A bookmark: the state after all changes before its position.
    Bookmark {
        /// Elements that were published as live.
        elements: u64,
        /// The digest over them.
        digest: u64,
        /// All changes before this sequence are as durable as the table is.
        durable: u64,
    },
    /// The table was deleted, and no change of this incarnation follows.
    Dropped,
}

/// A payload of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedMessage<'m> {
    /// The position: of the first change, or of the change that comes next.
    pub position: FeedPosition,
    /// The content.
    pub content: FeedContent<'m>,
}

impl<'m> FeedMessage<'m> {
    /// Reads a payload, which borrows from it.
    ///
    /// # Errors
    /// [`MessageFault`] if no server of this format sends it.
    pub fn decode(payload: &'m [u8]) -> Result<Self, MessageFault> {
        let mut reader = ByteReader::new(payload);
        let short = fault("a payload has a head of 26 bytes at least", payload.len());
        let format = reader.byte().ok_or(short)?;
        let kind = reader.byte().ok_or(short)?;
        if format != FORMAT {
            let rule = if format < FORMAT {
                "the format of the feed is 2 (the server is older: update it)"
            } else {
                "the format of the feed is 2 (the server is newer: update this client)"
            };
            return Err(fault(rule, usize::from(format)));
        }
        let position = FeedPosition {
            epoch: reader.u64_be().ok_or(short)?,
            incarnation: reader.u64_be().ok_or(short)?,
            sequence: reader.u64_be().ok_or(short)?,
        };
        if position.sequence == 0 {
            return Err(fault("a sequence is 1 at least", 0));
        }
        let content = match kind {
            CHANGES => decode_changes(&mut reader, position)?,
            BOOKMARK => decode_bookmark(&mut reader, position)?,
            DROPPED => FeedContent::Dropped,
            other => return Err(fault("the type of a payload is 1 to 3", usize::from(other))),
        };
        if position.incarnation == 0 && !matches!(content, FeedContent::Bookmark { .. }) {
            return Err(fault("the incarnation of a table that was there is 1 at least", 0));
        }
        if !reader.is_empty() {
            return Err(fault("a payload ends with its last field, and 0 bytes", reader.rest().len()));
        }
        Ok(Self { position, content })
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self.content {
            FeedContent::Changes(changes) => {
                out.extend_from_slice(&changes_head(self.position, changes.count));
                out.extend_from_slice(changes.bytes);
            }
            FeedContent::Bookmark { elements, digest, durable } => {
                out.extend_from_slice(&head(BOOKMARK, self.position));
                out.extend_from_slice([elements, digest, durable].map(u64::to_be_bytes).as_flattened());
            }
            FeedContent::Dropped => out.extend_from_slice(&head(DROPPED, self.position)),
        }
    }
}

fn decode_changes<'m>(reader: &mut ByteReader<'m>, position: FeedPosition) -> Result<FeedContent<'m>, MessageFault> {
    let count = reader.u16_be().ok_or(fault("a message of changes has a head of 28 bytes", HEAD_BYTES))?;
    if count == 0 || usize::from(count) > FEED_CHANGES_MAX {
        return Err(fault("a message has 1 to 64 changes", usize::from(count)));
    }
    if position.sequence.checked_add(u64::from(count)).is_none() {
        return Err(fault("sequences have 64 bits, after this many changes", usize::from(count)));
    }
    let bytes = reader.rest();
    for _ in 0..count {
        FeedChange::decode(reader)?;
    }
    let bytes = bytes.get(..bytes.len() - reader.rest().len()).unwrap_or_default();
    Ok(FeedContent::Changes(FeedChanges { count, bytes }))
}

fn decode_bookmark<'m>(reader: &mut ByteReader<'m>, position: FeedPosition) -> Result<FeedContent<'m>, MessageFault> {
    let short = fault("a bookmark has 50 bytes", HEAD_BYTES + reader.rest().len());
    let elements = reader.u64_be().ok_or(short)?;
    let digest = reader.u64_be().ok_or(short)?;
    let durable = reader.u64_be().ok_or(short)?;
    if position.incarnation == 0 && (elements, digest) != (0, 0) {
        return Err(fault("a table that is not there has 0 elements", usize::try_from(elements).unwrap_or(usize::MAX)));
    }
    Ok(FeedContent::Bookmark { elements, digest, durable })
}

fn head(kind: u8, position: FeedPosition) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    let FeedPosition { epoch, incarnation, sequence } = position;
    let fields = [epoch, incarnation, sequence].map(u64::to_be_bytes);
    head.iter_mut().zip([FORMAT, kind].iter().chain(fields.as_flattened())).for_each(|(byte, field)| *byte = *field);
    head
}

/// The bytes of a payload of changes before its first change.
pub(crate) fn changes_head(position: FeedPosition, count: u16) -> [u8; CHANGES_HEAD_BYTES] {
    let mut bytes = [0; CHANGES_HEAD_BYTES];
    let (head, count) = (head(CHANGES, position), count.to_be_bytes());
    bytes.iter_mut().zip(head.iter().chain(&count)).for_each(|(byte, field)| *byte = *field);
    bytes
}

/// Appends a payload of 1–64 changes.
pub fn encode_changes(position: FeedPosition, changes: &[FeedChange<'_>], out: &mut Vec<u8>) {
    let count = u16::try_from(changes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&changes_head(position, count));
    changes.iter().for_each(|change| change.encode(out));
}

/// The topic of a table: the length of its name, and the name without its NUL.
///
/// ```
/// use spindle::feed::{table_of_topic, topic_of_table};
///
/// assert_eq!(topic_of_table(b"users\0"), b"\x05users");
/// assert_eq!(table_of_topic(b"\x05users"), Some(&b"users"[..]));
/// assert_eq!(table_of_topic(b"\x05user"), None);
/// ```
#[must_use]
pub fn topic_of_table(table: &[u8]) -> Vec<u8> {
    let name = table.strip_suffix(b"\0").unwrap_or(table);
    let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
    [&[length], name].concat()
}

/// The table of an exact topic. `None`: the topic is the beginning of several topics, or no table can have it.
#[must_use]
pub fn table_of_topic(topic: &[u8]) -> Option<&[u8]> {
    let (length, name) = topic.split_first()?;
    let is_name = usize::from(*length) == name.len() && (1..=TABLE_NAME_BYTES_MAX).contains(&name.len());
    (is_name && !name.contains(&0)).then_some(name)
}

#[cfg(test)]
mod tests;
