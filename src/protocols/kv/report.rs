//! The report of STATS: the metrics of this protocol's threads, and their JSON form.
//!
//! A latency runs from a request's turn to the moment when its reply is on the way. Decoding and prefetching, which are
//! done for several requests at once before, are not part of it. One thread writes each set of metrics, and the thread
//! that renders a report reads it. The writer never waits for a reader.
//!
//! ```text
//! {"version", "uptime_seconds",
//!  "commands": {"GET": {"requests", "errors": {"KEY NOT FOUND": n}, "latency_micros": {samples, p50 … max}}, …},
//!  "not_understood": {reason: n},                             requests that name no command
//!  "workers": [{"requests", "busy_share", "core", "waiting"}],          waiting: clients, for room in the tables
//!  "tables": [{"name", "elements", "bytes"}],
//!  "expiry": {"pending", "expired", "lag_micros": {…}},
//!  "changes": {"waiting", "writer_waits", "lost_wakeups", "published", "topics", "subscribers", "subscriptions",
//!              "lost_notifications",                          of subscribers that read too slowly
//!              "closed_subscribers"},                         that exceeded a bound or broke the protocol
//!  "feed": {"endpoint", "changes", "conflated", "messages", "bookmarks", "history_bytes", …},  null if there is none
//!  "clients": {"known", "outstanding_bytes", "unread_bytes", "cut_off", "requests", "dropped_requests",
//!              "undeliverable_replies", …},
//!  "lockstep": {"connections", "requests", "commands", "waiting", "published", …},       null if there is none
//!  "memory": {"allocator", "tables_bytes", "tables_bytes_max", "excess_bytes", "moved_elements", "resident_bytes"},
//!  "descriptors": {"limit", "reserve", "accept_pauses"},      how often there was none for a connection
//!  "log": {"dropped_lines"},                                  lines that standard error has not taken
//!  "tasks": {"commits", "syncs", "waits", "lost_wakeups",     null if there are none; waits: of frontends, for room
//!            "store": {"segments", "live_bytes", "dead_bytes", …},            of the log under them
//!            "families": [{"name", "queues", "ready", "leased", "ran_out"}],     queues that come and go, all together
//!            "queues": [{"name", "ready", "leased", "dropped", "ran_out", "waiting", "oldest_ready_seconds"}]}}
//! ```
//! A table's name is text if it is UTF-8, else `0x…`.

mod changes;
mod feed;
mod lockstep;
mod store_line;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde::Serialize;

use changes::ChangesLine;
pub(super) use changes::PublishTally;
use feed::FeedLine;
pub(super) use feed::FeedTally;
use lockstep::LockstepLine;
pub use lockstep::LockstepTally;
use store_line::StoreLine;

use super::wire::{Command, Reason};
use crate::allocator;
use crate::clock::{Clock, ClockReading, Now};
use crate::descriptors::{DescriptorBudget, pauses};
use crate::log;
use crate::stats::{BusyMeter, Counter, Gauge, Latencies, Percentiles};
use crate::tables::{TableSummary, Tables, TablesMetrics};
use crate::tasks::{FamilyMetrics, QueueMetrics, TaskMetrics};

/// Nanoseconds in a microsecond.
const NANOS_PER_MICRO: u64 = 1_000;

/// The metrics of a worker, on cache lines of their own: no other thread's counting makes the worker wait.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    pub(super) busy: BusyMeter,
    /// Clients whose next request waits for room in the tables.
    pub(crate) waiting: Gauge,
    /// The core to which the worker is tied.
    core: Option<usize>,
    /// For each command, and last for requests that name none.
    commands: [CommandMetrics; Command::COUNT + 1],
}

/// The metrics of a worker for one command.
#[derive(Debug, Default)]
struct CommandMetrics {
    requests: Counter,
    /// In the order of [`Reason::ALL`].
    refused: [Counter; Reason::COUNT],
    latencies: Latencies,
}

impl WorkerMetrics {
    pub(super) fn new(now: Now, core: Option<usize>) -> Self {
        Self {
            busy: BusyMeter::new(now.nanos()),
            waiting: Gauge::default(),
            core,
            commands: std::array::from_fn(|_| CommandMetrics::default()),
        }
    }

