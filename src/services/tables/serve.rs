//! Assembles the `kv` frontend: its sockets, and the work of its threads.
//!
//! ```text
//! queue       listeners ─► connections ◄─► ROUTER ◄═ inproc ═► DEALER ──────── worker i ── session i ─┐
//!             subscribers ◄── publisher ◄── changes ◄─────────────────────────────────────── tables ◄─┘
//! ```
//! [`bind`] makes all parts that can fail, and starts none of them. Its caller runs each part in a thread of its own.
//! Dropping the parts closes the endpoints. Workers that own their connections are in `services/native`.
//!
//! This module does not start threads or choose cores, and does not make the two other threads behind the tables.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::publish::{FeedPublisher, OneFramePublisher};
pub use super::publish::{NotificationEncoder, Publisher};
use super::queue::{QueueWorker, TablesQueue, WorkerParts};
use super::report::{ClientMetrics, FeedPublisherMetrics, OtherServiceSources, PublishMetrics, WorkerMetrics};
pub use super::report::{LockstepMetrics, ReportSources};
use super::reporter::ReportClient;
pub use super::reporter::Reporter;
use super::responder::TIMED_ONE_OF;
use super::turn::WorkerState;
use super::wire::FieldLimits;
use crate::clock::Clock;
use crate::limits::{
    ENVELOPE_BYTES_MAX, FRAME_BYTES_MAX, MANY_MAX, MESSAGE_FRAMES_MAX, SCAN_BYTES_MAX, TABLE_NAME_BYTES_MAX,
};
use crate::net::budget::Budget;
use crate::net::sockets::{ServeError, Stopper, WakeSignal};
use crate::net::zeromq::publish::{PublishLimits, Subscribers, TopicForm};
use crate::net::zeromq::{Admission, BoundListener, Connections, inproc};
use crate::security::Users;
use crate::stats::Sampler;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::tables::{Changes, Tables};
use crate::tasks::TaskMetrics;
use crate::zmtp::{FRAME_HEADER_BYTES_MAX, MessageBounds};

/// The reader of the clients' connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendKind {
    /// One thread, in front of workers behind libzmq's queue.
    Queue,
    /// The workers themselves.
    Native,
}

/// The settings of the frontend.
#[derive(Clone, Debug)]
pub struct KvConfig {
    /// The reader of the connections.
    pub frontend: FrontendKind,
    /// The endpoints of requests; may be empty.
    pub endpoints: Vec<String>,
    /// The endpoint of notifications, if there is one.
    pub publish: Option<String>,
    /// Notifications that a subscriber may fall behind.
    pub publish_hwm: i32,
    /// The endpoint of the feed, if there is one. The tables must have a feed then.
    pub feed: Option<String>,
    /// Longest key, in bytes.
    pub key_max: usize,
    /// Longest value, in bytes.
    pub value_max: usize,
    /// Bytes that a client may have outstanding.
    pub client_bytes_max: u64,
    /// Bytes of the values or names in one reply. A longer one is refused.
    pub reply_bytes_max: usize,
    /// Bytes that all clients together may have outstanding and unread. The subscribers have the same bound.
    pub held_bytes_max: u64,
    /// The core of each worker.
    pub cores: WorkerCores,
    /// The users of each endpoint.
    pub admissions: TablesAdmissions,
}

/// The core to which each worker will be tied.
#[derive(Clone, Debug, Default)]
pub struct WorkerCores {
    /// Of the workers behind the queue.
    pub queue: Vec<Option<usize>>,
    /// Of the workers that own their connections.
    pub native: Vec<Option<usize>>,
}

impl WorkerCores {
    /// Those of all workers.
    pub fn all(&self) -> impl Iterator<Item = Option<usize>> {
        self.queue.iter().chain(&self.native).copied()
    }
}

/// The users that the endpoints of the tables serve. None: every peer.
#[derive(Clone, Debug, Default)]
pub struct TablesAdmissions {
    /// Of the requests.
    pub requests: Option<Admission>,
    /// Of the notifications.
    pub publish: Option<Admission>,
    /// Of the feed.
    pub feed: Option<Admission>,
    /// Of another protocol's notifications.
    pub one_frame: Option<Admission>,
}

impl KvConfig {
    fn limits(&self) -> FieldLimits {
        FieldLimits { key: self.key_max, value: self.value_max }
    }

    /// The bounds of a message.
    pub(crate) fn message_bounds(&self) -> MessageBounds {
        MessageBounds {
            frame_bytes: FRAME_BYTES_MAX as u64,
            frames: MESSAGE_FRAMES_MAX,
            bytes: message_bytes_max(self.limits()),
        }
    }
}

/// The parts of this server that other protocols have beside the tables.
#[derive(Clone, Debug, Default)]
pub struct OtherServices {
    /// Durable tasks, for STATS.
    pub tasks: Option<Arc<TaskMetrics>>,
    /// The lock-step dialect.
    pub lockstep: Option<LockstepPart>,
    /// The services beside the tables, for STATS.
    pub services: Vec<Arc<ServiceMetrics>>,
    /// The slow requests of all of them.
    pub slow: Arc<SlowLog>,
    /// The users of all of them, for STATS.
    pub users: Option<Users>,
}

