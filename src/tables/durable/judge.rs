//! What counts of the records in the oldest segment of the log.
//!
//! ```text
//! a table      its record with the highest number, as long as it has a name
//! a value      its version is that which brought the value of the element
//! a touch      its version is that of the element
//! a removal    in the oldest segment it removes nothing any more
//! ```
//! # Why that is safe
//!
//! Memory is newer than the disk: it may show a change of the open epoch. Three rules make up for that.
//!
//! 1. **Copies for an epoch are decided after the epoch before it has closed.** A removal of an earlier epoch is in memory
//!    by then, and the element is not copied. So a removal never stands before a copy of its element.
//! 2. **A segment goes when an epoch that began after its cleaning is on disk.** The changes that made its records dead were
//!    committed before that epoch began, so they are on disk too.
//! 3. **Removals in the oldest segment are not copied.** The records of the removed elements stand before them, and go first.
//!
//! A copy is the record as it was. The element as it is now may be of an epoch that is not on disk. A lost record is recorded
//! anew, like a change of the open epoch. That epoch begins after the cleaning of the segment. So by the second rule the
//! segment stays until the epoch is on disk. If a list of keys is lost, nobody knows whose records stood there. Then all
//! elements are recorded anew, some behind each batch, and the segment stays until that is done.
//!
//! This file changes no element.

use std::sync::Arc;

use crossbeam::epoch::{self, Guard};

use super::pace::{PAUSE, Pace};
use super::records::{ElementHead, TableHead, logged_bytes, put_table};
use super::state::Epochs;
use super::tables::DurableTables;
use super::writer::EffectWriter;
use crate::limits::LOOK_AHEAD;
use crate::store::{EffectJudge, EffectState, Space};
use crate::tables::memory_budget::unsigned;
use crate::tables::prefetch::{Fetched, KeyRun};
use crate::tables::slot::{EntryRef, NEVER, SlotRef, SlotState};
use crate::tables::table::Table;

/// The incarnation in the records of the log's clock.
pub(in crate::tables) const CLOCK: u64 = 0;

/// Judges the records of one batch.
pub(super) struct LogJudge<'l> {
    epochs: &'l Epochs,
    tables: Arc<DurableTables>,
    /// Records the elements anew whose records are lost.
    writer: &'l mut EffectWriter,
    /// The number of the last record of the clock.
    clock_number: u64,
    /// The time of the log's clock in the last head on disk.
    synced_clock: u64,
    rescue: &'l mut Option<RescuePlace>,
    guard: Guard,
    pace: Pace,
    /// Answers that had begun to wait, ever, when the last epoch on disk was closed.
    answered: u64,
}

/// Bytes of the elements that are recorded anew behind one batch.
const RESCUE_BYTES: usize = 4 << 20;

/// How far the log has come that records all elements anew: a list of keys is lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RescuePlace {
    /// The life of a table.
    incarnation: u64,
    /// A position in its index.
    position: u64,
}

impl<'l> LogJudge<'l> {
    pub(super) fn new(
        epochs: &'l Epochs,
        writer: &'l mut EffectWriter,
        rescue: &'l mut Option<RescuePlace>,
        clock_number: u64,
        synced_clock: u64,
        answered: u64,
    ) -> Self {
        let (tables, guard, pace) = (epochs.tables(), epoch::pin(), Pace::default());
        Self { epochs, tables, writer, clock_number, synced_clock, rescue, guard, pace, answered }
    }

    fn counts(&self, space: Space, key: &[u8]) -> bool {
        if space == Space::Tables {
            return TableHead::decode(key).is_some_and(|TableHead { incarnation, number }| match incarnation {
                CLOCK => number == self.clock_number,
                _ => self.tables.get(incarnation).is_some_and(|table| table.durability.record() == number),
            });
        }
        let Some((head, key)) = ElementHead::decode(key) else { return false };
        // The touch of an element is needed until its removal is recorded, which has the deadline of the touch.
        let clock = if space == Space::Touches { 0 } else { self.synced_clock };
        let entry = entry(&self.tables, self.epochs, clock, head, key, &self.guard);
        entry.is_some_and(|entry| match space {
            Space::Touches => entry.version() == head.version,
            _ => entry.version_of_value() == head.version,
        })
    }
}

/// The entry of a key, unless its deadline is known on disk as passed.
fn entry<'g>(
    tables: &DurableTables,
    epochs: &Epochs,
    synced_clock: u64,
    head: ElementHead,
    key: &[u8],
    guard: &'g Guard,
) -> Option<EntryRef<'g>> {
    let table = tables.get(head.incarnation)?;
    counting_entry(table, epochs, synced_clock, table.find(table.hash(key), key, guard)?, guard)
}

/// The entry of a slot, unless its deadline is known on disk as passed.
fn counting_entry<'g>(
    table: &Table,
    epochs: &Epochs,
    synced_clock: u64,
    slot: SlotRef<'g>,
    guard: &'g Guard,
) -> Option<EntryRef<'g>> {
    match table.present_state(slot, guard)? {
        // A batch that began before the deadline may keep the element, until somebody has marked it.
        SlotState::Live(entry) => Some(entry),
        SlotState::Expired(entry) => {
            let has_passed = entry.deadline() + epochs.clock_start() <= synced_clock;
            (!has_passed || entry.deadline() == NEVER).then_some(entry)
        }
        SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => None,
    }
}

