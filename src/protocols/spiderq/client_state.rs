//! The state of one client: its blocked Lends, its pending replies, and the leases in replies on their way to it.
//!
//! ```text
//! answer ─► its send buffer has room ─► written: the lease in it is kept until the system has taken its last byte
//!       └─► its send buffer is full ─► a pending reply: written when the send buffer has room
//! ```
//! A pending reply holds the position of its value in the store, and the value itself only if it came in the same
//! batch. A client that requests many values and reads slowly therefore costs little memory. In exchange the store
//! keeps the data that has changed since. So a pending reply has a deadline, and the bytes that pending replies do hold
//! are counted.
//!
//! This module does not know sockets, and does not take back the leases of a client that has left.

use std::collections::VecDeque;
use std::sync::Arc;

use super::handle::reply;
use super::metrics::verb_number;
use super::read_pace::ReadPace;
use super::wire::{Counters, Fault, Reply, Verb};
use crate::clock::Now;
use crate::limits::OUTBOX_BYTES_MAX;
use crate::protocols::native::{ConnectionState, ReplyBuffer, TimedReply};
use crate::security::Identity;
use crate::store::{self, StoreSnapshot};
use crate::tasks::{Outcome, Payload};

/// The lease that a reply grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepliedLease {
    pub(super) token: u64,
    pub(super) key: Box<[u8]>,
}

/// A reply that is not written yet.
pub(super) struct PendingReply {
    /// The frames before the request, unchanged.
    pub(super) envelope: Box<[u8]>,
    /// The kind of the request, or the fault of a malformed one.
    pub(super) verb: Result<Verb, Fault>,
    pub(super) outcome: Outcome,
    /// The store before the batch, if the value lies there.
    pub(super) before: Option<Arc<dyn StoreSnapshot>>,
    pub(super) times: RequestTimes,
}

/// The times and size of an answered request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTimes {
    /// When the request had arrived.
    pub(super) arrived: Now,
    /// When the answer came.
    pub(super) answered: Now,
    pub(super) request_bytes: usize,
    /// It may have waited for a task.
    pub(super) waits: bool,
}

impl PendingReply {
    /// Approximate memory of the reply, in bytes.
    fn bytes(&self) -> u64 {
        let value = match self.outcome.payload() {
            Some(Payload::Fresh(value)) => value.len(),
            Some(Payload::Stored(_)) | None => 0,
        };
        let key = self.outcome.lease().map_or(0, |(_, key)| key.len());
        (size_of::<Self>() + self.envelope.len() + value + key) as u64
    }

    /// The lease that the reply grants, if any.
    pub(super) fn into_lease(self) -> Option<RepliedLease> {
        lease_in(self.outcome)
    }

    /// Encodes the reply, and returns the lease that it grants. `stats` reads the counters for a Stats. If the value is
    /// lost, the reply says that there is no such task, and the lease goes to `undelivered`.
    fn write(
        mut self,
        outbox: &mut ReplyBuffer,
        undelivered: &mut Vec<RepliedLease>,
        stats: impl FnOnce() -> Counters,
    ) -> Result<Option<RepliedLease>, store::Error> {
        let value = match self.outcome.payload().map(|payload| payload.read(self.before.as_deref())) {
            Some(Err(error)) if error.loses_one_value() => {
                undelivered.extend(lease_in(std::mem::replace(&mut self.outcome, Outcome::Refused)));
                None
            }
            read => read.transpose()?,
        };
        let value = value.as_deref().unwrap_or_default();
        let reply = match self.verb {
            Err(fault) => Reply::Error(fault),
            Ok(verb) => reply(verb, &self.outcome, value, stats),
        };
        let (begin, number) = (outbox.end(), verb_number(self.verb.ok(), self.times.waits));
        outbox.push_encoded(&self.envelope);
        outbox.push_with(reply.encoded_len(), false, |out| reply.encode(out));
        let RequestTimes { arrived, answered, request_bytes, waits } = self.times;
        outbox.time(TimedReply {
            arrived,
            begun: None,
            answered,
            verb: number,
            samples: 1,
            request_bytes,
            reply_bytes: outbox.end() - begin,
            // The time in which a client waits for a task is not the server's.
            table: (!waits).then(Box::default),
        });
        Ok(self.into_lease())
    }
}

fn lease_in(outcome: Outcome) -> Option<RepliedLease> {
    let Outcome::Leased { token, key, .. } = outcome else { return None };
    Some(RepliedLease { token, key })
}

/// The state of one client.
#[derive(Default)]
pub(super) struct ClientState {
    /// Requests that the committer has.
    unanswered: usize,
    /// Tickets of Lends that may block, oldest first.
    waits: VecDeque<u64>,
    /// Replies that are not written yet, oldest first.
    replies: VecDeque<PendingReply>,
    /// Memory of `replies`, in bytes.
    replies_bytes: u64,
    /// How fast the client reads, while replies are pending.
    pace: Option<ReadPace>,
    /// Leases in written replies, each with the position in the stream where its reply ends.
    leases: VecDeque<(u64, RepliedLease)>,
    /// Leases whose values are lost: the client was told that there is no task.
    undelivered: Vec<RepliedLease>,
    /// The user, where users are named.
    user: Option<Identity>,
}

impl ConnectionState for ClientState {
    fn admit(&mut self, identity: Identity) {
        self.user = Some(identity);
    }

    fn is_idle(&self) -> bool {
        self.unanswered == 0 && self.replies.is_empty()
    }
}

impl ClientState {
    /// The user, where users are named.
    pub(super) fn user(&self) -> Option<&Identity> {
        self.user.as_ref()
    }
}

