//! The commands that ask the server one thing.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::Failure;
use super::endpoint::Connect;
use super::operand::{Operand, Table, name, operand, shown_in_json, table};
use super::show::{self, Format};
use crate::clock::Clock;
use crate::protocols::kv::client::{Client, Disconnected, Error};
use crate::protocols::kv::wire::{Reason, TableLine};

/// What can be asked.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make an empty table
    CreateTable(OfTable),
    /// Delete a table with all its elements
    DeleteTable(OfTable),
    /// List the tables and how many elements each has
    Tables(OfServer),
    /// Add or replace an element
    Set(Set),
    /// Print a value; with --json also its version and remaining time to live
    Get(OfElement),
    /// Delete an element and print the value that it had
    Delete(OfElement),
    /// Set the time to live of an element
    Touch(Touch),
    /// Print what the server tells about itself
    Stats(OfServer),
    /// Ask whether the server is there, and how long it takes to answer
    Ping(OfServer),
}

/// Where to ask, and how to print the answer.
#[derive(Debug, Args)]
pub(super) struct OfServer {
    #[command(flatten)]
    server: Connect,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct OfTable {
    /// Name of the table: text, or 0x… for bytes
    #[arg(value_parser = table())]
    table: Table,
    #[command(flatten)]
    of: OfServer,
}

#[derive(Debug, Args)]
pub(super) struct OfElement {
    /// Name of the table: text, or 0x… for bytes
    #[arg(value_parser = table())]
    table: Table,
    /// Key of the element: text, 0x… for bytes, or - for standard input
    #[arg(value_parser = operand())]
    key: Operand,
    #[command(flatten)]
    of: OfServer,
}

#[derive(Debug, Args)]
pub(super) struct Set {
    /// Name of the table: text, or 0x… for bytes
    #[arg(value_parser = table())]
    table: Table,
    /// Key of the element: text, 0x… for bytes, or - for standard input
    #[arg(value_parser = operand())]
    key: Operand,
    /// Its new value: text, 0x… for bytes, or - for standard input
    #[arg(value_parser = operand())]
    value: Operand,
    /// Time to live, in seconds; 0 for none [default: as it was; none for a new element]
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u32>,
    #[command(flatten)]
    of: OfServer,
}

#[derive(Debug, Args)]
pub(super) struct Touch {
    /// Name of the table: text, or 0x… for bytes
    #[arg(value_parser = table())]
    table: Table,
    /// Key of the element: text, 0x… for bytes, or - for standard input
    #[arg(value_parser = operand())]
    key: Operand,
    /// Time to live from now on, in seconds; 0 for none
    #[arg(long, value_name = "SECONDS")]
    ttl: u32,
    #[command(flatten)]
    of: OfServer,
}

/// Asks, and prints the answer.
///
/// # Errors
/// [`Failure`] if it could not be asked, was refused, or could not be printed.
pub(super) fn run(command: Command, out: &mut impl Write) -> Result<(), Failure> {
    match command {
        Command::CreateTable(OfTable { table, of }) => {
            of.connect()?.create_table(&table.0).map_err(failure)?;
            of.format.done(out)
        }
        Command::DeleteTable(OfTable { table, of }) => {
            of.connect()?.delete_table(&table.0).map_err(failure)?;
            of.format.done(out)
        }
        Command::Tables(of) => tables(&of, out),
        Command::Set(set) => {
            let (key, value) = read_both(set.key, set.value)?;
            let mut client = set.of.connect()?;
            let done = client.update(&set.table.0, &key, &value, set.ttl);
            done.map_err(failure)?;
            set.of.format.done(out)
        }
        Command::Get(get) => self::get(get, out),
        Command::Delete(OfElement { table, key, of }) => {
            let key = key.read(io::stdin())?;
            let value = of.connect()?.delete(&table.0, &key).map_err(failure)?;
            let json = json!({ "value": shown_in_json(&value) });
            of.format.print(out, &show::value(&value), &json)
        }
        Command::Touch(Touch { table, key, ttl, of }) => {
            let key = key.read(io::stdin())?;
            of.connect()?.touch(&table.0, &key, ttl).map_err(failure)?;
            of.format.done(out)
        }
        Command::Stats(of) => stats(&of, out),
        Command::Ping(of) => ping(&of, out),
    }
}

impl OfServer {
    fn connect(&self) -> Result<Client, Failure> {
        Client::connect(&self.server.connect).map_err(failure)
    }
}

/// Key and value. Standard input can be only one of both.
///
/// # Errors
/// [`Failure`] if it is both, or cannot be read.
pub(super) fn read_both(key: Operand, value: Operand) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    if key == Operand::StandardInput && value == Operand::StandardInput {
        let both = "only one of KEY and VALUE can be -, standard input".to_owned();
        return Err(Failure::Usage(both));
    }
    Ok((key.read(io::stdin())?, value.read(io::stdin())?))
}

