//! `spindle task work` and `spindle job work`: each task or job of some queues is the standard input of a command.
//!
//! ```text
//! lent ─► command ─┬─ status 0 ─► done
//!                  ├─ another, or too slow ─► given back, with the last line of standard error as the reason
//!                  ├─ it cannot be run ─► given back as not begun; a job is left until its lease ends
//!                  └─ the lease is lost ─► killed
//! ```
//! Tasks come over spiderq, and jobs over TCP. The protocol of jobs has neither a token nor an end for what has not
//! begun. So the end of a failed job is not repeated once it may have been sent: by then the job may be another's.
//!
//! This module runs no process (`running`), and extends no lease (`lease`).

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::WorkShared;
use super::lease::{self, Failure, HeldLease, Lender, millis, patience};
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
/// The longest wait for an answer of the server.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The pause of a slot whose command could not be started. The next such pause is twice as long.
const UNSTARTED_PAUSE: Duration = Duration::from_secs(5);
/// The longest such pause.
const UNSTARTED_PAUSE_MAX: Duration = Duration::from_secs(300);

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

/// How long each wait may take for a request about a lease of which this time is left.
fn answer_time(left: Duration) -> Duration {
    ANSWER_MAX.min(patience(left))
}

/// Tasks of some queues.
pub(super) struct TaskLender {
    client: TasksClient,
    queues: Vec<Vec<u8>>,
    length: Duration,
}

impl TaskLender {
    pub(super) fn new(endpoint: &str, queues: Vec<Vec<u8>>, length: Duration) -> Self {
        Self { client: TasksClient::later(endpoint, answer_time(length)), queues, length }
    }

    fn queue(&self, lent: &LentOf) -> &[u8] {
        self.queues.get(lent.queue).map_or(&[], |queue| queue)
    }
}

impl Lender for TaskLender {
    type Lent = LentOf;
    type End<'e> = WorkEnd<'e>;
    type Error = tasks::Error;

    const IS_LENT_FOR_LENGTH: bool = true;

    fn lend(&mut self, over: BorrowedFd<'_>) -> Result<Option<LentOf>, tasks::Error> {
        self.client.set_timeout(answer_time(self.length));
        let queues: Vec<&[u8]> = self.queues.iter().map(Vec::as_slice).collect();
        self.client.lend_of_unless(&queues, millis(self.length), over)
    }

    fn extend(&mut self, lent: &LentOf, left: Duration) -> Result<bool, tasks::Error> {
        self.client.set_timeout(answer_time(left));
        let queue = self.queues.get(lent.queue).map_or(&[][..], |queue| queue);
        let lease = NamedLease { queue, lend_key: lent.lend_key, key: &lent.key };
        is_done(self.client.extend_many(vec![(lease, millis(self.length))]))
    }

    fn end(&mut self, lent: &LentOf, end: WorkEnd<'_>, _left: Duration) -> Result<bool, tasks::Error> {
        self.client.set_timeout(answer_time(self.length));
        let queue = self.queues.get(lent.queue).map_or(&[][..], |queue| queue);
        let lease = NamedLease { queue, lend_key: lent.lend_key, key: &lent.key };
        let end = match end {
            WorkEnd::Done => LeaseEnd::Repay(RepayStatus::Done, b""),
            WorkEnd::Failed { reason } => LeaseEnd::GiveBack { delay_ms: None, reason },
            WorkEnd::NotBegun => LeaseEnd::NotBegun,
        };
        is_done(self.client.settle_many(vec![(lease, end)]))
    }

    /// A lend key is of one lease, so the server carries no end out twice.
    fn failure(error: &tasks::Error, _end: WorkEnd<'_>) -> Failure {
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
        Self { client: client.clone(), queue: queue.to_vec(), length }
    }
}

impl Lender for JobLender {
    type Lent = Job;
    type End<'e> = WorkEnd<'e>;
    type Error = jobs::Error;

    /// It begins with the length that the job or the server has.
    const IS_LENT_FOR_LENGTH: bool = false;

    fn lend(&mut self, over: BorrowedFd<'_>) -> Result<Option<Job>, jobs::Error> {
        self.client.set_timeout(answer_time(self.length));
        self.client.wait_unless(&self.queue, JOB_WAIT_SECONDS, over)
    }

    fn extend(&mut self, job: &Job, left: Duration) -> Result<bool, jobs::Error> {
        self.client.set_timeout(answer_time(left));
        self.client.touch(&self.queue, job.id, u32::try_from(self.length.as_secs()).unwrap_or(u32::MAX))
    }

    fn end(&mut self, job: &Job, end: WorkEnd<'_>, left: Duration) -> Result<bool, jobs::Error> {
        match end {
            // Whoever holds the job by now, its work is done.
            WorkEnd::Done => {
                self.client.set_timeout(answer_time(self.length));
                self.client.ack(&self.queue, job.id)
            }
            // A NACK would end the lease of another.
            WorkEnd::Failed { .. } if left.is_zero() => Ok(false),
            WorkEnd::Failed { reason } => {
                self.client.set_timeout(answer_time(left));
                self.client.nack(&self.queue, job.id, None, reason)
            }
            // A NACK would count as a try like the end of the lease, and hand the job out at once.
            WorkEnd::NotBegun => Ok(true),
        }
    }

