//! Flow control under every order of events: clients that send, read or not, vanish and come back; workers; a proxy.
//!
//! The proxy of this model follows each verdict of flow control as the real one does, with numbers in place of frames
//! and lists in place of sockets.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::clock::Now;
use crate::limits::REPORTS_MAX;

mod cases;
use cases::executor;

/// Messages that the pipe to a client takes.
const PIPE: usize = 3;
const WORKERS: usize = 2;
/// Frames of a request for a report.
const REPORT: u32 = 7;
const CLIENTS: u8 = 4;
const NOW: Now = Now::from_nanos(0);

/// A request and its reply: the client, its connection, and the number of the request on that connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelMessage {
    client: u8,
    connection: u32,
    number: u32,
}

/// The far end of a client's present connection.
#[derive(Debug, Default)]
struct ModelPeer {
    connection: u32,
    connected: bool,
    asked: u32,
    pipe: VecDeque<ModelMessage>,
    /// Replies read over this connection.
    read: u32,
    /// The bytes of each of them.
    reply_bytes: u64,
}

type ModelPeers = Rc<RefCell<Vec<ModelPeer>>>;

struct ModelWire {
    connections: ModelPeers,
    client: u8,
    connection: u32,
}

impl TrackedConnection for ModelWire {
    type Mark = u32;

    fn mark(&self) -> u32 {
        self.connection
    }

    fn is_open(&self) -> bool {
        let peer = &self.connections.borrow()[usize::from(self.client)];
        peer.connected && peer.connection == self.connection
    }

    fn progress(&self) -> SendProgress {
        let peer = &self.connections.borrow()[usize::from(self.client)];
        SendProgress::Acknowledged(u64::from(peer.read) * peer.reply_bytes)
    }

    fn end(&self) -> bool {
        let peer = &mut self.connections.borrow_mut()[usize::from(self.client)];
        if peer.connection == self.connection {
            peer.connected = false;
            peer.pipe.clear();
        }
        true
    }
}

struct Model {
    account: FlowControl<ModelMessage, ModelWire>,
    connections: ModelPeers,
    /// Requests in each worker's pipe, and last in the reporter's.
    workers: Vec<VecDeque<Vec<ModelMessage>>>,
    /// Each worker's deferred requests, in the order of their deferral, with its number.
    deferred: Vec<VecDeque<(u64, Vec<ModelMessage>)>>,
    deferrals: Vec<u64>,
    executed: Vec<ModelMessage>,
    /// Clients from which the router takes no message.
    held_back: [bool; CLIENTS as usize],
    /// Bytes of each reply.
    reply_bytes: u64,
}

/// The first two clients have ids that the router chose, the others their own.
fn id(client: u8) -> Vec<u8> {
    match client {
        0 | 1 => vec![0, 0, 0, 0, client],
        other => vec![b'o', b'w', b'n', other],
    }
}

fn size(frames: u32) -> MessageSize {
    MessageSize { frames, bytes: u64::from(frames) * 64, wire: 0 }
}

impl Model {
    fn new(client_bytes: u64, reply_bytes: u64) -> Self {
        let bounds = Bounds {
            client_bytes,
            held_bytes: client_bytes * 2,
            pressing_bytes: client_bytes / 2,
            crowded_bytes: client_bytes / 8,
            pipe_bytes: client_bytes / 2,
            idle_clients: 1,
            reply_bytes_per_frame: 64,
        };
        let peer = |_| ModelPeer { connected: true, reply_bytes, ..ModelPeer::default() };
        Self {
            account: FlowControl::new(WORKERS, bounds),
            connections: Rc::new(RefCell::new((0..CLIENTS).map(peer).collect())),
            workers: vec![VecDeque::new(); WORKERS + 1],
            deferred: vec![VecDeque::new(); WORKERS],
            deferrals: vec![0; WORKERS],
            executed: Vec::new(),
            held_back: [false; CLIENTS as usize],
            reply_bytes,
        }
    }

    fn ask(&mut self, client: u8, frames: u32) {
        if self.account.is_full() || self.held_back[usize::from(client)] {
            return;
        }
        let said = {
            let peer = &mut self.connections.borrow_mut()[usize::from(client)];
            if !peer.connected {
                return;
            }
            peer.asked += 1;
            ModelMessage { client, connection: peer.connection, number: peer.asked - 1 }
        };
        let wire = || ModelWire { connections: Rc::clone(&self.connections), client, connection: said.connection };
        let index = match self.account.find(&id(client)) {
            Some(index) => {
                if self.account.may_change_connection(index) && !self.account.comes_from(index, said.connection) {
                    self.account.reconnected(index, wire());
                    self.go_on(index);
                }
                index
            }
            None => self.account.admit(RoutingId::of(&id(client)), wire()),
        };
        let message = vec![said; frames as usize];
        let by = executor(frames);
        match self.account.take(index, size(frames), by) {
            RequestVerdict::Forward(worker) => self.workers[worker].push_back(message),
            RequestVerdict::Hold => self.account.hold_request(index, size(frames), (by, NO_LOGIN), message.into_iter()),
            RequestVerdict::Drop => {}
        }
        self.tell_router();
    }

