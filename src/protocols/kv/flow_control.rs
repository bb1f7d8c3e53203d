//! Flow control of the proxy: it bounds the bytes that each client has outstanding, without a stall of the other
//! clients.
//!
//! This module touches neither sockets nor bytes. Frames go in and out, and each call returns the proxy's next step.
//! Only the proxy's thread uses it.
//!
//! ```text
//!                 take                     next_request                    answered                     next_reply
//! a request comes ────┬─► on its way to the worker ◄──┐   a reply comes ──────┬─► sent to the client ◄──┐
//!                     │   (window, tickets)           │                       │                         │
//!                     ├─► held in `pending` ──────────┘                       ├─► held in `backlog` ────┘
//!                     └─► dropped: cut off                                    └─► dropped: its connection is gone
//! ```
//! - **Order.** A worker answers its requests in the order in which the proxy sent them. A queue of *tickets* per
//!   worker therefore tells which client each reply belongs to, and no routing id travels through the worker. When a
//!   worker *defers* a request, it sends a notice in that request's turn, and names the deferral's number when it
//!   answers. While a request or reply of a client is held, all later ones of this client are held behind it.
//! - **Bounds.** A client's outstanding bytes are those of its unanswered requests and of its replies that its pipe did
//!   not take. The bytes in the pipe are bounded too (`in_flight`), and count when all clients together hold too much
//!   (`pipes`). A client that does not read and has more than `client_bytes` outstanding is *cut off*: its held
//!   messages are dropped. The proxy executes and answers no further request of it until it comes with another
//!   connection, so its later replies never shift. A client that reads, but sends faster than the workers answer,
//!   *presses*. Once it has more than half of `client_bytes` outstanding it is *held back*: the router takes no further
//!   message from it until half of that is answered. Other clients do not notice. When all clients together have half
//!   of their common bound outstanding, a client presses with much less. A message of a client that has nothing else
//!   outstanding is always taken.
//! - **Window.** The window bounds the frames of a client that are on their way to its worker: the replies expected for
//!   them, by the size of the recent ones, are at most a quarter of `client_bytes`. While replies of the client are
//!   held, no request of it goes to the worker. So a client that reads, however slowly, is not cut off for the size of
//!   its replies.
//! - **Reports.** The *reporter* carries out slow requests in place of the client's worker, and counts as one more
//!   worker. A client's report starts when no other request of it is on its way, and no other request of it goes out
//!   until the report is answered. The number of reports in progress is bounded, and further clients wait in turn. A
//!   page of SCAN is alone on its way too, but to the client's worker: five frames may ask for a megabyte.
//! - **Epochs.** A reply is for the connection from which its request came. When that connection is gone or replaced,
//!   or the client is cut off, the client's epoch changes. Replies to tickets of an older epoch are dropped when they
//!   come.

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

pub(super) use bounds::{Bounds, page_bytes_max};
pub(super) use client::RoutingId;
use client::{ClientClass, ClientStanding, Parcel, TrackedClient};
use deferred::DeferredRequests;
pub(super) use reports::By;

pub(super) use crate::protocols::sockets::MessageSize;
use crate::protocols::sockets::SendProgress;
use crate::security::NO_LOGIN;

/// A connection as flow control sees it.
pub(super) trait TrackedConnection {
    /// Tells connections apart.
    type Mark: Copy + PartialEq;
    /// The mark of this connection.
    fn mark(&self) -> Self::Mark;
    /// Whether the connection is open.
    fn is_open(&self) -> bool;
    /// How far the bytes sent over this connection have come.
    fn progress(&self) -> SendProgress;
    /// Ends the connection and discards the bytes that wait to be sent over it. False: that is impossible now.
    fn end(&self) -> bool;
}

/// A client's index in flow control. It remains the client's as long as any byte of the client is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientIndex(u32);

impl ClientIndex {
    /// The tag by which a worker tells clients apart. Two clients share a tag only if there are more than 65,536. Then
    /// each waits for the other when one waits for the tables.
    #[inline]
    pub(super) fn tag(self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        let tag = self.0 as u16;
        tag
    }
}

/// The next step with a request that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestVerdict {
    /// Send it to this worker.
    Forward(usize),
    /// Give its frames to [`FlowControl::hold_request`].
    Hold,
    /// Drop it: the client is cut off.
    Drop,
}

/// The next step with a reply that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyVerdict {
    /// Send it to the client. If the client's pipe is full, give the frames to [`FlowControl::hold_reply`].
    Send,
    /// Give its frames to [`FlowControl::hold_reply`].
    Hold,
    /// Drop it: the connection that asked is gone.
    Drop,
    /// Drop it: the client is cut off.
    DropCut,
}

