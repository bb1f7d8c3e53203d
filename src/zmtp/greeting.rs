//! The greeting: the first 64 bytes in each direction.
//!
//! ```text
//! +0   ff 00 00 00 00 00 00 00 01 7f    signature; the eight bytes in the middle may be anything
//! +10  03 01                            version
//! +12  "NULL" and 16 zero bytes         mechanism
//! +32  00                               as-server: without meaning for NULL
//! +33  31 zero bytes
//! ```
//! A peer of ZMTP 1 begins with the length of its identity instead, and a peer of ZMTP 2 has a smaller version.
//! [`check`] recognizes both as early as their bytes allow.

use super::ProtocolError;

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

/// Checks a greeting, or as much of it as has come. True: it is complete and valid.
///
/// # Errors
/// The first violation, as soon as the bytes show it.
pub(super) fn check(bytes: &[u8]) -> Result<bool, ProtocolError> {
    if bytes.first().is_some_and(|first| *first != SIGNATURE_FIRST)
        || bytes.get(SIGNATURE_BYTES - 1).is_some_and(|last| last & 1 == 0)
    {
        return Err(ProtocolError::NotZmtp);
    }
    if let Some(major) = bytes.get(MAJOR_AT).copied().filter(|major| *major < MAJOR) {
        return Err(ProtocolError::Version { major });
    }
    let Some(greeting) = bytes.get(..GREETING_BYTES) else { return Ok(false) };
    let mechanism = greeting.get(MECHANISM).unwrap_or_default();
    let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
    if name == b"NULL" { Ok(true) } else { Err(ProtocolError::Mechanism { mechanism: super::command::text(name) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_send_is_what_we_take() {
        assert_eq!(check(&GREETING), Ok(true));
        for length in 0..GREETING_BYTES {
            assert_eq!(check(GREETING.get(..length).unwrap_or_default()), Ok(false), "{length}");
        }
        assert_eq!(GREETING.get(..16), Some(&b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL"[..]));
    }

    #[test]
    fn older_peers_and_others_are_known_by_their_first_bytes() {
        assert_eq!(check(b"\x01\x00"), Err(ProtocolError::NotZmtp), "ZMTP 1: an empty identity");
        assert_eq!(check(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05"), Err(ProtocolError::Version { major: 1 }), "ZMTP 2");
        assert_eq!(check(b"GET / HTTP/1.1\r\n"), Err(ProtocolError::NotZmtp));
        assert_eq!(check(b"\xff\0\0\0\0\0\0\0\x01\x00"), Err(ProtocolError::NotZmtp), "a long frame of ZMTP 1");
    }

    #[test]
    fn other_mechanisms_are_named() {
        let mut greeting = GREETING;
        greeting.split_at_mut(12).1.split_at_mut(5).0.copy_from_slice(b"CURVE");
        assert_eq!(check(&greeting), Err(ProtocolError::Mechanism { mechanism: "CURVE".to_owned() }));
        greeting.split_at_mut(10).1.split_at_mut(2).0.copy_from_slice(&[4, 0]);
        assert!(
            matches!(check(&greeting), Err(ProtocolError::Mechanism { .. })),
            "a later version is spoken to as 3.1"
        );
    }
}
