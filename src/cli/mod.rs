//! The command line: it reads the arguments and returns one exit status.
//!
//! ```text
//! argv ─► config ─► Arguments ─► serve:  ServerConfig (checked) ─► server::run          until a signal
//!                             └► others: operands as bytes ─► client ─► show ─► standard output
//! ```
//! A command that fails says so in one line on standard error, and by its exit status: see [`error`].
//! This folder parses the arguments once. Modules outside it know no flags, and this folder names no socket.

mod commands;
mod config;
mod conventions;
mod error;
mod flags;
mod log;
mod numbers;
mod show;
mod top;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use commands::load::{LoadFlags, measure};
use config::{ParseError, Settings};
pub use error::CommandError;
use error::ExitStatus;

/// The flag for answers and errors in JSON.
const JSON: &str = "--json";

/// The endpoint of requests to tables, unless a flag names another (`OPERATION.md`).
const KV_ENDPOINT: &str = "tcp://127.0.0.1:5555";
/// The endpoint of changes, unless a flag names another (`OPERATION.md`).
const PUBLISH_ENDPOINT: &str = "tcp://127.0.0.1:5556";

/// The endpoint of requests about tasks, unless a flag names another (`OPERATION.md`).
const TASKS_ENDPOINT: &str = "tcp://127.0.0.1:5557";

/// The address of requests about jobs, unless a flag names another (`OPERATION.md`).
const JOBS_ADDRESS: &str = "127.0.0.1:8080";
/// The port of beanstalkd's protocol, unless a flag names another (`OPERATION.md`).
const BEANSTALK_PORT: &str = "11300";
/// The address of requests for events, unless a flag names another (`OPERATION.md`).
const EVENTS_ADDRESS: &str = "127.0.0.1:8081";
/// The endpoint at which workers lease pending events, unless a flag names another (`OPERATION.md`).
const EVENTS_ENDPOINT: &str = "tcp://127.0.0.1:5558";

/// The endpoint of the feed, unless a flag names another (`OPERATION.md`).
const FEED_ENDPOINT: &str = "tcp://127.0.0.1:5559";

/// The address of what an operator sees, unless a flag names another (`OPERATION.md`).
const ADMIN_ADDRESS: &str = "127.0.0.1:8082";

/// The directory of tasks, jobs and events, unless a flag names another (`OPERATION.md`).
const DATA_FOLDER: &str = "./spindle-data";

/// One server for tables in memory and for durable tasks, jobs and events, and its commands.
#[derive(Debug, Parser)]
#[command(name = "spindle", version, arg_required_else_help = false, after_help = ExitStatus::help())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server of tables, tasks, jobs and events: prints its endpoints, then "ready"; ends on SIGINT and SIGTERM
    Serve(Box<commands::serve::ServeFlags>),
    #[command(flatten)]
    Client(commands::client::TableCommand),
    /// Write the elements of a table to standard output, for `load-dump`
    Dump(commands::dump::DumpArguments),
    /// Read a dump from standard input into a new table, whose elements keep their versions
    LoadDump(commands::dump::LoadDumpArguments),
    /// Print changes as they come, until Ctrl-C
    Watch(commands::watch::WatchArguments),
    /// Print a table as it is and then its changes, and say when that is exact, until Ctrl-C
    Mirror(commands::mirror::MirrorArguments),
    /// Work with durable tasks
    #[command(subcommand)]
    Task(commands::task::TaskCommand),
    /// Work with durable jobs
    #[command(subcommand)]
    Job(commands::job::JobCommand),
    /// Have a running server write a backup of its tasks, jobs and events; it continues to serve
    Backup(commands::backup::BackupArguments),
    /// Check the directory of a server that does not run; changes nothing
    Check(commands::check::CheckArguments),
    /// Give pending events their values, until a signal; any number of workers may run
    Worker(commands::worker::WorkerArguments),
    /// Edit the file of users, and what they may do
    #[command(subcommand)]
    User(commands::user::UserCommand),
    /// Make a key of CURVE: the secret key goes into a file, the public key is printed
    Keygen(commands::keygen::KeygenArguments),
    /// Put load on a server, and print its throughput and latencies
    Load(Box<LoadFlags>),
    /// Delete all tables with all their elements, after a confirmation
    Flush(commands::flush::FlushArguments),
    /// Print the statistics of the server
    Stats(commands::monitor::StatsArguments),
    /// Print the last requests that took longer than the server's --slow
    Slow(commands::slow::SlowArguments),
    /// Show what the server does, in a terminal: rates, latencies, tables, queues and slow requests
    Top(top::TopArguments),
    /// Check that the server answers, and print how long that takes
    Ping(commands::monitor::PingArguments),
    /// Type the commands one after the other, with history and completion, until `exit`
    Shell(commands::shell::ShellArguments),
    /// Print a script by which a shell completes commands and flags
    Completions(commands::manual::CompletionsArguments),
    /// Print a page of the manual, for man(1): `spindle man serve | man -l -`
    Man(commands::manual::ManArguments),
    /// See how a server is configured
    #[command(subcommand)]
    Config(commands::config_show::ConfigCommand),
}

