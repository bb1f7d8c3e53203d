//! `spindle worker`: gives pending events their values, in as many slots as it is told.
//!
//! ```text
//! slot:   queue.rs      Lend Block ─► value ─► Repay with Drop        heartbeats while a command runs
//!         database.rs   claim ─► values ─► store, commit              the rows are locked meanwhile
//! value:  a word, or the first line that a command prints (command.rs)
//! ```
//! A slot is a thread with a connection of its own. When the server or the database goes away it tries again until it is back. Told to
//! stop, a slot finishes the command that it runs, stores its value, gives back what else it holds, and ends.
//!
//! What is not here: signals and flags (`cli`), and what events are (`protocols::events`).

mod command;
mod database;
mod queue;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

pub use command::Command;

use crate::protocols::events::chance::Chance;
use crate::protocols::events::mysql::{Address, Unfit, claims::Claims};
use crate::protocols::events::words::word;
use crate::protocols::sockets::Stopper;
use crate::protocols::spiderq::client::{self, Client};
use crate::threads;

/// How long a slot waits after something has failed, and how much longer at most.
const PAUSE: Duration = Duration::from_millis(500);

/// Where events are.
#[derive(Clone, Debug)]
pub enum Source {
    /// In the queue of a server, at this endpoint.
    Queue(String),
    /// In a database.
    Database(Address),
}

/// What the worker is told to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where events are.
    pub source: Source,
    /// What gives them values; without one they are words.
    pub command: Option<Command>,
    /// How many events are worked on at once.
    pub slots: usize,
    /// How many events are claimed from a database at once.
    pub claim: usize,
    /// How long an event of a queue is lent at a time.
    pub lease: Duration,
}

/// Why a worker does not start.
#[derive(Debug, Error)]
pub enum Error {
    /// There is no server.
    #[error(transparent)]
    Server(#[from] client::Error),
    /// There is no database, or none to rely on.
    #[error(transparent)]
    Database(#[from] Unfit),
    /// The system gives no more threads or descriptors.
    #[error("the system gives no more threads or descriptors: {0}")]
    System(#[from] io::Error),
}

/// What was done. Counted by the slots.
#[derive(Debug, Default)]
struct Counts {
    stored: AtomicU64,
    given_back: AtomicU64,
    lost: AtomicU64,
    retries: AtomicU64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events that have got their value here.
    pub stored: u64,
    /// Events that are pending again, since there was no good value.
    pub given_back: u64,
    /// Values of which is not known that they were stored: the lease had ended, or the store had gone.
    pub lost: u64,
    /// Transactions that were tried again.
    pub retries: u64,
}

/// What all slots share.
struct Shop {
    config: Config,
    stopper: Stopper,
    chance: Chance,
    counts: Counts,
}

/// A worker that runs in threads of this process. Dropping it stops it.
pub struct Running {
    shop: Arc<Shop>,
    slots: Vec<JoinHandle<()>>,
}

/// Starts the slots, once the server or the database is there.
///
/// # Errors
/// [`Error`]
pub fn start(config: Config) -> Result<Running, Error> {
    match &config.source {
        Source::Queue(endpoint) => Client::connect(endpoint)?.ping()?,
        Source::Database(address) => Claims::prepare(address)?,
    }
    let shop = Shop { config, stopper: Stopper::new()?, chance: Chance::default(), counts: Counts::default() };
    let mut running = Running { shop: Arc::new(shop), slots: Vec::new() };
    for number in 0..running.shop.config.slots {
        let shop = Arc::clone(&running.shop);
        running.slots.push(match running.shop.config.source.clone() {
            Source::Queue(endpoint) => {
                threads::spawn(&format!("worker-{number}"), None, move || queue::work(&shop, &endpoint))?
            }
            Source::Database(address) => {
                let claims = Claims::new(&address)?;
                threads::spawn(&format!("worker-{number}"), None, move || database::work(&shop, claims))?
            }
        });
    }
    Ok(running)
}

impl Running {
    /// Takes no more events, finishes what runs, and says what was done.
    #[must_use]
    pub fn stop(mut self) -> Totals {
        self.end();
        let Counts { stored, given_back, lost, retries } = &self.shop.counts;
        // Relaxed: whoever counted has ended.
        let [stored, given_back, lost, retries] =
            [stored, given_back, lost, retries].map(|count| count.load(Ordering::Relaxed));
        Totals { stored, given_back, lost, retries }
    }

    fn end(&mut self) {
        self.shop.stopper.stop();
        tracing::info!("stopping: no more events are taken, and what runs is finished");
        for slot in self.slots.drain(..) {
            // A thread that panics has ended the process.
            let _ended = slot.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shop {
    /// The value of an event, or why there is none. `beat` is called now and then while a command runs, and says whether it goes on.
    fn value(&self, id: u64, beat: impl FnMut() -> bool) -> Result<String, String> {
        match &self.config.command {
            Some(command) => command.run(id, self.config.lease / 3, beat),
            None => Ok(word(self.chance.draw()).to_owned()),
        }
    }

    fn stored(&self, id: u64, value: &str) {
        // Relaxed: a count, read at the end; so are the others.
        self.counts.stored.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(id, value, "stored");
    }

    fn given_back(&self, id: u64, why: &str) {
        self.counts.given_back.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("event {id} goes back: {why}");
    }

    fn lost(&self, id: u64, why: &str) {
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("the value of event {id} was not stored, as far as is known: {why}");
    }

    fn retried(&self, retries: u64) {
        self.counts.retries.fetch_add(retries, Ordering::Relaxed);
    }

    /// Waits for so long and up to as much again, or until it is told to stop.
    fn pause(&self, time: Duration, jitter: Duration) {
        let time = time + self.chance.up_to(jitter);
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        // The bell is not silenced: it rings for all slots. A signal cuts the wait short, which does no harm.
        let _rung = poll(&mut [PollFd::from_borrowed_fd(self.stopper.bell().as_fd(), PollFlags::IN)], Some(&time));
    }
}

/// Says that a source has gone, and that it is back, once each.
#[derive(Default)]
struct Notice {
    gone: bool,
}

impl Notice {
    fn gone(&mut self, why: &str) {
        if !std::mem::replace(&mut self.gone, true) {
            tracing::warn!("no events for now, trying again: {why}");
        }
    }

    fn back(&mut self) {
        if std::mem::take(&mut self.gone) {
            tracing::warn!("events come again");
        }
    }
}
