//! Durable jobs over TCP beside a bare server that accepts, reads, answers and closes: the share of connecting and
//! closing.
//!
//! ```text
//! cargo bench --bench jobs
//! cargo bench --bench jobs -- --clients 1,8,64 --rounds 5 --seconds 1
//! ```
//! Each ADD, GET and ACK has a connection of its own, and is on disk before it is answered. The clients are threads of
//! this process. They wait for each answer on a plain socket, and then for the end of the connection. The bare server
//! is a process of its own, on the same runtime with one thread, and stores no data: it answers as many bytes as an
//! ADD. Payloads have 200 bytes. Both take turns in each round. A rate is the median of the rounds, and a share is the
//! median of the shares of each round.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "a bench that fails should say where"
)]

mod durable;

use std::process::{Child, Command};
use std::sync::Mutex;

use durable::{Plan, SideResults, ask_job, crowd, repeat, start};
use hdrhistogram::Histogram;
use spindle::services::jobs::wire::{Reply, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");
/// The argument that makes this program the bare server.
const BARE: &str = "--bare";
const PAYLOAD: [u8; 200] = [b'p'; 200];
const QUEUE: &[u8] = b"bench";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == BARE) {
        return serve_bare();
    }
    let Some(plan) = Plan::from(&arguments) else {
        eprintln!("usage: [--clients 1,8,64] [--rounds 5] [--seconds 1]");
        std::process::exit(2);
    };
    let (spindle, bare) = (Side::spindle(), Side::bare());
    println!("| clients | | thousands a second / p50 / p99 in µs | of the bare server |");
    println!("|---:|---|---:|---:|");
    for clients in &plan.clients {
        let mut metrics: [SideResults; 4] = Default::default();
        let mut shares: [Vec<f64>; 4] = Default::default();
        for _ in 0..plan.rounds {
            let round = round(&spindle, &bare, *clients, plan.seconds);
            for (place, measured) in round.iter().enumerate() {
                metrics[place].add(measured);
                shares[place].push(measured.0 / round[0].0);
            }
        }
        for (place, name) in ["bare", "ADD", "GET", "ACK"].into_iter().enumerate() {
            shares[place].sort_by(f64::total_cmp);
            let share = shares[place][plan.rounds / 2];
            println!("| {clients} | {name} | {} | {share:.2} |", metrics[place].cell());
        }
    }
    println!("\n{} rounds of {} s", plan.rounds, plan.seconds);
}

/// The bare server, and then the jobs that are added, taken and acknowledged.
fn round(spindle: &Side, bare: &Side, clients: usize, seconds: f64) -> [(f64, Histogram<u64>); 4] {
    let run = |work: &(dyn Fn() -> bool + Sync)| crowd(vec![(); clients], seconds, |(), over| repeat(over, work));
    let ids = Mutex::new(Vec::new());
    let bare =
        run(&|| bare.ask(&Request::Add { queue: QUEUE, data: &PAYLOAD }, |reply| matches!(reply, Reply::Added(_))));
    let add =
        run(&|| spindle.ask(&Request::Add { queue: QUEUE, data: &PAYLOAD }, |reply| matches!(reply, Reply::Added(_))));
    let get = run(&|| {
        spindle.ask(&Request::Get { queue: QUEUE }, |reply| match reply {
            Reply::Job { id, data, .. } => {
                assert_eq!(data, PAYLOAD);
                ids.lock().unwrap().push(id);
                true
            }
            _ => false,
        })
    });
    let ack = run(&|| {
        let Some(id) = ids.lock().unwrap().pop() else { return false };
        spindle.ask(&Request::Ack { queue: QUEUE, id: id.to_string().as_bytes() }, |reply| {
            assert_eq!(reply, Reply::Done(true));
            true
        })
    });
    [bare, add, get, ack]
}

/// A server, killed when dropped.
struct Side {
    address: String,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Side {
    fn spindle() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(SPINDLE);
        command.args(["serve", "--kv", "off", "--publish", "off", "--jobs", "0", "--lease", "86400", "--data"]);
        let (child, address) = start(command.arg(folder.path().join("data")), "jobs ");
        Self { address, child, _folder: folder }
    }

    fn bare() -> Self {
        let (child, address) = start(Command::new(std::env::current_exe().unwrap()).arg(BARE), "bare ");
        Self { address, child, _folder: tempfile::tempdir().unwrap() }
    }

    fn ask(&self, request: &Request<'_>, read: impl FnOnce(Reply<'_>) -> bool) -> bool {
        ask_job(&self.address, request, read)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Accepts, reads once, answers and closes, until it is killed.
fn serve_bare() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("bare {}\nready", listener.local_addr().unwrap());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::task::spawn_local(async move {
                let mut request = [0; 1024];
                if stream.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
                    let _gone = stream.write_all(b"00000000000000000000").await;
                }
            });
        }
    });
}
