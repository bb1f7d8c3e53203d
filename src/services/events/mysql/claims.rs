//! Claims pending events of a database for a worker, and stores the values that it gives them.
//!
//! ```text
//! claim ─► START TRANSACTION; SELECT id … WHERE value IS NULL LIMIT n FOR UPDATE SKIP LOCKED     no row: ROLLBACK
//! store ─► UPDATE events SET value = … WHERE id = … AND value IS NULL LIMIT n     as many rows as there are values
//!          COMMIT
//! ```
//! Between the two the rows are locked, so no other worker can claim them. If the worker dies, its connection closes
//! and the rows are free. An event that has a value never gets another one.
//!
//! Without an index each statement scans the table from its beginning. LIMIT ends the scan at the last row that the
//! statement needs.
//!
//! This module does not make the values, and does not decide how long to wait when no event is pending.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Row, query};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use super::lazy_connection::{DatabaseAddress, LazyConnection, StatementError};
use super::setup::{UnsuitableDatabase, prepare};
use crate::limits::{TRANSACTION_JITTER, TRANSACTION_TRIES};
use crate::services::events::jitter::Jitter;

const ONE: &str = "UPDATE events SET value = ? WHERE id = ? AND value IS NULL LIMIT 1";

/// Why no event was claimed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ClaimError(String);

/// The outcome of storing values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// All values are stored.
    Done,
    /// No value is stored: the events are pending, or others have given them values.
    Lost(String),
    /// The database was lost while it committed: all values are stored, or none.
    Unknown(String),
}

/// One connection for claims. It holds at most one claim at a time.
pub struct Claims {
    runtime: Runtime,
    connection: LazyConnection,
    jitter: Jitter,
    /// Transactions that were tried again.
    retries: u64,
}

impl Claims {
    /// Creates the tables if they are missing, and checks that the database is suitable.
    ///
    /// # Errors
    /// [`UnsuitableDatabase`]
    pub fn prepare(address: &DatabaseAddress) -> Result<(), UnsuitableDatabase> {
        let runtime = runtime().map_err(|error| UnsuitableDatabase::Failed(error.to_string()))?;
        runtime.block_on(prepare(address))
    }

