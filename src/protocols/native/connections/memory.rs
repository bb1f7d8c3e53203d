//! What a thread does while the connections of its frontend hold too much.
//!
//! ```text
//! more than the budget ─► tight: peers that hold much have no turns, and answers that are large wait ─► ¾ of it ─► all go on
//!                           └─► those that hold much and have not moved in STALLED_MAX are closed, the largest first
//! ```
//! - **Who reads is not closed**, nor who sends: they give back what they hold as fast as they go, and wait at most.
//! - If that does not help at once, one peer of each thread is exempt, each in its turn: it may finish its message, and have one large
//!   answer, however much is held. Otherwise messages that have come in part, and requests whose answers wait, could wait for each
//!   other for ever.
//! - Peers that hold little are served, so that a few that do not read are no matter to the others.
//!
//! So the frontend holds at most its budget, and besides it for each thread the rest of a message, two answers and a portion, and for each
//! connection what it may hold in any case.

use std::cmp::Reverse;
use std::time::Duration;

use super::super::connection::Connection;
use super::{ConnectionId, Connections, get};
use crate::clock::Now;
use crate::limits::{BUFFER_KEPT_BYTES, STALLED_BYTES, STALLED_MAX};

/// How often it is looked who has moved.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether there is too little memory, and what is done about it.
#[derive(Debug, Default)]
pub(super) struct MemoryWatch {
    /// When it is looked next who has moved; `None`: there is enough.
    look_at: Option<Now>,
    /// The peer that may finish its message and have an answer.
    exempt: Option<ConnectionId>,
    /// It has had none yet.
    may_answer: bool,
    /// Then it is another one's turn, however far it has come.
    until: Option<Now>,
    /// Where the last exempt peer was.
    last: usize,
}

impl MemoryWatch {
    #[inline]
    pub(super) fn is_tight(&self) -> bool {
        self.look_at.is_some()
    }

    pub(super) fn look_at(&self) -> Option<Now> {
        self.look_at
    }

    /// Whether a large answer to this peer has to wait.
    pub(super) fn is_tight_for(&self, id: ConnectionId) -> bool {
        self.is_tight() && !(self.may_answer && self.exempt == Some(id))
    }

    /// A peer has had a turn, and there are so many bytes in its outbox.
    pub(super) fn note_answer(&mut self, id: ConnectionId, bytes: usize) {
        self.may_answer &= self.exempt != Some(id) || bytes <= BUFFER_KEPT_BYTES;
    }
}

impl<S: Default> Connections<S> {
    /// Finds out, at each turn, that too much is held.
    #[inline]
    pub(super) fn notice(&mut self) {
        if !self.memory.is_tight() && self.share.is_over() {
            self.memory.look_at = Some(self.now.after(LOOK_EVERY));
            for (_, connection) in &mut self.connections {
                connection.progress = (connection.moved(), self.now);
            }
            self.all().into_iter().for_each(|id| self.settle(id));
        }
    }

    /// Whether there is too little memory, and one peer goes on all the same.
    #[cfg(test)]
    pub(in super::super) fn memory_is_tight_for_one(&self) -> bool {
        self.memory.exempt.is_some()
    }

    /// Before each sleep: lets go on who may, and closes who must be.
    pub(super) fn ease(&mut self) {
        self.notice();
        let Some(look_at) = self.memory.look_at else { return };
        let is_time = look_at <= self.now;
        if is_time {
            self.memory.look_at = Some(self.now.after(LOOK_EVERY));
            self.look();
        }
        if self.share.is_enough() {
            self.loosen();
        } else if is_time || self.memory.exempt.is_some() {
            self.exempt_one();
        }
    }