/// The part of the lock-step dialect that runs here.
#[derive(Clone, Debug)]
pub struct LockstepPart {
    /// The endpoint of its notifications, if there is one.
    pub publish: Option<String>,
    /// Makes the frame of a notification.
    pub encode: NotificationEncoder,
    /// Its metrics, for STATS.
    pub metrics: Arc<LockstepMetrics>,
}

/// The frontend with libzmq's queue.
pub struct QueueFrontend {
    /// For the thread `tables-queue`.
    pub queue: Box<TablesQueue>,
    /// For the threads `table-worker-i`.
    pub workers: Vec<QueueWorker>,
}

/// All parts that are to run, and their endpoints.
pub struct Kv {
    /// The queue between the clients and the tables, unless the workers own the connections.
    pub queue: Option<QueueFrontend>,
    /// For the thread `tables-report`.
    pub reporter: Reporter,
    /// For the thread `publisher`.
    pub publisher: Publisher,
    /// They stop the frontend and the publisher.
    pub stoppers: Vec<Stopper>,
    /// The endpoints of requests, with the ports that the system chose.
    pub endpoints: Vec<String>,
    /// The endpoint of notifications.
    pub publish: Option<String>,
    /// The endpoint of the feed.
    pub feed: Option<String>,
    /// The endpoint of the notifications of the lock-step dialect.
    pub lockstep_publish: Option<String>,
    /// Bytes that clients and subscribers have not taken.
    pub budgets: Vec<Arc<Budget>>,
    /// The metrics that STATS gives, for others to read.
    pub report: Arc<ReportSources>,
}

/// Listens at all endpoints. STATS also reports the `other_services`. Requests wait in the sockets until the parts run.
///
/// # Errors
/// [`ServeError`] if an endpoint cannot be bound, or the system has no descriptor left.
pub fn bind(
    settings: &KvConfig,
    clock: Clock,
    tables: &Tables,
    changes: Changes,
    other_services: OtherServices,
) -> Result<Kv, ServeError> {
    let wake_signal = WakeSignal::new()?;
    let publisher_stopper = Stopper::new(&wake_signal);
    let hwm = usize::try_from(settings.publish_hwm).unwrap_or(usize::MAX);
    let admissions = &settings.admissions;
    let subscribers = |endpoint: Option<&str>, messages, form, admission: &Option<Admission>| {
        let held_bytes = usize::try_from(settings.held_bytes_max).unwrap_or(usize::MAX);
        let limits = PublishLimits::new(messages).within(held_bytes);
        listening(Subscribers::new(&wake_signal, limits, form, admission.as_ref())?, endpoint)
    };
    let (own, publish) = subscribers(settings.publish.as_deref(), hwm, TopicForm::Name, &admissions.publish)?;
    let report = Arc::new(report(settings, clock, tables, &other_services));
    let metrics = Arc::clone(&report.publish);
    let mut budgets = vec![Arc::clone(own.budget())];
    let (feed, feed_endpoint) = match &settings.feed {
        None => (None, None),
        Some(endpoint) => {
            let form = TopicForm::LengthAndName;
            let (followers, bound) = subscribers(Some(endpoint), usize::MAX, form, &admissions.feed)?;
            own.wake_for(&followers)?;
            budgets.push(Arc::clone(followers.budget()));
            if let Some(endpoint) = &bound {
                report.feed.endpoint.get_or_init(|| endpoint.clone());
            }
            (Some(FeedPublisher::new(followers, Arc::clone(&report.feed))), bound)
        }
    };
    let (one_frame, lockstep_publish) = match other_services.lockstep {
        Some(LockstepPart { publish: Some(endpoint), encode, metrics }) => {
            // A frame begins with the name of its table.
            let (others, bound) = subscribers(Some(&endpoint), hwm, TopicForm::Name, &admissions.one_frame)?;
            own.wake_for(&others)?;
            budgets.push(Arc::clone(others.budget()));
            (Some(OneFramePublisher::new(others, encode, metrics)), bound)
        }
        _ => (None, None),
    };
    let publisher = Publisher::new(own, feed, one_frame, changes, wake_signal, clock, metrics);
    let reporter = Reporter::new(Arc::clone(&report));
    let (mut stoppers, mut endpoints) = (vec![publisher_stopper], Vec::new());
    let mut queue = None;
    if settings.frontend == FrontendKind::Queue {
        let bound = bind_queue(settings, &report, &reporter)?;
        stoppers.insert(0, bound.stopper);
        budgets.push(bound.budget);
        (queue, endpoints) = (Some(bound.frontend), bound.endpoints);
    }
    let feed = feed_endpoint;
    Ok(Kv { queue, reporter, publisher, stoppers, endpoints, publish, feed, lockstep_publish, budgets, report })
}

/// A queue that listens.
struct BoundQueue {
    frontend: QueueFrontend,
    stopper: Stopper,
    endpoints: Vec<String>,
    budget: Arc<Budget>,
}

