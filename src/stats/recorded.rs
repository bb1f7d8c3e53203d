//! Latencies of a stretch of time: the difference of two snapshots. The earlier one is kept in little memory.

use super::{LatencySnapshot, empty_histogram};

/// A snapshot that is kept: each recorded value with its count, without the empty places of a histogram.
#[derive(Clone, Debug, Default)]
pub struct RecordedLatencies(Box<[(u64, u64)]>);

impl LatencySnapshot {
    /// No sample.
    #[must_use]
    pub fn none() -> Self {
        Self(empty_histogram())
    }

    /// Adds the samples of another snapshot.
    pub fn add(&mut self, other: &Self) {
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok(), "a histogram that grows takes every other");
    }

    /// The samples, to be kept.
    #[must_use]
    pub fn recorded(&self) -> RecordedLatencies {
        let values = self.0.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value()));
        RecordedLatencies(values.collect())
    }

    /// The samples since an earlier snapshot of the same latencies.
    ///
    /// ```
    /// use spindle::stats::{Latencies, LatencySnapshot};
    ///
    /// let latencies = Latencies::new();
    /// latencies.record(1_000_000);
    /// let earlier = LatencySnapshot::of([&latencies]).recorded();
    /// latencies.record(2_000);
    /// let later = LatencySnapshot::of([&latencies]).since(&earlier).percentiles();
    /// assert_eq!((later.count, later.p50, later.max), (1, 2_000, 2_000));
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &RecordedLatencies) -> Self {
        let mut before = empty_histogram();
        for &(value, count) in &earlier.0 {
            let recorded = before.record_n(value, count);
            debug_assert!(recorded.is_ok(), "a histogram that grows takes every value");
        }
        let mut since = self.0.clone();
        match since.subtract(&before) {
            Ok(()) => Self(since),
            // The other snapshot is not an earlier one.
            Err(_) => self.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Latencies;
    use super::*;

    fn now(latencies: &Latencies) -> LatencySnapshot {
        LatencySnapshot::of([latencies])
    }

    #[test]
    fn the_samples_of_a_stretch_are_those_between_two_snapshots() {
        let latencies = Latencies::new();
        assert_eq!(now(&latencies).since(&RecordedLatencies::default()).count(), 0);
        (1..=1_000).for_each(|nanos| latencies.record(nanos * 1_000_000));
        let earlier = now(&latencies).recorded();
        assert_eq!(now(&latencies).since(&earlier).count(), 0);
        assert_eq!(now(&latencies).since(&RecordedLatencies::default()).count(), 1_000);
        latencies.record_times(5_000, 99);
        latencies.record(20_000_000_000);
        let since = now(&latencies).since(&earlier).percentiles();
        assert_eq!((since.count, since.p50, since.p99), (100, 5_003, 5_003), "three digits");
        assert!(since.max >= 20_000_000_000);
    }

    #[test]
    fn the_samples_of_several_are_added() {
        let (one, other) = (Latencies::new(), Latencies::new());
        one.record(1_000);
        other.record_times(3_000, 2);
        let mut all = LatencySnapshot::none();
        [&one, &other].into_iter().for_each(|latencies| all.add(&now(latencies)));
        assert_eq!((all.count(), all.percentiles().p50), (3, 3_001));
    }
}
