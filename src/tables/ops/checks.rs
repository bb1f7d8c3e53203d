//! What a write is judged by before its CAS: credits, memory, whether the table is open, the expected version.
//!
//! This file changes no element.

use super::{Admission, CREDITS_PER_WRITE, LATCH, MEMORY, Ops, Wanted, Write, growth, timer_bytes};
use crate::tables::Deadline;
use crate::tables::Refusal;
use crate::tables::lookup::{Found, look};
use crate::tables::memory_budget::{entry_bytes, extension_bytes, slot_bytes};
use crate::tables::slot::NEVER;
use crate::tables::table::{Table, canonical};

impl Ops<'_> {
    /// Returns `Busy` unless there are `count` credits.
    pub(in crate::tables) fn credits(&mut self, count: usize) -> Result<(), Refusal> {
        if self.writer.credits(count) >= count {
            return Ok(());
        }
        if self.writer.kept() > 0 {
            // A transaction of this session waits for its latch. The change comes behind it.
            self.wanted.resource = LATCH;
            return Err(Refusal::Busy);
        }
        self.wanted.resource = count.max(CREDITS_PER_WRITE).min(self.writer.capacity());
        self.wanted.credits = self.wanted.resource;
        Err(Refusal::Busy)
    }

    /// Refuses a write whose bytes do not fit into memory, or that has to wait for a look of the compactor.
    pub(in crate::tables) fn admit(&mut self, bytes: i64) -> Result<(), Refusal> {
        if self.admission == Admission::Given {
            return Ok(());
        }
        if let Some(looks) = self.local_budget.awaited_look()
            && self.awaits_look(looks)
        {
            self.wanted.resource = MEMORY;
            return Err(Refusal::Busy);
        }
        if self.admission == Admission::Counted {
            return Ok(());
        }
        let refusal = self.shared.admit(self.local_budget, bytes);
        if refusal == Err(Refusal::Busy) {
            self.wanted.resource = MEMORY;
        }
        refusal
    }

    #[cold]
    fn awaits_look(&mut self, looks: u64) -> bool {
        let awaits = self.shared.compactor.looks() == looks;
        if awaits {
            self.shared.compactor.want_look();
        } else {
            self.local_budget.end_wait();
        }
        awaits
    }

    /// Whether a session holds the latch of this table. This one holds none.
    pub(in crate::tables) fn is_latched(&self, table: &Table) -> bool {
        self.shared.catalog.latches.is_latched(canonical(table.announced_name()), None)
    }

    /// Judges an absence that the caller has just seen: the table must be open, and an absence expected.
    pub(super) fn check_absent(&mut self, table: &Table, expected: Option<u64>) -> Result<(), Refusal> {
        if table.is_closed() {
            return Err(self.refuse_closed(table));
        }
        check(expected, 0)
    }

    /// Refuses a write that found the table closed. If another life has taken its place, it is tried again there.
    #[cold]
    pub(super) fn refuse_closed(&mut self, table: &Table) -> Refusal {
        if table.is_replaced() { self.again() } else { Refusal::TableNotFound }
    }

    /// The refusal of a write that is to be tried again at once: it waits for one credit, as a rule without delay.
    #[cold]
    pub(in crate::tables) fn again(&mut self) -> Refusal {
        *self.wanted = Wanted { resource: 1, credits: 1 };
        Refusal::Busy
    }

    /// The bytes that all pairs together cost beyond the present elements, and the number of pairs.
    pub(in crate::tables) fn cost_of_pairs<'p>(
        &self,
        table: &Table,
        pairs: impl Iterator<Item = (&'p [u8], &'p [u8])>,
        deadline: Deadline,
    ) -> (i64, usize) {
        let mut cost = 0;
        let mut count = 0;
        for (key, value) in pairs {
            count += 1;
            cost += self.cost(table, &Write::update(key, value, deadline));
        }
        (cost, count)
    }

    /// The bytes that a write costs beyond the present element of its key.
    fn cost(&self, table: &Table, write: &Write<'_>) -> i64 {
        let (slot, old) = match look(table, write.key, self.place, self.guard, self.now) {
            Found::Live { slot, entry, .. } | Found::Overdue { slot, entry, .. } => (Some(slot), Some(entry)),
            Found::Absent { slot, .. } => (Some(slot), None),
            Found::NoSlot => (None, None),
        };
        let deadline = write.deadline.of_successor(old);
        let slot = match slot {
            Some(slot) => extension_bytes(slot, deadline),
            None => slot_bytes(write.key.len(), deadline != NEVER),
        };
        slot + growth(entry_bytes(write.value.len()), old) + timer_bytes(deadline, old)
    }
}

/// Whether the element has the version that is expected.
pub(super) fn check(expected: Option<u64>, current: u64) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != current => Err(Refusal::VersionMismatch { current }),
        _ => Ok(()),
    }
}
