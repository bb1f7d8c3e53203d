//! Tails: latencies at fixed rates, beside the rivals, and one plot of all of them with the same axes.
//!
//! Single rounds here are the host's noise: in some of them no thread of the load runs for milliseconds. A round in
//! which the load itself was late is measured again, and counted. A percentile is the median of the rounds' percentiles.

use crate::Plan;
use crate::loading::chart::{Curve, HorizontalAxis, Panel, draw, human_nanos, nines};
use crate::report::{Report, median};
use crate::side::{Side, Turns, words};

const RATES: [u32; 3] = [10_000, 50_000, 100_000];
/// The least number of rounds.
const ROUNDS_MIN: usize = 9;
/// A load that sends a request later than this after it was due makes the round worthless.
const LATE_NANOS: f64 = 2_000_000.0;
/// How often a round is measured again, at most. The last try counts, and its lateness is reported.
const TRIES: usize = 4;
const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

/// The rounds of one side at one rate: nanoseconds of each percentile.
#[derive(Default)]
struct Rounds {
    nanos: Vec<[f64; PERCENTILES.len()]>,
    /// Tries that were thrown away.
    late: usize,
    /// Rounds in which the load was late at every try.
    kept_late: usize,
}

impl Rounds {
    fn median(&self, percentile: usize) -> f64 {
        median(&self.nanos.iter().map(|round| round[percentile]).collect::<Vec<_>>())
    }
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let rounds = plan.rounds.max(ROUNDS_MIN);
    report.write(&format!(
        "## Tails\n\nOpen loops, 8 connections, 100,000 keys, values of 64 bytes, 90 % GET, `--frontend native`; latency from when a request was due. \
         Medians of {rounds} rounds of {} s. *Late*: rounds that were measured again, because the load itself sent a request more than {} too late.",
        plan.seconds,
        human_nanos(LATE_NANOS),
    ));
    let ours = Side::spindle(&["--publish", "off", "--frontend", "native"]);
    let sides = [Some(ours), Side::redis(), Side::valkey(1), Side::memcached()];
    let sides: Vec<Side> = sides.into_iter().flatten().collect();
    sides.iter().for_each(|side| side.fill(100_000, 64));
    let heads = ["", "server", "p50", "p90", "p99", "p99.9", "late"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut panels = Vec::new();
    for rate in RATES {
        let mut of_sides: Vec<Rounds> = sides.iter().map(|_| Rounds::default()).collect();
        let turns = Turns::among(&sides);
        for _ in 0..rounds {
            for (number, of_side) in of_sides.iter_mut().enumerate() {
                turns.give(number, |side| round(plan, report, (side, rate), of_side));
            }
        }
        drop(turns);
        for (side, of_side) in sides.iter().zip(&of_sides) {
            let times = (0..PERCENTILES.len()).map(|percentile| human_nanos(of_side.median(percentile)));
            let late = match of_side.kept_late {
                0 => of_side.late.to_string(),
                kept => format!("{}, {kept} kept", of_side.late),
            };
            rows.push(
                [format!("{rate} a second"), side.name.to_owned()].into_iter().chain(times).chain([late]).collect(),
            );
        }
        panels.push(panel(rate, &sides, &of_sides));
    }
    report.table(&rows);
    let plot = report.folder().join("tails.svg");
    std::fs::write(&plot, draw(&panels, panels.len()).unwrap()).unwrap();
    report.write("![Latency by percentile at three rates](tails.svg)");
}

/// Measures a side once, and again while the load is late.
fn round(plan: &Plan, report: &mut Report, (side, rate): (&Side, u32), rounds: &mut Rounds) {
    let flags = format!("--rate {rate} --keys 100000 --warm-up 0.2 --seconds {}", plan.seconds);
    for left in (0..TRIES).rev() {
        let results = side.load(&words(&flags));
        let phase = &results["phases"][0];
        let is_late = phase["behind_nanos"].as_f64().unwrap() > LATE_NANOS;
        let what =
            serde_json::json!({ "what": "tails", "side": side.name, "rate": rate, "late": is_late, "phase": phase });
        report.raw(&what);
        if is_late && left > 0 {
            rounds.late += 1;
            continue;
        }
        rounds.kept_late += usize::from(is_late);
        let all = &phase["verbs"]["all"];
        rounds.nanos.push(PERCENTILES.map(|(name, _)| all[format!("{name}_nanos")].as_f64().unwrap()));
        return;
    }
}

fn panel(rate: u32, sides: &[Side], rounds: &[Rounds]) -> Panel {
    let curve = |(style, (side, rounds)): (usize, (&Side, &Rounds))| Curve {
        name: side.name.to_owned(),
        points: PERCENTILES.iter().enumerate().map(|(at, (_, place))| (nines(*place), rounds.median(at))).collect(),
        style,
        width: 2,
    };
    let curves = sides.iter().zip(rounds).enumerate().map(curve).collect();
    Panel { title: format!("{}k requests a second", rate / 1_000), axis: HorizontalAxis::Percentile, curves }
}
