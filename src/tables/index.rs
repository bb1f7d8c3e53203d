//! The index of a table: from a key's hash to its slot. Built on flurry, which only the files below `index` name.
//!
//! # Layout
//!
//! A flurry entry costs about 130 bytes and two cache misses before it holds any data. So the map does not hold
//! elements but **segments** of up to 128 **buckets** of up to 56 slots. It has one entry for about 5,000 elements, and
//! grows in little time. A bucket has its slots on up to seven **lines** of eight cells. It takes a line when it needs
//! it (`lines.rs`, `bucket.rs`). That is about 10 bytes of index for each element of a table that grows. An empty
//! flurry map costs a collector with room for each core, 33 KB on 64 of them, and its guard costs two locked
//! instructions for each look-up. So the first segments stand in a directory, and the index makes the map when the
//! table outgrows the directory.
//!
//! **What flurry does, and what cells do.** The map decides which of two threads makes a segment, owns the segments, and
//! lists them when the table goes. A cell beside the map shows each segment to look-ups, which read it under the
//! tables' guard (`segments.rs`). Look-ups through the map, with one guard of its own for all keys of a batch and one
//! call for each key, took 7 % of a GET's rate and 4 % of a SET's at depth 64 (`perf/tables.md`). The bound was 3 %.
//!
//! Buckets grow by extendible hashing:
//!
//! ```text
//! segment number ──► [Bucket { lines: [number; 7], depth, … }] ──► Line [hash bits | pointer to slot; 8]
//!
//!           in place, in the directory                                 in the map
//! segment   0   1   2     3     4      5       6       7        8         9         10        …
//! buckets   0   1   2–3   4–7   8–15   16–31   32–63   64–127   128–255   256–383   384–511   …
//!
//! a bucket of depth d holds the keys whose hash ends in the d bits of its number
//! full:  bucket n, depth d   ──►   bucket n, depth d+1   and   bucket n + 2^d, depth d+1
//! ```
//! A look-up guesses the depth from the number of buckets, and walks towards the root while there is no such bucket.
//! Buckets that have not been split off yet are *absent*: not made, or made with their segment.
//!
//! # Concurrency
//!
//! A reader takes no lock. A writer that inserts a slot, or removes one, locks its one bucket. One that needs a line
//! locks the list of free ones as well for a moment.
//!
//! A split holds the lock of the old bucket. It shows the moved slots in the new bucket, then raises the depth, then
//! clears the old cells, moves those that stay to fewer lines, and then declares the new bucket ready.
//!
//! - **A reader and a split.** If the reader passes a moved cell before it is cleared, it finds the slot there. If it
//!   passes later, it misses the slot, but then it sees the raised depth and looks again, in the new bucket.
//! - **A writer and a split.** A writer that locks the old bucket before the split makes the split wait. A writer that
//!   locks it afterwards sees the raised depth and goes to the new bucket. If it locks the new bucket before that is
//!   ready, it unlocks and tries again: until then the old cells still show the same slots.
//! - **A reader and a slot that moves between lines** of its bucket. As with a split, by the bucket's shape
//!   (`bucket.rs`). The reader compares depth and shape with those before: together they never come again.
//!
//! This module stores no values and commits no change.

mod bucket;
mod bucket_number;
mod lines;
mod names;
mod replace;
mod segments;
mod walk;

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crossbeam::epoch::{self, Guard};

use super::failpoint::{Failpoint, reach};
use super::memory_budget::signed;
use super::slot::{SlotCell, SlotHandle, SlotRef, SlotState, prefetch};
use crate::limits::LOOK_AHEAD;
use crate::lock::MutexGuard;
pub(super) use bucket::CELLS;
use bucket::{Bucket, NoLine};
use bucket_number::{SEGMENT_LEN, birth, low_bits, parent};
use lines::{BucketLine, BucketLines, LINE_CELLS};
pub(super) use names::{Names, name_bytes};
use segments::{Segments, SegmentsView};

