//! The initial bookmarks. A subscriber gets its own when it subscribes, in its turn, and at most once a second for each
//! topic.
//!
//! ```text
//! subscribed ─► waiting ─► sent ──► (a second) ─► forgotten
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
enum InitialBookmark {
    /// It waits for its bookmark.
    Waiting,
    /// It got its bookmark less than a pause ago.
    Sent {
        /// It has subscribed again since.
        again: bool,
    },
}

/// One subscriber.
#[derive(Debug, Default)]
struct SubscriberTopics {
    topics: AHashMap<Arc<[u8]>, InitialBookmark>,
    /// The topics that wait, oldest first.
    waiting: VecDeque<Arc<[u8]>>,
}

/// The initial bookmarks of all subscribers.
#[derive(Debug)]
pub(super) struct InitialBookmarks {
    subscribers: AHashMap<SubscriberId, SubscriberTopics>,
    /// Subscribers with topics that wait, in their turns.
    turns: VecDeque<SubscriberId>,
    /// When the pauses after sent bookmarks end, in their order.
    pauses: VecDeque<(Now, SubscriberId, Arc<[u8]>)>,
    /// Topics of all subscribers.
    count: usize,
    count_max: usize,
}

impl InitialBookmarks {
    pub(super) fn within(count_max: usize) -> Self {
        Self { subscribers: AHashMap::new(), turns: VecDeque::new(), pauses: VecDeque::new(), count: 0, count_max }
    }

    /// A subscriber has subscribed to a topic. It gets an initial bookmark unless it has as many topics here as there is
    /// room left.
    pub(super) fn subscribed(&mut self, subscriber: SubscriberId, topic: Arc<[u8]>) {
        let room = self.count_max - self.count;
        let own = self.subscribers.entry(subscriber).or_default();
        let lacks_room = own.topics.len() >= room;
        match own.topics.get_mut(&topic) {
            Some(InitialBookmark::Waiting) => {}
            Some(InitialBookmark::Sent { again }) => *again = true,
            None if lacks_room => {
                if own.topics.is_empty() {
                    self.subscribers.remove(&subscriber);
                }
            }
            None => {
                own.topics.insert(Arc::clone(&topic), InitialBookmark::Waiting);
                self.count += 1;
                self.wait(subscriber, topic);
            }
        }
    }

    fn wait(&mut self, subscriber: SubscriberId, topic: Arc<[u8]>) {
        let Some(own) = self.subscribers.get_mut(&subscriber) else { return };
        if own.waiting.is_empty() {
            self.turns.push_back(subscriber);
        }
        own.waiting.push_back(topic);
    }

    /// The next initial bookmark: the subscribers take turns.
    pub(super) fn next(&mut self, now: Now) -> Option<(SubscriberId, Arc<[u8]>)> {
        let subscriber = self.turns.pop_front()?;
        let own = self.subscribers.get_mut(&subscriber)?;
        let topic = own.waiting.pop_front()?;
        if !own.waiting.is_empty() {
            self.turns.push_back(subscriber);
        }
        own.topics.insert(Arc::clone(&topic), InitialBookmark::Sent { again: false });
        self.pauses.push_back((now.after(BOOKMARK_PAUSE), subscriber, Arc::clone(&topic)));
        Some((subscriber, topic))
    }

    /// Ends the pauses whose time has come, `most` at a time.
    pub(super) fn end_pauses(&mut self, now: Now, most: usize) {
        for _ in 0..most {
            let Some((_, subscriber, topic)) = self.pauses.pop_front_if(|(end, ..)| *end <= now) else { return };
            let Some(own) = self.subscribers.get_mut(&subscriber) else { continue };
            if own.topics.get(&topic) == Some(&InitialBookmark::Sent { again: true }) {
                own.topics.insert(Arc::clone(&topic), InitialBookmark::Waiting);
                self.wait(subscriber, topic);
                continue;
            }
            own.topics.remove(&topic);
            self.count -= 1;
            if own.topics.is_empty() {
                self.subscribers.remove(&subscriber);
            }
        }
    }

    /// When there is an initial bookmark, or a pause ends.
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
