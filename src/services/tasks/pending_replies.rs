//! The bytes of all pending replies, and the client that has most of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::net::budget::Budget;
use crate::net::zeromq::ConnectionId;

/// Counts the bytes of pending replies by client.
#[derive(Debug)]
pub(super) struct PendingReplies {
    budget: Arc<Budget>,
    /// The clients with pending replies, ordered by the bytes of these.
    by_bytes: BTreeSet<(u64, ConnectionId)>,
    /// Clients that have pending replies, or have had some since the last sweep.
    pub(super) late: Vec<ConnectionId>,
}

impl PendingReplies {
    /// None yet, and at most so many bytes of them.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { budget: Budget::new(bytes_max), by_bytes: BTreeSet::new(), late: Vec::new() }
    }

    /// Notes that the pending replies of a client take `now` bytes, and took `before` bytes.
    pub(super) fn change(&mut self, peer: ConnectionId, before: u64, now: u64) {
        if before == now {
            return;
        }
        self.budget.change(before, now);
        self.by_bytes.remove(&(before, peer));
        if now > 0 {
            self.by_bytes.insert((now, peer));
        }
        if before == 0 {
            self.late.push(peer);
        }
    }

    /// The clients whose pending replies are to be looked at in a sweep.
    pub(super) fn take_late(&mut self) -> Vec<ConnectionId> {
        let mut late = std::mem::take(&mut self.late);
        late.sort_unstable();
        late.dedup();
        late
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The client with the most bytes of pending replies, and these bytes.
    pub(super) fn largest(&self) -> Option<(ConnectionId, u64)> {
        self.by_bytes.last().map(|(bytes, peer)| (*peer, *bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_known_whoever_changes() {
        let connections: Vec<ConnectionId> = (0..3).map(|slot| ConnectionId::new(slot, 1)).collect();
        let [one, two, three] = connections[..] else { unreachable!() };
        let mut replies = PendingReplies::new(100);
        assert_eq!(replies.largest(), None);
        for (peer, before, now) in [(one, 0, 5), (two, 0, 9), (three, 0, 7), (two, 9, 6)] {
            replies.change(peer, before, now);
        }
        assert_eq!((replies.budget().held(), replies.largest()), (18, Some((three, 7))));
        replies.change(three, 7, 0);
        assert_eq!((replies.budget().held(), replies.largest()), (11, Some((two, 6))));
        replies.change(two, 6, 0);
        replies.change(one, 5, 0);
        assert_eq!((replies.budget().held(), replies.largest()), (0, None));
    }
}
