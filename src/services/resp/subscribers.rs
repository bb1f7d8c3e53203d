//! The subscribers of one worker: messages and events of keys come as mail, and are appended to their replies.
//!
//! ```text
//! PUBLISH of any worker ─► messages ─┐
//! publisher ─► batches of changes ───┴► who subscribes here? ─► a push between two replies of each ─► the next flush
//! ```
//! - A subscriber with too many bytes that it has not read is closed, not skipped. If the worker itself has lost mail,
//!   each of its subscribers that may have missed some is closed.
//! - Between two turns of its clients a worker delivers a bounded part of the mail.
//!
//! This module carries out no command.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ahash::RandomState;

use super::channels::{ChannelMessage, Channels, MessageInbox, SubscriptionKind};
use super::client::RespClient;
use super::glob::is_match;
use super::key_events::{events_of, selected_by_channel, selected_by_pattern, write_channels};
use super::limits::MAIL_A_TURN;
use super::push::PushFrames;
use super::subscriptions::{SubscriptionStage, Subscriptions};
use crate::net::sockets::WakeSignal;
use crate::net::zeromq::{ConnectionId, ConnectionState, Connections};
use crate::services::tables::change_mail::{BeginCount, ChangeInbox, ChangeMail, MailedChange, SelectedTables};
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
    /// Connections whose selections have not begun, by the numbers of these.
    asking: HashMap<u64, ConnectionId, RandomState>,
    /// The last number of selections.
    asked: u64,
    /// Connections whose selections have begun, until they have their turns.
    begun: Vec<ConnectionId>,
    /// Unread bytes at which a subscriber is closed.
    unread_max: usize,
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

/// Where a push goes to.
struct Receiver<'p> {
    id: ConnectionId,
    pattern: Option<&'p [u8]>,
    pushed: Pushed<'p>,
}

impl WorkerSubscribers {
    pub(super) fn new(number: usize, channels: &Arc<Channels>, mail: SubscriberMail, unread_max: usize) -> Self {
        let channels = Arc::clone(channels);
        let [by_channel, by_pattern] = [ListenersByName::default(), ListenersByName::default()];
        let (asking, begun) = (HashMap::default(), Vec::new());
        Self { number, channels, mail, by_channel, by_pattern, asking, asked: 0, begun, unread_max }
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
        }
    }

    /// A connection has closed.
    pub(super) fn leave(&mut self, id: ConnectionId, subscriptions: &Subscriptions) {
        let none = BTreeSet::new();
        let withdrawn = if let SubscriptionStage::Withdrawn(names) = &subscriptions.stage { names } else { &none };
        for (kind, name) in subscriptions.all() {
            if withdrawn.is_empty() || !withdrawn.contains(&(kind, name.into())) {
                self.withdraw(kind, name);
            }
            self.remove(id, kind, name);
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
        }
        if self.mail.messages.take_loss() {
            self.close_all(connections, false);
        }
        for _ in 0..MAIL_A_TURN {
            let Some(message) = self.mail.messages.next() else { break };
            self.deliver_message(connections, of, &message);
        }
        for _ in 0..MAIL_A_TURN {
            match self.mail.changes.next() {
                Some(ChangeMail::Changes(batch)) => {
                    let mut channels = [const { Vec::new() }; 2];
                    batch.changes().for_each(|change| self.deliver_change(connections, of, &change, &mut channels));
                }
                Some(ChangeMail::Begun(number)) => self.begin(connections, of, number),
                None => break,
            }
        }
        if self.mail.changes.has_mail() || self.mail.messages.sent() > self.mail.messages.taken() {
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

    fn deliver_message<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        message: &ChannelMessage,
    ) {
        let ChannelMessage { channel, payload } = message;
        let pushed = Pushed::Message(self.mail.messages.taken());
        self.push(connections, of, &mut PushFrames::new(channel, payload), pushed);
    }

    fn deliver_change<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        change: &MailedChange<'_>,
        channels: &mut [Vec<u8>; 2],
    ) {
        for event in events_of(change) {
            write_channels(change, event, channels);
            let [of_key, of_event] = &*channels;
            // An end out of order is for those who select ends alone, and no channel of a key does.
            if change.is_in_order {
                self.push(connections, of, &mut PushFrames::new(of_key, event.as_bytes()), Pushed::Event(change));
            }
            self.push(connections, of, &mut PushFrames::new(of_event, change.key), Pushed::Event(change));
        }
    }

    /// Appends a message to the replies of all who subscribe to its channel.
    fn push<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
        frames: &mut PushFrames<'_>,
        pushed: Pushed<'_>,
    ) {
        let channel = frames.channel();
        let of_channel = self.by_channel.get(channel).map(|listeners| (None, listeners)).into_iter();
        let of_patterns = self.by_pattern.iter().map(|(pattern, listeners)| (Some(&**pattern), listeners));
        for (pattern, listeners) in of_channel.chain(of_patterns).filter(|(_, listeners)| pushed.is_for(listeners.kind))
        {
            if pattern.is_none_or(|pattern| is_match(pattern, channel)) {
                for id in listeners.ids.iter().filter(|(_, sent)| pushed.is_behind(**sent)).map(|(id, _)| *id) {
                    self.push_to(connections, of, frames, &Receiver { id, pattern, pushed });
                }
            }
        }
    }

    fn push_to<S: ConnectionState>(
        &self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient>,
        frames: &mut PushFrames<'_>,
        receiver: &Receiver<'_>,
    ) {
        let Receiver { id, pattern, pushed } = *receiver;
        let Some((state, outbox)) = connections.connection(id) else { return };
        let Some(client) = of(state).filter(|_| !outbox.is_unread()) else { return };
        if let Pushed::Event(change) = pushed
            && !client.may_read(change.table)
        {
            return;
        }
        let frame = frames.frame(client.version, pattern);
        if outbox.waiting() + frame.len() <= self.unread_max {
            outbox.push_between(frame);
        } else {
            tracing::debug!("a subscriber has not read {} bytes, and is closed", outbox.waiting());
            connections.close(id);
        }
    }
}

/// The tables whose changes a subscription can match.
pub(super) fn selected_by(kind: SubscriptionKind, name: &[u8]) -> Option<SelectedTables> {
    match kind {
        SubscriptionKind::Channel => selected_by_channel(name),
        SubscriptionKind::Pattern => selected_by_pattern(name),
    }
}
