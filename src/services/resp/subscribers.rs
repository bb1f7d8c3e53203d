//! The subscribers of one worker: messages and events of keys come as mail, and are appended to their replies.
//!
//! ```text
//! PUBLISH of any worker ─► messages ─┐
//! publisher ─► batches of changes ───┴► who subscribes here? ─► a push between two replies of each ─► the next flush
//! ```
//! - A subscriber with too many bytes that it has not read is closed, not skipped. If the worker itself has lost mail,
//!   each of its subscribers that may have missed some is closed.
//! - Between two turns of its clients a worker delivers a bounded part of the mail: it may leave a message, or a batch of
//!   changes, in the middle, even between two patterns that it is compared with (`pattern_index.rs`).
//!
//! This module carries out no command.

mod leaving;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use ahash::RandomState;

use super::channels::{ChannelMessage, Channels, MessageInbox, SubscriptionKind};
use super::client::RespClient;
use super::key_events::{events_of, selected_by_channel, selected_by_pattern, write_channels};
use super::limits::{DELIVERY_STEPS, PUSH_BYTES_A_STEP, PUSH_STEPS};
use super::name_map::NameWalk;
use super::pattern_index::PatternIndex;
use super::push::PushFrames;
use super::subscriptions::{SubscriptionStage, Subscriptions};
use crate::net::mail::MailSize;
use crate::net::sockets::WakeSignal;
use crate::net::zeromq::{ConnectionId, ConnectionState, Connections};
use crate::services::tables::change_mail::{
    BatchPlace, BeginCount, ChangeBatch, ChangeInbox, ChangeMail, MailedChange, SelectedTables,
};
use crate::tables::{AudienceKind, Batch};

/// The connections of a worker with one subscription.
#[derive(Debug, Default)]
struct Listeners {
    /// With the number of messages that had been sent to the worker when the connection subscribed.
    ids: BTreeMap<ConnectionId, u64>,
    /// The changes that it can match. `None`: it can match no channel of a key.
    kind: Option<AudienceKind>,
}

type ListenersByName = HashMap<Box<[u8]>, Listeners, RandomState>;

/// What comes to a worker.
#[derive(Debug)]
pub(super) struct SubscriberMail {
    pub(super) messages: MessageInbox,
    pub(super) changes: ChangeInbox,
    /// Wakes the worker.
    pub(super) wake_signal: WakeSignal,
}

/// The subscribers of a worker. The worker's thread owns it.
#[derive(Debug)]
pub(super) struct WorkerSubscribers {
    /// The number of the worker.
    number: usize,
    /// Those of all workers.
    channels: Arc<Channels>,
    mail: SubscriberMail,
    by_channel: ListenersByName,
    by_pattern: ListenersByName,
    /// The patterns of `by_pattern`, for a channel to be compared with.
    patterns: PatternIndex<()>,
    under_way: UnderWay,
    /// Connections whose selections have not begun, by the numbers of these.
    asking: HashMap<u64, ConnectionId, RandomState>,
    /// The last number of selections.
    asked: u64,
    /// Connections whose selections have begun, until they have their turns.
    begun: Vec<ConnectionId>,
    /// What a subscriber may leave unread.
    unread_max: MailSize,
    /// Closed connections whose subscriptions are not taken away yet.
    leaving: VecDeque<(ConnectionId, Box<Subscriptions>)>,
}

/// What is pushed.
#[derive(Clone, Copy)]
enum Pushed<'c> {
    /// The message of this number.
    Message(u64),
    /// An event of a change.
    Event(&'c MailedChange<'c>),
}

impl Pushed<'_> {
    /// Whether it is for a connection that subscribed when so many messages had been sent.
    fn is_behind(self, subscribed: u64) -> bool {
        match self {
            Self::Message(number) => number > subscribed,
            // The subscription has waited for the changes of before.
            Self::Event(_) => true,
        }
    }

    /// Whether it is for subscriptions that can match these changes.
    fn is_for(self, kind: Option<AudienceKind>) -> bool {
        match self {
            Self::Message(_) => true,
            Self::Event(change) => kind.is_some_and(|kind| change.is_in_order || kind == AudienceKind::Ends),
        }
    }
}

/// What is delivered in part.
#[derive(Debug, Default)]
struct UnderWay {
    message: Option<MessageDelivery>,
    changes: Option<BatchDelivery>,
}

/// A message, and how far it is delivered.
#[derive(Debug)]
struct MessageDelivery {
    message: Arc<ChannelMessage>,
    progress: PushProgress,
}

