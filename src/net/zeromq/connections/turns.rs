//! Turns of connections, and the messages that a turn leaves.
//!
//! ```text
//! readable ─► received, cut ─► answer ─┬─► all taken
//!                 ▲                    ├─► some: the rest waits for another turn, when the send buffer has room
//!                 │                    ├─► starved: the rest waits until the frontend holds less
//!                 └─── none held ◄─────┴─► parked: the rest waits for `resume`, the client is not read from
//! ```

use std::collections::VecDeque;

use super::super::authentication::PeerIdentity;
use super::super::connection::{Connection, InputEnd};
use super::super::fault::note_fault;
use super::super::protocol::InputFault;
use super::super::reply_buffer::ReplyBuffer;
use super::{ConnectionId, ConnectionState, Connections, TurnOutcome};
use crate::clock::Now;
use crate::limits::{BUFFER_KEPT_BYTES, LOOK_AHEAD, RECEIVE_BYTES};
use crate::zmtp::{MessageView, Messages, Unconsumed};

/// The bytes that a turn has received beyond the bytes of its connection, and the messages cut out of both.
#[derive(Debug, Default)]
pub(super) struct TurnInput {
    shared: Vec<u8>,
    messages: Messages,
}

/// A turn that has received, and whose messages are not handled yet.
#[derive(Debug)]
pub(super) struct BegunTurn {
    id: ConnectionId,
    /// The number of messages to which its input was cut, at most.
    most: usize,
    input: TurnInput,
    left: Result<Unconsumed, InputEnd>,
}

/// What a connection's turn begins with.
enum NextTurn {
    /// Messages that have just been received.
    Received(BegunTurn),
    /// Messages that this connection held.
    Held(ConnectionId),
    /// Nothing that can be answered.
    None,
}

/// Turns that have begun and not ended.
#[derive(Default)]
pub(super) struct BegunTurns {
    /// Turns that have received and wait to be handled, in their order.
    pub(super) gathered: VecDeque<BegunTurn>,
    /// Memory for the input of turns.
    spare_inputs: Vec<TurnInput>,
    /// How many connections have a turn out.
    pub(super) out: usize,
}

impl TurnInput {
    /// The memory for a later turn, unless this one was large: a whole frame of CURVE is opened at once.
    fn spared(self) -> Option<Self> {
        let is_usual = self.shared.capacity() <= 2 * RECEIVE_BYTES && self.messages.kept_bytes() <= 2 * RECEIVE_BYTES;
        is_usual.then_some(self)
    }
}

impl BegunTurn {
    /// Whether it brought a single message of little size and nothing else, so that its connection keeps no byte of it.
    fn is_short(&self) -> bool {
        let TurnInput { shared, messages } = &self.input;
        let is_all = self.left.as_ref().is_ok_and(|left| left.begun.is_empty() && left.rest == shared.len());
        is_all && messages.len() == 1 && shared.len() <= BUFFER_KEPT_BYTES
    }
}

impl<S: ConnectionState> Connections<S> {
    /// Receives for the next turns before any of them is handled, so that the frontend can prepare all of them
    /// ([`Connections::gathered`]). [`Connections::receive`] then runs them one after the other. The first waits for
    /// the receive calls of the others, some hundred nanoseconds each: one that brings anything but a short message is
    /// the last, a handshake keeps its turn for `receive`, and nothing is gathered while memory is tight. The thread
    /// reads `clock` when all have received. Returns whether there is more than one.
    pub fn gather(&mut self, most: usize, clock: impl Fn() -> Now) -> bool {
        if !self.begun.gathered.is_empty() || !self.schedule.may_gather() {
            return false;
        }
        self.notice();
        let mut may_gather_more = !self.memory.watch.is_tight();
        while may_gather_more
            && self.begun.gathered.len() < LOOK_AHEAD
            && let Some((id, readable)) = self.next_turn()
        {
            let Some(connection) = self.connections.get_mut(id).filter(|connection| connection.is_served()) else {
                continue;
            };
            if connection.input.held.is_some() || !connection.is_open() {
                self.schedule.put_back(id);
                break;
            }
            let turn = self.begin(id, readable, most.max(1));
            may_gather_more = turn.as_ref().is_some_and(BegunTurn::is_short);
            self.begun.gathered.extend(turn);
        }
        let is_several = self.begun.gathered.len() > 1;
        if is_several {
            self.note_arrivals(clock());
        }
        is_several
    }

