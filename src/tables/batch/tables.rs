//! Operations on whole tables: they come, go, and take each other's place.
//!
//! This file looks at no element.

use std::sync::Arc;

use crossbeam::epoch::Guard;

use super::{Batch, LOG, Session};
use crate::tables::catalog::{Catalog, NewName, RecordTables, table_bytes};
use crate::tables::durable::state::LogStage;
use crate::tables::memory_budget::MemoryRoom;
use crate::tables::table::Table;
use crate::tables::{Durability, EvictionPolicy, Refusal, TableSummary};

impl Batch<'_> {
    /// Creates a table. `name` has no final NUL, `announced_name` is exactly as the client gave it.
    ///
    /// # Errors
    /// `TableExists`, `TooManyTables`, `OutOfMemory`, `Busy`.
    pub fn create_table(&mut self, name: &[u8], announced_name: &[u8]) -> Result<(), Refusal> {
        self.create_table_with(name, announced_name, None, None)
    }

    /// As [`Batch::create_table`]. The table evicts elements by this policy, or by that of [`Batch::set_eviction`]. It has
    /// this durability, or that of [`TablesConfig`](crate::tables::TablesConfig). A durable table evicts none.
    ///
    /// # Errors
    /// Those of [`Batch::create_table`]. `Busy` until the log is open, `DiskFailed`.
    pub fn create_table_with(
        &mut self,
        name: &[u8],
        announced_name: &[u8],
        eviction: Option<EvictionPolicy>,
        durability: Option<Durability>,
    ) -> Result<(), Refusal> {
        let Self { session, guard, .. } = self;
        session.check_latch(name)?;
        let durability = durability.unwrap_or(session.shared.durability);
        if let Some(table) = session.shared.catalog.find(name, guard) {
            session.effects.await_name(name, Some(table));
            return Err(Refusal::TableExists);
        }
        if durability != Durability::None && !session.effects.has_log()? {
            session.wanted.resource = LOG;
            return Err(Refusal::Busy);
        }
        let bytes = table_bytes(announced_name);
        // A table is small, so it does not wait for memory that the compactor may give back.
        let room = session.local_budget.room(&session.shared.memory_budget, bytes) != MemoryRoom::None
            || session.shared.evicts_for(bytes);
        let new_name = NewName { announced: announced_name, eviction, durability };
        let table =
            session.when_taken_down(name, |catalog, record| catalog.create(name, new_name, room, record, guard))?;
        session.charge_new(table);
        Ok(())
    }

    /// Puts an empty table in the place of the one of this name, in one step: no request finds the name without a table.
    /// The old elements are deleted as by [`Batch::delete_table`].
    ///
    /// A write that is under way meanwhile is made before or after. A GET_MANY, an UPDATE_MANY or a DELETE_MANY continues in
    /// the new table. A scan ends.
    ///
    /// # Errors
    /// `TableNotFound`, `TooManyTables`, `Busy`. It needs no memory that is not about to be free.
    pub fn replace_table(&mut self, name: &[u8]) -> Result<(), Refusal> {
        let Self { session, guard, .. } = self;
        session.check_latch(name)?;
        session.check_disk(name, guard)?;
        let is_admitted = session.access.seat.is_in_transaction;
        let (new, old) =
            session.when_taken_down(name, |catalog, record| catalog.replace(name, is_admitted, record, guard))?;
        session.charge_new(new);
        session.take_down(old);
        Ok(())
    }

    /// Whether a transaction may replace the table of this name so often, or as often as a name may at all. The session
    /// holds its latch.
    ///
    /// # Errors
    /// `Busy` while too many tables are being taken down. The latch is released.
    pub fn admit_replacements(&mut self, name: &[u8], times: usize) -> Result<(), Refusal> {
        let admitted = self.session.when_taken_down(name, |catalog, _| catalog.admit_replacements(name, times));
        if admitted.is_err() {
            self.session.give_up_latch();
        }
        admitted
    }

    /// Deletes a table. Its elements are deleted in the background, and each deletion is announced.
    ///
    /// # Errors
    /// `TableNotFound`, `Busy`.
    pub fn delete_table(&mut self, name: &[u8]) -> Result<(), Refusal> {
        self.session.check_latch(name)?;
        self.session.check_disk(name, &self.guard)?;
        let Session { shared, effects, .. } = &mut *self.session;
        let deleted = shared.catalog.delete(name, &mut |old, new| effects.record_tables(old, new), &self.guard);
        effects.leave();
        effects.await_name(name, None);
        let table = deleted.ok_or(Refusal::TableNotFound)?;
        self.session.take_down(table);
        Ok(())
    }

    /// As [`Tables::set_eviction`](crate::tables::Tables::set_eviction).
    pub fn set_eviction(&self, policy: EvictionPolicy) {
        self.session.shared.set_eviction(policy, &self.guard);
    }

    /// Whether changes of this table are recorded.
    ///
    /// # Errors
    /// `TableNotFound`, `Busy`.
    pub fn is_durable(&mut self, name: &[u8]) -> Result<bool, Refusal> {
        self.on(name, |_, table| Ok(table.is_durable()))
    }

    /// The durability of tables that do not say.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.session.shared.durability
    }

    /// The policy of tables that do not say.
    #[must_use]
    pub fn eviction(&self) -> EvictionPolicy {
        self.session.shared.catalog.eviction.policy()
    }

    /// The number of elements of a table, including those whose deadline has just passed.
    ///
    /// # Errors
    /// `TableNotFound`.
    pub fn count(&mut self, name: &[u8]) -> Result<u64, Refusal> {
        self.on(name, |_, table| Ok(table.summary().elements))
    }

    /// All tables, in the order of their names.
    #[must_use]
    pub fn list_tables(&mut self) -> Vec<TableSummary> {
        let summaries = self.session.shared.summaries(&self.guard);
        self.await_names();
        summaries
    }
}

