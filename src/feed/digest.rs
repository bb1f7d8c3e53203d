//! The digest of a table: a sum over its elements that does not depend on their order.
//!
//! ```text
//! digest = Σ XXH3-64(key, seed = version)   over the elements that were published as live, wrapping at 2^64
//! ```
//! A server and a mirror that have the same keys with the same versions have the same digest. A version represents the
//! value and the deadline, because it never comes twice for a key. The digest finds faults. It is no proof against a
//! peer that wants to deceive.
//!
//! This module knows no tables.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The count and the digest of a set of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// The number of elements.
    pub elements: u64,
    /// The wrapping sum of the hashes of their keys, each seeded with the version.
    pub sum: u64,
}

impl Digest {
    /// Adds an element.
    #[inline]
    pub fn add(&mut self, key: &[u8], version: u64) {
        self.elements = self.elements.wrapping_add(1);
        self.sum = self.sum.wrapping_add(xxh3_64_with_seed(key, version));
    }

    /// Adds the elements of a disjoint set, and takes away the elements that `other` has lost.
    pub fn merge(&mut self, other: Self) {
        self.elements = self.elements.wrapping_add(other.elements);
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Removes an element that was added before.
    #[inline]
    pub fn remove(&mut self, key: &[u8], version: u64) {
        self.elements = self.elements.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(xxh3_64_with_seed(key, version));
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // XXH3_64bits_withSeed of the reference implementation.
        let of = |key: &[u8], version| {
            let mut digest = Digest::default();
            digest.add(key, version);
            digest.sum
        };
        assert_eq!(of(b"", 0), 0x2d06_8005_38d3_94c2);
        assert_ne!(of(b"ada", 1), of(b"ada", 2), "the version counts");
        assert_ne!(of(b"ada", 1), of(b"bob", 1), "the key counts");
    }

    proptest! {
        #[test]
        fn the_order_does_not_matter_and_what_is_removed_leaves_no_trace(
            elements in vec((vec(any::<u8>(), 0..=64), any::<u64>()), 0..20),
            others in vec((vec(any::<u8>(), 0..=64), any::<u64>()), 0..20),
        ) {
            let mut forth = Digest::default();
            elements.iter().for_each(|(key, version)| forth.add(key, *version));
            let mut back = Digest::default();
            others.iter().for_each(|(key, version)| back.add(key, *version));
            elements.iter().rev().for_each(|(key, version)| back.add(key, *version));
            others.iter().for_each(|(key, version)| back.remove(key, *version));
            prop_assert_eq!(forth, back);
            prop_assert_eq!(forth.elements, elements.len() as u64);
        }
    }
}
