//! `spindle task`: durable tasks on the command line.

mod words;

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::client::read_both;
use super::queues::tasks::TaskQueues;
use super::queues::{self, QueueOperator, QueueServer, QueueWord};
use super::work::WorkFlags;
use crate::cli::flags::curve::ZeromqLogin;
use crate::cli::flags::endpoint::{connection, seconds, timeouts};
use crate::cli::flags::number::{lend_key, millis};
use crate::cli::flags::operand::{Operand, TableOperand, operand, table};
use crate::cli::flags::terms::FOREVER;
use crate::cli::flags::terms::{QueueOperand, TermsFlags, queue, time, wait};
use crate::cli::show::{self, Format, Raw};
use crate::cli::{CommandError, TASKS_ENDPOINT};
use crate::clients::rust::tasks::{Disconnected, Error, TasksClient};
use crate::security::DEFAULT_QUEUE;
use crate::services::tasks::wire::{Counters, Fault, Field, RepayStatus, tag};

/// A command about tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Print how many tasks are ready to be lent
    Count(QueueServerFlags),
    /// Add a task
    Add(TaskAdd),
    /// Replace the value of a task in any state
    Update(TaskUpdate),
    /// Lease the next task, or some, and print them
    Lend(TaskLend),
    /// End a task that is done: it is gone with its key and value
    #[command(visible_alias = "ack")]
    Done(TaskDone),
    /// Give a task back that has failed: it is tried again, or is dead after its last try
    Nack(TaskNack),
    /// Give a task back with a value
    Repay(TaskRepay),
    /// Set a new deadline for a lease
    Heartbeat(TaskHeartbeat),
    /// Print how many requests of each kind the server has answered, or all that is known of a queue
    Stats(TaskStats),
    /// Print the value of a task in any state
    Lookup(TaskLookup),
    /// Sync everything to disk
    Flush(TaskServer),
    /// Remove a task in any state
    Remove(TaskArguments),
    /// Run a command for each task, until a signal; any number of workers may run
    Work(TaskWork),
    #[command(flatten)]
    Queues(QueueWord<TaskServer>),
}

/// The server, and the format of the answer.
#[derive(Debug, Args)]
pub(crate) struct TaskServer {
    /// Endpoint at which the server answers requests about tasks
    #[arg(long, value_name = "ENDPOINT", env = "SPINDLE_CONNECT_TASKS", default_value = TASKS_ENDPOINT, value_parser = connection)]
    connect: String,
    /// Seconds to wait for the server to be there, and for each answer [default: 0.3 until it is there, 5 for an
    /// answer]
    #[arg(long, value_name = "SECONDS", env = "SPINDLE_TIMEOUT", value_parser = seconds)]
    connect_timeout: Option<Duration>,
    #[command(flatten)]
    login: ZeromqLogin,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct TaskWork {
    /// Queue of the tasks, where the flag may be there many times: the first that has a task [default: that of requests
    /// without a name]
    #[arg(long, value_name = "NAME", value_parser = queue())]
    queue: Vec<QueueOperand>,
    #[command(flatten)]
    flags: WorkFlags,
    #[command(flatten)]
    of: TaskServer,
}

/// A queue of the server.
#[derive(Debug, Args)]
pub(crate) struct QueueServerFlags {
    /// Name of the queue of tasks: text, or 0x… for bytes with --hex [default: the one of requests without a name]
    #[arg(long, value_name = "NAME", value_parser = queue())]
    queue: Option<QueueOperand>,
    #[command(flatten)]
    server: TaskServer,
}

#[derive(Debug, Args)]
pub(crate) struct TaskStats {
    /// Name of a queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = queue())]
    queue: Option<QueueOperand>,
    #[command(flatten)]
    of: TaskServer,
}

#[derive(Debug, Args)]
pub(crate) struct TaskArguments {
    /// Key of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    key: Operand,
    #[command(flatten)]
    of: QueueServerFlags,
}

#[derive(Debug, Args)]
pub(crate) struct TaskAdd {
    /// Key of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    key: Operand,
    /// Value of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_hyphen_values = true)]
    value: Operand,
    /// Put the task before all others
    #[arg(long)]
    head: bool,
    #[command(flatten)]
    terms: TermsFlags,
    /// Queue to add the task to, where the flag may be there many times [default: that of requests without a name]
    #[arg(long, value_name = "NAME", value_parser = queue())]
    queue: Vec<QueueOperand>,
    #[command(flatten)]
    of: TaskServer,
}

#[derive(Debug, Args)]
pub(crate) struct TaskUpdate {
    /// Key of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    key: Operand,
    /// New value of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_hyphen_values = true)]
    value: Operand,
    #[command(flatten)]
    of: QueueServerFlags,
}

#[derive(Debug, Args)]
pub(crate) struct TaskLend {
    /// Length of the lease, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 60_000, value_parser = millis())]
    timeout: u64,
    /// Wait until a task is ready, or for this time, as in 30s
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = FOREVER, value_parser = wait())]
    wait: Option<u64>,
    /// Lease up to so many
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Queue to lend from, which may be there many times: the first that has a task [default: the one of requests without
    /// a name]
    #[arg(long, value_name = "NAME", value_parser = queue())]
    queue: Vec<QueueOperand>,
    #[command(flatten)]
    raw: Raw,
    #[command(flatten)]
    of: TaskServer,
}

