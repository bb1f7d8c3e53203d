//! The subscriptions of one subscriber, and of all, also of those that have left.
//!
//! ```text
//! SUBSCRIBE ─► Readers: may its user read it? ─► Topics: the trie ─► SubscriberTopics: its nodes
//! it leaves ─► its nodes are removed from the trie, some a turn ─► its slot is free
//! ```
//! This module does not know connections or bounds; see `subscriber`.

use std::collections::VecDeque;

use ahash::AHashSet;

use super::readers::{Readers, TopicForm};
use super::topics::{Member, NodeId, Topics};
use crate::security::Identity;

/// What is called with the topics that came first.
pub(super) type BeforeFirst = Box<dyn Fn(&[Box<[u8]>]) + Send>;

/// The subscriptions of one subscriber.
#[derive(Debug, Default)]
pub(super) struct SubscriberTopics {
    /// Nodes of its topics in the trie.
    pub(super) nodes: AHashSet<NodeId>,
    /// Bytes of these topics.
    pub(super) bytes: usize,
    /// They are still being removed. Its slot is not free before that is done.
    pub(super) is_leaving: bool,
}

/// The subscriptions of all subscribers.
pub(super) struct Subscriptions {
    pub(super) topics: Topics,
    pub(super) readers: Readers,
    /// Those of subscribers that are served.
    pub(super) count: usize,
    /// Bytes of their topics.
    pub(super) bytes: usize,
    /// Those of former subscribers, to be removed.
    pub(super) left: VecDeque<(Member, Vec<NodeId>)>,
    /// The server ends. No slot is given out any more, so the topics of former subscribers stay.
    pub(super) is_ending: bool,
    /// Called with the topics that came first, before the subscriber is answered.
    before_first: Option<BeforeFirst>,
}

impl Subscriptions {
    pub(super) fn new(form: TopicForm) -> Self {
        let (topics, readers) = (Topics::new(), Readers::new(form));
        Self { topics, readers, count: 0, bytes: 0, left: VecDeque::new(), is_ending: false, before_first: None }
    }

    /// Calls `call` with the topics that come first.
    pub(super) fn call_before_first(&mut self, call: BeforeFirst) {
        self.before_first = Some(call);
        self.topics.note_first();
    }

    /// Calls with the topics that have come first since the last time.
    pub(super) fn report_first(&mut self) {
        let first = self.topics.take_first();
        if let Some(call) = self.before_first.as_ref().filter(|_| !first.is_empty()) {
            call(&first);
        }
    }

    /// Adds a subscription of a subscriber, if its user may have it.
    pub(super) fn subscribe(
        &mut self,
        member: Member,
        own: &mut SubscriberTopics,
        user: Option<&Identity>,
        topic: &[u8],
    ) {
        if user.is_some_and(|user| !self.readers.admit(member, user, topic)) {
            return;
        }
        let Some(node) = self.topics.subscribe(topic, member) else { return };
        own.nodes.insert(node);
        own.bytes += topic.len();
        self.count += 1;
        self.bytes += topic.len();
    }

    /// Removes a subscription of a subscriber, if it has it.
    pub(super) fn cancel(&mut self, member: Member, own: &mut SubscriberTopics, topic: &[u8]) {
        if let Some(node) = self.topics.cancel(topic, member) {
            own.nodes.remove(&node);
            own.bytes -= topic.len();
            self.count -= 1;
            self.bytes -= topic.len();
        }
    }

    /// Ends those of a subscriber. They are removed later, unless the server ends.
    pub(super) fn leave(&mut self, member: Member, own: &mut SubscriberTopics) {
        self.count -= own.nodes.len();
        self.bytes -= std::mem::take(&mut own.bytes);
        self.readers.remove(member);
        let nodes = std::mem::take(&mut own.nodes);
        if !nodes.is_empty() && !self.is_ending {
            own.is_leaving = true;
            self.left.push_back((member, nodes.into_iter().collect()));
        }
    }

    /// Removes one of a former subscriber. Returns the subscriber if it has none left.
    pub(super) fn remove_left(&mut self) -> Option<Member> {
        let (member, nodes) = self.left.front_mut()?;
        let member = *member;
        match nodes.pop() {
            Some(node) => {
                self.topics.remove(node, member);
                None
            }
            None => self.left.pop_front().map(|(member, _)| member),
        }
    }
}
