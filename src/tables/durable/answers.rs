//! Until which epoch an answer waits.
//!
//! ```text
//! a request on a table that is always on disk ─► the last epoch that the table has a record of ─► not synced? it waits
//! ```
//! # Why the table's last epoch is enough
//!
//! A writer raises the last epoch of its table inside the epoch, before its CAS. A reader loads the word first, and the
//! table's last epoch afterwards. So that epoch is not before the change that the reader has seen, nor before the removal
//! that has left nothing to be seen. Epochs are synced in their order. So all causes of the change are on disk then.
//!
//! An announced version is on disk: the publisher announces a change of such a table after the sync. A quiet entry is on
//! disk too. Such a table always has an audience, so its quiet entries were read from the disk, or were copied to the disk
//! by ALTER_TABLE. What was announced or copied before ALTER_TABLE is on disk with the record of the table, and until then
//! no version counts as announced.
//!
//! # Deadlines
//!
//! An expiry has no record: the element is gone for good when a head on disk has a time behind its deadline. The log reads
//! its clock after it has closed an epoch. So the epoch that is open when the deadline passes gets a head with a later time.
//! The worker that commits the expiry raises the table's last epoch to this epoch. A worker that finds an overdue element
//! waits for the same epoch.
//!
//! A request for many keys waits for what each key shows. A page waits for each slot that it has looked at. A slot that is
//! gone was announced before, so a key without a slot waits for nothing. A page without any slot shows the life of the
//! table, whose record it waits for.
//!
//! Names are judged together: TABLE NOT FOUND waits for the last table that has come or gone. When the log has failed, each
//! name is judged alone: only a name whose table has gone in an epoch that is not on disk is `UNAVAILABLE`.
//!
//! This file holds no answer back: see `net/zeromq/reply_gates.rs`.

use std::sync::Arc;

use crossbeam::epoch::Guard;

use super::disk::DiskState;
use super::state::{Epochs, LogStage};
use super::writer::EffectWriter;
use crate::tables::sleeper::Sleeper;
use crate::tables::slot::{EntryRef, SlotState};
use crate::tables::table::Table;
use crate::tables::{Batch, Session};

impl Epochs {
    /// What is on disk. If that is less than this epoch, the log hastens, and wakes `sleeper` behind its next sync.
    pub(in crate::tables) fn watch_disk(&self, epoch: u64, sleeper: &Arc<Sleeper>) -> DiskState {
        let disk = self.disk.watch(epoch, || self.disk_state(), sleeper);
        if disk.synced < epoch && !disk.has_failed {
            self.want(epoch);
        }
        disk
    }

    /// What is on disk.
    pub(in crate::tables) fn disk_state(&self) -> DiskState {
        DiskState { synced: self.disk.synced(), has_failed: self.stage() == LogStage::Failed }
    }

    /// Whether there was a change of a table that is always on disk.
    #[inline]
    pub(in crate::tables) fn has_always(&self) -> bool {
        self.disk.has_always()
    }

    /// The epoch for which all that the table shows waits. `None`: it is on disk.
    pub(in crate::tables) fn awaited_of(&self, table: &Table) -> Option<u64> {
        Some(table.durability.last_epoch()).filter(|last| *last > self.disk.synced())
    }

    /// Whether this epoch is on disk, or never will be.
    pub(in crate::tables) fn is_decided(&self, epoch: u64) -> bool {
        self.disk.synced() >= epoch || self.stage() == LogStage::Failed
    }
}

impl EffectWriter {
    /// The answer shows this table, or is decided by it. If some of its elements have deadlines, one may have passed.
    #[cold]
    pub(in crate::tables) fn await_table(&mut self, table: &Table) {
        if table.has_deadlines() { self.await_expiry(table) } else { self.await_changes(table) }
    }

    /// The answer shows a change of this table that is not announced.
    #[cold]
    pub(in crate::tables) fn await_changes(&mut self, table: &Table) {
        self.await_epoch(table.durability.last_epoch());
    }

    /// The answer shows that the deadline of an element has passed. Behind a failure no clock comes to the disk any more.
    #[cold]
    pub(in crate::tables) fn await_expiry(&mut self, table: &Table) {
        if self.has_failed() {
            self.await_changes(table);
        } else {
            self.await_epoch(self.epochs.open.number());
        }
    }

    /// The answer shows a page of this table, whatever is in it: the table is there, in this life, or another one has taken
    /// its place meanwhile. The caller has looked at the last element.
    pub(in crate::tables) fn await_life(&mut self, table: &Table) {
        if table.is_closed() {
            self.await_changes(table);
        } else if !table.durability.is_coming() {
            self.await_epoch(table.durability.epoch());
        }
    }