    /// Counts a request; `None` is one that names no command.
    #[inline]
    pub(crate) fn count(&self, command: Option<Command>, refused: Option<Reason>) {
        let metrics = self.of(command);
        metrics.requests.add(1);
        if let Some(counter) = refused.and_then(|reason| metrics.refused.get(place_of(reason))) {
            counter.add(1);
        }
    }

    /// The latencies of a command.
    pub(super) fn latencies(&self, command: Command) -> &Latencies {
        &self.of(Some(command)).latencies
    }

    #[expect(clippy::indexing_slicing, reason = "a command's code is below the number of commands")]
    fn of(&self, command: Option<Command>) -> &CommandMetrics {
        &self.commands[command.map_or(Command::COUNT, |command| usize::from(command.code()))]
    }

    fn requests(&self) -> u64 {
        self.commands.iter().map(|command| command.requests.get()).sum()
    }
}

/// The index of a reason in [`Reason::ALL`].
fn place_of(reason: Reason) -> usize {
    let kind = std::mem::discriminant(&reason);
    let index = Reason::ALL.iter().position(|other| std::mem::discriminant(other) == kind);
    index.unwrap_or(Reason::COUNT)
}

/// The metrics of the proxy, or of a worker that owns its connections, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ProxyMetrics {
    /// Requests taken, those of clients that are cut off included.
    pub(super) requests: Counter,
    /// Requests of clients that are cut off.
    pub(super) dropped_requests: Counter,
    /// Requests that were too long to keep.
    pub(super) oversized: Counter,
    /// Replies to connections that are gone.
    pub(super) undeliverable: Counter,
    /// The number of times that a client was cut off.
    pub(super) cut_off: Gauge,
    /// The number of times that a client was held back because it sent faster than it was answered.
    pub(super) held_back: Gauge,
    /// Clients with an entry in flow control.
    pub(super) clients: Gauge,
    /// Bytes outstanding of all clients.
    pub(super) held_bytes: Gauge,
    /// Bytes that libzmq holds for clients besides, and that they may not have read.
    pub(super) unread_bytes: Gauge,
}

/// The sources of a report.
pub(super) struct ReportSources {
    pub(super) clock: Clock,
    pub(super) tables: Tables,
    pub(super) workers: Vec<Arc<WorkerMetrics>>,
    /// The metrics of the thread that makes reports.
    pub(super) reporter: Arc<WorkerMetrics>,
    /// The metrics of the proxy, or of each worker if the workers own their connections.
    pub(super) queues: Vec<Arc<ProxyMetrics>>,
    pub(super) publish: Arc<PublishTally>,
    pub(super) feed: Arc<FeedTally>,
    pub(super) lockstep: Option<Arc<LockstepTally>>,
    pub(super) tasks: Option<Arc<TaskMetrics>>,
    /// Bytes of the values or names in one reply.
    pub(super) reply_bytes_max: usize,
}

impl ReportSources {
    /// The reply to STATS.
    pub(super) fn render(&self) -> String {
        let now = self.clock.now();
        let tables_metrics = self.tables.metrics();
        let sheet = StatsDocument {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: now.nanos() as f64 / 1e9,
            commands: self.commands(),
            not_understood: self.refused(None),
            workers: self.workers.iter().map(|worker| WorkerLine::of(worker, now)).collect(),
            tables: tables_metrics.tables.iter().map(TableStats::of).collect(),
            expiry: ExpiryLine::of(&tables_metrics),
            changes: self.changes(&tables_metrics),
            feed: tables_metrics.feed.as_ref().map(|feed| FeedLine::of(feed, &self.feed)),
            clients: self.clients(),
            lockstep: self.lockstep.as_deref().map(LockstepLine::of),
            memory: MemoryLine::of(&tables_metrics),
            descriptors: DescriptorsLine::now(),
            log: LogLine { dropped_lines: log::dropped() },
            tasks: self.tasks.as_deref().map(|metrics| TasksSection::of(metrics, self.clock.reading())),
        };
        serde_json::to_string(&sheet).expect("numbers and text can be written as JSON")
    }

    /// The tables, as LIST_TABLES shows them.
    pub(super) fn tables(&self) -> Vec<TableSummary> {
        self.tables.metrics().tables
    }

