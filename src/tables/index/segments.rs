//! The segments of an index, by number: the first ones in a directory, the others in a flurry map.
//!
//! ```text
//! make    ─► the map decides which of several threads makes a segment ─► the cell of its number shows it
//! look up ─► cell ─► segment ─► bucket
//! remove  ─► out of the map and out of the cell
//! ```
//! A segment of the directory has its buckets side by side. A segment in the map makes its buckets by 16 when the first
//! is split off. When a table begins to double, it has few of its later buckets, and they are everywhere.
//!
//! A look-up asks the cells and not the map. The map's own guard costs two locked instructions, and each load under it
//! looks for the thread's place in the collector: a third of the instructions of a GET. The tables' guard, which each
//! request holds in any case, is enough for the cells.
//!
//! This module knows no hashes and no keys.

use std::hash::{BuildHasherDefault, Hasher};
use std::iter;
use std::num::NonZero;
use std::sync::{Arc, OnceLock};

use crossbeam::epoch::{self, Guard};

use super::super::memory_budget::signed;
use super::super::shelves::{Shelves, shelves_for};
use super::NEAR;
use super::bucket::Bucket;
use super::bucket_number::{SEGMENT_BITS, SEGMENT_LEN, position, segment_len};
use crate::allocator::size_class;

/// Segments after the first in the directory: as many as hold `NEAR` buckets.
const NEAR_SEGMENTS: usize = SEGMENT_BITS as usize + (NEAR / SEGMENT_LEN) as usize - 1;
/// The first segment in the map.
const FAR_START: u32 = SEGMENT_BITS + NEAR / SEGMENT_LEN;
/// Bytes of an entry in flurry: a node, a bin and the value with its header.
const ENTRY_BYTES: usize = 96 + 16 + 32;
/// Bytes of a segment beyond the directory, with its counts, and without its buckets.
const FAR_SEGMENT_BYTES: usize = size_class(size_of::<FarSegment>() + 16);
/// Buckets of a piece of a segment.
const PIECE_LEN: usize = 16;
/// Bytes of a piece.
const PIECE_BYTES: usize = size_class(PIECE_LEN * size_of::<Bucket>());
/// Shelves of the cells, for as many segments as bucket numbers have.
const SHELVES: usize = shelves_for(1 << (u32::BITS - SEGMENT_BITS));
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

/// A segment beyond the directory.
#[derive(Default)]
struct FarSegment([OnceLock<Box<[Bucket; PIECE_LEN]>>; SEGMENT_LEN as usize / PIECE_LEN]);

/// The segments beyond the directory, by number.
type SegmentMap = flurry::HashMap<u32, Arc<FarSegment>, BuildHasherDefault<NumberHasher>>;

/// The segments beyond the directory, and the cells that show them.
struct FarSegments {
    map: SegmentMap,
    /// By the number of the segment, less those before.
    cells: Shelves<FarSegment, SHELVES>,
}

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

/// A view of the segments, for as long as the guard lives.
pub(super) struct SegmentsView<'m> {
    segments: &'m Segments,
    guard: &'m Guard,
}

/// The number of a segment among those beyond the directory.
fn far_number(segment: u32) -> u32 {
    segment.saturating_sub(FAR_START)
}

impl FarSegment {
    /// The bucket at this offset, absent or not, if it is made.
    #[inline]
    fn bucket(&self, offset: usize) -> Option<&Bucket> {
        self.0.get(offset / PIECE_LEN)?.get()?.get(offset % PIECE_LEN)
    }

    /// Makes the piece with the bucket at this offset. Returns the bytes that it took, 0 if it was there.
    fn make(&self, offset: usize) -> usize {
        let mut bytes = 0;
        if let Some(piece) = self.0.get(offset / PIECE_LEN) {
            piece.get_or_init(|| {
                bytes = PIECE_BYTES;
                Box::new(std::array::from_fn(|_| Bucket::absent()))
            });
        }
        bytes
    }
}

impl FarSegments {
    /// A map laid out for so many segments, and the bytes that it takes.
    fn new(expected: usize) -> (Box<Self>, usize) {
        let map = match expected {
            0 => SegmentMap::default(),
            expected => SegmentMap::with_capacity_and_hasher(expected, BuildHasherDefault::default()),
        };
        (Box::new(Self { map, cells: Shelves::new() }), far_bytes(expected))
    }

    #[inline]
    fn get<'g>(&self, segment: u32, guard: &'g Guard) -> Option<&'g FarSegment> {
        self.cells.get(far_number(segment), guard)
    }

    /// Puts an empty segment into the map and into its cell. Returns the bytes that both took. If another thread was
    /// first, its segment is in the cell afterwards.
    fn make(&self, segment: u32, guard: &Guard) -> usize {
        let number = far_number(segment);
        let shelf = self.cells.make(number).filter(|bytes| *bytes > 0).map_or(0, size_class);
        let map_guard = self.map.guard();
        let (shown, taken) = match self.map.try_insert(segment, Arc::new(FarSegment::default()), &map_guard) {
            Ok(mine) => (mine, FAR_SEGMENT_BYTES + ENTRY_BYTES),
            Err(lost) => (lost.current, 0),
        };
        let cell = self.cells.cell(number);
        cell.iter().for_each(|cell| cell.put(Arc::clone(shown), guard));
        shelf + taken
    }

    fn remove(&self, segments: &[u32]) {
        let (map_guard, guard) = (self.map.guard(), epoch::pin());
        for segment in segments {
            self.map.remove(segment, &map_guard);
            self.cells.cell(far_number(*segment)).iter().for_each(|cell| cell.clear(&guard));
        }
        map_guard.flush();
        guard.flush();
    }
}

