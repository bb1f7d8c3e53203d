//! The lines of an index: eight cells each, which fill a cache line. Buckets take them when they need them.
//!
//! ```text
//! line      0   1   2–3   4–7   8–15   16–31   32–63   64–127     128–254   255–381   …
//! made in   a block each                                          groups of 127, on shelves
//!
//! take ─► a line that was given back, or the next number ─► its group is made with its first line
//! give back ─► taken by the next bucket that needs one
//! ```
//! Lines have numbers, and a bucket may have any. So no bucket needs room beside its own, and all groups of a table are
//! full but the newest and what was given back. A look-up finds a line by its number without a lock.
//!
//! This module knows no buckets.

use std::iter;
use std::sync::{Arc, OnceLock};

use crossbeam::epoch::Guard;

use super::super::shelves::{Shelves, shelves_for};
use super::bucket_number::{SEGMENT_BITS, SEGMENT_LEN, position, segment_len};
use crate::allocator::size_class;
use crate::lock::Mutex;
use crate::tables::slot::SlotCell;

/// Cells of a line.
pub(super) const LINE_CELLS: usize = 8;
/// Lines in blocks of their own: the same as the first buckets, in blocks that double.
const NEAR: u32 = SEGMENT_LEN;
const NEAR_BLOCKS: usize = SEGMENT_BITS as usize + 1;
/// Lines of a group. With its counts it fills 8 KiB.
const GROUP_LEN: u32 = 127;
/// Bytes of a group, with its counts.
const GROUP_BYTES: usize = size_class(size_of::<LineGroup>() + size_of::<BucketLine>());
/// Shelves for 2^25 groups. They end a little before the numbers do.
const SHELVES: usize = shelves_for(1 << (u32::BITS - SEGMENT_BITS));

const _: () = assert!(size_of::<BucketLine>() == 64 && GROUP_BYTES == 8 << 10);

/// Cells side by side. A bucket's lock is held by those who write them.
#[repr(align(64))]
pub(super) struct BucketLine(pub(super) [SlotCell; LINE_CELLS]);

/// Lines side by side.
struct LineGroup([BucketLine; GROUP_LEN as usize]);

/// Which lines no bucket has.
#[derive(Default)]
struct FreeLines {
    /// Lines that were given back. Each split takes as many as it gives back, or more, so these are few.
    given_back: Vec<u32>,
    /// The first line that nobody has had.
    next: u32,
}

/// The lines of a table, by number.
pub(super) struct BucketLines {
    near: [OnceLock<Box<[BucketLine]>>; NEAR_BLOCKS],
    far: OnceLock<Box<Shelves<LineGroup, SHELVES>>>,
    /// Locked by those who take lines and give them back, under the lock of a bucket.
    free: Mutex<FreeLines>,
}

impl BucketLine {
    fn empty() -> Self {
        Self(std::array::from_fn(|_| SlotCell::empty()))
    }

    /// The cells for which this holds, with their numbers. All are looked at before the first is returned: without
    /// branches that is faster than one after the other.
    #[inline]
    fn cells_that(&self, holds: impl Fn(&SlotCell) -> bool) -> impl Iterator<Item = (u8, &SlotCell)> {
        let mut left = self.0.iter().zip(0..).fold(0_u8, |bits, (cell, number)| bits | u8::from(holds(cell)) << number);
        iter::from_fn(move || {
            #[expect(clippy::cast_possible_truncation, reason = "at most eight")]
            let number = left.trailing_zeros() as u8;
            left &= left.wrapping_sub(1);
            Some((number, self.0.get(usize::from(number))?))
        })
    }

    /// The cells that may show a slot of this hash, with their numbers.
    #[inline]
    pub(super) fn candidates(&self, hash: u64) -> impl Iterator<Item = (u8, &SlotCell)> {
        self.cells_that(move |cell| cell.may_show(hash))
    }

    /// The first empty cell.
    #[inline]
    pub(super) fn empty_cell(&self) -> Option<&SlotCell> {
        self.cells_that(SlotCell::is_empty).next().map(|(_, cell)| cell)
    }
}

impl BucketLines {
    pub(super) const fn new() -> Self {
        Self {
            near: [const { OnceLock::new() }; NEAR_BLOCKS],
            far: OnceLock::new(),
            free: Mutex::new(FreeLines { given_back: Vec::new(), next: 0 }),
        }
    }

    /// The line of this number, if its group is made.
    #[inline]
    pub(super) fn get<'g>(&'g self, number: u32, guard: &'g Guard) -> Option<&'g BucketLine> {
        match number.checked_sub(NEAR) {
            Some(far) => self.far.get()?.get(far / GROUP_LEN, guard)?.0.get((far % GROUP_LEN) as usize),
            None => {
                let (block, offset) = position(number);
                self.near.get(block as usize)?.get()?.get(offset)
            }
        }
    }

