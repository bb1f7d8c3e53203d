//! Between clients and the queue: requests that are not answered yet, and which answers belong to them.
//!
//! Everything takes its turn in the queue, also what is not understood: so a client that does not wait for answers gets them
//! in the order of its requests, but for Lends that block.
//!
//! What is not here: sockets, and what requests mean (`handle`).

use slab::Slab;

use super::client_state::{Abandoned, ClientState, RepliedLease};
use super::handle::Access;
use super::serve::{SpiderqConfig, Version};
use super::wire::{Counters, Fault, Field, Reply, Request, tag};
use crate::clock::{Clock, wall_millis};
use crate::limits::{
    ASK_BURST, ASK_BURST_BYTES, ASK_NOW_MAX, ASKED_BYTES_MAX, ENVELOPE_BYTES_MAX, FRAME_OVERHEAD_BYTES,
    TASK_REQUESTS_MAX,
};
use crate::protocols::native::ConnectionId;
use crate::store;
use crate::tasks::{self, Delivery, QueueId, RoomWait, SlowDiskBackoff, Submission, Tasks, Ticket};
use crate::zmtp::{Message, encode_frame};

/// Kinds of requests, by their tags.
const TAGS: usize = 13;

/// A request that is not answered yet.
pub(super) enum PendingRequest {
    /// Of a client.
    Answer {
        peer: ConnectionId,
        /// The frames before the request, as they came.
        envelope: Box<[u8]>,
        /// Its tag, or why it is none.
        asked: Result<u8, Fault>,
        /// It may be long until it is answered.
        waits: bool,
    },
    /// A lease or a wait that is taken back; nobody hears of it.
    Undo,
}

/// How replies are made that the queue has no outcome for.
pub(super) struct ReplyPolicy {
    version: Version,
    terminate: bool,
    access: Access,
    /// By the tag.
    answered: [u64; TAGS],
}

impl ReplyPolicy {
    pub(super) fn new(&SpiderqConfig { version, terminate, access, .. }: &SpiderqConfig) -> Self {
        Self { version, terminate, access, answered: [0; TAGS] }
    }

    /// A request that the server is told to refuse is none.
    fn decode<'f>(&self, frame: &'f [u8]) -> Result<Request<'f>, Fault> {
        let refused = |tag: u8| !self.access.allows(tag) || tag == tag::TERMINATE && !self.terminate;
        match frame.first() {
            Some(&offending) if refused(offending) => Err(Fault::Offending { field: Field::UnknownTag, offending }),
            _ => Request::decode(frame),
        }
    }

    /// A request of this kind is answered.
    pub(super) fn count(&mut self, tag: u8) {
        if let Some(count) = self.answered.get_mut(usize::from(tag)) {
            *count += 1;
        }
    }

    /// The reply to a request that has only waited for its turn.
    pub(super) fn own(&self, asked: u8) -> Reply<'static> {
        match asked {
            tag::STATS => Reply::StatsGot(self.stats()),
            tag::TERMINATE => Reply::Terminated,
            tag::FLUSH => Reply::Flushed,
            tag::UPDATE | tag::REPAY => Reply::NotFound,
            _ => Reply::Pong,
        }
    }

    fn stats(&self) -> Counters {
        let count = |(_, tag)| self.answered.get(usize::from(tag)).copied().unwrap_or_default();
        match self.version {
            Version::V1_3 => Counters::Eight(Counters::LISTED_1_3.map(count)),
            Version::V1_4 => Counters::Ten(Counters::LISTED_1_4.map(count)),
        }
    }
}

/// All requests that are not answered yet, and those that are to be asked next.
pub(super) struct TaskResponder {
    tasks: Tasks,
    queue: QueueId,
    sink: usize,
    /// By the number of the ticket.
    pending: Slab<PendingRequest>,
    /// What their envelopes take.
    pending_bytes: u64,
    burst: Vec<Submission>,
    brake: SlowDiskBackoff,
    room: RoomWait,
    /// Bytes of the requests in it.
    burst_bytes: usize,
    pub(super) policy: ReplyPolicy,
}

