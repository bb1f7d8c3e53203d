//! `spindle worker`: the flags as typed, and the worker that they configure. It runs until a signal.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser;

use crate::cli::flags::curve::ZeromqLogin;
use crate::cli::flags::duration::{BareUnit, statement_seconds, whole};
use crate::cli::flags::endpoint::connection;
use crate::cli::flags::operand::command;
use crate::cli::flags::password_file::PasswordFile;
use crate::cli::log::{self, LogFlags};
use crate::cli::{CommandError, EVENTS_ENDPOINT};
use crate::clients::rust::tasks::{Disconnected, Error as ClientError};
use crate::limits::{CLAIM_MAX, STORE_ANSWER_MAX};
use crate::server::{Signals, raise_descriptor_limit};
use crate::services::events::mysql::DatabaseAddress;
use crate::worker::{self, EventCommand, RunningWorker, WorkerConfig, WorkerError, WorkerSource, WorkerTotals};

/// Most slots: more than any host has use for.
const SLOTS_MAX: u64 = 1_024;
/// The longest time that a flag accepts: a year.
const SECONDS_MAX: u64 = 365 * 86_400;

/// The flags of a worker, as typed.
#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    /// Endpoint at which a server leases pending events: its --events-queue
    #[arg(long, value_name = "ENDPOINT", env = "SPINDLE_CONNECT_EVENTS", default_value = EVENTS_ENDPOINT, value_parser = connection, conflicts_with = "store")]
    connect: String,

    /// Database of the events, mysql://USER:PASSWORD@HOST/DATABASE: the server's --events-store
    #[arg(long, value_name = "URL", value_parser = |typed: &str| typed.parse::<DatabaseAddress>())]
    store: Option<DatabaseAddress>,

    #[command(flatten)]
    password: PasswordFile,

    #[command(flatten)]
    login: ZeromqLogin,

    /// Shell command that takes an event's id as its last argument and prints the value as its first line [default: a
    /// random word]
    #[arg(long, value_name = "CMD", value_parser = command())]
    command: Option<String>,

    /// Seconds that the command may take; after that it is killed, and the event goes back
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds())]
    command_timeout: u64,

    /// Events to work on at once
    #[arg(long, value_name = "SLOTS", default_value_t = 1, value_parser = count(SLOTS_MAX))]
    slots: usize,

    /// Events of a database that each slot claims in one transaction
    #[arg(long, value_name = "EVENTS", default_value_t = 1, value_parser = count(CLAIM_MAX as u64), requires = "store")]
    claim: usize,

    /// Seconds that a statement of the database may take; after that the database ends it
    #[arg(long, value_name = "SECONDS", default_value_t = STORE_ANSWER_MAX.as_secs(), value_parser = statement_seconds(), requires = "store")]
    timeout: u64,

    /// Length of a lease of a server's event, in seconds: after it, another worker gets the event of a dead one
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds())]
    lease: u64,
}

fn seconds() -> impl TypedValueParser<Value = u64> {
    whole(BareUnit::Seconds, 1, SECONDS_MAX, "a time is whole seconds")
}

fn count(most: u64) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64).range(1..=most).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}

impl TryFrom<WorkerArguments> for WorkerConfig {
    type Error = CommandError;

    fn try_from(typed: WorkerArguments) -> Result<Self, CommandError> {
        let store = typed.password.complete(typed.store, "--store")?;
        let limit = Duration::from_secs(typed.command_timeout);
        Ok(Self {
            source: match store {
                Some(address) => WorkerSource::Database(address.with_statement_seconds(typed.timeout)),
                None => WorkerSource::Queue(typed.connect),
            },
            command: typed.command.map(|text| EventCommand { text, limit }),
            slots: typed.slots,
            claim: typed.claim,
            lease: Duration::from_secs(typed.lease),
        })
    }
}

/// Prints "ready", works until a signal, and prints the totals.
///
/// # Errors
/// [`CommandError`] if the worker cannot start, or standard output takes no more lines.
pub(crate) fn run(arguments: WorkerArguments, out: &mut impl Write) -> Result<(), CommandError> {
    if arguments.store.is_some() && arguments.login.is_typed() {
        return Err(CommandError::Usage(
            "--user and --curve-key are for a server: the URL of --store names the database's user".to_owned(),
        ));
    }
    if arguments.store.is_none() {
        arguments.login.log_in()?;
    }
    let config = arguments.try_into()?;
    let WorkerTotals { stored, given_back, lost, retries } =
        until_signal(out, || worker::start(config).map_err(failure))?;
    writeln!(out, "stored {stored}, given back {given_back}, lost {lost}, transactions tried again {retries}")?;
    Ok(())
}

/// Starts a worker, prints "ready", and stops the worker at a signal. Returns its totals.
///
/// # Errors
/// [`CommandError`] if the worker cannot start, or standard output takes no more lines.
pub(super) fn until_signal(
    out: &mut impl Write,
    start: impl FnOnce() -> Result<RunningWorker, CommandError>,
) -> Result<WorkerTotals, CommandError> {
    log::begin(LogFlags::TEXT, false)?;
    let signals = Signals::new(|| tracing::info!("SIGHUP: there is nothing to be read again"), || {})
        .map_err(|error| CommandError::Failed(format!("signals cannot be waited for: {error}")))?;
    raise_descriptor_limit();
    signals.serving()();
    let running = start()?;
    writeln!(out, "ready")?;
    out.flush()?;
    signals.wait();
    Ok(running.stop())
}

/// The error of the command for a worker that does not start.
fn failure(error: WorkerError) -> CommandError {
    match error {
        WorkerError::Server(ClientError::Disconnected(Disconnected::Endpoint { .. })) => {
            CommandError::Usage(error.to_string())
        }
        WorkerError::Server(ClientError::Disconnected(Disconnected::Denied { .. })) => {
            CommandError::Denied(error.to_string())
        }
        _ => CommandError::Failed(error.to_string()),
    }
}
