//! Opens the store, the committer and the frontends of durable tasks and jobs, and of events in the same store.
//!
//! ```text
//! TasksListeners::bind ─► every endpoint of the server is bound ─► TasksListeners::open ─► OpenedTasks
//! ```
//! The first start on a folder makes its store, and each start reserves tokens there. So the store is opened when
//! every endpoint is bound, and a start that finds one of them in use leaves nothing behind.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::services::{BoundService, control};
use super::{Error, StorageConfig, memory};
use crate::clock::Clock;
use crate::limits::JOB_ROOM_BYTES_MIN;
use crate::net::service::ServiceParts;
use crate::services::events::serve as events;
use crate::services::jobs::beanstalk::serve::{BeanstalkConfig, BeanstalkFrontend, BeanstalkListener};
use crate::services::jobs::serve::{self as jobs, JobsFrontend, JobsListener};
use crate::services::operator::admin::queues::ServedQueues;
use crate::services::operator::admin::serve::QueueAnswers;
use crate::services::tasks::calls::NamedQueues;
use crate::services::tasks::serve::{SpiderqConfig, SpiderqFrontend, SpiderqListener};
use crate::stats::service::ServiceMetrics;
use crate::store::{DiskMember, KeyedStore};
use crate::tasks::{
    self, Committer, DEFAULT_TASKS, JOBS, LeaseOrder, NAMED_TASKS, Policy, QueueName, TaskMetrics, Tasks,
};

/// The name of the queue whose tasks are the events of `--events`.
const EVENTS: &[u8] = b"events";

/// The settings of durable tasks, jobs and events. At least one of the three is on.
#[derive(Clone, Debug)]
pub struct TasksConfig {
    /// The settings of the tasks frontend.
    pub spiderq: Option<SpiderqConfig>,
    /// The settings of the jobs frontend.
    pub jobs: Option<jobs::JobsConfig>,
    /// The settings of the frontend of beanstalkd's protocol.
    pub beanstalk: Option<BeanstalkConfig>,
    /// The settings of the events queue, if events are in this store.
    pub events: Option<SpiderqConfig>,
    /// When changes of tasks are on disk. Changes of jobs and events are on disk before they are answered.
    pub sync: Policy,
    /// Tasks and jobs are dead after so many leases if the last one fails, where nothing else is said.
    pub tries: Option<NonZeroU32>,
    /// The most tasks, jobs and events together.
    pub tasks_max: Option<u64>,
}

/// The opened parts, ready to run.
pub(super) struct OpenedTasks {
    pub(super) committer: Committer,
    /// For who tries whether the store can store.
    pub(super) tasks: Tasks,
    /// Requests of the operator, unless the folder takes no socket, tasks, and jobs.
    pub(super) services: Vec<BoundService>,
    /// The queue of the events, and its frontend.
    pub(super) events: Option<(QueueName, BoundService)>,
    /// The queues of tasks and of jobs. An operator may take them once.
    served: Option<ServedQueues>,
}

impl OpenedTasks {
    /// The queues of tasks and jobs, and where their answers for an operator come.
    pub(super) fn for_operator(&mut self) -> Option<(ServedQueues, QueueAnswers)> {
        self.served.take().map(|served| (served, QueueAnswers::new(&mut self.committer)))
    }

    /// The source of events that are in this store.
    pub(super) fn source(&mut self) -> Option<events::EventsSource<'_>> {
        let (queue, _) = self.events.as_ref()?;
        Some(events::EventsSource::Embedded(&mut self.committer, self.tasks.clone(), queue.clone()))
    }
}

/// The frontends, listening. The store is not open yet.
pub(super) struct TasksListeners {
    jobs: Option<JobsListener>,
    beanstalk: Option<BeanstalkListener>,
    events: Option<SpiderqListener>,
    spiderq: Option<SpiderqListener>,
    sync: Policy,
    tries: Option<NonZeroU32>,
    tasks_max: Option<u64>,
    /// They count nothing before the store is open.
    pub(super) metrics: Arc<TaskMetrics>,
}

