//! Turns of connections, and the messages that a turn leaves.
//!
//! ```text
//! readable ─► received, cut ─► handle ─┬─► all taken
//!                 ▲                    ├─► some: the rest waits for another turn, when the send buffer has room
//!                 │                    ├─► starved: the rest waits until the frontend holds less
//!                 └─── none held ◄─────┴─► parked: the rest waits for `resume`, the client is not read from
//! ```

use super::super::connection::{Connection, InputEnd};
use super::super::send_buffer::SendBuffer;
use super::{ConnectionId, ConnectionState, Connections, get};
use crate::zmtp::Messages;

/// Outcome of one turn's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The frontend took all of them.
    All,
    /// It took this many. The others have another turn when the send buffer has room.
    Some(usize),
    /// It took this many. The next reply is too large while [`SendBuffer::is_tight`], and the others wait until then.
    Starved(usize),
    /// It took this many. The others, and later input of the client, wait until [`Connections::resume`].
    Parked(usize),
}

impl TurnOutcome {
    /// How many were taken, if not all.
    #[must_use]
    pub fn count(self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Some(count) | Self::Starved(count) | Self::Parked(count) => Some(count),
        }
    }
}

impl<S> Connection<S> {
    /// Sets the flags that the held messages wait for.
    fn wait_for(&mut self, taken: TurnOutcome) {
        self.parked = matches!(taken, TurnOutcome::Parked(_));
        self.starved = matches!(taken, TurnOutcome::Starved(_));
        self.throttled |= self.starved;
    }
}

impl<S: ConnectionState> Connections<S> {
    /// Runs one turn of a connection: hands at most `most` of its messages, and at least one, to `handle`, with the
    /// bytes that they lie in. Returns `None` if no connection has a turn before the next wait.
    ///
    /// A connection whose send buffer is too full has no turn, nor has one whose messages are parked.
    pub fn receive(
        &mut self,
        most: usize,
        handle: impl FnOnce(ConnectionId, &mut S, &mut SendBuffer, &Messages, &[u8]) -> TurnOutcome,
    ) -> Option<()> {
        let (id, readable) = self.next_turn()?;
        self.notice();
        match get(&mut self.connections, id).filter(|connection| connection.is_served()) {
            Some(Connection { held: Some(_), .. }) => self.take_held(id, handle),
            Some(_) => self.take_new(id, (readable, most.max(1)), handle),
            None => {}
        }
        Some(())
    }

