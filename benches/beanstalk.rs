//! Jobs by beanstalkd's protocol, beside beanstalkd: one generator speaks to both.
//!
//! ```text
//! cargo bench --bench beanstalk
//! cargo bench --bench beanstalk -- --clients 1,8,64 --rounds 5 --seconds 2 --depth 1,64
//! ```
//! Each client has one connection: it puts, reserves and deletes jobs of 200 bytes, `depth` of each kind at once. Both
//! servers store each change before they answer: beanstalkd with `-b FOLDER -f0`, in the same file system. They take
//! turns in each round, and the other one has nothing to do. A rate is the median of the rounds, and a share the median of the shares of each round. The clients
//! are threads of this process.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a bench that fails should say where"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");
const PAYLOAD: [u8; 200] = [b'p'; 200];

/// Seconds of work before the first round.
const WARM_UP: f64 = 6.0;

/// What is measured.
struct Plan {
    clients: Vec<usize>,
    depths: Vec<usize>,
    rounds: usize,
    seconds: f64,
}

/// A server that runs.
struct Side {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Side {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn folder() -> tempfile::TempDir {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tempfile::tempdir_in(parent).unwrap()
}

/// A client, which waits for each answer.
struct Client {
    reader: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self { reader: BufReader::with_capacity(1 << 16, stream), line: Vec::new() };
        // A tube of its own, so that each finds its jobs.
        let tube = format!("t{}", client.reader.get_ref().local_addr().unwrap().port());
        client.send(format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n").as_bytes());
        for _ in 0..3 {
            client.answer();
        }
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// The line of the next answer. A body behind it is read.
    fn answer(&mut self) -> &[u8] {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).unwrap();
        if self.line.starts_with(b"RESERVED ") {
            let mut body = [0; PAYLOAD.len() + 2];
            self.reader.read_exact(&mut body).unwrap();
        }
        self.line.strip_suffix(b"\r\n").unwrap()
    }

    /// Puts, reserves and deletes so many jobs.
    fn cycle(&mut self, depth: usize) {
        let put = [format!("put 1 0 100 {}\r\n", PAYLOAD.len()).as_bytes(), &PAYLOAD, b"\r\n"].concat();
        self.send(&put.repeat(depth));
        for _ in 0..depth {
            assert!(self.answer().starts_with(b"INSERTED "));
        }
        self.send(&b"reserve\r\n".repeat(depth));
        let mut deletes = Vec::new();
        for _ in 0..depth {
            let answer = self.answer();
            let id = answer.split(|byte| *byte == b' ').nth(1).unwrap();
            deletes.extend([b"delete ", id, b"\r\n"].concat());
        }
        self.send(&deletes);
        for _ in 0..depth {
            assert_eq!(self.answer(), b"DELETED");
        }
    }
}

/// The jobs a second of so many clients.
fn rate(address: &str, clients: usize, depth: usize, seconds: f64) -> f64 {
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(seconds);
    let work = move |address: String| {
        let (mut client, mut jobs) = (Client::connect(&address), 0);
        while Instant::now() < end {
            client.cycle(depth);
            jobs += depth;
        }
        jobs
    };
    let threads: Vec<_> =
        (0..clients).map(|_| address.to_owned()).map(|own| thread::spawn(move || work(own))).collect();
    let jobs: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    jobs as f64 / begin.elapsed().as_secs_f64()
}

fn spindle() -> Side {
    let folder = folder();
    let mut child = Command::new(SPINDLE)
        .args(["serve", "--kv", "off", "--publish", "off", "--beanstalk", "127.0.0.1:0", "--data"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut address = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
        if let Some(bound) = line.strip_prefix("beanstalk ") {
            bound.clone_into(&mut address);
        }
        if line == "ready" {
            break;
        }
    }
    Side { child, address, _folder: folder }
}

fn beanstalkd() -> Side {
    let (folder, port) = (folder(), TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string());
    let child = Command::new("beanstalkd")
        .args(["-l", "127.0.0.1", "-p", &port, "-f0", "-b"])
        .arg(folder.path())
        .spawn()
        .unwrap_or_else(|error| panic!("beanstalkd: {error}; apt-get install beanstalkd"));
    let address = format!("127.0.0.1:{port}");
    while TcpStream::connect(&address).is_err() {
        thread::yield_now();
    }
    Side { child, address, _folder: folder }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn plan() -> Option<Plan> {
    let mut plan = Plan { clients: vec![1, 8, 64], depths: vec![1, 64], rounds: 5, seconds: 2.0 };
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    for pair in arguments.chunks(2) {
        let [flag, value] = pair else { return None };
        let list = || value.split(',').map(|number| number.parse().ok()).collect::<Option<Vec<usize>>>();
        match &**flag {
            "--clients" => plan.clients = list()?,
            "--depth" => plan.depths = list()?,
            "--rounds" => plan.rounds = value.parse().ok()?,
            "--seconds" => plan.seconds = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(plan)
}

fn main() {
    let Some(plan) = plan() else {
        eprintln!("usage: [--clients 1,8,64] [--depth 1,64] [--rounds 5] [--seconds 2]");
        std::process::exit(2);
    };
    println!("| connections | at once | spindle, thousand jobs a second | beanstalkd -f0 | share |");
    println!("|---:|---:|---:|---:|---:|");
    for depth in plan.depths {
        for clients in &plan.clients {
            let (spindle, beanstalkd) = (spindle(), beanstalkd());
            // The first files are laid out, and a server that has found its disk slow then looks at it again.
            for side in [&spindle, &beanstalkd] {
                rate(&side.address, *clients, depth, WARM_UP);
            }
            let round = |_| {
                let of = |side: &Side| rate(&side.address, *clients, depth, plan.seconds);
                (of(&spindle), of(&beanstalkd))
            };
            let rounds: Vec<(f64, f64)> = (0..plan.rounds).map(round).collect();
            let ours = median(rounds.iter().map(|round| round.0).collect());
            let theirs = median(rounds.iter().map(|round| round.1).collect());
            let share = median(rounds.iter().map(|round| round.0 / round.1).collect());
            println!("| {clients} | {depth} | {:.2} | {:.2} | {share:.2} |", ours / 1_000.0, theirs / 1_000.0);
        }
    }
}
