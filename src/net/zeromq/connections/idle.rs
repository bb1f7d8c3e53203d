//! Idle connections make place for clients that wait.
//!
//! ```text
//! no room ─► nothing was received for PLACE_SILENT_TIME: the oldest
//!        └─► before its handshake, or after its last reply, for PLACE_HANDSHAKE_TIME: the oldest
//!        └─► nothing is under way, and no request came for PLACE_IDLE_TIME: the one that is idle longest
//! ```
//! A client of ZeroMQ connects again by itself when it has a request.
//!
//! Where an acceptor of its own hands the connections over, it asks for places (`acceptor`).

use std::time::Duration;

use super::{ConnectionId, ConnectionState, Connections};
use crate::descriptors;
use crate::limits::{PLACE_HANDSHAKE_TIME, PLACE_IDLE_TIME, PLACE_SILENT_TIME, PLACES_AT_ONCE};
use crate::net::zeromq::connection::Connection;

/// One of so many connections makes place at once where others accept: whoever looks for it looks at all.
const LOOKS_PER_PLACE: usize = 256;

/// Looks for idle connections while one client after the other waits. Each look finds those of another kind.
const LOOKS: usize = 3;

impl<S: ConnectionState> Connection<S> {
    /// Whether nothing is under way for the peer: no request, no reply, and nothing that the frontend owes it.
    fn is_idle(&self) -> bool {
        let holds_nothing =
            !self.has_messages() && !self.turn.is_parked && !self.turn.is_queued && self.outbox.is_empty();
        self.is_open() && holds_nothing && self.state.is_idle()
    }
}

impl<S: ConnectionState> Connections<S> {
    /// Accepts those that wait. For each of them that finds no room, an idle connection makes place.
    pub(super) fn accept(&mut self) {
        self.admit();
        for _ in 0..LOOKS {
            if self.port.listeners.again_at().is_none() {
                return;
            }
            for id in self.idle(PLACES_AT_ONCE) {
                self.make_place_of(id);
                self.port.listeners.resume(&self.port.epoll);
                self.admit();
                if self.port.listeners.again_at().is_none() {
                    return;
                }
            }
        }
    }

    /// Closes some connections that are idle, for clients that another thread accepts.
    pub fn make_place(&mut self) {
        let most = (1 + self.len() / LOOKS_PER_PLACE).min(PLACES_AT_ONCE);
        self.idle(most).into_iter().for_each(|id| self.make_place_of(id));
    }

    /// Closes a connection that is idle.
    fn make_place_of(&mut self, id: ConnectionId) {
        descriptors::made_place();
        self.close(id);
    }

    /// At most so many idle connections, those first that make place first.
    fn idle(&self, most: usize) -> Vec<ConnectionId> {
        let is_silent = |connection: &Connection<S>| connection.is_outside() && connection.input.buffer.received() == 0;
        let silent = self.oldest(most, is_silent, PLACE_SILENT_TIME);
        if !silent.is_empty() {
            return silent;
        }
        let outside = self.oldest(most, Connection::is_outside, PLACE_HANDSHAKE_TIME);
        if outside.is_empty() { self.oldest(most, Connection::is_idle, PLACE_IDLE_TIME) } else { outside }
    }

    /// Of the connections that may go and were not active for `time`, those that were so the longest.
    fn oldest(&self, most: usize, may_go: impl Fn(&Connection<S>) -> bool, time: Duration) -> Vec<ConnectionId> {
        let has_had_its_time = |connection: &Connection<S>| connection.watch.active.after(time) <= self.now;
        let all = self.connections.iter().filter(|(_, connection)| has_had_its_time(connection) && may_go(connection));
        let mut old: Vec<_> = all.map(|(id, connection)| (connection.watch.active, id)).collect();
        if old.len() > most {
            old.select_nth_unstable_by_key(most, |(active, _)| *active);
            old.truncate(most);
        }
        old.sort_unstable_by_key(|(active, _)| *active);
        // A request that has come, and was not received yet, is under way.
        old.into_iter().map(|(_, id)| id).filter(|id| !self.has_unreceived(*id)).collect()
    }

    fn has_unreceived(&self, id: ConnectionId) -> bool {
        self.connections.get(id).is_some_and(Connection::has_unreceived)
    }
}
