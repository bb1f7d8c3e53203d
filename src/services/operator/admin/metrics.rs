//! All metrics in the exposition format: OpenMetrics 1.0, or the older text format for clients that do not ask for it.
//!
//! ```text
//! AdminDocument ─► its lines: families ─► OpenMetrics ─┬─► Accept: application/openmetrics-text
//!                                                      └─► text ─► a client that does not prefer it
//! ```
//! This module counts nothing.

mod accept;
mod families;
mod text;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use accept::quality;
use families::Families;
use text::older;

use super::limits::{LABELLED_QUEUES_MAX, LABELLED_TABLES_MAX};
use super::sources::{AdminDocument, largest};
use crate::services::tables::report::{
    CLIENTS, END_TO_END, Metric, MetricsLine, REFUSALS, StatsDocument, TasksSection, counter, gauge, line,
};

/// The type that a client names in `Accept` to get OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text";
/// The type of the older format, and the ranges that it is in, the narrowest first.
const OLDER: [&str; 3] = ["text/plain", "text/*", "*/*"];
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const OLDER_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics as text.
pub(super) struct Exposition {
    pub(super) text: String,
    pub(super) content_type: &'static str,
}

/// The metrics in the format that the client prefers. A client that does not name OpenMetrics gets the older format.
pub(super) fn exposition(document: AdminDocument, accept: &str) -> Exposition {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(StatsCollector(document)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("text can be written to a string");
    let older_quality = OLDER.into_iter().find_map(|range| quality(accept, range)).unwrap_or(0.0);
    if quality(accept, OPEN_METRICS).is_some_and(|quality| quality > 0.0 && quality >= older_quality) {
        Exposition { text, content_type: OPEN_METRICS_TYPE }
    } else {
        Exposition { text: older(&text), content_type: OLDER_TYPE }
    }
}

/// A document as a source of families.
struct StatsCollector(AdminDocument);

impl fmt::Debug for StatsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsCollector").finish_non_exhaustive()
    }
}

impl Collector for StatsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let AdminDocument { stats, events_database } = &self.0;
        let totals = Totals::of(stats);
        let mut families = Families::default();
        families.line(&totals, &[("version", stats.version), ("allocator", stats.process.memory.allocator)]);
        of_tables(&mut families, stats);
        of_services(&mut families, stats);
        if let Some(tasks) = &stats.tasks {
            of_tasks(&mut families, tasks);
        }
        if let Some(database) = events_database {
            families.line(database, &[]);
        }
        for (reason, count) in stats.users.iter().flat_map(|users| &users.refused) {
            families.single(DENIALS, &[("reason", reason)], count);
        }
        let lines: [&dyn MetricsLine; 6] = [
            &stats.slow,
            &stats.data.expiry,
            &stats.process.memory,
            &stats.process.descriptors,
            &stats.process.log,
            &stats.clients,
        ];
        lines.into_iter().for_each(|line| families.line(line, &[("protocol", TABLES)]));
        families.write(&mut encoder)
    }
}

const DENIALS: Metric =
    counter("spindle_denials", "Peers and requests that were refused for their users.").by(&["reason"]);
const UNAVAILABLE: Metric = counter("spindle_events_unavailable", "Requests for events that were answered with 503.");

/// The label of requests about tables, of those in the lock-step dialect, and of those for events.
const TABLES: &str = "kv";
const LOCKSTEP: &str = "lockstep";
const EVENTS: &str = "events";

line! {
    /// What STATS gives in another form.
    struct Totals {
        build: u64 = gauge("spindle_build_info", "1, with the version and the allocator.").by(&["version", "allocator"]),
        uptime_seconds: f64 = gauge("spindle_uptime", "Time since the start.").seconds(),
        tables: u64 = gauge("spindle_tables", "Tables."),
        elements: u64 = gauge("spindle_elements", "Elements of all tables."),
        bytes: u64 = gauge("spindle_elements_memory", "Bytes of the elements of all tables.").bytes(),
    }
}

impl Totals {
    fn of(stats: &StatsDocument) -> Self {
        Self {
            build: 1,
            uptime_seconds: stats.uptime_seconds,
            tables: stats.data.tables.len() as u64,
            elements: stats.data.tables.iter().map(|table| table.elements).sum(),
            bytes: stats.data.tables.iter().map(|table| table.bytes).sum(),
        }
    }
}

/// The requests about tables, the workers, the largest tables, the changes and all that is published.
fn of_tables<'d>(families: &mut Families<'d>, stats: &'d StatsDocument) {
    for (verb, line) in &stats.requests.commands {
        families.line(line, &[("protocol", TABLES), ("verb", verb)]);
        for (reason, count) in &line.errors {
            families.single(REFUSALS, &[("protocol", TABLES), ("verb", verb), ("reason", reason)], count);
        }
    }
    for (reason, count) in &stats.requests.not_understood {
        families.single(REFUSALS, &[("protocol", TABLES), ("verb", "none"), ("reason", reason)], count);
    }
    families.line(&stats.connections, &[("protocol", TABLES)]);
    for (number, worker) in stats.requests.workers.iter().enumerate() {
        families.line(worker, &[("worker", &number.to_string())]);
    }
    for table in largest(&stats.data.tables, LABELLED_TABLES_MAX) {
        families.line(table, &[("table", &table.name)]);
    }
    families.line(&stats.data.changes, &[("endpoint", "publish")]);
    if let Some(feed) = &stats.data.feed {
        families.line(feed, &[("endpoint", "feed")]);
    }
    if let Some(durable) = &stats.data.durable {
        families.line(durable, &[]);
        families.line(&durable.store, &[("log", "tables")]);
    }
    if let Some(lockstep) = &stats.lockstep {
        families.line(lockstep, &[("endpoint", "lockstep-publish")]);
        families.line(&lockstep.traffic, &[("protocol", LOCKSTEP)]);
        families.single(CLIENTS, &[("protocol", LOCKSTEP)], &lockstep.traffic.connections);
        // Its requests are counted among those about tables.
        for line in &lockstep.verbs {
            families.single(END_TO_END, &[("protocol", LOCKSTEP), ("verb", line.verb)], &line.end_to_end_micros);
        }
    }
}

/// The services of tasks, jobs and events.
fn of_services<'d>(families: &mut Families<'d>, stats: &'d StatsDocument) {
    for service in &stats.services {
        let labels = [("protocol", service.protocol)];
        service.traffic.read(&mut |metric, reading| {
            // The bytes of events are those of the HTTP library.
            if service.protocol != EVENTS || metric.unit != Some("bytes") {
                families.add(metric, &labels, reading);
            }
        });
        if service.protocol == EVENTS {
            families.single(UNAVAILABLE, &[], &service.unavailable);
        }
        for line in &service.verbs {
            families.line(line, &[("protocol", service.protocol), ("verb", line.verb)]);
            if line.refused > 0 {
                let labels = [("protocol", service.protocol), ("verb", line.verb), ("reason", "refused")];
                families.single(REFUSALS, &labels, &line.refused);
            }
        }
    }
}

/// Durable queues and their store.
fn of_tasks<'d>(families: &mut Families<'d>, tasks: &'d TasksSection) {
    families.line(tasks, &[]);
    families.line(&tasks.store, &[("log", "tasks")]);
    tasks.families.iter().for_each(|family| families.line(family, &[("family", &family.name)]));
    tasks.queues.iter().take(LABELLED_QUEUES_MAX).for_each(|queue| families.line(queue, &[("queue", &queue.name)]));
}
