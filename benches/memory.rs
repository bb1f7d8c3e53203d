//! Whether replaced memory comes back: the memory of a server while its values are replaced, and when it rests.
//!
//! ```text
//! cargo bench --bench memory                                        both frontends, all sizes, mimalloc
//! cargo bench --bench memory -- --allocator jemalloc --seconds 5    or system
//! cargo bench --bench memory -- --only churn                        in process: sizes, deletes and TTLs mixed
//! ```
//! A server of its own for each line: 10,000 keys are stored, then replaced for some seconds, then deleted. They are
//! replaced one at a time with 64 requests in flight, or 1,024 in a request. Resident memory is read every 20 ms.
//! `churn` replaces, deletes and creates a million elements of 48 to 80 bytes, one in eight with a TTL of an hour, 20
//! million times.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a bench that fails should say where")]

mod fixture;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use spindle::allocator::{Switch, in_use};
use spindle::clients::rust::tables::Client;
use spindle::clock::Ttl;
use spindle::services::tables::wire::{Request, TableName};
use spindle::tables::{Deadline, Refusal, Session};

use fixture::{Fixture, KEY_BYTES, keys, resident_bytes, resident_bytes_of};

#[global_allocator]
static ALLOCATOR: Switch = Switch;

const SPINDLE: &str = env!("CARGO_BIN_EXE_spindle");
const TABLE: &[u8] = b"t";
const KEYS: usize = 10_000;
const DEPTH: usize = 64;
const MANY: usize = 1_024;
const VALUE_BYTES: [usize; 4] = [0, 8, 64, 1_024];
/// How often resident memory is read.
const LOOK: Duration = Duration::from_millis(20);
/// How long a server rests before its memory at rest is read.
const REST: Duration = Duration::from_secs(3);

const ELEMENTS: usize = 1_000_000;
const OPERATIONS: usize = 20_000_000;
const REPORT_EVERY: usize = 2_000_000;
const TTL_SECONDS: u32 = 3_600;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().skip_while(|argument| *argument != flag).nth(1).cloned();
    if after("--only").as_deref() == Some("churn") {
        return churn_in_process();
    }
    let allocator = after("--allocator").unwrap_or_else(|| "mimalloc".to_owned());
    let seconds = after("--seconds").map_or(5, |seconds| seconds.parse().unwrap());
    println!("{allocator}, {KEYS} keys, MiB resident, replaced for {seconds} s\n");
    println!("| frontend | values | by | empty | filled | most | of filled | replaced | at rest | deleted, at rest |");
    println!("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|");
    for frontend in ["queue", "native"] {
        for bytes in VALUE_BYTES {
            for many in [false, true] {
                replace(frontend, &allocator, bytes, many, Duration::from_secs(seconds));
            }
        }
    }
}

/// A server of this bench. It is killed when this is dropped.
struct Server {
    child: Child,
    endpoint: String,
}

impl Server {
    fn start(frontend: &str, allocator: &str) -> Self {
        let flags = ["serve", "--kv", "tcp://127.0.0.1:*", "--publish", "off", "--frontend", frontend];
        let mut command = Command::new(SPINDLE);
        command.args(flags).args(["--allocator", allocator]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let endpoint = line.strip_prefix("kv ").unwrap().to_owned();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Self { child, endpoint }
    }

    fn resident_bytes(&self) -> i64 {
        resident_bytes_of(&self.child.id().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Replaces values for this long, and prints a line.
fn replace(frontend: &str, allocator: &str, bytes: usize, many: bool, time: Duration) {
    let server = Server::start(frontend, allocator);
    let mut client = Client::connect(&server.endpoint).unwrap();
    client.create_table(TABLE).unwrap();
    let empty = server.resident_bytes();
    let value = vec![7; bytes];
    let keys: Vec<[u8; 16]> =
        (0..KEYS).map(|number| format!("{number:016}").into_bytes().try_into().unwrap()).collect();
    let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&key[..], &value[..]]).collect();
    pairs.chunks(MANY).for_each(|pairs| client.update_many(TABLE, None, pairs).unwrap());
    std::thread::sleep(REST);
    let filled = server.resident_bytes();
    let most = AtomicI64::new(filled);
    let ends = AtomicBool::new(false);
    let replaced = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                most.fetch_max(server.resident_bytes(), Ordering::Relaxed);
                std::thread::sleep(LOOK);
            }
        });
        let replaced = if many { by_many(&mut client, &pairs, time) } else { one_by_one(&mut client, &pairs, time) };
        ends.store(true, Ordering::Relaxed);
        replaced
    });
    std::thread::sleep(REST);
    let rests = server.resident_bytes();
    delete(&mut client, &keys);
    std::thread::sleep(REST);
    let (most, deleted) = (most.into_inner(), server.resident_bytes());
    let mib = |bytes: i64| bytes as f64 / f64::from(1 << 20);
    println!(
        "| {frontend} | {bytes} | {} | {:.1} | {:.1} | {:.1} | {:.2} | {replaced} | {:.1} | {:.1} |",
        if many { "UPDATE_MANY" } else { "UPDATE" },
        mib(empty),
        mib(filled),
        mib(most),
        most as f64 / filled as f64,
        mib(rests),
        mib(deleted),
    );
}

