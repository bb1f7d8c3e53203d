//! The sizes of an index, and the guess of its depth.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

mod lines;

use crossbeam::epoch;

use super::bucket_number::position;
use super::*;

#[test]
fn the_guess_is_the_depth_of_most_buckets() {
    let index = Index::new(0);
    for count in 1..=3_000_u32 {
        let depth = count.ilog2();
        // Each of these has made one bucket of this depth two of the next.
        let splits = count - (1 << depth);
        let most = if 2 * splits > (1 << depth) - splits { depth + 1 } else { depth };
        index.count.store(count, Ordering::Relaxed);
        assert_eq!(u32::from(index.likely_depth()), most, "{count} buckets");
    }
}

#[test]
fn an_index_is_near_below_a_number_of_buckets() {
    let index = Index::new(0);
    let is_near = |count| {
        index.count.store(count, Ordering::Relaxed);
        index.is_near()
    };
    assert_eq!([1, NEAR - 1, NEAR, NEAR + 1].map(is_near), [true, true, false, false]);
}

#[test]
fn a_segment_is_expected_for_each_4992_keys() {
    assert_eq!([0, 4_991, 4_992, 49_920_000].map(segments_for), [0, 0, 1, 10_000]);
}

#[test]
fn segments_beyond_the_directory_and_groups_of_lines_are_listed_and_removed() {
    let index = Index::new(0);
    let guard = epoch::pin();
    let view = index.segments.view(&guard);
    let bucket = index.room_for(NEAR, &view);
    assert!(bucket.is_absent() && index.removable() == [IndexPart::Segment(position(NEAR).0)]);
    let before = index.bytes();
    while index.lines.take(&guard).unwrap().0 < 127 {}
    assert_eq!(index.bytes(), before, "only the taker knows");
    index.free_cell(bucket, 0, &guard).unwrap();
    assert!(index.bytes() > before + (8 << 10));
    let parts = index.removable();
    assert_eq!(parts, [IndexPart::Segment(position(NEAR).0), IndexPart::BucketLines(0)]);
    index.remove(&parts);
    assert!(index.segments.removable().is_empty() && index.lines.get(128, &guard).is_none());
}
