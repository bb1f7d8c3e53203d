//! `spindle load`: turns flags into a plan, and measurements into lines, a table or JSON.
//!
//! The progress bar goes to standard error, and is only for people. Lines, table and JSON go to standard output.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::watch::stop_on_signals;
use crate::cli::CommandError;
use crate::cli::flags::amount::bytes;
use crate::cli::flags::duration::{BareUnit, duration};
use crate::cli::flags::endpoint::Connect;
use crate::cli::flags::operand::{Hex, TableOperand, table};
use crate::cli::flags::time_to_live::some_time_to_live;
use crate::clock::Ttl;
use crate::limits::{KEY_BYTES_MAX, MANY_MAX, VALUE_BYTES_MAX};
use crate::load::{
    self, Distribution, LoadTarget, Mix, Observer, PhaseReport, Plan, Protocol, Second, VerbReport, Workload,
};
use crate::server::raise_descriptor_limit;

/// Most keys: the generator keeps the version of each key in memory for the verb cas.
const KEYS_MAX: u32 = 1_000_000_000;
/// Most connections: as many as one address has ports.
const CONNECTIONS_MAX: usize = 60_000;

/// The flags of the load generator, as typed.
#[derive(Debug, Args)]
pub struct LoadFlags {
    #[command(flatten, next_help_heading = "Server")]
    server: Connect,
    #[command(flatten, next_help_heading = "Load")]
    load: PaceFlags,
    #[command(flatten, next_help_heading = "Requests")]
    requests: RequestFlags,
    #[command(flatten, next_help_heading = "Output")]
    output: OutputFlags,
}

/// How many requests are sent, and when.
#[derive(Debug, Args)]
struct PaceFlags {
    /// Connections of all threads together
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = counts(1, CONNECTIONS_MAX))]
    connections: usize,
    /// Threads of the generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = counts(1, 256))]
    threads: usize,
    /// Requests that each connection keeps outstanding, 1 by default; with --rate at most this many, 1024 by default
    #[arg(long, value_name = "N", value_parser = counts(1, 1 << 20))]
    depth: Option<usize>,
    /// Requests a second of all connections together: an open loop, whose latencies count from the time a request was
    /// due; several rates, separated by commas, are measured one after the other
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', value_parser = rate)]
    rate: Vec<f64>,
    /// Store every key before the first measurement
    #[arg(long)]
    prefill: bool,
    /// Seconds at the beginning of each phase that are not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = times(0.0, 1e6))]
    warm_up: f64,
    /// Seconds of each phase that are measured
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = times(0.1, 1e6))]
    seconds: f64,
}

/// The requests.
#[derive(Debug, Args)]
struct RequestFlags {
    /// Table that the requests use; created if it is missing
    #[arg(long, value_name = "TABLE", default_value = "load", value_parser = table())]
    table: TableOperand,
    /// Verbs and their shares: get, set, delete, cas, many, incr, scan
    #[arg(long, value_name = "VERB=SHARE,…", default_value = "get=90,set=10")]
    mix: Mix,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_MAX)))]
    keys: u32,
    /// Bytes of a key
    #[arg(long, value_name = "BYTES", default_value_t = 16, value_parser = counts(1, KEY_BYTES_MAX))]
    key_size: usize,
    /// Distribution of the keys: uniform, zipf or zipf:EXPONENT
    #[arg(long, value_name = "DISTRIBUTION", default_value = "uniform")]
    distribution: Distribution,
    /// Bytes of a value, or a range such as 10-1000
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = sizes)]
    value_size: Sizes,
    /// Time to live of the writes that have one: seconds, or a number with a unit such as 1500ms or 12h
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = some_time_to_live())]
    ttl: Ttl,
    /// Share of the writes that have a time to live, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    ttl_share: u32,
    /// Keys in one `many`, and elements that a page of `scan` looks at
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = counts(1, MANY_MAX))]
    many: usize,
    /// Seed of the random numbers: the same seed makes the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What is written of the run.
#[derive(Debug, Args)]
struct OutputFlags {
    #[command(flatten)]
    hex: Hex,
    /// Write an interval log in HdrHistogram's format
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Print only one JSON document, at the end
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    least: usize,
    most: usize,
}

/// Reads `64` or `10-1000`.
fn sizes(typed: &str) -> Result<Sizes, String> {
    let (least, most) = typed.split_once('-').unwrap_or((typed, typed));
    let size = |typed| bytes(typed).ok().and_then(|bytes| usize::try_from(bytes).ok());
    match (size(least), size(most)) {
        (Some(least), Some(most)) if least <= most && most <= VALUE_BYTES_MAX => Ok(Sizes { least, most }),
        _ => Err(format!("a size is a number up to {VALUE_BYTES_MAX}, or a range such as 10-1000")),
    }
}

