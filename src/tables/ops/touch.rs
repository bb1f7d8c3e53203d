//! The change of a deadline alone.

use super::{NotStored, Ops, Write};
use crate::feed::Cause;
use crate::tables::lookup::{Found, absence, look, mark};
use crate::tables::table::Table;
use crate::tables::{Deadline, Refusal};

impl<'h> Ops<'h> {
    /// Sets the deadline and keeps the value, which it returns. It is a change with a version of its own, and
    /// only the feed publishes it.
    ///
    /// A touch and a store race by their CAS like two stores ([`Ops::overwrite`]). A touch that fails looks again, and
    /// touches the new entry. A compare-and-swap that fails because of a touch looks again, and finds another version.
    pub(in crate::tables) fn touch(
        &mut self,
        table: &Table,
        key: &[u8],
        deadline: Deadline,
    ) -> Result<&'h [u8], Refusal> {
        loop {
            match look(table, key, self.place, self.guard, self.now) {
                Found::Live { slot, seen, entry: old } => {
                    let value = old.value();
                    let write = Write { cause: Cause::Touch, ..Write::update(key, value, deadline) };
                    match self.overwrite(table, &write, self.entry_of(table, &write, Some(old)), slot, seen, Some(old))
                    {
                        Ok(_) => return Ok(value),
                        Err(NotStored::Refused(refusal)) => return Err(refusal),
                        Err(NotStored::Overtaken(_)) => {}
                    }
                }
                Found::Overdue { slot, seen, .. } if !mark(slot, seen) => {}
                Found::Overdue { .. } | Found::Absent { .. } | Found::NoSlot => return Err(absence(table)),
            }
        }
    }
}
