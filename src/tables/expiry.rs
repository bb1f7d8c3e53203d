//! Expiry: one thread owns the wheel, and other threads send messages to it.
//!
//! An element is absent from its deadline on without the help of this thread. The thread commits the expiry, so that
//! memory goes back and subscribers are notified. It waits for time and never for another thread: without credits it
//! continues to take messages.
//!
//! # One record per element
//!
//! ```text
//!            writer: CAS with a deadline                     expiry thread
//! not armed ── lowers `armed`, sends a due message ──► takes it, files a record at `armed`
//! armed ────── deadline not before `armed`: no message the record comes up: reads the word
//!       └───── before it: lowers `armed`, sends           passed ─► CAS to absent, DELETED
//!                                                         later  ─► raises `armed`, reads the word again, files anew
//! ```
//! A record that comes up is a hint, and the CAS decides.
//!
//! # Races
//!
//! - **A due message and a raise of `armed`.** A writer may find the slot armed early enough while this thread raises
//!   `armed`. `SlotRef::arm` writes this out.
//! - **A record and a rewrite.** A store or a touch changes the deadline while the record is in the wheel. If the new
//!   deadline is later or none, the writer sends no message. The record comes up at the old one, and this thread reads the
//!   present deadline and files the record there, or drops it. If the new deadline is earlier, the writer lowers
//!   `armed` and sends a message, and `take_due` replaces the record. If the record comes up before the message,
//!   `armed` says that a message is on its way, and the record is dropped: the message brings the slot back.
//! - **The expiry and a rewrite.** Both CAS the word. If the rewrite comes first, this thread's CAS fails, and it reads
//!   the new deadline. If the expiry comes first, the writer finds the slot Absent and stores a new element there.
//! - **The expiry and a move.** Only a slot that is not armed moves, and only without a deadline. A writer may still
//!   arm it afterwards, for a deadline that another writer has removed since. The compactor cancels that record
//!   (`Compactor::move_slots`), or this thread finds the slot Moved and files none.
//! - **An expiry and a latch.** The thread asks for the latch of the table before each expiry. If it is set afterwards, its
//!   holder waits for the end of this pass (`latch.rs`).
//! - **A record and the end of its slot.** The reaper cancels the record of a dead slot. `SlotRef::is_armed` writes out
//!   why none stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use crossbeam::epoch::Guard;

use super::TablesShared;
use super::batch::Session;
use super::change::WAIT_RECHECK;
use super::failpoint::{Failpoint, reach};
use super::ops::Ops;
use super::sleep_state::{SleepState, URGENT, WAKE_FOR_URGENT};
use super::sleeper::Sleeper;
use super::slot::{NEVER, SlotHandle, SlotRef, SlotState};
use crate::clock::Now;
use crate::limits::{DUES_MAX, EXPIRY_BUDGET, LOOK_AHEAD};
use crate::stats::{Latencies, LatencySnapshot, SharedCounter};
use crate::wheel::{Progress, TimerId, Wheel};

/// The longest sleep. A wake-up that a bug loses costs a second at most. A message that it delayed is counted.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// A record that meets a latch comes up again after so many milliseconds.
const LATCHED_AGAIN_MILLIS: u64 = 1;
/// With more queued messages than this, a sender wakes the thread, whatever the deadlines are.
const DUES_MANY: usize = DUES_MAX / 2;

/// A message to the expiry thread.
enum ExpiryMessage {
    /// `armed` was lowered: the thread files a record.
    Arm(SlotHandle),
    /// The slot is dead: the thread drops its record.
    Cancel(SlotHandle),
}

/// The sending side of the expiry thread, shared by all threads.
pub(super) struct ExpirySender {
    dues: Sender<ExpiryMessage>,
    /// The level is the deadline until which the thread sleeps: a message about an earlier deadline wakes it.
    sleep_state: SleepState,
    sleeper: Arc<Sleeper>,
    closed: AtomicBool,
    expired: SharedCounter,
    lost_wakeups: SharedCounter,
    lag: Latencies,
}

/// The receiving end of [`ExpirySender`].
pub(super) struct ExpiryInbox(Receiver<ExpiryMessage>);

impl ExpirySender {
    pub(super) fn new() -> (Self, ExpiryInbox) {
        let (dues, inbox) = bounded(DUES_MAX);
        let sender = Self {
            dues,
            sleep_state: SleepState::new(),
            sleeper: Arc::default(),
            closed: AtomicBool::new(false),
            expired: SharedCounter::new(),
            lost_wakeups: SharedCounter::new(),
            lag: Latencies::new(),
        };
        (sender, ExpiryInbox(inbox))
    }