    fn commands(&self) -> BTreeMap<&'static str, CommandLine> {
        let line = |command: Command| {
            let workers = || self.worker_counts().map(|worker| worker.of(Some(command)));
            let line = CommandLine {
                requests: workers().map(|metrics| metrics.requests.get()).sum(),
                errors: self.refused(Some(command)),
                latency_micros: Micros::of(Percentiles::of(workers().map(|metrics| &metrics.latencies))),
            };
            (command.name(), line)
        };
        Command::ALL.into_iter().map(line).collect()
    }

    /// The refusals of a command, or of requests that name none, by reason. Reasons without a refusal are left out.
    fn refused(&self, command: Option<Command>) -> BTreeMap<&'static str, u64> {
        let of = |index: usize| {
            let counters = self.worker_counts().filter_map(|worker| worker.of(command).refused.get(index));
            counters.map(Counter::get).sum::<u64>()
        };
        let reasons = Reason::ALL.iter().enumerate();
        let counted = reasons.map(|(index, reason)| (reason.text(), of(index)));
        counted.filter(|(_, count)| *count > 0).collect()
    }

    /// The metrics of all threads that carry out requests.
    fn worker_counts(&self) -> impl Iterator<Item = &WorkerMetrics> {
        let lockstep = self.lockstep.iter().map(|tally| &tally.worker);
        self.workers.iter().chain([&self.reporter]).map(|worker| &**worker).chain(lockstep)
    }

    fn changes(&self, tables_metrics: &TablesMetrics) -> ChangesLine {
        ChangesLine::of(tables_metrics, &self.publish)
    }

    fn clients(&self) -> ClientsLine {
        let sum = |of: fn(&ProxyMetrics) -> u64| self.queues.iter().map(|queue| of(queue)).sum();
        ClientsLine {
            known: sum(|queue| queue.clients.get()),
            outstanding_bytes: sum(|queue| queue.held_bytes.get()),
            unread_bytes: sum(|queue| queue.unread_bytes.get()),
            cut_off: sum(|queue| queue.cut_off.get()),
            held_back: sum(|queue| queue.held_back.get()),
            requests: sum(|queue| queue.requests.get()),
            dropped_requests: sum(|queue| queue.dropped_requests.get()),
            oversized_requests: sum(|queue| queue.oversized.get()),
            undeliverable_replies: sum(|queue| queue.undeliverable.get()),
        }
    }
}

/// The report in its JSON form.
#[derive(Serialize)]
struct StatsDocument<'r> {
    version: &'static str,
    uptime_seconds: f64,
    commands: BTreeMap<&'static str, CommandLine>,
    not_understood: BTreeMap<&'static str, u64>,
    workers: Vec<WorkerLine>,
    tables: Vec<TableStats>,
    expiry: ExpiryLine,
    changes: ChangesLine,
    feed: Option<FeedLine<'r>>,
    clients: ClientsLine,
    lockstep: Option<LockstepLine>,
    memory: MemoryLine,
    descriptors: DescriptorsLine,
    log: LogLine,
    tasks: Option<TasksSection>,
}

#[derive(Serialize)]
struct CommandLine {
    requests: u64,
    errors: BTreeMap<&'static str, u64>,
    latency_micros: Micros,
}

