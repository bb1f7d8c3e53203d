//! Hashes of passwords: argon2id (RFC 9106) as a PHC string.
//!
//! ```text
//! $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH       memory in KiB, passes, lanes; salt and hash in base 64
//! ```
//! A check takes some 30 ms by design, so only the thread `users` makes one. A password that was right once is known
//! by a digest with a key of this process: the next check of it takes a microsecond.
//!
//! This module keeps no password.

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params};
use dryoc::classic::crypto_generichash::{crypto_generichash, crypto_generichash_keygen};

use super::limits::{HASH_KIBIBYTES_MAX, HASH_PASSES_MAX, PASSWORD_BYTES_MAX};

/// Bytes of a digest.
const DIGEST_BYTES: usize = 32;

/// The hash of a password. It verifies a password.
#[derive(Clone, PartialEq, Eq)]
pub struct HashedPassword(String);

impl std::fmt::Debug for HashedPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashedPassword")
    }
}

impl HashedPassword {
    /// Hashes a password with a new salt, and the crate's parameters: 19 MiB, two passes (OWASP's first choice).
    ///
    /// # Errors
    /// The mistake in the password.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn of(password: &str) -> Result<Self, &'static str> {
        if password.is_empty() {
            return Err("the password is empty");
        }
        if password.len() > PASSWORD_BYTES_MAX {
            return Err("the password has more than 255 bytes");
        }
        let hash = Argon2::default().hash_password(password.as_bytes()).expect("the system has random numbers");
        Ok(Self(hash.to_string()))
    }

    /// The hash of a PHC string.
    ///
    /// # Errors
    /// The mistake in it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "this is no hash of argon2id: `spindle user add` makes one";
        let hash = PasswordHash::new(text).map_err(|_| WRONG)?;
        if hash.algorithm != Algorithm::Argon2id.ident() || hash.salt.is_none() || hash.hash.is_none() {
            return Err(WRONG);
        }
        let params = Params::try_from(&hash).map_err(|_| WRONG)?;
        if params.m_cost() > HASH_KIBIBYTES_MAX || params.t_cost() > HASH_PASSES_MAX {
            return Err("a check of this password would take more than 256 MiB or 16 passes");
        }
        Ok(Self(text.to_owned()))
    }

    /// The PHC string.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether it is the hash of this password. Takes as long for any password, by the parameters in the hash.
    #[must_use]
    pub fn is_of(&self, password: &[u8]) -> bool {
        #[cfg(test)]
        tests::CHECKS.set(tests::CHECKS.get() + 1);
        let hash = PasswordHash::new(&self.0);
        hash.is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
    }
}

/// Digests of passwords, with a key that only this process has.
pub(super) struct DigestKey([u8; DIGEST_BYTES]);

/// The digest of a password that was right, or of a name and a password that were wrong.
#[derive(Clone, Copy)]
pub(super) struct PasswordDigest([u8; DIGEST_BYTES]);

impl DigestKey {
    pub(super) fn new() -> Self {
        Self(crypto_generichash_keygen())
    }

    pub(super) fn digest(&self, password: &[u8]) -> PasswordDigest {
        let mut digest = [0; DIGEST_BYTES];
        crypto_generichash(&mut digest, password, Some(&self.0)).expect("the lengths are valid");
        PasswordDigest(digest)
    }

    /// The digest of a name and a password.
    pub(super) fn of_guess(&self, name: &str, password: &[u8]) -> PasswordDigest {
        // The length keeps apart what a peer could move from the password into the name.
        self.digest(&[&name.len().to_le_bytes(), name.as_bytes(), password].concat())
    }
}

