//! The part of STATS on the feed: what it has published and keeps, and its subscribers.

use std::sync::OnceLock;

use super::changes::SubscribersMetrics;
use super::metric::{CLOSED, LOST, PUBLISHED, SUBSCRIBERS, SUBSCRIPTIONS, counter, gauge, line};
use crate::feed::FeedMetrics;
use crate::stats::Counter;

/// The metrics of the publisher for the feed, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::services::tables) struct FeedPublisherMetrics {
    /// Bookmarks sent.
    pub(in crate::services::tables) bookmarks: Counter,
    pub(in crate::services::tables) subscribers: SubscribersMetrics,
    /// Where the feed is published, with the port that the system chose. `bind` writes it once.
    pub(in crate::services::tables) endpoint: OnceLock<String>,
}

line! {
    pub(crate) struct FeedLine {
        endpoint: Option<String>,
        changes: u64 = counter("spindle_feed_changes", "States that the feed has published."),
        conflated: u64 =
            counter("spindle_feed_conflated", "Changes that a later one of the element has replaced."),
        messages: u64 = PUBLISHED,
        bookmarks: u64 = counter("spindle_feed_bookmarks", "Bookmarks that were sent."),
        history_bytes: u64 =
            gauge("spindle_feed_history", "Bytes of the messages that are kept for replay.").bytes(),
        history_messages: u64,
        topics: u64,
        subscribers: u64 = SUBSCRIBERS,
        subscriptions: u64 = SUBSCRIPTIONS,
        lost_messages: u64 = LOST,
        closed_subscribers: u64 = CLOSED,
    }
}

impl FeedLine {
    pub(super) fn of(feed: &FeedMetrics, metrics: &FeedPublisherMetrics) -> Self {
        let subscribers = &metrics.subscribers;
        Self {
            endpoint: metrics.endpoint.get().cloned(),
            changes: feed.changes,
            conflated: feed.conflated,
            messages: feed.messages,
            bookmarks: metrics.bookmarks.get(),
            history_bytes: feed.history_bytes,
            history_messages: feed.history_messages,
            topics: subscribers.topics.get(),
            subscribers: subscribers.subscribers.get(),
            subscriptions: subscribers.subscriptions.get(),
            lost_messages: subscribers.lost.get(),
            closed_subscribers: subscribers.closed.get(),
        }
    }
}
