//! Durable tables beside tables in memory, and beside Redis with its append-only file.

mod disk;
mod opening;

pub(crate) use opening::measure as openings;

use serde::Serialize;
use serde_json::{Value, json};
use spindle::clients::rust::tables::Client;
use spindle::services::tables::wire::TableOptions;

use crate::Plan;
use crate::report::{Report, median};
use crate::shape::{alternate, middle};
use crate::side::{Round, Side, words};

const KEYS: u32 = 1_000_000;
const VALUE_BYTES: usize = 64;
/// Connections and depths: one request at once, few, many, and many of few clients.
const ALWAYS: [(usize, usize); 4] = [(1, 1), (8, 1), (64, 1), (8, 64)];
const SOON: [(usize, usize); 4] = [(8, 1), (8, 16), (8, 64), (50, 16)];
const FLAGS: [&str; 6] = ["--publish", "off", "--frontend", "native", "--workers", "1"];
/// SETs a second of which the latency is measured beside the cleaner.
const TAIL_RATE: u32 = 50_000;
/// Bytes of the updates of the few hot elements, by those of the hot elements.
const OVERWRITES: u32 = 20;

fn ours(name: &'static str, durability: &str) -> Side {
    let mut side = Side::resp(&[&FLAGS[..], &["--durability", durability]].concat());
    side.name = name;
    side
}

fn sides(ours_name: &'static str, durability: &str, fsync: &'static str) -> Vec<Side> {
    let sides = [
        Some(ours("in memory", "none")),
        Some(ours(ours_name, durability)),
        Side::redis_with_file("redis 8", "redis", fsync),
        Side::redis_with_file("redis 7", "redis-system", fsync),
    ];
    let sides: Vec<_> = sides.into_iter().flatten().collect();
    sides.iter().for_each(|side| side.fill(KEYS, VALUE_BYTES));
    sides
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let disk = disk::describe(report);
    report.write(&format!(
        "## Durable tables\n\nSETs by Redis's protocol, {KEYS} keys of 16 bytes, values of {VALUE_BYTES}: thousands a second. Spindle with \
         `{}`, one table. Redis with `appendonly yes`. {disk}",
        FLAGS.join(" "),
    ));
    compare(plan, report, "always", &ALWAYS, &sides("always", "always", "always"));
    compare(plan, report, "soon, everysec", &SOON, &sides("soon", "soon", "everysec"));
    neighbours(plan, report);
}

fn compare(plan: &Plan, report: &mut Report, what: &str, loads: &[(usize, usize)], sides: &[Side]) {
    let names = sides.iter().map(|side| side.name.to_owned());
    let ratios = ["by the better redis", "by memory"].map(str::to_owned);
    let mut rows = vec![std::iter::once(what.to_owned()).chain(names).chain(ratios).collect::<Vec<_>>()];
    for &(connections, depth) in loads {
        let name = format!("{connections} connections, depth {depth}");
        let flags = format!(
            "--mix set=1 --connections {connections} --depth {depth} --keys {KEYS} --value-size {VALUE_BYTES} --warm-up 0.2 --seconds {}",
            plan.seconds
        );
        let rounds = alternate(plan, sides, &format!("{what}: {name}"), &flags, report);
        let mut row = vec![name];
        row.extend(rounds.iter().map(|rounds| format!("{:.1}", middle(rounds, |round| round.rate) / 1e3)));
        row.push(ratio(&rounds[1], &rounds[2..]));
        row.push(ratio(&rounds[1], &rounds[..1]));
        rows.push(row);
    }
    report.table(&rows);
}

/// The median over the rounds of one rate by the best of others in the same round.
fn ratio(one: &[Round], others: &[Vec<Round>]) -> String {
    let best = |round: usize| others.iter().map(|rounds| rounds[round].rate).fold(0.0, f64::max);
    let ratios: Vec<f64> = one.iter().enumerate().map(|(number, round)| round.rate / best(number)).collect();
    if others.is_empty() { String::new() } else { format!("{:.2}", median(&ratios)) }
}

// ------------------------------------------------------------------------------------------------------------ neighbours

