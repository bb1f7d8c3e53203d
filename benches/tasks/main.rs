//! Durable tasks beside beanstalkd and Redis: each Add, Lend and Repay is on disk before it is answered.
//!
//! ```text
//! cargo bench --bench tasks
//! cargo bench --bench tasks -- --clients 1,8,64 --rounds 5 --seconds 1 --only spindle --many 2000000 --value 200
//! cargo bench --bench tasks -- --only none --many 0 --drain 10000000000
//! cargo bench --bench tasks -- --only none --many 0 --queues 2000000
//! ```
//! beanstalkd with `-f0`, Redis with `appendfsync always`, Spindle with `--sync always`; all on the same disk, in
//! folders of their own. The clients are threads of this process that wait for each answer on a plain socket, the same
//! for all sides. Sides take turns in each round, and a number is the median of the rounds. Payloads have 200 bytes.
//! *Add*: `put`, `RPUSH`, Add. *Lend and Repay*: `reserve` and `delete`, `LMOVE` to a list of held tasks and `LREM`
//! from it, Lend and Repay with Drop. The two count as one.
//!
//! `SPINDLE_BEFORE` names another build of the server, which takes its turn as a side of its own, `before`.
//! `--drain` measures what the store costs, and when its space comes back; see `space.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    missing_docs,
    reason = "a bench that fails should say where"
)]

#[path = "../durable/mod.rs"]
mod durable;
#[path = "../compare/meet.rs"]
mod meet;
mod queues;
mod space;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use durable::{Plan, SideResults, crowd, repeat, start};
use hdrhistogram::Histogram;
use meet::meet;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus, Reply, Request};
use spindle::zmtp::{Part, SocketType, encode_frame};

const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");
const MIB: f64 = 1024.0 * 1024.0;
const PAYLOAD: [u8; 200] = [b'p'; 200];
/// The length of a lease, in milliseconds: longer than a run.
const LEASE: u64 = 600_000;

fn main() {
    let Some(plan) = Plan::from(&std::env::args().skip(1).collect::<Vec<_>>()) else {
        eprintln!(
            "usage: [--clients 1,8,64] [--rounds 5] [--seconds 1] [--only spindle,before,beanstalkd,redis] \
             [--many 2000000] [--value 200] [--drain BYTES] [--queues TASKS]"
        );
        std::process::exit(2);
    };
    let sides: Vec<Side> =
        [Side::spindle(), Side::before(), Side::beanstalkd(), Side::redis()].into_iter().flatten().collect();
    let sides: Vec<Side> = sides.into_iter().filter(|side| is_wanted(&plan, side.name)).collect();
    println!("| | clients | {} |", sides.iter().map(|side| side.name).collect::<Vec<_>>().join(" | "));
    println!("|---|---:|{}", "---:|".repeat(sides.len()));
    for clients in &plan.clients {
        let mut metrics: Vec<[SideResults; 2]> = sides.iter().map(|_| Default::default()).collect();
        for _ in 0..plan.rounds {
            for (side, metrics) in sides.iter().zip(&mut metrics) {
                metrics[0].add(&side.run(*clients, plan.seconds, Work::Add));
                metrics[1].add(&side.run(*clients, plan.seconds, Work::LendAndRepay));
            }
        }
        for (work, name) in ["Add", "Lend and Repay"].into_iter().enumerate() {
            let cells: Vec<String> = metrics.iter().map(|metrics| metrics[work].cell()).collect();
            println!("| {name} | {clients} | {} |", cells.join(" | "));
        }
    }
    println!("\nThousands a second / p50 / p99 in µs, {} rounds of {} s\n", plan.rounds, plan.seconds);
    drop(sides);
    if plan.many > 0 {
        many(plan.many, plan.value);
    }
    if plan.queues > 0 {
        queues::measure(plan.queues);
    }
    if plan.drain > 0 {
        space::written(10.0);
        space::cleaning(5.0, 5);
        space::drained(plan.drain);
    }
}

fn is_wanted(plan: &Plan, side: &str) -> bool {
    plan.only.as_ref().is_none_or(|only| only.iter().any(|name| name == side))
}

