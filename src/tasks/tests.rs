//! The committer on a store that tests can break: its answers, the store's content by then, and the content after a
//! crash.
//!
//! `model.rs` compares a queue with a model, `families.rs` compares queues of a family, `reservations.rs` compares job
//! queues for connections that stay, and `numbered.rs` compares a queue whose tasks are named by their numbers. `try_commit.rs` holds the commits of frontends, `server.rs` the
//! committer as a server runs it, `store.rs` the demands on the store beside commits, and `clock.rs` clocks that are
//! set. `engine.rs` holds the engine without a store, `batches.rs` the bounds of a batch, and this file the other named
//! cases.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

mod batches;
mod bounds;
mod browsing;
mod clock;
mod delays;
mod engine;
mod families;
mod model;
mod numbered;
mod own_terms;
mod power_failures;
mod reading;
mod reservations;
mod reserving;
mod server;
mod store;
mod sweeps;
mod try_commit;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::order::Position;
use super::record::{StateRecord, TaskRecord};
use super::{
    AddTerms, Committer, Delivery, LeaseOrder, Outcome, Payload, Policy, QueueEnd, QueueName, ReplySink, Request,
    RoomWait, Settlement, Submission, Tasks, Ticket, open,
};
use crate::clock::ClockReading;
use crate::limits::INBOX_BYTES_MAX;
use crate::lock::Mutex;
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{Error, Space, Store, Value};

const QUEUE: &[u8] = b"queue";

/// A reading of clocks that nobody sets.
fn at(now: u64) -> ClockReading {
    ClockReading::from_millis(now)
}

/// An answer that a test receives, with its value read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReadAnswer {
    Plain(Outcome),
    Leased {
        token: u64,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Found(Vec<u8>),
    /// The value cannot be read.
    Lost {
        token: Option<u64>,
    },
}

/// A sink that records its answers, and counts its calls to check for room.
#[derive(Clone, Default)]
struct RecordingSink(Arc<Mutex<Vec<(u64, ReadAnswer)>>>, Arc<AtomicUsize>);

impl ReplySink for RecordingSink {
    fn deliver(&self, delivery: Delivery) {
        let mut recorded = self.0.lock();
        for (number, outcome) in &delivery.answers {
            let is_lost = |payload: &Payload| matches!(delivery.read(payload), Err(error) if error.loses_one_value());
            let answer = match outcome {
                _ if outcome.payload().is_some_and(is_lost) => {
                    ReadAnswer::Lost { token: outcome.lease().map(|(token, _)| token) }
                }
                Outcome::Leased { token, key, payload, .. } => {
                    let value = delivery.read(payload).unwrap().to_vec();
                    ReadAnswer::Leased { token: *token, key: key.to_vec(), value }
                }
                Outcome::Found(Some(payload)) => ReadAnswer::Found(delivery.read(payload).unwrap().to_vec()),
                Outcome::Browsed(_) | Outcome::LeasedMany(_) => {
                    let read = outcome.clone().read(delivery.before.as_deref()).unwrap();
                    match read.unread.first() {
                        Some(lease) => ReadAnswer::Lost { token: Some(lease.token) },
                        None => ReadAnswer::Plain(read.outcome),
                    }
                }
                Outcome::Peeked { key, payload } => {
                    let payload = Payload::Fresh(delivery.read(payload).unwrap());
                    ReadAnswer::Plain(Outcome::Peeked { key: key.clone(), payload })
                }
                Outcome::Shown { job, payload } => {
                    let payload = Payload::Fresh(delivery.read(payload).unwrap());
                    ReadAnswer::Plain(Outcome::Shown { job: job.clone(), payload })
                }
                other => ReadAnswer::Plain(other.clone()),
            };
            recorded.push((*number, answer));
        }
    }

