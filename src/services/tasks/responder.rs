//! The requests that are not answered yet, and the matching of answers to them.
//!
//! Every request takes its turn in the queue, a malformed one too. A pipelining client therefore gets its replies in
//! the order of its requests, except for Lends that block.
//!
//! This module does not know sockets, or the meaning of requests, see `handle`.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use super::calls::{NamedQueues, TaskCall, counted_bytes};
use super::client_state::{Abandoned, ClientState, LeaseTerms, PendingReply, RequestTimes};
use super::config::{SpiderqConfig, Version};
use super::handle::Access;
use super::leases::{RepliedLease, leases_in};
use super::permission::may;
use super::waiting_places::WaitingPlaces;
use super::window::{Share, SubmitWindow};
use super::wire::{AnyRequest, Counters, Fault, Field, Verb, tag};
use crate::clock::{Clock, Now};
use crate::limits::{
    ENVELOPE_BYTES_MAX, INBOX_BYTES_MAX, REQUEST_OVERHEAD_BYTES, SUBMIT_BYTES_MAX, SUBMIT_MAX, TASK_REQUESTS_MAX,
    TRY_COMMIT_MAX, UNDO_MAX,
};
use crate::net::budget::Budget;
use crate::net::zeromq::ConnectionId;
use crate::security::{DEFAULT_QUEUE, Identity};
use crate::store;
use crate::tasks::{self, CommitAttempt, Delivery, QueueName, RoomWait, Submission, Tasks, Ticket};
use crate::zmtp::{Message, encode_frame};

/// Length of the counters by tag: the largest tag is 0x0C.
const TAGS: usize = 13;

/// A request that is not answered yet.
pub(super) enum PendingRequest {
    /// A request of a client.
    Answer {
        peer: ConnectionId,
        /// The frames before the request, unchanged.
        envelope: Box<[u8]>,
        /// The kind of the request, or the fault of a malformed one.
        verb: Result<Verb, Fault>,
        /// Whether the request is a Lend that may block.
        waits: bool,
        /// What it takes of the committer's time.
        share: Share,
        /// The lease that a Lend asks for.
        terms: LeaseTerms,
        /// The queues to which its leases belong.
        names: Arc<[QueueName]>,
        /// Whether it was answered before, with a task that could not be read.
        again: bool,
        /// When it had arrived.
        arrived: Now,
        /// Its length, in bytes.
        request_bytes: usize,
    },
    /// Another task, for a reply whose first one could not be read.
    Another { peer: ConnectionId, number: u64, queue: QueueName },
    /// A lease or a blocked Lend that is taken back. No client gets this answer.
    Undo,
}

/// Refuses requests that are switched off, and counts the answered ones.
pub(super) struct ReplyPolicy {
    version: Version,
    terminate: bool,
    access: Access,
    /// Answered requests, by tag.
    answered: [u64; TAGS],
}

impl ReplyPolicy {
    pub(super) fn new(&SpiderqConfig { version, terminate, access, .. }: &SpiderqConfig) -> Self {
        Self { version, terminate, access, answered: [0; TAGS] }
    }

    /// Decodes a request. A request that the configuration refuses, or that the user may not make, decodes as an unknown
    /// tag: the protocol has no other way to say so.
    fn decode<'f>(&self, frame: &'f [u8], user: Option<&Identity>) -> Result<AnyRequest<'f>, Fault> {
        let unknown = |offending| Fault::Offending { field: Field::UnknownTag, offending };
        let refused = |tag: u8| !self.access.allows(tag) || tag == tag::TERMINATE && !self.terminate;
        if let Some(&offending) = frame.first().filter(|tag| refused(**tag)) {
            return Err(unknown(offending));
        }
        let request = AnyRequest::decode(frame)?;
        let verb = request.verb();
        // A queue to work off is alone.
        let is_known = |queue: &[u8]| matches!(self.access, Access::Full) || queue == DEFAULT_QUEUE;
        if !request.all_queues(DEFAULT_QUEUE, is_known) {
            return Err(unknown(verb.tag()));
        }
        if let Some(user) = user
            && !request.all_queues(DEFAULT_QUEUE, |queue| may(user, verb, self.access.resource(queue)))
        {
            user.note_denied();
            return Err(unknown(frame.first().copied().unwrap_or_default()));
        }
        Ok(request)
    }

    /// Counts an answered request of this kind.
    pub(super) fn count(&mut self, verb: Verb) {
        if let Some(count) = self.answered.get_mut(usize::from(verb.tag())) {
            *count += 1;
        }
    }

    /// The counters of answered requests.
    pub(super) fn stats(&self) -> Counters {
        let count = |(_, tag)| self.answered.get(usize::from(tag)).copied().unwrap_or_default();
        match self.version {
            Version::V1_3 => Counters::Eight(Counters::LISTED_1_3.map(count)),
            Version::V1_4 => Counters::Ten(Counters::LISTED_1_4.map(count)),
        }
    }
}

