//! The metrics of a service whose thread counts every request: tasks, jobs and events. This module reads no clock.

use std::sync::Arc;

use super::{Counter, Gauge, Latencies};

/// The metrics of one verb.
#[derive(Debug)]
pub struct VerbMetrics {
    /// The verb.
    pub name: &'static str,
    /// Requests that were answered, refused ones included.
    pub requests: Counter,
    /// Requests that were not carried out.
    pub refused: Counter,
    /// From the turn of a request until its reply was made.
    pub execution: Latencies,
    /// From the read of a request's last byte until the system had its reply.
    pub whole: Latencies,
}

/// Represents a connection that is counted. Dropping it counts its end.
#[derive(Debug)]
pub struct Present(Arc<ServiceMetrics>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get().saturating_sub(1));
    }
}

/// The metrics of a service. Its thread writes them, and any thread reads them.
#[derive(Debug)]
#[repr(align(128))]
pub struct ServiceMetrics {
    /// The name of the protocol.
    pub protocol: &'static str,
    /// One for each verb, in the order of the service.
    pub verbs: Box<[VerbMetrics]>,
    /// Requests that the store could not serve.
    pub unavailable: Counter,
    /// Connections now.
    pub connections: Gauge,
    /// Connections since the start.
    pub accepted: Gauge,
    /// Bytes that were received.
    pub bytes_in: Gauge,
    /// Bytes that the system has taken for clients.
    pub bytes_out: Gauge,
}

impl ServiceMetrics {
    /// The metrics of a service with these verbs, of which none was counted.
    #[must_use]
    pub fn new(protocol: &'static str, verbs: &[&'static str]) -> Self {
        let verb = |name: &&'static str| VerbMetrics {
            name,
            requests: Counter::new(),
            refused: Counter::new(),
            execution: Latencies::new(),
            whole: Latencies::new(),
        };
        Self {
            protocol,
            verbs: verbs.iter().map(verb).collect(),
            unavailable: Counter::new(),
            connections: Gauge::new(),
            accepted: Gauge::new(),
            bytes_in: Gauge::new(),
            bytes_out: Gauge::new(),
        }
    }

    /// A connection begins. It ends when the result is dropped, in the thread of the service.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Present {
        self.accepted.set(self.accepted.get() + 1);
        self.connections.set(self.connections.get() + 1);
        Present(Arc::clone(self))
    }

    /// Counts an answered request of the verb with this number.
    pub fn count(&self, verb: usize, is_refused: bool) {
        if let Some(verb) = self.verbs.get(verb) {
            verb.requests.add(1);
            verb.refused.add(u64::from(is_refused));
        }
    }

    /// Records the times of an answered request, in nanoseconds.
    pub fn record(&self, verb: usize, execution: Option<u64>, whole: u64) {
        if let Some(verb) = self.verbs.get(verb) {
            if let Some(nanos) = execution {
                verb.execution.record(nanos);
            }
            verb.whole.record(whole);
        }
    }

    /// The name of the verb with this number.
    #[must_use]
    pub fn name(&self, verb: usize) -> &'static str {
        self.verbs.get(verb).map_or("none", |verb| verb.name)
    }
}
