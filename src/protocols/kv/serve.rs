//! Assembles the `kv` frontend: its sockets, and the work of its threads.
//!
//! ```text
//! proxy       ROUTER ◄── proxy ──► DEALER ◄═ inproc://kv-worker-i ═► DEALER ── worker i ── session i ─┐
//! native      listeners ─► acceptor ═► connections ◄────────────────────────── worker i ── session i ─┤
//!             subscribers ◄── publisher ◄── changes ◄─────────────────────────────────────── tables ◄─┘
//! ```
//! The last worker behind the proxy is the reporter.
//!
//! [`bind`] makes all parts that can fail, and starts none of them. Its caller runs each part in a thread of its own.
//! Dropping the parts closes the endpoints.
//!
//! This module does not start threads or choose cores, and does not make the two other threads behind the tables.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use super::client_names::ClientNames;
use super::flow_control::page_bytes_max;
use super::native::{NativeWorker, WorkerState};
use super::proxy::{self, Proxy, message_bytes_max};
use super::publish::{FeedPublisher, OneFramePublisher, Publisher};
pub use super::publish::{NotificationEncoder, PublishAdmissions};
use super::report::{FeedTally, PublishTally, WorkerMetrics};
pub use super::report::{LockstepTally, ReportSources};
use super::reporter::Reporter;
use super::responder::TIMED_ONE_OF;
use super::worker::{Worker, WorkerParts};
pub use super::zap::ZapHandler;
use super::zap::ask_for_users;
use crate::clock::Clock;
use crate::limits::{FRAME_BYTES_MAX, MESSAGE_FRAMES_MAX, RECEIVED_SHARE, REPLIES_IN_PIPE};
use crate::protocols::native::{Acceptor, Admission, BoundListener, BufferBudget, Connections};
use crate::protocols::publish::{PublishLimits, Subscribers};
use crate::protocols::sockets::{
    ServeError, Socket, SocketContext, Stopper, ThreadGroup, WakeSignal, bound_received, received_bytes,
};
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::stats::{HeldBytes, Sampler};
use crate::tables::{Changes, Tables};
use crate::tasks::TaskMetrics;
use crate::zmtp::MessageBounds;

/// The reader of the clients' connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendKind {
    /// libzmq, with a proxy to the workers.
    Proxy,
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
    /// Longest value, in bytes.
    pub value_max: usize,
    /// Bytes that a client may have outstanding.
    pub client_bytes_max: u64,
    /// Bytes of the values or names in one reply. A longer one is refused.
    pub reply_bytes_max: usize,
    /// Bytes that all clients together may have outstanding and unread. The subscribers have the same bound.
    pub held_bytes_max: u64,
    /// For each worker the core to which it will be tied. At least one worker.
    pub worker_cores: Vec<Option<usize>>,
    /// The users that send requests, if a client has to prove that it is one.
    pub admission: Option<Admission>,
}

/// The parts of this server that other protocols have beside the tables.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// Durable tasks, for STATS.
    pub tasks: Option<Arc<TaskMetrics>>,
    /// The lock-step dialect.
    pub lockstep: Option<LockstepPart>,
    /// The services beside the tables, for STATS.
    pub services: Vec<Arc<ServiceMetrics>>,
    /// The slow requests of all of them.
    pub slow: Arc<SlowLog>,
}

/// The part of the lock-step dialect that runs here.
#[derive(Clone, Debug)]
pub struct LockstepPart {
    /// The endpoint of its notifications, if there is one.
    pub publish: Option<String>,
    /// Makes the frame of a notification.
    pub encode: NotificationEncoder,
    /// Its metrics, for STATS.
    pub tally: Arc<LockstepTally>,
}

/// The part that runs between the clients and the tables.
pub enum Frontend {
    /// The frontend of libzmq.
    Proxy {
        /// For the thread `kv-queue`.
        queue: Box<Proxy>,
        /// For the threads `kv-worker-i`.
        workers: Vec<Worker>,
        /// For the thread `kv-report`: a worker that serves only reports.
        reporter: Box<Worker>,
        /// For the thread `kv-zap`, where users are named.
        zap: Option<Box<ZapHandler>>,
    },
    /// The frontend without libzmq.
    Native {
        /// For the thread `kv-accept`.
        acceptor: Box<Acceptor>,
        /// For the threads `kv-worker-i`.
        workers: Vec<NativeWorker>,
        /// For the thread `kv-report`.
        reporter: Reporter,
    },
}