impl Session {
    /// Refuses an operation on a whole table as `Busy` while another session holds its latch.
    fn check_latch(&mut self, name: &[u8]) -> Result<(), Refusal> {
        if self.meets_latch(name) { Err(Refusal::Busy) } else { Ok(()) }
    }

    /// Refuses to take a durable table down when its log has failed.
    fn check_disk(&self, name: &[u8], guard: &Guard) -> Result<(), Refusal> {
        let is_durable = self.shared.catalog.find(name, guard).is_some_and(Table::is_durable);
        if is_durable && self.shared.epochs.stage() == LogStage::Failed { Err(Refusal::DiskFailed) } else { Ok(()) }
    }

    /// Makes a table. While too many are being taken down, it is refused as `Busy`, and the session watches the reaper.
    fn when_taken_down<R>(
        &mut self,
        name: &[u8],
        mut make: impl FnMut(&Catalog, RecordTables<'_>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let Self { shared, effects, .. } = self;
        self.wanted.resource = 0;
        loop {
            self.reaper_steps = shared.reaper.steps();
            let made = make(&shared.catalog, &mut |old, new| effects.record_tables(old, new));
            effects.leave();
            effects.await_name(name, None);
            // Registered at once, before a later attempt overwrites the count that this one waits for.
            let is_busy = matches!(made, Err(Refusal::Busy));
            if !is_busy || !shared.reaper.watch(self.reaper_steps, self.writer.sleeper()) {
                return made;
            }
        }
    }

    /// Charges the memory of a table that this session has made.
    fn charge_new(&mut self, table: &Table) {
        let index = table.index().take_growth();
        table.count_bytes(index);
        self.local_budget.add(&self.shared.memory_budget, table_bytes(table.announced_name()) + index);
    }

    /// Hands a closed table to the reaper.
    fn take_down(&mut self, table: Arc<Table>) {
        self.shared.memory_budget.leave(table.note_leaving());
        self.pending_sends.take_down(&self.shared, table);
    }
}
