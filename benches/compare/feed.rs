//! The feed: what it costs the writers, how many changes a second reach a subscriber, how long a mirror takes to be
//! exact while changes come, how fast a table is scanned, and how counters compare with updates.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_setaffinity};
use spindle::clients::rust::tables::{Client, FeedSubscriber, Mirror};
use spindle::feed::FeedContent;
use spindle::services::tables::wire::ScanFields;

use crate::Plan;
use crate::bare::BarePublisher;
use crate::report::{Report, median};
use crate::shape::{alternate, middle};
use crate::side::{Side, words};
use crate::write::{TABLE, client, store, store_in_turn};

/// Changes of one measurement of the subscriber.
const CHANGES: usize = 3_000_000;
/// Elements that a mirror copies and that a scan reads.
const ELEMENTS: usize = 1_000_000;
/// Changes a second while a mirror copies.
const PACE: usize = 100_000;
/// Pairs of one request of the paced writer.
const PAIRS: usize = 256;
/// Silence of this length is the end.
const PATIENCE: Duration = Duration::from_secs(3);
/// Elements that a page of a scan looks at: what Redis is asked for, and the most.
const COUNTS: [u32; 2] = [1_000, 10_000];
const FRONTENDS: [&str; 2] = ["native", "queue"];
const ANY: &str = "tcp://127.0.0.1:*";

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    throughput(plan, report);
    cost(plan, report);
    mirrors(plan, report);
    scans(plan, report);
    counters(plan, report);
}

/// Prints the medians of some metrics of each case.
fn print<C>(
    plan: &Plan,
    report: &mut Report,
    heads: &[&str],
    cases: &[(String, C)],
    mut round: impl FnMut(&C) -> Vec<f64>,
) {
    let mut rounds: Vec<Vec<Vec<f64>>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..plan.rounds {
        for ((what, case), rounds) in cases.iter().zip(&mut rounds) {
            let metrics = round(case);
            report.raw(&serde_json::json!({ "what": what, "heads": heads, "metrics": metrics }));
            rounds.push(metrics);
        }
    }
    let mut rows = vec![std::iter::once("").chain(heads.iter().copied()).map(str::to_owned).collect::<Vec<_>>()];
    for ((what, _), rounds) in cases.iter().zip(&rounds) {
        let middle = |at: usize| median(&rounds.iter().map(|round| round[at]).collect::<Vec<_>>());
        let cells = (0..heads.len()).map(|at| format!("{:.3}", middle(at)));
        rows.push(std::iter::once(what.clone()).chain(cells).collect());
    }
    report.table(&rows);
}

/// How many changes a second one subscriber receives, and whether one is missing.
fn throughput(plan: &Plan, report: &mut Report) {
    report.write(
        "## The feed to one subscriber\n\n`--frontend native --publish off`, values of 64 bytes, one writer with \
         UPDATE_MANY, one subscriber on libzmq that decodes each change. Millions of changes a second from the first \
         to the last that arrived; *published* of those committed, in millions (a key that is written faster \
         than it is published is published once); *missing*: sequences that did not come.",
    );
    let cases = [("3 million new keys".to_owned(), CHANGES), ("3 million changes of 10,000 keys".to_owned(), 10_000)];
    print(plan, report, &["M changes/s", "published, M", "missing"], &cases, |keys| {
        let side = Side::spindle(&["--publish", "off", "--frontend", "native", "--feed", ANY]);
        let mut writer = client(&side.endpoint);
        let mut subscriber = FeedSubscriber::connect(&side.feed, Some(TABLE)).unwrap();
        // The first message is the bookmark of the subscription.
        assert!(subscriber.receive(PATIENCE).unwrap().is_some());
        let thread = thread::spawn(move || receive(&mut subscriber));
        store_in_turn(&side.endpoint, ("key-", *keys), CHANGES, || None);
        let (changes, missing, time) = thread.join().unwrap();
        let state = writer.feed_state(TABLE).unwrap();
        // What the server has published to the end, if the subscriber's bound was passed there.
        let missing = missing + (state.next.sequence - 1).saturating_sub(changes + missing);
        vec![changes as f64 / time.as_secs_f64() / 1e6, changes as f64 / 1e6, missing as f64]
    });
}