/// All parts that are to run, and their endpoints.
pub struct Kv {
    /// The part between the clients and the tables.
    pub frontend: Frontend,
    /// For the thread `publisher`.
    pub publisher: Publisher,
    /// They stop the frontend, and tell the publisher that the server ends.
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
    pub held: Vec<HeldBytes>,
    /// The metrics that STATS gives, for others to read.
    pub report: Arc<ReportSources>,
}

impl Kv {
    /// From now on a subscriber of each endpoint with an admission has to prove that it is a user.
    pub fn admit_only(&mut self, notifications: &PublishAdmissions) {
        self.publisher.admit_only(notifications);
    }
}

/// Listens at all endpoints. STATS also reports the `neighbours`. Requests wait in the sockets until the parts run.
///
/// # Errors
/// [`ServeError`] if an endpoint cannot be bound, or the system has no descriptor left.
pub fn bind(
    context: &SocketContext,
    settings: &KvConfig,
    clock: Clock,
    (tables, changes): (&Tables, Changes),
    neighbours: Neighbours,
) -> Result<Kv, ServeError> {
    let bell = WakeSignal::new()?;
    let publisher_stopper = Stopper::new(&bell);
    let hwm = usize::try_from(settings.publish_hwm).unwrap_or(usize::MAX);
    let (subscribers, publish) = subscribers(&bell, settings, settings.publish.as_deref(), hwm)?;
    let report = Arc::new(report(settings, clock, tables, &neighbours));
    let metrics = Arc::clone(&report.publish);
    let mut held = vec![subscribers.held_bytes()];
    let (feed, feed_endpoint) = match &settings.feed {
        None => (None, None),
        Some(endpoint) => {
            let (followers, bound) = self::subscribers(&bell, settings, Some(endpoint), usize::MAX)?;
            subscribers.wake_for(&followers).map_err(io::Error::from)?;
            held.push(followers.held_bytes());
            held.push(history_bytes(tables));
            if let Some(endpoint) = &bound {
                report.feed.endpoint.get_or_init(|| endpoint.clone());
            }
            (Some(FeedPublisher::new(followers, Arc::clone(&report.feed))), bound)
        }
    };
    let (one_frame, lockstep_publish) = match neighbours.lockstep {
        Some(LockstepPart { publish: Some(endpoint), encode, tally }) => {
            let (others, bound) = self::subscribers(&bell, settings, Some(&endpoint), hwm)?;
            subscribers.wake_for(&others).map_err(io::Error::from)?;
            held.push(others.held_bytes());
            (Some(OneFramePublisher::new(others, encode, tally)), bound)
        }
        _ => (None, None),
    };
    let publisher = Publisher::new((subscribers, feed, one_frame), changes, bell, clock, metrics);
    let (frontend, mut stoppers, endpoints, clients_held) = match settings.frontend {
        FrontendKind::Proxy => proxy(context, settings, clock, tables, &report)?,
        FrontendKind::Native => native(settings, clock, tables, &report)?,
    };
    stoppers.push(publisher_stopper);
    held.push(clients_held);
    Ok(Kv { frontend, publisher, stoppers, endpoints, publish, feed: feed_endpoint, lockstep_publish, held, report })
}

/// A frontend, its stoppers, its endpoints, and its held bytes.
type BoundFrontend = (Frontend, Vec<Stopper>, Vec<String>, HeldBytes);

