//! A bucket: up to 56 slots whose hashes end in the same bits, on up to seven lines.
//!
//! ```text
//! bucket   lines: [number; 7] │ lock │ depth │ ready │ shape: count of lines, and how often that has changed
//!                    │     └─► cells
//!                    └─► cells
//! ```
//! Each slot has a line where it is looked for first, its *home*: six of seven stand there. A line more is taken when
//! all cells are full. Its natives among the slots move there, and others to their homes, where these have made room. A
//! bucket that a split has left half empty gives its last lines back, and moves the slots on them to others. Of the homes
//! that a slot has with two counts of lines, the greater count's is the same, or a line that the other does not have, as
//! in J. Lamping and E. Veach, "A fast, minimal memory, consistent hash algorithm", 2014.
//!
//! # A reader and a slot that moves between lines
//!
//! The slot is shown in its new cell, then the shape is changed, then it is no longer shown in its old cell. A reader
//! that looks into the new cell too early and into the old cell too late misses the slot. Then it sees the changed
//! shape and looks again. It sees the shape even if the old line has gone to another bucket in the meantime: this
//! bucket stored its slots there after the change.
//!
//! The lines of a shape stay in their order. A line more stands behind them, and one that is given back was the last.
//!
//! A bucket does not know its own number, and splits no bucket.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crossbeam::epoch::Guard;

use super::lines::{BucketLine, BucketLines, LINE_CELLS};
use crate::lock::Mutex;
use crate::tables::failpoint::{Failpoint, reach};
use crate::tables::slot::{SlotCell, SlotRef};

/// Lines of a bucket. With the lock, the depth, the mark and the shape they take 32 bytes.
const LINES: usize = 7;
/// Cells of a bucket at most.
pub(in crate::tables) const CELLS: usize = LINES * LINE_CELLS;
/// The depth of a bucket that has not been split off yet.
const ABSENT: u8 = u8::MAX;
/// The bits of a shape that count lines. The others count changes, up to 32. Between two splits there are at most 16, so
/// with the depth no shape comes again.
const COUNT_BITS: u32 = 3;

const _: () = assert!(size_of::<Bucket>() == 32 && LINES < 1 << COUNT_BITS);

/// By the count of lines, and by the first eight bits of a hash: the home. Of two counts it is the same line, or the
/// greater count's home is a line that the smaller count does not have.
static HOMES: [[u8; 256]; LINES + 1] = homes();

#[expect(clippy::indexing_slicing, reason = "a constant: the compiler runs it, and refuses a wrong index")]
const fn homes() -> [[u8; 256]; LINES + 1] {
    let mut homes = [[0; 256]; LINES + 1];
    let mut count = 2;
    while count <= LINES {
        homes[count] = homes[count - 1];
        // Of each line before, one hash of `count` goes to the new line. The count begins elsewhere for each line.
        let mut met = [0; LINES];
        let mut hash = 0;
        while hash < 256 {
            let home = homes[count][hash] as usize;
            if (met[home] + home) % count == count - 1 {
                #[expect(clippy::cast_possible_truncation, reason = "at most seven")]
                let last = (count - 1) as u8;
                homes[count][hash] = last;
            }
            met[home] += 1;
            hash += 1;
        }
        count += 1;
    }
    homes
}

#[repr(align(32))]
pub(super) struct Bucket {
    /// The numbers of its lines, as many as the shape counts. Written under the lock, read by all threads.
    lines: [AtomicU32; LINES],
    pub(super) lock: Mutex<()>,
    /// Bits of the hash that the bucket's keys share. Set by the split that makes the bucket, raised under its lock,
    /// read by all threads.
    pub(super) depth: AtomicU8,
    /// Whether the bucket from which this one was split has cleared its cells of these keys. Until then no thread
    /// writes here, since the old cells show the same slots. Set by the splitter, read by the thread that has locked
    /// this bucket.
    pub(super) ready: AtomicBool,
    /// Written under the lock, read by all threads.
    shape: AtomicU8,
}

/// How many lines a bucket has, and how often that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape(u8);

