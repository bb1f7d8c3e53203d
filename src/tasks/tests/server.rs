//! The committer as a server runs it: its thread, its room, its metrics, and its end.

use super::{ReadAnswer, RealQueues, RecordingSink, add, at, leased, poll};
use crate::limits::{INBOX_BYTES_MAX, INBOX_MAX, QUEUES_LISTED};
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{Space, Store, Value, WriteBatch};
use crate::tasks::record::TOKENS_KEY;
use crate::tasks::{LeaseOrder, Outcome, Policy, Request, RoomWait, Settlement, Submission, Ticket, open};
use crate::tasks::{TaskCounts, TaskTotals};

fn start(store: &FakeDisk) -> RealQueues {
    RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0)
}

fn submission(real: &RealQueues, request: Request) -> Submission {
    Submission { queue: real.queue.clone(), ticket: Ticket { sink: 0, number: 0 }, request }
}

/// Requests that together count for this many bytes, which are a multiple of 16 MiB. They share most of their memory.
fn pushes(real: &RealQueues, bytes: u64) -> Vec<Submission> {
    const PART: usize = 16 << 20;
    let count = usize::try_from(bytes).unwrap() / PART;
    let own = size_of::<Request>();
    let push = |value: &Value| submission(real, Request::Push { value: value.clone(), terms: None });
    let value = Value::from(&vec![0; PART][..]);
    let mut requests = vec![push(&value); count - 1];
    requests.push(push(&Value::from(&vec![0; PART - count * own][..])));
    requests
}

#[test]
fn a_running_committer_ends_with_the_last_handle_when_all_is_answered_and_on_disk() {
    let store = FakeDisk::new();
    let real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Never, 0);
    let wait = Request::Lease { timeout: 10, wait: true };
    real.tasks.submit(vec![submission(&real, wait.clone()), submission(&real, wait)]);
    real.tasks.submit(vec![submission(&real, add("a"))]);
    let RealQueues { tasks, committer, sink, .. } = real;
    drop(tasks);
    committer.run(|| at(0)).unwrap();
    let answers: Vec<ReadAnswer> = sink.0.lock().drain(..).map(|(_, answer)| answer).collect();
    assert!(
        matches!(
            answers[..],
            [ReadAnswer::Plain(Outcome::Added(1)), ReadAnswer::Leased { .. }, ReadAnswer::Plain(Outcome::Refused)]
        ),
        "{answers:?}"
    );
    assert_eq!(store.unsynced(), 0);
}

#[test]
fn when_the_server_stops_no_request_waits_any_more() {
    let mut real = start(&FakeDisk::new());
    let other = real.committer.queue(b"other", LeaseOrder::Fifo, Policy::Always).unwrap();
    let wait = || Request::Lease { timeout: 10, wait: true };
    let waiting = Submission { queue: other, ..submission(&real, wait()) };
    real.tasks.submit(vec![submission(&real, wait()), waiting]);
    real.committer.batch(at(0)).unwrap();
    real.tasks.dismiss();
    let refused = (0, ReadAnswer::Plain(Outcome::Refused));
    assert_eq!(real.commit(vec![], 0).unwrap(), [refused.clone(), refused]);
    assert_eq!(real.commit_one(wait(), 0), ReadAnswer::Plain(Outcome::Refused));
}

#[test]
fn a_store_that_fails_is_found_by_all_who_ask() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    assert!(real.commit(vec![add("a")], 0).is_ok() && real.tasks.check().is_ok());
    store.fail_after(0);
    assert!(real.commit(vec![add("b")], 0).is_err() && real.tasks.check().is_err());
}

#[test]
fn a_store_of_no_format_is_not_opened() {
    let mut store = FakeDisk::new();
    let mut batch = WriteBatch::new();
    batch.put(Space::Meta, TOKENS_KEY, &7_u64.to_be_bytes());
    store.commit(batch, true).unwrap();
    assert!(open(Box::new(store), at(0)).is_err());
}

#[test]
fn there_is_room_for_so_many_messages_and_so_many_bytes() {
    let mut real = start(&FakeDisk::new());
    let mut wait = RoomWait::default();
    (0..INBOX_MAX).for_each(|_| real.tasks.submit(vec![]));
    assert!(real.tasks.has_room(0, &mut wait));
    real.tasks.submit(vec![]);
    assert!(!real.tasks.has_room(0, &mut wait));
    real.committer.batch(at(0)).unwrap();
    assert!(real.tasks.has_room(0, &mut wait));
    real.tasks.submit(pushes(&real, INBOX_BYTES_MAX));
    assert!(real.tasks.has_room(0, &mut wait));
    real.tasks.submit(vec![submission(&real, Request::Nothing)]);
    assert!(!real.tasks.has_room(0, &mut wait));
    real.tasks.count_if_overslept(&wait);
    assert_eq!(real.tasks.metrics().lost_wakeups(), 0);
    real.committer.batch(at(0)).unwrap();
    real.tasks.count_if_overslept(&wait);
    assert_eq!(real.tasks.metrics().lost_wakeups(), 1, "nobody has woken it");
}

