//! The segments of an index, by number: the first ones in a directory, the others in a flurry map.
//!
//! This module knows no hashes and no keys.

use std::cell::OnceCell;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZero;
use std::sync::OnceLock;
use std::{iter, slice};

use super::super::memory_budget::signed;
use super::NEAR;
use super::bucket::Bucket;
use super::bucket_number::{SEGMENT_BITS, SEGMENT_LEN, position, segment_len};
use crate::allocator::size_class;

/// Segments after the first in the directory: as many as hold `NEAR` buckets.
const NEAR_SEGMENTS: usize = SEGMENT_BITS as usize + (NEAR / SEGMENT_LEN) as usize - 1;
/// Bytes of an entry in flurry: a node, a bin and the value with its header.
const ENTRY_BYTES: usize = 96 + 16 + 32;
/// Bytes of a bin in flurry, which makes up to three for each expected entry.
const BIN_BYTES: usize = 8;
/// Bins of a map without an expected size.
const BINS_MIN: usize = 16;
/// Bytes of the seize collector for each core: two reservations of two cache lines and their flags, and a count.
const COLLECTOR_BYTES_PER_CORE: usize = 256 + 256 + 16;

/// Segment numbers are evenly spread already, so each is its own hash.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("segment numbers hash through write_u32");
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number);
    }
}

/// The segments beyond the directory.
type FarSegments = flurry::HashMap<u32, Box<[Bucket]>, BuildHasherDefault<NumberHasher>>;

/// Segments of a table, by number. Each is made once, and stays until the table is taken down.
pub(super) struct Segments {
    /// Segment 0.
    root: Bucket,
    /// The next ones, in the directory.
    near: [OnceLock<Box<[Bucket]>>; NEAR_SEGMENTS],
    /// All others. The map is made with the first of them, since flurry's collector alone takes more than a small
    /// table.
    far: OnceLock<Box<FarSegments>>,
}

/// A view of the segments. It holds a guard of the map once it has looked there.
pub(super) struct SegmentsView<'m> {
    segments: &'m Segments,
    guard: OnceCell<flurry::Guard<'m>>,
}

impl Segments {
    /// Makes the first segment, and the map if the expected number of segments needs one. Returns the map's bytes as
    /// well.
    pub(super) fn new(expected: usize) -> (Self, i64) {
        let far = OnceLock::new();
        let mut bytes = 0;
        if expected > NEAR_SEGMENTS {
            far.get_or_init(|| {
                Box::new(FarSegments::with_capacity_and_hasher(expected, BuildHasherDefault::default()))
            });
            bytes = signed(far_bytes(expected));
        }
        (Self { root: Bucket::root(), near: [const { OnceLock::new() }; NEAR_SEGMENTS], far }, bytes)
    }

    pub(super) fn view(&self) -> SegmentsView<'_> {
        SegmentsView { segments: self, guard: OnceCell::new() }
    }

    /// The numbers of the segments in the map.
    pub(super) fn removable(&self) -> Vec<u32> {
        self.far.get().map_or_else(Vec::new, |far| far.keys(&far.guard()).copied().collect())
    }

    /// Takes these segments out of the map. They are freed when no guard shows them.
    pub(super) fn remove(&self, numbers: &[u32]) {
        let Some(far) = self.far.get() else { return };
        let guard = far.guard();
        for number in numbers {
            far.remove(number, &guard);
        }
        guard.flush();
    }
}

impl<'m> SegmentsView<'m> {
    /// The segment of this number, if it is there.
    #[inline]
    fn get(&self, segment: u32) -> Option<&[Bucket]> {
        let Some(near_index) = segment.checked_sub(1) else { return Some(slice::from_ref(&self.segments.root)) };
        match self.segments.near.get(near_index as usize) {
            Some(near) => near.get().map(|buckets| &**buckets),
            None => self.get_far(segment),
        }
    }

    fn get_far(&self, segment: u32) -> Option<&[Bucket]> {
        let far = self.segments.far.get()?;
        far.get(&segment, self.guard_of(far)).map(|segment| &**segment)
    }

