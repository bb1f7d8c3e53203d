//! One connection to a database. It opens when it is needed, and closes after an error other than
//! `StatementError::Again`.
//!
//! This module does not know the statements.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySql, MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::query::Query;

use sqlx::{AssertSqlSafe, ConnectOptions, SqlSafeStr, raw_sql};
use thiserror::Error;
use tokio::time::timeout;

use crate::limits::{DATABASE_CONNECT_MAX, LOCK_WAIT_SECONDS, STATEMENT_GRACE, STORE_ANSWER_MAX};

/// READ COMMITTED frees the locks of rows that do not match, which without an index are all other rows.
const TRANSACTIONS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";
/// A statement alone is a transaction, and COMMIT ends one and begins none. In the strict mode an id that its column has
/// no room for is an error, and is not cut. No other mode changes what a text means: one of MariaDB makes NULL of an empty
/// value. A statement may change rows without a key, and read all of them. A table that is made can lock its rows. sqlx
/// sets the character set and the time zone.
const SESSION: &str = "autocommit = 1, completion_type = 'NO_CHAIN', \
                       sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, \
                       sql_select_limit = 18446744073709551615, sql_big_selects = 1, \
                       default_storage_engine = 'InnoDB'";

/// Error number of a transaction that the database ended because two waited for each other.
const DEADLOCK: u16 = 1213;
/// Error number of a statement that has waited for a lock for too long.
const LOCK_WAIT: u16 = 1205;

/// Error number of a value that its column has no room for.
const OUT_OF_RANGE: u16 = 1264;
/// Error numbers of a statement that MariaDB, or MySQL, has ended because it took too long.
const TOO_LONG: [u16; 2] = [1969, 3024];

/// Error numbers that the database sends before it closes a connection: it has been idle, …
const IDLE: u16 = 4031;
/// … the server shuts down, …
const SHUTDOWN: u16 = 1053;
/// … an administrator has killed it, …
const KILLED: u16 = 1927;
/// … or no bytes have come for too long.
const INTERRUPTED: u16 = 1159;

/// The address of a database, the user to connect as, and how long a statement may take.
#[derive(Clone)]
pub struct DatabaseAddress {
    options: Arc<MySqlConnectOptions>,
    has_password: bool,
    statement_seconds: u64,
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a database is mysql://USER:PASSWORD@HOST/DATABASE ({0})")]
pub struct AddressError(String);

impl FromStr for DatabaseAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if !text.starts_with("mysql://") {
            return Err(AddressError("it begins otherwise".to_owned()));
        }
        let options: MySqlConnectOptions =
            text.parse().map_err(|error: sqlx::Error| AddressError(error.to_string()))?;
        match options.get_database() {
            None | Some("") => return Err(AddressError("the name of the database is missing".to_owned())),
            // The password has a separator: the rest of it would count as a name.
            Some(name) if name.contains(['/', '@']) => {
                return Err(AddressError("write / ? # @ and % in a password as %2F %3F %23 %40 %25".to_owned()));
            }
            Some(_) => {}
        }
        let options = Arc::new(options.charset("utf8mb4").disable_statement_logging());
        let has_password = has_password(text);
        Ok(Self { options, has_password, statement_seconds: STORE_ANSWER_MAX.as_secs() })
    }
}

/// Whether the URL has a password, which may be empty: a colon in what stands before the last `@` of the authority.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

impl DatabaseAddress {
    /// Whether its URL has a password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.has_password
    }

    /// The same database, with this password. No character of it has a meaning.
    #[must_use]
    pub fn with_password(self, password: &str) -> Self {
        let options = Arc::new(MySqlConnectOptions::clone(&self.options).password(password));
        Self { options, has_password: true, ..self }
    }

    /// The same database, with another time for each statement.
    #[must_use]
    pub fn with_statement_seconds(self, statement_seconds: u64) -> Self {
        Self { statement_seconds, ..self }
    }

    /// How long to wait for the outcome of a statement.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.statement_seconds).saturating_add(STATEMENT_GRACE)
    }
}

impl fmt::Debug for DatabaseAddress {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mysql://{}/{}", self.options.get_host(), self.options.get_database().unwrap_or_default())
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
    /// A column has no room for the value.
    #[error("the database refuses: {0}")]
    OutOfRange(String),
    /// The statement has taken too long, and the connection is closed.
    #[error("the database does not answer: nothing has come for {0} s")]
    Late(u64),
}