/// Runs the command that the arguments name. The first argument is the name of the program.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let typed: Vec<OsString> = arguments.into_iter().collect();
    let mut is_json = has_flag(&typed, JSON);
    let done = match config::parse(|| conventions::teach(Arguments::command()), &typed) {
        Ok((matches, settings)) => {
            is_json |= config::log_is_json(&matches);
            dispatch(&matches, settings, &mut io::stdout())
        }
        Err(ParseError::Usage(error)) => return refuse(&error, &typed).into(),
        Err(ParseError::Setting(error)) => {
            is_json |= logs_in_json(&typed);
            Err(error)
        }
    };
    let status = match done {
        Ok(()) => ExitStatus::Done,
        Err(error) => error.report(is_json),
    };
    crate::log::finish();
    status.into()
}

/// Carries out the command.
fn dispatch(matches: &ArgMatches, settings: Settings, out: &mut impl Write) -> Result<(), CommandError> {
    // clap has checked the arguments with the declarations of this type.
    let arguments = Arguments::from_arg_matches(matches).map_err(|error| CommandError::Usage(error.to_string()))?;
    match arguments.command {
        Command::Serve(flags) => commands::serve::run(*flags, settings),
        Command::Client(command) => commands::client::run(command, &mut commands::session::Session::default(), out),
        Command::Dump(arguments) => commands::dump::dump(&arguments, out),
        Command::LoadDump(arguments) => commands::dump::load(&arguments, out),
        Command::Watch(arguments) => commands::watch::run(&arguments, out),
        Command::Mirror(arguments) => commands::mirror::run(&arguments, out),
        Command::Task(command) => commands::task::run(command, out),
        Command::Job(command) => commands::job::run(command, out),
        Command::Backup(arguments) => commands::backup::run(&arguments, out),
        Command::Check(arguments) => commands::check::run(&arguments, out),
        Command::Worker(arguments) => commands::worker::run(arguments, out),
        Command::User(command) => commands::user::run(command, out),
        Command::Keygen(arguments) => commands::keygen::keygen(&arguments, out),
        Command::Load(flags) => commands::load::run(*flags, out),
        Command::Flush(arguments) => commands::flush::run(&arguments, out),
        Command::Stats(arguments) => commands::monitor::stats(&arguments, out),
        Command::Slow(arguments) => commands::slow::run(&arguments, out),
        Command::Top(arguments) => top::run(&arguments, out),
        Command::Ping(arguments) => commands::monitor::ping(&arguments, out),
        Command::Shell(arguments) => commands::shell::run(&arguments, Arguments::command(), out),
        Command::Completions(arguments) => commands::manual::completions(&arguments, Arguments::command(), out),
        Command::Man(arguments) => commands::manual::man(&arguments, Arguments::command(), out),
        Command::Config(command) => {
            commands::config_show::run(&command, &Arguments::command(), matches, &settings, out)
        }
    }?;
    Ok(out.flush()?)
}

/// Whether this flag was typed. It is known also when the arguments are wrong.
fn has_flag(typed: &[OsString], flag: &str) -> bool {
    typed.iter().take_while(|argument| *argument != "--").any(|argument| argument == flag)
}

/// Whether the arguments, or else the environment, ask a server for a log in JSON. It is known also when they are wrong.
fn logs_in_json(typed: &[OsString]) -> bool {
    let words: Vec<_> =
        typed.iter().take_while(|argument| *argument != "--").filter_map(|word| word.to_str()).collect();
    let mut pairs = words.windows(2).filter_map(|pair| match pair {
        ["--log", form] => Some(*form),
        [_, word] => word.strip_prefix("--log="),
        _ => None,
    });
    let form = pairs.next_back().map(str::to_owned).or_else(|| std::env::var("SPINDLE_LOG").ok());
    words.get(1) == Some(&"serve") && form.as_deref() == Some("json")
}

