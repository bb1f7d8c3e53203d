//! The reaper: takes dead slots out of their tables, and takes deleted tables down, piece by piece.
//!
//! It always empties its queue, whatever else it has to do, so that nobody who sends to it waits for long. It commits
//! nothing but the sealing of deleted tables.
//!
//! ```text
//! publisher: a deletion was announced, and the slot died ──► floor raised ─► out of the index ─► record cancelled
//! DELETE_TABLE ──► sealing: each slot ends, each element is announced ──► settled (all announced)
//!                                                              ──► emptying: slots freed ──► forgotten, number free
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::Shared;
use super::account::{TABLE_BYTES, slot_bytes};
use super::announce::Undertaker;
use super::batch::Session;
use super::index::CELLS;
use super::sleeper::Sleeper;
use super::slot::{SlotHandle, SlotRef};
use super::table::Table;
use crate::clock::Now;
use crate::limits::{DEAD_MAX, REAPER_CHUNK};
use crate::stats::SharedCounter;

/// How long it waits for credits, or for others to let go of a table, before it looks again.
const RECHECK: Duration = Duration::from_millis(1);

/// A message to the reaper.
enum Work {
    /// A dead slot, all announced, that counts as unsettled until it is out.
    Bury(Arc<Table>, SlotHandle),
    /// A deleted table.
    TakeDown(Arc<Table>),
    /// All slots of a deleted table are dead and announced.
    Settled(Arc<Table>),
    /// No worker will delete anything any more: finish what subscribers must hear of, and end.
    Close,
}

/// What others know of the reaper.
pub(super) struct Link {
    sender: Sender<Work>,
    reaped: SharedCounter,
    progress: Mutex<Progress>,
}

/// How far the reaper has come, for those that wait for it.
#[derive(Default)]
struct Progress {
    /// Tables that have been taken down.
    taken_down: u64,
    /// To be woken by the next one.
    sleepers: Vec<Arc<Sleeper>>,
}

impl Link {
    pub(super) fn new() -> (Self, Inbox) {
        let (sender, receiver) = bounded(DEAD_MAX);
        (Self { sender, reaped: SharedCounter::new(), progress: Mutex::default() }, Inbox(receiver))
    }

    fn send(&self, work: Work) {
        // An error says that the reaper has ended: the server is shutting down, and memory goes with the process.
        let _ended = self.sender.send(work);
    }

    /// A table was deleted.
    pub(super) fn take_down(&self, table: Arc<Table>) {
        self.send(Work::TakeDown(table));
    }

    /// The last hold on a closed table was released.
    pub(super) fn settled(&self, table: &Arc<Table>) {
        self.send(Work::Settled(Arc::clone(table)));
    }

    pub(super) fn close(&self) {
        self.send(Work::Close);
    }

    /// Slots that were taken out.
    pub(super) fn reaped(&self) -> u64 {
        self.reaped.get()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many tables have been taken down.
    pub(super) fn taken_down(&self) -> u64 {
        self.progress().taken_down
    }

    /// Whether more than `before` tables have been taken down. If not, `sleeper` is woken by the next one, once.
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

    /// A table has been taken down: its name has room for another.
    fn has_taken_down(&self) {
        let mut progress = self.progress();
        progress.taken_down += 1;
        let sleepers = std::mem::take(&mut progress.sleepers);
        drop(progress);
        sleepers.iter().for_each(|sleeper| sleeper.wake());
    }
}

/// The receiving end of [`Link`].
pub(super) struct Inbox(Receiver<Work>);

/// The publisher's way to the reaper.
pub(super) struct Hearse(pub(super) Arc<Shared>);

impl Undertaker for Hearse {
    fn bury(&mut self, table: &Arc<Table>, slot: SlotHandle) {
        self.0.reaper.send(Work::Bury(Arc::clone(table), slot));
    }

    fn settle(&mut self, table: &Arc<Table>) {
        self.0.reaper.settled(table);
    }
}

/// A walk over the buckets of a closed table.
struct Walk {
    table: Arc<Table>,
    /// Buckets to visit.
    ahead: Vec<u32>,
}

impl Walk {
    fn over(table: Arc<Table>) -> Self {
        Self { table, ahead: vec![0] }
    }
}

/// The reaper thread's work. One thread owns it.
pub struct Reaper {
    shared: Arc<Shared>,
    session: Session,
    inbox: Inbox,
    sealing: VecDeque<Walk>,
    emptying: VecDeque<Walk>,
    /// Forgotten tables that somebody may still look at: what is left of them is freed here, not on a worker.
    leaving: Vec<Arc<Table>>,
    closing: bool,
}

impl Reaper {
    pub(super) fn new(shared: &Arc<Shared>, inbox: Inbox) -> Self {
        Self {
            shared: Arc::clone(shared),
            session: Session::new(Arc::clone(shared)),
            inbox,
            sealing: VecDeque::new(),
            emptying: VecDeque::new(),
            leaving: Vec::new(),
            closing: false,
        }
    }

