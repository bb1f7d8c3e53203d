//! ALTER_TABLE, step by step. Each call sees how far the table has come, whoever has brought it there.
//!
//! ```text
//! the log is opened ─► begin ─► a portion is copied, others have their turns, again … ─► the record of the table ─► the
//! answer waits until that is on disk
//! ```
//! This file records nothing: see `durable/altering.rs`.

use super::{Batch, LOG, ManyProgress, Session};
use crate::tables::{Durability, Refusal};

impl Batch<'_> {
    /// Changes what is on disk of a table. `progress` is that of this request, or new.
    ///
    /// A table that cannot become durable is in memory as before.
    ///
    /// # Errors
    /// `TableNotFound`, `OutOfDisk`, `DiskFailed`, `Busy`. `Unfinished`: it is called again after others had their turns.
    pub fn alter_table(
        &mut self,
        name: &[u8],
        durability: Durability,
        progress: &mut ManyProgress,
    ) -> Result<(), Refusal> {
        if let Some(refusal) = progress.refusal() {
            return self.give_up(name, refusal);
        }
        match self.step(name, durability) {
            Err(refusal @ (Refusal::OutOfDisk | Refusal::DiskFailed)) => {
                progress.refuse(refusal);
                self.give_up(name, refusal)
            }
            outcome => outcome,
        }
    }

    /// Makes the next step.
    fn step(&mut self, name: &[u8], said: Durability) -> Result<(), Refusal> {
        let Self { session, guard, .. } = self;
        let table = session.reach(name, guard)?;
        let state = &table.durability;
        let (is_coming, is_said) = (state.is_coming(), state.said() == said);
        if is_said && !is_coming {
            session.effects.await_epoch(state.epoch());
            return Ok(());
        }
        if said == Durability::Always && !table.audience.keep_changes() {
            return Err(session.ops(guard, self.now).again());
        }
        if !session.effects.has_log()? {
            session.wanted.resource = LOG;
            return Err(Refusal::Busy);
        }
        if is_said && state.walked().is_some() {
            self.on(name, |ops, table| ops.copy_some(table))?;
        } else {
            self.change(name, Some(said))?;
        }
        Err(Refusal::Unfinished)
    }

    /// The table has not become durable, and the request is refused when it is in memory as before.
    fn give_up(&mut self, name: &[u8], refusal: Refusal) -> Result<(), Refusal> {
        let Self { session, guard, .. } = self;
        let is_coming = session.reach(name, guard).map(|table| table.durability.is_coming());
        match is_coming {
            Err(Refusal::Busy) => return Err(Refusal::Busy),
            Ok(true) => self.change(name, Some(Durability::None))?,
            Ok(false) | Err(_) => {}
        }
        Err(refusal)
    }

    /// Makes the next step for a client that is gone, towards what it has said last. If that cannot be done, the table is in
    /// memory again.
    ///
    /// # Errors
    /// As [`Batch::alter_table`].
    pub(in crate::tables) fn finish_altering(&mut self, name: &[u8]) -> Result<(), Refusal> {
        let Self { session, guard, .. } = self;
        let table = session.reach(name, guard)?;
        let step = match table.durability.walked() {
            Some(_) => self.on(name, |ops, table| ops.copy_some(table)),
            None => self.change(name, None),
        };
        match step {
            Err(refusal @ (Refusal::OutOfDisk | Refusal::DiskFailed)) => self.give_up(name, refusal),
            outcome => outcome,
        }
    }

    /// Makes a step under the latch of the name, which no batch of before outlasts. Without a word the step leads
    /// to what was said last.
    fn change(&mut self, name: &[u8], said: Option<Durability>) -> Result<(), Refusal> {
        self.latch(&[name])?;
        let Self { session, guard, .. } = self;
        let Session { shared, effects, .. } = &mut **session;
        let catalog = &shared.catalog;
        let changed = catalog.alter(name, guard, |table| {
            let said = said.unwrap_or_else(|| table.durability.said());
            effects.alter(table, said, || catalog.next_generation());
        });
        effects.leave();
        session.give_up_latch();
        // It finishes what this client leaves.
        session.shared.reaper.nudge();
        changed
    }
}
