//! Preparation of a database before events are served: creates the tables, and checks that locked rows are skipped.
//!
//! This module does not store or read events.

use sqlx::Row;
use thiserror::Error;
use tokio::time::{sleep, timeout};

use super::lazy_connection::{DatabaseAddress, LazyConnection, StatementError};
use crate::limits::{FIRST_ROW_MAX, TRANSACTION_JITTER};
use crate::services::events::jitter::Jitter;

const STATUS: &str = "CREATE TABLE IF NOT EXISTS status (id INT)";
const EVENTS: &str = "CREATE TABLE IF NOT EXISTS events (id INT, value VARCHAR(255) CHARACTER SET utf8mb4 NULL)";
/// Reads without a lock, so it waits for no other transaction.
const ROWS: &str = "SELECT id FROM status LIMIT 2";
const ALL_ROWS: &str = "SELECT id FROM status";
const COLUMNS: &str = "SELECT id FROM status LIMIT 0; SELECT id, value FROM events LIMIT 0";
/// When two servers find no row at once, neither can insert one before the other has given up: the database ends one of
/// the two transactions.
const BEGIN: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION; SELECT id FROM status FOR UPDATE";
const FIRST: &str = "INSERT INTO status SELECT COALESCE(MAX(id), 0) FROM events; COMMIT";
const PROBE: &str = "START TRANSACTION; SELECT id FROM status LIMIT 1 FOR UPDATE SKIP LOCKED";

/// Why a database is not suitable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnsuitableDatabase {
    /// The database is not reachable, or refuses a statement.
    #[error("{0}; is the database running, and the user allowed to use it?")]
    Failed(String),
    /// The database does not know SKIP LOCKED.
    #[error("the database does not know SKIP LOCKED: use MySQL 8, MariaDB 10.6 or later ({0})")]
    Old(String),
    /// The database accepts SKIP LOCKED, and locks no row.
    #[error(
        "the database lends a locked row to two at once, so SKIP LOCKED locks nothing: use MySQL 8 or MariaDB with InnoDB"
    )]
    LocksNothing,
    /// The two tables have different engines.
    #[error("the tables status and events are of two engines: make both InnoDB")]
    Engines,
    /// The only row of `status` is always locked.
    #[error("somebody has locked the table status for too long: end that transaction, and start again")]
    Locked,
    /// The table `status` has several rows.
    #[error("the table status has {0} rows instead of one: leave only the one with the largest id")]
    Ids(usize),
}

impl From<StatementError> for UnsuitableDatabase {
    fn from(failure: StatementError) -> Self {
        Self::Failed(failure.to_string())
    }
}

const ENGINES: &str = "SELECT COUNT(DISTINCT engine) FROM information_schema.tables \
                       WHERE table_schema = DATABASE() AND table_name IN ('status', 'events')";

/// Creates the tables if they are missing, and checks that locked rows are skipped.
pub(super) async fn prepare(address: &DatabaseAddress) -> Result<(), UnsuitableDatabase> {
    let jitter = Jitter::default();
    let (mut one, mut other) = (LazyConnection::new(address), LazyConnection::new(address));
    make_tables(&mut one).await?;
    make_row(&mut one, &jitter).await?;
    let fit = probe(&mut one, &mut other).await;
    one.roll_back().await;
    other.roll_back().await;
    fit
}

/// Creates the tables. A user without the right to create tables may use existing ones.
async fn make_tables(connection: &mut LazyConnection) -> Result<(), UnsuitableDatabase> {
    // A definition waits for the transactions that use the table. Existing tables need none.
    if let Err(missing) = connection.run(COLUMNS).await {
        let StatementError::Refused(_) = missing else { return Err(missing.into()) };
        let mut refused = None;
        for table in [STATUS, EVENTS] {
            match connection.run(table).await {
                Err(StatementError::Refused(why)) => refused = Some(why),
                other => other?,
            }
        }
        let there = connection.run(COLUMNS).await;
        there.map_err(|failure| UnsuitableDatabase::Failed(refused.unwrap_or_else(|| failure.to_string())))?;
    }
    // With one engine for both tables, the probe of one table holds for the other.
    let engines = connection.rows(ENGINES).await?;
    let is_one = engines.first().is_none_or(|row| row.try_get::<i64, _>(0).is_ok_and(|engines| engines <= 1));
    if is_one { Ok(()) } else { Err(UnsuitableDatabase::Engines) }
}

/// Inserts the row with the last id if it is missing. Its id is the largest one of the events, if there are any.
async fn make_row(connection: &mut LazyConnection, jitter: &Jitter) -> Result<(), UnsuitableDatabase> {
    match connection.rows(ROWS).await?.len() {
        0 => {}
        1 => return Ok(()),
        _ => return Err(UnsuitableDatabase::Ids(connection.rows(ALL_ROWS).await?.len())),
    }
    let made = timeout(FIRST_ROW_MAX, insert_row(connection, jitter)).await;
    made.unwrap_or(Err(UnsuitableDatabase::Locked))
}

/// Inserts the row, unless another server has done so meanwhile.
async fn insert_row(connection: &mut LazyConnection, jitter: &Jitter) -> Result<(), UnsuitableDatabase> {
    loop {
        let made = match connection.rows(BEGIN).await {
            Ok(rows) if rows.is_empty() => connection.run(FIRST).await,
            Ok(rows) => {
                connection.roll_back().await;
                return if rows.len() == 1 { Ok(()) } else { Err(UnsuitableDatabase::Ids(rows.len())) };
            }
            Err(failure) => Err(failure),
        };
        match made {
            Err(StatementError::Again(_)) => {
                connection.roll_back().await;
                sleep(jitter.up_to(TRANSACTION_JITTER)).await;
            }
            other => other?,
        }
    }
}

/// Two connections request the same row: the first must get it, and the second must get none. Some engines accept the
/// words and lock no row. If the first gets none, another transaction has locked the row, and it was skipped.
async fn probe(one: &mut LazyConnection, other: &mut LazyConnection) -> Result<(), UnsuitableDatabase> {
    let old = |failure| match failure {
        StatementError::Refused(why) => UnsuitableDatabase::Old(why),
        failure => failure.into(),
    };
    let rows = one.rows(PROBE).await.map_err(old)?;
    if rows.is_empty() {
        let there = other.rows(ROWS).await?.len();
        return if there == 1 { Ok(()) } else { Err(UnsuitableDatabase::Ids(there)) };
    }
    let second = other.rows(PROBE).await.map_err(old)?;
    if second.is_empty() { Ok(()) } else { Err(UnsuitableDatabase::LocksNothing) }
}
