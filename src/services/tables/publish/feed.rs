//! The publisher's part for the feed: it sends the messages that the tables have made, and the bookmarks.
//!
//! ```text
//! publish: each message of a drain ─► its subscribers' burst ─► the schedule knows that the topic has changed
//! send:    new subscriptions, times that have come ─► bookmarks, behind the messages ─► send
//! ```
//! A bookmark is made and queued after all messages of the drain, by the thread that makes them. So each subscriber has
//! it in its place.
//!
//! This module does not number changes; see [`crate::feed`]. It does not choose the times of bookmarks; see its
//! `bookmarks`.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::feed::{BookmarkSchedule, DueBookmark, PublishedMessage, table_of_topic};
use crate::net::zeromq::publish::Subscribers;
use crate::services::tables::report::FeedPublisherMetrics;
use crate::tables::Changes;
use crate::zmtp::encode_frame;

/// Bookmarks of one turn. The rest follow in the next, so that changes do not wait for many of them.
const BOOKMARKS_A_TURN: usize = 1_024;

/// The feed's end of the publisher.
pub(in crate::services::tables) struct FeedPublisher {
    subscribers: Subscribers,
    schedule: BookmarkSchedule,
    metrics: Arc<FeedPublisherMetrics>,
    /// The time of this turn.
    now: Now,
}

/// Appends the two frames of a message.
fn encode(out: &mut Vec<u8>, topic: &[u8], payload: &[u8]) {
    encode_frame(out, topic, true);
    encode_frame(out, payload, false);
}

impl FeedPublisher {
    /// A publisher that sends to these subscribers.
    pub(in crate::services::tables) fn new(mut subscribers: Subscribers, metrics: Arc<FeedPublisherMetrics>) -> Self {
        subscribers.note_subscriptions();
        Self { subscribers, schedule: BookmarkSchedule::new(), metrics, now: Now::from_nanos(0) }
    }

    /// As [`Subscribers::refresh_users`].
    pub(super) fn refresh_users(&mut self) {
        self.subscribers.refresh_users();
    }

    /// Whether there is no subscription.
    pub(super) fn is_idle(&self) -> bool {
        self.subscribers.is_idle()
    }

    /// A turn begins.
    pub(super) fn begin(&mut self, now: Now) {
        self.now = now;
    }

    /// Sends a message to the subscribers of its topic.
    pub(super) fn publish(&mut self, PublishedMessage { topic, payload }: &PublishedMessage) {
        if self.subscribers.publish(topic, |out| encode(out, topic, payload)) {
            self.schedule.published(topic, self.now);
        }
    }

    /// Counts a message as lost, in place of sending it.
    pub(super) fn lose(&mut self, message: &PublishedMessage) {
        self.subscribers.lose(&message.topic);
    }

    /// Sends the bookmarks whose times have come, behind the messages.
    pub(super) fn send(&mut self, changes: &Changes) {
        let Self { subscribers, schedule, now, .. } = self;
        for (subscriber, topic) in subscribers.take_subscriptions() {
            if table_of_topic(&topic).is_some() {
                schedule.subscribed(subscriber, &topic, *now, |topic| subscribers.has_subscriber(topic));
            }
        }
        for _ in 0..BOOKMARKS_A_TURN {
            let Some(due) = schedule.next(*now, |topic| subscribers.has_subscriber(topic)) else { break };
            let (DueBookmark::ToOne(_, topic) | DueBookmark::ToAll(topic) | DueBookmark::ToExact(topic)) = &due;
            if matches!(due, DueBookmark::ToOne(subscriber, _) if !subscribers.is_subscriber(subscriber, topic)) {
                continue;
            }
            let Some(payload) = changes.bookmark(topic) else { continue };
            let encode = |out: &mut Vec<u8>| encode(out, topic, &payload);
            let is_sent = match due {
                DueBookmark::ToOne(subscriber, _) => subscribers.publish_to_one(subscriber, encode),
                DueBookmark::ToAll(_) => subscribers.publish(topic, encode),
                DueBookmark::ToExact(_) => subscribers.publish_exactly(topic, encode),
            };
            self.metrics.bookmarks.add(u64::from(is_sent));
        }
        subscribers.send();
        self.show();
    }

    /// How long the publisher may sleep, if it has no other reason to wake up.
    pub(super) fn patience(&self) -> Option<Duration> {
        let bookmark = self.schedule.next_due().map(|due| self.now.time_until(due));
        self.subscribers.patience(bookmark)
    }

    /// Gives each ready connection a turn, without waiting.
    pub(super) fn turn(&mut self, clock: impl Fn() -> Now) {
        self.subscribers.turn(Some(Duration::ZERO), clock);
    }

    /// Sends the rest, as [`Subscribers::finish`].
    pub(super) fn finish(&mut self, end: Now, clock: impl Fn() -> Now) {
        self.subscribers.finish(end, clock);
        self.show();
    }

    /// Messages that subscribers have lost.
    #[cfg(test)]
    pub(super) fn lost(&self) -> u64 {
        self.subscribers.metrics().lost
    }

    /// Updates the metrics for STATS.
    fn show(&self) {
        self.metrics.subscribers.show(&self.subscribers.metrics());
    }
}
