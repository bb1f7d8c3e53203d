//! `spindle watch`: changes as they come, one line each, until Ctrl-C.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::CommandError;
use super::client::failure;
use super::endpoint::Subscribe;
use super::operand::{TableOperand, name, shown, shown_in_json, table};
use super::show::Format;
use crate::protocols::kv::client::{Disconnected, Error, Subscriber};
use crate::protocols::kv::wire::{Notification, NotificationKind};

/// How long a Ctrl-C may go unnoticed while no change comes.
const GLANCE: Duration = Duration::from_millis(100);

/// Exit status after a second Ctrl-C, which ends the process at once: the one that shells use.
const INTERRUPTED: i32 = 130;

/// The table to watch, and the server.
#[derive(Debug, Args)]
pub(super) struct WatchArguments {
    /// Name of the table: text, or 0x… for bytes [default: all tables]
    #[arg(value_parser = table())]
    table: Option<TableOperand>,
    #[command(flatten)]
    server: Subscribe,
    #[command(flatten)]
    format: Format,
}

/// Prints changes until a signal or the end of the connection.
///
/// # Errors
/// [`CommandError::Failed`] if there is no connection or it is lost, [`CommandError::Output`] if standard output takes
/// no more lines.
pub(super) fn run(arguments: &WatchArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let stop = stop_on_signals().map_err(|error| CommandError::Failed(error.to_string()))?;
    let wanted = arguments.table.as_ref().map(|table| name(&table.0));
    // The name of another table may begin with the wanted one, so each change is compared again.
    let prefix = wanted.unwrap_or_default();
    let mut subscriber = Subscriber::connect(&arguments.server.subscribe, &[prefix]).map_err(failure)?;
    // Relaxed: the flag stands for itself.
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

fn print(change: &Notification<'_>, format: Format, out: &mut impl Write) -> Result<(), CommandError> {
    let table = name(change.table);
    let kind = match change.kind {
        NotificationKind::Updated => "UPDATED",
        NotificationKind::Deleted => "DELETED",
    };
    let text = format!("{kind} {} {}\n", shown(table), shown(change.key));
    let json = json!({ "table": shown_in_json(table), "kind": kind, "key": shown_in_json(change.key) });
    format.print(out, &text, &json)
}

/// The error of the command when the changes stop coming.
fn lost(error: Error) -> CommandError {
    match error {
        Error::Disconnected(Disconnected::Lost { endpoint, .. }) => CommandError::Failed(format!(
            "lost the connection to {endpoint}: watch again, and read what you watch, for changes went unheard"
        )),
        other => failure(other),
    }
}

/// A flag that the first signal sets. The second signal ends the process.
fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
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
    fn a_change_is_one_line() {
        assert_eq!(line(&[]), "DELETED users 0x610a62\n");
        let json = "{\"key\":\"a\\nb\",\"kind\":\"DELETED\",\"table\":\"users\"}\n";
        assert_eq!(line(&["--json"]), json);
    }
}
