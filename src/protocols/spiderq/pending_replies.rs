//! What all letters that wait take, and for which client most of it waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::protocols::native::ConnectionId;
use crate::stats::Gauge;

/// Counts letters by the clients for whom they wait.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    bytes: u64,
    /// Who has letters waiting, by what these take.
    by_bytes: BTreeSet<(u64, ConnectionId)>,
    /// The bytes, for other threads.
    figure: Arc<Gauge>,
}

impl PendingReplies {
    /// The letters of a client take so many bytes now, and took so many before.
    pub(super) fn change(&mut self, peer: ConnectionId, before: u64, now: u64) {
        if before == now {
            return;
        }
        self.bytes = self.bytes - before + now;
        self.figure.set(self.bytes);
        self.by_bytes.remove(&(before, peer));
        if now > 0 {
            self.by_bytes.insert((now, peer));
        }
    }

    /// What all of them take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The client whose letters take most, and how much.
    pub(super) fn largest(&self) -> Option<(ConnectionId, u64)> {
        self.by_bytes.last().map(|(bytes, peer)| (*peer, *bytes))
    }

    /// What other threads read.
    pub(super) fn figure(&self) -> Arc<Gauge> {
        Arc::clone(&self.figure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_known_whoever_changes() {
        let connections: Vec<ConnectionId> = (0..3).map(|slot| ConnectionId::new(slot, 1)).collect();
        let [one, two, three] = connections[..] else { unreachable!() };
        let mut replies = PendingReplies::default();
        assert_eq!(replies.largest(), None);
        for (peer, before, now) in [(one, 0, 5), (two, 0, 9), (three, 0, 7), (two, 9, 6)] {
            replies.change(peer, before, now);
        }
        assert_eq!((replies.bytes(), replies.largest()), (18, Some((three, 7))));
        replies.change(three, 7, 0);
        assert_eq!((replies.figure().get(), replies.largest()), (11, Some((two, 6))));
        replies.change(two, 6, 0);
        replies.change(one, 5, 0);
        assert_eq!((replies.bytes(), replies.largest()), (0, None));
    }
}
