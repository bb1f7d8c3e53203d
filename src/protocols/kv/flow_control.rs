//! Who has what outstanding: the books of the queue, by which it bounds every client without a stall of the others.
//!
//! It touches neither sockets nor bytes: frames go in and out, and each call says what the queue must do next. The queue
//! is the only thread that sees it.
//!
//! ```text
//!                 take                     next_request                    answered                     next_reply
//! a request comes ────┬─► on its way to the worker ◄──┐   a reply comes ──────┬─► sent to the client ◄──┐
//!                     │   (window, tickets)           │                       │                         │
//!                     ├─► held in `pending` ──────────┘                       ├─► held in `backlog` ────┘
//!                     └─► dropped: cut off                                    └─► dropped: nobody waits for it
//! ```
//! - **Order.** A worker answers in the order in which it was asked, so a queue of *tickets* per worker says whose each
//!   reply is: no routing id travels through the worker. What a worker *defers*, it says so in its turn, and numbers when it
//!   answers it. Once something of a client is held, all that follows is held behind it.
//! - **Bounds.** A client's bytes are those of its requests that are not answered and of its replies that its pipe did
//!   not take; what the pipe takes is bounded too (`meter`), and counts when all clients together hold too much (`pipes`). A client that does not read and has more than `client_bytes`
//!   is *cut off*: what is held of it is dropped, and nothing more of it is executed or answered until it comes with
//!   another connection, so that its later answers never shift. One that reads, but asks faster than the workers answer,
//!   *presses*: once it has more than half of `client_bytes` it is *held back*, which means that the router takes nothing
//!   more from it, until half of that is answered. Others do not notice. When all clients together have half of what they
//!   may, a client presses with much less. A message of a client that has nothing else outstanding is always taken.
//! - **Window.** Only so many frames of a client are on their way to its worker that the replies expected for them, by
//!   the size of the recent ones, are a quarter of `client_bytes`; and none while replies are held. So a client that
//!   reads, however slowly, is not cut off for the size of its replies.
//! - **Reports.** What takes long is not carried out by the client's worker but by the *reporter*, which the account counts as
//!   one more worker: when nothing else of the client is on its way, and nothing else goes until it is answered. Only so
//!   many are with the reporter at once; further clients wait in turn.
//! - **Epochs.** A reply is for the connection from which its request came. When that is gone or replaced, or the client
//!   is cut off, the client's epoch changes, and tickets of an older one are dropped when their replies come.

mod bounds;
mod client;
mod deferred;
mod disconnect;
#[cfg(test)]
mod model;
mod pipes;
mod reports;

use std::collections::{HashMap, VecDeque, vec_deque};

use ahash::RandomState;

pub(super) use bounds::Bounds;
pub(super) use client::Id;
use client::{ClientClass, ClientStanding, TrackedClient};
use deferred::DeferredRequests;
pub(super) use reports::By;

pub(super) use crate::protocols::sockets::MessageSize;
use crate::protocols::sockets::SendProgress;

/// A connection as the account sees it.
pub(super) trait TrackedConnection {
    /// Tells connections apart.
    type Mark: Copy + PartialEq;
    /// Of this connection.
    fn mark(&self) -> Self::Mark;
    /// Whether it stands.
    fn is_open(&self) -> bool;
    /// How far what was sent over it has come.
    fn progress(&self) -> SendProgress;
    /// Ends it, and what waits to be sent over it. False: that cannot be done now.
    fn end(&self) -> bool;
}

/// A client's place in the account. It stays the client's as long as anything of it is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientIndex(u32);

impl ClientIndex {
    /// What a worker knows the client by. Two clients have the same one only if there are more than 65,536; then they wait for each
    /// other where one waits for the tables.
    #[inline]
    pub(super) fn tag(self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        let tag = self.0 as u16;
        tag
    }
}

/// What to do with a request that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestVerdict {
    /// Send it to this worker.
    Forward(usize),
    /// Give its frames to [`Account::hold_request`].
    Hold,
    /// Drop it: the client is cut off.
    Drop,
}

/// What to do with a reply that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyVerdict {
    /// Send it to the client; if its pipe is full, give the frames to [`Account::hold_reply`].
    Send,
    /// Give its frames to [`Account::hold_reply`].
    Hold,
    /// Drop it: the connection that asked is gone.
    Drop,
    /// Drop it: the client is cut off.
    DropCut,
}

/// Whose a reply is.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredRequest {
    pub(super) place: ClientIndex,
    pub(super) fate: ReplyVerdict,
    /// Frames of the request.
    pub(super) asked: u32,
    pub(super) by: By,
}

/// A request on its way to a worker, or in its hands.
struct InFlightRequest {
    place: ClientIndex,
    epoch: u32,
    size: MessageSize,
}

