//! Events in a database that speaks MySQL's protocol: two tables, without keys or indexes.
//!
//! ```text
//! status  id INT                              one row: the last id that was given out
//! events  id INT, value VARCHAR(255) NULL     null while the event is pending
//!
//! add ─► wishes ─► writers: lock the row of status, move it on, insert, commit ─► the ids, each to who asked
//! ```
//! A transaction runs in a task of its own: a client that goes away does not cut it short. A connection on which something has gone
//! wrong is closed, and the database takes back what was begun on it.
//!
//! What is not here: how pending events get their values (`claims.rs`, for workers).

pub mod claims;
mod link;
mod setup;
mod writers;

use std::sync::{Arc, Mutex};

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row};
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

pub use link::{Address, NoAddress};
pub use setup::Unfit;
pub(super) use writers::Writers;

use super::store::Trouble;
use crate::limits::{EVENT_READERS, EVENTS_WAITING_MAX, STORE_ANSWER_MAX};
use link::Link;
use writers::Wish;

/// The store. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub(super) struct Database {
    wishes: Sender<Wish>,
    readers: Arc<Readers>,
}

/// Connections to ask on.
struct Readers {
    address: Address,
    places: Semaphore,
    idle: Mutex<Vec<Link>>,
}

impl Database {
    /// Makes the tables if they are missing, and sees whether the database is fit. What writes is to be started.
    ///
    /// # Errors
    /// [`Unfit`]
    pub(super) async fn open(address: &Address) -> Result<(Self, Writers), Unfit> {
        setup::prepare(address).await?;
        let (wishes, receiver) = channel(EVENTS_WAITING_MAX);
        let places = Semaphore::new(EVENT_READERS);
        let readers = Arc::new(Readers { address: address.clone(), places, idle: Mutex::default() });
        Ok((Self { wishes, readers }, Writers::new(address, receiver)))
    }

    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, Trouble> {
        let (answer, stored) = oneshot::channel();
        let ended = || Trouble("the server ends: ask again when it runs".to_owned());
        self.wishes.send(Wish { value, answer }).await.map_err(|_| ended())?;
        stored.await.map_err(|_| ended())?
    }

    pub(super) async fn count(&self) -> Result<u64, Trouble> {
        let rows = self.read("SELECT COUNT(*) FROM events").await?;
        let count = rows.first().map(|row| row.try_get::<i64, _>(0)).transpose().map_err(unreadable)?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
    }

    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, Trouble> {
        // No column of this type holds a larger one.
        let Ok(id) = i32::try_from(id) else { return Ok(None) };
        let rows = self.read(&format!("SELECT value FROM events WHERE id = {id} LIMIT 1")).await?;
        rows.first().map(|row| row.try_get(0)).transpose().map_err(unreadable)
    }

    pub(super) async fn check(&self) -> Result<(), Trouble> {
        self.read("SELECT id FROM status LIMIT 1").await.map(drop)
    }

    /// Rows of one statement that changes nothing.
    async fn read(&self, statement: &str) -> Result<Vec<MySqlRow>, Trouble> {
        let Readers { address, places, idle } = &*self.readers;
        let Ok(_place) = timeout(STORE_ANSWER_MAX, places.acquire()).await else {
            return Err(Trouble("the database does not answer those who have asked before".to_owned()));
        };
        let kept = idle.lock().expect("no thread panics while it has this").pop();
        let mut link = kept.unwrap_or_else(|| Link::new(address));
        let rows = link.rows_afresh(AssertSqlSafe(statement)).await;
        idle.lock().expect("no thread panics while it has this").push(link);
        rows.map_err(|failure| Trouble(failure.to_string()))
    }
}

fn unreadable(error: sqlx::Error) -> Trouble {
    Trouble(format!("the tables of the database are not as they should be ({error}): look at status and events"))
}