/// Receives until silence: changes, sequences that were missing between them, and the time from first to last.
fn receive(subscriber: &mut FeedSubscriber) -> (u64, u64, Duration) {
    let (mut changes, mut missing, mut next, mut first, mut last) = (0, 0, 1, None, None);
    while let Some(event) = subscriber.receive(PATIENCE).unwrap() {
        let FeedContent::Changes(some) = event.message.content else { continue };
        let sequence = event.message.position.sequence;
        missing += sequence - next;
        let count = some.map(|change| assert!(change.version > 0)).count() as u64;
        next = sequence + count;
        changes += count;
        let now = Instant::now();
        first.get_or_insert(now);
        last = Some(now);
    }
    (changes, missing, first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first))
}

/// Whether changes are published, and whether a subscriber receives them.
#[derive(Clone, Copy, PartialEq)]
enum Feed {
    Off,
    Unsubscribed,
    Subscribed,
    /// The feed is off. A bare publisher sends the subscriber as many changes as were stored with a feed before.
    Bare,
}

/// One case of the cost of the feed.
struct CostCase {
    feed: Feed,
    /// Client and subscriber stay off the worker's core.
    beside: bool,
}

/// Runs `work` on all cores but the first if `beside`, and so do the threads and processes that it starts.
fn on_cores<R>(beside: bool, work: impl FnOnce() -> R) -> R {
    let all = sched_getaffinity(None).unwrap();
    let mut others = all;
    others.unset(0);
    if !beside || others.count() == 0 {
        return work();
    }
    sched_setaffinity(None, &others).unwrap();
    let result = work();
    sched_setaffinity(None, &all).unwrap();
    result
}

/// What a feed costs the writers: the rate of SET without it, with it, and with one subscriber.
fn cost(plan: &Plan, report: &mut Report) {
    report.write(
        "## What the feed costs\n\nSET over 8 connections, 64 outstanding on each, 100,000 keys, values of 64 bytes, `--publish off \
         --frontend native`; thousands a second, and ns of the server's processor time for each. The subscriber is on the same two cores, \
         placed by the system, or with the client on all cores but the first, to which the worker is pinned. A bare publisher sends \
         the same bytes over and over, as many changes a second as were stored with a feed before: what the subscriber costs alone.",
    );
    let cases = [
        ("feed off", CostCase { feed: Feed::Off, beside: false }),
        ("feed on, nobody listens", CostCase { feed: Feed::Unsubscribed, beside: false }),
        ("feed on, one subscriber", CostCase { feed: Feed::Subscribed, beside: false }),
        ("feed off, a bare publisher and one subscriber", CostCase { feed: Feed::Bare, beside: false }),
        ("feed off, client beside the worker's core", CostCase { feed: Feed::Off, beside: true }),
        ("feed on, client and one subscriber beside it", CostCase { feed: Feed::Subscribed, beside: true }),
        (
            "feed off, client, a bare publisher and one subscriber beside it",
            CostCase { feed: Feed::Bare, beside: true },
        ),
    ]
    .map(|(name, case)| (name.to_owned(), case));
    let mut pace = 1e6;
    let flags = words(&format!(
        "--mix set=1 --depth 64 --keys 100000 --value-size 64 --warm-up 0.2 --seconds {}",
        plan.seconds
    ));
    print(plan, report, &["k SET/s", "server, ns"], &cases, |case: &CostCase| {
        let base = ["--publish", "off", "--frontend", "native"];
        let has_feed = matches!(case.feed, Feed::Unsubscribed | Feed::Subscribed);
        let feed: &[&str] = if has_feed { &["--feed", ANY] } else { &[] };
        let side = Side::spindle(&[&base, feed].concat());
        side.fill(100_000, 64);
        let before = side.nanos("").0;
        let (results, bare, subscriber) = on_cores(case.beside, || {
            let bare = (case.feed == Feed::Bare).then(|| BarePublisher::start(pace));
            let endpoint = bare.as_ref().map_or(&side.feed, |bare| &bare.endpoint);
            let subscriber = matches!(case.feed, Feed::Subscribed | Feed::Bare).then(|| {
                let mut subscriber = FeedSubscriber::connect(endpoint, None).unwrap();
                thread::spawn(move || receive_to_the_end(&mut subscriber))
            });
            (side.load(&flags), bare, subscriber)
        });
        let all = &results["phases"][0]["verbs"]["all"];
        let (answers, rate) = (all["answers"].as_f64().unwrap(), all["per_second"].as_f64().unwrap());
        if case.feed == Feed::Subscribed {
            pace = rate;
        }
        // The warm-up is not counted in the answers, so its part of the time is taken off.
        let share = plan.seconds / (plan.seconds + 0.2);
        let nanos = (side.nanos("").0 - before) as f64 * share / answers;
        drop(side);
        bare.into_iter().for_each(BarePublisher::end);
        subscriber.into_iter().for_each(|subscriber| subscriber.join().unwrap());
        vec![rate / 1e3, nanos]
    });
}

