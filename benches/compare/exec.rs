//! Transactions of Redis clients: their rate, and what they take from others.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::Plan;
use crate::report::{Report, median};
use crate::shape::{alternate, middle};
use crate::side::{Side, Turns, words};

const KEYS: u32 = 1_000_000;
const VALUE_BYTES: usize = 64;
/// SETs of one transaction.
const SIZES: [usize; 2] = [2, 16];
/// Transactions in one write of a client.
const PIPELINES: [usize; 2] = [1, 16];
const WORKERS: [usize; 3] = [1, 2, 4];
/// Transactions a second beside the GETs of others.
const BESIDE: u32 = 5_000;
const GETS: &str = "--mix get=1 --depth 16 --connections 8 --warm-up 0.1";

/// A server for Redis clients with so many workers.
fn ours(workers: usize) -> Side {
    let mut side = Side::resp(&["--publish", "off", "--frontend", "native", "--workers", &workers.to_string()]);
    side.name = match workers {
        1 => "1 worker",
        2 => "2 workers",
        _ => "4 workers",
    };
    side
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Transactions\n\nMULTI, SETs of consecutive keys, EXEC, in one write: thousands of transactions a second, 50 connections, \
         1,000,000 keys of 16 bytes. Spindle with `--frontend native --publish off --resp`. *By Redis*: the median over the rounds of our \
         rate with one worker by that of Redis in the same round.",
    );
    let mut sides: Vec<Side> = WORKERS.into_iter().map(ours).collect();
    sides.extend(Side::redis());
    sides.extend(Side::valkey(1));
    sides.iter().for_each(|side| side.fill(KEYS, VALUE_BYTES));
    losses(plan, report, &sides);
    sides.iter_mut().for_each(|side| side.protocol = "redis-exec");
    let mut rows = vec![heads(&sides, "by redis")];
    for size in SIZES {
        for pipeline in PIPELINES {
            let name = format!("{size} keys, pipeline {pipeline}");
            let flags = format!(
                "--mix many=1 --many {size} --depth {pipeline} --connections 50 --keys {KEYS} --warm-up 0.1 --seconds {}",
                plan.seconds
            );
            let rounds = alternate(plan, &sides, &name, &flags, report);
            let mut row = vec![name];
            row.extend(rounds.iter().map(|rounds| format!("{:.1}", middle(rounds, |round| round.rate) / 1e3)));
            let redis = sides.iter().position(|side| side.name == "redis");
            row.push(redis.map_or_else(String::new, |redis| {
                let ratios = rounds[0].iter().zip(&rounds[redis]).map(|(ours, theirs)| ours.rate / theirs.rate);
                format!("{:.2}", median(&ratios.collect::<Vec<_>>()))
            }));
            rows.push(row);
        }
    }
    report.table(&rows);
}

fn heads(sides: &[Side], last: &str) -> Vec<String> {
    let mut heads = vec![String::new()];
    heads.extend(sides.iter().map(|side| side.name.to_owned()));
    heads.push(last.to_owned());
    heads
}

/// What the GETs of others lose.
fn losses(plan: &Plan, report: &mut Report, sides: &[Side]) {
    report.write(&format!(
        "GETs of others beside {BESIDE} transactions of 16 keys a second (`{GETS}`): thousands a second alone, and their share \
         of it beside transactions of the same table, and of another. Both loads and the server share the machine."
    ));
    let mut rows = vec![heads(sides, "")];
    rows[0].pop();
    let scenes = [("alone", None), ("same table", Some("redis-exec")), ("another table", Some("redis-exec-1"))];
    let mut alone = vec![0.0; sides.len()];
    let turns = Turns::among(sides);
    let mut rates = vec![vec![Vec::new(); sides.len()]; scenes.len()];
    for _ in 0..plan.rounds {
        for (number, side) in sides.iter().enumerate() {
            for ((scene, protocol), rates) in scenes.iter().zip(&mut rates) {
                let rate = turns.give(number, |side| gets(side, *protocol, plan.seconds));
                report.raw(
                    &serde_json::json!({ "what": "gets beside exec", "scene": scene, "side": side.name, "rate": rate }),
                );
                rates[number].push(rate);
            }
        }
    }
    drop(turns);
    for ((scene, protocol), rates) in scenes.iter().zip(&rates) {
        let mut row = vec![(*scene).to_owned()];
        for (rates, alone) in rates.iter().zip(&mut alone) {
            let rate = median(rates);
            row.push(match protocol {
                None => {
                    *alone = rate;
                    format!("{:.0}", rate / 1e3)
                }
                Some(_) => format!("{:.0} %", rate / *alone * 100.0),
            });
        }
        rows.push(row);
    }
    report.table(&rows);
}

/// GETs a second, beside transactions of this protocol.
fn gets(side: &Side, protocol: Option<&str>, seconds: f64) -> f64 {
    let load = format!("{GETS} --keys {KEYS} --seconds {seconds}");
    let results = thread::scope(|scope| {
        if let Some(protocol) = protocol {
            let flags = format!(
                "--mix many=1 --many 16 --rate {BESIDE} --connections 8 --keys {KEYS} --warm-up 0 --seconds {}",
                seconds + 0.7
            );
            scope.spawn(move || side.load_by(protocol, &words(&flags)));
            thread::sleep(Duration::from_millis(300));
        }
        side.load(&words(&load))
    });
    rate(&results)
}

fn rate(results: &Value) -> f64 {
    results["phases"][0]["verbs"]["all"]["per_second"].as_f64().unwrap()
}