    /// A connection that opens with the first claim.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new(address: &DatabaseAddress) -> std::io::Result<Self> {
        Ok(Self {
            runtime: runtime()?,
            connection: LazyConnection::new(address),
            jitter: Jitter::default(),
            retries: 0,
        })
    }

    /// The number of transactions that were tried again, because the database had ended them for the sake of others.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Claims up to `most` pending events with ids above `after`. Their rows stay locked until [`Claims::store`] or
    /// [`Claims::give_back`]. No ids: no row is locked.
    ///
    /// # Errors
    /// [`ClaimError`] if the database does not answer, or refuses. No row is locked then.
    pub fn claim(&mut self, most: usize, after: u64) -> Result<Vec<u64>, ClaimError> {
        let Self { runtime, connection, jitter, retries } = self;
        let text = selection(most, after);
        runtime.block_on(async {
            let mut tries = 1;
            loop {
                match connection.rows_afresh(AssertSqlSafe(&text)).await {
                    Ok(rows) => {
                        let id = |row: &sqlx::mysql::MySqlRow| row.try_get::<i64, _>(0).ok()?.try_into().ok();
                        let ids: Vec<u64> = rows.iter().filter_map(id).collect();
                        if ids.is_empty() {
                            connection.roll_back().await;
                        }
                        return Ok(ids);
                    }
                    Err(StatementError::Again(_)) if tries < TRANSACTION_TRIES => {
                        connection.roll_back().await;
                        (tries, *retries) = (tries + 1, *retries + 1);
                        sleep(jitter.up_to(TRANSACTION_JITTER)).await;
                    }
                    Err(failure) => {
                        connection.cut();
                        return Err(ClaimError(failure.to_string()));
                    }
                }
            }
        })
    }

    /// Stores the values of claimed events. Claimed events without a value are pending again.
    pub fn store(&mut self, values: &[(u64, String)]) -> StoreOutcome {
        if values.is_empty() {
            self.give_back();
            return StoreOutcome::Done;
        }
        let Self { runtime, connection, jitter, retries } = self;
        runtime.block_on(async {
            let mut tries = 1;
            loop {
                match store(connection, values).await {
                    Err(StoreStopped::Before(StatementError::Again(_))) if tries < TRANSACTION_TRIES => {
                        connection.roll_back().await;
                        (tries, *retries) = (tries + 1, *retries + 1);
                        sleep(jitter.up_to(TRANSACTION_JITTER)).await;
                        // The rollback has freed the claimed rows. The condition of the UPDATE makes sure that no value
                        // is replaced.
                        if let Err(failure) = connection.run("START TRANSACTION").await {
                            return StoreOutcome::Lost(failure.to_string());
                        }
                    }
                    Err(stopped) => {
                        connection.cut();
                        return stopped.into();
                    }
                    Ok(()) => return StoreOutcome::Done,
                }
            }
        })
    }

    /// Gives all claimed events back.
    pub fn give_back(&mut self) {
        self.runtime.block_on(self.connection.roll_back());
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

/// Why values were not stored.
enum StoreStopped {
    /// No value is stored.
    Before(StatementError),
    /// The UPDATE has changed another number of rows than there are values.
    Rows(u64),
    /// COMMIT was sent, and its outcome is unknown.
    Unknown(StatementError),
}

impl From<StoreStopped> for StoreOutcome {
    fn from(stopped: StoreStopped) -> Self {
        match stopped {
            StoreStopped::Before(failure) => Self::Lost(failure.to_string()),
            StoreStopped::Rows(rows) => {
                Self::Lost(format!("{rows} rows were there to be changed: others have changed them"))
            }
            StoreStopped::Unknown(failure) => Self::Unknown(failure.to_string()),
        }
    }
}

async fn store(connection: &mut LazyConnection, values: &[(u64, String)]) -> Result<(), StoreStopped> {
    let changed = match values {
        [(id, value)] => connection.execute(query(ONE).bind(value).bind(id)).await,
        several => {
            let text = replacement(several.len());
            let mut statement = query(AssertSqlSafe(text));
            for (id, value) in several {
                statement = statement.bind(id).bind(value);
            }
            for (id, _) in several {
                statement = statement.bind(id);
            }
            connection.execute(statement).await
        }
    };
    let changed = changed.map_err(StoreStopped::Before)?;
    if changed != values.len() as u64 {
        return Err(StoreStopped::Rows(changed));
    }
    match connection.run("COMMIT").await {
        Err(failure @ StatementError::Again(_)) => Err(StoreStopped::Before(failure)),
        Err(failure) => Err(StoreStopped::Unknown(failure)),
        Ok(()) => Ok(()),
    }
}

/// The statements that lock up to `most` pending events with ids above `after`.
fn selection(most: usize, after: u64) -> String {
    let mut text = "START TRANSACTION; SELECT id FROM events WHERE value IS NULL".to_owned();
    if after > 0 {
        let _infallible = write!(text, " AND id > {after}");
    }
    let _infallible = write!(text, " LIMIT {most} FOR UPDATE SKIP LOCKED");
    text
}

/// The statement that stores `count` values in one pass over the table.
fn replacement(count: usize) -> String {
    let cases = " WHEN ? THEN ?".repeat(count);
    let parameters = vec!["?"; count].join(",");
    format!("UPDATE events SET value = CASE id{cases} END WHERE id IN ({parameters}) AND value IS NULL LIMIT {count}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_those_of_the_specification() {
        assert_eq!(
            selection(1, 0),
            "START TRANSACTION; SELECT id FROM events WHERE value IS NULL LIMIT 1 FOR UPDATE SKIP LOCKED"
        );
        assert!(selection(2, 7).contains(" AND id > 7 LIMIT 2 "));
        assert_eq!(
            replacement(2),
            "UPDATE events SET value = CASE id WHEN ? THEN ? WHEN ? THEN ? END WHERE id IN (?,?) AND value IS NULL LIMIT 2"
        );
    }
}