    /// Takes a line, whose cells are empty, and makes its group if need be. Returns its number, and the bytes that the
    /// group took. `None`: all lines are taken, 4·10^9.
    pub(super) fn take(&self, guard: &Guard) -> Option<(u32, usize)> {
        let mut free = self.free.lock();
        if let Some(number) = free.given_back.pop() {
            return Some((number, 0));
        }
        let number = free.next;
        let bytes = self.make(number, guard)?;
        free.next = number.checked_add(1)?;
        Some((number, bytes))
    }

    /// Gives back a line whose cells are empty. Readers may still look at it.
    pub(super) fn give_back(&self, number: u32) {
        self.free.lock().given_back.push(number);
    }

    /// How many lines were taken and not given back.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        let free = self.free.lock();
        free.next as usize - free.given_back.len()
    }

    /// Makes the group of a line, unless it is made. Returns the bytes that this took. Callers exclude each other.
    fn make(&self, number: u32, guard: &Guard) -> Option<usize> {
        let Some(far) = number.checked_sub(NEAR) else {
            let (block, _) = position(number);
            let (lines, mut bytes) = (segment_len(block) as usize, 0);
            self.near.get(block as usize)?.get_or_init(|| {
                bytes = size_class(lines * size_of::<BucketLine>());
                iter::repeat_with(BucketLine::empty).take(lines).collect()
            });
            return Some(bytes);
        };
        let mut bytes = 0;
        let groups = self.far.get_or_init(|| {
            bytes = size_class(size_of::<Shelves<LineGroup, SHELVES>>());
            Box::new(Shelves::new())
        });
        let group = far / GROUP_LEN;
        bytes += groups.make(group).filter(|bytes| *bytes > 0).map_or(0, size_class);
        let cell = groups.cell(group)?;
        if cell.get(guard).is_none() {
            cell.put(Arc::new(LineGroup(std::array::from_fn(|_| BucketLine::empty()))), guard);
            bytes += GROUP_BYTES;
        }
        Some(bytes)
    }

    /// The groups of an index that no other thread uses any more. Each group can be freed by itself.
    pub(super) fn removable(&self) -> std::ops::Range<u32> {
        0..self.free.lock().next.saturating_sub(NEAR).div_ceil(GROUP_LEN)
    }

    /// Frees a group when no guard shows it.
    pub(super) fn remove(&self, group: u32, guard: &Guard) {
        self.far.get().and_then(|groups| groups.cell(group)).into_iter().for_each(|cell| cell.clear(guard));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::collections::HashSet;

    use crossbeam::epoch;

    use super::*;

    #[test]
    fn every_line_has_a_place_of_its_own_and_is_charged_with_its_group() {
        let (lines, guard) = (BucketLines::new(), epoch::pin());
        let far = size_class(size_of::<Shelves<LineGroup, SHELVES>>());
        let mut places = HashSet::new();
        for number in 0..NEAR + 3 * GROUP_LEN {
            let bytes = match number {
                0 => 64,
                1..NEAR if number.is_power_of_two() => 64 * number as usize,
                NEAR => far + 512 + (8 << 10),
                _ if number > NEAR && (number - NEAR).is_multiple_of(GROUP_LEN) => 8 << 10,
                _ => 0,
            };
            assert_eq!(lines.take(&guard), Some((number, bytes)));
            let line = lines.get(number, &guard).unwrap();
            assert!(line.0.iter().all(SlotCell::is_empty) && places.insert(std::ptr::from_ref(line).addr()));
        }
        assert!(places.iter().all(|place| place % 64 == 0));
        assert!(lines.get(NEAR + 3 * GROUP_LEN, &guard).is_none() && lines.get(u32::MAX, &guard).is_none());
    }

    #[test]
    fn a_line_that_was_given_back_is_the_next_to_be_taken() {
        let (lines, guard) = (BucketLines::new(), epoch::pin());
        let take = || lines.take(&guard).unwrap().0;
        assert_eq!([take(), take(), take()], [0, 1, 2]);
        lines.give_back(1);
        assert_eq!([take(), take()], [1, 3]);
    }

    #[test]
    fn groups_are_listed_and_freed_one_by_one() {
        let (lines, guard) = (BucketLines::new(), epoch::pin());
        assert_eq!(lines.removable(), 0..0);
        while lines.take(&guard).unwrap().0 < NEAR + GROUP_LEN {}
        assert_eq!(lines.removable(), 0..2);
        lines.remove(0, &guard);
        let shown = [0, NEAR, NEAR + GROUP_LEN].map(|number| lines.get(number, &guard).is_some());
        assert_eq!(shown, [true, false, true]);
    }
}