/// How a message comes.
#[derive(Clone, Copy)]
pub(super) struct Taking {
    /// When its turn had arrived.
    pub(super) arrived: Now,
    /// Its client is gone. What only reads is not carried out, and no sweep begins.
    pub(super) is_unread: bool,
    /// Its connection has waited for the window.
    pub(super) is_next: bool,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is taken.
    Yes,
    /// Not yet: its connection waits for the window.
    Later,
    /// The message or its envelope is above the limits, so it cannot be answered.
    TooLarge,
}

/// Requests to submit next.
struct RequestBurst {
    requests: Vec<Submission>,
    /// Bytes of those that clients have sent, with the cost of their looks.
    bytes: usize,
}

impl RequestBurst {
    fn new() -> Self {
        Self { requests: Vec::with_capacity(SUBMIT_MAX), bytes: 0 }
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= SUBMIT_MAX || self.bytes >= SUBMIT_BYTES_MAX
    }

    fn take(&mut self) -> Vec<Submission> {
        std::mem::replace(self, Self::new()).requests
    }
}

/// All requests that are not answered yet, and the burst of requests to submit next.
pub(super) struct TaskResponder {
    tasks: Tasks,
    queues: NamedQueues,
    sink: usize,
    /// By ticket number.
    pending: Slab<PendingRequest>,
    /// Memory of the envelopes in `pending`, in bytes (see `taken_by`).
    envelopes: Arc<Budget>,
    /// The places of the Lends in `pending` that may block.
    places: WaitingPlaces,
    /// The requests in `pending` that take a share.
    window: SubmitWindow,
    /// Leases that go back when some of those that are on their way are back.
    abandoned: VecDeque<RepliedLease>,
    /// The requests in `pending` that take back what a client has left.
    undos: usize,
    burst: RequestBurst,
    room: RoomWait,
    pub(super) policy: ReplyPolicy,
}

impl TaskResponder {
    pub(super) fn new(tasks: Tasks, queues: NamedQueues, sink: usize, policy: ReplyPolicy) -> Self {
        Self {
            tasks,
            queues,
            sink,
            pending: Slab::new(),
            envelopes: Budget::new(INBOX_BYTES_MAX),
            places: WaitingPlaces::default(),
            window: SubmitWindow::default(),
            abandoned: VecDeque::new(),
            undos: 0,
            burst: RequestBurst::new(),
            room: RoomWait::default(),
            policy,
        }
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The number of requests that are not answered.
    #[cfg(test)]
    pub(super) fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// Whether every request is answered.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The connections that wait until the committer has fewer bytes.
    pub(super) fn window(&mut self) -> &mut SubmitWindow {
        &mut self.window
    }

    /// The budget of the envelopes.
    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.envelopes
    }

    /// Whether the frontend may take further requests. If not, an answer or the committer wakes the frontend when it
    /// may.
    pub(super) fn has_room(&mut self) -> bool {
        self.pending.len() < TASK_REQUESTS_MAX
            && self.envelopes.left() > 0
            && self.tasks.has_room(self.sink, &mut self.room)
    }

    /// Notes that the frontend has slept for `ROOM_RECHECK` without a wake-up.
    pub(super) fn count_if_overslept(&self) {
        self.tasks.count_if_overslept(&self.room);
    }

    /// Takes a message of a client.
    pub(super) fn take(
        &mut self,
        peer: ConnectionId,
        client: &mut ClientState,
        message: &Message<'_>,
        Taking { arrived, is_unread, is_next }: Taking,
    ) -> Taken {
        let mut frames = message.frames();
        let Some(frame) = frames.next_back().filter(|_| message.is_whole()) else { return Taken::TooLarge };
        let mut envelope = Vec::new();
        frames.for_each(|frame| encode_frame(&mut envelope, frame, true));
        if envelope.len() > ENVELOPE_BYTES_MAX {
            return Taken::TooLarge;
        }
        let counted_bytes = counted_bytes(frame);
        let Some(mut share) = self.window.take(counted_bytes, client.own_bytes(), is_next) else {
            self.window.wait(peer, counted_bytes);
            return Taken::Later;
        };
        let decoded = self.policy.decode(frame, client.user());
        if is_unread && decoded.as_ref().ok().is_none_or(|request| request.verb().only_reads() || request.is_sweep()) {
            self.window.give_back(share);
            return Taken::Yes;
        }
        let TaskCall { queue, mut request, names } = match &decoded {
            Ok(request) => self.queues.call(self.policy.access, peer.number(), request),
            Err(_) => self.queues.refusal(),
        };
        self.envelopes.change(0, taken_by(&envelope));
        let waits = self.may_wait(client, &mut request, names.len());
        if waits {
            self.window.give_back(std::mem::replace(&mut share, Share::Nothing));
        }
        let terms = match request {
            tasks::Request::Lease { timeout, wait } => LeaseTerms { timeout, wait },
            _ => LeaseTerms::default(),
        };
        self.burst.bytes += counted_bytes;
        let verb = decoded.map(|request| request.verb());
        let (envelope, request_bytes) = (envelope.into(), frame.len());
        let again = false;
        let pending =
            PendingRequest::Answer { peer, envelope, verb, waits, share, terms, names, again, arrived, request_bytes };
        client.has_asked(share);
        self.ask(client, pending, queue, request, waits);
        if self.burst.is_full() {
            self.submit();
        }
        Taken::Yes
    }