    fn tell_router(&mut self) {
        while let Some((index, held_back)) = self.account.next_told() {
            let client = (0..CLIENTS).find(|&client| id(client) == self.account.id(index)).unwrap();
            self.held_back[usize::from(client)] = held_back;
        }
    }

    fn go_on(&mut self, index: ClientIndex) {
        while let Some((worker, _, frames)) = self.account.next_request(index) {
            self.workers[worker].push_back(frames.collect());
        }
    }

    /// The worker answers its next request, unless one of the same client waits.
    fn work(&mut self, worker: usize) {
        assert!(self.workers[WORKERS].len() <= REPORTS_MAX);
        let Some(said) = self.workers[worker].front().map(|request| request[0]) else { return };
        let waits = self
            .deferred
            .get(worker)
            .is_some_and(|deferred| deferred.iter().any(|(_, request)| request[0].client == said.client));
        if waits {
            return self.defer(worker);
        }
        let request = self.workers[worker].pop_front().unwrap();
        self.answer(worker, &request);
    }

    fn defer(&mut self, worker: usize) {
        let Some(request) = self.workers[worker].pop_front() else { return };
        self.account.defer(worker);
        self.deferred[worker].push_back((self.deferrals[worker], request));
        self.deferrals[worker] += 1;
    }

    /// The worker answers the first deferred request of the client that comes last in its queue.
    fn answer_late(&mut self, worker: usize) {
        let Some((_, last)) = self.deferred[worker].back() else { return };
        let client = last[0].client;
        let first = self.deferred[worker].iter().position(|(_, request)| request[0].client == client).unwrap();
        let (number, request) = self.deferred[worker].remove(first).unwrap();
        self.account.is_late(worker, number);
        self.answer(worker, &request);
    }

    fn answer(&mut self, worker: usize, request: &[ModelMessage]) {
        let said = request[0];
        let by = executor(u32::try_from(request.len()).unwrap());
        assert_eq!(worker == WORKERS, by == By::Reporter);
        let others = self.workers.iter().flatten().filter(|other| other[0].client == said.client);
        assert!(by == By::Worker || others.count() == 0, "nothing of a client is on its way beside a report or a page");
        self.executed.push(said);
        let answered = self.account.answered(worker);
        assert_eq!(self.account.id(answered.index), id(said.client), "tickets name the right client");
        assert_eq!(answered.asked as usize, request.len());
        self.account.replied(answered, self.reply_bytes);
        let reply = MessageSize { frames: 1, bytes: self.reply_bytes, wire: self.reply_bytes };
        match answered.fate {
            ReplyVerdict::Send if !self.account.connection(answered.index).is_open() => {
                self.account.gone(answered.index)
            }
            ReplyVerdict::Send if self.account.has_room(answered.index) && self.deliver(said) => {
                self.account.sent(answered.index, reply);
            }
            ReplyVerdict::Send | ReplyVerdict::Hold => {
                self.account.hold_reply(answered.index, reply, std::iter::once(said));
            }
            ReplyVerdict::Drop | ReplyVerdict::DropCut => {}
        }
        self.go_on(answered.index);
        while let Some(due) = self.account.next_due() {
            self.go_on(due);
        }
        self.relieve();
    }

    fn relieve(&mut self) {
        if self.account.is_over() {
            self.account.relieve(NOW);
        } else {
            self.account.is_within();
        }
        self.tell_router();
    }

    /// Puts a reply into the client's pipe, if there is room.
    fn deliver(&mut self, said: ModelMessage) -> bool {
        let peer = &mut self.connections.borrow_mut()[usize::from(said.client)];
        assert_eq!(said.connection, peer.connection, "a reply is for the connection that asked");
        let room = peer.pipe.len() < PIPE;
        let unread = peer.pipe.len() as u64 * self.reply_bytes;
        assert!(unread <= self.account.bounds.pipe_bytes, "the pipe is bounded in bytes");
        if room {
            peer.pipe.push_back(said);
        }
        room
    }

