//! The handshake: from the first byte of a connection to the first message. Both sides do the same.
//!
//! ```text
//!            greeting ──► (their greeting) ──► READY ──► (their READY) ──► messages
//!                              │                             │ ERROR, or a socket of the wrong kind
//!                              └─────────────────────────────┴──► ProtocolError: send ERROR where it is
//!                                                                 understood, and close
//! ```

use std::fmt;

use super::command::{encode_ready, text};
use super::greeting::{GREETING, GREETING_BYTES, check};
use super::{Part, ProtocolError, ZmtpCommand, encode_error};
use crate::limits::{HANDSHAKE_BYTES_MAX, IDENTITY_BYTES_MAX};

/// A socket type that this module supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are ZeroMQ's")]
pub enum SocketType {
    Req,
    Dealer,
    Router,
    Rep,
    Pub,
    Sub,
    XPub,
    XSub,
}

impl SocketType {
    const ALL: [Self; 8] =
        [Self::Req, Self::Dealer, Self::Router, Self::Rep, Self::Pub, Self::Sub, Self::XPub, Self::XSub];

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Req => "REQ",
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
            Self::Rep => "REP",
            Self::Pub => "PUB",
            Self::Sub => "SUB",
            Self::XPub => "XPUB",
            Self::XSub => "XSUB",
        }
    }

    fn by_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// The types that this type may connect to.
    const fn partners(self) -> &'static [Self] {
        match self {
            Self::Req => &[Self::Rep, Self::Router],
            Self::Dealer => &[Self::Rep, Self::Dealer, Self::Router],
            Self::Router => &[Self::Req, Self::Dealer, Self::Router],
            Self::Rep => &[Self::Req, Self::Dealer],
            Self::Pub | Self::XPub => &[Self::Sub, Self::XSub],
            Self::Sub | Self::XSub => &[Self::Pub, Self::XPub],
        }
    }
}

impl fmt::Display for SocketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The peer at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakePeer {
    /// Its socket type.
    pub socket_type: SocketType,
    /// The routing id that it chose, 0–255 bytes. Empty if it leaves the choice to us.
    pub identity: Vec<u8>,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// The handshake needs more bytes. The caller passes the bytes that were not taken again, followed by the new ones.
    More,
    /// The handshake is over. The bytes that were not taken are the first of the messages.
    Done(HandshakePeer),
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Handshake {
    ours: SocketType,
    greeted: bool,
}

impl Handshake {
    /// Begins a handshake: appends our greeting to `out`.
    #[must_use]
    pub fn begin(ours: SocketType, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&GREETING);
        Self { ours, greeted: false }
    }

