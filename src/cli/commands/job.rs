//! `spindle job`: durable jobs on the command line.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::queues::jobs::JobOperatorServer;
use super::queues::{QueueArguments, QueueWord};
use super::work::WorkFlags;
use crate::cli::flags::endpoint::TimeoutFlag;
use crate::cli::flags::login::LoginFlags;
use crate::cli::flags::operand::{Operand, TableOperand, operand, table};
use crate::cli::flags::terms::{FOREVER, TermsFlags, option, time, wait};
use crate::cli::flags::tls::{TcpAddress, TlsFlags};
use crate::cli::show::{Format, Raw};
use crate::cli::{CommandError, JOBS_ADDRESS};
use crate::clients::rust::jobs::{Error, JobsClient};
use crate::limits::JOB_DATA_BYTES_MAX;
use crate::services::jobs::wire::{Fault, JobId};
use crate::worker::{WorkSource, WorkerError};

/// A command about jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Add a job, and print its id
    Add(JobAdd),
    /// Lease the first job that is not handed out, and print its id and its data
    #[command(visible_alias = "lend")]
    Get(JobGet),
    /// Mark a job as done: it is gone for good
    #[command(visible_alias = "done")]
    Ack(JobArguments),
    /// Give a job back that has failed: it is tried again, or is dead after its last try
    Nack(JobNack),
    /// Have the lease of a job end at another time
    Touch(JobTouch),
    /// Print YES if a job is in the queue, handed out or not, and NO otherwise
    In(JobArguments),
    /// Print all that is known of a queue
    Stats(QueueArguments<JobOperatorServer>),
    /// Run a command for each job of a queue, until a signal; any number of workers may run
    Work(JobWork),
    #[command(flatten)]
    Queues(QueueWord<JobOperatorServer>),
}

