//! The `kv` frontend put together: its sockets, and the threads' work that is made of them.
//!
//! ```text
//!             ROUTER ◄── queue ──► DEALER ◄═ inproc://kv-worker-i ═► DEALER ── worker i ── session i ─┐
//!             XPUB  ◄── publisher ◄── changes ◄─────────────────────────────────────────────── tables ┘
//! ```
//! [`bind`] makes everything that can fail, and nothing runs yet: whoever called it starts [`Queue::run`],
//! [`Worker::run`] and [`Publisher::run`], each in a thread of its own. Dropping the parts gives the endpoints back.
//!
//! What is not here: threads, cores, and the two other threads behind the tables.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::publish::Publisher;
use super::queue::{self, Queue};
use super::report::{PublishTally, QueueTally, Report, WorkerTally};
use super::worker::Worker;
use crate::clock::Clock;
use crate::limits::REPLIES_IN_PIPE;
use crate::protocols::sockets::{Bell, Context, ServeError, Socket, Stopper};
use crate::tables::{Changes, Tables};
use crate::tasks::Figures;

/// What the frontend is told to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where requests come in; may be empty.
    pub endpoints: Vec<String>,
    /// Where notifications go out, if anywhere.
    pub publish: Option<String>,
    /// Notifications that a subscriber may fall behind.
    pub publish_hwm: i32,
    /// Longest value, in bytes.
    pub value_max: usize,
    /// What a client may have outstanding, in bytes.
    pub client_bytes_max: u64,
    /// For each worker the core that it will be tied to. At least one.
    pub worker_cores: Vec<Option<usize>>,
}

/// Everything that is to run, and where it listens.
pub struct Kv {
    /// For the thread `kv-queue`.
    pub queue: Queue,
    /// For the threads `kv-worker-i`.
    pub workers: Vec<Worker>,
    /// For the thread `publisher`.
    pub publisher: Publisher,
    /// Tells the queue to take no more.
    pub stopper: Stopper,
    /// Where requests come in, with the ports that the system chose.
    pub endpoints: Vec<String>,
    /// Where notifications go out.
    pub publish: Option<String>,
}

/// Listens at all endpoints; STATS also tell of `tasks`. Requests wait in the sockets until the parts run.
///
/// # Errors
/// [`ServeError`] if an endpoint cannot be had, or the system has no descriptor left.
pub fn bind(
    context: &Context,
    settings: &Settings,
    clock: Clock,
    (tables, changes): (&Tables, Changes),
    tasks: Option<Arc<Figures>>,
) -> Result<Kv, ServeError> {
    let stopper = Stopper::new()?;
    let (router, endpoints) = router(context, settings)?;
    let (xpub, publish) = publisher_socket(context, settings)?;
    let report = Arc::new(report(settings, clock, tables, tasks));
    let workers_stop = Arc::new(AtomicBool::new(false));
    let (backends, sockets) = pipes(context, settings.worker_cores.len())?;
    let workers = sockets.into_iter().zip(&report.workers).map(|(socket, tally)| Worker {
        socket,
        session: tables.session(),
        clock,
        value_max: settings.value_max,
        stop: Arc::clone(&workers_stop),
        tally: Arc::clone(tally),
        report: Arc::clone(&report),
    });
    let workers = workers.collect();
    let parts = queue::Parts {
        router,
        backends,
        stopper: stopper.clone(),
        workers_stop,
        clock,
        tally: Arc::clone(&report.queue),
    };
    Ok(Kv {
        queue: Queue::new(parts, settings.value_max, settings.client_bytes_max),
        workers,
        publisher: Publisher::new(xpub, changes, Bell::new()?, Arc::clone(&report.publish)),
        stopper,
        endpoints,
        publish,
    })
}

/// The socket of the clients.
fn router(context: &Context, settings: &Settings) -> Result<(Socket, Vec<String>), ServeError> {
    let mut router = context.router(REPLIES_IN_PIPE)?;
    let bound = settings.endpoints.iter().map(|endpoint| router.bind(endpoint));
    let endpoints = bound.collect::<Result<_, _>>()?;
    Ok((router, endpoints))
}

fn publisher_socket(context: &Context, settings: &Settings) -> Result<(Option<Socket>, Option<String>), ServeError> {
    let Some(endpoint) = &settings.publish else {
        return Ok((None, None));
    };
    let mut socket = context.publisher(settings.publish_hwm)?;
    let bound = socket.bind(endpoint)?;
    Ok((Some(socket), Some(bound)))
}

/// The two ends of the pipe to each worker: the queue's, and the workers'. They have no bound of their own: the account
/// of the queue bounds what is in them.
fn pipes(context: &Context, workers: usize) -> Result<(Vec<Socket>, Vec<Socket>), ServeError> {
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

fn report(settings: &Settings, clock: Clock, tables: &Tables, tasks: Option<Arc<Figures>>) -> Report {
    let now = clock.now();
    let tally = |core: &Option<usize>| Arc::new(WorkerTally::new(now, *core));
    Report {
        clock,
        tables: tables.clone(),
        workers: settings.worker_cores.iter().map(tally).collect(),
        queue: Arc::new(QueueTally::default()),
        publish: Arc::new(PublishTally::default()),
        tasks,
    }
}