    /// While memory is tight: a peer that holds much has no turns, one that does not any more has.
    pub(super) fn throttle(&mut self, id: ConnectionId) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        let holds_much =
            connection.bytes() > BUFFER_KEPT_BYTES && self.memory.exempt != Some(id) && !connection.is_disconnecting();
        let was_throttled = std::mem::replace(&mut connection.throttled, holds_much || connection.starved);
        if was_throttled && connection.is_served() && connection.holds_input() {
            self.queue(id);
        }
    }

    /// Everybody goes on.
    fn loosen(&mut self) {
        self.memory = MemoryWatch::default();
        for id in self.all() {
            let Some(connection) = get(&mut self.connections, id) else { continue };
            connection.starved = false;
            if std::mem::take(&mut connection.throttled) && connection.is_served() && connection.holds_input() {
                self.queue(id);
            }
            self.settle(id);
        }
    }

    /// Sees to it that one peer goes on, if any waits for memory.
    fn exempt_one(&mut self) {
        if self.is_exempt_going_on() {
            return;
        }
        let waits = |connection: &Connection<S>| {
            let holds_much = connection.starved || connection.unfinished() > BUFFER_KEPT_BYTES;
            connection.throttled && holds_much && !connection.is_paused() && !connection.parked
        };
        let waiting = || self.connections.iter().filter(|(_, connection)| waits(connection));
        let next = waiting().find(|(slot, _)| *slot > self.memory.last).or_else(|| waiting().next());
        let next = next.map(|(slot, connection)| ConnectionId::new(slot, connection.generation));
        let last = std::mem::replace(&mut self.memory.exempt, next);
        if let Some(id) = next {
            self.memory.may_answer = true;
            self.memory.last = id.place() as usize;
            self.memory.until = Some(self.now.after(STALLED_MAX));
            if let Some(connection) = get(&mut self.connections, id) {
                connection.starved = false;
                connection.progress = (connection.moved(), self.now);
            }
        }
        last.into_iter().chain(next).for_each(|id| self.settle(id));
    }

    /// Whether the exempt peer still finishes its message, or has a large answer, and some time for it.
    fn is_exempt_going_on(&mut self) -> bool {
        let MemoryWatch { exempt, may_answer, until, .. } = self.memory;
        let Some(connection) = exempt.and_then(|id| get(&mut self.connections, id)) else { return false };
        let has_time = until.is_some_and(|until| self.now < until);
        connection.unfinished() > BUFFER_KEPT_BYTES
            || has_time && (connection.outbox.held() > BUFFER_KEPT_BYTES || may_answer && connection.held.is_some())
    }

    /// Notes who has moved, and closes those that hold much and have not for too long, the largest first, until there is enough.
    fn look(&mut self) {
        for (_, connection) in &mut self.connections {
            let moved = connection.moved();
            if connection.bytes() <= BUFFER_KEPT_BYTES || connection.progress.0.abs_diff(moved) >= STALLED_BYTES {
                connection.progress = (moved, self.now);
            }
        }
        if self.share.is_enough() {
            return;
        }
        let (before, mut bytes) = (self.cut, 0);
        for (id, held) in self.those_that_stand_still() {
            if self.share.is_enough() {
                break;
            }
            self.cut += 1;
            bytes += held;
            self.forget(id);
        }
        let count = self.cut - before;
        if count > 0 && self.cuts_told.is_time(self.now) {
            tracing::warn!(
                "the connections of a frontend hold too much: {count} with {bytes} bytes, of peers that do not read or do not \
                 finish a message, are closed; {} by now",
                self.cut
            );
        }
    }

    /// The largest first.
    fn those_that_stand_still(&self) -> Vec<(ConnectionId, usize)> {
        let (now, exempt) = (self.now, self.memory.exempt);
        let all = self
            .connections
            .iter()
            .map(|(slot, connection)| (ConnectionId::new(slot, connection.generation), connection));
        let still = all.filter(|(id, connection)| {
            // What it has to do itself: to read, or to go on with its message. All others wait for us, also who has gone on.
            let may_move = !connection.outbox.is_empty() || exempt == Some(*id) && !connection.has_unreceived();
            may_move
                && !connection.parked
                && connection.bytes() > BUFFER_KEPT_BYTES
                && connection.progress.1.after(STALLED_MAX) <= now
        });
        let mut still: Vec<_> = still.map(|(id, connection)| (id, connection.bytes())).collect();
        still.sort_unstable_by_key(|(_, bytes)| Reverse(*bytes));
        still
    }

    fn all(&self) -> Vec<ConnectionId> {
        self.connections.iter().map(|(slot, connection)| ConnectionId::new(slot, connection.generation)).collect()
    }
}
