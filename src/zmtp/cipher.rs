//! The traffic of a connection with CURVE (RFC 26): each frame in a box of its own.
//!
//! ```text
//! frame     flags │ size │ body
//! sealed    00 │ size │ 07 "MESSAGE" │ nonce (8, big-endian) │ box: tag (16) │ flags (1) │ body
//!           flags in the box: bit 0 MORE, bit 1 COMMAND
//! ```
//! Nonces grow with each box. A box that is out of order, changed or of another connection ends the connection.

use dryoc::classic::crypto_box::{
    crypto_box_beforenm, crypto_box_detached_afternm_inplace, crypto_box_open_detached_afternm_inplace,
};

use super::ProtocolError;
use super::curve_key::{PublicKey, SecretKey};
use super::frame::{decode_header, encode_frame_header};

/// The beginning of a box on the wire, before its nonce.
const MESSAGE: &[u8; 8] = b"\x07MESSAGE";
/// Bytes of the part of a nonce that is on the wire.
pub(super) const NONCE_BYTES: usize = 8;
/// Bytes of a box beyond its content.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of a sealed frame's body beyond those of the frame.
pub const SEALED_EXTRA_BYTES: usize = MESSAGE.len() + NONCE_BYTES + TAG_BYTES + 1;
const MORE: u8 = 1;
const COMMAND: u8 = 2;
/// Flags of frames outside of boxes: see `frame.rs`.
const FRAME_COMMAND: u8 = 0b100;

/// Which way a box goes: the beginning of its nonce.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direction(&'static [u8; 16]);

impl Direction {
    pub(super) const TO_CLIENT: Self = Self(b"CurveZMQMESSAGES");
    pub(super) const TO_SERVER: Self = Self(b"CurveZMQMESSAGEC");
}

/// The key that two sides compute, each of its own secret key and the other's public key.
#[derive(Clone)]
pub(super) struct SharedKey([u8; 32]);

impl SharedKey {
    /// The key. None if the public key is none that a peer can have made (it has a small order).
    pub(super) fn of(theirs: &PublicKey, ours: &SecretKey) -> Option<Self> {
        crypto_box_beforenm(&theirs.0, &ours.0).ok().map(Self)
    }

    /// Encrypts in place, and returns the tag.
    pub(super) fn close(&self, content: &mut [u8], nonce: &[u8; 24]) -> [u8; TAG_BYTES] {
        let mut tag = [0; TAG_BYTES];
        crypto_box_detached_afternm_inplace(content, &mut tag, nonce, &self.0);
        tag
    }

    /// Decrypts in place. False if the box was not made with this key and nonce.
    pub(super) fn open(&self, content: &mut [u8], tag: &[u8; TAG_BYTES], nonce: &[u8; 24]) -> bool {
        crypto_box_open_detached_afternm_inplace(content, tag, nonce, &self.0).is_ok()
    }
}

/// A nonce: the purpose, then a counter or random bytes.
pub(super) fn nonce(purpose: &[u8], rest: &[u8]) -> [u8; 24] {
    let mut nonce = [0; 24];
    let (first, last) = nonce.split_at_mut(purpose.len());
    first.copy_from_slice(purpose);
    last.copy_from_slice(rest);
    nonce
}

/// Seals the frames that this side sends.
pub struct Sealer {
    key: SharedKey,
    direction: Direction,
    /// The last nonce.
    last: u64,
}

/// Opens the frames that the other side has sealed.
pub struct Opener {
    key: SharedKey,
    direction: Direction,
    /// The last nonce.
    last: u64,
}

/// Both ends of one side of a connection.
pub struct Cipher {
    /// For the frames to be sent.
    pub sealer: Sealer,
    /// For the frames that come.
    pub opener: Opener,
}

impl Cipher {
    /// The cipher of the server. `received` and `sent` are the last nonces of the handshake.
    pub(super) fn of_server(key: SharedKey, received: u64, sent: u64) -> Self {
        Self {
            sealer: Sealer { key: key.clone(), direction: Direction::TO_CLIENT, last: sent },
            opener: Opener { key, direction: Direction::TO_SERVER, last: received },
        }
    }

