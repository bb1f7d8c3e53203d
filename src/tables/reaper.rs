//! The reaper removes dead slots from their tables, and takes deleted tables down piece by piece.
//!
//! The reaper always empties its queue, whatever else it has to do, so that no sender waits for long. It commits no
//! change but the sealing of deleted tables, evictions (`eviction.rs`), and the rest of an ALTER_TABLE whose client is gone
//! (`finisher.rs`).
//!
//! ```text
//! publisher: a deletion was announced, and the slot died ──► floor raised ─► out of the index ─► record cancelled
//! DELETE_TABLE ──► sealing: each slot ends, each element is announced ──► settled (all announced)
//!                                                              ──► emptying: slots freed ──► forgotten, number free
//!                                                              ──► no guard shows it ──► its index freed
//! ```
//!
//! # Races
//!
//! Each is written out where it is handled. The other thread's side is at the functions that are named there.
//!
//! | between the reaper and | at |
//! |---|---|
//! | a writer, while a dead slot leaves the index | [`Reaper::retire_dead`] |
//! | a writer, the compactor and the publisher, while a deleted table is sealed | [`Reaper::seal_some`] |
//! | a writer of a younger table of the name, while the older one is emptied | [`Reaper::empty_some`] |
//! | a thread that knows the number of a table that is forgotten | [`Reaper::forget`] |
//! | a thread that still shows a forgotten table | `LeavingTable::dismantle` |
//! | a session that waits for a table to be taken down | `ReaperSender::watch` |
//! | the expiry thread, over the record of a dead slot | `SlotRef::is_armed` |

mod evictor;
mod finisher;
mod sender;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crossbeam::channel::RecvTimeoutError;
use crossbeam::epoch::{self, Guard};

use super::TablesShared;
use super::batch::Session;
use super::catalog::table_bytes;
use super::change::WAIT_RECHECK;
use super::failpoint::{Failpoint, reach};
use super::index::{CELLS, IndexPart};
use super::memory_budget::{settle, unsigned};
use super::slot::{SlotHandle, SlotRef};
use super::table::Table;
use crate::clock::Now;
use crate::limits::{DEAD_MAX, REAPER_CHUNK, SEALING_MAX};
use evictor::{Evictor, EvictorNeeds};
use finisher::Finisher;
use sender::ReaperMessage;
pub(super) use sender::{ReaperInbox, ReaperSender, RetireSender};

/// How long the reaper waits for other threads to release a table or a latch before it looks again.
const RECHECK: Duration = Duration::from_millis(1);

/// Parts of an index, of up to 8 KiB each, that the reaper frees in one turn: less than half a millisecond.
const PARTS_FREED: usize = 32;
/// Forgotten tables that it looks at in one turn.
const TABLES_FREED: usize = 64;
/// What a table costs in one piece of work beside its slots, in slots.
const TABLE_COST: usize = 8;

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
    /// Parts of the index that are still to be freed. `None`: other threads may see the table.
    parts: Option<Vec<IndexPart>>,
}

impl LeavingTable {
    /// Frees a piece of the table, of `left` parts at most, if no other thread sees it any more. True: only the structure
    /// is left.
    ///
    /// **A thread that shares the table** takes its reference from the registry, under a guard, or from the name's
    /// history, under the lock. `Catalog::forget` has taken the table out of both, and the registry's reference is
    /// dropped after all guards that may have seen it. So a thread shares before this call finds the count at one, and
    /// has dropped its reference by then, or it does not find the table. The count stays one: one check is enough.
    fn dismantle(&mut self, left: &mut usize) -> bool {
        if self.parts.is_none() {
            if Arc::strong_count(&self.table) > 1 {
                return false;
            }
            // Acquire: pairs with the Release in the drop of each other `Arc`: of the registry, of the name's history,
            // of a session that shared the table. Their threads' last reads of the index come before it is freed.
            fence(Ordering::Acquire);
        }
        let index = self.table.index();
        let parts = self.parts.get_or_insert_with(|| index.removable());
        let some = parts.split_off(parts.len().saturating_sub(*left));
        *left -= some.len();
        index.remove(&some);
        parts.is_empty()
    }
}

