//! The report of STATS: the metrics of this protocol's threads, and their JSON form.
//!
//! A latency runs from a request's turn to the moment when its reply is on the way. Decoding and prefetching, which are
//! done for several requests at once before, are not part of it. One thread writes each set of metrics, and the thread
//! that renders a report reads it. The writer never waits for a reader.
//!
//! ```text
//! {"version", "uptime_seconds",
//!  "commands": {"GET": {"requests", "errors": {"KEY NOT FOUND": n},
//!               "latency_micros": {samples, p50 … max},      from its turn until its reply is made
//!               "end_to_end_micros": {samples, p50 … max}}, …},  from its arrival until its reply is sent
//!  "not_understood": {reason: n},                             requests that name no command
//!  "workers": [{"requests", "busy_share", "core", "waiting"}],          waiting: clients, for room in the tables
//!  "tables": [{"name", "durability", "elements", "bytes"}],   none, soon or always
//!  "expiry": {"pending", "expired", "lag_micros": {…}},
//!  "changes": {"waiting", "writer_waits", "lost_wakeups", "published", "topics", "subscribers", "subscriptions",
//!              "lost_notifications",                          of subscribers that read too slowly
//!              "closed_subscribers"},                         that exceeded a bound or broke the protocol
//!  "feed": {"endpoint", "changes", "conflated", "messages", "bookmarks", "history_bytes", …},  null if there is none
//!  "clients": {"known", "outstanding_bytes", "unread_bytes", "cut_off", "requests", "dropped_requests",
//!              "undeliverable_replies", …},
//!  "connections": {"connections", "connections_ever", "received_bytes", "sent_bytes"},
//!  "lockstep": {"connections", "requests", "commands", "waiting", "published", …},       null if there is none
//!  "memory": {"allocator", "tables_bytes", "tables_bytes_max", "excess_bytes",
//!             "garbage_bytes", "garbage_objects",             replaced and deleted, not freed yet
//!             "evicted_elements", "moved_elements", "resident_bytes"},
//!  "descriptors": {"limit", "reserve",                       those that no connection takes,
//!                  "share",                                  and those that each service has for itself;
//!                  "accept_pauses", "made_place"},           how often there was none; idle connections closed for it
//!  "log": {"dropped_lines"},                                  lines that standard error has not taken
//!  "users": {"refused": {"password", "key", "certificate", "busy", "anonymous", "permission"}},   null without --users
//!  "durable": {"state",                                      null without durable tables; loading, open, full, failed
//!              "has_failed", "loaded_percent", "epochs",
//!              "waits",                                      of writes, for the log
//!              "store": {"segments", …}},                    their log, as that of the tasks
//!  "tasks": {"commits", "syncs", "waits", "lost_wakeups",     null if there are none; waits: of frontends, for room
//!            "store": {"segments", "live_bytes", "dead_bytes", …},            of the log under them
//!            "families": [{"name", "queues", "ready", "leased", "dead"}],        queues that come and go, all together
//!            "queues": [{"name", "ready", "leased", "dropped", "dead", "waiting", "oldest_ready_seconds"}]},
//!  "services": [{"protocol", "connections", "connections_ever", "received_bytes", "sent_bytes",      tasks, resp, …
//!                "verbs": [{"verb", "requests", "refused", "latency_micros", "end_to_end_micros"}]}],
//!  "slow": {"threshold_micros", "seen"}}                      requests that took longer than --slow
//! ```
//! A table's name is text if it is UTF-8, else `0x…`.

mod changes;
mod document;
mod durable_line;
mod feed;
mod lockstep;
mod metric;
mod micros;
mod name;
mod services;
mod store_line;
mod tasks_section;
mod verb_times;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use changes::ChangesLine;
pub(super) use changes::PublishMetrics;
pub(crate) use document::resident_bytes;
use document::{
    ClientsLine, CommandLine, DescriptorsLine, ExpiryLine, LogLine, MemoryLine, ProcessSection, RequestsSection,
    TablesSection, UsersLine, WorkerLine,
};
pub(crate) use document::{StatsDocument, TableStats};
pub(crate) use durable_line::DurableLine;
use feed::FeedLine;
pub(super) use feed::FeedPublisherMetrics;
use lockstep::LockstepLine;
pub use lockstep::LockstepMetrics;
pub(crate) use metric::{
    CLIENTS, END_TO_END, Metric, MetricKind, MetricsLine, REFUSALS, Readable, Reading, counter, gauge, line,
};
pub(crate) use micros::Micros;
pub(crate) use name::{hexadecimal, printable, textual};
use services::SlowLine;
pub(crate) use services::{ServiceLine, SlowDocument, TrafficLine, TrafficMetrics};
pub(crate) use tasks_section::TasksSection;
pub(crate) use verb_times::VerbTimes;

