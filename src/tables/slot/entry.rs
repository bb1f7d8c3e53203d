//! An entry: one value with its version and deadline, in one allocation, immutable once published.
//!
//! This module does not know slots.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crossbeam::epoch::Guard;

use super::free_list;
use crate::limits::VALUE_BYTES_MAX;

/// A deadline that never passes. Deadlines are milliseconds since the server started and have 43 bits.
pub(in crate::tables) const NEVER: u64 = (1 << DEADLINE_BITS) - 1;
/// Bytes of an entry without its value.
pub(in crate::tables) const ENTRY_HEADER_BYTES: usize = size_of::<Entry>();
/// Bits of a version: see `tables/version.rs`.
pub(in crate::tables) const VERSION_BITS: u32 = 64 - LENGTH_HIGH_BITS - 2;

const DEADLINE_BITS: u32 = 43;
const LENGTH_LOW_BITS: u32 = 64 - DEADLINE_BITS;
const LENGTH_HIGH_BITS: u32 = 4;
/// In `version_and_length`: the entry is quiet.
const QUIET: u64 = 1 << LENGTH_HIGH_BITS;
/// In `version_and_length`: the value is that of an earlier version, which stands behind it.
const TOUCHED: u64 = QUIET << 1;
/// Bytes of that version.
const TOUCHED_BYTES: usize = size_of::<u64>();

const _: () = assert!(VALUE_BYTES_MAX < 1 << (LENGTH_LOW_BITS + LENGTH_HIGH_BITS));
const _: () = assert!(ENTRY_HEADER_BYTES == 16 && align_of::<Entry>() == 8);

/// The header of an entry. The value's bytes follow it in the same allocation.
#[repr(C, align(8))]
pub(super) struct Entry {
    version_and_length: u64,
    deadline_and_length: u64,
}

impl Entry {
    fn pack(version: u64, deadline: u64, length: usize) -> Self {
        assert!(version < 1 << VERSION_BITS, "versions of one server fit 58 bits");
        debug_assert!(deadline <= NEVER, "deadlines fit 43 bits");
        let length = length as u64;
        Self {
            version_and_length: version << (LENGTH_HIGH_BITS + 2) | length >> LENGTH_LOW_BITS,
            deadline_and_length: deadline << LENGTH_LOW_BITS | length & ((1 << LENGTH_LOW_BITS) - 1),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version_and_length >> (LENGTH_HIGH_BITS + 2)
    }

    fn is_touched(&self) -> bool {
        self.version_and_length & TOUCHED != 0
    }

    fn is_quiet(&self) -> bool {
        self.version_and_length & QUIET != 0
    }

    fn deadline(&self) -> u64 {
        self.deadline_and_length >> LENGTH_LOW_BITS
    }

    fn length(&self) -> usize {
        let high = self.version_and_length & ((1 << LENGTH_HIGH_BITS) - 1);
        let low = self.deadline_and_length & ((1 << LENGTH_LOW_BITS) - 1);
        #[expect(clippy::cast_possible_truncation, reason = "25 bits, and it came from a usize")]
        let length = (high << LENGTH_LOW_BITS | low) as usize;
        length
    }

    fn layout(length: usize, is_touched: bool) -> Layout {
        free_list::layout(ENTRY_HEADER_BYTES + length + if is_touched { TOUCHED_BYTES } else { 0 })
    }
}

/// Frees an entry.
///
/// # Safety
/// `entry` came from [`EntryBox::new`], no other thread can reach it any more, and it is freed once.
pub(super) unsafe fn free_entry(entry: NonNull<Entry>) {
    // SAFETY: the caller owns the entry. Its header holds the length of its allocation.
    unsafe {
        let layout = Entry::layout(entry.as_ref().length(), entry.as_ref().is_touched());
        #[cfg(test)]
        count::ENTRIES.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        free_list::free(entry.cast(), layout);
    }
}

/// An entry that is not published yet. Its maker owns it.
pub(in crate::tables) struct EntryBox(pub(super) NonNull<Entry>);

impl EntryBox {
    /// Copies `value`. [`EntryBox::stamp`] sets version and deadline.
    pub(in crate::tables) fn new(value: &[u8]) -> Self {
        Self::with(value, None)
    }

