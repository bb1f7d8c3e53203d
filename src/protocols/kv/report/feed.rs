//! The part of STATS on the feed: what it has told and keeps, and its subscribers.

use std::sync::OnceLock;

use serde::Serialize;

use super::changes::SubscribersTally;
use crate::feed::FeedMetrics;
use crate::stats::Counter;

/// The metrics of the publisher for the feed, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::protocols::kv) struct FeedTally {
    /// Bookmarks sent.
    pub(in crate::protocols::kv) bookmarks: Counter,
    pub(in crate::protocols::kv) subscribers: SubscribersTally,
    /// Where the feed is published, with the port that the system chose. `bind` writes it once.
    pub(in crate::protocols::kv) endpoint: OnceLock<String>,
}

#[derive(Serialize)]
pub(super) struct FeedLine<'m> {
    endpoint: Option<&'m str>,
    changes: u64,
    conflated: u64,
    messages: u64,
    bookmarks: u64,
    history_bytes: u64,
    history_messages: u64,
    topics: u64,
    subscribers: u64,
    subscriptions: u64,
    lost_messages: u64,
    closed_subscribers: u64,
}

impl<'m> FeedLine<'m> {
    pub(super) fn of(feed: &FeedMetrics, metrics: &'m FeedTally) -> Self {
        let subscribers = &metrics.subscribers;
        Self {
            endpoint: metrics.endpoint.get().map(String::as_str),
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
