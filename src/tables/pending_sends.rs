//! Messages of a session that found the queue of the expiry thread or of the reaper full.
//!
//! A thread that holds a guard does not wait: meanwhile all memory that any thread replaces would pile up. So a message
//! that finds no room is kept, and the session sends it after the batch has released its guard. It may come later than
//! messages of other sessions:
//!
//! - A due message carries the slot and no deadline. When it comes late, or as one of several of its slot
//!   (`SlotRef::arm`), the expiry thread reads the deadline that the slot has then. The element is absent from its
//!   deadline on by every clock. Only the freeing of the memory and the notification are late, by one batch at most.
//! - A cancellation may overtake a due message of the same slot, or be overtaken by it. The slot is dead, so the expiry
//!   thread files no record for the due message (`SlotRef::take_due`).
//! - `Settled` of a table comes after its `TakeDown`: a table settles only after the reaper has walked through it.

use std::sync::Arc;

use super::TablesShared;
use super::slot::SlotHandle;
use super::table::Table;

/// A message that is still to be sent.
enum PendingSend {
    Arm(SlotHandle, u64),
    Cancel(SlotHandle),
    TakeDown(Arc<Table>),
    /// The number of the table, which keeps it until it is forgotten.
    Settled(u32),
}

/// The messages that one session has kept.
#[derive(Default)]
pub(super) struct PendingSends(Vec<PendingSend>);

impl PendingSends {
    /// Sends or keeps a due message: a slot has an earlier deadline than the wheel knows.
    pub(super) fn arm(&mut self, shared: &TablesShared, slot: SlotHandle, deadline: u64) {
        if let Err(slot) = shared.expiry.try_arm(slot, deadline) {
            self.0.push(PendingSend::Arm(slot, deadline));
        }
    }

    /// Keeps a message: a slot that the wheel may have a record of has moved.
    pub(super) fn cancel(&mut self, slot: SlotHandle) {
        self.0.push(PendingSend::Cancel(slot));
    }

    /// Sends or keeps a message: a table was deleted.
    pub(super) fn take_down(&mut self, shared: &TablesShared, table: Arc<Table>) {
        if let Err(table) = shared.reaper.try_take_down(table) {
            self.0.push(PendingSend::TakeDown(table));
        }
    }

    /// Sends or keeps a message: the last hold on a closed table was released.
    pub(super) fn settled(&mut self, shared: &TablesShared, table: u32) {
        if !shared.reaper.try_settled(table) {
            self.0.push(PendingSend::Settled(table));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends the kept messages, and waits for room. The caller holds no guard.
    pub(super) fn run(&mut self, shared: &TablesShared) {
        for message in self.0.drain(..) {
            match message {
                PendingSend::Arm(slot, deadline) => shared.expiry.arm(slot, deadline),
                PendingSend::Cancel(slot) => shared.expiry.cancel(slot),
                PendingSend::TakeDown(table) => shared.reaper.take_down(table),
                PendingSend::Settled(table) => shared.reaper.settled(table),
            }
        }
    }
}
