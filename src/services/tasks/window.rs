//! The bytes of requests that the committer has, and the connections that wait until it has fewer.
//!
//! ```text
//! request ─┬─► the client's own share has room        ─► committer ─► answered: the share has room again
//!          ├─► nobody waits, and the window has room  ─► committer ─► answered: the window has room again
//!          └─► else its connection is parked ═► waiting, first come, first served ─► a turn when the window has room
//! ```
//! The committer serves its inbox in order. So whatever is there before a small request is a part of its latency: the
//! window bounds it. A client with little to ask for needs the window never, and large requests of all clients take
//! turns in it. A request that is larger than the window has it alone.
//!
//! Lends that may wait for a task take no share: `waiting_places` bounds them.
//!
//! This module does not know requests, and parks no connection; see `responder` and `serve`.

use std::collections::VecDeque;

use crate::limits::{TASK_BYTES_MIN, TASKS_OWN_BYTES, TASKS_WINDOW_BYTES};
use crate::net::zeromq::ConnectionId;

/// What a request takes until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Nothing.
    Nothing,
    /// Bytes of its client's own share.
    Own(usize),
    /// Bytes of the window.
    Window(usize),
}

impl Share {
    /// The bytes of the client's own share.
    pub(super) fn own_bytes(self) -> usize {
        match self {
            Self::Own(bytes) => bytes,
            Self::Nothing | Self::Window(_) => 0,
        }
    }
}

/// The window of all clients of a frontend.
#[derive(Debug, Default)]
pub(super) struct SubmitWindow {
    /// Bytes of the requests in it.
    bytes: usize,
    /// Connections whose messages are parked, each with the bytes of its next request.
    waiting: VecDeque<(ConnectionId, usize)>,
}

impl SubmitWindow {
    /// The share that a request of so many bytes takes. `own_bytes` are taken of its client's own share. `is_next`: its
    /// connection has waited. `None`: the connection has to wait.
    pub(super) fn take(&mut self, request_bytes: usize, own_bytes: usize, is_next: bool) -> Option<Share> {
        let bytes = weight(request_bytes);
        if own_bytes + bytes <= TASKS_OWN_BYTES {
            return Some(Share::Own(bytes));
        }
        if !self.fits(bytes) || !self.waiting.is_empty() && !is_next {
            return None;
        }
        self.bytes += bytes;
        Some(Share::Window(bytes))
    }

    /// A request is answered.
    pub(super) fn give_back(&mut self, share: Share) {
        if let Share::Window(bytes) = share {
            self.bytes -= bytes;
        }
    }

    /// A connection is parked, before a request of so many bytes.
    pub(super) fn wait(&mut self, peer: ConnectionId, request_bytes: usize) {
        self.waiting.push_back((peer, weight(request_bytes)));
    }

    /// Whether a connection that has waited may have its turn.
    pub(super) fn has_next(&self) -> bool {
        self.waiting.front().is_some_and(|(_, bytes)| self.fits(*bytes))
    }

    /// The connection that has waited longest, if the window has room for its request. It may have closed meanwhile.
    pub(super) fn next(&mut self) -> Option<ConnectionId> {
        let Self { bytes: taken, waiting } = self;
        waiting.pop_front_if(|(_, bytes)| fits(*taken, *bytes)).map(|(peer, _)| peer)
    }

    /// Whether connections wait.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn fits(&self, bytes: usize) -> bool {
        fits(self.bytes, bytes)
    }
}

/// Whether the window has room for a request when so many bytes are taken.
fn fits(taken: usize, bytes: usize) -> bool {
    taken == 0 || taken + bytes <= TASKS_WINDOW_BYTES
}

/// The bytes for which a request counts.
fn weight(request_bytes: usize) -> usize {
    request_bytes.max(TASK_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: usize = TASKS_WINDOW_BYTES;
    const OWN: usize = TASKS_OWN_BYTES;

    fn peers() -> [ConnectionId; 3] {
        [0, 1, 2].map(|slot| ConnectionId::new(slot, 1))
    }

    #[test]
    fn small_requests_need_no_window_until_their_client_has_many() {
        let mut window = SubmitWindow::default();
        assert_eq!(window.take(2 * WINDOW, 0, false), Some(Share::Window(2 * WINDOW)), "it is alone");
        assert_eq!(window.take(OWN + 1, 0, false), None);
        assert_eq!(window.take(OWN, 0, false), Some(Share::Own(OWN)));
        assert_eq!(window.take(1, OWN - TASK_BYTES_MIN, false), Some(Share::Own(TASK_BYTES_MIN)));
        assert_eq!(window.take(1, OWN - TASK_BYTES_MIN + 1, false), None);
        window.give_back(Share::Own(OWN));
        assert_eq!(window.take(OWN + 1, 0, false), None, "an own share is no part of the window");
        window.give_back(Share::Window(2 * WINDOW));
        assert_eq!(window.take(1, OWN, false), Some(Share::Window(TASK_BYTES_MIN)));
    }

    #[test]
    fn a_request_larger_than_the_window_is_not_overtaken_for_ever() {
        let ([large, small, _], mut window) = (peers(), SubmitWindow::default());
        let half = window.take(WINDOW / 2, OWN, false).unwrap_or(Share::Nothing);
        assert_eq!((window.take(2 * WINDOW, 0, false), window.has_waiting()), (None, false));
        window.wait(large, 2 * WINDOW);
        assert_eq!(window.take(WINDOW / 4, OWN, false), None, "another one waits");
        window.wait(small, WINDOW / 4);
        assert_eq!((window.has_next(), window.next()), (false, None));
        window.give_back(half);
        assert_eq!((window.has_next(), window.next()), (true, Some(large)));
        assert_eq!(window.take(2 * WINDOW, 0, true), Some(Share::Window(2 * WINDOW)));
        assert_eq!((window.has_next(), window.next()), (false, None));
        window.give_back(Share::Window(2 * WINDOW));
        assert_eq!((window.next(), window.next(), window.has_waiting()), (Some(small), None, false));
    }

    #[test]
    fn clients_that_wait_have_their_turns_one_after_the_other() {
        let mut window = SubmitWindow::default();
        let mut shares = vec![window.take(WINDOW, OWN, false)];
        peers().into_iter().for_each(|peer| window.wait(peer, WINDOW));
        let mut order = Vec::new();
        for _ in 0..6 {
            window.give_back(shares.pop().flatten().unwrap_or(Share::Nothing));
            let Some(peer) = window.next() else { break };
            order.push(peer);
            shares.push(window.take(WINDOW, OWN, true));
            window.wait(peer, WINDOW);
        }
        assert_eq!(order, [peers(), peers()].concat());
    }
}
