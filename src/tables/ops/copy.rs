//! The walk of ALTER_TABLE: copies of what is in a table that becomes durable, a portion at a time.
//!
//! ```text
//! enter the epoch ─► is the one before it left? ─► bucket by bucket: the position is passed ─► load ─► record ─► leave
//! ```
//! A copy is of what the word shows inside the epoch, when the epoch before it is left: see `durable/epochs.rs`. An element
//! that comes, changes or goes meanwhile is recorded by its writer, whatever the walk sees of it.
//!
//! The bytes of an element count from the copy on. Its writer finds the position passed, and counts the difference. A write
//! at the very moment of the copy may be counted twice or not at all: the sum decides how much is cleaned, and nothing else.
//!
//! This file changes no element.

use super::Ops;
use super::effects::refusal;
use crate::limits::SCAN_BUCKETS_MIN;
use crate::tables::Refusal;

use crate::tables::durable::records::logged_bytes;
use crate::tables::memory_budget::unsigned;
use crate::tables::slot::{EntryRef, SlotRef, SlotState};
use crate::tables::table::Table;

/// Bytes of a portion: some hundred microseconds.
const PORTION_BYTES: usize = 1 << 20;

impl<'h> Ops<'h> {
    /// Copies a portion, unless another session does.
    pub(in crate::tables) fn copy_some(&mut self, table: &Table) -> Result<(), Refusal> {
        let state = &table.durability;
        let (Some(_walk), Some(position)) = (state.begin_to_walk(), state.walked()) else { return Ok(()) };
        // A portion has one element at least, however large.
        let admitted = PORTION_BYTES + self.largest(table, position);
        self.effects.enter(admitted, true).map_err(|not_entered| refusal(not_entered, self.wanted))?;
        if self.effects.is_behind_all() {
            self.copy(table, position, admitted);
        }
        self.effects.leave();
        Ok(())
    }

    /// Bytes of the records of the largest element in the bucket of this position.
    fn largest(&self, table: &Table, position: u64) -> usize {
        let mut slots = Vec::new();
        table.index().walk(self.guard).read(position, self.guard, |key| table.hash(key), &mut slots);
        let bytes = |slot| self.element(table, slot).map_or(0, |entry| bytes_of(slot, entry));
        slots.iter().map(|(_, slot)| bytes(*slot)).max().unwrap_or(0)
    }

    /// Copies elements from this position on, of so many bytes.
    fn copy(&mut self, table: &Table, mut position: u64, admitted: usize) {
        let state = &table.durability;
        let walk = table.index().walk(self.guard);
        let (mut slots, mut bytes) = (Vec::new(), 0);
        for _ in 0..SCAN_BUCKETS_MIN {
            let next = walk.read(position, self.guard, |key| table.hash(key), &mut slots);
            let mut before = None;
            for (at, slot) in &slots {
                let larger = bytes + self.element(table, *slot).map_or(0, |entry| bytes_of(*slot, entry));
                // Elements of one position stay together.
                if larger > admitted && before != Some(*at) {
                    state.set_walked(Some(*at));
                    return;
                }
                (bytes, before) = (larger, Some(*at));
                state.set_walked(Some(at.saturating_add(1)));
                self.copy_element(table, *slot);
            }
            state.set_walked(next);
            let Some(next) = next else { return };
            position = next;
        }
    }

    fn copy_element(&mut self, table: &Table, slot: SlotRef<'h>) {
        let Some(entry) = self.element(table, slot) else { return };
        let (key, incarnation) = (slot.key(), table.durability.incarnation());
        table.count_logged(key, logged_bytes(key, entry));
        self.effects.note_version(entry.version());
        self.effects.record_element(incarnation, key, entry);
    }

    /// The element of this slot, also one whose deadline has passed: that of the copy has passed too.
    fn element(&self, table: &Table, slot: SlotRef<'h>) -> Option<EntryRef<'h>> {
        match table.present_state(slot, self.guard)? {
            SlotState::Live(entry) | SlotState::Expired(entry) => Some(entry),
            SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => None,
        }
    }
}

fn bytes_of(slot: SlotRef<'_>, entry: EntryRef<'_>) -> usize {
    unsigned(logged_bytes(slot.key(), entry))
}