/// No line is left for a cell, in the bucket or in the table.
#[derive(Debug)]
pub(super) struct NoLine;

impl Shape {
    pub(super) fn lines(self) -> usize {
        usize::from(self.0 & ((1 << COUNT_BITS) - 1))
    }

    /// The shape with so many lines.
    fn changed_to(self, lines: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "at most seven")]
        let lines = lines as u8;
        Self((self.0 >> COUNT_BITS).wrapping_add(1) << COUNT_BITS | lines)
    }

    /// The line where a slot of this hash is looked for first, if there is any line.
    #[inline]
    fn home(self, hash: u64) -> usize {
        let first_bits = (hash >> (u64::BITS - 8)) as usize;
        HOMES.get(self.lines()).and_then(|homes| homes.get(first_bits)).copied().map_or(0, usize::from)
    }

    /// The line so many places behind the home.
    #[inline]
    fn behind(self, home: usize, places: usize) -> usize {
        let place = home + places;
        if place < self.lines() { place } else { place - self.lines() }
    }

    /// Its lines, the home first.
    #[inline]
    fn in_order(self, hash: u64) -> impl Iterator<Item = usize> {
        let home = self.home(hash);
        (0..self.lines()).map(move |places| self.behind(home, places))
    }

    /// Its lines but the home.
    #[inline]
    fn others(self, hash: u64) -> impl Iterator<Item = usize> {
        let home = self.home(hash);
        (1..self.lines()).map(move |places| self.behind(home, places))
    }
}

impl Bucket {
    pub(super) fn absent() -> Self {
        Self {
            lines: [const { AtomicU32::new(0) }; LINES],
            lock: Mutex::new(()),
            depth: AtomicU8::new(ABSENT),
            ready: AtomicBool::new(false),
            shape: AtomicU8::new(0),
        }
    }

    /// Bucket 0, from which all others are split off.
    pub(super) fn root() -> Self {
        Self { depth: AtomicU8::new(0), ready: AtomicBool::new(true), ..Self::absent() }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.depth() == ABSENT
    }

    pub(super) fn depth(&self) -> u8 {
        // Acquire: pairs with the Releases in `split`. A reader that sees a new bucket's depth finds its keys, and a
        // reader that sees the old bucket's raised depth finds the new bucket.
        self.depth.load(Ordering::Acquire)
    }

    pub(super) fn shape(&self) -> Shape {
        // Acquire: pairs with the Release in `change_to`. The lines are there, and what has moved is shown on them.
        Shape(self.shape.load(Ordering::Acquire))
    }

    /// Whether depth and shape are as they were.
    pub(super) fn is_still(&self, depth: u8, shape: Shape) -> bool {
        // The shape first. If it is one that has come again, the depth that is read after it has been raised.
        self.shape() == shape && self.depth() == depth
    }

    /// Shows as many lines from now on. The lock is held, or nobody looks into the bucket yet.
    fn change_to(&self, lines: usize) {
        // Release: pairs with the Acquire in `shape`.
        self.shape.store(self.shape().changed_to(lines).0, Ordering::Release);
    }

