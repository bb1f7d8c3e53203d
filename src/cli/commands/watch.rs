//! `spindle watch`: changes as they come, one line each, until Ctrl-C. With `--values` they come from the feed.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::feed::{Feed, Sequences, ShownChange, Silence};
use super::refusal::failure;
use crate::cli::CommandError;
use crate::cli::flags::endpoint::Subscribe;
use crate::cli::flags::operand::{TableOperand, name, table};
use crate::cli::show::Format;
use crate::clients::rust::tables::{Disconnected, Error, FeedSubscriber, Subscriber};
use crate::clock::Clock;
use crate::feed::FeedContent;
use crate::services::tables::wire::{FeedEvent, Notification, NotificationKind};

/// How long a Ctrl-C may go unnoticed while no change comes.
pub(crate) const GLANCE: Duration = Duration::from_millis(100);

/// Exit status after a second Ctrl-C, which ends the process at once: the one that shells use.
const INTERRUPTED: i32 = 130;

/// The table to watch, and the server.
#[derive(Debug, Args)]
pub(crate) struct WatchArguments {
    /// Name of the table: text, or 0x… for bytes with --hex [default: all tables]
    #[arg(value_parser = table())]
    table: Option<TableOperand>,
    /// Print values, versions and deadlines (milliseconds since 1970) too, from the feed
    #[arg(long, conflicts_with = "subscribe")]
    values: bool,
    #[command(flatten)]
    server: Subscribe,
    #[command(flatten)]
    feed: Feed,
    #[command(flatten)]
    format: Format,
}

/// Prints changes until a signal or the end of the connection.
///
/// # Errors
/// [`CommandError::Failed`] if there is no connection or it is lost, [`CommandError::Output`] if standard output takes
/// no more lines.
pub(crate) fn run(arguments: &WatchArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let stop = stop_on_signals().map_err(|error| CommandError::Failed(error.to_string()))?;
    let table = arguments.table.as_ref().map(|table| arguments.format.hex.table(table)).transpose()?;
    let wanted = table.as_deref().map(name);
    if arguments.values {
        return watch_values(arguments, wanted, &stop, out);
    }
    // The name of another table may begin with the wanted one, so each change is compared again.
    let prefix = wanted.unwrap_or_default();
    let Subscribe { subscribe, patience, login } = &arguments.server;
    login.log_in()?;
    let mut subscriber = Subscriber::connect_within(subscribe, &[prefix], patience.timeouts()).map_err(failure)?;
    // Relaxed: the flag publishes no other data.
    while !stop.load(Ordering::Relaxed) {
        match subscriber.receive(GLANCE) {
            Ok(Some(change)) if wanted.is_none_or(|wanted| wanted == name(change.table)) => {
                print(&change, arguments.format, out)?;
            }
            Ok(_) => {}
            // A Ctrl-C that ends the server too is still a good end.
            Err(_) if stop.load(Ordering::Relaxed) => {}
            Err(error) => return Err(lost(error)),
        }
    }
    Ok(())
}

/// Prints the changes of the feed until a signal or the end of the connection.
fn watch_values(
    arguments: &WatchArguments,
    wanted: Option<&[u8]>,
    stop: &AtomicBool,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let endpoint = &arguments.feed.feed;
    arguments.server.login.log_in()?;
    let timeouts = arguments.server.patience.timeouts();
    let mut subscriber = FeedSubscriber::connect_within(endpoint, wanted, timeouts).map_err(without_feed)?;
    let clock = Clock::start();
    let mut sequences = Sequences::default();
    // The topic of one table has bookmarks, so it is never silent for long.
    let mut silence = wanted.map(|_| Silence::begin(clock.now()));
    // Relaxed: the flag publishes no other data.
    while !stop.load(Ordering::Relaxed) {
        let mut received = false;
        match subscriber.receive(GLANCE) {
            Ok(Some(event)) => {
                received = true;
                let missed = sequences.missed(&event);
                print_missed(event.table, missed, arguments.format, out)?;
                print_values(&event, arguments.format, stop, out)?;
            }
            Ok(None) => {}
            // A Ctrl-C that ends the server too is still a good end.
            Err(_) if stop.load(Ordering::Relaxed) => {}
            Err(error) => return Err(lost(error)),
        }
        if let Some(silence) = &mut silence {
            silence.report(received, clock.now(), endpoint);
        }
    }
    Ok(())
}