    fn notify_room(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

/// The committer with a store that a test can break.
struct RealQueues {
    store: FakeDisk,
    sink: RecordingSink,
    queue: QueueName,
    committer: Committer,
    tasks: Tasks,
    submitted: u64,
}

impl RealQueues {
    fn open(store: FakeDisk, order: LeaseOrder, policy: Policy, now: u64) -> Self {
        Self::open_at(store, order, policy, at(now))
    }

    fn open_at(store: FakeDisk, order: LeaseOrder, policy: Policy, now: ClockReading) -> Self {
        let (tasks, mut committer) = open(Box::new(store.clone()), now).unwrap();
        let sink = RecordingSink::default();
        committer.sink(Box::new(sink.clone()));
        let queue = committer.queue(QUEUE, order, policy).unwrap();
        Self { store, sink, queue, committer, tasks, submitted: 0 }
    }

    fn commit(&mut self, requests: Vec<Request>, now: u64) -> Result<Vec<(u64, ReadAnswer)>, Error> {
        self.commit_at(requests, at(now))
    }

    fn commit_at(&mut self, requests: Vec<Request>, now: ClockReading) -> Result<Vec<(u64, ReadAnswer)>, Error> {
        let mut submissions = Vec::new();
        for request in requests {
            let ticket = Ticket { sink: 0, number: self.submitted };
            self.submitted += 1;
            submissions.push(Submission { queue: self.queue.clone(), ticket, request });
        }
        self.tasks.submit(submissions);
        self.committer.batch(now)?;
        Ok(std::mem::take(&mut *self.sink.0.lock()))
    }

    fn commit_one(&mut self, request: Request, now: u64) -> ReadAnswer {
        self.commit(vec![request], now).unwrap().pop().unwrap().1
    }
}

fn token_of(answer: &ReadAnswer) -> Option<u64> {
    match answer {
        ReadAnswer::Leased { token, .. } => Some(*token),
        _ => None,
    }
}

// --------------------------------------------------------------------------------------------------------------- cases

fn add(key: &str) -> Request {
    Request::Add { key: key.as_bytes().into(), value: Value::from(key.as_bytes()), end: QueueEnd::Tail, terms: None }
}

fn poll(timeout: u64) -> Request {
    Request::Lease { timeout, wait: false }
}

fn leased(answer: ReadAnswer) -> (u64, Vec<u8>) {
    let ReadAnswer::Leased { token, key, .. } = answer else { panic!("{answer:?}") };
    (token, key)
}

#[test]
fn leases_that_run_out_together_come_back_earliest_first() {
    let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
    real.commit(["a", "b", "c", "d"].map(add).to_vec(), 0).unwrap();
    for timeout in [30, 10, 20] {
        real.commit(vec![poll(timeout)], 0).unwrap();
    }
    let order: Vec<_> = (0..4).map(|_| leased(real.commit_one(poll(1_000), 50)).1).collect();
    assert_eq!(order, [b"b", b"c", b"a", b"d"]);
}

/// A counter from 0 put k1 at 4 too, behind k3, which had entered before.
#[test]
fn the_serial_of_a_queue_starts_at_1() {
    let mut store = FakeDisk::new();
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0);
    real.commit(["k0", "k1", "k2", "k3", "k4", "k5"].map(add).to_vec(), 0).unwrap();
    let mut settle = |how| {
        let (token, key) = leased(real.commit_one(poll(1_000), 0));
        move |real: &mut RealQueues| {
            let request = Request::Settle { token, key: key.into(), value: None, how };
            assert_eq!(real.commit_one(request, 0), ReadAnswer::Plain(Outcome::Done));
        }
    };
    let (first, second, _third) = (settle(Settlement::Front), settle(Settlement::Reward), settle(Settlement::Drop));
    first(&mut real);
    second(&mut real);
    let mut ready = Vec::new();
    let record = &mut |_: &[u8], record: &[u8]| {
        let task = TaskRecord::decode(record).unwrap();
        let Position { priority, entered } = task.position;
        ready.extend((task.state == StateRecord::Ready).then(|| (priority, entered, task.key.to_vec())));
    };
    store.take(Space::Tasks, record);
    ready.sort();
    let expected = [(0, 8, "k0"), (4, 9, "k1"), (5, 5, "k3"), (6, 6, "k4"), (7, 7, "k5")];
    assert_eq!(ready, expected.map(|(priority, entered, key)| (priority, entered, key.as_bytes().to_vec())));
    let order: Vec<_> = (0..5).map(|_| leased(real.commit_one(poll(1_000), 0)).1).collect();
    assert_eq!(order, [b"k0", b"k1", b"k3", b"k4", b"k5"]);
}

#[test]
fn the_first_who_waits_is_served_first_and_the_lease_begins_then() {
    let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
    let wait = |timeout| Request::Lease { timeout, wait: true };
    assert_eq!(real.commit(vec![wait(10), wait(10), wait(10)], 0).unwrap(), []);
    let answers = real.commit(vec![add("a"), add("b")], 100).unwrap();
    let tickets: Vec<u64> =
        answers.iter().filter(|(_, answer)| token_of(answer).is_some()).map(|(at, _)| *at).collect();
    assert_eq!(tickets, [0, 1]);
    assert_eq!(real.commit(vec![], 109).unwrap(), [], "the leases are ten from when they were granted");
    let answers = real.commit(vec![], 110).unwrap();
    assert_eq!(answers.len(), 1, "one came back, and the third was waiting: {answers:?}");
}

#[test]
fn who_waits_no_more_is_answered_and_takes_nothing() {
    let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
    let wait = || Request::Lease { timeout: 10, wait: true };
    real.commit(vec![wait(), wait(), wait()], 0).unwrap();
    let answers = real.commit(vec![Request::Withdraw { tickets: vec![0, 2, 77] }], 0).unwrap();
    let plain = |number, outcome| (number, ReadAnswer::Plain(outcome));
    assert_eq!(answers, [plain(0, Outcome::Refused), plain(2, Outcome::Refused), plain(3, Outcome::Done)]);
    let answers = real.commit(vec![add("a")], 0).unwrap();
    assert_eq!(answers.iter().find(|(_, answer)| token_of(answer).is_some()).map(|(number, _)| *number), Some(1));
}

#[test]
fn what_is_not_synced_may_go_and_tokens_never_come_again() {
    let store = FakeDisk::new();
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Never, 0);
    real.commit(vec![add("a"), Request::Sync, add("b")], 0).unwrap();
    real.commit(vec![add("c")], 0).unwrap();
    let (first, _) = leased(real.commit_one(poll(1_000), 0));
    assert!(store.unsynced() > 0);
    store.crash(1);
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Never, 0);
    assert_eq!(
        real.commit_one(Request::Count, 0),
        ReadAnswer::Plain(Outcome::Counted(3)),
        "of the unsynced, one batch is left"
    );
    let (second, key) = leased(real.commit_one(poll(1_000), 0));
    assert_eq!(key, b"a", "the lease was lost");
    assert!(second > first);
}

