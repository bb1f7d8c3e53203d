//! New events of a database: those that are asked for together share a transaction.
//!
//! ```text
//! wishes ─► take all that wait ─► START TRANSACTION; SELECT id FROM status FOR UPDATE     n
//!                                 UPDATE status SET id = n + k; INSERT INTO events …      n + 1 … n + k
//!                                 COMMIT ─► answer each
//! ```
//! Until COMMIT is said, whatever goes wrong has stored nothing. From then on only the database knows; a client hears that, and
//! nothing is tried again.
//!
//! What is not here: who asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sqlx::{AssertSqlSafe, Row};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::link::{Address, Failure, Link};
use crate::limits::{EVENT_WRITERS, EVENTS_PER_TRANSACTION, TRANSACTION_JITTER, TRANSACTION_TRIES};
use crate::protocols::events::chance::Chance;
use crate::protocols::events::store::Trouble;

const LOCK: &str = "START TRANSACTION; SELECT id FROM status FOR UPDATE";

/// An event that somebody wants.
pub(super) struct Wish {
    pub(super) value: Option<&'static str>,
    /// Hears its id when it is stored.
    pub(super) answer: oneshot::Sender<Result<u64, Trouble>>,
}

/// What writers share.
struct Shared {
    wishes: Mutex<Receiver<Wish>>,
    chance: Chance,
    /// Whether the last transaction of any of them has failed: it is said once.
    is_down: AtomicBool,
    /// What was done, for the end. Written by the writers; read when they have ended.
    transactions: AtomicU64,
    events: AtomicU64,
    retries: AtomicU64,
}

/// Writers that are to be started.
pub(in crate::protocols::events) struct Writers {
    address: Address,
    shared: Arc<Shared>,
}

/// Writers that run, until nobody is left who could wish.
pub(in crate::protocols::events) struct Writing {
    tasks: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Writers {
    pub(super) fn new(address: &Address, wishes: Receiver<Wish>) -> Self {
        let (transactions, events, retries) = Default::default();
        let (chance, is_down) = Default::default();
        let shared = Shared { wishes: Mutex::new(wishes), chance, is_down, transactions, events, retries };
        Self { address: address.clone(), shared: Arc::new(shared) }
    }

    /// Starts them, each in a task of its own.
    pub(in crate::protocols::events) fn start(self) -> Writing {
        let write = |_| tokio::spawn(write(Link::new(&self.address), Arc::clone(&self.shared)));
        Writing { tasks: (0..EVENT_WRITERS).map(write).collect(), shared: self.shared }
    }
}

impl Writing {
    /// Waits until they have done what they were asked.
    pub(in crate::protocols::events) async fn end(self) {
        for task in self.tasks {
            // One that has panicked has ended the process.
            let _ended = task.await;
        }
        // Relaxed: whoever wrote them has ended.
        let [events, transactions, retries] = [&self.shared.events, &self.shared.transactions, &self.shared.retries]
            .map(|count| count.load(Ordering::Relaxed));
        tracing::info!(events, transactions, retries, "all new events are stored");
    }
}

async fn write(mut link: Link, shared: Arc<Shared>) {
    loop {
        let mut wishes = Vec::new();
        let taken = shared.wishes.lock().await.recv_many(&mut wishes, EVENTS_PER_TRANSACTION).await;
        if taken == 0 {
            return;
        }
        match store_again(&mut link, &wishes, &shared).await {
            Ok(last) => {
                // Relaxed: it stands for itself.
                if shared.is_down.swap(false, Ordering::Relaxed) {
                    tracing::warn!("events are stored again");
                }
                // Relaxed: counts, read at the end.
                shared.transactions.fetch_add(1, Ordering::Relaxed);
                shared.events.fetch_add(taken as u64, Ordering::Relaxed);
                for (id, wish) in (last + 1..).zip(wishes) {
                    // Who has gone hears nothing, and the event is there.
                    let _gone = wish.answer.send(Ok(id));
                }
            }
            Err(trouble) => {
                // Relaxed: as above.
                if !shared.is_down.swap(true, Ordering::Relaxed) {
                    tracing::warn!("events are not acknowledged for now: {}", trouble.0);
                }
                for wish in wishes {
                    let _gone = wish.answer.send(Err(trouble.clone()));
                }
            }
        }
    }
}

/// Stores them, and tries again if the database has ended the transaction for the sake of another.
async fn store_again(link: &mut Link, wishes: &[Wish], shared: &Shared) -> Result<u64, Trouble> {
    let mut tries = 1;
    loop {
        match store(link, wishes).await {
            Err(Stopped::Before(Failure::Again(_))) if tries < TRANSACTION_TRIES => {
                link.roll_back().await;
                tries += 1;
                // Relaxed: a count, read at the end.
                shared.retries.fetch_add(1, Ordering::Relaxed);
                sleep(shared.chance.up_to(TRANSACTION_JITTER)).await;
            }
            Err(stopped) => {
                link.cut();
                return Err(stopped.into());
            }
            Ok(last) => return Ok(last),
        }
    }
}

/// Why a transaction has not come to its end.
enum Stopped {
    /// Nothing was stored.
    Before(Failure),
    /// The tables do not allow it.
    Unfit(String),
    /// It was asked to commit, and nobody has heard what came of it.
    Unknown(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Before(failure)
    }
}

impl From<Stopped> for Trouble {
    fn from(stopped: Stopped) -> Self {
        Self(match stopped {
            Stopped::Before(failure) => format!("nothing was stored: {failure}"),
            Stopped::Unfit(why) => format!("nothing was stored: {why}"),
            Stopped::Unknown(failure) => {
                format!("whether the event was stored is not known, look before you ask again: {failure}")
            }
        })
    }
}

/// One transaction. The id before the first of them.
async fn store(link: &mut Link, wishes: &[Wish]) -> Result<u64, Stopped> {
    let rows = link.rows_afresh(AssertSqlSafe(LOCK)).await?;
    let last = match &*rows {
        [row] => row.try_get::<i64, _>(0).ok().and_then(|id| u64::try_from(id).ok()),
        _ => None,
    };
    let last = last.ok_or_else(|| Stopped::Unfit("the table status must have one row, with the last id".to_owned()))?;
    let next = last + wishes.len() as u64;
    if i32::try_from(next).is_err() {
        return Err(Stopped::Unfit(
            "the column id has no room for more events: make it a BIGINT in both tables".to_owned(),
        ));
    }
    link.run(AssertSqlSafe(insertion(last, wishes))).await?;
    match link.run("COMMIT").await {
        // A cluster says so when another of its servers was first: the transaction is rolled back.
        Err(failure @ Failure::Again(_)) => Err(Stopped::Before(failure)),
        Err(failure) => Err(Stopped::Unknown(failure)),
        Ok(()) => Ok(last),
    }
}

/// Moves the last id on, and inserts the events. Their values are words of plain letters.
fn insertion(last: u64, wishes: &[Wish]) -> String {
    let mut text =
        format!("UPDATE status SET id = {}; INSERT INTO events (id, value) VALUES ", last + wishes.len() as u64);
    for (id, wish) in (last + 1..).zip(wishes) {
        if id > last + 1 {
            text.push(',');
        }
        match wish.value {
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
        let wish = |value| Wish { value, answer: oneshot::channel().0 };
        assert_eq!(
            insertion(6, &[wish(Some("heron")), wish(None)]),
            "UPDATE status SET id = 8; INSERT INTO events (id, value) VALUES (7,'heron'),(8,NULL)"
        );
    }
}
