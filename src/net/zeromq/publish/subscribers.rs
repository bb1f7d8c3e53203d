//! All subscribers of one endpoint, and the turn of the publisher's loop.
//!
//! ```text
//! publish, publish … ─► send ─► turn: wait ─► accept ─► flush queues ─► receive, within a budget
//!                                         └─► remove the topics of former subscribers, some of them
//! ```
//! Epoll is level-triggered here: it reports a connection as long as it is ready. Subscribers with input take turns
//! across the waits, so none waits for ever behind others that send without end.
//!
//! This module does not handle a single connection (`subscriber`), its share of a burst (`deliver`), or its end
//! (`leaving`).

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use slab::Slab;

use super::deliver::Delivery;
use super::readers::TopicForm;
use super::subscriber::{CloseReason, SubscriberConnection};
use super::subscriptions::Subscriptions;
use super::topics::Member;
use super::{PublishLimits, PublisherMetrics};
use crate::clock::Now;
use crate::descriptors::ConnectionDescriptor;
use crate::limits::{
    IGNORED_BYTES_MAX, READY_EVENTS, SEND_BYTES_A_TURN, SUBSCRIBER_RECEIVE_BYTES, SUBSCRIBERS_RECEIVE_BYTES,
};
use crate::log::WarningPace;
use crate::net::budget::Budget;
use crate::net::sockets::WakeSignal;
use crate::net::zeromq::{
    Admission, Authentication, BoundListener, ConnectionId, Deadlines, EventPort, Interest, LISTENERS, WAKE_SIGNAL,
    wait,
};
use crate::security::limits::USERS_LOOK;

/// Names another set of subscribers to epoll: see [`Subscribers::wake_for`].
pub(super) const OTHERS: u64 = u64::MAX - 2;

/// Subscribers, and the messages on their way to them.
pub struct Subscribers {
    pub(super) port: EventPort,
    pub(super) limits: PublishLimits,
    /// The last reading of the clock.
    pub(super) now: Now,
    pub(super) connections: Slab<SubscriberConnection>,
    /// That of the newest subscriber.
    generation: u32,
    pub(super) subscriptions: Subscriptions,
    /// The users that may subscribe. None: any client may.
    pub(super) authentication: Option<Authentication>,
    pub(super) delivery: Delivery,
    pub(super) deadlines: Deadlines,
    /// Subscribers with input to receive.
    turns: VecDeque<ConnectionId>,
    /// Memory for what is received.
    buffer: Vec<u8>,
    pub(super) counts: SubscriberCounts,
}

/// Counts of the subscribers.
#[derive(Default)]
pub(super) struct SubscriberCounts {
    /// The open ones.
    pub(super) subscribers: usize,
    /// Messages that subscribers have lost, ever.
    pub(super) lost: u64,
    /// Subscribers that were closed, ever.
    pub(super) closed: u64,
    loss_warnings: WarningPace,
    pub(super) refusal_warnings: WarningPace,
}

