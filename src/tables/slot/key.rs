//! The key of a slot: where its bytes are, and how many.
//!
//! ```text
//! length          7 bits    before the key       bytes of the slot
//! 0–126           length    –                    header, [deadline part], key
//! 127–4,096       127       length (2 bytes)     header, [deadline part], length, key
//! ```
//! So a slot with a usual key has no byte for the others, and whoever reads the key finds its length in the header.
//!
//! This module does not interpret the word of a slot.

use std::ptr::NonNull;

use super::deadline::DEADLINE_BYTES;
use super::{LENGTH_MASK, SLOT_HEADER_BYTES, Slot, SlotRef};
use crate::limits::{KEY_BYTES_DEFAULT, KEY_BYTES_MAX};
use crate::tables::sync::Ordering;

/// The length of the shortest key that has its length before it. In place of a length: the key is one of these.
pub(super) const LENGTH_APART: usize = LENGTH_MASK as usize;

const _: () = assert!(KEY_BYTES_DEFAULT < LENGTH_APART && KEY_BYTES_MAX <= u16::MAX as usize);

/// Where the key begins.
pub(super) const fn key_offset(is_long: bool) -> usize {
    SLOT_HEADER_BYTES + if is_long { DEADLINE_BYTES } else { 0 }
}

/// Bytes of the length before a key of this length.
pub(super) const fn length_bytes(key_bytes: usize) -> usize {
    if key_bytes < LENGTH_APART { 0 } else { size_of::<u16>() }
}

/// Bytes of a slot with a key of this length, made for an element with or without a deadline.
pub(in crate::tables) const fn bytes_of_slot(key_bytes: usize, has_deadline: bool) -> usize {
    key_offset(has_deadline) + length_bytes(key_bytes) + key_bytes
}

/// The key of a slot.
///
/// # Safety
/// `SlotHandle::make` has made the slot, and its memory stays for the lifetime 'a.
#[inline]
pub(super) unsafe fn key_of<'a>(slot: NonNull<Slot>) -> &'a [u8] {
    // SAFETY: the caller keeps the slot. `make` wrote as many bytes behind the header, or the deadline part, as the
    // length says, and before a long key its length. That is aligned there, as header and part have even sizes.
    unsafe {
        let (offset, length) = (key_offset(slot.as_ref().is_long()), slot.as_ref().short_length());
        let start = slot.as_ptr().cast::<u8>().add(offset);
        if length == LENGTH_APART {
            let length = usize::from(start.cast::<u16>().read());
            return std::slice::from_raw_parts(start.add(size_of::<u16>()), length);
        }
        std::slice::from_raw_parts(start, length)
    }
}

/// Whether two keys are the same.
///
/// The comparison of slices calls `memcmp`, whose one load of 32 bytes reaches behind a short key. If the key ends a
/// cache line, that load waits for the next line, which has not been fetched: a sixth of the time of a GET.
#[inline]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let (a_words, b_words) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    a.len() == b.len()
        && match (a.last_chunk::<8>(), b.last_chunk::<8>()) {
            // The last word may overlap the one before it.
            (Some(a_last), Some(b_last)) => a_last == b_last && a_words.iter().zip(b_words).all(|(a, b)| a == b),
            _ => a.iter().zip(b).all(|(a, b)| a == b),
        }
}

impl Slot {
    /// The length of the key, or [`LENGTH_APART`].
    fn short_length(&self) -> usize {
        // Relaxed: the length is fixed when the slot is made.
        (self.announced_and_length.load(Ordering::Relaxed) & LENGTH_MASK) as usize
    }
}

impl<'g> SlotRef<'g> {
    pub(in crate::tables) fn key(&self) -> &'g [u8] {
        // SAFETY: the thread that made this reference held a guard of lifetime 'g, or a handle that outlives 'g. Both
        // keep the slot's memory. `SlotHandle::make` wrote the key before the slot was published.
        unsafe { key_of(self.slot) }
    }

    /// Whether it is the slot of this key.
    #[inline]
    pub(in crate::tables) fn is_of(&self, key: &[u8]) -> bool {
        is_same(self.key(), key)
    }

    /// The bytes of the slot, its key included, and an extension not.
    pub(in crate::tables) fn bytes(&self) -> usize {
        bytes_of_slot(self.key().len(), self.header().is_long())
    }
}
