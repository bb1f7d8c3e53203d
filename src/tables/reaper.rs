//! The reaper removes dead slots from their tables, and takes deleted tables down piece by piece.
//!
//! The reaper always empties its queue, whatever else it has to do, so that no sender waits for long. It commits no
//! change but the sealing of deleted tables.
//!
//! ```text
//! publisher: a deletion was announced, and the slot died ──► floor raised ─► out of the index ─► record cancelled
//! DELETE_TABLE ──► sealing: each slot ends, each element is announced ──► settled (all announced)
//!                                                              ──► emptying: slots freed ──► forgotten, number free
//!                                                              ──► no guard shows it ──► its index freed
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use crossbeam::epoch::{self, Guard};

use super::TablesShared;
use super::batch::Session;
use super::catalog::table_bytes;
use super::change::WAIT_RECHECK;
use super::failpoint::{Failpoint, reach};
use super::index::CELLS;
use super::memory_budget::slot_bytes;
use super::sleeper::Sleeper;
use super::slot::{SlotHandle, SlotRef};
use super::table::Table;
use crate::clock::Now;
use crate::limits::{DEAD_MAX, REAPER_CHUNK, SEALING_MAX};
use crate::lock::{Mutex, MutexGuard};
use crate::stats::SharedCounter;

/// How long the reaper waits for other threads to release a table before it looks again.
const RECHECK: Duration = Duration::from_millis(1);

/// Segments of an index, 8 KiB each, that the reaper frees in one turn: less than half a millisecond.
const SEGMENTS_FREED: usize = 32;

/// A message to the reaper.
enum ReaperMessage {
    /// A dead slot whose changes are all announced. It counts as unsettled until it is out of the index.
    Retire(SlotHandle),
    /// A table was deleted.
    TakeDown(Arc<Table>),
    /// All slots of the deleted table of this number are dead and announced.
    Settled(u32),
    /// Credits have come back.
    GoOn,
    /// The workers delete no more. The reaper seals the deleted tables, so that subscribers are notified, and ends.
    Close,
}

/// The sending side of the reaper, shared by all threads.
pub(super) struct ReaperSender {
    sender: Sender<ReaperMessage>,
    reaped: SharedCounter,
    progress: Mutex<ReaperProgress>,
}

/// The progress of the reaper, for threads that wait for it.
#[derive(Default)]
struct ReaperProgress {
    /// Tables that have been taken down.
    taken_down: u64,
    /// Woken when the next table is taken down.
    sleepers: Vec<Arc<Sleeper>>,
}

impl ReaperSender {
    pub(super) fn new() -> (Self, ReaperInbox) {
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
    pub(super) fn try_take_down(&self, table: Arc<Table>) -> Result<(), Arc<Table>> {
        match self.sender.try_send(ReaperMessage::TakeDown(table)) {
            Err(TrySendError::Full(ReaperMessage::TakeDown(table))) => Err(table),
            // The message was sent, or the reaper has ended, as in `send`.
            _ => Ok(()),
        }
    }

    /// The last hold on a closed table was released. False: the queue is full.
    pub(super) fn try_settled(&self, table: u32) -> bool {
        !matches!(self.sender.try_send(ReaperMessage::Settled(table)), Err(TrySendError::Full(_)))
    }

    /// A table was deleted. Waits for room; the caller holds no guard.
    pub(super) fn take_down(&self, table: Arc<Table>) {
        self.send(ReaperMessage::TakeDown(table));
    }

    /// The last hold on a closed table was released. Waits for room; the caller holds no guard.
    pub(super) fn settled(&self, table: u32) {
        self.send(ReaperMessage::Settled(table));
    }

    pub(super) fn close(&self) {
        self.send(ReaperMessage::Close);
    }

    /// Slots that were removed from their indexes.
    pub(super) fn reaped(&self) -> u64 {
        self.reaped.get()
    }

    fn progress(&self) -> MutexGuard<'_, ReaperProgress> {
        self.progress.lock()
    }

    /// The number of tables that have been taken down.
    pub(super) fn taken_down(&self) -> u64 {
        self.progress().taken_down
    }

