//! Requests that a worker has deferred: it answers them when the tables let it, and others meanwhile.
//!
//! They stay outstanding, so their client's window stays as full as it was: what a worker has set aside is bounded for each client.

use ahash::AHashMap;

use super::{FlowControl, InFlightRequest, TrackedConnection};

/// What one worker has deferred.
#[derive(Default)]
pub(super) struct DeferredRequests {
    /// By the how-manieth deferral of the worker it was.
    tickets: AHashMap<u64, InFlightRequest>,
    /// Deferrals so far.
    count: u64,
    /// The one to which the next reply is.
    late: Option<u64>,
}

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// The worker answers its oldest ticket later. The first one that it defers has the number 0.
    pub(in crate::protocols::kv) fn defer(&mut self, worker: usize) {
        let ticket = self.tickets_of(worker).pop_front().expect("a worker defers what it was asked");
        let deferred = self.deferred_of(worker);
        deferred.tickets.insert(deferred.count, ticket);
        deferred.count += 1;
    }

    /// The next reply of the worker is to what it deferred under this number.
    pub(in crate::protocols::kv) fn is_late(&mut self, worker: usize, number: u64) {
        self.deferred_of(worker).late = Some(number);
    }

    /// The ticket to which the worker's next reply is, if it has been deferred.
    #[inline]
    pub(super) fn late_ticket(&mut self, worker: usize) -> Option<InFlightRequest> {
        let deferred = self.deferred_of(worker);
        let number = deferred.late.take()?;
        Some(deferred.tickets.remove(&number).expect("a worker answers once what it has deferred"))
    }

    #[expect(clippy::indexing_slicing, reason = "a client's worker is one of the workers")]
    fn deferred_of(&mut self, worker: usize) -> &mut DeferredRequests {
        &mut self.deferred[worker]
    }
}
