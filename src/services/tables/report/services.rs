//! The part of STATS on the services beside the tables, on the verbs of the lock-step dialect, and on slow requests. This
//! module counts nothing.

use std::sync::Arc;

use serde::Serialize;

use super::metric::{END_TO_END, EXECUTION, RECEIVED, REQUESTS, SENT, counter, gauge, line};
use super::micros::Micros;
use super::name::printable;
use super::{CommandMetrics, Counter, WorkerMetrics};
use crate::net::zeromq::{ConnectionProtocol, ConnectionState, Connections, Traffic};
use crate::services::tables::wire::Command;
use crate::stats::service::{ServiceMetrics, VerbMetrics};
use crate::stats::slow_log::{SlowLog, SlowRequest};
use crate::stats::{Gauge, LatencySnapshot};

/// Nanoseconds in a microsecond.
const NANOS_PER_MICRO: f64 = 1e3;

line! {
    /// Connections and their bytes, since the start but for the first.
    #[derive(Clone, Copy)]
    pub(crate) struct TrafficLine {
        pub(crate) connections: u64 = gauge("spindle_connections", "Connections now.").by(&["protocol"]),
        connections_ever: u64 =
            counter("spindle_accepted_connections", "Connections since the start.").by(&["protocol"]),
        received_bytes: u64 = RECEIVED,
        sent_bytes: u64 = SENT,
    }
}

impl TrafficLine {
    /// Of all threads together.
    pub(super) fn of<'a>(threads: impl IntoIterator<Item = &'a TrafficMetrics>) -> Self {
        let none = Self { connections: 0, connections_ever: 0, received_bytes: 0, sent_bytes: 0 };
        threads.into_iter().fold(none, |sum, thread| Self {
            connections: sum.connections + thread.connections.get(),
            connections_ever: sum.connections_ever + thread.accepted.get(),
            received_bytes: sum.received_bytes + thread.received.get(),
            sent_bytes: sum.sent_bytes + thread.sent.get(),
        })
    }
}

/// The connections of one thread, and their bytes. Their thread writes them.
#[derive(Debug, Default)]
pub(crate) struct TrafficMetrics {
    connections: Gauge,
    accepted: Gauge,
    received: Gauge,
    sent: Gauge,
}

impl TrafficMetrics {
    /// The number of connections.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> u64 {
        self.connections.get()
    }

    /// Updates the metrics.
    pub(crate) fn show<S: ConnectionState>(&self, connections: &Connections<S>) {
        let Traffic { connections, accepted, received, sent } = connections.traffic(ConnectionProtocol::Zmtp);
        self.connections.set(connections);
        self.accepted.set(accepted);
        self.received.set(received);
        self.sent.set(sent);
    }
}

/// A service of tasks, jobs, events or Redis clients.
#[derive(Serialize)]
pub(crate) struct ServiceLine {
    pub(crate) protocol: &'static str,
    #[serde(flatten)]
    pub(crate) traffic: TrafficLine,
    pub(crate) unavailable: u64,
    pub(crate) verbs: Vec<VerbLine>,
}

line! {
    /// A verb of a service.
    pub(crate) struct VerbLine {
        pub(crate) verb: &'static str,
        requests: u64 = REQUESTS,
        pub(crate) refused: u64,
        latency_micros: Micros = EXECUTION,
        pub(crate) end_to_end_micros: Micros = END_TO_END,
    }
}

/// The most verbs of a service all of which are shown. Of a service with more, those are that have been requested.
const ALL_SHOWN_MAX: usize = 32;

