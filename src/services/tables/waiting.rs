//! The clients whose next request the tables have refused as busy, queued in the order in which they were refused.
//!
//! ```text
//! no credits for a change             ─► queue for credits ─► woken: the first is tried, then the next …
//! too many tables are taken down      ─► queue for tables  ─► woken: each is tried again
//! memory has to be given back first   ─► queue for memory  ─► woken: each is tried again
//! a table is latched, or to be latched ─► queue for latches ─► woken: each is tried again
//! ```
//! - **Order.** Requests of one client are answered in order, so all its later requests wait with its first one. Other
//!   clients continue. While clients wait for credits, a further request that may need credits joins the queue without
//!   being tried. Otherwise small requests would forever take the credits that a large one needs.
//! - **Latches.** When a latch is released, each client of the queue is tried once. Then the session says so, and the table
//!   may be latched again. A worker that waits for other batches to end looks every [`LATCH_RECHECK`].
//! - **Wake-ups.** The publisher and the reaper wake the worker. A time-out bounds the cost of a wake-up that is
//!   lost to a bug. STATS counts each wake-up that the time-out finds lost (`lost_wakeups`), and there should be none.
//!
//! This module does not hold the waiting requests and does not answer them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Now;
use crate::net::sockets::WakeSignal;
use crate::tables::{LATCH_RECHECK, Lack, Session};

/// How long a worker with waiting clients sleeps before it checks by itself. A lost wake-up found then is counted.
const RECHECK: Duration = Duration::from_millis(100);

/// The clients of one worker that wait for the tables. `C` names a client.
pub(crate) struct WaitingClients<C> {
    for_credits: VecDeque<C>,
    for_tables: VecDeque<C>,
    for_memory: VecDeque<C>,
    for_latch: VecDeque<C>,
    /// The first client in the queue for credits may be tried.
    try_credits: bool,
    /// The number of clients in the queue for tables that are to be tried.
    try_tables: usize,
    /// The number of clients in the queue for memory that are to be tried.
    try_memory: usize,
    /// The number of clients in the queue for latches that are to be tried.
    try_latch: usize,
    /// The tables have called. Set by the publisher and the reaper, taken by the worker.
    called: Arc<AtomicBool>,
    /// When the worker began its last rest, with clients for whom it could do nothing.
    rest_begun: Option<Now>,
}

impl<C> WaitingClients<C> {
    /// No client waits. The tables wake the worker when they have room again for this session.
    pub(crate) fn new(session: &mut Session, wake_signal: &WakeSignal) -> Self {
        let called = Arc::new(AtomicBool::new(false));
        let (flag, wake_signal) = (Arc::clone(&called), wake_signal.clone());
        session.set_waker(Box::new(move || {
            // Release: pairs with the Acquire in `begin`. The wake-up comes second: the worker that it wakes
            // sees the flag.
            flag.store(true, Ordering::Release);
            wake_signal.raise();
        }));
        let [for_credits, for_tables, for_memory, for_latch] = [const { VecDeque::new() }; 4];
        Self {
            for_credits,
            for_tables,
            for_memory,
            for_latch,
            try_credits: false,
            try_tables: 0,
            try_memory: 0,
            try_latch: 0,
            called,
            rest_begun: None,
        }
    }

    /// Whether no client waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.for_credits.is_empty()
            && self.for_tables.is_empty()
            && self.for_memory.is_empty()
            && self.for_latch.is_empty()
    }

    /// The number of clients that wait.
    pub(crate) fn len(&self) -> usize {
        self.for_credits.len() + self.for_tables.len() + self.for_memory.len() + self.for_latch.len()
    }

    /// Whether a request has to join the queue without being tried.
    #[inline]
    pub(crate) fn is_ahead_of(&self, may_change_elements: bool) -> bool {
        may_change_elements && !self.for_credits.is_empty()
    }

    /// Enqueues a client whose next request lacks this, behind all others.
    pub(crate) fn join(&mut self, client: C, lack: Lack) {
        match lack {
            Lack::Credits => &mut self.for_credits,
            Lack::Tables => &mut self.for_tables,
            Lack::Memory | Lack::Log => &mut self.for_memory,
            Lack::Latch => &mut self.for_latch,
        }
        .push_back(client);
    }

    /// Enqueues a client whose request was tried again and is still busy. For credits, it remains the first.
    pub(crate) fn stay(&mut self, client: C, lack: Lack) {
        if lack != Lack::Credits {
            self.join(client, lack);
        } else {
            self.for_credits.push_front(client);
            self.try_credits = false;
        }
    }

    /// Begins a round, which tries the clients whose requests may succeed now.
    pub(crate) fn begin(&mut self, session: &mut Session, now: Now) {
        let overslept = self.rest_begun.take().is_some_and(|begun| begun.after(RECHECK) <= now);
        self.try_credits = !self.for_credits.is_empty() && session.watch_changes(overslept);
        // Acquire: pairs with the Release of the waker. The call may have been for credits, or for a table of another
        // name. Then the clients that are tried wait on.
        if self.called.swap(false, Ordering::Acquire) {
            self.try_tables = self.for_tables.len();
        }
        self.try_memory = if self.hopes_for_memory(session) { self.for_memory.len() } else { 0 };
        if self.try_latch == 0 && self.hopes_for_latch(session) {
            session.begin_tries();
            self.try_latch = self.for_latch.len();
        }
    }

    fn hopes_for_latch(&self, session: &mut Session) -> bool {
        !self.for_latch.is_empty() && session.watch_latch()
    }

    fn hopes_for_memory(&self, session: &mut Session) -> bool {
        !self.for_memory.is_empty() && session.watch_memory()
    }

    /// The next client to be tried in this round.
    pub(crate) fn next(&mut self) -> Option<C> {
        if let Some(left) = self.try_tables.checked_sub(1) {
            self.try_tables = left;
            return self.for_tables.pop_front();
        }
        if let Some(left) = self.try_memory.checked_sub(1) {
            self.try_memory = left;
            return self.for_memory.pop_front();
        }
        if let Some(left) = self.try_latch.checked_sub(1) {
            self.try_latch = left;
            return self.for_latch.pop_front();
        }
        if self.try_credits { self.for_credits.pop_front() } else { None }
    }

    /// The longest time that the thread may sleep without a wake-up, for these clients and for its session. The tables
    /// wake the worker when a client may be tried again.
    pub(crate) fn sleep_time(&mut self, session: &mut Session, now: impl FnOnce() -> Now) -> Duration {
        if self.try_latch == 0 {
            session.note_tried();
        }
        if self.for_latch.is_empty() {
            session.note_none_waits();
        }
        let rest = session.patience();
        self.patience(session, now).map_or(rest, |patience| patience.min(rest))
    }

    /// The same for these clients alone. `None` is without bound.
    fn patience(&mut self, session: &mut Session, now: impl FnOnce() -> Now) -> Option<Duration> {
        self.rest_begun = None;
        if self.is_empty() {
            return None;
        }
        let is_hopeful = self.try_tables > 0
            || self.try_latch > 0
            || !self.for_credits.is_empty() && session.watch_changes(false)
            || self.hopes_for_memory(session)
            || self.hopes_for_latch(session);
        if is_hopeful {
            return Some(Duration::ZERO);
        }
        self.rest_begun = Some(now());
        Some(if session.is_latching() { LATCH_RECHECK } else { RECHECK })
    }
}

#[cfg(test)]
mod tests;