fn counts(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |typed| match typed.parse() {
        Ok(count) if (least..=most).contains(&count) => Ok(count),
        _ => Err(format!("{least} to {most}")),
    }
}

fn rate(typed: &str) -> Result<f64, &'static str> {
    let rate = typed.parse().ok().filter(|rate| (0.001..=1e9).contains(rate));
    rate.ok_or("a rate is requests a second, 0.001 to 1000000000")
}

fn times(least: f64, most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |typed| {
        let seconds = duration(typed, BareUnit::Seconds).map(|time| time.as_secs_f64());
        let within = seconds.filter(|seconds| (least..=most).contains(seconds));
        within.ok_or_else(|| format!("{least} to {most} seconds, or with a unit as in 10s or 2m"))
    }
}

impl LoadFlags {
    /// Whether only one JSON document is to be printed.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.output.json
    }

    /// The plan that the flags describe, for a server of Spindle.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn into_plan(self) -> Result<Plan, CommandError> {
        let Self { server, load, requests, output } = self;
        let credentials = server.login.credentials()?;
        let address = server.connect.strip_prefix("tcp://").map(str::to_owned);
        let address =
            address.ok_or_else(|| CommandError::Usage("load goes over tcp:// only; see --help".to_owned()))?;
        Ok(Plan {
            server: LoadTarget {
                address,
                connect_timeout: server.patience.timeouts().connect,
                protocol: Protocol::Kv,
                credentials,
                table: output.hex.table(&requests.table)?,
            },
            connections: load.connections,
            threads: load.threads,
            depth: load.depth.unwrap_or(if load.rate.is_empty() { 1 } else { 1024 }),
            rates: load.rate,
            work: requests.workload(),
            prefill: load.prefill,
            warm_up: Duration::from_secs_f64(load.warm_up),
            duration: Duration::from_secs_f64(load.seconds),
            hdr: output.hdr,
        })
    }
}

impl RequestFlags {
    fn workload(self) -> Workload {
        Workload {
            mix: self.mix,
            keys: self.keys,
            key_bytes: self.key_size,
            distribution: self.distribution,
            value_bytes: self.value_size.least..=self.value_size.most,
            ttl: self.ttl,
            ttl_share: f64::from(self.ttl_share) / 100.0,
            many: self.many,
            seed: self.seed,
        }
    }
}

/// Runs the load generator.
///
/// # Errors
/// [`CommandError`].
pub(crate) fn run(flags: LoadFlags, out: &mut dyn Write) -> Result<(), CommandError> {
    let json = flags.is_json();
    let plan = flags.into_plan()?;
    let stop = stop_on_signals().map_err(|error| CommandError::Failed(error.to_string()))?;
    measure(&plan, json, &stop, out)?;
    Ok(())
}

/// Carries the plan out until `stop` is set, and prints the measurements.
///
/// # Errors
/// [`CommandError`].
pub fn measure(
    plan: &Plan,
    json: bool,
    stop: &Arc<AtomicBool>,
    out: &mut dyn Write,
) -> Result<Vec<PhaseReport>, CommandError> {
    raise_descriptor_limit();
    let mut screen = ProgressOutput { out, json, bar: ProgressBar::hidden(), broken: None };
    let reports = load::run(plan, &mut screen, stop).map_err(|error| match error {
        load::Error::Denied { .. } => CommandError::Denied(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    })?;
    screen.bar.finish_and_clear();
    if let Some(error) = screen.broken {
        return Err(CommandError::Output(error));
    }
    // Relaxed: the flag publishes no other data.
    let interrupted = stop.load(Ordering::Relaxed);
    if interrupted && !json {
        writeln!(out, "interrupted: what was measured until then is above, if anything was")?;
    }
    if json {
        let phases: Vec<_> = reports.iter().map(in_json).collect();
        writeln!(
            out,
            "{}",
            json!({
                "mix": plan.work.mix.to_string(),
                "connections": plan.connections,
                "phases": phases,
                "interrupted": interrupted,
            })
        )?;
    }
    Ok(reports)
}

/// Prints the progress of a run.
struct ProgressOutput<'o> {
    out: &'o mut dyn Write,
    json: bool,
    bar: ProgressBar,
    /// The first error of standard output, reported at the end.
    broken: Option<std::io::Error>,
}

impl ProgressOutput<'_> {
    fn print(&mut self, text: &str) {
        if self.json {
            return;
        }
        let written = self.bar.suspend(|| writeln!(self.out, "{text}").and_then(|()| self.out.flush()));
        self.broken = self.broken.take().or(written.err());
    }
}