    fn guard_of(&self, far: &'m FarSegments) -> &flurry::Guard<'m> {
        self.guard.get_or_init(|| far.guard())
    }

    /// Makes this segment of absent buckets. Returns the bytes that it took: 0 if another thread made it first.
    pub(super) fn make(&self, segment: u32) -> i64 {
        let buckets = segment_len(segment) as usize;
        let absent = || iter::repeat_with(Bucket::absent).take(buckets).collect::<Box<[Bucket]>>();
        let bytes = buckets * size_of::<Bucket>();
        let made = match self.segments.near.get((segment - 1) as usize) {
            Some(near) => near.set(absent()).map_or(0, |()| size_class(bytes)),
            None => self.make_far(segment, absent(), bytes + ENTRY_BYTES),
        };
        signed(made)
    }

    /// Puts a segment of so many bytes into the map, and makes the map if it is the first. Returns the bytes that both
    /// took.
    fn make_far(&self, segment: u32, buckets: Box<[Bucket]>, bytes: usize) -> usize {
        let mut map = 0;
        let far = self.segments.far.get_or_init(|| {
            map = far_bytes(0);
            Box::default()
        });
        let inserted = far.try_insert(segment, buckets, self.guard_of(far)).is_ok();
        map + if inserted { bytes } else { 0 }
    }

    /// The bucket of this number, absent or not, if its segment is there.
    #[inline]
    pub(super) fn bucket_at(&self, number: u32) -> Option<&Bucket> {
        let (segment, offset) = position(number);
        self.get(segment).and_then(|buckets| buckets.get(offset))
    }
}

/// Bytes of an empty map laid out for so many entries: its structure, its collector, its bins.
fn far_bytes(expected: usize) -> usize {
    let bins = (expected + expected / 2 + 1).next_power_of_two().max(BINS_MIN);
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get).next_power_of_two();
    size_class(size_of::<FarSegments>()) + cores * COLLECTOR_BYTES_PER_CORE + bins * BIN_BYTES
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn the_directory_ends_where_an_index_is_no_longer_near() {
        let segments = [NEAR - 1, NEAR].map(|number| position(number).0 as usize);
        assert_eq!(segments, [NEAR_SEGMENTS, NEAR_SEGMENTS + 1]);
    }

    #[test]
    fn a_segment_number_is_its_own_hash() {
        let hasher = BuildHasherDefault::<NumberHasher>::default();
        assert_eq!([0_u32, 7, 1 << 25].map(|number| hasher.hash_one(number)), [0, 7, 1 << 25]);
    }

    #[test]
    #[should_panic(expected = "write_u32")]
    fn nothing_but_a_segment_number_is_hashed() {
        assert_eq!(BuildHasherDefault::<NumberHasher>::default().hash_one(7_u8), 7);
    }

    #[test]
    fn a_map_is_charged_with_its_structure_its_bins_and_a_collector_for_each_core() {
        let cores = std::thread::available_parallelism().unwrap().get().next_power_of_two();
        let without_bins = size_class(size_of::<FarSegments>()) + 528 * cores;
        for (expected, bins) in [(0, 16), (10, 16), (170, 256), (171, 512)] {
            assert_eq!(far_bytes(expected), without_bins + 8 * bins, "{expected}");
        }
    }

    #[test]
    fn segments_beyond_the_directory_are_charged_listed_and_removed() {
        let (segments, bytes) = Segments::new(0);
        assert_eq!(bytes, 0);
        let view = segments.view();
        let first = u32::try_from(NEAR_SEGMENTS).unwrap() + 1;
        // 64 buckets of 128 bytes, and an entry of the map.
        let each = 64 * 128 + 144;
        assert_eq!(view.make(first), signed(far_bytes(0)) + each);
        assert_eq!((view.make(first + 1), view.make(first + 1)), (each, 0));
        drop(view);
        let mut listed = segments.removable();
        listed.sort_unstable();
        assert_eq!(listed, [first, first + 1]);
        segments.remove(&[first]);
        assert_eq!(segments.removable(), [first + 1]);
    }
}