fn bind_queue(settings: &KvConfig, report: &Arc<ReportSources>, reporter: &Reporter) -> Result<BoundQueue, ServeError> {
    let budget = Budget::new(settings.held_bytes_max);
    let wake_signal = WakeSignal::new()?;
    let stopper = Stopper::new(&wake_signal);
    let (end, worker_ends) = inproc::queue(settings.cores.queue.len())?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for ((end, metrics), clients) in worker_ends.into_iter().zip(&report.workers).zip(report.queues.iter().skip(1)) {
        let wake_signal = WakeSignal::new()?;
        let state = worker_state(settings, report, metrics, clients, reporter.client(&wake_signal));
        let parts = WorkerParts { end, state, wake_signal, budget: Arc::clone(&budget), stop: Arc::clone(&stop) };
        workers.push(QueueWorker::new(parts));
    }
    let admission = settings.admissions.requests.as_ref();
    let connections = Connections::new(&wake_signal, settings.message_bounds(), &budget, admission)?;
    let mut queue = TablesQueue::new(connections, end, wake_signal, stopper.clone(), stop, report)?;
    let mut endpoints = Vec::new();
    for endpoint in &settings.endpoints {
        let listener = BoundListener::bind(endpoint)?;
        endpoints.push(listener.endpoint().to_owned());
        queue.listen(listener)?;
    }
    let frontend = QueueFrontend { queue: Box::new(queue), workers };
    Ok(BoundQueue { frontend, stopper, endpoints, budget })
}

/// Bytes of the longest message that any command takes: the longest UPDATE_MANY, and an envelope.
fn message_bytes_max(limits: FieldLimits) -> usize {
    // A command, a table with its NUL, a TTL, and the pairs.
    let body = 1 + TABLE_NAME_BYTES_MAX + 1 + 8 + MANY_MAX * (limits.key + limits.value);
    ENVELOPE_BYTES_MAX + body + MESSAGE_FRAMES_MAX * FRAME_HEADER_BYTES_MAX
}

/// Bytes of the rows in one page of SCAN for a client that may have `client_bytes` outstanding.
fn page_bytes_max(client_bytes: u64) -> usize {
    SCAN_BYTES_MAX.min(usize::try_from(client_bytes / 8).unwrap_or(SCAN_BYTES_MAX))
}

fn worker_state(
    settings: &KvConfig,
    report: &Arc<ReportSources>,
    metrics: &Arc<WorkerMetrics>,
    clients: &Arc<ClientMetrics>,
    reports: ReportClient,
) -> WorkerState {
    WorkerState {
        session: report.tables.session(),
        clock: report.clock,
        limits: settings.limits(),
        page_bytes_max: page_bytes_max(settings.client_bytes_max),
        metrics: Arc::clone(metrics),
        clients: Arc::clone(clients),
        report: Arc::clone(report),
        reports,
        picker: Sampler::new(TIMED_ONE_OF),
    }
}

impl Kv {
    /// The state of the native worker with this number.
    pub(crate) fn native_state(&self, settings: &KvConfig, number: usize, wake_signal: &WakeSignal) -> WorkerState {
        let at = settings.cores.queue.len() + number;
        let metrics = self.report.workers.get(at).map(Arc::clone).unwrap_or_else(|| unreachable!("each has its own"));
        let queues = usize::from(settings.frontend == FrontendKind::Queue);
        let clients = self.report.queues.get(queues + at).map(Arc::clone).unwrap_or_default();
        worker_state(settings, &self.report, &metrics, &clients, self.reporter.client(wake_signal))
    }
}

/// Subscribers that come to an endpoint, if there is one, and the endpoint.
fn listening(
    mut subscribers: Subscribers,
    endpoint: Option<&str>,
) -> Result<(Subscribers, Option<String>), ServeError> {
    let Some(endpoint) = endpoint else { return Ok((subscribers, None)) };
    let listener = BoundListener::bind(endpoint)?;
    let bound = listener.endpoint().to_owned();
    subscribers.listen(listener)?;
    Ok((subscribers, Some(bound)))
}

fn report(settings: &KvConfig, clock: Clock, tables: &Tables, other_services: &OtherServices) -> ReportSources {
    let now = clock.now();
    let metrics = |core: Option<usize>| Arc::new(WorkerMetrics::new(now, core));
    // The first is the queue's own, if there is one.
    let queues = usize::from(settings.frontend == FrontendKind::Queue) + settings.cores.all().count();
    ReportSources {
        clock,
        tables: tables.clone(),
        workers: settings.cores.all().map(metrics).collect(),
        queue: metrics(None),
        queues: (0..queues).map(|_| Arc::default()).collect(),
        publish: Arc::new(PublishMetrics::default()),
        feed: Arc::new(FeedPublisherMetrics::default()),
        other_services: OtherServiceSources {
            lockstep: other_services.lockstep.as_ref().map(|part| Arc::clone(&part.metrics)),
            tasks: other_services.tasks.clone(),
            services: other_services.services.clone(),
            users: other_services.users.clone(),
        },
        slow: Arc::clone(&other_services.slow),
        reply_bytes_max: settings.reply_bytes_max,
    }
}
