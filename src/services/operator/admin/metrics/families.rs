//! Collects samples of metrics, and writes them as families: a name, a help, a unit, and the samples with their labels. A
//! family without a sample is left out. This module does not know what is counted.

use std::collections::HashMap;
use std::fmt::Result;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::services::tables::report::{Metric, MetricKind, MetricsLine, Readable, Reading};
use crate::stats::LatencySnapshot;

/// The upper bounds of the buckets of latencies, in nanoseconds: 1, 2 and 5 of each decade from a microsecond to ten
/// seconds.
const BOUNDS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];
const NANOS_PER_SECOND: f64 = 1e9;

/// Names and values of labels.
pub(super) type Labels<'l> = [(&'static str, &'l str)];

/// A reading with its labels.
type Sample<'d> = (Vec<(&'static str, String)>, Reading<'d>);

/// Samples by family, in the order in which the families came.
#[derive(Default)]
pub(super) struct Families<'d> {
    places: HashMap<&'static str, usize>,
    all: Vec<(Metric, Vec<Sample<'d>>)>,
}

impl<'d> Families<'d> {
    /// Adds a sample. It gets those of the labels that the metric has. Latencies without a sample are left out: they
    /// would be latencies of zero.
    pub(super) fn add(&mut self, metric: Metric, labels: &Labels<'_>, reading: Reading<'d>) {
        if matches!(reading, Reading::Latencies(latencies) if latencies.count() == 0) {
            return;
        }
        let value = |name: &&'static str| {
            labels.iter().find(|(given, _)| given == name).map(|(name, value)| (*name, (*value).to_owned()))
        };
        let labels = metric.labels.iter().filter_map(value).collect();
        let place = *self.places.entry(metric.name).or_insert_with(|| {
            self.all.push((metric, Vec::new()));
            self.all.len() - 1
        });
        if let Some((_, samples)) = self.all.get_mut(place) {
            samples.push((labels, reading));
        }
    }

    /// Adds the samples of a line.
    pub(super) fn line(&mut self, line: &'d dyn MetricsLine, labels: &Labels<'_>) {
        line.read(&mut |metric, reading| self.add(metric, labels, reading));
    }

    /// Adds a metric that is in no line.
    pub(super) fn single(&mut self, metric: Metric, labels: &Labels<'_>, value: &'d impl Readable) {
        if let Some(reading) = value.reading() {
            self.add(metric, labels, reading);
        }
    }

    /// Writes all families.
    pub(super) fn write(&self, encoder: &mut DescriptorEncoder<'_>) -> Result {
        for (metric, samples) in &self.all {
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let unit = metric.unit.map(|unit| Unit::Other(unit.to_owned()));
            let mut family = encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            for (labels, reading) in samples {
                // With an empty set a sample would have empty braces.
                match labels.is_empty() {
                    true => write_sample(&mut family, metric.kind, *reading)?,
                    false => write_sample(&mut family.encode_family(labels)?, metric.kind, *reading)?,
                }
            }
        }
        Ok(())
    }
}

fn write_sample(encoder: &mut MetricEncoder<'_>, kind: MetricKind, reading: Reading<'_>) -> Result {
    match (kind, reading) {
        (MetricKind::Counter, Reading::Count(count)) => encoder.encode_counter::<NoLabelSet, _, u64>(&count, None),
        (_, Reading::Count(count)) => encoder.encode_gauge(&(count as f64)),
        (_, Reading::Value(value)) => encoder.encode_gauge(&value),
        (_, Reading::Latencies(latencies)) => {
            let sum = latencies.sum_nanos() / NANOS_PER_SECOND;
            encoder.encode_histogram::<NoLabelSet>(sum, latencies.count(), &buckets(latencies), None)
        }
    }
}

/// The number of samples in each bucket, with its upper bound in seconds. The last bucket has no bound: `+Inf`.
fn buckets(latencies: &LatencySnapshot) -> Vec<(f64, u64)> {
    let mut below = 0;
    let mut bucket = |bound: f64, within: u64| {
        let count = within - below;
        below = within;
        (bound, count)
    };
    let seconds = BOUNDS.map(|nanos| nanos as f64 / NANOS_PER_SECOND);
    let bounded = seconds.into_iter().zip(latencies.counts_within(BOUNDS));
    let all = bounded.chain([(f64::INFINITY, latencies.count())]);
    all.map(|(bound, within)| bucket(bound, within)).collect()
}
