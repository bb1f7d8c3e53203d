//! The handshake of a client: it names a user by PLAIN or CURVE, or none by NULL.
//!
//! ```text
//! NULL    greeting, READY ─► (greeting, READY)
//! PLAIN   greeting ─► (greeting) ─► HELLO: name, password ─► (WELCOME) ─► INITIATE ─► (READY)
//! CURVE   greeting ─► (greeting) ─► HELLO ─► (WELCOME) ─► INITIATE: public key ─► (READY), sealed from then on
//!         in place of each answer: ERROR
//! ```
//! It reveals nothing of the user before the server has greeted with the same mechanism. With CURVE it reveals its name,
//! a public key, only to the right server: the server has the secret key of the public key that the client was given.

use std::fmt;

use super::cipher::Cipher;
use super::command::{Properties, encode_body, encode_properties, encode_ready, text};
use super::curve::client::{CurveHello, CurveSession};
use super::curve_key::{PublicKey, SecretKey};
use super::frame::command_body;
use super::greeting::{GREETING_BYTES, check, client_greeting};
use super::handshake::{HandshakePeer, SocketType};
use super::mechanism::Mechanism;
use super::{ProtocolError, ZmtpCommand};
use crate::limits::HANDSHAKE_BYTES_MAX;

/// What a client claims of its user.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Nothing.
    #[default]
    None,
    /// A name and a password, of at most 255 bytes each. They are not encrypted.
    Plain {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
    /// A key. All that follows is encrypted.
    Curve {
        /// The key of the user.
        own: SecretKey,
        /// The key of the server that the client wants to talk to.
        server: PublicKey,
    },
}

impl Credentials {
    fn mechanism(&self) -> Mechanism {
        match self {
            Self::None => Mechanism::Null,
            Self::Plain { .. } => Mechanism::Plain,
            Self::Curve { .. } => Mechanism::Curve,
        }
    }
}

/// It shows no secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Plain { name, .. } => write!(f, "Plain({name})"),
            Self::Curve { own, .. } => write!(f, "Curve({})", own.public_key()),
        }
    }
}

/// What the client waits for.
enum Stage {
    /// The greeting of the server.
    Greeting,
    /// The WELCOME of PLAIN.
    PlainWelcome,
    /// The WELCOME of CURVE.
    CurveWelcome(CurveHello),
    /// The READY of NULL and PLAIN.
    Ready,
    /// The READY of CURVE.
    CurveReady(CurveSession),
    /// Nothing more.
    Over,
}

/// The handshake of a client, in progress.
pub struct ClientHandshake {
    ours: SocketType,
    credentials: Credentials,
    stage: Stage,
    cipher: Option<Box<Cipher>>,
}

impl fmt::Debug for ClientHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientHandshake({}, {:?})", self.ours, self.credentials)
    }
}

impl ClientHandshake {
    /// Begins: appends the greeting to `out`.
    #[must_use]
    pub fn begin(ours: SocketType, credentials: Credentials, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&client_greeting(credentials.mechanism()));
        Self { ours, credentials, stage: Stage::Greeting, cipher: None }
    }

    /// Continues with the bytes that have come and were not taken yet. Returns how many are taken now, and the server
    /// when the handshake is over: the bytes behind it are the first of the messages, with CURVE sealed ones. Bytes to
    /// send are appended to `out`.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection: [`ProtocolError::Refused`] if the server does not let the client
    /// in.
    pub fn advance(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<HandshakePeer>), ProtocolError> {
        let mut taken = 0;
        if matches!(self.stage, Stage::Greeting) {
            let Some(theirs) = check(bytes)? else { return Ok((0, None)) };
            taken = GREETING_BYTES;
            self.greeted(theirs, out)?;
        }
        while !matches!(self.stage, Stage::Over) {
            let rest = bytes.get(taken..).unwrap_or_default();
            let Some((body, length)) = command_body(rest, HANDSHAKE_BYTES_MAX)? else { break };
            taken += length;
            if body.starts_with(b"\x05ERROR")
                && let ZmtpCommand::Error { reason } = ZmtpCommand::decode(body)?
            {
                return Err(ProtocolError::Refused { reason: text(reason) });
            }
            if let Some(peer) = self.answered(body, out)? {
                return Ok((taken, Some(peer)));
            }
        }
        Ok((taken, None))
    }

    /// The cipher of the messages. There is one after a handshake of CURVE.
    pub fn cipher(&mut self) -> Option<Box<Cipher>> {
        self.cipher.take()
    }

    /// The server has greeted with this mechanism.
    fn greeted(&mut self, theirs: Mechanism, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        if theirs != self.credentials.mechanism() {
            return Err(ProtocolError::Mechanism { mechanism: theirs.name().to_owned() });
        }
        self.stage = match &self.credentials {
            Credentials::None => {
                encode_ready(out, &self.ours.properties());
                Stage::Ready
            }
            Credentials::Plain { name, password } => {
                encode_body(out, &plain_hello(name, password)?);
                Stage::PlainWelcome
            }
            Credentials::Curve { own, server } => {
                let (hello, body) = CurveHello::new(own.clone(), *server)?;
                encode_body(out, &body);
                Stage::CurveWelcome(hello)
            }
        };
        Ok(())
    }

    /// A command of the server. Returns the server if it was the last one.
    fn answered(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<Option<HandshakePeer>, ProtocolError> {
        const NOT_EXPECTED: ProtocolError = ProtocolError::Command { what: "it does not belong here" };
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::PlainWelcome if body == b"\x07WELCOME" => {
                encode_body(out, &[b"\x08INITIATE", &*encode_properties(&self.ours.properties())].concat());
                self.stage = Stage::Ready;
                Ok(None)
            }
            Stage::CurveWelcome(hello) => {
                let (session, initiate) = hello.initiate(body, &encode_properties(&self.ours.properties()))?;
                encode_body(out, &initiate);
                self.stage = Stage::CurveReady(session);
                Ok(None)
            }
            Stage::CurveReady(session) => {
                let (properties, cipher) = session.ready(body)?;
                self.cipher = Some(Box::new(cipher));
                self.ours.meet(Properties::decode(&properties)?).map(Some)
            }
            Stage::Ready => {
                let properties = body.strip_prefix(b"\x05READY").ok_or(NOT_EXPECTED)?;
                self.ours.meet(Properties::decode(properties)?).map(Some)
            }
            Stage::Greeting | Stage::PlainWelcome | Stage::Over => Err(NOT_EXPECTED),
        }
    }
}

/// The body of the HELLO of PLAIN.
fn plain_hello(name: &str, password: &str) -> Result<Vec<u8>, ProtocolError> {
    const LONG: ProtocolError = ProtocolError::Command { what: "a name or a password has more than 255 bytes" };
    let length = |text: &str| u8::try_from(text.len()).map_err(|_| LONG);
    let (name_length, password_length) = (length(name)?, length(password)?);
    Ok([b"\x05HELLO", &[name_length][..], name.as_bytes(), &[password_length], password.as_bytes()].concat())
}

#[cfg(test)]
mod tests;