/// How far a push has come: first to the subscribers of the channel, then to those of patterns.
#[derive(Debug, Default)]
struct PushProgress {
    /// The patterns with which the channel was not compared. `None`: with none yet.
    walk: Option<NameWalk<()>>,
    /// The last one to whom it went, of the subscribers of the channel or of the present pattern.
    last: Option<ConnectionId>,
}

/// A batch of changes, and how far it is delivered.
#[derive(Debug)]
struct BatchDelivery {
    batch: Arc<ChangeBatch>,
    /// The next change.
    place: BatchPlace,
    /// Messages of that change that are delivered.
    delivered: usize,
    /// How far the next message is delivered.
    progress: PushProgress,
}

/// Those who get a message by the same name.
#[derive(Clone, Copy)]
struct Receivers<'p> {
    listeners: &'p Listeners,
    /// The name, if it is a pattern.
    pattern: Option<&'p [u8]>,
    pushed: Pushed<'p>,
}

impl WorkerSubscribers {
    pub(super) fn new(number: usize, channels: &Arc<Channels>, mail: SubscriberMail, unread_max: MailSize) -> Self {
        let channels = Arc::clone(channels);
        let [by_channel, by_pattern] = [ListenersByName::default(), ListenersByName::default()];
        let (patterns, under_way) = (PatternIndex::default(), UnderWay::default());
        let (asking, begun) = (HashMap::default(), Vec::new());
        Self {
            number,
            channels,
            mail,
            by_channel,
            by_pattern,
            patterns,
            under_way,
            asking,
            asked: 0,
            begun,
            unread_max,
            leaving: VecDeque::new(),
        }
    }

    /// The channels of all workers.
    pub(super) fn channels(&self) -> &Channels {
        &self.channels
    }

    fn listeners(&mut self, kind: SubscriptionKind) -> &mut ListenersByName {
        match kind {
            SubscriptionKind::Channel => &mut self.by_channel,
            SubscriptionKind::Pattern => &mut self.by_pattern,
        }
    }

    /// A connection has subscribed. From now on it gets what is published.
    pub(super) fn add(&mut self, id: ConnectionId, kind: SubscriptionKind, name: &[u8]) {
        let sent = self.channels.add(self.number, kind, name);
        let listeners = self.listeners(kind).entry(name.into()).or_insert_with(|| Listeners {
            ids: BTreeMap::new(),
            kind: selected_by(kind, name).map(|tables| tables.kind),
        });
        listeners.ids.insert(id, sent);
        if kind == SubscriptionKind::Pattern {
            self.patterns.change(name, || (), |()| true);
        }
    }

    /// No message is counted for a connection any more. Those that were counted still come to it.
    pub(super) fn withdraw(&self, kind: SubscriptionKind, name: &[u8]) {
        self.channels.remove(self.number, kind, name);
    }

    /// A connection has unsubscribed, and nothing comes to it any more.
    pub(super) fn remove(&mut self, id: ConnectionId, kind: SubscriptionKind, name: &[u8]) {
        let listeners = self.listeners(kind);
        let Some(of_name) = listeners.get_mut(name) else { return };
        of_name.ids.remove(&id);
        if of_name.ids.is_empty() {
            listeners.remove(name);
            if kind == SubscriptionKind::Pattern {
                self.patterns.change(name, || (), |()| false);
            }
        }
    }

    /// Selects the changes of these tables for a connection. Returns the stage at which it waits.
    pub(super) fn ask(
        &mut self,
        id: ConnectionId,
        batch: &Batch<'_>,
        selected: &[Option<SelectedTables>],
    ) -> SubscriptionStage {
        self.asked += 1;
        self.asking.insert(self.asked, id);
        let count = BeginCount::new(self.asked, selected.iter().flatten());
        let select = |tables: &SelectedTables| self.mail.changes.select(batch, tables, &count);
        let selections = selected.iter().map(|tables| tables.as_ref().map(select)).collect();
        SubscriptionStage::Asked(self.asked, selections)
    }

    /// Whether all messages were delivered that had been sent to the worker when this was first asked about the
    /// connection's next command.
    pub(super) fn has_caught_up(&self, subscriptions: &mut Subscriptions) -> bool {
        let messages = &self.mail.messages;
        let has_caught_up = *subscriptions.messages_before.get_or_insert(messages.sent()) <= messages.taken();
        if has_caught_up {
            subscriptions.messages_before = None;
        }
        has_caught_up
    }

