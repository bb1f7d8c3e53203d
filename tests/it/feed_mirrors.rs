//! Mirrors of a real server end equal to the table, and are right whenever they say that they are exact.
//!
//! Four writers set, touch and delete elements of one table, give them TTLs, and drop and make the table again. Eight
//! mirrors join at random moments. One of them stops reading for a third of the time, and one is behind a TCP proxy that
//! cuts its connection. The history of the feed is small, so that a gap may be beyond it.
//!
//! `SPINDLE_MIRROR_KEYS`, `SPINDLE_MIRROR_CHANGES` and `SPINDLE_MIRROR_HISTORY` make the run as large as one likes.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spindle::clients::rust::tables::{Client, Error, Mirror, MirrorEvent, MirrorMetrics};
use spindle::clock::Ttl;
use spindle::feed::FeedPosition;
use spindle::services::tables::wire::{Reason, Reply, Request, RowMark, ScanFields, ScanRows, TableName};

use super::harness::{Guarded, SPINDLE, Server, number_of, spindle};
use super::seeded_rng::SeededRng;

const TABLE: &[u8] = b"mirrored";
const WRITERS: u64 = 4;
const MIRRORS: usize = 8;
/// The mirror that stops reading, and the one behind the proxy.
const STALLED: usize = 6;
const CUT: usize = 7;
/// Requests that a writer has on their way.
const WINDOW: usize = 64;
const FEED_ON: [&str; 2] = ["--feed", "tcp://127.0.0.1:*"];
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(20);

/// An element: value, version, deadline.
type Element = (Vec<u8>, u64, Option<u64>);
type Content = BTreeMap<Vec<u8>, Element>;

/// How far the writers are. Mirrors wait for it.
#[derive(Default)]
struct Progress {
    changes: Mutex<u64>,
    moved: Condvar,
}

impl Progress {
    fn add(&self, changes: u64) {
        *self.changes.lock().unwrap() += changes;
        self.moved.notify_all();
    }

    fn wait_for(&self, changes: u64) {
        let done = self.changes.lock().unwrap();
        drop(self.moved.wait_while(done, |done| *done < changes).unwrap());
    }
}

/// The run: what all its threads share.
struct Run {
    kv: String,
    feed: String,
    proxy: String,
    keys: u64,
    changes: u64,
    progress: Progress,
    /// Connections that the proxy has cut.
    cuts: AtomicU64,
    /// The writers are done, and nothing is cut any more.
    is_calm: AtomicBool,
    /// What mirrors have had when they were exact, by position.
    exact: Mutex<HashMap<FeedPosition, u64>>,
    compared: Mutex<u64>,
}

/// What a mirror has to say at its end.
struct Report {
    first_exact: Duration,
    last_exact: Duration,
    times_exact: u32,
    metrics: MirrorMetrics,
}

fn content(mirror: &Mirror) -> Content {
    let elements = mirror
        .iter()
        .map(|(key, element)| (key.to_vec(), (element.value.to_vec(), element.version, element.deadline_millis)));
    elements.collect()
}

fn hash(content: &Content) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// One writer: a pipeline of requests of every kind.
fn write(run: &Run, writer: u64) {
    let mut client = Client::connect(&run.kv).unwrap();
    let mut rng = SeededRng(writer);
    let table = TableName::spelt(TABLE);
    let own = run.changes / WRITERS;
    let drops = (writer == 0).then_some(own / 5);
    for change in 0..own {
        if drops.is_some_and(|every| change % every == every - 1) {
            while client.in_flight() > 0 {
                receive(&mut client);
            }
            client.delete_table(TABLE).unwrap();
            client.create_table(TABLE).unwrap();
        }
        let key = (rng.next() % run.keys).to_be_bytes();
        let value = [&change.to_be_bytes()[..], &vec![b'v'; rng.index(60)]].concat();
        let brief = Ttl::from_millis(500 + rng.next() % 1_000).unwrap();
        let request = match rng.index(20) {
            0..=1 => Request::Delete { table, key: &key },
            2 => Request::Touch { table, key: &key, ttl: brief },
            3 => Request::Touch { table, key: &key, ttl: Ttl::NONE },
            4 => Request::Update { table, key: &key, value: &value, ttl: Some(brief) },
            5 => Request::GetAndTouch { table, key: &key, ttl: Ttl::from_secs(2) },
            6..=9 => Request::Update { table, key: &key, value: &value, ttl: Some(Ttl::NONE) },
            _ => Request::Update { table, key: &key, value: &value, ttl: None },
        };
        client.send(&request).unwrap();
        if client.in_flight() >= WINDOW {
            receive(&mut client);
        }
        if change % 256 == 255 {
            run.progress.add(256);
        }
    }
    while client.in_flight() > 0 {
        receive(&mut client);
    }
    run.progress.add(own % 256);
}

/// A table that is dropped, and a key that is absent, are refused. Nothing else is.
fn receive(client: &mut Client) {
    match client.receive().unwrap() {
        Reply::Refused(Reason::TableNotFound | Reason::KeyNotFound) | Reply::Done | Reply::Value(_) => {}
        other => panic!("{other:?}"),
    }
}

