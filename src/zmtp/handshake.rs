//! The handshake: from the first byte of a connection to the first message. Both sides do the same.
//!
//! ```text
//!            greeting ──► (their greeting) ──► READY ──► (their READY) ──► messages
//!                              │                             │ ERROR, or a socket of the wrong kind
//!                              └─────────────────────────────┴──► ProtocolError: send ERROR where it is
//!                                                                 understood, and close
//! ```

use std::fmt;
use std::sync::Arc;

use super::cipher::Cipher;
use super::command::{Properties, encode_body, encode_properties, encode_ready, text};
use super::curve::{Initiated, Welcomed, welcome};
use super::frame::command_body;
use super::greeting::{BEFORE_MECHANISM, GREETING, GREETING_BYTES, check, greeting_of};
use super::mechanism::{Claim, ClaimRefusal, Mechanism, Mechanisms, plain_hello};
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

    /// The properties that a socket of this type announces.
    pub(super) fn properties(self) -> [(&'static str, &'static [u8]); 2] {
        [("Socket-Type", self.name().as_bytes()), ("Identity", b"")]
    }

    /// The peer with these properties, if the two talk to each other.
    pub(super) fn meet(self, theirs: Properties<'_>) -> Result<HandshakePeer, ProtocolError> {
        let missing = ProtocolError::Command { what: "a READY does not say what socket it is" };
        let name = theirs.get("Socket-Type").ok_or(missing)?;
        let known = Self::by_name(name).filter(|theirs| self.partners().contains(theirs));
        let socket_type = known.ok_or_else(|| ProtocolError::SocketType { theirs: text(name), ours: self })?;
        let identity = theirs.get("Identity").unwrap_or_default();
        if identity.len() > IDENTITY_BYTES_MAX {
            return Err(ProtocolError::Command { what: "an identity has more than 255 bytes" });
        }
        Ok(HandshakePeer { socket_type, identity: identity.to_vec() })
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
    /// The peer claims an identity. The handshake continues with [`Handshake::admit`] or ends with [`Handshake::refuse`].
    Claimed(Claim),
    /// The handshake is over. The bytes that were not taken are the first of the messages. With CURVE they are sealed:
    /// see [`Handshake::cipher`].
    Done(HandshakePeer),
}

/// What a handshake waits for.
enum Stage {
    /// The peer's greeting.
    Greeting,
    /// The READY of NULL.
    Ready,
    /// The HELLO of PLAIN.
    PlainHello,
    /// A decision about the claim of PLAIN.
    PlainClaimed,
    /// The INITIATE of PLAIN.
    PlainInitiate,
    /// The HELLO of CURVE.
    CurveHello,
    /// The INITIATE of CURVE.
    CurveInitiate(Welcomed),
    /// A decision about the claim of CURVE.
    CurveClaimed(Initiated),
    /// Nothing more.
    Over,
}

/// A handshake in progress.
pub struct Handshake {
    ours: SocketType,
    mechanisms: Option<Arc<Mechanisms>>,
    /// Our greeting is sent whole, and not just its beginning.
    is_greeted: bool,
    stage: Stage,
    cipher: Option<Box<Cipher>>,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handshake({})", self.ours)
    }
}