impl Segments {
    /// Makes the first segment, and the map if the expected number of segments needs one. Returns the map's bytes as
    /// well.
    pub(super) fn new(expected: usize) -> (Self, i64) {
        let (far, mut bytes) = (OnceLock::new(), 0);
        if expected > NEAR_SEGMENTS {
            far.get_or_init(|| {
                let (far, taken) = FarSegments::new(expected);
                bytes = signed(taken);
                far
            });
        }
        (Self { root: Bucket::root(), near: [const { OnceLock::new() }; NEAR_SEGMENTS], far }, bytes)
    }

    #[inline]
    pub(super) fn view<'m>(&'m self, guard: &'m Guard) -> SegmentsView<'m> {
        SegmentsView { segments: self, guard }
    }

    /// The numbers of the segments in the map.
    pub(super) fn removable(&self) -> Vec<u32> {
        self.far.get().map_or_else(Vec::new, |far| far.map.keys(&far.map.guard()).copied().collect())
    }

    /// Takes these segments out of the map. They are freed when no guard shows them.
    pub(super) fn remove(&self, numbers: &[u32]) {
        self.far.get().iter().for_each(|far| far.remove(numbers));
    }
}

impl SegmentsView<'_> {
    /// Makes this bucket, absent: with its whole segment in the directory, with its piece beyond. Returns the bytes that
    /// were taken: 0 if another thread has made it, or its piece.
    pub(super) fn make(&self, number: u32) -> i64 {
        let (segment, offset) = position(number);
        let made = match segment.checked_sub(1).and_then(|near_index| self.segments.near.get(near_index as usize)) {
            Some(near) => Self::make_near(near, segment_len(segment) as usize),
            None => self.make_far(segment, offset),
        };
        signed(made)
    }

    fn make_near(near: &OnceLock<Box<[Bucket]>>, buckets: usize) -> usize {
        let absent = iter::repeat_with(Bucket::absent).take(buckets).collect();
        near.set(absent).map_or(0, |()| size_class(buckets * size_of::<Bucket>()))
    }

    /// Makes a bucket beyond the directory, its segment if it is the first there, and the map if it is the first of
    /// all. Returns the bytes that they took.
    fn make_far(&self, segment: u32, offset: usize) -> usize {
        let mut bytes = 0;
        let far = self.segments.far.get_or_init(|| {
            let (far, taken) = FarSegments::new(0);
            bytes = taken;
            far
        });
        if far.get(segment, self.guard).is_none() {
            bytes += far.make(segment, self.guard);
        }
        bytes + far.get(segment, self.guard).map_or(0, |segment| segment.make(offset))
    }

    /// The bucket of this number, absent or not, if it is there.
    #[inline]
    pub(super) fn bucket_at(&self, number: u32) -> Option<&Bucket> {
        let (segment, offset) = position(number);
        if number >= NEAR {
            return self.segments.far.get()?.get(segment, self.guard)?.bucket(offset);
        }
        let Some(near_index) = segment.checked_sub(1) else { return Some(&self.segments.root) };
        self.segments.near.get(near_index as usize)?.get()?.get(offset)
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
        assert_eq!(FAR_START as usize, NEAR_SEGMENTS + 1);
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
        let guard = epoch::pin();
        let view = segments.view(&guard);
        // 16 buckets of 32 bytes; the segment, with 8 pieces and two counts, and an entry of the map; a shelf of 64 cells.
        let (piece, segment, shelf) = (512, 160 + 144, 64 * 8);
        assert!(view.bucket_at(NEAR).is_none());
        assert_eq!(view.make(NEAR), signed(far_bytes(0)) + piece + segment + shelf);
        let made = std::ptr::from_ref(view.bucket_at(NEAR).unwrap());
        let made_by_others = [NEAR + 15, NEAR, NEAR + 16, NEAR + 31, NEAR + 128].map(|number| view.make(number));
        assert_eq!(made_by_others, [0, 0, piece, 0, piece + segment]);
        assert_eq!(std::ptr::from_ref(view.bucket_at(NEAR).unwrap()), made, "the bucket that was there stays");
        let first = FAR_START;
        let mut listed = segments.removable();
        listed.sort_unstable();
        assert_eq!(listed, [first, first + 1]);
        segments.remove(&[first]);
        assert_eq!(segments.removable(), [first + 1]);
        assert!(view.bucket_at(NEAR).is_none() && view.bucket_at(NEAR + 128).is_some());
    }
}
