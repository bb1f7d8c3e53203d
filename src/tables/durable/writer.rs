//! What a session records, in a buffer for each of two epochs, until the log takes it.
//!
//! This file commits nothing: `ops` does, inside an epoch.

use std::sync::Arc;

use super::limits::{EFFECTS_BYTES_EARLY, EFFECTS_BYTES_LARGE, EFFECTS_BYTES_MAX};
use super::records::{ElementHead, TableHead, encode_element, put_table, remove, remove_table};
use super::room::{Claimed, NotEntered};
use super::state::{Epochs, LogStage};
use super::writer_records::WriterRecords;
use crate::feed::Cause;
use crate::store::EncodedRecords;
use crate::tables::Durability;
use crate::tables::Refusal;
use crate::tables::sleeper::Sleeper;
use crate::tables::slot::EntryRef;
use crate::tables::table::{Table, canonical};

/// A session's end.
pub(in crate::tables) struct EffectWriter {
    pub(super) epochs: Arc<Epochs>,
    records: Arc<WriterRecords>,
    /// The epoch in which the writer is.
    entered: Option<u64>,
    /// A transaction is being carried out: the writer leaves the epoch at its end.
    is_in_transaction: bool,
    /// The last epoch that was found full. Before the log is open, none.
    full: Option<u64>,
    /// The request that was refused last waits until the log is open.
    awaits_log: bool,
    claimed: Claimed,
    /// The epoch for which the answer waits to what the session does. 0: for none.
    pub(super) awaited: u64,
}

/// What the records of a transaction need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tables) struct RecordNeeds {
    /// Their bytes, at most. 0: there are none.
    pub(in crate::tables) bytes: usize,
    /// Whether some of them store a value.
    pub(in crate::tables) adds: bool,
}

impl EffectWriter {
    pub(in crate::tables) fn new(epochs: &Arc<Epochs>) -> Self {
        let records = WriterRecords::new();
        epochs.writers.enter(&records);
        let epochs = Arc::clone(epochs);
        Self {
            epochs,
            records,
            entered: None,
            is_in_transaction: false,
            full: None,
            awaits_log: false,
            claimed: Claimed::default(),
            awaited: 0,
        }
    }

    /// Enters the open epoch for a record of so many bytes. One that `adds` needs room on the disk too. The caller has
    /// loaded the word that its CAS expects, or sees the state of the table under a lock.
    pub(in crate::tables) fn enter(&mut self, bytes: usize, adds: bool) -> Result<(), NotEntered> {
        if self.entered.is_some() {
            return Ok(());
        }
        let epoch = self.epochs.open.enter(&self.records.place);
        // Behind the entering: a log that fails waits for this writer, or this writer finds that.
        if matches!(self.epochs.stage(), LogStage::Failing | LogStage::Failed) {
            self.records.place.leave();
            return Err(NotEntered::Failed);
        }
        let kept = self.records.buffer(epoch).bytes();
        if kept > EFFECTS_BYTES_LARGE {
            self.epochs.want(epoch);
        } else if kept > EFFECTS_BYTES_EARLY {
            self.epochs.note_heavy(epoch);
        }
        // A large record is not kept out for ever by small ones, which come again in each epoch.
        let entered = match kept > EFFECTS_BYTES_LARGE && kept + bytes > EFFECTS_BYTES_MAX {
            true => Err(NotEntered::Full),
            false if adds => self.claimed.raise(&self.epochs.room, epoch, kept + bytes),
            false => self.epochs.room.claim_removal(epoch, bytes as u64),
        };
        match entered {
            Ok(()) => self.entered = Some(epoch),
            Err(_) => {
                self.records.place.leave();
                self.full = Some(epoch);
            }
        }
        entered
    }

    /// Begins a transaction, whose changes are all of one epoch. It enters the open epoch if it has records of so many bytes.
    /// The session holds the latches of its tables, so no word that it replaces can change any more.
    pub(in crate::tables) fn begin_transaction(
        &mut self,
        RecordNeeds { bytes, adds }: RecordNeeds,
    ) -> Result<(), NotEntered> {
        if bytes > 0 {
            self.enter(bytes, adds)?;
        }
        self.is_in_transaction = true;
        Ok(())
    }

    /// Whether the writer is in an epoch.
    pub(in crate::tables) fn is_inside(&self) -> bool {
        self.entered.is_some()
    }

    /// The transaction is over, whatever has come of it.
    pub(in crate::tables) fn end_transaction(&mut self) {
        self.is_in_transaction = false;
        self.leave();
    }

    /// Enters the open epoch, for a record of any size.
    pub(in crate::tables) fn enter_large(&mut self) {
        if self.entered.is_none() {
            self.entered = Some(self.epochs.open.enter(&self.records.place));
        }
    }