impl PasswordDigest {
    /// Whether two digests are equal, in the same time wherever they differ.
    pub(super) fn is(&self, other: &Self) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0, |difference, (one, two)| difference | (one ^ two));
        std::hint::black_box(difference) == 0
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Passwords that this thread has compared with a hash.
        pub(in crate::security) static CHECKS: Cell<u32> = const { Cell::new(0) };
    }

    /// A guess that was not made before: each key makes digests of its own.
    pub(in crate::security) fn new_guess() -> PasswordDigest {
        DigestKey::new().of_guess("ada", b"guess")
    }

    #[test]
    fn a_password_is_known_by_its_hash_and_no_other_is() {
        let hash = HashedPassword::of("heron").unwrap();
        assert!(hash.text().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", hash.text());
        let read = HashedPassword::parse(hash.text()).unwrap();
        assert!(read.is_of(b"heron") && !read.is_of(b"heron ") && !read.is_of(b"") && !read.is_of(b"Heron"));
        assert_ne!(HashedPassword::of("heron").unwrap(), hash, "each hash has a salt of its own");
        assert_eq!(format!("{hash:?}"), "HashedPassword");
    }

    #[test]
    fn other_hashes_and_costly_ones_are_refused() {
        let good = HashedPassword::of("x").unwrap().text().to_owned();
        let rows = [
            String::new(),
            "heron".to_owned(),
            good.replace("argon2id", "argon2i"),
            good.replace("m=19456", "m=99999999"),
            good.replace("t=2", "t=17"),
            good.rsplit_once('$').unwrap().0.to_owned(),
        ];
        for text in rows {
            assert!(HashedPassword::parse(&text).is_err(), "{text}");
        }
        assert!(HashedPassword::of("").is_err() && HashedPassword::of(&"x".repeat(256)).is_err());
    }

    #[test]
    fn the_longest_password_and_the_costliest_hash_are_taken() {
        let longest = "x".repeat(PASSWORD_BYTES_MAX);
        let hash = HashedPassword::of(&longest).unwrap();
        let other = "x".repeat(PASSWORD_BYTES_MAX - 1) + "y";
        assert!(hash.is_of(longest.as_bytes()) && !hash.is_of(other.as_bytes()), "all of it counts");
        let key = DigestKey::new();
        assert!(!key.digest(longest.as_bytes()).is(&key.digest(other.as_bytes())));
        for (cheap, costly) in [("m=19456", format!("m={HASH_KIBIBYTES_MAX}")), ("t=2", format!("t={HASH_PASSES_MAX}"))]
        {
            assert!(HashedPassword::parse(&hash.text().replace(cheap, &costly)).is_ok(), "{costly}");
        }
    }

    /// Digests that have most of their bytes in common are not equal.
    #[test]
    fn every_byte_of_a_digest_counts() {
        let digest = PasswordDigest([7; DIGEST_BYTES]);
        assert!(digest.is(&PasswordDigest([7; DIGEST_BYTES])));
        for at in 0..DIGEST_BYTES {
            let mut other = [7; DIGEST_BYTES];
            other.iter_mut().skip(at).take(1).for_each(|byte| *byte = 8);
            assert!(!digest.is(&PasswordDigest(other)), "{at}");
        }
        let mut two = [7; DIGEST_BYTES];
        two.iter_mut().take(2).for_each(|byte| *byte = 8);
        assert!(!digest.is(&PasswordDigest(two)), "differences do not cancel out");
    }

    #[test]
    fn a_guess_is_another_one_with_another_name_or_password() {
        let key = DigestKey::new();
        let guess = key.of_guess("ada", b"heron");
        assert!(guess.is(&key.of_guess("ada", b"heron")));
        for (name, password) in [("ada", "herom"), ("adb", "heron"), ("adah", "eron"), ("", "adaheron")] {
            assert!(!guess.is(&key.of_guess(name, password.as_bytes())), "{name} {password}");
        }
    }

    #[test]
    fn digests_distinguish_passwords_and_differ_between_processes() {
        let (key, other) = (DigestKey::new(), DigestKey::new());
        assert!(key.digest(b"heron").is(&key.digest(b"heron")));
        assert!(!key.digest(b"heron").is(&key.digest(b"herom")));
        assert!(!key.digest(b"heron").is(&other.digest(b"heron")));
    }
}
