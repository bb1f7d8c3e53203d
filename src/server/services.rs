//! The services of a server as one list: where each listens, how it stops, and what its threads do.
//!
//! ```text
//! BoundService: it listens ─► its threads start ─► RunningService ─► stopped together, joined in reverse order
//! ```
//! This module starts no thread and stops none.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::{RunningServer, cores};
use crate::net::budget::Budget;
use crate::net::service::Service;
use crate::net::sockets::Stopper;
use crate::services::native::serve::{Native, NativeThreads};
use crate::services::operator::admin::serve::{Admin, AdminFrontend};
use crate::services::operator::control::serve::{BackupSource, ControlListener};
use crate::services::tables::serve::{Kv, KvConfig, Publisher, QueueFrontend, Reporter, WorkerCores};
use crate::store;
use crate::threads::{self, give_up};

/// The exit status when the store has failed.
const STORE_FAILED: i32 = 1;

/// What a thread does.
pub(super) struct ServiceThread {
    pub(super) thread: String,
    pub(super) core: Option<usize>,
    pub(super) run: Box<dyn FnOnce() + Send>,
}

impl ServiceThread {
    pub(super) fn new(thread: impl Into<String>, core: Option<usize>, run: impl FnOnce() + Send + 'static) -> Self {
        Self { thread: thread.into(), core, run: Box::new(run) }
    }
}

/// A service that listens, and whose threads have not started.
pub(super) struct BoundService {
    pub(super) listening: RunningService,
    /// The bytes that it holds for its clients.
    pub(super) budgets: Vec<Arc<Budget>>,
    /// In the order in which the threads start.
    pub(super) work: Vec<ServiceThread>,
}

/// A service whose threads run.
pub(super) struct RunningService {
    /// Its name, as the ready lines have it.
    pub(super) name: &'static str,
    /// With the ports that the system chose.
    pub(super) endpoints: Vec<String>,
    /// They have its threads take no more requests.
    pub(super) stoppers: Vec<Stopper>,
}

impl BoundService {
    /// A service of one thread, which runs its front.
    pub(super) fn new<F: Send + 'static>(
        name: &'static str,
        thread: &str,
        service: Service<F>,
        run: impl FnOnce(F) -> Result<(), store::Error> + Send + 'static,
    ) -> Self {
        let Service { front, stopper, endpoint, budgets } = service;
        let listening = RunningService { name, endpoints: vec![endpoint], stoppers: vec![stopper] };
        let work = vec![ServiceThread::new(thread, None, || or_give_up(run(front)))];
        Self { listening, budgets, work }
    }

    /// An endpoint at which another service publishes, if there is one.
    pub(super) fn of_publisher(name: &'static str, endpoint: Option<String>) -> Self {
        Self::at(name, endpoint.into_iter().collect())
    }

    /// Endpoints that the threads of another service serve.
    pub(super) fn at(name: &'static str, endpoints: Vec<String>) -> Self {
        let listening = RunningService { name, endpoints, stoppers: Vec::new() };
        Self { listening, budgets: Vec::new(), work: Vec::new() }
    }

    /// What an operator sees. The prober starts first, and so it is joined after the service, whose end it waits for.
    pub(super) fn of_admin(Admin { service, prober }: Admin) -> Self {
        let mut bound = Self::new("admin", "admin", service, AdminFrontend::run);
        let prober = prober.map(|prober| ServiceThread::new("admin-probe", None, || or_give_up(prober.run())));
        bound.work.splice(0..0, prober);
        bound
    }
}

/// The socket for requests of the operator in the folder of a store, and its thread. A server without it serves all the
/// same.
pub(super) fn control(thread: &str, folder: &Path, source: BackupSource) -> Option<BoundService> {
    let control = ControlListener::bind(folder).and_then(|listener| listener.serve(source));
    let control = control
        .inspect_err(|error| tracing::warn!("{}: no backup can be asked for: {error}", folder.display()))
        .ok()?;
    let listening = RunningService { name: "control", endpoints: Vec::new(), stoppers: vec![control.stopper] };
    let work = vec![ServiceThread::new(thread, None, || or_give_up(control.front.run()))];
    Some(BoundService { listening, budgets: Vec::new(), work })
}

