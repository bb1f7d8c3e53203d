//! The state of one client: its blocked Lends, its pending replies, and the leases in replies on their way to it.
//!
//! ```text
//! answer ─► its send buffer has room ─► the value is in memory ─► written: the lease in it is kept until the system has
//!       │                                      │                               taken its last byte
//!       │                                      └─ it is not: a reader is asked for it, and for some behind it
//!       └─► its send buffer is full ─► a pending reply: written when the send buffer has room
//! ```
//! A pending reply holds the position of its value in the store, and the value itself only if it came in the same
//! batch, or is about to be written. A client that requests many values and reads slowly therefore costs little memory.
//! In exchange the store keeps the data that has changed since. So a pending reply has a deadline, and the bytes that
//! pending replies do hold are counted.
//!
//! If the value of a leased task cannot be read, the committer is asked for another task in its place.
//!
//! This module does not know sockets, and does not take back the leases of a client that has left.

use std::collections::VecDeque;
use std::sync::Arc;

use super::calls::reply;
use super::handle::unreadable;
use super::leases::{RepliedLease, leases_in};
use super::metrics::verb_number;
use super::read_pace::ReadPace;
use super::window::Share;
use super::wire::{AnyReply, Counters, Fault, Verb};
use crate::clock::Now;
use crate::limits::OUTBOX_BYTES_MAX;
use crate::net::zeromq::{ConnectionState, ReplyBuffer, TimedReply};
use crate::security::Identity;
use crate::store::{self, StoreSnapshot};
use crate::tasks::{Outcome, QueueName, ReadOutcome};

/// The bytes of values that a client has read ahead while it waits for the disk. A larger value is read alone.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// The most replies among which values are read ahead.
const READ_AHEAD_MAX: usize = 64;

/// A reply that is not written yet.
pub(super) struct PendingReply {
    /// The frames before the request, unchanged.
    pub(super) envelope: Box<[u8]>,
    /// The kind of the request, or the fault of a malformed one.
    pub(super) verb: Result<Verb, Fault>,
    /// The lease that a Lend asks for.
    pub(super) terms: LeaseTerms,
    pub(super) outcome: Outcome,
    /// The queues of the request, to which its leases belong.
    pub(super) names: Arc<[QueueName]>,
    /// The store before the batch, if values lie there.
    pub(super) before: Option<Arc<dyn StoreSnapshot>>,
    pub(super) value: ReplyValue,
    pub(super) times: RequestTimes,
}

/// What a Lend asks for. All zeros for other requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseTerms {
    /// Length of the lease, in milliseconds.
    pub(super) timeout: u64,
    /// Whether the request waits for a task.
    pub(super) wait: bool,
}

/// The values of a reply that are in the store.
#[derive(Debug, Default)]
pub(super) enum ReplyValue {
    /// Nobody has looked for them. Replies without a value stay so.
    #[default]
    Unread,
    /// A reader has been asked for these bytes, or the committer for another task.
    Awaited(usize),
    /// They are here.
    Read,
    /// It cannot be read at present.
    Failed,
    /// The request has another place, and this one is skipped.
    Gone,
}