    fn failure(error: &jobs::Error, end: WorkEnd<'_>) -> Failure {
        let is_sent = match error {
            jobs::Error::NoAnswer { is_sent, .. } => *is_sent,
            jobs::Error::Malformed { .. } => true,
            jobs::Error::UnknownHost(_) => false,
            jobs::Error::Busy(_) | jobs::Error::Refused(_) => return Failure::Refused,
            _ => return Failure::Final,
        };
        if is_sent && !matches!(end, WorkEnd::Done) { Failure::Final } else { Failure::Away }
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
    let mut unstarted = UnstartedPause::default();
    lease::work(&shared.control, &mut lender, shared.lease, |held| take(shared, held, &mut unstarted));
}

/// The next pause of a slot whose command could not be started. What fails so once does for every task or job.
struct UnstartedPause(Duration);

impl Default for UnstartedPause {
    fn default() -> Self {
        Self(UNSTARTED_PAUSE)
    }
}

impl UnstartedPause {
    /// Returns the pause. The next one is twice as long.
    fn next(&mut self) -> Duration {
        let longer = UNSTARTED_PAUSE_MAX.min(self.0 * 2);
        std::mem::replace(&mut self.0, longer)
    }
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

fn take<L: WorkLender>(shared: &WorkShared, mut held: HeldLease<'_, L>, unstarted: &mut UnstartedPause) {
    let name = held.lender().name(&held.lent);
    let ran = run(shared, &mut held);
    if matches!(ran, Ran::Done | Ran::Failed(_)) {
        *unstarted = UnstartedPause::default();
    }
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
    match ran {
        Ran::NotBegun(_) => held.pause_for(unstarted.next()),
        _ => held.pause(),
    }
}

/// Runs the command, and extends the lease meanwhile.
fn run<L: WorkLender>(shared: &WorkShared, held: &mut HeldLease<'_, L>) -> Ran {
    let Some(first_beat) = held.beat() else { return Ran::Lost };
    let WorkInput { variables, value } = held.lender().input(&held.lent);
    let WorkCommand { text, limit } = &shared.command;
    let line = KeptLine::last(REASON_BYTES_MAX);
    let start = CommandStart { text: text.clone(), arguments: Vec::new(), variables, input: value, line };
    let mut running = match RunningCommand::start(start) {
        Ok(running) => running,
        Err(error) => return Ran::NotBegun(format!("the command cannot be run: {error}")),
    };
    let ended = running.watch(*limit, first_beat, || held.beat());
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io;

    use super::*;
    use crate::services::jobs::wire::{JobId, Malformed};

    fn no_answer(is_sent: bool) -> jobs::Error {
        jobs::Error::NoAnswer { address: "h:1".to_owned(), is_sent, source: io::ErrorKind::ConnectionReset.into() }
    }

    #[test]
    fn only_an_ack_is_repeated_once_it_may_have_been_sent() {
        let malformed = || jobs::Error::Malformed { address: "h:1".to_owned(), malformed: Malformed::Words };
        let failed = WorkEnd::Failed { reason: b"why" };
        for (error, done, not_done) in [
            (no_answer(false), Failure::Away, Failure::Away),
            (no_answer(true), Failure::Away, Failure::Final),
            (malformed(), Failure::Away, Failure::Final),
            (jobs::Error::Refused("h:1".to_owned()), Failure::Refused, Failure::Refused),
            (jobs::Error::Denied("h:1".to_owned()), Failure::Final, Failure::Final),
        ] {
            assert_eq!(JobLender::failure(&error, WorkEnd::Done), done, "{error}");
            assert_eq!(JobLender::failure(&error, failed), not_done, "{error}");
        }
    }

    /// Nobody listens at the address, so a request has an error.
    #[test]
    fn a_job_whose_lease_may_be_another_s_is_not_failed() {
        let mut lender = JobLender::new(&JobsClient::new("127.0.0.1:1"), b"mail", Duration::from_secs(1));
        let job = Job { id: JobId(7), data: Vec::new(), tries: None };
        let failed = WorkEnd::Failed { reason: b"why" };
        assert!(!lender.end(&job, failed, Duration::ZERO).unwrap());
        assert!(lender.end(&job, failed, Duration::from_secs(1)).is_err());
        assert!(lender.end(&job, WorkEnd::Done, Duration::ZERO).is_err(), "what is done is done");
    }

    #[test]
    fn pauses_of_a_slot_whose_command_cannot_be_started_double_up_to_five_minutes() {
        let mut pause = UnstartedPause::default();
        let seconds: Vec<u64> = (0..8).map(|_| pause.next().as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300]);
    }
}
