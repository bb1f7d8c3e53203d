//! The measurements: the counts of each thread, and the reports made of them.
//!
//! A thread writes into its [`Recorder`] once a turn. The caller's thread takes the counts once a second by exchanging
//! them for empty ones, so neither thread waits for the other longer than an exchange takes.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::source::RequestKind;
use crate::lock::{Mutex, MutexGuard};

/// Significant digits of a latency.
const DIGITS: u8 = 3;
/// The longest latency in nanoseconds that differs from longer ones: ten minutes.
const NANOS_MAX: u64 = 600_000_000_000;

/// Latencies in nanoseconds.
pub type LatencyHistogram = Histogram<u64>;

fn empty() -> LatencyHistogram {
    Histogram::new_with_max(NANOS_MAX, DIGITS).expect("three digits of ten minutes are within what it can do")
}

/// The counts of an interval.
pub(super) struct IntervalCounts {
    /// By verb. A histogram is allocated when the first reply comes.
    latencies: [Option<LatencyHistogram>; RequestKind::COUNT],
    /// Refusals by reason.
    refused: BTreeMap<Vec<u8>, u64>,
    /// Replies that came after the measured time to requests that were due in it.
    late: u64,
    /// The longest time by which a request was sent after it was due, in nanoseconds.
    behind: u64,
}

impl IntervalCounts {
    pub(super) fn new() -> Self {
        Self { latencies: [const { None }; RequestKind::COUNT], refused: BTreeMap::new(), late: 0, behind: 0 }
    }

    pub(super) fn answered(&mut self, verb: RequestKind, nanos: u64) {
        if let Some(slot) = self.latencies.get_mut(verb.number()) {
            slot.get_or_insert_with(empty).saturating_record(nanos.max(1));
        }
    }

    pub(super) fn refused(&mut self, reason: &[u8]) {
        match self.refused.get_mut(reason) {
            Some(count) => *count += 1,
            None => _ = self.refused.insert(reason.to_vec(), 1),
        }
    }

    pub(super) fn came_late(&mut self) {
        self.late += 1;
    }

    pub(super) fn sent_behind(&mut self, nanos: u64) {
        self.behind = self.behind.max(nanos);
    }

    /// Adds the counts of another interval or thread.
    pub(super) fn add(&mut self, other: &Self) {
        for (ours, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            if let Some(theirs) = theirs {
                let added = ours.get_or_insert_with(empty).add(theirs);
                debug_assert!(added.is_ok(), "both have the same bounds");
            }
        }
        for (reason, count) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += count;
        }
        self.late += other.late;
        self.behind = self.behind.max(other.behind);
    }

    /// The verbs with replies, and their latencies.
    pub(super) fn verbs(&self) -> impl Iterator<Item = (RequestKind, &LatencyHistogram)> {
        RequestKind::ALL
            .into_iter()
            .zip(&self.latencies)
            .filter_map(|(verb, latencies)| Some((verb, latencies.as_ref()?)))
    }

    /// The latencies of all verbs.
    pub(super) fn together(&self) -> LatencyHistogram {
        let mut all = empty();
        for (_, latencies) in self.verbs() {
            let added = all.add(latencies);
            debug_assert!(added.is_ok(), "both have the same bounds");
        }
        all
    }

    pub(super) fn answers(&self) -> u64 {
        self.verbs().map(|(_, latencies)| latencies.len()).sum()
    }

    /// How often each reason was given.
    pub(super) fn reasons(&self) -> Vec<(String, u64)> {
        self.refused.iter().map(|(reason, count)| (reason.escape_ascii().to_string(), *count)).collect()
    }

    fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }
}

/// The counts that one thread writes and another takes.
pub(super) struct Recorder(Mutex<IntervalCounts>);

impl Recorder {
    pub(super) fn new() -> Self {
        Self(Mutex::new(IntervalCounts::new()))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, IntervalCounts> {
        self.0.lock()
    }

    /// Takes the counts since the last call.
    pub(super) fn take(&self) -> IntervalCounts {
        std::mem::replace(&mut *self.lock(), IntervalCounts::new())
    }
}

/// One second of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Second {
    /// Seconds of the phase that have passed, without the warm-up.
    pub at: f64,
    /// Replies a second.
    pub rate: f64,
    /// The median latency in nanoseconds.
    pub p50: u64,
    /// 99 % of the latencies are not above this one.
    pub p99: u64,
    /// The longest latency.
    pub max: u64,
    /// Refusals in this second.
    pub refused: u64,
}

impl Second {
    pub(super) fn of(counts: &IntervalCounts, at: f64, seconds: f64) -> Self {
        let all = counts.together();
        Self {
            at,
            rate: rate(counts.answers(), seconds),
            p50: all.value_at_quantile(0.5),
            p99: all.value_at_quantile(0.99),
            max: all.max(),
            refused: counts.refusals(),
        }
    }
}

