//! Before anything is served: the tables, and whether the database does what is needed of it.
//!
//! What is not here: what is done with the tables.

use sqlx::Row;
use thiserror::Error;
use tokio::time::sleep;

use super::link::{Address, Failure, Link};
use crate::limits::TRANSACTION_JITTER;
use crate::protocols::events::chance::Chance;

/// How often a row is asked for that others have locked for a moment.
const TRIES: u32 = 1_000;

const STATUS: &str = "CREATE TABLE IF NOT EXISTS status (id INT)";
const EVENTS: &str = "CREATE TABLE IF NOT EXISTS events (id INT, value VARCHAR(255) CHARACTER SET utf8mb4 NULL)";
/// Of two who find no row neither can insert one before the other has given up: the database ends one of them.
const BEGIN: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION; SELECT id FROM status FOR UPDATE";
const FIRST: &str = "INSERT INTO status SELECT COALESCE(MAX(id), 0) FROM events; COMMIT";
const PROBE: &str = "START TRANSACTION; SELECT id FROM status LIMIT 1 FOR UPDATE SKIP LOCKED";

/// Why a database cannot be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    /// It is not there, or refuses.
    #[error("{0}; is the database running, and the user allowed to use it?")]
    Failed(String),
    /// It does not know SKIP LOCKED.
    #[error("the database does not know SKIP LOCKED: use MySQL 8, MariaDB 10.6 or later ({0})")]
    Old(String),
    /// It knows SKIP LOCKED, and locks nothing.
    #[error(
        "the database lends a locked row to two at once, so SKIP LOCKED locks nothing: use MySQL 8 or MariaDB with InnoDB"
    )]
    LocksNothing,
    /// The two tables are not alike.
    #[error("the tables status and events are of two engines: make both InnoDB")]
    Engines,
    /// The only row of status is always locked.
    #[error("somebody has locked the table status for too long: end that transaction, and start again")]
    Locked,
    /// There are several rows of status.
    #[error("the table status has {0} rows instead of one: leave only the one with the largest id")]
    Ids(usize),
}

impl From<Failure> for Unfit {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.to_string())
    }
}

const ENGINES: &str = "SELECT COUNT(DISTINCT engine) FROM information_schema.tables \
                       WHERE table_schema = DATABASE() AND table_name IN ('status', 'events')";

/// Makes the tables if they are missing, and sees whether locked rows are skipped.
pub(super) async fn prepare(address: &Address) -> Result<(), Unfit> {
    let chance = Chance::default();
    let (mut one, mut other) = (Link::new(address), Link::new(address));
    make_tables(&mut one).await?;
    make_row(&mut one, &chance).await?;
    let fit = probe(&mut one, &mut other, &chance).await;
    one.roll_back().await;
    other.roll_back().await;
    fit
}

/// A user who may make none may use those that are there.
async fn make_tables(link: &mut Link) -> Result<(), Unfit> {
    let mut refused = None;
    for table in [STATUS, EVENTS] {
        match link.run(table).await {
            Err(Failure::Refused(why)) => refused = Some(why),
            other => other?,
        }
    }
    let there = link.run("SELECT id FROM status LIMIT 0; SELECT id, value FROM events LIMIT 0").await;
    there.map_err(|failure| Unfit::Failed(refused.unwrap_or_else(|| failure.to_string())))?;
    // What is found out about the one holds for the other.
    let engines = link.rows(ENGINES).await?;
    let is_one = engines.first().is_none_or(|row| row.try_get::<i64, _>(0).is_ok_and(|engines| engines <= 1));
    if is_one { Ok(()) } else { Err(Unfit::Engines) }
}

/// The row with the last id: that of the events, if there are some.
async fn make_row(link: &mut Link, chance: &Chance) -> Result<(), Unfit> {
    for _ in 0..TRIES {
        let made = match link.rows(BEGIN).await {
            Ok(rows) if rows.is_empty() => link.run(FIRST).await,
            Ok(rows) => {
                link.roll_back().await;
                return if rows.len() == 1 { Ok(()) } else { Err(Unfit::Ids(rows.len())) };
            }
            Err(failure) => Err(failure),
        };
        match made {
            Err(Failure::Again(_)) => {
                link.roll_back().await;
                sleep(chance.up_to(TRANSACTION_JITTER)).await;
            }
            other => other?,
        }
    }
    Err(Unfit::Locked)
}

/// Two ask for the same row: one gets it, and the other none. Some engines understand the words and lock nothing.
async fn probe(one: &mut Link, other: &mut Link, chance: &Chance) -> Result<(), Unfit> {
    let old = |failure| match failure {
        Failure::Refused(why) => Unfit::Old(why),
        failure => failure.into(),
    };
    for _ in 0..TRIES {
        let rows = one.rows(PROBE).await.map_err(old)?;
        if rows.iter().any(|row| row.try_get::<i64, _>(0).is_ok()) {
            let second = other.rows(PROBE).await.map_err(old)?;
            return if second.is_empty() { Ok(()) } else { Err(Unfit::LocksNothing) };
        }
        // Another server has it, for the time of a transaction.
        one.roll_back().await;
        sleep(chance.up_to(TRANSACTION_JITTER)).await;
    }
    Err(Unfit::Locked)
}
