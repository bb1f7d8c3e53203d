//! The part of STATS on the lock-step dialect: its clients, and its subscribers.
//!
//! Its commands are also counted among those of all clients of the tables, without latencies.

use serde::Serialize;

use super::WorkerMetrics;
use super::changes::PublishTally;
use super::services::{TrafficLine, TrafficMetrics, VerbLine, verbs_of};
use crate::clock::Now;
use crate::stats::{Counter, Gauge};

/// The metrics of the dialect. Its frontend writes all but the last, which the publisher writes.
#[derive(Debug)]
pub struct LockstepTally {
    /// Connections.
    pub(crate) connections: Gauge,
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
    pub(in crate::services::tables) publish: PublishTally,
}

impl LockstepTally {
    /// Nothing has been counted.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            connections: Gauge::new(),
            traffic: TrafficMetrics::default(),
            held_bytes: Gauge::new(),
            cut_off: Gauge::new(),
            requests: Counter::new(),
            worker: WorkerMetrics::new(now, None),
            publish: PublishTally::default(),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct LockstepLine {
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) commands: u64,
    pub(crate) waiting: u64,
    pub(crate) held_bytes: u64,
    pub(crate) cut_off: u64,
    pub(crate) published: u64,
    pub(crate) topics: u64,
    pub(crate) subscribers: u64,
    pub(crate) subscriptions: u64,
    pub(crate) lost_notifications: u64,
    pub(crate) closed_subscribers: u64,
    pub(crate) verbs: Vec<VerbLine>,
    pub(crate) connections_ever: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

impl LockstepLine {
    pub(super) fn of(tally: &LockstepTally) -> Self {
        let subscribers = &tally.publish.subscribers;
        let TrafficLine { connections_ever, received_bytes, sent_bytes, .. } = TrafficLine::of([&tally.traffic]);
        Self {
            connections: tally.connections.get(),
            requests: tally.requests.get(),
            commands: tally.worker.requests() - tally.worker.of(None).requests.get(),
            waiting: tally.worker.waiting.get(),
            held_bytes: tally.held_bytes.get(),
            cut_off: tally.cut_off.get(),
            published: tally.publish.published.get(),
            topics: subscribers.topics.get(),
            subscribers: subscribers.subscribers.get(),
            subscriptions: subscribers.subscriptions.get(),
            lost_notifications: subscribers.lost.get(),
            closed_subscribers: subscribers.closed.get(),
            verbs: verbs_of(&tally.worker),
            connections_ever,
            received_bytes,
            sent_bytes,
        }
    }
}