/// What a client waits for.
pub(super) enum ReplyWish {
    /// The values of this answer, for the reply with this number.
    Read { number: u64, outcome: Outcome, before: Option<Arc<dyn StoreSnapshot>> },
    /// The end of a lease whose value cannot be read. The reply goes without it.
    SetUnread(RepliedLease),
    /// Another task in place of this one, whose value cannot be read. The reply keeps its place.
    Another { number: u64, lease: RepliedLease, terms: LeaseTerms },
    /// The same for a Lend that may wait. Its reply has no place before the answer comes.
    AnotherLater(PendingReply),
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
        let awaited = if let ReplyValue::Awaited(bytes) = self.value { bytes } else { 0 };
        (size_of::<Self>() + self.envelope.len() + awaited + self.outcome.memory()) as u64
    }

    /// The leases that the reply grants.
    pub(super) fn into_leases(self) -> impl Iterator<Item = RepliedLease> {
        leases_in(self.outcome, self.names)
    }

    /// Whether a value is still to be had from the disk.
    fn is_stored(&self) -> bool {
        matches!(self.value, ReplyValue::Unread) && self.outcome.is_stored()
    }

    /// Takes the values that are in memory. If some are not, says what to wish for, and awaits them.
    fn look(&mut self, number: u64) -> Option<ReplyWish> {
        if !self.is_stored() {
            return None;
        }
        self.outcome.fill(self.before.as_deref());
        if self.outcome.is_stored() {
            return Some(self.ask(number));
        }
        self.value = ReplyValue::Read;
        None
    }

    /// Asks a reader for the values.
    fn ask(&mut self, number: u64) -> ReplyWish {
        self.value = ReplyValue::Awaited(self.stored_bytes());
        ReplyWish::Read { number, outcome: self.outcome.clone(), before: self.before.clone() }
    }

    /// The length of the values that are in the store.
    fn stored_bytes(&self) -> usize {
        self.outcome.stored_bytes(self.before.as_deref())
    }

    /// The values were read, or could not be.
    fn has_read(&mut self, number: u64, ReadOutcome { outcome, unread, has_failed }: ReadOutcome) -> Vec<ReplyWish> {
        let mut unread = leases_in(Outcome::LeasedMany(unread), Arc::clone(&self.names));
        if self.verb == Ok(Verb::LendMany) {
            (self.outcome, self.value) = (outcome, ReplyValue::Read);
            return unread.map(ReplyWish::SetUnread).collect();
        }
        if let Some(lease) = unread.next() {
            return vec![self.ask_for_another(number, lease)];
        }
        (self.outcome, self.value) = (outcome, if has_failed { ReplyValue::Failed } else { ReplyValue::Read });
        Vec::new()
    }

    /// Asks for another task. A Lend that may wait for it gives its place away: the replies behind it do not wait too.
    fn ask_for_another(&mut self, number: u64, lease: RepliedLease) -> ReplyWish {
        let terms = self.terms;
        if !terms.wait {
            self.value = ReplyValue::Awaited(0);
            return ReplyWish::Another { number, lease, terms };
        }
        let left = Self {
            envelope: std::mem::take(&mut self.envelope),
            outcome: std::mem::replace(&mut self.outcome, Outcome::Refused),
            names: Arc::clone(&self.names),
            before: self.before.take(),
            value: std::mem::replace(&mut self.value, ReplyValue::Gone),
            ..*self
        };
        ReplyWish::AnotherLater(left)
    }

    /// Encodes the reply. `stats` reads the counters for a Stats.
    fn write(&self, outbox: &mut ReplyBuffer, stats: impl FnOnce() -> Counters) {
        let reply = match (self.verb, &self.value) {
            (Err(fault), _) => AnyReply::error(fault),
            (Ok(_), ReplyValue::Failed) => AnyReply::error(unreadable(self.stored_bytes())),
            (Ok(verb), _) => reply(verb, &self.outcome, stats),
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
    }
}

/// The state of one client.
#[derive(Default)]
pub(super) struct ClientState {
    /// Requests that the committer has.
    unanswered: usize,
    /// Bytes of those that take the client's own share.
    own_bytes: usize,
    /// Tickets of requests that may wait for a task, and of sweeps, oldest first, each with its places.
    waits: VecDeque<(u64, usize)>,
    /// All of these places.
    places: usize,
    /// Replies that are not written yet, oldest first. Each keeps its number.
    replies: VecDeque<PendingReply>,
    /// The number of the first of them.
    first: u64,
    /// Memory of `replies`, in bytes.
    replies_bytes: u64,
    /// How fast the client reads, while replies are pending.
    pace: Option<ReadPace>,
    /// Leases in written replies, each with the position in the stream where its reply ends.
    leases: VecDeque<(u64, RepliedLease)>,
    /// What the frontend is to do for these replies.
    wishes: Vec<ReplyWish>,
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
    /// Tickets of Lends that may block, and of sweeps.
    pub(super) waits: Vec<u64>,
    /// Leases whose replies were not sent.
    pub(super) leases: Vec<RepliedLease>,
}