fn proxy(
    context: &SocketContext,
    settings: &KvConfig,
    clock: Clock,
    tables: &Tables,
    report: &Arc<ReportSources>,
) -> Result<BoundFrontend, ServeError> {
    let bell = WakeSignal::new()?;
    let stopper = Stopper::new(&bell);
    // Before the first peer can come.
    let admission = settings.admission.as_ref();
    let zap = admission.map(|admission| ZapHandler::bind(context, admission, clock).map(Box::new)).transpose()?;
    let (router, endpoints) = router(context, settings)?;
    let workers_stop = Arc::new(AtomicBool::new(false));
    let presence = ThreadGroup::new(&bell);
    let names = Arc::<ClientNames>::default();
    let (backends, sockets) = pipes(context, settings.worker_cores.len() + 1)?;
    let reporter = sockets.len() - 1;
    let worker = |(place, (socket, metrics)): (usize, (Socket, &Arc<WorkerMetrics>))| -> io::Result<Worker> {
        Ok(Worker::new(WorkerParts {
            socket,
            session: tables.session(),
            clock,
            value_max: settings.value_max,
            page_bytes_max: page_bytes_max(settings.client_bytes_max),
            stop: Arc::clone(&workers_stop),
            metrics: Arc::clone(metrics),
            report: Arc::clone(report),
            bell: WakeSignal::new()?,
            present: presence.enter(),
            is_reporter: place == reporter,
            names: Arc::clone(&names),
            logins: zap.as_ref().map(|zap| zap.logins().reader()),
        }))
    };
    let tallies = report.workers.iter().chain([&report.reporter]);
    let mut workers = sockets.into_iter().zip(tallies).enumerate().map(worker).collect::<io::Result<Vec<Worker>>>()?;
    let reporter = Box::new(workers.pop().expect("it has the last pipe"));
    let metrics = report.queues.first().map(Arc::clone).unwrap_or_default();
    let held: HeldBytes = Box::new({
        let metrics = Arc::clone(&metrics);
        move || {
            let (piped, unfinished) = received_bytes();
            metrics.held_bytes.get() + metrics.found_unread_bytes.get() + piped + unfinished
        }
    });
    // Two of the longest requests of a client always have a place, since it may have as much outstanding.
    let request_bytes = message_bytes_max(settings.value_max).min(settings.client_bytes_max);
    bound_received((settings.held_bytes_max / RECEIVED_SHARE).max(2 * request_bytes));
    let stop = stopper.clone();
    let parts = proxy::ProxyParts {
        router,
        backends,
        stopper: stop,
        bell,
        workers_stop,
        workers: presence,
        clock,
        metrics,
        names,
        has_users: zap.is_some(),
    };
    let queue = Proxy::new(parts, settings.value_max, settings.client_bytes_max, settings.held_bytes_max);
    let stoppers = zap.iter().map(|zap| zap.stopper()).chain([stopper]).collect();
    Ok((Frontend::Proxy { queue: Box::new(queue), workers, reporter, zap }, stoppers, endpoints, held))
}

fn native(
    settings: &KvConfig,
    clock: Clock,
    tables: &Tables,
    report: &Arc<ReportSources>,
) -> Result<BoundFrontend, ServeError> {
    let bounds = MessageBounds {
        frame_bytes: FRAME_BYTES_MAX as u64,
        frames: MESSAGE_FRAMES_MAX,
        bytes: usize::try_from(message_bytes_max(settings.value_max)).unwrap_or(usize::MAX),
    };
    let budget = BufferBudget::new(settings.held_bytes_max);
    let bell = WakeSignal::new()?;
    let stopper = Stopper::new(&bell);
    let mut acceptor = Acceptor::new(stopper.clone(), &bell, clock).map_err(io::Error::from)?;
    let reporter = Reporter::new(Arc::clone(report));
    let (mut stoppers, mut endpoints, mut workers) = (vec![stopper], Vec::new(), Vec::new());
    for endpoint in &settings.endpoints {
        let listener = BoundListener::bind(endpoint)?;
        endpoints.push(listener.endpoint().to_owned());
        acceptor.listen(listener).map_err(io::Error::from)?;
    }
    for (metrics, clients) in report.workers.iter().zip(&report.queues) {
        let bell = WakeSignal::new()?;
        let stopper = Stopper::new(&bell);
        let state = WorkerState {
            session: tables.session(),
            clock,
            value_max: settings.value_max,
            metrics: Arc::clone(metrics),
            clients: Arc::clone(clients),
            report: Arc::clone(report),
            reports: reporter.client(&bell),
            picker: Sampler::new(TIMED_ONE_OF),
        };
        let connections = Connections::new(&bell, bounds, &budget).map_err(io::Error::from)?;
        let handoff = acceptor.handoff(&bell);
        stoppers.push(stopper.clone());
        let mut worker = NativeWorker::new(connections, handoff, (stopper, &bell), state);
        settings.admission.iter().for_each(|admission| worker.admit_only(admission));
        workers.push(worker);
    }
    Ok((
        Frontend::Native { acceptor: Box::new(acceptor), workers, reporter },
        stoppers,
        endpoints,
        Box::new(move || budget.held()),
    ))
}

