//! Decodes the frames of a body into a valid [`Request`], or finds the first fault in them.
//!
//! ```text
//! first a command frame of one byte      BAD REQUEST
//! then  a known command                  UNKNOWN COMMAND
//! then  the number of frames             BAD REQUEST
//! then  the fields from left to right    BAD TABLE NAME, KEY TOO LONG, VALUE TOO LONG, BAD TTL, or
//!                                        BAD CURSOR, or BAD REQUEST for a number or a byte
//! ```
//! The tables check the rest after this: whether the table and the key exist, the version, and the memory.

use std::ops::Deref;

use super::ttl::decode_ttl;
use super::{Command, Fault, FieldLimits, Reason, Request, ScanFields, TableName, number};
use crate::clock::Ttl;
use crate::feed::FeedPosition;
use crate::limits::{CURSOR_BYTES_MAX, MANY_MAX, SCAN_COUNT_MAX, TABLE_NAME_BYTES_MAX};

impl<'m, F: Deref<Target = [u8]>> Request<'m, F> {
    /// Decodes a body (see [`super::split`]), whose keys and values are within the limits.
    ///
    /// # Errors
    /// The first [`Fault`], in the order of `PROTOCOL.md`.
    ///
    /// ```
    /// use spindle::services::tables::wire::{FieldLimits, Reason, Request, TableName};
    ///
    /// let body: [&[u8]; 3] = [b"\x04", b"users", b"ada"];
    /// let table = TableName::spelt(b"users");
    /// assert_eq!(Request::decode(&body, FieldLimits::DEFAULT), Ok(Request::Get { table, key: b"ada" }));
    ///
    /// let short: [&[u8]; 2] = [b"\x04", b"users"];
    /// assert_eq!(Request::decode(&short, FieldLimits::DEFAULT).unwrap_err().reason, Reason::BadRequest);
    /// ```
    #[inline]
    pub fn decode(body: &'m [F], limits: FieldLimits) -> Result<Self, Fault> {
        let (code, fields) = split_command(body).ok_or(Fault { command: None, reason: Reason::BadRequest })?;
        let command = Command::by_code(code).ok_or(Fault { command: None, reason: Reason::UnknownCommand })?;
        Self::decode_fields(command, fields, limits).map_err(|reason| Fault { command: Some(command), reason })
    }

    /// Decodes the fields after the command. Each arm names its frames first, then decodes them from left to right.
    fn decode_fields(command: Command, fields: &'m [F], limits: FieldLimits) -> Result<Self, Reason> {
        match command {
            Command::CreateTable => decode_only_table(fields).map(|table| Self::CreateTable { table }),
            Command::DeleteTable => decode_only_table(fields).map(|table| Self::DeleteTable { table }),
            Command::Update => {
                let ([table, key, value], ttl) = and_perhaps_one(fields)?;
                Ok(Self::Update {
                    table: decode_table(table)?,
                    key: decode_key(key, limits.key)?,
                    value: decode_value(value, limits.value)?,
                    ttl: ttl.map(|ttl| decode_ttl(ttl)).transpose()?,
                })
            }
            Command::Delete => {
                let (table, key) = decode_element(fields, limits)?;
                Ok(Self::Delete { table, key })
            }
            Command::Get => {
                let (table, key) = decode_element(fields, limits)?;
                Ok(Self::Get { table, key })
            }
            Command::Ping => exactly::<F, 0>(fields).map(|_| Self::Ping),
            Command::GetEntry => {
                let (table, key) = decode_element(fields, limits)?;
                Ok(Self::GetEntry { table, key })
            }
            Command::CompareAndSwap => {
                let ([table, key, expected, value], ttl) = and_perhaps_one(fields)?;
                Ok(Self::CompareAndSwap {
                    table: decode_table(table)?,
                    key: decode_key(key, limits.key)?,
                    expected: decode_version(expected)?,
                    value: decode_value(value, limits.value)?,
                    ttl: ttl.map(|ttl| decode_ttl(ttl)).transpose()?,
                })
            }
            Command::CompareAndDelete => {
                let [table, key, expected] = exactly(fields)?;
                Ok(Self::CompareAndDelete {
                    table: decode_table(table)?,
                    key: decode_key(key, limits.key)?,
                    expected: decode_version(expected)?,
                })
            }
            Command::Touch => decode_touch(fields, limits).map(|(table, key, ttl)| Self::Touch { table, key, ttl }),
            Command::GetMany => decode_keys(fields, limits).map(|(table, keys)| Self::GetMany { table, keys }),
            Command::UpdateMany => decode_update_many(fields, limits),
            Command::ListTables => exactly::<F, 0>(fields).map(|_| Self::ListTables),
            Command::Stats => exactly::<F, 0>(fields).map(|_| Self::Stats),
            Command::Scan => decode_scan(fields, limits),
            Command::Increment => decode_increment(fields, limits),
            Command::GetAndTouch => {
                decode_touch(fields, limits).map(|(table, key, ttl)| Self::GetAndTouch { table, key, ttl })
            }
            Command::DeleteMany => decode_keys(fields, limits).map(|(table, keys)| Self::DeleteMany { table, keys }),
            Command::FeedState => decode_only_table(fields).map(|table| Self::FeedState { table }),
            Command::Changes => decode_changes(fields),
            Command::Restore => decode_restore(fields, limits),
        }
    }
}

