//! `spindle task work` and `spindle job work`: each task or job of some queues is the standard input of a command.
//!
//! ```text
//! lent ─► command ─┬─ status 0 ─► done
//!                  ├─ another, or too slow ─► given back, with the last line of standard error as the reason
//!                  ├─ it cannot be run ─► given back as not begun
//!                  └─ the lease is lost ─► killed
//! ```
//! Tasks come over spiderq, and jobs over TCP. This module runs no process (`running`), and extends no lease (`lease`).

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::WorkShared;
use super::lease::{self, Failure, HeldLease, Lender, millis};
use super::queue::failure;
use super::running::{CommandEnd, CommandStart, KeptLine, RunningCommand};
use crate::clients::rust::jobs::{self, Job, JobsClient};
use crate::clients::rust::tasks::{self, LentOf, TasksClient};
use crate::services::tables::report::hexadecimal;
use crate::services::tasks::wire::{ItemResult, LeaseEnd, NamedLease, RepayStatus};
use crate::tasks::REASON_BYTES_MAX;

/// The variables of a command.
const QUEUE: &str = "SPINDLE_WORK_QUEUE";
const KEY: &str = "SPINDLE_WORK_KEY";
const ID: &str = "SPINDLE_WORK_ID";
const TRIES: &str = "SPINDLE_WORK_TRIES";

/// The longest time that a job is waited for by one connection, in seconds.
const JOB_WAIT_SECONDS: u32 = 3_600;
/// The longest wait for an answer of the server. Three of them are shorter than a lease, so that it is not lost meanwhile.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The command that is run for each task or job.
#[derive(Clone, Debug)]
pub struct WorkCommand {
    /// A command for the shell. The value is its standard input.
    pub text: String,
    /// The longest time it may take. `None`: any.
    pub limit: Option<Duration>,
}

/// How work ends.
#[derive(Clone, Copy)]
pub(super) enum WorkEnd<'r> {
    Done,
    Failed {
        /// Why, in up to [`REASON_BYTES_MAX`] bytes.
        reason: &'r [u8],
    },
    NotBegun,
}

/// What a command is given of its work.
pub(super) struct WorkInput<'l> {
    variables: Vec<(&'static str, OsString)>,
    value: &'l [u8],
}

/// A connection to a server that leases work for a command.
pub(super) trait WorkLender: for<'e> Lender<End<'e> = WorkEnd<'e>> {
    /// What a command is given.
    fn input<'l>(&self, lent: &'l Self::Lent) -> WorkInput<'l>;

    /// The name for people.
    fn name(&self, lent: &Self::Lent) -> String;
}

/// Bytes as a variable has them: as they are, or in hexadecimal if there is a NUL.
fn variable(bytes: &[u8]) -> OsString {
    if bytes.contains(&0) { hexadecimal(bytes).into() } else { OsString::from_vec(bytes.to_vec()) }
}

/// How long a client waits for an answer about a lease of this length.
fn patience(length: Duration) -> Duration {
    ANSWER_MAX.min(length / 4).max(Duration::from_millis(1))
}

/// Tasks of some queues.
pub(super) struct TaskLender {
    client: TasksClient,
    queues: Vec<Vec<u8>>,
    length: Duration,
}

impl TaskLender {
    pub(super) fn new(endpoint: &str, queues: Vec<Vec<u8>>, length: Duration) -> Self {
        Self { client: TasksClient::later(endpoint, patience(length)), queues, length }
    }

    fn queue(&self, lent: &LentOf) -> &[u8] {
        self.queues.get(lent.queue).map_or(&[], |queue| queue)
    }
}

impl Lender for TaskLender {
    type Lent = LentOf;
    type End<'e> = WorkEnd<'e>;
    type Error = tasks::Error;

    fn lend(&mut self, over: BorrowedFd<'_>) -> Result<Option<LentOf>, tasks::Error> {
        let queues: Vec<&[u8]> = self.queues.iter().map(Vec::as_slice).collect();
        self.client.lend_of_unless(&queues, millis(self.length), over)
    }

    fn extend(&mut self, lent: &LentOf) -> Result<bool, tasks::Error> {
        let queue = self.queues.get(lent.queue).map_or(&[][..], |queue| queue);
        let lease = NamedLease { queue, lend_key: lent.lend_key, key: &lent.key };
        is_done(self.client.extend_many(vec![(lease, millis(self.length))]))
    }

    fn end(&mut self, lent: &LentOf, end: WorkEnd<'_>) -> Result<bool, tasks::Error> {
        let queue = self.queues.get(lent.queue).map_or(&[][..], |queue| queue);
        let lease = NamedLease { queue, lend_key: lent.lend_key, key: &lent.key };
        let end = match end {
            WorkEnd::Done => LeaseEnd::Repay(RepayStatus::Done, b""),
            WorkEnd::Failed { reason } => LeaseEnd::GiveBack { delay_ms: None, reason },
            WorkEnd::NotBegun => LeaseEnd::NotBegun,
        };
        is_done(self.client.settle_many(vec![(lease, end)]))
    }

    fn failure(error: &tasks::Error) -> Failure {
        failure(error)
    }
}

fn is_done(items: Result<Vec<ItemResult>, tasks::Error>) -> Result<bool, tasks::Error> {
    Ok(items?.first() == Some(&ItemResult::Done))
}

impl WorkLender for TaskLender {
    fn input<'l>(&self, lent: &'l LentOf) -> WorkInput<'l> {
        let tries = lent.tries.to_string().into();
        let variables = vec![(QUEUE, variable(self.queue(lent))), (KEY, variable(&lent.key)), (TRIES, tries)];
        WorkInput { variables, value: &lent.value }
    }

    fn name(&self, lent: &LentOf) -> String {
        format!("task {} of {}", lent.key.escape_ascii(), self.queue(lent).escape_ascii())
    }
}