/// Says that changes were missed: on standard error, or as an event in JSON.
fn print_missed(table: &[u8], missed: u64, format: Format, out: &mut impl Write) -> Result<(), CommandError> {
    match missed {
        0 => Ok(()),
        _ if format.is_json() => {
            let json = json!({ "kind": "MISSED", "table": format.hex.shown_in_json(table), "changes": missed });
            format.print(out, "", &json)
        }
        _ => {
            eprintln!("MISSED {missed} changes of {}", format.hex.shown(table));
            Ok(())
        }
    }
}

fn print_values(
    event: &FeedEvent<'_>,
    format: Format,
    stop: &AtomicBool,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let FeedContent::Changes(changes) = event.message.content else { return Ok(()) };
    let lines = changes.map(|change| {
        let shown = ShownChange {
            table: Some(event.table),
            cause: Some(change.cause),
            key: change.key,
            value: change.cause.is_live().then_some(change.value),
            version: change.version,
            deadline_millis: change.deadline_millis,
        };
        shown.line(format)
    });
    // Relaxed: the flag publishes no other data.
    format.print_all(out, lines.take_while(|_| !stop.load(Ordering::Relaxed)))
}

fn print(change: &Notification<'_>, format: Format, out: &mut impl Write) -> Result<(), CommandError> {
    let table = name(change.table);
    let kind = match change.kind {
        NotificationKind::Updated => "UPDATED",
        NotificationKind::Deleted => "DELETED",
    };
    let Format { hex, .. } = format;
    let text = format!("{kind} {} {}\n", hex.shown(table), hex.shown(change.key));
    let json = json!({ "table": hex.shown_in_json(table), "kind": kind, "key": hex.shown_in_json(change.key) });
    format.print(out, &text, &json)
}

/// The error of the command when the changes stop coming.
fn lost(error: Error) -> CommandError {
    match error {
        Error::Disconnected(Disconnected::Lost { endpoint, .. }) => CommandError::Failed(format!(
            "lost the connection to {endpoint}: watch again, and read what you watch, for changes were missed"
        )),
        other => failure(other),
    }
}

/// The error of the command when no feed is there.
pub(crate) fn without_feed(error: Error) -> CommandError {
    match error {
        Error::Disconnected(Disconnected::NoAnswer { endpoint, timeout }) => CommandError::Failed(format!(
            "no feed at {endpoint} within {} s: start the server with --feed",
            timeout.as_secs_f64()
        )),
        Error::Disconnected(Disconnected::Refused(endpoint)) => {
            CommandError::Failed(format!("no feed at {endpoint}: start the server with --feed"))
        }
        other => failure(other),
    }
}

/// A flag that the first signal sets. The second signal ends the process.
pub(crate) fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct WatchPrinter {
        #[command(flatten)]
        arguments: WatchArguments,
    }

    fn line(flags: &[&str]) -> String {
        let watch = WatchPrinter::try_parse_from([&["watch"], flags].concat()).unwrap();
        let change = Notification { table: b"users\0", kind: NotificationKind::Deleted, key: b"a\nb" };
        let mut out = Vec::new();
        print(&change, watch.arguments.format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn changes_that_were_missed_are_an_event_in_json() {
        let printed = |missed, format| {
            let mut out = Vec::new();
            print_missed(b"users", missed, format, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let json = "{\"changes\":3,\"kind\":\"MISSED\",\"table\":\"users\"}\n";
        assert_eq!((&*printed(3, Format::JSON), &*printed(0, Format::JSON)), (json, ""));
        assert_eq!(printed(3, Format::TEXT), "", "it is a line on standard error");
    }

    #[test]
    fn a_change_is_one_line() {
        assert_eq!(line(&[]), "DELETED users 0x610a62\n");
        assert_eq!(line(&["--hex"]), "DELETED 0x7573657273 0x610a62\n");
        let json = "{\"key\":\"a\\nb\",\"kind\":\"DELETED\",\"table\":\"users\"}\n";
        assert_eq!(line(&["--json"]), json);
    }
}
