//! `spindle worker`, which gives pending events their values, and `spindle task work` and `job work`, in a given number of
//! slots.
//!
//! ```text
//! slot:   queue.rs      Lend Block ─► value ─► Repay with Drop        ┐ heartbeats while a command runs (lease.rs)
//!         work.rs       LendMany, WAIT ─► command ─► done, given back ┘
//!         database.rs   claim ─► values ─► store, commit              the rows are locked meanwhile
//! value:  a word, or the first line that a command prints (command.rs, running.rs)
//! ```
//! A slot is a thread with a connection of its own. When the server or the database goes away, the slot retries until
//! it is back. When the worker is stopped, each slot finishes its command, stores its value, gives back its other
//! events, and ends.
//!
//! This module handles no signals or flags (see `cli`) and does not define events (see `services::events`).

mod command;
mod database;
mod lease;
mod queue;
mod running;
#[cfg(test)]
mod tests;
mod work;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

pub use command::EventCommand;
pub use work::WorkCommand;

use crate::clients::rust::jobs::{self, JobsClient};
use crate::clients::rust::tasks::{self, Disconnected, TIMEOUT_DEFAULT, TasksClient};
use crate::net::sockets::{Stopper, WakeSignal};
use crate::services::events::jitter::Jitter;
use crate::services::events::mysql::claims::Claims;
use crate::services::events::mysql::{DatabaseAddress, UnsuitableDatabase};
use crate::services::events::words::word;
use crate::services::jobs::wire::JobId;
use crate::services::tasks::wire::{LeaseEnd, NamedLease};
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

/// The queues whose work a command does.
#[derive(Clone, Debug)]
pub enum WorkSource {
    /// Of tasks, at this endpoint.
    Tasks {
        /// The endpoint.
        endpoint: String,
        /// Their names.
        queues: Vec<Vec<u8>>,
    },
    /// Of jobs.
    Jobs {
        /// The client of the server.
        client: JobsClient,
        /// The name of the queue.
        queue: Vec<u8>,
    },
}

/// The settings of a worker that runs a command for each task or job.
#[derive(Clone, Debug)]
pub struct WorkConfig {
    /// The queues.
    pub source: WorkSource,
    /// The command.
    pub command: WorkCommand,
    /// The number of commands that run at once.
    pub slots: usize,
    /// The length of a lease.
    pub lease: Duration,
}

