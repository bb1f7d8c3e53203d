//! The bounds of a batch, whatever makes it large, and the requests that come in between.

use super::{ReadAnswer, RealQueues, add, at, leased, poll};
use crate::limits::{EXPIRE_BUDGET, SUBMIT_MAX, TASK_KEY_BYTES_MAX, TASKS_BATCH_BYTES};
use crate::store::Value;
use crate::store::tests::fake_disk::{BatchSize, FakeDisk};
use crate::tasks::TaskCounts;
use crate::tasks::{
    Browse, BrowsedState, LeaseOrder, Outcome, Policy, QueueEnd, Request, Settlement, Submission, Ticket,
};

/// Records of a batch beside those of tasks: of the queue, the tokens, the format, and the clock.
const OTHER_RECORDS: usize = 4;

fn start() -> RealQueues {
    RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0)
}

fn counts(real: &RealQueues) -> TaskCounts {
    real.tasks.metrics().queues()[0].counts()
}

/// Adds tasks and leases them, in batches of a few hundred requests. All leases end at 1,000.
fn lease_many(real: &mut RealQueues, keys: impl Iterator<Item = Box<[u8]>>) {
    let keys: Vec<Box<[u8]>> = keys.collect();
    let value = Value::from(&b"v"[..]);
    for keys in keys.chunks(SUBMIT_MAX) {
        let add = |key: &[u8]| Request::Add { key: key.into(), value: value.clone(), end: QueueEnd::Tail, terms: None };
        let adds = keys.iter().map(|key| add(key)).chain(vec![poll(1_000); keys.len()]);
        real.commit(adds.collect(), 0).unwrap();
    }
    assert_eq!(counts(real).leased, keys.len() as u64);
}

/// Commits batches at this time until no lease is left. Returns their sizes.
fn expire_all(real: &mut RealQueues, now: u64) -> Vec<BatchSize> {
    let before = real.store.counts().0;
    while counts(real).leased > 0 {
        let left = counts(real).leased;
        real.committer.batch(at(now)).unwrap();
        assert!(counts(real).leased < left, "each batch expires some");
    }
    real.store.batches_after(before)
}

#[test]
fn leases_that_end_together_leave_requests_a_turn_between_their_batches() {
    let mut real = start();
    let count = 2 * EXPIRE_BUDGET + 1;
    lease_many(&mut real, (0..count).map(|number| Box::from(number.to_be_bytes())));
    let before = real.store.counts().0;
    let answers = real.commit(vec![add("a"), Request::Count], 1_000).unwrap();
    assert_eq!(answers[1].1, ReadAnswer::Plain(Outcome::Counted(EXPIRE_BUDGET as u64 + 1)));
    let batches = real.store.batches_after(before);
    assert_eq!(batches.len(), 1, "answered with the first batch: {batches:?}");
    assert_eq!(counts(&real).leased, (count - EXPIRE_BUDGET) as u64);
    let later = expire_all(&mut real, 1_000);
    assert_eq!(later.len(), 2);
    let most = batches.iter().chain(&later).map(|batch| batch.records).max().unwrap();
    assert!(most <= EXPIRE_BUDGET + 2 + OTHER_RECORDS, "{most}");
    assert_eq!(counts(&real).ready, count as u64 + 1);
}

#[test]
fn the_committer_does_not_sleep_while_leases_are_due() {
    let mut real = start();
    lease_many(&mut real, (0..=EXPIRE_BUDGET).map(|number| Box::from(number.to_be_bytes())));
    real.committer.batch(at(1_000)).unwrap();
    assert_eq!(counts(&real).leased, 1);
    let RealQueues { committer, tasks, .. } = real;
    let metrics = std::sync::Arc::clone(tasks.metrics());
    let runs = std::thread::spawn(move || committer.run(|| at(1_000)));
    while metrics.queues()[0].counts().leased > 0 {
        std::thread::yield_now();
    }
    drop(tasks);
    runs.join().unwrap().unwrap();
}

/// Records hold the keys of their tasks: 8,192 of the longest ones are 256 MiB.
#[test]
fn leases_with_long_keys_that_end_together_are_in_bounded_batches() {
    let mut real = start();
    let key = |number: u32| [&number.to_be_bytes()[..], &vec![7; TASK_KEY_BYTES_MAX - 4]].concat().into();
    lease_many(&mut real, (0..1_000).map(key));
    let batches = expire_all(&mut real, 1_000);
    let most = batches.iter().map(|batch| batch.bytes).max().unwrap();
    // The records are looked at a few hundred at a time.
    assert!(most <= TASKS_BATCH_BYTES + (TASK_KEY_BYTES_MAX as u64 + 100) * 256, "{most}");
    assert!(batches.len() > 1, "{batches:?}");
    assert_eq!(counts(&real).ready, 1_000);
}