impl TaskResponder {
    pub(super) fn new(tasks: Tasks, queue: QueueId, sink: usize, policy: ReplyPolicy) -> Self {
        let burst = Vec::with_capacity(ASK_BURST);
        Self {
            tasks,
            queue,
            sink,
            pending: Slab::new(),
            pending_bytes: 0,
            burst,
            brake: SlowDiskBackoff::default(),
            room: RoomWait::default(),
            burst_bytes: 0,
            policy,
        }
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Whether every request is answered.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether further requests may be taken. If not, the face is woken when they may: by an answer, or by the committer.
    pub(super) fn has_room(&mut self) -> bool {
        self.pending.len() < TASK_REQUESTS_MAX
            && self.pending_bytes < ASKED_BYTES_MAX
            && self.tasks.has_room(self.sink, &mut self.room)
    }

    /// The face has slept for as long as it may, and nothing has woken it.
    pub(super) fn has_overslept(&self) {
        self.tasks.has_overslept(self.sink, &self.room);
    }

    /// Takes a message of a client. False: its envelope is longer than any route needs, and so it cannot be answered.
    pub(super) fn take(&mut self, peer: ConnectionId, client: &mut ClientState, message: &Message<'_>) -> bool {
        let mut frames = message.frames();
        let Some(frame) = frames.next_back().filter(|_| message.is_whole()) else { return false };
        let mut envelope = Vec::new();
        frames.for_each(|frame| encode_frame(&mut envelope, frame, true));
        if envelope.len() > ENVELOPE_BYTES_MAX {
            return false;
        }
        let decoded = self.policy.decode(frame);
        let asked = |request: &Request<'_>| self.policy.access.asked(request);
        let mut request = decoded.as_ref().map_or(tasks::Request::Nothing, asked);
        self.pending_bytes += taken_by(&envelope);
        let waits = self.may_wait(&mut request);
        self.burst_bytes += frame.len();
        let asked = decoded.map(|request| request.tag());
        let ticket = self.put(PendingRequest::Answer { peer, envelope: envelope.into(), asked, waits }, request);
        if waits {
            client.waits_for(ticket);
        }
        if self.burst.len() >= ASK_BURST || self.burst_bytes >= ASK_BURST_BYTES {
            self.ask();
        }
        true
    }

    /// Whether it is a request that waits. Where those that do hold too much it is made one that does not: nobody else could be served.
    fn may_wait(&self, request: &mut tasks::Request) -> bool {
        let tasks::Request::Lease { wait, .. } = request else { return false };
        *wait &= self.pending_bytes < ASKED_BYTES_MAX / 2;
        *wait
    }

    /// Hands over what is to be asked.
    pub(super) fn ask(&mut self) {
        if !self.burst.is_empty() {
            let burst = self.take_burst();
            self.tasks.ask(burst);
        }
    }

    /// Asks what is to be asked; a little is committed at once if nothing else is to do, and its answers are given back.
    ///
    /// # Errors
    /// [`store::Error`] if it cannot be stored.
    pub(super) fn ask_now(&mut self, clock: Clock) -> Result<Option<Delivery>, store::Error> {
        if self.burst.is_empty() {
            return Ok(None);
        }
        let start = clock.now();
        if self.burst.len() > ASK_NOW_MAX || self.brake.is_on(start) {
            self.ask();
            return Ok(None);
        }
        let burst = self.take_burst();
        let delivery = self.tasks.ask_now(self.sink, burst, wall_millis())?;
        self.brake.note(start, clock.now());
        Ok(delivery)
    }

    fn take_burst(&mut self) -> Vec<Submission> {
        self.burst_bytes = 0;
        std::mem::replace(&mut self.burst, Vec::with_capacity(ASK_BURST))
    }

    fn put(&mut self, pending: PendingRequest, request: tasks::Request) -> u64 {
        let number = self.pending.insert(pending) as u64;
        let ticket = Ticket { sink: self.sink, number };
        self.burst.push(Submission { queue: self.queue, ticket, request });
        number
    }

    /// The request of a ticket, which is answered.
    pub(super) fn answered(&mut self, ticket: u64) -> PendingRequest {
        let pending = self.pending.remove(usize::try_from(ticket).expect("a ticket is a place in the slab"));
        if let PendingRequest::Answer { envelope, .. } = &pending {
            self.pending_bytes -= taken_by(envelope);
        }
        pending
    }

    /// What clients have left behind goes back.
    pub(super) fn settle(&mut self, abandoned: Abandoned) {
        if !abandoned.waits.is_empty() {
            self.put(PendingRequest::Undo, tasks::Request::Withdraw { tickets: abandoned.waits });
        }
        for lease in abandoned.leases {
            self.take_back(lease);
            if self.burst.len() >= ASK_BURST {
                self.ask();
            }
        }
    }

    /// A lease of which nobody has heard goes back.
    pub(super) fn take_back(&mut self, RepliedLease { token, key }: RepliedLease) {
        self.put(PendingRequest::Undo, tasks::Request::Undo { token, key });
    }
}

/// What a pending request takes in memory, about.
fn taken_by(envelope: &[u8]) -> u64 {
    envelope.len() as u64 + FRAME_OVERHEAD_BYTES
}
