//! Events over HTTP: how many are stored a second, in the server's own store and in MariaDB, and how fast workers are.
//!
//! ```text
//! cargo bench --bench events
//! cargo bench --bench events -- --rounds 5 --seconds 1 --only embedded,mariadb,workers
//! ```
//! The clients are kept connections of one thread of this process, each with one request in flight. The thread polls
//! them, reads the answers, and asks again. The server, this process and MariaDB share the host. Every event is on disk
//! before it is answered (MariaDB with its defaults: `innodb_flush_log_at_trx_commit=1`). A rate is the median of the
//! rounds, percentiles are of all rounds. *Workers* are processes with one slot that store words. Their rate is the
//! number of events done between two looks at the table, or at the queue.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "a bench that fails should say where"
)]

#[path = "../tests/it/mariadb.rs"]
mod mariadb;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mariadb::MariaDb;
use rustix::event::{PollFd, PollFlags, poll};
use spindle::clients::rust::tasks::TasksClient;

const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");
/// Workers that share the work.
const WORKERS: usize = 4;
/// Rows that wait for them.
const PENDING: u64 = 5_000;

fn main() {
    let Some(plan) = Plan::from(&std::env::args().skip(1).collect::<Vec<_>>()) else {
        eprintln!("usage: [--rounds 5] [--seconds 1] [--only embedded,mariadb,workers]");
        std::process::exit(2);
    };
    println!("| | clients | thousands a second / p50 / p99 in µs |\n|---|---:|---:|");
    if plan.wants("embedded") {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&["--events-queue", "tcp://127.0.0.1:*", "--data", folder.path().to_str().unwrap()]);
        plan.rows("embedded", &server, &[1, 8, 64]);
    }
    if plan.wants("mariadb")
        && let Some(database) = maria_db()
    {
        let server = Server::start(&["--events-store", &database.url()]);
        plan.rows("MariaDB", &server, &[1, 8, 64]);
    }
    println!("\n{} rounds of {} s\n", plan.rounds, plan.seconds);
    if plan.wants("workers") {
        println!("| {WORKERS} workers | events a second |\n|---|---:|");
        println!("| embedded, {PENDING} pending | {:.0} |", embedded_workers());
        for (done, claim) in [(0, 1), (20_000, 1), (0, 128), (20_000, 128)] {
            if let Some(rate) = database_workers(done, claim) {
                println!("| MariaDB, {done} done rows and {PENDING} pending, `--claim {claim}` | {rate:.0} |");
            }
        }
    }
}

struct Plan {
    rounds: usize,
    seconds: f64,
    only: Option<Vec<String>>,
}

impl Plan {
    fn from(arguments: &[String]) -> Option<Self> {
        let mut plan = Self { rounds: 5, seconds: 1.0, only: None };
        let mut arguments = arguments.iter().filter(|argument| *argument != "--bench");
        while let Some(name) = arguments.next() {
            let value = arguments.next()?;
            match name.as_str() {
                "--rounds" => plan.rounds = value.parse().ok()?,
                "--seconds" => plan.seconds = value.parse().ok()?,
                "--only" => plan.only = Some(value.split(',').map(str::to_owned).collect()),
                _ => return None,
            }
        }
        Some(plan)
    }

    fn wants(&self, side: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == side))
    }

    fn rows(&self, name: &str, server: &Server, clients: &[usize]) {
        for (path, status) in [("/events", "201"), ("/events/async", "202")] {
            for &clients in clients {
                let mut rates = Vec::new();
                let mut all = Histogram::<u64>::new(3).unwrap();
                for _ in 0..self.rounds {
                    let latencies = drive(&server.address, path, status, clients, self.seconds);
                    rates.push(latencies.len() as f64 / self.seconds / 1e3);
                    all.add(latencies).unwrap();
                }
                rates.sort_by(f64::total_cmp);
                let micros = |quantile| all.value_at_quantile(quantile) / 1_000;
                let rate = rates[rates.len() / 2];
                println!("| {name} POST {path} | {clients} | {rate:.1} / {} / {} |", micros(0.5), micros(0.99));
            }
        }
    }
}

/// A connection with one request in flight.
struct Connection {
    stream: TcpStream,
    asked: Instant,
    inbox: Vec<u8>,
}

