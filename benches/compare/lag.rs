//! Expiry lag: a thousand probes share a deadline, among many other keys with long TTLs. The lag is the time from the
//! deadline to their notifications. Of Spindle in several rounds on one server. One round of Redis can take three
//! minutes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use spindle::clients::rust::tables::Client;
use spindle::clock::Ttl;

use crate::Plan;
use crate::listen::Listener;
use crate::notify::wait_for_mark;
use crate::report::{Report, percentile};
use crate::side::{Side, words};
use crate::write::{TABLE, client, store};

const PROBES: usize = 1_000;
/// TTL of the probes, in seconds.
const TTL: u64 = 2;
/// TTL of the others, in seconds.
const LONG_TTL: u32 = 36_000;
/// A notification that comes later than this does not count.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long the bench asks for the deadline of the probes.
const NARROWING: Duration = Duration::from_millis(200);
const OTHERS: [usize; 5] = [0, 10_000, 100_000, 1_000_000, 5_000_000];

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Expiry lag\n\n1,000 keys with a TTL of 2 s, stored at once, among others that live for ten hours. The lag is from the \
         deadline that the server has set to the arrival of the notification. Redis says it (PEXPIRETIME), and so does Spindle to a Redis client (*key events*); otherwise it is narrowed down by \
         asking for the remaining milliseconds again and again, and the earliest that fits is taken. Redis: \
         `notify-keyspace-events Ex`, defaults otherwise, one round. Milliseconds, of all rounds together, and p99 of the worst round; \
         *arrived* within 180 s.",
    );
    let mut rows = vec![["", "p50", "p99", "worst p99", "max", "arrived"].map(str::to_owned).to_vec()];
    for others in OTHERS {
        rows.push(row(report, "spindle", others, &spindle(others, plan.rounds)));
    }
    for others in OTHERS {
        let side = Side::resp(&["--publish", "off", "--frontend", "native"]);
        rows.push(row(report, "spindle, key events", others, &[by_key_event(&side, others)]));
    }
    for others in OTHERS {
        let Some(side) = Side::redis() else { continue };
        let lags = by_key_event(&side, others);
        rows.push(row(report, "redis", others, &[lags]));
    }
    report.table(&rows);
}

/// The lags of each of `rounds`.
fn row(report: &mut Report, side: &str, others: usize, rounds: &[Vec<f64>]) -> Vec<String> {
    report.raw(&serde_json::json!({ "what": "lag", "side": side, "others": others, "rounds_millis": rounds }));
    let all = rounds.concat();
    let worst = rounds.iter().map(|lags| percentile(lags, 99.0)).fold(0.0, f64::max);
    let metrics = [percentile(&all, 50.0), percentile(&all, 99.0), worst, percentile(&all, 100.0)];
    let mut row = vec![format!("{side}, {others} others")];
    row.extend(metrics.map(|millis| format!("{millis:.2}")));
    row.push(format!("{} of {}", all.len(), rounds.len() * PROBES));
    row
}

/// Lags in milliseconds of the probes whose notification arrived, round by round.
fn spindle(others: usize, rounds: usize) -> Vec<Vec<f64>> {
    let side = Side::spindle(&["--publish", "tcp://127.0.0.1:*"]);
    let mut client = client(&side.endpoint);
    store(&side.endpoint, "key-", others, || Some(Ttl::from_secs(LONG_TTL)));
    let mut listener = Listener::subscribe(side.publish.strip_prefix("tcp://").unwrap());
    wait_for_mark(&mut client, &mut listener);
    (0..rounds).map(|_| probe(&mut client, &mut listener)).collect()
}

