//! The last ten minutes, a point each second, and the latencies of the last minute by verb.
//!
//! ```text
//! live: each second ─► History::record: verbs and memory ─► a point: requests a second, memory, latencies by protocol
//!                                                       └─► each five seconds a mark: the latencies by verb until then
//! the page, /stats ─► History::last_minute: the latencies by verb now, without those of the mark a minute ago
//! ```
//! A point reads no table, and costs the threads of the requests no more than a report of STATS does. So points are made
//! whether a page is shown or not, and a page that is opened later shows them too.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::Serialize;

use super::limits::{MARK_PERIOD, MARKS_MAX, POINTS_MAX};
use crate::clock::Now;
use crate::services::tables::report::{Micros, VerbTimes};
use crate::stats::{LatencySnapshot, RecordedLatencies};

/// Nanoseconds in a second.
const NANOS_PER_SECOND: f64 = 1e9;

/// A second.
#[derive(Clone, Serialize)]
pub(super) struct Point {
    unix_millis: u64,
    /// `None` for the first point.
    requests_per_second: Option<f64>,
    memory_bytes: u64,
    /// By protocol. A protocol without a sample in this second is left out.
    latency_micros: BTreeMap<&'static str, PointLatency>,
}

/// The latencies of a protocol in a second, from end to end.
#[derive(Clone, Copy, Serialize)]
struct PointLatency {
    p50: f64,
    p99: f64,
}

/// The latencies of a verb in the last minute.
#[derive(Serialize)]
pub(super) struct MinuteLine {
    protocol: &'static str,
    verb: &'static str,
    end_to_end_micros: Micros,
}

/// What is read each second.
pub(super) struct Reading {
    pub(super) now: Now,
    pub(super) unix_millis: u64,
    pub(super) memory_bytes: u64,
    pub(super) verbs: Vec<VerbTimes>,
}

/// What a point is made against.
struct Before {
    now: Now,
    requests: u64,
    protocols: HashMap<&'static str, RecordedLatencies>,
}

/// The latencies of each verb until a moment.
struct Mark {
    now: Now,
    verbs: HashMap<(&'static str, &'static str), RecordedLatencies>,
}

/// The points and marks. The thread `admin` writes and reads them.
#[derive(Default)]
pub(super) struct History {
    points: VecDeque<Point>,
    before: Option<Before>,
    marks: VecDeque<Mark>,
}

impl History {
    /// The points, the earliest first.
    pub(super) fn points(&self) -> impl ExactSizeIterator<Item = &Point> {
        self.points.iter()
    }

    /// Adds a point, and a mark if it is time for one.
    pub(super) fn record(&mut self, reading: &Reading) {
        let requests = reading.verbs.iter().map(|times| times.requests).sum();
        let mut protocols = HashMap::new();
        for times in &reading.verbs {
            protocols.entry(times.protocol).or_insert_with(LatencySnapshot::none).add(&times.whole);
        }
        let before = self.before.as_ref();
        let point = Point {
            unix_millis: reading.unix_millis,
            requests_per_second: before.and_then(|before| before.rate(requests, reading.now)),
            memory_bytes: reading.memory_bytes,
            latency_micros: before.map_or_else(BTreeMap::new, |before| before.latencies(&protocols)),
        };
        keep(&mut self.points, point, POINTS_MAX);
        let protocols = protocols.into_iter().map(|(protocol, whole)| (protocol, whole.recorded())).collect();
        self.before = Some(Before { now: reading.now, requests, protocols });
        if self.marks.back().is_none_or(|mark| mark.now.after(MARK_PERIOD) <= reading.now) {
            let verbs = reading.verbs.iter().map(|times| ((times.protocol, times.verb), times.whole.recorded()));
            keep(&mut self.marks, Mark { now: reading.now, verbs: verbs.collect() }, MARKS_MAX);
        }
    }

    /// The latencies since the oldest mark, of verbs with a sample since then.
    pub(super) fn last_minute(&self, verbs: Vec<VerbTimes>) -> Vec<MinuteLine> {
        let none = RecordedLatencies::default();
        let since = |times: VerbTimes| {
            let mark = self.marks.front().and_then(|mark| mark.verbs.get(&(times.protocol, times.verb)));
            let latencies = times.whole.since(mark.unwrap_or(&none));
            let VerbTimes { protocol, verb, .. } = times;
            (latencies.count() > 0).then(|| MinuteLine { protocol, verb, end_to_end_micros: Micros::of(latencies) })
        };
        verbs.into_iter().filter_map(since).collect()
    }
}

