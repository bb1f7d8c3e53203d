//! The body of a reply: the server encodes it, and the client decodes it by the command of its request.
//!
//! ```text
//! CREATE_TABLE, DELETE_TABLE, ALTER_TABLE, UPDATE, PING, TOUCH, UPDATE_MANY    1
//! DELETE, GET, COMPARE_AND_DELETE, GET_AND_TOUCH                  1 │ value
//! GET_ENTRY                                                       1 │ value │ version (8) │ milliseconds (8), ff…ff:
//! none
//! COMPARE_AND_SWAP                                                1 │ version (8)
//! GET_MANY                                                        1 │ per key: status (1) │ value, empty if absent
//! LIST_TABLES                                                     1 │ per table: name │ elements (8)
//! STATS                                                           1 │ JSON
//! SCAN                                                            1 │ next cursor, empty at the end │ row… (page.rs)
//! INCREMENT                                                       1 │ the sum in decimal │ version (8)
//! DELETE_MANY                                                     1 │ per key: status (1)
//! FEED_STATE                                                      1 │ six numbers (8 each, feed.rs)
//! CHANGES                                                         1 │ payload…
//! RESTORE                                                         1 │ 1: stored, 0: the key keeps its version (1)
//! refused                                                         0 │ reason │ VERSION MISMATCH: current version (8)
//!                                                                            COMPACTED: oldest sequence (8)
//! ```

use std::ops::Deref;

use itoa::Buffer;

use super::{Command, ERROR, FeedState, Malformed, OK, Payload, Reason, ScanFields, ScanRows, number};
use crate::limits::CURSOR_BYTES_MAX;
use crate::tables::Restored;

/// The number of milliseconds that means "no TTL".
pub(super) const FOR_EVER: u64 = u64::MAX;

/// A server's reply. Values are borrowed: from the tables in the server, from the frames in the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'b> {
    /// The request was carried out, and the reply has no result.
    Done,
    /// The value read or deleted.
    Value(&'b [u8]),
    /// GET_ENTRY
    Entry {
        /// The value.
        value: &'b [u8],
        /// Its version.
        version: u64,
        /// The remaining time to live, in milliseconds; `None` is without a deadline.
        remaining_millis: Option<u64>,
    },
    /// The new version.
    Version(u64),
    /// GET_MANY: for each key its value, in order.
    Values(Vec<Option<&'b [u8]>>),
    /// A portion of the reply to GET_MANY: of some keys the values. A server sends the portions of a reply one after the
    /// other, so a client has [`Reply::Values`].
    SomeValues {
        /// The values.
        values: Vec<Option<&'b [u8]>>,
        /// The reply begins with them.
        is_first: bool,
        /// The reply ends with them.
        is_last: bool,
    },
    /// LIST_TABLES
    Tables(Vec<TableLine>),
    /// STATS, as JSON.
    Stats(String),
    /// SCAN
    Page {
        /// The cursor of the next page. Empty: this is the last one.
        next: Vec<u8>,
        /// The rows.
        rows: ScanRows<'b>,
    },
    /// INCREMENT
    Sum {
        /// The sum.
        sum: i64,
        /// Its version.
        version: u64,
    },
    /// DELETE_MANY: for each key whether it had an element, in order.
    Statuses(Vec<bool>),
    /// FEED_STATE
    FeedState(FeedState),
    /// CHANGES: messages of the feed as they were published.
    Changes(Vec<Payload<'b>>),
    /// RESTORE
    Restored(Restored),
    /// The request was refused, and nothing was changed.
    Refused(Reason),
}

/// What a reply looks like: the command of its request, and for SCAN the fields of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyShape {
    /// The command.
    pub command: Command,
    /// The fields of a row. Other commands have none.
    pub fields: ScanFields,
}

impl From<Command> for ReplyShape {
    /// SCAN with keys alone.
    fn from(command: Command) -> Self {
        Self { command, fields: ScanFields::Key }
    }
}

/// A table as LIST_TABLES shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLine {
    /// The name exactly as CREATE_TABLE gave it.
    pub name: Box<[u8]>,
    /// The number of elements.
    pub elements: u64,
}

