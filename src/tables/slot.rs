//! The slot: one element's place, its versioned entries, and the CAS that changes it.
//!
//! All `unsafe` of the tables is in this file, `slot/entry.rs`, `slot/handle.rs`, `slot/cell.rs` and `slot/arc_cell.rs`. They know
//! nothing of tables, threads, queues or time, and never wait.
//!
//! # Memory
//!
//! ```text
//! Slot (counted, found through the index)                     Entry (immutable once published)
//! +0   word       AtomicPtr  ── live ──────────────────────►  +0  version:60 | length bits 21..25:4
//! +8   armed      AtomicU64  when the wheel looks next        +8  deadline:43 | length bits 0..21:21
//! +16  announced  AtomicU32  written by the publisher         +16 the value
//! +20  references AtomicU32
//! +24  timer      AtomicU32  touched by the expiry thread
//! +28  table:24 | key length:8
//! +32  the key
//! ```
//! A 16-byte key makes a slot of 48 bytes, a 64-byte value an entry of 80.
//!
//! # The word
//!
//! ```text
//!                 replace                    replace
//!             ┌────────────┐             ┌────────────┐
//!  create ──► Live(v,…)  ──┘   vacate ──► Absent(v)  ─┘──► Live(v+1,…)
//!               │   │ mark                  │
//!               │   ▼                       │ seal: v+1, announced as the last of this slot
//!               │  Expired(v,…) ── vacate ─►│ retire: same v, when v has been announced
//!               │        │                  ▼
//!               └────────┴──── seal ──────► Dead(v)     nothing leaves this state
//!
//!  low bits   000 Live: the pointer   100 Expired: the pointer, marked   001 Absent: v<<3   010 Dead: v<<3   011 Moved: v<<3
//! ```
//! The compactor may move a Live element without a deadline, all of whose changes have been announced, to another slot of the
//! key: the word becomes Moved(v), which nothing leaves either, and the entry is the other slot's. It holds the lock of the
//! key's bucket until the index shows the other slot: a thread that finds Moved looks there again, behind that lock.
//!
//! Who finds by its own clock that a deadline has passed must make that visible before it says so: a reader marks, a
//! writer vacates. So an older reading of the clock cannot bring back, or extend, what somebody has called expired.
//!
//! # Lifetime
//!
//! A slot is counted: the index holds one reference, and each [`SlotHandle`] (in a change, a due message, a wheel
//! record) one. The index gives its own back only after the epoch in which the slot was unlinked has passed, so a
//! [`SlotRef`] taken under a guard is good until the guard goes. Entries are freed one epoch after they were replaced.

#![allow(unsafe_code, reason = "here, and in the four files below, is where the tables manage memory by hand")]

mod arc_cell;
mod cell;
mod entry;
mod handle;
#[cfg(all(test, feature = "models"))]
mod model;

use std::alloc::Layout;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use crossbeam::epoch::Guard;

use super::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
pub(super) use arc_cell::ArcCell;
pub(super) use cell::SlotCell;
#[cfg(test)]
pub(super) use entry::count;
pub(super) use entry::{ENTRY_HEADER_BYTES, EntryBox, EntryRef, NEVER};
use entry::{Entry, VERSION_BITS, free_entry};
pub(super) use handle::SlotHandle;

use crate::limits::KEY_BYTES_MAX;

/// Table numbers are below this: 24 bits of the slot.
pub(super) const TABLE_NUMBERS: u32 = 1 << 24;
/// What a slot takes besides its key, in bytes.
pub(super) const SLOT_HEADER_BYTES: usize = offset_of!(Slot, table_and_length) + 4;

const ABSENT: usize = 0b001;
const DEAD: usize = 0b010;
const MOVED: usize = 0b011;
const MARK: usize = 0b100;
const TAG: usize = 0b111;
const TAG_BITS: u32 = 3;

/// Set in `armed` while a due message of the slot is on its way to the expiry thread.
const QUEUED: u64 = 1 << 63;
/// In `timer`: the wheel holds no record of the slot.
const NO_TIMER: u32 = u32::MAX;