impl ServiceLine {
    /// A service, of whose threads these are the metrics.
    pub(super) fn of(threads: &[Arc<ServiceMetrics>]) -> Self {
        let sum = |of: fn(&ServiceMetrics) -> u64| threads.iter().map(|thread| of(thread)).sum();
        let names = threads.first().map_or(&[][..], |thread| &thread.verbs);
        let verbs = names.iter().enumerate().map(|(number, verb)| {
            VerbLine::of_service(verb.name, threads.iter().filter_map(move |thread| thread.verbs.get(number)))
        });
        Self {
            protocol: threads.first().map_or("none", |thread| thread.protocol),
            traffic: TrafficLine {
                connections: sum(|thread| thread.connections.get()),
                connections_ever: sum(|thread| thread.accepted.get()),
                received_bytes: sum(|thread| thread.bytes_in.get()),
                sent_bytes: sum(|thread| thread.bytes_out.get()),
            },
            unavailable: sum(|thread| thread.unavailable.get()),
            verbs: verbs.filter(|verb| names.len() <= ALL_SHOWN_MAX || verb.requests > 0).collect(),
        }
    }
}

impl VerbLine {
    fn of_service<'m>(verb: &'static str, threads: impl Iterator<Item = &'m VerbMetrics> + Clone) -> Self {
        Self {
            verb,
            requests: threads.clone().map(|thread| thread.requests.get()).sum(),
            refused: threads.clone().map(|thread| thread.refused.get()).sum(),
            latency_micros: Micros::of(LatencySnapshot::of(threads.clone().map(|thread| &thread.execution))),
            end_to_end_micros: Micros::of(LatencySnapshot::of(threads.map(|thread| &thread.whole))),
        }
    }

    fn of_command(command: Command, metrics: &CommandMetrics) -> Self {
        Self {
            verb: command.name(),
            requests: metrics.requests.get(),
            refused: metrics.refused.iter().map(Counter::get).sum(),
            latency_micros: Micros::of(LatencySnapshot::of([&metrics.latencies])),
            end_to_end_micros: Micros::of(LatencySnapshot::of([&metrics.whole])),
        }
    }
}

/// The verbs that a worker has had, such as those of the lock-step dialect.
pub(super) fn verbs_of(worker: &WorkerMetrics) -> Vec<VerbLine> {
    let lines = Command::ALL.into_iter().map(|command| VerbLine::of_command(command, worker.of(Some(command))));
    lines.filter(|line| line.requests > 0).collect()
}

line! {
    /// The slow log, without its requests.
    pub(crate) struct SlowLine {
        threshold_micros: f64,
        seen: u64 = counter("spindle_slow_requests", "Requests that took longer than --slow."),
    }
}

impl SlowLine {
    pub(super) fn of(log: &SlowLog) -> Self {
        Self { threshold_micros: micros(log.bound_nanos()), seen: log.seen() }
    }
}

/// The slow log with its latest requests.
#[derive(Serialize)]
pub(crate) struct SlowDocument {
    threshold_micros: f64,
    seen: u64,
    /// The latest first.
    requests: Vec<SlowRequestLine>,
}

impl SlowDocument {
    pub(crate) fn of(log: &SlowLog, most: usize) -> Self {
        let SlowLine { threshold_micros, seen } = SlowLine::of(log);
        Self { threshold_micros, seen, requests: log.latest(most).into_iter().map(SlowRequestLine::of).collect() }
    }
}

/// A slow request. A part of its time that is not known is `null`.
#[derive(Serialize)]
pub(crate) struct SlowRequestLine {
    unix_millis: u64,
    micros: f64,
    queue_micros: Option<f64>,
    execution_micros: Option<f64>,
    write_micros: Option<f64>,
    client: String,
    protocol: &'static str,
    verb: &'static str,
    table: String,
    request_bytes: u64,
    reply_bytes: u64,
}

impl SlowRequestLine {
    fn of(request: SlowRequest) -> Self {
        let stages = request.stages;
        Self {
            unix_millis: request.unix_millis,
            micros: micros(request.nanos),
            queue_micros: stages.queue.map(micros),
            execution_micros: stages.execution.map(micros),
            write_micros: stages.write.map(micros),
            client: request.client,
            protocol: request.protocol,
            verb: request.verb,
            table: printable(&request.table),
            request_bytes: request.request_bytes,
            reply_bytes: request.reply_bytes,
        }
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / NANOS_PER_MICRO
}
