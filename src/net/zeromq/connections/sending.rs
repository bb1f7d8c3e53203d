//! Replies on their way: buffers that were filled are flushed, in the order in which they were filled.

use std::os::fd::OwnedFd;

use super::super::reply_buffer::ReplyBuffer;
use super::{ConnectionId, ConnectionState, Connections, get, touch};
use crate::limits::READY_EVENTS;

impl<S: ConnectionState> Connections<S> {
    /// The state of a connection and the send buffer for replies to it. The next flush sends them. None if it has
    /// closed.
    pub fn connection(&mut self, id: ConnectionId) -> Option<(&mut S, &mut ReplyBuffer)> {
        let connection = get(&mut self.connections, id).filter(|connection| connection.is_open())?;
        touch(&mut self.touched, connection, id);
        Some((&mut connection.state, &mut connection.outbox))
    }

    pub(in super::super) fn descriptor(&mut self, id: ConnectionId) -> Option<&OwnedFd> {
        get(&mut self.connections, id).map(|connection| connection.descriptor())
    }

    /// A connection whose send buffer was too full and has room again.
    pub fn drained(&mut self) -> Option<ConnectionId> {
        self.drained.pop()
    }

    /// Writes new bytes as far as the system takes them.
    pub fn flush(&mut self) {
        // In the order of touching: the client that was answered first gets its reply first.
        while let Some(id) = self.touched.pop_front() {
            let Some(connection) = get(&mut self.connections, id) else { continue };
            connection.touched = false;
            let (before, was_paused) = (connection.outbox.sent(), connection.is_paused());
            let has_room = connection.flush();
            self.held_back += u64::from(connection.is_paused() && !was_paused);
            if self.spare_replies.len() < READY_EVENTS {
                self.spare_replies.extend(connection.outbox.spare());
            }
            self.traffic.sent += connection.outbox.sent() - before;
            while let Some(reply) = connection.outbox.next_timed() {
                self.timed.push((id, reply));
            }
            if has_room && connection.is_open() {
                self.drained.push(id);
                // The client may have sent whole messages before the pause.
                if connection.may_have_input() {
                    self.queue(id);
                }
            }
            self.renew_interest(id);
        }
    }

    /// Whether the system has taken all bytes for open connections.
    #[must_use]
    pub fn is_all_sent(&self) -> bool {
        self.connections.iter().all(|(_, connection)| !connection.is_open() || connection.outbox.is_empty())
    }

    pub(super) fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = get(&mut self.connections, id) {
            touch(&mut self.touched, connection, id);
        }
    }
}
