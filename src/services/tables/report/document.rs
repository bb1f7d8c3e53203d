//! The report as a document: the metrics of all threads at one moment, which STATS gives as JSON.
//!
//! Each line is a value that its reader may use without the JSON. This module counts nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::WorkerMetrics;
use super::changes::ChangesLine;
use super::feed::FeedLine;
use super::lockstep::LockstepLine;
use super::micros::Micros;
use super::name::printable;
use super::services::{ServiceLine, SlowLine, TrafficLine};
use super::tasks_section::TasksSection;
use crate::allocator;
use crate::clock::Now;
use crate::descriptors::{DescriptorBudget, pauses, places_made, shared};
use crate::security::{Denied, Users};
use crate::tables::{TableSummary, TablesMetrics};

/// The report in its JSON form.
#[derive(Serialize)]
pub(crate) struct StatsDocument {
    pub(crate) version: &'static str,
    pub(crate) uptime_seconds: f64,
    pub(crate) commands: BTreeMap<&'static str, CommandLine>,
    pub(crate) not_understood: BTreeMap<&'static str, u64>,
    pub(crate) workers: Vec<WorkerLine>,
    pub(crate) tables: Vec<TableStats>,
    pub(crate) expiry: ExpiryLine,
    pub(crate) changes: ChangesLine,
    pub(crate) feed: Option<FeedLine>,
    pub(crate) clients: ClientsLine,
    pub(crate) connections: TrafficLine,
    pub(crate) lockstep: Option<LockstepLine>,
    pub(crate) memory: MemoryLine,
    pub(crate) descriptors: DescriptorsLine,
    pub(crate) log: LogLine,
    pub(crate) users: Option<UsersLine>,
    pub(crate) tasks: Option<TasksSection>,
    pub(crate) services: Vec<ServiceLine>,
    pub(crate) slow: SlowLine,
}

#[derive(Serialize)]
pub(crate) struct CommandLine {
    pub(crate) requests: u64,
    pub(crate) errors: BTreeMap<&'static str, u64>,
    pub(crate) latency_micros: Micros,
    pub(crate) end_to_end_micros: Micros,
}

#[derive(Serialize)]
pub(crate) struct WorkerLine {
    pub(crate) requests: u64,
    pub(crate) busy_share: f64,
    pub(crate) core: Option<usize>,
    pub(crate) waiting: u64,
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

#[derive(Serialize)]
pub(crate) struct TableStats {
    pub(crate) name: String,
    pub(crate) elements: u64,
    pub(crate) bytes: u64,
}

impl TableStats {
    pub(super) fn of(table: &TableSummary) -> Self {
        Self { name: printable(&table.name), elements: table.elements, bytes: table.bytes }
    }
}

#[derive(Serialize)]
pub(crate) struct ExpiryLine {
    pub(crate) pending: u64,
    pub(crate) expired: u64,
    pub(crate) lag_micros: Micros,
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

#[derive(Serialize)]
pub(crate) struct ClientsLine {
    pub(crate) known: u64,
    pub(crate) outstanding_bytes: u64,
    pub(crate) unread_bytes: u64,
    pub(crate) cut_off: u64,
    pub(crate) held_back: u64,
    pub(crate) requests: u64,
    pub(crate) dropped_requests: u64,
    pub(crate) oversized_requests: u64,
    pub(crate) undeliverable_replies: u64,
}

#[derive(Serialize)]
pub(crate) struct DescriptorsLine {
    pub(crate) limit: u64,
    pub(crate) reserve: u64,
    pub(crate) share: usize,
    pub(crate) accept_pauses: u64,
    pub(crate) made_place: u64,
}

impl DescriptorsLine {
    pub(super) fn now() -> Self {
        let DescriptorBudget { limit, reserve } = DescriptorBudget::now();
        Self { limit, reserve, share: shared(), accept_pauses: pauses(), made_place: places_made() }
    }
}

#[derive(Serialize)]
pub(crate) struct LogLine {
    pub(crate) dropped_lines: u64,
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

#[derive(Serialize)]
pub(crate) struct MemoryLine {
    pub(crate) allocator: &'static str,
    pub(crate) tables_bytes: u64,
    pub(crate) tables_bytes_max: u64,
    /// The memory of the process besides the elements that counts against the limit like elements.
    pub(crate) excess_bytes: u64,
    /// Replaced and deleted memory that is not freed yet.
    pub(crate) garbage_bytes: u64,
    pub(crate) garbage_objects: u64,
    pub(crate) moved_elements: u64,
    /// `None` where the system does not tell it.
    pub(crate) resident_bytes: Option<u64>,
}

impl MemoryLine {
    pub(super) fn of(tables_metrics: &TablesMetrics) -> Self {
        Self {
            allocator: allocator::in_use().name(),
            tables_bytes: tables_metrics.bytes,
            tables_bytes_max: tables_metrics.memory_max,
            excess_bytes: tables_metrics.excess_bytes,
            garbage_bytes: tables_metrics.garbage_bytes,
            garbage_objects: tables_metrics.garbage_objects,
            moved_elements: tables_metrics.moved,
            resident_bytes: resident_bytes(),
        }
    }
}

/// The resident memory of the process: the line `VmRSS` of `/proc/self/status` (proc(5)), in kibibytes.
pub(super) fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}