impl LogJudge<'_> {
    /// The last record of a table is lost: it is recorded anew with the same number.
    fn lost_table(&mut self, key: &[u8]) {
        let Some(head) = TableHead::decode(key) else { return };
        let Some(table) = self.tables.get(head.incarnation).cloned() else { return };
        if table.durability.record() == head.number {
            self.record_table(&table, head.incarnation);
        }
    }

    /// Records a table anew, with the same number, unless an opening is not to know it.
    fn record_table(&mut self, table: &Table, incarnation: u64) {
        let state = &table.durability;
        if !state.is_coming() {
            let head = TableHead { incarnation, number: state.record() };
            self.writer.enter_large();
            self.writer.record(|records| put_table(records, head, state.said(), table.announced_name()));
            self.writer.leave();
        }
    }

    /// Records the elements of the bucket at this place anew. Returns their bytes, and the place behind. `None`: there is no
    /// room for them at present.
    fn record_bucket(&mut self, table: &Table, place: RescuePlace) -> Option<(usize, RescuePlace)> {
        let RescuePlace { incarnation, position } = place;
        let guard = epoch::pin();
        let (walk, mut slots) = (table.index().walk(&guard), Vec::new());
        let next = walk.read(position, &guard, |key| table.hash(key), &mut slots);
        let element = |slot| counting_entry(table, self.epochs, self.synced_clock, slot, &guard);
        let bytes = |(slot, entry): (SlotRef<'_>, EntryRef<'_>)| unsigned(logged_bytes(slot.key(), entry));
        let bytes = slots.iter().filter_map(|(_, slot)| Some(bytes((*slot, element(*slot)?)))).sum();
        if bytes > 0 {
            self.writer.enter(bytes, true).ok()?;
            // Read again inside the epoch, so that each change is of this epoch or of one before it.
            for (slot, entry) in slots.iter().filter_map(|(_, slot)| Some((*slot, element(*slot)?))) {
                self.writer.record_element(incarnation, slot.key(), entry);
            }
            self.writer.leave();
        }
        let behind = RescuePlace { incarnation: incarnation + 1, position: 0 };
        Some((bytes, next.map_or(behind, |position| RescuePlace { incarnation, position })))
    }
}

impl EffectJudge for LogJudge<'_> {
    fn judge(&mut self, space: Space, key: &[u8]) -> EffectState {
        if self.counts(space, key) { EffectState::Live } else { EffectState::Dead }
    }

    fn foresee(&mut self, keys: &mut dyn Iterator<Item = (Space, &[u8])>) {
        let of_elements = keys.filter(|(space, _)| *space != Space::Tables);
        let mut keys = of_elements.filter_map(|(_, key)| ElementHead::decode(key)).peekable();
        while let Some((ElementHead { incarnation, .. }, _)) = keys.peek() {
            let Some(table) = self.tables.get(*incarnation).cloned() else {
                keys.next();
                continue;
            };
            let incarnation = *incarnation;
            let of_table = std::iter::from_fn(|| keys.next_if(|(head, _)| head.incarnation == incarnation));
            let (run, mut places) = (KeyRun::of(&mut of_table.map(|(_, key)| (key, 0))), Fetched::NOTHING);
            run.fetch(&table, &mut places, &self.guard);
        }
        if self.pace.is_due(LOOK_AHEAD, || self.epochs.is_awaited(self.answered)) {
            let (epochs, answered, mut is_over) = (self.epochs, self.answered, false);
            let is_over = || std::mem::replace(&mut is_over, true) || epochs.is_awaited(answered);
            // The memory that others free meanwhile is not kept for the log.
            self.guard.repin_after(|| epochs.log.park(PAUSE, is_over));
        }
    }

    fn lost(&mut self, space: Space, key: &[u8]) {
        if space == Space::Tables {
            self.lost_table(key);
            return;
        }
        let Some((head, key)) = ElementHead::decode(key) else { return };
        // The entry is read inside the epoch, so that its change is of this epoch or of one before it.
        self.writer.enter_large();
        let guard = epoch::pin();
        if let Some(entry) = entry(&self.tables, self.epochs, self.synced_clock, head, key, &guard) {
            self.writer.record_element(head.incarnation, key, entry);
        }
        self.writer.leave();
    }

    /// Some elements behind each batch. An element that changes behind its place is recorded by its writer.
    fn all_lost(&mut self) -> bool {
        let mut place = self.rescue.take().unwrap_or_default();
        let (tables, mut bytes) = (Arc::clone(&self.tables), 0);
        while let Some((incarnation, table)) = tables.first_from(place.incarnation) {
            if incarnation > place.incarnation {
                place = RescuePlace { incarnation, position: 0 };
            }
            if place.position == 0 {
                self.record_table(table, incarnation);
            }
            let recorded = if bytes < RESCUE_BYTES { self.record_bucket(table, place) } else { None };
            let Some((recorded, next)) = recorded else {
                *self.rescue = Some(place);
                return false;
            };
            (bytes, place) = (bytes + recorded, next);
        }
        true
    }
}
