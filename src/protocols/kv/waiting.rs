//! The line of clients whose next request the tables have refused as busy, in the order of their coming.
//!
//! ```text
//! a change finds no credits ──► line for credits ──► woken: the first is tried again, then the next …, as long as credits last
//! too many tables of its name on their way down ──► line for tables ──► woken: each is tried again
//! memory has to be given back first             ──► line for memory ──► woken: each is tried again
//! ```
//! - **Order.** Requests of one client are answered in order, so all that it asks waits with its first request; other clients go on.
//!   While clients wait for credits, a further request that may need some joins the line without being tried: small ones would
//!   otherwise take for ever what a large one needs.
//! - **Wake-ups.** The publisher and the reaper ring the worker's bell. A time-out bounds what a wake-up lost to a bug could cost; one
//!   that it finds is counted (`lost_wakeups` in STATS), and there should be none.
//!
//! What is not here: what waits behind each of them, and who is answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::wire::Command;
use crate::protocols::sockets::WakeSignal;
use crate::tables::Session;

/// How long a worker with clients in its line sleeps before it looks by itself. A wake-up that this finds lost is counted.
const RECHECK: Duration = Duration::from_millis(100);

/// The clients of one worker that wait for the tables. `C` names one.
pub(super) struct WaitingClients<C> {
    for_credits: VecDeque<C>,
    for_tables: VecDeque<C>,
    for_memory: VecDeque<C>,
    /// The first of the line for credits may be tried.
    try_credits: bool,
    /// So many of the line for tables are to be tried.
    try_tables: usize,
    /// The same of the line for memory.
    try_memory: usize,
    /// The tables have called. Set by the publisher and the reaper, taken by the worker.
    called: Arc<AtomicBool>,
}

impl<C> WaitingClients<C> {
    /// Nobody waits. When the tables have room again for this session the bell is rung.
    pub(super) fn new(session: &mut Session, bell: &WakeSignal) -> Self {
        let called = Arc::new(AtomicBool::new(false));
        let (flag, bell) = (Arc::clone(&called), bell.clone());
        session.set_waker(Box::new(move || {
            // Release: pairs with the Acquire in `begin`. The bell comes second: the worker that hears it sees the flag.
            flag.store(true, Ordering::Release);
            bell.ring();
        }));
        let [for_credits, for_tables, for_memory] = [const { VecDeque::new() }; 3];
        Self { for_credits, for_tables, for_memory, try_credits: false, try_tables: 0, try_memory: 0, called }
    }

    /// Whether nobody waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.for_credits.is_empty() && self.for_tables.is_empty() && self.for_memory.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.for_credits.len() + self.for_tables.len() + self.for_memory.len()
    }

    /// Whether a request of this command has to join the line without being tried.
    #[inline]
    pub(super) fn is_ahead_of(&self, command: Option<Command>) -> bool {
        !self.for_credits.is_empty() && command.is_some_and(Command::may_change_elements)
    }

    /// A client waits with a request of this command, behind all others; for memory, if that is what the request lacks.
    pub(super) fn join(&mut self, client: C, command: Option<Command>, lacks_memory: bool) {
        if command == Some(Command::CreateTable) {
            self.for_tables.push_back(client);
        } else if lacks_memory {
            self.for_memory.push_back(client);
        } else {
            self.for_credits.push_back(client);
        }
    }

    /// The client that was tried has to wait on: for credits, it stays the first.
    pub(super) fn stay(&mut self, client: C, command: Option<Command>, lacks_memory: bool) {
        if command == Some(Command::CreateTable) || lacks_memory {
            self.join(client, command, lacks_memory);
        } else {
            self.for_credits.push_front(client);
            self.try_credits = false;
        }
    }

    /// Begins a round, in which those are tried that have reason to hope.
    pub(super) fn begin(&mut self, session: &mut Session) {
        self.try_credits = !self.for_credits.is_empty() && session.watch_changes();
        // Acquire: pairs with the Release of the waker. It may have called for credits, or for a table of another name: then those
        // that are tried wait on.
        if self.called.swap(false, Ordering::Acquire) {
            self.try_tables = self.for_tables.len();
        }
        self.try_memory = if self.hopes_for_memory(session) { self.for_memory.len() } else { 0 };
    }

    fn hopes_for_memory(&self, session: &mut Session) -> bool {
        !self.for_memory.is_empty() && session.watch_memory()
    }

    /// The next one to be tried in this round.
    pub(super) fn next(&mut self) -> Option<C> {
        if let Some(left) = self.try_tables.checked_sub(1) {
            self.try_tables = left;
            return self.for_tables.pop_front();
        }
        if let Some(left) = self.try_memory.checked_sub(1) {
            self.try_memory = left;
            return self.for_memory.pop_front();
        }
        if self.try_credits { self.for_credits.pop_front() } else { None }
    }

    /// How long the worker may sleep if nothing else wakes it; `None` is for as long as it takes. The bell is rung when there is
    /// reason to hope.
    pub(super) fn patience(&mut self, session: &mut Session) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let is_hopeful = self.try_tables > 0
            || !self.for_credits.is_empty() && session.watch_changes()
            || self.hopes_for_memory(session);
        Some(if is_hopeful { Duration::ZERO } else { RECHECK })
    }
}

#[cfg(test)]
mod tests;
