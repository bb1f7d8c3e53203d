//! From the names of tables to their numbers. Built on flurry.
//!
//! This module knows no tables: a table may be forgotten before its number is looked up.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::allocator::size_class;

/// Bytes of a name in flurry besides the name itself: a node, a number with its header, and up to two bins.
const NODE_BYTES: usize = size_class(NODE_WORDS * size_of::<usize>()) + 16 + 16;
/// A header of the collector, a hash, the name, two pointers, a lock, and the links of a node in a tree.
const NODE_WORDS: usize = 13;

/// Bytes that a name of this length takes here.
pub(in crate::tables) fn name_bytes(bytes: usize) -> usize {
    NODE_BYTES + size_class(2 * size_of::<usize>() + bytes)
}

/// From names of tables to their numbers, for readers that take no lock. Writers are few, and exclude each other.
pub(in crate::tables) struct Names(flurry::HashMap<Name, u32, ahash::RandomState>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name(Arc<[u8]>);

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Names {
    pub(in crate::tables) fn new() -> Self {
        Self(flurry::HashMap::with_hasher(ahash::RandomState::new()))
    }

    /// The number of the table of this name.
    pub(in crate::tables) fn get(&self, name: &[u8]) -> Option<u32> {
        self.0.get(name, &self.0.guard()).copied()
    }

    pub(in crate::tables) fn insert(&self, name: &[u8], number: u32) {
        self.0.insert(Name(Arc::from(name)), number, &self.0.guard());
    }

    pub(in crate::tables) fn remove(&self, name: &[u8]) {
        self.0.remove(name, &self.0.guard());
    }

    pub(in crate::tables) fn len(&self) -> usize {
        self.0.len()
    }

    /// All numbers, in no order.
    pub(in crate::tables) fn numbers(&self) -> Vec<u32> {
        self.0.values(&self.0.guard()).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_charged_with_its_node_its_bins_and_itself() {
        // The node takes 112 bytes, the number and the bins 32, the name two counts and its length.
        assert_eq!([0, 1, 16, 48].map(name_bytes), [160, 176, 176, 208]);
    }
}