/// Percentiles in microseconds.
#[derive(Serialize)]
struct Micros {
    samples: u64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Micros {
    fn of(nanos: Percentiles) -> Self {
        let micros = |nanos: u64| nanos as f64 / NANOS_PER_MICRO as f64;
        Self {
            samples: nanos.count,
            p50: micros(nanos.p50),
            p90: micros(nanos.p90),
            p99: micros(nanos.p99),
            p999: micros(nanos.p999),
            max: micros(nanos.max),
        }
    }
}

#[derive(Serialize)]
struct WorkerLine {
    requests: u64,
    busy_share: f64,
    core: Option<usize>,
    waiting: u64,
}

impl WorkerLine {
    fn of(worker: &Arc<WorkerMetrics>, now: Now) -> Self {
        Self {
            requests: worker.requests(),
            busy_share: worker.busy.share(now.nanos()),
            core: worker.core,
            waiting: worker.waiting.get(),
        }
    }
}

#[derive(Serialize)]
struct TableStats {
    name: String,
    elements: u64,
    bytes: u64,
}

impl TableStats {
    fn of(table: &TableSummary) -> Self {
        Self { name: printable(&table.name), elements: table.elements, bytes: table.bytes }
    }
}

/// A name as text, or as `0x…` if it is not UTF-8.
fn printable(name: &[u8]) -> String {
    let hexadecimal = |_| {
        name.iter().fold(String::from("0x"), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    String::from_utf8(name.to_vec()).unwrap_or_else(hexadecimal)
}

#[derive(Serialize)]
struct TasksSection {
    commits: u64,
    syncs: u64,
    waits: u64,
    lost_wakeups: u64,
    store: StoreLine,
    families: Vec<TaskFamilyLine>,
    queues: Vec<TaskQueueLine>,
}

#[derive(Serialize)]
struct TaskFamilyLine {
    name: String,
    queues: u64,
    ready: u64,
    leased: u64,
    ran_out: u64,
}

impl TaskFamilyLine {
    fn of(family: &Arc<FamilyMetrics>) -> Self {
        let counts = family.counts();
        Self {
            name: printable(family.name()),
            queues: family.queues(),
            ready: counts.ready,
            leased: counts.leased,
            ran_out: counts.ran_out,
        }
    }
}

#[derive(Serialize)]
struct TaskQueueLine {
    name: String,
    ready: u64,
    leased: u64,
    dropped: u64,
    ran_out: u64,
    waiting: u64,
    oldest_ready_seconds: Option<f64>,
}

impl TasksSection {
    fn of(metrics: &TaskMetrics, now: ClockReading) -> Self {
        let now = metrics.time(now);
        let line = |queue: &Arc<QueueMetrics>| {
            let counts = queue.counts();
            TaskQueueLine {
                name: printable(queue.name()),
                ready: counts.ready,
                leased: counts.leased,
                dropped: counts.dropped,
                ran_out: counts.ran_out,
                waiting: queue.waiting(),
                oldest_ready_seconds: queue.oldest().map(|since| now.saturating_sub(since) as f64 / 1e3),
            }
        };
        Self {
            commits: metrics.commits(),
            syncs: metrics.syncs(),
            waits: metrics.waits(),
            lost_wakeups: metrics.lost_wakeups(),
            store: StoreLine::of(metrics.store()),
            families: metrics.families().iter().map(TaskFamilyLine::of).collect(),
            queues: metrics.queues().iter().map(line).collect(),
        }
    }
}

#[derive(Serialize)]
struct ExpiryLine {
    pending: u64,
    expired: u64,
    lag_micros: Micros,
}

impl ExpiryLine {
    fn of(tables_metrics: &TablesMetrics) -> Self {
        Self {
            pending: tables_metrics.timers,
            expired: tables_metrics.expired,
            lag_micros: Micros::of(tables_metrics.expiry_lag),
        }
    }
}

#[derive(Serialize)]
struct ClientsLine {
    known: u64,
    outstanding_bytes: u64,
    unread_bytes: u64,
    cut_off: u64,
    held_back: u64,
    requests: u64,
    dropped_requests: u64,
    oversized_requests: u64,
    undeliverable_replies: u64,
}

#[derive(Serialize)]
struct DescriptorsLine {
    limit: u64,
    reserve: u64,
    accept_pauses: u64,
}

impl DescriptorsLine {
    fn now() -> Self {
        let DescriptorBudget { limit, reserve } = DescriptorBudget::now();
        Self { limit, reserve, accept_pauses: pauses() }
    }
}

#[derive(Serialize)]
struct LogLine {
    dropped_lines: u64,
}

#[derive(Serialize)]
struct MemoryLine {
    allocator: &'static str,
    tables_bytes: u64,
    tables_bytes_max: u64,
    /// The memory of the process besides the elements that counts against the limit like elements.
    excess_bytes: u64,
    moved_elements: u64,
    /// `None` where the system does not tell it.
    resident_bytes: Option<u64>,
}

impl MemoryLine {
    fn of(tables_metrics: &TablesMetrics) -> Self {
        Self {
            allocator: allocator::in_use().name(),
            tables_bytes: tables_metrics.bytes,
            tables_bytes_max: tables_metrics.memory_max,
            excess_bytes: tables_metrics.excess_bytes,
            moved_elements: tables_metrics.moved,
            resident_bytes: resident_bytes(),
        }
    }
}

/// The resident memory of the process: the line `VmRSS` of `/proc/self/status` (proc(5)), in kibibytes.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests;