    #[inline]
    fn line<'v>(&self, place: usize, lines: &'v BucketLines, guard: &'v Guard) -> Option<(u32, &'v BucketLine)> {
        // Acquire: pairs with the Release in `grow`. A reader that meets another line than its shape's sees the shape
        // in which that place had none.
        let number = self.lines.get(place)?.load(Ordering::Acquire);
        Some((number, lines.get(number, guard)?))
    }

    /// The home of a hash with its number, if there is any line.
    #[inline]
    pub(super) fn home<'v>(
        &self,
        hash: u64,
        lines: &'v BucketLines,
        guard: &'v Guard,
    ) -> Option<(u32, &'v BucketLine)> {
        let shape = self.shape();
        if shape.lines() == 0 { None } else { self.line(shape.home(hash), lines, guard) }
    }

    /// Its lines with their numbers.
    pub(super) fn lines<'v>(
        &'v self,
        lines: &'v BucketLines,
        guard: &'v Guard,
    ) -> impl Iterator<Item = (u32, &'v BucketLine)> {
        (0..self.shape().lines()).filter_map(move |place| self.line(place, lines, guard))
    }

    /// Its cells.
    #[inline]
    pub(super) fn cells<'v>(&'v self, lines: &'v BucketLines, guard: &'v Guard) -> impl Iterator<Item = &'v SlotCell> {
        self.lines(lines, guard).flat_map(|(_, line)| &line.0)
    }

    /// The slot of `key`. A reader without the lock compares the shape afterwards if there is none.
    #[inline]
    pub(super) fn find<'g>(
        &self,
        shape: Shape,
        hash: u64,
        key: &[u8],
        lines: &BucketLines,
        guard: &'g Guard,
    ) -> Option<SlotRef<'g>> {
        let mut places = shape.in_order(hash);
        let at_home = self.find_on(places.next()?, hash, key, lines, guard);
        // Most look-ups end here.
        let found = at_home.or_else(|| {
            reach(Failpoint::LineRead);
            places.find_map(|place| self.find_on(place, hash, key, lines, guard))
        });
        found.map(|(_, slot)| slot)
    }

    /// The slot of `key` on this line, and the cell that shows it.
    #[inline]
    fn find_on<'v, 'g: 'v>(
        &self,
        place: usize,
        hash: u64,
        key: &[u8],
        lines: &'v BucketLines,
        guard: &'g Guard,
    ) -> Option<(&'v SlotCell, SlotRef<'g>)> {
        let (_, line) = self.line(place, lines, guard)?;
        line.candidates(hash).find_map(|(_, cell)| Some((cell, cell.find(hash, key, guard)?)))
    }

    /// The cell that shows the slot of `key`. The lock is held.
    pub(super) fn cell_of<'v>(
        &self,
        hash: u64,
        key: &[u8],
        lines: &'v BucketLines,
        guard: &'v Guard,
    ) -> Option<&'v SlotCell> {
        let mut places = self.shape().in_order(hash);
        places.find_map(|place| self.find_on(place, hash, key, lines, guard)).map(|(cell, _)| cell)
    }

    /// An empty cell on the lines of a shape, the home of a hash first. The lock is held, or nobody looks into the bucket
    /// yet.
    fn empty_cell<'v>(
        &self,
        shape: Shape,
        hash: u64,
        lines: &'v BucketLines,
        guard: &'v Guard,
    ) -> Option<&'v SlotCell> {
        shape.in_order(hash).find_map(|place| self.line(place, lines, guard)?.1.empty_cell())
    }

    /// Its lines but the home of a hash, with their numbers.
    pub(super) fn others<'v>(
        &'v self,
        hash: u64,
        lines: &'v BucketLines,
        guard: &'v Guard,
    ) -> impl Iterator<Item = (u32, &'v BucketLine)> {
        self.shape().others(hash).filter_map(move |place| self.line(place, lines, guard))
    }

    /// An empty cell for a slot of this hash, and the bytes that a line took that this needs. The lock is held, or
    /// nobody looks into the bucket yet.
    pub(super) fn free_cell<'v>(
        &self,
        hash: u64,
        lines: &'v BucketLines,
        guard: &'v Guard,
    ) -> Result<(&'v SlotCell, usize), NoLine> {
        if let Some(cell) = self.empty_cell(self.shape(), hash, lines, guard) {
            return Ok((cell, 0));
        }
        let bytes = self.grow(lines, guard)?;
        self.empty_cell(self.shape(), hash, lines, guard).map(|cell| (cell, bytes)).ok_or(NoLine)
    }

    /// Takes one line more, and moves its natives there. Returns the bytes that it took. As [`Self::free_cell`].
    pub(super) fn grow(&self, lines: &BucketLines, guard: &Guard) -> Result<usize, NoLine> {
        let before = self.shape();
        let count = before.lines() + 1;
        let place = self.lines.get(before.lines()).ok_or(NoLine)?;
        let (number, bytes) = lines.take(guard).ok_or(NoLine)?;
        let line = lines.get(number, guard).ok_or(NoLine)?;
        let is_native = |cell: &&SlotCell| before.changed_to(count).home(cell.hash_bits()) == before.lines();
        let natives = self.cells(lines, guard).filter(|cell| !cell.is_empty()).filter(is_native);
        let moved: Vec<_> = natives.zip(&line.0).collect();
        moved.iter().for_each(|(cell, target)| cell.copy_to(target));
        // Release: pairs with the Acquire in `line`.
        place.store(number, Ordering::Release);
        Self::move_all(&moved, || self.change_to(count));
        self.bring_home(lines, guard);
        Ok(bytes)
    }

    /// Gives back the lines that are not needed when their slots move to others. The lock is held.
    pub(super) fn shrink(&self, lines: &BucketLines, guard: &Guard) {
        let before = self.shape().lines();
        let kept = self.cells(lines, guard).filter(|cell| !cell.is_empty()).count().div_ceil(LINE_CELLS);
        let mut moved = Vec::new();
        let shape = self.shape().changed_to(kept);
        for (_, line) in (kept..before).filter_map(|place| self.line(place, lines, guard)) {
            for cell in line.0.iter().filter(|cell| !cell.is_empty()) {
                let target = self.empty_cell(shape, cell.hash_bits(), lines, guard);
                let target = target.expect("the lines that stay have as many cells as there are slots");
                cell.copy_to(target);
                moved.push((cell, target));
            }
        }
        Self::move_all(&moved, || self.change_to(kept));
        for (number, _) in (kept..before).filter_map(|place| self.line(place, lines, guard)) {
            lines.give_back(number);
        }
        self.bring_home(lines, guard);
    }

    /// Moves slots to their homes, where cells have become free. The lock is held.
    fn bring_home(&self, lines: &BucketLines, guard: &Guard) {
        let shape = self.shape();
        let line = |place: usize| self.line(place, lines, guard).map(|(_, line)| line);
        let mut moved = Vec::new();
        for (place, line_here) in (0..shape.lines()).filter_map(|place| Some((place, line(place)?))) {
            for cell in line_here.0.iter().filter(|cell| !cell.is_empty()) {
                let home = shape.home(cell.hash_bits());
                if home != place
                    && let Some(target) = line(home).and_then(BucketLine::empty_cell)
                {
                    cell.copy_to(target);
                    moved.push((cell, target));
                }
            }
        }
        if !moved.is_empty() {
            Self::move_all(&moved, || self.change_to(shape.lines()));
        }
    }

    /// Ends the move of slots that are shown in both cells.
    fn move_all(moved: &[(&SlotCell, &SlotCell)], change: impl FnOnce()) {
        if !moved.is_empty() {
            reach(Failpoint::Doubled);
        }
        change();
        for (cell, _) in moved {
            cell.hand_over();
            reach(Failpoint::Drawn);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn homes_are_even_and_only_a_new_line_draws_slots_away() {
        for count in 1..=LINES {
            let mut natives = [0_usize; LINES];
            for hash in 0..256 {
                natives[usize::from(HOMES[count][hash])] += 1;
                let (home, next) = (HOMES[count][hash], HOMES[(count + 1).min(LINES)][hash]);
                assert!(home == next || usize::from(next) == count, "{count}: {hash}");
            }
            let even = 256 / count;
            assert!(natives[..count].iter().all(|natives| natives.abs_diff(even) <= 6), "{count}: {natives:?}");
            assert!(natives[count..].iter().all(|natives| *natives == 0));
        }
    }

    #[test]
    fn a_shape_counts_lines_and_changes() {
        let mut shape = Shape(0);
        let mut seen = std::collections::HashSet::new();
        for lines in [1, 2, 3, 4, 5, 6, 7, 3, 4] {
            shape = shape.changed_to(lines);
            assert!(shape.lines() == lines && seen.insert(shape.0), "{lines}");
        }
        for hash in [0, 1 << 63, u64::MAX] {
            let mut places: Vec<usize> = shape.in_order(hash).collect();
            assert_eq!(places[0], shape.home(hash));
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2, 3]);
        }
        assert_eq!(Shape(0).in_order(u64::MAX).count(), 0);
    }
}