impl Handshake {
    /// Begins a handshake with NULL: appends our greeting to `out`.
    #[must_use]
    pub fn begin(ours: SocketType, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&GREETING);
        Self { ours, mechanisms: None, is_greeted: true, stage: Stage::Greeting, cipher: None }
    }

    /// Begins the handshake of a server that admits everybody: appends the beginning of our greeting to `out`. The rest
    /// follows when the peer has sent its version. JeroMQ of ZMTP 2.0 closes a connection on which a whole greeting of
    /// ZMTP 3 comes first, and so would never send its version.
    #[must_use]
    pub fn open(ours: SocketType, out: &mut Vec<u8>) -> Self {
        out.extend(GREETING.iter().take(BEFORE_MECHANISM));
        Self { ours, mechanisms: None, is_greeted: false, stage: Stage::Greeting, cipher: None }
    }

    /// Begins the handshake of a server with these mechanisms: appends the beginning of our greeting to `out`.
    #[must_use]
    pub fn serve(ours: SocketType, mechanisms: &Arc<Mechanisms>, out: &mut Vec<u8>) -> Self {
        let opened = Self::open(ours, out);
        match **mechanisms {
            Mechanisms::Open => opened,
            Mechanisms::Users { .. } => Self { mechanisms: Some(Arc::clone(mechanisms)), ..opened },
        }
    }

    /// Continues with the bytes that have come and were not taken yet. Returns how many are taken now, and the result.
    /// Bytes to send are appended to `out`. If the peer's READY is decoded and refused, `out` gets an ERROR as well.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection. The caller sends `out` first.
    pub fn advance(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(usize, HandshakeStep), ProtocolError> {
        let mut taken = 0;
        if matches!(self.stage, Stage::Greeting) {
            let theirs = check(bytes)?;
            if self.mechanisms.is_none() && bytes.len() >= BEFORE_MECHANISM {
                self.finish_greeting(Mechanism::Null, out);
            }
            let Some(mechanism) = theirs else { return Ok((0, HandshakeStep::More)) };
            taken = GREETING_BYTES;
            self.greet(mechanism, out)?;
        }
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            let (length, step) = match self.stage {
                Stage::Ready => self.ready(rest, out)?,
                Stage::PlainClaimed | Stage::CurveClaimed(_) | Stage::Over => (0, HandshakeStep::More),
                _ => self.command(rest, out)?,
            };
            taken += length;
            // A command of the handshake may be followed by the next one.
            if length == 0 || step != HandshakeStep::More {
                return Ok((taken, step));
            }
        }
    }

    /// Answers the greeting of a peer that wants this mechanism.
    fn greet(&mut self, mechanism: Mechanism, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let taken = self.mechanisms.as_ref().map_or(mechanism == Mechanism::Null, |ours| ours.take(mechanism));
        let preferred = self.mechanisms.as_ref().map_or(Mechanism::Null, |ours| ours.preferred());
        self.finish_greeting(if taken { mechanism } else { preferred }, out);
        if !taken {
            return Err(ProtocolError::Mechanism { mechanism: mechanism.name().to_owned() });
        }
        self.stage = match mechanism {
            Mechanism::Null => {
                encode_ready(out, &self.ours.properties());
                Stage::Ready
            }
            Mechanism::Plain => Stage::PlainHello,
            Mechanism::Curve => Stage::CurveHello,
        };
        Ok(())
    }

    /// Sends the rest of our greeting, with this mechanism.
    fn finish_greeting(&mut self, mechanism: Mechanism, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_greeted, true) {
            out.extend(greeting_of(mechanism).iter().skip(BEFORE_MECHANISM));
        }
    }

    /// The READY of NULL.
    fn ready(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(usize, HandshakeStep), ProtocolError> {
        match Part::decode(bytes, HANDSHAKE_BYTES_MAX)? {
            None => Ok((0, HandshakeStep::More)),
            Some((Part::Command(ZmtpCommand::Ready(properties)), length)) => {
                Ok((length, HandshakeStep::Done(self.finish(properties, out)?)))
            }
            Some((Part::Command(ZmtpCommand::Error { reason }), _)) => {
                Err(ProtocolError::Refused { reason: text(reason) })
            }
            Some(_) => Err(ProtocolError::Command { what: "READY was expected" }),
        }
    }

    /// A command of PLAIN or CURVE.
    fn command(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(usize, HandshakeStep), ProtocolError> {
        const NOT_EXPECTED: ProtocolError = ProtocolError::Command { what: "it does not belong here" };
        let Some((body, length)) = command_body(bytes, HANDSHAKE_BYTES_MAX)? else {
            return Ok((0, HandshakeStep::More));
        };
        let key = self.mechanisms.as_ref().and_then(|ours| ours.key());
        let step = match (std::mem::replace(&mut self.stage, Stage::Over), key) {
            (Stage::PlainHello, _) => {
                self.stage = Stage::PlainClaimed;
                HandshakeStep::Claimed(plain_hello(body)?)
            }
            (Stage::PlainInitiate, _) => {
                let properties = body.strip_prefix(b"\x08INITIATE").ok_or(NOT_EXPECTED)?;
                let peer = self.finish(Properties::decode(properties)?, out)?;
                encode_ready(out, &self.ours.properties());
                HandshakeStep::Done(peer)
            }
            (Stage::CurveHello, Some(key)) => {
                let mut answer = Vec::new();
                self.stage = Stage::CurveInitiate(welcome(body, key, &mut answer)?);
                encode_body(out, &answer);
                HandshakeStep::More
            }
            (Stage::CurveInitiate(welcomed), Some(key)) => {
                let initiated = welcomed.initiate(body, key)?;
                let claim = Claim::Curve(initiated.client);
                self.stage = Stage::CurveClaimed(initiated);
                HandshakeStep::Claimed(claim)
            }
            _ => return Err(NOT_EXPECTED),
        };
        Ok((length, step))
    }

    /// Admits a peer after its claim. With CURVE the handshake is then over.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection. The caller sends `out` first.
    pub fn admit(&mut self, out: &mut Vec<u8>) -> Result<HandshakeStep, ProtocolError> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::PlainClaimed => {
                encode_body(out, b"\x07WELCOME");
                self.stage = Stage::PlainInitiate;
                Ok(HandshakeStep::More)
            }
            Stage::CurveClaimed(initiated) => {
                let properties = initiated.properties.clone();
                let peer = self.finish(Properties::decode(&properties)?, out)?;
                let mut answer = Vec::new();
                self.cipher = Some(Box::new(initiated.ready(&encode_properties(&self.ours.properties()), &mut answer)));
                encode_body(out, &answer);
                Ok(HandshakeStep::Done(peer))
            }
            _ => Err(ProtocolError::Command { what: "the peer has claimed nothing" }),
        }
    }

    /// Refuses a peer after its claim. The caller sends `out` and closes the connection.
    pub fn refuse(&mut self, why: ClaimRefusal, out: &mut Vec<u8>) {
        self.stage = Stage::Over;
        encode_error(out, why.status());
    }

    /// The cipher of the messages. There is one after a handshake of CURVE.
    pub fn cipher(&mut self) -> Option<Box<Cipher>> {
        self.cipher.take()
    }

    /// Checks the properties of the peer. If they are refused, `out` gets an ERROR.
    fn finish(&mut self, properties: Properties<'_>, out: &mut Vec<u8>) -> Result<HandshakePeer, ProtocolError> {
        self.stage = Stage::Over;
        let peer = self.ours.meet(properties);
        peer.inspect_err(|fault| encode_error(out, &fault.to_string()))
    }
}

