//! The rows of a SCAN: the server encodes a page of rows, and the client decodes the page by the requested fields.
//!
//! ```text
//! SCAN │ table │ cursor │ count (8) │ fields (1) │ [prefix]          1 │ next cursor │ row…
//!
//! fields  a row is
//! 0       key
//! 1       key │ value
//! 2       key │ value │ version (8) │ remaining milliseconds (8), ff…ff: none
//! 3       key │ value │ version (8) │ deadline (8), 0: none │ mark (1)
//! ```

use std::ops::Deref;

use super::reply::{FOR_EVER, decode_number, malformed};
use super::{Malformed, OK};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Bytes before a short frame: its flags and its length.
const HEAD_BYTES: usize = 2;

/// The fields of each row of a SCAN. The discriminant is the byte on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ScanFields {
    /// The key.
    #[default]
    Key = 0,
    /// Key and value.
    Value = 1,
    /// Key, value, version and remaining time to live.
    Entry = 2,
    /// Key, value, version, deadline and mark, for a mirror.
    Mirror = 3,
}

impl ScanFields {
    /// All of them by their byte.
    pub const ALL: [Self; 4] = [Self::Key, Self::Value, Self::Entry, Self::Mirror];

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The fields of a byte, if it names some.
    #[must_use]
    pub fn by_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// How far the feed has published an element. The discriminant is the byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RowMark {
    /// This version is the one that was published last.
    Published = 0,
    /// This version is not published yet.
    Ahead = 1,
    /// The element is deleted, and the deletion is not published yet. The version is the deletion's.
    Deleted = 2,
}

impl RowMark {
    const ALL: [Self; 3] = [Self::Published, Self::Ahead, Self::Deleted];
}

/// A row with its version and its remaining time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRow<'b> {
    /// The key.
    pub key: &'b [u8],
    /// The value.
    pub value: &'b [u8],
    /// Its version.
    pub version: u64,
    /// The remaining time to live, in milliseconds; `None` is without a deadline.
    pub remaining_millis: Option<u64>,
}

/// A row for a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorRow<'b> {
    /// The key.
    pub key: &'b [u8],
    /// The value; empty if it is deleted.
    pub value: &'b [u8],
    /// Its version.
    pub version: u64,
    /// The deadline, in milliseconds since 1970; `None` is without a deadline.
    pub deadline_millis: Option<u64>,
    /// How far the feed has published it.
    pub mark: RowMark,
}

/// The rows of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanRows<'b> {
    /// Keys.
    Key(Vec<&'b [u8]>),
    /// Keys, each with its value.
    Value(Vec<[&'b [u8]; 2]>),
    /// Rows with version and remaining time to live.
    Entry(Vec<EntryRow<'b>>),
    /// Rows for a mirror.
    Mirror(Vec<MirrorRow<'b>>),
}

impl<'b> ScanRows<'b> {
    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Key(rows) => rows.len(),
            Self::Value(rows) => rows.len(),
            Self::Entry(rows) => rows.len(),
            Self::Mirror(rows) => rows.len(),
        }
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the frames, with two for the head of each: a page may have many short ones.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let long: usize = match self {
            Self::Key(rows) => rows.iter().map(|key| key.len()).sum(),
            Self::Value(rows) => rows.as_flattened().iter().map(|frame| frame.len()).sum(),
            Self::Entry(rows) => rows.iter().map(|row| row.key.len() + row.value.len()).sum(),
            Self::Mirror(rows) => rows.iter().map(|row| row.key.len() + row.value.len()).sum(),
        };
        let row = match self {
            Self::Key(_) => HEAD_BYTES,
            Self::Value(_) => 2 * HEAD_BYTES,
            Self::Entry(_) => 4 * HEAD_BYTES + 2 * size_of::<u64>(),
            Self::Mirror(_) => 5 * HEAD_BYTES + 2 * size_of::<u64>() + 1,
        };
        long + self.len() * row
    }

    /// Hands the frames of a granted SCAN to `sink`.
    pub(super) fn encode(&self, next: &[u8], sink: &mut impl FnMut(&[u8], bool)) {
        let mut left = self.len();
        sink(&[OK], true);
        sink(next, left > 0);
        let mut more = || {
            left -= 1;
            left > 0
        };
        match self {
            Self::Key(rows) => rows.iter().for_each(|key| sink(key, more())),
            Self::Value(rows) => {
                for [key, value] in rows {
                    sink(key, true);
                    sink(value, more());
                }
            }
            Self::Entry(rows) => {
                for EntryRow { key, value, version, remaining_millis } in rows {
                    sink(key, true);
                    sink(value, true);
                    sink(&version.to_be_bytes(), true);
                    sink(&remaining_millis.unwrap_or(FOR_EVER).to_be_bytes(), more());
                }
            }
            Self::Mirror(rows) => {
                for MirrorRow { key, value, version, deadline_millis, mark } in rows {
                    sink(key, true);
                    sink(value, true);
                    sink(&version.to_be_bytes(), true);
                    sink(&deadline_millis.unwrap_or(0).to_be_bytes(), true);
                    sink(&[*mark as u8], more());
                }
            }
        }
    }

    /// Reads the frames behind the next cursor.
    pub(super) fn decode<F: Deref<Target = [u8]>>(fields: ScanFields, frames: &'b [F]) -> Result<Self, Malformed> {
        match fields {
            ScanFields::Key => frames.iter().map(|key| decode_key(key)).collect::<Result<_, _>>().map(Self::Key),
            ScanFields::Value => {
                let row = |[key, value]: &'b [F; 2]| Ok([decode_key(key)?, decode_value(value)?]);
                rows(frames, row).map(Self::Value)
            }
            ScanFields::Entry => {
                let row = |[key, value, version, millis]: &'b [F; 4]| {
                    let (key, value) = (decode_key(key)?, decode_value(value)?);
                    let (version, millis) = (decode_number(version)?, decode_number(millis)?);
                    Ok(EntryRow { key, value, version, remaining_millis: (millis != FOR_EVER).then_some(millis) })
                };
                rows(frames, row).map(Self::Entry)
            }
            ScanFields::Mirror => {
                let row = |[key, value, version, deadline, mark]: &'b [F; 5]| {
                    let (key, value) = (decode_key(key)?, decode_value(value)?);
                    let (version, deadline) = (decode_number(version)?, decode_number(deadline)?);
                    let mark = decode_mark(mark)?;
                    Ok(MirrorRow { key, value, version, deadline_millis: (deadline != 0).then_some(deadline), mark })
                };
                rows(frames, row).map(Self::Mirror)
            }
        }
    }
}

