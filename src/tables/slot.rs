//! The slot: the place of one element, its versioned entries, and the CAS that changes it.
//!
//! All `unsafe` code of the tables is in this file, `slot/entry.rs`, `slot/handle.rs`, `slot/key.rs`, `slot/deadline.rs`,
//! `slot/free_list.rs`, `slot/cell.rs`, `slot/arc_cell.rs` and `slot/ring.rs`. These files know no tables, threads,
//! queues or time, and they never wait, but for the lock of the extensions.
//!
//! # Memory
//!
//! ```text
//! Slot (counted, found through the index)                     Entry (immutable once published)
//! +0   word       AtomicPtr  ── live ──────────────────────►  +0  version:58 | touched:1 | quiet:1 | length bits 21..25:4
//! +8   announced:25 | key length:7   by the publisher         +8  deadline:43 | length bits 0..21:21
//! +12  references:25 | flags:7                                +16 the value
//! +16  the key, or first the deadline part (16 bytes), of a
//!      slot that was made for an element with a deadline
//! ```
//! A key of 127 bytes or more has its length before it (`slot/key.rs`).
//!
//! A slot with a 16-byte key has 32 bytes, or 48 if it was made with a deadline; an entry with a 64-byte value has 80.
//! The deadline part (`slot/deadline.rs`) is what the wheel needs. A slot that was made without one, whose element gets
//! a deadline later, has its part elsewhere.
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
//!  low bits   000 Live: the pointer     001 Absent: v<<4   010 Dead: v<<4
//!             100 Expired: the pointer, marked             011 Moved: v<<4
//! ```
//! In Absent, the bit above these says whether the deletion was quiet, as an entry says it of itself: it was committed
//! while there was no audience, and is not announced (`tables/announce/audience.rs`).
//!
//! # Races
//!
//! Each transition is one CAS on the word. So of two threads that saw the same word the first wins, and the second
//! looks again.
//!
//! - **A retirement and a new value.** The publisher retires an Absent slot while a writer stores in it. If the
//!   retirement comes first, the writer finds Dead and inserts a new slot. If the store comes first, the retirement
//!   fails and the slot lives on.
//! - **A passed deadline and a writer with an older clock.** A thread whose clock says that a deadline has passed makes
//!   this visible before it answers: a reader marks the word, a writer vacates the slot. If the mark comes first, the
//!   writer's CAS fails, and the writer finds Expired. If the writer's CAS comes first, the mark fails, and the reader
//!   judges the new entry. So a thread with an older reading of the clock cannot extend or bring back an element that
//!   another thread has called expired.
//! - **A move and a writer.** The compactor may move a Live element without a deadline, whose last change has been
//!   announced or was quiet, to another slot of the key: the word becomes Moved(v), and the entry then belongs to the other slot.
//!   The compactor holds the lock of the key's bucket until the index shows the other slot. If the move comes first,
//!   the writer finds Moved and looks the key up again under that lock. If the writer's CAS comes first, the move fails
//!   and the element stays. No transition leaves Moved.
//!
//! # Lifetime
//!
//! A slot is counted: the index holds one reference, and each [`SlotHandle`] (in a due message, a wheel record, a change)
//! holds one. The index releases its reference only after the epoch in which the slot was unlinked has passed, so a [`SlotRef`] taken under a guard is
//! valid until the guard is dropped. Entries are freed one epoch after they were replaced.

#![allow(unsafe_code, reason = "here, and in the eight files below, is where the tables manage memory by hand")]

mod announced;
mod arc_cell;
mod cell;
mod deadline;
mod entry;
mod free_list;
mod handle;
mod key;
#[cfg(all(test, feature = "models"))]
mod model;
mod moving;
mod recency;
mod ring;
#[cfg(all(test, not(feature = "models")))]
mod tests;

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crossbeam::epoch::Guard;

use super::limits::CHANGES_MAX;
use super::sync::{AtomicPtr, AtomicU32, Ordering};
use crate::limits::DUES_MAX;
pub(super) use announced::Announced;
pub(super) use arc_cell::ArcCell;
pub(super) use cell::SlotCell;
pub(super) use deadline::EXTENSION_BYTES;
pub(super) use entry::VERSION_BITS;
#[cfg(test)]
pub(super) use entry::count;
pub(super) use entry::{ENTRY_HEADER_BYTES, EntryBox, EntryRef, NEVER};
use entry::{Entry, free_entry};
pub(super) use free_list::give_back as give_back_memory;
pub(super) use handle::SlotHandle;
pub(super) use key::bytes_of_slot;
pub(super) use ring::{Ring, RingReader, RingWriter};