/// The code and the fields after it, if the first frame has one byte.
fn split_command<F: Deref<Target = [u8]>>(body: &[F]) -> Option<(u8, &[F])> {
    let (first, fields) = body.split_first()?;
    match **first {
        [code] => Some((code, fields)),
        _ => None,
    }
}

/// Exactly `N` frames.
fn exactly<F, const N: usize>(fields: &[F]) -> Result<&[F; N], Reason> {
    fields.try_into().map_err(|_| Reason::BadRequest)
}

/// `N` frames, and an optional one after them.
fn and_perhaps_one<F, const N: usize>(fields: &[F]) -> Result<(&[F; N], Option<&F>), Reason> {
    match fields.split_first_chunk() {
        Some((first, [])) => Ok((first, None)),
        Some((first, [last])) => Ok((first, Some(last))),
        _ => Err(Reason::BadRequest),
    }
}

/// A table, and no further frame.
fn decode_only_table<F: Deref<Target = [u8]>>(fields: &[F]) -> Result<TableName<'_>, Reason> {
    let [table] = exactly(fields)?;
    decode_table(table)
}

/// A table and a key, and no further frame.
fn decode_element<F: Deref<Target = [u8]>>(
    fields: &[F],
    limits: FieldLimits,
) -> Result<(TableName<'_>, &[u8]), Reason> {
    let [table, key] = exactly(fields)?;
    Ok((decode_table(table)?, decode_key(key, limits.key)?))
}

/// A table, and 1–1024 keys.
fn decode_keys<F: Deref<Target = [u8]>>(fields: &[F], limits: FieldLimits) -> Result<(TableName<'_>, &[F]), Reason> {
    let [table, keys @ ..] = fields else {
        return Err(Reason::BadRequest);
    };
    check_count(keys.len())?;
    let table = decode_table(table)?;
    for key in keys {
        decode_key(key, limits.key)?;
    }
    Ok((table, keys))
}

fn decode_update_many<F: Deref<Target = [u8]>>(fields: &[F], limits: FieldLimits) -> Result<Request<'_, F>, Reason> {
    let [table, ttl, rest @ ..] = fields else {
        return Err(Reason::BadRequest);
    };
    let (pairs, []) = rest.as_chunks() else {
        return Err(Reason::BadRequest);
    };
    check_count(pairs.len())?;
    let table = decode_table(table)?;
    let ttl = if ttl.is_empty() { None } else { Some(decode_ttl(ttl)?) };
    for [key, value] in pairs {
        decode_key(key, limits.key)?;
        decode_value(value, limits.value)?;
    }
    Ok(Request::UpdateMany { table, ttl, pairs })
}

