//! The default frontend beside the server of before, the rivals, and an echo of its own shape.

use crate::report::{Report, median};
use crate::shape::{alternate, middle};
use crate::side::{Round, Side};
use crate::{DEPTHS, Plan};

const KEYS: u32 = 1_000_000;
const VALUE_BYTES: usize = 64;
const MANY_CONNECTIONS: usize = 2_000;
/// Requests a second of the open loop.
const RATES: [u32; 2] = [10_000, 50_000];

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## The queue\n\nThe default frontend, `--publish off`, all else by default. *before* is the server that `SPINDLE_BEFORE` names, with the same \
         flags. *echo* has our connections and our queue, and gives constant answers. Thousands of requests a second, 1,000,000 keys of 16 bytes with \
         values of 64, 8 connections unless it is said otherwise. Ratios are medians over the rounds; *best* is the better rival of the same round.",
    );
    let ours = ["--publish", "off"];
    let sides = [Some(Side::spindle(&ours)), Side::before(&ours), Side::redis(), Side::valkey(1), Some(Side::echo(1))];
    let sides: Vec<Side> = sides.into_iter().flatten().collect();
    sides.iter().filter(|side| side.name != "echo").for_each(|side| side.fill(KEYS, VALUE_BYTES));
    let mut rows = vec![heads(&sides)];
    for verb in ["get", "set"] {
        for depth in DEPTHS {
            rows.push(row(
                plan,
                report,
                &sides,
                &format!("{verb}, depth {depth}"),
                &format!("--mix {verb}=1 --depth {depth}"),
            ));
        }
    }
    for verb in ["get", "set"] {
        let flags = format!("--mix {verb}=1 --depth 1 --connections {MANY_CONNECTIONS}");
        rows.push(row(plan, report, &sides, &format!("{verb}, depth 1, {MANY_CONNECTIONS} connections"), &flags));
    }
    report.table(&rows);
    tails(plan, report, &sides);
}

fn heads(sides: &[Side]) -> Vec<String> {
    let mut heads = vec![String::new()];
    heads.extend(sides.iter().map(|side| side.name.to_owned()));
    heads.extend(["ours / before", "ours / best", "ours / echo"].map(str::to_owned));
    heads
}

/// The median over the rounds of our number by that of `others`, as `pick` chooses one of theirs in each round.
pub(crate) fn by(
    sides: &[Side],
    rounds: &[Vec<Round>],
    others: &[&str],
    of: impl Fn(&Round) -> f64,
    pick: fn(f64, f64) -> f64,
) -> String {
    let theirs: Vec<&Vec<Round>> =
        sides.iter().zip(rounds).filter(|(side, _)| others.contains(&side.name)).map(|(_, rounds)| rounds).collect();
    if theirs.is_empty() {
        return String::new();
    }
    let ratios = rounds[0].iter().enumerate().map(|(at, round)| {
        let other = theirs.iter().map(|rounds| of(&rounds[at])).reduce(pick).unwrap();
        of(round) / other
    });
    format!("{:.2}", median(&ratios.collect::<Vec<_>>()))
}

fn row(plan: &Plan, report: &mut Report, sides: &[Side], name: &str, shape: &str) -> Vec<String> {
    let flags = format!("{shape} --keys {KEYS} --value-size {VALUE_BYTES} --warm-up 0.1 --seconds {}", plan.seconds);
    let rounds = alternate(plan, sides, name, &flags, report);
    let mut row = vec![name.to_owned()];
    row.extend(rounds.iter().map(|rounds| format!("{:.0}", middle(rounds, |round| round.rate) / 1e3)));
    for others in [&["before"][..], &["redis", "valkey"], &["echo"]] {
        row.push(by(sides, &rounds, others, |round| round.rate, f64::max));
    }
    row
}

/// p99 of an open loop, from when a request was due.
fn tails(plan: &Plan, report: &mut Report, sides: &[Side]) {
    report.write(
        "p99 of an open loop of GETs in \u{b5}s, from when a request was due; *best* is the lower of the rivals.",
    );
    let stores: Vec<&Side> = sides.iter().filter(|side| side.name != "echo").collect();
    let mut rows = vec![heads(sides)];
    rows[0].retain(|head| !head.contains("echo"));
    for rate in RATES {
        let name = format!("p99 at {rate} a second");
        let flags =
            format!("--mix get=1 --rate {rate} --keys {KEYS} --warm-up 0.2 --seconds {}", plan.seconds.max(2.0));
        let rounds = alternate(plan, sides, &name, &flags, report);
        let p99 = |round: &Round| round.phase["verbs"]["all"]["p99_nanos"].as_f64().unwrap() / 1e3;
        let mut row = vec![name];
        row.extend(rounds.iter().take(stores.len()).map(|rounds| format!("{:.0}", middle(rounds, p99))));
        for others in [&["before"][..], &["redis", "valkey"]] {
            row.push(by(sides, &rounds, others, p99, f64::min));
        }
        rows.push(row);
    }
    report.table(&rows);
}
