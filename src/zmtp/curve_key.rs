//! Keys of CURVE: 32 bytes each, and their 40 characters.
//!
//! ```text
//! Z85 (RFC 32)   4 bytes, big-endian ─► 5 digits to the base 85, the highest first
//! ```
//! A public key is made of its secret key. Only a secret key is a secret, and no `Debug` shows one.

use std::fmt;
use std::str::FromStr;

use dryoc::classic::crypto_box::crypto_box_keypair;
use dryoc::classic::crypto_core::crypto_scalarmult_base;
use thiserror::Error;

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 32;
/// Characters of a key in Z85.
pub const KEY_CHARS: usize = 40;
/// The digits of Z85, in their order.
const DIGITS: &[u8; 85] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a key has {KEY_CHARS} characters of Z85, as `spindle keygen` prints them")]
pub struct NotAKey;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub(super) [u8; KEY_BYTES]);

impl PublicKey {
    /// The key of these bytes.
    #[must_use]
    pub const fn of_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

/// Its characters in Z85.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        decode(text).map(Self).ok_or(NotAKey)
    }
}

/// A secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(pub(super) [u8; KEY_BYTES]);

impl SecretKey {
    /// A new key, from the system's random numbers.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    pub fn generate() -> Self {
        Self(crypto_box_keypair().1)
    }

    /// The public key that belongs to it.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        let mut public = [0; KEY_BYTES];
        crypto_scalarmult_base(&mut public, &self.0);
        PublicKey(public)
    }

    /// Its characters in Z85, for the file in which it is kept.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        encode(&self.0)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey")
    }
}

impl FromStr for SecretKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        decode(text).map(Self).ok_or(NotAKey)
    }
}

fn encode(bytes: &[u8; KEY_BYTES]) -> String {
    let mut text = String::with_capacity(KEY_CHARS);
    for four in bytes.as_chunks::<4>().0 {
        let number = u32::from_be_bytes(*four);
        for power in (0..5).rev() {
            let digit = (number / 85_u32.pow(power) % 85) as usize;
            text.push(DIGITS.get(digit).map_or('0', |digit| char::from(*digit)));
        }
    }
    text
}

fn decode(text: &str) -> Option<[u8; KEY_BYTES]> {
    if text.len() != KEY_CHARS {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (five, four) in text.as_bytes().as_chunks::<5>().0.iter().zip(bytes.as_chunks_mut::<4>().0) {
        let mut number = 0_u32;
        for digit in five {
            let digit = u32::try_from(DIGITS.iter().position(|known| known == digit)?).ok()?;
            number = number.checked_mul(85)?.checked_add(digit)?;
        }
        *four = number.to_be_bytes();
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    /// The pair of zmq_curve(7).
    const PUBLIC: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
    const SECRET: &str = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";

    #[test]
    fn keys_are_those_of_libzmq() {
        let secret: SecretKey = SECRET.parse().unwrap();
        assert_eq!(secret.public_key().to_string(), PUBLIC);
        assert_eq!(secret.public_key(), PUBLIC.parse().unwrap());
        assert_eq!(secret.to_secret_text(), SECRET);
        assert_eq!(PUBLIC.parse::<PublicKey>().unwrap().0.first_chunk(), Some(&[0xBB, 0x88, 0x47, 0x1D]));
    }

    #[test]
    fn new_keys_differ_and_come_back() {
        let (first, second) = (SecretKey::generate(), SecretKey::generate());
        assert!(first != second);
        assert_eq!(first.to_secret_text().parse(), Ok(first));
    }

    #[test]
    fn what_is_no_key_is_refused_and_no_secret_is_shown() {
        let too_high = format!("{}{}", "#####", &PUBLIC[5..]);
        for bad in ["", &PUBLIC[1..], &format!("{PUBLIC}0"), &PUBLIC.replace('$', "~"), &too_high, &"é".repeat(20)] {
            assert_eq!(bad.parse::<PublicKey>(), Err(NotAKey), "{bad}");
        }
        let secret: SecretKey = SECRET.parse().unwrap();
        assert!(!format!("{secret:?}").contains(SECRET));
    }
}
