//! `spindle worker`: gives pending events their values, in a given number of slots.
//!
//! ```text
//! slot:   queue.rs      Lend Block ─► value ─► Repay with Drop        heartbeats while a command runs
//!         database.rs   claim ─► values ─► store, commit              the rows are locked meanwhile
//! value:  a word, or the first line that a command prints (command.rs)
//! ```
//! A slot is a thread with a connection of its own. When the server or the database goes away, the slot retries until
//! it is back. When the worker is stopped, each slot finishes its command, stores its value, gives back its other
//! events, and ends.
//!
//! This module handles no signals or flags (see `cli`) and does not define events (see `services::events`).

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

use crate::clients::rust::tasks::{self, Disconnected, TIMEOUT_DEFAULT, TasksClient};
use crate::net::sockets::{Stopper, WakeSignal};
use crate::services::events::jitter::Jitter;
use crate::services::events::mysql::claims::Claims;
use crate::services::events::mysql::{DatabaseAddress, UnsuitableDatabase};
use crate::services::events::words::word;
use crate::threads;

/// How long a slot waits after a failure: long enough to spare a database that is down, short beside a restart. A
/// random time of up to as much is added, so that the slots of many workers do not come back together.
const PAUSE: Duration = Duration::from_millis(500);

/// A server that answers within this time is there: as long as a client command waits for one.
const AT_ONCE: Duration = Duration::from_millis(300);

/// The location of the events.
#[derive(Clone, Debug)]
pub enum WorkerSource {
    /// In the queue of a server, at this endpoint.
    Queue(String),
    /// In a database.
    Database(DatabaseAddress),
}

/// The settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The location of the events.
    pub source: WorkerSource,
    /// The command that produces values. Without one, values are words.
    pub command: Option<EventCommand>,
    /// The number of events that are worked on at once.
    pub slots: usize,
    /// The number of events that one claim takes from a database.
    pub claim: usize,
    /// The length of a lease on an event of a queue.
    pub lease: Duration,
}

/// Why a worker does not start.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The server does not answer.
    #[error(transparent)]
    Server(#[from] tasks::Error),
    /// The database cannot be reached, or is unsuitable.
    #[error(transparent)]
    Database(#[from] UnsuitableDatabase),
    /// The system gives no more threads or descriptors.
    #[error("the system gives no more threads or descriptors: {0}")]
    System(#[from] io::Error),
}

/// The counts of a worker. Written by the slots.
#[derive(Debug, Default)]
struct WorkerCounts {
    stored: AtomicU64,
    given_back: AtomicU64,
    lost: AtomicU64,
    retries: AtomicU64,
}

/// The totals of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTotals {
    /// Events whose value this worker stored.
    pub stored: u64,
    /// Events that are pending again, because there was no good value.
    pub given_back: u64,
    /// Values that are possibly not stored, because the lease had ended or the store had gone.
    pub lost: u64,
    /// Transactions that were retried.
    pub retries: u64,
}

/// State shared by all slots.
struct WorkerShared {
    config: WorkerConfig,
    stopper: Stopper,
    /// Raised by `stopper`.
    wake_signal: WakeSignal,
    jitter: Jitter,
    counts: WorkerCounts,
}

/// A worker that runs in threads of this process. Dropping it stops it.
pub struct RunningWorker {
    shared: Arc<WorkerShared>,
    slots: Vec<JoinHandle<()>>,
}

/// Starts the slots, once the server or the database answers.
///
/// # Errors
/// [`WorkerError`] if the server or the database does not answer, or the system has no more threads or descriptors.
pub fn start(config: WorkerConfig) -> Result<RunningWorker, WorkerError> {
    match &config.source {
        WorkerSource::Queue(endpoint) => reach(endpoint)?,
        WorkerSource::Database(address) => Claims::prepare(address)?,
    }
    let wake_signal = WakeSignal::new()?;
    let shared = WorkerShared {
        config,
        stopper: Stopper::new(&wake_signal),
        wake_signal,
        jitter: Jitter::default(),
        counts: WorkerCounts::default(),
    };
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

/// Returns when the server answers. If it does not answer at once, the log says that the worker waits.
fn reach(endpoint: &str) -> Result<(), tasks::Error> {
    let ask = |timeout: Duration| TasksClient::connect_within(endpoint, timeout)?.ping();
    match ask(AT_ONCE) {
        Err(tasks::Error::Disconnected(Disconnected::NoAnswer { .. } | Disconnected::Refused { .. })) => {
            let seconds = TIMEOUT_DEFAULT.as_secs();
            tracing::info!("no server answers at {endpoint} yet: the worker waits for one, for {seconds} s at most");
            ask(TIMEOUT_DEFAULT)
        }
        answer => answer,
    }
}

impl RunningWorker {
    /// Takes no more events, finishes the running commands, and returns the totals.
    #[must_use]
    pub fn stop(mut self) -> WorkerTotals {
        self.end();
        let WorkerCounts { stored, given_back, lost, retries } = &self.shared.counts;
        // Relaxed: the slots have been joined.
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
    /// Returns the value of an event, or why there is none. While a command runs, `beat` is called three times in each
    /// lease and returns whether to continue.
    fn value(&self, id: u64, beat: impl FnMut() -> bool) -> Result<String, String> {
        match &self.config.command {
            Some(command) => command.run(id, self.config.lease / 3, beat),
            None => Ok(word(self.jitter.draw()).to_owned()),
        }
    }

    fn stored(&self, id: u64, value: &str) {
        // Relaxed: a count that publishes no data and is read at the end. The other counts are the same.
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

    /// Waits for `time` plus a random part of `jitter`, or until the worker is stopped.
    fn pause(&self, time: Duration, jitter: Duration) {
        let time = time + self.jitter.up_to(jitter);
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        // The wake signal is not cleared, because it is for all slots. A signal may cut the wait short, which does no
        // harm.
        let _raised = poll(&mut [PollFd::from_borrowed_fd(self.wake_signal.as_fd(), PollFlags::IN)], Some(&time));
    }
}

/// Logs once that a source has gone, and once that it is back.
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
