//! A table: its index, whether it is open, and the totals of its elements.
//!
//! A table commits no change by itself: the operations are in `ops.rs`. It knows the older tables of its name that are
//! still being taken down. So a key is settled there before any change of the key happens here.
//!
//! ```text
//!  open ── close (DELETE_TABLE) ──► closed ── the reaper seals every slot, the publisher announces ──► settled
//!                                     │                                                                   │
//!             no new slot is inserted; elements may still change until their slots are sealed memory is given back
//! ```
//!
//! # Holds
//!
//! `unsettled` counts what keeps a table registered. It begins at one, the hold for the sealing of the table. It
//! reaches zero once, and stays there.
//!
//! | held by | for | released by |
//! |---|---|---|
//! | `Table::new` | the sealing of all slots | `Reaper::seal_some`, after the last bucket |
//! | `Ops::seal` | the last change of the slot | `Changes::announce` or `Changes::settle`, or `Ops::seal` if its CAS fails |
//! | `Changes::retire` | the dead slot in the index | `Reaper::retire_dead`, or `Changes::retire` if its CAS fails |

mod totals;

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use ahash::RandomState;
use crossbeam::epoch::{self, Guard};
use crossbeam::utils::CachePadded;

use super::durability::{Durability, TableDurability};
use super::eviction::TableEviction;
use super::failpoint::{Failpoint, reach};
use super::index::{Index, Inserted, Place};
use super::slot::{SlotHandle, SlotRef, SlotState};
use super::table_audience::TableAudience;
use super::version::TableVersions;
use crate::limits::LOOK_AHEAD;
use crate::lock::{Mutex, MutexGuard};
pub(super) use totals::ElementTotals;
use totals::TableTotals;

/// The stages of a table.
const OPEN: u8 = 0;
const CLOSED: u8 = 1;
/// It is closed, and another life of the table has taken its place.
const REPLACED: u8 = 2;

/// A table of the catalog, or one that is being taken down.
pub(super) struct Table {
    life: TableLife,
    pub(super) versions: TableVersions,
    announced_name: Box<[u8]>,
    history: Arc<NameHistory>,
    hasher: RandomState,
    index: Index,
    /// Left once, by the session that deletes or replaces the table. Read by every operation that finds no element.
    stage: AtomicU8,
    pub(super) durability: TableDurability,
    pub(super) audience: TableAudience,
    pub(super) eviction: TableEviction,
    /// The holds: raised and lowered by the functions that the page of this file lists.
    unsettled: CachePadded<AtomicU64>,
    totals: CachePadded<TableTotals>,
}

/// The number of a table, its life, and the first life of its line.
struct TableLife {
    number: u32,
    generation: u64,
    line: u64,
}

/// All tables of one name that are being taken down.
pub(super) struct NameHistory {
    closing: Mutex<Vec<Arc<Table>>>,
    /// The number of tables in `closing`. Written under the lock, read without it.
    count: AtomicUsize,
}

/// Bytes of an `Arc`: two counts, the padding that aligns the value, and the value.
const fn arc_bytes<T>() -> usize {
    (2 * size_of::<usize>()).next_multiple_of(align_of::<T>()) + size_of::<T>()
}

