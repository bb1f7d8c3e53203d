//! The channels of all connections: how many of each worker have subscribed to which.
//!
//! ```text
//! PUBLISH: count, send ─► the mail of each worker with a subscriber ─► `subscribers.rs` appends it to their replies
//! ```
//! A message is counted and sent under the lock under which subscriptions come and go. So each subscriber that was
//! counted gets the message, or is closed. Patterns are compared with a channel behind the lock and in portions: a
//! PUBLISH keeps no other client waiting.
//!
//! This module knows no connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

use super::name_map::{NameMap, NameWalk};
use super::pattern_index::PatternIndex;
use crate::lock::Mutex;
use crate::net::budget::Budget;
use crate::net::mail::{MailReceiver, MailSender, MailSize, mail};
use crate::net::sockets::WakeSignal;

/// What a client subscribes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SubscriptionKind {
    /// A channel.
    Channel,
    /// All channels that match a pattern.
    Pattern,
}

/// A message of a channel.
#[derive(Debug)]
pub(super) struct ChannelMessage {
    pub(super) channel: Box<[u8]>,
    pub(super) payload: Box<[u8]>,
}

impl ChannelMessage {
    fn size(&self) -> MailSize {
        MailSize { bytes: size_of::<Self>() + self.channel.len() + self.payload.len(), items: 1 }
    }
}

/// Subscribers of each worker.
#[derive(Clone, Debug)]
struct WorkerCounts(Box<[usize]>);

impl WorkerCounts {
    fn sum(&self) -> usize {
        self.0.iter().sum()
    }

    /// Returns whether there is any subscriber then.
    fn change(&mut self, worker: usize, by: isize) -> bool {
        if let Some(count) = self.0.get_mut(worker) {
            *count = count.saturating_add_signed(by);
        }
        self.sum() > 0
    }
}

/// All subscriptions.
#[derive(Debug)]
struct Registered {
    channels: NameMap<WorkerCounts>,
    /// Of the channels.
    hasher: RandomState,
    patterns: PatternIndex<WorkerCounts>,
    /// Subscriptions to patterns.
    with_patterns: WorkerCounts,
}

impl Registered {
    /// The subscribers of a channel, without those of patterns.
    fn of_channel(&self, channel: &[u8]) -> Option<&WorkerCounts> {
        self.channels.get(channel, &self.hasher)
    }
}

/// The channels that match a pattern, as far as they are found.
#[derive(Debug)]
pub(super) struct ChannelSearch {
    walk: NameWalk<WorkerCounts>,
    found: Vec<Box<[u8]>>,
    /// Memory of those that are found, in bytes.
    bytes: usize,
}

impl ChannelSearch {
    /// Looks at further channels, while there are steps. Returns those that match the pattern, or all, when they are found.
    pub(super) fn advance(&mut self, pattern: Option<&[u8]>, steps: &mut usize) -> Option<Vec<Box<[u8]>>> {
        let Self { walk, found, bytes } = self;
        let is_done = walk.match_names(pattern, steps, |name, _, _| {
            *bytes += name.len() + size_of::<Box<[u8]>>();
            found.push(name.into());
            true
        });
        is_done.then(|| std::mem::take(found))
    }

    /// Memory that its reply takes, in bytes.
    pub(super) fn found_bytes(&self) -> usize {
        self.bytes
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.walk.bytes()
    }
}

/// The subscribers who get a message or are closed, as far as they are counted.
#[derive(Debug, Default)]
pub(super) struct SubscriberCount {
    count: usize,
    /// The patterns with which the channel was not compared.
    walk: Option<NameWalk<WorkerCounts>>,
}

impl SubscriberCount {
    /// Counts further subscribers, while there are steps. Returns their number when all are counted.
    pub(super) fn advance(&mut self, channel: &[u8], steps: &mut usize) -> Option<usize> {
        let Self { count, walk } = self;
        let is_done = walk.as_mut().is_none_or(|walk| {
            walk.match_patterns(channel, steps, |_, counts, _| {
                *count += counts.sum();
                true
            })
        });
        is_done.then_some(*count)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.walk.as_ref().map_or(0, NameWalk::bytes)
    }
}

/// The channels of all workers.
#[derive(Debug)]
pub(crate) struct Channels {
    registered: Mutex<Registered>,
    workers: Vec<MessageSender>,
}

#[derive(Debug)]
struct MessageSender {
    sender: MailSender<Arc<ChannelMessage>>,
    /// Messages that were sent, ever. Written under the lock of the subscriptions.
    sent: Arc<AtomicU64>,
}