#[test]
fn a_batch_takes_a_bounded_number_of_bytes_from_the_inbox() {
    let mut real = start(&FakeDisk::new());
    real.tasks.submit(pushes(&real, INBOX_BYTES_MAX / 4));
    (0..3).for_each(|_| real.tasks.submit(vec![submission(&real, Request::Nothing)]));
    assert_eq!([0, 0].map(|now| real.commit(vec![], now).unwrap().len()), [4, 3], "four that are large");
}

#[test]
fn a_lease_ends_only_with_its_own_token_and_a_removed_task_is_in_no_count() {
    let mut real = start(&FakeDisk::new());
    real.commit(vec![add("a")], 0).unwrap();
    let (token, key) = leased(real.commit_one(poll(1_000), 0));
    let settle = |token| Request::Settle { token, key: key.clone().into(), value: None, how: Settlement::Drop };
    assert_eq!(real.commit_one(settle(token + 1), 0), ReadAnswer::Plain(Outcome::Refused));
    assert_eq!(real.commit_one(settle(token), 0), ReadAnswer::Plain(Outcome::Done));
    let all = |real: &mut RealQueues| real.commit_one(Request::CountAll, 0);
    assert_eq!(all(&mut real), ReadAnswer::Plain(Outcome::Counted(1)));
    real.commit(vec![Request::Remove { key: key.clone().into() }], 0).unwrap();
    assert_eq!(all(&mut real), ReadAnswer::Plain(Outcome::Counted(0)));
}

#[test]
fn a_queue_reports_its_tasks_its_waiting_requests_and_its_oldest_task() {
    for order in [LeaseOrder::Priority, LeaseOrder::Fifo] {
        let mut real = RealQueues::open(FakeDisk::new(), order, Policy::Always, 0);
        let queue = real.tasks.metrics().queues().pop().unwrap();
        let counts = |ready, leased, lent, failed| {
            let (added, ran_out) = (ready + leased, failed);
            let ever = TaskTotals { added, lent, ran_out, failed, ..TaskTotals::default() };
            TaskCounts { ready, leased, ever, ..TaskCounts::default() }
        };
        assert_eq!((queue.name(), queue.oldest()), (super::QUEUE, None));
        real.commit(vec![add("a"), poll(10)], 100).unwrap();
        real.commit(vec![add("b"), poll(20)], 105).unwrap();
        real.commit(vec![add("c"), add("d")], 107).unwrap();
        let counted = counts(2, 2, 2, 0);
        assert_eq!((queue.counts(), queue.oldest(), queue.waiting()), (counted, Some(107), 0));
        real.commit(vec![], 130).unwrap();
        let counted = counts(4, 0, 2, 2);
        assert_eq!(queue.counts(), counted);
        let wait = Request::Lease { timeout: 1_000, wait: true };
        real.commit(vec![wait; 7], 131).unwrap();
        let counted = counts(0, 4, 6, 2);
        assert_eq!((queue.counts(), queue.oldest(), queue.waiting()), (counted, None, 3));
    }
}

#[test]
fn a_bounded_number_of_queues_of_a_family_is_listed() {
    let (tasks, mut committer) = open(Box::new(FakeDisk::new()), at(0)).unwrap();
    committer.sink(Box::new(RecordingSink::default()));
    let family = committer.family(b"jobs/", LeaseOrder::Fifo, Policy::Always).unwrap();
    let mut commit = |name: usize, request| {
        let queue = family.queue(name.to_string().as_bytes());
        tasks.submit(vec![Submission { queue, ticket: Ticket { sink: 0, number: 0 }, request }]);
        committer.batch(at(0)).unwrap();
        let mut names: Vec<Vec<u8>> = tasks.metrics().queues().iter().map(|queue| queue.name().to_vec()).collect();
        names.sort_unstable();
        names
    };
    for name in 0..QUEUES_LISTED {
        assert_eq!(commit(name, add("a")).len(), name + 1);
    }
    assert_eq!(commit(QUEUES_LISTED, add("a")).len(), QUEUES_LISTED, "one more is not listed");
    let left = commit(7, Request::Remove { key: Box::from(&b"a"[..]) });
    assert!(left.len() == QUEUES_LISTED - 1 && !left.contains(&b"jobs/7".to_vec()));
    assert_eq!(commit(7, add("a")).len(), QUEUES_LISTED);
    assert_eq!(commit(QUEUES_LISTED + 1, add("a")).len(), QUEUES_LISTED);
    assert_eq!(tasks.metrics().families().pop().unwrap().name(), b"jobs/");
}