/// Follows the table from a random moment to its end. Returns the copy at `end`.
fn follow(run: &Run, index: usize, end: &Mutex<Option<FeedPosition>>) -> (Content, Report) {
    let mut rng = SeededRng(100 + index as u64);
    run.progress.wait_for(rng.next() % (run.changes / 2));
    let feed = if index == CUT { &run.proxy } else { &run.feed };
    let begin = Instant::now();
    let mut mirror = Mirror::connect(&run.kv, feed, TABLE).unwrap();
    let mut lost = Some(begin);
    let (mut first_exact, mut last_exact, mut times_exact) = (None, Duration::ZERO, 0);
    let mut has_stalled = index != STALLED;
    for step in 0_u64.. {
        match mirror.next(GLANCE).unwrap() {
            Some(MirrorEvent::Exact(_)) => {
                last_exact = lost.take().unwrap_or(begin).elapsed();
                first_exact.get_or_insert(last_exact);
                times_exact += 1;
                compare(run, index, &mirror);
            }
            Some(MirrorEvent::NotExact(_)) => lost = Some(Instant::now()),
            _ if step % (1 << 14) == 0 => compare(run, index, &mirror),
            _ => {}
        }
        if !has_stalled && times_exact > 0 {
            has_stalled = true;
            let done = *run.progress.changes.lock().unwrap();
            run.progress.wait_for((done + run.changes / 3).min(run.changes));
        }
        if mirror.is_exact() && mirror.at() == *end.lock().unwrap() {
            break;
        }
        assert!(begin.elapsed() < PATIENCE * 20, "mirror {index} is not exact: {:?}", mirror.metrics());
    }
    compare(run, index, &mirror);
    let metrics = mirror.metrics();
    let first_exact = first_exact.expect("it was exact");
    (content(&mirror), Report { first_exact, last_exact, times_exact, metrics })
}

/// Compares a copy that is exact with those of other mirrors that were exact at the same position.
fn compare(run: &Run, index: usize, mirror: &Mirror) {
    let Some(at) = mirror.at().filter(|_| mirror.is_exact()) else { return };
    let own = hash(&content(mirror));
    let other = *run.exact.lock().unwrap().entry(at).or_insert(own);
    *run.compared.lock().unwrap() += 1;
    assert_eq!(own, other, "mirror {index} differs from another at {at:?}");
}

/// What is in the table, once no element has a deadline and all is published. And where the feed is then.
fn settle(client: &mut Client) -> (Content, FeedPosition) {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "the table never comes to rest");
        let before = client.feed_state(TABLE).unwrap().next;
        let (mut found, mut cursor, mut is_settled) = (Content::new(), Vec::new(), true);
        loop {
            let page = client.scan(TABLE, &cursor, 10_000, ScanFields::Mirror, b"").unwrap();
            let ScanRows::Mirror(rows) = &page.rows else { panic!("rows for a mirror") };
            for row in rows {
                is_settled &= row.mark == RowMark::Published && row.deadline_millis.is_none();
                found.insert(row.key.to_vec(), (row.value.to_vec(), row.version, row.deadline_millis));
            }
            cursor = page.next;
            if cursor.is_empty() {
                break;
            }
        }
        if is_settled && client.feed_state(TABLE).unwrap().next == before {
            return (found, before);
        }
    }
}

