//! The queues of tasks, over spiderq.

use serde_json::Value;

use super::{KickedTasks, QueueOperator, WantedPage};
use crate::cli::CommandError;
use crate::clients::rust::tasks::{Error, TasksClient};
use crate::services::operator::admin::queues::document::{queue_json, task_json};
use crate::services::operator::admin::queues::words::{WorkFamily, place_text, read_place, read_setting, read_states};
use crate::services::tasks::wire::{Kicked, QueueRequest};
use crate::tasks::QueueChange;

/// The queues on one page of them.
const QUEUES_PAGE: u32 = 1_000;

/// The queues of a server, and how an error of the client is reported.
pub(in crate::cli::commands) struct TaskQueues {
    pub(in crate::cli::commands) client: TasksClient,
    pub(in crate::cli::commands) failure: Box<dyn Fn(Error) -> CommandError>,
}

impl QueueOperator for TaskQueues {
    fn queues(&mut self) -> Result<Vec<Value>, CommandError> {
        let (mut queues, mut from) = (Vec::new(), 0);
        loop {
            let page = self.client.queues(from, QUEUES_PAGE, |queue| queues.push(queue_json(WorkFamily::Tasks, queue)));
            match page.map_err(&self.failure)? {
                None => return Ok(queues),
                Some(next) => from = next,
            }
        }
    }

    fn page(&mut self, page: &WantedPage<'_>) -> Result<(Vec<Value>, Option<String>), CommandError> {
        let &WantedPage { queue, state, group, ref from, most, first_bytes } = page;
        let from = from.as_deref().and_then(read_place).unwrap_or_default();
        let mut tasks = Vec::new();
        let request = QueueRequest::Browse { queue, state, group, from, most, first_bytes };
        let next = self.client.browse(request, |task| tasks.push(task_json(WorkFamily::Tasks, state, task)));
        Ok((tasks, next.map_err(&self.failure)?.map(place_text)))
    }

    fn kick(&mut self, queue: &[u8], what: &KickedTasks) -> Result<u64, CommandError> {
        let what = match what {
            KickedTasks::One(key) => Kicked::One(key),
            KickedTasks::Dead(most) => Kicked::Dead(*most),
            KickedTasks::Delayed(most) => Kicked::Delayed(*most),
        };
        self.client.kick(queue, what).map_err(&self.failure)
    }

    fn purge(&mut self, queue: &[u8], states: &str, age_ms: u64) -> Result<u64, CommandError> {
        let states = read_states(states).unwrap_or_default();
        self.client.purge(queue, states, age_ms).map_err(&self.failure)
    }

    fn configure(&mut self, queue: &[u8], settings: &[(&'static str, String)]) -> Result<(), CommandError> {
        let mut change = QueueChange::default();
        for (name, value) in settings {
            let set = read_setting(&mut change, name, value);
            set.map_err(|why| CommandError::Usage(format!("--{name}: {why}")))?;
        }
        self.client.configure(queue, change).map_err(&self.failure)
    }
}
