//! The deadline part of a slot: what the wheel needs of an element that has, or had, a deadline.
//!
//! ```text
//! DeadlinePart
//! +0   armed   AtomicU64   the wheel's next look
//! +8   timer   AtomicU32   the wheel record, used by the expiry thread only
//! +12  table   u32         the number of the table
//! ```
//! Most elements have no deadline, and their slots have no such part. A slot that is made for an element with a
//! deadline has it behind its header. A slot whose element gets a deadline later has an *extension*: a part of its own,
//! found by the address of the slot in a map of the process. A writer makes it before it arms the slot, and the last
//! reference to the slot frees it. A slot without a part has never been armed.
//!
//! This module does not interpret the word of a slot, and knows no wheel.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;

use super::entry::NEVER;
use super::{EXTENDED, LONG, SETTLED, SLOT_HEADER_BYTES, SlotRef};
use crate::allocator::size_class;
#[cfg(not(all(test, feature = "models")))]
use crate::lock::{Mutex, MutexGuard};
use crate::tables::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a deadline part.
pub(super) const DEADLINE_BYTES: usize = size_of::<DeadlinePart>();
/// Bytes of an extension: the part, and its share of a map that is between half full and full.
pub(in crate::tables) const EXTENSION_BYTES: i64 = (size_class(16) + (16 + 1) * 3 / 2) as i64;

/// Set in `armed` while a due message of the slot is on its way to the expiry thread.
const QUEUED: u64 = 1 << 63;
/// In `timer`: the wheel has no record of the slot.
const NO_TIMER: u32 = u32::MAX;
/// Maps of extensions, so that writers seldom wait for each other.
#[cfg(not(all(test, feature = "models")))]
const SHARDS: usize = 64;
/// Slots differ in their addresses above these bits.
#[cfg(not(all(test, feature = "models")))]
const SHARD_SHIFT: u32 = 5;

const _: () = assert!(align_of::<DeadlinePart>() <= align_of::<super::Slot>());

/// What the wheel needs of a slot.
#[repr(C)]
pub(super) struct DeadlinePart {
    /// The deadline at which the wheel looks at this slot, and [`QUEUED`]. Lowered by writers, raised by the expiry
    /// thread, both by CAS.
    armed: AtomicU64,
    /// The wheel record. Read and written by the expiry thread only.
    timer: AtomicU32,
    /// The number of the slot's table. Fixed when the part is made.
    table: u32,
}

impl DeadlinePart {
    pub(super) fn new(table: u32) -> Self {
        Self { armed: AtomicU64::new(NEVER), timer: AtomicU32::new(NO_TIMER), table }
    }
}

// ------------------------------------------------------------------------------------------------------- extensions

/// A part in memory of its own, which belongs to the map.
struct Extension(NonNull<DeadlinePart>);

// SAFETY: a part is atomic or immutable, and its memory belongs to no thread.
unsafe impl Send for Extension {}

/// Addresses of slots differ in their middle bits. A multiplication takes these to the top, where the map looks.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("addresses hash through write_usize");
    }

    fn write_usize(&mut self, address: usize) {
        let mixed = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// Extensions, by the addresses of their slots.
type Extensions = HashMap<usize, Extension, BuildHasherDefault<AddressHasher>>;

/// The extensions of all slots of the process. Written by writers and by the thread that frees a slot, read also by the
/// expiry thread, the reaper and the compactor. The lock is held for one step of the map, never while a thread waits.
#[cfg(not(all(test, feature = "models")))]
static EXTENSIONS: [Mutex<Extensions>; SHARDS] =
    [const { Mutex::new(Extensions::with_hasher(BuildHasherDefault::new())) }; SHARDS];

#[cfg(not(all(test, feature = "models")))]
fn shard(address: usize) -> MutexGuard<'static, Extensions> {
    let [first, ..] = &EXTENSIONS;
    EXTENSIONS.get((address >> SHARD_SHIFT) % SHARDS).unwrap_or(first).lock()
}

#[cfg(all(test, feature = "models"))]
loom::lazy_static! {
    /// The same, behind a lock that a model sees.
    static ref EXTENSIONS: loom::sync::Mutex<Extensions> = loom::sync::Mutex::new(Extensions::default());
}

#[cfg(all(test, feature = "models"))]
fn shard(_address: usize) -> loom::sync::MutexGuard<'static, Extensions> {
    EXTENSIONS.lock().unwrap_or_else(|_| unreachable!("a model that has panicked is over"))
}

/// Frees the extension of a slot.
///
/// # Safety
/// The last reference to the slot of this address is gone, and its memory is not freed yet.
pub(super) unsafe fn free_extension(address: usize) {
    let mut extensions = shard(address);
    let extension = extensions.remove(&address);
    // A map keeps its size otherwise, and the memory budget has a share of it for each extension.
    if extensions.len() < extensions.capacity() / 4 {
        let room = 2 * extensions.len();
        extensions.shrink_to(room);
    }
    drop(extensions);
    if let Some(Extension(part)) = extension {
        // SAFETY: the part came from `Box::into_raw`, and was taken out of the map once. The caller holds the last
        // reference to the slot, so no other thread can reach the part.
        drop(unsafe { Box::from_raw(part.as_ptr()) });
    }
}

// ---------------------------------------------------------------------------------------------------------- the slot

impl<'g> SlotRef<'g> {
    /// Whether the slot has a deadline part.
    pub(in crate::tables) fn has_deadline_part(&self) -> bool {
        // Relaxed: `deadline_part` reads the flags again.
        self.header().references.load(Ordering::Relaxed) & (LONG | EXTENDED) != 0
    }

