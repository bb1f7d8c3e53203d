//! Latencies in a report. This module records none.

use serde::Serialize;

use crate::stats::LatencySnapshot;

/// Nanoseconds in a microsecond.
const NANOS_PER_MICRO: u64 = 1_000;

/// Latencies, of which JSON has the percentiles in microseconds. Without a sample there is no percentile.
#[derive(Serialize)]
pub(crate) struct Micros {
    samples: u64,
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
    max: Option<f64>,
    /// The samples themselves.
    #[serde(skip)]
    pub(crate) snapshot: LatencySnapshot,
}

impl Micros {
    pub(crate) fn of(snapshot: LatencySnapshot) -> Self {
        let nanos = snapshot.percentiles();
        let micros = |value: u64| (nanos.count > 0).then_some(value as f64 / NANOS_PER_MICRO as f64);
        Self {
            samples: nanos.count,
            p50: micros(nanos.p50),
            p90: micros(nanos.p90),
            p99: micros(nanos.p99),
            p999: micros(nanos.p999),
            max: micros(nanos.max),
            snapshot,
        }
    }
}
