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
//! A client whose cursors are numbers gets the upper 48 bits of the position, where alone its pages end, through a
//! permutation that only this process knows:
//!
//! ```text
//! place p, q: 24 bits each ─► (q, p ^ hash(round, q)) four times ─► number        0 stays 0
//! ```
//! Such a cursor has no check. Any number below 2^48 is some place, so a forged one shows what a scan from the beginning
//! shows as well.
//!
//! This module knows no tables and no elements.

use ahash::RandomState;

use crate::limits::CURSOR_BYTES_MAX;

/// Bytes of a cursor.
const CURSOR_BYTES: usize = 32;
const _: () = assert!(CURSOR_BYTES <= CURSOR_BYTES_MAX);
/// Makes the hash of the mask another one than that of the check.
const MASK: u64 = 1;
/// Bits of a position that a cursor below 2^48 does not have.
pub(super) const COARSE_BITS: u32 = 16;
/// Bits in each half of such a cursor.
const HALF_BITS: u32 = (u64::BITS - COARSE_BITS) / 2;
const HALF: u64 = (1 << HALF_BITS) - 1;
/// Makes the hashes of the rounds other ones than those above.
const ROUNDS: u64 = 16;

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

    /// The number for a position whose lowest [`COARSE_BITS`] bits are 0.
    pub(super) fn number(&self, position: u64) -> u64 {
        let permuted = self.permute(position >> COARSE_BITS, [0, 1, 2, 3]);
        // 0 begins a scan. The place whose number it would be has the number of the first one, which needs none.
        if permuted == 0 { self.permute(0, [0, 1, 2, 3]) } else { permuted }
    }

    /// The position of a number: that of [`CursorSeal::number`], or any.
    pub(super) fn position(&self, number: u64) -> u64 {
        let number = number & (u64::MAX >> COARSE_BITS);
        let place = if number == 0 { 0 } else { self.restore(number) };
        // The place of 0 is the first one. The number of the first one is that of the other.
        let place = if number != 0 && place == 0 { self.restore(0) } else { place };
        place << COARSE_BITS
    }

    fn restore(&self, number: u64) -> u64 {
        let swapped = number >> HALF_BITS | (number & HALF) << HALF_BITS;
        let place = self.permute(swapped, [3, 2, 1, 0]);
        place >> HALF_BITS | (place & HALF) << HALF_BITS
    }

    /// A Feistel network over two halves, with these rounds.
    fn permute(&self, place: u64, rounds: [u64; 4]) -> u64 {
        let halves = rounds.iter().fold((place >> HALF_BITS, place & HALF), |(left, right), round| {
            (right, left ^ self.key.hash_one([right, ROUNDS + round]) & HALF)
        });
        halves.0 << HALF_BITS | halves.1
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

    #[test]
    fn a_number_is_the_place_from_which_it_was_made_and_0_is_the_first() {
        let seal = CursorSeal::new(1);
        assert_eq!(seal.position(0), 0);
        let places = (1..2_000_u64).map(|place| place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> COARSE_BITS);
        let places: Vec<u64> = places.chain([1, 2, (1 << 48) - 1]).collect();
        for place in &places {
            let number = seal.number(place << COARSE_BITS);
            assert!(number < 1 << 48);
            assert_eq!(seal.position(number), place << COARSE_BITS, "{place}");
            assert_ne!(number, 0);
        }
        // Each number is a place, and no two are the same.
        let found: std::collections::BTreeSet<u64> = (0..2_000).map(|number| seal.position(number)).collect();
        assert_eq!(found.len(), 2_000);
        assert_ne!(
            CursorSeal::new(1).number(1 << COARSE_BITS),
            seal.number(1 << COARSE_BITS),
            "each start has its own"
        );
    }
}