/// Why a worker does not start.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The server does not answer.
    #[error(transparent)]
    Server(#[from] tasks::Error),
    /// The server of jobs does not answer, or refuses.
    #[error(transparent)]
    Jobs(#[from] jobs::Error),
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
    /// Events whose value this worker stored, or tasks and jobs that are done.
    pub stored: u64,
    /// Those that are pending again, because there was no good value, or the command has failed.
    pub given_back: u64,
    /// Those that are possibly not stored or done, because the lease had ended or the store had gone.
    pub lost: u64,
    /// Transactions that were retried.
    pub retries: u64,
}

/// How the slots of a worker wait and end.
struct SlotControl {
    stopper: Stopper,
    /// Raised by `stopper`.
    wake_signal: WakeSignal,
    jitter: Jitter,
}

/// State shared by all slots that give values to events.
struct WorkerShared {
    config: WorkerConfig,
    control: Arc<SlotControl>,
    counts: Arc<WorkerCounts>,
}

/// State shared by all slots that run a command for each task or job.
struct WorkShared {
    command: WorkCommand,
    lease: Duration,
    control: Arc<SlotControl>,
    counts: Arc<WorkerCounts>,
}

/// A worker that runs in threads of this process. Dropping it stops it.
pub struct RunningWorker {
    control: Arc<SlotControl>,
    counts: Arc<WorkerCounts>,
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
    let mut running = RunningWorker::new()?;
    let (control, counts) = (Arc::clone(&running.control), Arc::clone(&running.counts));
    let shared = Arc::new(WorkerShared { config, control, counts });
    for _ in 0..shared.config.slots {
        let own = Arc::clone(&shared);
        match shared.config.source.clone() {
            WorkerSource::Queue(endpoint) => running.start(move || queue::work(&own, &endpoint))?,
            WorkerSource::Database(address) => {
                let claims = Claims::new(&address)?;
                running.start(move || database::work(&own, claims))?;
            }
        }
    }
    Ok(running)
}

/// Starts the slots of a worker that runs a command for each task or job, once the server answers.
///
/// # Errors
/// [`WorkerError`] if the server does not answer or refuses, or the system has no more threads or descriptors.
pub fn start_work(config: WorkConfig) -> Result<RunningWorker, WorkerError> {
    let WorkConfig { source, command, slots, lease } = config;
    match &source {
        WorkSource::Tasks { endpoint, queues } => {
            reach(endpoint)?;
            may_work(endpoint, queues)?;
        }
        WorkSource::Jobs { client, queue } => reach_jobs(client, queue)?,
    }
    let mut running = RunningWorker::new()?;
    let (control, counts) = (Arc::clone(&running.control), Arc::clone(&running.counts));
    let shared = Arc::new(WorkShared { command, lease, control, counts });
    for _ in 0..slots {
        let own = Arc::clone(&shared);
        match &source {
            WorkSource::Tasks { endpoint, queues } => {
                let lender = work::TaskLender::new(endpoint, queues.clone(), lease);
                running.start(move || work::work(&own, lender))?;
            }
            WorkSource::Jobs { client, queue } => {
                let lender = work::JobLender::new(client, queue, lease);
                running.start(move || work::work(&own, lender))?;
            }
        }
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

/// Asks for what changes nothing, and needs the permission of a worker: there are no such leases.
fn may_work(endpoint: &str, queues: &[Vec<u8>]) -> Result<(), tasks::Error> {
    let leases = queues.iter().map(|queue| (NamedLease { queue, lend_key: 0, key: b"" }, LeaseEnd::NotBegun));
    TasksClient::connect_within(endpoint, TIMEOUT_DEFAULT)?.settle_many(leases.collect()).map(drop)
}

/// Returns when the server of jobs answers. If it does not answer at once, the log says that the worker waits.
fn reach_jobs(client: &JobsClient, queue: &[u8]) -> Result<(), jobs::Error> {
    let ask = |timeout: Duration| {
        let mut client = client.clone();
        client.set_connect_timeout(timeout);
        // There is no such job. The request needs the permission of a worker.
        client.ack(queue, JobId(0)).map(drop)
    };
    match ask(AT_ONCE) {
        Err(jobs::Error::NoAnswer { address, .. }) => {
            let seconds = TIMEOUT_DEFAULT.as_secs();
            tracing::info!("no server answers at {address} yet: the worker waits for one, for {seconds} s at most");
            ask(TIMEOUT_DEFAULT)
        }
        answer => answer,
    }
}

impl RunningWorker {
    /// A worker without a slot.
    fn new() -> io::Result<Self> {
        let wake_signal = WakeSignal::new()?;
        let control = SlotControl { stopper: Stopper::new(&wake_signal), wake_signal, jitter: Jitter::default() };
        Ok(Self { control: Arc::new(control), counts: Arc::default(), slots: Vec::new() })
    }

    /// Starts a further slot.
    fn start(&mut self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let name = format!("worker-{}", self.slots.len());
        self.slots.push(threads::spawn(&name, None, work)?);
        Ok(())
    }

    /// Takes no more work, finishes the running commands, and returns the totals.
    #[must_use]
    pub fn stop(mut self) -> WorkerTotals {
        self.end();
        let WorkerCounts { stored, given_back, lost, retries } = &*self.counts;
        // Relaxed: the slots have been joined.
        let [stored, given_back, lost, retries] =
            [stored, given_back, lost, retries].map(|count| count.load(Ordering::Relaxed));
        WorkerTotals { stored, given_back, lost, retries }
    }

    /// Does nothing when the slots have ended.
    fn end(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        self.control.stopper.stop();
        tracing::info!("stopping: nothing more is taken, and what runs is finished");
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
    /// Returns the value of an event, or why there is none. If a command is run, `beat` is called before, and then each
    /// time that it has returned. `None`: the event is lost.
    fn value(&self, id: u64, beat: impl FnMut() -> Option<Duration>) -> Result<String, String> {
        match &self.config.command {
            Some(command) => command.run(id, beat),
            None => Ok(word(self.control.jitter.draw()).to_owned()),
        }
    }

    fn stored(&self, id: u64, value: &str) {
        self.counts.stored(&format!("event {id}"));
        tracing::debug!(id, value, "stored");
    }

    fn given_back(&self, id: u64, why: &str) {
        self.counts.given_back(&format!("event {id}"), why);
    }

    fn lost(&self, id: u64, why: &str) {
        self.counts.lost(&format!("the value of event {id}"), why);
    }

    fn retried(&self, retries: u64) {
        self.counts.retries.fetch_add(retries, Ordering::Relaxed);
    }

    fn pause(&self, time: Duration, jitter: Duration) {
        self.control.pause(time, jitter);
    }
}

/// Of something by its name.
impl WorkerCounts {
    fn stored(&self, name: &str) {
        // Relaxed: a count that publishes no data and is read at the end. The other counts are the same.
        self.stored.fetch_add(1, Ordering::Relaxed);
        tracing::debug!("{name} is done");
    }

    fn given_back(&self, name: &str, why: &str) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("{name} goes back: {why}");
    }

    fn lost(&self, name: &str, why: &str) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("{name} was not stored or done, as far as is known: {why}");
    }
}

impl SlotControl {
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
            tracing::warn!("nothing comes for now, trying again: {why}");
        }
    }

    fn back(&mut self) {
        if std::mem::take(&mut self.gone) {
            tracing::warn!("the server or the database is back");
        }
    }
}
