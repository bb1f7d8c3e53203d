//! The queues of jobs, over the service `--admin`: the protocol of jobs has no words for operators.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::{KickedTasks, QueueOperator, QueueServer, WantedPage};
use crate::cli::CommandError;
use crate::cli::commands::slow::{AdminServer, answered, document};
use crate::cli::show::Format;
use crate::clients::rust::operator::admin::AdminClient;
use crate::services::operator::admin::queues::parameter;
use crate::services::operator::admin::queues::words::{WorkFamily, state_word};

/// A kick or a purge of millions takes minutes.
const SWEEP_TIME: Duration = Duration::from_secs(3_600);

/// The server that shows its queues of jobs to an operator, and the format of the answer.
#[derive(Debug, Args)]
pub(crate) struct JobOperatorServer {
    #[command(flatten)]
    server: AdminServer,
    #[command(flatten)]
    format: Format,
}

impl QueueServer for JobOperatorServer {
    const WORD: &'static str = "job";

    fn format(&self) -> Format {
        self.format
    }

    fn operator(&self) -> Result<Box<dyn QueueOperator>, CommandError> {
        let sweep_time = self.server.asked_timeout().unwrap_or(SWEEP_TIME);
        Ok(Box::new(JobQueues { client: self.server.client()?, sweep_time }))
    }
}

/// The queues of a server.
struct JobQueues {
    client: AdminClient,
    /// The longest wait for the end of a kick or a purge.
    sweep_time: Duration,
}

impl JobQueues {
    fn change(&self, path: &str, parameters: &str) -> Result<Value, CommandError> {
        answered(&self.client, self.client.change(&asking(path, parameters)))
    }

    fn sweep(&mut self, path: &str, parameters: &str) -> Result<Value, CommandError> {
        self.client.set_timeout(self.sweep_time);
        self.change(path, parameters)
    }
}

/// A path with its parameters.
fn asking(path: &str, parameters: &str) -> String {
    format!("{path}?family={}{parameters}", WorkFamily::Jobs.word())
}

/// The list of this name in a document, or none.
fn list(document: &mut Value, name: &str) -> Vec<Value> {
    document.get_mut(name).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default()
}

/// The number of this name in a document, or 0.
fn count(document: &Value, name: &str) -> u64 {
    document.get(name).and_then(Value::as_u64).unwrap_or(0)
}

impl QueueOperator for JobQueues {
    fn queues(&mut self) -> Result<Vec<Value>, CommandError> {
        let (mut queues, mut from) = (Vec::new(), 0);
        loop {
            let mut page = document(&self.client, &asking("/queues", &format!("&from={from}")))?;
            queues.extend(list(&mut page, "queues"));
            match page.get("next").and_then(Value::as_u64) {
                None => return Ok(queues),
                Some(next) => from = next,
            }
        }
    }

    fn queue(&mut self, queue: &[u8]) -> Result<Option<Value>, CommandError> {
        let mut page = document(&self.client, &asking("/queues", &parameter("queue", queue)))?;
        Ok(list(&mut page, "queues").pop())
    }

    fn page(&mut self, page: &WantedPage<'_>) -> Result<(Vec<Value>, Option<String>), CommandError> {
        let WantedPage { queue, state, group, from, most, first_bytes } = page;
        let numbers = format!("&state={}&most={most}&bytes={first_bytes}", state_word(*state));
        let group = group.map_or(String::new(), |group| parameter("group", group));
        let from = from.as_ref().map_or(String::new(), |from| parameter("from", from.as_bytes()));
        let parameters = [parameter("queue", queue), numbers, group, from].concat();
        let mut page = document(&self.client, &asking("/queues/peek", &parameters))?;
        Ok((list(&mut page, "tasks"), page.get("next").and_then(Value::as_str).map(str::to_owned)))
    }

    fn kick(&mut self, queue: &[u8], what: &KickedTasks) -> Result<u64, CommandError> {
        let what = match what {
            KickedTasks::One(id) => parameter("id", id),
            KickedTasks::Dead(most) => format!("&state=dead&most={most}"),
            KickedTasks::Delayed(most) => format!("&state=delayed&most={most}"),
        };
        let done = self.sweep("/queues/kick", &(parameter("queue", queue) + &what))?;
        Ok(count(&done, "kicked"))
    }

    fn purge(&mut self, queue: &[u8], states: &str, age_ms: u64) -> Result<u64, CommandError> {
        let what = format!("&states={states}&older={age_ms}ms");
        let done = self.sweep("/queues/purge", &(parameter("queue", queue) + &what))?;
        Ok(count(&done, "removed"))
    }

    fn configure(&mut self, queue: &[u8], settings: &[(&'static str, String)]) -> Result<(), CommandError> {
        if settings.iter().any(|(name, _)| *name == "sync") {
            return Err(CommandError::Usage(
                "--sync is of tasks: jobs are on disk before they are answered".to_owned(),
            ));
        }
        let settings = settings.iter().map(|(name, value)| parameter(name, value.as_bytes()));
        let parameters = [parameter("queue", queue)].into_iter().chain(settings).collect::<String>();
        self.change("/queues/configure", &parameters).map(drop)
    }
}
