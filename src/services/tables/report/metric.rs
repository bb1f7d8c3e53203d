//! The registry of metrics: a field of a line of STATS and its metric in OpenMetrics are named in one place.
//!
//! ```text
//! line! { struct ExpiryLine { pending: u64 = gauge("spindle_timers", "Elements with a deadline."), … } }
//!     ─► a struct, which STATS gives as JSON
//!     ─► MetricsLine::read: each metric with its reading, which the operator's service writes as OpenMetrics
//! ```
//! A field without a metric stands in STATS alone. A field `part: Part => read` is a line whose fields stand in this one. This module counts nothing and writes no text.

use super::micros::Micros;
use crate::stats::LatencySnapshot;

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric. Its name is without its unit and without `_total`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) unit: Option<&'static str>,
    /// The names of its labels. The reader of a line gives their values.
    pub(crate) labels: &'static [&'static str],
}

const fn metric(kind: MetricKind, name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind, unit: None, labels: &[] }
}

/// A count since the start.
pub(crate) const fn counter(name: &'static str, help: &'static str) -> Metric {
    metric(MetricKind::Counter, name, help)
}

/// A value of this moment.
pub(crate) const fn gauge(name: &'static str, help: &'static str) -> Metric {
    metric(MetricKind::Gauge, name, help)
}

/// Latencies, in seconds.
pub(crate) const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { unit: Some("seconds"), ..metric(MetricKind::Histogram, name, help) }
}

impl Metric {
    pub(crate) const fn bytes(self) -> Self {
        Self { unit: Some("bytes"), ..self }
    }

    pub(crate) const fn seconds(self) -> Self {
        Self { unit: Some("seconds"), ..self }
    }

    pub(crate) const fn ratio(self) -> Self {
        Self { unit: Some("ratio"), ..self }
    }

    /// Each line has a sample of its own, with these labels.
    pub(crate) const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }
}

/// What a field says.
#[derive(Clone, Copy)]
pub(crate) enum Reading<'l> {
    Count(u64),
    Value(f64),
    Latencies(&'l LatencySnapshot),
}

/// The type of a field with a metric. `None`: there is nothing to read.
pub(crate) trait Readable {
    fn reading(&self) -> Option<Reading<'_>>;
}

impl Readable for u64 {
    fn reading(&self) -> Option<Reading<'_>> {
        Some(Reading::Count(*self))
    }
}

impl Readable for f64 {
    fn reading(&self) -> Option<Reading<'_>> {
        Some(Reading::Value(*self))
    }
}

impl Readable for bool {
    fn reading(&self) -> Option<Reading<'_>> {
        Some(Reading::Count(u64::from(*self)))
    }
}

impl Readable for Micros {
    fn reading(&self) -> Option<Reading<'_>> {
        Some(Reading::Latencies(&self.snapshot))
    }
}

impl<T: Readable> Readable for Option<T> {
    fn reading(&self) -> Option<Reading<'_>> {
        self.as_ref().and_then(T::reading)
    }
}

/// A part of STATS with metrics.
pub(crate) trait MetricsLine {
    /// Gives `to` each metric and its reading, in the order of the fields.
    fn read<'l>(&'l self, to: &mut dyn FnMut(Metric, Reading<'l>));
}

/// Declares a line: a struct whose fields may name a metric.
macro_rules! line {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $type:ty $(= $metric:expr)? $(=> $read:ident)?,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(serde::Serialize)]
        $visibility struct $name {
            $($(#[$field_attribute])* $field_visibility $field: $type,)*
        }

        impl $crate::services::tables::report::MetricsLine for $name {
            fn read<'l>(
                &'l self,
                to: &mut dyn FnMut(
                    $crate::services::tables::report::Metric,
                    $crate::services::tables::report::Reading<'l>,
                ),
            ) {
                $($(
                    if let Some(reading) = $crate::services::tables::report::Readable::reading(&self.$field) {
                        to($metric, reading);
                    }
                )? $($crate::services::tables::report::MetricsLine::$read(&self.$field, to);)?)*
            }
        }
    };
}
pub(crate) use line;

// ------------------------------------------------------------------------- metrics of several lines, or of no one field

pub(crate) const REQUESTS: Metric =
    counter("spindle_requests", "Requests that were answered, refused ones included.").by(&["protocol", "verb"]);
pub(crate) const REFUSALS: Metric =
    counter("spindle_refusals", "Requests that were refused, by reason.").by(&["protocol", "verb", "reason"]);
pub(crate) const EXECUTION: Metric = histogram(
    "spindle_execution",
    "Time from a request's turn until its reply was encoded, of a sample of the requests about tables.",
)
.by(&["protocol", "verb"]);
pub(crate) const END_TO_END: Metric = histogram(
    "spindle_request",
    "Time from the arrival of a request until its reply was sent, of a sample of the requests about tables.",
)
.by(&["protocol", "verb"]);
pub(crate) const CLIENTS: Metric = gauge("spindle_clients", "Connections of clients.").by(&["protocol"]);
pub(crate) const RECEIVED: Metric =
    counter("spindle_received", "Bytes that were received from clients.").bytes().by(&["protocol"]);
pub(crate) const SENT: Metric =
    counter("spindle_sent", "Bytes that the system has taken for clients.").bytes().by(&["protocol"]);
pub(crate) const PUBLISHED: Metric =
    counter("spindle_published_messages", "Messages that were published.").by(&["endpoint"]);
pub(crate) const SUBSCRIBERS: Metric = gauge("spindle_subscribers", "Connected subscribers.").by(&["endpoint"]);
pub(crate) const SUBSCRIPTIONS: Metric =
    gauge("spindle_subscriptions", "Subscriptions of all subscribers.").by(&["endpoint"]);
pub(crate) const LOST: Metric =
    counter("spindle_lost_messages", "Messages that slow subscribers have lost.").by(&["endpoint"]);
pub(crate) const CLOSED: Metric =
    counter("spindle_closed_subscribers", "Subscribers that exceeded a bound or broke the protocol.").by(&["endpoint"]);
