//! The report as a document: the metrics of all threads at one moment, which STATS gives as JSON.
//!
//! Each line is a value that its reader may use without the JSON. This module counts nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::WorkerMetrics;
use super::changes::ChangesLine;
use super::durable_line::DurableLine;
use super::feed::FeedLine;
use super::lockstep::LockstepLine;
use super::metric::{CLIENTS, END_TO_END, EXECUTION, REQUESTS, counter, gauge, histogram, line};
use super::micros::Micros;
use super::name::printable;
use super::services::{ServiceLine, SlowLine, TrafficLine};
use super::tasks_section::TasksSection;
use crate::allocator;
use crate::clock::Now;
use crate::descriptors::{DescriptorBudget, pauses, places_made, shared};
use crate::security::{Denied, Users};
use crate::tables::{MemoryMetrics, TableSummary, TablesMetrics};

/// The report in its JSON form.
#[derive(Serialize)]
pub(crate) struct StatsDocument {
    pub(crate) version: &'static str,
    pub(crate) uptime_seconds: f64,
    #[serde(flatten)]
    pub(crate) requests: RequestsSection,
    #[serde(flatten)]
    pub(crate) data: TablesSection,
    pub(crate) clients: ClientsLine,
    pub(crate) connections: TrafficLine,
    pub(crate) lockstep: Option<LockstepLine>,
    #[serde(flatten)]
    pub(crate) process: ProcessSection,
    pub(crate) users: Option<UsersLine>,
    pub(crate) tasks: Option<TasksSection>,
    pub(crate) services: Vec<ServiceLine>,
    pub(crate) slow: SlowLine,
}

/// The requests about tables, and the threads that answer them.
#[derive(Serialize)]
pub(crate) struct RequestsSection {
    pub(crate) commands: BTreeMap<&'static str, CommandLine>,
    pub(crate) not_understood: BTreeMap<&'static str, u64>,
    pub(crate) workers: Vec<WorkerLine>,
}

/// The tables, and what they publish.
#[derive(Serialize)]
pub(crate) struct TablesSection {
    pub(crate) tables: Vec<TableStats>,
    pub(crate) expiry: ExpiryLine,
    pub(crate) changes: ChangesLine,
    pub(crate) feed: Option<FeedLine>,
    pub(crate) durable: Option<DurableLine>,
}

/// What the process takes of the system.
#[derive(Serialize)]
pub(crate) struct ProcessSection {
    pub(crate) memory: MemoryLine,
    pub(crate) descriptors: DescriptorsLine,
    pub(crate) log: LogLine,
}

line! {
    pub(crate) struct CommandLine {
        pub(super) requests: u64 = REQUESTS,
        pub(crate) errors: BTreeMap<&'static str, u64>,
        pub(super) latency_micros: Micros = EXECUTION,
        pub(super) end_to_end_micros: Micros = END_TO_END,
    }
}

line! {
    pub(crate) struct WorkerLine {
        requests: u64,
        busy_share: f64 = gauge(
            "spindle_worker_busy",
            "Share of the time since the start that a worker was busy.",
        ).ratio().by(&["worker"]),
        core: Option<usize>,
        waiting: u64 =
            gauge("spindle_worker_waiting_clients", "Clients that wait for room in the tables.").by(&["worker"]),
    }
}

impl WorkerLine {
    pub(super) fn of(worker: &Arc<WorkerMetrics>, now: Now) -> Self {
        Self {
            requests: worker.requests(),
            busy_share: worker.busy.share(now.nanos()),
            core: worker.core,
            waiting: worker.waiting.get(),
        }
    }
}

line! {
    pub(crate) struct TableStats {
        pub(crate) name: String,
        durability: &'static str,
        pub(crate) elements: u64 =
            gauge("spindle_table_elements", "Elements of a table, of the largest tables.").by(&["table"]),
        pub(crate) bytes: u64 = gauge(
            "spindle_table_memory",
            "Bytes of the elements of a table, of the largest tables.",
        ).bytes().by(&["table"]),
    }
}

impl TableStats {
    pub(super) fn of(table: &TableSummary) -> Self {
        let (name, durability) = (printable(&table.name), table.durability.word());
        Self { name, durability, elements: table.elements, bytes: table.bytes }
    }
}

line! {
    pub(crate) struct ExpiryLine {
        pending: u64 = gauge("spindle_timers", "Elements with a deadline."),
        expired: u64 = counter("spindle_expired_elements", "Elements whose deadline has passed."),
        lag_micros: Micros =
            histogram("spindle_expiry_lag", "Time from an element's deadline to its removal."),
    }
}

