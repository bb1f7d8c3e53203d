//! The frontend, run by hand: clients that leave while their answers are on the way.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

mod turns;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::*;
use crate::limits::{CLIENT_STALLS_MAX, HELD_BYTES_MAX};
use crate::net::zeromq::tests::{introduction, message};
use crate::services::tasks::calls::NamedQueues;
use crate::services::tasks::handle::Access;
use crate::services::tasks::wire::{AddMode, LendMode, Request};
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::task_key;
use crate::tasks::{self, LeaseOrder, Policy, QueueName, ReplySink, Submission, Ticket};
use crate::zmtp::SocketType;

/// Passes that a test waits for a condition. Each waits for work, for at most [`PATIENCE`].
const PASSES: usize = 100_000;
const PATIENCE: Option<Duration> = Some(Duration::from_millis(20));

/// Receives no answers.
struct Silent;

impl ReplySink for Silent {
    fn deliver(&self, _: Delivery) {}

    fn notify_room(&self) {}
}

struct Rig {
    front: SpiderqFrontend,
    committer: Committer,
    tasks: Tasks,
    queue: QueueName,
    address: String,
}

impl Rig {
    fn start() -> Self {
        Self::start_on(&FakeDisk::new())
    }

    fn start_on(disk: &FakeDisk) -> Self {
        let (tasks, mut committer) = tasks::open(Box::new(disk.clone()), Clock::start().reading()).unwrap();
        let queue = committer.queue(b"queue", LeaseOrder::Priority, Policy::Always).unwrap();
        let endpoint = "tcp://127.0.0.1:*".to_owned();
        let (version, access) = (Version::V1_3, Access::Full);
        let settings = SpiderqConfig { endpoint, version, terminate: false, access };
        let parts = ServiceParts { held_bytes_max: HELD_BYTES_MAX, ..ServiceParts::default() };
        let listener = SpiderqListener::bind(&settings, parts).unwrap();
        let Service { mut front, endpoint, .. } =
            listener.serve(&mut committer, tasks.clone(), NamedQueues::new(queue.clone(), None), Box::new(|| {}));
        let address = endpoint.strip_prefix("tcp://").unwrap().to_owned();
        // Commits take no time: with a disk that seems slow, the frontend would leave all to the committer.
        let millis: &AtomicU64 = Box::leak(Box::new(AtomicU64::new(1_000)));
        front.clock = Clock::fake(millis);
        Self { front, committer, tasks, queue, address }
    }

    /// A client that sends these requests at once.
    fn client(&self, requests: &[Request<'_>]) -> TcpStream {
        self.client_sending(bytes_of(requests))
    }

    /// A client that sends these bytes at once.
    fn client_sending(&self, bytes: Vec<u8>) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        // The system takes a part of many bytes, until the frontend reads.
        let mut writer = stream.try_clone().unwrap();
        std::thread::spawn(move || {
            // A test may end the connection before all are sent.
            let _ended = writer.write_all(&bytes);
        });
        stream
    }

    /// Ready and leased tasks.
    fn counts(&self) -> (u64, u64) {
        let counts = self.tasks.metrics().queues()[0].counts();
        (counts.ready, counts.leased)
    }

    fn adds(&mut self, count: u8, value: &[u8]) -> TcpStream {
        let keys: Vec<[u8; 1]> = (0..count).map(|number| [number]).collect();
        let adds: Vec<_> = keys.iter().map(|key| Request::Add { key, value, mode: AddMode::Tail }).collect();
        let client = self.client(&adds);
        let all = u64::from(count);
        let Self { front, committer, tasks, .. } = self;
        pass_until(front, || {
            // A burst of many bytes goes to the committer.
            committer.batch(Clock::start().reading()).unwrap();
            tasks.metrics().queues()[0].counts().ready == all
        });
        client
    }
}

/// A handshake, and these requests.
fn bytes_of(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = introduction(SocketType::Dealer);
    for request in requests {
        let mut encoded = Vec::new();
        request.encode(&mut encoded);
        bytes.extend(message(&[&encoded]));
    }
    bytes
}

