//! The versions that were told before their turn, by element. Few elements have one, and each change asks for its own:
//! a small filter of counts answers most questions with one load.

use ahash::AHashMap;

/// Counts of the filter.
const COUNTS: usize = 1_024;

/// The told version of each element for which it is above the version whose turn came last.
#[derive(Debug)]
pub(super) struct ToldVersions {
    versions: AHashMap<usize, u64>,
    /// How many elements of `versions` fall on each place.
    filter: Box<[u32; COUNTS]>,
}

/// The place of an element in the filter. Elements are addresses, whose low bits say little: the multiplication by 2^64
/// over the golden ratio (Knuth, The Art of Computer Programming 3, 6.4) brings all of them to the top.
fn place(element: usize) -> usize {
    const BITS: u32 = COUNTS.ilog2();
    ((element as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - BITS)) as usize
}

impl ToldVersions {
    pub(super) fn new() -> Self {
        Self { versions: AHashMap::new(), filter: Box::new([0; COUNTS]) }
    }

    #[inline]
    pub(super) fn get(&self, element: usize) -> Option<u64> {
        if self.filter.get(place(element)) == Some(&0) {
            return None;
        }
        self.versions.get(&element).copied()
    }

    /// Adds the version of an element that has none.
    pub(super) fn insert(&mut self, element: usize, version: u64) {
        let before = self.versions.insert(element, version);
        debug_assert!(before.is_none(), "an element is told again when its told version has had its turn");
        if let Some(count) = self.filter.get_mut(place(element)) {
            *count += 1;
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.versions.len()
    }

    pub(super) fn remove(&mut self, element: usize) {
        if self.versions.remove(&element).is_some()
            && let Some(count) = self.filter.get_mut(place(element))
        {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_one_place_are_told_apart_and_a_removed_one_hides_no_other() {
        let first = 4_096;
        let same = (first + 1..).find(|element| place(*element) == place(first)).unwrap_or(0);
        let mut told = ToldVersions::new();
        told.insert(first, 7);
        assert_eq!((told.get(first), told.get(same)), (Some(7), None));
        told.insert(same, 9);
        told.remove(first);
        assert_eq!((told.get(first), told.get(same)), (None, Some(9)));
        told.remove(first);
        assert_eq!(told.get(same), Some(9));
        told.remove(same);
        assert_eq!(told.filter.iter().sum::<u32>(), 0);
    }
}
