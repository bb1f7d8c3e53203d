//! Single slots of an index leave it, or another slot of the key takes their place, under the lock of their bucket.
//!
//! This module inserts no slot of a new key.

use std::sync::atomic::Ordering;

use crossbeam::epoch::Guard;

use super::Index;
use super::bucket::Bucket;
use crate::tables::failpoint::{Failpoint, reach};
use crate::tables::slot::{SlotCell, SlotHandle, SlotRef};

impl Index {
    /// Takes `slot` out, if the index still shows it for its key.
    pub(in crate::tables) fn leave(&self, hash: u64, slot: SlotRef<'_>, guard: &Guard) {
        let view = self.segments.view(guard);
        let (_, bucket, _locked) = self.lock(hash, &view);
        if let Some(cell) = self.shows(bucket, slot, guard) {
            cell.clear(guard);
        }
    }

    /// Shows the slot of the same key that `make` returns in the place of `slot`, if the index still shows that one, and
    /// `is_open` holds under the bucket's lock. Returns the new one.
    pub(in crate::tables) fn exchange<'g>(
        &self,
        hash: u64,
        slot: SlotRef<'_>,
        guard: &'g Guard,
        is_open: impl FnOnce() -> bool,
        make: impl FnOnce() -> Option<SlotHandle>,
    ) -> Option<SlotRef<'g>> {
        let view = self.segments.view(guard);
        let (_, bucket, _locked) = self.lock(hash, &view);
        let cell = self.shows(bucket, slot, guard).filter(|_| is_open())?;
        let next = make()?;
        reach(Failpoint::MovedOut);
        cell.exchange(next, guard);
        cell.get(guard)
    }

    /// The cell that shows this slot. The bucket's lock is held.
    fn shows<'v>(&'v self, bucket: &'v Bucket, slot: SlotRef<'_>, guard: &'v Guard) -> Option<&'v SlotCell> {
        self.cells(bucket, guard).find(|cell| cell.get(guard).is_some_and(|here| here.address() == slot.address()))
    }

    /// Offers each slot of bucket `number` to `make`, under the bucket's lock. If `make` returns another slot of the
    /// same key, that one takes its place. A bucket that is just being split off is left out.
    pub(in crate::tables) fn renew<'g>(
        &self,
        number: u32,
        guard: &'g Guard,
        mut make: impl FnMut(SlotRef<'g>) -> Option<SlotHandle>,
    ) {
        let view = self.segments.view(guard);
        let Some(bucket) = view.bucket_at(number) else { return };
        let _locked = bucket.lock.lock();
        // Acquire: pairs with the Release in `split`. Before that, the cells of another bucket show the same slots.
        if !bucket.ready.load(Ordering::Acquire) {
            return;
        }
        for cell in self.cells(bucket, guard) {
            if let Some(slot) = cell.get(guard).and_then(&mut make) {
                cell.exchange(slot, guard);
            }
        }
    }
}