/// Jobs of a queue.
pub(super) struct JobLender {
    client: JobsClient,
    queue: Vec<u8>,
    /// Whole seconds.
    length: Duration,
}

impl JobLender {
    pub(super) fn new(client: &JobsClient, queue: &[u8], length: Duration) -> Self {
        let mut client = client.clone();
        client.set_timeout(patience(length));
        Self { client, queue: queue.to_vec(), length }
    }
}

impl Lender for JobLender {
    type Lent = Job;
    type End<'e> = WorkEnd<'e>;
    type Error = jobs::Error;

    fn lend(&mut self, over: BorrowedFd<'_>) -> Result<Option<Job>, jobs::Error> {
        let Some(job) = self.client.wait_unless(&self.queue, JOB_WAIT_SECONDS, over)? else { return Ok(None) };
        // Its lease is as long as the job or the server says. From here on it is as long as the worker says.
        Ok(self.extend(&job)?.then_some(job))
    }

    fn extend(&mut self, job: &Job) -> Result<bool, jobs::Error> {
        self.client.touch(&self.queue, job.id, u32::try_from(self.length.as_secs()).unwrap_or(u32::MAX))
    }

    fn end(&mut self, job: &Job, end: WorkEnd<'_>) -> Result<bool, jobs::Error> {
        match end {
            WorkEnd::Done => self.client.ack(&self.queue, job.id),
            WorkEnd::Failed { reason } => self.client.nack(&self.queue, job.id, None, reason),
            WorkEnd::NotBegun => self.client.nack(&self.queue, job.id, None, b"the command cannot be run"),
        }
    }

    fn failure(error: &jobs::Error) -> Failure {
        match error {
            jobs::Error::NoAnswer { .. } | jobs::Error::UnknownHost(_) | jobs::Error::Malformed { .. } => Failure::Away,
            jobs::Error::Busy(_) | jobs::Error::Refused(_) => Failure::Refused,
            _ => Failure::Final,
        }
    }
}

impl WorkLender for JobLender {
    fn input<'l>(&self, job: &'l Job) -> WorkInput<'l> {
        let mut variables = vec![(QUEUE, variable(&self.queue)), (ID, job.id.to_string().into())];
        variables.extend(job.tries.map(|tries| (TRIES, tries.to_string().into())));
        WorkInput { variables, value: &job.data }
    }

    fn name(&self, job: &Job) -> String {
        format!("job {} of {}", job.id, self.queue.escape_ascii())
    }
}

/// Runs the slot until the worker is stopped.
pub(super) fn work<L: WorkLender>(shared: &WorkShared, mut lender: L) {
    let length = shared.lease;
    lease::work(&shared.control, &mut lender, length, |held| take(shared, held));
}

/// How a command has ended.
enum Ran {
    Done,
    /// For this reason.
    Failed(Vec<u8>),
    /// It could not be run, for this reason.
    NotBegun(String),
    Lost,
}

fn take<L: WorkLender>(shared: &WorkShared, mut held: HeldLease<'_, L>) {
    let name = held.lender().name(&held.lent);
    let ran = run(shared, &mut held);
    let ended = match &ran {
        Ran::Done => held.end(WorkEnd::Done),
        Ran::Failed(reason) => held.end(WorkEnd::Failed { reason }),
        Ran::NotBegun(_) => held.end(WorkEnd::NotBegun),
        Ran::Lost => Ok(false),
    };
    match (&ran, ended) {
        (Ran::Done, Ok(true)) => return shared.counts.stored(&name),
        (Ran::Failed(reason), Ok(true)) => shared.counts.given_back(&name, &reason.escape_ascii().to_string()),
        (Ran::NotBegun(why), Ok(true)) => shared.counts.given_back(&name, why),
        (_, Ok(_)) => shared.counts.lost(&name, "its lease had ended"),
        (_, Err(error)) => shared.counts.lost(&name, &error.to_string()),
    }
    held.pause();
}

/// Runs the command, and extends the lease meanwhile.
fn run<L: WorkLender>(shared: &WorkShared, held: &mut HeldLease<'_, L>) -> Ran {
    let WorkInput { variables, value } = held.lender().input(&held.lent);
    let WorkCommand { text, limit } = &shared.command;
    let line = KeptLine::last(REASON_BYTES_MAX);
    let start = CommandStart { text: text.clone(), arguments: Vec::new(), variables, input: value, line };
    let mut running = match RunningCommand::start(start) {
        Ok(running) => running,
        Err(error) => return Ran::NotBegun(format!("the command cannot be run: {error}")),
    };
    let ended = running.watch(*limit, shared.lease / 3, || held.beat());
    let failed = |otherwise: String| {
        let line = running.into_line().into_bytes();
        let line = line.trim_ascii();
        Ran::Failed(if line.is_empty() { otherwise.into_bytes() } else { line.to_vec() })
    };
    match ended {
        Ok(CommandEnd::Status(status)) if status.success() => Ran::Done,
        Ok(CommandEnd::Status(status)) => failed(format!("the command has ended with {status}")),
        Ok(CommandEnd::TooLong) => {
            let seconds = limit.unwrap_or_default().as_secs_f64();
            Ran::Failed(format!("the command has taken longer than {seconds} s").into_bytes())
        }
        Ok(CommandEnd::Lost) => Ran::Lost,
        Err(error) => failed(format!("the command cannot be watched: {error}")),
    }
}