/// Latencies in nanoseconds of the requests answered within the time.
fn drive(address: &str, path: &str, status: &str, clients: usize, seconds: f64) -> Histogram<u64> {
    let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
    let expected = format!("HTTP/1.1 {status} ");
    let mut latencies = Histogram::new(3).unwrap();
    let mut connections: Vec<Connection> = (0..clients)
        .map(|_| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_nonblocking(true).unwrap();
            Connection { stream, asked: Instant::now(), inbox: Vec::new() }
        })
        .collect();
    let (start, time) = (Instant::now(), Duration::from_secs_f64(seconds));
    connections.iter_mut().for_each(|connection| connection.ask(&request));
    while start.elapsed() < time {
        let mut polled: Vec<_> =
            connections.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN)).collect();
        poll(&mut polled, None).unwrap();
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        for (connection, _) in connections.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            if connection.receive(&expected) {
                latencies.record(connection.asked.elapsed().as_nanos() as u64).unwrap();
                connection.ask(&request);
            }
        }
    }
    latencies
}

impl Connection {
    fn ask(&mut self, request: &[u8]) {
        self.asked = Instant::now();
        self.stream.write_all(request).unwrap();
    }

    /// Whether the whole answer is there.
    fn receive(&mut self, expected: &str) -> bool {
        let mut bytes = [0; 4_096];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the server has closed the connection"),
            Ok(length) => self.inbox.extend_from_slice(&bytes[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
        // A body is one JSON object, and a head has no brace.
        if self.inbox.last() != Some(&b'}') {
            return false;
        }
        assert!(self.inbox.starts_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&self.inbox));
        self.inbox.clear();
        true
    }
}

/// A server, killed when dropped.
struct Server {
    child: Child,
    address: String,
    queue: Option<String>,
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(SPINDLE)
            .args(["serve", "--kv", "off", "--publish", "off", "--events", "127.0.0.1:0"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| line != "ready").collect();
        let find = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        Self { child, address: find("events ").unwrap(), queue: find("events-queue ") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Workers, killed when dropped.
struct Workers(Vec<Child>);

impl Workers {
    fn start(flags: &[&str]) -> Self {
        let start = |_| Command::new(SPINDLE).arg("worker").args(flags).stdout(Stdio::null()).spawn().unwrap();
        Self((0..WORKERS).map(start).collect())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
    }
}

fn embedded_workers() -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--events-queue", "tcp://127.0.0.1:*", "--data", folder.path().to_str().unwrap()]);
    let queue = server.queue.clone().unwrap();
    let mut client = TasksClient::connect(&queue).unwrap();
    while u64::from(client.count().unwrap()) < PENDING {
        drive(&server.address, "/events/async", "202", 64, 0.1);
    }
    let _workers = Workers::start(&["--connect", &queue]);
    rate_of(|| u64::from(client.count().unwrap()))
}

/// `None`: there is no MariaDB.
fn database_workers(done: u64, claim: usize) -> Option<f64> {
    let database = maria_db()?;
    let last = done + PENDING;
    database.ask("CREATE TABLE status (id INT); CREATE TABLE events (id INT, value VARCHAR(255) NULL)");
    database.ask(&format!(
        "INSERT INTO status VALUES ({last}); INSERT INTO events SELECT seq, IF(seq > {done}, NULL, 'done') FROM seq_1_to_{last}"
    ));
    let _workers = Workers::start(&["--store", &database.url(), "--claim", &claim.to_string()]);
    let pending = "SELECT COUNT(*) FROM events WHERE value IS NULL";
    Some(rate_of(|| database.ask(pending).parse().unwrap()))
}

/// Events done a second, from the first ones until few are left, or five seconds have passed.
fn rate_of(mut pending: impl FnMut() -> u64) -> f64 {
    let first = pending();
    let mut begun = pending();
    while begun == first {
        std::thread::sleep(Duration::from_millis(5));
        begun = pending();
    }
    let start = Instant::now();
    let (mut left, mut at) = (begun, start);
    while left > PENDING / 10 && at.duration_since(start) < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(100));
        (left, at) = (pending(), Instant::now());
    }
    (begun - left) as f64 / at.duration_since(start).as_secs_f64()
}

fn maria_db() -> Option<MariaDb> {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/bin"].map(Path::new);
    let find = |program: &str| places.iter().map(|place| place.join(program)).find(|path: &PathBuf| path.exists());
    let found = find("mariadbd").zip(find("mariadb-install-db"));
    if found.is_none() {
        eprintln!("MariaDB is not installed and is left out");
    }
    found.map(|(program, install)| MariaDb::start(program, mariadb::installed(install), None))
}
