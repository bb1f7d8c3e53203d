//! A cell of the index: a tagged pointer to a slot, and the index's own reference to it.
//!
//! This module does not know buckets. The writers of a cell hold its bucket's lock.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crossbeam::epoch::Guard;

use super::{Slot, SlotHandle, SlotRef};
use crate::tables::sync::{AtomicPtr, Ordering};

/// The bits of a hash from here on stand in a cell beside the pointer: user-space pointers have 48 bits.
const CELL_HASH_SHIFT: u32 = 48;

/// A cell of a bucket, for one slot: the pointer, and 16 bits of the key's hash, which spare most look-ups of a wrong
/// slot.
///
/// Written under its bucket's lock, read by all threads without it.
pub(in crate::tables) struct SlotCell(AtomicPtr<Slot>);

impl SlotCell {
    pub(in crate::tables) fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The bits of a hash that a cell keeps, where the hash has them.
    fn kept(hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "pointers have 64 bits on every target of this crate")]
        let bits = (hash >> CELL_HASH_SHIFT << CELL_HASH_SHIFT) as usize;
        bits
    }

    fn load(&self) -> *mut Slot {
        // Acquire: pairs with the Release of `put` and `copy_to`, so the slot's header and key are visible. It also
        // pairs with the Release of `clear` and `hand_over`, so a reader that misses the slot here sees the bucket's
        // new depth.
        self.0.load(Ordering::Acquire)
    }

    fn reference<'g>(tagged: *mut Slot) -> Option<SlotRef<'g>> {
        let slot = tagged.map_addr(|address| address & ((1 << CELL_HASH_SHIFT) - 1));
        NonNull::new(slot).map(|slot| SlotRef { slot, _guard: PhantomData })
    }

    fn agrees(tagged: *mut Slot, hash: u64) -> bool {
        tagged.addr() >> CELL_HASH_SHIFT == Self::kept(hash) >> CELL_HASH_SHIFT
    }

    /// Whether the cell's bits of a hash are those of `hash`. An empty cell's are 0.
    #[inline]
    pub(in crate::tables) fn may_show(&self, hash: u64) -> bool {
        Self::agrees(self.load(), hash)
    }

    /// The slot in this cell, if its hash agrees with `hash` in the bits that a cell keeps.
    #[inline]
    pub(in crate::tables) fn candidate<'g>(&self, hash: u64, _guard: &'g Guard) -> Option<SlotRef<'g>> {
        let tagged = self.load();
        if Self::agrees(tagged, hash) { Self::reference(tagged) } else { None }
    }

    /// The slot in this cell, if it is the slot of `key`.
    #[inline]
    pub(in crate::tables) fn find<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        self.candidate(hash, guard).filter(|slot| slot.is_of(key))
    }

    /// The slot in this cell.
    pub(in crate::tables) fn get<'g>(&self, _guard: &'g Guard) -> Option<SlotRef<'g>> {
        Self::reference(self.load())
    }

    /// The first 16 bits of the slot's hash. The others are 0.
    pub(in crate::tables) fn hash_bits(&self) -> u64 {
        (self.load().addr() >> CELL_HASH_SHIFT << CELL_HASH_SHIFT) as u64
    }

    pub(in crate::tables) fn is_empty(&self) -> bool {
        self.load().is_null()
    }

    /// Puts a slot here. The index takes over the handle's reference. The old slot's reference is released after the
    /// epoch.
    pub(in crate::tables) fn put(&self, hash: u64, slot: SlotHandle, guard: &Guard) {
        let address = slot.0.as_ptr();
        std::mem::forget(slot);
        assert!(address.addr() >> CELL_HASH_SHIFT == 0, "user-space pointers have 48 bits");
        let tagged = address.map_addr(|address| address | Self::kept(hash));
        // Release: pairs with the Acquire of `load`. Acquire: pairs with the Release that stored the old slot.
        let before = self.0.swap(tagged, Ordering::AcqRel);
        Self::release(before, guard);
    }

    /// Puts another slot of the same key in the place of the present one, whose reference is released after the epoch.
    pub(in crate::tables) fn exchange(&self, slot: SlotHandle, guard: &Guard) {
        self.put(self.hash_bits(), slot, guard);
    }

    /// Empties the cell. The index's reference is released after the epoch.
    pub(in crate::tables) fn clear(&self, guard: &Guard) {
        // Release: pairs with the Acquire of `load`. Acquire: pairs with the Release that stored the old slot.
        let before = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        Self::release(before, guard);
    }

    fn release(tagged: *mut Slot, guard: &Guard) {
        if let Some(slot) = Self::reference(tagged) {
            let handle = SlotHandle(slot.slot);
            // SAFETY: this is the index's own reference, which the swap took out of the only cell that held it. A
            // handle is Send, so the closure may run on any thread.
            unsafe { guard.defer_unchecked(move || drop(handle)) }
        }
    }

    /// First half of a move to another cell: the other cell shows the slot as well.
    pub(in crate::tables) fn copy_to(&self, other: &Self) {
        // Release: pairs with the Acquire of `load`. The reference moves with `hand_over`.
        other.0.store(self.load(), Ordering::Release);
    }

    /// Second half: this cell forgets the slot, and the other cell owns the reference. Or the other way round: a copy
    /// forgets it, and nothing has moved.
    pub(in crate::tables) fn hand_over(&self) {
        // Release: pairs with the Acquire of `load`.
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}

impl Drop for SlotCell {
    fn drop(&mut self) {
        if let Some(slot) = Self::reference(self.load()) {
            drop(SlotHandle(slot.slot));
        }
    }
}