/// Binds the ROUTER of the clients.
fn router(context: &SocketContext, settings: &KvConfig) -> Result<(Socket, Vec<String>), ServeError> {
    let mut router = context.router(REPLIES_IN_PIPE)?;
    settings.admission.iter().for_each(|admission| ask_for_users(&router, admission));
    let bound = settings.endpoints.iter().map(|endpoint| router.bind(endpoint));
    let endpoints = bound.collect::<Result<_, _>>()?;
    Ok((router, endpoints))
}

/// Returns a closure that says how many bytes the history of the feed takes.
fn history_bytes(tables: &Tables) -> HeldBytes {
    let tables = tables.clone();
    Box::new(move || tables.feed_metrics().map_or(0, |feed| feed.history_bytes))
}

/// The subscribers of an endpoint, if there is one, each of which may fall behind by so many messages, and the endpoint.
fn subscribers(
    bell: &WakeSignal,
    settings: &KvConfig,
    endpoint: Option<&str>,
    messages: usize,
) -> Result<(Subscribers, Option<String>), ServeError> {
    let held_bytes = usize::try_from(settings.held_bytes_max).unwrap_or(usize::MAX);
    let limits = PublishLimits::new(messages).within(held_bytes);
    let mut subscribers = Subscribers::new(bell, limits).map_err(io::Error::from)?;
    let Some(endpoint) = endpoint else { return Ok((subscribers, None)) };
    let listener = BoundListener::bind(endpoint)?;
    let bound = listener.endpoint().to_owned();
    subscribers.listen(listener).map_err(io::Error::from)?;
    Ok((subscribers, Some(bound)))
}

/// The two ends of the pipe to each worker, the reporter included: the proxy's ends, and the workers'. The pipes have
/// no bound of their own, because the proxy's flow control bounds their contents.
fn pipes(context: &SocketContext, workers: usize) -> Result<(Vec<Socket>, Vec<Socket>), ServeError> {
    let mut backends = Vec::with_capacity(workers);
    let mut sockets = Vec::with_capacity(workers);
    for worker in 0..workers {
        let endpoint = format!("inproc://kv-worker-{worker}");
        let mut backend = context.dealer()?;
        backend.bind(&endpoint)?;
        let socket = context.dealer()?;
        socket.connect_within(&endpoint);
        backends.push(backend);
        sockets.push(socket);
    }
    Ok((backends, sockets))
}

fn report(settings: &KvConfig, clock: Clock, tables: &Tables, neighbours: &Neighbours) -> ReportSources {
    let now = clock.now();
    let metrics = |core: &Option<usize>| Arc::new(WorkerMetrics::new(now, *core));
    let queues = if settings.frontend == FrontendKind::Proxy { 1 } else { settings.worker_cores.len() };
    ReportSources {
        clock,
        tables: tables.clone(),
        workers: settings.worker_cores.iter().map(metrics).collect(),
        reporter: metrics(&None),
        queues: (0..queues).map(|_| Arc::default()).collect(),
        publish: Arc::new(PublishTally::default()),
        feed: Arc::new(FeedTally::default()),
        lockstep: neighbours.lockstep.as_ref().map(|part| Arc::clone(&part.tally)),
        tasks: neighbours.tasks.clone(),
        services: neighbours.services.clone(),
        slow: Arc::clone(&neighbours.slow),
        users: OnceLock::new(),
        owns_connections: settings.frontend == FrontendKind::Native,
        reply_bytes_max: settings.reply_bytes_max,
    }
}
