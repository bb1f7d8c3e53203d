//! Stores new events in a database: requests that come together share a transaction.
//!
//! ```text
//! new_events ─► take all that wait ─► START TRANSACTION; SELECT id FROM status FOR UPDATE     n
//!                                     UPDATE status SET id = n + k; INSERT INTO events …      n + 1 … n + k
//!                                     COMMIT ─► answer each
//! ```
//! An error before COMMIT is sent has stored no event. After COMMIT is sent, only the database knows the outcome: the
//! reply says so, and the writer does not try again.
//!
//! This module does not know the clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{AssertSqlSafe, Row};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::lazy_connection::{DatabaseAddress, LazyConnection, StatementError};
use crate::limits::{EVENT_WRITERS, EVENTS_PER_TRANSACTION, TRANSACTION_JITTER, TRANSACTION_TRIES};
use crate::services::events::error::EventStoreError;
use crate::services::events::jitter::Jitter;
use crate::stats::Counter;

const LOCK: &str = "START TRANSACTION; SELECT id FROM status FOR UPDATE";

/// What an operator does when the ids of the type INT are used up.
const FULL: &str = "the column id has no room for more events, make it a BIGINT in both tables: \
                    ALTER TABLE status MODIFY id BIGINT; ALTER TABLE events MODIFY id BIGINT";
/// Attempts of a health check, each of which waits for a lock.
const REHEARSALS: u32 = 3;

/// A request for a new event.
pub(super) struct NewEvent {
    pub(super) value: Option<&'static str>,
    /// Receives the id when the event is stored.
    pub(super) answer: oneshot::Sender<Result<u64, EventStoreError>>,
}

/// The state that the writers share.
struct WriterShared {
    new_events: Mutex<Receiver<NewEvent>>,
    jitter: Jitter,
    /// Whether the last transaction of any writer has failed, so that a failure is logged once. Written and read by the
    /// writers.
    is_down: AtomicBool,
    /// Written by the writers, which share a thread. Read by the operator's service at any time, and for the log at the end.
    metrics: Arc<WritersMetrics>,
}

/// The metrics of the writers to a database.
#[derive(Debug, Default)]
pub struct WritersMetrics {
    /// Transactions that were committed.
    pub transactions: Counter,
    /// Events that were stored.
    pub events: Counter,
    /// Transactions that were tried again.
    pub retries: Counter,
    /// Events that were answered with 503, because they were not stored, or because that is unknown.
    pub failures: Counter,
}

/// Writers that are not started yet.
pub(in crate::services::events) struct Writers {
    address: DatabaseAddress,
    shared: Arc<WriterShared>,
}

/// Running writers. They end when no sender of new events is left.
pub(in crate::services::events) struct RunningWriters {
    tasks: Vec<JoinHandle<()>>,
    shared: Arc<WriterShared>,
}

impl Writers {
    pub(super) fn new(address: &DatabaseAddress, new_events: Receiver<NewEvent>) -> Self {
        let (jitter, is_down, metrics) = Default::default();
        let shared = WriterShared { new_events: Mutex::new(new_events), jitter, is_down, metrics };
        Self { address: address.clone(), shared: Arc::new(shared) }
    }

    /// The metrics of the writers.
    pub(in crate::services::events) fn metrics(&self) -> Arc<WritersMetrics> {
        Arc::clone(&self.shared.metrics)
    }

    /// Starts the writers, each in a task of its own.
    pub(in crate::services::events) fn start(self) -> RunningWriters {
        let write = |_| tokio::spawn(write(LazyConnection::new(&self.address), Arc::clone(&self.shared)));
        RunningWriters { tasks: (0..EVENT_WRITERS).map(write).collect(), shared: self.shared }
    }
}

impl RunningWriters {
    /// Waits until the writers have stored all requested events.
    pub(in crate::services::events) async fn end(self) {
        for task in self.tasks {
            // A writer that has panicked has ended the process.
            let _ended = task.await;
        }
        let WritersMetrics { transactions, events, retries, .. } = &*self.shared.metrics;
        let (events, transactions, retries) = (events.get(), transactions.get(), retries.get());
        tracing::info!(events, transactions, retries, "all new events are stored");
    }
}

async fn write(mut connection: LazyConnection, shared: Arc<WriterShared>) {
    loop {
        let mut new_events = Vec::new();
        let taken = shared.new_events.lock().await.recv_many(&mut new_events, EVENTS_PER_TRANSACTION).await;
        if taken == 0 {
            return;
        }
        match store_again(&mut connection, &new_events, &shared).await {
            Ok(last) => {
                // Relaxed: the flag publishes no other data.
                if shared.is_down.swap(false, Ordering::Relaxed) {
                    tracing::warn!("events are stored again");
                }
                shared.metrics.transactions.add(1);
                shared.metrics.events.add(taken as u64);
                for (id, new_event) in (last + 1..).zip(new_events) {
                    // A client that has gone gets no answer, and its event is stored.
                    let _gone = new_event.answer.send(Ok(id));
                }
            }
            Err(error) => {
                // Relaxed: as above.
                if !shared.is_down.swap(true, Ordering::Relaxed) {
                    tracing::warn!("events are not acknowledged for now: {}", error.0);
                }
                shared.metrics.failures.add(taken as u64);
                for new_event in new_events {
                    let _gone = new_event.answer.send(Err(error.clone()));
                }
            }
        }
    }
}