impl ClientState {
    /// Notes a request whose answer comes with [`ClientState::add`], and the share that it takes until then.
    pub(super) fn has_asked(&mut self, share: Share) {
        self.unanswered += 1;
        self.own_bytes += share.own_bytes();
    }

    /// Bytes of its own share that its requests at the committer take.
    pub(super) fn own_bytes(&self) -> usize {
        self.own_bytes
    }

    /// A request with this share is answered.
    pub(super) fn gives_back(&mut self, share: Share) {
        self.own_bytes -= share.own_bytes();
    }

    /// Notes a request that may wait for a task, in so many queues, or sweeps, in none.
    pub(super) fn waits_for(&mut self, ticket: u64, places: usize) {
        self.waits.push_back((ticket, places));
        self.places += places;
    }

    /// The places of its requests that may wait and are not answered.
    pub(super) fn waiting(&self) -> usize {
        self.places
    }

    /// Forgets an answered Lend or sweep.
    pub(super) fn end_wait(&mut self, ticket: u64) {
        // Lends that block are answered in their order, so the ticket is the first one or close to it.
        let index = self.waits.iter().position(|(other, _)| *other == ticket);
        if let Some((_, places)) = index.and_then(|index| self.waits.remove(index)) {
            self.places -= places;
        }
    }

