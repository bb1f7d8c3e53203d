//! Scans beside writers: an element that is there from the first page to the last is in one of them.
//!
//! The oracle is simple. Some keys are stored before and stay, others come and go. Each scan must show all that stay,
//! with their value, and may show others.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use spindle::clients::rust::tables::{Client, Error};
use spindle::clock::Ttl;
use spindle::services::tables::wire::{Reason, ScanFields, ScanRows};
use spindle::tables::{Deadline, Refusal, ScanContent, ScanPage, Session, Tables};

use crate::harness::Server;
use crate::linearizability::{World, with_tables};
use crate::peer::Peer;
use crate::seeded_rng::SeededRng;

const TABLE: &[u8] = b"scanned";
const DROPPED: &[u8] = b"dropped";
const OK: &[u8] = &[1];
const STABLE: usize = 3_000;
/// Keys that each writer stores and deletes again: enough that buckets split and empty.
const PASSING: usize = 4_000;
/// Each scanner scans so often at least, and continues until the writers have made their rounds …
const SCANS: usize = 15;
/// … but not for ever: a writer that has failed makes none.
const SCANS_MAX: usize = 100 * SCANS;
const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(30);

fn stable_key(number: usize) -> Vec<u8> {
    format!("stable {number}").into_bytes()
}

fn stable_keys() -> BTreeSet<Vec<u8>> {
    (0..STABLE).map(stable_key).collect()
}

/// The work of a test's writers.
#[derive(Default)]
struct Churn {
    /// Rounds that all writers together have made.
    rounds: AtomicUsize,
    /// The scanners have ended.
    is_over: AtomicBool,
}

impl Churn {
    // Relaxed: no other data depends on it.

    fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn end_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a scanner that has scanned so often scans once more.
    fn wants_scan(&self, scans: usize) -> bool {
        scans < SCANS || scans < SCANS_MAX && self.rounds.load(Ordering::Relaxed) < ROUNDS
    }
}

/// Whether a row can be there: a key that stays has its own value.
fn check_row(key: &[u8], value: &[u8]) {
    assert!(!key.starts_with(b"stable") || key == value, "{} has another value", key.escape_ascii());
}

fn assert_all_shown(expected: &BTreeSet<Vec<u8>>, shown: &BTreeSet<Vec<u8>>) {
    let missed: Vec<_> = expected.difference(shown).map(|key| key.escape_ascii().to_string()).collect();
    assert!(missed.is_empty(), "{} were there all the time: {missed:?}", missed.len());
}

// ------------------------------------------------------------------------------------------------------- in process