    /// Whether more than `before` tables have been taken down. If not, the next one wakes `sleeper`, once.
    pub(super) fn watch(&self, before: u64, sleeper: &Arc<Sleeper>) -> bool {
        let mut progress = self.progress();
        if progress.taken_down > before {
            return true;
        }
        if !progress.sleepers.iter().any(|other| Arc::ptr_eq(other, sleeper)) {
            progress.sleepers.push(Arc::clone(sleeper));
        }
        false
    }

    /// A table has been taken down, so its name has room for another.
    fn note_taken_down(&self) {
        let mut progress = self.progress();
        progress.taken_down += 1;
        let sleepers = std::mem::take(&mut progress.sleepers);
        drop(progress);
        sleepers.iter().for_each(|sleeper| sleeper.wake());
    }
}

/// The receiving end of [`ReaperSender`].
pub(super) struct ReaperInbox(Receiver<ReaperMessage>);

/// The publisher's way to the reaper.
pub(super) struct RetireSender(pub(super) Arc<TablesShared>);

impl RetireSender {
    /// `slot` is dead, and all its changes are announced. The publisher is the only thread that hands it over. The slot
    /// keeps its table unsettled.
    pub(super) fn retire_slot(&self, slot: SlotHandle) {
        self.0.reaper.send(ReaperMessage::Retire(slot));
    }

    /// All slots of the table of this number are dead and announced.
    pub(super) fn settle_table(&self, table: u32) {
        self.0.reaper.settled(table);
    }
}

/// A walk over the buckets of a closed table.
struct Walk {
    table: Arc<Table>,
    /// Buckets to visit.
    buckets: Vec<u32>,
}

impl Walk {
    fn over(table: Arc<Table>) -> Self {
        Self { table, buckets: vec![0] }
    }
}

/// A table that is forgotten, and not freed yet.
struct LeavingTable {
    table: Arc<Table>,
    /// Segments of the index that are still to be freed. `None`: other threads may see the table.
    segments: Option<Vec<u32>>,
}

impl LeavingTable {
    /// Frees a piece of the table if no other thread sees it any more. True: only the structure is left.
    fn dismantle(&mut self) -> bool {
        if self.segments.is_none() {
            if Arc::strong_count(&self.table) > 1 {
                return false;
            }
            // Acquire: pairs with the Release of the other reference that was dropped last.
            fence(Ordering::Acquire);
        }
        let index = self.table.index();
        let segments = self.segments.get_or_insert_with(|| index.removable());
        index.remove(&segments.split_off(segments.len().saturating_sub(SEGMENTS_FREED)));
        segments.is_empty()
    }
}

/// The work of the reaper thread. One thread owns it.
pub struct Reaper {
    shared: Arc<TablesShared>,
    session: Session,
    inbox: ReaperInbox,
    /// Dead slots that have arrived and are still in their indexes.
    dead: Vec<SlotHandle>,
    sealing: VecDeque<Walk>,
    emptying: VecDeque<Walk>,
    /// Forgotten tables that a guard may still show. The reaper frees the rest of them, so that no worker has to.
    leaving: VecDeque<LeavingTable>,
    closing: bool,
    /// The last reading of the clock.
    now: Now,
}

impl Reaper {
    pub(super) fn new(shared: &Arc<TablesShared>, inbox: ReaperInbox) -> Self {
        let mut session = Session::new(Arc::clone(shared));
        let sender = shared.reaper.sender.clone();
        // If the queue is full, the message is dropped: the reaper has enough messages to look around anyway.
        session.set_waker(Box::new(move || drop(sender.try_send(ReaperMessage::GoOn))));
        Self {
            shared: Arc::clone(shared),
            session,
            inbox,
            dead: Vec::new(),
            sealing: VecDeque::new(),
            emptying: VecDeque::new(),
            leaving: VecDeque::new(),
            closing: false,
            now: Now::from_nanos(0),
        }
    }

