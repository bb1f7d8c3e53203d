//! The numbers that no segment has any more although older segments stay.
//!
//! ```text
//! 1 2 3 4 │ 5 6 7 │ 8 9       5 to 7 were cleaned before 1: a gap that begins at 5, of 3, with the first batch of 5
//! ```
//! The head of each segment names all gaps before it, twice: a cleaned segment goes when the head of a later one names
//! it. The first batch of a gap says where the segment before it ends, as the head of the next one otherwise does.
//!
//! This module reads and writes no file.

use super::format::{CHECKSUM, is_sealed, seal};
use crate::byte_reader::ByteReader;

/// Gaps that a head has room for, twice.
const GAPS_MAX: usize = 13;
/// The length of a gap in a head.
const GAP: usize = 16;
/// The length of the list in a head.
const LIST: usize = GAPS_MAX * GAP + CHECKSUM;
/// The length of both lists.
#[cfg(test)]
const GAP_LISTS: usize = 2 * LIST;

/// Numbers in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    start: u32,
    count: u32,
    /// The number of the first batch that stood in it.
    first: u64,
}

impl Gap {
    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.count)
    }

    fn contains(&self, number: u32) -> bool {
        number >= self.start && u64::from(number) < self.end()
    }
}

/// The gaps before a segment, in the order of their numbers. There is a segment between any two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps(Vec<Gap>);

impl Gaps {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of gaps before this number.
    pub(super) fn before(&self, number: u32) -> usize {
        self.0.iter().filter(|gap| gap.start < number).count()
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.0.iter().any(|gap| gap.contains(number))
    }

    /// The number of the batch behind the last one of a segment. `first` is that of the segment after it.
    pub(super) fn end_of(&self, number: u32, first: u64) -> u64 {
        self.0.iter().find(|gap| u64::from(gap.start) == u64::from(number) + 1).map_or(first, |gap| gap.first)
    }

    /// Whether a head has room for the gaps if this number is one more.
    pub(super) fn has_room_for(&self, number: u32) -> bool {
        let mut more = self.clone();
        more.add(number, 0);
        more.0.len() <= GAPS_MAX
    }

    /// No segment has this number any more. Its first batch had the number `first`.
    pub(super) fn add(&mut self, number: u32, first: u64) {
        self.join([Gap { start: number, count: 1, first }]);
    }

    /// Adds the gaps that another head names.
    pub(super) fn merge(&mut self, other: &Self) {
        self.join(other.0.iter().copied());
    }

    fn join(&mut self, others: impl IntoIterator<Item = Gap>) {
        let mut all = std::mem::take(&mut self.0);
        all.extend(others);
        all.sort_by_key(|gap| gap.start);
        for gap in all {
            match self.0.last_mut().filter(|last| last.end() >= u64::from(gap.start)) {
                Some(last) => {
                    let end = last.end().max(gap.end());
                    last.count = u32::try_from(end - u64::from(last.start)).unwrap_or(u32::MAX);
                }
                None => self.0.push(gap),
            }
        }
    }

    /// Forgets the gaps before the oldest segment.
    pub(super) fn forget_before(&mut self, oldest: u32) {
        self.0.retain(|gap| gap.start > oldest);
    }

    /// Both lists. Without a gap they are zeros.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..2 {
            let start = bytes.len();
            for gap in self.0.iter().take(GAPS_MAX) {
                bytes.extend(gap.start.to_le_bytes());
                bytes.extend(gap.count.to_le_bytes());
                bytes.extend(gap.first.to_le_bytes());
            }
            bytes.resize(start + GAPS_MAX * GAP, 0);
            match self.0.is_empty() {
                true => bytes.resize(start + LIST, 0),
                false => seal(&mut bytes, start),
            }
        }
        bytes
    }

    /// Reads both lists. The gaps of the first one that is right.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let right = |list: &&[u8]| is_sealed(list, LIST);
        let Some(list) = bytes.chunks_exact(LIST).take(2).find(right) else { return Self::default() };
        let mut fields = ByteReader::new(list);
        let gaps = (0..GAPS_MAX).map_while(|_| {
            Some(Gap { start: fields.u32_le()?, count: fields.u32_le()?, first: fields.u64_le()? })
                .filter(|gap| gap.count > 0)
        });
        Self(gaps.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(numbers: &[u32]) -> Gaps {
        let mut gaps = Gaps::default();
        numbers.iter().for_each(|number| gaps.add(*number, u64::from(*number) * 10));
        gaps
    }

    #[test]
    fn adjacent_segments_are_one_gap_that_begins_with_the_first_batch_of_the_first_one() {
        for order in [[5, 6, 7, 9], [7, 9, 6, 5], [6, 5, 9, 7]] {
            let gaps = gaps(&order);
            assert_eq!(gaps.0, [Gap { start: 5, count: 3, first: 50 }, Gap { start: 9, count: 1, first: 90 }]);
            assert_eq!((3..11).filter(|number| gaps.contains(*number)).collect::<Vec<_>>(), [5, 6, 7, 9]);
            assert_eq!((gaps.end_of(4, 80), gaps.end_of(8, 100), gaps.end_of(3, 40)), (50, 90, 40));
        }
        let mut all = gaps(&[5, 9]);
        all.merge(&gaps(&[6, 7, 8, 12]));
        assert_eq!(all, gaps(&[5, 6, 7, 8, 9, 12]));
        all.forget_before(10);
        assert_eq!(all, gaps(&[12]));
    }

    #[test]
    fn a_head_has_both_lists_and_one_of_them_is_enough() {
        let odd: Vec<u32> = (3..).step_by(2).take(GAPS_MAX).collect();
        for count in 0..=GAPS_MAX {
            let gaps = gaps(odd.get(..count).unwrap_or_default());
            let bytes = gaps.encode();
            assert_eq!((bytes.len(), Gaps::decode(&bytes)), (GAP_LISTS, gaps.clone()));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged.get_mut(at).into_iter().for_each(|byte| *byte ^= 1);
                assert_eq!(Gaps::decode(&damaged), gaps, "{count} gaps, byte {at}");
            }
            let is_full = count == GAPS_MAX;
            assert_eq!((gaps.has_room_for(1_000), gaps.has_room_for(4)), (!is_full, true));
        }
    }
}
