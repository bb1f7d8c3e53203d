//! Replies on their way: buffers that were filled are flushed, in the order in which they were filled.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::super::reply_buffer::ReplyBuffer;
use super::super::timed::TimedReply;
use super::gates::GatedConnections;
use super::{ConnectionId, ConnectionState, Connections, touch};
use crate::limits::READY_EVENTS;

/// What is on its way to clients.
#[derive(Default)]
pub(super) struct Sending {
    /// Connections with new bytes to flush.
    pub(super) touched: VecDeque<ConnectionId>,
    /// Connections whose send buffer was too full and has room again.
    pub(super) drained: Vec<ConnectionId>,
    /// Timed replies that the system has taken since the frontend asked.
    timed: Vec<(ConnectionId, TimedReply)>,
    /// Memory for replies, which no idle connection keeps.
    pub(super) spare_replies: Vec<Vec<u8>>,
    /// Connections with replies that wait for the disk.
    pub(super) gated: GatedConnections,
}

impl<S: ConnectionState> Connections<S> {
    /// The state of a connection and the send buffer for replies to it. The next flush sends them. None if it has
    /// closed.
    pub fn connection(&mut self, id: ConnectionId) -> Option<(&mut S, &mut ReplyBuffer)> {
        let connection = self.connections.get_mut(id).filter(|connection| connection.is_open())?;
        touch(&mut self.sending, connection, id);
        Some((&mut connection.state, &mut connection.outbox))
    }

    pub(in super::super) fn descriptor(&mut self, id: ConnectionId) -> Option<&OwnedFd> {
        self.connections.get_mut(id).map(|connection| &*connection.descriptor)
    }

    /// The next timed reply that the system has taken, and its connection.
    #[inline]
    pub fn timed(&mut self) -> Option<(ConnectionId, TimedReply)> {
        self.sending.timed.pop()
    }

    /// Whether [`Connections::timed`] has something to give.
    #[inline]
    #[must_use]
    pub fn has_timed(&self) -> bool {
        !self.sending.timed.is_empty()
    }

    /// A connection whose send buffer was too full and has room again.
    pub fn drained(&mut self) -> Option<ConnectionId> {
        self.sending.drained.pop()
    }

    /// Writes new bytes as far as the system takes them.
    pub fn flush(&mut self) {
        // In the order of touching: the client that was answered first gets its reply first.
        while let Some(id) = self.sending.touched.pop_front() {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.outbox.is_touched = false;
            let (before, was_paused) = (connection.outbox.sent(), connection.outbox.is_paused);
            let has_room = connection.flush();
            self.counts.held_back += u64::from(connection.outbox.is_paused && !was_paused);
            if self.sending.spare_replies.len() < READY_EVENTS {
                self.sending.spare_replies.extend(connection.outbox.spare());
            }
            self.counts.of(connection.protocol()).sent += connection.outbox.sent() - before;
            while let Some(reply) = connection.outbox.next_timed() {
                self.sending.timed.push((id, reply));
            }
            if connection.outbox.is_last && connection.outbox.is_empty() {
                self.close(id);
                continue;
            }
            if has_room && connection.is_open() {
                self.sending.drained.push(id);
                // The client may have sent whole messages before the pause.
                if connection.input.may_come() {
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
        if let Some(connection) = self.connections.get_mut(id) {
            touch(&mut self.sending, connection, id);
        }
    }
}
