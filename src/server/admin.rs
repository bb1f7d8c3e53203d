//! The service that shows the server to an operator: what it reads, and its threads.

use std::sync::Arc;

use super::tasks::{OpenedTasks, or_give_up};
use super::{Error, RunningServer};
use crate::protocols::admin::serve::{Admin, AdminParts};
use crate::protocols::events::mysql::{Address, DatabaseProbe};
use crate::protocols::events::serve::Events;
use crate::protocols::kv::serve::Kv;

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