/// A long queue: the cost of holding, opening and working on it.
fn many(count: u64, bytes: usize) {
    let value = vec![b'p'; bytes];
    let folder = tempfile::tempdir().unwrap();
    let side = Side::spindle_in(tempfile::tempdir().unwrap(), folder.path());
    let empty = side.resident_bytes();
    let mut client = TasksClient::connect(&format!("tcp://{}", side.address)).unwrap();
    let start = Instant::now();
    let mut sent = 0;
    for done in 0..count {
        while sent < count && sent - done < 1_024 {
            let key = format!("{sent:016}");
            let request = Request::Add { key: key.as_bytes(), value: &value, mode: AddMode::Tail };
            client.send(&request).unwrap();
            sent += 1;
        }
        assert_eq!(client.receive().unwrap(), Reply::Added);
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    let held = side.resident_bytes();
    drop(side);
    let start = Instant::now();
    let side = Side::spindle_in(tempfile::tempdir().unwrap(), folder.path());
    let opened = start.elapsed().as_secs_f64();
    let reopened = side.resident_bytes();
    println!(
        "{count} tasks with keys of 16 and values of {bytes} bytes: added at {rate:.0}/s by one pipelining client; resident {:.0} MiB \
         ({:.0} bytes a task), opened after kill -9 in {opened:.2} s, then resident {:.0} MiB ({:.0} bytes a task)",
        held / MIB,
        (held - empty) / count as f64,
        reopened / MIB,
        (reopened - empty) / count as f64,
    );
    if bytes != PAYLOAD.len() {
        return;
    }
    let (rate, latencies) = side.run(1, 3.0, Work::LendAndRepay);
    let micros = |quantile| latencies.value_at_quantile(quantile) / 1_000;
    println!("Lend and Repay, one client: {rate:.0}/s, p50 {} µs, p99 {} µs", micros(0.5), micros(0.99));
}

/// The memory that a process has.
fn resident_bytes(child: &Child) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Add,
    LendAndRepay,
}

#[derive(Clone, Copy)]
enum Protocol {
    Spiderq,
    Beanstalk,
    Resp,
}

/// A server, killed when dropped.
struct Side {
    name: &'static str,
    protocol: Protocol,
    address: String,
    child: Child,
    /// Keys that were given to tasks.
    keys: AtomicU64,
    _folder: tempfile::TempDir,
}

