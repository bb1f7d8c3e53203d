//! How long a request takes, from the read of its last byte until the system has its reply. Every request is counted
//! and timed.
//!
//! ```text
//! last byte ─► complete: silent for a moment, or whole ─► the reply is made ─► the system has it
//!         └─ queue ─┘└──────────── execution ────────────┘└───── write ─────┘
//! ```
//! This module does not send, and reads no clock.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::wire::{Request, Verb};
use crate::clock::Now;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::{SlowLog, SlowRequest, Stages};

/// The number of requests that are malformed, in the metrics.
const NONE: usize = Verb::ALL.len();

/// The metrics of a frontend.
pub(super) fn metrics() -> Arc<ServiceMetrics> {
    let words: Vec<&str> = Verb::ALL.into_iter().map(Verb::word).chain(["none"]).collect();
    Arc::new(ServiceMetrics::new("jobs", &words))
}

/// Counts and times the requests of all conversations.
pub(super) struct JobTimer {
    pub(super) metrics: Arc<ServiceMetrics>,
    pub(super) slow: Arc<SlowLog>,
    /// Milliseconds since 1970 at the start of the clock.
    pub(super) start_wall_millis: u64,
}

/// The times of one request.
#[derive(Default)]
pub(super) struct JobTimes {
    arrived: Cell<Option<Now>>,
    begun: Cell<Option<Now>>,
    answered: Cell<Option<Now>>,
    bytes: Cell<usize>,
    verb: Cell<Option<Verb>>,
    queue: RefCell<Box<[u8]>>,
}

impl JobTimes {
    /// Some bytes of the request came.
    pub(super) fn received(&self, bytes: usize, now: Now) {
        self.arrived.set(Some(now));
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// No further byte belongs to the request.
    pub(super) fn begin(&self, now: Now) {
        self.begun.set(Some(now));
    }

    /// The reply is made.
    pub(super) fn answered(&self, now: Now) {
        self.answered.set(Some(now));
    }

    /// The request is well-formed.
    pub(super) fn is_for(&self, request: &Request<'_>) {
        self.verb.set(Some(request.verb()));
        self.queue.replace(request.queue().into());
    }
}

impl JobTimer {
    /// The system now has the reply, of so many bytes.
    pub(super) fn sent(
        &self,
        times: &JobTimes,
        reply_bytes: usize,
        is_error: bool,
        now: Now,
        client: impl FnOnce() -> String,
    ) {
        let verb = times.verb.get();
        let number = verb.and_then(|verb| Verb::ALL.iter().position(|other| *other == verb)).unwrap_or(NONE);
        let answered = times.answered.get().unwrap_or(now);
        // A client that sent nothing has its error all the same.
        let begun = times.begun.get().unwrap_or(answered);
        let arrived = times.arrived.get().unwrap_or(begun);
        let (nanos, execution) = (arrived.nanos_until(now), begun.nanos_until(answered));
        self.metrics.count(number, is_error);
        self.metrics.record(number, Some(execution), nanos);
        self.metrics.bytes_in.set(self.metrics.bytes_in.get() + times.bytes.get() as u64);
        self.metrics.bytes_out.set(self.metrics.bytes_out.get() + reply_bytes as u64);
        if self.slow.is_slow(nanos) {
            let stages = Stages {
                queue: Some(arrived.nanos_until(begun)),
                execution: Some(execution),
                write: Some(answered.nanos_until(now)),
            };
            self.slow.add(SlowRequest {
                unix_millis: self.start_wall_millis + now.millis(),
                nanos,
                stages,
                client: client(),
                protocol: self.metrics.protocol,
                verb: self.metrics.name(number),
                table: times.queue.take(),
                request_bytes: times.bytes.get() as u64,
                reply_bytes: reply_bytes as u64,
            });
        }
    }
}
