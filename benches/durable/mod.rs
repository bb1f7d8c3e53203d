//! The shared part of the benches of durable queues: their plan, servers that print where they listen, crowds of
//! clients, and results.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use spindle::services::jobs::wire::{Reply, Request};

/// The plan of the measurement.
pub(crate) struct Plan {
    pub(crate) clients: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) only: Option<Vec<String>>,
    /// Tasks of the long queue; 0 for none.
    pub(crate) many: u64,
    /// The bytes of the value of a task of the long queue.
    pub(crate) value: usize,
    /// Bytes of the jobs that are added and taken; 0 for none.
    pub(crate) drain: u64,
    /// Tasks of the measurements of queues by name; 0 for none.
    pub(crate) queues: u64,
}

impl Plan {
    pub(crate) fn from(arguments: &[String]) -> Option<Self> {
        let mut plan = Self {
            clients: vec![1, 8, 64],
            rounds: 5,
            seconds: 1.0,
            only: None,
            many: 2_000_000,
            value: 200,
            drain: 0,
            queues: 0,
        };
        let mut arguments = arguments.iter().filter(|argument| *argument != "--bench");
        while let Some(name) = arguments.next() {
            let value = arguments.next()?;
            match name.as_str() {
                "--clients" => plan.clients = value.split(',').map(|text| text.parse().ok()).collect::<Option<_>>()?,
                "--rounds" => plan.rounds = value.parse().ok()?,
                "--seconds" => plan.seconds = value.parse().ok()?,
                "--many" => plan.many = value.parse().ok()?,
                "--value" => plan.value = value.parse().ok()?,
                "--drain" => plan.drain = value.parse().ok()?,
                "--queues" => plan.queues = value.parse().ok()?,
                "--only" => plan.only = Some(value.split(',').map(str::to_owned).collect()),
                _ => return None,
            }
        }
        Some(plan)
    }
}

/// Starts a server, and reads the text after `name` in the lines that it prints until it is ready.
pub(crate) fn start(command: &mut Command, name: &str) -> (Child, String) {
    let (child, [address]) = start_and_find(command, [name]);
    (child, address)
}

/// Starts a server, and reads the text after each of the names in the lines that it prints until it is ready.
pub(crate) fn start_and_find<const N: usize>(command: &mut Command, names: [&str; N]) -> (Child, [String; N]) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let find = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap();
    (child, names.map(find))
}

/// Sends a request for jobs over a connection of its own, and reads the answer.
pub(crate) fn ask_job(address: &str, request: &Request<'_>, read: impl FnOnce(Reply<'_>) -> bool) -> bool {
    let (mut bytes, mut answer) = (Vec::with_capacity(256), Vec::with_capacity(256));
    request.encode(&mut bytes);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&bytes).unwrap();
    stream.read_to_end(&mut answer).unwrap();
    drop(stream);
    read(Reply::decode(request.verb(), &answer).unwrap())
}

/// Runs this many clients for a time, each until a flag says that the time is over. Returns the rate, and latencies in
/// nanoseconds.
pub(crate) fn crowd<C: Send>(
    clients: Vec<C>,
    seconds: f64,
    work: impl Fn(C, &AtomicBool) -> Histogram<u64> + Sync,
) -> (f64, Histogram<u64>) {
    let over = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| work(client, &over))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) && start.elapsed().as_secs_f64() < seconds {
            std::thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Relaxed);
        let mut all = Histogram::new(3).unwrap();
        threads.into_iter().for_each(|thread| all.add(thread.join().unwrap()).unwrap());
        (all.len() as f64 / start.elapsed().as_secs_f64(), all)
    })
}

/// Repeats one client's work until it is over or no work is left. Returns latencies in nanoseconds.
pub(crate) fn repeat(over: &AtomicBool, mut once: impl FnMut() -> bool) -> Histogram<u64> {
    let mut latencies = Histogram::new(3).unwrap();
    while !over.load(Ordering::Relaxed) {
        let start = Instant::now();
        if !once() {
            break;
        }
        latencies.record(start.elapsed().as_nanos() as u64).unwrap();
    }
    latencies
}

/// The results of one side, round by round.
#[derive(Default)]
pub(crate) struct SideResults {
    rates: Vec<f64>,
    latencies: Option<Histogram<u64>>,
}

impl SideResults {
    pub(crate) fn add(&mut self, (rate, latencies): &(f64, Histogram<u64>)) {
        self.rates.push(*rate);
        match &mut self.latencies {
            Some(all) => all.add(latencies).unwrap(),
            None => self.latencies = Some(latencies.clone()),
        }
    }

    /// The median of the rounds.
    pub(crate) fn rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    pub(crate) fn cell(&self) -> String {
        let all = self.latencies.as_ref().unwrap();
        let micros = |quantile| all.value_at_quantile(quantile) / 1_000;
        format!("{:.1} / {} / {}", self.rate() / 1e3, micros(0.5), micros(0.99))
    }
}
