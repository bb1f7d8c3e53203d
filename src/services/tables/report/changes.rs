//! The part of STATS on changes: those on their way to the publisher, those published, and the subscribers.

use super::metric::{CLOSED, LOST, PUBLISHED, SUBSCRIBERS, SUBSCRIPTIONS, counter, gauge, line};
use crate::net::zeromq::publish::PublisherMetrics;
use crate::stats::{Counter, Gauge};
use crate::tables::TablesMetrics;

/// The metrics of the publisher, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::services::tables) struct PublishMetrics {
    /// Notifications sent.
    pub(in crate::services::tables) published: Counter,
    pub(in crate::services::tables) subscribers: SubscribersMetrics,
}

/// The publisher's metrics of its subscribers.
#[derive(Debug, Default)]
pub(in crate::services::tables) struct SubscribersMetrics {
    pub(super) topics: Gauge,
    pub(super) subscribers: Gauge,
    pub(super) subscriptions: Gauge,
    pub(super) lost: Gauge,
    pub(super) closed: Gauge,
}

impl SubscribersMetrics {
    /// Updates the metrics.
    pub(in crate::services::tables) fn show(&self, publisher_metrics: &PublisherMetrics) {
        self.topics.set(publisher_metrics.topics);
        self.subscribers.set(publisher_metrics.subscribers);
        self.subscriptions.set(publisher_metrics.subscriptions);
        self.lost.set(publisher_metrics.lost);
        self.closed.set(publisher_metrics.closed);
    }
}

line! {
    pub(crate) struct ChangesLine {
        waiting: u64 = gauge("spindle_changes_waiting", "Changes that are committed and not announced."),
        writer_waits: u64 = counter("spindle_writer_waits", "How often a writer waited for the publisher."),
        lost_wakeups: u64 = counter("spindle_lost_wakeups", "Time-outs that found work without a wake-up."),
        #[serde(flatten)]
        publish: PublishLine => read,
    }
}

line! {
    /// What the publisher has sent to an endpoint, and its subscribers.
    pub(crate) struct PublishLine {
        published: u64 = PUBLISHED,
        topics: u64,
        subscribers: u64 = SUBSCRIBERS,
        subscriptions: u64 = SUBSCRIPTIONS,
        lost_notifications: u64 = LOST,
        closed_subscribers: u64 = CLOSED,
    }
}

impl ChangesLine {
    pub(super) fn of(tables_metrics: &TablesMetrics, metrics: &PublishMetrics) -> Self {
        Self {
            waiting: tables_metrics.changes_waiting,
            writer_waits: tables_metrics.writer_waits,
            lost_wakeups: tables_metrics.lost_wakeups,
            publish: PublishLine::of(metrics),
        }
    }
}

impl PublishLine {
    pub(super) fn of(metrics: &PublishMetrics) -> Self {
        let subscribers = &metrics.subscribers;
        Self {
            published: metrics.published.get(),
            topics: subscribers.topics.get(),
            subscribers: subscribers.subscribers.get(),
            subscriptions: subscribers.subscriptions.get(),
            lost_notifications: subscribers.lost.get(),
            closed_subscribers: subscribers.closed.get(),
        }
    }
}