/// Forwards connections to the feed, and cuts each after some bytes until the run is calm.
fn proxy(run: &Arc<Run>, listener: &TcpListener) {
    let target = run.feed.trim_start_matches("tcp://").to_owned();
    for (number, accepted) in listener.incoming().enumerate() {
        let (mut client, mut server) = (accepted.unwrap(), TcpStream::connect(&target).unwrap());
        let (run, limit) = (Arc::clone(run), 20_000 + 30_000 * (number % 20));
        let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        // What goes up is a handshake and a subscription.
        thread::spawn(move || std::io::copy(&mut up, &mut down));
        thread::spawn(move || {
            let (mut bytes, mut forwarded) = ([0; 8192], 0);
            while let Ok(count @ 1..) = server.read(&mut bytes) {
                forwarded += count;
                let is_over = forwarded > limit && !run.is_calm.load(Ordering::Relaxed);
                if is_over {
                    run.cuts.fetch_add(1, Ordering::Relaxed);
                }
                if is_over || client.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        });
    }
}

#[test]
fn mirrors_that_join_stall_and_lose_their_connection_end_equal_to_the_table() {
    let history = std::env::var("SPINDLE_MIRROR_HISTORY").unwrap_or_else(|_| "1M".to_owned());
    let server = Server::start(&[&FEED_ON[..], &["--workers", "2", "--feed-history", &history]].concat());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let run = Arc::new(Run {
        kv: server.kv().to_owned(),
        feed: server.feed().to_owned(),
        proxy: format!("tcp://{}", listener.local_addr().unwrap()),
        keys: number_of("SPINDLE_MIRROR_KEYS").unwrap_or(2_000),
        changes: number_of("SPINDLE_MIRROR_CHANGES").unwrap_or(60_000),
        progress: Progress::default(),
        cuts: AtomicU64::new(0),
        is_calm: AtomicBool::new(false),
        exact: Mutex::new(HashMap::new()),
        compared: Mutex::new(0),
    });
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(TABLE).unwrap();
    let proxied = Arc::clone(&run);
    thread::spawn(move || proxy(&proxied, &listener));
    let end = Mutex::new(None);
    let begin = Instant::now();
    thread::scope(|scope| {
        let run = &*run;
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(run, writer))).collect();
        let end = &end;
        let mirrors: Vec<_> = (0..MIRRORS).map(|index| scope.spawn(move || follow(run, index, end))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        println!("{} requests took {:?}", run.changes, begin.elapsed());
        // On a quick machine the writers have ended before so many bytes went to the mirror behind the proxy.
        while run.cuts.load(Ordering::Relaxed) == 0 {
            client.update(TABLE, b"last", &[7; 1_000], None).unwrap();
            assert!(begin.elapsed() < PATIENCE * 20, "the proxy has cut nothing");
        }
        run.is_calm.store(true, Ordering::Relaxed);
        let (expected, position) = settle(&mut client);
        println!("{} elements at {position:?} after {:?}", expected.len(), begin.elapsed());
        *end.lock().unwrap() = Some(position);
        for (index, mirror) in mirrors.into_iter().enumerate() {
            let (found, report) = mirror.join().unwrap();
            let Report { first_exact, last_exact, times_exact, metrics } = report;
            println!(
                "mirror {index}: exact after {first_exact:?}, {times_exact} times, last in {last_exact:?}, {metrics:?}"
            );
            assert!(found == expected, "mirror {index} differs from the table at its end");
            assert_eq!(metrics.differences, 0, "mirror {index}: a bookmark differs");
            assert!(metrics.verified > 0, "mirror {index} has checked no bookmark");
        }
        let compared = *run.compared.lock().unwrap();
        println!("{compared} exact copies at {} positions, 0 differ", run.exact.lock().unwrap().len());
    });
    server.stop();
}

/// A command that prints lines until it is interrupted.
struct Printing {
    child: Guarded,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Printing {
    fn start(arguments: &[&str]) -> Self {
        let mut child =
            Command::new(SPINDLE).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child: Guarded(child), lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a line comes").unwrap()
    }

    /// Ends it as Ctrl-C would.
    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.child.0), Signal::INT).unwrap();
        assert!(self.child.0.wait().unwrap().success());
    }
}

#[test]
fn the_commands_print_a_table_its_changes_and_when_that_is_exact() {
    let server = Server::start(&FEED_ON);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"users").unwrap();
    client.update(b"users", b"ada", b"countess", None).unwrap();
    let ends = ["--connect", server.kv(), "--feed", server.feed()];
    let mut mirror = Printing::start(&[&["mirror", "users"][..], &ends].concat());
    let mut watch = Printing::start(&["watch", "users", "--values", "--json", "--feed", server.feed()]);
    let found = mirror.line();
    assert!(found.starts_with("FOUND ada countess version "), "{found}");
    let exact = mirror.line();
    assert!(exact.starts_with("EXACT at 2 of incarnation "), "{exact}");
    let subscribed = || server.stats()["feed"]["subscriptions"].as_u64() == Some(2);
    while !subscribed() {}
    client.update(b"users", b"bob", b"builder", Some(Ttl::from_secs(100))).unwrap();
    client.delete(b"users", b"ada").unwrap();
    let updated = mirror.line();
    assert!(updated.starts_with("UPDATED bob builder version ") && updated.contains(" deadline "), "{updated}");
    assert!(mirror.line().starts_with("DELETED ada version "));
    let watched: serde_json::Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(
        (&watched["kind"], &watched["key"], &watched["value"]),
        (&"UPDATED".into(), &"bob".into(), &"builder".into())
    );
    assert!(watched["version"].as_u64() > Some(0) && watched["deadline_millis"].as_u64() > Some(0), "{watched}");
    client.delete_table(b"users").unwrap();
    let dropped = mirror.line();
    assert!(dropped.starts_with("DROPPED bob"), "{dropped}");
    assert_eq!(mirror.line(), "NO TABLE");
    assert!(mirror.line().starts_with("EXACT at 1 of incarnation 0"));
    mirror.interrupt();
    watch.interrupt();
    server.stop();
}

#[test]
fn a_mirror_without_a_feed_says_how_to_start_one() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"users").unwrap();
    let refused = Mirror::connect(server.kv(), "tcp://127.0.0.1:1", b"users").err();
    assert_eq!(refused, Some(Error::FeedOff { endpoint: server.kv().to_owned() }));
    let output = spindle(&["mirror", "users", "--connect", server.kv()]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint.contains("start it with --feed") && complaint.lines().count() == 1, "{complaint}");
    // The server has no such table either, so its feed is what does not answer.
    let output = spindle(&["mirror", "birds", "--connect", server.kv(), "--feed", "tcp://127.0.0.1:1"]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let hint = "no feed at tcp://127.0.0.1:1: start the server with --feed";
    assert!(complaint.contains(hint) && complaint.lines().count() == 1, "{complaint}");
    server.stop();
}
