//! The composition root: makes the threads and channels of the server, and ends them in reverse order.
//!
//! ```text
//! run ─► raise descriptors ─► start ─────────────────────────► "ready" ─► wait for a signal ─► stop ─► exit 0
//!                              │ clock, tables, services::tables::serve::bind                    │
//!                              │ the log of durable tables, which are loaded; thread: tables-log │
//!                              │ threads: expiry, reaper, compactor, publisher, tables-report,   │
//!                              │ table-worker-N, and tables-queue, or tables-accept (native)     │
//!                              │ lockstep, if it is on                                           │
//!                              │ if tasks, jobs or events are on: the store, threads: committer, │
//!                              └ control, tasks, jobs-io, beanstalk-io, events-io, events-queue  │
//!     all frontends stop at once, answer what they have taken and end: admin, events-queue, ◄────┤
//!     events-io, beanstalk-io, jobs-io, tasks, control, lockstep, the workers, tables-queue …    │
//!     tables close: expiry, reaper, compactor end; the publisher announces the rest and ends ◄───┤
//!     tables-log has all of durable tables on disk and ends ◄────────────────────────────────────┤
//!     the committer has all on disk and ends ◄───────────────────────────────────────────────────┤
//!     the last lines of the log are written ◄────────────────────────────────────────────────────┘
//! ```
//! All frontends have the same `LINGER` for their answers. After them the publisher has one for its notifications. With
//! the steps between them, the stop takes less than `STOP_MAX`, regardless of the peers. A thread that is stuck is left
//! behind then. A second signal ends the process at once.
//!
//! This module parses no arguments (`cli` makes the [`ServerConfig`]) and contains no thread's work.
//!
#![doc = include_str!("../OPERATION.md")]
#![doc = include_str!("../TUNING.md")]

mod announce;
mod config;
mod cores;
mod gate;
mod lockstep_part;
mod memory;
mod service_manager;
mod services;
mod settings;
mod signals;
mod tables_log;
mod tasks;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

pub use crate::descriptors::raise as raise_descriptor_limit;
use announce::announce;
pub use config::{
    DurabilitySettings, ElementBounds, EventsConfig, FeedSettings, NotificationSettings, OperationConfig, RespSettings,
    ServerConfig, ServerLimits, StorageConfig, WorkersConfig,
};
pub use cores::{Pin, workers_default};
use gate::Admissions;
pub use gate::{GateError, SecurityConfig, listening};
use lockstep_part::bind_lockstep;
pub use memory::available_bytes;
use services::{BoundService, BoundTables, RunningService, ServiceThread, bound_tables, or_give_up, print_ready};
use settings::{kv_settings, resp_config, tables_of};
pub use signals::SignalWatch as Signals;
pub(crate) use tables_log::TABLES_SEGMENT_BYTES_MAX;
use tables_log::TablesLog;
pub use tasks::TasksConfig;
use tasks::{OpenedTasks, TasksListeners};

use crate::allocator;
use crate::clock::{Clock, TimeLimit};
use crate::descriptors;
use crate::limits::{LOG_LAST_WORDS, STOP_MAX};
use crate::lock::Mutex;
use crate::net::service::ServiceParts;
use crate::net::sockets::{ServeError, Stopper};
use crate::security::Users;
use crate::services::events::mysql::{DatabaseAddress, DatabaseProbe};
use crate::services::events::serve::{self as events, Events, EventsFrontend, EventsListener};
use crate::services::native::serve as native;
use crate::services::operator::admin::serve::{AdminListener, AdminParts};
use crate::services::resp;
use crate::services::tables::serve::{self, Kv, OtherServices, Publisher, ReportSources};
use crate::stats::slow_log::SlowLog;
use crate::store::{self, SharedDisk};
use crate::tables::{BackgroundThreads, Expiry, LogThread, Reaper, Tables};
use crate::tasks::Committer;
use crate::threads;

