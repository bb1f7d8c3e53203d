//! The patterns of KEYS and SCAN, and of names that are listed.

use super::answer::{Failure, refused};
use super::glob::{is_every_key, is_match, literal_prefix};
use super::limits::{PAGE_STEPS_MAX, PATTERN_BYTES_MAX};
use crate::limits::SCAN_BYTES_MAX;

/// Selects keys or names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern<'p>(&'p [u8]);

impl<'p> Pattern<'p> {
    /// Selects every key.
    pub(super) const ALL: Self = Self(b"*");

    /// Refuses a pattern that is too long behind its first special byte.
    pub(super) fn new(pattern: &'p [u8]) -> Result<Self, Failure> {
        let pattern = Self(pattern);
        if pattern.special_bytes() > PATTERN_BYTES_MAX {
            let words = "bytes behind its first special one";
            return Err(refused(format!("ERR a pattern has at most {PATTERN_BYTES_MAX} {words}")));
        }
        Ok(pattern)
    }

    /// Bytes behind those with which each key begins.
    fn special_bytes(self) -> usize {
        self.0.len() - self.prefix().len()
    }

    /// The bytes with which each key begins that it selects.
    pub(super) fn prefix(self) -> &'p [u8] {
        literal_prefix(self.0)
    }

    /// Bytes of the keys with which a page compares it at most. A page has one place at least.
    pub(super) fn page_bytes(self) -> usize {
        (PAGE_STEPS_MAX / self.special_bytes().max(1)).min(SCAN_BYTES_MAX)
    }

    pub(super) fn is_match(self, key: &[u8]) -> bool {
        is_every_key(self.0) || is_match(self.0, key)
    }
}