    /// The gathered turns have received their input now, and wait for each other.
    fn note_arrivals(&mut self, now: Now) {
        let Self { begun, connections, .. } = self;
        for turn in &begun.gathered {
            if let Some(connection) = connections.get_mut(turn.id) {
                connection.outbox.arrived(now);
            }
        }
    }

    /// The connections' states and the messages of the turns that [`Connections::gather`] has begun.
    pub fn gathered(&self) -> impl Iterator<Item = (&S, MessageView<'_>)> {
        self.begun.gathered.iter().filter_map(|turn| {
            let connection = self.connections.get(turn.id)?;
            Some((&connection.state, turn.input.messages.view(connection.input.buffer.unused(&turn.input.shared))))
        })
    }

    /// Runs one turn of a connection. Hands at most `most` of its messages, and at least one, to `answer`. If
    /// [`Connections::gather`] has begun the turn, these are the gathered messages. Returns `None` if no connection has a
    /// turn before the next wait.
    ///
    /// A connection whose send buffer is too full has no turn, nor has one whose messages are parked.
    pub fn receive(
        &mut self,
        most: usize,
        answer: impl FnOnce(ConnectionId, &mut S, &mut ReplyBuffer, MessageView<'_>) -> TurnOutcome,
    ) -> Option<()> {
        self.notice();
        let turn = match self.begun.gathered.pop_front() {
            Some(turn) => turn,
            None => match self.begin_next(most)? {
                NextTurn::Received(turn) => turn,
                NextTurn::Held(id) => {
                    self.take_held(id, answer);
                    return Some(());
                }
                NextTurn::None => return Some(()),
            },
        };
        let BegunTurn { id, most, input, left } = turn;
        let TurnInput { shared, messages } = &input;
        let Self { connections, memory, sending, now, .. } = self;
        if let Some(connection) = connections.get_mut(id).filter(|connection| connection.is_open())
            && !messages.is_empty()
        {
            connection.watch.active = *now;
            let (bytes, state, outbox) = connection.parts(shared);
            if outbox.lacks_memory() {
                outbox.lend(sending.spare_replies.pop());
            }
            outbox.set_tight(memory.watch.is_tight_for(id));
            let before = outbox.end();
            let taken = answer(id, state, outbox, messages.view(bytes));
            if let Some(count) = taken.count() {
                connection.input.hold_of_shared(count, messages, shared);
            }
            connection.turn.wait_for(taken, connection.outbox.end() - before);
            memory.watch.note_answer(id, connection.outbox.len());
            note_claim(connection);
            if taken == TurnOutcome::Last {
                self.end(id);
            }
        }
        self.conclude(id, left, shared, messages.len() == most);
        self.begun.spare_inputs.extend(input.spared());
        Some(())
    }

    /// Receives for the connection that has the next turn, unless it holds messages. None: no connection has one.
    fn begin_next(&mut self, most: usize) -> Option<NextTurn> {
        let (id, readable) = self.next_turn()?;
        Some(match self.connections.get_mut(id).filter(|connection| connection.is_served()) {
            Some(connection) if connection.input.held.is_some() => NextTurn::Held(id),
            Some(_) => self.begin(id, readable, most.max(1)).map_or(NextTurn::None, NextTurn::Received),
            None => {
                self.receive_ahead(id);
                NextTurn::None
            }
        })
    }

    /// Runs a turn of a connection with parked messages, if it is open and its client reads replies.
    pub fn resume(
        &mut self,
        id: ConnectionId,
        answer: impl FnOnce(ConnectionId, &mut S, &mut ReplyBuffer, MessageView<'_>) -> TurnOutcome,
    ) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.turn.is_parked = false;
        if connection.is_served() {
            self.take_held(id, answer);
        }
    }

    fn take_held(
        &mut self,
        id: ConnectionId,
        answer: impl FnOnce(ConnectionId, &mut S, &mut ReplyBuffer, MessageView<'_>) -> TurnOutcome,
    ) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let Some(held) = connection.input.held.take() else { return };
        if connection.outbox.lacks_memory() {
            connection.outbox.lend(self.sending.spare_replies.pop());
        }
        connection.outbox.set_tight(self.memory.watch.is_tight_for(id));
        let before = connection.outbox.end();
        let taken = answer(id, &mut connection.state, &mut connection.outbox, held.view());
        match taken.count() {
            None => {}
            Some(0) => connection.input.held = Some(held),
            Some(count) => connection.input.hold(count, held.view()),
        }
        connection.turn.wait_for(taken, connection.outbox.end() - before);
        self.memory.watch.note_answer(id, connection.outbox.len());
        note_claim(connection);
        let (claims, ends) = (connection.peer.is_claimed(), taken == TurnOutcome::Last);
        let (faulty, more) = (connection.input.is_faulty(), connection.input.is_held() && connection.is_served());
        self.touch(id);
        if claims {
            self.identify(id);
        } else if ends || faulty {
            self.end(id);
        } else if more {
            self.queue(id);
        }
        self.renew_interest(id);
    }

    /// Receives for a turn.
    fn begin(&mut self, id: ConnectionId, readable: bool, most: usize) -> Option<BegunTurn> {
        let connection = self.connections.get_mut(id)?;
        let mut input = self.begun.spare_inputs.pop().unwrap_or_default();
        let before = connection.input.buffer.received();
        input.shared.clear();
        let left = connection.take(readable, &self.bounds, most, &mut input.shared, &mut input.messages);
        self.counts.of(connection.protocol()).received += connection.input.buffer.received() - before;
        Some(BegunTurn { id, most, input, left })
    }

    /// What follows a turn: its rest is kept, and an end or the next turn is noted. `is_full`: it had as many messages
    /// as a turn may have, so further ones may follow.
    pub(super) fn conclude(
        &mut self,
        id: ConnectionId,
        left: Result<Unconsumed, InputEnd>,
        shared: &[u8],
        is_full: bool,
    ) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        match left {
            Ok(left) => {
                let unseen = connection.input.keep(&left, shared);
                if connection.is_open() && connection.unfinished() > 0 {
                    connection.watch.active = self.now;
                }
                if connection.peer.is_claimed() {
                    self.touch(id);
                    self.identify(id);
                    self.renew_interest(id);
                    return;
                }
                let answered = !connection.outbox.is_empty();
                let more = connection.input.held.is_some() || unseen && is_full;
                if more && connection.is_served() {
                    self.queue(id);
                }
                if answered {
                    self.touch(id);
                }
                self.renew_interest(id);
            }
            Err(InputEnd::Gone) => self.end_input(id),
            Err(InputEnd::Fault(fault)) => {
                self.note_fault(id, &fault);
                let Some(connection) = self.connections.get_mut(id) else { return };
                if connection.input.held.is_none() {
                    self.end(id);
                } else if connection.is_served() {
                    self.queue(id);
                }
                // Also if its messages wait: the system must stop reporting input that the thread does not receive.
                self.touch(id);
            }
        }
    }