/// What the threads between the clients and the tables do. The reporter starts first, and the acceptor last.
fn work_of_tables(
    reporter: Reporter,
    queue: Option<QueueFrontend>,
    native: Option<NativeThreads>,
    settings: &KvConfig,
) -> Vec<ServiceThread> {
    let WorkerCores { queue: worker_cores, native: native_cores } = &settings.cores;
    let mut work = vec![ServiceThread::new("tables-report", None, || reporter.run())];
    if let Some(QueueFrontend { queue, workers }) = queue {
        // The queue starts first. It ends the workers, also when only some of them could be started.
        let core = cores::of_queue(worker_cores, &threads::cores());
        work.push(ServiceThread::new("tables-queue", core, || queue.run()));
        work.extend(of_workers(workers, worker_cores, "table-worker", |worker| worker.run()));
    }
    if let Some(NativeThreads { acceptor, workers }) = native {
        let name = if worker_cores.is_empty() { "table-worker" } else { "resp-worker" };
        work.extend(of_workers(workers, native_cores, name, |worker| worker.run()));
        work.push(ServiceThread::new("tables-accept", None, || acceptor.run()));
    }
    work
}

/// The tables, bound.
pub(super) struct BoundTables {
    pub(super) publisher: Publisher,
    pub(super) kv: BoundService,
    /// The endpoints of Redis clients, whose threads are among those of `kv`.
    pub(super) resp: BoundService,
    pub(super) publish: Option<String>,
    pub(super) feed: Option<String>,
    pub(super) lockstep_publish: Option<String>,
}

pub(super) fn bound_tables(kv: Kv, native: Option<Native>, settings: &KvConfig) -> BoundTables {
    let Kv {
        queue,
        reporter,
        publisher,
        mut stoppers,
        mut endpoints,
        publish,
        feed,
        lockstep_publish,
        mut budgets,
        ..
    } = kv;
    let (mut of_resp, mut threads) = (Vec::new(), None);
    if let Some(native) = native {
        stoppers.extend(native.stoppers);
        endpoints.extend(native.kv);
        budgets.push(native.budget);
        (of_resp, threads) = (native.resp, Some(native.threads));
    }
    let listening = RunningService { name: "kv", endpoints, stoppers };
    let kv = BoundService { listening, budgets, work: work_of_tables(reporter, queue, threads, settings) };
    BoundTables { publisher, kv, resp: BoundService::at("resp", of_resp), publish, feed, lockstep_publish }
}

/// The threads of the workers, each on its core.
fn of_workers<W: Send + 'static>(
    workers: Vec<W>,
    cores: &[Option<usize>],
    name: &str,
    run: fn(W),
) -> impl Iterator<Item = ServiceThread> {
    let workers = workers.into_iter().zip(cores).enumerate();
    workers
        .map(move |(number, (worker, core))| ServiceThread::new(format!("{name}-{number}"), *core, move || run(worker)))
}

impl RunningServer {
    /// The endpoints of the service that the ready lines call so, with the ports that the system chose. Empty: it is
    /// off.
    #[must_use]
    pub fn endpoints(&self, service: &str) -> &[String] {
        self.services.iter().find(|running| running.name == service).map_or(&[], |running| &running.endpoints)
    }

    /// Each bound endpoint, after the name of what is served there.
    pub(super) fn listening(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.services
            .iter()
            .flat_map(|service| service.endpoints.iter().map(|endpoint| (service.name, endpoint.as_str())))
    }
}

/// Ends the process after an error of the store, because no request may be acknowledged any more.
pub(super) fn or_give_up(ended: Result<(), store::Error>) {
    if let Err(error) = ended {
        give_up(&error.to_string(), STORE_FAILED);
    }
}

/// Prints each bound endpoint on a line of standard output, then `ready`.
pub(super) fn print_ready(running: &RunningServer) {
    let lines = running.listening().map(|(name, endpoint)| format!("{name} {endpoint}\n"));
    let text = lines.collect::<String>() + "ready\n";
    let mut out = io::stdout().lock();
    // The server also runs without a reader of its standard output.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
