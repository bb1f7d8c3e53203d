//! The lines of a script, which come from a file or a pipe.
//!
//! ```text
//! line ─► words ─► set ────────────────────► the connection, without waiting for the reply ┐
//!                  another one of tables ──► the connection, after those replies           ├► answers, in order
//!                  any other ─► spindle WORDS, in a process of its own, after them too     ┘
//! ```
//! Replies are waited for before the script waits for its next line, so that whoever writes the lines one by one has an
//! answer to each. A refused `set` ends the script, but those behind it are on their way already: the error counts them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};

use clap::builder::Resettable;
use clap::{Arg, Command, FromArgMatches, Subcommand};

use super::{PROGRAM, ShellLine};
use crate::cli::commands::client::{self, SetArguments, SetOperands, TableCommand};
use crate::cli::commands::refusal::failure;
use crate::cli::commands::session::Session;
use crate::cli::show::{Format, counted};
use crate::cli::{CommandError, ExitStatus, JSON, conventions, has_flag, refuse};
use crate::clients::rust::tables::Error;
use crate::services::tables::wire::{Reply, Request, TableName};

/// Bytes of the script that are read at once: its lines are carried out together as far as they allow.
const READ_BYTES: usize = 64 << 10;
/// The id of the flag with the server.
const CONNECT: &str = "connect";
/// Requests that are on their way at most, and the bytes of their values.
const IN_FLIGHT_MAX: usize = 256;
const BYTES_IN_FLIGHT_MAX: usize = 1 << 20;

/// A script that is being carried out.
pub(super) struct Script<'s, W, F> {
    /// The declarations of the commands about tables.
    tables: Command,
    session: Session,
    /// The lines of the requests on their way, with the form of their answers.
    sent: VecDeque<(u64, Format)>,
    /// Bytes of the values on their way.
    bytes: usize,
    out: &'s mut W,
    /// Starts any other command. Returns whether it has succeeded.
    other: F,
}

impl<'s, W: Write, F: Fn(&[String]) -> Result<bool, CommandError>> Script<'s, W, F> {
    /// A script whose commands about tables have this server, unless a line has another one.
    pub(super) fn new(connect: Option<&str>, out: &'s mut W, other: F) -> Self {
        let tables = TableCommand::augment_subcommands(Command::new(PROGRAM));
        let with_server = |arg: Arg| match connect {
            Some(endpoint) if arg.get_id() == CONNECT => arg.env(Resettable::Reset).default_value(endpoint.to_owned()),
            _ => arg,
        };
        let tables = conventions::teach(tables.mut_subcommands(|command| command.mut_args(with_server)));
        Self { tables, session: Session::of_script(), sent: VecDeque::new(), bytes: 0, out, other }
    }

    /// Carries out all lines, up to the first that fails.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if a line fails, or cannot be read.
    pub(super) fn run(mut self, input: impl Read) -> Result<(), CommandError> {
        let mut input = BufReader::with_capacity(READ_BYTES, input);
        for number in 1.. {
            if !input.buffer().contains(&b'\n') {
                self.receive_all()?;
            }
            let mut line = String::new();
            let read = input.read_line(&mut line);
            let bytes = read.map_err(|error| CommandError::Failed(format!("cannot read a line: {error}")))?;
            let is_good = match ShellLine::read(&line) {
                ShellLine::Exit => break,
                ShellLine::Empty if bytes == 0 => break,
                ShellLine::Empty => true,
                ShellLine::Command(words) => self.carry_out(number, &words)?,
                ShellLine::Wrong(why) => {
                    self.receive_all()?;
                    crate::log::say(why);
                    false
                }
            };
            if !is_good {
                self.receive_all()?;
                return Err(failed(number, 0));
            }
        }
        self.receive_all()
    }

    /// Returns whether the line has succeeded so far. If not, it is reported why.
    ///
    /// # Errors
    /// [`CommandError`] if an earlier line has failed, or a command cannot be started.
    fn carry_out(&mut self, number: u64, words: &[String]) -> Result<bool, CommandError> {
        if words.first().is_none_or(|word| self.tables.find_subcommand(word).is_none()) {
            self.receive_all()?;
            return (self.other)(words);
        }
        let typed: Vec<OsString> =
            [PROGRAM].into_iter().chain(words.iter().map(String::as_str)).map(OsString::from).collect();
        let matches = self.tables.try_get_matches_from_mut(&typed);
        let parsed = matches.and_then(|matches| TableCommand::from_arg_matches(&matches));
        if !matches!(parsed, Ok(TableCommand::Set(_))) {
            self.receive_all()?;
        }
        let done = match parsed {
            Ok(TableCommand::Set(set)) => self.send(number, set)?,
            Ok(command) => client::run(command, &mut self.session, self.out),
            Err(error) => return Ok(refuse(&error, &typed) == ExitStatus::Done),
        };
        let is_json = has_flag(&typed, JSON);
        Ok(done.map_err(|error| error.report(is_json)).is_ok())
    }

    /// Sends a `set`, whose reply is received later. Returns why it cannot be sent.
    ///
    /// # Errors
    /// [`CommandError`] if an earlier line has failed.
    fn send(&mut self, number: u64, set: SetArguments) -> Result<Result<(), CommandError>, CommandError> {
        let SetOperands { server, format, ttl, table, key, value } = match set.read(&self.session) {
            Ok(operands) => operands,
            Err(error) => return Ok(Err(error)),
        };
        let is_full = self.sent.len() >= IN_FLIGHT_MAX || self.bytes > BYTES_IN_FLIGHT_MAX;
        if is_full || !self.session.is_with(&server) {
            self.receive_all()?;
        }
        let request = Request::Update { table: TableName::spelt(&table), key: &key, value: &value, ttl };
        let sent = self.session.client(&server).and_then(|client| client.send(&request).map_err(failure));
        if sent.is_ok() {
            self.sent.push_back((number, format));
            self.bytes += value.len();
        }
        Ok(sent)
    }

    /// Receives and prints the replies to all requests on their way.
    ///
    /// # Errors
    /// [`CommandError`] if one of them was refused or lost, which is reported.
    fn receive_all(&mut self) -> Result<(), CommandError> {
        self.bytes = 0;
        while let Some((line, format)) = self.sent.pop_front() {
            let Some(client) = self.session.opened() else { break };
            let refused = match client.receive() {
                Ok(Reply::Refused(reason)) => Some(Error::Refused(reason)),
                Ok(_) => None,
                Err(error) => Some(error),
            };
            let Some(error) = refused else {
                format.done(self.out)?;
                continue;
            };
            // The server carries the others out before this connection ends.
            while client.in_flight() > 0 && client.receive().is_ok() {}
            failure(error).report(format.is_json());
            return Err(failed(line, self.sent.len()));
        }
        Ok(())
    }
}

/// The error of a script for its line that has failed, with the number of sets that were sent behind it.
fn failed(line: u64, behind: usize) -> CommandError {
    let behind = match behind as u64 {
        0 => "no line after it was carried out".to_owned(),
        behind => format!("{} behind it had been sent, and no other line was carried out", counted(behind, "set")),
    };
    CommandError::Failed(format!("line {line} has failed: {behind}"))
}
