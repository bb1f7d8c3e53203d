//! `spindle mirror`: a table as it is and then its changes, one line each, until Ctrl-C; and when that is exact.

use std::io::Write;
use std::iter;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::feed::{FeedServer, ShownChange, Silence, position};
use super::refusal::failure;
use super::watch::{GLANCE, stop_on_signals, without_feed};
use crate::cli::CommandError;
use crate::cli::flags::operand::{TableOperand, table};
use crate::cli::show::Format;
use crate::clients::rust::tables::{Disconnected, Error, Mirror, MirrorEvent};
use crate::clock::Clock;
use crate::feed::FeedPosition;

/// Bytes of lines after which they are printed, although more events are there.
const LINES_BYTES: usize = 1 << 20;

/// The table to mirror, and the server.
#[derive(Debug, Args)]
pub(crate) struct MirrorArguments {
    /// Name of the table: text, or 0x… for bytes with --hex. It need not exist yet
    #[arg(value_parser = table())]
    table: TableOperand,
    #[command(flatten)]
    of: FeedServer,
    #[command(flatten)]
    format: Format,
}

/// Whether the server of this endpoint is not there.
fn is_of(error: &Error, its: &str) -> bool {
    match error {
        Error::Disconnected(Disconnected::NoAnswer { endpoint, .. } | Disconnected::Refused(endpoint)) => {
            endpoint == its
        }
        _ => false,
    }
}

/// Prints the elements and the changes of a table until a signal.
///
/// # Errors
/// [`CommandError::Failed`] if there is no server, or none with a feed, [`CommandError::Output`] if standard output
/// takes no more lines.
pub(crate) fn run(arguments: &MirrorArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let stop = stop_on_signals().map_err(|error| CommandError::Failed(error.to_string()))?;
    let FeedServer { server, feed } = &arguments.of;
    server.login.log_in()?;
    let (table, timeouts) = (arguments.format.hex.table(&arguments.table)?, server.patience.timeouts());
    let mut mirror = Mirror::connect_within(&server.connect, &feed.feed, &table, timeouts)
        .map_err(|error| if is_of(&error, &feed.feed) { without_feed(error) } else { failure(error) })?;
    let clock = Clock::start();
    let (mut silence, mut messages) = (Silence::begin(clock.now()), 0);
    // Relaxed: the flag publishes no other data.
    let stops = || stop.load(Ordering::Relaxed);
    while !stops() {
        let mut wait = GLANCE;
        let mut lines = String::new();
        while !stops()
            && lines.len() < LINES_BYTES
            && let Some(event) = mirror.next(wait).map_err(failure)?
        {
            lines += &line(&event, arguments.format);
            wait = Duration::ZERO;
        }
        if !lines.is_empty() {
            arguments.format.print_all(out, iter::once(lines))?;
        }
        let before = std::mem::replace(&mut messages, mirror.metrics().messages);
        silence.report(messages > before, clock.now(), &feed.feed);
    }
    Ok(())
}

/// An event, as text or as JSON.
fn line(event: &MirrorEvent, format: Format) -> String {
    let (text, json) = match event {
        MirrorEvent::Changed(change) => {
            let shown = ShownChange {
                table: None,
                cause: change.cause,
                key: &change.key,
                value: change.value.as_deref(),
                version: change.version,
                deadline_millis: change.deadline_millis,
            };
            return shown.line(format);
        }
        MirrorEvent::Exact(at) => {
            let FeedPosition { incarnation, sequence, .. } = at;
            (format!("EXACT at {sequence} of incarnation {incarnation}\n"), position("EXACT", *at))
        }
        MirrorEvent::NotExact(why) => {
            let why = why.word();
            (format!("NOT EXACT: {why}\n"), json!({ "kind": "NOT EXACT", "why": why }))
        }
        MirrorEvent::NoTable => ("NO TABLE\n".to_owned(), json!({ "kind": "NO TABLE" })),
    };
    format.answer(|| text, || json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::rust::tables::NotExact;

    #[test]
    fn each_event_is_one_line() {
        let at = FeedPosition { epoch: 1, incarnation: 2, sequence: 3 };
        let [text, json] = [Format::TEXT, Format::JSON];
        assert_eq!(line(&MirrorEvent::Exact(at), text), "EXACT at 3 of incarnation 2\n");
        let exact = "{\"epoch\":1,\"incarnation\":2,\"kind\":\"EXACT\",\"sequence\":3}\n";
        assert_eq!(line(&MirrorEvent::Exact(at), json), exact);
        assert_eq!(line(&MirrorEvent::NotExact(NotExact::Missed), text), "NOT EXACT: missed\n");
        assert_eq!(line(&MirrorEvent::NoTable, text), "NO TABLE\n");
    }
}