/// The books. `F` is a frame, `L` a connection.
pub(super) struct FlowControl<F, L> {
    bounds: Bounds,
    /// Places of clients with ids that the router chose, by their integer.
    chosen: HashMap<u32, ClientIndex, RandomState>,
    /// Places of clients with ids of their own.
    own: HashMap<Box<[u8]>, ClientIndex, RandomState>,
    clients: Vec<Option<TrackedClient<F, L>>>,
    /// Entries of `clients` that are `None`.
    vacant: Vec<ClientIndex>,
    /// For each worker, and last for the reporter, what it has been asked and has neither answered nor deferred, oldest first.
    tickets: Vec<VecDeque<InFlightRequest>>,
    /// For each worker, and last for the reporter, what it has deferred.
    deferred: Vec<DeferredRequests>,
    /// Requests with the reporter.
    reports: usize,
    /// Clients whose next request waits for the reporter. They may be gone.
    reports_due: VecDeque<ClientIndex>,
    /// Clients with a backlog.
    stalled: Vec<ClientIndex>,
    /// Bytes outstanding of all clients.
    held: u64,
    /// Bytes in the pipes to all clients: what their meters say.
    piped: u64,
    /// When it was last looked, all together held too much, and most of that was on its way to be answered.
    over: bool,
    /// Clients that press and are not held back, or the other way round.
    untold: Vec<ClientIndex>,
    /// How often a client was held back.
    holds: u64,
    /// Clients in good standing with nothing outstanding.
    idle: usize,
    /// The place that is looked at next for somebody to forget.
    hand: u32,
    /// Clients that are cut off now.
    cut_off: usize,
    /// How often a client was cut off.
    cuts: u64,
}

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// Empty books for so many workers.
    pub(super) fn new(workers: usize, bounds: Bounds) -> Self {
        Self {
            bounds,
            chosen: HashMap::default(),
            own: HashMap::default(),
            clients: Vec::new(),
            vacant: Vec::new(),
            tickets: (0..=workers).map(|_| VecDeque::new()).collect(),
            deferred: (0..=workers).map(|_| DeferredRequests::default()).collect(),
            reports: 0,
            reports_due: VecDeque::new(),
            stalled: Vec::new(),
            held: 0,
            piped: 0,
            over: false,
            untold: Vec::new(),
            holds: 0,
            idle: 0,
            hand: 0,
            cut_off: 0,
            cuts: 0,
        }
    }

    // --- who ---

    /// The client with this routing id.
    pub(super) fn find(&self, id: &[u8]) -> Option<ClientIndex> {
        match Id::chosen(id) {
            Some(number) => self.chosen.get(&number).copied(),
            None => self.own.get(id).copied(),
        }
    }

    /// Opens an entry for a client that [`Account::find`] does not know. It is idle.
    pub(super) fn admit(&mut self, id: Id, connection: L) -> ClientIndex {
        if self.idle > self.bounds.idle_clients {
            self.forget_some();
        }
        let worker = self.worker_of(&id);
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.clients.push(None);
            ClientIndex(u32::try_from(self.clients.len() - 1).expect("a process has fewer connections"))
        });
        match &id {
            Id::Chosen(number, _) => self.chosen.insert(*number, place),
            Id::Own(bytes) => self.own.insert(bytes.clone(), place),
        };
        self.idle += 1;
        let client = TrackedClient::new(id, worker, connection, &self.bounds);
        *self.entry(place) = Some(client);
        place
    }

    /// Always the same worker for a client. Ids that the router chooses count up, so they spread evenly.
    fn worker_of(&self, id: &Id) -> usize {
        let number = match id {
            Id::Chosen(number, _) => u64::from(*number),
            Id::Own(bytes) => self.own.hasher().hash_one(bytes),
        };
        let worker = number % self.reporter() as u64;
        usize::try_from(worker).expect("it is below the number of workers")
    }

    /// The client's routing id.
    pub(super) fn id(&self, place: ClientIndex) -> &[u8] {
        self.client(place).id.bytes()
    }

    /// Whether it matters from which connection a message of this client comes: ids that the router chooses are never
    /// used again, own ones are.
    pub(super) fn may_change_connection(&self, place: ClientIndex) -> bool {
        let client = self.client(place);
        matches!(client.id, Id::Own(_)) || client.standing != ClientStanding::Good
    }

    /// Whether the client's connection is the one with this mark.
    pub(super) fn comes_from(&self, place: ClientIndex, mark: L::Mark) -> bool {
        self.client(place).connection.mark() == mark
    }

    /// Whether the client's connection stands.
    pub(super) fn is_open(&self, place: ClientIndex) -> bool {
        self.client(place).connection.is_open()
    }

    /// The client has come with another connection: nothing of the old one is answered, and if it was cut off, it no
    /// longer is. What was taken of the old connection and is not executed still is, before anything of the new one.
    pub(super) fn reconnected(&mut self, place: ClientIndex, connection: L) {
        self.drop_replies(place);
        let client = self.client_mut(place);
        client.connection = connection;
        client.held_back = false;
        self.empty_pipe(place);
        self.classify(place);
        let client = self.client_mut(place);
        if client.standing != ClientStanding::Good {
            client.standing = ClientStanding::Good;
            self.cut_off -= 1;
            self.classify(place);
        }
    }

    /// The client's connection is gone: nobody waits for what was asked there.
    pub(super) fn gone(&mut self, place: ClientIndex) {
        self.drop_replies(place);
    }

    // --- requests ---

    /// A request has come.
    pub(super) fn take(&mut self, place: ClientIndex, size: MessageSize, by: By) -> RequestVerdict {
        let most = self.bounds.client_bytes;
        let client = self.client_mut(place);
        if client.standing != ClientStanding::Good {
            return RequestVerdict::Drop;
        }
        if client.stalled && client.bytes + size.bytes > most {
            self.cut(place);
            return RequestVerdict::Drop;
        }
        let ready = client.pending.is_empty() && client.may_ask(size.frames, by);
        let epoch = client.epoch;
        self.add(place, size.bytes);
        if !ready || !self.has_turn(place, by) {
            return RequestVerdict::Hold;
        }
        RequestVerdict::Forward(self.ask(by, InFlightRequest { place, epoch, size }))
    }

    /// Keeps a request for which [`Account::take`] said so.
    pub(super) fn hold_request(
        &mut self,
        place: ClientIndex,
        size: MessageSize,
        by: By,
        frames: impl Iterator<Item = F>,
    ) {
        let client = self.client_mut(place);
        let epoch = client.epoch;
        client.pending.push(size, (epoch, by), frames);
    }

    /// The next held request of the client that may go to its worker now: the worker, and the frames to send.
    pub(super) fn next_request(&mut self, place: ClientIndex) -> Option<(usize, vec_deque::Drain<'_, F>)> {
        let client = self.client_mut(place);
        let (size, (epoch, by)) = client.pending.front()?;
        if !client.may_ask(size.frames, by) || !self.has_turn(place, by) {
            return None;
        }
        let worker = self.ask(by, InFlightRequest { place, epoch, size });
        let frames = self.client_mut(place).pending.pop()?;
        Some((worker, frames))
    }

    /// Notes that a request is on its way; to which worker.
    fn ask(&mut self, by: By, ticket: InFlightRequest) -> usize {
        let reporter = self.reporter();
        let client = self.client_mut(ticket.place);
        client.frames_asked += ticket.size.frames;
        client.is_reported_to = by == By::Reporter;
        let worker = if by == By::Reporter { reporter } else { client.worker };
        self.reports += usize::from(by == By::Reporter);
        self.tickets_of(worker).push_back(ticket);
        worker
    }

    /// Whether nothing that was taken is still to be executed or answered.
    pub(super) fn is_settled(&self) -> bool {
        self.held == 0
    }

    // --- replies ---

    /// A reply has come from this worker: to its oldest ticket, unless [`Account::is_late`] has said that it is to another.
    pub(super) fn answered(&mut self, worker: usize) -> AnsweredRequest {
        let ticket = self.late_ticket(worker).or_else(|| self.tickets_of(worker).pop_front());
        let InFlightRequest { place, epoch, size } = ticket.expect("a worker answers each request once");
        let by = if worker == self.reporter() { By::Reporter } else { By::Worker };
        self.reports -= usize::from(by == By::Reporter);
        let client = self.client_mut(place);
        client.frames_asked -= size.frames;
        client.is_reported_to = false;
        let fate = match client.standing {
            ClientStanding::Good if epoch != client.epoch => ReplyVerdict::Drop,
            ClientStanding::Good if client.backlog.is_empty() => ReplyVerdict::Send,
            ClientStanding::Good => ReplyVerdict::Hold,
            ClientStanding::Cut | ClientStanding::CutAndGone => ReplyVerdict::DropCut,
        };
        self.release(place, size.bytes);
        AnsweredRequest { place, fate, asked: size.frames, by }
    }

    /// Learns from the size of a reply how many requests of this client may be on their way at once.
    pub(super) fn replied(&mut self, answered: AnsweredRequest, bytes: u64) {
        let most = self.bounds.client_bytes;
        // Of reports one is on its way at most: their size says nothing about other replies.
        if answered.by == By::Worker {
            self.client_mut(answered.place).learn(answered.asked, bytes, most);
        }
    }

    /// Keeps a reply that the client's pipe did not take. Cuts the client off if that is too much.
    pub(super) fn hold_reply(&mut self, place: ClientIndex, size: MessageSize, frames: impl Iterator<Item = F>) {
        let most = self.bounds.client_bytes;
        let client = self.client_mut(place);
        let epoch = client.epoch;
        let first = client.backlog.is_empty();
        let too_much = client.bytes > 0 && client.bytes + size.bytes > most;
        client.backlog.push(size, (epoch, By::Worker), frames);
        client.stalled = true;
        if first {
            self.stalled.push(place);
        }
        self.add(place, size.bytes);
        if too_much {
            self.cut(place);
        }
    }

    /// One of the clients with held replies, by its position in a list of them. When one leaves the list, the last takes
    /// its position: who goes through it from its end meets each of them.
    pub(super) fn stalled(&self, position: usize) -> Option<ClientIndex> {
        self.stalled.get(position).copied()
    }

    /// How many clients have held replies.
    pub(super) fn stalled_count(&self) -> usize {
        self.stalled.len()
    }

    /// Whether replies of the client are held.
    pub(super) fn has_backlog(&self, place: ClientIndex) -> bool {
        !self.client(place).backlog.is_empty()
    }

    /// The oldest held reply of the client, which its pipe now takes: the frames to send.
    pub(super) fn next_reply(&mut self, place: ClientIndex) -> Option<vec_deque::Drain<'_, F>> {
        let client = self.client_mut(place);
        let (size, _) = client.backlog.front()?;
        let is_last = client.backlog.is_last();
        self.sent(place, size);
        if is_last {
            self.unstall(place);
        }
        self.release(place, size.bytes);
        self.client_mut(place).backlog.pop()
    }

    /// Forgets the replies that are held for the client, and those still to come.
    fn drop_replies(&mut self, place: ClientIndex) {
        let client = self.client_mut(place);
        client.epoch = client.epoch.wrapping_add(1);
        if !client.backlog.is_empty() {
            let dropped = client.backlog.clear();
            self.unstall(place);
            self.release(place, dropped);
        }
    }

    fn unstall(&mut self, place: ClientIndex) {
        self.client_mut(place).stalled = false;
        let position = self.stalled.iter().position(|&other| other == place);
        self.stalled.swap_remove(position.expect("a client with a backlog is stalled"));
    }

    // --- entries ---

    /// Counts bytes as outstanding.
    fn add(&mut self, place: ClientIndex, bytes: u64) {
        self.held += bytes;
        self.client_mut(place).bytes += bytes;
        self.classify(place);
    }

    /// Counts bytes as no longer outstanding.
    fn release(&mut self, place: ClientIndex, bytes: u64) {
        self.held -= bytes;
        self.client_mut(place).bytes -= bytes;
        self.classify(place);
    }

    /// Keeps the count of those who are idle and the list of those who have begun or ceased to press, whenever something of
    /// a client has changed.
    fn classify(&mut self, place: ClientIndex) {
        let is_crowded = self.held > self.bounds.held_bytes / 2;
        let most = if is_crowded { self.bounds.crowded_bytes } else { self.bounds.pressing_bytes };
        let client = self.client_mut(place);
        let class = client.class(most);
        let before = std::mem::replace(&mut client.class, class);
        let is_untold = client.is_untold();
        if class != before {
            self.idle = self.idle + usize::from(class == ClientClass::Idle) - usize::from(before == ClientClass::Idle);
        }
        if is_untold {
            self.untold.push(place);
        }
    }

    /// All places, vacant ones too.
    fn places(&self) -> impl Iterator<Item = ClientIndex> + use<F, L> {
        (0..u32::try_from(self.clients.len()).unwrap_or(u32::MAX)).map(ClientIndex)
    }

    #[expect(clippy::indexing_slicing, reason = "a place is an index that this account gave out")]
    fn entry(&mut self, place: ClientIndex) -> &mut Option<TrackedClient<F, L>> {
        &mut self.clients[place.0 as usize]
    }

    fn client_mut(&mut self, place: ClientIndex) -> &mut TrackedClient<F, L> {
        self.entry(place).as_mut().expect("a client with something outstanding is not forgotten")
    }

    fn client(&self, place: ClientIndex) -> &TrackedClient<F, L> {
        let entry = self.clients.get(place.0 as usize).and_then(Option::as_ref);
        entry.expect("a client with something outstanding is not forgotten")
    }

    #[expect(clippy::indexing_slicing, reason = "a client's worker is one of the workers")]
    fn tickets_of(&mut self, worker: usize) -> &mut VecDeque<InFlightRequest> {
        &mut self.tickets[worker]
    }
}
