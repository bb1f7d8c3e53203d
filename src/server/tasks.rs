//! Opens the store, the committer and the frontends of durable tasks and jobs, and of events in the same store.
//!
//! ```text
//! TasksListeners::bind ─► every endpoint of the server is bound ─► TasksListeners::open ─► OpenedTasks
//! ```
//! The first start on a folder makes its store, and each start reserves tokens there. So the store is opened when
//! every endpoint is bound, and a start that finds one of them in use leaves nothing behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Error;
use crate::clock::Clock;
use crate::net::tcp::Certificate;
use crate::net::zeromq::Admission;
use crate::security::Users;
use crate::services::events::serve as events;
use crate::services::jobs::serve::{self as jobs, Jobs, JobsListener};
use crate::services::operator::control::serve::{Control, ControlListener};
use crate::services::tasks::serve::{Spiderq, SpiderqConfig, SpiderqListener};
use crate::stats::HeldBytes;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::store::{self, KeyedStore, StoreConfig};
use crate::tasks::{self, Committer, LeaseOrder, Policy, QueueName, TaskMetrics, Tasks};
use crate::threads::give_up;

/// The name of the queue that `--tasks` serves.
const QUEUE: &[u8] = b"spiderq";
/// The prefix of the queues that `--jobs` serves.
const JOBS: &[u8] = b"jobs/";
/// The name of the queue whose tasks are the events of `--events`.
const EVENTS: &[u8] = b"events";
/// The exit status when the store has failed.
const STORE_FAILED: i32 = 1;

/// The settings of durable tasks, jobs and events. At least one of the three is on.
#[derive(Clone, Debug)]
pub struct TasksConfig {
    /// The settings of the tasks frontend.
    pub spiderq: Option<SpiderqConfig>,
    /// The settings of the jobs frontend.
    pub jobs: Option<jobs::JobsConfig>,
    /// The settings of the events queue, if events are in this store.
    pub events: Option<SpiderqConfig>,
    /// The folder of the store.
    pub data: PathBuf,
    /// The settings of the store.
    pub store: StoreConfig,
    /// When changes of tasks are on disk. Changes of jobs and events are on disk before they are answered.
    pub sync: Policy,
}

/// The opened parts, ready to run.
pub(super) struct OpenedTasks {
    pub(super) committer: Committer,
    /// For who tries whether the store can store.
    pub(super) tasks: Tasks,
    pub(super) spiderq: Option<Spiderq>,
    pub(super) jobs: Option<Jobs>,
    pub(super) events: Option<OpenedEvents>,
    /// Requests of the operator, unless the folder takes no socket.
    pub(super) control: Option<Control>,
    /// Readers of the bytes that the frontends hold for their clients.
    pub(super) held: Vec<HeldBytes>,
}

/// The queue of the events and its frontend.
pub(super) struct OpenedEvents {
    pub(super) tasks: Tasks,
    pub(super) queue: QueueName,
    pub(super) spiderq: Spiderq,
}

impl OpenedTasks {
    /// The source of events that are in this store.
    pub(super) fn source(&mut self) -> Option<events::EventsSource<'_>> {
        let events = self.events.as_ref()?;
        Some(events::EventsSource::Embedded(&mut self.committer, events.tasks.clone(), events.queue.clone()))
    }
}

/// The frontends, listening. The store is not open yet.
pub(super) struct TasksListeners {
    jobs: Option<JobsListener>,
    events: Option<SpiderqListener>,
    spiderq: Option<SpiderqListener>,
    data: PathBuf,
    sync: Policy,
    store: StoreConfig,
    metrics: Arc<TaskMetrics>,
}

impl TasksListeners {
    /// Binds the frontends. Each frontend of a queue holds at most `held_bytes_max` for its clients.
    pub(super) fn bind(config: TasksConfig, held_bytes_max: u64) -> Result<Self, Error> {
        let TasksConfig { spiderq, jobs, events, data, sync, store } = config;
        let queue = |settings: Option<SpiderqConfig>| {
            settings.map(|settings| SpiderqListener::bind(&settings, held_bytes_max)).transpose()
        };
        let jobs = jobs.map(|settings| JobsListener::bind(&settings)).transpose()?;
        Ok(Self { jobs, events: queue(events)?, spiderq: queue(spiderq)?, data, sync, store, metrics: Arc::default() })
    }