fn tables(of: &OfServer, out: &mut impl Write) -> Result<(), Failure> {
    let tables = of.connect()?.list_tables().map_err(failure)?;
    let line = |table: &TableLine| {
        let name = shown_in_json(name(&table.name));
        json!({ "name": name, "elements": table.elements })
    };
    let json = tables.iter().map(line).collect();
    of.format.print(out, &show::tables(&tables), &json)
}

fn get(get: OfElement, out: &mut impl Write) -> Result<(), Failure> {
    let key = get.key.read(io::stdin())?;
    let entry = get.of.connect()?.get_entry(&get.table.0, &key).map_err(failure)?;
    let json = json!({
        "value": shown_in_json(&entry.value),
        "version": entry.version,
        "remaining_millis": entry.remaining_millis,
    });
    get.of.format.print(out, &show::value(&entry.value), &json)
}

fn stats(of: &OfServer, out: &mut impl Write) -> Result<(), Failure> {
    let text = of.connect()?.stats().map_err(failure)?;
    let json = serde_json::from_str(&text)
        .map_err(|error| Failure::Failed(format!("the server's STATS are no JSON: {error}")))?;
    of.format.print(out, &show::outline(&json), &json)
}

fn ping(of: &OfServer, out: &mut impl Write) -> Result<(), Failure> {
    let mut client = of.connect()?;
    let clock = Clock::start();
    client.ping().map_err(failure)?;
    let nanos = clock.now().nanos();
    let took = Duration::from_nanos(nanos);
    let text = format!("{} answered in {took:.1?}\n", of.server.connect);
    let json = json!({ "ok": true, "micros": nanos / 1_000 });
    of.format.print(out, &text, &json)
}

/// What to do about an error of the client.
pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Refused(reason) => {
            let what = reason.text().to_lowercase();
            Failure::Failed(format!("{what}: {}", advice(reason)))
        }
        Error::Disconnected(Disconnected::Endpoint { .. }) => Failure::Usage(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    }
}

/// What to do about a refusal.
fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::BadRequest | Reason::UnknownCommand => {
            "the server does not know this request; is it older than this program?"
        }
        Reason::BadTableName => "use 1 to 254 bytes without NUL",
        Reason::TableExists => "use it as it is, or delete it first with `spindle delete-table`",
        Reason::TableNotFound => "make it with `spindle create-table`, or see `spindle tables`",
        Reason::KeyTooLong => "use at most 64 bytes",
        Reason::KeyNotFound => "it was never set, was deleted or has expired; set it with `spindle set`",
        Reason::ValueTooLong => "shorten it, or start the server with a larger --max-value",
        Reason::BadTtl => "use seconds below 4294967296",
        Reason::VersionMismatch { .. } => "read the element again and decide anew",
        Reason::OutOfMemory => "delete something, or start the server with a larger --max-memory",
        Reason::ReplyTooLong => "ask for fewer keys at once",
        Reason::TooManyTables => "delete one, or start the server with a larger --max-tables",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do_in_one_line() {
        for reason in Reason::ALL {
            let Failure::Failed(line) = failure(Error::Refused(reason)) else {
                panic!("{reason:?} is no bad usage");
            };
            assert!(line.contains(": ") && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn an_endpoint_that_libzmq_does_not_take_is_bad_usage() {
        let error = Disconnected::Endpoint { endpoint: "tcp://*:*".to_owned(), problem: "no".to_owned() };
        assert!(matches!(failure(error.into()), Failure::Usage(_)));
    }

    #[test]
    fn standard_input_is_key_or_value_and_not_both() {
        let both = read_both(Operand::StandardInput, Operand::StandardInput);
        assert!(matches!(both, Err(Failure::Usage(_))));
    }
}