/// The server, and the format of the answer.
#[derive(Debug, Args)]
pub(crate) struct JobServer {
    /// Address at which the server answers requests about jobs: HOST:PORT, PORT or tls://HOST:PORT
    #[arg(long, value_name = "ADDR|PORT", env = "SPINDLE_CONNECT_JOBS", default_value = JOBS_ADDRESS, value_parser = TcpAddress::parse)]
    connect: TcpAddress,
    #[command(flatten)]
    patience: TimeoutFlag,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    login: LoginFlags,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct JobGet {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    queue: Operand,
    /// Wait until there is one, for this time at most, as in 30s; without a time, for ever [default: not at all]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = FOREVER, value_parser = wait())]
    wait: Option<u64>,
    #[command(flatten)]
    raw: Raw,
    #[command(flatten)]
    of: JobServer,
}

#[derive(Debug, Args)]
pub(crate) struct JobArguments {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    queue: Operand,
    /// Id of the job, as it was printed
    #[arg(value_parser = id)]
    id: JobId,
    #[command(flatten)]
    of: JobServer,
}

#[derive(Debug, Args)]
pub(crate) struct JobNack {
    #[command(flatten)]
    job: JobArguments,
    /// Why it has failed, on one line: the first 256 bytes are kept
    #[arg(value_parser = table())]
    reason: Option<TableOperand>,
    /// Time until it is handed out again, as in 30s [default: as its backoff says]
    #[arg(long, value_name = "TIME", value_parser = time())]
    delay: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct JobTouch {
    #[command(flatten)]
    job: JobArguments,
    /// Time from now to the end of the lease, in whole seconds, as in 90s; 0s ends it
    #[arg(value_name = "TIME", value_parser = time())]
    lease: u64,
}

#[derive(Debug, Args)]
pub(crate) struct JobWork {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    queue: Operand,
    #[command(flatten)]
    flags: WorkFlags,
    #[command(flatten)]
    of: JobServer,
}

#[derive(Debug, Args)]
pub(crate) struct JobAdd {
    /// Name of the queue: text, or 0x… for bytes with --hex
    #[arg(value_parser = operand())]
    queue: Operand,
    /// Data of the job: text, - for standard input, or 0x… for bytes with --hex
    #[arg(value_parser = operand(), required_unless_present = "file", allow_hyphen_values = true)]
    data: Option<Operand>,
    /// Read the data from a file
    #[arg(long, value_name = "PATH", conflicts_with = "data")]
    file: Option<PathBuf>,
    #[command(flatten)]
    terms: TermsFlags,
    /// Length of its leases, as in 90s [default: the server's --lease]
    #[arg(long, value_name = "TIME", value_parser = option("lease", "a lease is a time above 0 with a unit, as in 90s"))]
    lease: Option<String>,
    /// A name of its own: while a job of the queue has it, nothing is added, and the id is that of this job
    #[arg(long, value_name = "NAME", value_parser = option("key", "a key is 1 to 255 bytes without white space and commas"))]
    key: Option<String>,
    #[command(flatten)]
    of: JobServer,
}

/// Sends the request, and prints the answer.
///
/// # Errors
/// [`CommandError`] if the server does not answer or refuses, or the answer cannot be printed.
pub(crate) fn run(command: JobCommand, out: &mut impl Write) -> Result<(), CommandError> {
    match command {
        JobCommand::Add(add) => add.run(out),
        JobCommand::Get(JobGet { queue, wait, raw, of }) => {
            let (client, queue) = (of.client()?, of.queue(queue)?);
            let job = match wait {
                None => client.get(&queue),
                Some(millis) => client.wait(&[&queue], whole_seconds(millis)),
            };
            let job = job.map_err(failure)?;
            let job = job.ok_or_else(|| CommandError::NotFound(NOTHING.to_owned()))?;
            let hex = of.format.hex;
            let json = || json!({ "id": job.id.to_string(), "data": hex.shown_in_json(&job.data) });
            of.format.print_value(out, raw, &format!("{}\n", job.id), &job.data, json)
        }
        JobCommand::Ack(JobArguments { queue, id, of }) => {
            let done = of.client()?.ack(&of.queue(queue)?, id).map_err(failure)?;
            if done { of.format.done(out) } else { Err(CommandError::NotFound(NOT_HANDED_OUT.to_owned())) }
        }
        JobCommand::In(JobArguments { queue, id, of }) => {
            let there = of.client()?.is_in(&of.queue(queue)?, id).map_err(failure)?;
            of.format.print(out, if there { "YES\n" } else { "NO\n" }, &json!({ "in": there }))
        }
        JobCommand::Nack(JobNack { job: JobArguments { queue, id, of }, reason, delay }) => {
            let reason = reason.map_or(Ok(Vec::new()), |reason| of.format.hex.table(&reason))?;
            let delay = delay.map(u32::try_from).transpose();
            let delay = delay.map_err(|_| CommandError::Usage(TOO_LONG.to_owned()))?;
            let done = of.client()?.nack(&of.queue(queue)?, id, delay, &reason).map_err(failure)?;
            if done { of.format.done(out) } else { Err(CommandError::NotFound(NOT_HANDED_OUT.to_owned())) }
        }
        JobCommand::Touch(JobTouch { job: JobArguments { queue, id, of }, lease }) => {
            let touched = of.client()?.touch(&of.queue(queue)?, id, whole_seconds(lease)).map_err(failure)?;
            if touched { of.format.done(out) } else { Err(CommandError::NotFound(NOT_HANDED_OUT.to_owned())) }
        }
        JobCommand::Stats(queue) => queue.stats(out),
        JobCommand::Work(JobWork { queue, flags, of }) => {
            let (client, queue) = (of.client()?, of.queue(queue)?);
            let failure = |error| match error {
                WorkerError::Jobs(error) => failure(error),
                error => CommandError::Failed(error.to_string()),
            };
            flags.run(WorkSource::Jobs { client, queue }, of.format, failure, out)
        }
        JobCommand::Queues(word) => word.run(out),
    }
}

impl JobAdd {
    fn run(self, out: &mut impl Write) -> Result<(), CommandError> {
        let Self { queue, data, file, terms, lease, key, of } = self;
        let (queue, hex) = (of.queue(queue)?, of.format.hex);
        let mut options = terms.options(true, hex)?;
        options.extend(lease.map(|lease| format!("lease={lease}")));
        options.extend(key.map(|key| format!("key={key}")));
        let data = match (data, file) {
            (_, Some(path)) => read_file(&path)?,
            (data, None) => data.map_or(Ok(Vec::new()), |data| data.read(hex, io::stdin()))?,
        };
        let client = of.client()?;
        let id = if options.is_empty() {
            client.add(&queue, &data)
        } else {
            client.add_with(&queue, options.join(",").as_bytes(), &data)
        };
        let id = id.map_err(failure)?;
        of.format.print(out, &format!("{id}\n"), &json!({ "id": id.to_string() }))
    }
}

/// Seconds that are at least so many milliseconds.
fn whole_seconds(millis: u64) -> u32 {
    u32::try_from(millis.div_ceil(1_000)).unwrap_or(u32::MAX)
}

/// Why a delay is refused.
const TOO_LONG: &str = "a delay is at most 4294967295 ms, which is 49 days";

const NOTHING: &str =
    "no job of this queue is to be handed out: add one with `spindle job add`, or wait until a lease ends";
const NOT_HANDED_OUT: &str =
    "it is not handed out: its time was up, it is done already, or it is of another queue; nothing was changed";

impl JobServer {
    fn client(&self) -> Result<JobsClient, CommandError> {
        let mut client = JobsClient::new(&self.connect.address);
        self.tls.authorities(&self.connect)?.iter().for_each(|authorities| client.encrypt(authorities));
        let timeouts = self.patience.timeouts();
        client.set_timeout(timeouts.answer);
        client.set_connect_timeout(timeouts.connect);
        if let Some((user, password)) = self.login.name_and_password()? {
            client.log_in(&user, &password).map_err(failure)?;
        }
        Ok(client)
    }

    /// The name of a queue, which may be a dash.
    fn queue(&self, typed: Operand) -> Result<Vec<u8>, CommandError> {
        match typed {
            Operand::StandardInput => Ok(b"-".to_vec()),
            Operand::Given(name) => self.format.hex.bytes(name),
        }
    }
}

/// The error of the command for an error of the client.
fn failure(error: Error) -> CommandError {
    match error {
        Error::Unwritable(Fault::Length) => {
            CommandError::Usage(format!("the data of a job has at most {JOB_DATA_BYTES_MAX} bytes"))
        }
        Error::Address { .. } | Error::Unwritable(_) | Error::Login => CommandError::Usage(error.to_string()),
        Error::Denied { .. } => CommandError::Denied(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    }
}

fn id(typed: &str) -> Result<JobId, String> {
    JobId::read(typed.as_bytes()).ok_or_else(|| "an id has 20 digits, as it was printed".to_owned())
}

/// Reads a file, up to one byte more than a job may have.
fn read_file(path: &PathBuf) -> Result<Vec<u8>, CommandError> {
    let mut bytes = Vec::new();
    let most = JOB_DATA_BYTES_MAX as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| CommandError::Failed(format!("cannot read {}: {error}", path.display())))?;
    Ok(bytes)
}