use super::wire::{Command, Reason};
use crate::clock::{Clock, Now};
use crate::log;
use crate::net::zeromq::{ConnectionProtocol, ConnectionState, Connections};
use crate::security::Users;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::stats::{BusyMeter, Counter, Gauge, Latencies, LatencySnapshot};
use crate::tables::{EffectMetrics, TableSummary, Tables, TablesMetrics};
use crate::tasks::TaskMetrics;

/// The metrics of a worker, on cache lines of their own: no other thread's counting makes the worker wait.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    pub(crate) busy: BusyMeter,
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
    refused: [Counter; Reason::ALL.len()],
    latencies: Latencies,
    /// From the arrival of a request until its reply was sent.
    whole: Latencies,
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

    /// The times of a command from the arrival of a request until its reply was sent.
    pub(crate) fn whole(&self, command: Command) -> &Latencies {
        &self.of(Some(command)).whole
    }

    #[expect(clippy::indexing_slicing, reason = "a command's code is below the number of commands")]
    fn of(&self, command: Option<Command>) -> &CommandMetrics {
        &self.commands[command.map_or(Command::COUNT, |command| command.index())]
    }

    fn requests(&self) -> u64 {
        self.commands.iter().map(|command| command.requests.get()).sum()
    }
}

/// The index of a reason in [`Reason::ALL`].
fn place_of(reason: Reason) -> usize {
    let kind = std::mem::discriminant(&reason);
    let index = Reason::ALL.iter().position(|other| std::mem::discriminant(other) == kind);
    index.unwrap_or(Reason::ALL.len())
}

/// The clients as one thread sees them, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ClientMetrics {
    /// Requests answered.
    pub(super) requests: Counter,
    /// Reads of connections that were gone, and requests of users that were no more.
    pub(crate) dropped_requests: Counter,
    /// Requests that were too long to keep.
    pub(super) oversized: Counter,
    /// Replies to changes of connections that were gone.
    pub(super) undeliverable: Counter,
    /// The number of times that a connection was closed for memory.
    pub(super) cut_off: Gauge,
    /// The number of times that a connection got no turn for memory or because its client did not read.
    pub(super) held_back: Gauge,
    /// Connections.
    pub(super) clients: Gauge,
    /// Memory that the connections hold, in bytes.
    pub(super) held_bytes: Gauge,
    pub(super) traffic: TrafficMetrics,
}

impl ClientMetrics {
    /// Shows what a thread knows of its connections.
    pub(crate) fn show<S: ConnectionState>(&self, connections: &Connections<S>) {
        self.clients.set(connections.traffic(ConnectionProtocol::Zmtp).connections);
        self.traffic.show(connections);
        self.held_bytes.set(connections.bytes());
        self.cut_off.set(connections.cut());
        self.held_back.set(connections.held_back());
    }

    /// Counts a request that was answered, or dropped.
    #[inline]
    pub(crate) fn count(&self, is_whole: bool, is_undeliverable: bool) {
        self.requests.add(1);
        self.oversized.add(u64::from(!is_whole));
        if is_undeliverable {
            self.undeliverable.add(1);
        }
    }
}

/// The sources of a report.
pub struct ReportSources {
    pub(super) clock: Clock,
    pub(super) tables: Tables,
    pub(super) workers: Vec<Arc<WorkerMetrics>>,
    /// The metrics of the queue's thread. Without one they stay empty.
    pub(super) queue: Arc<WorkerMetrics>,
    /// The clients as the queue's thread sees them, if there is one, and then as each worker does.
    pub(super) queues: Vec<Arc<ClientMetrics>>,
    pub(super) publish: Arc<PublishMetrics>,
    pub(super) feed: Arc<FeedPublisherMetrics>,
    pub(super) other_services: OtherServiceSources,
    /// The slow requests of all threads.
    pub(crate) slow: Arc<SlowLog>,
    /// Bytes of the values or names in one reply.
    pub(super) reply_bytes_max: usize,
}

/// The threads of each service. Those of one stand together.
fn by_protocol(services: &[Arc<ServiceMetrics>]) -> impl Iterator<Item = &[Arc<ServiceMetrics>]> {
    services.chunk_by(|service, next| service.protocol == next.protocol)
}

/// The sources of a report beside the tables.
pub(super) struct OtherServiceSources {
    pub(super) lockstep: Option<Arc<LockstepMetrics>>,
    pub(super) tasks: Option<Arc<TaskMetrics>>,
    /// Those of the threads of one service stand together.
    pub(super) services: Vec<Arc<ServiceMetrics>>,
    /// Where users are named.
    pub(super) users: Option<Users>,
}

impl ReportSources {
    /// The reply to STATS.
    pub(crate) fn render(&self) -> String {
        serde_json::to_string(&self.document()).expect("numbers and text can be written as JSON")
    }