const _: () = assert!(KEY_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(align_of::<Entry>() > TAG);
#[cfg(not(all(test, feature = "models")))]
const _: () = assert!(SLOT_HEADER_BYTES == 32);

/// One element's place. The key's bytes follow the header in the same allocation.
#[repr(C)]
struct Slot {
    /// Written by whoever changes the element, by CAS; read by everybody.
    word: AtomicPtr<Entry>,
    /// The deadline at which the wheel looks at this slot, and [`QUEUED`]. Lowered by writers, raised by the expiry
    /// thread, both by CAS.
    armed: AtomicU64,
    /// Low bits of the last version that was announced. Written by the publisher; read by it and the reaper.
    announced: AtomicU32,
    /// The index's reference and one for each handle.
    references: AtomicU32,
    /// The wheel record. Only the expiry thread reads and writes it.
    timer: AtomicU32,
    /// Fixed when the slot is made.
    table_and_length: u32,
}

impl Slot {
    fn layout(key_bytes: usize) -> Layout {
        let bytes = size_of::<Slot>().max(SLOT_HEADER_BYTES + key_bytes);
        Layout::from_size_align(bytes, align_of::<Slot>())
            .unwrap_or_else(|_| unreachable!("a key has at most 64 bytes"))
    }
}

/// What the word says.
#[derive(Clone, Copy)]
pub(super) enum SlotState<'g> {
    /// An element; whether its deadline has passed is for the caller's clock to say.
    Live(EntryRef<'g>),
    /// An element that somebody has seen expire.
    Expired(EntryRef<'g>),
    /// No element; the version of the deletion.
    Absent(u64),
    /// No element, and never again in this slot; its last version.
    Dead(u64),
    /// The element is in another slot of the key since this version, and never again in this one.
    Moved(u64),
}

/// A word as it was loaded: what a CAS expects.
#[derive(Clone, Copy)]
pub(super) struct SeenWord<'g> {
    raw: *mut Entry,
    _guard: PhantomData<&'g Guard>,
}

impl<'g> SeenWord<'g> {
    pub(super) fn state(&self) -> SlotState<'g> {
        let address = self.raw.addr();
        let number = (address >> TAG_BITS) as u64;
        match address & TAG {
            ABSENT => SlotState::Absent(number),
            DEAD => SlotState::Dead(number),
            MOVED => SlotState::Moved(number),
            tag => {
                let entry = self.raw.map_addr(|address| address & !TAG);
                // SAFETY: tags other than ABSENT, DEAD and MOVED are set on pointers that came from an EntryBox.
                let entry = EntryRef { entry: unsafe { NonNull::new_unchecked(entry) }, _guard: PhantomData };
                if tag & MARK == 0 { SlotState::Live(entry) } else { SlotState::Expired(entry) }
            }
        }
    }

    /// The version of the last committed change.
    pub(super) fn version(&self) -> u64 {
        match self.state() {
            SlotState::Live(entry) | SlotState::Expired(entry) => entry.version(),
            SlotState::Absent(version) | SlotState::Dead(version) | SlotState::Moved(version) => version,
        }
    }

    fn entry(&self) -> Option<EntryRef<'g>> {
        match self.state() {
            SlotState::Live(entry) | SlotState::Expired(entry) => Some(entry),
            SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => None,
        }
    }
}

fn numbered(version: u64, tag: usize) -> *mut Entry {
    assert!(version < 1 << VERSION_BITS, "versions of one server fit 60 bits");
    #[expect(clippy::cast_possible_truncation, reason = "pointers have 64 bits on every target of this crate")]
    let number = version as usize;
    ptr::without_provenance_mut(number << TAG_BITS | tag)
}

const _: () = assert!(usize::BITS == 64 && VERSION_BITS + TAG_BITS <= 64);

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Has the processor fetch the lines of the first `bytes` bytes from this address. A hint: it reads nothing, and cannot fail.
#[inline]
fn prefetch_bytes(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..address.addr() % LINE_BYTES + bytes).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching never faults, whatever the address; nothing is read. Each step is within another line.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(offset).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}

/// Has the processor fetch all of it.
#[inline]
pub(super) fn prefetch<T>(place: &T) {
    prefetch_bytes(ptr::from_ref(place).cast(), size_of::<T>());
}

/// A slot seen under a guard, good while the guard lives.
#[derive(Clone, Copy)]
pub(super) struct SlotRef<'g> {
    slot: NonNull<Slot>,
    _guard: PhantomData<&'g Guard>,
}