    /// The loop of the reaper thread. Returns when the tables are closed and all elements of deleted tables are sealed,
    /// or when [`SEALING_MAX`] has passed since the tables were closed. Elements that are then left are not announced,
    /// like those of other tables. `now` reads the clock.
    pub fn run(mut self, mut now: impl FnMut() -> Now) {
        let mut end = None;
        while !(self.closing && self.sealing.is_empty()) {
            let now = now();
            if self.closing && now >= *end.get_or_insert_with(|| now.after(SEALING_MAX)) {
                break;
            }
            let has_credits = self.step(now);
            self.session.rest(now);
            if let Some(timeout) = self.idle_time(has_credits) {
                self.rest(timeout);
            }
        }
    }

    /// How long the reaper may wait for a message before its next step. `None`: it has work that it can do at once.
    pub(super) fn idle_time(&mut self, has_credits: bool) -> Option<Duration> {
        if !self.emptying.is_empty() {
            return None;
        }
        if !has_credits {
            return if self.session.watch() { None } else { Some(WAIT_RECHECK) };
        }
        let is_idle = self.sealing.is_empty() && !self.closing;
        let timeout = || if self.leaving.is_empty() { self.session.patience() } else { RECHECK };
        is_idle.then(timeout)
    }

    #[cfg(test)]
    pub(super) fn is_rid_of_all(&self) -> bool {
        self.sealing.is_empty() && self.emptying.is_empty() && self.leaving.is_empty()
    }

    /// Does one piece of each kind of work. False: it is out of credits.
    pub(super) fn step(&mut self, now: Now) -> bool {
        self.now = now;
        self.receive();
        let sealed = self.seal_some(now);
        self.empty_some(now);
        self.free_some();
        sealed
    }

    /// Waits for a message, at most for `timeout`. No message tells the reaper that other threads have released a
    /// table, or that memory is to be freed.
    fn rest(&mut self, timeout: Duration) {
        match self.inbox.0.recv_timeout(timeout) {
            Ok(work) => self.take(work),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.closing = true,
        }
    }

    /// Takes the messages that are in the queue now.
    fn receive(&mut self) {
        for _ in 0..DEAD_MAX {
            match self.inbox.0.try_recv() {
                Ok(work) => self.take(work),
                Err(_) => break,
            }
            if self.dead.len() >= REAPER_CHUNK {
                self.retire_dead();
            }
        }
        if !self.dead.is_empty() {
            self.retire_dead();
        }
    }

    fn take(&mut self, work: ReaperMessage) {
        match work {
            ReaperMessage::Retire(slot) => self.dead.push(slot),
            ReaperMessage::TakeDown(table) => self.sealing.push_back(Walk::over(table)),
            ReaperMessage::Settled(number) => self.settled(number),
            ReaperMessage::GoOn => {}
            ReaperMessage::Close => self.closing = true,
        }
    }

    /// A settled table stays registered until the reaper forgets it.
    fn settled(&mut self, number: u32) {
        let table = self.shared.catalog.registry().share(number, &epoch::pin());
        self.emptying.extend(table.map(Walk::over));
    }

    /// Removes the dead slots that have arrived from their indexes. The reaper raises the floor before that, once for
    /// all of them: a thread that misses one of the slots must start above it.
    fn retire_dead(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        let mut batch = self.session.batch(self.now);
        let mut ops = batch.ops();
        self.shared.catalog.raise_version_floor(highest_version(&dead, ops.guard));
        let mut settled = Vec::new();
        for slot in dead.iter().map(SlotHandle::slot) {
            let Some(table) = self.shared.catalog.registry().get(slot.table(), ops.guard) else {
                unreachable!("a slot on its way to the reaper holds its table unsettled, and so registered");
            };
            table.leave(slot, ops.guard);
            let cost = slot_bytes(slot.key().len());
            table.count_bytes(-cost);
            ops.local_budget.add(&self.shared.memory_budget, -cost);
            ops.count_retired(slot.bytes());
            if table.release_unsettled() {
                settled.push(table.number());
            }
        }
        drop(batch);
        dead.iter().for_each(|handle| part(&self.shared, handle.slot()));
        settled.into_iter().for_each(|number| self.settled(number));
    }

