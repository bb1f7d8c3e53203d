//! Events in a database that speaks the MySQL protocol: two tables, without keys or indexes.
//!
//! ```text
//! status  id INT                              one row: the last id that was assigned
//! events  id INT, value VARCHAR(255) NULL     null while the event is pending
//!
//! add ─► new_events ─► writers: lock the row of status, advance it, insert, commit ─► each request gets its id
//! ```
//! Transactions run in the tasks of the writers, so a client that disconnects does not cut one short. After an error
//! its connection is closed, unless the transaction can be tried again, and the database rolls the transaction back.
//!
//! This module does not give pending events their values, see `claims` for workers.

pub mod claims;
mod lazy_connection;
mod setup;
mod writers;

use std::sync::Arc;

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row};
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, oneshot};
use tokio::time::timeout;

pub use lazy_connection::{AddressError, DatabaseAddress};
pub use setup::UnsuitableDatabase;
pub use writers::WritersMetrics;
pub(super) use writers::{RunningWriters, Writers};

use super::error::EventStoreError;
use crate::limits::{EVENT_READERS, EVENTS_WAITING_MAX};
use crate::lock::Mutex;
use lazy_connection::LazyConnection;
use writers::{NewEvent, rehearse};

/// A handle to the store. It is cheap to clone, and clones share the store.
#[derive(Clone)]
pub(super) struct Database {
    new_events: Sender<NewEvent>,
    readers: Arc<Readers>,
    /// The connection of the health checks, which wait for no other request.
    probe: Arc<AsyncMutex<LazyConnection>>,
}

/// Connections for statements that only read.
struct Readers {
    address: DatabaseAddress,
    permits: Semaphore,
    idle: Mutex<Vec<LazyConnection>>,
}

impl Database {
    /// Creates the tables if they are missing, and checks that the database is suitable. The caller starts the writers.
    ///
    /// # Errors
    /// [`UnsuitableDatabase`]
    pub(super) async fn open(address: &DatabaseAddress) -> Result<(Self, Writers), UnsuitableDatabase> {
        setup::prepare(address).await?;
        let (new_events, receiver) = channel(EVENTS_WAITING_MAX);
        let permits = Semaphore::new(EVENT_READERS);
        let readers = Arc::new(Readers { address: address.clone(), permits, idle: Mutex::default() });
        let probe = Arc::new(AsyncMutex::new(LazyConnection::new(address)));
        Ok((Self { new_events, readers, probe }, Writers::new(address, receiver)))
    }

    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, EventStoreError> {
        let (answer, stored) = oneshot::channel();
        let ended = || EventStoreError("the server ends: ask again when it runs".to_owned());
        self.new_events.send(NewEvent { value, answer }).await.map_err(|_| ended())?;
        stored.await.map_err(|_| ended())?
    }

    pub(super) async fn count(&self) -> Result<u64, EventStoreError> {
        let rows = self.read("SELECT COUNT(*) FROM events").await?;
        let count = rows.first().map(|row| row.try_get::<i64, _>(0)).transpose().map_err(unreadable)?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
    }

    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, EventStoreError> {
        // No column holds a larger id.
        let Ok(id) = i64::try_from(id) else { return Ok(None) };
        let rows = self.read(&format!("SELECT value FROM events WHERE id = {id} LIMIT 1")).await?;
        rows.first().map(|row| row.try_get(0)).transpose().map_err(unreadable)
    }

    /// Checks that an event can be stored: a transaction inserts one, and is rolled back.
    pub(super) async fn check(&self) -> Result<(), EventStoreError> {
        let Ok(mut connection) = timeout(self.readers.address.patience(), self.probe.lock()).await else {
            return Err(unanswered());
        };
        rehearse(&mut connection).await
    }

    /// The rows of one statement that changes no data.
    async fn read(&self, statement: &str) -> Result<Vec<MySqlRow>, EventStoreError> {
        let Readers { address, permits, idle } = &*self.readers;
        let Ok(_permit) = timeout(address.patience(), permits.acquire()).await else { return Err(unanswered()) };
        let kept = idle.lock().pop();
        let mut connection = kept.unwrap_or_else(|| LazyConnection::new(address));
        let rows = connection.rows_afresh(AssertSqlSafe(statement)).await;
        idle.lock().push(connection);
        rows.map_err(|failure| EventStoreError(failure.to_string()))
    }
}

/// Tries whether a database stores events, on a connection of its own.
pub struct DatabaseProbe(LazyConnection);

impl DatabaseProbe {
    /// A probe, which connects when it is first asked.
    #[must_use]
    pub fn new(address: &DatabaseAddress) -> Self {
        Self(LazyConnection::new(address))
    }

    /// Inserts an event, and rolls the transaction back.
    ///
    /// # Errors
    /// Why nothing can be stored, in a sentence.
    pub async fn check(&mut self) -> Result<(), String> {
        rehearse(&mut self.0).await.map_err(|EventStoreError(why)| why)
    }
}

fn unanswered() -> EventStoreError {
    EventStoreError("the database does not answer those who have asked before".to_owned())
}

fn unreadable(error: sqlx::Error) -> EventStoreError {
    EventStoreError(format!(
        "the tables of the database are not as they should be ({error}): look at status and events"
    ))
}