    /// The next connection whose selections have begun.
    pub(super) fn next_begun(&mut self) -> Option<ConnectionId> {
        self.begun.pop()
    }

    /// Delivers some of the mail. `of` is the state of a connection that speaks RESP.
    pub(super) fn deliver<S: ConnectionState>(
        &mut self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
    ) {
        if self.mail.changes.take_loss() {
            self.close_all(connections, true);
            // What comes behind the loss has no subscriber left.
            while self.mail.changes.next().is_some() {}
            self.under_way.changes = None;
        }
        if self.mail.messages.take_loss() {
            self.close_all(connections, false);
        }
        self.let_some_go();
        let mut steps = DELIVERY_STEPS;
        while steps > 0 && self.deliver_message(connections, of, &mut steps) {}
        let mut steps = DELIVERY_STEPS;
        while steps > 0 && self.deliver_changes(connections, of, &mut steps) {}
        let has_mail = self.mail.changes.has_mail() || self.under_way.changes.is_some();
        if has_mail || self.mail.messages.sent() > self.mail.messages.taken() {
            self.mail.wake_signal.raise();
        }
    }

    /// The connections whose subscriptions can match channels of keys, or all, are closed.
    fn close_all<S: ConnectionState>(&mut self, connections: &mut Connections<S>, of_keys: bool) {
        let subscribed = self.by_channel.values().chain(self.by_pattern.values());
        let chosen = subscribed.filter(|listeners| !of_keys || listeners.kind.is_some());
        let mut closed: BTreeSet<ConnectionId> = chosen.flat_map(|listeners| listeners.ids.keys().copied()).collect();
        if of_keys {
            closed.extend(self.asking.drain().map(|(_, id)| id));
        }
        if !closed.is_empty() {
            tracing::warn!("a worker has not kept up: {} of its subscribers are closed", closed.len());
        }
        closed.into_iter().for_each(|id| connections.close(id));
    }

    fn begin<S: ConnectionState>(
        &mut self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient>,
        number: u64,
    ) {
        let Some(id) = self.asking.remove(&number) else { return };
        let state = connections.connection(id).and_then(|(state, _)| of(state));
        let Some(subscriptions) = state.and_then(|client| client.subscriptions.as_mut()) else { return };
        if let SubscriptionStage::Asked(asked, selections) = &mut subscriptions.stage
            && *asked == number
        {
            subscriptions.stage = SubscriptionStage::Begun(std::mem::take(selections));
            self.begun.push(id);
        }
    }

    /// Delivers a message, or a part of it. Returns whether there was any.
    fn deliver_message<S: ConnectionState>(
        &mut self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        steps: &mut usize,
    ) -> bool {
        let next = || Some(MessageDelivery { message: self.mail.messages.next()?, progress: PushProgress::default() });
        let Some(mut delivery) = self.under_way.message.take().or_else(next) else { return false };
        let ChannelMessage { channel, payload } = &*delivery.message;
        let pushed = Pushed::Message(self.mail.messages.taken() + 1);
        if self.push(connections, of, &mut PushFrames::new(channel, payload), pushed, &mut delivery.progress, steps) {
            self.mail.messages.note_taken();
        } else {
            self.under_way.message = Some(delivery);
        }
        true
    }

    /// Delivers a batch of changes, or a part of it. Returns whether there was any mail of changes.
    fn deliver_changes<S: ConnectionState>(
        &mut self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        steps: &mut usize,
    ) -> bool {
        let mut delivery = match self.under_way.changes.take() {
            Some(delivery) => delivery,
            None => match self.mail.changes.next() {
                Some(ChangeMail::Changes(batch)) => BatchDelivery {
                    batch,
                    place: BatchPlace::default(),
                    delivered: 0,
                    progress: PushProgress::default(),
                },
                Some(ChangeMail::Begun(number)) => {
                    self.begin(connections, of, number);
                    return true;
                }
                None => return false,
            },
        };
        let mut channels = [const { Vec::new() }; 2];
        let batch = Arc::clone(&delivery.batch);
        while let Some((change, next)) = batch.at(delivery.place) {
            if *steps == 0 || !self.deliver_change(connections, of, &change, &mut delivery, &mut channels, steps) {
                self.under_way.changes = Some(delivery);
                break;
            }
            (delivery.place, delivery.delivered) = (next, 0);
        }
        true
    }

