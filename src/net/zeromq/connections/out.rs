//! Turns that go out to another thread, and come back.
//!
//! ```text
//! readable ─► received, cut ─► out ─► … ─► back ─► replies ─┬─► all taken: receives again
//!               ▲   held ──────▲                           ├─► some, starved: held, as after a turn in this thread
//!               └──────────────┴───────────────────────────┴─► parked: the other thread brings the rest back later
//! ```
//! A connection has at most one turn out, which keeps its order. Meanwhile the thread does not receive from it, but for
//! PINGs (see `Connection::is_read_ahead`), and closes it only when the turn is back: until then its messages count as
//! held.

use super::super::connection::{InputEnd, MessagesOut, ReceivedMessages};
use super::super::turn::TurnBytes;
use super::super::turn_batch::{TurnBatch, TurnOut};
use super::{ConnectionId, ConnectionState, Connections, TurnOutcome};
use crate::zmtp::Unconsumed;

impl<S: ConnectionState> Connections<S> {
    /// Has the next turn join the batch, with at most `most` messages. `None`: no connection has a turn before the next
    /// wait.
    pub fn send_out(&mut self, most: usize, batch: &mut TurnBatch<S>) -> Option<()> {
        self.notice();
        let (id, readable) = self.next_turn()?;
        let Some(connection) = self.connections.get_mut(id) else { return Some(()) };
        if connection.waits() {
            self.receive_ahead(id);
        } else if connection.is_served() {
            if connection.input.held.is_some() {
                self.send_out_held(id, batch);
            } else {
                self.send_out_received(id, readable, most.max(1), batch);
            }
        }
        Some(())
    }

    fn send_out_held(&mut self, id: ConnectionId, batch: &mut TurnBatch<S>) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let Some(held) = connection.input.held.take() else { return };
        let ReceivedMessages { messages, bytes } = *held;
        let (turn, _) = batch.next_place(id);
        turn.messages = messages;
        self.begin_out(id, turn, TurnBytes::Own(bytes, 0));
        batch.keep_last();
    }

    fn send_out_received(&mut self, id: ConnectionId, readable: bool, most: usize, batch: &mut TurnBatch<S>) {
        let Self { connections, bounds, counts, .. } = self;
        let Some(connection) = connections.get_mut(id) else { return };
        let (turn, shared) = batch.next_place(id);
        let (from, before) = (shared.len(), connection.input.buffer.received());
        // Input received before comes first, even before an end.
        let readable = readable && !connection.input.uncut;
        connection.input.uncut = false;
        let left = connection.take(readable, bounds, most, shared, &mut turn.messages);
        counts.of(connection.protocol()).received += connection.input.buffer.received() - before;
        let received = shared.get(from..).unwrap_or_default();
        if turn.messages.is_empty() {
            // The system reports its input again.
            connection.input.hot = false;
        }
        let is_full = turn.messages.len() == most;
        if turn.messages.is_empty() || !connection.is_open() {
            self.conclude(id, left, received, is_full);
            shared.truncate(from);
            return;
        }
        let own = match &left {
            Ok(left) => connection.input.detach(left, received, is_full),
            // The messages before a fault are good, and no bytes behind them are.
            Err(_) => connection.input.detach(&Unconsumed { begun: 0..0, rest: usize::MAX }, received, false),
        };
        let bytes = match own {
            Some((bytes, start)) => TurnBytes::Own(bytes, start),
            None => TurnBytes::Shared(from..shared.len()),
        };
        self.begin_out(id, turn, bytes);
        batch.keep_last();
        if let Err(InputEnd::Fault(fault)) = left {
            self.note_fault(id, &fault);
        }
    }

    /// The turn goes out with the state of its connection.
    fn begin_out(&mut self, id: ConnectionId, turn: &mut TurnOut<S>, bytes: TurnBytes) {
        let Self { connections, memory, sending, begun, now, .. } = self;
        let Some(connection) = connections.get_mut(id) else { return };
        connection.turn.out = Some(MessagesOut { memory: bytes.memory(), closes: false });
        connection.watch.active = *now;
        begun.out += 1;
        turn.is_exempt = memory.watch.is_exempt(id);
        let (tight, unread) = (memory.watch.is_tight_for(id), connection.outbox.is_unread());
        if turn.replies.lacks_memory() {
            turn.replies.lend(sending.spare_replies.pop());
        }
        let arrived = connection.outbox.arrived(*now);
        turn.replies.begin(arrived, tight, unread);
        (turn.state, turn.bytes) = (std::mem::take(&mut connection.state), bytes);
        self.renew_interest(id);
    }

    /// Takes the turns of a batch back, with their replies, and empties the batch.
    pub fn take_back(&mut self, batch: &mut TurnBatch<S>) {
        let counted = batch.share.bytes();
        self.memory.share.absorb(&mut batch.share);
        let (turns, shared) = batch.turns_mut();
        for turn in turns {
            self.take_turn_back(turn, shared);
        }
        self.memory.share.change(0, counted);
        batch.clear();
    }

    fn take_turn_back(&mut self, turn: &mut TurnOut<S>, shared: &[u8]) {
        let id = turn.id();
        let Some(connection) = self.connections.get_mut(id) else { return };
        let replies = turn.replies.end();
        connection.outbox.take_over(&mut turn.replies);
        let mut closes = false;
        if !matches!(turn.outcome, TurnOutcome::Parked(_)) {
            closes = connection.turn.out.take().is_some_and(|out| out.closes);
            self.begun.out -= 1;
            connection.state = std::mem::take(&mut turn.state);
            if let Some(count) = turn.outcome.count() {
                let (messages, bytes) = turn.rest(count, shared);
                connection.input.hold_rest(messages, bytes);
            }
        }
        if connection.outbox.is_unread() || connection.is_disconnecting() {
            connection.outbox.discard();
        }
        connection.watch.active = self.now;
        connection.turn.wait_for(turn.outcome, replies);
        self.memory.watch.note_answer(id, connection.outbox.len());
        if matches!(turn.outcome, TurnOutcome::Starved(_)) && !self.memory.watch.is_tight() {
            self.tighten();
        }
        self.touch(id);
        self.after_turn(id, closes);
    }

    /// What follows when a turn is back: an end that has waited for it, or the next turn.
    fn after_turn(&mut self, id: ConnectionId, closes: bool) {
        let shut = self.gate.shut;
        let Some(connection) = self.connections.get_mut(id) else { return };
        if connection.turn.out.is_some() {
            return self.renew_interest(id);
        }
        let has_input = connection.input.uncut || connection.input.held.is_some() || connection.input.hot && !shut;
        let is_next = has_input && connection.is_served();
        if closes {
            self.close(id);
        } else if connection.input.is_faulty() {
            self.end(id);
        } else if is_next {
            let comes_next = !connection.turn.is_long;
            // Its turn comes before the next wait, unless the last one was long.
            if self.queue(id) && comes_next {
                self.schedule.hasten();
            }
        }
        self.renew_interest(id);
    }

    /// Input has come from a connection whose messages wait. Its PINGs are answered if they have to be, and otherwise
    /// the system reports no more of its input for now.
    pub(super) fn receive_ahead(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        if connection.is_read_ahead() {
            let before = connection.input.buffer.received();
            connection.receive_ahead();
            self.counts.of(connection.protocol()).received += connection.input.buffer.received() - before;
            self.touch(id);
        }
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.input.hot = connection.turn.out.is_some();
        self.renew_interest(id);
    }

    /// How many connections have a turn out.
    #[must_use]
    pub fn turns_out(&self) -> usize {
        self.begun.out
    }
}
