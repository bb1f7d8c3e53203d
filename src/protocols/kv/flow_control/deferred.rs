//! Requests that a worker has deferred. The worker answers them when the tables allow it, and serves other clients
//! meanwhile.
//!
//! Deferred requests stay outstanding, so their client's window stays as full as it was. The window therefore bounds
//! the deferred requests of each client.

use ahash::AHashMap;

use super::{FlowControl, InFlightRequest, TrackedConnection};

/// The deferred requests of one worker.
#[derive(Default)]
pub(super) struct DeferredRequests {
    /// Requests by the number of their deferral: the worker's first deferral has the number 0.
    tickets: AHashMap<u64, InFlightRequest>,
    /// Deferrals so far.
    count: u64,
    /// The number of the request to which the next reply belongs.
    late: Option<u64>,
}

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// The worker answers its oldest ticket later. The first ticket that it defers has the number 0.
    pub(in crate::protocols::kv) fn defer(&mut self, worker: usize) {
        let ticket = self.tickets_of(worker).pop_front().expect("a worker defers what it was asked");
        let deferred = self.deferred_of(worker);
        deferred.tickets.insert(deferred.count, ticket);
        deferred.count += 1;
    }

    /// The worker's next reply belongs to the request that it deferred under this number.
    pub(in crate::protocols::kv) fn is_late(&mut self, worker: usize, number: u64) {
        self.deferred_of(worker).late = Some(number);
    }

    /// The ticket of the worker's next reply, if that request was deferred.
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
