//! The metrics of a worker for this service: its verbs are the commands, and a last one for those that are unknown.

use std::sync::Arc;

use crate::lock::Mutex;
use crate::net::zeromq::{ConnectionProtocol, ConnectionState, Connections, Traffic};
use crate::services::tables::timing::VERBS;
use crate::stats::Counter;
use crate::stats::service::ServiceMetrics;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "resp";
/// The number of the first verb, behind those of the tables' own protocol.
pub(super) const VERB_OFFSET: usize = VERBS;

/// The codes of errors that are counted, and last that of all others.
const CODES: [&str; 8] = ["ERR", "NOAUTH", "NOPERM", "NOPROTO", "OOM", "WRONGPASS", "EXECABORT", "OTHER"];

/// What has come of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    Done,
    /// It waits for EXEC, and is counted when that carries it out.
    Queued,
    /// Refused by its handler.
    Failed,
    /// Refused before it was carried out.
    Rejected,
}

/// The metrics of one worker. The worker writes them, and any thread reads them.
#[derive(Debug)]
pub(crate) struct RespMetrics {
    pub(super) service: Arc<ServiceMetrics>,
    /// For each verb the requests that were refused before they were carried out.
    rejected: Box<[Counter]>,
    /// In the order of [`CODES`].
    errors: [Counter; CODES.len()],
    /// Reads that found a value.
    hits: Counter,
    /// Reads that found none.
    misses: Counter,
}

impl RespMetrics {
    pub(super) fn new(service: Arc<ServiceMetrics>) -> Self {
        let rejected = service.verbs.iter().map(|_| Counter::new()).collect();
        let errors = CODES.map(|_| Counter::new());
        Self { service, rejected, errors, hits: Counter::new(), misses: Counter::new() }
    }

    /// Counts an answered command, by its number in the list of commands.
    pub(super) fn count(&self, number: usize, outcome: CommandOutcome) {
        if outcome == CommandOutcome::Queued {
            return;
        }
        self.service.count(number, outcome != CommandOutcome::Done);
        if outcome == CommandOutcome::Rejected
            && let Some(rejected) = self.rejected.get(number)
        {
            rejected.add(1);
        }
    }

    /// Counts an error by the code with which its words begin.
    pub(super) fn count_error(&self, words: &[u8]) {
        let code = words.split(|byte| *byte == b' ').next().unwrap_or_default();
        let place = CODES.iter().position(|known| known.as_bytes() == code);
        if let Some(counter) = self.errors.get(place.unwrap_or(CODES.len() - 1)) {
            counter.add(1);
        }
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
        let Traffic { connections, accepted, received, sent } = connections.traffic(ConnectionProtocol::Resp);
        self.service.connections.set(connections);
        self.service.accepted.set(accepted);
        self.service.bytes_in.set(received);
        self.service.bytes_out.set(sent);
    }
}

/// The metrics of all workers.
#[derive(Debug)]
pub(super) struct WorkersMetrics {
    pub(super) workers: Vec<Arc<RespMetrics>>,
    /// What was counted when a client last asked to begin anew. Written by CONFIG RESETSTAT.
    counted_before: Mutex<Statistics>,
}

impl WorkersMetrics {
    pub(super) fn new(workers: Vec<Arc<RespMetrics>>) -> Self {
        Self { workers, counted_before: Mutex::default() }
    }

    /// What was counted since the start, or since a client asked to begin anew.
    pub(super) fn statistics(&self) -> Statistics {
        Statistics::of(&self.workers).since(&self.counted_before.lock())
    }

    /// Counts anew from here.
    pub(super) fn reset(&self) {
        *self.counted_before.lock() = Statistics::of(&self.workers);
    }
}

/// The counts of a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerbTotals {
    pub(super) name: &'static str,
    /// Calls that were carried out, whether they failed or not.
    pub(super) calls: u64,
    pub(super) rejected: u64,
    pub(super) failed: u64,
}

/// What all workers have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    /// Connections at this moment.
    pub(super) connections: u64,
    pub(super) accepted: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// In the order of the verbs.
    pub(super) verbs: Vec<VerbTotals>,
    /// Errors by their code.
    pub(super) errors: Vec<(&'static str, u64)>,
}

impl Statistics {
    /// The sum of the workers' metrics.
    fn of(workers: &[Arc<RespMetrics>]) -> Self {
        let sum = |of: &dyn Fn(&RespMetrics) -> u64| workers.iter().map(|worker| of(worker)).sum::<u64>();
        let names = workers.first().map_or(&[][..], |worker| &worker.service.verbs);
        let verbs = names.iter().enumerate().map(|(number, verb)| {
            let name = verb.name;
            let verb = |of: fn(&Counter, &Counter) -> u64| {
                sum(&|worker| worker.service.verbs.get(number).map_or(0, |verb| of(&verb.requests, &verb.refused)))
            };
            let rejected = sum(&|worker| worker.rejected.get(number).map_or(0, Counter::get));
            let [requests, refused] = [verb(|requests, _| requests.get()), verb(|_, refused| refused.get())];
            let [calls, failed] = [requests, refused].map(|count| count.saturating_sub(rejected));
            VerbTotals { name, calls, rejected, failed }
        });
        let errors = CODES.iter().enumerate();
        Self {
            connections: sum(&|worker| worker.service.connections.get()),
            accepted: sum(&|worker| worker.service.accepted.get()),
            bytes_in: sum(&|worker| worker.service.bytes_in.get()),
            bytes_out: sum(&|worker| worker.service.bytes_out.get()),
            hits: sum(&|worker| worker.hits.get()),
            misses: sum(&|worker| worker.misses.get()),
            verbs: verbs.collect(),
            errors: errors
                .map(|(place, code)| (*code, sum(&|worker| worker.errors.get(place).map_or(0, Counter::get))))
                .collect(),
        }
    }

    /// What has come since `before`, which is empty or of the same workers.
    fn since(mut self, before: &Self) -> Self {
        for (verb, before) in self.verbs.iter_mut().zip(&before.verbs) {
            verb.calls -= before.calls;
            verb.rejected = verb.rejected.saturating_sub(before.rejected);
            verb.failed = verb.failed.saturating_sub(before.failed);
        }
        for ((_, count), (_, before)) in self.errors.iter_mut().zip(&before.errors) {
            *count -= before;
        }
        Self {
            accepted: self.accepted - before.accepted,
            bytes_in: self.bytes_in - before.bytes_in,
            bytes_out: self.bytes_out - before.bytes_out,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            ..self
        }
    }
}