impl Before {
    fn rate(&self, requests: u64, now: Now) -> Option<f64> {
        let seconds = self.now.nanos_until(now) as f64 / NANOS_PER_SECOND;
        (seconds > 0.0).then(|| requests.saturating_sub(self.requests) as f64 / seconds)
    }

    fn latencies(&self, protocols: &HashMap<&'static str, LatencySnapshot>) -> BTreeMap<&'static str, PointLatency> {
        let none = RecordedLatencies::default();
        let of = |(protocol, whole): (&&'static str, &LatencySnapshot)| {
            let since = whole.since(self.protocols.get(protocol).unwrap_or(&none)).percentiles();
            let latency = PointLatency { p50: since.p50 as f64 / 1e3, p99: since.p99 as f64 / 1e3 };
            (since.count > 0).then_some((*protocol, latency))
        };
        protocols.iter().filter_map(of).collect()
    }
}

/// Adds the latest one. Of more than `most`, the earliest is dropped.
fn keep<T>(all: &mut VecDeque<T>, latest: T, most: usize) {
    if all.len() >= most {
        all.pop_front();
    }
    all.push_back(latest);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use serde_json::{Value, json};

    use super::*;
    use crate::stats::Latencies;

    /// A second after the start, of a verb with these latencies.
    fn reading(second: u64, requests: u64, latencies: &Latencies) -> Reading {
        let whole = LatencySnapshot::of([latencies]);
        Reading {
            now: Now::from_millis(second * 1_000),
            unix_millis: second * 1_000,
            memory_bytes: 7,
            verbs: vec![VerbTimes { protocol: "jobs", verb: "ADD", requests, whole }],
        }
    }

    fn at(json: &Value, path: &str) -> Value {
        json.pointer(path).cloned().unwrap_or_default()
    }

    fn latest(history: &History) -> Value {
        serde_json::to_value(history.points().last().unwrap()).unwrap()
    }

    fn minute(history: &History, reading: Reading) -> Value {
        serde_json::to_value(history.last_minute(reading.verbs)).unwrap()
    }

    #[test]
    fn a_point_has_the_requests_and_latencies_of_its_second() {
        let (mut history, latencies) = (History::default(), Latencies::new());
        latencies.record(900_000_000);
        history.record(&reading(10, 100, &latencies));
        assert_eq!(at(&latest(&history), "/requests_per_second"), Value::Null, "of no second");
        latencies.record_times(2_000, 10);
        history.record(&reading(12, 300, &latencies));
        let expected = json!({ "unix_millis": 12_000, "requests_per_second": 100.0, "memory_bytes": 7,
            "latency_micros": { "jobs": { "p50": 2.0, "p99": 2.0 } } });
        assert_eq!(latest(&history), expected);
        history.record(&reading(13, 300, &latencies));
        assert_eq!(at(&latest(&history), "/latency_micros"), json!({}), "a second without a request has no latency");
    }

    #[test]
    fn ten_minutes_are_kept() {
        let (mut history, latencies) = (History::default(), Latencies::new());
        (0..1_000).for_each(|second| history.record(&reading(second, second, &latencies)));
        assert_eq!(history.points().len(), 600);
        assert_eq!(at(&serde_json::to_value(history.points().next().unwrap()).unwrap(), "/unix_millis"), 400_000);
        assert_eq!(at(&latest(&history), "/unix_millis"), 999_000);
    }

    #[test]
    fn the_last_minute_has_its_own_percentiles_and_forgets_what_was_before() {
        let (mut history, latencies) = (History::default(), Latencies::new());
        assert_eq!(minute(&history, reading(0, 0, &latencies)), json!([]));
        history.record(&reading(0, 0, &latencies));
        latencies.record_times(900_000_000, 1_000);
        history.record(&reading(1, 1_000, &latencies));
        assert_eq!(at(&minute(&history, reading(1, 1_000, &latencies)), "/0/end_to_end_micros/samples"), 1_000);
        (2..=61).for_each(|second| history.record(&reading(second, 1_000, &latencies)));
        latencies.record(2_000);
        history.record(&reading(62, 1_001, &latencies));
        let line = minute(&history, reading(62, 1_001, &latencies));
        assert_eq!(at(&line, "/0/end_to_end_micros/samples"), 1, "{line}");
        assert_eq!((at(&line, "/0/protocol"), at(&line, "/0/end_to_end_micros/p99")), (json!("jobs"), json!(2.0)));
        (63..=130).for_each(|second| history.record(&reading(second, 1_001, &latencies)));
        assert_eq!(minute(&history, reading(130, 1_001, &latencies)), json!([]), "no sample is no latency");
    }
}