    /// The cipher of a server that has seen nothing yet.
    #[cfg(test)]
    pub(super) fn between(theirs: &PublicKey, ours: &SecretKey) -> Self {
        Self::of_server(SharedKey::of(theirs, ours).expect("the key is valid"), 0, 0)
    }

    /// The cipher of the client. `received` and `sent` are the last nonces of the handshake.
    pub(super) fn of_client(key: SharedKey, received: u64, sent: u64) -> Self {
        Self {
            sealer: Sealer { key: key.clone(), direction: Direction::TO_SERVER, last: sent },
            opener: Opener { key, direction: Direction::TO_CLIENT, last: received },
        }
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cipher")
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener")
    }
}

impl Sealer {
    /// Seals whole frames, as many as are in `frames` but no more than begin within its first `most` bytes. Appends the
    /// sealed ones to `out` and returns how many bytes of `frames` they were.
    ///
    /// # Panics
    /// If `frames` does not consist of whole frames.
    pub fn seal(&mut self, frames: &[u8], most: usize, out: &mut Vec<u8>) -> usize {
        let mut done = 0;
        while done < most.min(frames.len()) {
            let rest = frames.get(done..).unwrap_or_default();
            let header = decode_header(rest).ok().flatten();
            let (flags, start, size) = header.expect("frames of this server are whole");
            let end = start + usize::try_from(size).expect("a frame lies in memory");
            let body = rest.get(start..end).expect("frames of this server are whole");
            self.seal_frame(flags, body, out);
            done += end;
        }
        done
    }

    fn seal_frame(&mut self, flags: u8, body: &[u8], out: &mut Vec<u8>) {
        self.last += 1;
        let counter = self.last.to_be_bytes();
        let inner = if flags & FRAME_COMMAND == 0 { flags & MORE } else { COMMAND };
        encode_frame_header(out, body.len() + SEALED_EXTRA_BYTES, false);
        out.extend_from_slice(MESSAGE);
        out.extend_from_slice(&counter);
        let tag_at = out.len();
        out.extend_from_slice(&[0; TAG_BYTES]);
        out.push(inner);
        out.extend_from_slice(body);
        let (head, content) = out.split_at_mut(tag_at + TAG_BYTES);
        let tag = self.key.close(content, &nonce(self.direction.0, &counter));
        head.get_mut(tag_at..).unwrap_or_default().copy_from_slice(&tag);
    }
}

impl Opener {
    /// Opens the sealed frames that have come whole, and appends them to `out` as frames. Returns how many bytes of
    /// `bytes` they were. The body of an opened frame has at most `most` bytes.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection. The frames before it are valid.
    pub fn open(&mut self, bytes: &[u8], most: u64, out: &mut Vec<u8>) -> Result<usize, ProtocolError> {
        let mut taken = 0;
        while let Some((_, start, size)) = decode_header(bytes.get(taken..).unwrap_or_default())? {
            let most = most.saturating_add(SEALED_EXTRA_BYTES as u64);
            if size > most {
                return Err(ProtocolError::TooLong { bytes: size, most });
            }
            let start = taken + start;
            let end = usize::try_from(size).ok().and_then(|size| start.checked_add(size));
            let Some((end, sealed)) = end.and_then(|end| Some((end, bytes.get(start..end)?))) else { break };
            self.open_frame(sealed, out)?;
            taken = end;
        }
        Ok(taken)
    }

