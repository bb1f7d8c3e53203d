//! What operations on durable tables record.
//!
//! ```text
//! the word is loaded ─► enter_epoch ─► CAS ─► log_store, log_removal: recorded if it has succeeded, and left
//! ```
//! This file commits nothing.

use super::{LOG, Ops, Write};
use crate::feed::Cause;
use crate::tables::Refusal;
use crate::tables::durable::records::{ElementHead, element_bytes, live_bytes, put, remove, touch};
use crate::tables::durable::writer::{EffectWriter, NotEntered};
use crate::tables::slot::{EntryBox, EntryRef, NEVER};
use crate::tables::table::Table;

/// Enters the open epoch if the table is durable, to store a value of this length, or to remove one. Returns whether it is.
#[inline]
pub(super) fn enter_epoch(
    effects: &mut EffectWriter,
    wanted: &mut usize,
    table: &Table,
    key: usize,
    value: Option<usize>,
) -> Result<bool, Refusal> {
    if !table.is_durable() {
        return Ok(false);
    }
    match effects.enter(element_bytes(key, value.unwrap_or(0)), value.is_some()) {
        Ok(()) => Ok(true),
        Err(NotEntered::Failed) => Err(Refusal::DiskFailed),
        Err(NotEntered::NoRoom) => Err(Refusal::OutOfDisk),
        Err(NotEntered::Full) => {
            *wanted = LOG;
            Err(Refusal::Busy)
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
            let before = old.map_or(0, |old| live_bytes(key.len(), old.value().len(), old.is_touched()));
            table.count_logged(live_bytes(key.len(), value.len(), keeps_value) - before);
            self.effects.note_version(version);
            self.effects.record(|records| match keeps_value {
                true => touch(records, head, key),
                false => put(records, head, key, value),
            });
        }
        self.effects.leave();
    }

    /// Records a removal with this version, if there was one, and leaves the epoch. An expiry has no record.
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
            table.count_logged(-live_bytes(key.len(), old.value().len(), old.is_touched()));
        }
        removed.iter().for_each(|version| self.effects.note_version(*version));
        if let Some(version) = removed.filter(|_| cause != Cause::Expire) {
            let head = self.head(table, version, NEVER, cause);
            self.effects.record(|records| remove(records, head, key));
        }
        self.effects.leave();
    }

    fn head(&self, table: &Table, version: u64, deadline: u64, cause: Cause) -> ElementHead {
        let deadline = self.shared.epochs.deadline_of_log(deadline);
        ElementHead { incarnation: table.generation(), version, deadline, cause }
    }
}

/// Whether a change leaves the value as it is.
fn keeps_value(cause: Cause) -> bool {
    matches!(cause, Cause::Touch | Cause::Persist)
}
