//! The requests and times of each verb, for a history of them. No table is read for it. This module counts nothing.

use std::sync::Arc;

use super::{ReportSources, WorkerMetrics, by_protocol};
use crate::clock::Now;
use crate::services::tables::wire::Command;
use crate::stats::LatencySnapshot;
use crate::stats::service::ServiceMetrics;

/// A verb that has had requests since the start.
pub(crate) struct VerbTimes {
    pub(crate) protocol: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) requests: u64,
    /// From the arrival of a request until its reply was sent.
    pub(crate) whole: LatencySnapshot,
}

impl ReportSources {
    /// The verbs of all protocols. Those without a request are left out.
    pub(crate) fn verb_times(&self) -> Vec<VerbTimes> {
        let own: Vec<&WorkerMetrics> = self.own_counts().collect();
        let lockstep = self.other_services.lockstep.iter().map(|metrics| &metrics.worker).collect();
        let tables = [("kv", own), ("lockstep", lockstep)];
        let of_tables = tables.iter().flat_map(|(protocol, threads)| {
            Command::ALL.into_iter().filter_map(move |command| of_command(protocol, threads, command))
        });
        let of_services = by_protocol(&self.other_services.services).flat_map(of_service);
        of_tables.chain(of_services).collect()
    }

    /// The time on the server's clock.
    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Bytes that the tables and their garbage take of the limit.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let memory = self.tables.memory();
        memory.used + memory.excess
    }
}

fn of_service(threads: &[Arc<ServiceMetrics>]) -> impl Iterator<Item = VerbTimes> {
    let names = threads.iter().take(1).flat_map(|thread| thread.verbs.iter().map(|verb| (thread.protocol, verb.name)));
    names.enumerate().filter_map(|(number, (protocol, verb))| {
        let all = || threads.iter().filter_map(|thread| thread.verbs.get(number));
        let requests = all().map(|verb| verb.requests.get()).sum();
        let whole = || LatencySnapshot::of(all().map(|verb| &verb.whole));
        (requests > 0).then(|| VerbTimes { protocol, verb, requests, whole: whole() })
    })
}

/// The queue's thread counts no request, but records how long each took. Without a request there is nothing to add up.
fn of_command(protocol: &'static str, threads: &[&WorkerMetrics], command: Command) -> Option<VerbTimes> {
    let all = || threads.iter().map(|thread| thread.of(Some(command)));
    let requests = all().map(|metrics| metrics.requests.get()).sum();
    let whole = || LatencySnapshot::of(all().map(|metrics| &metrics.whole));
    (requests > 0).then(|| VerbTimes { protocol, verb: command.name(), requests, whole: whole() })
}
