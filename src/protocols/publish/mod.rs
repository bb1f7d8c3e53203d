//! Publishing to ZeroMQ subscribers without libzmq: the thread that publishes reads and writes their connections
//! itself.
//!
//! ```text
//! publish ─► Burst: each message encoded once ─► send ─► the system takes it, or else ─► Queue of each subscriber
//!              ▲ Topics: who subscribes to what
//! turn    ─► accept ─► Subscriber: handshake (zmtp) ─► Said: SUBSCRIBE, CANCEL, PING
//!         └► what waits in queues is sent on
//! ```
//! - To a peer it is an XPUB socket of libzmq: SUB and XSUB sockets may connect, in ZMTP 3.0 and 3.1, over `tcp://` and
//!   `ipc://`. A message goes to each subscriber once that has a topic with which the message's first frame begins.
//! - **Nothing is dropped but for a subscriber that reads too slowly**: one that is more than [`PublishLimits::messages`]
//!   behind, or for which more than [`PublishLimits::bytes`] wait, loses the newest messages, whole ones, and they are
//!   counted. What waits for several is kept once. All that waits takes at most [`PublishLimits::held_bytes`], and a message for
//!   each subscriber that has a part of it already: where one with less than its share lacks room, those lose that have more.
//! - **A subscriber is read fairly beside publishing**: so many bytes a turn, from all of them together. One that
//!   exceeds a bound (subscriptions, bytes of its topics, a frame, answers to PINGs that it does not read) is told by
//!   an ERROR, closed, and counted; the subscriptions that it leaves behind are removed some in each turn.
//! - Connections are bounded, and so is the time of a handshake; keepalive finds hosts that have vanished.
//!
//! What is not here: what messages mean, and threads.

mod burst;
mod deliver;
mod leaving;
mod queue;
mod subscriber;
mod subscriber_command;
mod subscribers;
#[cfg(test)]
mod tests;
mod topics;

pub use subscribers::Subscribers;

use crate::limits::{
    SUBSCRIBER_BYTES_MAX, SUBSCRIBERS_BYTES_MAX, SUBSCRIBERS_MAX, SUBSCRIPTIONS_ALL_MAX, SUBSCRIPTIONS_MAX,
    TOPIC_BYTES_ALL_MAX, TOPIC_BYTES_MAX,
};

/// What subscribers may have.
#[derive(Clone, Debug)]
pub struct PublishLimits {
    /// Subscribers at once.
    pub subscribers: usize,
    /// Messages that wait for a subscriber.
    pub messages: usize,
    /// Bytes that wait for a subscriber.
    pub bytes: usize,
    /// Bytes of memory for what waits for all subscribers together; what several wait for counts once. The rest of a message
    /// that the system has begun to send is kept in any case, and so is what ZMTP has to say.
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
    /// Those of [`limits`](crate::limits), with so many messages that may wait for a subscriber.
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

    /// The same where all subscribers together may have no more than so many bytes waiting, and one of them half of that.
    #[must_use]
    pub fn within(self, held_bytes: usize) -> Self {
        let held_bytes = self.held_bytes.min(held_bytes);
        Self { held_bytes, bytes: self.bytes.min(held_bytes / 2), ..self }
    }
}

/// What there is to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherMetrics {
    /// Subscribers that are connected, their handshakes over.
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
