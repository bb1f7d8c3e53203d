//! Accepts connections and answers their requests, all in one thread.
//!
//! ```text
//! listener ─► accept, up to EVENT_CONNECTIONS_MAX at once ─► hyper: head, body ─► routes ─► store
//! told to stop ─► accept no more ─► answer the requests taken ─► end the last transactions ─► end
//! ```
//! The thread sleeps in the runtime on its sockets, its timers, the answers of its store and the [`TcpStopper`].
//!
//! This module does not make the replies (`handle`), and does not keep the events (`embedded`, `mysql`).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::embedded::{Embedded, EventQueue};
use super::handle::{EventsContext, routes};
use super::mysql::{Address, Database, UnsuitableDatabase, Writers};
use super::store::EventStore;
use super::write_timeout::WriteTimeout;
use crate::limits::{EVENT_BACKLOG, EVENT_CONNECTIONS_MAX, EVENT_HEAD_BYTES_MAX, EVENT_HEAD_TIME, LINGER};
use crate::protocols::sockets::ServeError;
use crate::protocols::tcp::{PausableAcceptor, RoomSignal, ServeEnd, TcpMailbox};
use crate::store;
use crate::tasks::{Committer, Delivery, QueueName, Tasks};

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

pub use crate::protocols::tcp::TcpStopper;

/// The store of the events.
pub enum EventsSource<'c> {
    /// A queue of the server's own tasks.
    Embedded(&'c mut Committer, Tasks, QueueName),
    /// A database.
    MySql(&'c Address),
}

/// The frontend, its stopper and its address.
pub struct Events {
    /// To be run in the thread `events-io`.
    pub front: EventsFrontend,
    /// Tells the frontend to take no more requests.
    pub stopper: TcpStopper,
    /// The address that the frontend listens at, with the port that the system chose.
    pub address: SocketAddr,
}

/// Listens at `address`, and prepares the store.
///
/// # Errors
/// [`Error`] if the address is not available, the system has no descriptor left, or the database is not suitable.
pub fn bind(address: SocketAddr, source: EventsSource<'_>) -> Result<Events, Error> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = PausableAcceptor::bind(&runtime, address, EVENT_BACKLOG).map_err(ServeError::from)?;
    let address = listener.address;
    let (ending, endings) = unbounded_channel();
    let stopper = TcpStopper(ending.clone());
    let backing = match source {
        EventsSource::Embedded(committer, tasks, queue) => {
            let (sender, deliveries) = unbounded_channel();
            let room = RoomSignal::default();
            let sink = committer.sink(Box::new(TcpMailbox { sender, room: room.clone() }));
            EventsBackend::Embedded(Embedded::new(EventQueue { tasks, queue, sink, room }, ending), deliveries)
        }
        EventsSource::MySql(address) => {
            let (database, writers) = runtime.block_on(Database::open(address))?;
            EventsBackend::MySql(database, writers)
        }
    };
    Ok(Events { front: EventsFrontend { runtime, listener, endings, backing }, stopper, address })
}

/// A store, and the parts that it needs to run.
enum EventsBackend {
    Embedded(Embedded, UnboundedReceiver<Delivery>),
    MySql(Database, Writers),
}

/// The frontend, ready to run.
pub struct EventsFrontend {
    runtime: Runtime,
    listener: PausableAcceptor,
    endings: UnboundedReceiver<ServeEnd>,
    backing: EventsBackend,
}

impl EventsFrontend {
    /// The loop of the thread. Returns after the stopper was told and every request taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if the server's own store has failed.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { runtime, listener, endings, backing } = self;
        runtime.block_on(serve(listener, endings, backing))
    }
}

/// Serves until there is an ending, then lets the requests end.
async fn serve(
    listener: PausableAcceptor,
    mut endings: UnboundedReceiver<ServeEnd>,
    backing: EventsBackend,
) -> ServeEnd {
    let jitter = Arc::default();
    let (store, writers) = match backing {
        EventsBackend::Embedded(embedded, deliveries) => {
            tokio::spawn(embedded.clone().submit_bursts());
            tokio::spawn(embedded.clone().hand_out(deliveries));
            tokio::spawn(embedded.clone().watch());
            (EventStore::Embedded(embedded), None)
        }
        EventsBackend::MySql(database, writers) => (EventStore::MySql(database), Some(writers.start())),
    };
    let graceful = Arc::new(GracefulShutdown::new());
    let accepting = tokio::spawn(accept(listener, routes(EventsContext { store, jitter }), Arc::clone(&graceful)));
    endings.recv().await.unwrap_or(Ok(()))?;
    accepting.abort();
    // This drops the routes. From here on only the requests taken hold the store.
    let _aborted = accepting.await;
    // Requests that are not answered within `LINGER` are dropped with their connections.
    let last = async {
        if let Some(graceful) = Arc::into_inner(graceful) {
            graceful.shutdown().await;
        }
        if let Some(writers) = writers {
            writers.end().await;
        }
    };
    let _late = timeout(LINGER, last).await;
    endings.try_recv().unwrap_or(Ok(()))
}

/// Accepts connections as long as there are places for them.
async fn accept(mut listener: PausableAcceptor, router: Router, graceful: Arc<GracefulShutdown>) {
    let places = Arc::new(Semaphore::new(EVENT_CONNECTIONS_MAX));
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let (stream, entered) = listener.accept().await;
        let connection = converse(stream, router.clone(), graceful.watcher());
        tokio::spawn(async move {
            connection.await;
            drop((place, entered));
        });
    }
}

/// Answers the requests of one connection.
async fn converse(stream: TcpStream, router: Router, watcher: Watcher) {
    // Without this option a reply may wait for the acknowledgement of the one before.
    let _gone = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(EVENT_HEAD_TIME)
        .max_buf_size(EVENT_HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream)), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!("a connection for events has ended: {error}");
    }
}