    /// Seals a piece of one deleted table. Tables take turns, so that small ones do not wait for large ones. False: it
    /// is out of credits.
    fn seal_some(&mut self, now: Now) -> bool {
        let Some(mut walk) = self.sealing.pop_front() else { return true };
        let mut batch = self.session.batch(now);
        let mut ops = batch.ops();
        let mut slots = Vec::with_capacity(CELLS);
        let mut sealed = 0;
        while sealed < REAPER_CHUNK {
            if ops.credits(CELLS).is_err() {
                self.sealing.push_front(walk);
                return false;
            }
            let Some(number) = walk.buckets.pop() else {
                if walk.table.release_unsettled() {
                    self.emptying.push_back(Walk::over(walk.table));
                }
                return true;
            };
            walk.table.index().visit(number, ops.guard, &mut walk.buckets, |slot| slots.push(slot));
            sealed += slots.len() + 1;
            for slot in slots.drain(..) {
                let sealed = ops.seal(&walk.table, slot);
                debug_assert!(sealed.is_ok(), "a bucket's worth of credits was there");
            }
        }
        self.sealing.push_back(walk);
        true
    }

    /// Frees a piece of one settled table. Tables take turns.
    fn empty_some(&mut self, now: Now) {
        let Some(mut walk) = self.emptying.pop_front() else { return };
        let mut batch = self.session.batch(now);
        let mut ops = batch.ops();
        let mut slots = Vec::with_capacity(REAPER_CHUNK + CELLS);
        let mut buckets = Vec::new();
        while slots.len() + buckets.len() < REAPER_CHUNK
            && let Some(number) = walk.buckets.pop()
        {
            walk.table.index().visit(number, ops.guard, &mut walk.buckets, |slot| slots.push(slot.handle()));
            buckets.push(number);
        }
        self.shared.catalog.raise_version_floor(highest_version(&slots, ops.guard));
        for number in &buckets {
            walk.table.index().clear(*number, ops.guard);
            reach(Failpoint::SlotLeft);
        }
        for slot in slots.iter().map(SlotHandle::slot) {
            ops.local_budget.add(&self.shared.memory_budget, -slot_bytes(slot.key().len()));
            ops.count_retired(slot.bytes());
        }
        drop(batch);
        slots.iter().for_each(|handle| part(&self.shared, handle.slot()));
        if walk.buckets.is_empty() {
            self.forget(walk.table);
        } else {
            self.emptying.push_back(walk);
        }
    }

    /// A settled table is empty. Its number becomes free, and its name loses one table.
    fn forget(&mut self, table: Arc<Table>) {
        let mut batch = self.session.batch(self.now);
        let ops = batch.ops();
        self.shared.catalog.forget(&table, ops.guard);
        self.shared.reaper.note_taken_down();
        let index = table.index();
        ops.local_budget
            .add(&self.shared.memory_budget, index.take_growth() - index.bytes() - table_bytes(table.announced_name()));
        ops.local_budget.settle(&self.shared.memory_budget);
        drop(batch);
        self.shared.change_queue.nudge();
        self.leaving.push_back(LeavingTable { table, segments: None });
    }

    /// Frees a piece of one forgotten table. Tables take turns.
    fn free_some(&mut self) {
        let Some(mut leaving) = self.leaving.pop_front() else { return };
        // The registry's reference is dropped when the epochs have moved on. Each flush helps them to.
        epoch::pin().flush();
        if !leaving.dismantle() {
            self.leaving.push_back(leaving);
        }
    }
}

/// The highest version of these slots. 0 if there are none.
fn highest_version(slots: &[SlotHandle], guard: &Guard) -> u64 {
    slots.iter().map(|handle| handle.slot().load(guard).version()).max().unwrap_or(0)
}

/// A dead slot leaves its index for good, and its record is cancelled. This may wait for room in the expiry queue; the
/// caller holds no guard.
fn part(shared: &TablesShared, slot: SlotRef<'_>) {
    if slot.is_armed() {
        shared.expiry.cancel(slot.handle());
    }
    shared.reaper.reaped.add(1);
}

#[cfg(test)]
mod tests;