/// One pass of the loop.
fn pass(front: &mut SpiderqFrontend) {
    let clock = front.clock;
    front.connections.wait(PATIENCE, || clock.now());
    front.answer().unwrap();
    front.sweep().unwrap();
    if front.responder.has_room() {
        front.take(None);
    }
    front.try_commit().unwrap();
}

fn pass_until(front: &mut SpiderqFrontend, mut done: impl FnMut() -> bool) {
    let passed = (0..PASSES).any(|_| {
        pass(front);
        done()
    });
    assert!(passed, "it does not come to pass");
}

fn polls(count: usize) -> Vec<Request<'static>> {
    vec![Request::Lend { timeout_ms: 600_000, mode: LendMode::Poll }; count]
}

/// 800 Lookups of long values by each of 50 such clients kept all others waiting, and the end of the server.
#[test]
fn of_a_client_that_is_gone_only_what_changes_something_is_carried_out() {
    let mut rig = Rig::start();
    let add = |key| Request::Add { key, value: &[7; 10_000], mode: AddMode::Tail };
    let reads = [Request::Lookup { key: b"a" }, Request::Count, Request::Ping, Request::Stats].into_iter();
    let requests: Vec<_> = [add(b"a")].into_iter().chain(reads).chain(polls(1)).chain([add(b"b")]).collect();
    let bytes = bytes_of(&requests);
    let mut leaver = TcpStream::connect(&rig.address).unwrap();
    leaver.write_all(&bytes).unwrap();
    set_socket_linger(&leaver, Some(Duration::ZERO)).unwrap();
    drop(leaver);
    let counts = || rig.tasks.metrics().queues()[0].counts();
    pass_until(&mut rig.front, || counts().ready == 2);
    let carried_out = rig.front.metrics.verbs.iter().filter(|verb| verb.requests.get() > 0).map(|verb| verb.name);
    assert_eq!(carried_out.collect::<Vec<_>>(), ["ADD"]);
    assert_eq!(counts().leased, 0);
}

/// The committer leases tasks for a client that is gone when the answers come.
#[test]
fn leases_whose_client_has_left_before_the_answer_go_back() {
    const TASKS: u8 = 10;
    let mut rig = Rig::start();
    let _adder = rig.adds(TASKS, b"value");
    // Behind this request the frontend commits nothing by itself.
    let other = rig.committer.sink(Box::new(Silent));
    let ticket = Ticket { sink: other, number: 0 };
    rig.tasks.submit(vec![Submission { queue: rig.queue.clone(), ticket, request: tasks::Request::Nothing }]);
    let leaver = rig.client(&polls(TASKS.into()));
    for _ in 0..PASSES {
        pass(&mut rig.front);
        if rig.front.responder.unanswered() == usize::from(TASKS) {
            break;
        }
    }
    assert_eq!((rig.front.responder.unanswered(), rig.counts()), (TASKS.into(), (TASKS.into(), 0)));
    drop(leaver);
    for _ in 0..PASSES {
        pass(&mut rig.front);
        if rig.front.connections.len() == 1 {
            break;
        }
    }
    assert_eq!(rig.front.connections.len(), 1, "the frontend knows that it has left");
    let Rig { mut front, committer, tasks, .. } = rig;
    let committer = std::thread::spawn(move || committer.run(|| Clock::start().reading()));
    for _ in 0..PASSES {
        pass(&mut front);
        if front.responder.is_empty() {
            break;
        }
    }
    let counts = tasks.metrics().queues()[0].counts();
    assert_eq!((counts.ready, counts.leased), (TASKS.into(), 0), "each goes back");
    drop((front, tasks));
    committer.join().unwrap().unwrap();
}

