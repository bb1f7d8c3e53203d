//! The metrics of tasks: every request is counted and timed, from its arrival until the system has its reply.
//!
//! A Lend that may wait for a task is a verb of its own here: its time is mostly that until there is a task. This module
//! does not send.

use std::sync::Arc;

use super::handle::Access;
use super::wire::{Verb, tag};
use crate::clock::Clock;
use crate::net::zeromq::{ConnectionProtocol, ConnectionState, Connections, Traffic};
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;

/// The verbs: in the order of their tags, then those that have none, and those from [`tag::ADD_MANY`] on.
const VERBS: [&str; 23] = [
    "COUNT",
    "ADD",
    "UPDATE",
    "LEND",
    "REPAY",
    "HEARTBEAT",
    "STATS",
    "TERMINATE",
    "LOOKUP",
    "FLUSH",
    "PING",
    "REMOVE",
    "LEND_WAITING",
    "none",
    "ADD_MANY",
    "LEND_MANY",
    "SETTLE_MANY",
    "EXTEND_MANY",
    "BROWSE",
    "KICK",
    "PURGE",
    "CONFIGURE",
    "QUEUES",
];
/// The number of Lends that may wait.
const LEND_WAITING: usize = 12;
/// The number of requests that name no verb.
const NONE: usize = 13;

/// The number of a verb in the metrics. `waits`: it is a Lend that may wait.
pub(super) fn verb_number(verb: Option<Verb>, waits: bool) -> usize {
    match verb {
        None => NONE,
        Some(_) if waits => LEND_WAITING,
        Some(verb) => match verb.tag().checked_sub(tag::ADD_MANY) {
            Some(place) => NONE + 1 + usize::from(place),
            None => usize::from(verb.tag()).saturating_sub(1),
        },
    }
}

/// The metrics of a frontend with this access.
pub(super) fn metrics(access: Access) -> Arc<ServiceMetrics> {
    let protocol = match access {
        Access::Full => "tasks",
        Access::WorkOff { .. } => "events-queue",
    };
    Arc::new(ServiceMetrics::new(protocol, &VERBS))
}

/// Records how long the replies took that the system has taken until now.
pub(super) fn record_sent<S: ConnectionState>(
    connections: &mut Connections<S>,
    metrics: &ServiceMetrics,
    slow: &SlowLog,
    clock: Clock,
) {
    connections.record_timed(clock, slow, |reply, nanos| {
        metrics.record(reply.verb, Some(reply.arrived.nanos_until(reply.answered)), nanos);
        (metrics.protocol, metrics.name(reply.verb))
    });
}

/// Updates the counts of connections and bytes.
pub(super) fn show<S: ConnectionState>(connections: &Connections<S>, metrics: &ServiceMetrics) {
    metrics.connections.set(connections.len() as u64);
    let Traffic { accepted, received, sent, .. } = connections.traffic(ConnectionProtocol::Zmtp);
    metrics.accepted.set(accepted);
    metrics.bytes_in.set(received);
    metrics.bytes_out.set(sent);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verb_has_its_own_name() {
        let name = |verb: Verb| VERBS.get(verb_number(Some(verb), false)).copied();
        assert_eq!(name(Verb::Count), Some("COUNT"));
        assert_eq!(name(Verb::Lend), Some("LEND"));
        assert_eq!(name(Verb::Remove), Some("REMOVE"));
        assert_eq!((name(Verb::AddMany), name(Verb::Queues)), (Some("ADD_MANY"), Some("QUEUES")));
        assert_eq!(VERBS.get(verb_number(Some(Verb::Lend), true)), Some(&"LEND_WAITING"));
        assert_eq!(VERBS.get(verb_number(None, false)), Some(&"none"));
    }
}
