//! The part of STATS on the feed: what it has told and keeps, and its subscribers.

use std::sync::OnceLock;

use serde::Serialize;

use super::changes::SubscribersTally;
use crate::feed::FeedMetrics;
use crate::stats::Counter;

/// The metrics of the publisher for the feed, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::services::tables) struct FeedTally {
    /// Bookmarks sent.
    pub(in crate::services::tables) bookmarks: Counter,
    pub(in crate::services::tables) subscribers: SubscribersTally,
    /// Where the feed is published, with the port that the system chose. `bind` writes it once.
    pub(in crate::services::tables) endpoint: OnceLock<String>,
}

#[derive(Serialize)]
pub(crate) struct FeedLine {
    pub(crate) endpoint: Option<String>,
    pub(crate) changes: u64,
    pub(crate) conflated: u64,
    pub(crate) messages: u64,
    pub(crate) bookmarks: u64,
    pub(crate) history_bytes: u64,
    pub(crate) history_messages: u64,
    pub(crate) topics: u64,
    pub(crate) subscribers: u64,
    pub(crate) subscriptions: u64,
    pub(crate) lost_messages: u64,
    pub(crate) closed_subscribers: u64,
}

impl FeedLine {
    pub(super) fn of(feed: &FeedMetrics, metrics: &FeedTally) -> Self {
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
