//! Beside Redis and memcached: throughput, latency, and the memory of an element.

use crate::report::Report;
use crate::shape::{alternate, middle};
use crate::side::{Side, words};
use crate::{DEPTHS, Plan};

/// Elements and bytes of their values.
const SIZES: [(u32, usize); 4] = [(100_000, 64), (1_000_000, 64), (100_000, 1024), (1_000_000, 1024)];

fn all() -> Vec<Side> {
    let ours = Side::spindle(&["--publish", "off"]);
    [Some(ours), Side::redis(), Side::memcached()].into_iter().flatten().collect()
}

fn names(sides: &[Side], first: &str, unit: &str) -> Vec<String> {
    let name = |side: &Side| format!("{}{unit}", side.name);
    std::iter::once(first.to_owned()).chain(sides.iter().map(name)).collect()
}

pub(crate) fn throughput(plan: &Plan, report: &mut Report) {
    report.write(
        "## Beside Redis and memcached\n\nDefaults of each, without disk and notifications. Thousands of requests a second, and p99 of \
         the closed loop in µs behind the slash: at these depths it is mostly the queue that the load itself makes.",
    );
    for (keys, value_bytes) in SIZES {
        let sides = all();
        sides.iter().for_each(|side| side.fill(keys, value_bytes));
        let mut rows = vec![names(&sides, &format!("{keys} keys, {value_bytes} B"), "")];
        for verb in ["get", "set"] {
            for depth in DEPTHS {
                let what = format!("{verb}, depth {depth}");
                let flags = format!(
                    "--mix {verb}=1 --depth {depth} --keys {keys} --value-size {value_bytes} --warm-up 0 --seconds {}",
                    plan.seconds
                );
                let raw = format!("{what}, {keys} keys, {value_bytes} B");
                let rounds = alternate(plan, &sides, &raw, &flags, report);
                let cell = |rounds: &Vec<_>| {
                    let p99 = |round: &crate::side::Round| round.phase["verbs"]["all"]["p99_nanos"].as_f64().unwrap();
                    format!("{:.0} / {:.0}", middle(rounds, |round| round.rate) / 1e3, middle(rounds, p99) / 1e3)
                };
                rows.push(std::iter::once(what).chain(rounds.iter().map(cell)).collect());
            }
        }
        report.table(&rows);
    }
    open_loop(report);
}

/// Percentiles at rates that each side can bear, and a plot of each.
fn open_loop(report: &mut Report) {
    report.write("Open loop, 100,000 keys, values of 64 bytes, 90 % GET, latency from when a request was due, in µs; plots beside. *Load late*: \
         the longest time by which the load itself sent a request too late, because nothing ran then: not the server's doing.");
    let sides = all();
    let heads = ["", "p50", "p90", "p99", "p99.9", "max", "load late, max"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for side in &sides {
        side.fill(100_000, 64);
        let plot = report.folder().join(format!("open-loop-{}.svg", side.name));
        let mut flags = words("--rate 10000,50000,150000 --seconds 5");
        flags.extend(["--plot".to_owned(), plot.display().to_string()]);
        let results = side.load(&flags);
        for phase in results["phases"].as_array().unwrap() {
            report.raw(&serde_json::json!({ "what": "open loop", "side": side.name, "phase": phase }));
            let all = &phase["verbs"]["all"];
            let micros = |name: &&str| format!("{:.0}", all[format!("{name}_nanos")].as_f64().unwrap() / 1e3);
            let what = format!("{}, {} requests/s", side.name, phase["asked_per_second"]);
            let late = format!("{:.0}", phase["behind_nanos"].as_f64().unwrap() / 1e3);
            rows.push(std::iter::once(what).chain(heads[1..6].iter().map(micros)).chain([late]).collect());
        }
    }
    report.table(&rows);
}

pub(crate) fn memory(_plan: &Plan, report: &mut Report) {
    report.write("## Bytes of an element\n\nResident memory of the server after storing, less before, over the number of elements. Keys have 16 bytes.");
    let mut rows = Vec::new();
    for (keys, value_bytes) in SIZES {
        let sides = all();
        if rows.is_empty() {
            rows.push(names(&sides, "", ", bytes"));
        }
        let mut row = vec![format!("{keys} keys, {value_bytes} B")];
        for side in &sides {
            let before = side.resident_bytes();
            side.fill(keys, value_bytes);
            let bytes = (side.resident_bytes() - before) / f64::from(keys);
            report.raw(&serde_json::json!({ "what": "memory", "side": side.name, "keys": keys, "value": value_bytes, "bytes": bytes }));
            row.push(format!("{bytes:.1}"));
        }
        rows.push(row);
    }
    report.table(&rows);
}
