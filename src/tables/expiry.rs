//! Expiry: the one thread that owns the wheel, and what others send to it.
//!
//! Elements are absent from their deadline on without its help; it commits their expiry, so that memory goes back and
//! subscribers hear of it. It never waits for another thread but for time: without credits it goes on listening.
//!
//! # One record per element
//!
//! ```text
//!            writer: CAS with a deadline                     expiry thread
//! not armed ── lowers `armed`, sends a due message ──► takes it, files a record at `armed`
//! armed ────── deadline not earlier: nothing to do     the record comes up: reads the word
//!       └───── earlier: lowers `armed`, sends             passed ─► CAS to absent, DELETED
//!                                                         later  ─► raises `armed`, reads the word again, files anew
//! ```
//! A record that comes up is a hint; the CAS decides. The race between a writer that finds the slot armed early enough
//! and this thread that is just raising `armed` is written out at `SlotRef::arm`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam::epoch::Guard;
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::{Backoff, CachePadded};

use super::Shared;
use super::batch::Session;
use super::hand::Hand;
use super::pause::{Point, reach};
use super::slot::{NEVER, SlotHandle, SlotRef, State};
use crate::clock::Now;
use crate::limits::{DUES_MAX, EXPIRY_BUDGET, LOOK_AHEAD};
use crate::stats::{Latencies, Percentiles, SharedCounter};
use crate::wheel::{Progress, TimerId, Wheel};

/// How long it sleeps when it is out of credits.
const CREDIT_RECHECK: Duration = Duration::from_millis(1);
/// `wake_at` while the thread is awake: no deadline is earlier.
const AWAKE: u64 = 0;

/// A message to the expiry thread.
enum Due {
    /// `armed` was lowered: file a record.
    Arm(SlotHandle),
    /// The slot is dead: drop its record.
    Cancel(SlotHandle),
}

/// What others know of the expiry thread.
pub(super) struct Link {
    dues: ArrayQueue<Due>,
    /// The deadline until which it sleeps; [`AWAKE`] if it does not. Written by it; read by senders.
    wake_at: CachePadded<AtomicU64>,
    thread: Mutex<Option<Thread>>,
    closed: AtomicBool,
    expired: SharedCounter,
    lag: Latencies,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            dues: ArrayQueue::new(DUES_MAX),
            wake_at: CachePadded::new(AtomicU64::new(AWAKE)),
            thread: Mutex::new(None),
            closed: AtomicBool::new(false),
            expired: SharedCounter::new(),
            lag: Latencies::new(),
        }
    }

    /// A slot has an earlier deadline than the wheel knows.
    pub(super) fn send_arm(&self, slot: SlotHandle, deadline: u64) {
        self.send(Due::Arm(slot));
        // SeqCst fence: pairs with the one in `sleep`. If ours comes first, the thread sees the message before it
        // sleeps; if its comes first, we see until when it sleeps.
        fence(Ordering::SeqCst);
        if deadline < self.wake_at.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// A slot is dead and may have a record. Nobody waits for it to go.
    pub(super) fn send_cancel(&self, slot: SlotHandle) {
        self.send(Due::Cancel(slot));
    }

    fn send(&self, due: Due) {
        let mut due = due;
        let backoff = Backoff::new();
        while let Err(back) = self.dues.push(due) {
            // SeqCst: pairs with the store in `close`. The thread has ended, or is about to: nobody will expire anything.
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            due = back;
            self.wake();
            backoff.snooze();
        }
        if self.dues.len() > DUES_MAX / 2 {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            thread.unpark();
        }
    }

    pub(super) fn close(&self) {
        // SeqCst: pairs with the load in `run`.
        self.closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Expiries were committed, so many nanoseconds after their deadlines. Called once for a batch: one lock and one count,
    /// however many elements have expired in it.
    pub(super) fn count_expired(&self, lags: &mut Vec<u64>) {
        self.expired.add(lags.len() as u64);
        self.lag.record_all(lags.drain(..));
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired.get()
    }

    /// Nanoseconds from deadlines to the commits of their expiry.
    pub(super) fn lag(&self) -> Percentiles {
        Percentiles::of([&self.lag])
    }
}

/// The expiry thread's work. One thread owns it.
pub struct Expiry {
    shared: Arc<Shared>,
    session: Session,
    wheel: Wheel<SlotHandle>,
    fired: Vec<SlotHandle>,
}

/// What a pass leaves to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// More is due: go on at once.
    More,
    /// The publisher is behind: look again soon.
    OutOfCredits,
    /// Nothing before this deadline.
    Until(u64),
}