    fn open_frame(&mut self, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        const WRONG: ProtocolError = ProtocolError::Sealed { what: "a frame is in no box" };
        let rest = sealed.strip_prefix(MESSAGE).ok_or(WRONG)?;
        let (counter, rest) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(WRONG)?;
        let (tag, content) = rest.split_first_chunk::<TAG_BYTES>().ok_or(WRONG)?;
        let body_bytes = content.len().checked_sub(1).ok_or(WRONG)?;
        let number = u64::from_be_bytes(*counter);
        if number <= self.last {
            return Err(ProtocolError::Sealed { what: "a box is out of order" });
        }
        let begin = out.len();
        encode_frame_header(out, body_bytes, false);
        // The flags lie in the box before the body: for now they replace the last byte of the header.
        let header_last = out.pop().unwrap_or_default();
        let content_at = out.len();
        out.extend_from_slice(content);
        let inside = out.get_mut(content_at..).unwrap_or_default();
        if !self.key.open(inside, tag, &nonce(self.direction.0, counter)) {
            out.truncate(begin);
            return Err(ProtocolError::Sealed { what: "a box cannot be opened" });
        }
        self.last = number;
        let flags = inside.first().copied().unwrap_or_default();
        if flags & !(MORE | COMMAND) != 0 || flags & COMMAND != 0 && flags & MORE != 0 {
            out.truncate(begin);
            return Err(ProtocolError::Flags { flags });
        }
        inside.iter_mut().take(1).for_each(|place| *place = header_last);
        if flags & MORE != 0 {
            out.iter_mut().skip(begin).take(1).for_each(|first| *first |= MORE);
        }
        if flags & COMMAND != 0 {
            out.iter_mut().skip(begin).take(1).for_each(|first| *first |= FRAME_COMMAND);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    /// A box with this number and these flags.
    fn sealed(sealer: &Sealer, number: u64, flags: u8) -> Vec<u8> {
        let counter = number.to_be_bytes();
        let mut content = [flags, b'x'];
        let tag = sealer.key.close(&mut content, &nonce(sealer.direction.0, &counter));
        let mut out = Vec::new();
        encode_frame_header(&mut out, SEALED_EXTRA_BYTES + 1, false);
        [&out[..], MESSAGE, &counter, &tag, &content].concat()
    }

    /// The ends of a client and of its server.
    fn both() -> (Cipher, Cipher) {
        let (client, server) = (SecretKey::generate(), SecretKey::generate());
        let key = SharedKey::of(&server.public_key(), &client).unwrap();
        (Cipher::of_client(key, 0, 0), Cipher::between(&client.public_key(), &server))
    }

    #[test]
    fn a_box_has_the_flags_of_a_frame_or_of_a_command() {
        for flags in 0..=u8::MAX {
            let (near, mut far) = both();
            let mut out = Vec::new();
            let opened = far.opener.open(&sealed(&near.sealer, 1, flags), 1, &mut out);
            let expected: &[u8] = match flags {
                0 => b"\x00\x01x",
                MORE => b"\x01\x01x",
                COMMAND => b"\x04\x01x",
                _ => b"",
            };
            assert_eq!((opened.is_ok(), &out[..]), (flags <= COMMAND, expected), "{flags}");
        }
    }

    #[test]
    fn each_box_has_a_higher_number_than_the_one_before() {
        let (near, mut far) = both();
        let mut open = |number| far.opener.open(&sealed(&near.sealer, number, 0), 1, &mut Vec::new()).is_ok();
        let opened = [0, 1, 1, 3, 3, 2, 4, u64::MAX, 5].map(&mut open);
        assert_eq!(opened, [false, true, false, true, false, false, true, true, false]);
    }

    #[test]
    fn no_box_of_one_direction_is_one_of_the_other() {
        let (near, mut far) = both();
        assert!(far.opener.open(&sealed(&far.sealer, 1, 0), 1, &mut Vec::new()).is_err());
        let (mut bytes, mut frame) = (Vec::new(), Vec::new());
        encode_frame_header(&mut frame, 0, false);
        let mut sealer = near.sealer;
        sealer.seal(&frame.repeat(2), 4, &mut bytes);
        assert_eq!(sealer.last, 2, "each box has a nonce of its own");
        assert!(far.opener.open(&bytes, 0, &mut Vec::new()).is_ok());
    }
}