impl Side {
    fn spindle() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        Some(Self::spindle_in(folder, &data))
    }

    /// Another build of the server.
    fn before() -> Option<Self> {
        let program = std::env::var("SPINDLE_BEFORE").ok()?;
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        Some(Self::build_in("before", &program, folder, &data))
    }

    /// `folder` is kept as long as the side is.
    fn spindle_in(folder: tempfile::TempDir, data: &Path) -> Self {
        Self::with_flags(&[], folder, data)
    }

    fn with_flags(flags: &[&str], folder: tempfile::TempDir, data: &Path) -> Self {
        Self::build_with("spindle", SPINDLE, flags, folder, data)
    }

    fn build_in(name: &'static str, program: &str, folder: tempfile::TempDir, data: &Path) -> Self {
        Self::build_with(name, program, &[], folder, data)
    }

    fn build_with(name: &'static str, program: &str, flags: &[&str], folder: tempfile::TempDir, data: &Path) -> Self {
        let mut command = Command::new(program);
        command.args(["serve", "--kv", "off", "--publish", "off", "--tasks", "tcp://127.0.0.1:*"]);
        let (child, address) = start(command.args(flags).arg("--data").arg(data), "tasks tcp://");
        Self::of(name, Protocol::Spiderq, address, child, folder)
    }

    fn beanstalkd() -> Option<Self> {
        Self::that_listens("beanstalkd", Protocol::Beanstalk, |port, folder| {
            ["beanstalkd", "-l", "127.0.0.1", "-p", port, "-b", folder, "-f0"].map(str::to_owned).to_vec()
        })
    }

    fn redis() -> Option<Self> {
        Self::that_listens("redis", Protocol::Resp, |port, folder| {
            let flags = "--bind 127.0.0.1 --save '' --appendonly yes --appendfsync always --port";
            let mut words = vec!["redis-server".to_owned()];
            words.extend(flags.split(' ').map(|word| word.replace('\'', "")));
            words.extend([port.to_owned(), "--dir".to_owned(), folder.to_owned()]);
            words
        })
    }

    fn that_listens(
        name: &'static str,
        protocol: Protocol,
        command: impl Fn(&str, &str) -> Vec<String>,
    ) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let words = command(&address.port().to_string(), folder.path().to_str().unwrap());
        let started = Command::new(&words[0]).args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(mut child) = started else {
            eprintln!("{name} is not installed and is left out");
            return None;
        };
        while TcpStream::connect(address).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "{name} has ended");
        }
        Some(Self::of(name, protocol, address.to_string(), child, folder))
    }

    fn of(name: &'static str, protocol: Protocol, address: String, child: Child, folder: tempfile::TempDir) -> Self {
        Self { name, protocol, address, child, keys: AtomicU64::new(0), _folder: folder }
    }

    fn resident_bytes(&self) -> f64 {
        resident_bytes(&self.child)
    }

    /// Rate, and latencies in nanoseconds.
    fn run(&self, clients: usize, seconds: f64, work: Work) -> (f64, Histogram<u64>) {
        let connections: Vec<Connection> = (0..clients).map(|_| Connection::open(self)).collect();
        crowd(connections, seconds, |mut connection, over| {
            repeat(over, || match work {
                Work::Add => connection.add(self.keys.fetch_add(1, Ordering::Relaxed)),
                Work::LendAndRepay => connection.lend_and_repay(),
            })
        })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Connection {
    protocol: Protocol,
    stream: TcpStream,
    /// `inbox[read..]` has come and is not used yet.
    inbox: Vec<u8>,
    read: usize,
    out: Vec<u8>,
}

impl Connection {
    fn open(side: &Side) -> Self {
        let (stream, inbox) = match side.protocol {
            Protocol::Spiderq => meet(&side.address, SocketType::Dealer),
            Protocol::Beanstalk | Protocol::Resp => {
                let stream = TcpStream::connect(&side.address).unwrap();
                stream.set_nodelay(true).unwrap();
                (stream, Vec::new())
            }
        };
        Self { protocol: side.protocol, stream, inbox, read: 0, out: Vec::new() }
    }

    fn add(&mut self, number: u64) -> bool {
        match self.protocol {
            Protocol::Spiderq => {
                let key = format!("{number:016}");
                let request = Request::Add { key: key.as_bytes(), value: &PAYLOAD, mode: AddMode::Tail };
                self.ask(&request, |reply| assert_eq!(reply, Reply::Added));
            }
            Protocol::Beanstalk => {
                self.say(&[b"put 0 0 600 200\r\n", &PAYLOAD, b"\r\n"]);
                assert!(self.line().starts_with(b"INSERTED"));
            }
            Protocol::Resp => {
                let value = payload(number);
                self.say(&[b"*3\r\n$5\r\nRPUSH\r\n$5\r\nready\r\n$200\r\n", &value, b"\r\n"]);
                assert!(self.line().starts_with(b":"));
            }
        }
        true
    }

    /// False: the queue was empty.
    fn lend_and_repay(&mut self) -> bool {
        match self.protocol {
            Protocol::Spiderq => {
                let mut lent = None;
                self.ask(&Request::Lend { timeout_ms: LEASE, mode: LendMode::Poll }, |reply| {
                    if let Reply::Lent { lend_key, key, value } = reply {
                        assert_eq!(value, PAYLOAD);
                        lent = Some((lend_key, key.to_vec()));
                    }
                });
                let Some((lend_key, key)) = lent else { return false };
                let repay = Request::Repay { lend_key, key: &key, value: b"done", status: RepayStatus::Drop };
                self.ask(&repay, |reply| assert_eq!(reply, Reply::Repaid));
            }
            Protocol::Beanstalk => {
                self.say(&[b"reserve-with-timeout 0\r\n"]);
                let line = String::from_utf8(self.line()).unwrap();
                let Some(rest) = line.strip_prefix("RESERVED ") else { return false };
                let id = rest.split(' ').next().unwrap().to_owned();
                self.bytes(202);
                self.say(&[b"delete ", id.as_bytes(), b"\r\n"]);
                assert!(self.line().starts_with(b"DELETED"));
            }
            Protocol::Resp => {
                self.say(&[b"*5\r\n$5\r\nLMOVE\r\n$5\r\nready\r\n$4\r\nheld\r\n$4\r\nLEFT\r\n$5\r\nRIGHT\r\n"]);
                if !self.line().starts_with(b"$200") {
                    return false;
                }
                let value = self.bytes(202);
                self.say(&[b"*4\r\n$4\r\nLREM\r\n$4\r\nheld\r\n$1\r\n1\r\n$200\r\n", &value[..200], b"\r\n"]);
                assert!(self.line().starts_with(b":1"));
            }
        }
        true
    }

    fn ask(&mut self, request: &Request<'_>, read: impl FnOnce(Reply<'_>)) {
        let mut body = Vec::with_capacity(256);
        request.encode(&mut body);
        self.out.clear();
        encode_frame(&mut self.out, &body, false);
        self.stream.write_all(&self.out).unwrap();
        loop {
            let decoded = Part::decode(&self.inbox[self.read..], 1 << 20).unwrap();
            if let Some((Part::Frame { body, .. }, length)) = decoded {
                read(Reply::decode(body).unwrap());
                self.read += length;
                return;
            }
            self.receive();
        }
    }

    fn say(&mut self, parts: &[&[u8]]) {
        self.out.clear();
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        self.stream.write_all(&self.out).unwrap();
    }

    fn line(&mut self) -> Vec<u8> {
        loop {
            let bytes = &self.inbox[self.read..];
            if let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
                let line = bytes[..end].to_vec();
                self.read += end + 2;
                return line;
            }
            self.receive();
        }
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.inbox.len() - self.read < count {
            self.receive();
        }
        let bytes = self.inbox[self.read..self.read + count].to_vec();
        self.read += count;
        bytes
    }

    fn receive(&mut self) {
        self.inbox.drain(..self.read);
        self.read = 0;
        let mut some = [0; 4096];
        let count = self.stream.read(&mut some).unwrap();
        assert!(count > 0, "the server is there");
        self.inbox.extend_from_slice(&some[..count]);
    }
}

/// Redis finds a held task by its value: each has its own.
fn payload(number: u64) -> Vec<u8> {
    let mut value = PAYLOAD.to_vec();
    value[..16].copy_from_slice(format!("{number:016}").as_bytes());
    value
}
