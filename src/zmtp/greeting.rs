//! The greeting: the first 64 bytes in each direction.
//!
//! ```text
//! +0   ff 00 00 00 00 00 00 00 01 7f    signature; the eight bytes in the middle may be anything
//! +10  03 01                            version
//! +12  "NULL" and 16 zero bytes         mechanism: NULL, PLAIN or CURVE
//! +32  00                               as-server: 01 for the server of PLAIN and CURVE
//! +33  31 zero bytes
//! ```
//! [`check`] recognizes a peer that sends something else as early as its bytes allow.

use super::mechanism::Mechanism;
use super::{ProtocolError, SpokenProtocol};

/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = 64;
const MECHANISM: std::ops::Range<usize> = 12..32;
const MAJOR_AT: usize = 10;
const MAJOR: u8 = 3;
const MINOR: u8 = 1;
const SIGNATURE_FIRST: u8 = 0xff;
const SIGNATURE_LAST: u8 = 0x7f;
const SIGNATURE_BYTES: usize = 10;

/// Our greeting. libzmq puts the length of an identity, always 1, into the eight free bytes of the signature.
pub(super) const GREETING: [u8; GREETING_BYTES] = {
    let mut bytes = [0; GREETING_BYTES];
    let (signature, rest) = bytes.split_at_mut(SIGNATURE_BYTES);
    signature.copy_from_slice(&[SIGNATURE_FIRST, 0, 0, 0, 0, 0, 0, 0, 1, SIGNATURE_LAST]);
    let (version, rest) = rest.split_at_mut(2);
    version.copy_from_slice(&[MAJOR, MINOR]);
    rest.split_at_mut(4).0.copy_from_slice(b"NULL");
    bytes
};

/// Bytes of a greeting before the mechanism. A server sends these first. The rest follows when the peer has sent its
/// version, or the mechanism that it wants if there are several. A peer needs no more to send all of its greeting.
pub(super) const BEFORE_MECHANISM: usize = MECHANISM.start;
const AS_SERVER_AT: usize = 32;

/// The greeting of a server with this mechanism.
pub(super) fn greeting_of(mechanism: Mechanism) -> [u8; GREETING_BYTES] {
    let mut greeting = GREETING;
    if mechanism != Mechanism::Null {
        let name = mechanism.name().bytes().chain(std::iter::repeat(0));
        greeting.iter_mut().take(MECHANISM.end).skip(MECHANISM.start).zip(name).for_each(|(place, byte)| *place = byte);
        greeting.iter_mut().skip(AS_SERVER_AT).take(1).for_each(|place| *place = 1);
    }
    greeting
}

/// The greeting of a client with this mechanism.
pub(super) fn client_greeting(mechanism: Mechanism) -> [u8; GREETING_BYTES] {
    let mut greeting = greeting_of(mechanism);
    greeting.iter_mut().skip(AS_SERVER_AT).take(1).for_each(|place| *place = 0);
    greeting
}

/// Checks a greeting, or as much of it as has come. Returns the mechanism when it is complete and valid.
///
/// # Errors
/// The first violation, as soon as the bytes show it.
pub(super) fn check(bytes: &[u8]) -> Result<Option<Mechanism>, ProtocolError> {
    if let Some(spoken) = other_protocol(bytes) {
        return Err(ProtocolError::OtherProtocol { spoken });
    }
    let Some(greeting) = bytes.get(..GREETING_BYTES) else { return Ok(None) };
    let mechanism = greeting.get(MECHANISM).unwrap_or_default();
    let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
    let unknown = || ProtocolError::Mechanism { mechanism: super::command::text(name) };
    Mechanism::by_name(name).ok_or_else(unknown).map(Some)
}

/// What a peer speaks that does not speak ZMTP 3. The signature of ZMTP begins like a long frame of ZMTP 1.0.
fn other_protocol(bytes: &[u8]) -> Option<SpokenProtocol> {
    if bytes.first() != Some(&SIGNATURE_FIRST) {
        return SpokenProtocol::of(bytes);
    }
    match (bytes.get(SIGNATURE_BYTES - 1), bytes.get(MAJOR_AT)) {
        (Some(0), _) | (Some(_), Some(0)) => Some(SpokenProtocol::Zmtp1),
        (Some(last), _) if last & 1 == 0 => Some(SpokenProtocol::Unknown),
        (Some(_), Some(1..MAJOR)) => Some(SpokenProtocol::Zmtp2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_send_is_what_we_take() {
        assert_eq!(check(&GREETING), Ok(Some(Mechanism::Null)));
        for mechanism in [Mechanism::Null, Mechanism::Plain, Mechanism::Curve] {
            assert_eq!(check(&greeting_of(mechanism)), Ok(Some(mechanism)));
        }
        for length in 0..GREETING_BYTES {
            assert_eq!(check(GREETING.get(..length).unwrap_or_default()), Ok(None), "{length}");
        }
        assert_eq!(GREETING.get(..16), Some(&b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL"[..]));
    }

    #[test]
    fn older_peers_and_others_are_known_as_early_as_their_bytes_allow() {
        let rows: [(&[u8], SpokenProtocol); 6] = [
            (b"\xff\0\0\0\0\0\0\x01\x00\x00", SpokenProtocol::Zmtp1),
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x00", SpokenProtocol::Zmtp1),
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01", SpokenProtocol::Zmtp2),
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x02", SpokenProtocol::Zmtp2),
            (b"\xff\0\0\0\0\0\0\0\x01\x02", SpokenProtocol::Unknown),
            (b"\x01\x00", SpokenProtocol::Zmtp1),
        ];
        for (bytes, spoken) in rows {
            assert_eq!(check(bytes), Err(ProtocolError::OtherProtocol { spoken }), "{}", bytes.escape_ascii());
            assert_eq!(check(bytes.split_last().map_or(bytes, |(_, begun)| begun)), Ok(None));
        }
    }

    #[test]
    fn other_mechanisms_are_named() {
        let mut greeting = GREETING;
        greeting.split_at_mut(12).1.split_at_mut(5).0.copy_from_slice(b"CURVY");
        assert_eq!(check(&greeting), Err(ProtocolError::Mechanism { mechanism: "CURVY".to_owned() }));
        greeting.split_at_mut(10).1.split_at_mut(2).0.copy_from_slice(&[4, 0]);
        assert!(
            matches!(check(&greeting), Err(ProtocolError::Mechanism { .. })),
            "a later version is spoken to as 3.1"
        );
    }
}