#[derive(Debug, Args)]
pub(crate) struct TaskDone {
    /// Lend key of the task, as `lend` printed it
    #[arg(value_parser = lend_key())]
    lend_key: u64,
    /// Key of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    key: Operand,
    #[command(flatten)]
    of: QueueServerFlags,
}

#[derive(Debug, Args)]
pub(crate) struct TaskNack {
    /// Lend key of the task, as `lend` printed it
    #[arg(value_parser = lend_key())]
    lend_key: u64,
    /// Key of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    key: Operand,
    /// Why it has failed: the first 256 bytes are kept
    #[arg(value_parser = table())]
    reason: Option<TableOperand>,
    /// Time until it is ready again, as in 30s [default: as its backoff says]
    #[arg(long, value_name = "TIME", value_parser = time())]
    delay: Option<u64>,
    /// It is dead from now on, whatever its tries
    #[arg(long, conflicts_with = "delay")]
    dead: bool,
    /// It was not begun, so this was no try
    #[arg(long, conflicts_with_all = ["delay", "dead", "reason"])]
    not_begun: bool,
    #[command(flatten)]
    of: QueueServerFlags,
}

#[derive(Debug, Args)]
pub(crate) struct TaskRepay {
    /// Lend key of the task, as `lend` printed it
    #[arg(value_parser = lend_key())]
    lend_key: u64,
    /// Key of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    key: Operand,
    /// New value of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), allow_hyphen_values = true)]
    value: Operand,
    /// How the task is repaid
    #[arg(long, value_enum)]
    status: RepayStatusName,
    #[command(flatten)]
    of: QueueServerFlags,
}

#[derive(Debug, Args)]
pub(crate) struct TaskHeartbeat {
    /// Lend key of the task, as `lend` printed it
    #[arg(value_parser = lend_key())]
    lend_key: u64,
    /// Key of the task: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    key: Operand,
    /// Time from now to the new deadline, in milliseconds; 0 gives the task back
    #[arg(long, value_name = "MILLISECONDS", value_parser = millis())]
    timeout: u64,
    #[command(flatten)]
    of: QueueServerFlags,
}

#[derive(Debug, Args)]
pub(crate) struct TaskLookup {
    #[command(flatten)]
    task: TaskArguments,
    #[command(flatten)]
    raw: Raw,
}

/// How a task is repaid.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RepayStatusName {
    /// Back to the queue, twice as far from the front
    Penalty,
    /// Back to the queue, half as far from the front
    Reward,
    /// Back to the front of the queue
    Front,
    /// Out of the queue for good; key and value stay
    Drop,
}

impl From<RepayStatusName> for RepayStatus {
    fn from(status: RepayStatusName) -> Self {
        match status {
            RepayStatusName::Penalty => Self::Penalty,
            RepayStatusName::Reward => Self::Reward,
            RepayStatusName::Front => Self::Front,
            RepayStatusName::Drop => Self::Drop,
        }
    }
}

/// Sends the request, and prints the answer.
///
/// # Errors
/// [`CommandError`] if the server does not answer or refuses, or the answer cannot be printed.
pub(crate) fn run(command: TaskCommand, out: &mut impl Write) -> Result<(), CommandError> {
    match command {
        TaskCommand::Count(of) => {
            let count = of.connect()?.count().map_err(of.failure())?;
            of.format().print(out, &format!("{count}\n"), &json!({ "count": count }))
        }
        TaskCommand::Add(add) => words::add(add, out),
        TaskCommand::Update(TaskUpdate { key, value, of }) => {
            let (key, value) = read_both(key, value, of.format().hex, io::stdin())?;
            let updated = of.connect()?.update(&key, &value).map_err(of.failure())?;
            if updated { of.format().done(out) } else { Err(no_task()) }
        }
        TaskCommand::Lend(lend) => words::lend(&lend, out),
        TaskCommand::Done(TaskDone { lend_key, key, of }) => {
            let key = key.read(of.format().hex, io::stdin())?;
            let done = of.connect()?.done(lend_key, &key).map_err(of.failure())?;
            if done { of.format().done(out) } else { Err(no_lease()) }
        }
        TaskCommand::Nack(nack) => words::nack(nack, out),
        TaskCommand::Repay(TaskRepay { lend_key, key, value, status, of }) => {
            let (key, value) = read_both(key, value, of.format().hex, io::stdin())?;
            let repaid = of.connect()?.repay(lend_key, &key, &value, status.into()).map_err(of.failure())?;
            if repaid { of.format().done(out) } else { Err(no_lease()) }
        }
        TaskCommand::Heartbeat(TaskHeartbeat { lend_key, key, timeout, of }) => {
            let key = key.read(of.format().hex, io::stdin())?;
            let kept = of.connect()?.heartbeat(lend_key, &key, timeout).map_err(of.failure())?;
            if kept { of.format().done(out) } else { Err(no_lease()) }
        }
        TaskCommand::Stats(TaskStats { queue: Some(queue), of }) => queues::stats(&of, &queue, out),
        TaskCommand::Stats(TaskStats { queue: None, of }) => stats(&of, out),
        TaskCommand::Work(work) => words::work(work, out),
        TaskCommand::Queues(word) => word.run(out),
        TaskCommand::Lookup(TaskLookup { task: TaskArguments { key, of }, raw }) => {
            let key = key.read(of.format().hex, io::stdin())?;
            let found = of.connect()?.lookup(&key).map_err(of.failure())?;
            let value = found.ok_or_else(no_task)?;
            let hex = of.format().hex;
            of.format().print_value(out, raw, "", &value, || json!({ "value": hex.shown_in_json(&value) }))
        }
        TaskCommand::Flush(of) => {
            of.connect()?.flush().map_err(of.failure())?;
            of.format.done(out)
        }
        TaskCommand::Remove(TaskArguments { key, of }) => {
            let key = key.read(of.format().hex, io::stdin())?;
            let removed = of.connect()?.remove(&key).map_err(of.failure())?;
            if removed { of.format().done(out) } else { Err(no_task()) }
        }
    }
}