#[test]
fn a_queue_that_may_lag_is_synced_in_time() {
    let store = FakeDisk::new();
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Within(50), 0);
    let (_, syncs) = store.counts();
    real.commit(vec![add("a")], 10).unwrap();
    real.commit(vec![add("b")], 59).unwrap();
    assert_eq!(store.counts().1, syncs);
    real.commit(vec![], 60).unwrap();
    assert_eq!((store.counts().1, store.unsynced()), (syncs + 1, 0));
}

#[test]
fn nothing_is_answered_once_the_store_has_failed() {
    for failing in 0..4 {
        let store = FakeDisk::new();
        let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0);
        store.fail_after(failing);
        let mut answered = Vec::new();
        for key in ["a", "b", "c", "d", "e"] {
            match real.commit(vec![add(key), Request::Count], 0) {
                Ok(answers) => answered.extend(answers),
                Err(error) => {
                    assert!(matches!(error, Error::Failed { .. }));
                    break;
                }
            }
        }
        assert_eq!(answered.len(), 2 * failing, "each batch has two answers or none");
        assert!(real.sink.0.lock().is_empty());
        store.crash(0);
        let mut real = RealQueues::open(store, LeaseOrder::Priority, Policy::Always, 0);
        assert_eq!(real.commit_one(Request::Count, 0), ReadAnswer::Plain(Outcome::Counted(failing as u64)));
    }
}