impl<'b> Reply<'b> {
    /// The bytes of the frames that may be long or many: values, names, text, rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Value(value) | Self::Entry { value, .. } => value.len(),
            Self::Values(values) | Self::SomeValues { values, .. } => {
                values.iter().flatten().map(|value| value.len()).sum()
            }
            Self::Tables(tables) => tables.iter().map(|table| table.name.len() + size_of::<u64>()).sum(),
            Self::Stats(json) => json.len(),
            Self::Page { rows, .. } => rows.bytes(),
            Self::Statuses(statuses) => statuses.len(),
            Self::Changes(payloads) => payloads.iter().map(|payload| payload.len()).sum(),
            Self::Done
            | Self::Version(_)
            | Self::Sum { .. }
            | Self::FeedState(_)
            | Self::Restored(_)
            | Self::Refused(_) => 0,
        }
    }

    /// Hands the frames to `sink`.
    ///
    /// ```
    /// use spindle::services::tables::wire::{Reason, Reply};
    ///
    /// let mut frames = Vec::new();
    /// Reply::Refused(Reason::KeyNotFound).encode(|frame, more| frames.push((frame.to_vec(), more)));
    /// assert_eq!(frames, [(vec![0], true), (b"KEY NOT FOUND".to_vec(), false)]);
    /// ```
    #[inline]
    pub fn encode(&self, mut sink: impl FnMut(&[u8], bool)) {
        match self {
            Self::Done => sink(&[OK], false),
            Self::Value(value) => {
                sink(&[OK], true);
                sink(value, false);
            }
            Self::Entry { value, version, remaining_millis } => {
                sink(&[OK], true);
                sink(value, true);
                sink(&version.to_be_bytes(), true);
                sink(&remaining_millis.unwrap_or(FOR_EVER).to_be_bytes(), false);
            }
            Self::Version(version) => {
                sink(&[OK], true);
                sink(&version.to_be_bytes(), false);
            }
            Self::Values(values) => encode_values(&mut sink, values, true, true),
            Self::SomeValues { values, is_first, is_last } => encode_values(&mut sink, values, *is_first, *is_last),
            Self::Tables(tables) => encode_tables(&mut sink, tables),
            Self::Stats(json) => {
                sink(&[OK], true);
                sink(json.as_bytes(), false);
            }
            Self::Page { next, rows } => rows.encode(next, &mut sink),
            Self::Sum { sum, version } => encode_sum(&mut sink, *sum, *version),
            Self::Statuses(statuses) => encode_statuses(&mut sink, statuses),
            Self::FeedState(state) => state.encode(&mut sink),
            Self::Changes(payloads) => Payload::encode(payloads, &mut sink),
            Self::Restored(restored) => {
                sink(&[OK], true);
                sink(&[restored_code(*restored)], false);
            }
            Self::Refused(reason) => encode_refusal(&mut sink, *reason),
        }
    }

    /// Reads the reply to a request of this command or shape, without its envelope.
    ///
    /// # Errors
    /// [`Malformed`] if a server of this protocol would not send these frames.
    pub fn decode<F: Deref<Target = [u8]>>(shape: impl Into<ReplyShape>, frames: &'b [F]) -> Result<Self, Malformed> {
        let ReplyShape { command, fields: row_fields } = shape.into();
        let (status, fields) = frames.split_first().ok_or(malformed("a reply has a status", 0))?;
        if !decode_status(status)? {
            return decode_reason(fields).map(Self::Refused);
        }
        match command {
            Command::CreateTable
            | Command::DeleteTable
            | Command::AlterTable
            | Command::Update
            | Command::Ping
            | Command::Touch
            | Command::UpdateMany => exactly::<F, 0>(fields).map(|_| Self::Done),
            Command::Delete | Command::Get | Command::CompareAndDelete | Command::GetAndTouch => {
                let [value] = exactly(fields)?;
                Ok(Self::Value(value))
            }
            Command::GetEntry => {
                let [value, version, millis] = exactly(fields)?;
                let millis = decode_number(millis)?;
                Ok(Self::Entry {
                    value,
                    version: decode_number(version)?,
                    remaining_millis: (millis != FOR_EVER).then_some(millis),
                })
            }
            Command::CompareAndSwap => {
                let [version] = exactly(fields)?;
                decode_number(version).map(Self::Version)
            }
            Command::GetMany => decode_values(fields).map(Self::Values),
            Command::ListTables => decode_tables(fields).map(Self::Tables),
            Command::Stats => {
                let [json] = exactly(fields)?;
                decode_json(json).map(Self::Stats)
            }
            Command::Scan => {
                let [next, rows @ ..] = fields else {
                    return Err(malformed("a page has a cursor and 1 frame at least", 0));
                };
                Ok(Self::Page { next: decode_cursor(next)?, rows: ScanRows::decode(row_fields, rows)? })
            }
            Command::Increment => {
                let [sum, version] = exactly(fields)?;
                Ok(Self::Sum { sum: decode_sum(sum)?, version: decode_number(version)? })
            }
            Command::DeleteMany => {
                fields.iter().map(|status| decode_status(status)).collect::<Result<_, _>>().map(Self::Statuses)
            }
            Command::FeedState => FeedState::decode(fields).map(Self::FeedState),
            Command::Changes => Ok(Self::Changes(fields.iter().map(|payload| Payload::Received(payload)).collect())),
            Command::Restore => {
                let [code] = exactly(fields)?;
                decode_restored(code).map(Self::Restored)
            }
        }
    }
}