    /// Sends a due message: a slot has an earlier deadline than the wheel knows.
    ///
    /// # Errors
    /// The slot comes back if the queue is full.
    pub(super) fn try_arm(&self, slot: SlotHandle, deadline: u64) -> Result<(), SlotHandle> {
        self.try_send(ExpiryMessage::Arm(slot), deadline)
    }

    /// Like [`ExpirySender::try_arm`], but waits for room. The caller holds no guard.
    pub(super) fn arm(&self, slot: SlotHandle, deadline: u64) {
        self.send(ExpiryMessage::Arm(slot), deadline);
    }

    /// Sends a cancellation: a slot is dead and may have a record. Waits for room; the caller holds no guard.
    pub(super) fn cancel(&self, slot: SlotHandle) {
        self.send(ExpiryMessage::Cancel(slot), NEVER);
    }

    fn try_send(&self, due: ExpiryMessage, deadline: u64) -> Result<(), SlotHandle> {
        match self.dues.try_send(due) {
            Ok(()) => self.wake(deadline),
            Err(TrySendError::Full(ExpiryMessage::Arm(slot) | ExpiryMessage::Cancel(slot))) => return Err(slot),
            // The thread has ended and commits no more expiries.
            Err(TrySendError::Disconnected(_)) => {}
        }
        Ok(())
    }

    /// If the queue is full, the sender that filled it has woken the thread. The thread makes room before it sleeps
    /// again.
    fn send(&self, due: ExpiryMessage, deadline: u64) {
        // An error means that the thread has ended.
        let _ended = self.dues.send(due);
        self.wake(deadline);
    }

    /// Wakes the thread if it must read the message before `deadline`, or if many messages are queued.
    fn wake(&self, deadline: u64) {
        if self.sleep_state.must_wake(|| if self.dues.len() > DUES_MANY { URGENT } else { deadline }) {
            self.sleeper.wake();
        }
    }

    pub(super) fn close(&self) {
        // SeqCst: pairs with the loads in `run` and `falls_asleep`.
        self.closed.store(true, Ordering::SeqCst);
        self.sleeper.wake();
    }

    /// The number of times that a time-out found a message without a wake-up for it. Each one is a bug.
    pub(super) fn lost_wakeups(&self) -> u64 {
        self.lost_wakeups.get()
    }

    /// Counts expiries, given as nanoseconds from each deadline to the commit. Called once for a batch: one lock and
    /// one addition, however many elements have expired in it.
    pub(super) fn count_expired(&self, lags: &mut Vec<u64>) {
        self.expired.add(lags.len() as u64);
        self.lag.record_all(lags.drain(..));
    }

    /// The sleeper that wakes the thread.
    #[cfg(test)]
    pub(super) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired.get()
    }

    /// Nanoseconds from the deadlines to the commits of the expiries.
    pub(super) fn lag(&self) -> LatencySnapshot {
        LatencySnapshot::of([&self.lag])
    }
}

/// The work of the expiry thread. One thread owns it.
pub struct Expiry {
    shared: Arc<TablesShared>,
    session: Session,
    inbox: ExpiryInbox,
    wheel: Wheel<SlotHandle>,
    fired: Vec<SlotHandle>,
    /// The level of the last sleep, if it ended by its time-out with messages queued. A queued message with an earlier
    /// deadline should have ended that sleep: it counts as a lost wake-up.
    slept_until: u64,
}

/// The work that a pass leaves.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextPass {
    /// More is due: the next pass follows at once.
    More,
    /// The publisher is behind: the thread looks again soon.
    OutOfCredits,
    /// No timer is due before this deadline.
    Until(u64),
}

impl Expiry {
    pub(super) fn new(shared: &Arc<TablesShared>, inbox: ExpiryInbox) -> Self {
        let mut session = Session::new(Arc::clone(shared));
        let waits_for_credits = Arc::clone(&shared.expiry.sleeper);
        session.set_waker(Box::new(move || waits_for_credits.wake()));
        Self {
            shared: Arc::clone(shared),
            session,
            inbox,
            wheel: Wheel::new(0),
            fired: Vec::with_capacity(EXPIRY_BUDGET),
            slept_until: 0,
        }
    }