impl Subscribers {
    /// No subscribers and no listeners yet. A wait ends when `wake_signal` is raised. With an admission, a subscriber
    /// has to prove that it is a user, and receives only topics that its user may read.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(
        wake_signal: &WakeSignal,
        limits: PublishLimits,
        form: TopicForm,
        admission: Option<&Admission>,
    ) -> Result<Self, Errno> {
        Ok(Self {
            port: EventPort::new(wake_signal)?,
            delivery: Delivery::new(limits.held_bytes),
            limits,
            now: Now::from_nanos(0),
            connections: Slab::new(),
            generation: 0,
            subscriptions: Subscriptions::new(form),
            authentication: admission.map(|admission| Authentication::new(admission, wake_signal)),
            deadlines: Deadlines::default(),
            turns: VecDeque::new(),
            buffer: Vec::new(),
            counts: SubscriberCounts::default(),
        })
    }

    /// The budget of the bytes that wait for all of them.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.delivery.held
    }

    /// Accepts the clients that connect to this listener.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn listen(&mut self, listener: BoundListener) -> Result<(), Errno> {
        self.port.listen(listener)
    }

    /// Whether there is no subscription.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.subscriptions.topics.is_empty()
    }

    /// The publisher's metrics.
    #[must_use]
    pub fn metrics(&self) -> PublisherMetrics {
        PublisherMetrics {
            subscribers: self.counts.subscribers as u64,
            topics: self.subscriptions.topics.len() as u64,
            subscriptions: self.subscriptions.count as u64,
            lost: self.counts.lost,
            closed: self.counts.closed,
        }
    }

    // ---------------------------------------------------------------------------------------------------- publishing

    /// Publishes a message. `encode` appends it as it is on the wire, with `topic` as its first frame. The next
    /// [`send`](Self::send) sends it. Returns false if no client subscribes to it, and then does not encode it.
    #[inline]
    pub fn publish(&mut self, topic: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.subscriptions.topics.is_empty() {
            return false;
        }
        self.make_room();
        self.collect(topic, encode)
    }

    /// As [`publish`](Self::publish), but sends nothing, also if many messages are collected.
    #[inline]
    pub fn collect(&mut self, topic: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Subscriptions { topics, readers, .. } = &self.subscriptions;
        !topics.is_empty() && self.delivery.burst.add(topics, readers, topic, encode)
    }

    /// Sends the published messages if they are many.
    #[inline]
    pub fn make_room(&mut self) {
        if self.delivery.burst.is_full() {
            self.send();
        }
    }

    /// Sends the published messages.
    pub fn send(&mut self) {
        let Self { delivery: Delivery { burst, touched, .. }, connections, .. } = self;
        burst.for_each(|member, run| {
            let Some(subscriber) = connections.get_mut(member as usize).filter(|subscriber| subscriber.is_open())
            else {
                return;
            };
            let runs = &mut subscriber.output.runs;
            match runs.last_mut() {
                Some(last) if last.end == run.start => {
                    (last.end, last.messages) = (run.end, last.messages + run.messages);
                }
                Some(_) => runs.push(run),
                None => {
                    runs.push(run);
                    touched.push(member);
                }
            }
        });
        let mut touched = std::mem::take(&mut self.delivery.touched);
        touched.drain(..).for_each(|member| self.deliver(member));
        self.delivery.touched = touched;
        self.delivery.clear();
    }

    fn deliver(&mut self, member: Member) {
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        match self.delivery.offer(subscriber) {
            Ok(None) => {}
            Ok(Some(sent)) => self.keep(member, sent),
            Err(_) => return self.forget(member),
        }
        self.renew_interest(member);
    }

    /// Queues the bytes of a subscriber's delivery that the system has not taken.
    fn keep(&mut self, member: Member, sent: usize) {
        let share = self.share();
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        let queue = &mut subscriber.output.queue;
        if queue.bytes() < share && self.delivery.begins_to_lack_room(queue) {
            self.cut_to_shares(share);
        }
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        let lost = self.delivery.keep(&mut subscriber.output.queue, sent, &self.limits);
        self.count_lost(lost);
    }

    /// Bytes that each subscriber may always have waiting, however much the others have. It is half of the subscriber's
    /// part of the memory, since a buffer may take twice the bytes that wait in it.
    fn share(&self) -> usize {
        self.limits.held_bytes / 2 / self.counts.subscribers.max(1)
    }

    /// Removes the newest messages of subscribers above their share, and shrinks buffers with little in them.
    fn cut_to_shares(&mut self, share: usize) {
        let mut lost = 0;
        for (_, subscriber) in &mut self.connections {
            let queue = &mut subscriber.output.queue;
            if queue.bytes() > share {
                lost += queue.shorten(usize::MAX, share);
            }
            queue.tighten(&self.delivery.held);
        }
        self.count_lost(lost);
    }

    fn count_lost(&mut self, messages: usize) {
        if messages == 0 {
            return;
        }
        self.counts.lost += messages as u64;
        if self.counts.loss_warnings.is_time(self.now) {
            tracing::warn!(
                "a subscriber reads too slowly and has lost {messages} messages; {} of all subscribers by now",
                self.counts.lost
            );
        }
    }

    // ------------------------------------------------------------------------------------------------------- a turn

    /// Waits until there is work, the wake signal is raised, or the timeout ends, and gives each ready connection a
    /// turn. The publisher reads `clock` when the wait is over.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn turn(&mut self, timeout: Option<Duration>, clock: impl Fn() -> Now) {
        self.send();
        let timeout = self.patience(timeout);
        let mut room = [const { MaybeUninit::uninit() }; READY_EVENTS];
        let events = wait(&self.port.epoll, &mut room, timeout);
        self.now = clock();
        self.close_late();
        self.refresh_users();
        for event in events {
            match event.data.u64() {
                WAKE_SIGNAL => self.port.wake_signal.clear(),
                LISTENERS => self.accept(),
                OTHERS => {}
                data => self.note(ConnectionId::of(data), event.flags),
            }
        }
        self.receive();
        self.remove_left();
    }

    /// How long a wait may be that would otherwise end after `timeout`.
    #[must_use]
    pub fn patience(&self, timeout: Option<Duration>) -> Option<Duration> {
        if !self.turns.is_empty() || !self.subscriptions.left.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = self.deadlines.next().into_iter().chain(self.port.listeners.again_at());
        let next = next.chain(self.authentication.as_ref().map(|_| self.now.after(USERS_LOOK / 2))).min();
        let left = next.map(|next| self.now.time_until(next));
        timeout.into_iter().chain(left).min()
    }

    fn close_late(&mut self) {
        let now = self.now;
        while let Some(id) = self.deadlines.take_late(now) {
            // A subscriber that has finished its handshake in time may have a later deadline by now.
            if self.get(id).is_some_and(|subscriber| !subscriber.is_open() && subscriber.deadline <= now) {
                self.forget(id.slot());
            }
        }
        self.port.listeners.reopen(&self.port.epoll, now);
    }

    pub(super) fn admit(&mut self) {
        let room = self.limits.subscribers.saturating_sub(self.connections.len());
        let came = self.port.listeners.admit(&self.port.epoll, self.now, room);
        came.into_iter().for_each(|arrival| self.insert(arrival.descriptor));
    }

    fn insert(&mut self, descriptor: ConnectionDescriptor) {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.connections.vacant_entry();
        let id = ConnectionId::new(entry.key(), self.generation);
        // Without epoll no event of the connection would reach the publisher, so it closes the connection.
        let mut interest = Interest::default();
        if interest.change(&self.port.epoll, &descriptor, id, epoll::EventFlags::IN).is_ok() {
            let (generation, deadline) = (self.generation, self.deadlines.begin(id, self.now));
            let mechanisms = self.authentication.as_ref().map(Authentication::mechanisms);
            let held = &self.delivery.held;
            entry.insert(SubscriberConnection::greet(descriptor, generation, deadline, interest, mechanisms, held));
            self.flush(id.slot());
        }
    }

    fn note(&mut self, id: ConnectionId, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) && self.get(id).is_some() {
            self.flush(id.slot());
        }
        if let Some(subscriber) = self.get(id).filter(|subscriber| subscriber.peer.is_checked()) {
            subscriber.input.is_queued = false;
            if flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                self.forget(id.slot());
            }
            return;
        }
        let has_input = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        if has_input && let Some(subscriber) = self.get(id).filter(|subscriber| !subscriber.input.is_queued) {
            subscriber.input.is_queued = true;
            self.turns.push_back(id);
        }
    }

    pub(super) fn get(&mut self, id: ConnectionId) -> Option<&mut SubscriberConnection> {
        get(&mut self.connections, id)
    }

    /// Writes some of a subscriber's queued bytes.
    pub(super) fn flush(&mut self, member: Member) {
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        match subscriber.flush(SEND_BYTES_A_TURN) {
            Ok(()) => self.renew_interest(member),
            Err(_) => self.forget(member),
        }
    }

    /// Asks the system for the events that matter to a subscriber now.
    fn renew_interest(&mut self, member: Member) {
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        let (wanted, id) = (subscriber.wanted(), ConnectionId::new(member as usize, subscriber.generation));
        let Some(descriptor) = &subscriber.descriptor else { return };
        if subscriber.interest.change(&self.port.epoll, descriptor, id, wanted).is_err() {
            self.forget(member);
        }
    }

    // ----------------------------------------------------------------------------------------------------- receiving

    /// Receives from subscribers with input, one after the other, until the budget of the turn is spent.
    fn receive(&mut self) {
        // The topics of former subscribers free their room before the publisher takes more.
        let is_behind = !self.subscriptions.is_ending
            && self.subscriptions.topics.subscriptions() > 2 * self.limits.all_subscriptions;
        // A turn with many deliveries is long, so it may receive from as many subscribers.
        let most = SUBSCRIBERS_RECEIVE_BYTES + std::mem::take(&mut self.delivery.count) * RECEIVE_COST;
        let mut budget = if is_behind { 0 } else { most };
        while budget >= SUBSCRIBER_RECEIVE_BYTES
            && let Some(id) = self.turns.pop_front()
        {
            // A subscriber without input costs a call as well.
            budget -= self.receive_from(id).max(RECEIVE_COST).min(budget);
        }
    }

    /// Receives from one subscriber. Returns how many bytes came.
    fn receive_from(&mut self, id: ConnectionId) -> usize {
        let mut buffer = std::mem::take(&mut self.buffer);
        let subscriber = self.get(id).and_then(|subscriber| {
            subscriber.input.is_queued = false;
            (!subscriber.peer.is_checked()).then_some(subscriber)
        });
        let Some(subscriber) = subscriber else {
            self.buffer = buffer;
            return 0;
        };
        let came = subscriber.receive(&mut buffer);
        match came {
            Some(1..) if !subscriber.is_parting() => self.listen_to(id, &buffer),
            Some(count) => {
                subscriber.input.ignored += count;
                if subscriber.input.ignored > IGNORED_BYTES_MAX {
                    self.forget(id.slot());
                }
            }
            None => self.forget(id.slot()),
        }
        buffer.clear();
        self.buffer = buffer;
        came.unwrap_or(0)
    }

    pub(super) fn listen_to(&mut self, id: ConnectionId, bytes: &[u8]) {
        let Self { connections, subscriptions, limits, delivery, .. } = self;
        let Some(subscriber) = connections.get_mut(id.slot() as usize) else { return };
        let was_open = subscriber.is_open();
        let listened = subscriber.listen(bytes, id.slot(), subscriptions, limits, &delivery.held);
        let has_claimed = subscriber.peer.is_claimed();
        subscriptions.report_first();
        self.counts.subscribers += usize::from(subscriber.is_open() && !was_open);
        if let Err(refusal) = listened {
            if let CloseReason::Fault(fault) = &refusal {
                self.note_fault(id.slot(), fault);
            }
            self.refuse(id.slot(), &refusal);
        }
        while self.subscriptions.count > self.limits.all_subscriptions
            || self.subscriptions.bytes > self.limits.all_topic_bytes
        {
            self.refuse_the_largest();
        }
        if has_claimed {
            self.identify(id);
        }
        self.flush(id.slot());
    }

    fn refuse_the_largest(&mut self) {
        let open = self.connections.iter().filter(|(_, subscriber)| subscriber.is_open());
        let largest =
            open.max_by_key(|(_, subscriber)| subscriber.topics.bytes + TOPIC_COST * subscriber.topics.nodes.len());
        let Some((index, _)) = largest else { unreachable!("somebody has the subscriptions") };
        self.refuse(member_at(index), &CloseReason::All);
        self.flush(member_at(index));
    }
}

/// The subscriber with this id, unless it has gone.
pub(super) fn get(connections: &mut Slab<SubscriberConnection>, id: ConnectionId) -> Option<&mut SubscriberConnection> {
    let subscriber = connections.get_mut(id.slot() as usize);
    subscriber.filter(|subscriber| subscriber.generation == id.generation() && subscriber.descriptor.is_some())
}

pub(super) fn member_at(index: usize) -> Member {
    Member::try_from(index).expect("subscribers are bounded")
}

/// Least cost of receiving from a subscriber, in bytes of a turn's budget.
const RECEIVE_COST: usize = SUBSCRIBER_RECEIVE_BYTES / 8;

/// Weight of a subscription beside its topic's bytes, in the search for the largest subscriber.
const TOPIC_COST: usize = 100;