    /// The client has broken the protocol.
    pub(super) fn note_fault(&mut self, id: ConnectionId, fault: &InputFault) {
        tracing::debug!("a connection ends: {fault}");
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.input.note_fault(fault);
        if let InputFault::Zmtp(fault) = fault {
            note_fault(&connection.descriptor, fault, self.authentication.as_ref());
        }
    }

    /// Parts with a client that has broken the protocol, or has taken its leave.
    pub(super) fn end(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id).filter(|connection| !connection.is_disconnecting()) else {
            return;
        };
        connection.answer_fault();
        self.disconnect(id);
    }

    /// The connection that has the next turn, and whether the thread receives for it.
    pub(super) fn next_turn(&mut self) -> Option<(ConnectionId, bool)> {
        self.schedule.next(&mut self.connections)
    }

    /// Queues a connection with input for a turn. Returns whether it was not queued before.
    pub(super) fn queue(&mut self, id: ConnectionId) -> bool {
        self.connections.get_mut(id).is_some_and(|connection| self.schedule.queue(id, connection))
    }
}

/// Takes over what the client claims by a command that the frontend has met.
fn note_claim<S: ConnectionState>(connection: &mut Connection<S>) {
    if let Some(claim) = connection.state.take_claim() {
        connection.peer = PeerIdentity::Claimed(claim);
    }
}

#[cfg(test)]
impl<S> Connections<S> {
    /// How many turns the last wait has noted.
    pub(in super::super) fn turns_noted(&self) -> usize {
        self.schedule.turns_noted()
    }

