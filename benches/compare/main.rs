//! Spindle beside the servers that it would replace, and beside the limits of its own design. `perf/run` calls it.
//!
//! ```text
//! cargo bench --bench compare -- --out DIR
//! cargo bench --bench compare -- --out DIR --only echo,queue,best,resp,exec,rivals,native,memory,growth,tails,lag,expiry,evict,evict-sets,durable,opening,notify,feed --rounds 3 --seconds 1
//! ```
//! Every side is a process of its own, and the load is another: that of `--bench load`, the same for all. Sides of a
//! comparison take turns within each round, so that drift of the machine affects all alike. A number is the median of
//! the rounds, and every round is in the raw data. Keys have 16 bytes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    missing_docs,
    reason = "a bench that fails should say where"
)]

mod bare;
mod best;
mod echo;
mod evict;
mod exec;
mod expiry;
mod feed;
mod growth;
mod lag;
mod lasting;
mod listen;
#[path = "../loading/mod.rs"]
mod loading;
mod meet;
mod naive;
mod native;
mod notify;
mod queue;
mod report;
mod resp;
mod rivals;
mod shape;
mod side;
mod tails;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

use report::Report;
use spindle::allocator::Switch;

/// As in `spindle load`, so that the load costs the same.
#[global_allocator]
static ALLOCATOR: Switch = Switch;

/// Connections of the load.
const CONNECTIONS: usize = 8;
/// Requests that each connection has outstanding.
const DEPTHS: [usize; 3] = [1, 16, 64];

/// Measures one comparison and reports it.
type Section = fn(&Plan, &mut Report);

/// All comparisons.
const SECTIONS: [(&str, Section); 19] = [
    ("echo", shape::measure),
    ("queue", queue::measure),
    ("best", best::measure),
    ("resp", resp::measure),
    ("exec", exec::measure),
    ("rivals", rivals::throughput),
    ("native", native::measure),
    ("memory", rivals::memory),
    ("growth", growth::measure),
    ("tails", tails::measure),
    ("lag", lag::measure),
    ("expiry", expiry::measure),
    ("evict", evict::hit_ratios),
    ("evict-sets", evict::sets),
    ("durable", lasting::measure),
    ("cleaning", lasting::cleaning),
    ("opening", lasting::openings),
    ("notify", notify::measure),
    ("feed", feed::measure),
];

/// The plan of the measurement.
struct Plan {
    out: PathBuf,
    only: Option<Vec<String>>,
    rounds: usize,
    seconds: f64,
    workers: Vec<usize>,
}

impl Plan {
    /// From the command line. `None`: an argument is unknown, or help is asked for.
    fn from(arguments: &[&str]) -> Option<Self> {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut plan = Self { out: "target/compare".into(), only: None, rounds: 5, seconds: 1.0, workers: vec![1, 2] };
        let mut arguments = arguments.iter().filter(|argument| **argument != "--bench");
        while let Some(name) = arguments.next() {
            let value = arguments.next()?;
            match *name {
                "--out" => plan.out = value.into(),
                "--only" => plan.only = Some(list(value)),
                "--rounds" => plan.rounds = value.parse().ok()?,
                "--seconds" => plan.seconds = value.parse().ok()?,
                "--workers" => {
                    plan.workers = list(value).iter().map(|text| text.parse().ok()).collect::<Option<_>>()?
                }
                _ => return None,
            }
        }
        let known = |name: &String| SECTIONS.iter().any(|(section, _)| section == name);
        plan.only.iter().flatten().all(known).then_some(plan)
    }

    fn wants(&self, section: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == section))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["echo", workers] = arguments[..] {
        return if workers == "naive" { naive::run() } else { echo::run(workers.parse().unwrap()) };
    }
    if let ["load", ..] = arguments[..] {
        let load = loading::run(std::env::args().skip(1), &Arc::default(), &mut std::io::stdout());
        return load.unwrap();
    }
    let Some(plan) = Plan::from(&arguments) else {
        let sections = SECTIONS.map(|(name, _)| name).join(",");
        eprintln!("usage: [--out DIR] [--only {sections}] [--rounds 5] [--seconds 1.0] [--workers 1,2]");
        std::process::exit(2);
    };
    std::fs::create_dir_all(&plan.out).unwrap();
    let mut report = Report::begin(&plan.out);
    for (name, section) in SECTIONS {
        if plan.wants(name) {
            eprintln!("{name} …");
            section(&plan, &mut report);
        }
    }
}
