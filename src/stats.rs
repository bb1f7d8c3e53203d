//! Counters, gauges and latencies. Written by the working threads, read by reports at the same time.
//!
//! This module reads no clock and prints nothing, and a report does not make a working thread wait. The exception is a
//! sampled latency, which takes a lock that a report holds while it copies a histogram. A value is exact once its
//! writer has stopped. Until then each value is of a recent moment, and two values need not be of the same moment.

mod recorded;
pub mod service;
pub mod slow_log;

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
pub use recorded::RecordedLatencies;

use crate::lock::{Mutex, MutexGuard};

/// The longest latency that is recorded as it is, in nanoseconds: an hour. It bounds the size of a histogram.
const LATENCY_NANOS_MAX: u64 = 3_600_000_000_000;
/// Significant decimal digits of a percentile.
const DIGITS: u8 = 3;

/// A count with one writer, read by any thread. Adding is a load and a store, without a locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A count of zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds. Only the thread that owns the counter may call it: of two concurrent additions, one may be lost. Adding 0
    /// writes nothing.
    #[inline]
    pub fn add(&self, count: u64) {
        if count == 0 {
            return;
        }
        // Relaxed: a count publishes no data, and the owner sees its own stores.
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// The count at a recent moment.
    #[must_use]
    pub fn get(&self) -> u64 {
        // Relaxed: as in `add`.
        self.0.load(Ordering::Relaxed)
    }
}

/// A count that any thread may add to, for rare events. It has cache lines of its own, so that an addition evicts
/// nothing else from the caches of the cores.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// A count of zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds.
    pub fn add(&self, count: u64) {
        // Relaxed: a count publishes no data.
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count at a recent moment.
    #[must_use]
    pub fn get(&self) -> u64 {
        // Relaxed: as in `add`.
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that goes up and down, with one writer and any number of readers. Setting an unchanged value writes nothing,
/// so a loop may set it each time.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// A gauge of zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Sets the value. Only the thread that owns the gauge may call it.
    #[inline]
    pub fn set(&self, value: u64) {
        // Relaxed: a value publishes no data, and the writer sees its own stores.
        if self.0.load(Ordering::Relaxed) != value {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    /// The value at a recent moment.
    #[must_use]
    pub fn get(&self) -> u64 {
        // Relaxed: as in `set`.
        self.0.load(Ordering::Relaxed)
    }
}

/// Picks about one of `every` events, at uneven distances, so that it does not fall into step with a repeating pattern.
///
/// One thread owns it.
#[derive(Clone, Debug)]
pub struct Sampler {
    every: u32,
    /// Events to let pass before the next pick.
    left: u32,
    /// State of a xorshift generator (Marsaglia, "Xorshift RNGs", 2003); never 0.
    state: u32,
}

impl Sampler {
    /// Picks one of `every` events in the long run. 0 and 1 pick each event.
    #[must_use]
    pub const fn new(every: u32) -> Self {
        Self { every: if every == 0 { 1 } else { every }, left: 0, state: 0x9e37_79b9 }
    }

    /// Whether the present event is picked. The first one is.
    #[inline]
    pub fn picks(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = self.gap();
        true
    }

    /// The number of events to let pass: uniform over 0 ..= 2 (every − 1), so every − 1 on average.
    fn gap(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        let choices = 2 * u64::from(self.every) - 1;
        u32::try_from((u64::from(self.state) * choices) >> u32::BITS).unwrap_or(u32::MAX)
    }
}

/// Latencies that one thread records and any thread reads.
///
/// ```
/// use spindle::stats::{Latencies, Percentiles};
///
/// let (first, second) = (Latencies::new(), Latencies::new());
/// first.record(1_000);
/// second.record(3_000);
/// let both = Percentiles::of([&first, &second]);
/// assert_eq!((both.count, both.p50), (2, 1_000));
/// ```
#[derive(Debug)]
pub struct Latencies {
    /// Written by the owner for each sample, read by reports. It starts small and grows to the longest recorded
    /// latency.
    histogram: Mutex<Histogram<u64>>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Latencies without a sample.
    #[must_use]
    pub fn new() -> Self {
        Self { histogram: Mutex::new(empty_histogram()) }
    }

    /// Records one sample. It takes a lock, which is uncontended unless a report is being made, so record only sampled
    /// events.
    pub fn record(&self, nanos: u64) {
        self.record_times(nanos, 1);
    }

    /// As [`Latencies::record`], for `count` samples that took as long.
    pub fn record_times(&self, nanos: u64, count: u64) {
        let recorded = self.lock().record_n(nanos.min(LATENCY_NANOS_MAX), count);
        debug_assert!(recorded.is_ok(), "a histogram that grows takes every value");
    }

    /// Records several samples under one lock.
    pub fn record_all(&self, nanos: impl IntoIterator<Item = u64>) {
        let mut histogram = self.lock();
        for nanos in nanos {
            let recorded = histogram.record(nanos.min(LATENCY_NANOS_MAX));
            debug_assert!(recorded.is_ok(), "a histogram that grows takes every value");
        }
    }

    /// A panic leaves the histogram whole, because each record is one step. So a poisoned lock is used.
    fn lock(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.histogram.lock()
    }
}

/// Percentiles of latencies for a report, in the unit in which they were recorded, to three digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// The number of samples.
    pub count: u64,
    /// Half of the samples are not above this.
    pub p50: u64,
    /// 90 % of the samples are not above this.
    pub p90: u64,
    /// 99 % of the samples are not above this.
    pub p99: u64,
    /// 99.9 % of the samples are not above this.
    pub p999: u64,
    /// The longest sample.
    pub max: u64,
}

impl Percentiles {
    /// The percentiles of the samples of all `latencies` together.
    #[must_use]
    pub fn of<'a>(latencies: impl IntoIterator<Item = &'a Latencies>) -> Self {
        LatencySnapshot::of(latencies).percentiles()
    }
}

/// The latencies of several threads together, as they were at a recent moment, in nanoseconds.
#[derive(Clone, Debug)]
pub struct LatencySnapshot(Histogram<u64>);

impl LatencySnapshot {
    /// The samples of all `latencies` together.
    #[must_use]
    pub fn of<'a>(latencies: impl IntoIterator<Item = &'a Latencies>) -> Self {
        let mut all = empty_histogram();
        for one in latencies {
            // The sum resizes itself, so it accepts every other histogram.
            let added = all.add(&*one.lock());
            debug_assert!(added.is_ok(), "a histogram that grows takes every other");
        }
        Self(all)
    }

    /// The number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The number of samples that are not above each of these nanoseconds, which ascend, to three digits.
    #[must_use]
    pub fn counts_within<const N: usize>(&self, bounds: [u64; N]) -> [u64; N] {
        let mut recorded = self.0.iter_recorded().peekable();
        let mut within = 0;
        bounds.map(|nanos| {
            let end = self.0.highest_equivalent(nanos);
            while let Some(samples) = recorded.next_if(|samples| samples.value_iterated_to() <= end) {
                within += samples.count_at_value();
            }
            within
        })
    }

    /// The sum of the samples, in nanoseconds, to three digits.
    #[must_use]
    pub fn sum_nanos(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.mean() * self.0.len() as f64 }
    }

    /// Their percentiles.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let all = &self.0;
        if all.is_empty() {
            return Percentiles::default();
        }
        Percentiles {
            count: all.len(),
            p50: all.value_at_quantile(0.5),
            p90: all.value_at_quantile(0.9),
            p99: all.value_at_quantile(0.99),
            p999: all.value_at_quantile(0.999),
            max: all.max(),
        }
    }
}

