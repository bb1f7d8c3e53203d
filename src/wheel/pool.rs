//! Numbered pieces of memory that never move: the storage of chunks and of ids.
//!
//! ```text
//! number ─► segment │ index      a segment: its pieces, how many are used, and its free ones in a list
//! ```
//! Pieces are taken from the segment that last had a piece freed, and this piece first: while it is in the cache. A
//! segment without a used piece goes back to the allocator, but for one that is kept for the next pieces. Its number is
//! used again.
//!
//! This module does not know what its pieces are for.

#![expect(clippy::indexing_slicing, reason = "numbers come from here; a wrong one must stop the server")]

/// A piece of memory. While it is free it leads to another free one.
pub(super) trait PoolPiece {
    /// A new one, free.
    fn empty() -> Self;

    /// What `set_next_free` was called with.
    fn next_free(&self) -> u32;

    /// The piece is free. The number fits 31 bits.
    fn set_next_free(&mut self, next: u32);
}

/// Ends a list of free pieces.
const NONE: u32 = (1 << 31) - 1;

/// Pieces that lie together.
#[derive(Debug)]
struct PoolSegment<P> {
    /// None: they have been given back.
    pieces: Box<[P]>,
    used: u32,
    /// The index of the piece that was freed last.
    free: u32,
    /// Pieces from this index on were never used.
    fresh: u32,
    /// It stands in the list of segments with room.
    is_listed: bool,
}

/// All pieces, `2^BITS` in a segment.
#[derive(Debug)]
pub(super) struct TimerPool<P, const BITS: u32> {
    segments: Vec<PoolSegment<P>>,
    /// Segments with free pieces. One that has none any more is found when its turn comes.
    with_room: Vec<u32>,
    /// Segments that have been given back.
    vacant: Vec<u32>,
    /// A segment that was not given back when its last piece was freed.
    spare: Option<u32>,
}

impl<P: PoolPiece, const BITS: u32> TimerPool<P, BITS> {
    const SIZE: u32 = 1 << BITS;

    pub(super) const fn new() -> Self {
        Self { segments: Vec::new(), with_room: Vec::new(), vacant: Vec::new(), spare: None }
    }