/// Table numbers are below this: they take 23 bits of a change.
pub(super) const TABLE_NUMBERS: u32 = 1 << 23;
/// Bytes of a slot without its key and without a deadline part.
pub(super) const SLOT_HEADER_BYTES: usize = size_of::<Slot>();

const ABSENT: usize = 0b001;
const DEAD: usize = 0b010;
const MOVED: usize = 0b011;
const MARK: usize = 0b100;
const TAG: usize = 0b111;
const TAG_BITS: u32 = 3;
/// In Absent: the deletion was quiet.
const QUIET: usize = 1 << TAG_BITS;
const NUMBER_SHIFT: u32 = TAG_BITS + 1;

/// Low bits of a version that a slot keeps as announced: of one slot, fewer changes than two to this power are on the
/// way to the publisher at a time ([`CHANGES_MAX`]). They count only while the slot is [`IN_ORDER`], since any number of
/// quiet changes may come behind the announced one.
const ANNOUNCED_BITS: u32 = 25;
/// Those of them that count. In tests they are fewer, so that they come round in a test too. No test has as many changes
/// of one slot on the way.
const ANNOUNCED_MASK: u32 = (1 << if cfg!(test) { 12 } else { ANNOUNCED_BITS }) - 1;
/// After so many versions the bits are the same.
#[cfg(test)]
pub(super) const ANNOUNCED_ROUND: u64 = ANNOUNCED_MASK as u64 + 1;
const LENGTH_BITS: u32 = 32 - ANNOUNCED_BITS;
const LENGTH_MASK: u32 = (1 << LENGTH_BITS) - 1;

/// In `references`: the deadline part follows the header.
const LONG: u32 = 0b001;
/// In `references`: the deadline part is an extension, elsewhere.
const EXTENDED: u32 = 0b010;
/// In `references`: the memory of the slot is no longer charged, and no extension of it is charged from now on.
const SETTLED: u32 = 0b100;
/// In `references`: the version that stands as announced counts. Each change behind it is on its way. Set by the
/// publisher, cleared by a writer whose quiet change follows one that was not quiet (see [`SlotRef::replace`]).
const IN_ORDER: u32 = 0b1000;
/// In `references`: the slot is dead, and its last change has been announced. Set by the publisher.
const ENDED: u32 = 0b1_0000;
/// In `references`: the element was used since the hand of the eviction last came by. Set by readers and writers, cleared by
/// the reaper.
const USED: u32 = 0b10_0000;
/// In `references`: the element was used before that. Set and cleared by the reaper.
const KEPT: u32 = 0b100_0000;
/// In `references`: one reference.
const REFERENCE: u32 = 0b1000_0000;
/// The most references of a slot, with room for those that are taken while one thread finds too many.
const REFERENCES_MAX: u32 = u32::MAX / REFERENCE / 4 * 3;

// Each change on its way has a reference. The index, the wheel and due messages have a few.
const _: () = assert!(CHANGES_MAX < 1 << ANNOUNCED_BITS && CHANGES_MAX + DUES_MAX + 1024 < REFERENCES_MAX as usize);
const _: () = assert!(align_of::<Entry>() > TAG);
#[cfg(not(all(test, feature = "models")))]
const _: () = assert!(SLOT_HEADER_BYTES == 16 && deadline::DEADLINE_BYTES == 16);

/// The place of one element. A deadline part may follow in the same allocation, and the key's bytes follow in any case.
#[repr(C)]
struct Slot {
    /// Written by every thread that changes the element, by CAS. Read by all threads.
    word: AtomicPtr<Entry>,
    /// Low bits of the last version that was announced, and the length of the key, which is fixed when the slot is
    /// made. Written by the publisher, read by all threads.
    announced_and_length: AtomicU32,
    /// References: one for the index and one for each handle. Flags: [`LONG`] is fixed when the slot is made. Who sets the
    /// others stands at each. All change by atomic additions and bit operations, so no thread overwrites the flag of another.
    references: AtomicU32,
}

