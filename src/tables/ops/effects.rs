//! What operations on durable tables record.
//!
//! ```text
//! the word is loaded ─► enter_epoch ─► CAS ─► log_store, log_removal: recorded if it has succeeded, and left
//! ```
//! This file commits nothing.

use super::{LOG, Ops, Wanted, Write};
use crate::feed::Cause;
use crate::tables::Refusal;
use crate::tables::durable::records::{ElementHead, element_bytes, live_bytes, logged_bytes, put, remove, touch};
use crate::tables::durable::room::NotEntered;
use crate::tables::durable::writer::EffectWriter;
use crate::tables::lookup::{Found, look};
use crate::tables::slot::{EntryBox, EntryRef, NEVER};
use crate::tables::table::Table;

/// Enters the open epoch if the table is durable, to store a value of this length, or to remove one. Returns whether it is.
#[inline]
pub(super) fn enter_epoch(
    effects: &mut EffectWriter,
    wanted: &mut Wanted,
    table: &Table,
    key: usize,
    value: Option<usize>,
) -> Result<bool, Refusal> {
    if !table.is_durable() {
        return Ok(false);
    }
    let entered = effects.enter(element_bytes(key, value.unwrap_or(0)), value.is_some());
    entered.map_err(|not_entered| refusal(not_entered, wanted))?;
    if table.is_always() {
        effects.raise_epoch_of(table);
    }
    Ok(true)
}

/// The refusal of a write that cannot be recorded.
pub(in crate::tables) fn refusal(not_entered: NotEntered, wanted: &mut Wanted) -> Refusal {
    match not_entered {
        NotEntered::Failed => Refusal::DiskFailed,
        NotEntered::NoRoom => Refusal::OutOfDisk,
        NotEntered::Full => {
            wanted.resource = LOG;
            Refusal::Busy
        }
    }
}

/// What a store made of an element.
#[derive(Clone, Copy)]
pub(super) struct StoredEffect {
    pub(super) version: u64,
    pub(super) deadline: u64,
    /// Whether its value stays, and is recorded already.
    pub(super) keeps_value: bool,
}

impl Ops<'_> {
    /// The same.
    #[inline]
    pub(super) fn enter_epoch(&mut self, table: &Table, key: usize, value: Option<usize>) -> Result<bool, Refusal> {
        enter_epoch(self.effects, self.wanted, table, key, value)
    }

    /// The bytes of the record of a change in a transaction, which stores a value of this length, or removes one. 0: the
    /// table is not durable.
    ///
    /// # Errors
    /// `Busy`: the change would begin a new slot, and the publisher has not announced the last change of the old one
    /// (`restore.rs`). A transaction cannot wait for that inside its epoch.
    pub(in crate::tables) fn record_bytes(
        &mut self,
        table: &Table,
        key: &[u8],
        value: Option<usize>,
    ) -> Result<usize, Refusal> {
        if !table.is_durable() {
            return Ok(0);
        }
        match look(table, key, self.place, self.guard, self.now) {
            Found::Live { slot, seen, .. } | Found::Overdue { slot, seen, .. } | Found::Absent { slot, seen }
                if table.versions.jumps(seen.version()) && !slot.may_move(seen) =>
            {
                Err(self.again())
            }
            _ => Ok(element_bytes(key.len(), value.unwrap_or(0))),
        }
    }

    /// The entry of a write. If a durable element keeps its value, the entry has the version of the value too.
    pub(super) fn entry_of(&self, table: &Table, write: &Write<'_>, old: Option<EntryRef<'_>>) -> EntryBox {
        match old {
            Some(old) if table.is_durable() && keeps_value(write.cause) && old.value() == write.value => {
                EntryBox::touched(write.value, old.version_of_value())
            }
            _ => EntryBox::new(write.value),
        }
    }

    /// Records a store of this version and deadline, if there was one, and leaves the epoch.
    pub(super) fn log_store(
        &mut self,
        table: &Table,
        write: &Write<'_>,
        old: Option<EntryRef<'_>>,
        stored: Option<StoredEffect>,
    ) {
        if let Some(StoredEffect { version, deadline, keeps_value }) = stored {
            let Write { key, value, cause, .. } = *write;
            let head = self.head(table, version, deadline, cause);
            let before = old.map_or(0, |old| logged_bytes(key, old));
            table.count_logged(key, live_bytes(key.len(), value.len(), keeps_value) - before);
            self.effects.note_version(version);
            self.effects.record(|records| match keeps_value {
                true => touch(records, head, key),
                false => put(records, head, key, value),
            });
        }
        self.effects.leave();
    }

    /// Enters the open epoch if the expiry of this entry is recorded, or waits for the head of that epoch, which has a later
    /// time than the deadline. Its word is loaded.
    pub(super) fn enter_to_expire(&mut self, table: &Table, old: EntryRef<'_>) {
        let is_always = table.is_always();
        if is_always || table.is_durable() && old.is_touched() {
            self.effects.enter_large();
        }
        if is_always && !self.effects.has_failed() {
            self.effects.raise_epoch_of(table);
        }
    }

    /// Records a removal with this version, if there was one, and leaves the epoch. An expiry has no record, but that of a
    /// touched entry: its deadline is in the touch, and the cleaning may come to the touch before a copy of the value.
    pub(super) fn log_removal(
        &mut self,
        table: &Table,
        key: &[u8],
        old: EntryRef<'_>,
        cause: Cause,
        removed: Option<u64>,
    ) {
        if !table.is_durable() {
            return;
        }
        if removed.is_some() {
            table.count_logged(key, -logged_bytes(key, old));
        }
        removed.iter().for_each(|version| self.effects.note_version(*version));
        if let Some(version) =
            removed.filter(|_| cause != Cause::Expire || old.is_touched() && self.effects.is_inside())
        {
            let head = self.head(table, version, NEVER, cause);
            self.effects.record(|records| remove(records, head, key));
        }
        self.effects.leave();
    }

    fn head(&self, table: &Table, version: u64, deadline: u64, cause: Cause) -> ElementHead {
        let deadline = self.shared.epochs.deadline_of_log(deadline);
        ElementHead { incarnation: table.durability.incarnation(), version, deadline, cause }
    }
}

/// Counts that an element keeps its value from here on, with a later version.
pub(super) fn count_touched(table: &Table, key: &[u8], old: EntryRef<'_>) {
    let bytes = |is_touched| live_bytes(key.len(), old.value().len(), is_touched);
    table.count_logged(key, bytes(true) - bytes(old.is_touched()));
}

/// Whether a change leaves the value as it is.
fn keeps_value(cause: Cause) -> bool {
    matches!(cause, Cause::Touch | Cause::Persist)
}
