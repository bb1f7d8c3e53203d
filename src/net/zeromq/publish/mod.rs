//! Publishes to ZeroMQ subscribers without libzmq. The publisher reads and writes their connections itself.
//!
//! ```text
//! publish ─► Burst: each message encoded once ─► send ─► the system takes it, or else ─► SubscriberQueue of each
//!              ▲ Topics: the subscribers of each topic
//! turn    ─► accept ─► SubscriberConnection: handshake (zmtp) ─► SubscriberCommand: SUBSCRIBE, CANCEL, PING
//!         └► flush: queued messages are sent
//! ```
//! - To a client, the publisher is an XPUB socket of libzmq. SUB and XSUB sockets may connect, in ZMTP 3.0 and 3.1,
//!   over `tcp://` and `ipc://`. A message goes once to each subscriber that has a topic with which the message's first
//!   frame begins.
//! - **Messages are dropped only for a subscriber that reads too slowly.** A subscriber that is more than
//!   [`PublishLimits::messages`] messages or [`PublishLimits::bytes`] bytes behind loses its newest messages, whole
//!   ones, and the publisher counts them. Messages that wait for several subscribers are kept once. All queued messages
//!   together take at most [`PublishLimits::held_bytes`], plus one message for each subscriber that has received a part
//!   of it already. If a subscriber with less than its share lacks room, the subscribers with more than their share
//!   lose messages.
//! - **The publisher reads subscribers fairly beside publishing**: a bounded number of bytes a turn, from all of them
//!   together. A subscriber that exceeds a bound (subscriptions, bytes of its topics, a frame, PONGs that it does not
//!   read) gets an ERROR, is closed and counted. The publisher removes its subscriptions some in each turn.
//! - **Where users are named, a subscriber gets only topics that its user may read** ([`TopicForm`]). A subscriber with
//!   CURVE gets its messages sealed.
//! - The number of connections is bounded, and so is the time for a handshake. When a client waits for room, a connection
//!   without a subscription makes place, and never a subscriber (`leaving`). Keepalive finds hosts that have
//!   vanished.
//!
//! This module does not interpret messages and does not start threads.

mod burst;
mod deliver;
mod directed;
mod identity;
mod leaving;
mod queue;
mod readers;
mod sealed;
mod subscriber;
mod subscriber_command;
mod subscribers;
mod subscriptions;
#[cfg(test)]
mod tests;
mod topics;

pub use readers::TopicForm;
pub use subscribers::Subscribers;

use crate::limits::{
    SUBSCRIBER_BYTES_MAX, SUBSCRIBERS_BYTES_MAX, SUBSCRIBERS_MAX, SUBSCRIPTIONS_ALL_MAX, SUBSCRIPTIONS_MAX,
    TOPIC_BYTES_ALL_MAX, TOPIC_BYTES_MAX,
};

/// Bounds of the subscribers.
#[derive(Clone, Debug)]
pub struct PublishLimits {
    /// Subscribers at once.
    pub subscribers: usize,
    /// Messages that wait for a subscriber.
    pub messages: usize,
    /// Bytes that wait for a subscriber.
    pub bytes: usize,
    /// Bytes of memory for the messages that wait for all subscribers together. A message that several wait for counts
    /// once. The rest of a message that the system has begun to send is kept in any case, and so are the commands and
    /// greetings of ZMTP.
    pub held_bytes: usize,
    /// Topics of a subscriber.
    pub subscriptions: usize,
    /// Bytes of the topics of a subscriber.
    pub topic_bytes: usize,
    /// Topics of all subscribers together.
    pub all_subscriptions: usize,
    /// Bytes of the topics of all subscribers together.
    pub all_topic_bytes: usize,
}

impl PublishLimits {
    /// The bounds of [`limits`](crate::limits), with up to `messages` messages waiting for a subscriber.
    #[must_use]
    pub fn new(messages: usize) -> Self {
        Self {
            subscribers: SUBSCRIBERS_MAX,
            messages,
            bytes: SUBSCRIBER_BYTES_MAX,
            held_bytes: SUBSCRIBERS_BYTES_MAX,
            subscriptions: SUBSCRIPTIONS_MAX,
            topic_bytes: TOPIC_BYTES_MAX,
            all_subscriptions: SUBSCRIPTIONS_ALL_MAX,
            all_topic_bytes: TOPIC_BYTES_ALL_MAX,
        }
    }

    /// The same bounds, but at most `held_bytes` bytes wait for all subscribers together, and at most half of that for
    /// one.
    #[must_use]
    pub fn within(self, held_bytes: usize) -> Self {
        let held_bytes = self.held_bytes.min(held_bytes);
        Self { held_bytes, bytes: self.bytes.min(held_bytes / 2), ..self }
    }
}

/// The publisher's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherMetrics {
    /// Subscribers that are connected and through their handshakes.
    pub subscribers: u64,
    /// Topics with a subscriber.
    pub topics: u64,
    /// Pairs of a subscriber and a topic.
    pub subscriptions: u64,
    /// Messages that subscribers have lost because they read too slowly, ever.
    pub lost: u64,
    /// Subscribers that were closed because they exceeded a bound or broke the protocol, ever.
    pub closed: u64,
}
