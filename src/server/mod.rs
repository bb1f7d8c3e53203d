//! The composition root: every thread and channel of the server is made here, and ended here in reverse order.
//!
//! ```text
//! run ─► raise descriptors ─► start ─────────────────────────► "ready" ─► wait for a signal ─► stop ─► exit 0
//!                              │ clock, tables, kv::serve::bind                                  │
//!                              │ threads: expiry, reaper, compactor, publisher, kv-report,       │
//!                              │ kv-worker-i, and kv-queue, or, where workers have the           │
//!                              │ connections, kv-accept                                          │
//!                              │ if tasks, jobs or events are on: the store, threads: committer, │
//!                              └ spiderq, jobs-io, events-io and events-queue                    │
//!     these four answer what was taken, then the committer has all on disk ◄─────────────────────┤
//!     kv-queue answers what was taken and ends the workers, or these do and end ◄────────────────┤
//!     tables close: expiry, reaper, compactor end, the publisher when all is announced ◄─────────┤
//!     the last lines of the log are written ◄────────────────────────────────────────────────────┘
//! ```
//! Each face has `LINGER` for its answers, all at the same time, and then the publisher for its notifications: with what is between
//! them that is less than `STOP_MAX`, whatever peers do.
//! A second signal ends the process at once.
//!
//! What is not here: arguments (`cli` makes the [`ServerConfig`]), and anything that a thread does.
//!
#![doc = include_str!("../OPERATION.md")]
#![doc = include_str!("../TUNING.md")]

mod cores;
mod memory;
mod signals;
mod tasks;
#[cfg(test)]
mod trial;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use thiserror::Error;

pub use crate::descriptors::raise as raise_descriptor_limit;
pub use cores::{Pin, workers_default};
pub use memory::available_bytes;
pub use signals::SignalWatch as Signals;
pub use tasks::TasksConfig;

use crate::allocator;
use crate::clock::{Clock, wall_millis, wall_nanos};
use crate::descriptors;
use crate::limits::{CHANGES_PER_WRITER, CLIENT_BYTES_DEFAULT};
use crate::protocols::events::mysql::Address;
use crate::protocols::events::serve as events;
use crate::protocols::jobs::serve as jobs;
use crate::protocols::kv::serve::{self, Frontend, FrontendKind, Kv};
use crate::protocols::sockets::{ServeError, SocketContext, Stopper};
use crate::store;
use crate::tables::{BackgroundThreads, Tables, TablesConfig};
use crate::threads;

/// What the server is told to be.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where requests come in; empty is off.
    pub kv: Vec<String>,
    /// Who reads the connections of their clients.
    pub frontend: FrontendKind,
    /// Where notifications go out, if anywhere.
    pub publish: Option<String>,
    /// Notifications that a subscriber may fall behind.
    pub publish_hwm: i32,
    /// Longest value, in bytes.
    pub max_value: usize,
    /// What all elements together may take, in bytes.
    pub max_memory: u64,
    /// How many tables there may be at once.
    pub max_tables: usize,
    /// What a client may have outstanding, in bytes.
    pub client_bytes_max: u64,
    /// Elements that a new table is laid out for.
    pub expected_keys: usize,
    /// Threads that answer requests; 0 is [`workers_default`].
    pub workers: usize,
    /// Which cores these are tied to.
    pub pin: Pin,
    /// Threads in which libzmq reads and writes.
    pub io_threads: i32,
    /// The allocator that was asked for. It is in use since the process began, or it is not: nothing here changes it.
    pub allocator: allocator::Choice,
    /// Durable tasks and jobs, and events in the same store, if any is on.
    pub tasks: Option<TasksConfig>,
    /// Events over HTTP, if they are on.
    pub events: Option<EventsConfig>,
}

/// What events are told to be.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// Where requests come in.
    pub address: SocketAddr,
    /// The database that they are kept in; without one they are where the tasks are.
    pub database: Option<Address>,
}

