//! Frames: the pieces of messages and commands on the wire.
//!
//! ```text
//! flags  bit 0 MORE: further frames of the message follow
//!        bit 1 LONG: the size has eight bytes
//!        bit 2 COMMAND: not a part of a message; never with MORE
//!
//! short  flags │ size (1)            │ body of 0–255 bytes
//! long   flags │ size (8, big-endian) │ body
//! ```

use std::ops::Range;

use super::{ProtocolError, ZmtpCommand};
use crate::byte_reader::ByteReader;

const MORE: u8 = 0b001;
const LONG: u8 = 0b010;
const COMMAND: u8 = 0b100;

/// The next frame that a peer has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'b> {
    /// A frame of a message.
    Frame {
        /// The bytes of the frame.
        body: &'b [u8],
        /// Whether further frames of the message follow.
        more: bool,
    },
    /// A command.
    Command(ZmtpCommand<'b>),
}

impl<'b> Part<'b> {
    /// Decodes the first part of these bytes, and returns the bytes that it took. `None` if it has not come whole. A
    /// body has at most `most` bytes.
    ///
    /// # Errors
    /// [`ProtocolError::Flags`], [`ProtocolError::TooLong`] as soon as the size has come, [`ProtocolError::Command`].
    ///
    /// ```
    /// use spindle::zmtp::Part;
    ///
    /// let bytes = b"\x01\x02hi\x00\x01!";
    /// assert_eq!(Part::decode(bytes, 100), Ok(Some((Part::Frame { body: b"hi", more: true }, 4))));
    /// assert_eq!(Part::decode(&bytes[..3], 100), Ok(None));
    /// ```
    #[inline]
    pub fn decode(bytes: &'b [u8], most: u64) -> Result<Option<(Self, usize)>, ProtocolError> {
        let Some((flags, start, size)) = decode_header(bytes)? else { return Ok(None) };
        if size > most {
            return Err(ProtocolError::TooLong { bytes: size, most });
        }
        let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size));
        let Some((end, body)) = end.and_then(|end| Some((end, bytes.get(start..end)?))) else { return Ok(None) };
        let part = if flags & COMMAND == 0 {
            Self::Frame { body, more: flags & MORE != 0 }
        } else {
            Self::Command(ZmtpCommand::decode(body)?)
        };
        Ok(Some((part, end)))
    }
}

/// Bytes of the header of a long frame: flags and size.
pub const FRAME_HEADER_BYTES_MAX: usize = 9;

/// The body of the command that these bytes begin with, and the bytes that it takes. None if it has not come whole.
pub(super) fn command_body(bytes: &[u8], most: u64) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let Some((flags, start, size)) = decode_header(bytes)? else { return Ok(None) };
    if flags & COMMAND == 0 {
        return Err(ProtocolError::Command { what: "a message has come before the end of the handshake" });
    }
    if size > most {
        return Err(ProtocolError::TooLong { bytes: size, most });
    }
    let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size));
    Ok(end.and_then(|end| Some((bytes.get(start..end)?, end))))
}

/// The body of the frame at this offset, and whether further frames of the message follow, if it is a short frame of a
/// message, has come whole, and has at most `most` bytes. Nearly all frames are that. [`Part::decode`] has the others.
#[inline]
pub(super) fn short_frame(bytes: &[u8], at: usize, most: u64) -> Option<(Range<usize>, bool)> {
    let (flags, size) = (*bytes.get(at)?, *bytes.get(at + 1)?);
    let (start, end) = (at + 2, at + 2 + usize::from(size));
    (flags <= MORE && end <= bytes.len() && u64::from(size) <= most).then_some((start..end, flags == MORE))
}

/// The flags, the offset of the body, and its size.
#[inline]
pub(super) fn decode_header(bytes: &[u8]) -> Result<Option<(u8, usize, u64)>, ProtocolError> {
    let mut fields = ByteReader::new(bytes);
    let Some(flags) = fields.byte() else { return Ok(None) };
    if flags > (MORE | LONG | COMMAND) || flags & (MORE | COMMAND) == (MORE | COMMAND) {
        return Err(ProtocolError::Flags { flags });
    }
    if flags & LONG == 0 {
        return Ok(fields.byte().map(|size| (flags, 2, u64::from(size))));
    }
    Ok(fields.u64_be().map(|size| (flags, 9, size)))
}

