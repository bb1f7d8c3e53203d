//! Ends subscribers: refused, gone, or at the end of the server.
//!
//! ```text
//! refused ─► part: an ERROR, our end shut down ─► forget ─► its topics are removed, some a turn ─► its slot is free
//! ```
//! This module does not decide whether a subscriber is refused; see `subscriber` and `subscribers`.

use super::queue::SubscriberQueue;
use super::subscriber::{CloseReason, SubscriberConnection};
use super::subscribers::{Subscribers, member_at};
use super::subscriptions::Subscriptions;
use super::topics::Member;
use crate::clock::Now;
use crate::descriptors;
use crate::limits::{
    HANDSHAKE_TIMEOUT, PLACE_HANDSHAKE_TIME, PLACE_SILENT_TIME, PLACES_AT_ONCE, SUBSCRIPTIONS_REMOVED_A_TURN,
};
use crate::net::zeromq::{ConnectionId, PeerIdentity};

impl Subscribers {
    /// Sends a subscriber the reason for its end, and parts with it.
    pub(super) fn refuse(&mut self, member: Member, refusal: &CloseReason) {
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        if subscriber.is_open() {
            self.counts.closed += 1;
            if self.counts.refusal_warnings.is_time(self.now) {
                tracing::warn!("a subscriber is closed: {refusal}; {} by now", self.counts.closed);
            }
        }
        self.disconnect(member, Some(refusal));
    }

    pub(super) fn disconnect(&mut self, member: Member, refusal: Option<&CloseReason>) {
        self.leave(member);
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        subscriber.part(refusal, &self.delivery.held);
        let id = ConnectionId::new(member as usize, subscriber.generation);
        subscriber.deadline = self.deadlines.begin(id, self.now);
    }

    /// Ends the service of a subscriber, and queues its subscriptions for removal.
    fn leave(&mut self, member: Member) {
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        self.counts.subscribers -= usize::from(subscriber.is_open());
        self.subscriptions.leave(member, &mut subscriber.topics);
    }

    /// Closes a connection.
    pub(super) fn forget(&mut self, member: Member) {
        self.leave(member);
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        subscriber.descriptor = None;
        (subscriber.output.queue, subscriber.output.sealed) = (SubscriberQueue::default(), None);
        (subscriber.input.unfinished, subscriber.peer) = (Vec::new(), PeerIdentity::Unknown);
        if !subscriber.topics.is_leaving {
            self.connections.remove(member as usize);
        }
    }

    /// Accepts those that wait. For each of them that finds no room, a connection without a subscription makes place.
    pub(super) fn accept(&mut self) {
        self.admit();
        if self.port.listeners.again_at().is_none() {
            return;
        }
        for member in self.idle() {
            descriptors::made_place();
            self.forget(member);
            self.port.listeners.resume(&self.port.epoll);
            self.admit();
            if self.port.listeners.again_at().is_none() {
                return;
            }
        }
    }

    /// Some connections without a subscription, which had their time for one, the oldest first.
    fn idle(&self) -> Vec<Member> {
        // The deadline of a connection is that of its handshake, or of its parting.
        let had_its_time = |subscriber: &SubscriberConnection| {
            let time = if subscriber.input.has_come { PLACE_HANDSHAKE_TIME } else { PLACE_SILENT_TIME };
            subscriber.deadline <= self.now.after(HANDSHAKE_TIMEOUT - time)
        };
        let all = self.connections.iter().filter(|(_, subscriber)| subscriber.is_idle() && had_its_time(subscriber));
        let mut old: Vec<_> = all.map(|(place, subscriber)| (subscriber.deadline, place)).collect();
        old.sort_unstable();
        old.truncate(PLACES_AT_ONCE);
        // A subscription may have come, and not be received yet.
        let has_sent = |place: usize| self.connections.get(place).is_some_and(SubscriberConnection::has_unreceived);
        old.into_iter().map(|(_, place)| place).filter(|place| !has_sent(*place)).map(member_at).collect()
    }

    /// Removes some subscriptions of former subscribers.
    pub(super) fn remove_left(&mut self) {
        for _ in 0..SUBSCRIPTIONS_REMOVED_A_TURN {
            if self.subscriptions.left.is_empty() {
                return;
            }
            let Some(member) = self.subscriptions.remove_left() else { continue };
            let Some(subscriber) = self.connections.get_mut(member as usize) else { continue };
            subscriber.topics.is_leaving = false;
            if subscriber.descriptor.is_none() {
                self.connections.remove(member as usize);
            }
        }
    }

    /// Counts a message as lost by each subscriber of its topic, in place of publishing it. A subscriber counts for each
    /// of its subscriptions that fit.
    pub fn lose(&mut self, topic: &[u8]) {
        let mut lost = 0;
        let Subscriptions { topics, readers, .. } = &self.subscriptions;
        let is_lost = |member: &&Member| readers.may_read(**member, topic);
        topics.matching(topic, |members| lost += members.iter().filter(is_lost).count() as u64);
        self.counts.lost += lost;
    }

    /// Sends the queued messages, and parts with all subscribers. Returns when they have read everything and left, or
    /// at the time `end`.
    pub fn finish(&mut self, end: Now, clock: impl Fn() -> Now) {
        self.send();
        self.port.listeners.close();
        self.subscriptions.is_ending = true;
        self.subscriptions.left.clear();
        self.connections.iter_mut().for_each(|(_, subscriber)| subscriber.topics.is_leaving = false);
        self.now = clock();
        let all: Vec<(Member, bool, bool)> = self
            .connections
            .iter()
            .map(|(place, subscriber)| (member_at(place), subscriber.is_open(), subscriber.is_parting()))
            .collect();
        for (member, is_open, is_parting) in all {
            if is_open {
                self.disconnect(member, None);
                self.flush(member);
            } else if !is_parting {
                self.forget(member);
            }
        }
        while !self.connections.is_empty() && self.now < end {
            self.turn(Some(self.now.time_until(end)), &clock);
        }
    }
}
