//! Ends subscribers: refused, gone, or at the end of the server.
//!
//! ```text
//! refused ─► part: an ERROR, our end shut down ─► forget ─► its topics are removed, some a turn ─► its slot is free
//! ```
//! This module does not decide whether a subscriber is refused; see `subscriber` and `subscribers`.

use super::queue::SubscriberQueue;
use super::subscriber::CloseReason;
use super::subscribers::{Subscribers, member_at};
use super::topics::Member;
use crate::clock::Now;
use crate::descriptors;
use crate::limits::{HANDSHAKE_TIMEOUT, SUBSCRIPTIONS_REMOVED_A_TURN};
use crate::protocols::native::ConnectionId;

impl Subscribers {
    /// Tells a subscriber the reason for its end, and parts with it.
    pub(super) fn refuse(&mut self, member: Member, refusal: &CloseReason) {
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        if subscriber.is_open() {
            self.closed += 1;
            if self.refusals_told.is_time(self.now) {
                tracing::warn!("a subscriber is closed: {refusal}; {} by now", self.closed);
            }
        }
        self.disconnect(member, Some(refusal));
    }

    pub(super) fn disconnect(&mut self, member: Member, refusal: Option<&CloseReason>) {
        self.leave(member);
        let deadline = self.now.after(HANDSHAKE_TIMEOUT);
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        subscriber.part(refusal, &self.held);
        subscriber.deadline = deadline;
        self.deadlines.push_back((deadline, ConnectionId::new(member as usize, subscriber.generation)));
    }

    /// Ends the service of a subscriber, and queues its subscriptions for removal.
    fn leave(&mut self, member: Member) {
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        self.subscribers -= usize::from(subscriber.is_open());
        self.subscriptions -= subscriber.topics.len();
        self.topic_bytes -= subscriber.topic_bytes;
        self.readers.remove(member);
        let topics = std::mem::take(&mut subscriber.topics);
        subscriber.topic_bytes = 0;
        if !topics.is_empty() && !self.ending {
            subscriber.is_leaving = true;
            self.left.push_back((member, topics.into_iter().collect()));
        }
    }

    /// Closes a connection.
    pub(super) fn forget(&mut self, member: Member) {
        self.leave(member);
        let Some(subscriber) = self.connections.get_mut(member as usize) else { return };
        subscriber.descriptor = None;
        descriptors::closed();
        subscriber.queue = SubscriberQueue::default();
        (subscriber.login, subscriber.sealed, subscriber.unfinished) = (None, None, Vec::new());
        if !subscriber.is_leaving {
            self.connections.remove(member as usize);
        }
    }

    /// Removes some subscriptions of former subscribers.
    pub(super) fn remove_left(&mut self) {
        for _ in 0..SUBSCRIPTIONS_REMOVED_A_TURN {
            let Some((member, topics)) = self.left.front_mut() else { return };
            if let Some(topic) = topics.pop() {
                self.topics.remove(topic, *member);
                continue;
            }
            let member = *member;
            self.left.pop_front();
            let Some(subscriber) = self.connections.get_mut(member as usize) else { continue };
            subscriber.is_leaving = false;
            if subscriber.descriptor.is_none() {
                self.connections.remove(member as usize);
            }
        }
    }

    /// Counts a message as lost by each subscriber of its topic, in place of publishing it. A subscriber counts for each
    /// of its subscriptions that fit.
    pub fn lose(&mut self, topic: &[u8]) {
        let mut lost = 0;
        let is_lost = |member: &&Member| self.readers.may_read(**member, topic);
        self.topics.matching(topic, |members| lost += members.iter().filter(is_lost).count() as u64);
        self.lost += lost;
    }

    /// Sends the queued messages, and parts with all subscribers. Returns when they have read everything and left, or
    /// at the time `end`.
    pub fn finish(&mut self, end: Now, clock: impl Fn() -> Now) {
        self.send();
        self.listeners.close();
        self.ending = true;
        self.left.clear();
        self.connections.iter_mut().for_each(|(_, subscriber)| subscriber.is_leaving = false);
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