    fn retry(&mut self) {
        for position in (0..self.account.stalled_count()).rev() {
            let index = self.account.stalled(position).unwrap();
            if !self.account.connection(index).is_open() {
                self.account.gone(index);
            }
            while self.has_room(index) && self.account.has_room(index) {
                let Some(reply) = self.account.next_reply(index).map(|mut frames| frames.next().unwrap()) else {
                    break;
                };
                assert!(self.deliver(reply));
            }
            self.go_on(index);
        }
        self.relieve();
    }

    fn has_room(&self, index: ClientIndex) -> bool {
        let client = (0..CLIENTS).find(|&client| id(client) == self.account.id(index)).unwrap();
        self.connections.borrow()[usize::from(client)].pipe.len() < PIPE
    }

    /// The client reads a reply, which must be the next one that it requested, with none left out.
    fn read(&mut self, client: u8) {
        let peer = &mut self.connections.borrow_mut()[usize::from(client)];
        if let Some(said) = peer.pipe.pop_front() {
            assert_eq!((said.connection, said.number), (peer.connection, peer.read), "answers shifted");
            peer.read += 1;
        }
    }

    fn leave(&mut self, client: u8) {
        let peer = &mut self.connections.borrow_mut()[usize::from(client)];
        peer.connected = false;
        peer.pipe.clear();
    }

    /// A client with an id of its own comes back with it. The other ones would be new clients.
    fn come_back(&mut self, client: u8) {
        let peer = &mut self.connections.borrow_mut()[usize::from(client)];
        if client >= 2 {
            let connection = peer.connection + 1;
            *peer = ModelPeer { connection, connected: true, reply_bytes: self.reply_bytes, ..ModelPeer::default() };
            self.held_back[usize::from(client)] = false;
        }
    }

    fn is_cut(&self, client: u8) -> bool {
        let index = self.account.find(&id(client));
        index.is_some_and(|index| self.account.client(index).standing != ClientStanding::Good)
    }

    /// All clients read and all workers work until nothing moves.
    fn finish(&mut self) {
        for _ in 0..100_000 {
            (0..=WORKERS).for_each(|worker| self.work(worker));
            (0..WORKERS).for_each(|worker| self.answer_late(worker));
            (0..CLIENTS).for_each(|client| self.read(client));
            self.retry();
            let still = self.workers.iter().all(VecDeque::is_empty) && self.deferred.iter().all(VecDeque::is_empty);
            if still && self.connections.borrow().iter().all(|peer| peer.pipe.is_empty()) {
                return;
            }
        }
        panic!("it goes on for ever");
    }

    fn check_books(&self) {
        let clients = || self.account.clients.iter().flatten();
        assert_eq!(self.account.held, clients().map(|client| client.bytes).sum::<u64>());
        assert_eq!(self.account.piped, clients().map(|client| client.in_flight.bytes()).sum::<u64>());
        assert_eq!(self.account.found, clients().map(|client| client.in_flight.found()).sum::<u64>());
        let idle = clients().filter(|client| client.standing == ClientStanding::Good && client.bytes == 0).count();
        assert_eq!(self.account.idle, idle);
        for client in clients() {
            assert_eq!(client.held_back, client.class == ClientClass::Pressing, "the router has been told");
            assert!(!client.held_back || client.bytes > 0, "an answer is on its way after which it may go on");
        }
        let stalled = clients().filter(|client| !client.backlog.is_empty()).count();
        assert_eq!(self.account.stalled_count(), stalled);
        for client in clients() {
            // The proxy takes one message of each connection before the router learns that the client is held back.
            let alone = size(8).bytes.max(self.reply_bytes) * u64::from(1 + client.connection.connection);
            assert!(client.bytes <= self.account.bounds.client_bytes + alone);
        }
        assert_eq!(self.account.totals().0, self.account.chosen.len() + self.account.own.len());
    }
}

#[derive(Clone, Debug)]
enum ModelEvent {
    Ask(u8, u32),
    Work(usize),
    Defer(usize),
    AnswerLate(usize),
    Read(u8),
    Retry,
    Leave(u8),
    ComeBack(u8),
    ForgetGone,
}