    /// Continues with the bytes that have come and were not taken yet. Returns how many are taken now, and the result.
    /// Bytes to send are appended to `out`. If the peer's READY is decoded and refused, `out` gets an ERROR as well.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection. The caller sends `out` first.
    pub fn advance(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(usize, HandshakeStep), ProtocolError> {
        let mut taken = 0;
        if !self.greeted {
            if !check(bytes)? {
                return Ok((0, HandshakeStep::More));
            }
            self.greeted = true;
            taken = GREETING_BYTES;
            encode_ready(out, &[("Socket-Type", self.ours.name().as_bytes()), ("Identity", b"")]);
        }
        let rest = bytes.get(taken..).unwrap_or_default();
        match Part::decode(rest, HANDSHAKE_BYTES_MAX)? {
            None => Ok((taken, HandshakeStep::More)),
            Some((Part::Command(ZmtpCommand::Ready(properties)), length)) => {
                let peer = self.check_peer(properties.get("Socket-Type"), properties.get("Identity"));
                let peer = peer.inspect_err(|fault| encode_error(out, &fault.to_string()))?;
                Ok((taken + length, HandshakeStep::Done(peer)))
            }
            Some((Part::Command(ZmtpCommand::Error { reason }), _)) => {
                Err(ProtocolError::Refused { reason: text(reason) })
            }
            Some(_) => Err(ProtocolError::Command { what: "READY was expected" }),
        }
    }

    fn check_peer(&self, socket_type: Option<&[u8]>, identity: Option<&[u8]>) -> Result<HandshakePeer, ProtocolError> {
        let name = socket_type.ok_or(ProtocolError::Command { what: "a READY does not say what socket it is" })?;
        let known = SocketType::by_name(name).filter(|theirs| self.ours.partners().contains(theirs));
        let socket_type = known.ok_or_else(|| ProtocolError::SocketType { theirs: text(name), ours: self.ours })?;
        let identity = identity.unwrap_or_default();
        if identity.len() > IDENTITY_BYTES_MAX {
            return Err(ProtocolError::Command { what: "an identity has more than 255 bytes" });
        }
        Ok(HandshakePeer { socket_type, identity: identity.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    /// The bytes that a side with this socket type sends until it is ready.
    fn sent_by(kind: SocketType) -> Vec<u8> {
        let mut out = Vec::new();
        let mut handshake = Handshake::begin(kind, &mut out);
        handshake.advance(&GREETING, &mut out).unwrap();
        out
    }

    fn meet(ours: SocketType, bytes: &[u8]) -> (Result<(usize, HandshakeStep), ProtocolError>, Vec<u8>) {
        let mut out = Vec::new();
        let mut handshake = Handshake::begin(ours, &mut out);
        out.clear();
        (handshake.advance(bytes, &mut out), out)
    }

    #[test]
    fn two_sides_meet() {
        let bytes = sent_by(SocketType::Dealer);
        let (step, _) = meet(SocketType::Router, &bytes);
        let peer = HandshakePeer { socket_type: SocketType::Dealer, identity: Vec::new() };
        assert_eq!(step, Ok((bytes.len(), HandshakeStep::Done(peer))));
    }

    #[test]
    fn it_does_not_matter_how_the_bytes_are_split() {
        let mut bytes = sent_by(SocketType::Req);
        let length = bytes.len();
        bytes.extend_from_slice(b"\x00\x01first");
        for size in 1..bytes.len() {
            let mut out = Vec::new();
            let mut handshake = Handshake::begin(SocketType::Router, &mut out);
            let (mut taken, mut came, mut peer) = (0, 0, None);
            while peer.is_none() {
                came = (came + size).min(bytes.len());
                let (more, step) = handshake.advance(&bytes[taken..came], &mut out).unwrap();
                taken += more;
                if let HandshakeStep::Done(done) = step {
                    peer = Some(done);
                }
            }
            assert_eq!(taken, length, "{size}: messages are left alone");
            assert_eq!(out, sent_by(SocketType::Router), "{size}");
        }
    }

    #[test]
    fn a_socket_of_the_wrong_kind_is_told() {
        let (step, out) = meet(SocketType::Router, &sent_by(SocketType::Sub));
        let fault = ProtocolError::SocketType { theirs: "SUB".to_owned(), ours: SocketType::Router };
        assert_eq!(step, Err(fault.clone()));
        let ready = sent_by(SocketType::Router).len() - GREETING_BYTES;
        let (part, _) = Part::decode(&out[ready..], 1000).unwrap().unwrap();
        assert_eq!(part, Part::Command(ZmtpCommand::Error { reason: fault.to_string().as_bytes() }));
        for (ours, theirs) in [(SocketType::Dealer, SocketType::Router), (SocketType::Sub, SocketType::XPub)] {
            assert!(matches!(meet(ours, &sent_by(theirs)).0, Ok((_, HandshakeStep::Done(_)))));
            assert!(matches!(meet(theirs, &sent_by(ours)).0, Ok((_, HandshakeStep::Done(_)))));
        }
    }

    #[test]
    fn a_refusal_is_passed_on() {
        let mut bytes = GREETING.to_vec();
        encode_error(&mut bytes, "Invalid\nclient");
        assert_eq!(
            meet(SocketType::Dealer, &bytes).0,
            Err(ProtocolError::Refused { reason: "Invalid?client".to_owned() })
        );
    }

    #[test]
    fn what_is_no_handshake_is_refused() {
        let with = |bytes: &[u8]| meet(SocketType::Router, &[&GREETING[..], bytes].concat()).0;
        assert!(matches!(with(b"\x00\x01x"), Err(ProtocolError::Command { .. })), "a message before READY");
        assert!(matches!(with(b"\x04\x07\x04PING\0\0"), Err(ProtocolError::Command { .. })));
        assert!(matches!(with(b"\x04\x06\x05READY"), Err(ProtocolError::Command { .. })), "no socket type");
        assert!(matches!(with(b"\x06\0\0\0\0\0\x10\0\0"), Err(ProtocolError::TooLong { .. })));
        let identity = [0; 256];
        let mut ready = GREETING.to_vec();
        encode_ready(&mut ready, &[("Socket-Type", b"REQ"), ("Identity", &identity)]);
        assert!(matches!(meet(SocketType::Router, &ready).0, Err(ProtocolError::Command { .. })));
    }
}
