//! The command line: arguments in, one exit status out.
//!
//! ```text
//! argv ─► Arguments (as typed) ─► serve:  server::Config (checked) ─► server::run     until a signal
//!                              └► others: operands as bytes ─► client ─► show ─► standard output
//!
//! exit 0   done, and asked for help
//! exit 1   it could not be done: one line on standard error says what to do
//! exit 2   it was asked wrongly: one line on standard error says what is wrong
//! ```
//! What the user typed is parsed here, once; beyond this folder nothing knows of flags. Nothing here names a socket.

mod amount;
mod client;
mod endpoint;
mod job;
mod load;
mod log;
mod operand;
mod pin;
mod serve;
mod show;
mod task;
mod watch;
mod worker;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Exit status of a command that could not be done.
const FAILED: u8 = 1;
/// Exit status of bad usage.
const BAD_USAGE: u8 = 2;

/// Where the server answers requests unless it is told otherwise (`OPERATION.md`).
const KV_ENDPOINT: &str = "tcp://127.0.0.1:5555";
/// Where the server announces changes unless it is told otherwise (`OPERATION.md`).
const PUBLISH_ENDPOINT: &str = "tcp://127.0.0.1:5556";

/// Where the server answers requests about tasks unless it is told otherwise (`OPERATION.md`).
const TASKS_ENDPOINT: &str = "tcp://127.0.0.1:5557";

/// Where the server answers requests about jobs unless it is told otherwise (`OPERATION.md`).
const JOBS_ADDRESS: &str = "127.0.0.1:8080";
/// Where the server answers requests for events unless it is told otherwise (`OPERATION.md`).
const EVENTS_ADDRESS: &str = "127.0.0.1:8081";
/// Where workers find events that wait for a value unless the server is told otherwise (`OPERATION.md`).
const EVENTS_ENDPOINT: &str = "tcp://127.0.0.1:5558";

/// Tables with time to live and durable tasks, served over ZeroMQ, and the commands that talk to them.
#[derive(Debug, Parser)]
#[command(name = "spindle", version, arg_required_else_help = false)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server: prints what listens where, then "ready"; ends cleanly on SIGINT and SIGTERM
    Serve(serve::ServeFlags),
    #[command(flatten)]
    Client(client::TableCommand),
    /// Print changes as they come, until Ctrl-C
    Watch(watch::WatchArguments),
    /// Work with durable tasks
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Work with durable jobs
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Give events their values: run as many as you like, until a signal
    Worker(worker::WorkerArguments),
    /// Put load on a server, and print its throughput and its latencies
    Load(load::LoadFlags),
}

/// Why a command has not been done.
#[derive(Debug)]
enum CommandError {
    /// It was asked wrongly.
    Usage(String),
    /// It could not be done.
    Failed(String),
    /// Standard output takes no more.
    Output(io::Error),
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Does what the arguments say, the first of which is the name of the program.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let out = &mut io::stdout();
    let done = match arguments.command {
        Command::Serve(flags) => serve::run(flags),
        Command::Client(command) => client::run(command, out),
        Command::Watch(arguments) => watch::run(&arguments, out),
        Command::Task(command) => task::run(command, out),
        Command::Job(command) => job::run(command, out),
        Command::Worker(arguments) => worker::run(arguments, out),
        Command::Load(flags) => load::run(flags, out),
    };
    let status = match done.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    };
    crate::log::finish();
    status
}

/// Says in one line why a command has not been done.
fn report(failure: &CommandError) -> ExitCode {
    match failure {
        CommandError::Usage(what) => complain(what, BAD_USAGE),
        CommandError::Failed(what) => complain(what, FAILED),
        CommandError::Output(error) => complain(&format!("cannot write to standard output: {error}"), FAILED),
    }
}

fn complain(what: &str, status: u8) -> ExitCode {
    // Where nobody hears a complaint, the status still tells.
    crate::log::say(&one_line(what));
    ExitCode::from(status)
}

/// Prints help when it was asked for, and otherwise what is wrong with the arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report(&CommandError::Output(error)),
        };
    }
    complain(&usage_line(&error.to_string()), BAD_USAGE)
}

/// What clap has to say, without its tips and its usage: the first paragraph.
fn usage_line(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let what = paragraph.strip_prefix("error: ").unwrap_or(paragraph);
    format!("{what}; see --help")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use clap::CommandFactory;

    use super::*;

    fn complaint(arguments: &[&str]) -> String {
        let error = Arguments::try_parse_from(arguments).unwrap_err();
        one_line(&usage_line(&error.to_string()))
    }

    #[test]
    fn the_declarations_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn bad_usage_is_one_line_that_names_what_is_wrong() {
        assert_eq!(
            complaint(&["spindle", "get", "users"]),
            "the following required arguments were not provided: <KEY>; see --help"
        );
        assert!(complaint(&["spindle", "gett"]).contains("'gett'"));
        assert!(complaint(&["spindle"]).contains("requires a subcommand"));
        assert!(complaint(&["spindle", "serve", "--front", "native"]).contains("--front"));
        let workers = complaint(&["spindle", "serve", "--workers", "many"]);
        assert!(workers.contains("'many'") && workers.contains("--workers"), "{workers}");
    }

    #[test]
    fn every_flag_and_operand_is_explained() {
        let arguments = Arguments::command();
        let nested = arguments.get_subcommands().flat_map(clap::Command::get_subcommands);
        for command in arguments.get_subcommands().chain(nested) {
            for argument in command.get_arguments() {
                let id = argument.get_id();
                assert!(argument.get_help().is_some(), "{} {id}", command.get_name());
            }
        }
    }
}