    /// Asks for another task in place of one whose value could not be read.
    pub(super) fn ask_for_another(
        &mut self,
        peer: ConnectionId,
        number: u64,
        RepliedLease { queue, token, key }: RepliedLease,
        LeaseTerms { timeout, wait }: LeaseTerms,
    ) {
        let request = tasks::Request::LeaseNext { token, key, timeout, wait };
        self.put(PendingRequest::Another { peer, number, queue: queue.clone() }, queue, request);
    }

    /// Ends a lease whose value could not be read.
    pub(super) fn set_unread(&mut self, RepliedLease { queue, token, key }: RepliedLease) {
        self.undos += 1;
        self.put(PendingRequest::Undo, queue, tasks::Request::SetUnread { token, key });
    }

    /// The same for a Lend that may wait for the other task.
    pub(super) fn ask_again(&mut self, peer: ConnectionId, client: &mut ClientState, reply: PendingReply) {
        let PendingReply { envelope, verb, terms, outcome, names, times, .. } = reply;
        let lease = leases_in(outcome, Arc::clone(&names)).next();
        let Some(RepliedLease { queue, token, key }) = lease else { return };
        let RequestTimes { arrived, request_bytes, waits, .. } = times;
        self.envelopes.change(0, taken_by(&envelope));
        let (share, again) = (Share::Nothing, true);
        let pending =
            PendingRequest::Answer { peer, envelope, verb, waits, share, terms, names, again, arrived, request_bytes };
        let LeaseTerms { timeout, wait } = terms;
        client.has_asked(share);
        self.ask(client, pending, queue, tasks::Request::LeaseNext { token, key, timeout, wait }, waits);
    }

    /// Puts a request of a client into the burst. A Lend that may block takes a place.
    fn ask(
        &mut self,
        client: &mut ClientState,
        pending: PendingRequest,
        queue: QueueName,
        request: tasks::Request,
        waits: bool,
    ) {
        let places = if let PendingRequest::Answer { names, waits: true, .. } = &pending { names.len() } else { 0 };
        let is_withdrawn = waits || matches!(request, tasks::Request::Sweep { .. });
        let ticket = self.put(pending, queue, request);
        if is_withdrawn {
            client.waits_for(ticket, places);
            self.places.take(places);
        }
    }

    /// Whether the request is a Lend that may block. A blocking Lend becomes one that does not wait when its connection
    /// has its share of the places, and while the pending envelopes hold half of `INBOX_BYTES_MAX`: otherwise the
    /// waiting Lends of one client could leave no room for the others.
    fn may_wait(&self, client: &ClientState, request: &mut tasks::Request, places: usize) -> bool {
        let is_open = || self.places.is_open_to(client.waiting(), places);
        let has_place = || is_open() && self.envelopes.held() < INBOX_BYTES_MAX / 2;
        match request {
            tasks::Request::Lease { wait, .. } => {
                *wait &= has_place();
                *wait
            }
            tasks::Request::LeaseMany { wait, .. } => {
                *wait *= u64::from(has_place());
                *wait > 0
            }
            _ => false,
        }
    }

    /// Submits the burst to the committer.
    pub(super) fn submit(&mut self) {
        if !self.burst.requests.is_empty() {
            self.tasks.submit(self.burst.take());
        }
    }

    /// Commits the burst in this thread if it has at most `TRY_COMMIT_MAX` requests, the committer is idle and the disk
    /// is not slow, and returns the answers. Otherwise submits it to the committer.
    ///
    /// # Errors
    /// [`store::Error`] if the burst cannot be stored.
    pub(super) fn try_commit(&mut self, clock: Clock) -> Result<Option<Delivery>, store::Error> {
        if self.burst.requests.is_empty() {
            return Ok(None);
        }
        if self.burst.requests.len() > TRY_COMMIT_MAX {
            self.submit();
            return Ok(None);
        }
        Ok(match self.tasks.try_commit(self.sink, self.burst.take(), || clock.reading())? {
            CommitAttempt::Committed(answers) => answers,
            CommitAttempt::Busy(burst) => {
                self.tasks.submit(burst);
                None
            }
        })
    }

