//! `spindle ping` and `spindle stats`: how fast a server answers, and its statistics, once or again and again.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::client::KvServer;
use super::load::time;
use super::refusal::failure;
use super::watch::{GLANCE, stop_on_signals};
use crate::cli::CommandError;
use crate::cli::flags::endpoint::seconds;
use crate::cli::show;
use crate::clients::rust::tables::Client;
use crate::clock::Clock;
use crate::stats::{Latencies, Percentiles};

/// Makes a terminal empty, and puts what follows at its top (ECMA-48: CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Debug, Args)]
pub(crate) struct PingArguments {
    /// Number of pings, each after the answer to the one before; Ctrl-C ends them early
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    #[command(flatten)]
    of: KvServer,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// Print them again and again until Ctrl-C, so many seconds apart [default: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
    #[command(flatten)]
    of: KvServer,
}

/// Checks that the server answers, and prints how long that takes: for several pings, the percentiles.
///
/// # Errors
/// [`CommandError`] if the server does not answer, or the answer cannot be printed.
pub(crate) fn ping(arguments: &PingArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let PingArguments { count, of } = arguments;
    let mut client = of.connect()?;
    let clock = Clock::start();
    if *count == 1 {
        client.ping().map_err(failure)?;
        let nanos = clock.now().nanos();
        let text = format!("{} answered in {:.1?}\n", of.endpoint(), Duration::from_nanos(nanos));
        return of.format.print(out, &text, &json!({ "ok": true, "micros": nanos / 1_000 }));
    }
    let Percentiles { count, p50, p90, p99, p999, max } = latencies(&mut client, clock, *count)?;
    let times = [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("max", max)];
    let words = times.map(|(name, nanos)| format!("  {name} {}", time(nanos)));
    let text = format!("{} answered {count} times:{}\n", of.endpoint(), words.concat());
    let members = times.map(|(name, nanos)| (format!("{name}_nanos"), json!(nanos)));
    let more = [("ok".to_owned(), json!(true)), ("count".to_owned(), json!(count))];
    of.format.print(out, &text, &serde_json::Value::Object(members.into_iter().chain(more).collect()))
}

/// The times of `count` pings in nanoseconds, or of those before a signal.
fn latencies(client: &mut Client, clock: Clock, count: u64) -> Result<Percentiles, CommandError> {
    let stop = stop_on_signals().map_err(|error| CommandError::Failed(error.to_string()))?;
    let latencies = Latencies::new();
    for _ in 0..count {
        let sent = clock.now();
        match client.ping() {
            // Relaxed, here and below: the flag publishes no other data.
            Err(_) if stop.load(Ordering::Relaxed) => break,
            answer => answer.map_err(failure)?,
        }
        latencies.record(sent.nanos_until(clock.now()));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(Percentiles::of([&latencies]))
}

/// Prints the statistics of the server.
///
/// # Errors
/// [`CommandError`] if the server does not answer, or the answer cannot be printed.
pub(crate) fn stats(arguments: &StatsArguments, out: &mut impl Write) -> Result<(), CommandError> {
    let StatsArguments { watch, of } = arguments;
    let mut client = of.connect()?;
    let Some(pause) = watch else { return print_stats(&mut client, of, "", out) };
    let stop = stop_on_signals().map_err(|error| CommandError::Failed(error.to_string()))?;
    let head = if io::stdout().is_terminal() { CLEAR } else { "" };
    while !stop.load(Ordering::Relaxed) {
        match print_stats(&mut client, of, head, out) {
            Err(CommandError::Failed(_)) if stop.load(Ordering::Relaxed) => {}
            printed => printed?,
        }
        rest(*pause, &stop);
    }
    Ok(())
}

fn print_stats(client: &mut Client, of: &KvServer, head: &str, out: &mut impl Write) -> Result<(), CommandError> {
    let text = client.stats().map_err(failure)?;
    let json = serde_json::from_str(&text)
        .map_err(|error| CommandError::Failed(format!("the server's STATS are no JSON: {error}")))?;
    of.format.print(out, &format!("{head}{}", show::outline(&json)), &json)
}

/// Waits for this time, or until `stop`.
fn rest(time: Duration, stop: &AtomicBool) {
    let clock = Clock::start();
    let end = clock.now().after(time);
    while clock.now() < end && !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(clock.now().time_until(end).min(GLANCE));
    }
}
