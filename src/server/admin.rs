//! The service that shows the server to an operator: what it reads, and its threads.

use std::sync::Arc;

use super::tasks::{OpenedTasks, TasksListeners, or_give_up};
use super::{Error, RunningServer};
use crate::services::events::mysql::{Address, DatabaseProbe};
use crate::services::events::serve::{Events, EventsListener};
use crate::services::operator::admin::serve::{Admin, AdminParts};
use crate::services::tables::serve::{Kv, LockstepPart, Neighbours};
use crate::stats::slow_log::SlowLog;

/// What STATS reports beside the tables. The slow requests of all frontends go to `slow`.
pub(super) fn neighbours(
    tasks: Option<&mut TasksListeners>,
    events: Option<&mut EventsListener>,
    lockstep: Option<LockstepPart>,
    slow: Arc<SlowLog>,
) -> Neighbours {
    let mut neighbours = Neighbours { lockstep, slow, ..Neighbours::default() };
    if let Some(tasks) = tasks {
        neighbours.tasks = Some(Arc::clone(tasks.metrics()));
        neighbours.services = tasks.observe(&neighbours.slow);
    }
    if let Some(events) = events {
        events.log_slow(&neighbours.slow);
        neighbours.services.push(Arc::clone(events.metrics()));
    }
    neighbours
}

/// What the service reads and tries.
pub(super) fn parts(
    kv: &Kv,
    (tasks, events): (Option<&OpenedTasks>, Option<&Events>),
    database: Option<&Address>,
) -> AdminParts {
    let probe = database.map(DatabaseProbe::new);
    let metrics = events.and_then(|events| events.database.clone());
    AdminParts {
        report: Arc::clone(&kv.report),
        tasks: tasks.map(|tasks| tasks.tasks.clone()),
        database: probe.zip(metrics),
    }
}

impl RunningServer {
    pub(super) fn start_admin(&mut self, admin: Admin) -> Result<(), Error> {
        self.admin = Some(admin.address);
        // The prober starts first, and so it is joined after the service, whose end it waits for.
        if let Some(prober) = admin.prober {
            self.start_one("admin-probe", None, || or_give_up(prober.run()))?;
        }
        self.stoppers.push(admin.stopper);
        self.start_one("admin", None, || or_give_up(admin.front.run()))
    }
}
