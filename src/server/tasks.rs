//! Durable tasks: the store, the committer and their face, put together.

use std::path::PathBuf;
use std::sync::Arc;

use super::Error;
use crate::clock::wall_millis;
use crate::protocols::spiderq::serve::{self, Settings, Spiderq};
use crate::store::{self, Disk};
use crate::tasks::{self, Committer, Figures, Order, Policy};
use crate::threads::give_up;

/// The name of the queue that `--tasks` serves.
const QUEUE: &[u8] = b"spiderq";
/// Exit status when the store has failed.
const STORE_FAILED: i32 = 1;

/// What durable tasks are told to be.
#[derive(Clone, Debug)]
pub struct TasksConfig {
    /// Where they are asked for, and how.
    pub spiderq: Settings,
    /// The folder of the store.
    pub data: PathBuf,
    /// When changes are on disk.
    pub sync: Policy,
}

/// What is to run.
pub(super) struct Opened {
    pub(super) committer: Committer,
    pub(super) spiderq: Spiderq,
    pub(super) figures: Arc<Figures>,
}

/// Opens the store and listens.
pub(super) fn open(config: &TasksConfig, terminated: Box<dyn Fn() + Send>) -> Result<Opened, Error> {
    let store = Disk::open(&config.data)?;
    let (tasks, mut committer) = tasks::open(Box::new(store), wall_millis())?;
    let figures = Arc::clone(tasks.figures());
    let queue = committer.queue(QUEUE, Order::Priority, config.sync)?;
    let spiderq = serve::bind(&config.spiderq, (&mut committer, tasks, queue), terminated)?;
    Ok(Opened { committer, spiderq, figures })
}

/// After an error of the store nothing may be acknowledged: the process ends.
pub(super) fn or_give_up(ended: Result<(), store::Error>) {
    if let Err(error) = ended {
        give_up(&error.to_string(), STORE_FAILED);
    }
}
