//! Redis clients: the native workers beside Redis and Valkey, by the same load, and by `redis-benchmark`.

use std::process::Command;

use crate::Plan;
use crate::queue::by;
use crate::report::{Report, median};
use crate::shape::{alternate, middle};
use crate::side::{Side, Turns};

const KEYS: u32 = 1_000_000;
const VALUE_BYTES: usize = 64;
const CONNECTIONS: usize = 50;
/// Commands in one write of a client.
const PIPELINES: [usize; 3] = [1, 16, 64];
const RIVALS: [&str; 3] = ["redis", "valkey", "valkey, I/O threads"];

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Redis clients\n\n`--frontend native --publish off --resp`, one worker, all else by default; the rivals with their defaults and without disk, \
         Valkey also with `--io-threads 2`. Thousands of commands a second, 50 connections, 1,000,000 keys of 16 bytes, values of 64. *zmtp* is the same \
         server by its own protocol, *naive* one thread on an epoll that answers this protocol with constant bytes. *Ours / best*: the median over the \
         rounds of our rate by that of the best rival in the same round.",
    );
    let flags = ["--publish", "off", "--frontend", "native", "--workers", "1"];
    let sides =
        [Some(Side::resp(&flags)), Some(Side::spindle(&flags)), Side::redis(), Side::valkey(1), Side::valkey(2)];
    let mut sides: Vec<Side> = sides.into_iter().flatten().collect();
    sides.iter().for_each(|side| side.fill(KEYS, VALUE_BYTES));
    sides.push(Side::naive());
    let mut heads = vec![String::new(), "resp".to_owned(), "zmtp".to_owned()];
    heads.extend(sides.iter().skip(2).map(|side| side.name.to_owned()));
    heads.push("ours / best".to_owned());
    let mut rows = vec![heads];
    for verb in ["get", "set"] {
        for pipeline in PIPELINES {
            let name = format!("{verb}, pipeline {pipeline}");
            let flags = format!(
                "--mix {verb}=1 --depth {pipeline} --connections {CONNECTIONS} --keys {KEYS} --value-size {VALUE_BYTES} \
                 --warm-up 0.1 --seconds {}",
                plan.seconds
            );
            let rounds = alternate(plan, &sides, &name, &flags, report);
            let mut row = vec![name];
            row.extend(rounds.iter().map(|rounds| format!("{:.0}", middle(rounds, |round| round.rate) / 1e3)));
            row.push(by(&sides, &rounds, &RIVALS, |round| round.rate, f64::max));
            rows.push(row);
        }
    }
    report.table(&rows);
    let speaks_redis = |side: &Side| side.protocol == "redis";
    let sides: Vec<Side> = sides.into_iter().filter(speaks_redis).collect();
    by_redis_benchmark(plan, report, &sides);
}

/// The same by `redis-benchmark`, whose own cost is most of what it measures.
fn by_redis_benchmark(plan: &Plan, report: &mut Report, sides: &[Side]) {
    if Command::new("redis-benchmark").arg("--version").output().is_err() {
        return report.write("`redis-benchmark` is not there.");
    }
    report.write("By `redis-benchmark -c 50 -r 1000000 -d 64`, thousands of commands a second:");
    let mut heads = vec![String::new()];
    heads.extend(sides.iter().map(|side| side.name.to_owned()));
    heads.push("ours / best".to_owned());
    let mut rows = vec![heads];
    let turns = Turns::among(sides);
    for verb in ["get", "set"] {
        for pipeline in PIPELINES {
            let name = format!("{verb}, pipeline {pipeline}");
            let mut rates = vec![Vec::new(); sides.len()];
            for _ in 0..plan.rounds {
                for (number, rates) in rates.iter_mut().enumerate() {
                    let rate = turns.give(number, |side| benchmark(side, verb, pipeline, plan.seconds));
                    report.raw(&serde_json::json!({ "what": name, "side": sides[number].name, "benchmark": rate }));
                    rates.push(rate);
                }
            }
            let ratios: Vec<f64> = (0..plan.rounds)
                .map(|round| rates[0][round] / rates[1..].iter().map(|rates| rates[round]).fold(0.0, f64::max))
                .collect();
            let mut row = vec![name];
            row.extend(rates.iter().map(|rates| format!("{:.0}", median(rates) / 1e3)));
            row.push(format!("{:.2}", median(&ratios)));
            rows.push(row);
        }
    }
    drop(turns);
    report.table(&rows);
}

/// The rate that `redis-benchmark` prints, of as many commands as take about so many seconds.
fn benchmark(side: &Side, verb: &str, pipeline: usize, seconds: f64) -> f64 {
    let commands = (seconds * 100_000.0 * (pipeline as f64).sqrt()) as u64;
    let (_, port) = side.address().rsplit_once(':').unwrap();
    let flags =
        format!("-p {port} -c {CONNECTIONS} -n {commands} -r {KEYS} -d {VALUE_BYTES} -P {pipeline} -t {verb} --csv");
    let output = Command::new("redis-benchmark").args(flags.split_whitespace()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().find(|line| line.to_lowercase().contains(&format!("\"{verb}\""))).unwrap();
    row.split(',').nth(1).unwrap().trim_matches('"').parse().unwrap()
}
