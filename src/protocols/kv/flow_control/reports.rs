//! Reports, which take long: the reporter makes them, beside the workers.
//!
//! Each client has one request with it at most, and nothing else beside that, so its answers stay in order. All clients together have
//! [`REPORTS_MAX`]: what lies between the reporter and the queue is bounded, and further clients wait in turn.

use super::{ClientIndex, FlowControl, TrackedConnection};
use crate::limits::REPORTS_MAX;

/// Who carries a request out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocols::kv) enum By {
    /// The client's worker.
    Worker,
    /// The reporter.
    Reporter,
}

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// The reporter's number: the one behind those of the workers.
    pub(super) fn reporter(&self) -> usize {
        self.tickets.len() - 1
    }

    /// Whether a request that this client may make can be carried out now. If not, its turn comes with [`Account::next_due`].
    pub(super) fn has_turn(&mut self, place: ClientIndex, by: By) -> bool {
        if by == By::Worker || self.reports < REPORTS_MAX {
            return true;
        }
        if !std::mem::replace(&mut self.client_mut(place).is_due, true) {
            self.reports_due.push_back(place);
        }
        false
    }

    /// The next client whose request has waited for the reporter, if that has room.
    pub(in crate::protocols::kv) fn next_due(&mut self) -> Option<ClientIndex> {
        while self.reports < REPORTS_MAX {
            let place = self.reports_due.pop_front()?;
            if let Some(client) = self.entry(place) {
                client.is_due = false;
                return Some(place);
            }
        }
        None
    }
}
