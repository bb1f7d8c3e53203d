//! One connection to a database. It opens when it is needed, and closes after an error other than
//! `StatementError::Again`.
//!
//! This module does not know the statements.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sqlx::mysql::{MySql, MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::query::Query;

use sqlx::{AssertSqlSafe, ConnectOptions, SqlSafeStr, raw_sql};
use thiserror::Error;
use tokio::time::timeout;

use crate::limits::{DATABASE_CONNECT_MAX, LOCK_WAIT_SECONDS, STORE_ANSWER_MAX};

/// Error number of a transaction that the database ended because two waited for each other.
const DEADLOCK: u16 = 1213;
/// Error number of a statement that has waited for a lock for too long.
const LOCK_WAIT: u16 = 1205;

/// Error numbers that the database sends before it closes a connection: it has been idle, …
const IDLE: u16 = 4031;
/// … the server shuts down, …
const SHUTDOWN: u16 = 1053;
/// … an administrator has killed it, …
const KILLED: u16 = 1927;
/// … or no bytes have come for too long.
const INTERRUPTED: u16 = 1159;

/// The address of a database, and the user to connect as.
#[derive(Clone)]
pub struct Address(Arc<MySqlConnectOptions>);

/// Why a text is no address.
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
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql://{}/{}", self.0.get_host(), self.0.get_database().unwrap_or_default())
    }
}

/// Why a statement has failed, sorted by the action that the caller can take.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum StatementError {
    /// The database has ended the transaction for the sake of another: after a rollback it can be tried again.
    #[error("the database is too busy: ask again ({0})")]
    Again(String),
    /// The database refuses the statement.
    #[error("the database refuses: {0}")]
    Refused(String),
    /// There is no connection, or it was lost.
    #[error("the database does not answer: {0}")]
    Silent(String),
    /// The statement has taken too long, and the connection is closed.
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
    /// Taken while a statement runs: if the statement is not awaited to its end, the connection is dropped with it.
    connection: Option<MySqlConnection>,
}

impl LazyConnection {
    pub(super) fn new(address: &Address) -> Self {
        Self { address: address.clone(), connection: None }
    }

    /// Closes the connection. The database rolls back an open transaction.
    pub(super) fn cut(&mut self) {
        self.connection = None;
    }

    /// The rows of all these statements.
    pub(super) async fn rows(&mut self, statements: impl SqlSafeStr) -> Result<Vec<MySqlRow>, StatementError> {
        let mut connection = self.take().await?;
        let done = within(raw_sql(statements).fetch_all(&mut connection)).await;
        self.keep(connection, done)
    }

    /// Like [`LazyConnection::rows`], for statements that may run twice. They do if the connection was lost since its
    /// last use.
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

    /// Runs all these statements.
    pub(super) async fn run(&mut self, statements: impl SqlSafeStr) -> Result<(), StatementError> {
        self.rows(statements).await.map(drop)
    }

    /// Runs one statement with values. Returns the number of changed rows.
    pub(super) async fn execute(&mut self, query: Query<'_, MySql, MySqlArguments>) -> Result<u64, StatementError> {
        let mut connection = self.take().await?;
        let done = within(query.execute(&mut connection)).await;
        self.keep(connection, done).map(|result| result.rows_affected())
    }

    /// Rolls back an open transaction.
    pub(super) async fn roll_back(&mut self) {
        // If ROLLBACK fails, the connection is closed, which has the same effect.
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

    /// Connects with the isolation level READ COMMITTED: it frees the locks of rows that do not match, which without an
    /// index are all other rows.
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
