//! The engine and its queues without a store: bounds, records that cannot be, and the memory that a request counts for.

use super::poll;
use crate::limits::EXPIRE_BUDGET;
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::engine::{Engine, SyncWithin};
use crate::tasks::order::Position;
use crate::tasks::queue::TaskQueue;
use crate::tasks::queues::{Queues, STORED_MAX};
use crate::tasks::record::{QueueCounters, QueueRecord, StateRecord, TaskRecord, queue_key, task_key};
use crate::tasks::settings::QueueSettings;
use crate::tasks::terms::TaskTerms;
use crate::tasks::{
    AddTerms, LeaseOrder, Outcome, Policy, QueueEnd, QueueName, Request, Submission, Ticket, USUAL_CLASS,
};
use crate::wheel::{Progress, Wheel};

fn counters(serial: u64, first: u64, last: u64) -> QueueCounters {
    QueueCounters { serial, first, last }
}

fn engine(tokens: u64) -> (Engine, QueueName) {
    let mut engine = Engine::new(0, 1, std::sync::Arc::default());
    engine.reserved(1 + tokens);
    let queue = engine.open(b"queue", LeaseOrder::Priority, Policy::Always).unwrap();
    (engine, queue)
}

fn apply(engine: &mut Engine, queue: &QueueName, request: Request) -> Vec<Outcome> {
    engine.apply(
        Submission { queue: queue.clone(), ticket: Ticket { sink: 0, number: 0 }, request },
        &mut FakeDisk::new(),
    );
    engine.drain().answers.into_iter().map(|(_, outcome)| outcome).collect()
}

#[test]
fn leases_that_run_out_together_do_so_in_bounded_steps() {
    let (mut engine, queue) = engine(1 << 20);
    for _ in 0..=EXPIRE_BUDGET {
        apply(&mut engine, &queue, Request::Push { value: Value::from(&b"v"[..]), terms: None });
        apply(&mut engine, &queue, poll(50));
    }
    let ready = |engine: &mut Engine| apply(engine, &queue, Request::Count)[0].counted();
    assert_eq!((engine.expire(49, &FakeDisk::new()), ready(&mut engine)), (Progress::Done, 0));
    assert_eq!((engine.expire(50, &FakeDisk::new()), ready(&mut engine)), (Progress::More, EXPIRE_BUDGET as u64));
    assert_eq!((engine.expire(50, &FakeDisk::new()), ready(&mut engine)), (Progress::Done, EXPIRE_BUDGET as u64 + 1));
}

#[test]
fn a_reservation_is_as_many_tokens_more() {
    let (mut engine, queue) = engine(5);
    assert_eq!(engine.tokens_left(), 5);
    apply(&mut engine, &queue, Request::Push { value: Value::from(&b"v"[..]), terms: None });
    assert_eq!(engine.tokens_left(), 4);
    let (_, end) = engine.reservation(10);
    engine.reserved(end);
    assert_eq!((end, engine.tokens_left()), (16, 14));
}

#[test]
fn queues_are_synced_as_the_strictest_changed_one_asks() {
    let (mut engine, always) = engine(5);
    let never = engine.open(b"never", LeaseOrder::Fifo, Policy::Never).unwrap();
    engine.drain();
    let mut sync = |queue: &QueueName, request| {
        let ticket = Ticket { sink: 0, number: 0 };
        engine.apply(Submission { queue: queue.clone(), ticket, request }, &mut FakeDisk::new());
        engine.drain().sync
    };
    let push = || Request::Push { value: Value::from(&b"v"[..]), terms: None };
    assert_eq!(sync(&always, push()), SyncWithin::Now);
    assert_eq!(sync(&always, Request::Count), SyncWithin::Whenever, "nothing has changed");
    assert_eq!(sync(&never, push()), SyncWithin::Whenever);
    assert_eq!(sync(&never, Request::Sync), SyncWithin::Now);
}

fn record(position: Position, key: &[u8]) -> TaskRecord<'_> {
    let (class, lent, terms) = (USUAL_CLASS, 0, TaskTerms::default());
    TaskRecord {
        position,
        boost: 0,
        since: 0,
        state: StateRecord::Ready,
        class,
        lent,
        terms,
        group: &[],
        reason: &[],
        unique: &[],
        history: None,
        key,
    }
}