    /// The loop of the expiry thread. Returns when the tables are closed. `now` reads the clock.
    pub fn run(mut self, mut now: impl FnMut() -> Now) {
        self.shared.expiry.sleeper.enlist();
        // SeqCst: pairs with the store in `close`, which unparks after it.
        while !self.shared.expiry.closed.load(Ordering::SeqCst) {
            let reading = now();
            let rest = self.pass(reading);
            self.session.rest(reading);
            match rest {
                NextPass::More => {}
                NextPass::OutOfCredits => self.wait_for_credits(thread::park_timeout),
                NextPass::Until(deadline) => self.sleep(deadline, now(), thread::park_timeout),
            }
        }
    }

    /// Takes the queued messages and commits the expiries that are due at `now`, as far as budget and credits go.
    pub(super) fn pass(&mut self, now: Now) -> NextPass {
        self.listen();
        let mut batch = self.session.batch(now);
        let mut ops = batch.ops();
        let budget = ops.writer.credits(EXPIRY_BUDGET).min(EXPIRY_BUDGET);
        if budget == 0 {
            ops.wanted.resource = 1;
            return if self.wheel.next_wake().is_some() { NextPass::OutOfCredits } else { NextPass::Until(NEVER) };
        }
        let fired = &mut self.fired;
        let progress = self.wheel.advance(now.millis(), budget, |_, _, slot| fired.push(slot));
        let mut fired = self.fired.drain(..);
        while let Some(run) = fired.as_slice().chunks(LOOK_AHEAD).next() {
            fetch(run, ops.guard);
            for slot in fired.by_ref().take(LOOK_AHEAD) {
                come_up(&mut ops, &mut self.wheel, slot);
            }
        }
        drop(fired);
        self.shared.memory_budget.set_timers(self.wheel.len() as u64, self.wheel.record_bytes());
        match progress {
            Progress::More => NextPass::More,
            Progress::Done => NextPass::Until(self.wheel.next_wake().unwrap_or(NEVER)),
        }
    }

    /// Files and drops records as the messages say, for at most as many messages as the queue holds.
    fn listen(&mut self) {
        for _ in 0..DUES_MAX {
            match self.inbox.0.try_recv() {
                Ok(ExpiryMessage::Arm(slot)) => self.take_due(slot),
                Ok(ExpiryMessage::Cancel(slot)) => drop_record(&mut self.wheel, slot.slot()),
                Err(_) => break,
            }
        }
        self.slept_until = 0;
    }

    /// Files an element that was loaded.
    pub(super) fn file(&mut self, handle: SlotHandle) {
        self.take_due(handle);
    }

    fn take_due(&mut self, handle: SlotHandle) {
        let slot = handle.slot();
        let deadline = slot.take_due();
        self.shared.expiry.lost_wakeups.add(u64::from(deadline < self.slept_until));
        drop_record(&mut self.wheel, slot);
        // The second of two messages may come after the record of the first has come up for the last time.
        if deadline != NEVER && !slot.is_dead() {
            set_timer(&mut self.wheel, handle, deadline);
        }
    }

    /// Prepares to sleep until `deadline`. True: no message is queued, and a message about an earlier deadline wakes
    /// the thread.
    pub(super) fn falls_asleep(&self, deadline: u64) -> bool {
        let sender = &self.shared.expiry;
        // SeqCst: pairs with the store in `close`, which unparks after it.
        sender.sleep_state.prepare(deadline, || !self.inbox.0.is_empty() || sender.closed.load(Ordering::SeqCst))
    }

    /// Sleeps until the deadline, or until a message about an earlier one arrives. `park` parks the thread.
    fn sleep(&mut self, deadline: u64, now: Now, mut park: impl FnMut(Duration)) {
        if !self.falls_asleep(deadline) {
            return;
        }
        let left = now.time_until(Now::from_millis(deadline));
        let (first, second) = naps(left, self.session.patience());
        park(first);
        let sleep_state = &self.shared.expiry.sleep_state;
        if !second.is_zero() && sleep_state.is_asleep() && !self.inbox.0.is_empty() {
            // The messages are about later deadlines, or a sender has not read the level yet. If a sender has not read
            // it within SLEEP_MAX, the wake-up is lost. After one nap of 100 ms a sender that has been preempted
            // between the two would be counted about once a day. A message costs one comparison.
            park(second);
            self.slept_until = if second == SLEEP_MAX && sleep_state.is_asleep() { deadline } else { 0 };
        }
        sleep_state.end();
    }

    /// Sleeps until the publisher has given credits back. Messages wait meanwhile, up to half a queue. `park`
    /// parks the thread.
    fn wait_for_credits(&mut self, park: impl FnOnce(Duration)) {
        if !self.session.watch() && self.falls_asleep(WAKE_FOR_URGENT) {
            park(WAIT_RECHECK);
            self.shared.expiry.sleep_state.end();
        }
    }
}