#[cfg(test)]
mod users;

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
    fn a_server_sends_the_rest_of_its_greeting_when_its_peer_has_sent_its_version() {
        let mut out = Vec::new();
        let mut handshake = Handshake::open(SocketType::Router, &mut out);
        assert_eq!(out, GREETING[..BEFORE_MECHANISM]);
        assert_eq!(handshake.advance(&GREETING[..BEFORE_MECHANISM - 1], &mut out), Ok((0, HandshakeStep::More)));
        assert_eq!(out, GREETING[..BEFORE_MECHANISM]);
        // A peer that waits for our mechanism before it sends its own.
        for sent in BEFORE_MECHANISM..GREETING_BYTES {
            assert_eq!(handshake.advance(&GREETING[..sent], &mut out), Ok((0, HandshakeStep::More)));
            assert_eq!(out, GREETING);
        }
        handshake.advance(&GREETING, &mut out).unwrap();
        assert_eq!(out, sent_by(SocketType::Router));
    }

    #[test]
    fn a_peer_of_zmtp_2_gets_no_more_than_it_understands() {
        let mut out = Vec::new();
        let mut handshake = Handshake::open(SocketType::XPub, &mut out);
        let zmtp_2 = [&GREETING[..10], b"\x01\x02\0\0"].concat();
        assert!(matches!(handshake.advance(&zmtp_2, &mut out), Err(ProtocolError::OtherProtocol { .. })));
        assert_eq!(out, GREETING[..BEFORE_MECHANISM]);
    }

    #[test]
    fn a_socket_of_the_wrong_kind_is_refused() {
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