/// Runs an operation until it is not busy.
fn insist<R>(world: &World, session: &mut Session, mut operation: impl FnMut(&mut Session) -> Result<R, Refusal>) -> R {
    loop {
        match operation(session) {
            Ok(result) => return result,
            Err(Refusal::Busy) => session.wait(),
            // The compactor receives that memory has run out, and that it is back.
            Err(Refusal::OutOfMemory) if world.is_tight => std::thread::yield_now(),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

fn churn_in_process(world: &World, tables: &Tables, writer: usize, churn: &Churn) {
    let (mut session, mut rng, mut rounds) = (tables.session(), SeededRng(writer as u64), 0);
    while churn.is_running() {
        for number in 0..PASSING {
            let key = format!("{writer} passes {number} {rounds}");
            let ttl = rng.pick(&[None, None, Some(Ttl::from_secs(1))]);
            insist(world, &mut session, |session| {
                let now = world.now();
                session.batch(now).update(TABLE, key.as_bytes(), b"", Deadline::after(now, ttl))
            });
        }
        for number in 0..PASSING {
            let key = format!("{writer} passes {number} {rounds}");
            insist(world, &mut session, |session| match session.batch(world.now()).delete(TABLE, key.as_bytes()) {
                Ok(_) | Err(Refusal::KeyNotFound) => Ok(()),
                Err(refusal) => Err(refusal),
            });
        }
        rounds += 1;
        churn.end_round();
    }
}

fn scan_in_process(world: &World, tables: &Tables, seed: u64, churn: &Churn) {
    let (mut session, mut rng, stable) = (tables.session(), SeededRng(seed), stable_keys());
    for scans in 0.. {
        if !churn.wants_scan(scans) {
            break;
        }
        let (mut shown, mut cursor) = (BTreeSet::new(), Vec::new());
        loop {
            let count = 1 + rng.index(700);
            let bytes_max = rng.pick(&[500, 5_000, 1 << 20]);
            let content = ScanContent::WithValues;
            let page = ScanPage { cursor: &cursor, count, bytes_max, prefix: b"", content };
            let now = world.now();
            let mut batch = session.batch(now);
            let next = batch.scan(TABLE, &page, |row| {
                check_row(row.key, row.value);
                assert!(row.deadline.is_none_or(|deadline| deadline > now.millis()), "its deadline has passed");
                if row.key.starts_with(b"stable") {
                    shown.insert(row.key.to_vec());
                }
            });
            let Some(next) = next.expect("the table stays") else { break };
            cursor = next.as_bytes().to_vec();
        }
        assert_all_shown(&stable, &shown);
    }
}

/// Splits, expiries, removals by the reaper, and moves by the compactor happen all the time.
#[test]
fn scans_miss_nothing_that_stays_while_the_index_changes() {
    let world = World::tight(1_000);
    with_tables(&world, 1 << 14, |tables, _expiry| {
        let mut session = tables.session();
        session.batch(world.now()).create_table(TABLE, TABLE).unwrap();
        for key in stable_keys() {
            insist(&world, &mut session, |session| {
                session.batch(world.now()).update(TABLE, &key, &key, Deadline::KEEP)
            });
        }
        drop(session);
        let churn = Churn::default();
        std::thread::scope(|scope| {
            let (world, churn) = (&world, &churn);
            let writers = [0, 1, 2].map(|writer| scope.spawn(move || churn_in_process(world, tables, writer, churn)));
            let scanners = [0, 1].map(|seed| scope.spawn(move || scan_in_process(world, tables, seed, churn)));
            let ended = scanners.map(std::thread::ScopedJoinHandle::join);
            churn.is_over.store(true, Ordering::Relaxed);
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            ended.into_iter().for_each(|scanner| scanner.unwrap());
        });
    });
}

// ------------------------------------------------------------------------------------------------------ over sockets

fn connect(server: &Server) -> Client {
    let mut client = Client::connect(server.kv()).expect("the server is there");
    client.set_timeout(PATIENCE);
    client
}

fn churn_over_sockets(server: &Server, writer: usize, churn: &Churn) {
    let (mut client, mut rng, mut round) = (connect(server), SeededRng(writer as u64), 0_u64);
    while churn.is_running() {
        let keys: Vec<Vec<u8>> =
            (0..500).map(|number| format!("{writer} passes {number} {}", round % 9).into_bytes()).collect();
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&key[..], b"value"]).collect();
        client.update_many(TABLE, rng.pick(&[None, Some(Ttl::NONE), Some(Ttl::from_secs(1))]), &pairs).unwrap();
        let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        if rng.one_in(2) {
            assert_eq!(client.delete_many(TABLE, &names).unwrap().len(), 500);
        }
        client.increment(TABLE, b"rounds", 1, None).unwrap();
        round += 1;
        churn.end_round();
    }
}

/// The keys and values of a page.
fn pairs(rows: &ScanRows<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
    match rows {
        ScanRows::Key(rows) => rows.iter().map(|key| pair(key, key)).collect(),
        ScanRows::Value(rows) => rows.iter().map(|[key, value]| pair(key, value)).collect(),
        ScanRows::Entry(rows) => rows.iter().map(|row| pair(row.key, row.value)).collect(),
        ScanRows::Mirror(rows) => rows.iter().map(|row| pair(row.key, row.value)).collect(),
    }
}

fn scan_over_sockets(server: &Server, seed: u64, churn: &Churn) {
    let (mut client, mut rng, stable) = (connect(server), SeededRng(seed), stable_keys());
    for round in 0.. {
        if !churn.wants_scan(round) {
            break;
        }
        let fields = ScanFields::ALL[round % 4];
        let prefix = rng.pick(&[&b""[..], b"stable"]);
        let (mut shown, mut cursor) = (BTreeSet::new(), Vec::new());
        loop {
            let count = 1 + u32::try_from(rng.index(2_000)).unwrap();
            let page = client.scan(TABLE, &cursor, count, fields, prefix).unwrap();
            assert!(page.rows.len() <= count as usize);
            for (key, value) in pairs(&page.rows) {
                check_row(&key, &value);
                assert!(key.starts_with(prefix));
                shown.insert(key);
            }
            cursor = page.next;
            if cursor.is_empty() {
                break;
            }
        }
        assert_all_shown(&stable, &shown);
    }
}

#[test]
fn scans_over_sockets_miss_nothing_that_stays() {
    let server = Server::start(&["--workers", "3"]);
    let mut client = connect(&server);
    client.create_table(TABLE).unwrap();
    for key in stable_keys() {
        client.update(TABLE, &key, &key, None).unwrap();
    }
    let churn = Churn::default();
    std::thread::scope(|scope| {
        let (server, churn) = (&server, &churn);
        let writers = [0, 1].map(|writer| scope.spawn(move || churn_over_sockets(server, writer, churn)));
        let scanners = [0, 1].map(|seed| scope.spawn(move || scan_over_sockets(server, seed, churn)));
        let ended = scanners.map(std::thread::ScopedJoinHandle::join);
        churn.is_over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        ended.into_iter().for_each(|scanner| scanner.unwrap());
    });
    let counted = client.increment(TABLE, b"rounds", 0, None).unwrap().0;
    assert_eq!(usize::try_from(counted), Ok(churn.rounds.into_inner()), "each increment counts once");
    server.stop();
}

/// A table is deleted and created again all the time. All rows of a scan are of one life of the table.
#[test]
fn a_scan_shows_one_life_of_a_table_or_is_refused() {
    const KEYS: usize = 400;
    let server = Server::start(&["--workers", "2"]);
    let is_over = AtomicBool::new(false);
    let (mut whole, mut refused) = (0, BTreeSet::new());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut client, mut life) = (connect(&server), 0_u32);
            while !is_over.load(Ordering::Relaxed) {
                client.create_table(DROPPED).unwrap();
                life += 1;
                let (keys, value) = ((0..KEYS).map(stable_key).collect::<Vec<_>>(), life.to_be_bytes());
                let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&key[..], &value]).collect();
                client.update_many(DROPPED, None, &pairs).unwrap();
                client.delete_table(DROPPED).unwrap();
            }
        });
        let mut client = connect(&server);
        while !writer.is_finished() && (whole < 30 || refused.len() < 2) {
            let (mut cursor, mut lives, mut shown) = (Vec::new(), BTreeSet::new(), 0);
            loop {
                match client.scan(DROPPED, &cursor, 50, ScanFields::Value, b"") {
                    Ok(page) => {
                        lives.extend(pairs(&page.rows).into_iter().map(|(_, value)| value));
                        shown += page.rows.len();
                        cursor = page.next;
                        assert!(lives.len() <= 1, "rows of one life of the table: {lives:?}");
                        if cursor.is_empty() {
                            whole += usize::from(shown > 0);
                            break;
                        }
                    }
                    Err(Error::Refused(reason @ (Reason::TableNotFound | Reason::BadCursor))) => {
                        refused.insert(reason.text());
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    server.stop();
}

// ------------------------------------------------------------------------------------------------------------ bounds

/// Five frames ask for a megabyte. Regression: a window of them was on its way before the size of the first was known.
fn pages_that_nobody_reads_are_bounded(frontend: &str) {
    const PAGES: usize = 200;
    const HELD_MAX: u64 = 16 << 20;
    let server = Server::start(&["--frontend", frontend, "--workers", "1", "--client-bytes-max", "8M"]);
    let context = zmq::Context::new();
    let other = Peer::connect(&context, server.kv());
    assert_eq!(other.call(&[&[0], TABLE]), [OK]);
    for key in 0..2_000_u32 {
        assert_eq!(other.call(&[&[2], TABLE, &key.to_be_bytes(), &[7; 1_000]]), [OK]);
    }
    let stalled = Peer::connect_with(&context, server.kv(), |socket| {
        socket.set_rcvhwm(1).unwrap();
        socket.set_rcvbuf(4_096).unwrap();
    });
    let (count, fields) = (10_000_u64.to_be_bytes(), [ScanFields::Value.code()]);
    (0..PAGES).for_each(|_| stalled.ask(&[&[14], TABLE, b"", &count, &fields]));
    let mut held = 0;
    for _ in 0..300 {
        assert_eq!(other.call(&[&[5]]), [OK], "others are served");
        held = other.clients("outstanding_bytes") + other.clients("unread_bytes");
        assert!(held <= HELD_MAX, "{held} bytes are held");
    }
    assert!(held > 0, "pages wait to be read");
    for page in 0..PAGES {
        let reply = stalled.answer();
        assert!(reply[0] == OK && reply.len() > 2_000, "{page}: {} frames", reply.len());
    }
    server.stop();
}

#[test]
fn pages_of_the_queue_that_nobody_reads_are_bounded() {
    pages_that_nobody_reads_are_bounded("queue");
}

#[test]
fn pages_of_native_workers_that_nobody_reads_are_bounded() {
    pages_that_nobody_reads_are_bounded("native");
}

/// Regression: a worker answered all scans of a turn before it served another client.
#[test]
fn others_are_served_between_two_pages() {
    ["native", "queue"].into_iter().for_each(others_are_served_between_pages);
}

fn others_are_served_between_pages(frontend: &str) {
    const PAGES: usize = 64;
    let server = Server::start(&["--frontend", frontend, "--workers", "1"]);
    let context = zmq::Context::new();
    let [scanner, other] = [(); 2].map(|()| Peer::connect(&context, server.kv()));
    assert_eq!(scanner.call(&[&[0], TABLE]), [OK]);
    for first in (0..10_000_u32).step_by(1_000) {
        let keys: Vec<[u8; 4]> = (first..first + 1_000).map(u32::to_be_bytes).collect();
        let pairs = keys.iter().flat_map(|key| [&key[..], b"value"]);
        assert_eq!(scanner.call(&[&[11][..], TABLE, b""].into_iter().chain(pairs).collect::<Vec<_>>()), [OK]);
    }
    // Each looks at every element and has no row.
    for _ in 0..PAGES {
        scanner.ask(&[&[14], TABLE, b"", &10_000_u64.to_be_bytes(), &[0], b"prefix"]);
    }
    let mut served = 0;
    for _ in 0..PAGES {
        while scanner.answer_within(Duration::ZERO).is_none() {
            assert_eq!(other.call(&[&[5]]), [OK]);
            served += 1;
        }
    }
    assert!(served >= PAGES / 4, "{served} requests of another client beside {PAGES} pages");
    server.stop();
}

/// Regression: pages of a megabyte counted with the requests behind them, and a reader was cut off.
#[test]
fn a_client_that_requests_many_pages_and_reads_them_is_not_cut_off() {
    const PAGES: usize = 300;
    let server = Server::start(&["--frontend", "queue", "--workers", "1", "--client-bytes-max", "512K"]);
    let context = zmq::Context::new();
    let scanner = Peer::connect(&context, server.kv());
    assert_eq!(scanner.call(&[&[0], TABLE]), [OK]);
    // Fewer at once than libzmq keeps for a client that does not read.
    for first in (0..2_000_u32).step_by(400) {
        for number in first..first + 400 {
            scanner.ask(&[&[2], TABLE, &number.to_be_bytes(), &[7; 1_000]]);
        }
        (0..400).for_each(|_| assert_eq!(scanner.answer(), [OK]));
    }
    for _ in 0..PAGES {
        scanner.ask(&[&[14], TABLE, b"", &10_000_u64.to_be_bytes(), &[1]]);
    }
    for number in 0..PAGES {
        let page = scanner.answer();
        assert!(page[0] == OK && page.len() > 20, "{number}");
    }
    assert_eq!(scanner.clients("cut_off"), 0);
    server.stop();
}
