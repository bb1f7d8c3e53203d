//! The whole server beside an echo of the same sockets, in the same run.
//!
//! ```text
//! cargo bench --bench proxy
//! cargo bench --bench proxy -- --rounds 5 --seconds 2 --workers 1,2 --patience 5 --flags "--pin off"
//! ```
//! Three sides, each a process of its own: the server without notifications, `zmq_proxy` with echoing threads behind
//! it, and a single thread that echoes at the ROUTER. The load is a fourth process, and the machine is shared by all. In
//! each round every side is loaded once, one after the other; the sides that wait their turn sleep. A figure is the
//! median of the rounds, and every round is printed. Keys have 16 bytes, values 64.
//!
//! Beside each rate stands what a request costs in processor time, by thread of the side, and in the load. Other
//! processes that run on the machine disturb that much less than the rate; how much of the machine they took is printed
//! for each round. On a machine that sides and load fill, rates are to each other as these costs, which is the ratio
//! that is printed *by cost*.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "a bench that fails should say where"
)]

mod echo;
mod load;
mod side;

use std::process::Command;
use std::time::Duration;

use load::{Count, Shape, Verb};
use side::{Machine, Side, Usage};

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
/// Requests that each connection has outstanding.
const DEPTHS: [usize; 3] = [1, 16, 64];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["echo", workers] => echo::run(workers.parse().unwrap()),
        ["load", endpoint, verb, connections, depth, millis] => {
            let verb = if verb == "get" { Verb::Get } else { Verb::Set };
            let shape = Shape { verb, connections: connections.parse().unwrap(), depth: depth.parse().unwrap() };
            let count = load::run(endpoint, shape, Duration::from_millis(millis.parse().unwrap()));
            println!("{} {} {}", count.rate, count.answers, count.own_nanos);
        }
        _ => compare(&Plan::from(&arguments)),
    }
}

/// What is to be measured.
struct Plan {
    rounds: usize,
    millis: u64,
    workers: Vec<usize>,
    connections: usize,
    /// How long to wait before a round until others leave the machine alone.
    patience: Duration,
    /// Further flags of the server.
    flags: Vec<String>,
}

impl Plan {
    /// From the command line; what is not understood (cargo says `--bench`) is passed over.
    fn from(arguments: &[&str]) -> Self {
        let given = |name: &str| {
            let at = arguments.iter().position(|argument| *argument == name)?;
            arguments.get(at + 1).copied()
        };
        let number = |name, otherwise: f64| given(name).map_or(otherwise, |text| text.parse().unwrap());
        let workers = given("--workers").unwrap_or("1,2");
        Self {
            rounds: number("--rounds", 5.0) as usize,
            millis: (1000.0 * number("--seconds", 2.0)) as u64,
            workers: workers.split(',').map(|workers| workers.parse().unwrap()).collect(),
            connections: number("--connections", 8.0) as usize,
            patience: Duration::from_secs_f64(number("--patience", 0.0)),
            flags: given("--flags").unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
        }
    }
}

fn compare(plan: &Plan) {
    describe(plan);
    for &workers in &plan.workers {
        let sides = start(plan, workers);
        load::fill(&sides[0].endpoint);
        for verb in [Verb::Get, Verb::Set] {
            for depth in DEPTHS {
                let shape = Shape { verb, connections: plan.connections, depth };
                println!("\n--workers {workers}, {verb:?}, {} connections, depth {depth}", shape.connections);
                print_table(&sides, &measure(&sides, shape, plan));
            }
        }
    }
}

fn describe(plan: &Plan) {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = cpu.lines().find(|line| line.starts_with("model name")).unwrap_or("model name: unknown");
    let model = model.split(':').next_back().unwrap_or_default().trim();
    let cores = std::thread::available_parallelism().unwrap();
    println!("{}, {model}, {cores} cores, load {}", today(), system_load());
    println!("default of --workers here: {}", spindle::server::workers_default());
    println!(
        "{} rounds of {} ms, {} connections, further flags {:?}",
        plan.rounds, plan.millis, plan.connections, plan.flags
    );
}

fn today() -> String {
    let date = Command::new("date").arg("+%F %H:%M").output().unwrap();
    String::from_utf8(date.stdout).unwrap().trim().to_owned()
}

/// Processes that wanted to run, on average over the last minute.
fn system_load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    load.split_whitespace().next().unwrap().to_owned()
}

/// The server first.
fn start(plan: &Plan, workers: usize) -> [Side; 3] {
    let mut server = Command::new(env!("CARGO_BIN_EXE_spindle"));
    server.args(["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off", "--workers", &workers.to_string()]);
    server.args(&plan.flags);
    let echo = |workers: usize| {
        let mut command = itself();
        command.args(["echo", &workers.to_string()]);
        command
    };
    [Side::start("server", &mut server), Side::start("proxy", &mut echo(workers)), Side::start("router", &mut echo(0))]
}

fn itself() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// What all rounds of one side gave.
#[derive(Default)]
struct Record {
    rates: Vec<f64>,
    answers: u64,
    usage: Usage,
    /// Nanoseconds of the processor in the load.
    load_nanos: u64,
    /// Of each round, the share of the machine that others took, in percent.
    others: Vec<u64>,
}

impl Record {
    fn median(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    /// Nanoseconds of the processor for a request, in the side and in the load.
    fn cost(&self) -> f64 {
        (self.usage.total() + self.load_nanos) as f64 / self.answers as f64
    }

    /// The round that others on the machine disturbed least.
    fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }
}

fn measure(sides: &[Side; 3], shape: Shape, plan: &Plan) -> [Record; 3] {
    let mut records = <[Record; 3]>::default();
    for _ in 0..plan.rounds {
        for (side, record) in sides.iter().zip(&mut records) {
            Machine::wait_for_quiet(plan.patience);
            let (machine, before) = (Machine::now(), side.usage());
            let count = load_apart(&side.endpoint, shape, plan.millis);
            let used = record.usage.add(&before, &side.usage());
            record.others.push(machine.percent_of_others(used + count.own_nanos));
            record.load_nanos += count.own_nanos;
            record.rates.push(count.rate);
            record.answers += count.answers;
        }
    }
    records
}

/// Runs the load in a process of its own.
fn load_apart(endpoint: &str, shape: Shape, millis: u64) -> Count {
    let verb = if shape.verb == Verb::Get { "get" } else { "set" };
    let numbers = [shape.connections.to_string(), shape.depth.to_string(), millis.to_string()];
    let output = itself().args(["load", endpoint, verb]).args(numbers).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let fields: Vec<&str> = text.split_whitespace().collect();
    Count {
        rate: fields[0].parse().unwrap(),
        answers: fields[1].parse().unwrap(),
        own_nanos: fields[2].parse().unwrap(),
    }
}

fn print_table(sides: &[Side; 3], records: &[Record; 3]) {
    let [server, ..] = records;
    for (side, record) in sides.iter().zip(records) {
        println!(
            "  {:<6} {:>7.1} k/s; the server is {:.2} of it, by the best rounds {:.2}, by cost {:.2}",
            side.name,
            record.median() / 1000.0,
            server.median() / record.median(),
            server.best() / record.best(),
            record.cost() / server.cost(),
        );
        let threads = record.usage.per_request(record.answers);
        println!("         cost {:>6.0} ns = load {} + {threads}", record.cost(), record.load_nanos / record.answers);
        let rounds: Vec<_> = record.rates.iter().map(|rate| format!("{:.0}", rate / 1000.0)).collect();
        println!("         rounds {}; others took {:?} %", rounds.join(" "), record.others);
    }
}
