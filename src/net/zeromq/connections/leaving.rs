//! The ends of connections: closed at once, or when their clients have read what is on its way.

use super::super::deadlines::Deadlines;
use super::{Closed, ConnectionId, ConnectionState, Connections};

/// Connections that end, or have ended.
pub(super) struct Endings<S> {
    pub(super) deadlines: Deadlines,
    /// Those that have closed, for the frontend.
    pub(super) gone: Vec<Closed<S>>,
    /// Connections closed since the last call of [`Connections::closed`].
    pub(super) closed: usize,
}

impl<S> Default for Endings<S> {
    fn default() -> Self {
        Self { deadlines: Deadlines::default(), gone: Vec::new(), closed: 0 }
    }
}

impl<S: ConnectionState> Connections<S> {
    /// A connection that has closed, with its state.
    pub fn gone(&mut self) -> Option<Closed<S>> {
        self.endings.gone.pop()
    }

    /// Closes a connection at once, or when its messages that are out have come back.
    pub fn close(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        if let Some(out) = &mut connection.turn.out {
            out.closes = true;
            // Nobody reads what is sent to it, and the system reports nothing of it any more.
            connection.outbox.give_up();
            return connection.interest.end(&self.port.epoll, &connection.descriptor);
        }
        let connection = self.connections.remove(id);
        self.counts.of(connection.protocol()).connections -= 1;
        self.memory.share.change(0, connection.watch.counted);
        self.endings.closed += 1;
        let (is_disconnecting, sent) = (connection.is_disconnecting(), connection.outbox.sent());
        if !is_disconnecting {
            self.endings.gone.push(Closed { id, state: connection.state, sent });
        }
    }

    /// Takes no more requests from a client, and closes the connection when it has read the earlier replies.
    pub fn disconnect(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        if !connection.is_disconnecting() {
            connection.disconnect();
            connection.watch.deadline = self.endings.deadlines.begin(id, self.now);
            // The bytes in the send buffer are still sent.
            self.endings.gone.push(Closed {
                id,
                state: std::mem::take(&mut connection.state),
                sent: connection.outbox.end(),
            });
        }
        self.touch(id);
    }

    /// Stops accepting, and parts with all clients. Each connection closes when its client has read the earlier
    /// replies, and at once if no bytes are on their way in either direction. Gathered turns are not handled any more.
    pub fn disconnect_all(&mut self) {
        self.stop_accepting();
        for id in self.connections.ids() {
            if self.connections.get_mut(id).is_some_and(|connection| connection.is_settled()) {
                self.close(id);
            } else {
                self.disconnect(id);
            }
        }
    }

    /// Stops listening. Connected clients are still served.
    pub fn stop_accepting(&mut self) {
        self.port.listeners.close();
    }

    /// Drops all bytes that the system has not taken.
    pub fn discard_all(&mut self) {
        self.connections.iter_mut().for_each(|connection| connection.outbox.give_up());
    }

    /// Receives no more. Input received before still has its turns.
    pub fn stop_receiving(&mut self) {
        self.gate.shut = true;
    }

    /// Whether input was received and not handled, not counting parked messages.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        self.schedule.has_backlog() || !self.begun.gathered.is_empty()
    }

    /// How many connections have closed since the last call.
    pub fn closed(&mut self) -> usize {
        std::mem::take(&mut self.endings.closed)
    }
}