/// The store keeps the values that a pending reply needs, for ever if the client never reads.
#[test]
fn a_client_that_does_not_read_its_answers_is_closed_and_its_leases_go_back() {
    const TASKS: u8 = 30;
    static MILLIS: AtomicU64 = AtomicU64::new(1_000_000);
    let mut rig = Rig::start();
    let _adder = rig.adds(TASKS, &vec![7; 1_000_000]);
    let unread = rig.client(&polls(TASKS.into()));
    let Rig { mut front, tasks, .. } = rig;
    let counts = || tasks.metrics().queues()[0].counts();
    pass_until(&mut front, || counts().leased == u64::from(TASKS));
    // From here on this test moves the time.
    front.clock = Clock::fake(&MILLIS);
    pass(&mut front);
    assert_eq!((front.replies.late.len(), front.connections.len()), (1, 2), "the system has not taken all replies");
    let step = |front: &mut SpiderqFrontend, time: Duration| {
        MILLIS.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
        (0..3).for_each(|_| pass(front));
        front.connections.len()
    };
    assert_eq!(step(&mut front, CLIENT_STALLS_MAX - SWEEP), 2);
    // The system may have taken some more meanwhile.
    assert!((0..20).any(|_| step(&mut front, CLIENT_STALLS_MAX) == 1), "its time is up");
    let counts = counts();
    assert!(counts.ready >= u64::from(TASKS) / 2, "also those in pending replies: {counts:?}");
    assert_eq!(counts.ready + counts.leased, u64::from(TASKS));
    drop(unread);
}

/// The next replies to a client, without its handshake.
struct Replies {
    stream: TcpStream,
    bytes: Vec<u8>,
    /// Where the next frame begins.
    next: usize,
    found: Vec<Vec<u8>>,
}

impl Replies {
    /// Passes until the client has this many replies. Returns their first bytes, in their order.
    fn take(&mut self, front: &mut SpiderqFrontend, count: usize) -> Vec<Vec<u8>> {
        pass_until(front, || {
            self.receive();
            self.found.len() >= count
        });
        self.found.drain(..count).collect()
    }

    /// Receives what has come.
    fn receive(&mut self) {
        // The thread that sends may not become one that does not block.
        self.stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut piece = vec![0; 1 << 20];
        while let Ok(read @ 1..) = self.stream.read(&mut piece) {
            self.bytes.extend_from_slice(&piece[..read]);
        }
        while let Some(end) = frame_end(&self.bytes, self.next) {
            self.found.push(self.bytes[self.next..end].to_vec());
            self.next = end;
        }
    }
}

/// The end of the frame that begins here, if it has come whole.
fn frame_end(bytes: &[u8], at: usize) -> Option<usize> {
    let head = bytes.get(at..)?;
    let (start, length) = match head.first()? {
        flags if flags & 2 == 0 => (2, usize::from(*head.get(1)?)),
        _ => (9, usize::try_from(u64::from_be_bytes(head.get(1..9)?.try_into().unwrap())).unwrap()),
    };
    (head.len() >= start + length).then_some(at + start + length)
}

