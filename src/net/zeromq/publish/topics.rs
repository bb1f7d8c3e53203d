//! The subscriptions of all subscribers, in one trie over their topics.
//!
//! ```text
//! "" ─┬─ "us" ─┬─ "ers" {2}       each node has the rest of its topic behind its parent's, and its subscribers
//!     │        └─ "e"   {0, 2}
//!     └─ "birds" {1}              matching "users2" visits "", "us" and "users"
//! ```
//! As in libzmq, a subscriber has a topic once, however often it subscribes, and one CANCEL ends it. A SUB socket sends
//! each of its subscriptions to a topic, but only the last of its cancellations.
//!
//! A node keeps its id as long as its topic has a subscriber. A node without subscribers that does not branch is
//! removed.
//!
//! This module does not know connections or bounds; see `subscriber`.

use slab::Slab;

/// A subscriber's number in the trie.
pub(super) type Member = u32;
/// The node of a topic.
pub(super) type NodeId = u32;

const ROOT: NodeId = 0;
/// Parents and children are named only as long as they exist, and so are a subscriber's topics.
const THERE: &str = "a node that is named is there";

#[derive(Debug, Default)]
struct Node {
    /// The part of its topic behind its parent's. Empty only at the root.
    label: Box<[u8]>,
    parent: NodeId,
    /// In ascending order.
    members: Vec<Member>,
    /// By the first byte of their labels, in ascending order.
    children: Vec<(u8, NodeId)>,
}

impl Node {
    fn child(&self, first: u8) -> Option<NodeId> {
        let place = self.children.binary_search_by_key(&first, |(byte, _)| *byte).ok()?;
        self.children.get(place).map(|(_, child)| *child)
    }
}

/// The topics of all subscribers.
#[derive(Debug)]
pub(super) struct Topics {
    nodes: Slab<Node>,
    /// Topics with a subscriber.
    topics: usize,
    /// Pairs of a topic and a subscriber.
    subscriptions: usize,
    /// Subscriptions that were added, if they are noted.
    new: Option<Vec<(Member, Box<[u8]>)>>,
    /// Topics that came where nothing was that they begin with, if they are noted.
    first: Option<Vec<Box<[u8]>>>,
    /// How many topics have lost their last subscriber, ever.
    ended: u64,
}