/// A table, a key and a TTL.
fn decode_touch<F: Deref<Target = [u8]>>(
    fields: &[F],
    limits: FieldLimits,
) -> Result<(TableName<'_>, &[u8], Ttl), Reason> {
    let [table, key, ttl] = exactly(fields)?;
    Ok((decode_table(table)?, decode_key(key, limits.key)?, decode_ttl(ttl)?))
}

fn decode_changes<F: Deref<Target = [u8]>>(fields: &[F]) -> Result<Request<'_, F>, Reason> {
    let [table, epoch, incarnation, sequence] = exactly(fields)?;
    let table = decode_table(table)?;
    let (epoch, incarnation) = (decode_version(epoch)?, decode_version(incarnation)?);
    let position = FeedPosition { epoch, incarnation, sequence: decode_version(sequence)? };
    Ok(Request::Changes { table, position })
}

fn decode_increment<F: Deref<Target = [u8]>>(fields: &[F], limits: FieldLimits) -> Result<Request<'_, F>, Reason> {
    let ([table, key, delta], ttl) = and_perhaps_one(fields)?;
    Ok(Request::Increment {
        table: decode_table(table)?,
        key: decode_key(key, limits.key)?,
        delta: decode_delta(delta)?,
        ttl: ttl.map(|ttl| decode_ttl(ttl)).transpose()?,
    })
}

fn decode_restore<F: Deref<Target = [u8]>>(fields: &[F], limits: FieldLimits) -> Result<Request<'_, F>, Reason> {
    let [table, key, value, version, ttl] = exactly(fields)?;
    Ok(Request::Restore {
        table: decode_table(table)?,
        key: decode_key(key, limits.key)?,
        value: decode_value(value, limits.value)?,
        version: decode_version(version)?,
        ttl: decode_ttl(ttl)?,
    })
}

fn decode_scan<F: Deref<Target = [u8]>>(fields: &[F], limits: FieldLimits) -> Result<Request<'_, F>, Reason> {
    let ([table, cursor, count, fields], prefix) = and_perhaps_one(fields)?;
    Ok(Request::Scan {
        table: decode_table(table)?,
        cursor: decode_cursor(cursor)?,
        count: decode_count(count)?,
        fields: decode_fields(fields)?,
        prefix: prefix.map_or(Ok(&[][..]), |prefix| decode_key(prefix, limits.key))?,
    })
}

fn check_count(members: usize) -> Result<(), Reason> {
    if (1..=MANY_MAX).contains(&members) { Ok(()) } else { Err(Reason::BadRequest) }
}

pub(crate) fn decode_table(frame: &[u8]) -> Result<TableName<'_>, Reason> {
    let table = TableName::spelt(frame);
    let name = table.name();
    if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX || name.contains(&0) {
        return Err(Reason::BadTableName);
    }
    Ok(table)
}

pub(crate) fn decode_key(frame: &[u8], key_max: usize) -> Result<&[u8], Reason> {
    if frame.len() > key_max {
        return Err(Reason::KeyTooLong);
    }
    Ok(frame)
}

pub(crate) fn decode_value(frame: &[u8], value_max: usize) -> Result<&[u8], Reason> {
    if frame.len() > value_max {
        return Err(Reason::ValueTooLong);
    }
    Ok(frame)
}

fn decode_version(frame: &[u8]) -> Result<u64, Reason> {
    number(frame).ok_or(Reason::BadRequest)
}

fn decode_delta(frame: &[u8]) -> Result<i64, Reason> {
    frame.try_into().map(i64::from_be_bytes).map_err(|_| Reason::BadRequest)
}

/// The tables check the content: only they know which cursors they made.
fn decode_cursor(frame: &[u8]) -> Result<&[u8], Reason> {
    if frame.len() > CURSOR_BYTES_MAX {
        return Err(Reason::BadCursor);
    }
    Ok(frame)
}

fn decode_count(frame: &[u8]) -> Result<u32, Reason> {
    let count = number(frame).and_then(|count| u32::try_from(count).ok());
    count.filter(|count| (1..=SCAN_COUNT_MAX).contains(count)).ok_or(Reason::BadRequest)
}