/// Receives and decodes until the server ends.
fn receive_to_the_end(subscriber: &mut FeedSubscriber) {
    while let Ok(Some(event)) = subscriber.receive(PATIENCE) {
        if let FeedContent::Changes(some) = event.message.content {
            some.for_each(|change| assert!(change.version > 0));
        }
    }
}

/// How long a mirror of a million elements takes to be exact, while changes come.
fn mirrors(plan: &Plan, report: &mut Report) {
    report.write(&format!(
        "## A mirror joins\n\n{ELEMENTS} elements with values of 64 bytes, {PACE} changes a second meanwhile. Seconds until the mirror is \
         exact, and the changes that came a second."
    ));
    let cases = FRONTENDS.map(|frontend| (frontend.to_owned(), frontend));
    print(plan, report, &["seconds", "changes/s"], &cases, |frontend| {
        let side = Side::spindle(&["--publish", "off", "--frontend", frontend, "--feed", ANY]);
        client(&side.endpoint);
        store(&side.endpoint, "key-", ELEMENTS, || None);
        let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| write_at_pace(&side.endpoint, &is_over, &written));
            while written.load(Ordering::Relaxed) < PACE as u64 / 4 {
                thread::sleep(Duration::from_millis(10));
            }
            let (start, before) = (Instant::now(), written.load(Ordering::Relaxed));
            let mut mirror = Mirror::connect(&side.endpoint, &side.feed, TABLE).unwrap();
            let is_exact = mirror.wait_exact(Duration::from_secs(60)).unwrap();
            let (time, changes) = (start.elapsed().as_secs_f64(), written.load(Ordering::Relaxed) - before);
            is_over.store(true, Ordering::Relaxed);
            assert!(is_exact, "not within a minute");
            vec![time, changes as f64 / time]
        })
    });
}

/// Stores existing keys at the pace, and counts.
fn write_at_pace(endpoint: &str, is_over: &AtomicBool, written: &AtomicU64) {
    let mut client = Client::connect(endpoint).unwrap();
    let (start, value) = (Instant::now(), [b'w'; 64]);
    for number in (0..).step_by(PAIRS) {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let due = start + Duration::from_secs_f64(number as f64 / PACE as f64);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let keys: Vec<String> =
            (number..number + PAIRS).map(|key| format!("key-{:012}", key * 7919 % ELEMENTS)).collect();
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [key.as_bytes(), &value[..]]).collect();
        client.update_many(TABLE, None, &pairs).unwrap();
        written.fetch_add(PAIRS as u64, Ordering::Relaxed);
    }
}

/// How fast all keys of a table are read, and what other clients see of it.
fn scans(plan: &Plan, report: &mut Report) {
    report.write(&format!(
        "## Scans\n\nThe keys of {ELEMENTS} elements with values of 64 bytes, by one client that waits for each page. Millions of keys a second; \
         p99 in µs of another client's 10,000 GETs a second without a scan, and with one scan after the other."
    ));
    let sides = FRONTENDS.map(|frontend| Side::spindle(&["--publish", "off", "--frontend", frontend]));
    let redis = Side::redis();
    for side in sides.iter().chain(&redis) {
        side.fill(ELEMENTS as u32, 64);
    }
    let ours = sides
        .iter()
        .zip(FRONTENDS)
        .flat_map(|(side, frontend)| COUNTS.map(|count| (format!("{frontend}, count {count}"), (side, count))));
    let theirs = redis.iter().map(|side| ("Redis, COUNT 1000".to_owned(), (side, 1_000)));
    let cases: Vec<_> = ours.chain(theirs).collect();
    let load =
        words(&format!("--mix get=1 --rate 10000 --keys {ELEMENTS} --warm-up 0 --seconds {}", plan.seconds.max(2.0)));
    print(plan, report, &["M keys/s", "p99 alone, µs", "p99 beside, µs"], &cases, |(side, count)| {
        let scan = |side: &Side| if side.protocol == "kv" { scan(side, *count) } else { scan_redis(side) };
        let start = Instant::now();
        let keys = scan(side);
        let rate = keys as f64 / start.elapsed().as_secs_f64() / 1e6;
        assert!(keys >= ELEMENTS as u64, "{keys} keys");
        let p99 = || side.load(&load)["phases"][0]["verbs"]["all"]["p99_nanos"].as_f64().unwrap() / 1e3;
        let alone = p99();
        let is_over = AtomicBool::new(false);
        let beside = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    scan(side);
                }
            });
            let beside = p99();
            is_over.store(true, Ordering::Relaxed);
            beside
        });
        vec![rate, alone, beside]
    });
}