/// Bits of the hash in a bucket's number. 57 keys that share 32 bits do not happen by chance below 5·10^10 keys.
const DEPTH_MAX: u8 = 32;
/// Average elements of a bucket between the splits. `--expected-keys` is divided by it.
const LOAD: usize = 39;
/// An index with fewer buckets is in the nearest cache, with its elements: 5,000 of 130 bytes.
const NEAR: u32 = 128;
/// The least bytes of the index for one element: its share of a full line.
pub(super) const BYTES_PER_ELEMENT: i64 = (size_of::<BucketLine>() / LINE_CELLS) as i64;

/// The result of letting a slot in.
pub(super) enum Inserted {
    /// The slot is in the index and committed.
    Created,
    /// The key has a slot that is not dead. The caller uses that one.
    Occupied,
    /// The caller's condition did not hold, or it made no slot. The index shows the same slots.
    Refused,
    /// 57 keys agree in 32 bits of their hash, or all lines are taken.
    Overfull,
}

/// The cell in which a slot was seen. The slot may have gone since, or a split may have moved it, and the line may be
/// another bucket's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    line: u32,
    cell: u8,
}

impl Place {
    /// No cell.
    pub(super) const NONE: Self = Self { line: 0, cell: u8::MAX };
}

/// A large part of an index, which can be freed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexPart {
    /// A segment in the map, by its number.
    Segment(u32),
    /// A group of lines, by its number.
    BucketLines(u32),
}

/// From keys to slots. The caller gives the hashes: 64 well-mixed bits.
pub(super) struct Index {
    segments: Segments,
    lines: BucketLines,
    /// The number of buckets, for the guess of the depth. Written after a split. Any value but 0 is safe.
    count: AtomicU32,
    /// Bytes of all lines, of all segments but the first, and of their map. Written by those who take lines, and by
    /// splitters.
    bytes: AtomicI64,
    /// The part of them that has not been charged yet. Written by the same, taken by the thread that charges it.
    growth: AtomicI64,
}

/// A slot on this line whose hash agrees in the bits that a cell keeps, with its cell.
#[inline]
fn candidate<'g>(line: u32, cells: &BucketLine, hash: u64, guard: &'g Guard) -> Option<(Place, SlotRef<'g>)> {
    cells.candidates(hash).find_map(|(cell, shown)| Some((Place { line, cell }, shown.candidate(hash, guard)?)))
}

/// The number of segments that so many keys need.
fn segments_for(keys: usize) -> usize {
    keys / LOAD / SEGMENT_LEN as usize
}

impl Index {
    pub(super) fn new(expected_keys: usize) -> Self {
        let (segments, bytes) = Segments::new(segments_for(expected_keys));
        let [bytes, growth] = [AtomicI64::new(bytes), AtomicI64::new(bytes)];
        Self { segments, lines: BucketLines::new(), count: AtomicU32::new(1), bytes, growth }
    }

    /// Returns the bytes by which the index has grown since the last call. The caller charges them.
    pub(super) fn take_growth(&self) -> i64 {
        // Relaxed: a sum. Each byte is taken once.
        if self.growth.load(Ordering::Relaxed) == 0 { 0 } else { self.growth.swap(0, Ordering::Relaxed) }
    }