#[test]
fn a_frontend_that_found_no_room_is_notified_after_the_next_batch() {
    let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
    let tasks = real.tasks.clone();
    let (mut wait, mut number) = (RoomWait::default(), 0);
    let value = Value::from(&vec![0; 1 << 20][..]);
    while tasks.has_room(0, &mut wait) {
        let request = Request::Push { value: value.clone(), terms: None };
        tasks.submit(vec![Submission { queue: real.queue.clone(), ticket: Ticket { sink: 0, number }, request }]);
        number += 1;
    }
    assert_eq!(number, INBOX_BYTES_MAX >> 20, "as much as may wait");
    let notified = || real.sink.1.load(Ordering::Relaxed);
    assert_eq!(notified(), 0);
    real.committer.batch(at(0)).unwrap();
    assert_eq!(notified(), 1);
    assert!(tasks.has_room(0, &mut wait));
    real.committer.batch(at(0)).unwrap();
    assert_eq!(notified(), 1, "it does not wait any more");
    let metrics = tasks.metrics();
    assert_eq!((metrics.waits(), metrics.lost_wakeups()), (1, 0));
}

#[test]
fn a_refused_request_stores_nothing() {
    let store = FakeDisk::new();
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0);
    real.commit(vec![add("a")], 0).unwrap();
    let (commits, _) = store.counts();
    let key = || Box::from(&b"a"[..]);
    let refused = vec![
        add("a"),
        Request::Settle { token: 1, key: key(), value: None, how: Settlement::Drop },
        Request::Extend { token: Some(1), key: key(), timeout: 5 },
        Request::Undo { token: 1, key: key() },
        Request::Remove { key: Box::from(&b"b"[..]) },
        Request::Update { key: Box::from(&b"b"[..]), value: Value::from(&b""[..]) },
    ];
    real.commit(refused, 0).unwrap();
    assert_eq!(store.counts().0, commits);
}

#[test]
fn numbers_of_tasks_have_no_gaps_also_after_a_crash() {
    let store = FakeDisk::new();
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Fifo, Policy::Always, 0);
    let added = |answer| matches!(answer, ReadAnswer::Plain(Outcome::Added(_))).then_some(answer);
    assert_eq!(added(real.commit_one(add("a"), 0)), Some(ReadAnswer::Plain(Outcome::Added(1))));
    real.commit(vec![Request::Remove { key: Box::from(&b"a"[..]) }], 0).unwrap();
    store.crash(0);
    let mut real = RealQueues::open(store, LeaseOrder::Fifo, Policy::Always, 0);
    assert_eq!(real.commit_one(add("b"), 0), ReadAnswer::Plain(Outcome::Added(2)));
}

/// How far a reward goes is measured by the ready tasks of its own class and group, and by nothing if there is none.
#[test]
fn a_reward_is_measured_by_the_class_and_group_of_its_task() {
    let mut store = FakeDisk::new();
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0);
    let add_to = |key: &str, class, group: &[u8]| {
        let terms = Some(Box::new(AddTerms { class, group: group.into(), ..AddTerms::default() }));
        Request::Add { key: key.as_bytes().into(), value: Value::from(&b""[..]), end: QueueEnd::Tail, terms }
    };
    let mut adds: Vec<Request> = (0..40).map(|number| add_to(&number.to_string(), 9, b"g")).collect();
    adds.push(add_to("alone", 5, b"g"));
    real.commit(adds, 0).unwrap();
    let (token, key) = leased(real.commit_one(poll(1_000), 0));
    assert_eq!(key, b"alone");
    let reward = Request::Settle { token, key: key.into(), value: None, how: Settlement::Reward };
    assert_eq!(real.commit_one(reward, 0), ReadAnswer::Plain(Outcome::Done));
    let mut priority = None;
    store.take(Space::Tasks, &mut |_, record| {
        let task = TaskRecord::decode(record).unwrap();
        priority = priority.or((task.key == b"alone").then_some(task.position.priority));
    });
    // The serial was 42, and nothing is in front: 43 − (43 − 21).
    assert_eq!(priority, Some(21));
}