/// The client's view of these requests, behind the server's greeting and its READY.
fn asks(rig: &mut Rig, requests: &[Request<'_>]) -> Replies {
    let stream = rig.client(requests);
    let mut replies = Replies { stream, bytes: Vec::new(), next: 64, found: Vec::new() };
    replies.take(&mut rig.front, 1);
    replies
}

/// The tags of replies: each is one frame.
fn tags(replies: &[Vec<u8>]) -> Vec<u8> {
    replies.iter().map(|reply| if reply[0] & 2 == 0 { reply[2] } else { reply[9] }).collect()
}

const PONG: u8 = 0x11;
const LENT: u8 = 0x06;
const QUEUE_EMPTY: u8 = 0x10;
const VALUE_FOUND: u8 = 0x0D;
const VALUE_NOT_FOUND: u8 = 0x0E;
const ERROR: u8 = 0x0B;

/// All values were read in the frontend's only thread: with reads of 30 ms, a Ping took two seconds.
#[test]
fn a_value_that_takes_long_to_read_holds_up_its_own_client_alone_and_in_order() {
    let disk = FakeDisk::new();
    let mut rig = Rig::start_on(&disk);
    let _adder = rig.adds(3, b"value");
    disk.hold_reads(true);
    let lookup = |key| Request::Lookup { key };
    let mut slow = asks(&mut rig, &[lookup(&[0]), Request::Ping, lookup(&[1]), Request::Ping]);
    let mut other = asks(&mut rig, &[Request::Ping]);
    assert_eq!(tags(&other.take(&mut rig.front, 1)), [PONG]);
    (0..5).for_each(|_| pass(&mut rig.front));
    disk.hold_reads(false);
    assert_eq!(tags(&slow.take(&mut rig.front, 4)), [VALUE_FOUND, PONG, VALUE_FOUND, PONG]);
    assert_eq!(rig.front.replies.budget().held(), 0);
}

/// Three reads that failed within a millisecond took a task for ever.
#[test]
fn a_task_that_cannot_be_read_gives_way_to_the_next_one_and_is_there_afterwards() {
    let disk = FakeDisk::new();
    let mut rig = Rig::start_on(&disk);
    let _adder = rig.adds(3, b"value");
    disk.unread(task_key(0, 1), true);
    let poll = Request::Lend { timeout_ms: 600_000, mode: LendMode::Poll };
    let key_of = |reply: &[u8]| reply[2 + 1 + 8 + 4];
    for expected in [1, 2] {
        let reply = asks(&mut rig, &[poll]).take(&mut rig.front, 1).remove(0);
        assert_eq!((reply[2], key_of(&reply)), (LENT, expected));
    }
    let mut client = asks(&mut rig, &[poll, Request::Lookup { key: &[0] }, Request::Ping]);
    assert_eq!(tags(&client.take(&mut rig.front, 3)), [QUEUE_EMPTY, ERROR, PONG]);
    let counts = || rig.tasks.metrics().queues()[0].counts();
    assert_eq!((counts().unread, counts().ready, counts().leased), (1, 0, 2));
    disk.unread(task_key(0, 1), false);
    let front = &mut rig.front;
    pass_until(front, || {
        rig.committer.batch(Clock::start().reading()).unwrap();
        rig.tasks.metrics().queues()[0].counts().ready == 1
    });
    let mut client = asks(&mut rig, &[poll]);
    let replies = client.take(&mut rig.front, 1);
    assert_eq!((tags(&replies), key_of(&replies[0])), (vec![LENT], 0));
}

#[test]
fn a_blocked_lend_whose_task_cannot_be_read_waits_for_another_and_holds_up_nothing() {
    let disk = FakeDisk::new();
    let mut rig = Rig::start_on(&disk);
    let _adder = rig.adds(1, b"value");
    disk.unread(task_key(0, 1), true);
    let block = Request::Lend { timeout_ms: 600_000, mode: LendMode::Block };
    let mut client = asks(&mut rig, &[block, Request::Ping]);
    assert_eq!(tags(&client.take(&mut rig.front, 1)), [PONG]);
    pass_until(&mut rig.front, || rig.tasks.metrics().queues()[0].counts().unread == 1);
    let mut later = asks(&mut rig, &[block, Request::Ping]);
    assert_eq!(tags(&later.take(&mut rig.front, 1)), [PONG]);
    let _adder = rig.client(&[Request::Add { key: b"next", value: b"v", mode: AddMode::Tail }]);
    assert_eq!(tags(&client.take(&mut rig.front, 1)), [LENT], "it came first");
    assert_eq!(rig.front.metrics.verbs.iter().map(|verb| verb.requests.get()).sum::<u64>(), 5, "each counts once");
    drop(client);
    drop(later);
}

#[test]
fn a_lookup_of_a_lost_value_is_answered_by_a_reader() {
    let disk = FakeDisk::new();
    let mut rig = Rig::start_on(&disk);
    let _adder = rig.adds(2, b"value");
    disk.rot(task_key(0, 1));
    let lookup = |key| Request::Lookup { key };
    let mut client = asks(&mut rig, &[lookup(&[0]), lookup(&[1])]);
    assert_eq!(tags(&client.take(&mut rig.front, 2)), [VALUE_NOT_FOUND, VALUE_FOUND]);
}
