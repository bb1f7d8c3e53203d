//! The metrics of requests, of every protocol: how many, refused for what, and how long they took.

use std::fmt::Result;

use super::families::{FamilyWriter, Labels, PROTOCOL, family};
use crate::services::tables::report::{StatsDocument, VerbLine};
use crate::stats::LatencySnapshot;

/// The labels of a verb.
type VerbLabels = [(&'static str, &'static str); 2];

const fn labels(protocol: &'static str, verb: &'static str) -> VerbLabels {
    [("protocol", protocol), ("verb", verb)]
}

pub(super) fn write(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    counts(to, stats)?;
    refusals(to, stats)?;
    times(to, stats)?;
    to.counter(family("spindle_slow_requests", "Requests that took longer than --slow."), stats.slow.seen)
}

/// The verbs of the services beside the tables.
fn services(stats: &StatsDocument) -> impl Iterator<Item = (VerbLabels, &VerbLine)> {
    let lines = stats.services.iter().flat_map(|service| service.verbs.iter().map(|line| (service.protocol, line)));
    lines.map(|(protocol, line)| (labels(protocol, line.verb), line))
}

fn counts(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let tables = stats.commands.iter().map(|(verb, line)| (labels(PROTOCOL, verb), line.requests));
    let counts: Vec<_> = tables.chain(services(stats).map(|(labels, line)| (labels, line.requests))).collect();
    let counts: Vec<(Labels<'_>, u64)> = counts.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    to.counters(family("spindle_requests", "Requests that were answered, refused ones included."), &counts)
}

fn refusals(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let refused: Vec<_> = stats
        .commands
        .iter()
        .flat_map(|(verb, line)| line.errors.iter().map(|(reason, count)| (*verb, *reason, *count)))
        .chain(stats.not_understood.iter().map(|(reason, count)| ("none", *reason, *count)))
        .map(|(verb, reason, count)| ([("protocol", PROTOCOL), ("verb", verb), ("reason", reason)], count))
        .collect();
    let others = services(stats).filter(|(_, line)| line.refused > 0);
    let others = others.map(|([protocol, verb], line)| ([protocol, verb, ("reason", "refused")], line.refused));
    let refused: Vec<_> = refused.into_iter().chain(others).collect();
    let refused: Vec<(Labels<'_>, u64)> = refused.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    to.counters(family("spindle_refusals", "Requests that were refused, by reason."), &refused)
}

fn times(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let tables = stats.commands.iter();
    let mut executions: Vec<(VerbLabels, &LatencySnapshot)> =
        tables.clone().map(|(verb, line)| (labels(PROTOCOL, verb), &line.latency_micros.snapshot)).collect();
    executions.extend(services(stats).map(|(labels, line)| (labels, &line.latency_micros.snapshot)));
    let help = "Time from a request's turn until its reply was encoded, of a sample of the requests about tables.";
    histogram(to, ("spindle_execution", help), &executions)?;
    let mut whole: Vec<(VerbLabels, &LatencySnapshot)> =
        tables.map(|(verb, line)| (labels(PROTOCOL, verb), &line.end_to_end_micros.snapshot)).collect();
    let lockstep = stats.lockstep.iter().flat_map(|lockstep| &lockstep.verbs);
    whole.extend(lockstep.map(|line| (labels("lockstep", line.verb), &line.end_to_end_micros.snapshot)));
    whole.extend(services(stats).map(|(labels, line)| (labels, &line.end_to_end_micros.snapshot)));
    let help = "Time from the arrival of a request until its reply was sent, of a sample of the requests about tables.";
    histogram(to, ("spindle_request", help), &whole)
}

fn histogram(
    to: &mut FamilyWriter<'_>,
    (name, help): (&'static str, &'static str),
    samples: &[(VerbLabels, &LatencySnapshot)],
) -> Result {
    let samples: Vec<(Labels<'_>, &LatencySnapshot)> =
        samples.iter().map(|(labels, latencies)| (&labels[..], *latencies)).collect();
    to.latencies(family(name, help), &samples)
}