#[test]
fn a_record_of_a_task_that_cannot_be_is_refused() {
    let (mut queue, mut wheel) =
        (TaskQueue::new(0, LeaseOrder::Priority, counters(10, 0, 10), QueueSettings::default()), Wheel::new(0));
    let mut restore = |number, key: &[u8], priority, entered| {
        let position = Position { priority, entered };
        queue.restore(number, &record(position, key), &mut wheel).is_some()
    };
    assert!(restore(10, b"last", 10, 10));
    assert!(!restore(11, b"number", 1, 1), "it is not given yet");
    assert!(!restore(1, b"entered", 1, 11));
    assert!(!restore(1, b"priority", 11, 1));
    assert!(!restore(1, b"last", 1, 1), "the key exists");
    assert!(!restore(0, b"other", 2, 5), "it is of an earlier queue");
    assert!(restore(2, b"other", 2, 5));
    assert!(!restore(3, b"same entry", 3, 5), "two came at once");
    assert!(!restore(4, b"same position", 2, 5));
}

#[test]
fn a_repair_takes_no_task_of_an_earlier_queue() {
    let mut engine = Engine::new(0, 1, std::sync::Arc::default());
    let queue = QueueRecord {
        order: LeaseOrder::Fifo,
        counters: counters(1, 5, 5),
        settings: QueueSettings::default(),
        name: b"jobs/a",
    };
    engine.restore_queue(&queue_key(0), &queue.encode()).unwrap();
    let position = Position { priority: 1, entered: 9 };
    let task = record(position, b"k").encode();
    assert!(engine.restore_task(&task_key(0, 5), &task, true).is_err());
    assert!(engine.restore_task(&task_key(0, 6), &task, false).is_err(), "the record of the queue is older");
    assert!(engine.restore_task(&task_key(0, 6), &task, true).is_ok());
}

#[test]
fn a_record_of_a_queue_that_cannot_be_is_refused() {
    let mut queues = Queues::new(std::sync::Arc::default());
    let settings = QueueSettings::default();
    let mut restore = |number, name: &[u8]| {
        queues.restore(number, &QueueRecord { order: LeaseOrder::Fifo, counters: counters(0, 0, 0), settings, name })
    };
    assert!(restore(1, b"a"));
    assert!(!restore(0, b"before"), "they come in their order");
    assert!(!restore(2, b"a"), "the name exists");
    assert!(!restore(u32::try_from(STORED_MAX).unwrap(), b"many"), "there are too many");
    assert!(restore(3, b"b"));
    assert_eq!(queues.indices().len(), 2);
}

#[test]
fn a_request_counts_with_its_key_its_value_and_its_tickets() {
    let none = Request::Nothing.bytes();
    let (key, value) = (Box::from(&b"key"[..]), Value::from(&b"value"[..]));
    assert_eq!(none, size_of::<Request>() as u64);
    assert_eq!(Request::Add { key, value, end: QueueEnd::Tail, terms: None }.bytes(), none + 8);
    assert_eq!(Request::Withdraw { tickets: vec![7; 10] }.bytes(), none + 80);
}

