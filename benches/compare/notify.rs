//! Notifications: how many a second reach one subscriber and eight, and whether one is lost, also of a burst.

use std::thread;
use std::time::{Duration, Instant};

use crate::Plan;
use crate::listen::Listener;
use crate::report::{Report, median};
use crate::side::Side;
use crate::write::{client, store_in_turn};

/// Updates of one measurement.
const UPDATES: usize = 2_000_000;
const BURST: usize = 200_000;
/// Keys that are stored again and again.
const FEW: usize = 10_000;
/// Silence of this length is the end.
const PATIENCE: Duration = Duration::from_secs(3);
/// The key that shows that a subscription has arrived.
const MARK: &str = "mark";

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Notifications\n\nOne client stores with UPDATE_MANY, 256 pairs each, 32 requests outstanding; subscribers are threads of another process that \
         read as fast as they can. Notifications a second *to each*, from the first to the last that arrived; *lost* of all rounds; the processor time of a change is that of the whole server, and of the thread that publishes (libzmq's I/O thread is another).",
    );
    let heads = [
        "",
        "per second to each",
        "in all, per second",
        "expected of each",
        "lost",
        "server, ns a change",
        "publisher, ns a change",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for case in CASES {
        let rounds: Vec<Round> = (0..plan.rounds).map(|_| round(&case)).collect();
        let middle = |metric: fn(&Round) -> f64| median(&rounds.iter().map(metric).collect::<Vec<_>>());
        let rate = middle(|round| round.rate);
        let lost: usize = rounds.iter().map(|round| round.lost).sum();
        let raw: Vec<_> = rounds.iter().map(|round| (round.rate, round.lost, round.server, round.publisher)).collect();
        report.raw(&serde_json::json!({ "what": case.what, "subscribers": case.subscribers, "rounds": raw }));
        rows.push(vec![
            format!("{}, {} subscribers", case.what, case.subscribers),
            format!("{rate:.0}"),
            format!("{:.0}", rate * case.subscribers as f64),
            case.updates.to_string(),
            lost.to_string(),
            format!("{:.0}", middle(|round| round.server)),
            format!("{:.0}", middle(|round| round.publisher)),
        ]);
    }
    report.table(&rows);
}

/// One case to measure.
struct Case {
    what: &'static str,
    frontend: &'static str,
    updates: usize,
    /// Keys that are stored in turn.
    keys: usize,
    subscribers: usize,
}

const fn case(what: &'static str, frontend: &'static str, updates: usize, keys: usize, subscribers: usize) -> Case {
    Case { what, frontend, updates, keys, subscribers }
}

/// New keys cost the server more than their notifications. Existing keys show more of the publisher.
const CASES: [Case; 6] = [
    case("2 million new keys", "proxy", UPDATES, UPDATES, 1),
    case("2 million new keys", "proxy", UPDATES, UPDATES, 8),
    case("a burst of 200,000 new keys", "proxy", BURST, BURST, 1),
    case("a burst of 200,000 new keys", "proxy", BURST, BURST, 8),
    case("4 million updates of 10,000 keys, native frontend", "native", 2 * UPDATES, FEW, 1),
    case("4 million updates of 10,000 keys, native frontend", "native", 2 * UPDATES, FEW, 8),
];

struct Round {
    /// Notifications a second to each.
    rate: f64,
    lost: usize,
    /// Processor time of a change in the whole server, in ns.
    server: f64,
    /// The same of the publisher's thread.
    publisher: f64,
}

fn round(case: &Case) -> Round {
    let updates = case.updates;
    let side = Side::spindle(&["--publish", "tcp://127.0.0.1:*", "--frontend", case.frontend]);
    let address = side.publish.strip_prefix("tcp://").unwrap().to_owned();
    let mut client = client(&side.endpoint);
    let mut listeners: Vec<Listener> = (0..case.subscribers).map(|_| Listener::subscribe(&address)).collect();
    for listener in &mut listeners {
        wait_for_mark(&mut client, listener);
    }
    let threads: Vec<_> =
        listeners.into_iter().map(|listener| thread::spawn(move || count(listener, updates))).collect();
    let before = side.nanos("publisher");
    store_in_turn(&side.endpoint, ("key-", case.keys), case.updates, || None);
    let counts: Vec<(usize, Duration)> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let after = side.nanos("publisher");
    let slowest = counts.iter().map(|(_, time)| *time).max().unwrap();
    let cost = |before: u64, after: u64| (after - before) as f64 / case.updates as f64;
    Round {
        rate: case.updates as f64 / slowest.as_secs_f64(),
        lost: counts.iter().map(|(received, _)| case.updates - received).sum(),
        server: cost(before.0, after.0),
        publisher: cost(before.1, after.1),
    }
}

/// Stores a key until the subscriber is notified.
pub(crate) fn wait_for_mark(client: &mut spindle::clients::rust::tables::Client, listener: &mut Listener) {
    listener.set_patience(Duration::from_millis(20));
    let mut is_notified = false;
    while !is_notified {
        client.update(crate::write::TABLE, MARK.as_bytes(), b"", None).unwrap();
        listener.receive(|_| is_notified = true);
    }
    while listener.receive(|_| ()) {}
}

/// How many of the updates it receives, and the time from the first to the last.
fn count(mut listener: Listener, updates: usize) -> (usize, Duration) {
    listener.set_patience(PATIENCE);
    let (mut received, mut first, mut last) = (0, None, None);
    while received < updates && listener.receive(|one| received += usize::from(one.key != MARK.as_bytes())) {
        let now = Instant::now();
        first.get_or_insert(now);
        last = Some(now);
    }
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    (received, time)
}