fn one_by_one(client: &mut Client, pairs: &[[&[u8]; 2]], time: Duration) -> usize {
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        while client.in_flight() < DEPTH {
            let [key, value] = pairs[sent % pairs.len()];
            client.send(&Request::Update { table: TableName::spelt(TABLE), key, value, ttl: None }).unwrap();
            sent += 1;
        }
        client.receive().unwrap();
    }
    while client.in_flight() > 0 {
        client.receive().unwrap();
    }
    sent
}

fn by_many(client: &mut Client, pairs: &[[&[u8]; 2]], time: Duration) -> usize {
    let (start, mut sent) = (Instant::now(), 0);
    for pairs in pairs.chunks(MANY).cycle() {
        if start.elapsed() >= time {
            break;
        }
        client.update_many(TABLE, None, pairs).unwrap();
        sent += pairs.len();
    }
    sent
}

fn delete(client: &mut Client, keys: &[[u8; 16]]) {
    for keys in keys.chunks(DEPTH) {
        for key in keys {
            client.send(&Request::Delete { table: TableName::spelt(TABLE), key }).unwrap();
        }
        keys.iter().for_each(|_| drop(client.receive().unwrap()));
    }
}

// ------------------------------------------------------------------------------------------------------- in process

fn churn_in_process() {
    let fixture = Fixture::filled(ELEMENTS);
    let filled = resident_bytes();
    println!("allocator {}: {ELEMENTS} elements take {} MiB", in_use(), filled >> 20);
    let order = keys(ELEMENTS, 1);
    let mut session = fixture.session();
    let mut most = filled;
    for done in 0..OPERATIONS {
        churn(&fixture, &mut session, &order[done % order.len()], done);
        if (done + 1) % REPORT_EVERY == 0 {
            let now = resident_bytes();
            most = most.max(now);
            let share = 100.0 * now as f64 / filled as f64;
            println!("after {:>10} operations  {:>5} MiB  {share:>6.1} %", done + 1, now >> 20);
        }
    }
    let census = fixture.census();
    println!("{} elements, {} timers, {} slots reaped", census.tables[0].elements, census.timers, census.reaped);
    println!("most {} MiB, {:.1} % of the start", most >> 20, 100.0 * most as f64 / filled as f64);
}

/// One operation: an update, or a delete and a re-creation.
fn churn(fixture: &Fixture, session: &mut Session, key: &[u8; KEY_BYTES], number: usize) {
    let value = &[7_u8; 80][..48 + number % 33];
    let ttl = match number % 8 {
        0 => Ttl::from_secs(TTL_SECONDS),
        _ => Ttl::NONE,
    };
    loop {
        let mut batch = session.batch(fixture.now());
        let deleted = if number.is_multiple_of(4) { batch.delete(b"bench", key).map(drop) } else { Ok(()) };
        let stored = match deleted {
            Err(Refusal::Busy) => Err(Refusal::Busy),
            _ => batch.update(b"bench", key, value, Deadline::after(batch.now(), Some(ttl))),
        };
        drop(batch);
        match stored {
            Ok(()) => return,
            Err(Refusal::Busy) => session.wait(),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}
