//! A bucket: up to 15 slots whose hashes end in the same bits.
//!
//! A bucket does not know its own number, and splits no bucket.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crossbeam::epoch::Guard;

use crate::lock::Mutex;
use crate::tables::slot::{SlotCell, SlotRef};

/// Cells of a bucket. With the lock and the depth they fill two cache lines.
pub(in crate::tables) const CELLS: usize = 15;
/// The depth of a bucket that has not been split off yet.
const ABSENT: u8 = u8::MAX;

const _: () = assert!(size_of::<Bucket>() == 128);

#[repr(align(64))]
pub(super) struct Bucket {
    pub(super) cells: [SlotCell; CELLS],
    pub(super) lock: Mutex<()>,
    /// Bits of the hash that the bucket's keys share. Set by the split that makes the bucket, raised under its lock,
    /// read by all threads.
    pub(super) depth: AtomicU8,
    /// Whether the bucket from which this one was split has cleared its cells of these keys. Until then no thread
    /// writes here, since the old cells show the same slots. Set by the splitter, read by the thread that has locked
    /// this bucket.
    pub(super) ready: AtomicBool,
}

impl Bucket {
    pub(super) fn absent() -> Self {
        Self {
            cells: std::array::from_fn(|_| SlotCell::empty()),
            lock: Mutex::new(()),
            depth: AtomicU8::new(ABSENT),
            ready: AtomicBool::new(false),
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

    /// The first slot whose hash agrees in the bits that a cell keeps, with the number of its cell.
    pub(super) fn candidate<'g>(&self, hash: u64, guard: &'g Guard) -> Option<(u8, SlotRef<'g>)> {
        self.cells.iter().zip(0..).find_map(|(cell, number)| Some((number, cell.candidate(hash, guard)?)))
    }

    pub(super) fn find<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        self.cells.iter().find_map(|cell| cell.find(hash, key, guard))
    }
}