    /// Delivers the messages of a change that are not delivered. Returns whether all are.
    fn deliver_change<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        change: &MailedChange<'_>,
        delivery: &mut BatchDelivery,
        channels: &mut [Vec<u8>; 2],
        steps: &mut usize,
    ) -> bool {
        let messages = events_of(change).flat_map(|event| [(event, true), (event, false)]);
        for (event, is_of_key) in messages.skip(delivery.delivered) {
            write_channels(change, event, channels);
            let [of_key, of_event] = &*channels;
            let mut frames = match is_of_key {
                true => PushFrames::new(of_key, event.as_bytes()),
                false => PushFrames::new(of_event, change.key),
            };
            // An end out of order is for those who select ends alone, and no channel of a key does.
            let is_due = change.is_in_order || !is_of_key;
            if is_due && !self.push(connections, of, &mut frames, Pushed::Event(change), &mut delivery.progress, steps)
            {
                return false;
            }
            delivery.delivered += 1;
        }
        true
    }

    /// Appends a message to the replies of those who subscribe to its channel, while there are steps. Returns whether all
    /// have it.
    fn push<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        frames: &mut PushFrames<'_>,
        pushed: Pushed<'_>,
        progress: &mut PushProgress,
        steps: &mut usize,
    ) -> bool {
        let channel = frames.channel();
        let PushProgress { walk, last } = progress;
        let mut to_all = |receivers: Receivers<'_>, steps: &mut usize| {
            self.push_to_all(connections, of, frames, receivers, last, steps)
        };
        if walk.is_none() {
            *steps = steps.saturating_sub(PUSH_STEPS);
            if let Some(listeners) = self.by_channel.get(channel)
                && !to_all(Receivers { listeners, pattern: None, pushed }, steps)
            {
                return false;
            }
        }
        let walk = walk.get_or_insert_with(|| self.patterns.walk(channel));
        let is_done = walk.match_patterns(channel, steps, |pattern, (), steps| {
            let Some(listeners) = self.by_pattern.get(pattern) else { return true };
            to_all(Receivers { listeners, pattern: Some(pattern), pushed }, steps)
        });
        if is_done {
            *progress = PushProgress::default();
        }
        is_done
    }

    /// Appends a message to the replies of those who come behind the last one, while there are steps. Returns whether all
    /// have it.
    fn push_to_all<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        frames: &mut PushFrames<'_>,
        receivers: Receivers<'_>,
        last: &mut Option<ConnectionId>,
        steps: &mut usize,
    ) -> bool {
        let Receivers { listeners, pushed, .. } = receivers;
        if !pushed.is_for(listeners.kind) {
            return true;
        }
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        for (id, subscribed) in listeners.ids.range((behind, Bound::Unbounded)) {
            if *steps == 0 {
                return false;
            }
            let is_due = pushed.is_behind(*subscribed);
            let bytes = if is_due { self.push_to(connections, of, frames, *id, receivers) } else { 0 };
            *steps = steps.saturating_sub(PUSH_STEPS + bytes / PUSH_BYTES_A_STEP);
            *last = Some(*id);
        }
        *last = None;
        true
    }

    /// Appends a message to the replies of a connection. Returns the bytes that it has.
    fn push_to<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient>,
        frames: &mut PushFrames<'_>,
        id: ConnectionId,
        Receivers { pattern, pushed, .. }: Receivers<'_>,
    ) -> usize {
        let Some((state, outbox)) = connections.connection(id) else { return 0 };
        let Some(client) = of(state).filter(|_| !outbox.is_unread()) else { return 0 };
        if let Pushed::Event(change) = pushed
            && !client.may_read(change.table)
        {
            return 0;
        }
        let frame = frames.frame(client.version, pattern);
        let (bytes, sent) = (outbox.waiting() + frame.len(), outbox.sent());
        let subscriptions = client.subscriptions.as_mut();
        let note = |all: &mut Box<Subscriptions>| all.unread.note(sent, sent + bytes as u64, self.unread_max.items);
        let messages = subscriptions.map_or(0, note);
        if bytes <= self.unread_max.bytes && messages <= self.unread_max.items {
            outbox.push_between(frame);
        } else {
            tracing::debug!("a subscriber has not read {bytes} bytes of {messages} messages or more, and is closed");
            connections.close(id);
        }
        frame.len()
    }
}

/// The tables whose changes a subscription can match.
pub(super) fn selected_by(kind: SubscriptionKind, name: &[u8]) -> Option<SelectedTables> {
    match kind {
        SubscriptionKind::Channel => selected_by_channel(name),
        SubscriptionKind::Pattern => selected_by_pattern(name),
    }
}