fn encode_values(sink: &mut impl FnMut(&[u8], bool), values: &[Option<&[u8]>], is_first: bool, is_last: bool) {
    if is_first {
        sink(&[OK], !values.is_empty() || !is_last);
    }
    let mut left = values.len();
    for value in values {
        left -= 1;
        sink(&[if value.is_some() { OK } else { ERROR }], true);
        sink(value.unwrap_or_default(), left > 0 || !is_last);
    }
}

fn encode_sum(sink: &mut impl FnMut(&[u8], bool), sum: i64, version: u64) {
    sink(&[OK], true);
    sink(Buffer::new().format(sum).as_bytes(), true);
    sink(&version.to_be_bytes(), false);
}

/// The byte that says what became of a restored element.
fn restored_code(restored: Restored) -> u8 {
    match restored {
        Restored::Not => 0,
        Restored::AsItWas => 1,
        Restored::Anew => 2,
    }
}

fn encode_statuses(sink: &mut impl FnMut(&[u8], bool), statuses: &[bool]) {
    sink(&[OK], !statuses.is_empty());
    let mut left = statuses.len();
    for status in statuses {
        left -= 1;
        sink(&[if *status { OK } else { ERROR }], left > 0);
    }
}

fn encode_tables(sink: &mut impl FnMut(&[u8], bool), tables: &[TableLine]) {
    sink(&[OK], !tables.is_empty());
    let mut left = tables.len();
    for table in tables {
        left -= 1;
        sink(&table.name, true);
        sink(&table.elements.to_be_bytes(), left > 0);
    }
}

fn encode_refusal(sink: &mut impl FnMut(&[u8], bool), reason: Reason) {
    sink(&[ERROR], true);
    let text = reason.text().as_bytes();
    match reason {
        Reason::VersionMismatch { current } => {
            sink(text, true);
            sink(&current.to_be_bytes(), false);
        }
        Reason::Compacted { oldest } => {
            sink(text, true);
            sink(&oldest.to_be_bytes(), false);
        }
        _ => sink(text, false),
    }
}

pub(super) const fn malformed(rule: &'static str, given: usize) -> Malformed {
    Malformed { rule, given }
}