/// Stores the events, and tries again if the database has ended the transaction for the sake of another.
async fn store_again(
    connection: &mut LazyConnection,
    new_events: &[NewEvent],
    shared: &WriterShared,
) -> Result<u64, EventStoreError> {
    let mut tries = 1;
    loop {
        match store(connection, new_events).await {
            Err(TransactionError::Before(StatementError::Again(_))) if tries < TRANSACTION_TRIES => {
                connection.roll_back().await;
                tries += 1;
                shared.metrics.retries.add(1);
                sleep(shared.jitter.up_to(TRANSACTION_JITTER)).await;
            }
            Err(stopped) => {
                connection.cut();
                return Err(stopped.into());
            }
            Ok(last) => return Ok(last),
        }
    }
}

/// Why a transaction has not committed.
enum TransactionError {
    /// No event was stored.
    Before(StatementError),
    /// The tables do not allow it.
    Unfit(String),
    /// COMMIT was sent, and its outcome is unknown.
    Unknown(StatementError),
}

impl From<StatementError> for TransactionError {
    fn from(failure: StatementError) -> Self {
        Self::Before(failure)
    }
}

impl From<TransactionError> for EventStoreError {
    fn from(stopped: TransactionError) -> Self {
        Self(match stopped {
            TransactionError::Before(failure) => format!("nothing was stored: {failure}"),
            TransactionError::Unfit(why) => format!("nothing was stored: {why}"),
            TransactionError::Unknown(failure) => {
                format!("whether the event was stored is not known, look before you ask again: {failure}")
            }
        })
    }
}

/// Checks that an event can be stored: inserts one, and rolls the transaction back.
pub(super) async fn rehearse(connection: &mut LazyConnection) -> Result<(), EventStoreError> {
    let event = [NewEvent { value: Some(""), answer: oneshot::channel().0 }];
    let mut tries = 1;
    loop {
        let inserted = insert(connection, &event).await;
        connection.roll_back().await;
        match inserted {
            Err(TransactionError::Before(StatementError::Again(_))) if tries < REHEARSALS => tries += 1,
            Err(TransactionError::Before(failure) | TransactionError::Unknown(failure)) => {
                connection.cut();
                return Err(EventStoreError(format!("nothing can be stored: {failure}")));
            }
            Err(TransactionError::Unfit(why)) => return Err(EventStoreError(format!("nothing can be stored: {why}"))),
            Ok(_) => return Ok(()),
        }
    }
}

/// Runs one transaction. Returns the id before the first new one.
async fn store(connection: &mut LazyConnection, new_events: &[NewEvent]) -> Result<u64, TransactionError> {
    let last = insert(connection, new_events).await?;
    match connection.run("COMMIT").await {
        // A cluster reports this when another of its servers was first: the transaction is rolled back.
        Err(failure @ StatementError::Again(_)) => Err(TransactionError::Before(failure)),
        Err(failure) => Err(TransactionError::Unknown(failure)),
        Ok(()) => Ok(last),
    }
}

/// Begins a transaction, and inserts the events. Returns the id before the first new one.
async fn insert(connection: &mut LazyConnection, new_events: &[NewEvent]) -> Result<u64, TransactionError> {
    let rows = connection.rows_afresh(AssertSqlSafe(LOCK)).await?;
    let last = match &*rows {
        [row] => row.try_get::<i64, _>(0).ok().and_then(|id| u64::try_from(id).ok()),
        _ => None,
    };
    let last =
        last.ok_or_else(|| TransactionError::Unfit("the table status must have one row, with the last id".to_owned()))?;
    match connection.run(AssertSqlSafe(insertion(last, new_events))).await {
        Err(StatementError::OutOfRange(_)) => Err(TransactionError::Unfit(FULL.to_owned())),
        done => Ok(done.map(|()| last)?),
    }
}

/// The statements that advance the last id and insert the events. The values are words of plain letters.
fn insertion(last: u64, new_events: &[NewEvent]) -> String {
    let mut text =
        format!("UPDATE status SET id = {}; INSERT INTO events (id, value) VALUES ", last + new_events.len() as u64);
    for (id, new_event) in (last + 1..).zip(new_events) {
        if id > last + 1 {
            text.push(',');
        }
        match new_event.value {
            Some(word) => text.push_str(&format!("({id},'{word}')")),
            None => text.push_str(&format!("({id},NULL)")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_come_together_are_inserted_together() {
        let new_event = |value| NewEvent { value, answer: oneshot::channel().0 };
        assert_eq!(
            insertion(6, &[new_event(Some("heron")), new_event(None)]),
            "UPDATE status SET id = 8; INSERT INTO events (id, value) VALUES (7,'heron'),(8,NULL)"
        );
    }
}
