//! Notifications: how many a second reach one subscriber and eight, and whether one is lost, also of a burst.

use std::thread;
use std::time::{Duration, Instant};

use crate::Plan;
use crate::listen::Listener;
use crate::report::{Report, median};
use crate::side::Side;
use crate::write::{client, store};

/// Updates of one measurement.
const UPDATES: usize = 2_000_000;
const BURST: usize = 200_000;
/// Nothing for so long is the end.
const PATIENCE: Duration = Duration::from_secs(3);
/// The key that shows that a subscription has arrived.
const MARK: &str = "mark";

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Notifications\n\nOne client stores with UPDATE_MANY, 256 pairs each, 32 requests outstanding; subscribers are threads of another process that \
         read as fast as they can. Notifications a second *to each*, from the first to the last that arrived; *lost* of all rounds.",
    );
    let heads = ["", "per second to each", "in all, per second", "expected of each", "lost"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (what, updates, subscribers) in [
        ("2 million updates", UPDATES, 1),
        ("2 million updates", UPDATES, 8),
        ("a burst of 200,000", BURST, 1),
        ("a burst of 200,000", BURST, 8),
    ] {
        let rounds: Vec<(f64, usize)> = (0..plan.rounds).map(|_| round(updates, subscribers)).collect();
        let rate = median(&rounds.iter().map(|(rate, _)| *rate).collect::<Vec<_>>());
        let lost: usize = rounds.iter().map(|(_, lost)| lost).sum();
        report.raw(&serde_json::json!({ "what": what, "subscribers": subscribers, "rounds": rounds }));
        rows.push(vec![
            format!("{what}, {subscribers} subscribers"),
            format!("{rate:.0}"),
            format!("{:.0}", rate * subscribers as f64),
            updates.to_string(),
            lost.to_string(),
        ]);
    }
    report.table(&rows);
}

/// The rate to each, and how many were lost.
fn round(updates: usize, subscribers: usize) -> (f64, usize) {
    let side = Side::spindle(&["--publish", "tcp://127.0.0.1:*"]);
    let address = side.publish.strip_prefix("tcp://").unwrap().to_owned();
    let mut client = client(&side.endpoint);
    let mut listeners: Vec<Listener> = (0..subscribers).map(|_| Listener::subscribe(&address)).collect();
    for listener in &mut listeners {
        wait_for_mark(&mut client, listener);
    }
    let threads: Vec<_> =
        listeners.into_iter().map(|listener| thread::spawn(move || count(listener, updates))).collect();
    store(&side.endpoint, "key-", updates, || None);
    let counts: Vec<(usize, Duration)> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let lost = counts.iter().map(|(heard, _)| updates - heard).sum();
    let slowest = counts.iter().map(|(_, time)| *time).max().unwrap();
    (updates as f64 / slowest.as_secs_f64(), lost)
}

/// Stores a key until the subscriber hears of it.
pub(crate) fn wait_for_mark(client: &mut spindle::protocols::kv::client::Client, listener: &mut Listener) {
    listener.set_patience(Duration::from_millis(20));
    let mut heard = false;
    while !heard {
        client.update(crate::write::TABLE, MARK.as_bytes(), b"", None).unwrap();
        listener.hear(|_| heard = true);
    }
    while listener.hear(|_| ()) {}
}

/// How many of the updates it hears of, and the time from the first to the last.
fn count(mut listener: Listener, updates: usize) -> (usize, Duration) {
    listener.set_patience(PATIENCE);
    let (mut heard, mut first, mut last) = (0, None, None);
    while heard < updates && listener.hear(|told| heard += usize::from(told.key != MARK.as_bytes())) {
        let now = Instant::now();
        first.get_or_insert(now);
        last = Some(now);
    }
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    (heard, time)
}