    /// Records that the table of a name is replaced, created or deleted. Called under the catalog's lock, before the catalog
    /// shows the change. The caller leaves the epoch after the catalog shows the change.
    pub(in crate::tables) fn record_tables(&mut self, old: Option<&Arc<Table>>, new: Option<&Arc<Table>>) {
        let is_durable = |table: Option<&Arc<Table>>| table.is_some_and(|table| table.is_durable());
        if !is_durable(old) && !is_durable(new) {
            return;
        }
        self.enter_large();
        for table in old.into_iter().filter(|table| table.is_durable()) {
            if table.is_always() {
                self.raise_names(table);
                self.epochs.disk.note_gone(table.durability.last_epoch(), canonical(table.announced_name()));
            }
            self.record_end(table);
        }
        for table in new.into_iter().filter(|table| table.is_durable()) {
            self.record_table(table, table.durability.kind());
            self.epochs.enter_table(table);
        }
    }

    /// Answers that show this table or its name wait for this epoch. Called as [`EffectWriter::record_tables`].
    fn raise_names(&self, table: &Table) {
        self.raise_epoch_of(table);
        self.epochs.disk.raise_names(table.durability.last_epoch());
    }

    /// Records that a table is there, with this durability. Called as [`EffectWriter::record_tables`].
    pub(super) fn record_table(&mut self, table: &Table, durability: Durability) {
        let state = &table.durability;
        if durability == Durability::Always {
            self.raise_names(table);
        }
        let head = TableHead { incarnation: state.incarnation(), number: self.epochs.marks.next_number() };
        self.record(|records| put_table(records, head, durability, table.announced_name()));
        // The table has this promise already, so the answer waits for nothing.
        let is_less = durability < state.said() && !state.is_coming();
        let epoch = if is_less { state.epoch() } else { self.entered.unwrap_or(0) };
        state.note_record(durability, head.number, epoch);
    }

    /// Records that a table is gone for an opening. Called as [`EffectWriter::record_tables`].
    pub(super) fn record_end(&mut self, table: &Table) {
        let head = TableHead { incarnation: table.durability.incarnation(), number: self.epochs.marks.next_number() };
        self.record(|records| remove_table(records, head));
        self.epochs.leave_table(table);
    }

    /// Whether all writers have left the epochs before that in which this one is.
    pub(in crate::tables) fn is_behind_all(&self) -> bool {
        self.entered.is_some_and(|entered| self.epochs.open.left() + 1 >= entered)
    }

    /// The writer is about to change an element of the table. Answers that show the change wait for this epoch.
    pub(in crate::tables) fn raise_epoch_of(&self, table: &Table) {
        if let Some(epoch) = self.entered {
            table.durability.raise_epoch(epoch);
            self.epochs.disk.note_always();
        }
    }

    /// Records what was committed inside the epoch, or is about to be, with nobody to see it before.
    pub(in crate::tables) fn record(&mut self, encode: impl FnOnce(&mut EncodedRecords)) {
        debug_assert!(self.entered.is_some(), "a writer records inside an epoch");
        if let Some(epoch) = self.entered {
            encode(&mut self.records.buffer(epoch));
        }
    }

    /// Records an element as it is, inside an epoch that has its change, or is behind it.
    pub(in crate::tables) fn record_element(&mut self, incarnation: u64, key: &[u8], entry: EntryRef<'_>) {
        let deadline = self.epochs.deadline_of_log(entry.deadline());
        self.record(|records| encode_element(records, incarnation, key, entry, deadline));
    }

    /// Records that an element with this version has expired: its value may stand behind the touch that has its deadline.
    pub(in crate::tables) fn record_expiry(&mut self, table: &Table, key: &[u8], version: u64) {
        let (incarnation, version) = (table.durability.incarnation(), version + 1);
        let head = ElementHead { incarnation, version, deadline: 0, cause: Cause::Expire };
        self.enter_large();
        self.note_version(version);
        self.record(|records| remove(records, head, key));
        self.leave();
    }

    /// Notes the version of what was recorded.
    pub(in crate::tables) fn note_version(&mut self, version: u64) {
        self.records.note_version(version);
    }

    /// Leaves the epoch, unless a transaction stays in it.
    pub(in crate::tables) fn leave(&mut self) {
        if !self.is_in_transaction && self.entered.take().is_some() {
            self.records.place.leave();
        }
    }

    /// Whether there is room for the write that was refused last. If not, `sleeper` is woken when there may be.
    pub(in crate::tables) fn watch(&self, sleeper: &Arc<Sleeper>) -> bool {
        self.full.is_none_or(|full| self.epochs.watch(full, sleeper))
    }

    /// Whether the log takes records. If it is not open, that begins, and the caller waits.
    pub(in crate::tables) fn has_log(&mut self) -> Result<bool, Refusal> {
        let has_waited = std::mem::take(&mut self.awaits_log);
        match self.epochs.stage() {
            LogStage::On => Ok(true),
            LogStage::Failing | LogStage::Failed => Err(Refusal::DiskFailed),
            LogStage::Unopened if has_waited => Err(Refusal::DiskFailed),
            LogStage::Off | LogStage::Wanted | LogStage::Unopened | LogStage::Loading => {
                self.epochs.want_log();
                (self.full, self.awaits_log) = (Some(0), true);
                Ok(false)
            }
        }
    }
}

impl Drop for EffectWriter {
    fn drop(&mut self) {
        self.end_transaction();
        // The log takes what it has recorded, and then forgets the buffers, which nobody else has any more.
    }
}
