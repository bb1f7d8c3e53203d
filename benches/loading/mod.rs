//! The load generator for comparisons: `spindle load`, which speaks the protocols of Redis and memcached too, and draws
//! what it has measured.
//!
//! ```text
//! arguments ─► Plan of `spindle load` + --protocol ─► spindle::cli::measure ─► lines, a table or JSON
//!                                                                          └─► --plot: plot ─► chart
//! ```
//! The loop, the requests and the histograms are those of `src/load`, the same for every server.

pub(crate) mod chart;
pub(crate) mod memcached;
mod plot;
pub(crate) mod redis;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, ValueEnum};
use spindle::cli::{CommandError, LoadFlags, measure};
use spindle::load::{Plan, Protocol};
use spindle::zmtp::Credentials;

/// The reason for a missing key. The other servers send none.
const ABSENT: &[u8] = b"KEY NOT FOUND";

/// The protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProtocolName {
    /// Spindle's own
    Kv,
    /// RESP
    Redis,
    /// RESP, and `many` is a transaction of SETs
    RedisExec,
    /// The same transactions in database 1
    #[value(name = "redis-exec-1")]
    RedisExecElsewhere,
    /// The text protocol
    Memcached,
}

/// The flags of `spindle load`, and those of comparisons.
#[derive(Parser)]
struct Arguments {
    /// Protocol of the server
    #[arg(long, value_enum, default_value_t = ProtocolName::Kv)]
    protocol: ProtocolName,
    #[command(flatten)]
    flags: LoadFlags,
    /// Draw the percentiles, and the latency over time, as an SVG or a PNG
    #[arg(long, value_name = "FILE", value_parser = plot::file)]
    plot: Option<PathBuf>,
}

/// Runs the load of these arguments, of which the first is the name of the program, until `stop` is set.
/// Wrong arguments end the process.
pub(crate) fn run(
    arguments: impl Iterator<Item = String>,
    stop: &Arc<AtomicBool>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let arguments = Arguments::parse_from(arguments);
    let (json, drawing) = (arguments.flags.is_json(), arguments.plot.clone());
    let plan = plan(arguments)?;
    let reports = measure(&plan, json, stop, out)?;
    match drawing.filter(|_| !reports.is_empty()) {
        Some(path) => plot::draw(&path, &plan, &reports).map_err(CommandError::Failed),
        None => Ok(()),
    }
}

fn plan(arguments: Arguments) -> Result<Plan, CommandError> {
    let mut plan = arguments.flags.into_plan()?;
    plan.server.protocol = match arguments.protocol {
        ProtocolName::Kv => Protocol::Kv,
        ProtocolName::Redis => Protocol::Other(&redis::REDIS),
        ProtocolName::RedisExec => Protocol::Other(&redis::TRANSACTIONS),
        ProtocolName::RedisExecElsewhere => Protocol::Other(&redis::TRANSACTIONS_ELSEWHERE),
        ProtocolName::Memcached => Protocol::Other(&memcached::MEMCACHED),
    };
    if arguments.protocol != ProtocolName::Kv && !matches!(plan.server.credentials, Credentials::None) {
        return Err(CommandError::Usage("--user and --curve-key are for Spindle's own protocol alone".to_owned()));
    }
    if arguments.protocol == ProtocolName::Memcached && plan.work.ttl.whole_secs().is_none() {
        return Err(CommandError::Usage("memcached has times to live of whole seconds alone".to_owned()));
    }
    Ok(plan)
}

/// The bytes before the first line end, and the offset of the next line.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((bytes.get(..end)?, end + 2))
}

/// Parses a number in ASCII.
fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Writes a number in ASCII.
fn push_number(out: &mut Vec<u8>, number: usize) {
    write!(out, "{number}").expect("a vector takes every byte");
}

#[cfg(test)]
#[allow(dead_code, unused_imports, reason = "a bench has no harness: `tests/it` runs these tests")]
mod tests {
    use spindle::clock::Ttl;
    use spindle::load::{Distribution, LoadRequest, Mix, OtherProtocol, Payloads, RequestKind, Workload};

    use super::memcached::MEMCACHED;
    use super::redis::REDIS;
    use super::*;

    /// The bytes of a protocol for this request, escaped.
    pub(super) fn written(protocol: &OtherProtocol, verb: RequestKind, ttl: Option<Ttl>) -> String {
        let work = Workload {
            mix: Mix::only(RequestKind::Get),
            keys: 100,
            key_bytes: 3,
            distribution: Distribution::Uniform,
            value_bytes: 0..=30,
            ttl: Ttl::from_secs(9),
            ttl_share: 0.0,
            many: 2,
            seed: 0,
        };
        let mut out = Vec::new();
        let ask = LoadRequest { verb, key: 99, value_bytes: 4, ttl };
        (protocol.encode)(ask, &work, &mut Payloads::new(&work), &mut out);
        out.escape_ascii().to_string()
    }

    #[test]
    fn only_spindle_has_all_verbs() {
        for verb in [RequestKind::Cas, RequestKind::Scan] {
            assert!(!REDIS.verbs.contains(&verb) && !MEMCACHED.verbs.contains(&verb));
        }
        assert!(REDIS.verbs.contains(&RequestKind::Incr));
        assert!(!MEMCACHED.verbs.contains(&RequestKind::Incr), "a missing one is no zero");
    }

    /// The error came after the run, which may take hours.
    #[test]
    fn a_plot_that_cannot_be_written_is_refused_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let parsed = |name: &str| {
            let path = folder.path().join(name);
            Arguments::try_parse_from(["load", "--plot", path.to_str().unwrap()]).map_err(|error| error.to_string())
        };
        for (wrong, about) in [("absent/load.svg", "cannot write"), ("load.gif", "an SVG"), ("load", "an SVG")] {
            let said = parsed(wrong).map(drop).unwrap_err();
            assert!(said.contains(about), "{said}");
        }
        assert!(parsed("load.svg").is_ok() && !folder.path().join("load.svg").exists());
        std::fs::write(folder.path().join("old.svg"), "old").unwrap();
        assert!(parsed("old.svg").is_ok());
        assert_eq!(std::fs::read_to_string(folder.path().join("old.svg")).unwrap(), "old");
    }

    #[test]
    fn what_a_protocol_cannot_have_is_bad_usage() {
        let planned = |flags: &[&str]| plan(Arguments::try_parse_from([&["load"], flags].concat()).unwrap());
        let brief = planned(&["--protocol", "memcached", "--ttl", "1500ms"]);
        assert!(matches!(brief, Err(CommandError::Usage(_))));
        assert!(planned(&["--protocol", "redis", "--ttl", "1500ms"]).is_ok());
    }
}