    /// The entry of an element that keeps its value, which came with this version.
    pub(in crate::tables) fn touched(value: &[u8], of_value: u64) -> Self {
        Self::with(value, Some(of_value))
    }

    /// The same value, of the same version.
    pub(in crate::tables) fn copy(entry: EntryRef<'_>) -> Self {
        Self::with(entry.value(), entry.is_touched().then(|| entry.version_of_value()))
    }

    /// Bytes of the value.
    pub(in crate::tables) fn value_bytes(&self) -> usize {
        // SAFETY: the entry is not published, so the box alone refers to it.
        unsafe { self.0.as_ref() }.length()
    }

    /// Whether the value came with an earlier version.
    pub(in crate::tables) fn is_touched(&self) -> bool {
        // SAFETY: the entry is not published, so the box alone refers to it.
        unsafe { self.0.as_ref() }.is_touched()
    }

    /// Bytes of the entry.
    pub(in crate::tables) fn bytes(&self) -> usize {
        // SAFETY: as above.
        let entry = unsafe { self.0.as_ref() };
        Entry::layout(entry.length(), entry.is_touched()).size()
    }

    fn with(value: &[u8], of_value: Option<u64>) -> Self {
        let layout = Entry::layout(value.len(), of_value.is_some());
        let entry = free_list::allocate(layout).cast::<Entry>();
        // SAFETY: header and value fit the layout, and no other thread has the pointer yet.
        unsafe {
            #[cfg(test)]
            count::ENTRIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            entry.write(Entry::pack(0, NEVER, value.len()));
            let bytes = entry.as_ptr().cast::<u8>().add(ENTRY_HEADER_BYTES);
            ptr::copy_nonoverlapping(value.as_ptr(), bytes, value.len());
            if let Some(of_value) = of_value {
                (*entry.as_ptr()).version_and_length |= TOUCHED;
                let of_value = of_value.to_le_bytes();
                ptr::copy_nonoverlapping(of_value.as_ptr(), bytes.add(value.len()), TOUCHED_BYTES);
            }
            Self(entry)
        }
    }

    /// Sets version and deadline. The writer calls it again for each attempt, until its CAS succeeds.
    pub(in crate::tables) fn stamp(&mut self, version: u64, deadline: u64) {
        // SAFETY: the entry is not published, so `self` is the only reference to it.
        let entry = unsafe { self.0.as_mut() };
        let touched = entry.version_and_length & TOUCHED;
        *entry = Entry::pack(version, deadline, entry.length());
        entry.version_and_length |= touched;
    }

    /// Makes the entry quiet: it is stored while there is no audience, and no change of it is pushed. Called after
    /// [`EntryBox::stamp`], which makes it one whose change is pushed.
    pub(in crate::tables) fn make_quiet(&mut self) {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }.version_and_length |= QUIET;
    }

    pub(super) fn is_quiet(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.is_quiet()
    }

    pub(in crate::tables) fn version(&self) -> u64 {
        // SAFETY: `new` initialised the header, and the entry is not published, so the box alone refers to it.
        unsafe { self.0.as_ref() }.version()
    }

    pub(in crate::tables) fn deadline(&self) -> u64 {
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.deadline()
    }

    pub(super) fn into_raw(self) -> *mut Entry {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }
}

impl Drop for EntryBox {
    fn drop(&mut self) {
        // SAFETY: a box that is dropped was never published, since `into_raw` forgets it.
        unsafe { free_entry(self.0) }
    }
}

/// A published entry, valid while the guard lives.
#[derive(Clone, Copy)]
pub(in crate::tables) struct EntryRef<'g> {
    pub(super) entry: NonNull<Entry>,
    pub(super) _guard: PhantomData<&'g Guard>,
}

