//! A bucket: up to 15 slots whose hashes end in the same bits.
//!
//! It does not know its own number, and splits nothing.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crossbeam::epoch::Guard;
use parking_lot::Mutex;

use crate::tables::slot::{SlotCell, SlotRef};

/// Cells of a bucket: with its lock and depth they fill two cache lines.
pub(in crate::tables) const CELLS: usize = 15;
/// Stands for the depth of a bucket that has not been split off yet.
const ABSENT: u8 = u8::MAX;

const _: () = assert!(size_of::<Bucket>() == 128);

#[repr(align(64))]
pub(super) struct Bucket {
    pub(super) cells: [SlotCell; CELLS],
    pub(super) lock: Mutex<()>,
    /// How many bits of the hash its keys share. Set by the split that makes it, raised under its lock; read by
    /// everybody.
    pub(super) depth: AtomicU8,
    /// Whether the bucket that it was split from has let go of its keys. Until then nobody writes here: the old cells
    /// still show what is in these. Set by the splitter; read by who has locked the bucket.
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
        // Acquire: pairs with the Releases in `split`: who sees a bucket at all finds its keys, and who sees the new depth
        // of the old one finds the new one.
        self.depth.load(Ordering::Acquire)
    }

    pub(super) fn find<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        self.cells.iter().find_map(|cell| cell.find(hash, key, guard))
    }
}