fn probe(client: &mut Client, listener: &mut Listener) -> Vec<f64> {
    let keys: Vec<String> = (0..PROBES).map(|number| format!("probe-{number:010}")).collect();
    let sent = Instant::now();
    store_probes(client, &keys);
    let deadline = deadline_of(client, &keys[0]);
    listener.set_patience(PATIENCE);
    let mut arrived = HashMap::new();
    while arrived.len() < PROBES && sent.elapsed() < PATIENCE {
        let mut now = None;
        listener.receive(|notification| {
            if notification.deleted {
                let now = *now.get_or_insert_with(Instant::now);
                arrived.insert(notification.key.to_vec(), now);
            }
        });
    }
    arrived.into_values().map(|arrival| (arrival - deadline).as_secs_f64() * 1e3).collect()
}

/// The earliest deadline that fits all answers. An answer of `remaining` milliseconds says that the deadline is less
/// than that after the answer came, and more than a millisecond less than that after the question was sent.
fn deadline_of(client: &mut Client, key: &str) -> Instant {
    let mut earliest = None;
    let start = Instant::now();
    while start.elapsed() < NARROWING {
        let asked = Instant::now();
        let entry = client.get_entry(TABLE, key.as_bytes()).unwrap();
        let least = asked + Duration::from_millis(entry.remaining_millis.unwrap() - 1);
        earliest = earliest.max(Some(least));
    }
    earliest.unwrap()
}

fn store_probes(client: &mut Client, keys: &[String]) {
    let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [key.as_bytes(), &b"probe"[..]]).collect();
    client.update_many(TABLE, Some(Ttl::from_secs(TTL as u32)), &pairs).unwrap();
}

/// The same of `__keyevent@0__:expired`, once.
fn by_key_event(side: &Side, others: usize) -> Vec<f64> {
    if others > 0 {
        let flags = format!("--prefill --keys {others} --ttl {LONG_TTL} --ttl-share 100 --seconds 0.1 --mix get=1");
        side.load(&words(&flags));
    }
    let connect = || TcpStream::connect(side.address()).unwrap();
    let (mut asking, subscriber) = (connect(), connect());
    let mut replies = BufReader::new(asking.try_clone().unwrap());
    ask(&mut asking, &mut replies, "CONFIG SET notify-keyspace-events Ex\r\n");
    let mut events = BufReader::new(subscriber.try_clone().unwrap());
    (&subscriber).write_all(b"PSUBSCRIBE __keyevent@0__:expired\r\n").unwrap();
    (0..6).for_each(|_| drop(line(&mut events)));
    let sets: String = (0..PROBES).map(|number| format!("SET probe-{number:010} probe EX {TTL}\r\n")).collect();
    let sent = Instant::now();
    asking.write_all(sets.as_bytes()).unwrap();
    (0..PROBES).for_each(|_| drop(line(&mut replies)));
    let deadlines = deadlines_of(&mut asking, &mut replies);
    subscriber.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut lags = Vec::new();
    while lags.len() < PROBES && sent.elapsed() < PATIENCE {
        // A Redis event is an array of four strings, the last of which is the key.
        let probe = line(&mut events).and_then(|line| line.trim_end().strip_prefix("probe-")?.parse::<usize>().ok());
        if let Some(probe) = probe {
            lags.push(wall_millis() - deadlines[probe]);
        }
    }
    lags
}

/// Milliseconds since 1970 at which each probe expires.
fn deadlines_of(asking: &mut TcpStream, replies: &mut impl BufRead) -> Vec<f64> {
    let asks: String = (0..PROBES).map(|number| format!("PEXPIRETIME probe-{number:010}\r\n")).collect();
    asking.write_all(asks.as_bytes()).unwrap();
    let reply = |_| line(replies).unwrap().trim_end().trim_start_matches(':').parse().unwrap();
    (0..PROBES).map(reply).collect()
}

fn wall_millis() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1e3
}

fn ask(stream: &mut TcpStream, replies: &mut impl BufRead, command: &str) {
    stream.write_all(command.as_bytes()).unwrap();
    assert_eq!(line(replies).unwrap().trim_end(), "+OK");
}

fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0).map(|_| line)
}