impl Topics {
    pub(super) fn new() -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node::default());
        Self { nodes, topics: 0, subscriptions: 0, new: None, first: None, ended: 0 }
    }

    /// Topics with a subscriber.
    pub(super) fn len(&self) -> usize {
        self.topics
    }

    pub(super) fn is_empty(&self) -> bool {
        self.topics == 0
    }

    /// Pairs of a topic and a subscriber.
    pub(super) fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// Adds a subscription. Returns `None` if it exists already.
    pub(super) fn subscribe(&mut self, topic: &[u8], member: Member) -> Option<NodeId> {
        let id = self.place(topic);
        let members = &mut self.node_mut(id).members;
        let place = members.binary_search(&member).err()?;
        members.insert(place, member);
        if self.first.is_some() && !self.is_covered(id) {
            self.first.iter_mut().for_each(|first| first.push(topic.into()));
        }
        self.topics += usize::from(self.node(id).members.len() == 1);
        self.subscriptions += 1;
        if let Some(new) = &mut self.new {
            new.push((member, topic.into()));
        }
        Some(id)
    }

    /// Whether the topic of a node was there before its newest subscription, or one that it begins with.
    fn is_covered(&self, mut id: NodeId) -> bool {
        let mut is_covered = self.node(id).members.len() > 1;
        while !is_covered && id != ROOT {
            id = self.node(id).parent;
            is_covered = !self.node(id).members.is_empty();
        }
        is_covered
    }

    /// Notes from now on the topics that come where nothing was that they begin with.
    pub(super) fn note_first(&mut self) {
        self.first = Some(Vec::new());
    }

    /// The topics that were noted since the last call.
    pub(super) fn take_first(&mut self) -> Vec<Box<[u8]>> {
        self.first.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// How many topics have lost their last subscriber, ever.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether there is a topic that `text` begins with, or that begins with `text`.
    pub(super) fn touches(&self, text: &[u8]) -> bool {
        let (mut node, mut rest) = (self.node(ROOT), text);
        while node.members.is_empty() && !rest.is_empty() {
            let Some(child) = rest.first().and_then(|first| node.child(*first)) else { return false };
            node = self.node(child);
            match rest.strip_prefix(&*node.label) {
                Some(behind) => rest = behind,
                None => return node.label.starts_with(rest),
            }
        }
        !node.members.is_empty() || !node.children.is_empty()
    }

    /// Notes the subscriptions that are added from now on.
    pub(super) fn note_new(&mut self) {
        self.new = Some(Vec::new());
    }

    /// The subscriptions that were noted since the last call.
    pub(super) fn take_new(&mut self) -> Vec<(Member, Box<[u8]>)> {
        self.new.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The subscribers that have exactly this topic, in ascending order.
    pub(super) fn exactly(&self, topic: &[u8]) -> &[Member] {
        self.find(topic).map_or(&[], |id| &self.node(id).members)
    }

    /// Removes a subscription. Returns `None` if it does not exist.
    pub(super) fn cancel(&mut self, topic: &[u8], member: Member) -> Option<NodeId> {
        let id = self.find(topic)?;
        self.remove(id, member).then_some(id)
    }

    /// Removes a subscription to the topic of a node. Returns false if it does not exist.
    pub(super) fn remove(&mut self, id: NodeId, member: Member) -> bool {
        let members = &mut self.node_mut(id).members;
        let Ok(place) = members.binary_search(&member) else { return false };
        members.remove(place);
        self.subscriptions -= 1;
        if self.node(id).members.is_empty() {
            self.topics -= 1;
            self.ended += 1;
            self.prune(id);
        }
        true
    }

    /// Calls `each` with the subscribers of each topic with which `topic` begins, topic by topic.
    #[inline]
    pub(super) fn matching(&self, topic: &[u8], mut each: impl FnMut(&[Member])) {
        let (mut node, mut rest) = (self.node(ROOT), topic);
        loop {
            if !node.members.is_empty() {
                each(&node.members);
            }
            let Some(child) = rest.first().and_then(|first| node.child(*first)) else { return };
            node = self.node(child);
            let Some(behind) = rest.strip_prefix(&*node.label) else { return };
            rest = behind;
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(id as usize).expect(THERE)
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(id as usize).expect(THERE)
    }

    fn insert(&mut self, node: Node) -> NodeId {
        NodeId::try_from(self.nodes.insert(node)).expect("subscriptions are bounded")
    }

    fn find(&self, topic: &[u8]) -> Option<NodeId> {
        let (mut id, mut rest) = (ROOT, topic);
        while let Some(first) = rest.first() {
            id = self.node(id).child(*first)?;
            rest = rest.strip_prefix(&*self.node(id).label)?;
        }
        Some(id)
    }

    /// The node of a topic. It is made if it does not exist.
    fn place(&mut self, topic: &[u8]) -> NodeId {
        let (mut id, mut rest) = (ROOT, topic);
        while let Some(first) = rest.first() {
            let Some(child) = self.node(id).child(*first) else { return self.add_leaf(id, rest) };
            let label = &self.node(child).label;
            let common = label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            id = if common == label.len() { child } else { self.split(child, common) };
            rest = rest.get(common..).unwrap_or_default();
        }
        id
    }

    fn add_leaf(&mut self, parent: NodeId, label: &[u8]) -> NodeId {
        let leaf = self.insert(Node { label: label.into(), parent, ..Node::default() });
        self.link(parent, label, leaf);
        leaf
    }

    /// Puts a node between a node and its parent, with the first `common` bytes of the node's label.
    fn split(&mut self, child: NodeId, common: usize) -> NodeId {
        let node = self.node(child);
        let (front, back) = node.label.split_at(common);
        let (front, back): (Box<[u8]>, Box<[u8]>) = (front.into(), back.into());
        let parent = node.parent;
        let middle = self.insert(Node { label: front.clone(), parent, ..Node::default() });
        self.link(parent, &front, middle);
        self.link(middle, &back, child);
        let node = self.node_mut(child);
        (node.label, node.parent) = (back, middle);
        middle
    }

    /// Makes `child` the child of `parent` for the first byte of its label, in place of the former one.
    fn link(&mut self, parent: NodeId, label: &[u8], child: NodeId) {
        let Some(first) = label.first() else { unreachable!("only the root has an empty label") };
        let children = &mut self.node_mut(parent).children;
        match children.binary_search_by_key(first, |(byte, _)| *byte) {
            Ok(place) => children.iter_mut().skip(place).take(1).for_each(|(_, known)| *known = child),
            Err(place) => children.insert(place, (*first, child)),
        }
    }

    /// Removes a node without subscribers if it does not branch, and then its parent if that is superfluous too.
    fn prune(&mut self, mut id: NodeId) {
        while id != ROOT && self.node(id).members.is_empty() {
            let node = self.node(id);
            let parent = node.parent;
            match *node.children {
                [] => {
                    let first = node.label.first().copied();
                    self.nodes.remove(id as usize);
                    self.node_mut(parent).children.retain(|(byte, _)| Some(*byte) != first);
                    id = parent;
                }
                [(_, child)] => {
                    let Node { label, .. } = self.nodes.remove(id as usize);
                    let label = [&*label, &*self.node(child).label].concat();
                    self.link(parent, &label, child);
                    let node = self.node_mut(child);
                    (node.label, node.parent) = (label.into(), parent);
                    return;
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn matched(topics: &Topics, topic: &[u8]) -> BTreeSet<Member> {
        let mut members = BTreeSet::new();
        topics.matching(topic, |some| members.extend(some));
        members
    }

    #[test]
    fn a_message_matches_the_topics_with_which_it_begins() {
        let mut topics = Topics::new();
        assert!(matched(&topics, b"users").is_empty());
        topics.subscribe(b"users\0", 1);
        topics.subscribe(b"user", 2);
        topics.subscribe(b"", 3);
        assert_eq!(matched(&topics, b"users\0"), [1, 2, 3].into());
        assert_eq!(matched(&topics, b"users2"), [2, 3].into());
        assert_eq!(matched(&topics, b"use"), [3].into());
        assert!(topics.cancel(b"", 3).is_some());
        assert!(matched(&topics, b"use").is_empty());
    }

    #[test]
    fn one_cancellation_ends_any_number_of_the_same_subscription() {
        let mut topics = Topics::new();
        assert!(topics.subscribe(b"a", 1).is_some());
        assert_eq!(topics.subscribe(b"a", 1), None);
        assert!(topics.cancel(b"a", 1).is_some());
        assert_eq!(topics.cancel(b"a", 1), None);
        assert_eq!((topics.len(), topics.subscriptions(), topics.nodes.len()), (0, 0, 1));
    }

    /// A plain model of the trie.
    type TopicsModel = BTreeMap<Vec<u8>, BTreeSet<Member>>;

    /// Also of each topic that is noted, nothing was there before that it begins with.
    fn apply(topics: &mut Topics, model: &mut TopicsModel, topic: &[u8], member: Member, subscribes: bool) {
        let was_covered = model.keys().any(|other| topic.starts_with(other));
        let ended = topics.ended();
        let (changed, expected) = if subscribes {
            (topics.subscribe(topic, member), model.entry(topic.to_vec()).or_default().insert(member))
        } else {
            let removed = model.get_mut(topic).is_some_and(|members| members.remove(&member));
            model.retain(|_, members| !members.is_empty());
            (topics.cancel(topic, member), removed)
        };
        assert_eq!(changed.is_some(), expected);
        assert_eq!(topics.take_first().len(), usize::from(subscribes && !was_covered));
        let has_ended = changed.is_some() && !subscribes && !model.contains_key(topic);
        assert_eq!(topics.ended() - ended, u64::from(has_ended));
        if let Some(id) = changed.filter(|_| subscribes) {
            assert_eq!(topics.find(topic), Some(id));
        }
        assert_eq!(topics.len(), model.len());
        assert_eq!(topics.subscriptions(), model.values().map(BTreeSet::len).sum::<usize>());
    }

    fn topic() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0_u8..3, 0..7)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_trie_does_what_a_plain_list_does(
            steps in prop::collection::vec((any::<bool>(), topic(), 0_u32..4), 0..120),
            probes in prop::collection::vec(topic(), 20),
        ) {
            let (mut topics, mut model) = (Topics::new(), TopicsModel::new());
            topics.note_first();
            for (subscribes, topic, member) in &steps {
                apply(&mut topics, &mut model, topic, *member, *subscribes);
            }
            for probe in &probes {
                let expected: BTreeSet<Member> = model
                    .iter()
                    .filter(|(topic, _)| probe.starts_with(topic))
                    .flat_map(|(_, members)| members.iter().copied())
                    .collect();
                prop_assert_eq!(matched(&topics, probe), expected);
                let touched = model.keys().any(|topic| probe.starts_with(topic) || topic.starts_with(probe));
                prop_assert_eq!(topics.touches(probe), touched);
            }
            // At most one branching for each topic.
            prop_assert!(topics.nodes.len() <= 1 + 2 * model.len());
            for (topic, members) in model.clone() {
                for member in members {
                    apply(&mut topics, &mut model, &topic, member, false);
                }
            }
            prop_assert_eq!(topics.nodes.len(), 1);
        }
    }
}
