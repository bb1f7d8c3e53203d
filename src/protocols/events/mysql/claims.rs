//! Pending events of a database, for a worker: claimed, given a value, committed.
//!
//! ```text
//! claim ─► START TRANSACTION; SELECT id … WHERE value IS NULL LIMIT n FOR UPDATE SKIP LOCKED     nothing found: ROLLBACK
//! store ─► UPDATE events SET value = … WHERE id = … AND value IS NULL LIMIT n     as many rows as there are values
//!          COMMIT
//! ```
//! Between the two the rows are locked: nobody else can claim them. If the worker dies its connection does too, and they are free. An
//! event that has a value is never given another.
//!
//! Without an index each statement goes through the table from its beginning: LIMIT ends it at the last row that it is for.
//!
//! What is not here: where values come from, and how long to wait when nothing is pending.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Row, query};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use super::lazy_connection::{Address, LazyConnection, StatementError};
use super::setup::{UnsuitableDatabase, prepare};
use crate::limits::{TRANSACTION_JITTER, TRANSACTION_TRIES};
use crate::protocols::events::jitter::Jitter;

const ONE: &str = "UPDATE events SET value = ? WHERE id = ? AND value IS NULL LIMIT 1";

/// Why nothing was claimed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ClaimError(String);

/// What became of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// They are stored.
    Done,
    /// None is stored: the events are pending, or others have given them values.
    Lost(String),
    /// The database has gone while it committed: all are stored, or none.
    Unknown(String),
}

/// One connection to claim on. At most one claim is held at a time.
pub struct Claims {
    runtime: Runtime,
    link: LazyConnection,
    jitter: Jitter,
    /// Transactions that were tried again.
    retries: u64,
}

impl Claims {
    /// Makes the tables if they are missing, and sees whether the database is fit.
    ///
    /// # Errors
    /// [`UnsuitableDatabase`]
    pub fn prepare(address: &Address) -> Result<(), UnsuitableDatabase> {
        let runtime = runtime().map_err(|error| UnsuitableDatabase::Failed(error.to_string()))?;
        runtime.block_on(prepare(address))
    }

    /// Connects when the first claim is made.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new(address: &Address) -> std::io::Result<Self> {
        Ok(Self { runtime: runtime()?, link: LazyConnection::new(address), jitter: Jitter::default(), retries: 0 })
    }

    /// Transactions that were tried again, since the database had ended them for the sake of others.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Claims up to so many pending events with ids above `after`. They are held until [`Claims::store`] or [`Claims::give_back`]; none: nothing
    /// is held.
    ///
    /// # Errors
    /// [`ClaimError`] if the database does not answer, or refuses. Nothing is held then.
    pub fn claim(&mut self, most: usize, after: u64) -> Result<Vec<u64>, ClaimError> {
        let Self { runtime, link, jitter, retries } = self;
        let text = selection(most, after);
        runtime.block_on(async {
            let mut tries = 1;
            loop {
                match link.rows_afresh(AssertSqlSafe(&text)).await {
                    Ok(rows) => {
                        let id = |row: &sqlx::mysql::MySqlRow| row.try_get::<i64, _>(0).ok()?.try_into().ok();
                        let ids: Vec<u64> = rows.iter().filter_map(id).collect();
                        if ids.is_empty() {
                            link.roll_back().await;
                        }
                        return Ok(ids);
                    }
                    Err(StatementError::Again(_)) if tries < TRANSACTION_TRIES => {
                        link.roll_back().await;
                        (tries, *retries) = (tries + 1, *retries + 1);
                        sleep(jitter.up_to(TRANSACTION_JITTER)).await;
                    }
                    Err(failure) => {
                        link.cut();
                        return Err(ClaimError(failure.to_string()));
                    }
                }
            }
        })
    }

    /// Stores values of events that were claimed; those without one are pending again.
    pub fn store(&mut self, values: &[(u64, String)]) -> StoreOutcome {
        if values.is_empty() {
            self.give_back();
            return StoreOutcome::Done;
        }
        let Self { runtime, link, jitter, retries } = self;
        runtime.block_on(async {
            let mut tries = 1;
            loop {
                match store(link, values).await {
                    Err(StoreStopped::Before(StatementError::Again(_))) if tries < TRANSACTION_TRIES => {
                        link.roll_back().await;
                        (tries, *retries) = (tries + 1, *retries + 1);
                        sleep(jitter.up_to(TRANSACTION_JITTER)).await;
                        // What was claimed is free now; the statement itself sees to it that no value is replaced.
                        if let Err(failure) = link.run("START TRANSACTION").await {
                            return StoreOutcome::Lost(failure.to_string());
                        }
                    }
                    Err(stopped) => {
                        link.cut();
                        return stopped.into();
                    }
                    Ok(()) => return StoreOutcome::Done,
                }
            }
        })
    }

    /// Gives back all that was claimed.
    pub fn give_back(&mut self) {
        self.runtime.block_on(self.link.roll_back());
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

/// Why values were not stored.
enum StoreStopped {
    /// Nothing is stored.
    Before(StatementError),
    /// Another number of rows than there are values was there to be changed.
    Rows(u64),
    /// It was asked to commit, and nobody has heard what came of it.
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

async fn store(link: &mut LazyConnection, values: &[(u64, String)]) -> Result<(), StoreStopped> {
    let changed = match values {
        [(id, value)] => link.execute(query(ONE).bind(value).bind(id)).await,
        several => {
            let text = replacement(several.len());
            let mut statement = query(AssertSqlSafe(text));
            for (id, value) in several {
                statement = statement.bind(id).bind(value);
            }
            for (id, _) in several {
                statement = statement.bind(id);
            }
            link.execute(statement).await
        }
    };
    let changed = changed.map_err(StoreStopped::Before)?;
    if changed != values.len() as u64 {
        return Err(StoreStopped::Rows(changed));
    }
    match link.run("COMMIT").await {
        Err(failure @ StatementError::Again(_)) => Err(StoreStopped::Before(failure)),
        Err(failure) => Err(StoreStopped::Unknown(failure)),
        Ok(()) => Ok(()),
    }
}

/// Locks up to so many pending events with ids above `after`.
fn selection(most: usize, after: u64) -> String {
    let mut text = "START TRANSACTION; SELECT id FROM events WHERE value IS NULL".to_owned();
    if after > 0 {
        let _infallible = write!(text, " AND id > {after}");
    }
    let _infallible = write!(text, " LIMIT {most} FOR UPDATE SKIP LOCKED");
    text
}

/// Stores so many values at once, all in one pass over the table.
fn replacement(count: usize) -> String {
    let cases = " WHEN ? THEN ?".repeat(count);
    let places = vec!["?"; count].join(",");
    format!("UPDATE events SET value = CASE id{cases} END WHERE id IN ({places}) AND value IS NULL LIMIT {count}")
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