/// A histogram that grows with its values.
fn empty_histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three digits are within the five that it can do")
}

/// The time that a thread has worked, and not waited, since it started. Written by the thread, read by any thread.
///
/// Times are nanoseconds of one clock. They come in as arguments.
#[derive(Debug)]
pub struct BusyMeter {
    started: u64,
    /// Nanoseconds of the completed stretches of work.
    busy: Counter,
    /// The beginning of the present stretch of work. [`IDLE`] if there is none. Written by the owner.
    since: AtomicU64,
}

/// No stretch of work is open.
const IDLE: u64 = u64::MAX;

impl BusyMeter {
    /// The meter of a thread that starts at `now` and is idle.
    #[must_use]
    pub const fn new(now: u64) -> Self {
        Self { started: now, busy: Counter::new(), since: AtomicU64::new(IDLE) }
    }

    /// The thread begins to work. An open stretch is ended first.
    pub fn begin(&self, now: u64) {
        self.end(now);
        // Relaxed: a report that reads the old value shows a recent moment.
        self.since.store(now, Ordering::Relaxed);
    }

    /// The thread begins to wait.
    pub fn end(&self, now: u64) {
        // Relaxed: as in `begin`. A report that reads between the two stores misses this stretch once.
        let since = self.since.load(Ordering::Relaxed);
        if since != IDLE {
            self.since.store(IDLE, Ordering::Relaxed);
            self.busy.add(now.saturating_sub(since));
        }
    }

    /// Nanoseconds of work until `now`, the open stretch included.
    #[must_use]
    pub fn busy_nanos(&self, now: u64) -> u64 {
        // Relaxed: as in `begin`. IDLE lies in the future and counts as 0.
        let ongoing = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.busy.get().saturating_add(ongoing)
    }