/// The report of a verb. Latencies are nanoseconds, to three digits.
#[derive(Clone, Debug, PartialEq)]
pub struct VerbReport {
    /// The verb, or `all` for all verbs.
    pub verb: &'static str,
    /// Replies, refusals included.
    pub answers: u64,
    /// Replies a second.
    pub rate: f64,
    /// The latencies at 50, 90, 99, 99.9 and 99.99 %, and the longest one.
    pub percentiles: [u64; 6],
}

/// Names and quantiles of [`VerbReport::percentiles`].
pub(super) const PERCENTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];

impl VerbReport {
    fn of(verb: &'static str, latencies: &LatencyHistogram, late: u64, seconds: f64) -> Self {
        let at = |quantile: f64| if quantile < 1.0 { latencies.value_at_quantile(quantile) } else { latencies.max() };
        Self {
            verb,
            answers: latencies.len(),
            rate: rate(latencies.len().saturating_sub(late), seconds),
            percentiles: PERCENTILES.map(|(_, quantile)| at(quantile)),
        }
    }

    /// The names of the percentiles, in their order.
    pub fn percentile_names() -> impl Iterator<Item = &'static str> {
        PERCENTILES.into_iter().map(|(name, _)| name)
    }
}

/// The report of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseReport {
    /// Requests a second that were due. None in a closed loop.
    pub asked: Option<f64>,
    /// Seconds that were measured.
    pub seconds: f64,
    /// Each verb with replies, and all verbs as the last entry.
    pub verbs: Vec<VerbReport>,
    /// How often each reason was given. KEY NOT FOUND is one of them.
    pub refused: Vec<(String, u64)>,
    /// The longest time by which a request was sent after it was due, in nanoseconds. If it is near the latencies, the
    /// generator or `depth` was the limit.
    pub behind: u64,
    /// The latencies of all verbs.
    pub latencies: LatencyHistogram,
    /// Each second of the phase.
    pub course: Vec<Second>,
}

impl PhaseReport {
    pub(super) fn of(counts: &IntervalCounts, asked: Option<f64>, seconds: f64) -> Self {
        let all = counts.together();
        let share = |latencies: &LatencyHistogram| {
            // Late replies are not counted by verb. They are few, and each verb gets its share of them.
            (latencies.len() * counts.late).checked_div(all.len()).unwrap_or(0)
        };
        let one = |(verb, latencies): (RequestKind, &LatencyHistogram)| {
            VerbReport::of(verb.name(), latencies, share(latencies), seconds)
        };
        let mut verbs: Vec<_> = counts.verbs().map(one).collect();
        verbs.push(VerbReport::of("all", &all, counts.late, seconds));
        Self {
            asked,
            seconds,
            verbs,
            refused: counts.reasons(),
            behind: counts.behind,
            latencies: all,
            course: Vec::new(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn a_report_is_of_all_threads_and_distinguishes_verbs() {
        let recorders = [Recorder::new(), Recorder::new()];
        for nanos in 1..=1_000 {
            recorders[0].lock().answered(RequestKind::Get, nanos * 1_000);
            recorders[1].lock().answered(RequestKind::Set, nanos * 2_000);
        }
        recorders[1].lock().refused(b"KEY NOT FOUND");
        recorders[0].lock().refused(b"KEY NOT FOUND");
        recorders[0].lock().sent_behind(77);
        let mut counts = IntervalCounts::new();
        recorders.iter().for_each(|recorder| counts.add(&recorder.take()));
        let report = PhaseReport::of(&counts, None, 2.0);
        let names: Vec<_> = report.verbs.iter().map(|verb| (verb.verb, verb.answers, verb.rate)).collect();
        assert_eq!(names, [("get", 1_000, 500.0), ("set", 1_000, 500.0), ("all", 2_000, 1_000.0)]);
        let [p50, p90, p99, _, _, max] = report.verbs[0].percentiles;
        for (value, wanted) in [(p50, 500_000_u64), (p90, 900_000), (p99, 990_000), (max, 1_000_000)] {
            assert!(value.abs_diff(wanted) <= wanted / 500, "{value} {wanted}");
        }
        assert_eq!((report.refused, report.behind), (vec![("KEY NOT FOUND".to_owned(), 2)], 77));
        assert_eq!(recorders[0].take().answers(), 0, "what was taken is gone");
    }

    #[test]
    fn answers_after_the_end_are_in_the_percentiles_and_not_in_the_rate() {
        let mut counts = IntervalCounts::new();
        for _ in 0..10 {
            counts.answered(RequestKind::Get, 5);
        }
        counts.came_late();
        counts.came_late();
        let report = PhaseReport::of(&counts, Some(4.0), 2.0);
        assert_eq!((report.verbs[0].answers, report.verbs[0].rate), (10, 4.0));
    }

    #[test]
    fn nothing_at_all_is_a_report_too() {
        let report = PhaseReport::of(&IntervalCounts::new(), None, 0.0);
        assert_eq!(report.verbs.len(), 1);
        assert_eq!(report.verbs[0].percentiles, [0; 6]);
    }
}
