//! The metrics of connections and their bytes, of every protocol whose connections this program owns.

use std::fmt::Result;

use super::families::{FamilyWriter, Labels, PROTOCOL, family};
use crate::services::tables::report::{StatsDocument, TrafficLine};

pub(super) fn write(to: &mut FamilyWriter<'_>, stats: &StatsDocument) -> Result {
    let lockstep = stats.lockstep.as_ref().map(|line| TrafficLine {
        connections: line.connections,
        connections_ever: line.connections_ever,
        received_bytes: line.received_bytes,
        sent_bytes: line.sent_bytes,
    });
    let own = [(PROTOCOL, Some(stats.connections)), ("lockstep", lockstep)];
    let own = own.into_iter().filter_map(|(protocol, line)| Some((protocol, line?)));
    let services = stats.services.iter().map(|service| (service.protocol, service.traffic));
    let all: Vec<_> = own.chain(services).map(|(protocol, line)| ([("protocol", protocol)], line)).collect();
    let now: Vec<(Labels<'_>, f64)> = all.iter().map(|(labels, line)| (&labels[..], line.connections as f64)).collect();
    to.gauges(family("spindle_connections", "Connections now."), &now)?;
    let counts = |of: fn(&TrafficLine) -> u64| -> Vec<(Labels<'_>, u64)> {
        all.iter().map(|(labels, line)| (&labels[..], of(line))).collect()
    };
    let ever = counts(|line| line.connections_ever);
    to.counters(family("spindle_accepted_connections", "Connections since the start."), &ever)?;
    // The bytes of events are those of the HTTP library.
    let counts = |of: fn(&TrafficLine) -> u64| -> Vec<(Labels<'_>, u64)> {
        let counted = all.iter().filter(|([(_, protocol)], _)| *protocol != EVENTS);
        counted.map(|(labels, line)| (&labels[..], of(line))).collect()
    };
    let received = counts(|line| line.received_bytes);
    to.counters(family("spindle_received", "Bytes that were received from clients.").bytes(), &received)?;
    let sent = counts(|line| line.sent_bytes);
    to.counters(family("spindle_sent", "Bytes that the system has taken for clients.").bytes(), &sent)?;
    let events = stats.services.iter().find(|service| service.protocol == EVENTS);
    events.map_or(Ok(()), |events| {
        let family = family("spindle_events_unavailable", "Requests for events that were answered with 503.");
        to.counter(family, events.unavailable)
    })
}

/// The label of requests for events.
const EVENTS: &str = "events";
