//! `DUMP` and `RESTORE` of a string, in Redis's own format, so that its tools move data to and from Spindle.
//!
//! ```text
//! payload  = kind (1 byte, 0 is a string), string, version (2 bytes), CRC-64 of all bytes before it (8 bytes)
//! string   = length, bytes
//!          | 0xc0, 1 byte | 0xc1, 2 bytes | 0xc2, 4 bytes                a signed integer, whose text is the value
//!          | 0xc3, length of the stream, length of the value, LZF stream
//! length   = 00LLLLLL | 01LLLLLL, 1 byte | 0x80, 4 bytes | 0x81, 8 bytes   the lengths of more bytes are big-endian
//! ```
//! All else is little-endian. The source is Redis's documentation of RDB files, with its server 7.0 as the oracle. This
//! module never compresses, and it reads no kind but strings. As in Redis, bytes between the string and the version are
//! ignored. Unlike Redis, a string never runs into the bytes of the version and the checksum.
//!
//! An announced length takes no memory: a value is built when all its bytes are there, and an LZF stream is measured
//! before it is unpacked.

use super::crc64::crc64;
use super::lzf;
use crate::byte_reader::ByteReader;
use crate::resp3::integer;

/// The kind of payload that is a string.
const KIND_STRING: u8 = 0;
/// The version that is written: Redis reads it since 5.0.
const VERSION_WRITTEN: u16 = 9;
/// The latest version that is read: that of Valkey 9. The format of a string is the same in all of them.
const VERSION_READ_MAX: u16 = 80;
/// The bytes of the version and the checksum.
const FOOTER_BYTES: usize = 10;
/// The bytes before and behind a string, at most: kind, length, footer.
const FRAME_BYTES_MAX: usize = 1 + 9 + FOOTER_BYTES;
/// The longest text that may be dumped as an integer: `-2147483648`.
const INTEGER_BYTES_MAX: usize = 11;

const INTEGER_8: u8 = 0xc0;
const INTEGER_16: u8 = 0xc1;
const INTEGER_32: u8 = 0xc2;
const LZF: u8 = 0xc3;
const LENGTH_32: u8 = 0x80;
const LENGTH_64: u8 = 0x81;

/// Why a payload is not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestoreError {
    /// `ERR DUMP payload version or checksum are wrong`
    Checksum,
    /// `ERR Bad data format`
    Format,
    /// A payload of another kind: a list, a set, a sorted set, a hash, a stream, a module's.
    NotAString,
    /// A well-formed string above the caller's bound.
    TooLong,
}

/// The payload of a string.
pub(super) fn dump(value: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(value.len() + FRAME_BYTES_MAX);
    payload.push(KIND_STRING);
    if let Some(number) = small_integer(value) {
        push_integer(&mut payload, number);
    } else {
        push_length(&mut payload, value.len());
        payload.extend_from_slice(value);
    }
    payload.extend_from_slice(&VERSION_WRITTEN.to_le_bytes());
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    payload
}

/// The string of a payload, of at most `value_max` bytes.
pub(super) fn restore(payload: &[u8], value_max: usize) -> Result<Vec<u8>, RestoreError> {
    let mut reader = ByteReader::new(verified(payload)?);
    match reader.byte().ok_or(RestoreError::Format)? {
        KIND_STRING => string(&mut reader, value_max),
        1..=7 | 9..=25 => Err(RestoreError::NotAString),
        _ => Err(RestoreError::Format),
    }
}

/// The payload before its footer, if version and checksum are right.
fn verified(payload: &[u8]) -> Result<&[u8], RestoreError> {
    let split = payload.split_last_chunk::<FOOTER_BYTES>();
    let (body, &[version_low, version_high, checksum @ ..]) = split.ok_or(RestoreError::Checksum)?;
    let (checked, _) = payload.split_at(body.len() + 2);
    let is_known = u16::from_le_bytes([version_low, version_high]) <= VERSION_READ_MAX;
    let is_right = is_known && crc64(checked) == u64::from_le_bytes(checksum);
    if is_right { Ok(body) } else { Err(RestoreError::Checksum) }
}