/// The work of the reaper thread. One thread owns it.
pub struct Reaper {
    shared: Arc<TablesShared>,
    session: Session,
    inbox: ReaperInbox,
    /// Dead slots that have arrived and are still in their indexes, with the numbers of their tables.
    dead: Vec<(SlotHandle, u32)>,
    sealing: VecDeque<Walk>,
    emptying: VecDeque<Walk>,
    /// Forgotten tables that a guard may still show. The reaper frees the rest of them, so that no worker has to.
    leaving: VecDeque<LeavingTable>,
    evictor: Evictor,
    finisher: Finisher,
    closing: bool,
    /// The last reading of the clock.
    now: Now,
}

impl Reaper {
    pub(super) fn new(shared: &Arc<TablesShared>, inbox: ReaperInbox) -> Self {
        let mut session = Session::new(Arc::clone(shared));
        let sender = shared.reaper.sender.clone();
        // If the queue is full, the message is dropped: the reaper has enough messages to look around anyway.
        session.set_waker(Box::new(move || drop(sender.try_send(ReaperMessage::Continue))));
        Self {
            shared: Arc::clone(shared),
            session,
            inbox,
            dead: Vec::new(),
            sealing: VecDeque::new(),
            emptying: VecDeque::new(),
            leaving: VecDeque::new(),
            evictor: Evictor::default(),
            finisher: Finisher::default(),
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
        let needs = self.evictor.needs();
        let is_idle = self.sealing.is_empty() && needs != EvictorNeeds::Turn && !self.closing;
        let is_calm = self.leaving.is_empty() && needs == EvictorNeeds::Nothing;
        let patience = || self.session.patience().min(self.finisher.patience());
        let timeout = || if is_calm { patience() } else { RECHECK };
        is_idle.then(timeout)
    }

    /// What the loop does behind each step.
    #[cfg(test)]
    pub(super) fn rest_session(&mut self, now: Now) {
        self.session.rest(now);
    }

    #[cfg(test)]
    pub(super) fn is_rid_of_all(&self) -> bool {
        self.sealing.is_empty() && self.emptying.is_empty() && self.leaving.is_empty()
    }

    /// Does one piece of each kind of work. False: it is out of credits.
    pub(super) fn step(&mut self, now: Now) -> bool {
        self.now = now;
        self.receive();
        if !self.closing {
            self.finisher.step(&self.shared, &mut self.session, now);
        }
        let sealed = self.seal_some(now);
        let evicted = self.closing || self.evictor.step(&self.shared, &mut self.session, now);
        self.empty_some(now);
        self.free_some();
        sealed && evicted
    }

    /// Waits for a message, at most for `timeout`. No message reports that other threads have released a table, or that
    /// memory is to be freed.
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
            ReaperMessage::Retire(slot, table) => self.dead.push((slot, table)),
            ReaperMessage::TakeDown(table) => self.sealing.push_back(Walk::over(table)),
            ReaperMessage::Settled(number) => self.settled(number),
            ReaperMessage::Continue => {}
            ReaperMessage::Close => self.closing = true,
        }
    }

    /// A settled table stays registered until the reaper forgets it.
    fn settled(&mut self, number: u32) {
        let table = self.shared.catalog.registry().share(number, &epoch::pin());
        if let Some(table) = table {
            self.begin_emptying(table);
        }
    }

    /// The table's last change is announced. The publisher reports the end in the feed.
    fn begin_emptying(&mut self, table: Arc<Table>) {
        if let Some(feed) = &self.shared.feed {
            feed.note_dropped(&table);
            self.shared.change_queue.nudge();
        }
        self.emptying.push_back(Walk::over(table));
    }

    /// Removes the dead slots that have arrived from their indexes. The reaper raises the floor before that, once for
    /// all of them.
    ///
    /// A writer may create the same key meanwhile (`Ops::create`). Both take the bucket's lock:
    ///
    /// - **The writer comes first.** It finds the dead slot, starts above its version, and shows its own slot in the
    ///   same cell. The reaper then finds another slot there, and takes nothing out (`Table::leave`).
    /// - **The reaper comes first.** The writer finds no slot of the key. It reads the floor under the lock that the
    ///   reaper has released since, so it starts above the dead slot.
    ///
    /// The publisher alone hands a slot over, once (`Changes::retire`), and it holds the table unsettled until here. So
    /// the table is registered. The handles keep the slots while the reaper, without a guard, cancels their records.
    fn retire_dead(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        let mut batch = self.session.batch(self.now);
        let mut ops = batch.ops();
        self.shared.catalog.floor.raise(highest_version(dead.iter().map(|(slot, _)| slot), ops.guard));
        let mut settled = Vec::new();
        for (handle, number) in &dead {
            let slot = handle.slot();
            let Some(table) = self.shared.catalog.registry().get(*number, ops.guard) else {
                unreachable!("a slot on its way to the reaper holds its table unsettled, and so registered");
            };
            table.versions.note_left(slot.load(ops.guard).version());
            table.leave(slot, ops.guard);
            let cost = settle(slot);
            table.count_bytes(-cost);
            ops.local_budget.add(&self.shared.memory_budget, -cost);
            ops.count_retired(unsigned(cost));
            if table.release_unsettled() {
                settled.push(table.number());
            }
        }
        drop(batch);
        dead.iter().for_each(|(handle, _)| part(&self.shared, handle.slot()));
        settled.into_iter().for_each(|number| self.settled(number));
    }

    /// Seals a piece of one deleted table, or several small ones. False: it is out of credits.
    fn seal_some(&mut self, now: Now) -> bool {
        let mut left = REAPER_CHUNK;
        while left > 0
            && let Some(walk) = self.sealing.pop_front()
        {
            if !self.seal_piece(walk, now, &mut left) {
                return false;
            }
        }
        true
    }

    /// Seals up to `left` slots of a deleted table. Tables take turns, so that small ones do not wait for large ones.
    /// False: it is out of credits.
    ///
    /// The table was closed before its message came. The walk visits each bucket once, under the bucket's lock:
    ///
    /// - **A writer inserts a slot.** It asks under the same lock whether the table is open (`Table::enter`). If it
    ///   comes first, the visit finds its slot. If the visit comes first, the writer finds the table closed.
    /// - **A writer splits the bucket.** It has asked the same, before the split. If it comes first, the visit finds
    ///   the raised depth, and with it the new bucket. If the visit comes first, no split follows.
    /// - **The compactor moves a slot.** It asks the same, under the same lock (`Compactor::move_slots`). If it comes
    ///   first, the visit finds the new slot. If the visit comes first, the slot stays.
    ///
    /// After the visit, without the lock, other threads may change, retire or seal a slot: `Ops::seal` has those races.
    /// The last bucket releases the hold that the table began with. The holds of changes that are not announced remain,
    /// and their last release settles the table (`Table::release_unsettled`).
    fn seal_piece(&mut self, mut walk: Walk, now: Now, left: &mut usize) -> bool {
        let mut batch = self.session.batch(now);
        let mut ops = batch.ops();
        let mut slots = Vec::with_capacity(CELLS);
        while *left > 0 {
            if ops.credits(CELLS).is_err() {
                self.sealing.push_front(walk);
                return false;
            }
            let Some(number) = walk.buckets.pop() else {
                *left = left.saturating_sub(TABLE_COST);
                if walk.table.release_unsettled() {
                    drop(batch);
                    self.begin_emptying(walk.table);
                }
                return true;
            };
            walk.table.index().visit(number, ops.guard, &mut walk.buckets, |slot| slots.push(slot));
            *left = left.saturating_sub(slots.len() + 1);
            for slot in slots.drain(..) {
                let sealed = ops.seal(&walk.table, slot);
                debug_assert!(sealed.is_ok(), "a bucket's worth of credits was there");
            }
        }
        self.sealing.push_back(walk);
        true
    }

    /// Frees the slots of a piece of one settled table, or of several small ones.
    fn empty_some(&mut self, now: Now) {
        let mut left = REAPER_CHUNK;
        while left > 0
            && let Some(walk) = self.emptying.pop_front()
        {
            left = left.saturating_sub(TABLE_COST + self.empty_piece(walk, now, left));
        }
    }

    /// Frees up to about `most` slots of one settled table, and returns how many slots and buckets they were. Tables take
    /// turns. The reaper raises the floor before it clears the cells.
    ///
    /// The table is settled: all its slots are dead and announced, no slot comes in, and no thread changes a word. Two
    /// other threads still look for a key here:
    ///
    /// - **A writer of a younger table of the name** (`Ops::settle_in_predecessors`) takes the bucket's lock. If it
    ///   comes first, it finds the dead slot and starts above its version. If the clearing comes first, it finds none,
    ///   and then reads the floor, which was raised before this thread took the lock.
    /// - **The publisher** (`Table::unsettled_predecessor`) finds a dead slot whose last change is announced, or none.
    ///   Both mean that the key is settled here.
    fn empty_piece(&mut self, mut walk: Walk, now: Now, most: usize) -> usize {
        let mut batch = self.session.batch(now);
        let mut ops = batch.ops();
        let mut slots = Vec::with_capacity(CELLS);
        let mut buckets = Vec::new();
        while slots.len() + buckets.len() < most
            && let Some(number) = walk.buckets.pop()
        {
            walk.table.index().visit(number, ops.guard, &mut walk.buckets, |slot| slots.push(slot.handle()));
            buckets.push(number);
        }
        self.shared.catalog.floor.raise(highest_version(slots.iter(), ops.guard));
        for number in &buckets {
            walk.table.index().clear(*number, ops.guard);
            reach(Failpoint::SlotLeft);
        }
        for slot in slots.iter().map(SlotHandle::slot) {
            let cost = settle(slot);
            ops.local_budget.add(&self.shared.memory_budget, -cost);
            ops.count_retired(unsigned(cost));
        }
        drop(batch);
        slots.iter().for_each(|handle| part(&self.shared, handle.slot()));
        if walk.buckets.is_empty() {
            self.forget(walk.table);
        } else {
            self.emptying.push_back(walk);
        }
        slots.len() + buckets.len()
    }

    /// A settled table is empty. Its number becomes free, and its name loses one table.
    ///
    /// A session may have kept the number, and find no table or a younger one under it. It knows by the edition that
    /// the name has changed since (`Catalog::reach`). The expiry thread may have kept it in a record of a slot that is
    /// dead by now, and then changes nothing (`expiry.rs`). A thread that found the table before continues with it under
    /// its guard: the table is closed, and empty.
    fn forget(&mut self, table: Arc<Table>) {
        let mut batch = self.session.batch(self.now);
        let mut ops = batch.ops();
        self.shared.catalog.forget(&table, ops.guard);
        self.shared.memory_budget.leave(-table.leaving());
        self.shared.reaper.note_taken_down();
        let index = table.index();
        ops.local_budget
            .add(&self.shared.memory_budget, index.take_growth() - index.bytes() - table_bytes(table.announced_name()));
        ops.local_budget.settle(&self.shared.memory_budget);
        // The index is freed piece by piece later. Until then its bytes must not make room.
        ops.count_retired(unsigned(index.bytes()));
        drop(batch);
        self.shared.change_queue.nudge();
        self.leaving.push_back(LeavingTable { table, parts: None });
    }

    /// Frees a piece of one forgotten table, or several small ones. Tables take turns.
    fn free_some(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        // The registry's reference is dropped when the epochs have moved on. Each flush helps them to.
        epoch::pin().flush();
        let mut left = PARTS_FREED;
        for _ in 0..self.leaving.len().min(TABLES_FREED) {
            if left == 0 {
                return;
            }
            let Some(mut leaving) = self.leaving.pop_front() else { return };
            match leaving.dismantle(&mut left) {
                true => {
                    drop(leaving);
                    self.shared.catalog.closing.note_freed();
                    self.shared.reaper.note_freed();
                }
                false => self.leaving.push_back(leaving),
            }
        }
    }
}

/// The highest version of these slots. 0 if there are none.
fn highest_version<'s>(slots: impl Iterator<Item = &'s SlotHandle>, guard: &Guard) -> u64 {
    slots.map(|handle| handle.slot().load(guard).version()).max().unwrap_or(0)
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