    fn put(&mut self, pending: PendingRequest, queue: QueueName, request: tasks::Request) -> u64 {
        let number = self.pending.insert(pending) as u64;
        let ticket = Ticket { sink: self.sink, number };
        self.burst.requests.push(Submission { queue, ticket, request });
        number
    }

    /// Removes the request of an answered ticket from the pending ones, and returns it.
    pub(super) fn answered(&mut self, ticket: u64) -> PendingRequest {
        let pending = self.pending.remove(usize::try_from(ticket).expect("a ticket is an index of the slab"));
        match &pending {
            PendingRequest::Answer { envelope, waits, share, names, .. } => {
                self.envelopes.change(taken_by(envelope), 0);
                self.window.give_back(*share);
                if *waits {
                    self.places.give_back(names.len());
                }
            }
            PendingRequest::Undo => self.undos -= 1,
            PendingRequest::Another { .. } => {}
        }
        pending
    }

    /// Takes back the blocked Lends and the leases of clients that have left, at most [`UNDO_MAX`] leases at once. The
    /// frontend calls it after each answer.
    pub(super) fn settle(&mut self, abandoned: Abandoned) {
        if !abandoned.waits.is_empty() {
            self.undos += 1;
            let withdraw = tasks::Request::Withdraw { tickets: abandoned.waits };
            self.put(PendingRequest::Undo, self.queues.default_queue(), withdraw);
        }
        self.abandoned.extend(abandoned.leases);
        while self.undos < UNDO_MAX
            && let Some(RepliedLease { queue, token, key }) = self.abandoned.pop_front()
        {
            self.undos += 1;
            self.put(PendingRequest::Undo, queue, tasks::Request::Undo { token, key });
            if self.burst.is_full() {
                self.submit();
            }
        }
    }

    /// Takes back a lease whose reply was not sent, with the next [`TaskResponder::settle`].
    pub(super) fn take_back(&mut self, lease: RepliedLease) {
        self.abandoned.push_back(lease);
    }
}

/// Approximate memory of a pending request with this envelope, in bytes.
fn taken_by(envelope: &[u8]) -> u64 {
    envelope.len() as u64 + REQUEST_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::security::{Denied, Permissions, Users};
    use crate::store::tests::fake_disk::FakeDisk;
    use crate::tasks::{LeaseOrder, Policy};

    fn config(terminate: bool) -> SpiderqConfig {
        SpiderqConfig { endpoint: String::new(), version: Version::V1_3, terminate, access: Access::Full }
    }

    #[test]
    fn terminate_is_an_unknown_tag_where_it_is_not_honoured() {
        let decode = |terminate| ReplyPolicy::new(&config(terminate)).decode(&[tag::TERMINATE], None).ok();
        assert_eq!(decode(true).map(|request| request.verb()), Some(Verb::Terminate));
        assert!(decode(false).is_none());
    }

    #[test]
    fn a_request_that_its_user_may_not_make_is_counted() {
        let (users, user) = Users::invented(Permissions::default());
        assert!(ReplyPolicy::new(&config(true)).decode(&[tag::TERMINATE], Some(&user)).is_err());
        assert_eq!(users.refusals(Denied::Permission), 1);
    }

    /// Waiting Lends with long envelopes left no room for the requests of the others.
    #[test]
    fn a_lend_waits_only_while_the_envelopes_hold_less_than_half_of_their_room() {
        let (tasks, mut committer) = tasks::open(Box::new(FakeDisk::new()), Clock::start().reading()).unwrap();
        let queue = committer.queue(b"queue", LeaseOrder::Priority, Policy::Always).unwrap();
        let mut responder =
            TaskResponder::new(tasks, NamedQueues::new(queue, None), 0, ReplyPolicy::new(&config(false)));
        let waits = |bytes, wait| {
            responder.envelopes.change(responder.envelopes.held(), bytes);
            let mut request = tasks::Request::Lease { timeout: 1, wait };
            let waits = responder.may_wait(&ClientState::default(), &mut request, 1);
            assert!(
                matches!(request, tasks::Request::Lease { wait, .. } if wait == waits),
                "the request says the same"
            );
            waits
        };
        assert!(waits(0, true) && waits(INBOX_BYTES_MAX / 2 - 1, true) && !waits(0, false));
        assert!(!waits(INBOX_BYTES_MAX / 2, true) && !waits(INBOX_BYTES_MAX - 1, true));
        responder.envelopes.change(responder.envelopes.held(), INBOX_BYTES_MAX - 1);
        assert!(responder.has_room(), "requests that do not wait have the other half");
        responder.envelopes.change(INBOX_BYTES_MAX - 1, INBOX_BYTES_MAX);
        assert!(!responder.has_room());
    }
}
