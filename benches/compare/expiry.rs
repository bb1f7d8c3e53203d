//! Sustained expiry: many keys that all expire within one second, and its effect on other clients.

use std::time::{Duration, Instant};

use serde_json::Value;
use spindle::clients::rust::tables::Client;
use spindle::clock::Ttl;

use crate::Plan;
use crate::report::Report;
use crate::side::{Side, words};
use crate::write::{client, store};

const CROWDS: [usize; 2] = [1_000_000, 3_000_000];
/// Time to store them in.
const LEAD: Duration = Duration::from_secs(12);
/// Pause between two questions about the server's progress.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Rate of the other clients' requests: low enough to show the wait of each.
const OTHERS: &str = "--rate 10000 --mix get=1 --keys 1000 --warm-up 0 --seconds";

pub(crate) fn measure(_plan: &Plan, report: &mut Report) {
    report.write(
        "## Many keys that expire within one second\n\nNobody subscribes. Others ask 10,000 GETs a second in an open loop: their latency in µs, \
         before and during. *Expired in*: from the first expiry to the last, of which one second is the spread of the deadlines. In brackets \
         the longest time by which the load itself sent a GET too late.",
    );
    let heads = [
        "",
        "expired in, s",
        "expired, per second",
        "lag p50, ms",
        "lag max, ms",
        "GET p50/p99/max before (load late)",
        "during",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for crowd in CROWDS {
        rows.push(one(crowd, report));
    }
    report.table(&rows);
}

fn one(crowd: usize, report: &mut Report) -> Vec<String> {
    let side = Side::spindle(&["--publish", "off"]);
    side.fill(1_000, 64);
    let before = side.load(&words(&format!("{OTHERS} 3")));
    let mut client = client(&side.endpoint);
    let end = Instant::now() + LEAD;
    // Each request's deadline falls into the second after `end`.
    let left = || end.saturating_duration_since(Instant::now()).as_secs() as u32;
    store(&side.endpoint, "key-", crowd, || Some(Ttl::from_secs(left() + 1)));
    let (during, spread) = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            side.load(&words(&format!("{OTHERS} 5")))
        });
        let spread = watch(&mut client, crowd);
        (others.join().unwrap(), spread)
    });
    let stats: Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
    let lag = &stats["expiry"]["lag_micros"];
    report.raw(&serde_json::json!({ "what": "crowd", "keys": crowd, "seconds": spread.as_secs_f64(), "before": before, "during": during, "lag": lag }));
    let others = |results: &Value| {
        let all = &results["phases"][0]["verbs"]["all"];
        let micros =
            ["p50", "p99", "max"].map(|name| format!("{:.0}", all[format!("{name}_nanos")].as_f64().unwrap() / 1e3));
        let late = results["phases"][0]["behind_nanos"].as_f64().unwrap() / 1e3;
        format!("{} ({late:.0})", micros.join(" / "))
    };
    let millis = |name: &str| format!("{:.2}", lag[name].as_f64().unwrap() / 1e3);
    vec![
        format!("{crowd} keys"),
        format!("{:.2}", spread.as_secs_f64()),
        format!("{:.0}", crowd as f64 / spread.as_secs_f64()),
        millis("p50"),
        millis("max"),
        others(&before),
        others(&during),
    ]
}

/// From the first expiry to the last.
fn watch(client: &mut Client, crowd: usize) -> Duration {
    let mut first = None;
    loop {
        let stats: Value = serde_json::from_str(&client.stats().unwrap()).unwrap();
        let expired = stats["expiry"]["expired"].as_u64().unwrap() as usize;
        let now = Instant::now();
        if expired > 0 {
            first.get_or_insert(now);
        }
        if expired >= crowd {
            return now - first.unwrap();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
