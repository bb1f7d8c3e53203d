//! INFO: what clients and exporters of Redis read of the server, all of it true.

use std::fmt::{Display, Write};

use super::arguments::is;
use super::call::Call;
use super::limits::REDIS_VERSION;
use super::metrics::{Statistics, VerbTotals};
use super::registry::ClientCounts;
use super::settings::{clients_max, policy_name};
use crate::clock::Now;
use crate::services::tables::report::resident_bytes;
use crate::stats::{LatencySnapshot, Percentiles};
use crate::tables::{Durability, EffectMetrics, LogStage, TablesMetrics};

/// What the lines are made of.
struct Reading<'c, 'a, 's> {
    call: &'c Call<'a, 's>,
    tables: TablesMetrics,
    statistics: Statistics,
    now: Now,
}

/// A section. The usual ones are shown if none is named.
struct Section {
    name: &'static str,
    is_default: bool,
    lines: fn(&mut String, &Reading<'_, '_, '_>),
}

const fn section(name: &'static str, is_default: bool, lines: fn(&mut String, &Reading<'_, '_, '_>)) -> Section {
    Section { name, is_default, lines }
}

/// The sections, in their order.
const SECTIONS: [Section; 11] = [
    section("Server", true, server),
    section("Clients", true, clients),
    section("Memory", true, memory),
    section("Persistence", true, persistence),
    section("Stats", true, statistics),
    section("Replication", true, replication),
    section("Commandstats", false, commands),
    section("Errorstats", true, errors),
    section("Latencystats", false, latencies),
    section("Cluster", true, cluster),
    section("Keyspace", true, keyspace),
];

impl Section {
    /// Whether it is among those that these words name.
    fn is_named(&self, names: &[&[u8]]) -> bool {
        let has = |word: &str| names.iter().any(|name| is(name, word));
        let is_default = names.is_empty() || has("default");
        has("all") || has("everything") || is_default && self.is_default || has(self.name)
    }
}

/// The sections with these names, or those that are usual.
pub(super) fn render(call: &mut Call<'_, '_>, names: &[&[u8]]) -> String {
    let report = std::sync::Arc::clone(&call.context.report);
    let tables = call.batch.aside(|| report.tables_metrics());
    let reading = Reading { tables, statistics: call.context.metrics.statistics(), now: (call.now)(), call };
    let mut text = String::new();
    for section in SECTIONS.iter().filter(|section| section.is_named(names)) {
        let separator = if text.is_empty() { "" } else { "\r\n" };
        let _ = write!(text, "{separator}# {}\r\n", section.name);
        (section.lines)(&mut text, &reading);
    }
    text
}

