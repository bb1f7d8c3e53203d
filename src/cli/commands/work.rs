//! `spindle task work` and `spindle job work`: a command for each task or job, until a signal.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::worker::until_signal;
use crate::cli::CommandError;
use crate::cli::flags::duration::{BareUnit, whole};
use crate::cli::flags::endpoint::seconds;
use crate::cli::flags::operand::command;
use crate::cli::show::Format;
use crate::worker::{WorkCommand, WorkConfig, WorkSource, WorkerError, WorkerTotals, start_work};

/// Most slots: more than any host has use for.
const SLOTS_MAX: i64 = 1_024;
/// The longest lease that a flag accepts: a year.
const LEASE_SECONDS_MAX: u64 = 365 * 86_400;

/// The flags of a worker, beside those of its server and its queues.
#[derive(Debug, Args)]
pub(crate) struct WorkFlags {
    /// Shell command that is run for each: its standard input is the value, and with status 0 the work is done; otherwise
    /// it is given back, with the last line of standard error as the reason. It finds the queue in SPINDLE_WORK_QUEUE,
    /// the key in SPINDLE_WORK_KEY or the id in SPINDLE_WORK_ID, and the tries in SPINDLE_WORK_TRIES
    #[arg(long, value_name = "CMD", value_parser = command())]
    command: String,

    /// Commands to run at once; no more is lent than they take
    #[arg(long, value_name = "SLOTS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=SLOTS_MAX))]
    slots: u16,

    /// Length of a lease, in seconds: it is extended while the command runs, and after it others get the work of a worker
    /// that is dead
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = whole(BareUnit::Seconds, 1, LEASE_SECONDS_MAX, "a lease is whole seconds"))]
    lease: u64,

    /// Seconds that a command may take; after that it is killed, and its work given back [default: any time]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    command_timeout: Option<Duration>,
}

impl WorkFlags {
    /// Prints "ready", works until a signal, and prints the totals.
    ///
    /// `failure` is the error of the command for a worker that does not start.
    ///
    /// # Errors
    /// [`CommandError`] if the worker cannot start, or standard output takes no more lines.
    pub(super) fn run(
        self,
        source: WorkSource,
        format: Format,
        failure: impl FnOnce(WorkerError) -> CommandError,
        out: &mut impl Write,
    ) -> Result<(), CommandError> {
        let Self { command, slots, lease, command_timeout } = self;
        let config = WorkConfig {
            source,
            command: WorkCommand { text: command, limit: command_timeout },
            slots: usize::from(slots),
            lease: Duration::from_secs(lease),
        };
        let totals = until_signal(out, || start_work(config).map_err(failure))?;
        let WorkerTotals { stored: done, given_back, lost, .. } = totals;
        let text = format!("done {done}, given back {given_back}, lost {lost}\n");
        format.print(out, &text, &json!({ "done": done, "given_back": given_back, "lost": lost }))
    }
}
