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

pub use command::EventCommand;

use crate::protocols::events::jitter::Jitter;
use crate::protocols::events::mysql::{Address, UnsuitableDatabase, claims::Claims};
use crate::protocols::events::words::word;
use crate::protocols::sockets::Stopper;
use crate::protocols::spiderq::client::{self, Client};
use crate::threads;

/// How long a slot waits after something has failed, and how much longer at most.
const PAUSE: Duration = Duration::from_millis(500);

/// Where events are.
#[derive(Clone, Debug)]
pub enum WorkerSource {
    /// In the queue of a server, at this endpoint.
    Queue(String),
    /// In a database.
    Database(Address),
}

/// What the worker is told to be.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Where events are.
    pub source: WorkerSource,
    /// What gives them values; without one they are words.
    pub command: Option<EventCommand>,
    /// How many events are worked on at once.
    pub slots: usize,
    /// How many events are claimed from a database at once.
    pub claim: usize,
    /// How long an event of a queue is lent at a time.
    pub lease: Duration,
}

/// Why a worker does not start.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// There is no server.
    #[error(transparent)]
    Server(#[from] client::Error),
    /// There is no database, or none to rely on.
    #[error(transparent)]
    Database(#[from] UnsuitableDatabase),
    /// The system gives no more threads or descriptors.
    #[error("the system gives no more threads or descriptors: {0}")]
    System(#[from] io::Error),
}

/// What was done. Counted by the slots.
#[derive(Debug, Default)]
struct WorkerCounts {
    stored: AtomicU64,
    given_back: AtomicU64,
    lost: AtomicU64,
    retries: AtomicU64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTotals {
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
struct WorkerShared {
    config: WorkerConfig,
    stopper: Stopper,
    chance: Jitter,
    counts: WorkerCounts,
}

/// A worker that runs in threads of this process. Dropping it stops it.
pub struct RunningWorker {
    shared: Arc<WorkerShared>,
    slots: Vec<JoinHandle<()>>,
}

/// Starts the slots, once the server or the database is there.
///
/// # Errors
/// [`Error`]
pub fn start(config: WorkerConfig) -> Result<RunningWorker, WorkerError> {
    match &config.source {
        WorkerSource::Queue(endpoint) => Client::connect(endpoint)?.ping()?,
        WorkerSource::Database(address) => Claims::prepare(address)?,
    }
    let shared =
        WorkerShared { config, stopper: Stopper::new()?, chance: Jitter::default(), counts: WorkerCounts::default() };
    let mut running = RunningWorker { shared: Arc::new(shared), slots: Vec::new() };
    for number in 0..running.shared.config.slots {
        let shared = Arc::clone(&running.shared);
        running.slots.push(match running.shared.config.source.clone() {
            WorkerSource::Queue(endpoint) => {
                threads::spawn(&format!("worker-{number}"), None, move || queue::work(&shared, &endpoint))?
            }
            WorkerSource::Database(address) => {
                let claims = Claims::new(&address)?;
                threads::spawn(&format!("worker-{number}"), None, move || database::work(&shared, claims))?
            }
        });
    }
    Ok(running)
}

impl RunningWorker {
    /// Takes no more events, finishes what runs, and says what was done.
    #[must_use]
    pub fn stop(mut self) -> WorkerTotals {
        self.end();
        let WorkerCounts { stored, given_back, lost, retries } = &self.shared.counts;
        // Relaxed: whoever counted has ended.
        let [stored, given_back, lost, retries] =
            [stored, given_back, lost, retries].map(|count| count.load(Ordering::Relaxed));
        WorkerTotals { stored, given_back, lost, retries }
    }

    fn end(&mut self) {
        self.shared.stopper.stop();
        tracing::info!("stopping: no more events are taken, and what runs is finished");
        for slot in self.slots.drain(..) {
            // A thread that panics has ended the process.
            let _ended = slot.join();
        }
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.end();
    }
}

impl WorkerShared {
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
struct SourceNotice {
    gone: bool,
}

impl SourceNotice {
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
