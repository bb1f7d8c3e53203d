//! The pattern of KEYS and of SCAN.

use super::glob::{is_every_key, is_match, literal_prefix};

/// Selects keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern<'p>(&'p [u8]);

impl<'p> Pattern<'p> {
    /// Selects every key.
    pub(super) const ALL: Self = Self(b"*");

    pub(super) fn new(pattern: &'p [u8]) -> Self {
        Self(pattern)
    }

    /// The bytes with which each key begins that it selects.
    pub(super) fn prefix(self) -> &'p [u8] {
        literal_prefix(self.0)
    }

    pub(super) fn is_match(self, key: &[u8]) -> bool {
        is_every_key(self.0) || is_match(self.0, key)
    }
}