    /// Nanoseconds until `now` of the stretch of work that is open. 0 if the thread waits.
    #[must_use]
    pub fn open_nanos(&self, now: u64) -> u64 {
        // Relaxed: as in `begin`. IDLE lies in the future and counts as 0.
        now.saturating_sub(self.since.load(Ordering::Relaxed))
    }

    /// The share of the time until `now` that was work, from 0 to 1.
    #[must_use]
    pub fn share(&self, now: u64) -> f64 {
        let total = now.saturating_sub(self.started).max(1);
        (self.busy_nanos(now) as f64 / total as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_by_others_exactly_once_its_writer_is_still() {
        let (own, shared) = (Counter::new(), SharedCounter::new());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..1000).for_each(|_| own.add(2)));
            for _ in 0..2 {
                scope.spawn(|| (0..1000).for_each(|_| shared.add(1)));
            }
        });
        assert_eq!((own.get(), shared.get()), (2000, 2000));
    }

    #[test]
    fn a_sampler_picks_the_share_that_it_was_asked_for() {
        for every in [1, 2, 7, 32, 64] {
            let mut sampler = Sampler::new(every);
            let picked = (0..1_000_000).filter(|_| sampler.picks()).count();
            let expected = 1_000_000.0 / f64::from(every);
            let error = (picked as f64 - expected).abs() / expected;
            assert!(error < 0.05, "one of {every}: {picked} instead of {expected}");
        }
    }

    #[test]
    fn a_sampler_does_not_fall_into_step_with_its_own_distance() {
        let mut sampler = Sampler::new(64);
        let mut places = [0_u32; 64];
        for _ in 0..10_000 {
            for place in &mut places {
                *place += u32::from(sampler.picks());
            }
        }
        assert!(places.iter().all(|&picks| picks > 0), "{places:?}");
    }

    #[test]
    fn a_gauge_returns_the_last_value_and_a_count_of_nothing_adds_nothing() {
        let (gauge, counter) = (Gauge::new(), Counter::new());
        for value in [7, 7, 0, 0, 9] {
            gauge.set(value);
            assert_eq!(gauge.get(), value);
        }
        [0, 2, 0, 3].into_iter().for_each(|count| counter.add(count));
        assert_eq!(counter.get(), 5);
    }

    #[test]
    fn samples_recorded_together_are_as_if_one_by_one() {
        let (one_by_one, together) = (Latencies::new(), Latencies::new());
        (1..=100).for_each(|nanos| one_by_one.record(nanos));
        together.record_all(1..=100);
        assert_eq!(Percentiles::of([&together]), Percentiles::of([&one_by_one]));
    }

    #[test]
    fn percentiles_are_of_all_samples_together() {
        let halves = [Latencies::new(), Latencies::new()];
        for (half, values) in halves.iter().zip([1..=500, 501..=1000]) {
            values.for_each(|value| half.record(value));
        }
        let all = Percentiles::of(&halves);
        assert_eq!((all.count, all.p50, all.p90, all.p99, all.max), (1000, 500, 900, 990, 1000));
        assert_eq!(Percentiles::of([&Latencies::new()]), Percentiles::default());
    }

    #[test]
    fn a_snapshot_counts_the_samples_up_to_a_bound() {
        let latencies = [Latencies::new(), Latencies::new()];
        assert_eq!(LatencySnapshot::of(&latencies).counts_within([0, u64::MAX]), [0, 0]);
        latencies[0].record_all([100, 200]);
        latencies[1].record(5_000_000);
        let both = LatencySnapshot::of(&latencies);
        assert_eq!((both.count(), both.counts_within([50, 100, 150, 1_000, u64::MAX])), (3, [0, 1, 1, 2, 3]));
        assert!((both.sum_nanos() - 5_000_300.0).abs() < 5_000.0, "{}", both.sum_nanos());
    }

    #[test]
    fn a_latency_beyond_all_bounds_counts_as_the_longest() {
        let latencies = Latencies::new();
        latencies.record(u64::MAX);
        latencies.record(0);
        let read = Percentiles::of([&latencies]);
        assert_eq!(read.count, 2);
        assert!(read.max >= LATENCY_NANOS_MAX && read.max < LATENCY_NANOS_MAX / 100 * 101);
    }

    #[test]
    fn a_busy_meter_counts_stretches_and_the_current_one() {
        let meter = BusyMeter::new(1_000);
        meter.begin(1_100);
        meter.end(1_200);
        assert_eq!(meter.busy_nanos(2_000), 100);
        meter.end(1_900);
        meter.begin(1_900);
        assert_eq!(meter.busy_nanos(2_000), 200);
        assert!((meter.share(2_000) - 0.2).abs() < 1e-9);
        assert_eq!(meter.open_nanos(2_000), 100);
        meter.begin(2_000);
        assert_eq!(meter.busy_nanos(2_000), 200);
        meter.end(2_000);
        assert_eq!(meter.open_nanos(9_000), 0);
    }
}
