//! One connection to a database, made when it is needed and closed when something has gone wrong on it.
//!
//! What is not here: what is said on it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sqlx::mysql::{MySql, MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::query::Query;

use sqlx::{AssertSqlSafe, ConnectOptions, SqlSafeStr, raw_sql};
use thiserror::Error;
use tokio::time::timeout;

use crate::limits::{DATABASE_CONNECT_MAX, LOCK_WAIT_SECONDS, STORE_ANSWER_MAX};

/// What the database calls a transaction that it ended since two waited for each other.
const DEADLOCK: u16 = 1213;
/// What it calls a statement that has waited for a lock for too long.
const LOCK_WAIT: u16 = 1205;

/// What it says before it closes a connection: that has been idle, …
const IDLE: u16 = 4031;
/// … since it ends itself, …
const SHUTDOWN: u16 = 1053;
/// … since somebody has told it to, …
const KILLED: u16 = 1927;
/// … or since nothing has come for too long.
const INTERRUPTED: u16 = 1159;

/// Where a database is, and as whom to use it.
#[derive(Clone)]
pub struct Address(Arc<MySqlConnectOptions>);

/// Why this is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a database is mysql://USER:PASSWORD@HOST/DATABASE ({0})")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if !text.starts_with("mysql://") {
            return Err(AddressError("it begins otherwise".to_owned()));
        }
        let options: MySqlConnectOptions =
            text.parse().map_err(|error: sqlx::Error| AddressError(error.to_string()))?;
        if options.get_database().is_none_or(str::is_empty) {
            return Err(AddressError("the name of the database is missing".to_owned()));
        }
        Ok(Self(Arc::new(options.charset("utf8mb4").disable_statement_logging())))
    }
}

impl fmt::Debug for Address {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql://{}/{}", self.0.get_host(), self.0.get_database().unwrap_or_default())
    }
}

/// Why a statement has not been done, by what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum StatementError {
    /// The database has ended it for the sake of another: after a rollback it can be tried again.
    #[error("the database is too busy: ask again ({0})")]
    Again(String),
    /// The database refuses it.
    #[error("the database refuses: {0}")]
    Refused(String),
    /// There is no connection, or not any more.
    #[error("the database does not answer: {0}")]
    Silent(String),
    /// It has taken too long, and the connection is closed.
    #[error("the database does not answer: nothing has come for {0} s")]
    Late(u64),
}

impl StatementError {
    fn of(error: &sqlx::Error) -> Self {
        let Some(refusal) = error.as_database_error() else { return Self::Silent(error.to_string()) };
        let number = refusal.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
        match number {
            Some(DEADLOCK | LOCK_WAIT) => Self::Again(refusal.to_string()),
            Some(IDLE | SHUTDOWN | KILLED | INTERRUPTED) => Self::Silent(refusal.to_string()),
            _ => Self::Refused(refusal.to_string()),
        }
    }
}

/// A connection, or none yet.
pub(super) struct LazyConnection {
    address: Address,
    /// Taken while a statement runs: if that is not awaited to its end, the connection goes with it.
    connection: Option<MySqlConnection>,
}

impl LazyConnection {
    pub(super) fn new(address: &Address) -> Self {
        Self { address: address.clone(), connection: None }
    }

    /// Closes the connection: whatever was begun on it the database takes back.
    pub(super) fn cut(&mut self) {
        self.connection = None;
    }

    /// The rows of all these statements.
    pub(super) async fn rows(&mut self, statements: impl SqlSafeStr) -> Result<Vec<MySqlRow>, StatementError> {
        let mut connection = self.take().await?;
        let done = within(raw_sql(statements).fetch_all(&mut connection)).await;
        self.keep(connection, done)
    }

    /// As [`Link::rows`], of statements that can be said twice; they are, if the connection has been lost since it was last used.
    pub(super) async fn rows_afresh(
        &mut self,
        statements: AssertSqlSafe<&str>,
    ) -> Result<Vec<MySqlRow>, StatementError> {
        let AssertSqlSafe(text) = statements;
        let is_used = self.connection.is_some();
        match self.rows(AssertSqlSafe(text.to_owned())).await {
            Err(StatementError::Silent(_)) if is_used => self.rows(AssertSqlSafe(text.to_owned())).await,
            other => other,
        }
    }

    /// Does all these statements.
    pub(super) async fn run(&mut self, statements: impl SqlSafeStr) -> Result<(), StatementError> {
        self.rows(statements).await.map(drop)
    }

    /// Does one statement with values; how many rows it has changed.
    pub(super) async fn execute(&mut self, query: Query<'_, MySql, MySqlArguments>) -> Result<u64, StatementError> {
        let mut connection = self.take().await?;
        let done = within(query.execute(&mut connection)).await;
        self.keep(connection, done).map(|result| result.rows_affected())
    }

    /// Takes back what was begun.
    pub(super) async fn roll_back(&mut self) {
        // If it fails the connection is closed, which comes to the same.
        if self.connection.is_some() && self.run("ROLLBACK").await.is_err() {
            self.cut();
        }
    }

    async fn take(&mut self) -> Result<MySqlConnection, StatementError> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let made = timeout(DATABASE_CONNECT_MAX, self.connect()).await;
        made.unwrap_or(Err(StatementError::Late(DATABASE_CONNECT_MAX.as_secs())))
    }

    /// Rows that do not match are not kept locked, which without an index are all the others.
    async fn connect(&self) -> Result<MySqlConnection, StatementError> {
        let mut connection = self.address.0.connect().await.map_err(|error| StatementError::of(&error))?;
        let settings = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}"
        );
        let set = raw_sql(AssertSqlSafe(settings)).execute(&mut connection).await;
        set.map(|_| connection).map_err(|error| StatementError::of(&error))
    }

    fn keep<T>(&mut self, connection: MySqlConnection, done: Result<T, StatementError>) -> Result<T, StatementError> {
        if matches!(done, Ok(_) | Err(StatementError::Again(_))) {
            self.connection = Some(connection);
        }
        done
    }
}

async fn within<T>(work: impl Future<Output = sqlx::Result<T>>) -> Result<T, StatementError> {
    match timeout(STORE_ANSWER_MAX, work).await {
        Ok(done) => done.map_err(|error| StatementError::of(&error)),
        Err(_) => Err(StatementError::Late(STORE_ANSWER_MAX.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_a_database_and_keeps_its_password() {
        let address: Address = "mysql://ada:secret@db.example:3307/events".parse().expect("it is an address");
        assert_eq!(format!("{address:?}"), "mysql://db.example/events");
        for other in ["", "events", "postgres://h/d", "mysql://", "mysql://h", "mysql://h/", "mysql://h:x/d"] {
            assert!(other.parse::<Address>().is_err(), "{other}");
        }
    }
}