    /// The metrics of a service, of each of its threads.
    pub(crate) fn services_of(&self, protocol: &'static str) -> impl Iterator<Item = &Arc<ServiceMetrics>> {
        self.other_services.services.iter().filter(move |service| service.protocol == protocol)
    }

    /// The tables.
    pub(crate) fn all_tables(&self) -> Tables {
        self.tables.clone()
    }

    /// The clock of the server.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The users, where they are named.
    pub(crate) fn users(&self) -> Option<&Users> {
        self.other_services.users.as_ref()
    }

    /// Bytes of the values or names in one reply.
    pub(crate) fn reply_bytes_max(&self) -> usize {
        self.reply_bytes_max
    }

    /// The metrics of the log of durable tables.
    pub(crate) fn log_metrics(&self) -> EffectMetrics {
        self.tables.log_metrics()
    }

    /// The metrics of the tables at this moment.
    pub(crate) fn tables_metrics(&self) -> TablesMetrics {
        self.tables.metrics()
    }

    /// How long the thread, of the workers' and the queue's, that is longest at work without a pause has been so.
    pub(crate) fn longest_turn(&self) -> Duration {
        let now = self.clock.now().nanos();
        let threads = self.workers.iter().chain([&self.queue]);
        Duration::from_nanos(threads.map(|thread| thread.busy.open_nanos(now)).max().unwrap_or(0))
    }

    /// The metrics of all threads at this moment.
    pub(crate) fn document(&self) -> StatsDocument {
        let now = self.clock.now();
        let tables_metrics = self.tables.metrics();
        let OtherServiceSources { lockstep, tasks, services, users } = &self.other_services;
        StatsDocument {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: now.nanos() as f64 / 1e9,
            requests: RequestsSection {
                commands: self.commands(),
                not_understood: self.refused(None),
                workers: self.workers.iter().map(|worker| WorkerLine::of(worker, now)).collect(),
            },
            data: TablesSection {
                tables: tables_metrics.tables.iter().map(TableStats::of).collect(),
                expiry: ExpiryLine::of(&tables_metrics),
                changes: ChangesLine::of(&tables_metrics, &self.publish),
                feed: tables_metrics.feed.as_ref().map(|feed| FeedLine::of(feed, &self.feed)),
                durable: DurableLine::of(&self.tables.log_metrics()),
            },
            clients: self.clients(),
            connections: TrafficLine::of(self.queues.iter().map(|queue| &queue.traffic)),
            lockstep: lockstep.as_deref().map(LockstepLine::of),
            process: ProcessSection {
                memory: MemoryLine::of(&tables_metrics),
                descriptors: DescriptorsLine::now(),
                log: LogLine { dropped_lines: log::dropped() },
            },
            users: users.as_ref().map(UsersLine::of),
            tasks: tasks.as_deref().map(|metrics| TasksSection::of(metrics, self.clock.reading())),
            services: by_protocol(services).map(ServiceLine::of).collect(),
            slow: SlowLine::of(&self.slow),
        }
    }

    /// The tables, as LIST_TABLES shows them.
    pub(super) fn tables(&self) -> Vec<TableSummary> {
        self.tables.metrics().tables
    }

    fn commands(&self) -> BTreeMap<&'static str, CommandLine> {
        let line = |command: Command| {
            let workers = || self.worker_counts().map(|worker| worker.of(Some(command)));
            // The lock-step dialect has its own.
            let own = || self.own_counts().map(|worker| worker.of(Some(command)));
            let line = CommandLine {
                requests: workers().map(|metrics| metrics.requests.get()).sum(),
                errors: self.refused(Some(command)),
                latency_micros: Micros::of(LatencySnapshot::of(workers().map(|metrics| &metrics.latencies))),
                end_to_end_micros: Micros::of(LatencySnapshot::of(own().map(|metrics| &metrics.whole))),
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
        self.own_counts().chain(self.other_services.lockstep.iter().map(|metrics| &metrics.worker))
    }

    /// The metrics of the threads of this protocol.
    fn own_counts(&self) -> impl Iterator<Item = &WorkerMetrics> {
        self.workers.iter().chain([&self.queue]).map(|worker| &**worker)
    }

    fn clients(&self) -> ClientsLine {
        let sum = |of: fn(&ClientMetrics) -> u64| self.queues.iter().map(|queue| of(queue)).sum();
        ClientsLine {
            known: sum(|queue| queue.clients.get()),
            outstanding_bytes: sum(|queue| queue.held_bytes.get()),
            unread_bytes: 0,
            cut_off: sum(|queue| queue.cut_off.get()),
            held_back: sum(|queue| queue.held_back.get()),
            requests: sum(|queue| queue.requests.get()),
            dropped_requests: sum(|queue| queue.dropped_requests.get()),
            oversized_requests: sum(|queue| queue.oversized.get()),
            undeliverable_replies: sum(|queue| queue.undeliverable.get()),
        }
    }
}

#[cfg(test)]
mod tests;