/// Prints help if the user asked for it, and otherwise the mistake in the arguments.
fn refuse(error: &clap::Error, typed: &[OsString]) -> ExitStatus {
    let is_json = has_flag(typed, JSON) || logs_in_json(typed);
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print() {
            Ok(()) => ExitStatus::Done,
            Err(error) => CommandError::Output(error).report(is_json),
        };
    }
    let mut command = conventions::teach(Arguments::command());
    command.build();
    let text = conventions::with_variables(without_passwords(&error.to_string(), typed), &command, typed);
    CommandError::Usage(usage_line(&text, &conventions::advice(error))).report(is_json)
}

/// The text without the arguments that may have a password: those that look like the URL of a database, well-formed or
/// not.
fn without_passwords(text: &str, typed: &[OsString]) -> String {
    typed.iter().fold(text.to_owned(), |text, argument| {
        let argument = argument.to_string_lossy();
        let value =
            argument.split_once('=').filter(|_| argument.starts_with('-')).map_or(&*argument, |(_, value)| value);
        let is_secret = value.contains('@') || value.to_ascii_lowercase().starts_with("mysql");
        if is_secret { text.replace(value, "URL") } else { text }
    })
}

/// The first paragraph of clap's message, without its tips and its usage, with this advice.
fn usage_line(text: &str, advice: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let what = paragraph.strip_prefix("error: ").unwrap_or(paragraph);
    format!("{}; {advice}see --help", conventions::in_plain_words(what))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    fn complaint(arguments: &[&str]) -> String {
        let error = conventions::teach(Arguments::command()).try_get_matches_from(arguments).unwrap_err();
        usage_line(&error.to_string(), &conventions::advice(&error)).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn no_message_shows_the_url_of_a_database() {
        let shown = |arguments: &[&str]| {
            let typed: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            let error = Arguments::try_parse_from(&typed).unwrap_err();
            usage_line(&without_passwords(&error.to_string(), &typed), &conventions::advice(&error))
        };
        for url in
            ["mysql://u:secret@h:x/d", "mysql:/u:secret@h/d", "mysq://u:secret@h/d", "MySQL:secret", "u:secret@h/d"]
        {
            for arguments in [
                &["spindle", "serve", "--events-store", url][..],
                &["spindle", "serve", &format!("--events-store={url}")],
                &["spindle", "worker", "--store", url],
                &["spindle", "worker", url],
                &["spindle", "serve", "--events", url],
            ] {
                let said = shown(arguments);
                assert!(!said.contains("secret"), "{arguments:?}: {said}");
            }
        }
        assert!(
            shown(&["spindle", "serve", "--events-store", "sqlite"]).contains("sqlite"),
            "other mistakes are shown"
        );
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
        assert_eq!(complaint(&["spindle", "gett"]), "unrecognized subcommand 'gett'; did you mean get? see --help");
        let word = complaint(&["spindle", "get", "t", "k", "--jsn"]);
        assert_eq!(word, "unexpected argument '--jsn' found; did you mean --json? see --help");
        let status = complaint(&["spindle", "task", "repay", "1", "k", "v", "--status", "dorp"]);
        assert!(status.ends_with("did you mean drop? see --help"), "{status}");
        let key = complaint(&["spindle", "set", "t", "-k", "v"]);
        assert!(key.ends_with("write -- before the operands if it is one of them; see --help"), "{key}");
        assert!(complaint(&["spindle"]).contains("requires a subcommand"));
        assert!(complaint(&["spindle", "task"]).contains("'spindle task' requires a subcommand"));
        assert!(complaint(&["spindle", "serve", "--front", "native"]).contains("--front"));
        let workers = complaint(&["spindle", "serve", "--workers", "many"]);
        assert!(workers.contains("'many' for '--workers <THREADS>': it is no whole number"), "{workers}");
    }

    #[test]
    fn a_negative_number_is_a_wrong_value_and_no_unknown_flag() {
        for arguments in [
            &["spindle", "ping", "--timeout", "-1"][..],
            &["spindle", "ping", "--count", "-1"],
            &["spindle", "load", "--seconds", "-1"],
            &["spindle", "serve", "--workers", "-1"],
            &["spindle", "task", "lend", "--timeout", "-1"],
            &["spindle", "task", "heartbeat", "-1", "k", "--timeout", "1"],
        ] {
            let said = complaint(arguments);
            assert!(said.contains("invalid value '-1' for"), "{said}");
        }
        let said = complaint(&["spindle", "task", "lend", "--timeout", "soon"]);
        assert!(said.contains("milliseconds"), "{said}");
    }

    #[test]
    fn every_flag_of_the_server_is_under_a_heading() {
        let arguments = Arguments::command();
        let serve = arguments.find_subcommand("serve").unwrap();
        for flag in serve.get_arguments() {
            assert!(flag.get_help_heading().is_some(), "{}", flag.get_id());
        }
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
