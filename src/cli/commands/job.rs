//! `spindle job`: durable jobs on the command line.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::flags::endpoint::TimeoutFlag;
use crate::cli::flags::login::LoginFlags;
use crate::cli::flags::operand::{Operand, operand};
use crate::cli::flags::tls::{TcpAddress, TlsFlags};
use crate::cli::show::{Format, Raw};
use crate::cli::{CommandError, JOBS_ADDRESS};
use crate::clients::rust::jobs::{Error, JobsClient};
use crate::limits::JOB_DATA_BYTES_MAX;
use crate::services::jobs::wire::{Fault, JobId};

/// A command about jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Add a job, and print its id
    Add(JobAdd),
    /// Lease the first job that is not handed out, and print its id and its data
    Get(JobGet),
    /// Mark a job as done: it is gone for good
    Ack(JobArguments),
    /// Print YES if a job is in the queue, handed out or not, and NO otherwise
    In(JobArguments),
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
    of: JobServer,
}

/// Sends the request, and prints the answer.
///
/// # Errors
/// [`CommandError`] if the server does not answer or refuses, or the answer cannot be printed.
pub(crate) fn run(command: JobCommand, out: &mut impl Write) -> Result<(), CommandError> {
    match command {
        JobCommand::Add(JobAdd { queue, data, file, of }) => {
            let (queue, hex) = (of.queue(queue)?, of.format.hex);
            let data = match (data, file) {
                (_, Some(path)) => read_file(&path)?,
                (data, None) => data.map_or(Ok(Vec::new()), |data| data.read(hex, io::stdin()))?,
            };
            let id = of.client()?.add(&queue, &data).map_err(failure)?;
            of.format.print(out, &format!("{id}\n"), &json!({ "id": id.to_string() }))
        }
        JobCommand::Get(JobGet { queue, raw, of }) => {
            let job = of.client()?.get(&of.queue(queue)?).map_err(failure)?;
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
    }
}

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