impl<'g> EntryRef<'g> {
    fn header(&self) -> &'g Entry {
        // SAFETY: a published entry is immutable, and it is freed one epoch after a CAS replaced it, or one epoch after
        // its slot was unlinked. The guard of lifetime 'g was pinned before this entry was loaded.
        unsafe { self.entry.as_ref() }
    }

    /// The entry's address.
    pub(in crate::tables) fn address(&self) -> usize {
        self.entry.as_ptr().addr()
    }

    pub(in crate::tables) fn version(&self) -> u64 {
        self.header().version()
    }

    /// Milliseconds since the server started. [`NEVER`]: the entry has no deadline.
    pub(in crate::tables) fn deadline(&self) -> u64 {
        self.header().deadline()
    }

    /// Whether no change of it is pushed ([`EntryBox::make_quiet`]).
    pub(in crate::tables) fn is_quiet(&self) -> bool {
        self.header().is_quiet()
    }

    pub(in crate::tables) fn value(&self) -> &'g [u8] {
        let length = self.header().length();
        // SAFETY: `length` bytes follow the header in the same allocation. `EntryBox::new` initialised them, and they
        // are immutable.
        unsafe { std::slice::from_raw_parts(self.entry.as_ptr().cast::<u8>().add(ENTRY_HEADER_BYTES), length) }
    }
}

impl EntryRef<'_> {
    /// The version that brought the value: an earlier one if the element was touched since.
    pub(in crate::tables) fn version_of_value(&self) -> u64 {
        if !self.header().is_touched() {
            return self.version();
        }
        let mut bytes = [0; TOUCHED_BYTES];
        // SAFETY: a touched entry has these bytes behind its value, in the same allocation. `EntryBox::with` initialised
        // them, and they are immutable.
        unsafe {
            let behind = self.entry.as_ptr().cast::<u8>().add(ENTRY_HEADER_BYTES + self.header().length());
            ptr::copy_nonoverlapping(behind, bytes.as_mut_ptr(), TOUCHED_BYTES);
        }
        u64::from_le_bytes(bytes)
    }

    /// Whether the value came with an earlier version.
    pub(in crate::tables) fn is_touched(&self) -> bool {
        self.header().is_touched()
    }

    /// Bytes of the entry.
    pub(in crate::tables) fn bytes(&self) -> usize {
        ENTRY_HEADER_BYTES + self.value().len() + if self.is_touched() { TOUCHED_BYTES } else { 0 }
    }
}

/// Counts of the allocated entries and slots of this process, unpublished and retired ones included.
#[cfg(test)]
pub(in crate::tables) mod count {
    use std::sync::atomic::AtomicI64;

    /// Written where entries are allocated and freed. A test that reads it has a process of its own.
    pub(in crate::tables) static ENTRIES: AtomicI64 = AtomicI64::new(0);
    /// The same for slots.
    pub(in crate::tables) static SLOTS: AtomicI64 = AtomicI64::new(0);
}

#[cfg(all(test, not(feature = "models")))]
mod tests {
    use super::*;

    #[test]
    fn version_deadline_and_length_share_two_words_without_touching_each_other() {
        let versions = [0, 1, (1 << VERSION_BITS) - 1];
        let deadlines = [0, 1, NEVER - 1, NEVER];
        let lengths = [0, 1, (1 << LENGTH_LOW_BITS) - 1, 1 << LENGTH_LOW_BITS, VALUE_BYTES_MAX];
        for version in versions {
            for deadline in deadlines {
                for length in lengths {
                    let mut entry = Entry::pack(version, deadline, length);
                    for quiet in [false, true] {
                        assert_eq!((entry.version(), entry.deadline(), entry.length()), (version, deadline, length));
                        assert_eq!(entry.is_quiet(), quiet);
                        entry.version_and_length |= QUIET;
                    }
                }
            }
        }
    }

    #[test]
    fn an_entry_that_is_never_published_frees_itself() {
        let mut entry = EntryBox::new(b"value");
        entry.stamp(7, 8);
        drop(entry);
    }

    #[test]
    fn an_entry_takes_its_header_and_its_value() {
        assert_eq!([0, 1, 64].map(|length| Entry::layout(length, false).size()), [16, 24, 80]);
        assert_eq!([0, 1, 64].map(|length| Entry::layout(length, true).size()), [24, 32, 88]);
        assert_eq!((NEVER, VERSION_BITS), ((1 << 43) - 1, 58));
    }
}