impl MessageSender {
    fn send(&self, message: &Arc<ChannelMessage>) {
        if self.sender.send(Arc::clone(message), message.size()) {
            // Relaxed: a count by itself.
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A worker's end: the messages for its subscribers come here.
#[derive(Debug)]
pub(super) struct MessageInbox {
    messages: MailReceiver<Arc<ChannelMessage>>,
    /// Messages that were sent, ever. Written by those who send.
    sent: Arc<AtomicU64>,
    /// Messages that were taken and delivered, ever.
    taken: u64,
}

impl MessageInbox {
    /// The next message, which is to be noted when it is delivered.
    pub(super) fn next(&self) -> Option<Arc<ChannelMessage>> {
        self.messages.next()
    }

    /// A message is delivered.
    pub(super) fn note_taken(&mut self) {
        self.taken += 1;
    }

    /// Messages that were sent, ever.
    pub(super) fn sent(&self) -> u64 {
        // Relaxed: who asks has taken the lock of the subscriptions, or asks for its own messages.
        self.sent.load(Ordering::Relaxed)
    }

    /// Messages that were taken and delivered, ever.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether messages were lost since the last call.
    pub(super) fn take_loss(&self) -> bool {
        self.messages.take_loss()
    }
}

impl Channels {
    /// The channels of workers that these signals wake, and the worker's end of each. They share the budget.
    pub(super) fn new(wake_signals: &[WakeSignal], budget: &Arc<Budget>) -> (Arc<Self>, Vec<MessageInbox>) {
        let none = WorkerCounts(vec![0; wake_signals.len()].into());
        let registered = Registered {
            channels: NameMap::default(),
            hasher: RandomState::new(),
            patterns: PatternIndex::default(),
            with_patterns: none,
        };
        let (mut workers, mut inboxes) = (Vec::new(), Vec::new());
        for wake_signal in wake_signals {
            let (sender, messages) = mail(wake_signal, budget, wake_signals.len());
            let sent = Arc::<AtomicU64>::default();
            workers.push(MessageSender { sender, sent: Arc::clone(&sent) });
            inboxes.push(MessageInbox { messages, sent, taken: 0 });
        }
        (Arc::new(Self { registered: Mutex::new(registered), workers }), inboxes)
    }

    /// A connection of this worker has subscribed. Returns the number of messages that the worker was sent before.
    pub(super) fn add(&self, worker: usize, kind: SubscriptionKind, name: &[u8]) -> u64 {
        let none = || WorkerCounts(vec![0; self.workers.len()].into());
        let mut registered = self.registered.lock();
        let Registered { channels, hasher, patterns, with_patterns } = &mut *registered;
        match kind {
            SubscriptionKind::Channel => {
                channels.change(name, hasher, none, |counts| counts.change(worker, 1));
            }
            SubscriptionKind::Pattern => {
                patterns.change(name, none, |counts| counts.change(worker, 1));
                with_patterns.change(worker, 1);
            }
        }
        // Relaxed: it is written under the lock.
        self.workers.get(worker).map_or(0, |worker| worker.sent.load(Ordering::Relaxed))
    }

    /// A connection of this worker has unsubscribed.
    pub(super) fn remove(&self, worker: usize, kind: SubscriptionKind, name: &[u8]) {
        let mut registered = self.registered.lock();
        let Registered { channels, hasher, patterns, with_patterns } = &mut *registered;
        match kind {
            SubscriptionKind::Channel => {
                channels.change(name, hasher, || with_patterns.clone(), |counts| counts.change(worker, -1));
            }
            SubscriptionKind::Pattern => {
                patterns.change(name, || with_patterns.clone(), |counts| counts.change(worker, -1));
                with_patterns.change(worker, -1);
            }
        }
    }

    /// Sends a message to all subscribers. Their number is known when the count is done.
    pub(super) fn publish(&self, channel: &[u8], payload: &[u8]) -> SubscriberCount {
        let has_any =
            |registered: &Registered| registered.patterns.len() > 0 || registered.of_channel(channel).is_some();
        if !has_any(&self.registered.lock()) {
            return SubscriberCount::default();
        }
        let message = Arc::new(ChannelMessage { channel: channel.into(), payload: payload.into() });
        let registered = self.registered.lock();
        let of_channel = registered.of_channel(channel);
        let Registered { patterns, with_patterns, .. } = &*registered;
        for (number, worker) in self.workers.iter().enumerate() {
            let has = |counts: &WorkerCounts| counts.0.get(number).is_some_and(|count| *count > 0);
            if has(with_patterns) || of_channel.is_some_and(has) {
                worker.send(&message);
            }
        }
        SubscriberCount { count: of_channel.map_or(0, WorkerCounts::sum), walk: Some(patterns.walk(channel)) }
    }

    /// Begins to look for channels with subscribers.
    pub(super) fn search(&self) -> ChannelSearch {
        ChannelSearch {
            walk: NameWalk::new([&self.registered.lock().channels].into_iter()),
            found: Vec::new(),
            bytes: 0,
        }
    }

    /// The subscribers of a channel, without those of patterns.
    pub(super) fn count(&self, channel: &[u8]) -> usize {
        self.registered.lock().of_channel(channel).map_or(0, WorkerCounts::sum)
    }

    /// How many channels have subscribers, without those of patterns.
    pub(super) fn names(&self) -> usize {
        self.registered.lock().channels.len()
    }

    /// The patterns with subscribers.
    pub(super) fn patterns(&self) -> usize {
        self.registered.lock().patterns.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    const BUDGET: u64 = 8 << 10;

    fn channels() -> (Arc<Channels>, Vec<MessageInbox>) {
        Channels::new(&[WakeSignal::new().unwrap(), WakeSignal::new().unwrap()], &Budget::new(BUDGET))
    }

    /// How many get a message.
    fn publish(channels: &Channels, channel: &[u8], payload: &[u8]) -> usize {
        channels.publish(channel, payload).advance(channel, &mut { usize::MAX }).unwrap()
    }

    #[test]
    fn a_message_goes_to_each_worker_with_a_subscriber_and_all_subscribers_count() {
        let (channels, mut inboxes) = channels();
        assert_eq!(publish(&channels, b"news", b"nobody"), 0);
        channels.add(1, SubscriptionKind::Channel, b"news");
        channels.add(1, SubscriptionKind::Channel, b"news");
        assert_eq!(publish(&channels, b"news", b"1"), 2);
        assert!(inboxes[0].next().is_none());
        assert_eq!(*inboxes[1].next().unwrap().payload, *b"1");
        inboxes[1].note_taken();
        channels.add(0, SubscriptionKind::Pattern, b"n*");
        channels.add(0, SubscriptionKind::Pattern, b"x*");
        assert_eq!((publish(&channels, b"news", b"2"), channels.patterns()), (3, 2));
        for inbox in &mut inboxes {
            assert!(inbox.next().is_some() && inbox.sent() == 1 + inbox.taken());
            inbox.note_taken();
            assert_eq!(inbox.sent(), inbox.taken());
        }
        channels.remove(1, SubscriptionKind::Channel, b"news");
        channels.remove(1, SubscriptionKind::Channel, b"news");
        channels.remove(0, SubscriptionKind::Pattern, b"n*");
        channels.remove(0, SubscriptionKind::Pattern, b"x*");
        assert_eq!((publish(&channels, b"news", b"3"), channels.patterns()), (0, 0));
        assert_eq!(
            (channels.count(b"news"), channels.search().advance(None, &mut { usize::MAX }).unwrap().len()),
            (0, 0)
        );
    }

    #[test]
    fn what_a_worker_does_not_take_is_lost_at_a_bound_and_the_worker_learns_of_it() {
        let (channels, inboxes) = channels();
        channels.add(0, SubscriptionKind::Channel, b"news");
        // A quarter of the budget is for the messages of two workers.
        let payload = vec![0; 512];
        assert_eq!(publish(&channels, b"news", &payload), 1);
        assert!(!inboxes[0].take_loss());
        assert_eq!(publish(&channels, b"news", &payload), 1, "it is closed");
        assert_eq!(publish(&channels, b"news", b"behind it"), 1, "it is closed");
        assert_eq!(inboxes[0].sent(), 1, "nothing comes behind the gap");
        assert!(inboxes[0].next().is_some() && inboxes[0].next().is_none());
        assert!(inboxes[0].take_loss() && !inboxes[0].take_loss());
        publish(&channels, b"news", &payload);
        assert!(!inboxes[0].take_loss() && inboxes[0].next().is_some());
    }

    #[test]
    fn those_who_come_while_subscribers_are_counted_are_not_counted() {
        let (channels, _inboxes) = channels();
        (0..1_000).for_each(|number| {
            channels.add(0, SubscriptionKind::Pattern, format!("*{number}").as_bytes());
        });
        let mut counted = channels.publish(b"7", b"");
        assert_eq!(counted.advance(b"7", &mut 1), None, "others have their turns");
        (0..1_000).for_each(|number| {
            channels.add(1, SubscriptionKind::Pattern, format!("*{number}").as_bytes());
            channels.remove(0, SubscriptionKind::Pattern, format!("*{number}").as_bytes());
        });
        assert_eq!(counted.advance(b"7", &mut { usize::MAX }), Some(1));
        assert_eq!((channels.patterns(), publish(&channels, b"77", b"")), (1_000, 2));
    }
}