/// A table in memory while a durable one is written, and reads of a durable one that nobody writes.
fn neighbours(plan: &Plan, report: &mut Report) {
    report.write(
        "GETs and SETs of a table in memory beside 20,000 SETs a second of another table, and GETs of an `always` table that nobody \
         writes: thousands a second, 8 connections, depth 16, ZeroMQ.",
    );
    let mut rows = vec![["", "get", "set"].map(str::to_owned).to_vec()];
    let scenes = [
        ("in memory, beside one in memory", TableOptions::InMemory, TableOptions::InMemory),
        ("in memory, beside soon", TableOptions::InMemory, TableOptions::Soon),
        ("in memory, beside always", TableOptions::InMemory, TableOptions::Always),
        ("always, nobody writes", TableOptions::Always, TableOptions::InMemory),
    ];
    let sides = scenes.map(|(_, of_load, beside)| {
        let side = Side::spindle(&FLAGS);
        let mut client = Client::connect(&side.endpoint).unwrap();
        client.create_table_with(b"load", of_load).unwrap();
        client.create_table_with(b"beside", beside).unwrap();
        side.fill(KEYS, VALUE_BYTES);
        side
    });
    let mut rates = vec![[Vec::new(), Vec::new()]; scenes.len()];
    for _ in 0..plan.rounds {
        for (number, (side, rates)) in sides.iter().zip(&mut rates).enumerate() {
            for (verb, rates) in ["get", "set"].into_iter().zip(rates) {
                // A SET of an `always` table is another comparison.
                if number == 3 && verb == "set" {
                    continue;
                }
                let rate = beside(side, verb, number < 3, plan.seconds);
                report.raw(&json!({ "what": "beside", "scene": scenes[number].0, "verb": verb, "rate": rate }));
                rates.push(rate);
            }
        }
    }
    for ((scene, ..), rates) in scenes.iter().zip(&rates) {
        let cell =
            |rates: &Vec<f64>| if rates.is_empty() { String::new() } else { format!("{:.0}", median(rates) / 1e3) };
        rows.push(std::iter::once((*scene).to_owned()).chain(rates.iter().map(cell)).collect());
    }
    report.table(&rows);
}

/// Requests a second of the table `load`.
fn beside(side: &Side, verb: &str, has_neighbour: bool, seconds: f64) -> f64 {
    let load =
        format!("--mix {verb}=1 --depth 16 --keys {KEYS} --value-size {VALUE_BYTES} --warm-up 0.2 --seconds {seconds}");
    let results = std::thread::scope(|scope| {
        if has_neighbour {
            let flags = format!("--table beside --mix set=1 --rate 20000 --warm-up 0 --seconds {}", seconds + 0.5);
            scope.spawn(move || side.load(&words(&flags)));
        }
        side.load(&words(&load))
    });
    results["phases"][0]["verbs"]["all"]["per_second"].as_f64().unwrap()
}

// --------------------------------------------------------------------------------------------------------------- written

fn store_of(client: &mut Client) -> Value {
    let stats: Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
    stats["durable"]["store"].clone()
}

/// The bytes that are written for each byte of updates, with much cold data and little hot.
pub(crate) fn cleaning(_plan: &Plan, report: &mut Report) {
    let (cold, hot) = (8_000_000_u32, 80_000_u32);
    let side = Side::spindle(&[&FLAGS[..], &["--max-memory", "8G"]].concat());
    let mut client = Client::connect(&side.endpoint).unwrap();
    for table in [&b"cold"[..], b"hot"] {
        client.create_table_with(table, TableOptions::Soon).unwrap();
    }
    let fill = |table: &str, keys: u32| {
        let flags = format!(
            "--table {table} --prefill --keys {keys} --value-size {VALUE_BYTES} --seconds 0.1 --warm-up 0 --mix get=1"
        );
        side.load(&words(&flags));
    };
    fill("cold", cold);
    fill("hot", hot);
    let calm = tail(&side, &mut client);
    let before = store_of(&mut client);
    (0..OVERWRITES * cold / hot / 10).for_each(|_| fill("hot", hot));
    let after = store_of(&mut client);
    let grown = |name: &str| after[name].as_f64().unwrap() - before[name].as_f64().unwrap();
    let (bytes, copied) = (grown("batch_bytes"), grown("copied_bytes"));
    let cleaning = tail(&side, &mut client);
    report.raw(&json!({ "what": "written", "before": before, "after": after, "calm": calm, "cleaning": cleaning }));
    report.write(&format!(
        "{cold} cold elements and {hot} hot ones, which are overwritten until {:.1} times the cold bytes are written: {:.2} bytes written for \
         each byte of updates; {:.0} MB live, {:.0} MB on disk.",
        (bytes - copied) / before["live_bytes"].as_f64().unwrap(),
        bytes / (bytes - copied),
        after["live_bytes"].as_f64().unwrap() / 1e6,
        after["disk_bytes"].as_f64().unwrap() / 1e6,
    ));
    let cells = [&calm, &cleaning].map(|Tail { micros, copied }| format!("{micros:.0} µs, {copied:.1} MB copied"));
    report.write(&format!("p99.9 of {TAIL_RATE} SETs a second of the hot elements: {}, then {}.", cells[0], cells[1]));
}

/// The latency of SETs at a rate.
#[derive(Serialize)]
struct Tail {
    /// The median of the 99.9th percentiles of the phases.
    micros: f64,
    /// Megabytes that were copied meanwhile.
    copied: f64,
}

fn tail(side: &Side, client: &mut Client) -> Tail {
    let flags = format!(
        "--table hot --mix set=1 --rate {TAIL_RATE} --keys 80000 --value-size {VALUE_BYTES} --warm-up 0.2 --seconds 3"
    );
    let copied = |client: &mut Client| store_of(client)["copied_bytes"].as_f64().unwrap();
    let before = copied(client);
    let once = |_| side.load(&words(&flags))["phases"][0]["verbs"]["all"]["p99.9_nanos"].as_f64().unwrap() / 1e3;
    let micros: Vec<f64> = (0..5).map(once).collect();
    Tail { micros: median(&micros), copied: (copied(client) - before) / 1e6 }
}