/// A worker beside a place that the device does not return.
#[test]
fn a_task_that_cannot_be_read_gives_way_to_the_next_one_for_a_pause() {
    let (mut engine, queue) = engine(100);
    let add =
        |key: &[u8]| Request::Add { key: key.into(), value: Value::from(&b"v"[..]), end: QueueEnd::Tail, terms: None };
    let leased = |outcomes: Vec<Outcome>| {
        outcomes.into_iter().find_map(|outcome| outcome.lease().map(|(token, key)| (token, key.to_vec())))
    };
    apply(&mut engine, &queue, add(b"a"));
    apply(&mut engine, &queue, add(b"b"));
    let next = |token, key: &[u8], wait| Request::LeaseNext { token, key: key.into(), timeout: 1_000_000, wait };
    let (token, key) = leased(apply(&mut engine, &queue, poll(1_000_000))).unwrap();
    assert_eq!(key, b"a");
    let (_, key) = leased(apply(&mut engine, &queue, next(token, b"a", false))).unwrap();
    assert_eq!(key, b"b", "the same request has the next one");
    let mut now = 0;
    // Nothing else is ready: a poll finds no task, and the pause of the first one doubles.
    for pause in [1, 2, 4, 8, 16, 32, 60, 60].map(|seconds| seconds * 1_000) {
        let count = |engine: &mut Engine| apply(engine, &queue, Request::Count)[0].counted();
        assert_eq!(apply(&mut engine, &queue, Request::CountAll)[0].counted(), 2);
        assert_eq!(
            (engine.expire(now + pause - 1, &FakeDisk::new()), count(&mut engine)),
            (Progress::Done, 0),
            "{pause}"
        );
        assert_eq!((engine.expire(now + pause, &FakeDisk::new()), count(&mut engine)), (Progress::Done, 1), "{pause}");
        now += pause;
        let (token, key) = leased(apply(&mut engine, &queue, poll(1_000_000))).unwrap();
        assert_eq!(key, b"a", "in its old position");
        assert_eq!(apply(&mut engine, &queue, next(token, b"a", false)), [Outcome::Refused]);
    }
}

#[test]
fn a_request_whose_task_cannot_be_read_waits_before_those_that_came_later() {
    let (mut engine, queue) = engine(100);
    let push = || Request::Push { value: Value::from(&b"v"[..]), terms: None };
    apply(&mut engine, &queue, push());
    let lease = |timeout, wait| Request::Lease { timeout, wait };
    let (token, key) = apply(&mut engine, &queue, lease(50, true))
        .iter()
        .find_map(|outcome| outcome.lease().map(|(token, key)| (token, Box::from(key))))
        .unwrap();
    let mut submit = |number, request| {
        let ticket = Ticket { sink: 0, number };
        engine.apply(Submission { queue: queue.clone(), ticket, request }, &mut FakeDisk::new());
        let answers = engine.drain().answers;
        answers.iter().filter(|(_, outcome)| outcome.lease().is_some()).map(|(to, _)| to.number).collect::<Vec<_>>()
    };
    assert_eq!(submit(7, lease(50, true)), [0; 0], "a later one waits");
    assert_eq!(submit(1, Request::LeaseNext { token, key, timeout: 50, wait: true }), [0; 0]);
    assert_eq!(submit(8, push()), [1]);
    assert_eq!(submit(9, push()), [7]);
}

#[test]
fn a_task_that_cannot_be_read_is_removed_updated_and_lost_as_any_other() {
    let (mut queue, mut wheel) =
        (TaskQueue::new(0, LeaseOrder::Fifo, counters(1, 0, 0), QueueSettings::default()), Wheel::new(0));
    let value = || Value::from(&b"v"[..]);
    let mut indices = Vec::new();
    for key in [b"a", b"b", b"c"] {
        queue.add(key, value(), QueueEnd::Tail, &AddTerms::default()).unwrap();
        let task_index = queue.next().unwrap();
        indices.push(task_index);
        queue.lease(task_index, 1, 1_000_000, &mut wheel);
        assert!(queue.set_unread(task_index, 1, &mut wheel), "{key:?}");
        assert!(!queue.set_unread(task_index, 1, &mut wheel), "it is not leased");
    }
    assert_eq!((queue.counts().unread, queue.counts().ready), (3, 0));
    queue.remove(indices[0], &mut wheel);
    queue.set_value(indices[1], value());
    queue.drain(|_| ());
    let mut numbers = std::collections::HashMap::from([(3, None)]);
    queue.find_numbers(&mut numbers);
    assert_eq!(queue.lose_value(numbers[&3].unwrap(), &mut wheel).as_deref(), Some(&b"c"[..]));
    let _done = wheel.advance(1_000, 10, |_, _, timer| queue.expire(timer.task_index));
    let counts = queue.counts();
    assert_eq!((counts.unread, counts.ready, counts.dead, wheel.is_empty()), (0, 1, 1, true));
}
