//! A counted reference to a slot: how a slot is made, kept and freed.
//!
//! This module does not interpret the word of a slot.

use std::alloc;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::deadline::{DeadlinePart, free_extension};
use super::entry::{Entry, EntryBox, NEVER, free_entry};
use super::key::{LENGTH_APART, key_of, key_offset, length_bytes};
use super::{
    ABSENT, Announced, EXTENDED, IN_ORDER, LENGTH_BITS, LONG, REFERENCE, SLOT_HEADER_BYTES, SeenWord, Slot, SlotRef,
    TABLE_NUMBERS, numbered,
};
use crate::limits::KEY_BYTES_MAX;
use crate::tables::sync::{AtomicPtr, AtomicU32, Ordering, fence};

/// A counted reference: keeps the slot's memory without a guard.
pub(in crate::tables) struct SlotHandle(pub(super) NonNull<Slot>);

// SAFETY: all memory that a handle reaches is atomic or immutable, and the count is atomic.
unsafe impl Send for SlotHandle {}
// SAFETY: as above.
unsafe impl Sync for SlotHandle {}

impl SlotHandle {
    /// Makes a slot that no other thread knows yet: live with `entry`, and announced up to the version before it. If
    /// the entry has a deadline, the slot has a deadline part.
    ///
    /// # Panics
    /// If the key or the table's number is out of its range. The protocols check the key, the registry limits the
    /// number.
    pub(in crate::tables) fn new(table: u32, key: &[u8], entry: EntryBox) -> Self {
        assert!(key.len() <= KEY_BYTES_MAX && table < TABLE_NUMBERS, "checked at the border");
        let (version, has_deadline) = (entry.version(), entry.deadline() != NEVER);
        debug_assert!(version > 0, "versions start at 1");
        let announced = Announced::new((!entry.is_quiet()).then(|| version - 1));
        Self::make(key, entry.into_raw(), announced, has_deadline.then(|| DeadlinePart::new(table)))
    }

    /// Makes a slot with this entry, announced up to this version.
    pub(super) fn make(key: &[u8], entry: *mut Entry, announced: Announced, part: Option<DeadlinePart>) -> Self {
        let is_long = part.is_some();
        let layout = Slot::layout(key.len(), is_long);
        #[expect(clippy::cast_possible_truncation, reason = "a key has at most 4,096 bytes")]
        let (length, long_length) = (key.len().min(LENGTH_APART) as u32, key.len() as u16);
        let flags = if is_long { LONG } else { 0 } | if announced.0.is_some() { IN_ORDER } else { 0 };
        let slot = Slot {
            word: AtomicPtr::new(entry),
            announced_and_length: AtomicU32::new(announced.0.unwrap_or(0) << LENGTH_BITS | length),
            references: AtomicU32::new(REFERENCE | flags),
        };
        // SAFETY: the layout has room for the header, for the part if there is one, for the length of a long key, and for
        // the key. The part is aligned behind the header, and the length behind either. No other thread has the pointer
        // yet.
        unsafe {
            let Some(memory) = NonNull::new(alloc::alloc(layout).cast::<Slot>()) else {
                alloc::handle_alloc_error(layout);
            };
            #[cfg(test)]
            super::entry::count::SLOTS.fetch_add(1, Ordering::Relaxed);
            memory.write(slot);
            if let Some(part) = part {
                memory.byte_add(SLOT_HEADER_BYTES).cast().write(part);
            }
            let start = memory.as_ptr().cast::<u8>().add(key_offset(is_long));
            let apart = length_bytes(key.len());
            if apart > 0 {
                start.cast::<u16>().write(long_length);
            }
            ptr::copy_nonoverlapping(key.as_ptr(), start.add(apart), key.len());
            Self(memory)
        }
    }

    /// Frees a slot that no other thread knows, but not its entry, which belongs to another slot.
    pub(super) fn disown(self) {
        // Relaxed: no other thread knows the slot.
        self.slot().header().word.store(numbered(0, ABSENT), Ordering::Relaxed);
    }

    /// The entry of a live slot that no other thread knows.
    pub(super) fn into_entry(self) -> EntryBox {
        // Relaxed: no other thread knows the slot.
        let raw = self.slot().header().word.load(Ordering::Relaxed);
        self.disown();
        EntryBox(NonNull::new(raw).unwrap_or_else(|| unreachable!("it was made with an entry")))
    }

    /// The slot, for as long as this handle is borrowed.
    pub(in crate::tables) fn slot(&self) -> SlotRef<'_> {
        SlotRef { slot: self.0, _guard: PhantomData }
    }
}

impl Drop for SlotHandle {
    fn drop(&mut self) {
        // SAFETY: the handle's own reference keeps the slot until this decrement.
        let references = unsafe { &self.0.as_ref().references };
        // Release: pairs with the Acquire fence below. This thread's accesses come before the slot is freed.
        if references.fetch_sub(REFERENCE, Ordering::Release) / REFERENCE != 1 {
            return;
        }
        // Acquire: pairs with the Release of all other decrements.
        fence(Ordering::Acquire);
        // SAFETY: this was the last reference. The index releases its own one epoch after the unlinking, so no guard
        // still shows the slot. A live entry belongs to the slot and is freed with it.
        unsafe { free_slot(self.0) }
    }
}

/// Frees a slot, and the entry in it if there is one.
///
/// # Safety
/// The last reference is gone.
unsafe fn free_slot(slot: NonNull<Slot>) {
    // SAFETY: the caller holds the last reference, so no other thread reaches the slot, and its parts can be read and
    // freed.
    unsafe {
        let (length, is_long) = (key_of(slot).len(), slot.as_ref().is_long());
        // Relaxed: the Acquire fence in `drop` orders these loads.
        let raw = slot.as_ref().word.load(Ordering::Relaxed);
        let flags = slot.as_ref().references.load(Ordering::Relaxed);
        let last = SeenWord { raw, _guard: PhantomData };
        if let Some(entry) = last.entry() {
            free_entry(entry.entry);
        }
        if flags & EXTENDED != 0 {
            free_extension(slot.addr().get());
        }
        #[cfg(test)]
        super::entry::count::SLOTS.fetch_sub(1, Ordering::Relaxed);
        if is_long {
            ptr::drop_in_place(slot.byte_add(SLOT_HEADER_BYTES).cast::<DeadlinePart>().as_ptr());
        }
        ptr::drop_in_place(slot.as_ptr());
        alloc::dealloc(slot.as_ptr().cast(), Slot::layout(length, is_long));
    }
}

impl fmt::Debug for SlotHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotHandle({:p})", self.0)
    }
}
