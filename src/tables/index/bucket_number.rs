//! The arithmetic of bucket numbers: the bucket of a hash, the bucket from which another was split, and its segment.
//!
//! This module handles numbers only.

/// Buckets of a segment, except the first segments.
pub(super) const SEGMENT_LEN: u32 = 1 << SEGMENT_BITS;
pub(super) const SEGMENT_BITS: u32 = 7;

/// The number of the bucket of this depth to which a hash belongs.
pub(super) fn low_bits(hash: u64, depth: u8) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits are kept")]
    let number = (hash & ((1_u64 << depth) - 1)) as u32;
    number
}

/// A bucket's position: the number of its segment, and its offset there.
pub(super) fn position(number: u32) -> (u32, usize) {
    if number >= SEGMENT_LEN {
        return (SEGMENT_BITS + number / SEGMENT_LEN, (number % SEGMENT_LEN) as usize);
    }
    let segment = u32::from(birth(number));
    (segment, (number % segment_len(segment)) as usize)
}

/// The number of buckets of a segment. Its first bucket's number is a multiple of that.
pub(super) fn segment_len(segment: u32) -> u32 {
    1 << segment.saturating_sub(1).min(SEGMENT_BITS)
}

/// A bucket's depth when it was split off.
pub(super) fn birth(number: u32) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
    let birth = (u32::BITS - number.leading_zeros()) as u8;
    birth
}

/// The bucket from which this one is split off. Bucket 0 has none.
pub(super) fn parent(number: u32) -> u32 {
    number & !(1 << number.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_has_a_position_of_its_own() {
        let mut taken = std::collections::HashSet::new();
        for number in 0..1_000 {
            let (segment, offset) = position(number);
            assert!(offset < segment_len(segment) as usize, "{number}");
            assert!(taken.insert((segment, offset)), "{number}");
        }
        let (segments, offsets): (Vec<_>, Vec<_>) =
            [0, 1, 2, 3, 4, 63, 64, 127, 128, 255, 256].map(position).into_iter().unzip();
        assert_eq!(segments, [0, 1, 2, 2, 3, 6, 7, 7, 8, 8, 9]);
        assert_eq!(offsets, [0, 0, 0, 1, 0, 31, 0, 63, 0, 127, 0]);
    }

    #[test]
    fn a_bucket_comes_from_the_one_without_its_highest_bit() {
        for (number, depth, before) in [(1, 1, 0), (2, 2, 0), (3, 2, 1), (6, 3, 2), (0x8000_0001, 32, 1)] {
            assert_eq!((birth(number), parent(number)), (depth, before));
        }
        assert_eq!(birth(0), 0);
    }
}
