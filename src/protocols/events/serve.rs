//! Accepts connections and has their requests answered, all in one thread.
//!
//! ```text
//! listener ─► accept, up to a number at once ─► hyper: head, body ─► routes ─► store
//! told to stop ─► accept no more ─► requests that were taken are answered ─► the last transactions end ─► end
//! ```
//! The thread sleeps in the runtime: on its sockets, its timers, what its store answers, and the word of the [`TcpStopper`].
//!
//! What is not here: what is answered (`handle`), and from where (`embedded`, `mysql`).

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
use crate::tasks::{Committer, Delivery, QueueId, Tasks};

/// Why events cannot be served.
#[derive(Debug, Error)]
pub enum Error {
    /// Nothing listens.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The database is not there, or is not one to rely on.
    #[error(transparent)]
    Unfit(#[from] UnsuitableDatabase),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        ServeError::from(error).into()
    }
}

pub use crate::protocols::tcp::TcpStopper;

/// Where the events are.
pub enum EventsSource<'c> {
    /// In a queue of tasks of the server's own.
    Embedded(&'c mut Committer, Tasks, QueueId),
    /// In a database.
    MySql(&'c Address),
}

/// What runs, and where it listens.
pub struct Events {
    /// For the thread `events-io`.
    pub front: EventsFrontend,
    /// Tells it to take no more.
    pub stopper: TcpStopper,
    /// Where connections come in, with the port that the system chose.
    pub address: SocketAddr,
}

/// Listens at `address`, once the store is fit to be served.
///
/// # Errors
/// [`Error`] if the address cannot be had, the system has no descriptor left, or the database is not fit.
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

/// A store, and what it needs to run.
enum EventsBackend {
    Embedded(Embedded, UnboundedReceiver<Delivery>),
    MySql(Database, Writers),
}

/// The face, ready to run.
pub struct EventsFrontend {
    runtime: Runtime,
    listener: PausableAcceptor,
    endings: UnboundedReceiver<ServeEnd>,
    backing: EventsBackend,
}

impl EventsFrontend {
    /// The loop of the thread. Returns when it was told to stop and everything that was taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if the server's own store has failed.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { runtime, listener, endings, backing } = self;
        runtime.block_on(serve(listener, endings, backing))
    }
}

/// Serves until there is an ending, and lets requests come to theirs.
async fn serve(
    listener: PausableAcceptor,
    mut endings: UnboundedReceiver<ServeEnd>,
    backing: EventsBackend,
) -> ServeEnd {
    let jitter = Arc::default();
    let (store, writers) = match backing {
        EventsBackend::Embedded(embedded, deliveries) => {
            tokio::spawn(embedded.clone().hand_over());
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
    // The routes go with it; then only what was taken has the store.
    let _aborted = accepting.await;
    // What is not answered by then is dropped with its connection.
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
    // It is never closed.
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
    // Without it a reply may wait for the acknowledgement of the last one.
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
