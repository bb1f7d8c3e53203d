//! INFO: what clients and exporters of Redis read of the server, all of it true.

use std::fmt::Write;

use super::arguments::is;
use super::call::{Call, present};
use super::limits::REDIS_VERSION;
use crate::tables::TablesMetrics;

/// Writes the lines of a section.
type Lines = fn(&mut String, &mut Call<'_, '_>, &TablesMetrics);

/// The sections, in their order.
const SECTIONS: [(&str, Lines); 7] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", statistics),
    ("Replication", replication),
    ("Keyspace", keyspace),
];

/// The sections with these names, or all.
pub(super) fn render(call: &mut Call<'_, '_>, names: &[&[u8]]) -> String {
    let report = std::sync::Arc::clone(&call.context.report);
    let metrics = call.batch.aside(|| report.tables_metrics());
    let is_all = |name: &&[u8]| ["all", "default", "everything"].iter().any(|word| is(name, word));
    let mut text = String::new();
    for (section, lines) in SECTIONS {
        if names.is_empty() || names.iter().any(|name| is_all(name) || is(name, section)) {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            let _ = write!(text, "{separator}# {section}\r\n");
            lines(&mut text, call, &metrics);
        }
    }
    text
}

/// Writes a line. Writing to a text does not fail.
fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

fn server(text: &mut String, call: &mut Call<'_, '_>, _: &TablesMetrics) {
    line(text, "redis_version", REDIS_VERSION);
    line(text, "server_name", "spindle");
    line(text, "spindle_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_mode", "standalone");
    line(text, "os", std::env::consts::OS);
    line(text, "arch_bits", usize::BITS);
    line(text, "process_id", std::process::id());
    line(text, "tcp_port", call.context.port);
    let uptime = (call.now)().nanos() / 1_000_000_000;
    line(text, "uptime_in_seconds", uptime);
    line(text, "uptime_in_days", uptime / 86_400);
}

fn clients(text: &mut String, call: &mut Call<'_, '_>, _: &TablesMetrics) {
    line(text, "connected_clients", call.context.statistics().connections);
    line(text, "blocked_clients", 0);
}

fn memory(text: &mut String, _: &mut Call<'_, '_>, metrics: &TablesMetrics) {
    line(text, "used_memory", metrics.memory.used + metrics.memory.excess);
    line(text, "maxmemory", metrics.memory.max);
    line(text, "maxmemory_policy", "noeviction");
}

fn persistence(text: &mut String, _: &mut Call<'_, '_>, _: &TablesMetrics) {
    line(text, "loading", 0);
    line(text, "rdb_bgsave_in_progress", 0);
    line(text, "aof_enabled", 0);
}

fn statistics(text: &mut String, call: &mut Call<'_, '_>, metrics: &TablesMetrics) {
    let statistics = call.context.statistics();
    line(text, "total_connections_received", statistics.accepted);
    line(text, "total_commands_processed", statistics.commands);
    line(text, "total_net_input_bytes", statistics.bytes_in);
    line(text, "total_net_output_bytes", statistics.bytes_out);
    line(text, "total_error_replies", statistics.refused);
    line(text, "keyspace_hits", statistics.hits);
    line(text, "keyspace_misses", statistics.misses);
    line(text, "expired_keys", metrics.expired);
    line(text, "evicted_keys", 0);
}

fn replication(text: &mut String, _: &mut Call<'_, '_>, _: &TablesMetrics) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
}

fn keyspace(text: &mut String, call: &mut Call<'_, '_>, _: &TablesMetrics) {
    for database in 0..16_u8 {
        let name = database.to_string();
        let may_read = call.may_read(name.as_bytes());
        if let Ok(Some(keys @ 1..)) = present(call.batch.count(name.as_bytes()))
            && may_read
        {
            line(text, &format!("db{database}"), format!("keys={keys},expires=0,avg_ttl=0"));
        }
    }
}
