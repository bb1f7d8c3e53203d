//! The native frontend, as it starts by default, beside the best of the rivals in the same round, and beside a server
//! that only answers: the most that the machine lets through.

use crate::report::{Report, median};
use crate::shape::{alternate, middle};
use crate::side::{Round, Side};
use crate::{DEPTHS, Plan};

const KEYS: u32 = 1_000_000;
const VALUE_BYTES: usize = 64;
/// Larger values, and the number of their keys.
const LARGE: (u32, usize) = (100_000, 1_024);
const MANY_CONNECTIONS: usize = 2_000;
/// Keys of one request that reads several.
const KEYS_AT_ONCE: usize = 16;

fn sides() -> Vec<Side> {
    let ours = Side::spindle(&["--publish", "off", "--frontend", "native"]);
    let sides = [Some(ours), Side::redis(), Side::valkey(1), Side::valkey(2), Side::memcached()];
    sides.into_iter().flatten().collect()
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Beside the best\n\n`--frontend native --publish off`, all else by default; the rivals with their defaults and without disk, Valkey also with \
         `--io-threads 2`. Thousands of requests a second. Keys of 16 bytes, 8 connections unless it is said otherwise. *Ours / best*: the median over the \
         rounds of our rate by that of the best rival in the same round. *Naive* is one thread on an epoll that finds the end of each request and answers with \
         constant bytes.",
    );
    let mut small = sides();
    let mut bytes = vec!["bytes of an element".to_owned()];
    let mut least = f64::INFINITY;
    let mut ours = 0.0;
    for (at, side) in small.iter().enumerate() {
        // With the first element come the memory of threads that have just begun, and pages of the program.
        side.fill(1, VALUE_BYTES);
        let before = side.resident_bytes();
        side.fill(KEYS, VALUE_BYTES);
        let each = (side.resident_bytes() - before) / f64::from(KEYS);
        report.raw(&serde_json::json!({ "what": "memory", "side": side.name, "bytes": each }));
        bytes.push(format!("{each:.0}"));
        if at == 0 { ours = each } else { least = least.min(each) }
    }
    bytes.push(format!("{:.2}", ours / least));
    small.push(Side::naive());
    let mut rows = vec![heads(&small)];
    for verb in ["get", "set"] {
        for depth in DEPTHS {
            let name = format!("{verb}, depth {depth}");
            rows.push(row(
                plan,
                report,
                &small,
                (&name, KEYS, VALUE_BYTES),
                &format!("--mix {verb}=1 --depth {depth}"),
            ));
        }
    }
    let many = format!("--mix many=1 --many {KEYS_AT_ONCE} --depth 16");
    let name = format!("get of {KEYS_AT_ONCE} keys, depth 16");
    rows.push(row(plan, report, &small[..stores(&small)], (&name, KEYS, VALUE_BYTES), &many));
    for verb in ["get", "set"] {
        let name = format!("{verb}, depth 1, {MANY_CONNECTIONS} connections");
        let flags = format!("--mix {verb}=1 --depth 1 --connections {MANY_CONNECTIONS}");
        rows.push(row(plan, report, &small, (&name, KEYS, VALUE_BYTES), &flags));
    }
    rows.push(bytes);
    report.table(&rows);
    drop(small);

    let (keys, value_bytes) = LARGE;
    let large = sides();
    large.iter().for_each(|side| side.fill(keys, value_bytes));
    let mut rows = vec![heads(&large)];
    for verb in ["get", "set"] {
        for depth in DEPTHS {
            let name = format!("{verb}, values of {value_bytes} bytes, depth {depth}");
            let flags = format!("--mix {verb}=1 --depth {depth}");
            rows.push(row(plan, report, &large, (&name, keys, value_bytes), &flags));
        }
    }
    report.table(&rows);
}

/// The number of sides that keep values: ours is the first, and then the rivals come. A bare one may follow.
fn stores(sides: &[Side]) -> usize {
    sides.iter().filter(|side| side.name != "naive").count()
}

fn heads(sides: &[Side]) -> Vec<String> {
    let (stores, bare) = sides.split_at(stores(sides));
    let mut heads = vec![String::new()];
    heads.extend(stores.iter().map(|side| side.name.to_owned()));
    heads.push("ours / best".to_owned());
    heads.extend(bare.iter().flat_map(|side| [side.name.to_owned(), format!("{} / best", side.name)]));
    heads
}

/// One request shape: its name, keys, and the bytes of a value.
fn row(
    plan: &Plan,
    report: &mut Report,
    sides: &[Side],
    (name, keys, value_bytes): (&str, u32, usize),
    shape: &str,
) -> Vec<String> {
    let flags = format!("{shape} --keys {keys} --value-size {value_bytes} --warm-up 0.1 --seconds {}", plan.seconds);
    let rounds = alternate(plan, sides, name, &flags, report);
    let (stores, bare) = rounds.split_at(stores(sides));
    let rate = |rounds: &Vec<Round>| format!("{:.0}", middle(rounds, |round| round.rate) / 1e3);
    let of_best = |side: &[Round]| {
        let ratios = side.iter().enumerate().map(|(at, round)| {
            let best = stores[1..].iter().map(|rounds| rounds[at].rate).fold(0.0, f64::max);
            round.rate / best
        });
        format!("{:.2}", median(&ratios.collect::<Vec<_>>()))
    };
    let mut row = vec![name.to_owned()];
    row.extend(stores.iter().map(rate));
    row.push(of_best(&stores[0]));
    row.extend(bare.iter().flat_map(|side| [rate(side), of_best(side)]));
    row
}
