//! Latency and throughput of the whole server in closed and open loops, to choose a worker count and an allocator.
//!
//! ```text
//! cargo bench --bench latency
//! cargo bench --bench latency -- --workers 1,2,4 --allocators mimalloc,jemalloc,system --depths 1,16,64 \
//!     --rates 20000,100000 --rounds 3 --seconds 1 --keys 100000 --mix get=90,set=10 --out target/latency
//! ```
//! A server for each combination runs all the time. In each round every one is loaded once with each loop, one after
//! the other, so that drift of the machine affects all alike. The load is `spindle load`, a process of its own. A rate
//! is the median of the rounds. Percentiles are of the round with the median rate, in microseconds. In an open loop
//! they count from the time when a request was due. The output is a table and `latency.svg`, with one bar for each
//! combination and loop, from p50 to p99.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a bench that fails should say where"
)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use plotters::prelude::{Color, IntoDrawingArea, IntoFont, Palette, Palette99, Rectangle, SVGBackend, Text, WHITE};
use plotters::style::BLACK;
use serde_json::Value;

const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");
const PERCENTILES: [&str; 6] = ["p50", "p90", "p99", "p99.9", "p99.99", "max"];

/// The plan of the measurement.
struct Plan {
    workers: Vec<String>,
    allocators: Vec<String>,
    depths: Vec<String>,
    rates: Vec<String>,
    rounds: usize,
    seconds: String,
    keys: String,
    mix: String,
    out: PathBuf,
}

impl Plan {
    /// From the command line. `None`: an argument is unknown, or help is asked for.
    fn from(arguments: &[String]) -> Option<Self> {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut plan = Self {
            workers: list("1,2"),
            allocators: list("mimalloc,jemalloc,system"),
            depths: list("1,16,64"),
            rates: list("20000,100000"),
            rounds: 3,
            seconds: "1".to_owned(),
            keys: "100000".to_owned(),
            mix: "get=90,set=10".to_owned(),
            out: "target/latency".into(),
        };
        let mut arguments = arguments.iter().filter(|argument| *argument != "--bench");
        while let Some(name) = arguments.next() {
            let value = arguments.next()?;
            match name.as_str() {
                "--workers" => plan.workers = list(value),
                "--allocators" => plan.allocators = list(value),
                "--depths" => plan.depths = list(value),
                "--rates" => plan.rates = list(value),
                "--rounds" => plan.rounds = value.parse().ok()?,
                "--seconds" => plan.seconds.clone_from(value),
                "--keys" => plan.keys.clone_from(value),
                "--mix" => plan.mix.clone_from(value),
                "--out" => plan.out = value.into(),
                _ => return None,
            }
        }
        Some(plan)
    }

    /// The load's arguments for each loop, and the name of the loop.
    fn loops(&self) -> Vec<(String, [&str; 2])> {
        let closed = self.depths.iter().map(|depth| (format!("depth {depth}"), ["--depth", depth.as_str()]));
        let open = self.rates.iter().map(|rate| (format!("{rate}/s"), ["--rate", rate.as_str()]));
        closed.chain(open).collect()
    }
}

/// A server of one combination. Killed when dropped.
struct Server {
    name: String,
    child: Child,
    endpoint: String,
}

impl Server {
    fn start(workers: &str, allocator: &str) -> Self {
        let mut child = Command::new(SPINDLE)
            .args(["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off"])
            .args(["--workers", workers, "--allocator", allocator])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let endpoint =
            lines.take_while(|line| line != "ready").find_map(|line| line.strip_prefix("kv ").map(str::to_owned));
        Self { name: format!("{workers} workers, {allocator}"), child, endpoint: endpoint.unwrap() }
    }

