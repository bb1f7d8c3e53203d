//! The bookmarks that subscribers get of their own when they subscribe: in turns, and at most once a second for a
//! subscriber and topic.
//!
//! ```text
//! subscribed ─► waiting ─► given ─► (a second) ─► forgotten
//!                  ▲         │ subscribed again
//!                  └─────────┘ after the second
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::AHashMap;

use super::SubscriberId;
use crate::clock::Now;
use crate::feed::limits::BOOKMARK_PAUSE;

/// The state of one subscriber and topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    /// It waits for its bookmark.
    Waiting,
    /// It got its bookmark less than a pause ago.
    Given {
        /// It has subscribed again since.
        again: bool,
    },
}

/// One subscriber.
#[derive(Debug, Default)]
struct Greeted {
    topics: AHashMap<Arc<[u8]>, Greeting>,
    /// The topics that wait, oldest first.
    waiting: VecDeque<Arc<[u8]>>,
}

/// The greetings of all subscribers.
#[derive(Debug)]
pub(super) struct Greetings {
    subscribers: AHashMap<SubscriberId, Greeted>,
    /// Subscribers with topics that wait, in their turns.
    turns: VecDeque<SubscriberId>,
    /// When the pauses of those that were given end, in their order.
    pauses: VecDeque<(Now, SubscriberId, Arc<[u8]>)>,
    /// Topics of all subscribers.
    count: usize,
    count_max: usize,
}

impl Greetings {
    pub(super) fn within(count_max: usize) -> Self {
        Self { subscribers: AHashMap::new(), turns: VecDeque::new(), pauses: VecDeque::new(), count: 0, count_max }
    }

    /// A subscriber has subscribed to a topic. It is greeted if it has no more topics here than there is room left.
    pub(super) fn subscribed(&mut self, subscriber: SubscriberId, topic: Arc<[u8]>) {
        let room = self.count_max - self.count;
        let greeted = self.subscribers.entry(subscriber).or_default();
        let lacks_room = greeted.topics.len() >= room;
        match greeted.topics.get_mut(&topic) {
            Some(Greeting::Waiting) => {}
            Some(Greeting::Given { again }) => *again = true,
            None if lacks_room => {
                if greeted.topics.is_empty() {
                    self.subscribers.remove(&subscriber);
                }
            }
            None => {
                greeted.topics.insert(Arc::clone(&topic), Greeting::Waiting);
                self.count += 1;
                self.wait(subscriber, topic);
            }
        }
    }

    fn wait(&mut self, subscriber: SubscriberId, topic: Arc<[u8]>) {
        let Some(greeted) = self.subscribers.get_mut(&subscriber) else { return };
        if greeted.waiting.is_empty() {
            self.turns.push_back(subscriber);
        }
        greeted.waiting.push_back(topic);
    }

    /// The next greeting: the subscribers take turns.
    pub(super) fn next(&mut self, now: Now) -> Option<(SubscriberId, Arc<[u8]>)> {
        let subscriber = self.turns.pop_front()?;
        let greeted = self.subscribers.get_mut(&subscriber)?;
        let topic = greeted.waiting.pop_front()?;
        if !greeted.waiting.is_empty() {
            self.turns.push_back(subscriber);
        }
        greeted.topics.insert(Arc::clone(&topic), Greeting::Given { again: false });
        self.pauses.push_back((now.after(BOOKMARK_PAUSE), subscriber, Arc::clone(&topic)));
        Some((subscriber, topic))
    }

    /// Ends the pauses whose time has come, `most` at a time.
    pub(super) fn end_pauses(&mut self, now: Now, most: usize) {
        for _ in 0..most {
            let Some((_, subscriber, topic)) = self.pauses.pop_front_if(|(end, ..)| *end <= now) else { return };
            let Some(greeted) = self.subscribers.get_mut(&subscriber) else { continue };
            if greeted.topics.get(&topic) == Some(&Greeting::Given { again: true }) {
                greeted.topics.insert(Arc::clone(&topic), Greeting::Waiting);
                self.wait(subscriber, topic);
                continue;
            }
            greeted.topics.remove(&topic);
            self.count -= 1;
            if greeted.topics.is_empty() {
                self.subscribers.remove(&subscriber);
            }
        }
    }

    /// When there is a greeting, or a pause ends.
    pub(super) fn next_due(&self) -> Option<Now> {
        if !self.turns.is_empty() {
            return Some(Now::from_nanos(0));
        }
        self.pauses.front().map(|(end, ..)| *end)
    }

    /// The number of subscribers and topics that are remembered.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count
    }
}
