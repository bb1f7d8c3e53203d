//! The server beside an echo of the same connections and queue: the limits of this design.

use crate::report::{Report, median};
use crate::side::{Round, Side, Turns};
use crate::{DEPTHS, Plan};

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Beside an echo\n\n100,000 keys, values of 64 bytes, `--publish off`. *echo* has the server's connections and its queue, with as many \
         threads behind it that give constant answers of the same shape.",
    );
    for &workers in &plan.workers {
        let flags = ["--publish", "off", "--workers", &workers.to_string()].map(str::to_owned);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let sides = [Side::spindle(&flags), Side::echo(workers)];
        sides[0].fill(100_000, 64);
        let mut rows = vec![
            ["", "spindle, k/s", "echo", "spindle / echo", "by cost", "load's own cost, ns"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for verb in ["get", "set"] {
            for depth in DEPTHS {
                let what = format!("{verb}, depth {depth}, {workers} workers");
                let flags = format!("--mix {verb}=1 --depth {depth} --warm-up 0 --seconds {}", plan.seconds);
                let rounds = alternate(plan, &sides, &what, &flags, report);
                rows.push(row(&what, &rounds));
            }
        }
        report.table(&rows);
    }
}

/// Each side once in each round, while the others stand still.
pub(crate) fn alternate(plan: &Plan, sides: &[Side], what: &str, flags: &str, report: &mut Report) -> Vec<Vec<Round>> {
    let mut rounds: Vec<Vec<Round>> = sides.iter().map(|_| Vec::new()).collect();
    let turns = Turns::among(sides);
    for _ in 0..plan.rounds {
        for (number, rounds) in rounds.iter_mut().enumerate() {
            let round = turns.give(number, |side| side.measure(flags));
            report.raw(&round.raw(what, sides[number].name));
            rounds.push(round);
        }
    }
    rounds
}

pub(crate) fn middle(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    median(&rounds.iter().map(of).collect::<Vec<_>>())
}

fn row(what: &str, rounds: &[Vec<Round>]) -> Vec<String> {
    let rates: Vec<f64> = rounds.iter().map(|rounds| middle(rounds, |round| round.rate)).collect();
    let costs: Vec<f64> = rounds.iter().map(|rounds| middle(rounds, Round::cost)).collect();
    let mut row = vec![what.to_owned()];
    row.extend(rates.iter().map(|rate| format!("{:.0}", rate / 1000.0)));
    row.push(format!("{:.2}", rates[0] / rates[1]));
    row.push(format!("{:.2}", costs[1] / costs[0]));
    row.push(format!("{:.0}", middle(&rounds[0], Round::load_cost)));
    row
}
