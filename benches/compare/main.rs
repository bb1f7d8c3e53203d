//! Spindle beside what it would replace, and beside the limits of its own shape. `perf/run` calls it.
//!
//! ```text
//! cargo bench --bench compare -- --out DIR
//! cargo bench --bench compare -- --out DIR --only echo,rivals,memory,lag,expiry,notify --rounds 3 --seconds 1
//! ```
//! Every side is a process of its own, and the load is another: `spindle load`, the same for all. Sides of a comparison take
//! turns within each round, so that drift of the machine hits all alike; a figure is the median of the rounds, and every
//! round is in the raw data. Keys have 16 bytes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    missing_docs,
    reason = "a bench that fails should say where"
)]

mod echo;
mod expiry;
mod lag;
mod listen;
mod meet;
mod notify;
mod report;
mod rivals;
mod shape;
mod side;
mod write;

use std::path::PathBuf;

use report::Report;

/// Connections of the load.
const CONNECTIONS: usize = 8;
/// Requests that each connection has outstanding.
const DEPTHS: [usize; 3] = [1, 16, 64];

/// What is to be measured.
struct Plan {
    out: PathBuf,
    only: Option<Vec<String>>,
    rounds: usize,
    seconds: f64,
    workers: Vec<usize>,
}

impl Plan {
    /// From the command line; what is not understood (cargo says `--bench`) is passed over.
    fn from(arguments: &[&str]) -> Self {
        let given = |name: &str| {
            let at = arguments.iter().position(|argument| *argument == name)?;
            arguments.get(at + 1).copied()
        };
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        Self {
            out: given("--out").unwrap_or("target/compare").into(),
            only: given("--only").map(list),
            rounds: given("--rounds").map_or(5, |text| text.parse().unwrap()),
            seconds: given("--seconds").map_or(1.0, |text| text.parse().unwrap()),
            workers: list(given("--workers").unwrap_or("1,2")).iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn wants(&self, section: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == section))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["echo", workers] = arguments[..] {
        return echo::run(workers.parse().unwrap());
    }
    let plan = Plan::from(&arguments);
    std::fs::create_dir_all(&plan.out).unwrap();
    let mut report = Report::begin(&plan.out);
    type Section = fn(&Plan, &mut Report);
    let sections: [(&str, Section); 6] = [
        ("echo", shape::measure),
        ("rivals", rivals::throughput),
        ("memory", rivals::memory),
        ("lag", lag::measure),
        ("expiry", expiry::measure),
        ("notify", notify::measure),
    ];
    for (name, section) in sections {
        if plan.wants(name) {
            eprintln!("{name} …");
            section(&plan, &mut report);
        }
    }
}
