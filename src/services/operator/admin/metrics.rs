//! All metrics in the exposition format: OpenMetrics 1.0, or the older text format for clients that do not ask for it.
//!
//! ```text
//! AdminDocument ─► requests, tables, tasks: families ─► OpenMetrics ─┬─► Accept: application/openmetrics-text
//!                                                          └─► text ─► any other client
//! ```
//! This module counts nothing.

mod connections;
mod families;
mod requests;
mod tables;
mod tasks;
mod text;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use families::{FamilyWriter, Labels, family};
use text::older;

use super::sources::AdminDocument;

/// The type that a client names in `Accept` to get OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const OLDER_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics as text.
pub(super) struct Exposition {
    pub(super) text: String,
    pub(super) content_type: &'static str,
}

/// The metrics in the format that the client accepts.
pub(super) fn exposition(document: AdminDocument, accept: &str) -> Exposition {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Source(document)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("text can be written to a string");
    if accept.contains(OPEN_METRICS) {
        Exposition { text, content_type: OPEN_METRICS_TYPE }
    } else {
        Exposition { text: older(&text), content_type: OLDER_TYPE }
    }
}

/// A document as a source of families.
struct Source(AdminDocument);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = FamilyWriter { encoder };
        let AdminDocument { stats, events_database } = &self.0;
        let build = [("version", stats.version), ("allocator", stats.memory.allocator)];
        to.gauges(family("spindle_build_info", "1, with the version and the allocator."), &[(&build, 1.0)])?;
        to.gauges(family("spindle_uptime", "Time since the start.").seconds(), &[(&[], stats.uptime_seconds)])?;
        requests::write(&mut to, stats)?;
        connections::write(&mut to, stats)?;
        tables::write(&mut to, stats)?;
        if let Some(section) = &stats.tasks {
            tasks::write(&mut to, section)?;
        }
        if let Some(database) = *events_database {
            tasks::write_database(&mut to, database)?;
        }
        if let Some(users) = &stats.users {
            let labels: Vec<_> = users.refused.keys().map(|reason| [("reason", *reason)]).collect();
            let refused: Vec<(Labels<'_>, u64)> =
                labels.iter().map(|labels| &labels[..]).zip(users.refused.values().copied()).collect();
            to.counters(family("spindle_denials", "Peers and requests that were refused for their users."), &refused)?;
        }
        let descriptors = &stats.descriptors;
        to.gauge(family("spindle_descriptors_limit", "Files that the process may have open."), descriptors.limit)?;
        to.counter(
            family("spindle_accept_pauses", "How often no connection was accepted for want of a descriptor."),
            descriptors.accept_pauses,
        )?;
        to.counter(
            family("spindle_places_made", "Idle connections that were closed for clients that waited."),
            descriptors.made_place,
        )?;
        to.counter(
            family("spindle_log_dropped_lines", "Lines that standard error has not taken."),
            stats.log.dropped_lines,
        )
    }
}