fn exactly<F, const N: usize>(fields: &[F]) -> Result<&[F; N], Malformed> {
    fields.try_into().map_err(|_| {
        let rule = match N {
            0 => "this reply has only a status and 0 frames",
            1 => "this reply has a status and 1 frame",
            2 => "this reply has a status and 2 frames",
            _ => "this reply has a status and 3 frames",
        };
        malformed(rule, fields.len())
    })
}

/// Whether the status grants the request.
fn decode_status(frame: &[u8]) -> Result<bool, Malformed> {
    match *frame {
        [OK] => Ok(true),
        [ERROR] => Ok(false),
        [other] => Err(malformed("a status is 0 or 1", usize::from(other))),
        _ => Err(malformed("a status has 1 byte", frame.len())),
    }
}

fn decode_restored(frame: &[u8]) -> Result<Restored, Malformed> {
    match *frame {
        [0] => Ok(Restored::Not),
        [1] => Ok(Restored::AsItWas),
        [2] => Ok(Restored::Anew),
        _ => Err(malformed("what became of an element is 0, 1 or 2", frame.len())),
    }
}

pub(super) fn decode_number(frame: &[u8]) -> Result<u64, Malformed> {
    number(frame).ok_or(malformed("a number has 8 bytes", frame.len()))
}

fn decode_reason<F: Deref<Target = [u8]>>(fields: &[F]) -> Result<Reason, Malformed> {
    let [text, rest @ ..] = fields else {
        return Err(malformed("an error has a reason and 1 frame at least", 0));
    };
    let reason = Reason::ALL
        .into_iter()
        .find(|reason| reason.text().as_bytes() == &**text)
        .ok_or(malformed("a reason is one of the protocol", text.len()))?;
    match (reason, rest) {
        (Reason::VersionMismatch { .. }, [current]) => {
            let current = decode_number(current)?;
            Ok(Reason::VersionMismatch { current })
        }
        (Reason::VersionMismatch { .. }, _) => Err(malformed("a mismatch has 1 version", rest.len())),
        (Reason::Compacted { .. }, [oldest]) => Ok(Reason::Compacted { oldest: decode_number(oldest)? }),
        (Reason::Compacted { .. }, _) => Err(malformed("after COMPACTED comes 1 sequence", rest.len())),
        (_, []) => Ok(reason),
        _ => Err(malformed("after a reason come 0 frames", rest.len())),
    }
}

fn decode_values<F: Deref<Target = [u8]>>(fields: &[F]) -> Result<Vec<Option<&[u8]>>, Malformed> {
    let (values, []) = fields.as_chunks() else {
        return Err(malformed("each key has 2 frames", fields.len()));
    };
    values.iter().map(|[status, value]| Ok(decode_status(status)?.then_some(&**value))).collect()
}

fn decode_tables<F: Deref<Target = [u8]>>(fields: &[F]) -> Result<Vec<TableLine>, Malformed> {
    let (tables, []) = fields.as_chunks() else {
        return Err(malformed("each table has 2 frames", fields.len()));
    };
    tables
        .iter()
        .map(|[name, elements]| Ok(TableLine { name: Box::from(&**name), elements: decode_number(elements)? }))
        .collect()
}

/// Reads the cursor of the next page.
fn decode_cursor(frame: &[u8]) -> Result<Vec<u8>, Malformed> {
    if frame.len() > CURSOR_BYTES_MAX {
        return Err(malformed("a cursor has 32 bytes at most", frame.len()));
    }
    Ok(frame.to_vec())
}

fn decode_sum(frame: &[u8]) -> Result<i64, Malformed> {
    let sum = std::str::from_utf8(frame).ok().and_then(|digits| digits.parse().ok());
    sum.ok_or(malformed("a sum is a number in decimal", frame.len()))
}

fn decode_json(frame: &[u8]) -> Result<String, Malformed> {
    String::from_utf8(frame.to_vec()).map_err(|_| malformed("JSON is UTF-8", frame.len()))
}

#[cfg(test)]
mod tests;
