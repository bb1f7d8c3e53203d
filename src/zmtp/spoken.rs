//! Peers whose first bytes are no signature of ZMTP, and what they speak.
//!
//! ```text
//! LL 00                   ZMTP 1.0: the length of an identity, and flags without a bit
//! 16 03                   TLS: a record of a handshake
//! "*" digit               Redis: an array of RESP
//! "GET / HTTP/1.1\r\n"    HTTP: a request line
//! "PING\r\n"              lines of text: an inline command of Redis, or another protocol of lines
//! ```
//! A line is looked at when it is whole, or has at least [`LINE_BYTES`]. The `greeting` knows the peers of older
//! versions that have a signature.

use std::fmt;

/// Bytes of a line that need not be whole: no more are waited for than for a greeting.
const LINE_BYTES: usize = 64;

/// What a peer speaks in place of ZMTP 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpokenProtocol {
    /// ZMTP 1.0, of libzmq 2.
    Zmtp1,
    /// ZMTP 2.0, of libzmq 3 and JeroMQ 0.3.
    Zmtp2,
    /// HTTP.
    Http,
    /// TLS.
    Tls,
    /// RESP, the protocol of Redis.
    Redis,
    /// Lines of text.
    Text,
    /// Something else.
    Unknown,
}

impl fmt::Display for SpokenProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zmtp1 => "ZMTP 1.0",
            Self::Zmtp2 => "ZMTP 2.0",
            Self::Http => "HTTP",
            Self::Tls => "TLS",
            Self::Redis => "RESP, as clients of Redis do",
            Self::Text => "lines of text, as inline commands of Redis are",
            Self::Unknown => "something else than ZMTP",
        })
    }
}

impl SpokenProtocol {
    /// The protocol of a peer that has sent these bytes first. `None`: they are too few.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [1..=u8::MAX, 0, ..] => Some(Self::Zmtp1),
            [0x16, 3, ..] => Some(Self::Tls),
            [b'*', b'0'..=b'9', ..] => Some(Self::Redis),
            [first, _, ..] if first.is_ascii_alphabetic() => Self::of_line(bytes),
            [_, _, ..] => Some(Self::Unknown),
            _ => None,
        }
    }

    fn of_line(bytes: &[u8]) -> Option<Self> {
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_whole = line.len() < bytes.len();
        if !line.iter().all(|byte| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t' | b'\r')) {
            return Some(Self::Unknown);
        }
        let contains = |text: &[u8]| line.windows(text.len()).any(|part| part == text);
        // The version stands behind the target, which may be long.
        let is_http = contains(b" HTTP/") || !is_whole && (contains(b" /") || contains(b" http"));
        match (is_whole || line.len() >= LINE_BYTES, is_http) {
            (true, true) => Some(Self::Http),
            (true, false) => Some(Self::Text),
            (false, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn peers_are_known_by_their_first_bytes() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(100));
        let rows: [(&[u8], SpokenProtocol); 17] = [
            (b"\x01\x00", SpokenProtocol::Zmtp1),
            (b"*\x00", SpokenProtocol::Zmtp1),
            (b"\x16\x00", SpokenProtocol::Zmtp1),
            (b"\x16\x03", SpokenProtocol::Tls),
            (b"*1\r\n$4\r\nPING\r\n", SpokenProtocol::Redis),
            (b"PING\r\n", SpokenProtocol::Text),
            (b"get key\n", SpokenProtocol::Text),
            (b"GET /key\r\n", SpokenProtocol::Text),
            (b"GET / HTTP/1.1\r\n", SpokenProtocol::Http),
            (b"PRI * HTTP/2.0\r\n\r\nSM", SpokenProtocol::Http),
            (long.as_bytes(), SpokenProtocol::Http),
            (&long.as_bytes()[..LINE_BYTES], SpokenProtocol::Http),
            (&[b'a'; LINE_BYTES], SpokenProtocol::Text),
            (b"SSH-2.0-x\r\n", SpokenProtocol::Text),
            (b"ab\x00", SpokenProtocol::Unknown),
            (b"\x00\x00", SpokenProtocol::Unknown),
            (b"-E", SpokenProtocol::Unknown),
        ];
        for (bytes, expected) in rows {
            assert_eq!(SpokenProtocol::of(bytes), Some(expected), "{}", bytes.escape_ascii());
        }
    }

    /// Peers send their first bytes in pieces.
    #[test]
    fn a_beginning_is_not_taken_for_another_protocol() {
        let whole: [(&[u8], SpokenProtocol); 5] = [
            (b"\x01\x00", SpokenProtocol::Zmtp1),
            (b"\x16\x03", SpokenProtocol::Tls),
            (b"*1", SpokenProtocol::Redis),
            (b"PING\r\n", SpokenProtocol::Text),
            (b"GET / HTTP/1.1\r\n", SpokenProtocol::Http),
        ];
        for (bytes, expected) in whole {
            for length in 0..bytes.len() {
                assert_eq!(SpokenProtocol::of(&bytes[..length]), None, "{length} of {}", bytes.escape_ascii());
            }
            assert_eq!(SpokenProtocol::of(bytes), Some(expected));
        }
    }
}