impl StatementError {
    fn of(error: &sqlx::Error, statement_seconds: u64) -> Self {
        let Some(refusal) = error.as_database_error() else { return Self::Silent(error.to_string()) };
        let number = refusal.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
        match number {
            Some(DEADLOCK | LOCK_WAIT) => Self::Again(refusal.to_string()),
            Some(OUT_OF_RANGE) => Self::OutOfRange(refusal.to_string()),
            Some(number) if TOO_LONG.contains(&number) => Self::Late(statement_seconds),
            Some(IDLE | SHUTDOWN | KILLED | INTERRUPTED) => Self::Silent(refusal.to_string()),
            _ => Self::Refused(refusal.to_string()),
        }
    }
}

/// A connection, or none yet.
pub(super) struct LazyConnection {
    address: DatabaseAddress,
    /// Taken while a statement runs: if the statement is not awaited to its end, the connection is dropped with it.
    connection: Option<MySqlConnection>,
}

impl LazyConnection {
    pub(super) fn new(address: &DatabaseAddress) -> Self {
        Self { address: address.clone(), connection: None }
    }

    /// Closes the connection. The database rolls back an open transaction.
    pub(super) fn cut(&mut self) {
        self.connection = None;
    }

    /// The rows of all these statements.
    pub(super) async fn rows(&mut self, statements: impl SqlSafeStr) -> Result<Vec<MySqlRow>, StatementError> {
        let mut connection = self.take().await?;
        let done = self.within(raw_sql(statements).fetch_all(&mut connection)).await;
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
        let done = self.within(query.execute(&mut connection)).await;
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

    /// Connects, and sets all that the statements rely on: an operator may have set anything else for all sessions.
    async fn connect(&self) -> Result<MySqlConnection, StatementError> {
        let mut connection = self.address.options.connect().await.map_err(|error| self.judge(&error))?;
        let waits = format!("innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}, lock_wait_timeout = {LOCK_WAIT_SECONDS}");
        let settings = format!("{TRANSACTIONS}; SET SESSION {waits}, {SESSION}");
        let set = raw_sql(AssertSqlSafe(settings)).execute(&mut connection).await;
        set.map_err(|error| self.judge(&error))?;
        self.limit_statements(&mut connection).await?;
        Ok(connection)
    }

    /// Has the database end statements that take too long, so that none continues after its client has given it up.
    /// MariaDB and MySQL have a variable of their own for it. That of MySQL is for statements that read. Those that
    /// write take long only while they wait for a lock.
    async fn limit_statements(&self, connection: &mut MySqlConnection) -> Result<(), StatementError> {
        let seconds = self.address.statement_seconds;
        let of_maria_db = format!("SET SESSION max_statement_time = {seconds}");
        let of_mysql = format!("SET SESSION max_execution_time = {}", seconds.saturating_mul(1_000));
        for statement in [of_maria_db, of_mysql] {
            match raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await.map_err(|error| self.judge(&error))
            {
                // This database does not know the variable.
                Err(StatementError::Refused(_)) => {}
                done => return done.map(drop),
            }
        }
        Ok(())
    }

    fn judge(&self, error: &sqlx::Error) -> StatementError {
        StatementError::of(error, self.address.statement_seconds)
    }

    async fn within<T>(&self, work: impl Future<Output = sqlx::Result<T>>) -> Result<T, StatementError> {
        match timeout(self.address.patience(), work).await {
            Ok(done) => done.map_err(|error| self.judge(&error)),
            Err(_) => Err(StatementError::Late(self.address.patience().as_secs())),
        }
    }

    fn keep<T>(&mut self, connection: MySqlConnection, done: Result<T, StatementError>) -> Result<T, StatementError> {
        if matches!(done, Ok(_) | Err(StatementError::Again(_))) {
            self.connection = Some(connection);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_a_database_and_keeps_its_password() {
        let address: DatabaseAddress = "mysql://ada:secret@db.example:3307/events".parse().expect("it is an address");
        assert_eq!(format!("{address:?}"), "mysql://db.example/events");
        for other in ["", "events", "postgres://h/d", "mysql://", "mysql://h", "mysql://h/", "mysql://h:x/d"] {
            assert!(other.parse::<DatabaseAddress>().is_err(), "{other}");
        }
    }

    #[test]
    fn a_malformed_address_is_refused_without_a_part_of_its_password() {
        for password in
            ["sec/ret", "sec#ret", "sec?ret", "12/ret", "12#ret", "12?ret", "sec%zzret", "sec%FFret", "sec ret"]
        {
            for tail in ["@h/events", "@h:x/events", "@h", "@/events", ""] {
                let Err(refused) = format!("mysql://ada:{password}{tail}").parse::<DatabaseAddress>() else { continue };
                let said = refused.to_string();
                assert!(!said.contains("sec") && !said.contains("ret"), "{password}{tail}: {said}");
            }
        }
        assert!("mysql://ada:12/ret@h/events".parse::<DatabaseAddress>().is_err(), "the password is no database");
    }
}