fn event() -> impl Strategy<Value = ModelEvent> {
    prop_oneof![
        8 => (0..CLIENTS, 1..8_u32).prop_map(|(client, frames)| ModelEvent::Ask(client, frames)),
        6 => (0..=WORKERS).prop_map(ModelEvent::Work),
        1 => (0..WORKERS).prop_map(ModelEvent::Defer),
        2 => (0..WORKERS).prop_map(ModelEvent::AnswerLate),
        4 => (0..CLIENTS).prop_map(ModelEvent::Read),
        2 => Just(ModelEvent::Retry),
        1 => (0..CLIENTS).prop_map(ModelEvent::Leave),
        1 => (0..CLIENTS).prop_map(ModelEvent::ComeBack),
        1 => Just(ModelEvent::ForgetGone),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_come_in_order_to_who_asked_and_nothing_is_forgotten(
        events in prop::collection::vec(event(), 0..400),
        client_bytes in prop_oneof![Just(1_000_u64), Just(4_000), Just(1_000_000)],
        reply_bytes in prop_oneof![Just(65_u64), Just(600)],
    ) {
        let mut model = Model::new(client_bytes, reply_bytes);
        for event in events {
            match event {
                ModelEvent::Ask(client, frames) => model.ask(client, frames),
                ModelEvent::Work(worker) => model.work(worker),
                ModelEvent::Defer(worker) => model.defer(worker),
                ModelEvent::AnswerLate(worker) => model.answer_late(worker),
                ModelEvent::Read(client) => model.read(client),
                ModelEvent::Retry => model.retry(),
                ModelEvent::Leave(client) => model.leave(client),
                ModelEvent::ComeBack(client) => model.come_back(client),
                ModelEvent::ForgetGone => model.account.forget_gone(),
            }
            model.check_books();
        }
        model.finish();
        model.check_books();
        prop_assert!(model.account.is_settled());
        prop_assert_eq!(model.held_back, [false; CLIENTS as usize]);
        for client in 0..CLIENTS {
            let peer = &model.connections.borrow()[usize::from(client)];
            if peer.connected && !model.is_cut(client) {
                prop_assert_eq!(peer.read, peer.asked, "client {} was not cut off", client);
            }
            let mine = |said: &&ModelMessage| said.client == client;
            let order: Vec<_> = model.executed.iter().filter(mine)
                .map(|said| (said.connection, said.number)).collect();
            prop_assert!(order.is_sorted(), "executed in the order of asking");
        }
    }
}

#[test]
fn a_client_that_never_reads_is_cut_off_and_the_next_request_of_others_goes_on() {
    let mut model = Model::new(4_000, 600);
    for _ in 0..200 {
        model.ask(0, 3);
        model.work(0);
        model.work(1);
    }
    assert!(model.is_cut(0));
    assert_eq!(model.account.cuts(), 1);
    model.ask(1, 3);
    model.finish();
    assert_eq!(model.connections.borrow()[1].read, 1);
    assert_eq!(model.connections.borrow()[0].read as usize, PIPE, "what was in its pipe, and no more");
}

#[test]
fn a_slow_reader_of_large_replies_is_not_cut_off() {
    let mut model = Model::new(12_000, 1_500);
    for _ in 0..30 {
        model.ask(0, 3);
    }
    model.finish();
    assert_eq!(model.account.cuts(), 0);
    assert_eq!(model.connections.borrow()[0].read, 30);
}

#[test]
fn a_client_that_reads_but_asks_too_fast_is_slowed_down_and_not_cut_off() {
    let mut model = Model::new(4_000, 65);
    for _ in 0..10_000 {
        model.ask(0, 3);
        model.ask(1, 1);
        assert!(!model.account.is_full(), "no others wait for it");
        if model.held_back[0] {
            model.work(0);
            model.work(1);
            model.read(0);
            model.read(1);
            model.retry();
        }
    }
    model.finish();
    assert!(model.account.holds() > 1);
    assert_eq!(model.account.cuts(), 0);
    assert!(model.connections.borrow()[0].read > 1_000);
    assert_eq!(model.connections.borrow()[1].read, model.connections.borrow()[1].asked);
}

#[test]
fn what_was_taken_of_a_client_that_is_gone_is_executed() {
    let mut model = Model::new(1_000_000, 65);
    for _ in 0..2_000 {
        model.ask(2, 3);
    }
    model.leave(2);
    model.finish();
    assert_eq!(model.executed.len(), 2_000);
    assert!(model.account.is_settled());
}

#[test]
fn an_own_id_that_was_cut_off_is_served_over_its_next_connection_alone() {
    let mut model = Model::new(4_000, 600);
    for _ in 0..200 {
        model.ask(3, 3);
        model.work(0);
        model.work(1);
    }
    assert!(model.is_cut(3));
    model.leave(3);
    model.come_back(3);
    model.ask(3, 3);
    assert!(!model.is_cut(3));
    model.finish();
    assert_eq!(model.connections.borrow()[3].read, 1);
}
