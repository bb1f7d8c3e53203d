//! The requests and times of each verb, for a history of them. No table is read for it. This module counts nothing.

use super::{ReportSources, WorkerMetrics};
use crate::clock::Now;
use crate::services::tables::wire::Command;
use crate::stats::LatencySnapshot;

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
        let of_services = self.other_services.services.iter().flat_map(|service| {
            service.verbs.iter().filter(|verb| verb.requests.get() > 0).map(|verb| VerbTimes {
                protocol: service.protocol,
                verb: verb.name,
                requests: verb.requests.get(),
                whole: LatencySnapshot::of([&verb.whole]),
            })
        });
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

/// The queue's thread counts no request, but records how long each took. Without a request there is nothing to add up.
fn of_command(protocol: &'static str, threads: &[&WorkerMetrics], command: Command) -> Option<VerbTimes> {
    let all = || threads.iter().map(|thread| thread.of(Some(command)));
    let requests = all().map(|metrics| metrics.requests.get()).sum();
    let whole = || LatencySnapshot::of(all().map(|metrics| &metrics.whole));
    (requests > 0).then(|| VerbTimes { protocol, verb: command.name(), requests, whole: whole() })
}