/// The client and the request that a reply belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredRequest {
    pub(super) index: ClientIndex,
    pub(super) fate: ReplyVerdict,
    /// Frames of the request.
    pub(super) asked: u32,
    pub(super) by: By,
}

/// A request that is on its way to a worker, or that a worker holds.
struct InFlightRequest {
    index: ClientIndex,
    epoch: u32,
    size: MessageSize,
    by: By,
}

/// Flow control of all clients. `F` is a frame, `L` a connection.
pub(super) struct FlowControl<F, L> {
    bounds: Bounds,
    /// Indexes of clients with ids that the router chose, by the id's integer.
    chosen: HashMap<u32, ClientIndex, RandomState>,
    /// Indexes of clients with ids of their own.
    own: HashMap<Box<[u8]>, ClientIndex, RandomState>,
    clients: Vec<Option<TrackedClient<F, L>>>,
    /// Entries of `clients` that are `None`.
    vacant: Vec<ClientIndex>,
    /// For each worker, and last for the reporter: its requests that are neither answered nor deferred, oldest first.
    tickets: Vec<VecDeque<InFlightRequest>>,
    /// For each worker, and last for the reporter: its deferred requests.
    deferred: Vec<DeferredRequests>,
    /// Requests that the reporter has not answered.
    reports: usize,
    /// Clients whose next request waits for the reporter. Some of them may be gone.
    reports_due: VecDeque<ClientIndex>,
    /// Clients with a backlog.
    stalled: Vec<ClientIndex>,
    /// Bytes outstanding of all clients.
    held: u64,
    /// Bytes in the pipes to all clients: the sum of their `in_flight`.
    piped: u64,
    /// Those of them that were found unread: the sum over all clients.
    found: u64,
    /// Bytes sent to all clients since they were last asked for their progress.
    sent_since: u64,
    /// At the last check all clients together held too much, and most of that was on its way to be answered.
    over: bool,
    /// Clients whose state in the router is out of date: they press and are not held back, or the other way round.
    untold: Vec<ClientIndex>,
    /// How often a client was held back.
    holds: u64,
    /// Clients in good standing with nothing outstanding.
    idle: usize,
    /// The index at which the next search for a client to forget starts.
    hand: u32,
    /// Clients that are cut off now.
    cut_off: usize,
    /// How often a client was cut off.
    cuts: u64,
}

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// Flow control without clients, for `workers` workers.
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
            found: 0,
            sent_since: 0,
            over: false,
            untold: Vec::new(),
            holds: 0,
            idle: 0,
            hand: 0,
            cut_off: 0,
            cuts: 0,
        }
    }

    // --- identity ---

    /// The client with this routing id.
    pub(super) fn find(&self, id: &[u8]) -> Option<ClientIndex> {
        match RoutingId::chosen(id) {
            Some(number) => self.chosen.get(&number).copied(),
            None => self.own.get(id).copied(),
        }
    }

    /// Opens an entry for a client that [`FlowControl::find`] does not know. The new client is idle.
    pub(super) fn admit(&mut self, id: RoutingId, connection: L) -> ClientIndex {
        if self.idle > self.bounds.idle_clients {
            self.forget_some();
        }
        let worker = self.worker_of(&id);
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.clients.push(None);
            ClientIndex(u32::try_from(self.clients.len() - 1).expect("a process has fewer connections"))
        });
        match &id {
            RoutingId::Chosen(number, _) => self.chosen.insert(*number, index),
            RoutingId::Own(bytes) => self.own.insert(bytes.clone(), index),
        };
        self.idle += 1;
        let client = TrackedClient::new(id, worker, connection, &self.bounds);
        *self.entry(index) = Some(client);
        index
    }

    /// Chooses the same worker for a client every time. Ids that the router chooses count up, so they spread evenly.
    fn worker_of(&self, id: &RoutingId) -> usize {
        let number = match id {
            RoutingId::Chosen(number, _) => u64::from(*number),
            RoutingId::Own(bytes) => self.own.hasher().hash_one(bytes),
        };
        let worker = number % self.reporter() as u64;
        usize::try_from(worker).expect("it is below the number of workers")
    }

    /// The client's routing id.
    pub(super) fn id(&self, index: ClientIndex) -> &[u8] {
        self.client(index).id.bytes()
    }

    /// Whether it matters from which connection a message of this client comes. The router never reuses the ids that it
    /// chooses. A client's own id may come back with another connection.
    pub(super) fn may_change_connection(&self, index: ClientIndex) -> bool {
        let client = self.client(index);
        matches!(client.id, RoutingId::Own(_)) || client.standing != ClientStanding::Good
    }

    /// Whether the client's connection is the one with this mark.
    pub(super) fn comes_from(&self, index: ClientIndex, mark: L::Mark) -> bool {
        self.client(index).connection.mark() == mark
    }

    /// The client's connection.
    pub(super) fn connection(&self, index: ClientIndex) -> &L {
        &self.client(index).connection
    }

    // --- requests ---

    /// A request has come.
    pub(super) fn take(&mut self, index: ClientIndex, size: MessageSize, by: By) -> RequestVerdict {
        let most = self.bounds.client_bytes;
        let client = self.client_mut(index);
        if client.standing != ClientStanding::Good {
            return RequestVerdict::Drop;
        }
        if client.stalled && client.bytes + size.bytes > most {
            self.cut(index);
            return RequestVerdict::Drop;
        }
        let ready = client.pending.is_empty() && client.may_ask(size.frames, by);
        let epoch = client.epoch;
        self.add(index, size.bytes);
        if !ready || !self.has_turn(index, by) {
            return RequestVerdict::Hold;
        }
        RequestVerdict::Forward(self.ask(InFlightRequest { index, epoch, size, by }))
    }

    /// Keeps a request for which [`FlowControl::take`] returned [`RequestVerdict::Hold`].
    pub(super) fn hold_request(
        &mut self,
        index: ClientIndex,
        size: MessageSize,
        (by, login): (By, u32),
        frames: impl Iterator<Item = F>,
    ) {
        let client = self.client_mut(index);
        let epoch = client.epoch;
        client.pending.push(size, Parcel { epoch, by, login }, frames);
    }

    /// Dequeues the client's next held request that may go to its worker now. Returns the worker, the number of the user
    /// whose request it is, and the frames to send.
    pub(super) fn next_request(&mut self, index: ClientIndex) -> Option<(usize, u32, vec_deque::Drain<'_, F>)> {
        let client = self.client_mut(index);
        let (size, Parcel { epoch, by, login }) = client.pending.front()?;
        if !client.may_ask(size.frames, by) || !self.has_turn(index, by) {
            return None;
        }
        let worker = self.ask(InFlightRequest { index, epoch, size, by });
        let frames = self.client_mut(index).pending.pop()?;
        Some((worker, login, frames))
    }

    /// Notes that a request is on its way, and returns its worker.
    fn ask(&mut self, ticket: InFlightRequest) -> usize {
        let (reporter, by) = (self.reporter(), ticket.by);
        let client = self.client_mut(ticket.index);
        client.frames_asked += ticket.size.frames;
        client.is_asked_alone = by != By::Worker;
        let worker = if by == By::Reporter { reporter } else { client.worker };
        self.reports += usize::from(by == By::Reporter);
        self.tickets_of(worker).push_back(ticket);
        worker
    }

    /// Whether every request that was taken is executed and answered.
    pub(super) fn is_settled(&self) -> bool {
        self.held == 0
    }

    // --- replies ---

    /// A reply has come from this worker. It belongs to the worker's oldest ticket, unless [`FlowControl::is_late`] has
    /// named another one.
    pub(super) fn answered(&mut self, worker: usize) -> AnsweredRequest {
        let ticket = self.late_ticket(worker).or_else(|| self.tickets_of(worker).pop_front());
        let InFlightRequest { index, epoch, size, by } = ticket.expect("a worker answers each request once");
        self.reports -= usize::from(by == By::Reporter);
        let client = self.client_mut(index);
        client.frames_asked -= size.frames;
        client.is_asked_alone = false;
        let fate = match client.standing {
            ClientStanding::Good if epoch != client.epoch => ReplyVerdict::Drop,
            ClientStanding::Good if client.backlog.is_empty() => ReplyVerdict::Send,
            ClientStanding::Good => ReplyVerdict::Hold,
            ClientStanding::Cut | ClientStanding::CutAndGone => ReplyVerdict::DropCut,
        };
        self.release(index, size.bytes);
        AnsweredRequest { index, fate, asked: size.frames, by }
    }

    /// Learns from the size of a reply how many requests of this client may be on their way at once.
    pub(super) fn replied(&mut self, answered: AnsweredRequest, bytes: u64) {
        let most = self.bounds.client_bytes;
        // A report or a page is alone on its way, so its size says nothing about other replies.
        if answered.by == By::Worker {
            self.client_mut(answered.index).learn(answered.asked, bytes, most);
        }
    }

    /// Keeps a reply that the client's pipe did not take. Cuts the client off if it then has too many bytes
    /// outstanding. The first of the replies that it keeps does not count: its size is the server's doing, and the
    /// requests behind it came while the client still read.
    pub(super) fn hold_reply(&mut self, index: ClientIndex, size: MessageSize, frames: impl Iterator<Item = F>) {
        let most = self.bounds.client_bytes;
        let client = self.client_mut(index);
        let epoch = client.epoch;
        let first = client.backlog.is_empty();
        let too_much = !first && client.bytes + size.bytes > most;
        client.backlog.push(size, Parcel { epoch, by: By::Worker, login: NO_LOGIN }, frames);
        client.stalled = true;
        if first {
            self.stalled.push(index);
        }
        self.add(index, size.bytes);
        if too_much {
            self.cut(index);
        }
    }

    /// The client at this position in the list of clients with held replies. When a client leaves the list, the last
    /// one takes its position, so a walk from the end meets each of them.
    pub(super) fn stalled(&self, position: usize) -> Option<ClientIndex> {
        self.stalled.get(position).copied()
    }

    /// The number of clients with held replies.
    pub(super) fn stalled_count(&self) -> usize {
        self.stalled.len()
    }

    /// Whether replies of the client are held.
    pub(super) fn has_backlog(&self, index: ClientIndex) -> bool {
        !self.client(index).backlog.is_empty()
    }

    /// Dequeues the oldest held reply of the client, which its pipe now takes. Returns the frames to send.
    pub(super) fn next_reply(&mut self, index: ClientIndex) -> Option<vec_deque::Drain<'_, F>> {
        let client = self.client_mut(index);
        let (size, _) = client.backlog.front()?;
        let is_last = client.backlog.is_last();
        self.sent(index, size);
        if is_last {
            self.unstall(index);
        }
        self.release(index, size.bytes);
        self.client_mut(index).backlog.pop()
    }

    /// Drops the replies that are held for the client, and starts a new epoch, so that replies still to come are
    /// dropped too.
    fn drop_replies(&mut self, index: ClientIndex) {
        let client = self.client_mut(index);
        client.epoch = client.epoch.wrapping_add(1);
        if !client.backlog.is_empty() {
            let dropped = client.backlog.clear();
            self.unstall(index);
            self.release(index, dropped);
        }
    }

    fn unstall(&mut self, index: ClientIndex) {
        self.client_mut(index).stalled = false;
        let position = self.stalled.iter().position(|&other| other == index);
        self.stalled.swap_remove(position.expect("a client with a backlog is stalled"));
    }

    // --- entries ---

    /// Counts bytes as outstanding.
    fn add(&mut self, index: ClientIndex, bytes: u64) {
        self.held += bytes;
        self.client_mut(index).bytes += bytes;
        self.classify(index);
    }

    /// Counts bytes as no longer outstanding.
    fn release(&mut self, index: ClientIndex, bytes: u64) {
        self.held -= bytes;
        self.client_mut(index).bytes -= bytes;
        self.classify(index);
    }

    /// Maintains the count of idle clients and the list of clients that have begun or ceased to press. Called after
    /// each change of a client.
    fn classify(&mut self, index: ClientIndex) {
        let is_crowded = self.held > self.bounds.held_bytes / 2;
        let most = if is_crowded { self.bounds.crowded_bytes } else { self.bounds.pressing_bytes };
        let client = self.client_mut(index);
        let class = client.class(most);
        let before = std::mem::replace(&mut client.class, class);
        let is_untold = client.is_untold();
        if class != before {
            self.idle = self.idle + usize::from(class == ClientClass::Idle) - usize::from(before == ClientClass::Idle);
        }
        if is_untold {
            self.untold.push(index);
        }
    }

    /// All indexes, vacant ones too.
    fn indices(&self) -> impl Iterator<Item = ClientIndex> + use<F, L> {
        (0..u32::try_from(self.clients.len()).unwrap_or(u32::MAX)).map(ClientIndex)
    }

    #[expect(clippy::indexing_slicing, reason = "flow control gave the index out")]
    fn entry(&mut self, index: ClientIndex) -> &mut Option<TrackedClient<F, L>> {
        &mut self.clients[index.0 as usize]
    }

    fn client_mut(&mut self, index: ClientIndex) -> &mut TrackedClient<F, L> {
        self.entry(index).as_mut().expect("a client with something outstanding is not forgotten")
    }

    fn client(&self, index: ClientIndex) -> &TrackedClient<F, L> {
        let entry = self.clients.get(index.0 as usize).and_then(Option::as_ref);
        entry.expect("a client with something outstanding is not forgotten")
    }

    #[expect(clippy::indexing_slicing, reason = "a client's worker is one of the workers")]
    fn tickets_of(&mut self, worker: usize) -> &mut VecDeque<InFlightRequest> {
        &mut self.tickets[worker]
    }
}