    /// Takes a reply. [`ClientState::write`] writes it, or keeps it until its value is there and the send buffer has room.
    pub(super) fn add(&mut self, pending: PendingReply) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.replies_bytes += pending.bytes();
        self.replies.push_back(pending);
    }

    /// The values of a reply were read, or could not be.
    pub(super) fn has_read(
        &mut self,
        number: u64,
        read: Result<ReadOutcome, store::Error>,
    ) -> Result<(), store::Error> {
        let read = read?;
        self.change(number, |reply| reply.has_read(number, read));
        Ok(())
    }

    /// The committer has answered again, for a reply whose first task could not be read.
    pub(super) fn has_another(&mut self, number: u64, outcome: Outcome, before: Option<Arc<dyn StoreSnapshot>>) {
        self.change(number, |reply| {
            (reply.outcome, reply.before, reply.value) = (outcome, before, ReplyValue::Unread);
            None
        });
    }

    /// Changes a pending reply, and notes what it wishes for.
    fn change<W: IntoIterator<Item = ReplyWish>>(&mut self, number: u64, change: impl FnOnce(&mut PendingReply) -> W) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(reply) = index.and_then(|index| self.replies.get_mut(index)) else { return };
        let before = reply.bytes();
        let wishes = change(reply);
        self.replies_bytes = self.replies_bytes - before + reply.bytes();
        self.wishes.extend(wishes);
    }

    /// Writes pending replies as long as the send buffer has room and their values are there.
    pub(super) fn write(&mut self, outbox: &mut ReplyBuffer, mut stats: impl FnMut() -> Counters) {
        while self.leases.pop_front_if(|(end, _)| *end <= outbox.sent()).is_some() {}
        while outbox.len() <= OUTBOX_BYTES_MAX && !self.replies.is_empty() {
            let first = self.first;
            self.change(first, |reply| reply.look(first));
            match self.replies.front().map(|reply| &reply.value) {
                None | Some(ReplyValue::Awaited(_)) => return self.read_ahead(),
                Some(ReplyValue::Gone) => drop(self.pop()),
                Some(_) => {
                    let Some(reply) = self.pop() else { return };
                    reply.write(outbox, &mut stats);
                    let end = outbox.end();
                    self.leases.extend(reply.into_leases().map(|lease| (end, lease)));
                }
            }
        }
    }

    fn pop(&mut self) -> Option<PendingReply> {
        let reply = self.replies.pop_front()?;
        self.first += 1;
        self.replies_bytes -= reply.bytes();
        Some(reply)
    }

    /// Asks for the values of the replies behind the first one, up to a bound.
    fn read_ahead(&mut self) {
        let mut bytes = 0;
        for index in 0..self.replies.len().min(READ_AHEAD_MAX) {
            let Some(reply) = self.replies.get_mut(index) else { break };
            bytes += match reply.value {
                ReplyValue::Awaited(bytes) => bytes,
                ReplyValue::Read => reply.outcome.memory(),
                ReplyValue::Unread | ReplyValue::Failed | ReplyValue::Gone => reply.stored_bytes(),
            };
            if bytes > READ_AHEAD_BYTES {
                break;
            }
            if reply.is_stored() {
                let number = self.first + index as u64;
                self.change(number, |reply| Some(reply.ask(number)));
            }
        }
    }

    /// What the frontend is to do for the replies.
    pub(super) fn take_wishes(&mut self) -> Vec<ReplyWish> {
        std::mem::take(&mut self.wishes)
    }

    /// Memory of the pending replies, in bytes.
    pub(super) fn replies_bytes(&self) -> u64 {
        self.replies_bytes
    }

    /// Whether replies are pending, and whether they may wait longer: they may unless the client reads too slowly. The
    /// frontend asks at each sweep.
    pub(super) fn patience(&mut self, outbox: &ReplyBuffer, now: Now) -> ReplyDeadline {
        let Some(first) = self.replies.front() else {
            self.pace = None;
            return ReplyDeadline::NoNeed;
        };
        if matches!(first.value, ReplyValue::Awaited(_)) {
            // The client waits for the disk.
            self.pace = None;
            return ReplyDeadline::Some;
        }
        let taken = outbox.sent();
        let is_over = self.pace.get_or_insert(ReadPace::begin(taken, now)).is_too_slow(taken, now);
        if is_over { ReplyDeadline::Over } else { ReplyDeadline::Some }
    }

    /// Moves the blocked Lends and the leases of a client that has left to `abandoned`. The system has taken `sent`
    /// bytes of its replies, so the client keeps the leases in these.
    pub(super) fn leave(self, sent: u64, abandoned: &mut Abandoned) {
        abandoned.waits.extend(self.waits.into_iter().map(|(ticket, _)| ticket));
        abandoned.leases.extend(self.leases.into_iter().filter(|(end, _)| *end > sent).map(|(_, lease)| lease));
        abandoned.leases.extend(self.replies.into_iter().flat_map(PendingReply::into_leases));
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
        let reply = || PendingReply {
            envelope: [].into(),
            verb: Ok(Verb::Ping),
            terms: LeaseTerms::default(),
            outcome: Outcome::Done,
            names: [].into(),
            before: None,
            value: ReplyValue::default(),
            times,
        };
        client.add(reply());
        client.write(&mut outbox, stats);
        assert_eq!(client.patience(&outbox, at(stalls)), ReplyDeadline::Some, "the time begins with the first look");
        assert_eq!(client.patience(&outbox, at(2 * stalls - 1)), ReplyDeadline::Some);
        assert_eq!(client.patience(&outbox, at(2 * stalls)), ReplyDeadline::Over);
        // Its connection was reset, or it has read all.
        let mut outbox = ReplyBuffer::default();
        client.write(&mut outbox, stats);
        assert_eq!(client.patience(&outbox, at(3 * stalls)), ReplyDeadline::NoNeed);
        outbox.push(&vec![0; OUTBOX_BYTES_MAX + 1], false);
        client.add(reply());
        client.write(&mut outbox, stats);
        assert_eq!(client.patience(&outbox, at(4 * stalls)), ReplyDeadline::Some, "the next one has its own time");
    }
}
