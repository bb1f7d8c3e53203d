//! The frontend, run by hand: clients that leave while their answers are on the way.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::*;
use crate::limits::{CLIENT_STALLS_MAX, HELD_BYTES_MAX};
use crate::protocols::native::tests::{introduction, message};
use crate::protocols::spiderq::handle::Access;
use crate::protocols::spiderq::wire::{AddMode, LendMode, Request};
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{self, LeaseOrder, Policy, ReplySink, Submission, Ticket};
use crate::zmtp::SocketType;

/// Passes that a test waits for a condition. Each waits for work, for at most [`PATIENCE`].
const PASSES: usize = 100_000;
const PATIENCE: Option<Duration> = Some(Duration::from_millis(20));

/// Hears nothing of its answers.
struct Silent;

impl ReplySink for Silent {
    fn deliver(&self, _: Delivery) {}

    fn go_on(&self) {}
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
        let (tasks, mut committer) = tasks::open(Box::new(FakeDisk::new()), Clock::start().reading()).unwrap();
        let queue = committer.queue(b"queue", LeaseOrder::Priority, Policy::Always).unwrap();
        let endpoint = "tcp://127.0.0.1:*".to_owned();
        let (version, access) = (Version::V1_3, Access::Full);
        let settings = SpiderqConfig { endpoint, version, terminate: false, access };
        let listener = SpiderqListener::bind(&settings, HELD_BYTES_MAX).unwrap();
        let (Spiderq { front, endpoint, .. }, _held) =
            listener.serve((&mut committer, tasks.clone(), queue.clone()), Box::new(|| {}));
        let address = endpoint.strip_prefix("tcp://").unwrap().to_owned();
        Self { front, committer, tasks, queue, address }
    }

    /// A client that sends these requests at once.
    fn client(&self, requests: &[Request<'_>]) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        let bytes = bytes_of(requests);
        // The system takes a part of many bytes, until the frontend reads.
        let mut writer = stream.try_clone().unwrap();
        std::thread::spawn(move || writer.write_all(&bytes).unwrap());
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
        pass_until(&mut self.front, || self.tasks.metrics().queues()[0].counts().ready == all);
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
    let deaf = rig.client(&polls(TASKS.into()));
    let Rig { mut front, tasks, .. } = rig;
    let counts = || tasks.metrics().queues()[0].counts();
    pass_until(&mut front, || counts().leased == u64::from(TASKS));
    // From here on this test moves the time.
    front.clock = Clock::fake(&MILLIS);
    pass(&mut front);
    assert_eq!((front.late.len(), front.connections.len()), (1, 2), "the system has not taken all replies");
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
    drop(deaf);
}