fn no_lease() -> CommandError {
    let gone = "it is not lent with this key: its time was up, or it was given back; nothing was changed";
    CommandError::NotFound(gone.to_owned())
}

fn no_task() -> CommandError {
    CommandError::NotFound("there is no task of this key: add it with `spindle task add`".to_owned())
}

impl QueueServerFlags {
    fn connect(&self) -> Result<TasksClient, CommandError> {
        let mut client = self.server.connect()?;
        if let Some(queue) = &self.queue {
            client.use_queue(&queue.name(self.format().hex)?);
        }
        Ok(client)
    }

    fn failure(&self) -> impl Fn(Error) -> CommandError + use<> {
        self.server.failure()
    }

    fn format(&self) -> Format {
        self.server.format
    }

    /// The name of the queue.
    fn name(&self) -> Result<Vec<u8>, CommandError> {
        self.queue.as_ref().map_or(Ok(DEFAULT_QUEUE.to_vec()), |queue| queue.name(self.format().hex))
    }
}

/// A kick or a purge of millions takes minutes.
const SWEEP_TIME: Duration = Duration::from_secs(3_600);

impl QueueServer for TaskServer {
    const WORD: &'static str = "task";

    fn format(&self) -> Format {
        self.format
    }

    fn operator(&self) -> Result<Box<dyn QueueOperator>, CommandError> {
        let mut client = self.connect()?;
        client.set_timeout(self.connect_timeout.unwrap_or(SWEEP_TIME));
        Ok(Box::new(TaskQueues { client, failure: Box::new(self.failure()) }))
    }
}

impl TaskServer {
    fn connect(&self) -> Result<TasksClient, CommandError> {
        self.login.log_in()?;
        TasksClient::connect_within(&self.connect, timeouts(self.connect_timeout)).map_err(self.failure())
    }

    /// Converts an error of the client.
    fn failure(&self) -> impl Fn(Error) -> CommandError + use<> {
        let is_user = self.login.is_given();
        move |error| failure(error, is_user)
    }
}

fn stats(of: &TaskServer, out: &mut impl Write) -> Result<(), CommandError> {
    let counters = of.connect()?.stats().map_err(of.failure())?;
    let (names, counts): (&[_], &[_]) = match &counters {
        Counters::Eight(counts) => (&Counters::LISTED_1_3, counts),
        Counters::Ten(counts) => (&Counters::LISTED_1_4, counts),
    };
    let named = names.iter().zip(counts).map(|((name, _), count)| ((*name).to_owned(), json!(count)));
    let json = serde_json::Value::Object(named.collect());
    of.format.print(out, &show::outline(&json), &json)
}

/// The error of the command for an error of the client, whose user has logged in or not.
fn failure(error: Error, is_user: bool) -> CommandError {
    match error {
        // The protocol has no other way to say so, and a server with users knows all of these requests.
        Error::Refused(Fault::Offending { field: Field::UnknownTag, .. }) if is_user => CommandError::Denied(
            "the server denies permission: see `spindle user list` on the server's host".to_owned(),
        ),
        Error::Refused(Fault::Offending { field: Field::UnknownTag, offending }) if offending >= tag::IN_QUEUE => {
            CommandError::Failed("the server does not know queues by name: it is older than this program".to_owned())
        }
        Error::Refused(Fault::Truncated { field: Field::Queues, .. }) => CommandError::Failed(
            "the server has no room for another queue: make room on its disk, or empty queues, since those go that have neither a task nor a setting".to_owned(),
        ),
        Error::Disconnected(Disconnected::Endpoint { .. }) => CommandError::Usage(error.to_string()),
        Error::Disconnected(Disconnected::Denied { .. }) => CommandError::Denied(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    }
}
