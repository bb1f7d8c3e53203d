//! The executors of requests. Reports take long, so the reporter makes them, beside the workers.
//!
//! Each client has at most one request with the reporter, and no other request on its way meanwhile, so its answers
//! stay in order. All clients together have at most [`REPORTS_MAX`]. This bounds the replies between the reporter and
//! the proxy, and further clients wait in turn.

use super::{ClientIndex, FlowControl, TrackedConnection};
use crate::limits::REPORTS_MAX;

/// The executor of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocols::kv) enum By {
    /// The client's worker.
    Worker,
    /// The client's worker, while no other request of the client is on its way: the size of the reply does not follow
    /// from that of the request.
    WorkerAlone,
    /// The reporter.
    Reporter,
}

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// The reporter's number: the one behind those of the workers.
    pub(super) fn reporter(&self) -> usize {
        self.tickets.len() - 1
    }

    /// Whether the reporter or worker has room for a request of this client. If not, [`FlowControl::next_due`] returns
    /// the client later.
    pub(super) fn has_turn(&mut self, index: ClientIndex, by: By) -> bool {
        if by != By::Reporter || self.reports < REPORTS_MAX {
            return true;
        }
        if !std::mem::replace(&mut self.client_mut(index).is_due, true) {
            self.reports_due.push_back(index);
        }
        false
    }

    /// The next client whose request has waited for the reporter, if the reporter has room.
    pub(in crate::protocols::kv) fn next_due(&mut self) -> Option<ClientIndex> {
        while self.reports < REPORTS_MAX {
            let index = self.reports_due.pop_front()?;
            if let Some(client) = self.entry(index) {
                client.is_due = false;
                return Some(index);
            }
        }
        None
    }
}
