//! Writes metric families: a name, a help, a unit, and samples with their labels. A family without a sample is left out.
//! This module does not know what is counted.

use std::fmt::Result;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

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

/// The label of requests about tables.
pub(super) const PROTOCOL: &str = "kv";

/// The labels of a sample: names and values.
pub(super) type Labels<'l> = &'l [(&'static str, &'l str)];

/// The name, help and unit of a family. The name is without its unit and without `_total`.
#[derive(Clone, Copy)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Option<&'static str>,
}

/// A family without a unit.
pub(super) const fn family(name: &'static str, help: &'static str) -> Family {
    Family { name, help, unit: None }
}

impl Family {
    pub(super) const fn bytes(self) -> Self {
        Self { unit: Some("bytes"), ..self }
    }

    pub(super) const fn seconds(self) -> Self {
        Self { unit: Some("seconds"), ..self }
    }

    pub(super) const fn ratio(self) -> Self {
        Self { unit: Some("ratio"), ..self }
    }

    fn unit(self) -> Option<Unit> {
        self.unit.map(|unit| Unit::Other(unit.to_owned()))
    }
}

/// Writes families one after the other.
pub(super) struct FamilyWriter<'e> {
    pub(super) encoder: DescriptorEncoder<'e>,
}

impl FamilyWriter<'_> {
    /// A counter with several samples.
    pub(super) fn counters(&mut self, family: Family, samples: &[(Labels<'_>, u64)]) -> Result {
        if samples.is_empty() {
            return Ok(());
        }
        let unit = family.unit();
        let mut metric =
            self.encoder.encode_descriptor(family.name, family.help, unit.as_ref(), MetricType::Counter)?;
        for (labels, count) in samples {
            // Without this a sample without labels would have empty braces.
            match labels {
                [] => metric.encode_counter::<NoLabelSet, _, u64>(count, None)?,
                labels => metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?,
            }
        }
        Ok(())
    }

    /// A counter with one sample.
    pub(super) fn counter(&mut self, family: Family, count: u64) -> Result {
        self.counters(family, &[(&[], count)])
    }

    /// A gauge with several samples.
    pub(super) fn gauges(&mut self, family: Family, samples: &[(Labels<'_>, f64)]) -> Result {
        if samples.is_empty() {
            return Ok(());
        }
        let unit = family.unit();
        let mut metric = self.encoder.encode_descriptor(family.name, family.help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, figure) in samples {
            match labels {
                [] => metric.encode_gauge(figure)?,
                labels => metric.encode_family(labels)?.encode_gauge(figure)?,
            }
        }
        Ok(())
    }

    /// A gauge with one sample.
    pub(super) fn gauge(&mut self, family: Family, figure: u64) -> Result {
        self.gauges(family, &[(&[], figure as f64)])
    }

    /// Histograms of latencies, in seconds. One without a sample is left out: it would be a latency of zero.
    pub(super) fn latencies(&mut self, family: Family, samples: &[(Labels<'_>, &LatencySnapshot)]) -> Result {
        let mut sampled = samples.iter().filter(|(_, latencies)| latencies.count() > 0).peekable();
        if sampled.peek().is_none() {
            return Ok(());
        }
        let unit = family.seconds().unit();
        let mut metric =
            self.encoder.encode_descriptor(family.name, family.help, unit.as_ref(), MetricType::Histogram)?;
        for (labels, latencies) in sampled {
            let buckets = buckets(latencies);
            let sum = latencies.sum_nanos() / NANOS_PER_SECOND;
            metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, latencies.count(), &buckets, None)?;
        }
        Ok(())
    }
}

/// The number of samples in each bucket, with its upper bound in seconds. The last bucket has no bound.
fn buckets(latencies: &LatencySnapshot) -> Vec<(f64, u64)> {
    let mut below = 0;
    let mut bucket = |bound: f64, within: u64| {
        let count = within - below;
        below = within;
        (bound, count)
    };
    let seconds = BOUNDS.map(|nanos| nanos as f64 / NANOS_PER_SECOND);
    let bounded = seconds.into_iter().zip(latencies.counts_within(BOUNDS));
    let all = bounded.chain([(f64::MAX, latencies.count())]);
    all.map(|(bound, within)| bucket(bound, within)).collect()
}
