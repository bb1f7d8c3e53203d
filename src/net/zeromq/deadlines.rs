//! The deadlines of handshakes and partings. Requests' connections and subscribers share them.

use std::collections::VecDeque;

use super::ConnectionId;
use crate::clock::Now;
use crate::limits::HANDSHAKE_TIMEOUT;

/// Connections that must finish their handshake or their parting, the first deadline first.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(VecDeque<(Now, ConnectionId)>);

impl Deadlines {
    /// Gives a connection time from now on, and returns its deadline.
    pub(crate) fn begin(&mut self, id: ConnectionId, now: Now) -> Now {
        let deadline = now.after(HANDSHAKE_TIMEOUT);
        self.0.push_back((deadline, id));
        deadline
    }

    /// The first deadline.
    pub(crate) fn next(&self) -> Option<Now> {
        self.0.front().map(|(deadline, _)| *deadline)
    }

    /// A connection whose deadline has passed. It may have a later one by now.
    pub(crate) fn take_late(&mut self, now: Now) -> Option<ConnectionId> {
        self.0.pop_front_if(|(deadline, _)| *deadline <= now).map(|(_, id)| id)
    }
}
