//! The cursor of a scan: where the next page begins, sealed for one life of a table in one start of the server.
//!
//! ```text
//! +0   start        8  the base of the versions: the start of the server
//! +8   generation   8  the life of the table
//! +16  position     8  the reversed hash at which the next page begins, masked
//! +24  check        8  a keyed hash of the three
//! ```
//! The key is made with the tables and leaves no process. The check distinguishes a cursor of this server from any other
//! bytes. It is no secret worth more: a forged cursor would show only elements that a scan from the beginning shows as
//! well. The mask keeps the hashes of keys from clients, who could otherwise choose keys that share a bucket.
//!
//! This module knows no tables and no elements.

use ahash::RandomState;

use crate::limits::CURSOR_BYTES_MAX;

/// Bytes of a cursor.
const CURSOR_BYTES: usize = 32;
const _: () = assert!(CURSOR_BYTES <= CURSOR_BYTES_MAX);
/// Makes the hash of the mask another one than that of the check.
const MASK: u64 = 1;

/// A position in a table, as a client carries it from page to page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanCursor([u8; CURSOR_BYTES]);

impl ScanCursor {
    /// The bytes that the client hands in for the next page.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Makes and opens the cursors of one start of the server.
pub(super) struct CursorSeal {
    start: u64,
    key: RandomState,
}

impl CursorSeal {
    pub(super) fn new(start: u64) -> Self {
        Self { start, key: RandomState::new() }
    }

    /// The cursor for a position of the table with this generation.
    pub(super) fn seal(&self, generation: u64, position: u64) -> ScanCursor {
        let check = self.check(generation, position);
        let words = [self.start, generation, position ^ self.mask(check), check];
        let mut bytes = [0; CURSOR_BYTES];
        for (field, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            field.copy_from_slice(&word.to_be_bytes());
        }
        ScanCursor(bytes)
    }

    /// The position of a cursor that [`CursorSeal::seal`] made for the table with this generation.
    pub(super) fn open(&self, generation: u64, cursor: &[u8]) -> Option<u64> {
        let cursor: &[u8; CURSOR_BYTES] = cursor.try_into().ok()?;
        let (words, []) = cursor.as_chunks::<{ size_of::<u64>() }>() else { return None };
        let &[start, of_generation, masked, check] = words else { return None };
        let [start, of_generation, masked, check] = [start, of_generation, masked, check].map(u64::from_be_bytes);
        let position = masked ^ self.mask(check);
        let is_own = start == self.start && of_generation == generation;
        (is_own && check == self.check(generation, position)).then_some(position)
    }

    fn check(&self, generation: u64, position: u64) -> u64 {
        self.key.hash_one([self.start, generation, position])
    }

    fn mask(&self, check: u64) -> u64 {
        self.key.hash_one([check, MASK])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_table_and_its_start_alone() {
        let seal = CursorSeal::new(7);
        for position in [0, 1, u64::MAX / 2, u64::MAX] {
            let cursor = seal.seal(3, position);
            assert_eq!(seal.open(3, cursor.as_bytes()), Some(position));
            assert_eq!(seal.open(4, cursor.as_bytes()), None);
            assert_eq!(CursorSeal::new(7).open(3, cursor.as_bytes()), None, "the same time of another start");
        }
    }

    #[test]
    fn a_cursor_shows_no_position() {
        let seal = CursorSeal::new(7);
        let [zero, one] = [0, 1].map(|position| seal.seal(3, position).0);
        assert_ne!(zero.get(16..24), Some(&[0; 8][..]));
        assert_ne!(zero.get(16..23), one.get(16..23), "adjacent cursors do not look alike");
    }

    #[test]
    fn every_length_but_one_is_refused() {
        let seal = CursorSeal::new(7);
        let long = [seal.seal(3, 5).0, [0; CURSOR_BYTES]].concat();
        for length in 0..=40 {
            assert_eq!(seal.open(3, &long[..length]), (length == CURSOR_BYTES).then_some(5), "{length} bytes");
        }
    }

    #[test]
    fn each_field_at_its_extremes_is_refused() {
        let seal = CursorSeal::new(7);
        let good = seal.seal(3, 5).0;
        for field in 0..4 {
            for extreme in [0, 1, u64::MAX - 1, u64::MAX, 1 << 63, 1 << 32] {
                let mut forged = good;
                forged[8 * field..8 * field + 8].copy_from_slice(&u64::to_be_bytes(extreme));
                assert_eq!(seal.open(3, &forged), None, "{extreme} in field {field}");
            }
        }
    }

    proptest! {
        #[test]
        fn one_changed_bit_is_refused(position: u64, bit in 0..8 * CURSOR_BYTES) {
            let seal = CursorSeal::new(7);
            let mut forged = seal.seal(3, position).0;
            forged[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(seal.open(3, &forged), None);
        }

        #[test]
        fn random_bytes_are_refused(bytes: Vec<u8>, whole: [u8; CURSOR_BYTES]) {
            let seal = CursorSeal::new(7);
            prop_assert_eq!(seal.open(3, &bytes), None);
            prop_assert_eq!(seal.open(3, &whole), None);
        }
    }
}