impl Expiry {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            session: Session::new(Arc::clone(shared)),
            wheel: Wheel::new(0),
            fired: Vec::with_capacity(EXPIRY_BUDGET),
        }
    }

    /// The loop of the expiry thread; returns when the tables are closed. `now` reads the clock.
    pub fn run(mut self, mut now: impl FnMut() -> Now) {
        *self.shared.expiry.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        // SeqCst: pairs with the store in `close`, which unparks after it.
        while !self.shared.expiry.closed.load(Ordering::SeqCst) {
            let reading = now();
            let rest = self.pass(reading);
            self.session.rest(reading);
            match rest {
                Rest::More => {}
                Rest::OutOfCredits => thread::park_timeout(CREDIT_RECHECK),
                Rest::Until(deadline) => self.sleep(deadline, now()),
            }
        }
    }

    /// Takes up what was sent, and commits what is due at `now`, as far as budget and credits go.
    pub(super) fn pass(&mut self, now: Now) -> Rest {
        self.listen();
        let mut batch = self.session.batch(now);
        let mut hand = batch.hand();
        let budget = hand.writer.credits(EXPIRY_BUDGET).min(EXPIRY_BUDGET);
        if budget == 0 {
            return if self.wheel.next_wake().is_some() { Rest::OutOfCredits } else { Rest::Until(NEVER) };
        }
        let fired = &mut self.fired;
        let progress = self.wheel.advance(now.millis(), budget, |_, _, slot| fired.push(slot));
        let mut fired = self.fired.drain(..);
        while let Some(run) = fired.as_slice().chunks(LOOK_AHEAD).next() {
            fetch(run, hand.guard);
            for slot in fired.by_ref().take(LOOK_AHEAD) {
                come_up(&mut hand, &mut self.wheel, slot);
            }
        }
        drop(fired);
        self.shared.account.set_timers(self.wheel.len() as u64);
        match progress {
            Progress::More => Rest::More,
            Progress::Done => Rest::Until(self.wheel.next_wake().unwrap_or(NEVER)),
        }
    }

    /// Files and drops records as others asked for, at most as many as the queue holds.
    fn listen(&mut self) {
        for _ in 0..DUES_MAX {
            match self.shared.expiry.dues.pop() {
                Some(Due::Arm(slot)) => self.take_due(slot),
                Some(Due::Cancel(slot)) => drop_record(&mut self.wheel, slot.slot()),
                None => return,
            }
        }
    }

    fn take_due(&mut self, handle: SlotHandle) {
        let slot = handle.slot();
        let deadline = slot.take_due();
        drop_record(&mut self.wheel, slot);
        if !slot.is_dead() {
            file(&mut self.wheel, handle, deadline);
        }
    }

    /// Sleeps until the deadline, or until an earlier one is sent.
    fn sleep(&mut self, deadline: u64, now: Now) {
        let link = &self.shared.expiry;
        link.wake_at.store(deadline, Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `send_arm`.
        fence(Ordering::SeqCst);
        if link.dues.is_empty() && !link.closed.load(Ordering::SeqCst) {
            let nanos = deadline.saturating_mul(1_000_000).saturating_sub(now.nanos());
            thread::park_timeout(Duration::from_nanos(nanos).min(self.session.patience()));
        }
        link.wake_at.store(AWAKE, Ordering::Relaxed);
    }
}

fn drop_record(wheel: &mut Wheel<SlotHandle>, slot: SlotRef<'_>) {
    if let Some(timer) = slot.timer() {
        slot.set_timer(None);
        drop(wheel.cancel(TimerId::from_number(timer)));
    }
}

fn file(wheel: &mut Wheel<SlotHandle>, handle: SlotHandle, deadline: u64) {
    let again = handle.slot().handle();
    let timer = wheel.arm(deadline, handle);
    again.slot().set_timer(Some(timer.number()));
}

/// Has the processor fetch slots and their entries, so that the cache misses overlap.
fn fetch(slots: &[SlotHandle], guard: &Guard) {
    slots.iter().for_each(|handle| handle.slot().prefetch());
    slots.iter().for_each(|handle| handle.slot().prefetch_entry(guard));
}

/// A record has come up, and is out of the wheel: expires the element, files the record anew, or lets it go.
fn come_up(hand: &mut Hand<'_>, wheel: &mut Wheel<SlotHandle>, handle: SlotHandle) {
    let slot = handle.slot();
    slot.set_timer(None);
    loop {
        let Some(armed) = slot.armed() else { return }; // a due message is on its way and brings the slot back
        let next = match expire_or_next(hand, slot) {
            Next::At(next) => next,
            // Still armed at a deadline that has passed: filed there, it comes up in the next pass.
            Next::OutOfCredits => return file(wheel, handle, armed),
        };
        reach(Point::BeforeRearm);
        if !slot.rearm(armed, next) {
            return; // lowered meanwhile: as above
        }
        reach(Point::AfterRearm);
        // Read again, after `armed` was raised: a writer may have relied on the old one.
        if deadline_of(slot, hand) >= next {
            if next != NEVER {
                file(wheel, handle, next);
            }
            return;
        }
    }
}

/// When to look at a slot again.
enum Next {
    /// At this deadline; [`NEVER`] is not at all.
    At(u64),
    /// As soon as there are credits.
    OutOfCredits,
}

/// Expires the element if its deadline has passed; when to look at the slot again.
fn expire_or_next(hand: &mut Hand<'_>, slot: SlotRef<'_>) -> Next {
    loop {
        let seen = slot.load(hand.guard);
        let deadline = match seen.state() {
            State::Live(entry) | State::Expired(entry) => entry.deadline(),
            State::Absent(_) | State::Dead(_) => return Next::At(NEVER),
        };
        if deadline > hand.now.millis() && !matches!(seen.state(), State::Expired(_)) {
            return Next::At(deadline);
        }
        reach(Point::BeforeExpire);
        // None, or a younger table: this one was taken down since the word was read. Then the slot is dead, and neither
        // the next look nor the CAS takes it for anything else.
        let Some(table) = hand.shared.catalog.registry().get(slot.table(), hand.guard) else { continue };
        if hand.expire(table, slot, seen).is_err() {
            return Next::OutOfCredits;
        }
    }
}

fn deadline_of(slot: SlotRef<'_>, hand: &Hand<'_>) -> u64 {
    match slot.load(hand.guard).state() {
        State::Live(entry) | State::Expired(entry) => entry.deadline(),
        State::Absent(_) | State::Dead(_) => NEVER,
    }
}