    /// Bytes of all lines, of all segments but the first, and of their map.
    pub(super) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn note_growth(&self, bytes: i64) {
        if bytes != 0 {
            // Relaxed: sums.
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.growth.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The bucket of this number, absent or not. Makes it if need be.
    fn room_for<'v>(&self, number: u32, view: &'v SegmentsView<'_>) -> &'v Bucket {
        loop {
            if let Some(bucket) = view.bucket_at(number) {
                return bucket;
            }
            self.note_growth(view.make(number));
        }
    }

    /// An empty cell of a bucket that is locked, or that nobody else writes to yet.
    fn free_cell<'v>(&'v self, bucket: &Bucket, hash: u64, guard: &'v Guard) -> Result<&'v SlotCell, NoLine> {
        let (cell, bytes) = bucket.free_cell(hash, &self.lines, guard)?;
        self.note_growth(signed(bytes));
        Ok(cell)
    }

    /// The depth at which most buckets are.
    fn likely_depth(&self) -> u8 {
        let count = u64::from(self.count.load(Ordering::Relaxed));
        #[expect(clippy::cast_possible_truncation, reason = "a logarithm of 34 bits at most")]
        let depth = (count + count / 2).ilog2() as u8;
        depth.min(DEPTH_MAX)
    }

    /// The bucket of `hash`, and its number. Right at one moment of the call: the caller compares its depth afterwards.
    #[inline]
    fn bucket<'v>(&self, hash: u64, view: &'v SegmentsView<'_>) -> (u32, &'v Bucket) {
        let mut depth = self.likely_depth();
        loop {
            let (number, bucket) = Self::nearest(low_bits(hash, depth), view);
            let actual = bucket.depth();
            if low_bits(hash, actual) == number {
                return (number, bucket);
            }
            depth = actual;
        }
    }

    /// Bucket `number`, or its nearest ancestor that has been split off.
    #[inline]
    fn nearest<'v>(mut number: u32, view: &'v SegmentsView<'_>) -> (u32, &'v Bucket) {
        loop {
            if let Some(bucket) = view.bucket_at(number).filter(|bucket| !bucket.is_absent()) {
                return (number, bucket);
            }
            assert!(number != 0, "bucket 0 is made with the index and stays");
            number = parent(number);
        }
    }

