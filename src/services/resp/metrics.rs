//! The metrics of a worker for this service: its verbs are the commands, and a last one for those that are unknown.

use crate::net::zeromq::{ConnectionState, Connections};
use crate::services::tables::timing::VERBS;
use crate::stats::Counter;
use crate::stats::service::ServiceMetrics;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "resp";
/// The number of the first verb, behind those of the tables' own protocol.
pub(super) const VERB_OFFSET: usize = VERBS;

/// The metrics of one worker. The worker writes them, and any thread reads them.
#[derive(Debug)]
pub(crate) struct RespMetrics {
    pub(super) service: ServiceMetrics,
    /// Reads that found a value.
    pub(super) hits: Counter,
    /// Reads that found none.
    pub(super) misses: Counter,
}

impl RespMetrics {
    /// The metrics of a worker. `verbs` are the names of the commands, and a last one for all others.
    pub(super) fn new(verbs: &[&'static str]) -> Self {
        Self { service: ServiceMetrics::new(PROTOCOL, verbs), hits: Counter::new(), misses: Counter::new() }
    }

    /// Counts an answered command, by its number in the list of commands.
    pub(super) fn count(&self, number: usize, is_refused: bool) {
        self.service.count(number, is_refused);
    }

    /// Records how long a command took in the tables, in nanoseconds.
    pub(super) fn record(&self, number: usize, nanos: u64) {
        if let Some(verb) = self.service.verbs.get(number) {
            verb.execution.record(nanos);
        }
    }

    /// Counts a read.
    pub(super) fn count_read(&self, is_hit: bool) {
        if is_hit { &self.hits } else { &self.misses }.add(1);
    }

    /// Shows what the worker knows of its connections.
    pub(super) fn show<S: ConnectionState>(&self, connections: &Connections<S>) {
        self.service.connections.set(connections.len() as u64);
        self.service.accepted.set(connections.accepted());
        self.service.bytes_in.set(connections.traffic().received);
        self.service.bytes_out.set(connections.traffic().sent);
    }
}

/// What all workers have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    /// Connections at this moment.
    pub(super) connections: u64,
    pub(super) accepted: u64,
    pub(super) commands: u64,
    pub(super) refused: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Statistics {
    /// The sum of these and of a worker's.
    pub(super) fn with(self, RespMetrics { service, hits, misses }: &RespMetrics) -> Self {
        let verbs = |of: fn(&Counter, &Counter) -> u64| {
            service.verbs.iter().map(|verb| of(&verb.requests, &verb.refused)).sum::<u64>()
        };
        Self {
            connections: self.connections + service.connections.get(),
            accepted: self.accepted + service.accepted.get(),
            commands: self.commands + verbs(|requests, _| requests.get()),
            refused: self.refused + verbs(|_, refused| refused.get()),
            bytes_in: self.bytes_in + service.bytes_in.get(),
            bytes_out: self.bytes_out + service.bytes_out.get(),
            hits: self.hits + hits.get(),
            misses: self.misses + misses.get(),
        }
    }

    /// What has come since `before`.
    pub(super) fn since(self, before: &Self) -> Self {
        Self {
            connections: self.connections,
            accepted: self.accepted - before.accepted,
            commands: self.commands - before.commands,
            refused: self.refused - before.refused,
            bytes_in: self.bytes_in - before.bytes_in,
            bytes_out: self.bytes_out - before.bytes_out,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
        }
    }
}
