//! The digest by which the file of users names a certificate: SHA-256 of its DER, as `openssl x509 -fingerprint -sha256`
//! prints it.
//!
//! This module reads no certificate. Whether a client has its key is for the handshake to say.

use std::fmt;

use sha2::{Digest, Sha256};

/// Bytes of the digest.
const BYTES: usize = 32;

/// The digest of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; BYTES]);

impl Fingerprint {
    /// That of a certificate in DER.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    /// Reads 64 hexadecimal digits, in pairs with colons between them or without. None: the text is something else.
    ///
    /// ```
    /// use spindle::security::Fingerprint;
    ///
    /// let printed = Fingerprint::of(b"a certificate").to_string();
    /// assert_eq!(Fingerprint::parse(&printed.to_uppercase()), Fingerprint::parse(&printed));
    /// assert_eq!(Fingerprint::parse("00:ff"), None);
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_in_pairs = text.split(':').all(|pair| pair.len() == 2);
        let digits = if is_in_pairs { text.replace(':', "") } else { text.to_owned() };
        let digits: Vec<u8> =
            digits.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect::<Option<Vec<u8>>>()?;
        let (pairs, []) = digits.as_chunks::<2>() else { return None };
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of "abc" in FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn in_pairs(text: &str) -> String {
        let pairs: Vec<&str> = (0..text.len() / 2).filter_map(|pair| text.get(2 * pair..2 * pair + 2)).collect();
        pairs.join(":")
    }

    #[test]
    fn it_is_sha_256_in_lower_case_without_colons() {
        assert_eq!(Fingerprint::of(b"abc").to_string(), ABC);
    }

    #[test]
    fn colons_and_upper_case_are_read_as_openssl_prints_them() {
        for text in [ABC.to_owned(), ABC.to_uppercase(), in_pairs(ABC), in_pairs(&ABC.to_uppercase())] {
            assert_eq!(Fingerprint::parse(&text), Some(Fingerprint::of(b"abc")), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_fingerprint() {
        let short = ABC.get(2..).unwrap_or_default();
        let rows = [
            String::new(),
            short.to_owned(),
            in_pairs(short),
            format!("{ABC}00"),
            format!("{ABC}0"),
            format!("{}:", in_pairs(ABC)),
            format!("{}:{short}", ABC.get(..2).unwrap_or_default()),
            format!("+a{short}"),
            format!("gg{short}"),
            format!(" a{short}"),
            format!("sha256 Fingerprint={}", in_pairs(ABC)),
        ];
        for text in rows {
            assert_eq!(Fingerprint::parse(&text), None, "{text}");
        }
    }
}