/// Rows of `N` frames each.
fn rows<'b, F, R, const N: usize>(
    frames: &'b [F],
    row: impl FnMut(&'b [F; N]) -> Result<R, Malformed>,
) -> Result<Vec<R>, Malformed> {
    let (rows, []) = frames.as_chunks() else {
        return Err(malformed("each row has as many frames as fields were asked for", frames.len()));
    };
    rows.iter().map(row).collect()
}

fn decode_key(frame: &[u8]) -> Result<&[u8], Malformed> {
    if frame.len() > KEY_BYTES_MAX {
        return Err(malformed("a key has 4,096 bytes at most", frame.len()));
    }
    Ok(frame)
}

fn decode_value(frame: &[u8]) -> Result<&[u8], Malformed> {
    if frame.len() > VALUE_BYTES_MAX {
        return Err(malformed("a value has 16 MiB at most", frame.len()));
    }
    Ok(frame)
}

/// The page behind `cursor` has another cursor for the next one.
///
/// # Errors
/// [`Malformed`] if it has the same: the scan would never end.
pub(crate) fn check_progress(cursor: &[u8], next: &[u8]) -> Result<(), Malformed> {
    if !next.is_empty() && next == cursor {
        return Err(malformed("the next cursor is another one", next.len()));
    }
    Ok(())
}

fn decode_mark(frame: &[u8]) -> Result<RowMark, Malformed> {
    let mark = match *frame {
        [code] => RowMark::ALL.get(usize::from(code)).copied(),
        _ => None,
    };
    mark.ok_or(malformed("a mark is one byte from 0 to 2", frame.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CURSOR_BYTES_MAX;
    use crate::services::tables::wire::{Command, Reply, ReplyShape};

    #[test]
    fn longer_keys_values_and_cursors_than_a_server_has_are_refused() {
        let number = [0; 8];
        let page = |fields, cursor: usize, key: usize, value: usize| {
            let (cursor, key, value) = (vec![1; cursor], vec![2; key], vec![3; value]);
            let row: [&[u8]; 5] = [&key, &value, &number, &number, &[0]];
            let count = match fields {
                ScanFields::Key => 1,
                ScanFields::Value => 2,
                ScanFields::Entry => 4,
                ScanFields::Mirror => 5,
            };
            let frames: Vec<&[u8]> = [&[OK][..], &cursor].into_iter().chain(row.into_iter().take(count)).collect();
            Reply::decode(ReplyShape { command: Command::Scan, fields }, &frames).is_ok()
        };
        for fields in ScanFields::ALL {
            assert!(page(fields, CURSOR_BYTES_MAX, KEY_BYTES_MAX, 0), "{fields:?}");
            assert!(!page(fields, CURSOR_BYTES_MAX + 1, KEY_BYTES_MAX, 0), "{fields:?}");
            assert!(!page(fields, CURSOR_BYTES_MAX, KEY_BYTES_MAX + 1, 0), "{fields:?}");
            if fields != ScanFields::Key {
                assert!(page(fields, 0, 0, VALUE_BYTES_MAX) && !page(fields, 0, 0, VALUE_BYTES_MAX + 1), "{fields:?}");
            }
        }
    }

    #[test]
    fn a_scan_that_does_not_get_further_is_refused() {
        assert!(check_progress(b"", b"").is_ok() && check_progress(b"a", b"").is_ok());
        assert!(check_progress(b"", b"a").is_ok() && check_progress(b"a", b"b").is_ok());
        assert!(check_progress(b"a", b"a").is_err());
    }
}
