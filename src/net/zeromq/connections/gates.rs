//! Connections whose replies wait for the disk.
//!
//! ```text
//! a turn leaves a reply that waits ─► listed ─► the frontend has the epoch synced ─► opened: flushed
//!                                                                               └─► refused, if that has failed
//! ```

use super::super::connection::Connection;
use super::super::protocol::ConnectionProtocol;
use super::{ConnectionId, ConnectionState, Connections};

/// The connections of a thread with replies that wait.
#[derive(Default)]
pub(super) struct GatedConnections {
    list: Vec<ConnectionId>,
    /// The highest epoch that one of them waits for. 0: none waits.
    highest: u64,
    /// The last epoch that was on disk when they were looked at.
    synced: u64,
}

impl GatedConnections {
    /// A connection may have a reply that waits.
    #[cold]
    pub(super) fn note<S>(&mut self, connection: &mut Connection<S>, id: ConnectionId) {
        // The epoch may have come to the disk since the reply was made.
        connection.outbox.open_gates(self.synced);
        let Some(epoch) = connection.outbox.awaited() else { return };
        self.highest = self.highest.max(epoch);
        if !connection.outbox.is_gated {
            connection.outbox.is_gated = true;
            self.list.push(id);
        }
    }
}

impl<S: ConnectionState> Connections<S> {
    /// The epoch that has to be on disk before all replies can be sent, if one has to.
    #[inline]
    #[must_use]
    pub fn awaited(&self) -> Option<u64> {
        let highest = self.sending.gated.highest;
        (highest > 0).then_some(highest)
    }

    /// All epochs up to this one are on disk. The next flush sends what has waited for them.
    pub fn open_gates(&mut self, synced: u64) {
        if synced > std::mem::replace(&mut self.sending.gated.synced, synced) {
            self.look_at_gated(|connection| Some(connection.outbox.open_gates(synced)));
        }
    }

    /// What waits will never be on disk. A refusal, as its protocol has it, takes the place of each reply. A connection that has
    /// received a portion of such a reply is closed.
    pub fn refuse_gated(&mut self, refusal: impl Fn(ConnectionProtocol) -> Vec<u8>) {
        self.look_at_gated(|connection| {
            let refusal = refusal(connection.protocol());
            connection.outbox.refuse_gated(&refusal).ok().map(|()| true)
        });
    }

    /// The client sends no more. It may still read the replies that wait.
    pub(super) fn end_input(&mut self, id: ConnectionId) {
        match self.connections.get_mut(id).filter(|connection| connection.outbox.is_gated) {
            Some(connection) => connection.outbox.is_last = true,
            None => self.close(id),
        }
        self.renew_interest(id);
    }

    /// Looks at each connection that waits. `look` returns whether there is more to send, or `None` if the connection has to
    /// end.
    fn look_at_gated(&mut self, look: impl Fn(&mut Connection<S>) -> Option<bool>) {
        self.sending.gated.highest = 0;
        for id in std::mem::take(&mut self.sending.gated.list) {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.outbox.is_gated = false;
            match look(connection) {
                Some(false) if connection.outbox.awaited().is_some() => self.sending.gated.note(connection, id),
                // Also if the replies were dropped meanwhile: the connection may be about to close.
                Some(_) => self.touch(id),
                None => self.close(id),
            }
        }
    }
}