    /// From now on there are at most so many connections.
    pub(in super::super) fn limit_to(&mut self, most: usize) {
        self.connections.limit_to(most);
    }

    /// Whether a client waits for room.
    pub(in super::super) fn listeners_wait(&self) -> bool {
        self.port.listeners.again_at().is_some()
    }

    /// How many connections have their handshake behind them.
    pub(in super::super) fn open_count(&self) -> usize {
        self.connections.iter().filter(|(_, connection)| connection.is_open()).count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::clock::Now;
    use crate::limits::LARGE_REPLIES_BYTES;
    use crate::net::budget::Budget;
    use crate::net::sockets::WakeSignal;
    use crate::net::zeromq::protocol::Arrival;
    use crate::zmtp::MessageBounds;

    const BOUNDS: MessageBounds = MessageBounds { frame_bytes: 1 << 20, frames: 8, bytes: 2 << 20 };

    /// A wait that finds input of this connection.
    fn note_input(connections: &mut Connections<()>, id: ConnectionId) {
        let Connections { schedule, connections, .. } = connections;
        schedule.begin_wait();
        schedule.note_input(id, connections.get_mut(id).unwrap());
        schedule.end_wait();
    }

    #[test]
    fn a_connection_whose_turn_was_long_has_the_next_one_after_all_others() {
        let wake_signal = WakeSignal::new().unwrap();
        let mut connections: Connections<()> =
            Connections::new(&wake_signal, BOUNDS, &Budget::new(1 << 20), None).unwrap();
        let pairs: Vec<_> = (0..4).map(|_| UnixStream::pair().unwrap()).collect();
        let mut clients = Vec::new();
        for (ours, theirs) in pairs {
            connections.insert(OwnedFd::from(ours).into(), Now::from_millis(1));
            clients.push(theirs);
        }
        let [long, longer, other, last] = connections.connections.ids()[..] else { panic!() };
        for id in [long, longer] {
            connections.connections.get_mut(id).unwrap().turn.wait_for(TurnOutcome::Some(1), 0);
            connections.queue(id);
        }
        connections.connections.get_mut(other).unwrap().turn.wait_for(TurnOutcome::All, LARGE_REPLIES_BYTES);
        connections.queue(other);
        note_input(&mut connections, last);
        let turns: Vec<_> = std::iter::from_fn(|| connections.next_turn()).collect();
        assert_eq!(turns, [(other, false), (last, true), (long, false)], "and one of the long ones waits");
        assert!(connections.has_backlog());
    }

    #[test]
    fn each_of_the_backlog_has_one_turn_and_then_those_with_events_have_theirs() {
        let wake_signal = WakeSignal::new().unwrap();
        let mut connections: Connections<()> =
            Connections::new(&wake_signal, BOUNDS, &Budget::new(1 << 20), None).unwrap();
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let mut clients = Vec::new();
        for (ours, theirs) in pairs {
            connections.insert(OwnedFd::from(ours).into(), Now::from_millis(1));
            clients.push(theirs);
        }
        let [first, second, third] = connections.connections.ids()[..] else { panic!() };
        connections.queue(first);
        connections.queue(second);
        note_input(&mut connections, third);
        assert_eq!(connections.next_turn(), Some((first, false)));
        // It has more input, and waits for the next round.
        connections.queue(first);
        let turns: Vec<_> = std::iter::from_fn(|| connections.next_turn()).collect();
        assert_eq!(turns, [(second, false), (third, true)]);
        assert!(connections.schedule.turns() == 0 && connections.has_backlog(), "in the next round");
    }

    #[test]
    fn a_connection_that_waits_for_memory_gets_no_turns() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::greet(Arrival::of(ours), (), 1, Now::from_millis(1), None);
        let mut after = |outcome| {
            connection.turn.wait_for(outcome, 0);
            (connection.turn.is_parked, connection.turn.is_starved(), connection.turn.is_throttled())
        };
        assert_eq!(after(TurnOutcome::Some(1)), (false, false, false));
        assert_eq!(after(TurnOutcome::Parked(1)), (true, false, false));
        assert_eq!(after(TurnOutcome::Starved(0)), (false, true, true));
        assert_eq!(after(TurnOutcome::All), (false, false, true), "until memory is checked again");
    }
}
