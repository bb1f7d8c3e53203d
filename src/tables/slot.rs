//! The slot: the place of one element, its versioned entries, and the CAS that changes it.
//!
//! All `unsafe` code of the tables is in this file, `slot/entry.rs`, `slot/handle.rs`, `slot/cell.rs` and
//! `slot/arc_cell.rs`. These files know no tables, threads, queues or time, and they never wait.
//!
//! # Memory
//!
//! ```text
//! Slot (counted, found through the index)                     Entry (immutable once published)
//! +0   word       AtomicPtr  ── live ──────────────────────►  +0  version:60 | length bits 21..25:4
//! +8   armed      AtomicU64  the wheel's next look            +8  deadline:43 | length bits 0..21:21
//! +16  announced  AtomicU32  written by the publisher         +16 the value
//! +20  references AtomicU32
//! +24  timer      AtomicU32  used by the expiry thread only
//! +28  table:24 | key length:8
//! +32  the key
//! ```
//! A slot with a 16-byte key has 48 bytes, an entry with a 64-byte value has 80.
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
//!               └────────┴──── seal ──────► Dead(v)     no transition leaves this state
//!
//!  low bits   000 Live: the pointer     001 Absent: v<<3   010 Dead: v<<3
//!             100 Expired: the pointer, marked             011 Moved: v<<3
//! ```
//!
//! # Races
//!
//! Each transition is one CAS on the word, so of two threads that saw the same word one wins and the other looks again.
//!
//! - **A retirement and a new value.** The publisher retires an Absent slot while a writer stores in it. If the
//!   retirement comes first, the writer finds Dead and lets a new slot in. If the store comes first, the retirement
//!   fails and the slot lives on.
//! - **A passed deadline and a writer with an older clock.** A thread whose clock says that a deadline has passed makes
//!   this visible before it answers: a reader marks the word, a writer vacates the slot. If the mark comes first, the
//!   writer's CAS fails, and the writer finds Expired. If the writer's CAS comes first, the mark fails, and the reader
//!   judges the new entry. So a thread with an older reading of the clock cannot extend or bring back an element that
//!   another thread has called expired.
//! - **A move and a writer.** The compactor may move a Live element without a deadline, all of whose changes have been
//!   announced, to another slot of the key: the word becomes Moved(v), and the entry then belongs to the other slot.
//!   The compactor holds the lock of the key's bucket until the index shows the other slot. If the move comes first,
//!   the writer finds Moved and looks the key up again under that lock. If the writer's CAS comes first, the move fails
//!   and the element stays. No transition leaves Moved.
//!
//! # Lifetime
//!
//! A slot is counted: the index holds one reference, and each [`SlotHandle`] (in a change, a due message, a wheel
//! record) holds one. The index releases its reference only after the epoch in which the slot was unlinked has passed,
//! so a [`SlotRef`] taken under a guard is valid until the guard is dropped. Entries are freed one epoch after they
//! were replaced.

#![allow(unsafe_code, reason = "here, and in the five files below, is where the tables manage memory by hand")]

mod arc_cell;
mod cell;
mod entry;
mod handle;
#[cfg(all(test, feature = "models"))]
mod model;
mod ring;
#[cfg(all(test, not(feature = "models")))]
mod tests;

use std::alloc::Layout;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use crossbeam::epoch::Guard;

use super::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
pub(super) use arc_cell::ArcCell;
pub(super) use cell::SlotCell;
pub(super) use entry::VERSION_BITS;
#[cfg(test)]
pub(super) use entry::count;
pub(super) use entry::{ENTRY_HEADER_BYTES, EntryBox, EntryRef, NEVER};
use entry::{Entry, free_entry};
pub(super) use handle::SlotHandle;
pub(super) use ring::{Ring, RingReader, RingWriter};

use crate::limits::KEY_BYTES_MAX;

/// Table numbers are below this: they take 24 bits of the slot.
pub(super) const TABLE_NUMBERS: u32 = 1 << 24;
/// Bytes of a slot without its key.
pub(super) const SLOT_HEADER_BYTES: usize = offset_of!(Slot, table_and_length) + 4;

const ABSENT: usize = 0b001;
const DEAD: usize = 0b010;
const MOVED: usize = 0b011;
const MARK: usize = 0b100;
const TAG: usize = 0b111;
const TAG_BITS: u32 = 3;