impl ExpiryLine {
    pub(super) fn of(tables_metrics: &TablesMetrics) -> Self {
        Self {
            pending: tables_metrics.timers,
            expired: tables_metrics.expired,
            lag_micros: Micros::of(tables_metrics.expiry_lag.clone()),
        }
    }
}

line! {
    pub(crate) struct ClientsLine {
        pub(super) known: u64 = CLIENTS,
        pub(super) outstanding_bytes: u64 = gauge(
            "spindle_clients_outstanding",
            "Bytes of requests and replies that clients have outstanding.",
        ).bytes(),
        pub(super) unread_bytes: u64 =
            gauge("spindle_clients_unread", "Bytes of replies that clients may not have read.").bytes(),
        pub(super) cut_off: u64 = counter("spindle_clients_cut_off", "How often a client was cut off."),
        pub(super) held_back: u64 = counter("spindle_clients_held_back", "How often a client was held back."),
        pub(super) requests: u64,
        pub(super) dropped_requests: u64 = counter("spindle_dropped_requests", "Reads of clients that were gone."),
        pub(super) oversized_requests: u64 =
            counter("spindle_oversized_requests", "Requests that were too long to keep."),
        pub(super) undeliverable_replies: u64 =
            counter("spindle_undeliverable_replies", "Replies to connections that are gone."),
    }
}

line! {
    pub(crate) struct DescriptorsLine {
        limit: u64 = gauge("spindle_descriptors_limit", "Files that the process may have open."),
        reserve: u64,
        share: usize,
        accept_pauses: u64 =
            counter("spindle_accept_pauses", "How often no connection was accepted for want of a descriptor."),
        made_place: u64 =
            counter("spindle_places_made", "Idle connections that were closed for clients that waited."),
    }
}

impl DescriptorsLine {
    pub(super) fn now() -> Self {
        let DescriptorBudget { limit, reserve } = DescriptorBudget::now();
        Self { limit, reserve, share: shared(), accept_pauses: pauses(), made_place: places_made() }
    }
}

line! {
    pub(crate) struct LogLine {
        pub(super) dropped_lines: u64 =
            counter("spindle_log_dropped_lines", "Lines that standard error has not taken."),
    }
}

/// Peers and requests that were refused for their users.
#[derive(Serialize)]
pub(crate) struct UsersLine {
    /// By reason, also those without a refusal.
    pub(crate) refused: BTreeMap<&'static str, u64>,
}

impl UsersLine {
    pub(super) fn of(users: &Users) -> Self {
        Self { refused: Denied::ALL.into_iter().map(|why| (why.word(), users.refusals(why))).collect() }
    }
}

line! {
    pub(crate) struct MemoryLine {
        pub(crate) allocator: &'static str,
        tables_bytes: u64 = gauge("spindle_memory_tables", "Bytes that the tables take.").bytes(),
        tables_bytes_max: u64 = gauge("spindle_memory_limit", "Bytes that the tables may take.").bytes(),
        /// The memory of the process besides the elements that counts against the limit like elements.
        excess_bytes: u64 = gauge(
            "spindle_memory_excess",
            "Bytes of the process that count against the limit beside the tables.",
        ).bytes(),
        /// Replaced and deleted memory that is not freed yet.
        garbage_bytes: u64 =
            gauge("spindle_memory_garbage", "Bytes of replaced and deleted elements that are not freed yet.").bytes(),
        garbage_objects: u64 =
            gauge("spindle_memory_garbage_objects", "Values and keys of such elements that are not freed yet."),
        evicted_elements: u64 = counter("spindle_evicted_elements", "Elements that were evicted to make room."),
        moved_elements: u64 = counter("spindle_moved_elements", "Elements that were moved to make room."),
        /// `None` where the system does not report it.
        resident_bytes: Option<u64> =
            gauge("spindle_memory_resident", "Resident memory of the process.").bytes(),
    }
}

impl MemoryLine {
    pub(super) fn of(tables_metrics: &TablesMetrics) -> Self {
        let &MemoryMetrics { used, max, excess, garbage_bytes, garbage_objects } = &tables_metrics.memory;
        Self {
            allocator: allocator::in_use().name(),
            tables_bytes: used,
            tables_bytes_max: max,
            excess_bytes: excess,
            garbage_bytes,
            garbage_objects,
            evicted_elements: tables_metrics.evicted,
            moved_elements: tables_metrics.moved,
            resident_bytes: resident_bytes(),
        }
    }
}

/// The resident memory of the process: the line `VmRSS` of `/proc/self/status` (proc(5)), in kibibytes.
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}