    /// The loop of the reaper thread; returns when the tables are closed and all elements of deleted tables are
    /// sealed. `now` reads the clock.
    pub fn run(mut self, mut now: impl FnMut() -> Now) {
        while !(self.closing && self.sealing.is_empty()) {
            let stuck = !self.step(now());
            let idle = self.sealing.is_empty() && self.emptying.is_empty();
            if stuck || (idle && !self.closing) {
                self.rest(stuck || !self.leaving.is_empty());
            }
        }
    }

    /// Does a piece of what there is to do. False: it is out of credits.
    pub(super) fn step(&mut self, now: Now) -> bool {
        self.receive();
        let sealed = self.seal_some(now);
        self.empty_some(now);
        self.leaving.retain(|table| Arc::strong_count(table) > 1);
        sealed
    }

    /// Waits for work: a moment, or as long as it takes.
    fn rest(&mut self, briefly: bool) {
        let work = if briefly {
            self.inbox.0.recv_timeout(RECHECK)
        } else {
            self.inbox.0.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match work {
            Ok(work) => self.take(work),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.closing = true,
        }
    }

    /// Takes what is in the queue now.
    fn receive(&mut self) {
        for _ in 0..DEAD_MAX {
            match self.inbox.0.try_recv() {
                Ok(work) => self.take(work),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, work: Work) {
        match work {
            Work::Bury(table, slot) => self.bury(&table, &slot),
            Work::TakeDown(table) => self.sealing.push_back(Walk::over(table)),
            Work::Settled(table) => self.emptying.push_back(Walk::over(table)),
            Work::Close => self.closing = true,
        }
    }

    /// Takes a dead slot out. The floor comes first: who misses the slot must start above it.
    fn bury(&mut self, table: &Arc<Table>, handle: &SlotHandle) {
        let mut batch = self.session.batch(Now::from_nanos(0));
        let hand = batch.hand();
        let slot = handle.slot();
        self.shared.catalog.raise_floor(slot.load(hand.guard).version());
        table.leave(slot, hand.guard);
        let cost = slot_bytes(slot.key().len());
        table.count_bytes(-cost);
        hand.tab.add(&self.shared.account, -cost);
        drop(batch);
        part(&self.shared, slot);
        if table.release_unsettled() {
            self.emptying.push_back(Walk::over(Arc::clone(table)));
        }
    }

    /// Seals a piece of one deleted table; they take turns, so that small ones do not wait for large ones. False: it is
    /// out of credits.
    fn seal_some(&mut self, now: Now) -> bool {
        let Some(mut walk) = self.sealing.pop_front() else { return true };
        let mut batch = self.session.batch(now);
        let mut hand = batch.hand();
        let mut slots = Vec::with_capacity(CELLS);
        let mut sealed = 0;
        while sealed < REAPER_CHUNK {
            if hand.credits(CELLS).is_err() {
                self.sealing.push_front(walk);
                return false;
            }
            let Some(number) = walk.ahead.pop() else {
                if walk.table.release_unsettled() {
                    self.emptying.push_back(Walk::over(walk.table));
                }
                return true;
            };
            walk.table.index().visit(number, hand.guard, &mut walk.ahead, |slot| slots.push(slot));
            sealed += slots.len() + 1;
            for slot in slots.drain(..) {
                let sealed = hand.seal(&walk.table, slot);
                debug_assert!(sealed.is_ok(), "a bucket's worth of credits was there");
            }
        }
        self.sealing.push_back(walk);
        true
    }

    /// Frees a piece of one settled table, in turns.
    fn empty_some(&mut self, now: Now) {
        let Some(mut walk) = self.emptying.pop_front() else { return };
        let mut batch = self.session.batch(now);
        let hand = batch.hand();
        let mut slots = Vec::with_capacity(CELLS);
        let mut freed = 0;
        while freed < REAPER_CHUNK {
            let Some(number) = walk.ahead.pop() else {
                drop(batch);
                self.forget(walk.table);
                return;
            };
            walk.table.index().visit(number, hand.guard, &mut walk.ahead, |slot| slots.push(slot.handle()));
            freed += slots.len() + 1;
            for handle in slots.drain(..) {
                let slot = handle.slot();
                self.shared.catalog.raise_floor(slot.load(hand.guard).version());
                hand.tab.add(&self.shared.account, -slot_bytes(slot.key().len()));
                part(&self.shared, slot);
            }
            walk.table.index().clear(number, hand.guard);
        }
        *hand.garbage = usize::MAX / 2;
        drop(batch);
        self.emptying.push_back(walk);
    }

    /// A settled table is empty: its name and number are free of it.
    fn forget(&mut self, table: Arc<Table>) {
        self.shared.catalog.forget(&table);
        self.shared.reaper.has_taken_down();
        let mut batch = self.session.batch(Now::from_nanos(0));
        let hand = batch.hand();
        let index = table.index();
        hand.tab.add(&self.shared.account, index.take_growth() - index.bytes() - TABLE_BYTES);
        hand.tab.settle(&self.shared.account);
        drop(batch);
        self.shared.hub.nudge();
        self.leaving.push(table);
    }
}

/// A dead slot leaves its index for good: its record goes as well.
fn part(shared: &Shared, slot: SlotRef<'_>) {
    if slot.is_armed() {
        shared.expiry.send_cancel(slot.handle());
    }
    shared.reaper.reaped.add(1);
}