    /// The slot of `key`, in any state.
    pub(super) fn find<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        let view = self.segments.view(guard);
        loop {
            let (number, bucket) = self.bucket(hash, &view);
            let (depth, shape) = (bucket.depth(), bucket.shape());
            if let Some(slot) = bucket.find(shape, hash, key, &self.lines, guard) {
                return Some(slot);
            }
            if low_bits(hash, depth) == number && bucket.is_still(depth, shape) {
                return None;
            }
        }
    }

    /// Whether the index is too small for a prefetch to pay.
    pub(super) fn is_near(&self) -> bool {
        self.count.load(Ordering::Relaxed) < NEAR
    }

    /// Asks the processor to fetch the memory that look-ups of these hashes read. It fetches one level for all hashes
    /// before the next level, so that their cache misses overlap. Notes where the slots are. A hint: an element that
    /// moves in the meantime is still found.
    pub(super) fn prefetch(&self, hashes: &[u64], places: &mut [Place], guard: &Guard) {
        let view = self.segments.view(guard);
        let depth = self.likely_depth();
        let complete = self.count.load(Ordering::Relaxed) >> depth > 0;
        let mut buckets = [None; LOOK_AHEAD];
        for (bucket, hash) in buckets.iter_mut().zip(hashes) {
            let number = low_bits(*hash, depth);
            *bucket = view.bucket_at(number);
            bucket.iter().copied().for_each(prefetch);
            if !complete && birth(number) == depth {
                view.bucket_at(parent(number)).into_iter().for_each(prefetch);
            }
        }
        let mut homes = [None; LOOK_AHEAD];
        for ((home, bucket), hash) in homes.iter_mut().zip(&mut buckets).zip(hashes) {
            let likely = bucket.filter(|bucket| bucket.depth() == depth);
            let bucket = bucket.insert(likely.unwrap_or_else(|| self.bucket(*hash, &view).1));
            *home = bucket.home(*hash, &self.lines, guard);
            home.iter().for_each(|(_, line)| prefetch(*line));
        }
        let mut found = [None; LOOK_AHEAD];
        for (((found, home), bucket), hash) in found.iter_mut().zip(homes).zip(buckets).zip(hashes) {
            *found = home.and_then(|(line, cells)| candidate(line, cells, *hash, guard));
            match (&found, bucket) {
                (Some((_, slot)), _) => slot.prefetch(),
                (None, Some(bucket)) => bucket.others(*hash, &self.lines, guard).for_each(|(_, line)| prefetch(line)),
                (None, None) => {}
            }
        }
        for (((found, place), bucket), hash) in found.iter_mut().zip(places).zip(buckets).zip(hashes) {
            if let (None, Some(bucket)) = (&found, bucket) {
                let mut others = bucket.others(*hash, &self.lines, guard);
                *found = others.find_map(|(line, cells)| candidate(line, cells, *hash, guard));
                found.iter().for_each(|(_, slot)| slot.prefetch());
            }
            *place = found.map_or(Place::NONE, |(place, _)| place);
        }
        found.iter().flatten().for_each(|(_, slot)| slot.prefetch_entry(guard));
    }

    /// The slot of `key`, in any state, if the cell at this place shows it.
    #[inline]
    pub(super) fn at<'g>(&self, place: Place, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        if usize::from(place.cell) >= LINE_CELLS {
            return None;
        }
        let cell = self.lines.get(place.line, guard)?.0.get(usize::from(place.cell))?;
        cell.get(guard).filter(|slot| slot.is_of(key))
    }

    /// Locks the bucket of `hash`.
    fn lock<'v>(&self, hash: u64, view: &'v SegmentsView<'_>) -> (u32, &'v Bucket, MutexGuard<'v, ()>) {
        loop {
            let (number, bucket) = self.bucket(hash, view);
            let locked = bucket.lock.lock();
            // Acquire: pairs with the Release in `split`. The old bucket no longer shows this one's slots.
            if !bucket.ready.load(Ordering::Acquire) {
                drop(locked);
                std::thread::yield_now();
            } else if low_bits(hash, bucket.depth()) == number {
                return (number, bucket, locked);
            }
        }
    }

    /// The slot of `key`, found under the bucket's lock: after each writer or mover that held the lock has finished.
    pub(super) fn find_settled<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        let view = self.segments.view(guard);
        let (_, bucket, _locked) = self.lock(hash, &view);
        bucket.find(bucket.shape(), hash, key, &self.lines, guard)
    }

    /// Inserts a slot for `key`, made by `make` under the bucket's lock, if `is_open` holds under the same lock. If it
    /// does not hold, the index splits no bucket either, so a later visitor of a bucket finds all the buckets that were
    /// split from it.
    ///
    /// `make` gets the version of the dead slot that the new one replaces, if there is one. `None` from it refuses. The
    /// slot that it made, and with it the committed value, is visible before the lock is released.
    pub(super) fn enter(
        &self,
        hash: u64,
        key: &[u8],
        guard: &Guard,
        rehash: &dyn Fn(&[u8]) -> u64,
        is_open: &dyn Fn() -> bool,
        make: &mut dyn FnMut(Option<u64>) -> Option<SlotHandle>,
    ) -> Inserted {
        let view = self.segments.view(guard);
        loop {
            let (number, bucket, _locked) = self.lock(hash, &view);
            if !is_open() {
                return Inserted::Refused;
            }
            if let Some(cell) = bucket.cell_of(hash, key, &self.lines, guard) {
                return Self::replace_dead(cell, hash, guard, make);
            }
            if let Ok(cell) = self.free_cell(bucket, hash, guard) {
                let Some(slot) = make(None) else { return Inserted::Refused };
                cell.put(hash, slot, guard);
                return Inserted::Created;
            }
            if !self.split(number, bucket, guard, &view, rehash) {
                return Inserted::Overfull;
            }
        }
    }

    fn cells<'v>(&'v self, bucket: &'v Bucket, guard: &'v Guard) -> impl Iterator<Item = &'v SlotCell> {
        bucket.cells(&self.lines, guard)
    }

    fn replace_dead(
        cell: &SlotCell,
        hash: u64,
        guard: &Guard,
        make: &mut dyn FnMut(Option<u64>) -> Option<SlotHandle>,
    ) -> Inserted {
        let state = cell.get(guard).map(|slot| slot.load(guard).state());
        let Some(SlotState::Dead(version)) = state else { return Inserted::Occupied };
        let Some(slot) = make(Some(version)) else { return Inserted::Refused };
        cell.put(hash, slot, guard);
        Inserted::Created
    }

    /// Splits a full bucket whose lock is held. False: its keys agree in all bits of a bucket's number, or all lines are
    /// taken.
    fn split(
        &self,
        number: u32,
        bucket: &Bucket,
        guard: &Guard,
        view: &SegmentsView<'_>,
        rehash: &dyn Fn(&[u8]) -> u64,
    ) -> bool {
        let depth = bucket.depth();
        if depth >= DEPTH_MAX {
            return false;
        }
        let child = self.room_for(number | 1 << depth, view);
        debug_assert!(child.is_absent(), "a bucket is split off once, under the lock of the one that it comes from");
        // All keys are read: their cache misses overlap.
        self.cells(bucket, guard).filter_map(|cell| cell.get(guard)).for_each(|slot| slot.prefetch());
        let moved: Vec<&SlotCell> = self
            .cells(bucket, guard)
            .filter(|cell| cell.get(guard).is_some_and(|slot| rehash(slot.key()) >> depth & 1 == 1))
            .collect();
        if self.fill(child, &moved, guard).is_err() {
            // Nobody has found a slot in the new bucket: it is absent still.
            self.cells(child, guard).for_each(SlotCell::hand_over);
            return false;
        }
        // Release: pairs with the Acquire of `depth`. First the new bucket, then the old one.
        child.depth.store(depth + 1, Ordering::Release);
        bucket.depth.store(depth + 1, Ordering::Release);
        for cell in moved {
            cell.hand_over();
            reach(Failpoint::HandedOver);
        }
        bucket.shrink(&self.lines, guard);
        // Release: pairs with the Acquire in `lock` and `renew`. The old bucket's lock is held until after this.
        child.ready.store(true, Ordering::Release);
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Shows these slots in a new bucket as well, and leaves room for one more.
    fn fill(&self, child: &Bucket, slots: &[&SlotCell], guard: &Guard) -> Result<(), NoLine> {
        for _ in child.shape().lines()..(slots.len() + 1).min(CELLS).div_ceil(LINE_CELLS) {
            self.note_growth(signed(child.grow(&self.lines, guard)?));
        }
        for cell in slots {
            cell.copy_to(self.free_cell(child, cell.hash_bits(), guard)?);
        }
        Ok(())
    }

    /// Visits the slots of bucket `number` under its lock, and appends the buckets that were split from it. Starting
    /// with bucket 0, this reaches every slot of an index that takes no new slot any more.
    pub(super) fn visit<'g>(
        &self,
        number: u32,
        guard: &'g Guard,
        children: &mut Vec<u32>,
        mut slot: impl FnMut(SlotRef<'g>),
    ) {
        let view = self.segments.view(guard);
        let Some(bucket) = view.bucket_at(number) else { return };
        let _locked = bucket.lock.lock();
        children.extend((birth(number)..bucket.depth()).map(|depth| number | 1 << depth));
        self.cells(bucket, guard).filter_map(|cell| cell.get(guard)).for_each(&mut slot);
    }

    /// Empties bucket `number`.
    pub(super) fn clear(&self, number: u32, guard: &Guard) {
        let view = self.segments.view(guard);
        let Some(bucket) = view.bucket_at(number) else { return };
        let _locked = bucket.lock.lock();
        self.cells(bucket, guard).filter(|cell| !cell.is_empty()).for_each(|cell| cell.clear(guard));
    }

    /// The large parts of an index that no other thread uses any more. Each part can be taken out by itself.
    pub(super) fn removable(&self) -> Vec<IndexPart> {
        let segments = self.segments.removable().into_iter().map(IndexPart::Segment);
        segments.chain(self.lines.removable().map(IndexPart::BucketLines)).collect()
    }

    /// Takes these parts out and frees them.
    pub(super) fn remove(&self, parts: &[IndexPart]) {
        let segments =
            parts.iter().filter_map(|part| if let IndexPart::Segment(number) = part { Some(*number) } else { None });
        self.segments.remove(&segments.collect::<Vec<_>>());
        let guard = epoch::pin();
        for part in parts {
            if let IndexPart::BucketLines(group) = part {
                self.lines.remove(*group, &guard);
            }
        }
        guard.flush();
    }
}

#[cfg(test)]
mod tests;
