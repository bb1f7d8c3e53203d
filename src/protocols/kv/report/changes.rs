//! What STATS say of changes: those on their way to the publisher, those that it has told, and who hears of them.

use serde::Serialize;

use crate::protocols::publish::Figures;
use crate::stats::{Counter, Gauge};
use crate::tables::Census;

/// What the publisher counts; on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::protocols::kv) struct PublishTally {
    /// Notifications sent.
    pub(in crate::protocols::kv) published: Counter,
    pub(in crate::protocols::kv) subscribers: SubscribersTally,
}

/// What the publisher shows of its subscribers.
#[derive(Debug, Default)]
pub(in crate::protocols::kv) struct SubscribersTally {
    topics: Gauge,
    subscribers: Gauge,
    subscriptions: Gauge,
    lost: Gauge,
    closed: Gauge,
}

impl SubscribersTally {
    /// Says what the figures are now.
    pub(in crate::protocols::kv) fn show(&self, figures: &Figures) {
        self.topics.set(figures.topics);
        self.subscribers.set(figures.subscribers);
        self.subscriptions.set(figures.subscriptions);
        self.lost.set(figures.lost);
        self.closed.set(figures.closed);
    }
}

#[derive(Serialize)]
pub(super) struct ChangesLine {
    waiting: u64,
    writer_waits: u64,
    lost_wakeups: u64,
    published: u64,
    topics: u64,
    subscribers: u64,
    subscriptions: u64,
    lost_notifications: u64,
    closed_subscribers: u64,
}

impl ChangesLine {
    pub(super) fn of(census: &Census, tally: &PublishTally) -> Self {
        let subscribers = &tally.subscribers;
        Self {
            waiting: census.changes_waiting,
            writer_waits: census.writer_waits,
            lost_wakeups: census.lost_wakeups,
            published: tally.published.get(),
            topics: subscribers.topics.get(),
            subscribers: subscribers.subscribers.get(),
            subscriptions: subscribers.subscriptions.get(),
            lost_notifications: subscribers.lost.get(),
            closed_subscribers: subscribers.closed.get(),
        }
    }
}
