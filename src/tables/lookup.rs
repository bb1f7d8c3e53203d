//! A look at a key: the slot that the index shows, and the state of its word by the caller's clock.
//!
//! All operations on one element begin here; a SCAN walks the buckets (`scan.rs`). A look changes nothing, apart from
//! `find_live`, which marks an entry whose deadline it has seen pass, and notes the use of an element that may be evicted
//! (`slot/recency.rs`).
//!
//! # Races
//!
//! - **A reader and a writer that replaces the entry.** The reader's guard is older than its load of the word. The
//!   writer retires the old entry under a guard of its own, and the entry is freed only after all guards of that epoch
//!   are dropped. So the reader's value stays whole, and it was the element's value when the word was loaded.
//! - **A look that begins at a noted place.** A prefetch notes the cell in which it has seen a slot, and the look begins
//!   there. Whatever has happened since, the cell shows a slot of the key only as long as the index does: a split, or
//!   a move to another line, clears it when another cell shows the slot, and a removal or a younger slot replaces it. If
//!   it shows another key's slot, or none, the key is looked up by its hash. So the look finds what it would have found
//!   without the place.
//! - **A reader and the removal of the slot.** The reader takes the slot from the index and finds it Dead, while
//!   another slot of the key is already in the index. If the slot died before the reader took it, the index showed a
//!   dead slot at that moment, so the key had no element then. If the slot died afterwards, its last state was Absent
//!   (the publisher retires no other), or its table was closed, which `absence` then finds. In each case the key was
//!   absent at one moment of the look. The slot's memory stays, because the index releases its reference only after the
//!   epoch.
//! - **A reader and a move.** The compactor makes the word Moved and then shows the other slot in the index, both under
//!   the bucket's lock. A reader that finds Moved takes this lock, so it waits until the index shows the new slot. That
//!   one may be Moved as well by then, so the reader looks at its word anew.
//! - **A reader and a passed deadline.** Readings of the clock differ between threads. A reader that is the first to
//!   see a deadline pass marks the word before it answers "absent". If the mark comes before a writer's CAS, the writer
//!   finds Expired and commits the expiry first. If the CAS comes before the mark, the mark fails, and the reader
//!   judges the new entry.

use crossbeam::epoch::Guard;

use super::Refusal;
use super::failpoint::{Failpoint, reach};
use super::index::Place;
use super::slot::{EntryRef, SeenWord, SlotRef, SlotState};
use super::table::Table;
use crate::clock::Now;

/// The state of a key as a look found it.
pub(super) enum Found<'g> {
    /// An element.
    Live { slot: SlotRef<'g>, seen: SeenWord<'g>, entry: EntryRef<'g> },
    /// No element: its deadline has passed, by this thread's clock or by that of a thread that marked it. The expiry is
    /// not committed.
    Overdue { slot: SlotRef<'g>, seen: SeenWord<'g>, entry: EntryRef<'g> },
    /// No element. The slot is free for a new one.
    Absent { slot: SlotRef<'g>, seen: SeenWord<'g> },
    /// No element, and no slot that may have one: the index shows none, or a dead one.
    NoSlot,
}

/// Looks at a key once, and first at this place. The caller looks again when its CAS fails: the key may then have another
/// slot.
#[inline]
pub(super) fn look<'g>(table: &Table, key: &[u8], place: Place, guard: &'g Guard, now: Now) -> Found<'g> {
    let mut shown = table.at(place, key, guard).or_else(|| table.find(table.hash(key), key, guard));
    while let Some(slot) = shown {
        let seen = slot.load(guard);
        match seen.state() {
            SlotState::Live(entry) if entry.deadline() > now.millis() => return Found::Live { slot, seen, entry },
            SlotState::Live(entry) | SlotState::Expired(entry) => return Found::Overdue { slot, seen, entry },
            SlotState::Absent(_) => return Found::Absent { slot, seen },
            SlotState::Dead(_) => break,
            // Waits for the bucket's lock, until the index shows the other slot.
            SlotState::Moved(_) => shown = table.find_moved(table.hash(key), key, guard),
        }
    }
    Found::NoSlot
}

/// The live entry of a key, which may be seen at this place.
#[inline]
pub(super) fn find_live<'g>(
    table: &Table,
    key: &[u8],
    place: Place,
    guard: &'g Guard,
    now: Now,
) -> Result<EntryRef<'g>, Refusal> {
    loop {
        match look(table, key, place, guard, now) {
            Found::Live { slot, entry, .. } => {
                if table.eviction.is_allowed() {
                    slot.note_use();
                }
                return Ok(entry);
            }
            // The word has changed since the look, perhaps to a new element.
            Found::Overdue { slot, seen, .. } if !mark(slot, seen) => {}
            Found::Overdue { .. } | Found::Absent { .. } | Found::NoSlot => return Err(absence(table)),
        }
    }
}

/// Marks an entry whose deadline the caller has seen pass. False: the word has changed, and the caller looks again.
pub(super) fn mark<'g>(slot: SlotRef<'g>, seen: SeenWord<'g>) -> bool {
    reach(Failpoint::BeforeMark);
    slot.mark(seen)
}

/// The refusal for an absence that the caller has just seen. The table is asked last: see `Table::is_closed`.
pub(super) fn absence(table: &Table) -> Refusal {
    if table.is_closed() && !table.is_replaced() { Refusal::TableNotFound } else { Refusal::KeyNotFound }
}
