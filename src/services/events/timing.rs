//! How long a request takes, from the moment when its head and body were read until its reply goes to the HTTP
//! library, which writes it at once. Every request is counted and timed.
//!
//! ```text
//! read ─► the store has it ─► answered: the reply is made
//!       └──── execution ────┘
//! ```
//! The network and the reading of HTTP are not part of these times. This module does not know the replies' bytes.

use std::future::Future;
use std::sync::Arc;

use axum::Extension;

use super::wire::Reply;
use crate::clock::Clock;
use crate::net::http::Peer;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::{SlowLog, SlowRequest, Stages};

/// The requests that a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Defer,
    Count,
    Find,
    Health,
}

/// The verbs in their order, and last what no route takes.
const VERBS: [&str; 6] =
    ["POST /events", "POST /events/async", "GET /events", "GET /events/{id}", "GET /health", "none"];
/// The number of what no route takes.
const NONE: usize = VERBS.len() - 1;
/// The first status of a refusal.
const REFUSED: u16 = 400;

/// The metrics of a frontend.
pub(super) fn metrics() -> Arc<ServiceMetrics> {
    Arc::new(ServiceMetrics::new("events", &VERBS))
}

/// Counts and times the requests of all connections.
pub(super) struct EventTimer {
    pub(super) clock: Clock,
    pub(super) metrics: Arc<ServiceMetrics>,
    pub(super) slow: Arc<SlowLog>,
}

impl EventTimer {
    /// Answers a request of this kind, and times it.
    pub(super) async fn timed(
        &self,
        verb: Verb,
        peer: &Option<Extension<Peer>>,
        answer: impl Future<Output = Reply>,
    ) -> Reply {
        let arrived = self.clock.now();
        let reply = answer.await;
        let (number, now) = (verb as usize, self.clock.now());
        let nanos = arrived.nanos_until(now);
        self.metrics.count(number, reply.status() >= REFUSED);
        self.metrics.record(number, Some(nanos), nanos);
        self.metrics.unavailable.add(u64::from(matches!(reply, Reply::Unavailable(_))));
        if self.slow.is_slow(nanos) {
            self.slow.add(SlowRequest {
                unix_millis: self.clock.start_wall_millis() + now.millis(),
                nanos,
                stages: Stages { queue: None, execution: Some(nanos), write: None },
                client: peer.as_ref().map_or_else(String::new, |peer| peer.0.address.to_string()),
                protocol: self.metrics.protocol,
                verb: self.metrics.name(number),
                table: Box::default(),
                request_bytes: 0,
                reply_bytes: reply.body().len() as u64,
            });
        }
        reply
    }

    /// Counts a request that no route takes.
    pub(super) fn count_other(&self) {
        self.metrics.count(NONE, true);
    }
}