/// Whether pending replies may wait longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyDeadline {
    /// No reply is pending.
    NoNeed,
    /// The pending replies may wait.
    Some,
    /// The pending replies have waited for too long.
    Over,
}

/// The blocked Lends and leases of clients that have left.
#[derive(Default)]
pub(super) struct Abandoned {
    /// Tickets of Lends that may block.
    pub(super) waits: Vec<u64>,
    /// Leases whose replies were not sent.
    pub(super) leases: Vec<RepliedLease>,
}

impl ClientState {
    /// Notes a request whose answer comes with [`ClientState::send`].
    pub(super) fn has_asked(&mut self) {
        self.unanswered += 1;
    }

    /// Notes a Lend that may block.
    pub(super) fn waits_for(&mut self, ticket: u64) {
        self.waits.push_back(ticket);
    }

    /// The number of its Lends that may block and are not answered.
    pub(super) fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Forgets an answered Lend.
    pub(super) fn has_heard_of(&mut self, ticket: u64) {
        // Lends that block are answered in their order, so the ticket is the first one or close to it.
        if let Some(index) = self.waits.iter().position(|other| *other == ticket) {
            self.waits.remove(index);
        }
    }

    /// Writes a reply, or keeps it until there is room.
    pub(super) fn send(
        &mut self,
        pending: PendingReply,
        outbox: &mut ReplyBuffer,
        stats: impl FnMut() -> Counters,
    ) -> Result<(), store::Error> {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.replies_bytes += pending.bytes();
        self.replies.push_back(pending);
        self.write(outbox, stats)
    }

    /// Writes pending replies as long as the send buffer has room.
    pub(super) fn write(
        &mut self,
        outbox: &mut ReplyBuffer,
        mut stats: impl FnMut() -> Counters,
    ) -> Result<(), store::Error> {
        while self.leases.pop_front_if(|(end, _)| *end <= outbox.sent()).is_some() {}
        while outbox.len() <= OUTBOX_BYTES_MAX
            && let Some(pending) = self.replies.pop_front()
        {
            self.replies_bytes -= pending.bytes();
            if let Some(lease) = pending.write(outbox, &mut self.undelivered, &mut stats)? {
                self.leases.push_back((outbox.end(), lease));
            }
        }
        Ok(())
    }

    /// The leases that were not delivered because their values are lost. They are to be taken back.
    pub(super) fn take_undelivered(&mut self) -> Vec<RepliedLease> {
        std::mem::take(&mut self.undelivered)
    }

    /// Memory of the pending replies, in bytes.
    pub(super) fn replies_bytes(&self) -> u64 {
        self.replies_bytes
    }

    /// Whether replies are pending, and whether they may wait longer: they may unless the client reads too slowly. The
    /// frontend asks at each sweep.
    pub(super) fn patience(&mut self, outbox: &ReplyBuffer, now: Now) -> ReplyDeadline {
        if self.replies.is_empty() {
            self.pace = None;
            return ReplyDeadline::NoNeed;
        }
        let taken = outbox.sent();
        let is_over = self.pace.get_or_insert(ReadPace::begin(taken, now)).is_too_slow(taken, now);
        if is_over { ReplyDeadline::Over } else { ReplyDeadline::Some }
    }

    /// Moves the blocked Lends and the leases of a client that has left to `abandoned`. The system has taken `sent`
    /// bytes of its replies, so the client keeps the leases in these.
    pub(super) fn leave(self, sent: u64, abandoned: &mut Abandoned) {
        abandoned.waits.extend(self.waits);
        abandoned.leases.extend(self.undelivered);
        abandoned.leases.extend(self.leases.into_iter().filter(|(end, _)| *end > sent).map(|(_, lease)| lease));
        abandoned.leases.extend(self.replies.into_iter().filter_map(PendingReply::into_lease));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::limits::CLIENT_STALLS_MAX;

    #[test]
    fn pending_replies_wait_for_a_client_that_reads_and_not_for_one_that_does_not() {
        let mut client = ClientState::default();
        let mut outbox = ReplyBuffer::default();
        let stats = || Counters::Eight([0; 8]);
        let at = |millis: u64| Now::from_millis(10_000 + millis);
        let stalls = u64::try_from(CLIENT_STALLS_MAX.as_millis()).unwrap();
        assert_eq!(client.patience(&outbox, at(0)), ReplyDeadline::NoNeed);
        outbox.push(&vec![0; OUTBOX_BYTES_MAX + 1], false);
        let times = RequestTimes { arrived: at(0), answered: at(0), request_bytes: 1, waits: false };
        let reply =
            || PendingReply { envelope: [].into(), verb: Ok(Verb::Ping), outcome: Outcome::Done, before: None, times };
        client.send(reply(), &mut outbox, stats).unwrap();
        assert_eq!(client.patience(&outbox, at(stalls)), ReplyDeadline::Some, "the time begins with the first look");
        assert_eq!(client.patience(&outbox, at(2 * stalls - 1)), ReplyDeadline::Some);
        assert_eq!(client.patience(&outbox, at(2 * stalls)), ReplyDeadline::Over);
        // Its connection was reset, or it has read all.
        let mut outbox = ReplyBuffer::default();
        client.write(&mut outbox, stats).unwrap();
        assert_eq!(client.patience(&outbox, at(3 * stalls)), ReplyDeadline::NoNeed);
        outbox.push(&vec![0; OUTBOX_BYTES_MAX + 1], false);
        client.send(reply(), &mut outbox, stats).unwrap();
        assert_eq!(client.patience(&outbox, at(4 * stalls)), ReplyDeadline::Some, "the next one has its own time");
    }
}