    /// The answer shows this element, or that the key has none.
    #[inline]
    pub(in crate::tables) fn await_element(
        &mut self,
        table: &Table,
        key: &[u8],
        shown: Option<EntryRef<'_>>,
        guard: &Guard,
    ) {
        // Most elements are read of tables that nobody writes at the moment.
        if shown.is_none() || table.durability.last_epoch() > self.epochs.disk.synced() {
            self.await_unsynced(table, key, shown, guard);
        }
    }

    #[cold]
    fn await_unsynced(&mut self, table: &Table, key: &[u8], shown: Option<EntryRef<'_>>, guard: &Guard) {
        if shown.is_none() && is_overdue(table, key, guard) {
            self.await_expiry(table);
            return;
        }
        let (last, synced) = (table.durability.last_epoch(), self.epochs.disk.synced());
        let is_clean = || is_on_disk(table, key, shown, guard);
        if last > synced && (table.durability.epoch() > synced || !is_clean()) {
            self.await_epoch(last);
        }
    }

    /// The answer shows the names of tables.
    pub(in crate::tables) fn await_names(&mut self) {
        // Behind a failed log the names in memory are shown: tables in memory come and go on.
        if !self.has_failed() {
            self.await_epoch(self.epochs.disk.names());
        }
    }

    /// The answer shows that this name has this table, or none.
    pub(in crate::tables) fn await_name(&mut self, name: &[u8], found: Option<&Table>) {
        if !self.has_failed() {
            self.await_names();
            return;
        }
        // A later opening finds another state of this name, if that is not on disk. It says nothing of other names.
        let is_memory = |table: &Table| !table.is_always();
        self.await_epoch(match found {
            Some(table) if is_memory(table) => 0,
            Some(table) => table.durability.epoch(),
            None => self.epochs.disk.gone(name),
        });
    }

    /// Whether the log has failed: no later epoch will be on disk.
    pub(in crate::tables) fn has_failed(&self) -> bool {
        self.epochs.stage() == LogStage::Failed
    }

    /// The answer waits for this epoch.
    pub(in crate::tables) fn await_epoch(&mut self, epoch: u64) {
        if epoch > self.epochs.disk.synced() {
            self.awaited = self.awaited.max(epoch);
        }
    }
}

/// Whether the key has an element whose deadline has passed, and whose expiry nobody has committed. The caller has found
/// it absent. If somebody commits it meanwhile, the table's last epoch is raised before.
fn is_overdue(table: &Table, key: &[u8], guard: &Guard) -> bool {
    let slot = table.find(table.hash(key), key, guard);
    slot.is_some_and(|slot| matches!(slot.load(guard).state(), SlotState::Live(_) | SlotState::Expired(_)))
}

/// Whether what the caller has seen is known to be on disk: this entry in the slot of the key, or no entry.
fn is_on_disk(table: &Table, key: &[u8], shown: Option<EntryRef<'_>>, guard: &Guard) -> bool {
    if shown.is_some_and(|entry| entry.is_quiet()) {
        return true;
    }
    let slot = table.find(table.hash(key), key, guard);
    // Before the word: a removal that is announced by now was the last change of the slot, or a later one is seen.
    let announced = slot.map(|slot| slot.announced());
    match (shown, slot.map(|slot| slot.load(guard).state())) {
        (Some(entry), _) => announced.is_some_and(|announced| announced.is(entry.version())),
        (None, None) => true,
        (None, Some(SlotState::Absent(version))) => announced.is_some_and(|announced| announced.is(version)),
        (None, Some(_)) => false,
    }
}

impl Batch<'_> {
    /// The epoch that has to be on disk before the last operations are answered, if one has to. The next ones begin anew.
    #[inline]
    pub fn take_awaited(&mut self) -> Option<u64> {
        let effects = self.effects();
        if effects.awaited == 0 {
            return None;
        }
        effects.epochs.disk.note_asked();
        Some(std::mem::take(&mut effects.awaited))
    }

    /// The answer waits for the log, which then has all on disk that the client has changed in durable tables.
    pub fn await_log(&mut self) {
        let effects = self.effects();
        if !matches!(effects.epochs.stage(), LogStage::Off | LogStage::Unopened) {
            effects.await_epoch(effects.epochs.open.number());
        }
    }

    /// The log has all on disk soon that is committed by now. The answer does not wait.
    pub fn order_disk(&mut self) {
        let epochs = &self.effects().epochs;
        if epochs.stage() == LogStage::On {
            epochs.order_disk();
        }
    }

    /// The answer shows the names of tables.
    pub fn await_names(&mut self) {
        self.effects().await_names();
    }
}

impl Session {
    /// What is on disk. If that is less than this epoch, the waker of [`Session::set_waker`] is called behind the next sync,
    /// which comes soon.
    pub fn watch_disk(&self, epoch: u64) -> DiskState {
        self.shared().epochs.watch_disk(epoch, self.sleeper())
    }

    /// As [`Tables::clock_start`](crate::tables::Tables::clock_start).
    #[must_use]
    pub fn clock_start(&self) -> u64 {
        self.shared().epochs.clock_start()
    }
}