/// Why the server does not run.
#[derive(Debug, Error)]
pub enum Error {
    /// The frontend of the tables failed to bind.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Events cannot be served.
    #[error(transparent)]
    Events(#[from] events::Error),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// An endpoint must not be served as it is configured.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The file of users is wrong.
    #[error("--users {0}")]
    Users(String),
    /// The system makes no more threads.
    #[error("the system makes no more threads: {0}")]
    Thread(#[source] io::Error),
    /// Signals cannot be received.
    #[error("signals cannot be waited for: {0}")]
    Signals(#[source] io::Error),
    /// A core of `--pin` that this process may not use.
    #[error("--pin names core {core}, but this process may use {usable:?}")]
    NoSuchCore {
        /// The core in `--pin`.
        core: usize,
        /// The cores that this process may use.
        usable: Vec<usize>,
    },
}

/// Runs the server until SIGINT or SIGTERM, then stops it. Prints each bound endpoint on a line of standard output,
/// then `ready`. Each SIGHUP calls `hang_up`.
///
/// # Errors
/// [`Error`] if the server cannot start.
pub fn run(config: ServerConfig, hang_up: impl Fn() + Send + 'static) -> Result<(), Error> {
    let admissions = Admissions::open(&config)?;
    let reread = admissions.rereader();
    let hang_up = move || {
        hang_up();
        reread();
    };
    let drain = config.tasks.as_ref().and_then(|tasks| Some(tasks.beanstalk.as_ref()?.drain.clone()));
    let drain = move || drain.iter().for_each(|switch| switch.drain());
    let signals = signals::SignalWatch::new(hang_up, drain).map_err(Error::Signals)?;
    descriptors::reserve();
    warn_of_allocator(config.operation.allocator);
    if config.tasks.is_some() {
        memory::avoid_huge_pages();
    }
    let (workers, limits) = (config.workers.count, config.limits);
    let running = start_with(config, admissions, signals.serving(), Arc::new(signals.ender()))?;
    announce(&running, workers, limits);
    print_ready(&running);
    service_manager::watch(Arc::clone(&running.report)).map_err(Error::Thread)?;
    service_manager::ready();
    signals.wait();
    service_manager::stopping();
    running.stop();
    tracing::info!("stopped");
    Ok(())
}

/// Warns when the allocator in use is not the requested one.
fn warn_of_allocator(asked: allocator::Choice) {
    let in_use = allocator::in_use();
    if in_use != asked {
        tracing::warn!("the allocator is {in_use}, not {asked}: it is chosen before the program begins");
    }
}

/// How often the end looks whether a thread has ended.
const JOIN_LOOK: Duration = Duration::from_millis(1);

/// A server that runs in threads of this process. Dropping it stops it.
pub struct RunningServer {
    /// Those whose threads were started, in that order.
    services: Vec<RunningService>,
    tables: Tables,
    /// For the watchdog.
    report: Arc<ReportSources>,
    /// The threads of all frontends. The workers end when `tables-queue` stops them. With the native frontend
    /// their stoppers end them.
    frontend: Vec<JoinHandle<()>>,
    /// `publisher`, `expiry`, `reaper` and `compactor`, which end when the tables are closed, and `committer`, which
    /// ends when the last `Tasks` handle is gone.
    background: Vec<JoinHandle<()>>,
    /// Its thread is one of the `background`.
    users: Option<Users>,
    /// The thread of the tables' log, which ends behind all others that write to tables.
    tables_log: Option<JoinHandle<()>>,
    late: LateServices,
}

/// Services that start when the server runs already.
#[derive(Clone, Default)]
struct LateServices(Arc<Mutex<Vec<LateService>>>);

struct LateService {
    listening: RunningService,
    threads: Vec<JoinHandle<()>>,
}

impl LateServices {
    /// Starts a service. The server does without it if the system makes no more threads.
    fn start(&self, BoundService { listening, work, .. }: BoundService) {
        let start = |ServiceThread { thread, core, run }| threads::spawn(&thread, core, run);
        match work.into_iter().map(start).collect() {
            Ok(threads) => self.0.lock().push(LateService { listening, threads }),
            Err(error) => tracing::warn!("{}: the system makes no more threads: {error}", listening.name),
        }
    }

    fn stop(&self, is_over: impl Fn() -> bool) {
        for mut service in std::mem::take(&mut *self.0.lock()) {
            service.listening.stoppers.iter().for_each(Stopper::stop);
            join_in_reverse(&mut service.threads, &is_over);
        }
    }
}

/// Starts a server in threads of this process. A Terminate request of a tasks client is answered and has no other
/// effect: the server runs until it is stopped here.
///
/// # Errors
/// [`Error`] if an endpoint cannot be bound, or the system is out of threads or descriptors. No thread is left running.
pub fn start(config: ServerConfig) -> Result<RunningServer, Error> {
    let admissions = Admissions::open(&config)?;
    start_with(config, admissions, || {}, Arc::new(|| {}))
}

/// Starts a server. Calls `serving` before a client can be answered, but for those of the operator's service. Calls
/// `terminated` when a client ends the server.
fn start_with(
    config: ServerConfig,
    admissions: Admissions,
    serving: impl FnOnce(),
    terminated: Arc<dyn Fn() + Send + Sync>,
) -> Result<RunningServer, Error> {
    let clock = Clock::start();
    let usable = threads::cores();
    let cores = cores::plan_all(&config.workers, &usable)?;
    let [of_tasks, of_tables] = SharedDisk::members();
    let tables_log = TablesLog::find(&config.storage, of_tables, clock)?;
    let (tables, background) = tables_of(&config, &cores, &tables_log);
    let settings = kv_settings(&config, cores, &admissions);
    let BackgroundThreads { changes, mut expiry, reaper, compactor } = background;
    let slow = Arc::new(SlowLog::new(config.operation.slow));
    let slack = memory::slack(config.limits.memory_bytes);
    let job_room = memory::job_room_bytes(available_bytes(), config.limits.memory_bytes);
    let parts = |flag: &str| ServiceParts {
        admission: admissions.of_flag(flag),
        certificate: admissions.certificate.clone(),
        held_bytes_max: settings.held_bytes_max,
        slow: Arc::clone(&slow),
    };
    let resp = resp_config(&config, &admissions, settings.client_bytes_max);
    // Every endpoint is bound before a store is opened: a start that fails leaves nothing behind.
    let (lockstep, part) = bind_lockstep(&config, &tables, clock, parts("--lockstep"))?;
    let tasks = config.tasks.map(|config| TasksListeners::bind(config, parts)).transpose()?;
    let bind_events = |config: &EventsConfig| EventsListener::bind(config.address, &config.hosts, parts("--events"));
    let events = config.events.as_ref().map(bind_events).transpose()?;
    let admin =
        config.operation.admin.as_ref().map(|config| AdminListener::bind(config, parts("--admin"))).transpose()?;
    let of_events = events.iter().map(|events| Arc::clone(&events.metrics));
    let has_resp = !config.workers.resp.endpoints.is_empty();
    let of_resp = settings.cores.native.iter().filter(|_| has_resp).map(|_| resp::service_metrics());
    let other_services = OtherServices {
        tasks: tasks.as_ref().map(|tasks| Arc::clone(&tasks.metrics)),
        lockstep: part,
        services: tasks.iter().flat_map(TasksListeners::of_services).chain(of_events).chain(of_resp).collect(),
        slow: Arc::clone(&slow),
        users: admissions.users.clone(),
    };
    let mut kv = serve::bind(&settings, clock, &tables, changes, other_services)?;
    let ends = Arc::clone(&terminated);
    let native = native::bind(&settings, resp(Box::new(move || ends())), &mut kv)?;
    let database = config.events.and_then(|config| config.database);
    let (mut tasks, events) = open_stores(tasks, events, database.as_ref(), |tasks| {
        tasks.open(&config.storage, of_tasks, job_room, Box::new(move || terminated()))
    })?;
    let of_events = database.as_ref().zip(events.as_ref());
    let admin = admin.map(|admin| bound_admin(admin, &kv, tasks.as_mut(), of_events));
    let mut running = RunningServer::of(&kv, tables, admissions.users.clone());
    let mut bound = Bound::of(bound_tables(kv, native, &settings), lockstep, tasks, events);
    let budgets: Vec<_> = bound.services.iter_mut().flat_map(|service| std::mem::take(&mut service.budgets)).collect();
    descriptors::share_out();
    running.start_users(admissions.users)?;
    // The operator's service starts before all others: its clients see that tables are being loaded.
    running.start_services(admin.into_iter().collect())?;
    let log_thread =
        tables_log.open(&running.tables, &mut expiry, config.storage.tables.interval, running.late.clone())?;
    serving();
    running.start_tables_log(log_thread, clock)?;
    running.start_sweepers(expiry, reaper, clock)?;
    // Replies that clients have not taken do not count as memory of the tables, so writers do not wait for them.
    let of_clients = memory::of_clients(budgets, running.tables.clone());
    let resident = move || Some(memory::own_resident_bytes()?.saturating_sub(of_clients()));
    running.start_background("compactor", move || compactor.run(slack, || clock.now(), resident))?;
    let cores: Vec<_> = settings.cores.all().collect();
    running.start(bound, &cores)?;
    Ok(running)
}

/// The operator's service. It tries the database of the events, if they are in one.
fn bound_admin(
    admin: AdminListener,
    kv: &Kv,
    tasks: Option<&mut OpenedTasks>,
    database: Option<(&DatabaseAddress, &Events)>,
) -> BoundService {
    let database =
        database.and_then(|(address, events)| Some(DatabaseProbe::new(address)).zip(events.database.clone()));
    let (tasks, queues) = tasks.map(|opened| (opened.tasks.clone(), opened.for_operator())).unzip();
    let parts = AdminParts { report: Arc::clone(&kv.report), tasks, queues: queues.flatten(), database };
    BoundService::of_admin(admin.serve(parts))
}

/// Opens the stores of the frontends. The database is first: a start that it refuses leaves nothing in the other store.
fn open_stores(
    tasks: Option<TasksListeners>,
    events: Option<EventsListener>,
    database: Option<&DatabaseAddress>,
    open: impl FnOnce(TasksListeners) -> Result<OpenedTasks, Error>,
) -> Result<(Option<OpenedTasks>, Option<Events>), Error> {
    match (events, database) {
        (Some(events), Some(database)) => {
            let events = events.serve(events::EventsSource::MySql(database))?;
            Ok((tasks.map(open).transpose()?, Some(events)))
        }
        (events, _) => {
            let mut tasks = tasks.map(open).transpose()?;
            let source = tasks.as_mut().and_then(OpenedTasks::source);
            let events = events.zip(source).map(|(events, source)| events.serve(source)).transpose()?;
            Ok((tasks, events))
        }
    }
}

/// What is bound and opened, ready to run, but for the operator's service.
struct Bound {
    publisher: Publisher,
    committer: Option<Committer>,
    /// In the order of the ready lines.
    services: Vec<BoundService>,
}

impl Bound {
    fn of(
        BoundTables { publisher, kv, resp, publish, feed, lockstep_publish }: BoundTables,
        lockstep: Option<BoundService>,
        tasks: Option<OpenedTasks>,
        events: Option<Events>,
    ) -> Self {
        let publish = BoundService::of_publisher("publish", publish);
        let mut services = vec![kv, resp, publish, BoundService::of_publisher("feed", feed)];
        services.extend(lockstep);
        services.push(BoundService::of_publisher("lockstep-publish", lockstep_publish));
        let mut events_queue = None;
        let committer = tasks.map(|OpenedTasks { committer, services: of_tasks, events, .. }| {
            services.extend(of_tasks);
            events_queue = events.map(|(_, service)| service);
            committer
        });
        let events =
            events.map(|Events { service, .. }| BoundService::new("events", "events-io", service, EventsFrontend::run));
        services.extend(events.into_iter().chain(events_queue));
        Self { publisher, committer, services }
    }
}

impl RunningServer {
    /// A server none of whose threads runs.
    fn of(kv: &Kv, tables: Tables, users: Option<Users>) -> Self {
        let report = Arc::clone(&kv.report);
        Self {
            services: Vec::new(),
            tables,
            report,
            frontend: Vec::new(),
            background: Vec::new(),
            users,
            tables_log: None,
            late: LateServices::default(),
        }
    }

    /// Takes no more requests, answers those it took, publishes the committed changes, and returns when all threads
    /// have ended: after at most [`STOP_MAX`](crate::limits::STOP_MAX), regardless of the peers.
    pub fn stop(self) {
        drop(self);
    }

    fn start_background(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = threads::spawn(name, None, work).map_err(Error::Thread)?;
        self.background.push(thread);
        Ok(())
    }

    /// Those who take expired elements and deleted tables away.
    fn start_sweepers(&mut self, expiry: Expiry, reaper: Reaper, clock: Clock) -> Result<(), Error> {
        self.start_background("expiry", move || expiry.run(|| clock.now()))?;
        self.start_background("reaper", move || reaper.run(|| clock.now()))
    }

    /// A log that fails takes nothing more, and the tables that are not durable go on.
    fn start_tables_log(&mut self, log: LogThread, clock: Clock) -> Result<(), Error> {
        let work = move || {
            if let Err(error) = log.run(|| clock.reading()) {
                tracing::error!("durable tables take no more writes until the next start: {error}");
            }
        };
        self.tables_log = Some(threads::spawn("tables-log", None, work).map_err(Error::Thread)?);
        Ok(())
    }

    fn start_users(&mut self, users: Option<Users>) -> Result<(), Error> {
        users.map_or(Ok(()), |users| self.start_background("users", move || users.run()))
    }

    /// Starts what is bound. The committer is there before its clients.
    fn start(&mut self, bound: Bound, cores: &[Option<usize>]) -> Result<(), Error> {
        let Bound { publisher, committer, services } = bound;
        let early = self.services.len();
        // A publisher that takes turns with a worker costs it a fifth of its time.
        let own = cores::beside(cores, &threads::cores());
        self.start_background("publisher", move || {
            threads::stay_on(&own);
            publisher.run();
        })?;
        if let Some(committer) = committer {
            let clock = Clock::start();
            self.start_background("committer", move || or_give_up(committer.run(|| clock.reading())))?;
        }
        self.start_services(services)?;
        // The lines of what is served end with the operator's service.
        self.services.rotate_left(early);
        Ok(())
    }

    /// Starts the services, in their order. Those that do not start end here, and with them their `Tasks` handles: the
    /// committer ends when the last of these is gone.
    fn start_services(&mut self, services: Vec<BoundService>) -> Result<(), Error> {
        for BoundService { listening, work, .. } in services {
            self.services.push(listening);
            for ServiceThread { thread, core, run } in work {
                self.frontend.push(threads::spawn(&thread, core, run).map_err(Error::Thread)?);
            }
        }
        Ok(())
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let clock = Clock::start();
        let limit = TimeLimit::begin(clock.now(), STOP_MAX.saturating_sub(LOG_LAST_WORDS));
        let is_over = || limit.is_over(clock.now());
        self.services.iter().flat_map(|service| &service.stoppers).for_each(Stopper::stop);
        let have_ended = join_in_reverse(&mut self.frontend, is_over);
        // The workers' sessions ended with their threads.
        self.tables.close();
        self.users.iter().for_each(Users::stop);
        let have_ended = have_ended && join_in_reverse(&mut self.background, is_over);
        self.late.stop(is_over);
        self.tables.close_log(have_ended);
        join_in_reverse(&mut self.tables_log.take().into_iter().collect(), is_over);
    }
}

/// Waits for the threads to end, the last one first, until the time is over. A thread that is stuck is named and left
/// behind: the end of the process ends it. Returns whether all have ended.
fn join_in_reverse(threads: &mut Vec<JoinHandle<()>>, is_over: impl Fn() -> bool) -> bool {
    let mut have_ended = true;
    while let Some(thread) = threads.pop() {
        while !thread.is_finished() && !is_over() {
            std::thread::park_timeout(JOIN_LOOK);
        }
        if thread.is_finished() {
            // A thread that panics ends the process, so there is no other error.
            let _ = thread.join();
        } else {
            let name = thread.thread().name().unwrap_or("without a name");
            tracing::error!("the thread {name} is stuck: the server ends without it");
            have_ended = false;
        }
    }
    have_ended
}