fn decode_fields(frame: &[u8]) -> Result<ScanFields, Reason> {
    match *frame {
        [code] => ScanFields::by_code(code).ok_or(Reason::BadRequest),
        _ => Err(Reason::BadRequest),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    const LIMITS: FieldLimits = FieldLimits::DEFAULT;
    const VALUE_MAX: usize = LIMITS.value;

    fn reason(body: &[&[u8]]) -> Option<Reason> {
        Request::decode(body, LIMITS).err().map(|fault| fault.reason)
    }

    #[test]
    fn the_command_frame_is_one_byte_and_known() {
        assert_eq!(reason(&[]), Some(Reason::BadRequest));
        assert_eq!(reason(&[b""]), Some(Reason::BadRequest));
        assert_eq!(reason(&[b"\x05\x05"]), Some(Reason::BadRequest));
        assert_eq!(reason(&[b"\x15"]), Some(Reason::UnknownCommand));
        assert_eq!(reason(&[b"\xff", b"", b""]), Some(Reason::UnknownCommand));
        assert_eq!(reason(&[b"\x05"]), None);
    }

    #[test]
    fn commands_without_arguments_take_none() {
        for command in [[5], [12], [13]] {
            assert_eq!(reason(&[&command]), None);
            assert_eq!(reason(&[&command, b""]), Some(Reason::BadRequest));
        }
    }

    #[test]
    fn a_name_has_1_to_254_bytes_and_may_end_with_one_nul() {
        let name = |table: &[u8]| reason(&[&[0], table]);
        assert_eq!(name(b"tab"), None);
        assert_eq!(name(b"tab\0"), None);
        assert_eq!(name(&[b't'; 254]), None);
        assert_eq!(name(&[&[b't'; 254][..], b"\0"].concat()), None);
        assert_eq!(name(&[b't'; 255]), Some(Reason::BadTableName));
        assert_eq!(name(&[&[b't'; 255][..], b"\0"].concat()), Some(Reason::BadTableName));
        for bad in [&b""[..], b"\0", b"t\0b", b"\0tab", b"tab\0\0"] {
            assert_eq!(name(bad), Some(Reason::BadTableName), "{bad:?}");
        }
    }

    #[test]
    fn a_name_and_its_spelling_are_two_things() {
        let body = [&[0][..], b"tab\0"];
        let Ok(Request::CreateTable { table }) = Request::decode(&body, LIMITS) else {
            panic!("no CREATE_TABLE");
        };
        assert_eq!((table.name(), table.spelling()), (&b"tab"[..], &b"tab\0"[..]));
    }

    #[test]
    fn a_key_has_up_to_64_bytes_and_a_value_up_to_the_limit() {
        assert_eq!(reason(&[&[4], b"tab", b""]), None);
        assert_eq!(reason(&[&[4], b"tab", &[0; 64]]), None);
        assert_eq!(reason(&[&[4], b"tab", &[0; 65]]), Some(Reason::KeyTooLong));
        assert_eq!(reason(&[&[2], b"tab", b"key", b""]), None);
        assert_eq!(reason(&[&[2], b"tab", b"key", &[0; VALUE_MAX]]), None);
        assert_eq!(reason(&[&[2], b"tab", b"key", &[0; VALUE_MAX + 1]]), Some(Reason::ValueTooLong));
    }

    #[test]
    fn a_ttl_is_seconds_or_milliseconds_wherever_there_is_one() {
        let (seconds, millis, bad) = ([0, 0, 0, 0, 0, 0, 0, 60], [1, 0, 0, 0, 0, 0, 0, 5, 220], [0; 9]);
        let version = [0; 8];
        type Frames<'f> = &'f [&'f [u8]];
        let bodies: [(Frames<'_>, Frames<'_>); 7] = [
            (&[&[2], b"tab", b"key", b"value"], &[]),
            (&[&[7], b"tab", b"key", &version, b"value"], &[]),
            (&[&[9], b"tab", b"key"], &[]),
            (&[&[11], b"tab"], &[b"key", b"value"]),
            (&[&[15], b"tab", b"key", &version], &[]),
            (&[&[16], b"tab", b"key"], &[]),
            (&[&[20], b"tab", b"key", b"value", &version], &[]),
        ];
        for (head, tail) in bodies {
            let ttl_of = |field: &[u8]| {
                let body = [head, &[field], tail].concat();
                Request::decode(&body, LIMITS).map_err(|fault| fault.reason).map(|request| match request {
                    Request::Update { ttl, .. }
                    | Request::CompareAndSwap { ttl, .. }
                    | Request::UpdateMany { ttl, .. }
                    | Request::Increment { ttl, .. } => ttl.map(Ttl::millis),
                    Request::Touch { ttl, .. } | Request::GetAndTouch { ttl, .. } | Request::Restore { ttl, .. } => {
                        Some(ttl.millis())
                    }
                    _ => None,
                })
            };
            assert_eq!(ttl_of(&seconds), Ok(Some(60_000)), "{head:?}");
            assert_eq!(ttl_of(&millis), Ok(Some(1_500)), "{head:?}");
            assert_eq!(ttl_of(&bad), Err(Reason::BadTtl), "{head:?}");
        }
    }

    #[test]
    fn an_empty_ttl_is_none_in_update_many_and_bad_elsewhere() {
        let body: [&[u8]; 5] = [&[11], b"tab", b"", b"key", b"value"];
        let many = Request::decode(&body, LIMITS);
        let pairs = [[&b"key"[..], b"value"]];
        let table = TableName::spelt(b"tab");
        assert_eq!(many, Ok(Request::UpdateMany { table, ttl: None, pairs: &pairs }));
        assert_eq!(reason(&[&[2], b"tab", b"key", b"value", b""]), Some(Reason::BadTtl));
        let swap: [&[u8]; 6] = [&[7], b"tab", b"key", &[0; 8], b"value", b""];
        assert_eq!(reason(&swap), Some(Reason::BadTtl));
        assert_eq!(reason(&[&[9], b"tab", b"key", b""]), Some(Reason::BadTtl));
        let restore: [&[u8]; 6] = [&[20], b"tab", b"key", b"value", &[0; 8], b""];
        assert_eq!((reason(&restore), reason(&restore[..5])), (Some(Reason::BadTtl), Some(Reason::BadRequest)));
    }

    #[test]
    fn a_version_is_8_bytes_big_endian() {
        let body: [&[u8]; 4] = [&[8], b"tab", b"key", &[0, 0, 0, 0, 0, 0, 1, 2]];
        let table = TableName::spelt(b"tab");
        let request = Request::CompareAndDelete { table, key: b"key", expected: 0x0102 };
        assert_eq!(Request::decode(&body, LIMITS), Ok(request));
        assert_eq!(reason(&[&[8], b"tab", b"key", &[0; 7]]), Some(Reason::BadRequest));
        assert_eq!(reason(&[&[8], b"tab", b"key", b""]), Some(Reason::BadRequest));
    }

    #[test]
    fn get_many_takes_1_to_1024_keys() {
        let many = |keys: usize| {
            let mut body = vec![&[10][..], b"tab"];
            body.resize(2 + keys, b"key");
            reason(&body)
        };
        assert_eq!(many(0), Some(Reason::BadRequest));
        assert_eq!(many(1), None);
        assert_eq!(many(1024), None);
        assert_eq!(many(1025), Some(Reason::BadRequest));
    }

    #[test]
    fn delete_many_takes_1_to_1024_keys() {
        for (keys, expected) in
            [(0, Some(Reason::BadRequest)), (1, None), (1024, None), (1025, Some(Reason::BadRequest))]
        {
            assert_eq!(reason(&[&[&[17][..], b"tab"], &vec![&b"key"[..]; keys][..]].concat()), expected, "{keys}");
        }
        assert_eq!(reason(&[&[17], b"tab", b"key", &[0; 65]]), Some(Reason::KeyTooLong));
    }

    #[test]
    fn a_delta_is_8_bytes_with_a_sign() {
        let table = TableName::spelt(b"tab");
        for (delta, frame) in [(258, [0, 0, 0, 0, 0, 0, 1, 2]), (-1, [255; 8]), (i64::MIN, [128, 0, 0, 0, 0, 0, 0, 0])]
        {
            let body: [&[u8]; 4] = [&[15], b"tab", b"key", &frame];
            let request = Request::Increment { table, key: b"key", delta, ttl: None };
            assert_eq!(Request::decode(&body, LIMITS), Ok(request));
        }
        assert_eq!(reason(&[&[15], b"tab", b"key", &[0; 7]]), Some(Reason::BadRequest));
        assert_eq!(reason(&[&[15], b"tab", b"key", &[0; 8], b""]), Some(Reason::BadTtl));
    }

    #[test]
    fn a_scan_has_a_cursor_a_count_and_fields_within_their_limits() {
        let [one, most, more] = [1, 10_000, 10_001].map(u64::to_be_bytes);
        let scan = |cursor: &[u8], count: &[u8], fields: &[u8]| reason(&[&[14], b"tab", cursor, count, fields]);
        for count in [&one, &most] {
            assert_eq!((scan(b"", count, &[0]), scan(&[7; 32], count, &[3])), (None, None));
        }
        assert_eq!(scan(&[7; 33], &one, &[0]), Some(Reason::BadCursor));
        for count in [&[0; 8][..], &more, &[255; 8], &[1, 0, 0, 0, 0, 0, 0, 1], &one[1..], b""] {
            assert_eq!(scan(b"", count, &[0]), Some(Reason::BadRequest), "{count:?}");
        }
        for fields in [&[4][..], &[255], b"", &[0, 0]] {
            assert_eq!(scan(b"", &one, fields), Some(Reason::BadRequest), "{fields:?}");
        }
        assert_eq!(reason(&[&[14], b"tab", b"", &one, &[0], &[0; 64]]), None);
        assert_eq!(reason(&[&[14], b"tab", b"", &one, &[0], &[0; 65]]), Some(Reason::KeyTooLong));
        assert_eq!(reason(&[&[14], b"tab", b"", &one]), Some(Reason::BadRequest));
    }

    #[test]
    fn update_many_takes_1_to_1024_whole_pairs() {
        let many = |frames: usize| {
            let mut body = vec![&[11][..], b"tab", b""];
            body.resize(3 + frames, b"key or value");
            reason(&body)
        };
        assert_eq!(many(0), Some(Reason::BadRequest));
        assert_eq!(many(1), Some(Reason::BadRequest));
        assert_eq!(many(2), None);
        assert_eq!(many(3), Some(Reason::BadRequest));
        assert_eq!(many(2048), None);
        assert_eq!(many(2049), Some(Reason::BadRequest));
        assert_eq!(many(2050), Some(Reason::BadRequest));
    }

    #[test]
    fn the_first_fault_is_the_leftmost_after_the_number_of_frames() {
        let long = [0; 65];
        assert_eq!(reason(&[&[3], b"", &long, b""]), Some(Reason::BadRequest));
        assert_eq!(reason(&[&[3], b"", &long]), Some(Reason::BadTableName));
        assert_eq!(reason(&[&[9], b"tab", &long, b""]), Some(Reason::KeyTooLong));
        let swap: [&[u8]; 6] = [&[7], b"tab", b"key", b"", &[0; VALUE_MAX + 1], b""];
        assert_eq!(reason(&swap), Some(Reason::BadRequest));
        let many: [&[u8]; 7] = [&[11], b"tab", b"bad ttl!", &long, b"", b"", b""];
        assert_eq!(reason(&many), Some(Reason::BadTtl));
    }

    #[test]
    fn a_fault_names_the_command_once_that_is_known() {
        let fault = Request::decode(&[&[4][..], b"tab"], LIMITS).unwrap_err();
        assert_eq!(fault.command, Some(Command::Get));
        let next = u8::try_from(Command::COUNT).unwrap();
        let fault = Request::decode(&[&[next][..]], LIMITS).unwrap_err();
        assert_eq!(fault.command, None);
    }
}