    /// Runs a turn of a connection with parked messages, if it is open and its client reads replies.
    pub fn resume(
        &mut self,
        id: ConnectionId,
        handle: impl FnOnce(ConnectionId, &mut S, &mut SendBuffer, &Messages, &[u8]) -> TurnOutcome,
    ) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        connection.parked = false;
        if connection.is_served() {
            self.take_held(id, handle);
        }
    }

    fn take_held(
        &mut self,
        id: ConnectionId,
        handle: impl FnOnce(ConnectionId, &mut S, &mut SendBuffer, &Messages, &[u8]) -> TurnOutcome,
    ) {
        let Some(connection) = get(&mut self.connections, id) else { return };
        let Some(held) = connection.held.take() else { return };
        connection.outbox.set_tight(self.memory.is_tight_for(id));
        let taken = handle(id, &mut connection.state, &mut connection.outbox, &held.messages, &held.bytes);
        match taken.count() {
            None => {}
            Some(0) => connection.held = Some(held),
            Some(count) => connection.hold(count, &held.messages, &held.bytes),
        }
        connection.wait_for(taken);
        self.memory.note_answer(id, connection.outbox.len());
        let (faulty, more) =
            (connection.faulty && connection.held.is_none(), connection.holds_input() && connection.is_served());
        self.touch(id);
        if faulty {
            self.disconnect(id);
        } else if more {
            self.queue(id);
        }
        self.renew_interest(id);
    }

    fn take_new(
        &mut self,
        id: ConnectionId,
        (readable, most): (bool, usize),
        handle: impl FnOnce(ConnectionId, &mut S, &mut SendBuffer, &Messages, &[u8]) -> TurnOutcome,
    ) {
        let Self { connections, bounds, shared, messages, memory, traffic, .. } = self;
        let Some(connection) = get(connections, id) else { return };
        let before = connection.received();
        let left = connection.take(readable, (bounds, most), shared, messages);
        traffic.received += connection.received() - before;
        if !messages.is_empty() {
            let (bytes, state, outbox) = connection.parts(shared);
            outbox.set_tight(memory.is_tight_for(id));
            let taken = handle(id, state, outbox, messages, bytes);
            if let Some(count) = taken.count() {
                connection.hold_of_shared(count, messages, shared);
            }
            connection.wait_for(taken);
            memory.note_answer(id, connection.outbox.len());
        }
        match left {
            Ok(left) => {
                let unseen = connection.keep(&left, shared);
                if let Some(claim) = connection.claim.take() {
                    self.touch(id);
                    self.identify(id, claim);
                    self.renew_interest(id);
                    return;
                }
                let answered = !connection.outbox.is_empty();
                let more = connection.held.is_some() || unseen && messages.len() == most;
                if more && connection.is_served() {
                    self.queue(id);
                }
                if answered {
                    self.touch(id);
                }
                self.renew_interest(id);
            }
            Err(InputEnd::Gone) => self.close(id),
            Err(InputEnd::Fault(fault)) => {
                tracing::debug!("a connection ends: {fault}");
                if let Some(authentication) = &self.authentication {
                    authentication.note_fault(connection.descriptor(), &fault);
                }
                connection.faulty = true;
                if connection.held.is_none() {
                    self.disconnect(id);
                } else if connection.is_served() {
                    self.queue(id);
                }
                // Also if its messages wait: the system must stop reporting input that the thread does not receive.
                self.touch(id);
            }
        }
    }

    fn next_turn(&mut self) -> Option<(ConnectionId, bool)> {
        if self.backlog_turns > 0 {
            self.backlog_turns -= 1;
            let id = self.backlog.pop_front()?;
            if let Some(connection) = get(&mut self.connections, id) {
                connection.queued = false;
            }
            return Some((id, false));
        }
        while let Some(id) = self.turns.pop_front() {
            // Input received before comes first, even before an end.
            if get(&mut self.connections, id).is_some_and(|connection| !connection.queued) {
                return Some((id, true));
            }
        }
        None
    }

    pub(super) fn queue(&mut self, id: ConnectionId) {
        if let Some(connection) = get(&mut self.connections, id).filter(|connection| !connection.queued) {
            connection.queued = true;
            self.backlog.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::clock::Now;
    use crate::protocols::native::BufferBudget;
    use crate::protocols::sockets::WakeSignal;
    use crate::zmtp::MessageBounds;

    const BOUNDS: MessageBounds = MessageBounds { frame_bytes: 1 << 20, frames: 8, bytes: 2 << 20 };

    #[test]
    fn each_of_the_backlog_has_one_turn_and_then_those_with_events_have_theirs() {
        let bell = WakeSignal::new().unwrap();
        let mut connections: Connections<()> = Connections::new(&bell, BOUNDS, &BufferBudget::new(1 << 20)).unwrap();
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let mut clients = Vec::new();
        for (ours, theirs) in pairs {
            connections.insert(ours.into(), Now::from_millis(1));
            clients.push(theirs);
        }
        let [first, second, third] = connections.all()[..] else { panic!() };
        connections.queue(first);
        connections.queue(second);
        connections.backlog_turns = 2;
        connections.turns.push_back(third);
        assert_eq!(connections.next_turn(), Some((first, false)));
        // It has more input, and waits for the next round.
        connections.queue(first);
        let turns: Vec<_> = std::iter::from_fn(|| connections.next_turn()).collect();
        assert_eq!(turns, [(second, false), (third, true)]);
        assert_eq!(connections.backlog, [first]);
    }

    #[test]
    fn a_connection_that_waits_for_memory_gets_no_turns() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::greet(ours.into(), (), 1, Now::from_millis(1), None);
        let mut after = |outcome| {
            connection.wait_for(outcome);
            (connection.parked, connection.starved, connection.throttled)
        };
        assert_eq!(after(TurnOutcome::Some(1)), (false, false, false));
        assert_eq!(after(TurnOutcome::Parked(1)), (true, false, false));
        assert_eq!(after(TurnOutcome::Starved(0)), (false, true, true));
        assert_eq!(after(TurnOutcome::All), (false, false, true), "until memory is checked again");
    }
}
