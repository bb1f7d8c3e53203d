//! What a session has to tell the expiry thread and the reaper, and could not while their queues were full.
//!
//! A thread that holds a guard waits for nothing: all memory that anybody replaces would pile up meanwhile. So a message
//! that finds no room is kept, and sent when the batch has let its guard go. That may be later than others' messages:
//!
//! - A due message carries no deadline, only the slot; one per slot is on its way at most (`SlotRef::arm`). Late, it finds
//!   the slot's deadline of then. The element is absent from its deadline on by every clock; what is late is that memory
//!   comes back and subscribers hear of it, and a batch is short.
//! - A cancellation may overtake a due message of the same slot, or be overtaken: the slot is dead, so the due message
//!   files nothing (`SlotRef::take_due`).
//! - That a table has settled comes after that it is to be taken down: it settles when the reaper has walked through it.

use std::sync::Arc;

use super::TablesShared;
use super::slot::SlotHandle;
use super::table::Table;

/// A message that is still to be sent.
enum PendingSend {
    Arm(SlotHandle, u64),
    TakeDown(Arc<Table>),
    /// By the table's number, which it keeps until it is forgotten.
    Settled(u32),
}

/// What one session has kept.
#[derive(Default)]
pub(super) struct PendingSends(Vec<PendingSend>);

impl PendingSends {
    /// A slot has an earlier deadline than the wheel knows.
    pub(super) fn arm(&mut self, shared: &TablesShared, slot: SlotHandle, deadline: u64) {
        if let Err(slot) = shared.expiry.try_arm(slot, deadline) {
            self.0.push(PendingSend::Arm(slot, deadline));
        }
    }

    /// A table was deleted.
    pub(super) fn take_down(&mut self, shared: &TablesShared, table: Arc<Table>) {
        if let Err(table) = shared.reaper.try_take_down(table) {
            self.0.push(PendingSend::TakeDown(table));
        }
    }

    /// The last hold on a closed table was released.
    pub(super) fn settled(&mut self, shared: &TablesShared, table: u32) {
        if !shared.reaper.try_settled(table) {
            self.0.push(PendingSend::Settled(table));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends what was kept, and waits for room. The caller holds no guard.
    pub(super) fn run(&mut self, shared: &TablesShared) {
        for errand in self.0.drain(..) {
            match errand {
                PendingSend::Arm(slot, deadline) => shared.expiry.arm(slot, deadline),
                PendingSend::TakeDown(table) => shared.reaper.take_down(table),
                PendingSend::Settled(table) => shared.reaper.settled(table),
            }
        }
    }
}