/// The string that begins here.
fn string(reader: &mut ByteReader, value_max: usize) -> Result<Vec<u8>, RestoreError> {
    if reader.rest().first() == Some(&LZF) {
        return compressed(reader, value_max);
    }
    if let Some(number) = encoded_integer(reader) {
        let text = number.to_string().into_bytes();
        return if text.len() <= value_max { Ok(text) } else { Err(RestoreError::TooLong) };
    }
    // The other encodings begin with 11 as well, so their bytes are no length.
    if reader.rest().first().is_some_and(|&first| first >= INTEGER_8) {
        return Err(RestoreError::Format);
    }
    let value = length(reader).and_then(|length| reader.take(length)).ok_or(RestoreError::Format)?;
    if value.len() <= value_max { Ok(value.to_vec()) } else { Err(RestoreError::TooLong) }
}

/// The string of an LZF stream.
fn compressed(reader: &mut ByteReader, value_max: usize) -> Result<Vec<u8>, RestoreError> {
    let fields = |reader: &mut ByteReader| {
        reader.byte()?;
        Some((length(reader)?, length(reader)?))
    };
    let (stream_length, announced) = fields(reader).ok_or(RestoreError::Format)?;
    let stream = reader.take(stream_length).ok_or(RestoreError::Format)?;
    // Redis unpacks no stream of an empty value, and so accepts any.
    if announced == 0 {
        return Ok(Vec::new());
    }
    if lzf::unpacked_length(stream) != Some(announced) {
        return Err(RestoreError::Format);
    }
    if announced > value_max {
        return Err(RestoreError::TooLong);
    }
    lzf::unpack(stream, announced).ok_or(RestoreError::Format)
}

/// The integer that begins here, if the string is encoded as one.
fn encoded_integer(reader: &mut ByteReader) -> Option<i32> {
    let mut fields = *reader;
    let number = match fields.byte()? {
        INTEGER_8 => i32::from(i8::from_le_bytes(fields.array()?)),
        INTEGER_16 => i32::from(i16::from_le_bytes(fields.array()?)),
        INTEGER_32 => i32::from_le_bytes(fields.array()?),
        _ => return None,
    };
    *reader = fields;
    Some(number)
}

/// The length that begins here. Beside LZF, the low bits of a byte `11LLLLLL` are a length too, as in Redis.
fn length(reader: &mut ByteReader) -> Option<usize> {
    let first = reader.byte()?;
    let low = usize::from(first & 0x3f);
    match (first >> 6, first) {
        (0 | 3, _) => Some(low),
        (1, _) => Some((low << 8) + usize::from(reader.byte()?)),
        (_, LENGTH_32) => usize::try_from(reader.u32_be()?).ok(),
        (_, LENGTH_64) => usize::try_from(reader.u64_be()?).ok(),
        _ => None,
    }
}

/// The value as an integer of 32 bits, if it is the text of one.
fn small_integer(value: &[u8]) -> Option<i32> {
    let may_be = value.len() <= INTEGER_BYTES_MAX;
    may_be.then(|| integer(value))?.and_then(|number| i32::try_from(number).ok())
}

/// Appends an integer in the fewest bytes.
fn push_integer(payload: &mut Vec<u8>, number: i32) {
    if let Ok(number) = i8::try_from(number) {
        payload.push(INTEGER_8);
        payload.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        payload.push(INTEGER_16);
        payload.extend_from_slice(&number.to_le_bytes());
    } else {
        payload.push(INTEGER_32);
        payload.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends a length in the fewest bytes.
fn push_length(payload: &mut Vec<u8>, length: usize) {
    match (u8::try_from(length), u16::try_from(length), u32::try_from(length)) {
        (Ok(length @ 0..=0x3f), _, _) => payload.push(length),
        (_, Ok(length @ 0..=0x3fff), _) => payload.extend_from_slice(&(0x4000 | length).to_be_bytes()),
        (_, _, Ok(length)) => {
            payload.push(LENGTH_32);
            payload.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            payload.push(LENGTH_64);
            payload.extend_from_slice(&length.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