/// Appends a frame of a message. `more`: further frames of the message follow.
#[inline]
pub fn encode_frame(out: &mut Vec<u8>, body: &[u8], more: bool) {
    encode_frame_header(out, body.len(), more);
    out.extend_from_slice(body);
}

/// Appends the header of a frame of a message. The body of `size` bytes follows. `more`: further frames follow it.
#[inline]
pub fn encode_frame_header(out: &mut Vec<u8>, size: usize, more: bool) {
    encode(out, if more { MORE } else { 0 }, size);
}

/// Appends the header of a command. The body of `size` bytes follows.
pub(super) fn encode_command_header(out: &mut Vec<u8>, size: usize) {
    encode(out, COMMAND, size);
}

#[inline]
fn encode(out: &mut Vec<u8>, flags: u8, size: usize) {
    match u8::try_from(size) {
        Ok(short) => out.extend_from_slice(&[flags, short]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(size as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest body with a size of one byte.
    const SHORT_BYTES_MAX: usize = 255;

    #[test]
    fn frames_come_back_as_they_were_whatever_their_length() {
        for length in [0, 1, 254, 255, 256, 70_000] {
            let body = vec![7; length];
            let mut bytes = Vec::new();
            encode_frame(&mut bytes, &body, length % 2 == 0);
            let header = if length > SHORT_BYTES_MAX { 9 } else { 2 };
            assert_eq!(bytes.len(), header + length);
            for cut in [0, 1, header - 1, (header + length).saturating_sub(1)] {
                assert_eq!(Part::decode(bytes.get(..cut).unwrap_or_default(), 1 << 20), Ok(None), "{length} {cut}");
            }
            let more = length % 2 == 0;
            assert_eq!(Part::decode(&bytes, 1 << 20), Ok(Some((Part::Frame { body: &body, more }, bytes.len()))));
        }
    }

    #[test]
    fn a_short_frame_is_what_the_decoder_finds_and_anything_else_is_left_to_it() {
        for flags in 0..=u8::MAX {
            for (size, sent, most) in [(0, 0, 0), (0, 0, 255), (3, 3, 3), (3, 3, 2), (3, 2, 255), (255, 255, 254)] {
                let bytes = [vec![9; 4], vec![flags, size], vec![7; sent]].concat();
                let short = short_frame(&bytes, 4, most).map(|(body, more)| (bytes.get(body), more));
                let decoded = match Part::decode(bytes.get(4..).unwrap_or_default(), most) {
                    Ok(Some((Part::Frame { body, more }, length))) if length < 258 => Some((Some(body), more)),
                    _ => None,
                };
                let is_short = flags & LONG == 0;
                assert_eq!(short, decoded.filter(|_| is_short), "flags {flags}, size {size}, {sent} sent, {most} most");
            }
        }
        let lengths = [0, 1, 2].map(|length| short_frame(&vec![0; length], 0, 255));
        assert_eq!(lengths, [None, None, Some((2..2, false))]);
        assert_eq!(short_frame(&[0, 0], 7, 255), None);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_comes() {
        let header = b"\x02\xff\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(Part::decode(header, 1 << 20), Err(ProtocolError::TooLong { bytes: u64::MAX, most: 1 << 20 }));
        assert_eq!(Part::decode(b"\x00\x05", 4), Err(ProtocolError::TooLong { bytes: 5, most: 4 }));
        assert_eq!(Part::decode(header, u64::MAX), Ok(None));
    }

    #[test]
    fn flags_that_nobody_has_defined_are_refused() {
        for flags in [0b1000, 0b101, 0b111, 0xff] {
            assert_eq!(Part::decode(&[flags, 0], 10), Err(ProtocolError::Flags { flags }));
        }
    }
}
