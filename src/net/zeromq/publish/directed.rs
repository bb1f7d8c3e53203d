//! The subscriptions that have come and gone, for a publisher that wants to know of them, and messages to some of the
//! subscribers of a topic.

use rustix::event::epoll;
use rustix::io::Errno;

use super::subscribers::{OTHERS, Subscribers};
use crate::net::zeromq::ConnectionId;

impl Subscribers {
    /// From now on calls `call` with each new topic, unless an existing topic is a prefix of the new one. The call
    /// precedes the answers to what the subscriber has sent behind its subscription. The publisher waits for it.
    pub fn before_first_subscription(&mut self, call: impl Fn(&[Box<[u8]>]) + Send + 'static) {
        self.subscriptions.call_before_first(Box::new(call));
    }

    /// Whether there is a topic that `text` begins with, or that begins with `text`.
    #[must_use]
    pub fn touches(&self, text: &[u8]) -> bool {
        self.subscriptions.topics.touches(text)
    }

    /// How many topics have lost their last subscriber, ever.
    #[must_use]
    pub fn topics_ended(&self) -> u64 {
        self.subscriptions.topics.ended()
    }

    /// Notes subscriptions from now on, for [`Subscribers::take_subscriptions`].
    pub fn note_subscriptions(&mut self) {
        self.subscriptions.topics.note_new();
    }

    /// The subscriptions that have come since the last call, with a name for the subscriber that no other has later.
    /// What one turn may receive bounds them.
    pub fn take_subscriptions(&mut self) -> Vec<(u64, Box<[u8]>)> {
        let new = self.subscriptions.topics.take_new();
        let named = |(member, topic): (u32, Box<[u8]>)| {
            let generation = self.connections.get(member as usize)?.generation;
            Some((u64::from(generation) << 32 | u64::from(member), topic))
        };
        new.into_iter().filter_map(named).collect()
    }

    /// Whether a subscriber has exactly this topic.
    #[must_use]
    pub fn has_subscriber(&self, topic: &[u8]) -> bool {
        !self.subscriptions.topics.exactly(topic).is_empty()
    }

    /// Whether a subscriber is there, and has exactly this topic.
    #[must_use]
    pub fn is_subscriber(&self, subscriber: u64, topic: &[u8]) -> bool {
        let id = ConnectionId::of(subscriber);
        let connection = self.connections.get(id.slot() as usize);
        connection.is_some_and(|connection| connection.is_open() && connection.generation == id.generation())
            && self.subscriptions.topics.exactly(topic).binary_search(&id.slot()).is_ok()
    }

    /// Publishes a message to one subscriber. Returns false if it is gone.
    pub fn publish_to_one(&mut self, subscriber: u64, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let id = ConnectionId::of(subscriber);
        let is_there = self.get(id).is_some_and(|subscriber| subscriber.is_open());
        if is_there {
            self.make_room();
            self.delivery.burst.add_for(&[id.slot()], encode);
        }
        is_there
    }

    /// Publishes a message to the subscribers that have exactly this topic. Returns false if there is none.
    pub fn publish_exactly(&mut self, topic: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.make_room();
        let members = self.subscriptions.topics.exactly(topic);
        self.delivery.burst.add_for(members, encode)
    }

    /// Has a wait of these subscribers end when the others have work too. The caller then gives the others a turn.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn wake_for(&self, others: &Self) -> Result<(), Errno> {
        epoll::add(&self.port.epoll, &others.port.epoll, epoll::EventData::new_u64(OTHERS), epoll::EventFlags::IN)
    }
}