#[test]
fn small_requests_about_long_keys_are_in_bounded_batches() {
    let mut real = start();
    let key = |number: u32| [&number.to_be_bytes()[..], &vec![7; TASK_KEY_BYTES_MAX - 4]].concat().into();
    lease_many(&mut real, (0..1_000).map(key));
    expire_all(&mut real, 1_000);
    let (before, queue) = (real.store.counts().0, real.queue.clone());
    for _ in 0..1_000 / 50 {
        let lend =
            |number| Submission { queue: queue.clone(), ticket: Ticket { sink: 0, number }, request: poll(1_000) };
        real.tasks.submit((0..50).map(lend).collect());
    }
    while counts(&real).leased < 1_000 {
        real.committer.batch(at(1_000)).unwrap();
    }
    let batches = real.store.batches_after(before);
    let most = batches.iter().map(|batch| batch.bytes).max().unwrap();
    assert!(most <= TASKS_BATCH_BYTES + 50 * (TASK_KEY_BYTES_MAX as u64 + 100), "{most}");
}

#[test]
fn a_batch_ends_with_the_message_that_fills_it() {
    let mut real = start();
    let (queue, value) = (real.queue.clone(), Value::from(&vec![7; 1 << 20][..]));
    let before = real.store.counts().0;
    for number in 0..16 {
        let request = Request::Push { value: value.clone(), terms: None };
        real.tasks.submit(vec![Submission { queue: queue.clone(), ticket: Ticket { sink: 0, number }, request }]);
    }
    while counts(&real).ready < 16 {
        real.committer.batch(at(0)).unwrap();
    }
    let batches = real.store.batches_after(before);
    let most = batches.iter().map(|batch| batch.bytes).max().unwrap();
    assert!((TASKS_BATCH_BYTES..TASKS_BATCH_BYTES + (1 << 20)).contains(&most), "{batches:?}");
}

#[test]
fn a_lease_that_is_due_and_has_not_expired_is_held_by_nobody() {
    let mut real = start();
    let first = |real: &mut RealQueues| leased(real.commit_one(poll(999), 0));
    real.commit(vec![add("a"), add("b"), add("c")], 0).unwrap();
    // These leases end first, and fill the portion of the first batch.
    lease_many_first(&mut real);
    let held: Vec<_> = (0..3).map(|_| first(&mut real)).collect();
    let key = |number: usize| Box::from(&*held[number].1);
    let requests = vec![
        Request::Settle { token: held[0].0, key: key(0), value: None, how: Settlement::Drop },
        Request::Extend { token: Some(held[1].0), key: key(1), timeout: 1_000 },
        Request::Finish { key: key(2) },
        Request::Count,
    ];
    let answers = real.commit(requests, 2_000).unwrap().into_iter().map(|(_, answer)| answer);
    let refused = ReadAnswer::Plain(Outcome::Refused);
    let counted = ReadAnswer::Plain(Outcome::Counted(EXPIRE_BUDGET as u64));
    assert_eq!(answers.collect::<Vec<_>>(), [refused.clone(), refused.clone(), refused, counted]);
    assert_eq!(counts(&real).leased, 3);
    expire_all(&mut real, 2_000);
    assert_eq!(counts(&real).ready, EXPIRE_BUDGET as u64 + 3);
}

/// Leases as many tasks as one batch expires, which stand before the others. The leases end at 10.
fn lease_many_first(real: &mut RealQueues) {
    for from in (0..EXPIRE_BUDGET).step_by(SUBMIT_MAX) {
        let value = Value::from(&b"v"[..]);
        let add = |number: usize| {
            let key = Box::from(number.to_be_bytes());
            Request::Add { key, value: value.clone(), end: QueueEnd::Head, terms: None }
        };
        let requests = (from..from + SUBMIT_MAX).map(add).chain(vec![poll(10); SUBMIT_MAX]);
        real.commit(requests.collect(), 0).unwrap();
    }
}

/// Requests that look at much counted as any other: a batch took thousands of them.
#[test]
fn a_batch_ends_with_the_requests_that_take_long() {
    const COUNT: u64 = 200;
    let mut real = start();
    let queue = real.queue.clone();
    let lend = Request::LeaseMany { queues: vec![queue.clone(); 1 << 10].into(), count: 1, timeout: 9, wait: 0 };
    let (group, state) = (Some(Box::from(&b"group"[..])), BrowsedState::Ready);
    let of_group = Request::Browse(Browse { state, group, from: None, most: 1, first_bytes: 0 });
    let whole = Request::Browse(Browse { state, group: None, from: None, most: u32::MAX, first_bytes: u32::MAX });
    let list = Request::ListQueues { prefixes: Vec::new(), from: 0, most: u32::MAX };
    for request in [lend, of_group, whole, list] {
        let most = TASKS_BATCH_BYTES / request.bytes() + 1;
        assert!(most < COUNT / 2, "{request:?}");
        for number in 0..COUNT {
            let (queue, request) = (queue.clone(), request.clone());
            real.tasks.submit(vec![Submission { queue, ticket: Ticket { sink: 0, number }, request }]);
        }
        let mut answered = 0;
        while answered < COUNT {
            real.committer.batch(at(0)).unwrap();
            let of_batch = std::mem::take(&mut *real.sink.0.lock()).len() as u64;
            assert!((1..=most).contains(&of_batch), "{of_batch} of {most}");
            answered += of_batch;
        }
    }
}