    /// Writer: gives the slot a deadline part if it has none. The caller then arms it. True: the caller charges
    /// [`EXTENSION_BYTES`].
    ///
    /// Two writers may come here at once. The map decides whose part is used, and the first one to set the flag
    /// charges. [`SlotRef::settle`] has the race with the end of the slot.
    pub(in crate::tables) fn extend(&self, table: u32) -> bool {
        if self.has_deadline_part() {
            return false;
        }
        let mut extensions = shard(self.address());
        extensions.entry(self.address()).or_insert_with(|| {
            let part = Box::new(DeadlinePart::new(table));
            Extension(NonNull::from(Box::leak(part)))
        });
        drop(extensions);
        // Release: pairs with the Acquire of `deadline_part`. A thread that sees the flag finds the part in the map.
        let before = self.header().references.fetch_or(EXTENDED, Ordering::Release);
        before & (EXTENDED | SETTLED) == 0
    }

    /// The deadline part. `None`: the slot has never been armed.
    fn deadline_part(&self) -> Option<&'g DeadlinePart> {
        // Acquire: pairs with the Release of `extend`.
        let flags = self.header().references.load(Ordering::Acquire);
        if flags & LONG != 0 {
            // SAFETY: `SlotHandle::make` wrote the part behind the header of a slot with this flag. It is atomic or
            // immutable, and lives as long as the slot.
            return Some(unsafe { self.slot.byte_add(SLOT_HEADER_BYTES).cast().as_ref() });
        }
        if flags & EXTENDED == 0 {
            return None;
        }
        let part = shard(self.address()).get(&self.address()).map(|extension| extension.0);
        // SAFETY: a part stays in the map, at its address, until `free_slot`, which runs after the lifetime 'g of each
        // reference to the slot.
        part.map(|part| unsafe { part.as_ref() })
    }

    /// The deadline part of a slot that was armed.
    fn armed_part(&self) -> &'g DeadlinePart {
        self.deadline_part().unwrap_or_else(|| unreachable!("a writer extends a slot before it arms it"))
    }

    /// The number of the table of a slot that was armed.
    pub(in crate::tables) fn table(&self) -> u32 {
        self.armed_part().table
    }

    /// Writer: the element has a deadline now. True: the caller sends the expiry thread a due message.
    ///
    /// The writer calls this after the CAS that set `deadline`, and after [`SlotRef::extend`]. The call races with
    /// [`SlotRef::rearm`]. The writer changes the word, then reads `armed`; the expiry thread changes `armed`, then reads
    /// the word; each has a SeqCst fence between its two steps. If the writer's fence comes first, the expiry thread's
    /// read of the word sees this deadline. If the expiry thread's fence comes first, the writer sees the raised value
    /// and lowers it.
    ///
    /// Each writer that lowers `armed` sends a message of its own, also while one of another writer is on its way: that
    /// writer's deadline is later, so its message may not have woken the thread. `take_due` returns the lowest deadline
    /// for the first of several messages, and the others change nothing.
    pub(in crate::tables) fn arm(&self, deadline: u64) -> bool {
        // SeqCst fence: pairs with the fence in `rearm`.
        fence(Ordering::SeqCst);
        let armed = &self.armed_part().armed;
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
    pub(in crate::tables) fn take_due(&self) -> u64 {
        // Relaxed: the message came through a channel, which orders the accesses.
        let armed = self.armed_part().armed.fetch_and(!QUEUED, Ordering::Relaxed) & !QUEUED;
        // SeqCst fence: pairs with the fence in `is_armed`.
        fence(Ordering::SeqCst);
        armed
    }

    /// Expiry thread: the wheel looks at `deadline` ([`NEVER`]: not at all) instead of `before`. False: a writer has
    /// lowered `armed` in the meantime, and its due message is on the way. The caller reads the word afterwards: see
    /// [`SlotRef::arm`].
    pub(in crate::tables) fn rearm(&self, before: u64, deadline: u64) -> bool {
        let raised =
            self.armed_part().armed.compare_exchange(before, deadline, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // SeqCst fence: pairs with the fences in `arm` and `is_armed`.
        fence(Ordering::SeqCst);
        raised
    }

    /// The deadline at which the wheel looks at the slot. `None` while a due message is on the way.
    pub(in crate::tables) fn armed(&self) -> Option<u64> {
        // Relaxed: `rearm` fails if the value has changed in the meantime.
        let armed = self.deadline_part().map_or(NEVER, |part| part.armed.load(Ordering::Relaxed));
        (armed & QUEUED == 0).then_some(armed)
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
    pub(in crate::tables) fn is_armed(&self) -> bool {
        debug_assert!(self.is_dead(), "asked about dead slots");
        // SeqCst fence: pairs with the fences in `take_due` and `rearm`.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order this load against the word. The flag of an extension is set before the due message
        // is sent, so the same fences order it: if the expiry thread's comes first, this call sees the part.
        self.deadline_part().is_some_and(|part| part.armed.load(Ordering::Relaxed) != NEVER)
    }

    /// Expiry thread: the wheel record, if there is one.
    pub(in crate::tables) fn timer(&self) -> Option<u32> {
        // Relaxed: the expiry thread alone reads and writes it.
        let timer = self.armed_part().timer.load(Ordering::Relaxed);
        (timer != NO_TIMER).then_some(timer)
    }

    /// Expiry thread: stores the wheel record.
    pub(in crate::tables) fn set_timer(&self, timer: Option<u32>) {
        // Relaxed: the expiry thread alone reads and writes it.
        self.armed_part().timer.store(timer.unwrap_or(NO_TIMER), Ordering::Relaxed);
    }
}