impl NameHistory {
    /// Its bytes, the counts of its `Arc` included.
    pub(super) const ALLOCATED_BYTES: usize = arc_bytes::<Self>();

    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { closing: Mutex::new(Vec::new()), count: AtomicUsize::new(0) })
    }

    fn closing(&self) -> MutexGuard<'_, Vec<Arc<Table>>> {
        self.closing.lock()
    }

    /// The number of tables of the name that are being taken down.
    ///
    /// A writer of a younger table asks this before it inserts a slot. It cannot miss an older table that still
    /// matters:
    ///
    /// - **The older table has entered.** `Catalog::delete` enters it before it releases the catalog's lock, and
    ///   `Catalog::create` makes the younger table under the same lock. So a thread that has the younger table sees the
    ///   count that `enter` stored, or a later one.
    /// - **The older table leaves meanwhile.** The reaper raises the version floor above all its slots before
    ///   `Catalog::forget` lets it leave. So a writer that reads the lower count here reads the raised floor
    ///   afterwards. A writer that reads the higher count finds dead slots, or no table under the lock, and the same
    ///   floor.
    pub(super) fn len(&self) -> usize {
        // Acquire: pairs with the Release in `enter` and `leave`.
        self.count.load(Ordering::Acquire)
    }

    fn enter(&self, table: &Arc<Table>) {
        let mut closing = self.closing();
        closing.push(Arc::clone(table));
        // Release: pairs with the Acquire in `len`. A younger table is made after this, under the catalog's lock.
        self.count.store(closing.len(), Ordering::Release);
    }

    pub(super) fn leave(&self, table: &Arc<Table>) {
        let mut closing = self.closing();
        closing.retain(|other| !Arc::ptr_eq(other, table));
        // Release: pairs with the Acquire in `len`.
        self.count.store(closing.len(), Ordering::Release);
    }

    /// The tables of the name that are older than `generation`, oldest first.
    pub(super) fn predecessors(&self, generation: u64) -> Vec<Arc<Table>> {
        if self.len() == 0 {
            return Vec::new();
        }
        self.closing().iter().filter(|table| table.life.generation < generation).map(Arc::clone).collect()
    }
}

/// A name without its terminating NUL, if it has one.
pub(super) fn canonical(name: &[u8]) -> &[u8] {
    name.strip_suffix(b"\0").unwrap_or(name)
}

/// The parts of a new table.
pub(super) struct NewTable<'n> {
    pub(super) number: u32,
    pub(super) generation: u64,
    /// The first life of the line. `None`: this one.
    pub(super) line: Option<u64>,
    pub(super) base: u64,
    /// Whether an older table of the name is being taken down.
    pub(super) has_older: bool,
    pub(super) announced_name: &'n [u8],
    pub(super) history: Arc<NameHistory>,
    pub(super) hasher: RandomState,
    pub(super) index: Index,
    pub(super) audience: TableAudience,
    pub(super) eviction: TableEviction,
    pub(super) durability: Durability,
}