    fn load(&self, plan: &Plan, flags: &[&str]) -> Value {
        let fixed = ["load", "--json", "--connect", &self.endpoint, "--keys", &plan.keys, "--mix", &plan.mix];
        let output = Command::new(SPINDLE).args(fixed).args(flags).output().unwrap();
        assert!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        results["phases"][0]["verbs"]["all"].clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The rounds of one combination and loop, slowest first.
struct Rounds(Vec<Value>);

impl Rounds {
    fn add(&mut self, round: Value) {
        self.0.push(round);
        self.0.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    }

    fn middle(&self) -> &Value {
        &self.0[self.0.len() / 2]
    }

    fn micros(&self, percentile: &str) -> f64 {
        self.middle()[format!("{percentile}_nanos")].as_f64().unwrap() / 1e3
    }
}

fn rate(round: &Value) -> f64 {
    round["per_second"].as_f64().unwrap()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(plan) = Plan::from(&arguments) else {
        eprintln!(
            "usage: [--workers 1,2] [--allocators mimalloc,jemalloc,system] [--depths 1,16,64] [--rates 20000,100000] \
             [--rounds 3] [--seconds 1] [--keys 100000] [--mix get=90,set=10] [--out DIR]"
        );
        std::process::exit(2);
    };
    std::fs::create_dir_all(&plan.out).unwrap();
    let mut servers = Vec::new();
    for allocator in &plan.allocators {
        servers.extend(plan.workers.iter().map(|workers| Server::start(workers, allocator)));
    }
    for server in &servers {
        server.load(&plan, &["--prefill", "--warm-up", "0", "--seconds", "0.1"]);
    }
    let loops = plan.loops();
    let mut results: Vec<Vec<Rounds>> =
        loops.iter().map(|_| servers.iter().map(|_| Rounds(Vec::new())).collect()).collect();
    for round in 0..plan.rounds {
        eprintln!("round {} of {}", round + 1, plan.rounds);
        for ((_, flags), results) in loops.iter().zip(&mut results) {
            for (server, rounds) in servers.iter().zip(results) {
                let flags = [flags.as_slice(), &["--warm-up", "0.2", "--seconds", &plan.seconds]].concat();
                rounds.add(server.load(&plan, &flags));
            }
        }
    }
    print_table(&servers, &loops, &results);
    let path = plan.out.join("latency.svg");
    draw(&path, &servers, &loops, &results);
    println!(
        "\n{} keys, {}, {} rounds of {} s; plot: {}",
        plan.keys,
        plan.mix,
        plan.rounds,
        plan.seconds,
        path.display()
    );
}

fn print_table(servers: &[Server], loops: &[(String, [&str; 2])], results: &[Vec<Rounds>]) {
    println!("| loop | server | requests/s | {} |", PERCENTILES.map(|name| format!("{name}, µs")).join(" | "));
    println!("|---|---|---:|{}", "---:|".repeat(PERCENTILES.len()));
    for ((name, _), results) in loops.iter().zip(results) {
        for (server, rounds) in servers.iter().zip(results) {
            let micros = PERCENTILES.map(|percentile| format!("{:.0}", rounds.micros(percentile)));
            println!("| {name} | {} | {:.0} | {} |", server.name, rate(rounds.middle()), micros.join(" | "));
        }
    }
}

/// Height of a bar with the space around it, and the left edge of the bars.
const ROW: i32 = 18;
const LEFT: i32 = 260;
const WIDTH: i32 = 1_000;

fn draw(path: &Path, servers: &[Server], loops: &[(String, [&str; 2])], results: &[Vec<Rounds>]) {
    let rows = i32::try_from(servers.len() * loops.len()).unwrap();
    let size = (u32::try_from(WIDTH).unwrap(), u32::try_from((rows + 3) * ROW).unwrap());
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE).unwrap();
    let all = || results.iter().flatten();
    let least = all().map(|rounds| rounds.micros("p50")).fold(f64::MAX, f64::min) / 1.2;
    let most = all().map(|rounds| rounds.micros("p99")).fold(0.0, f64::max) * 1.2;
    let x = |micros: f64| {
        let share = (micros / least).ln() / (most / least).ln();
        #[expect(clippy::cast_possible_truncation, reason = "a place on the screen")]
        let x = LEFT + (share * f64::from(WIDTH - LEFT - 60)) as i32;
        x
    };
    let font = ("sans-serif", 13).into_font();
    let title = "latency from p50 to p99, µs, logarithmic; behind it the requests per second";
    area.draw(&Text::new(title, (10, 4), font.clone())).unwrap();
    let mut y = 2 * ROW;
    for ((name, _), results) in loops.iter().zip(results) {
        for (number, (server, rounds)) in servers.iter().zip(results).enumerate() {
            let (p50, p99) = (rounds.micros("p50"), rounds.micros("p99"));
            let bar =
                Rectangle::new([(x(p50), y), (x(p99).max(x(p50) + 2), y + ROW - 5)], Palette99::pick(number).filled());
            area.draw(&bar).unwrap();
            area.draw(&Text::new(format!("{name}, {}", server.name), (10, y), font.clone())).unwrap();
            let metrics = format!("{p50:.0}–{p99:.0}  {:.0}k/s", rate(rounds.middle()) / 1e3);
            area.draw(&Text::new(metrics, (x(p99) + 6, y), font.clone().color(&BLACK))).unwrap();
            y += ROW;
        }
    }
    area.present().unwrap();
}