/// The table that `spindle load` fills.
const LOADED: &[u8] = b"load";

fn scan(side: &Side, count: u32) -> u64 {
    let (mut client, mut cursor, mut keys) = (Client::connect(&side.endpoint).unwrap(), Vec::new(), 0);
    loop {
        let page = client.scan(LOADED, &cursor, count, ScanFields::Key, b"").unwrap();
        keys += page.rows.len() as u64;
        cursor = page.next;
        if cursor.is_empty() {
            return keys;
        }
    }
}

/// SCAN of Redis: a page is `*2`, the cursor, and an array of keys, of which only the heads are counted.
fn scan_redis(side: &Side) -> u64 {
    let mut stream = TcpStream::connect(side.address()).unwrap();
    let (mut cursor, mut keys, mut bytes) = ("0".to_owned(), 0, Vec::new());
    loop {
        let ask = format!("*4\r\n$4\r\nSCAN\r\n${}\r\n{cursor}\r\n$5\r\nCOUNT\r\n$4\r\n1000\r\n", cursor.len());
        stream.write_all(ask.as_bytes()).unwrap();
        bytes.clear();
        let (next, count) = loop {
            let mut some = [0; 1 << 16];
            let read = stream.read(&mut some).unwrap();
            assert!(read > 0, "Redis is there");
            bytes.extend_from_slice(&some[..read]);
            if let Some(page) = redis_page(&bytes) {
                break page;
            }
        };
        keys += count;
        if next == "0" {
            return keys;
        }
        cursor = next;
    }
}

/// The cursor and the number of keys of a page, if it is whole.
fn redis_page(bytes: &[u8]) -> Option<(String, u64)> {
    let mut at = 0;
    let mut line = || {
        let end = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let text = std::str::from_utf8(&bytes[at..end]).unwrap();
        at = end + 2;
        Some(text)
    };
    assert_eq!(line()?, "*2");
    line()?;
    let cursor = line()?.to_owned();
    let count: u64 = line()?[1..].parse().unwrap();
    for _ in 0..2 * count {
        line()?;
    }
    Some((cursor, count))
}

/// INCREMENT beside UPDATE, alternately.
fn counters(plan: &Plan, report: &mut Report) {
    report.write(
        "## Counters\n\n8 connections, 64 outstanding on each, 100,000 keys with numbers, thousands a second; Redis: INCR and SET.",
    );
    let mut rows = vec![["", "INCREMENT", "UPDATE", "ratio"].map(str::to_owned).to_vec()];
    for served in FRONTENDS.iter().copied().chain(["redis"]) {
        let start = || match served {
            "redis" => Side::redis(),
            frontend => Some(Side::spindle(&["--publish", "off", "--frontend", frontend])),
        };
        let flags = |verb: &str| {
            format!("--mix {verb}=1 --depth 64 --keys 100000 --value-size 8 --warm-up 0.2 --seconds {}", plan.seconds)
        };
        // Each in turn.
        let (mut counted, mut updated) = (Vec::new(), Vec::new());
        let once = Plan { out: plan.out.clone(), only: None, rounds: 1, seconds: plan.seconds, workers: Vec::new() };
        for _ in 0..plan.rounds {
            for (verb, rates) in [("incr", &mut counted), ("set", &mut updated)] {
                let Some(side) = start() else { continue };
                let rounds = alternate(&once, &[side], &format!("{verb}, {served}"), &flags(verb), report);
                rates.push(middle(&rounds[0], |round| round.rate));
            }
        }
        if counted.is_empty() {
            continue;
        }
        let (counted, updated) = (median(&counted), median(&updated));
        rows.push(vec![
            served.to_owned(),
            format!("{:.0}", counted / 1e3),
            format!("{:.0}", updated / 1e3),
            format!("{:.2}", counted / updated),
        ]);
    }
    report.table(&rows);
}