/// Why the server does not run.
#[derive(Debug, Error)]
pub enum Error {
    /// The frontend could not be made.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Events cannot be served.
    #[error(transparent)]
    Events(#[from] events::Error),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The system makes no more threads.
    #[error("the system makes no more threads: {0}")]
    Thread(#[source] io::Error),
    /// The system does not tell about signals.
    #[error("signals cannot be waited for: {0}")]
    Signals(#[source] io::Error),
    /// A core to pin to that this process may not use.
    #[error("--pin names core {core}, but this process may use {usable:?}")]
    NoSuchCore {
        /// As given.
        core: usize,
        /// What there is.
        usable: Vec<usize>,
    },
}

/// Runs the server until SIGINT or SIGTERM, and ends it cleanly. Prints on standard output what listens where, one line
/// each, then `ready`.
///
/// # Errors
/// [`Error`] if it cannot start.
pub fn run(config: ServerConfig) -> Result<(), Error> {
    let signals = signals::SignalWatch::new().map_err(Error::Signals)?;
    descriptors::reserve();
    warn_of_allocator(config.allocator);
    if config.tasks.is_some() {
        memory::avoid_huge_pages();
    }
    let running = start_with(config, signals.serving(), Box::new(signals.ender()))?;
    descriptors::warn_if_full();
    print_ready(&running);
    signals.wait();
    running.stop();
    Ok(())
}

/// Says so when memory comes from elsewhere than was asked for.
fn warn_of_allocator(asked: allocator::Choice) {
    let in_use = allocator::in_use();
    if in_use != asked {
        tracing::warn!("the allocator is {in_use}, not {asked}: it is chosen before the program begins");
    }
}

fn print_ready(running: &RunningServer) {
    let mut text = String::new();
    for endpoint in running.kv() {
        text.push_str(&format!("kv {endpoint}\n"));
    }
    if let Some(endpoint) = running.publish() {
        text.push_str(&format!("publish {endpoint}\n"));
    }
    if let Some(endpoint) = running.tasks() {
        text.push_str(&format!("tasks {endpoint}\n"));
    }
    if let Some(address) = running.jobs() {
        text.push_str(&format!("jobs {address}\n"));
    }
    if let Some(address) = running.events() {
        text.push_str(&format!("events {address}\n"));
    }
    if let Some(endpoint) = running.events_queue() {
        text.push_str(&format!("events-queue {endpoint}\n"));
    }
    text.push_str("ready\n");
    let mut out = io::stdout().lock();
    // The server serves also when nobody reads what it prints.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A server that runs in threads of this process. Dropping it stops it.
pub struct RunningServer {
    kv: Vec<String>,
    publish: Option<String>,
    tasks: Option<String>,
    jobs: Option<SocketAddr>,
    events: Option<SocketAddr>,
    events_queue: Option<String>,
    /// Of `kv-queue` or of `kv-accept` and the workers, of `spiderq` and `events-queue`.
    stoppers: Vec<Stopper>,
    jobs_stopper: Option<jobs::TcpStopper>,
    events_stopper: Option<events::TcpStopper>,
    tables: Tables,
    /// `kv-queue` and the workers, which end when the queue is told to stop; or `kv-accept` and the workers.
    frontend: Vec<JoinHandle<()>>,
    /// `publisher`, `expiry`, `reaper` and `compactor`: they end when the tables are closed.
    backstage: Vec<JoinHandle<()>>,
    /// The last to go: that waits until the sockets have sent what they hold, or lingered long enough.
    context: Option<SocketContext>,
}

/// Starts a server in threads of this process. A client of the tasks that ends it is answered so, and nothing more: it ends
/// when it is stopped here.
///
/// # Errors
/// [`Error`] if an endpoint cannot be had, or the system is out of threads or descriptors. Nothing is left running.
pub fn start(config: ServerConfig) -> Result<RunningServer, Error> {
    start_with(config, || {}, Box::new(|| {}))
}

/// Starts a server; `serving` is called before a client can be answered, `terminated` when one has ended it.
fn start_with(
    config: ServerConfig,
    serving: impl FnOnce(),
    terminated: Box<dyn Fn() + Send>,
) -> Result<RunningServer, Error> {
    let clock = Clock::start();
    let worker_cores = cores::plan(&config.pin, config.workers, &threads::cores())?;
    let (tables, backstage) = Tables::new(TablesConfig {
        expected_keys: config.expected_keys,
        memory_max: config.max_memory,
        tables_max: config.max_tables,
        changes_per_writer: CHANGES_PER_WRITER,
        version_base: wall_nanos(),
    });
    let context = SocketContext::new(config.io_threads);
    let settings = kv_settings(&config, worker_cores);
    let BackgroundThreads { changes, expiry, reaper, compactor } = backstage;
    let slack = memory::slack(config.max_memory);
    let opened = config.tasks.map(|config| tasks::open(&config, settings.held_bytes_max, terminated));
    let mut tasks = opened.transpose()?;
    let events = config.events.map(|config| bind_events(&config, tasks.as_mut())).transpose()?.flatten();
    let metrics = tasks.as_ref().map(|tasks| Arc::clone(&tasks.metrics));
    let mut kv = serve::bind(&context, &settings, clock, (&tables, changes), metrics)?;
    let mut held = std::mem::take(&mut kv.held);
    held.extend(tasks.iter_mut().flat_map(|tasks| std::mem::take(&mut tasks.held)));
    let mut running = RunningServer {
        kv: kv.endpoints.clone(),
        publish: kv.publish.clone(),
        tasks: None,
        jobs: None,
        stoppers: kv.stoppers.clone(),
        jobs_stopper: None,
        events: None,
        events_queue: None,
        events_stopper: None,
        tables,
        frontend: Vec::new(),
        backstage: Vec::new(),
        context: Some(context),
    };
    serving();
    running.start_backstage("expiry", move || expiry.run(|| clock.now()))?;
    running.start_backstage("reaper", move || reaper.run(|| clock.now()))?;
    // What clients have not taken is no memory of the tables: their writers do not wait for it.
    let resident = move || Some(memory::own_resident_bytes()?.saturating_sub(held.iter().map(|held| held()).sum()));
    let compact = move || compactor.run(slack, || clock.now(), resident);
    running.start_backstage("compactor", compact)?;
    running.start_frontend(kv, &settings.worker_cores)?;
    // Events come first: they hold a handle to the tasks, and the committer ends when nobody has one, also if something cannot start.
    if let Some(events) = events {
        running.start_events(events)?;
    }
    if let Some(tasks) = tasks {
        running.start_tasks(tasks)?;
    }
    Ok(running)
}

/// What the frontend of the tables is told to be. A client may have at most half of what all may have.
fn kv_settings(config: &ServerConfig, worker_cores: Vec<Option<usize>>) -> serve::KvConfig {
    let tasks = config.tasks.as_ref();
    let sinks = [
        !config.kv.is_empty(),
        config.publish.is_some(),
        tasks.is_some_and(|tasks| tasks.spiderq.is_some()),
        tasks.is_some_and(|tasks| tasks.events.is_some()),
    ];
    let sinks = sinks.into_iter().filter(|is_on| *is_on).count() as u64;
    let held_bytes_max = memory::held_bytes_max(available_bytes(), config.max_memory, sinks, config.client_bytes_max);
    let client_bytes_max = config.client_bytes_max.min(held_bytes_max / 2);
    if client_bytes_max < config.client_bytes_max && config.client_bytes_max != CLIENT_BYTES_DEFAULT {
        tracing::warn!(
            "a client may have {client_bytes_max} bytes outstanding: there is no memory for more beside the tables"
        );
    }
    serve::KvConfig {
        frontend: config.frontend,
        endpoints: config.kv.clone(),
        publish: config.publish.clone(),
        publish_hwm: config.publish_hwm,
        value_max: config.max_value,
        client_bytes_max,
        held_bytes_max,
        worker_cores,
    }
}

/// Has events served from the database, or else from where the tasks are.
fn bind_events(config: &EventsConfig, tasks: Option<&mut tasks::OpenedTasks>) -> Result<Option<events::Events>, Error> {
    let kept_here = || tasks.and_then(tasks::OpenedTasks::source);
    let source = config.database.as_ref().map(events::EventsSource::MySql).or_else(kept_here);
    Ok(source.map(|source| events::bind(config.address, source)).transpose()?)
}

impl RunningServer {
    /// Where requests come in, with the ports that the system chose.
    #[must_use]
    pub fn kv(&self) -> &[String] {
        &self.kv
    }

    /// Where notifications go out.
    #[must_use]
    pub fn publish(&self) -> Option<&str> {
        self.publish.as_deref()
    }

    /// Where tasks are asked for.
    #[must_use]
    pub fn tasks(&self) -> Option<&str> {
        self.tasks.as_deref()
    }

    /// Where jobs are asked for.
    #[must_use]
    pub fn jobs(&self) -> Option<SocketAddr> {
        self.jobs
    }

    /// Where events are asked for.
    #[must_use]
    pub fn events(&self) -> Option<SocketAddr> {
        self.events
    }

    /// Where pending events are worked off, if they are kept here.
    #[must_use]
    pub fn events_queue(&self) -> Option<&str> {
        self.events_queue.as_deref()
    }

    /// Takes no more, answers what was taken, publishes what was committed, and returns when all threads have ended: after
    /// [`STOP_MAX`](crate::limits::STOP_MAX) at most, whatever peers do.
    pub fn stop(self) {
        drop(self);
    }

    fn start_backstage(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = threads::spawn(name, None, work).map_err(Error::Thread)?;
        self.backstage.push(thread);
        Ok(())
    }

    fn start_frontend(&mut self, kv: Kv, cores: &[Option<usize>]) -> Result<(), Error> {
        self.start_backstage("publisher", || kv.publisher.run())?;
        let number = |number: usize| format!("kv-worker-{number}");
        match kv.frontend {
            Frontend::Proxy { queue, workers, reporter } => {
                // The queue comes first: it tells the workers to end, those too that are all there are when one cannot be made.
                self.start_one("kv-queue", None, || queue.run())?;
                for (place, (worker, core)) in workers.into_iter().zip(cores).enumerate() {
                    self.start_one(&number(place), *core, || worker.run())?;
                }
                self.start_one("kv-report", None, || reporter.run())?;
            }
            Frontend::Native { acceptor, workers, reporter } => {
                self.start_one("kv-report", None, || reporter.run())?;
                for (place, (worker, core)) in workers.into_iter().zip(cores).enumerate() {
                    self.start_one(&number(place), *core, || worker.run())?;
                }
                self.start_one("kv-accept", None, || acceptor.run())?;
            }
        }
        Ok(())
    }

    fn start_tasks(&mut self, tasks: tasks::OpenedTasks) -> Result<(), Error> {
        let tasks::OpenedTasks { committer, spiderq, jobs, events, .. } = tasks;
        self.start_backstage("committer", || tasks::or_give_up(committer.run(wall_millis)))?;
        if let Some(spiderq) = spiderq {
            self.tasks = Some(spiderq.endpoint);
            self.stoppers.push(spiderq.stopper);
            self.start_one("spiderq", None, || tasks::or_give_up(spiderq.front.run()))?;
        }
        if let Some(jobs) = jobs {
            self.jobs = Some(jobs.address);
            self.jobs_stopper = Some(jobs.stopper);
            self.start_one("jobs-io", None, || tasks::or_give_up(jobs.front.run()))?;
        }
        if let Some(tasks::OpenedEvents { spiderq, .. }) = events {
            self.events_queue = Some(spiderq.endpoint);
            self.stoppers.push(spiderq.stopper);
            self.start_one("events-queue", None, || tasks::or_give_up(spiderq.front.run()))?;
        }
        Ok(())
    }

    fn start_events(&mut self, events: events::Events) -> Result<(), Error> {
        self.events = Some(events.address);
        self.events_stopper = Some(events.stopper);
        self.start_one("events-io", None, || tasks::or_give_up(events.front.run()))
    }

    fn start_one(
        &mut self,
        name: &str,
        core: Option<usize>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let thread = threads::spawn(name, core, work).map_err(Error::Thread)?;
        self.frontend.push(thread);
        Ok(())
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.stoppers.iter().for_each(Stopper::stop);
        self.jobs_stopper.iter().for_each(jobs::TcpStopper::stop);
        self.events_stopper.iter().for_each(events::TcpStopper::stop);
        join_in_reverse(&mut self.frontend);
        // The workers' sessions are gone with their threads.
        self.tables.close();
        join_in_reverse(&mut self.backstage);
        drop(self.context.take());
    }
}

fn join_in_reverse(threads: &mut Vec<JoinHandle<()>>) {
    while let Some(thread) = threads.pop() {
        // A thread that panics has ended the process: there is no other error.
        let _ = thread.join();
    }
}