/// Writes a line. Writing to a text does not fail.
fn line(text: &mut String, name: impl Display, value: impl Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

fn server(text: &mut String, Reading { call, now, .. }: &Reading<'_, '_, '_>) {
    line(text, "redis_version", REDIS_VERSION);
    line(text, "server_name", "spindle");
    line(text, "spindle_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_mode", "standalone");
    line(text, "os", std::env::consts::OS);
    line(text, "arch_bits", usize::BITS);
    line(text, "multiplexing_api", "epoll");
    line(text, "process_id", std::process::id());
    line(text, "tcp_port", call.context.port);
    line(text, "server_time_usec", call.context.clock.start_wall_millis() * 1_000 + now.nanos() / 1_000);
    let uptime = now.nanos() / 1_000_000_000;
    line(text, "uptime_in_seconds", uptime);
    line(text, "uptime_in_days", uptime / 86_400);
}

fn clients(text: &mut String, reading: &Reading<'_, '_, '_>) {
    let counts: Vec<ClientCounts> = reading.call.context.clients.all().iter().map(|card| card.counts()).collect();
    line(text, "connected_clients", reading.statistics.connections);
    line(text, "maxclients", clients_max());
    line(text, "blocked_clients", 0);
    line(text, "tracking_clients", 0);
    line(text, "pubsub_clients", counts.iter().filter(|counts| counts.is_subscribed()).count());
    line(text, "watching_clients", counts.iter().filter(|counts| counts.watched > 0).count());
    line(text, "clients_in_timeout_table", 0);
    line(text, "total_watched_keys", counts.iter().map(|counts| counts.watched).sum::<usize>());
}

fn memory(text: &mut String, reading: &Reading<'_, '_, '_>) {
    let memory = &reading.tables.memory;
    line(text, "used_memory", memory.used + memory.excess);
    if let Some(resident) = resident_bytes() {
        line(text, "used_memory_rss", resident);
    }
    line(text, "maxmemory", memory.max);
    line(text, "maxmemory_policy", policy_name(reading.call.batch.eviction()));
}

fn persistence(text: &mut String, Reading { call, .. }: &Reading<'_, '_, '_>) {
    let log = call.context.report.log_metrics();
    let is_appending = call.durability() != Durability::None;
    let status = if log.stage == LogStage::Failed { "err" } else { "ok" };
    line(text, "loading", u8::from(log.stage == LogStage::Loading));
    line(text, "async_loading", 0);
    line(text, "rdb_bgsave_in_progress", u8::from(log.is_ordered && log.stage != LogStage::Failed));
    line(text, "rdb_last_save_time", last_save_seconds(call, &log));
    line(text, "rdb_last_bgsave_status", status);
    line(text, "aof_enabled", u8::from(is_appending));
    line(text, "aof_rewrite_in_progress", 0);
    line(text, "aof_rewrite_scheduled", 0);
    line(text, "aof_last_bgrewrite_status", "ok");
    line(text, "aof_last_write_status", status);
    if is_appending {
        line(text, "aof_current_size", log.log.space.used);
    }
}

/// The last moment that is on disk with all before it, in seconds since 1970. Before there is one, the start of the server,
/// as in Redis. While the databases are kept and there is no log, nothing is missing on disk.
pub(super) fn last_save_seconds(call: &Call<'_, '_>, log: &EffectMetrics) -> u64 {
    let start = call.context.clock.start_wall_millis();
    let has_all = log.stage == LogStage::Off && call.durability() != Durability::None;
    let millis = if has_all { start + (call.now)().millis() } else { log.moment.max(start) };
    millis / 1_000
}

fn statistics(text: &mut String, Reading { call, statistics, tables, .. }: &Reading<'_, '_, '_>) {
    line(text, "total_connections_received", statistics.accepted);
    line(text, "total_commands_processed", statistics.verbs.iter().map(|verb| verb.calls).sum::<u64>());
    line(text, "total_net_input_bytes", statistics.bytes_in);
    line(text, "total_net_output_bytes", statistics.bytes_out);
    line(text, "expired_keys", tables.expired);
    line(text, "evicted_keys", tables.evicted);
    line(text, "keyspace_hits", statistics.hits);
    line(text, "keyspace_misses", statistics.misses);
    let channels = call.subscribers.channels();
    line(text, "pubsub_channels", channels.names());
    line(text, "pubsub_patterns", channels.patterns());
    line(text, "pubsubshard_channels", 0);
    line(text, "total_error_replies", statistics.errors.iter().map(|(_, count)| count).sum::<u64>());
}

fn replication(text: &mut String, _: &Reading<'_, '_, '_>) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
}

/// The time of a command is measured in some of its calls, so the sum is that of their mean.
fn commands(text: &mut String, reading: &Reading<'_, '_, '_>) {
    for (verb, times) in with_times(reading) {
        let VerbTotals { name, calls, rejected, failed } = verb;
        let mean = times.sum_nanos() / times.count().max(1) as f64 / 1e3;
        let sum = mean * *calls as f64;
        let value = format!(
            "calls={calls},usec={sum:.0},usec_per_call={mean:.2},rejected_calls={rejected},failed_calls={failed}"
        );
        line(text, format!("cmdstat_{name}"), value);
    }
}

fn errors(text: &mut String, reading: &Reading<'_, '_, '_>) {
    for (code, count) in reading.statistics.errors.iter().filter(|(_, count)| *count > 0) {
        line(text, format!("errorstat_{code}"), format!("count={count}"));
    }
}

fn latencies(text: &mut String, reading: &Reading<'_, '_, '_>) {
    for (verb, times) in with_times(reading).filter(|(_, times)| times.count() > 0) {
        let Percentiles { p50, p99, p999, .. } = times.percentiles();
        let [p50, p99, p999] = [p50, p99, p999].map(|nanos| nanos as f64 / 1e3);
        line(
            text,
            format!("latency_percentiles_usec_{}", verb.name),
            format!("p50={p50:.3},p99={p99:.3},p99.9={p999:.3}"),
        );
    }
}

/// The commands that have been called, and their times in the tables.
fn with_times<'r>(reading: &'r Reading<'_, '_, '_>) -> impl Iterator<Item = (&'r VerbTotals, LatencySnapshot)> {
    let verbs = reading.statistics.verbs.iter().zip(0..);
    verbs.filter(|(verb, _)| verb.calls + verb.rejected > 0).map(|(verb, number)| {
        let workers = reading.call.context.metrics.workers.iter();
        let times = workers.filter_map(|worker| Some(&worker.service.verbs.get(number)?.execution));
        (verb, LatencySnapshot::of(times))
    })
}

fn cluster(text: &mut String, _: &Reading<'_, '_, '_>) {
    line(text, "cluster_enabled", 0);
}

fn keyspace(text: &mut String, Reading { call, tables, now, .. }: &Reading<'_, '_, '_>) {
    for database in 0..16_u8 {
        let name = database.to_string();
        let table =
            tables.tables.iter().find(|table| table.name.strip_suffix(b"\0").unwrap_or(&table.name) == name.as_bytes());
        if let Some(table) = table.filter(|table| table.elements > 0)
            && call.may_read(name.as_bytes())
        {
            let left = table.mean_deadline.millis().saturating_sub(now.millis());
            let value = format!("keys={},expires={},avg_ttl={left}", table.elements, table.expiring);
            line(text, format!("db{database}"), value);
        }
    }
}
