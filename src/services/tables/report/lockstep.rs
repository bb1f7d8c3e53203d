//! The part of STATS on the lock-step dialect: its clients, and its subscribers.
//!
//! Its commands are also counted among those of all clients of the tables, without latencies.

use super::WorkerMetrics;
use super::changes::{PublishLine, PublishMetrics};
use super::metric::{counter, gauge, line};
use super::services::{TrafficLine, TrafficMetrics, VerbLine, verbs_of};
use crate::clock::Now;
use crate::stats::{Counter, Gauge};

/// The metrics of the dialect. Its frontend writes all but the last, which the publisher writes.
#[derive(Debug)]
pub struct LockstepMetrics {
    /// Its connections, and their bytes.
    pub(crate) traffic: TrafficMetrics,
    /// Bytes that the frontend holds for its clients.
    pub(crate) held_bytes: Gauge,
    /// The number of times that a client was cut off.
    pub(crate) cut_off: Gauge,
    /// Requests answered. A command is several of them.
    pub(crate) requests: Counter,
    /// The commands, and the clients that wait.
    pub(crate) worker: WorkerMetrics,
    /// Notifications and subscribers.
    pub(in crate::services::tables) publish: PublishMetrics,
}

impl LockstepMetrics {
    /// Nothing has been counted.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            traffic: TrafficMetrics::default(),
            held_bytes: Gauge::new(),
            cut_off: Gauge::new(),
            requests: Counter::new(),
            worker: WorkerMetrics::new(now, None),
            publish: PublishMetrics::default(),
        }
    }
}

line! {
    pub(crate) struct LockstepLine {
        /// Its connections, and their bytes.
        #[serde(flatten)]
        pub(crate) traffic: TrafficLine,
        requests: u64 = counter("spindle_lockstep_requests", "Requests in the lock-step dialect."),
        commands: u64 =
            counter("spindle_lockstep_commands", "Commands in the lock-step dialect, of several requests each."),
        waiting: u64,
        held_bytes: u64 =
            gauge("spindle_lockstep_held", "Bytes that are held for clients of the lock-step dialect.").bytes(),
        cut_off: u64,
        #[serde(flatten)]
        publish: PublishLine => read,
        pub(crate) verbs: Vec<VerbLine>,
    }
}

impl LockstepLine {
    pub(super) fn of(metrics: &LockstepMetrics) -> Self {
        Self {
            traffic: TrafficLine::of([&metrics.traffic]),
            requests: metrics.requests.get(),
            commands: metrics.worker.requests() - metrics.worker.of(None).requests.get(),
            waiting: metrics.worker.waiting.get(),
            held_bytes: metrics.held_bytes.get(),
            cut_off: metrics.cut_off.get(),
            publish: PublishLine::of(&metrics.publish),
            verbs: verbs_of(&metrics.worker),
        }
    }
}
