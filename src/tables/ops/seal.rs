//! The sealing of a deleted table's slots: each gets its last change, and no other follows.
//!
//! This file decides neither which table is sealed nor when: the reaper and writers of younger tables do.

use super::Ops;
use crate::feed::Cause;
use crate::tables::Refusal;
use crate::tables::change::{Commit, Committed};
use crate::tables::failpoint::{Failpoint, reach};
use crate::tables::memory_budget::entry_cost;
use crate::tables::slot::{EntryRef, SlotRef, SlotState};
use crate::tables::table::Table;

impl<'h> Ops<'h> {
    /// Seals the key in every older table of the name that is still being taken down. Returns the key's highest version
    /// there.
    ///
    /// An older table may be forgotten meanwhile. The reaper raises the version floor above its slots before that
    /// (`Reaper::empty_some`). So a thread that no longer finds the older table reads the raised floor in `create`.
    pub(super) fn settle_in_predecessors(&mut self, table: &Table, key: &[u8], hash: u64) -> Result<u64, Refusal> {
        let mut version = 0;
        for predecessor in table.predecessors() {
            if let Some(slot) = predecessor.index().find_settled(hash, key, self.guard) {
                version = version.max(self.seal(&predecessor, slot)?);
            }
        }
        Ok(version)
    }

    /// Seals a slot of a closed table. Returns its last version.
    ///
    /// The reaper seals all slots one by one. A writer of a younger table of the name seals the slot of its key ahead
    /// of it, and the publisher may retire the slot at the same time. One of their CASes makes the slot Dead. The
    /// others find it Dead, and its version is final.
    pub(in crate::tables) fn seal(&mut self, table: &Table, slot: SlotRef<'h>) -> Result<u64, Refusal> {
        loop {
            let seen = slot.load(self.guard);
            let old = match seen.state() {
                SlotState::Dead(version) => return Ok(version),
                SlotState::Live(old) | SlotState::Expired(old) => Some(old),
                SlotState::Absent(_) => None,
                SlotState::Moved(_) => {
                    unreachable!("slots of a closed table are found behind the lock under which they would move")
                }
            };
            self.credits(1)?;
            reach(Failpoint::BeforeSeal);
            // Before the CAS, and released by the publisher when it has announced the change. If the hold came after
            // the CAS, the publisher could announce the change and release first: the table would be settled with this
            // slot's change still counted as to come.
            if !table.hold_unsettled() {
                continue; // settled meanwhile: the next look finds the slot dead
            }
            let version = seen.version() + 1;
            let is_quiet = !table.audience.has_changes();
            if slot.kill(seen, version, self.guard) {
                let cause = Cause::DeleteWithTable;
                let committed = Committed { cause, replaces_value: old.is_some(), sets_deadline: false };
                let commit = Commit { version, committed, is_quiet, follows_quiet: seen.is_quiet() };
                self.sealed(table, slot, commit, old);
                return Ok(version);
            }
            if table.release_unsettled() {
                self.pending_sends.settled(self.shared, table.number());
            }
        }
    }

    fn sealed(&mut self, table: &Table, slot: SlotRef<'h>, commit: Commit, old: Option<EntryRef<'h>>) {
        if let Some(old) = old {
            self.count_replaced(Some(old));
            self.charge(table, -entry_cost(old));
            table.count_element(Some(old.deadline()), None);
        }
        self.committed(table, slot, commit);
    }
}