/// The hash of a key.
pub(super) fn hash_of(hasher: &RandomState, key: &[u8]) -> u64 {
    // Without the length that `hash_one` puts before a slice: the key is all that is hashed.
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

impl Table {
    /// Its bytes, the counts of its `Arc` included. The index's first bucket and directory are within.
    pub(super) const ALLOCATED_BYTES: usize = arc_bytes::<Self>();

    pub(super) fn new(new_table: NewTable<'_>) -> Self {
        Self {
            life: TableLife {
                number: new_table.number,
                generation: new_table.generation,
                line: new_table.line.unwrap_or(new_table.generation),
            },
            versions: TableVersions::new(new_table.base, new_table.has_older),
            announced_name: new_table.announced_name.into(),
            history: new_table.history,
            hasher: new_table.hasher,
            index: new_table.index,
            stage: AtomicU8::new(OPEN),
            durability: TableDurability::new(new_table.durability, new_table.generation),
            audience: new_table.audience,
            eviction: new_table.eviction,
            unsettled: CachePadded::new(AtomicU64::new(1)),
            totals: CachePadded::new(TableTotals::default()),
        }
    }

    /// The table's number, unique among the tables that are not settled.
    pub(super) fn number(&self) -> u32 {
        self.life.number
    }

    /// The life of the table: no other table has it in one start of the server.
    pub(super) fn generation(&self) -> u64 {
        self.life.generation
    }

    /// The first life of a line: lives that have taken each other's place without a moment between them. A user of the name
    /// sees one table.
    pub(super) fn line(&self) -> u64 {
        self.life.line
    }

    /// Whether its changes are recorded.
    #[inline]
    pub(super) fn is_durable(&self) -> bool {
        self.durability.is_recorded()
    }

    /// Whether an answer waits until what it shows is on disk.
    #[inline]
    pub(super) fn is_always(&self) -> bool {
        self.durability.is_always()
    }

    /// The name exactly as CREATE_TABLE gave it.
    pub(super) fn announced_name(&self) -> &[u8] {
        &self.announced_name
    }

    /// The name with a NUL behind it, which no name has within.
    pub(super) fn topic(&self) -> Vec<u8> {
        [canonical(&self.announced_name), b"\0"].concat()
    }

    pub(super) fn history(&self) -> &NameHistory {
        &self.history
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// Shows the slot that `make` returns in the place of `slot`, unless the table is closed: see [`Index::exchange`].
    pub(super) fn exchange<'g>(
        &self,
        slot: SlotRef<'_>,
        guard: &'g Guard,
        make: impl FnOnce() -> Option<SlotHandle>,
    ) -> Option<SlotRef<'g>> {
        self.index.exchange(self.hash(slot.key()), slot, guard, || !self.is_closed(), make)
    }

    /// Whether the table was deleted. An operation that found no element asks afterwards: see `ops.rs`.
    ///
    /// The absence may be the reaper's work: it has sealed the slot, or taken it out of the index. The reaper began
    /// after `close`, and the operation has read what the reaper wrote (the word or the cell, both with Acquire). So
    /// this load then reads true. If it reads false, the element was absent before any of it was sealed.
    pub(super) fn is_closed(&self) -> bool {
        // SeqCst: pairs with the store in `close_as`.
        self.stage.load(Ordering::SeqCst) != OPEN
    }

    /// Whether another life has taken the place of a closed table. So there is no moment without a table of its name. The
    /// other life began empty: what is absent here was absent there at that moment.
    pub(super) fn is_replaced(&self) -> bool {
        // Relaxed: the stage is left once, so who has seen the table closed sees how.
        self.stage.load(Ordering::Relaxed) == REPLACED
    }

    /// Closes the table for another life of it, which the caller shows afterwards.
    pub(super) fn give_place(self: &Arc<Self>) {
        self.close_as(REPLACED);
    }

    /// Closes the table: it takes no new slot, and younger tables of the name settle its keys first.
    pub(super) fn close(self: &Arc<Self>) {
        self.close_as(CLOSED);
    }

    fn close_as(self: &Arc<Self>, stage: u8) {
        // SeqCst: pairs with the load in `is_closed`.
        self.stage.store(stage, Ordering::SeqCst);
        self.history.enter(self);
    }

    /// It was deleted: its bytes are about to be free. Returns how many they are. Called once, by the session that deletes
    /// it.
    pub(super) fn note_leaving(&self) -> i64 {
        // Relaxed: the reaper has the table through a queue.
        let bytes = self.totals.bytes.load(Ordering::Relaxed).max(0);
        self.totals.leaving.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// Its bytes when it was deleted.
    pub(super) fn leaving(&self) -> i64 {
        self.totals.leaving.load(Ordering::Relaxed)
    }

    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        hash_of(&self.hasher, key)
    }

    pub(super) fn find<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        self.index.find(hash, key, guard)
    }

    /// The present slot of a key whose slot was found Moved. Waits for the bucket's lock, until the compactor has
    /// finished the move.
    #[cold]
    pub(super) fn find_moved<'g>(&self, hash: u64, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        self.index.find_settled(hash, key, guard)
    }

    /// The state of the key of a slot. If the slot was moved, that of the present one, which waits for the bucket's lock.
    pub(super) fn present_state<'g>(&self, mut slot: SlotRef<'g>, guard: &'g Guard) -> Option<SlotState<'g>> {
        loop {
            let state = slot.load(guard).state();
            if !matches!(state, SlotState::Moved(_)) {
                return Some(state);
            }
            slot = self.find_moved(self.hash(slot.key()), slot.key(), guard)?;
        }
    }

    /// The slot of a key, if the index shows it at this place.
    #[inline]
    pub(super) fn at<'g>(&self, place: Place, key: &[u8], guard: &'g Guard) -> Option<SlotRef<'g>> {
        self.index.at(place, key, guard)
    }

    /// Asks the processor to fetch the memory that look-ups of these keys, at most [`LOOK_AHEAD`] of them, read. Notes
    /// where their slots are.
    pub(super) fn prefetch(&self, keys: &[&[u8]], places: &mut [Place], guard: &Guard) {
        if self.index.is_near() {
            return;
        }
        let mut hashes = [0; LOOK_AHEAD];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
        }
        self.index.prefetch(hashes.get(..keys.len()).unwrap_or(&hashes), places, guard);
    }

    /// Inserts a new slot unless the table is closed. `make` gets the version of the dead slot that the new one
    /// replaces.
    ///
    /// The writer asks whether the table is open under the bucket's lock. The reaper visits each bucket under its lock,
    /// after the table was closed. If the writer comes first, the reaper finds its slot. If the reaper comes first, the
    /// writer sees the table closed.
    pub(super) fn enter(
        &self,
        hash: u64,
        key: &[u8],
        guard: &Guard,
        make: &mut dyn FnMut(Option<u64>) -> Option<SlotHandle>,
    ) -> Inserted {
        self.index.enter(hash, key, guard, &|key| self.hash(key), &|| !self.is_closed(), make)
    }

    /// Takes a dead slot out of the index, if it still shows it. A writer may have put a new slot of the key in its
    /// place (`Index::enter`). Both take the bucket's lock. If the writer comes first, the index shows another slot,
    /// and nothing is taken out.
    pub(super) fn leave(&self, slot: SlotRef<'_>, guard: &Guard) {
        self.index.leave(self.hash(slot.key()), slot, guard);
        reach(Failpoint::SlotLeft);
    }

    // ---------------------------------------------------------------------------------------------------- settling

    /// The older tables of this name that are still being taken down, oldest first.
    pub(super) fn predecessors(&self) -> Vec<Arc<Self>> {
        self.history.predecessors(self.life.generation)
    }

    /// Publisher: an older table's slot of `key` that is not yet both dead and fully announced: its address.
    pub(super) fn unsettled_predecessor(&self, key: &[u8]) -> Option<usize> {
        if self.history.len() == 0 {
            return None;
        }
        let guard = epoch::pin();
        self.predecessors().iter().find_map(|predecessor| {
            let hash = predecessor.hash(key);
            let found = predecessor.find(hash, key, &guard)?;
            let is_moved = matches!(found.load(&guard).state(), SlotState::Moved(_));
            let slot = if is_moved { predecessor.find_moved(hash, key, &guard)? } else { found };
            (!slot.has_ended()).then_some(slot.address())
        })
    }

    /// Holds the table unsettled. A thread calls it before it ends a slot, since the slot's last change has to be
    /// announced, or the slot taken out, before the table is forgotten. False: the table is settled, so all its slots
    /// are dead and announced, and it may be forgotten at any moment. The word that the caller saw is then out of date.
    ///
    /// **A hold and the last release.** `Ops::seal` (for a younger table) and `Changes::retire` hold without knowing
    /// how far the reaper is. If the hold comes first, the count is two at least when the release comes, so another
    /// thread settles the table later. If the release comes first, the count is zero, and the hold fails: one step both
    /// checks and raises it, so no settled table gets a hold.
    pub(super) fn hold_unsettled(&self) -> bool {
        // AcqRel: a link in the chain of holds and releases that ends in the release that settles the table. Acquire on
        // failure: pairs with that release in `release_unsettled`, after all slots died. The caller's next look finds
        // its slot dead.
        let held =
            self.unsettled.fetch_update(Ordering::AcqRel, Ordering::Acquire, |holds| (holds > 0).then(|| holds + 1));
        held.is_ok()
    }

    /// Releases a hold: the last change was announced, the slot was taken out, or the CAS failed. True for the call
    /// that settles the table. Its thread notifies the reaper, which then empties and forgets the table.
    ///
    /// **Two releases.** The publisher, the reaper and a writer whose seal failed may release at once. The subtractions
    /// have an order, and one of them alone finds one hold left. So the reaper is notified once.
    pub(super) fn release_unsettled(&self) -> bool {
        // Release: pairs with the Acquire of the subtraction that settles the table, and of a hold that fails. Acquire:
        // pairs with the Release of all earlier releases (`Changes::announce`, `Changes::settle`,
        // `Changes::retire`, `Reaper::retire_dead`, `Reaper::seal_some`, `Ops::seal`). So the thread that settles the
        // table sees all its slots dead.
        let before = self.unsettled.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "held before it is released");
        before == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arc_takes_two_counts_the_padding_and_the_value() {
        type BucketLine = CachePadded<u8>;
        assert_eq!((arc_bytes::<u8>(), arc_bytes::<u64>()), (17, 24));
        assert_eq!(arc_bytes::<BucketLine>(), 2 * align_of::<BucketLine>());
    }
}
