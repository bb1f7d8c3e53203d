//! The way to the reaper: its messages, and the threads that wait for its progress.
//!
//! The queue is bounded. The reaper always empties it, so a sender that finds it full waits shortly, and without a
//! guard.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};

use super::super::TablesShared;
use super::super::sleeper::Sleeper;
use super::super::slot::SlotHandle;
use super::super::table::Table;
use crate::limits::DEAD_MAX;
use crate::lock::{Mutex, MutexGuard};
use crate::stats::SharedCounter;

/// A message to the reaper.
pub(super) enum ReaperMessage {
    /// A dead slot whose changes are all announced, and the number of its table. It counts as unsettled until it is out
    /// of the index.
    Retire(SlotHandle, u32),
    /// A table was deleted.
    TakeDown(Arc<Table>),
    /// All slots of the deleted table of this number are dead and announced.
    Settled(u32),
    /// Credits have come back, or elements are to be evicted.
    Continue,
    /// The workers delete no more. The reaper seals the deleted tables, so that subscribers are notified, and ends.
    Close,
}

/// The sending side of the reaper, shared by all threads.
pub(in crate::tables) struct ReaperSender {
    pub(super) sender: Sender<ReaperMessage>,
    /// Slots that were removed from their indexes. Added to by the reaper.
    pub(super) reaped: SharedCounter,
    progress: Mutex<ReaperProgress>,
}

/// The progress of the reaper, for threads that wait for it.
#[derive(Default)]
struct ReaperProgress {
    /// Tables that have been taken down: their names have room for others.
    taken_down: u64,
    /// Those of them whose memory has been given back.
    freed: u64,
    /// Woken when one of both grows.
    sleepers: Vec<Arc<Sleeper>>,
}

impl ReaperProgress {
    fn steps(&self) -> u64 {
        self.taken_down + self.freed
    }
}

impl ReaperSender {
    pub(in crate::tables) fn new() -> (Self, ReaperInbox) {
        let (sender, receiver) = bounded(DEAD_MAX);
        (Self { sender, reaped: SharedCounter::new(), progress: Mutex::default() }, ReaperInbox(receiver))
    }

    fn send(&self, work: ReaperMessage) {
        // An error means that the reaper has ended: the server is shutting down, and the process's end frees the
        // memory.
        let _ended = self.sender.send(work);
    }

    /// A table was deleted.
    ///
    /// # Errors
    /// The table comes back if the queue is full.
    pub(in crate::tables) fn try_take_down(&self, table: Arc<Table>) -> Result<(), Arc<Table>> {
        match self.sender.try_send(ReaperMessage::TakeDown(table)) {
            Err(TrySendError::Full(ReaperMessage::TakeDown(table))) => Err(table),
            // The message was sent, or the reaper has ended, as in `send`.
            _ => Ok(()),
        }
    }

    /// The last hold on a closed table was released. False: the queue is full.
    pub(in crate::tables) fn try_settled(&self, table: u32) -> bool {
        !matches!(self.sender.try_send(ReaperMessage::Settled(table)), Err(TrySendError::Full(_)))
    }

    /// A table was deleted. Waits for room; the caller holds no guard.
    pub(in crate::tables) fn take_down(&self, table: Arc<Table>) {
        self.send(ReaperMessage::TakeDown(table));
    }

    /// The last hold on a closed table was released. Waits for room; the caller holds no guard.
    pub(in crate::tables) fn settled(&self, table: u32) {
        self.send(ReaperMessage::Settled(table));
    }

    /// Has the reaper look around. If the queue is full, it does so anyway.
    pub(in crate::tables) fn nudge(&self) {
        drop(self.sender.try_send(ReaperMessage::Continue));
    }

    pub(in crate::tables) fn close(&self) {
        self.send(ReaperMessage::Close);
    }

    /// Slots that were removed from their indexes.
    pub(in crate::tables) fn reaped(&self) -> u64 {
        self.reaped.get()
    }

    fn progress(&self) -> MutexGuard<'_, ReaperProgress> {
        self.progress.lock()
    }

    /// How far the reaper has come with tables: a number that grows when one is taken down, and when its memory is given
    /// back.
    pub(in crate::tables) fn steps(&self) -> u64 {
        self.progress().steps()
    }

    /// The number of tables that have been taken down.
    #[cfg(test)]
    pub(in crate::tables) fn taken_down(&self) -> u64 {
        self.progress().taken_down
    }

    /// Whether more than `before` [`steps`](Self::steps) are done. If not, the next one wakes `sleeper`, once.
    ///
    /// The session read `before` before its attempt, and the reaper counts a table after `Catalog::forget` and
    /// `ClosingTables::note_freed`. Both take the lock. If the count comes first, this call sees it, and the attempt is worth another try. If this call comes
    /// first, the count finds `sleeper` and wakes it.
    pub(in crate::tables) fn watch(&self, before: u64, sleeper: &Arc<Sleeper>) -> bool {
        let mut progress = self.progress();
        if progress.steps() > before {
            return true;
        }
        if !progress.sleepers.iter().any(|other| Arc::ptr_eq(other, sleeper)) {
            progress.sleepers.push(Arc::clone(sleeper));
        }
        false
    }

    /// A table has been taken down, so its name has room for another.
    pub(super) fn note_taken_down(&self) {
        self.advance(|progress| progress.taken_down += 1);
    }

    /// The memory of a table has been given back, so there is room for another to be taken down.
    pub(super) fn note_freed(&self) {
        self.advance(|progress| progress.freed += 1);
    }

    fn advance(&self, count: impl FnOnce(&mut ReaperProgress)) {
        let mut progress = self.progress();
        count(&mut progress);
        let sleepers = std::mem::take(&mut progress.sleepers);
        drop(progress);
        sleepers.iter().for_each(|sleeper| sleeper.wake());
    }
}

/// The receiving end of [`ReaperSender`].
pub(in crate::tables) struct ReaperInbox(pub(super) Receiver<ReaperMessage>);

/// The publisher's way to the reaper.
pub(in crate::tables) struct RetireSender(pub(in crate::tables) Arc<TablesShared>);

impl RetireSender {
    /// `slot` is dead, and all its changes are announced. The publisher is the only thread that hands it over. The slot
    /// keeps its table, of this number, unsettled.
    pub(in crate::tables) fn retire_slot(&self, slot: SlotHandle, table: u32) {
        self.0.reaper.send(ReaperMessage::Retire(slot, table));
    }

    /// All slots of the table of this number are dead and announced.
    pub(in crate::tables) fn settle_table(&self, table: u32) {
        self.0.reaper.settled(table);
    }
}