impl Observer for ProgressOutput<'_> {
    fn begins(&mut self, what: &str, steps: u64) {
        self.print(what);
        self.bar.finish_and_clear();
        let style =
            ProgressStyle::with_template("{bar:50} {percent} % {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = ProgressBar::new(steps).with_style(style).with_message(what.to_owned());
    }

    fn reaches(&mut self, step: u64) {
        self.bar.set_position(step);
    }

    fn second(&mut self, second: &Second) {
        let Second { at, rate, p50, p99, max, refused } = second;
        let [p50, p99, max] = [p50, p99, max].map(|nanos| time(*nanos));
        let refused = if *refused > 0 { format!("  refused {refused}") } else { String::new() };
        self.print(&format!("{at:>6.1} s  {rate:>10.0}/s  p50 {p50:>9}  p99 {p99:>9}  max {max:>9}{refused}"));
    }

    fn ends(&mut self, report: &PhaseReport) {
        self.bar.finish_and_clear();
        self.print(&in_words(report));
    }
}

/// Formats a duration, with the unit that suits it.
pub(crate) fn time(nanos: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits for people")]
    let nanos = nanos as f64;
    match nanos {
        small if small < 1e6 => format!("{:.1} µs", small / 1e3),
        middle if middle < 1e9 => format!("{:.2} ms", middle / 1e6),
        large => format!("{:.2} s", large / 1e9),
    }
}

fn in_words(report: &PhaseReport) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{:<7} {:>11} {:>11}", "verb", "answers", "per second");
    for name in VerbReport::percentile_names() {
        _ = write!(text, " {name:>10}");
    }
    for VerbReport { verb, answers, rate, percentiles } in &report.verbs {
        _ = write!(text, "\n{verb:<7} {answers:>11} {rate:>11.0}");
        for nanos in percentiles {
            _ = write!(text, " {:>10}", time(*nanos));
        }
    }
    for (reason, count) in &report.refused {
        _ = write!(text, "\n{reason}: {count}");
    }
    if report.asked.is_some() {
        _ = write!(text, "\nlongest delay between due and sent: {}", time(report.behind));
    }
    text
}

fn in_json(report: &PhaseReport) -> serde_json::Value {
    let verbs: serde_json::Map<_, _> = report
        .verbs
        .iter()
        .map(|verb| {
            let names = VerbReport::percentile_names().map(|name| format!("{name}_nanos"));
            let mut value: serde_json::Map<_, _> = names.zip(verb.percentiles.map(|nanos| json!(nanos))).collect();
            value.insert("answers".to_owned(), json!(verb.answers));
            value.insert("per_second".to_owned(), json!(verb.rate));
            (verb.verb.to_owned(), value.into())
        })
        .collect();
    let refused: serde_json::Map<_, _> =
        report.refused.iter().map(|(reason, count)| (reason.clone(), json!(count))).collect();
    json!({
        "asked_per_second": report.asked,
        "seconds": report.seconds,
        "verbs": verbs,
        "refused": refused,
        "behind_nanos": report.behind,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct LoadArguments {
        #[command(flatten)]
        flags: LoadFlags,
    }

    fn plan(arguments: &[&str]) -> Plan {
        let typed = LoadArguments::try_parse_from([&["load"], arguments].concat()).unwrap();
        typed.flags.into_plan().unwrap()
    }

    #[test]
    fn flags_become_a_plan() {
        let closed = plan(&[]);
        assert_eq!((closed.server.address.as_str(), closed.depth, closed.rates.len()), ("127.0.0.1:5555", 1, 0));
        assert_eq!(plan(&["--ttl", "1500ms"]).work.ttl.millis(), 1_500);
        let open = plan(&["--rate", "1000,2e3", "--value-size", "1-9", "--ttl-share", "25"]);
        assert_eq!((open.depth, open.rates), (1024, vec![1_000.0, 2_000.0]));
        assert_eq!((open.work.value_bytes, open.work.ttl_share), (1..=9, 0.25));
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in [
            ["--rate", "0"],
            ["--rate", "nan"],
            ["--depth", "0"],
            ["--mix", "fetch=1"],
            ["--keys", "0"],
            ["--key-size", "4097"],
            ["--value-size", "9-1"],
            ["--seconds", "0"],
            ["--warm-up", "-1"],
            ["--ttl-share", "101"],
            ["--ttl", "0"],
            ["--connections", "0"],
            ["--distribution", "normal"],
        ] {
            assert!(LoadArguments::try_parse_from([&["load"][..], &arguments].concat()).is_err(), "{arguments:?}");
        }
        let over_ipc = LoadArguments::try_parse_from(["load", "--connect", "ipc:///tmp/x"]).unwrap();
        assert!(matches!(over_ipc.flags.into_plan(), Err(CommandError::Usage(_))));
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        assert_eq!([950, 12_345, 1_234_567, 2_500_000_000].map(time), ["0.9 µs", "12.3 µs", "1.23 ms", "2.50 s"]);
    }
}