    pub(super) fn get(&self, number: u32) -> &P {
        let (segment, index) = Self::split(number);
        &self.segments[segment].pieces[index]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut P {
        let (segment, index) = Self::split(number);
        &mut self.segments[segment].pieces[index]
    }

    /// The piece of this number, if there is memory for it.
    pub(super) fn look_for(&self, number: u32) -> Option<&P> {
        let (segment, index) = Self::split(number);
        self.segments.get(segment)?.pieces.get(index)
    }

    /// Takes a piece, and returns its number. The numbers are below `most`.
    ///
    /// # Panics
    /// If there are no more numbers.
    pub(super) fn take(&mut self, most: u32) -> u32 {
        loop {
            let number = match self.with_room.last() {
                Some(number) => *number,
                None => self.add_segment(),
            };
            let segment = &mut self.segments[number as usize];
            let index = if segment.free != NONE {
                let index = segment.free;
                segment.free = segment.pieces[index as usize].next_free();
                index
            } else if segment.fresh < Self::SIZE {
                segment.fresh += 1;
                segment.fresh - 1
            } else {
                segment.is_listed = false;
                self.with_room.pop();
                continue;
            };
            segment.used += 1;
            let number = number << BITS | index;
            assert!(number < most, "more timers than the wheel can number");
            return number;
        }
    }

    /// Gives a piece back.
    pub(super) fn release(&mut self, number: u32) {
        let (at, index) = Self::split(number);
        let segment = &mut self.segments[at];
        segment.pieces[index].set_next_free(segment.free);
        #[expect(clippy::cast_possible_truncation, reason = "an index in a segment")]
        let index = index as u32;
        segment.free = index;
        segment.used -= 1;
        if !segment.is_listed {
            segment.is_listed = true;
            self.with_room.push(number >> BITS);
        }
        if segment.used == 0 {
            self.spare_or_give_back(number >> BITS);
        }
    }

    /// A segment has no used piece any more. It is kept if no other such segment is.
    #[cold]
    fn spare_or_give_back(&mut self, number: u32) {
        let is_kept = self.spare.is_none_or(|spare| spare == number || self.segments[spare as usize].used > 0);
        if is_kept {
            self.spare = Some(number);
            return;
        }
        let segment = &mut self.segments[number as usize];
        (segment.pieces, segment.free, segment.fresh) = (Box::default(), NONE, Self::SIZE);
        self.vacant.push(number);
    }

    /// Makes a segment when none has room. Out of line: it is rare.
    #[cold]
    #[inline(never)]
    fn add_segment(&mut self) -> u32 {
        let pieces = (0..Self::SIZE).map(|_| P::empty()).collect();
        let segment = PoolSegment { pieces, used: 0, free: NONE, fresh: 0, is_listed: true };
        let number = if let Some(number) = self.vacant.pop() {
            self.segments[number as usize] = segment;
            number
        } else {
            self.segments.push(segment);
            u32::try_from(self.segments.len() - 1).expect("numbers are bounded")
        };
        self.with_room.push(number);
        number
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let held = self.segments.len() - self.vacant.len();
        self.segments.capacity() * size_of::<PoolSegment<P>>()
            + (self.with_room.capacity() + self.vacant.capacity()) * size_of::<u32>()
            + held * (1 << BITS) * size_of::<P>()
    }

    /// The segment of a piece, and its index there.
    const fn split(number: u32) -> (usize, usize) {
        ((number >> BITS) as usize, (number & (Self::SIZE - 1)) as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl PoolPiece for u64 {
        fn empty() -> Self {
            0
        }

        fn next_free(&self) -> u32 {
            u32::try_from(*self).unwrap_or(NONE)
        }

        fn set_next_free(&mut self, next: u32) {
            *self = next.into();
        }
    }

    type SmallPool = TimerPool<u64, 2>;

    fn held(pool: &SmallPool) -> usize {
        pool.segments.iter().filter(|segment| !segment.pieces.is_empty()).count()
    }

    #[test]
    fn the_last_piece_released_is_the_first_one_taken() {
        let mut pool = SmallPool::new();
        assert_eq!([(); 6].map(|()| pool.take(100)), [0, 1, 2, 3, 4, 5]);
        pool.release(1);
        pool.release(2);
        assert_eq!([(); 4].map(|()| pool.take(100)), [2, 1, 6, 7]);
        assert!(pool.look_for(7).is_some() && pool.look_for(8).is_none() && pool.look_for(u32::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "more timers than the wheel can number")]
    fn there_are_no_more_pieces_than_numbers() {
        let mut pool = SmallPool::new();
        let _taken = [(); 8].map(|()| pool.take(7));
    }

    /// Sixty timers expired, and their memory never came back.
    #[test]
    fn segments_without_a_used_piece_are_given_back_but_for_one() {
        let mut pool = SmallPool::new();
        let empty = pool.bytes();
        let taken: Vec<u32> = (0..60).map(|_| pool.take(100)).collect();
        let full = pool.bytes();
        assert_eq!((empty, held(&pool)), (0, 15));
        taken.iter().filter(|number| *number % 4 != 0).for_each(|number| pool.release(*number));
        assert_eq!(held(&pool), 15, "each has one");
        taken.iter().filter(|number| *number % 4 == 0).for_each(|number| pool.release(*number));
        assert_eq!((held(&pool), pool.vacant.len()), (1, 14));
        assert!(pool.bytes() < 3 * full / 4, "{} of {full}", pool.bytes());
        // One that comes and goes keeps its memory.
        for _ in 0..10 {
            let number = pool.take(100);
            pool.release(number);
            assert_eq!(held(&pool), 1);
        }
        let again: BTreeSet<u32> = (0..60).map(|_| pool.take(100)).collect();
        assert_eq!((again.len(), again.last(), pool.vacant.len()), (60, Some(&59), 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_piece_is_given_out_twice_and_only_empty_segments_go(steps in prop::collection::vec(0_usize..100, 0..400)) {
            let (mut pool, mut used) = (SmallPool::new(), Vec::new());
            for step in steps {
                if step < 55 || used.is_empty() {
                    let number = pool.take(1 << 30);
                    prop_assert!(!used.contains(&number));
                    *pool.get_mut(number) = u64::from(number) + 1_000;
                    used.push(number);
                } else {
                    pool.release(used.swap_remove(step % used.len()));
                }
                prop_assert!(used.iter().all(|number| *pool.get(*number) == u64::from(*number) + 1_000));
                let needed: BTreeSet<u32> = used.iter().map(|number| number >> 2).collect();
                prop_assert!((needed.len()..=needed.len() + 1).contains(&held(&pool)), "{} of {}", held(&pool), needed.len());
                prop_assert_eq!(pool.with_room.len(), pool.segments.iter().filter(|segment| segment.is_listed).count());
            }
        }
    }
}