/// Set in `armed` while a due message of the slot is on its way to the expiry thread.
const QUEUED: u64 = 1 << 63;
/// In `timer`: the wheel has no record of the slot.
const NO_TIMER: u32 = u32::MAX;

const _: () = assert!(KEY_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(align_of::<Entry>() > TAG);
#[cfg(not(all(test, feature = "models")))]
const _: () = assert!(SLOT_HEADER_BYTES == 32);

/// The place of one element. The key's bytes follow the header in the same allocation.
#[repr(C)]
struct Slot {
    /// Written by every thread that changes the element, by CAS. Read by all threads.
    word: AtomicPtr<Entry>,
    /// The deadline at which the wheel looks at this slot, and [`QUEUED`]. Lowered by writers, raised by the expiry
    /// thread, both by CAS.
    armed: AtomicU64,
    /// Low bits of the last version that was announced. Written by the publisher, read by it and the compactor.
    announced: AtomicU32,
    /// One for the index and one for each handle.
    references: AtomicU32,
    /// The wheel record. Read and written by the expiry thread only.
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

/// The state that a word encodes.
#[derive(Clone, Copy)]
pub(super) enum SlotState<'g> {
    /// An element. The caller compares its deadline with the clock.
    Live(EntryRef<'g>),
    /// An element whose deadline a thread has seen pass.
    Expired(EntryRef<'g>),
    /// No element. The version is the deletion's.
    Absent(u64),
    /// No element, and no change in this slot any more. The version is its last.
    Dead(u64),
    /// The element is in another slot of the key since this version. No change in this slot any more.
    Moved(u64),
}

/// A word as it was loaded: the value that a CAS expects.
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
                // SAFETY: `numbered` sets ABSENT, DEAD and MOVED; all other words are pointers from an EntryBox, plain
                // or with MARK.
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

/// Asks the processor to fetch the cache lines of the first `bytes` bytes from this address. A hint: it reads nothing
/// and cannot fail.
#[inline]
fn prefetch_bytes(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..address.addr() % LINE_BYTES + bytes).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction never faults at any address, and reads no memory. Each step is within another
        // line.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(offset).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}

/// Asks the processor to fetch all of `object`.
#[inline]
pub(super) fn prefetch<T>(object: &T) {
    prefetch_bytes(ptr::from_ref(object).cast(), size_of::<T>());
}

/// A slot seen under a guard, valid while the guard lives.
#[derive(Clone, Copy)]
pub(super) struct SlotRef<'g> {
    slot: NonNull<Slot>,
    _guard: PhantomData<&'g Guard>,
}

impl<'g> SlotRef<'g> {
    fn header(&self) -> &'g Slot {
        // SAFETY: the thread that made this reference held a guard of lifetime 'g, or a handle that outlives 'g. Both
        // keep the slot's memory.
        unsafe { self.slot.as_ref() }
    }

    pub(super) fn key(&self) -> &'g [u8] {
        let length = (self.header().table_and_length & 0xff) as usize;
        // SAFETY: `length` bytes follow the header in the same allocation. `SlotHandle::make` wrote them before the
        // slot was published.
        unsafe { std::slice::from_raw_parts(self.slot.as_ptr().cast::<u8>().add(SLOT_HEADER_BYTES), length) }
    }

    /// The bytes of the slot, its key included.
    pub(super) fn bytes(&self) -> usize {
        SLOT_HEADER_BYTES + self.key().len()
    }

    /// The number of the table to which the slot belongs.
    pub(super) fn table(&self) -> u32 {
        self.header().table_and_length >> 8
    }

    /// The slot's address: equal for equal slots, and not reused while a handle lives.
    pub(super) fn address(&self) -> usize {
        self.slot.as_ptr().addr()
    }

    /// Loads the word.
    pub(super) fn load(&self, _guard: &'g Guard) -> SeenWord<'g> {
        // Acquire: pairs with the Release of `exchange`. The entry and its value are visible.
        SeenWord { raw: self.header().word.load(Ordering::Acquire), _guard: PhantomData }
    }

    /// Asks the processor to fetch the slot, as many bytes as a slot with a 16-byte key has.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_bytes(self.slot.as_ptr().cast(), SLOT_HEADER_BYTES + 16);
    }

    /// Asks the processor to fetch the entry: its header and the beginning of its value.
    #[inline]
    pub(super) fn prefetch_entry(&self, guard: &'g Guard) {
        if let Some(entry) = self.load(guard).entry() {
            prefetch_bytes(entry.entry.as_ptr().cast(), ENTRY_HEADER_BYTES + LINE_BYTES);
        }
    }

    fn exchange(&self, seen: SeenWord<'g>, next: *mut Entry) -> bool {
        // Release: pairs with the Acquire of `load`, and publishes the entry. Acquire: pairs with the Release of the
        // exchange that published the replaced entry, whose size and value this thread reads afterwards. Relaxed on
        // failure: the caller loads again.
        self.header().word.compare_exchange(seen.raw, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn retire_entry(seen: SeenWord<'g>, guard: &'g Guard) {
        if let Some(old) = seen.entry() {
            let entry = old.entry;
            // SAFETY: this thread alone won the CAS that replaced the entry, so the entry is retired once. Readers that
            // still see it hold a guard older than the deferred call.
            unsafe { guard.defer_unchecked(move || free_entry(entry)) }
        }
    }

    /// Live, Expired or Absent → Live with `entry`.
    ///
    /// # Errors
    /// Returns the entry if the word has changed since `seen`.
    pub(super) fn replace(&self, seen: SeenWord<'g>, entry: EntryBox, guard: &'g Guard) -> Result<(), EntryBox> {
        debug_assert!(!matches!(seen.state(), SlotState::Dead(_) | SlotState::Moved(_)), "nothing leaves these");
        let raw = entry.into_raw();
        if self.exchange(seen, raw) {
            Self::retire_entry(seen, guard);
            return Ok(());
        }
        // SAFETY: the CAS failed, so the entry was not published, and `into_raw` just above forgot it: this thread owns
        // it.
        Err(EntryBox(unsafe { NonNull::new_unchecked(raw) }))
    }

    /// Live → Expired: makes visible that a reader has seen the deadline pass. False if the word has changed since
    /// `seen`. A word that is Expired already is not written.
    pub(super) fn mark(&self, seen: SeenWord<'g>) -> bool {
        debug_assert!(seen.entry().is_some(), "only an entry can be marked");
        seen.raw.addr() & MARK != 0 || self.exchange(seen, seen.raw.map_addr(|address| address | MARK))
    }

    /// Live or Expired → Absent with `version`. True if this call changed the word.
    pub(super) fn vacate(&self, seen: SeenWord<'g>, version: u64, guard: &'g Guard) -> bool {
        self.leave(seen, numbered(version, ABSENT), guard)
    }

    /// Live, announced, without a deadline → Moved. Returns the slot that the element continues in. The caller holds
    /// the bucket's lock, and replaces this slot by that one in the index before it unlocks. `None`: the element stays
    /// here.
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

    /// Live, Expired or Absent → Dead with `version`. True if this call changed the word.
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

    /// Takes one more reference.
    pub(super) fn handle(&self) -> SlotHandle {
        // Relaxed: a guard or a handle keeps the count above zero here, so there is no access to order.
        let before = self.header().references.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0 && before < u32::MAX / 2, "slot references are bounded by the change credits");
        SlotHandle(self.slot)
    }

    /// Low bits of the last version that was announced.
    pub(super) fn announced(&self) -> u32 {
        // Acquire: pairs with the Release of `set_announced`.
        self.header().announced.load(Ordering::Acquire)
    }

    /// Whether the publisher has announced `version`, as far as the low half of a version tells.
    pub(super) fn has_announced(self, version: u64) -> bool {
        version & u64::from(u32::MAX) == u64::from(self.announced())
    }

    /// Publisher: `version` (low bits) has been announced.
    pub(super) fn set_announced(&self, version: u32) {
        // Release: pairs with the Acquire of `announced`. A thread that reads the version also sees the publisher's
        // earlier writes.
        self.header().announced.store(version, Ordering::Release);
    }

    /// Writer: the element has a deadline now. True: the caller sends the expiry thread a due message.
    ///
    /// The writer calls this after the CAS that set `deadline`. The call races with [`SlotRef::rearm`]. The writer
    /// changes the word, then reads `armed`; the expiry thread changes `armed`, then reads the word; each has a SeqCst
    /// fence between its two steps. If the writer's fence comes first, the expiry thread's read of the word sees this
    /// deadline. If the expiry thread's fence comes first, the writer sees the raised value and lowers it.
    ///
    /// Each writer that lowers `armed` sends a message of its own, also while one of another writer is on its way: that
    /// writer's deadline is later, so its message may not have woken the thread. `take_due` returns the lowest deadline
    /// for the first of several messages, and the others change nothing.
    pub(super) fn arm(&self, deadline: u64) -> bool {
        // SeqCst fence: pairs with the fence in `rearm`.
        fence(Ordering::SeqCst);
        let armed = &self.header().armed;
        // Relaxed: the fences order this load against the word, and the channel of the due message orders all the rest.
        let mut now = armed.load(Ordering::Relaxed);
        while (now & !QUEUED) > deadline {
            match armed.compare_exchange_weak(now, deadline | QUEUED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Expiry thread: the due message has arrived. Returns the deadline at which the wheel looks at the slot. The
    /// caller then checks [`SlotRef::is_dead`], and files no record of a dead slot: see [`SlotRef::is_armed`].
    pub(super) fn take_due(&self) -> u64 {
        // Relaxed: the message came through a channel, which orders the accesses.
        let armed = self.header().armed.fetch_and(!QUEUED, Ordering::Relaxed) & !QUEUED;
        // SeqCst fence: pairs with the fence in `is_armed`.
        fence(Ordering::SeqCst);
        armed
    }

    /// Expiry thread: the wheel looks at `deadline` ([`NEVER`]: not at all) instead of `before`. False: a writer has
    /// lowered `armed` in the meantime, and its due message is on the way. The caller reads the word afterwards: see
    /// [`SlotRef::arm`].
    pub(super) fn rearm(&self, before: u64, deadline: u64) -> bool {
        let raised =
            self.header().armed.compare_exchange(before, deadline, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // SeqCst fence: pairs with the fences in `arm` and `is_armed`.
        fence(Ordering::SeqCst);
        raised
    }

    /// Expiry thread: the deadline at which the wheel looks at the slot. `None` while a due message is on the way.
    pub(super) fn armed(&self) -> Option<u64> {
        // Relaxed: `rearm` fails if the value has changed in the meantime.
        let armed = self.header().armed.load(Ordering::Relaxed);
        (armed & QUEUED == 0).then_some(armed)
    }

    /// Whether the slot is Dead or Moved: no change happens in it any more.
    pub(super) fn is_dead(&self) -> bool {
        // Acquire: pairs with the Release of `exchange`.
        matches!(self.header().word.load(Ordering::Acquire).addr() & TAG, DEAD | MOVED)
    }

    /// Reaper and compactor: whether the wheel has, or may get, a record of this dead slot. The caller then has the
    /// record cancelled.
    ///
    /// The call races with the expiry thread. The expiry thread finds the slot armed in `take_due`, or arms it in
    /// `rearm`; then it checks that the slot is not dead, and files a record. (`take_due` may run long after the slot
    /// has died, since writers arm after their commit.) The reaper or the compactor has seen the slot dead, then reads
    /// `armed` here. Each side has a SeqCst fence between its two steps. If the expiry thread's fence comes first, this
    /// call sees the slot armed, and the caller has the record cancelled. If this call's fence comes first, the expiry
    /// thread sees the slot dead and files no record.
    pub(super) fn is_armed(&self) -> bool {
        debug_assert!(self.is_dead(), "asked about dead slots");
        // SeqCst fence: pairs with the fences in `take_due` and `rearm`.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order this load against the word.
        self.header().armed.load(Ordering::Relaxed) != NEVER
    }

    /// Expiry thread: the wheel record, if there is one.
    pub(super) fn timer(&self) -> Option<u32> {
        // Relaxed: the expiry thread alone reads and writes it.
        let timer = self.header().timer.load(Ordering::Relaxed);
        (timer != NO_TIMER).then_some(timer)
    }

    /// Expiry thread: stores the wheel record.
    pub(super) fn set_timer(&self, timer: Option<u32>) {
        // Relaxed: the expiry thread alone reads and writes it.
        self.header().timer.store(timer.unwrap_or(NO_TIMER), Ordering::Relaxed);
    }
}
