//! What a server asks of its peers before it talks to them.
//!
//! ```text
//! NULL    (RFC 23)   nothing
//! PLAIN   (RFC 24)   HELLO: name, password ─► Claim ─► WELCOME │ ERROR      not encrypted
//! CURVE   (RFC 26)   HELLO ─► WELCOME, INITIATE: public key ─► Claim ─► READY │ ERROR      encrypted from then on
//! ```

use std::fmt;

use super::ProtocolError;
use super::curve_key::{PublicKey, SecretKey};
use crate::byte_reader::ByteReader;

/// Why a peer is not admitted after its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// It is not who it claims to be, or nobody.
    Wrong,
    /// Its claim was not checked: it may try again.
    Busy,
}

impl ClaimRefusal {
    /// The reason in an ERROR: the status of ZAP (RFC 27), which libzmq reports to its user. 300 is a temporary error.
    #[must_use]
    pub const fn status(self) -> &'static str {
        match self {
            Self::Wrong => "400",
            Self::Busy => "300",
        }
    }
}

/// A mechanism of ZMTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    Null,
    Plain,
    Curve,
}

impl Mechanism {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Plain => "PLAIN",
            Self::Curve => "CURVE",
        }
    }

    pub(super) fn by_name(name: &[u8]) -> Option<Self> {
        [Self::Null, Self::Plain, Self::Curve].into_iter().find(|mechanism| mechanism.name().as_bytes() == name)
    }
}

/// The mechanisms that a server takes.
#[derive(Clone, Debug)]
pub enum Mechanisms {
    /// NULL alone: everybody is admitted.
    Open,
    /// Those by which a peer names a user.
    Users {
        /// Whether PLAIN is taken.
        plain: bool,
        /// The server's key, if CURVE is taken.
        curve: Option<SecretKey>,
    },
}

impl Mechanisms {
    pub(super) fn take(&self, mechanism: Mechanism) -> bool {
        match (self, mechanism) {
            (Self::Open, mechanism) => mechanism == Mechanism::Null,
            (Self::Users { .. }, Mechanism::Null) => false,
            (Self::Users { plain, .. }, Mechanism::Plain) => *plain,
            (Self::Users { curve, .. }, Mechanism::Curve) => curve.is_some(),
        }
    }

    /// The mechanism that is offered to a peer of another one.
    pub(super) fn preferred(&self) -> Mechanism {
        match self {
            Self::Open => Mechanism::Null,
            Self::Users { curve: Some(_), .. } => Mechanism::Curve,
            Self::Users { .. } => Mechanism::Plain,
        }
    }

    pub(super) fn key(&self) -> Option<&SecretKey> {
        if let Self::Users { curve, .. } = self { curve.as_ref() } else { None }
    }
}

/// The identity that a peer claims.
#[derive(Clone, PartialEq, Eq)]
pub enum Claim {
    /// A name and a password, which the server has to check.
    Plain {
        /// The name, at most 255 bytes.
        name: Vec<u8>,
        /// The password, at most 255 bytes.
        password: Vec<u8>,
    },
    /// The peer has the secret key that belongs to this one.
    Curve(PublicKey),
}

/// It shows no password.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain { name, .. } => write!(f, "Plain({})", name.escape_ascii()),
            Self::Curve(key) => write!(f, "Curve({key})"),
        }
    }
}

/// Reads the body of a HELLO of PLAIN.
///
/// # Errors
/// [`ProtocolError::Command`]
pub(super) fn plain_hello(body: &[u8]) -> Result<Claim, ProtocolError> {
    const WRONG: ProtocolError = ProtocolError::Command { what: "a HELLO with a name and a password was expected" };
    let mut fields = ByteReader::new(body.strip_prefix(b"\x05HELLO").ok_or(WRONG)?);
    let (name, password) = (fields.run_u8().ok_or(WRONG)?, fields.run_u8().ok_or(WRONG)?);
    if !fields.is_empty() {
        return Err(WRONG);
    }
    Ok(Claim::Plain { name: name.to_vec(), password: password.to_vec() })
}
