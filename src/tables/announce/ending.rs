//! The end of slots and tables whose last changes are dealt with.
//!
//! This module announces nothing.

use std::sync::Arc;

use crossbeam::epoch::Guard;

use super::audience::Guards;
use super::{Changes, Retired};
use crate::tables::change::{Change, ChangeSink};
use crate::tables::slot::{SlotRef, SlotState};
use crate::tables::table::Table;

impl Changes {
    /// Retires the slot of an announced deletion if it is still vacant. The winner of the CAS alone hands it to the
    /// reaper, which takes it out of the index.
    ///
    /// - **A writer stores in the slot.** If it comes first, this thread finds Live, or its CAS fails, and the slot
    ///   stays in use: the store's change follows in the queue. If the CAS comes first, the writer finds Dead and inserts a
    ///   new slot, above this one's version.
    /// - **A writer stores and deletes again.** The word is Absent with a later version, whose change is not announced.
    ///   This thread leaves the slot, and comes back with that change.
    /// - **A seal after DELETE_TABLE.** If it comes first, the slot is Dead with a later version, and its last change
    ///   follows. If this CAS comes first, the thread that seals finds Dead and is done: the deletion was the slot's
    ///   last change, and it is announced.
    /// - **The compactor** moves only Live slots, so never this one.
    pub(super) fn retire(&mut self, table: &Table, change: Change, guard: &Guard) {
        let slot = change.slot.slot();
        let seen = slot.load(guard);
        let SlotState::Absent(version) = seen.state() else { return };
        if !change.is_of(version) {
            return;
        }
        // Before the CAS: the hold keeps the table registered while the slot is on its way to the reaper. Without it,
        // the reaper could seal the other slots, settle the table and forget it while this slot is in its inbox.
        if !table.hold_unsettled() {
            return;
        }
        if slot.kill(seen, version, guard) {
            slot.set_ended();
            self.ended.push(Retired::Slot(change.slot, table.number()));
        } else {
            self.release(table);
        }
    }

    /// The last change of a sealed slot is dealt with: changes of a younger table that wait for it are released.
    pub(super) fn end(&mut self, slot: SlotRef<'_>, table: &Table) {
        slot.set_ended();
        self.pending.unblock(slot.address());
        self.release(table);
    }

    /// Releases a hold of the table, which may be the last.
    pub(super) fn release(&mut self, table: &Table) {
        if table.release_unsettled() {
            self.ended.push(Retired::Table(table.number()));
        }
    }

    /// Hands ended slots and tables to the reaper. It may wait for the reaper, so it holds no guard.
    pub(super) fn hand_on(&mut self) {
        for ended in self.ended.drain(..) {
            match ended {
                Retired::Slot(slot, number) => self.retire.retire_slot(slot, number),
                Retired::Table(number) => match &mut self.leaving {
                    Some(leaving) => leaving.settled.push(number),
                    None => self.retire.settle_table(number),
                },
            }
        }
    }

    /// Lets the reaper forget settled tables when their quiet ends have come. Nothing is committed in a settled table,
    /// so these ends were committed before. It waits for the guards of then only if there is nothing else to do.
    pub(super) fn let_go(&mut self, is_idle: bool, sink: &mut dyn ChangeSink) {
        let Some(leaving) = self.leaving.as_mut().filter(|leaving| leaving.are_left()) else { return };
        let settled = &mut leaving.settled;
        let (guards, _) = leaving.first.get_or_insert_with(|| (Guards::of_now(), std::mem::take(settled)));
        if is_idle {
            guards.wait();
        }
        if !guards.are_gone() {
            return;
        }
        let first = leaving.first.take();
        self.drain_present(sink);
        first.into_iter().flat_map(|(_, numbers)| numbers).for_each(|number| self.retire.settle_table(number));
    }
}

/// Settled tables that stay registered until their quiet ends have come.
#[derive(Default)]
pub(super) struct LeavingTables {
    settled: Vec<u32>,
    /// Those that had settled first, and the guards of then.
    first: Option<(Arc<Guards>, Vec<u32>)>,
}

impl LeavingTables {
    pub(super) fn are_left(&self) -> bool {
        !self.settled.is_empty() || self.first.is_some()
    }
}
