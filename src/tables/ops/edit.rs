//! A change that is computed from the element, anew after each lost race.

use super::{NotStored, Ops, Write};
use crate::feed::Cause;
use crate::tables::lookup::{Found, absence, look};
use crate::tables::slot::{EntryRef, NEVER};
use crate::tables::table::Table;
use crate::tables::{Deadline, Refusal};

/// An element as an edit finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementView<'b> {
    /// The value.
    pub value: &'b [u8],
    /// The version.
    pub version: u64,
    /// The deadline, in milliseconds since the clock started. `None`: no deadline.
    pub deadline: Option<u64>,
}

impl<'b> ElementView<'b> {
    pub(in crate::tables) fn of(entry: EntryRef<'b>) -> Self {
        let deadline = entry.deadline();
        Self { value: entry.value(), version: entry.version(), deadline: (deadline != NEVER).then_some(deadline) }
    }
}

/// What becomes of an element. `V` are the bytes of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit<V> {
    /// It stays as it is, present or absent.
    Keep,
    /// It has this value and this deadline.
    Store {
        /// The value.
        value: V,
        /// The deadline.
        deadline: Deadline,
        /// The cause of the change. The value is as before if the cause says so.
        cause: Cause,
    },
    /// It is deleted.
    Delete,
}

impl<'h> Ops<'h> {
    /// Changes an element as `edit` says. Returns what `edit` returned beside that, and the version of the element
    /// afterwards, 0 for none.
    ///
    /// The races are those of [`Ops::overwrite`], [`Ops::create`] and [`Ops::remove`]. If another thread comes first,
    /// `edit` is called again with the element as it is then.
    pub(in crate::tables) fn edit<V: AsRef<[u8]>, R>(
        &mut self,
        table: &Table,
        key: &[u8],
        mut edit: impl FnMut(Option<ElementView<'h>>) -> (Edit<V>, R),
    ) -> Result<(R, u64), Refusal> {
        loop {
            let found = look(table, key, self.place, self.guard, self.now);
            let old = match found {
                Found::Live { entry, .. } => Some(entry),
                Found::Absent { .. } | Found::NoSlot => None,
                Found::Overdue { slot, seen, .. } => {
                    self.expire(table, slot, seen)?;
                    continue;
                }
            };
            let (edited, answer) = edit(old.map(ElementView::of));
            match (edited, old, found) {
                (Edit::Keep, Some(old), _) => return Ok((answer, old.version())),
                (Edit::Keep | Edit::Delete, None, _) => {
                    let absence = absence(table);
                    return if absence == Refusal::KeyNotFound { Ok((answer, 0)) } else { Err(absence) };
                }
                (Edit::Delete, Some(old), Found::Live { slot, seen, .. }) => {
                    self.credits(1)?;
                    self.enter_epoch(table, key.len(), None)?;
                    if self.vacate(table, slot, seen, old, Cause::Delete) {
                        return Ok((answer, 0));
                    }
                }
                (Edit::Store { value, deadline, cause }, old, found) => {
                    let write = Write { cause, ..Write::update(key, value.as_ref(), deadline) };
                    match self.store(table, &write, found, old) {
                        Ok(version) => return Ok((answer, version)),
                        Err(NotStored::Refused(refusal)) => return Err(refusal),
                        Err(NotStored::Overtaken(_)) => {}
                    }
                }
                (Edit::Delete, Some(_), _) => unreachable!("only a live slot has an entry here"),
            }
        }
    }

    /// Makes one attempt to store in the slot that was found, or in a new one.
    pub(super) fn store(
        &mut self,
        table: &Table,
        write: &Write<'_>,
        found: Found<'h>,
        old: Option<EntryRef<'h>>,
    ) -> Result<u64, NotStored> {
        let entry = self.entry_of(table, write, old);
        match found {
            Found::Live { slot, seen, .. } | Found::Overdue { slot, seen, .. } | Found::Absent { slot, seen } => {
                self.overwrite(table, write, entry, slot, seen, old)
            }
            Found::NoSlot => self.create(table, write, entry),
        }
    }
}