impl Slot {
    /// The layout of a slot with a key of this length, with or without a deadline part.
    fn layout(key_bytes: usize, is_long: bool) -> Layout {
        Layout::from_size_align(bytes_of_slot(key_bytes, is_long), align_of::<Slot>())
            .unwrap_or_else(|_| unreachable!("a key has at most 4,096 bytes"))
    }

    /// Whether the deadline part follows the header.
    fn is_long(&self) -> bool {
        // Relaxed: the flag is fixed when the slot is made.
        self.references.load(Ordering::Relaxed) & LONG != 0
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
        let number = (address >> NUMBER_SHIFT) as u64;
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

    /// Whether the last change was committed without an audience.
    pub(super) fn is_quiet(&self) -> bool {
        match self.entry() {
            Some(entry) => entry.is_quiet(),
            None => self.raw.addr() & (TAG | QUIET) == ABSENT | QUIET,
        }
    }

    /// Whether it has a value.
    pub(super) fn has_value(&self) -> bool {
        self.entry().is_some()
    }

    fn entry(&self) -> Option<EntryRef<'g>> {
        match self.state() {
            SlotState::Live(entry) | SlotState::Expired(entry) => Some(entry),
            SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => None,
        }
    }
}

fn numbered(version: u64, tag: usize) -> *mut Entry {
    assert!(version < 1 << VERSION_BITS, "versions of one server fit 58 bits");
    #[expect(clippy::cast_possible_truncation, reason = "pointers have 64 bits on every target of this crate")]
    let number = version as usize;
    ptr::without_provenance_mut(number << NUMBER_SHIFT | tag)
}

const _: () = assert!(usize::BITS == 64 && VERSION_BITS + NUMBER_SHIFT <= 64);

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

/// Asks the processor to fetch the cache lines of `bytes` bytes from this address, so that it can write to them. A hint,
/// as above.
#[inline]
fn prefetch_to_write(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..address.addr() % LINE_BYTES + bytes).step_by(LINE_BYTES) {
        let line = address.wrapping_add(offset);
        // SAFETY: as above. Processors without this instruction do nothing. The compiler makes a fetch to read of its own
        // function, unless it may assume such a processor.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
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

    /// The memory of the slot is no longer charged: it has left the index, or moved. Returns whether an extension was
    /// charged with it.
    ///
    /// A writer may extend the slot at the same time ([`SlotRef::extend`]). Each side sets its flag in `references`. If
    /// the writer comes first, this call returns true. If this call comes first, the writer charges nothing.
    pub(super) fn settle(&self) -> bool {
        // Relaxed: the two flags are in one word, and order nothing else.
        self.header().references.fetch_or(SETTLED, Ordering::Relaxed) & EXTENDED != 0
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

    /// Asks the processor to fetch the slot, as many bytes as a slot with a 16-byte key and no deadline has.
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
        let begins_silence = entry.is_quiet() && !seen.is_quiet();
        let raw = entry.into_raw();
        if self.exchange(seen, raw) {
            if begins_silence {
                self.fall_silent();
            }
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

    /// Live or Expired → Absent with `version`. True if this call changed the word. `is_quiet`: there is no audience.
    pub(super) fn vacate(&self, seen: SeenWord<'g>, version: u64, is_quiet: bool, guard: &'g Guard) -> bool {
        let begins_silence = is_quiet && !seen.is_quiet();
        let won = self.leave(seen, numbered(version, if is_quiet { ABSENT | QUIET } else { ABSENT }), guard);
        if won && begins_silence {
            self.fall_silent();
        }
        won
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
        let before = self.header().references.fetch_add(REFERENCE, Ordering::Relaxed) / REFERENCE;
        assert!(before > 0 && before < REFERENCES_MAX, "slot references are bounded by the change credits");
        SlotHandle(self.slot)
    }

    /// Whether the slot is Dead or Moved: no change happens in it any more.
    pub(super) fn is_dead(&self) -> bool {
        // Acquire: pairs with the Release of `exchange`.
        matches!(self.header().word.load(Ordering::Acquire).addr() & TAG, DEAD | MOVED)
    }
}