/// How long the thread sleeps until a deadline that is `left` away. The first sleep ends when memory that the thread
/// has retired is to be freed. The second follows if all queued messages are about later deadlines. Together they are
/// never longer than `left`.
fn naps(left: Duration, patience: Duration) -> (Duration, Duration) {
    let first = left.min(patience).min(SLEEP_MAX);
    (first, (left - first).min(SLEEP_MAX))
}

fn drop_record(wheel: &mut Wheel<SlotHandle>, slot: SlotRef<'_>) {
    if let Some(timer) = slot.timer() {
        slot.set_timer(None);
        drop(wheel.cancel(TimerId::from_number(timer)));
    }
}

fn set_timer(wheel: &mut Wheel<SlotHandle>, handle: SlotHandle, deadline: u64) {
    let again = handle.slot().handle();
    let timer = wheel.arm(deadline, handle);
    again.slot().set_timer(Some(timer.number()));
}

/// Prefetches slots and their entries, so that the cache misses overlap.
fn fetch(slots: &[SlotHandle], guard: &Guard) {
    slots.iter().for_each(|handle| handle.slot().prefetch());
    slots.iter().for_each(|handle| handle.slot().prefetch_entry(guard));
}

/// A record has come up and is out of the wheel. Expires the element, files the record again, or drops it.
fn come_up(ops: &mut Ops<'_>, wheel: &mut Wheel<SlotHandle>, handle: SlotHandle) {
    let slot = handle.slot();
    slot.set_timer(None);
    loop {
        // A due message is on its way and brings the slot back. If one is sent between this look and `rearm`, `rearm`
        // fails.
        let Some(armed) = slot.armed() else { return };
        let next = match expire_or_next(ops, slot) {
            NextLook::At(next) => next,
            // The slot is still armed at a deadline that has passed. Filed there, the record comes up in the next pass.
            NextLook::OutOfCredits => return set_timer(wheel, handle, armed),
            // The latch is released soon. The element is absent meanwhile for all but its holder.
            NextLook::Latched => return set_timer(wheel, handle, ops.now.millis() + LATCHED_AGAIN_MILLIS),
        };
        reach(Failpoint::BeforeRearm);
        if !slot.rearm(armed, next) {
            return; // a writer has lowered `armed`, as above
        }
        reach(Failpoint::AfterRearm);
        // Read again after `armed` was raised: a writer may have relied on the old value.
        if deadline_of(slot, ops) >= next {
            // A dead slot gets no record, as at `SlotRef::take_due`: the reaper may have read the old `armed`.
            // `SlotRef::is_armed` writes this race out.
            if next != NEVER && !slot.is_dead() {
                set_timer(wheel, handle, next);
            }
            return;
        }
    }
}

/// When to look at a slot again.
enum NextLook {
    /// At this deadline. [`NEVER`]: not at all.
    At(u64),
    /// As soon as there are credits.
    OutOfCredits,
    /// A session holds the latch of the table.
    Latched,
}

/// Expires the element if its deadline has passed. Returns when to look at the slot again.
fn expire_or_next(ops: &mut Ops<'_>, slot: SlotRef<'_>) -> NextLook {
    loop {
        let seen = slot.load(ops.guard);
        let deadline = match seen.state() {
            SlotState::Live(entry) | SlotState::Expired(entry) => entry.deadline(),
            SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => return NextLook::At(NEVER),
        };
        if deadline > ops.now.millis() && !matches!(seen.state(), SlotState::Expired(_)) {
            return NextLook::At(deadline);
        }
        reach(Failpoint::BeforeExpire);
        // The registry has no table of this number, or a younger one: the slot's table was taken down since the word
        // was read. Then the slot is dead. The next look finds it dead, and a CAS from the old word fails.
        let Some(table) = ops.shared.catalog.registry().get(slot.table(), ops.guard) else { continue };
        if ops.is_latched(table) {
            return NextLook::Latched;
        }
        if ops.expire(table, slot, seen).is_err() {
            return NextLook::OutOfCredits;
        }
    }
}

fn deadline_of(slot: SlotRef<'_>, ops: &Ops<'_>) -> u64 {
    match slot.load(ops.guard).state() {
        SlotState::Live(entry) | SlotState::Expired(entry) => entry.deadline(),
        SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => NEVER,
    }
}

#[cfg(test)]
mod tests;