impl<'g> SlotRef<'g> {
    fn header(&self) -> &'g Slot {
        // SAFETY: whoever made this reference held a guard of lifetime 'g or a handle that outlives it; both keep the
        // slot's memory.
        unsafe { self.slot.as_ref() }
    }

    pub(super) fn key(&self) -> &'g [u8] {
        let length = (self.header().table_and_length & 0xff) as usize;
        // SAFETY: `length` bytes follow the header in the same allocation, written once before it was published.
        unsafe { std::slice::from_raw_parts(self.slot.as_ptr().cast::<u8>().add(SLOT_HEADER_BYTES), length) }
    }

    /// The number of the table that it belongs to.
    pub(super) fn table(&self) -> u32 {
        self.header().table_and_length >> 8
    }

    /// Where it is; equal for equal slots, and not reused while a handle lives.
    pub(super) fn address(&self) -> usize {
        self.slot.as_ptr().addr()
    }

    /// Loads the word.
    pub(super) fn load(&self, _guard: &'g Guard) -> SeenWord<'g> {
        // Acquire: pairs with the Release of `exchange`: the entry and its value are visible.
        SeenWord { raw: self.header().word.load(Ordering::Acquire), _guard: PhantomData }
    }

    /// Has the processor fetch the slot, as much of it as one with a key of 16 bytes has.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_bytes(self.slot.as_ptr().cast(), SLOT_HEADER_BYTES + 16);
    }

    /// Has the processor fetch the entry, its header and the beginning of its value.
    #[inline]
    pub(super) fn prefetch_entry(&self, guard: &'g Guard) {
        if let Some(entry) = self.load(guard).entry() {
            prefetch_bytes(entry.entry.as_ptr().cast(), ENTRY_HEADER_BYTES + LINE_BYTES);
        }
    }

    fn exchange(&self, seen: SeenWord<'g>, next: *mut Entry) -> bool {
        // Release: publishes the entry to `load`. Acquire: who replaces an entry reads it afterwards (its size, its value).
        // Relaxed on failure: the caller loads again.
        self.header().word.compare_exchange(seen.raw, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn retire_entry(seen: SeenWord<'g>, guard: &'g Guard) {
        if let Some(old) = seen.entry() {
            let entry = old.entry;
            // SAFETY: the CAS that replaced it has just been won by this thread alone, so it is retired once; readers
            // that still see it hold a guard older than the deferred call.
            unsafe { guard.defer_unchecked(move || free_entry(entry)) }
        }
    }

    /// Live, Expired or Absent → Live with `entry`.
    ///
    /// # Errors
    /// The entry comes back if the word has changed since `seen`.
    pub(super) fn replace(&self, seen: SeenWord<'g>, entry: EntryBox, guard: &'g Guard) -> Result<(), EntryBox> {
        debug_assert!(!matches!(seen.state(), SlotState::Dead(_) | SlotState::Moved(_)), "nothing leaves these");
        let raw = entry.into_raw();
        if self.exchange(seen, raw) {
            Self::retire_entry(seen, guard);
            return Ok(());
        }
        // SAFETY: the CAS failed, so the entry was not published; it was forgotten by `into_raw` just above.
        Err(EntryBox(unsafe { NonNull::new_unchecked(raw) }))
    }

    /// Live → Expired: makes visible that a reader has seen the deadline pass. True if this call did it.
    pub(super) fn mark(&self, seen: SeenWord<'g>) -> bool {
        debug_assert!(matches!(seen.state(), SlotState::Live(_)), "only what is live can be marked");
        self.exchange(seen, seen.raw.map_addr(|address| address | MARK))
    }

    /// Live or Expired → Absent with `version`. True if this call did it.
    pub(super) fn vacate(&self, seen: SeenWord<'g>, version: u64, guard: &'g Guard) -> bool {
        self.leave(seen, numbered(version, ABSENT), guard)
    }

    /// Live, announced, without a deadline → Moved: the element goes on in the slot that this gives, which the caller puts in the
    /// place of this one before it lets go of the bucket's lock. `None`: it stays here.
    pub(super) fn move_out(&self, seen: SeenWord<'g>) -> Option<SlotHandle> {
        let SlotState::Live(entry) = seen.state() else { return None };
        let version = entry.version();
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what is announced")]
        let is_announced = self.announced() == version as u32;
        if !is_announced || entry.deadline() != NEVER || self.armed() != Some(NEVER) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "as above")]
        let next = SlotHandle::make(self.table(), self.key(), entry.entry.as_ptr(), version as u32);
        if self.exchange(seen, numbered(version, MOVED)) {
            return Some(next);
        }
        next.disown();
        None
    }

    /// Anything but Dead → Dead with `version`. True if this call did it.
    pub(super) fn kill(&self, seen: SeenWord<'g>, version: u64, guard: &'g Guard) -> bool {
        debug_assert!(!matches!(seen.state(), SlotState::Dead(_) | SlotState::Moved(_)), "nothing leaves these");
        self.leave(seen, numbered(version, DEAD), guard)
    }

    fn leave(&self, seen: SeenWord<'g>, next: *mut Entry, guard: &'g Guard) -> bool {
        let won = self.exchange(seen, next);
        if won {
            Self::retire_entry(seen, guard);
        }
        won
    }

    /// Counts one more reference.
    pub(super) fn handle(&self) -> SlotHandle {
        // Relaxed: the count cannot be zero here (a guard or a handle keeps it), so there is nothing to order.
        let before = self.header().references.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0 && before < u32::MAX / 2, "slot references are bounded by the change credits");
        SlotHandle(self.slot)
    }

    /// Low bits of the last version that was announced.
    pub(super) fn announced(&self) -> u32 {
        // Acquire: pairs with the Release of `set_announced`.
        self.header().announced.load(Ordering::Acquire)
    }

    /// The publisher has announced `version` (low bits).
    pub(super) fn set_announced(&self, version: u32) {
        // Release: pairs with the Acquire of `announced`: who reads it also sees what the publisher did before.
        self.header().announced.store(version, Ordering::Release);
    }

    /// Writers: the element has a deadline now; `true` means that the expiry thread must be told.
    ///
    /// Called after the CAS that set `deadline`. Races with [`SlotRef::rearm`]: the writer changes the word, then reads
    /// `armed`; the expiry thread changes `armed`, then reads the word; each has a SeqCst fence between its two steps.
    /// If the writer's fence comes first, the expiry thread's read of the word sees this deadline; if the expiry
    /// thread's fence comes first, the writer sees the raised value and lowers it.
    pub(super) fn arm(&self, deadline: u64) -> bool {
        // SeqCst fence: pairs with the one in `rearm`.
        fence(Ordering::SeqCst);
        let armed = &self.header().armed;
        // Relaxed: the fences order what matters, and the due message that follows carries the rest.
        let mut now = armed.load(Ordering::Relaxed);
        while (now & !QUEUED) > deadline {
            match armed.compare_exchange_weak(now, deadline | QUEUED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(before) => return before & QUEUED == 0,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Expiry thread: the due message has come; when to look at the slot. The caller files no record of a slot that is
    /// dead, for which it looks after this: see [`SlotRef::is_armed`].
    pub(super) fn take_due(&self) -> u64 {
        // Relaxed: the message itself came through a queue that orders.
        let armed = self.header().armed.fetch_and(!QUEUED, Ordering::Relaxed) & !QUEUED;
        // SeqCst fence: pairs with the one in `is_armed`.
        fence(Ordering::SeqCst);
        armed
    }

    /// Expiry thread: the wheel will look at `deadline` ([`NEVER`]: not at all) instead of `before`; false if a writer
    /// has lowered it meanwhile, and its due message is on the way. The caller reads the word afterwards.
    pub(super) fn rearm(&self, before: u64, deadline: u64) -> bool {
        let raised =
            self.header().armed.compare_exchange(before, deadline, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // SeqCst fence: pairs with the ones in `arm` and `is_armed`.
        fence(Ordering::SeqCst);
        raised
    }

    /// Expiry thread: when the wheel is to look at the slot; `None` while a due message is on its way.
    pub(super) fn armed(&self) -> Option<u64> {
        // Relaxed: `rearm` fails if it has changed meanwhile.
        let armed = self.header().armed.load(Ordering::Relaxed);
        (armed & QUEUED == 0).then_some(armed)
    }

    /// Whether nothing will ever happen in this slot again: it is Dead or Moved.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.header().word.load(Ordering::Acquire).addr() & TAG, DEAD | MOVED)
    }

    /// Reaper and compactor, of a dead slot: whether the wheel holds a record of it, or may come to hold one.
    ///
    /// Races with the expiry thread, which files a record after it has found the slot armed (`take_due`; a writer may do
    /// that when the slot has long died, for it arms after it has committed) or has armed it itself (`rearm`), and then
    /// not dead. The slot died before this call. Each has a SeqCst fence between its two steps. If the expiry thread's
    /// fence comes first, the slot is seen armed here, and the record is cancelled; if this one comes first, the expiry
    /// thread sees the slot dead, and files nothing.
    pub(super) fn is_armed(&self) -> bool {
        debug_assert!(self.is_dead(), "asked about dead slots");
        // SeqCst fence: pairs with the ones in `take_due` and `rearm`.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order what matters.
        self.header().armed.load(Ordering::Relaxed) != NEVER
    }

    /// Expiry thread: the wheel record, if there is one.
    pub(super) fn timer(&self) -> Option<u32> {
        // Relaxed: only the expiry thread reads and writes it.
        let timer = self.header().timer.load(Ordering::Relaxed);
        (timer != NO_TIMER).then_some(timer)
    }

    /// Expiry thread: the wheel record has changed.
    pub(super) fn set_timer(&self, timer: Option<u32>) {
        // Relaxed: only the expiry thread reads and writes it.
        self.header().timer.store(timer.unwrap_or(NO_TIMER), Ordering::Relaxed);
    }
}
