//! Serves events: the requests of the clients on the skeleton of [`TcpFrontend`].
//!
//! ```text
//! listener ─► accept, up to EVENT_CONNECTIONS_MAX at once ─► http: a connection ─► routes ─► store
//! stop request ─►  accept no more ─► answer the requests taken ─► end the last transactions ─► end
//! ```
//! This module does not make the replies (`handle`), and does not keep the events (`embedded`, `mysql`).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use tokio::task::spawn_local;

use super::embedded::{Embedded, EventQueue};
use super::handle::{EventsContext, is_health, needed, routes};
use super::mysql::{Database, DatabaseAddress, RunningWriters, UnsuitableDatabase, Writers, WritersMetrics};
use super::store::EventStore;
use super::timing::{self, EventTimer};
use crate::clock::Clock;
use crate::limits::{EVENT_BACKLOG, EVENT_CONNECTIONS_MAX};
use crate::net::http::limits::HEALTH_CONNECTIONS_MAX;
use crate::net::http::{Guard, HostRule, HttpService, HttpUsers};
use crate::net::service::{Service, ServiceParts};
use crate::net::sockets::ServeError;
use crate::net::tcp::{
    Accepted, AnswerReceiver, ConnectionLimit, ConnectionPermit, FailureSender, TcpBounds, TcpFrontend, TcpProtocol,
    watch_store,
};
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::store;
use crate::tasks::{Committer, QueueName, Tasks};

const BOUNDS: TcpBounds =
    TcpBounds { backlog: EVENT_BACKLOG, connections: EVENT_CONNECTIONS_MAX, reserved: HEALTH_CONNECTIONS_MAX };

/// Why events cannot be served.
#[derive(Debug, Error)]
pub enum Error {
    /// The frontend cannot listen.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The database is not reachable, or not suitable.
    #[error(transparent)]
    Unfit(#[from] UnsuitableDatabase),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        ServeError::from(error).into()
    }
}

/// The store of the events.
pub enum EventsSource<'c> {
    /// A queue of the server's own tasks.
    Embedded(&'c mut Committer, Tasks, QueueName),
    /// A database.
    MySql(&'c DatabaseAddress),
}

/// What is to run.
pub struct Events {
    /// The frontend.
    pub service: Service<EventsFrontend>,
    /// The metrics of the writers, if the events are in a database.
    pub database: Option<Arc<WritersMetrics>>,
}

/// A frontend that listens, before there is a store. Clients wait in the backlog of the system.
pub struct EventsListener {
    tcp: TcpFrontend,
    guard: Guard,
    /// For STATS.
    pub metrics: Arc<ServiceMetrics>,
    slow: Arc<SlowLog>,
}

impl EventsListener {
    /// Listens at `address`. Requests may name the server by one of `hosts` (see [`HostRule`]). If users are checked, a
    /// client has to name one, but for the health of the store.
    ///
    /// # Errors
    /// [`Error`] if the address is not available, or the system has no descriptor left.
    pub fn bind(address: SocketAddr, hosts: &[String], parts: ServiceParts) -> Result<Self, Error> {
        let users = parts.users().map(|users| HttpUsers::new(users, needed));
        let tcp = TcpFrontend::bind(&[address.into()], BOUNDS, parts.certificate)?;
        let hosts = HostRule::new(address.ip().is_loopback(), hosts.to_vec(), "--events-host");
        let guard = Guard { hosts, users, health: is_health };
        Ok(Self { tcp, guard, metrics: timing::metrics(), slow: parts.slow })
    }

    /// Prepares the store.
    ///
    /// # Errors
    /// [`Error`] if the database is not suitable.
    pub fn serve(self, source: EventsSource<'_>) -> Result<Events, Error> {
        let Self { tcp, guard, metrics, slow } = self;
        let (stopper, endpoint) = (tcp.stopper(), tcp.endpoint());
        let backend = match source {
            EventsSource::Embedded(committer, tasks, queue) => {
                let answers = TcpFrontend::answers(committer);
                EventsBackend::Embedded(
                    EventQueue { tasks, queue, sink: answers.sink, room: answers.room.clone() },
                    answers,
                )
            }
            EventsSource::MySql(address) => {
                let (database, writers) = tcp.prepare(Database::open(address))?;
                EventsBackend::MySql(database, writers)
            }
        };
        let database = match &backend {
            EventsBackend::MySql(_, writers) => Some(writers.metrics()),
            EventsBackend::Embedded(..) => None,
        };
        let timer = EventTimer { clock: Clock::start(), metrics, slow };
        let front = EventsFrontend { tcp, backend, guard, timer };
        Ok(Events { service: Service { front, stopper, endpoint, budgets: Vec::new() }, database })
    }
}

/// A store, and the parts that it needs to run.
enum EventsBackend {
    Embedded(EventQueue, AnswerReceiver),
    MySql(Database, Writers),
}

/// The frontend, to be run in the thread `events-io`.
pub struct EventsFrontend {
    tcp: TcpFrontend,
    backend: EventsBackend,
    guard: Guard,
    timer: EventTimer,
}

impl EventsFrontend {
    /// The loop of the thread. Returns after `Stopper::stop`, when every request taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if the server's own store has failed.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { tcp, backend, guard, timer } = self;
        let failed = tcp.failed();
        tcp.run(|| EventsProtocol::start(backend, guard, failed, timer))
    }
}

/// All conversations, with their shared state.
struct EventsProtocol {
    http: HttpService,
    /// The writers of the database, if there is one.
    writers: Option<RunningWriters>,
    metrics: Arc<ServiceMetrics>,
}

impl EventsProtocol {
    /// Starts the exchange with the store.
    fn start(backend: EventsBackend, guard: Guard, failed: FailureSender, timer: EventTimer) -> Self {
        let metrics = Arc::clone(&timer.metrics);
        let (store, writers) = match backend {
            EventsBackend::Embedded(queue, answers) => {
                spawn_local(watch_store(queue.tasks.clone(), failed.clone()));
                let embedded = Embedded::new(queue, failed);
                let shared = embedded.requests().clone();
                spawn_local(answers.hand_out(move |delivery| shared.receive_delivery(delivery)));
                spawn_local(embedded.requests().clone().submit_bursts());
                (EventStore::Embedded(embedded), None)
            }
            EventsBackend::MySql(database, writers) => (EventStore::MySql(database), Some(writers.start())),
        };
        let context = EventsContext { store, jitter: Arc::default(), timer: Arc::new(timer) };
        Self { http: HttpService::new(routes(context, guard)), writers, metrics }
    }
}

impl TcpProtocol for EventsProtocol {
    fn converse(&self, accepted: Accepted, permit: ConnectionPermit) {
        self.http.accept(accepted, (permit, self.metrics.enter()));
    }

    async fn finish(&mut self, connections: &ConnectionLimit) {
        // The requests taken still hold the store.
        self.http.finish(connections).await;
        if let Some(writers) = self.writers.take() {
            writers.end().await;
        }
    }

    /// Requests that are not answered yet are dropped with their connections.
    async fn cut_short(&mut self, _connections: &ConnectionLimit) {}
}