    /// From now on the clients of these queues, and of jobs, have to prove that they are users.
    pub(super) fn admit_only(&mut self, tasks: Option<&Admission>, events: Option<&Admission>, jobs: Option<&Users>) {
        if let (Some(listener), Some(users)) = (&mut self.jobs, jobs) {
            listener.admit_only(users);
        }
        let queues = [(self.spiderq.as_mut(), tasks), (self.events.as_mut(), events)];
        for (listener, admission) in queues.into_iter().filter_map(|(listener, admission)| listener.zip(admission)) {
            listener.admit_only(admission);
        }
    }

    /// From now on connections for jobs are encrypted.
    pub(super) fn encrypt_jobs(&mut self, certificate: &Certificate) {
        self.jobs.iter_mut().for_each(|jobs| jobs.encrypt(certificate));
    }

    /// The metrics of the tasks, which count nothing before the store is open.
    pub(super) fn metrics(&self) -> &Arc<TaskMetrics> {
        &self.metrics
    }

    /// Sends the slow requests of the frontends to this log. Returns the metrics of the frontends.
    pub(super) fn observe(&mut self, slow: &Arc<SlowLog>) -> Vec<Arc<ServiceMetrics>> {
        let queues = [self.spiderq.as_mut(), self.events.as_mut()].into_iter().flatten();
        let queues = queues.map(|listener| {
            listener.log_slow(slow);
            Arc::clone(listener.metrics())
        });
        let jobs = self.jobs.as_mut().map(|jobs| {
            jobs.log_slow(slow);
            Arc::clone(jobs.metrics())
        });
        queues.chain(jobs).collect()
    }

    /// Opens the store. Larger requests for jobs take at most `job_room` bytes together.
    pub(super) fn open(self, job_room: usize, terminated: Box<dyn Fn() + Send>) -> Result<OpenedTasks, Error> {
        let store = KeyedStore::open(&self.data, self.store)?;
        for note in store.notes() {
            tracing::warn!("{}: {note}", self.data.display());
        }
        let (tasks, committer) = tasks::open_with(Box::new(store), Clock::start().reading(), self.metrics)?;
        let control = control(&self.data, &tasks);
        let own = tasks.clone();
        let mut opened =
            OpenedTasks { committer, tasks: own, spiderq: None, jobs: None, events: None, control, held: Vec::new() };
        if let Some(listener) = self.jobs {
            let family = opened.committer.family(JOBS, LeaseOrder::Fifo, Policy::Always)?;
            opened.jobs = Some(listener.serve(job_room, (&mut opened.committer, tasks.clone(), family)));
        }
        if let Some(listener) = self.events {
            let queue = opened.committer.queue(EVENTS, LeaseOrder::Priority, Policy::Always)?;
            let parts = (&mut opened.committer, tasks.clone(), queue.clone());
            let (spiderq, held) = listener.serve(parts, Box::new(|| {}));
            opened.held.push(held);
            opened.events = Some(OpenedEvents { tasks: tasks.clone(), queue, spiderq });
        }
        if let Some(listener) = self.spiderq {
            let queue = opened.committer.queue(QUEUE, LeaseOrder::Priority, self.sync)?;
            let (spiderq, held) = listener.serve((&mut opened.committer, tasks, queue), terminated);
            opened.held.push(held);
            opened.spiderq = Some(spiderq);
        }
        Ok(opened)
    }
}

/// The socket for requests of the operator. A server without it serves all the same.
fn control(data: &Path, tasks: &Tasks) -> Option<Control> {
    let control = ControlListener::bind(data).and_then(|listener| listener.serve(tasks.clone()));
    control.inspect_err(|error| tracing::warn!("{}: no backup can be asked for: {error}", data.display())).ok()
}

/// Ends the process after an error of the store, because no request may be acknowledged any more.
pub(super) fn or_give_up(ended: Result<(), store::Error>) {
    if let Err(error) = ended {
        give_up(&error.to_string(), STORE_FAILED);
    }
}