impl TasksListeners {
    /// Binds the frontends. `parts` makes those of the service with a flag.
    pub(super) fn bind(config: TasksConfig, parts: impl Fn(&str) -> ServiceParts) -> Result<Self, Error> {
        let TasksConfig { spiderq, jobs, beanstalk, events, sync, tries, tasks_max } = config;
        let queue = |settings: Option<SpiderqConfig>, flag| {
            settings.map(|settings| SpiderqListener::bind(&settings, parts(flag))).transpose()
        };
        let jobs = jobs.map(|settings| JobsListener::bind(&settings, parts("--jobs"))).transpose()?;
        let beanstalk =
            beanstalk.map(|settings| BeanstalkListener::bind(&settings, parts("--beanstalk"))).transpose()?;
        let (events, spiderq) = (queue(events, "--events-queue")?, queue(spiderq, "--tasks")?);
        Ok(Self { jobs, beanstalk, events, spiderq, sync, tries, tasks_max, metrics: Arc::default() })
    }

    /// The metrics of the frontends.
    pub(super) fn of_services(&self) -> impl Iterator<Item = Arc<ServiceMetrics>> {
        let queues = self.spiderq.iter().chain(&self.events).map(|listener| &listener.metrics);
        let jobs = self.jobs.iter().map(|listener| &listener.metrics);
        queues.chain(jobs).chain(self.beanstalk.iter().map(|listener| &listener.metrics)).cloned()
    }

    /// Opens the store. Larger requests for jobs take at most `job_room` bytes together.
    pub(super) fn open(
        self,
        storage: &StorageConfig,
        share: DiskMember,
        job_room: usize,
        terminated: Box<dyn Fn() + Send>,
    ) -> Result<OpenedTasks, Error> {
        let mut store = KeyedStore::open(&storage.data, storage.store)?;
        store.share_disk(share);
        for note in store.notes() {
            tracing::warn!("{}: {note}", storage.data.display());
        }
        let (tasks, mut committer) = tasks::open_with(Box::new(store), Clock::start().reading(), self.metrics)?;
        let (tasks_max, queues_max) = memory::of_tasks(memory::available_bytes());
        committer.bound_tasks(self.tasks_max.unwrap_or(tasks_max));
        committer.bound_queues(queues_max);
        let source = tasks.clone();
        let control = control("control", &storage.data, Box::new(move || source.backup()));
        let mut services: Vec<_> = control.into_iter().collect();
        let mut served = ServedQueues { tasks: tasks.clone(), of_tasks: None, of_jobs: None };
        let mut jobs = Vec::new();
        if self.jobs.is_some() || self.beanstalk.is_some() {
            let family = committer.family(JOBS, LeaseOrder::Fifo, Policy::Always)?;
            committer.bound_tries(&family.queue(b""), self.tries);
            served.of_jobs = Some(NamedQueues::of_jobs(family.clone()));
            // The two have the room together.
            let room = if self.jobs.is_some() && self.beanstalk.is_some() { job_room / 2 } else { job_room };
            let room = room.max(JOB_ROOM_BYTES_MIN);
            if let Some(listener) = self.jobs {
                let service = listener.serve(room, &mut committer, tasks.clone(), family.clone());
                jobs.push(BoundService::new("jobs", "jobs-io", service, JobsFrontend::run));
            }
            if let Some(listener) = self.beanstalk {
                let endpoints = listener.endpoints();
                let service = listener.serve(room, &mut committer, tasks.clone(), family);
                let mut bound = BoundService::new("beanstalk", "beanstalk-io", service, BeanstalkFrontend::run);
                bound.listening.endpoints = endpoints;
                jobs.push(bound);
            }
        }
        let events = match self.events {
            None => None,
            Some(listener) => {
                let queue = committer.queue(EVENTS, LeaseOrder::Priority, Policy::Always)?;
                let queues = NamedQueues::new(queue.clone(), None);
                let service = listener.serve(&mut committer, tasks.clone(), queues, Box::new(|| {}));
                Some((queue, BoundService::new("events-queue", "events-queue", service, SpiderqFrontend::run)))
            }
        };
        if let Some(listener) = self.spiderq {
            let queue = committer.queue(DEFAULT_TASKS, LeaseOrder::Priority, self.sync)?;
            let family = committer.family(NAMED_TASKS, LeaseOrder::Priority, self.sync)?;
            for queue in [&queue, &family.queue(b"")] {
                committer.bound_tries(queue, self.tries);
            }
            let queues = NamedQueues::new(queue, Some(family));
            served.of_tasks = Some(queues.clone());
            let service = listener.serve(&mut committer, tasks.clone(), queues, terminated);
            services.push(BoundService::new("tasks", "tasks", service, SpiderqFrontend::run));
        }
        services.extend(jobs);
        Ok(OpenedTasks { committer, tasks, services, events, served: Some(served) })
    }
}
