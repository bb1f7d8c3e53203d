//! Which connection has the next turn.
//!
//! ```text
//! a wait ends ─► those with input received before ─► those that the system reports ─► a few whose last turn was long
//! ```

use std::collections::VecDeque;

use super::super::connection::Connection;
use super::ConnectionId;
use super::slots::Slots;

/// The connections with input, in the order of their turns.
pub(super) struct Schedule {
    /// Connections that have input to receive.
    readable: VecDeque<ConnectionId>,
    /// Connections with input that was received and not handled.
    backlog: VecDeque<ConnectionId>,
    /// How many of the backlog have a turn before the next wait.
    backlog_turns: usize,
    /// Connections with input whose last turn was long, and whether the thread receives for the next one. A few of them
    /// have a turn between two waits, after all others.
    long: VecDeque<(ConnectionId, bool)>,
    /// How many of them have a turn before the next wait.
    long_turns: usize,
    /// How many of them may have one.
    long_turns_max: usize,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            readable: VecDeque::new(),
            backlog: VecDeque::new(),
            backlog_turns: 0,
            long: VecDeque::new(),
            long_turns: 0,
            long_turns_max: 1,
        }
    }

    /// So many turns that may be long go between two waits.
    pub(super) fn allow_long_turns(&mut self, most: usize) {
        self.long_turns_max = most;
    }

    /// A wait begins: what the last one has reported is over.
    pub(super) fn begin_wait(&mut self) {
        self.readable.clear();
        self.backlog_turns = self.backlog.len();
    }

    /// A wait has ended, and all that it has reported is noted. A connection that joins the long ones in this round has
    /// its turn in the next one.
    pub(super) fn end_wait(&mut self) {
        self.long_turns = self.long_turns_max.min(self.long.len());
    }

    /// The system reports input of a connection.
    pub(super) fn note_input<S>(&mut self, id: ConnectionId, connection: &mut Connection<S>) {
        if connection.turn.is_long && !connection.turn.is_queued {
            connection.turn.is_queued = true;
            self.long.push_back((id, true));
        } else {
            self.readable.push_back(id);
        }
    }

    /// The connection that has the next turn, and whether the thread receives for it.
    pub(super) fn next<S>(&mut self, connections: &mut Slots<S>) -> Option<(ConnectionId, bool)> {
        if self.backlog_turns > 0 {
            self.backlog_turns -= 1;
            let id = self.backlog.pop_front()?;
            return Some((id, leaves_queue(connections, id)));
        }
        while let Some(id) = self.readable.pop_front() {
            // Input received before comes first, even before an end.
            if connections.get(id).is_some_and(|connection| !connection.turn.is_queued) {
                return Some((id, true));
            }
        }
        self.long_turns = self.long_turns.checked_sub(1)?;
        let (id, readable) = self.long.pop_front()?;
        Some((id, leaves_queue(connections, id) || readable))
    }

    /// Gives a turn back that the system has reported input for.
    pub(super) fn put_back(&mut self, id: ConnectionId) {
        self.readable.push_front(id);
    }

    /// Queues a connection with input for a turn. Returns whether it was not queued before.
    pub(super) fn queue<S>(&mut self, id: ConnectionId, connection: &mut Connection<S>) -> bool {
        if std::mem::replace(&mut connection.turn.is_queued, true) {
            return false;
        }
        if connection.turn.is_long {
            self.long.push_back((id, false));
        } else {
            self.backlog.push_back(id);
        }
        true
    }

    /// The turn of one more connection of the backlog comes before the next wait.
    pub(super) fn hasten(&mut self) {
        self.backlog_turns += 1;
    }

    /// Whether all that have a turn before the next wait have input to receive, and are several.
    pub(super) fn may_gather(&self) -> bool {
        self.backlog_turns == 0 && self.readable.len() > 1
    }

    /// Whether input was received and not handled.
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty() || !self.long.is_empty()
    }

    /// How many connections may have a turn before the next wait.
    pub(super) fn turns(&self) -> usize {
        self.readable.len() + self.backlog_turns + self.long_turns
    }

    /// How many turns the last wait has noted.
    #[cfg(test)]
    pub(super) fn turns_noted(&self) -> usize {
        self.readable.len()
    }
}

/// Notes that a connection is queued no more. Returns whether the thread has to receive to know of its input.
fn leaves_queue<S>(connections: &mut Slots<S>, id: ConnectionId) -> bool {
    connections.get_mut(id).is_some_and(|connection| {
        connection.turn.is_queued = false;
        connection.input.hot
    })
}
