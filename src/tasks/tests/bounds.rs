//! The bounds of a server: tries where nothing else is said, and the number of all tasks.

use std::num::NonZeroU32;

use super::reservations::RealJobs;
use super::{ReadAnswer, RealQueues, add, leased, poll};
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{AddTerms, LeaseOrder, Outcome, Policy, QueueEnd, Request};

fn start(store: &FakeDisk) -> RealQueues {
    RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0)
}

#[test]
fn beyond_the_most_tasks_none_is_added_and_all_else_goes_on() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.committer.bound_tasks(3);
    let are_added = |real: &mut RealQueues, requests: Vec<Request>| -> Vec<bool> {
        let answers = real.commit(requests, 0).unwrap();
        let added = |answer: &ReadAnswer| match answer {
            ReadAnswer::Plain(Outcome::Added(_)) => Some(true),
            ReadAnswer::Plain(Outcome::NoRoom { .. }) => Some(false),
            _ => None,
        };
        answers.iter().filter_map(|(_, answer)| added(answer)).collect()
    };
    assert_eq!(are_added(&mut real, ["a", "b", "a", "c", "d"].map(add).to_vec()), [true, true, true, false]);
    let remove = |key: &str| Request::Remove { key: key.as_bytes().into() };
    assert_eq!(are_added(&mut real, vec![add("d"), remove("a"), add("d"), add("e")]), [false, true, false]);
    // Those that a request for a lease has found expired, and those in any state.
    let (token, key) = leased(real.commit_one(poll(1_000), 0));
    let bury = Request::Bury { token, key: key.into(), reason: Box::default() };
    assert_eq!(are_added(&mut real, vec![bury, add("e")]), [false]);
    let mut real = start(&store);
    real.committer.bound_tasks(3);
    assert_eq!(are_added(&mut real, vec![add("e"), remove("d"), add("e")]), [false, true], "also after a start");
}

#[test]
fn beyond_the_most_queues_none_is_made() {
    let mut real = RealJobs::open(FakeDisk::new(), 0);
    real.committer.bound_queues(2);
    let push = || Request::Push { value: Value::from(&b"v"[..]), terms: None };
    let mut pushed = |queue: &[u8]| real.ask(real.family.queue(queue), push(), 0).added().is_some();
    assert_eq!([pushed(b"a"), pushed(b"b"), pushed(b"c"), pushed(b"a")], [true, true, false, true]);
}

#[test]
fn the_tries_of_the_server_hold_where_neither_task_nor_queue_says_otherwise() {
    let mut real = start(&FakeDisk::new());
    let queue = real.queue.clone();
    real.committer.bound_tries(&queue, NonZeroU32::new(1));
    let terms = |tries| Some(Box::new(AddTerms { tries, ..AddTerms::default() }));
    let add_with = |key: &[u8], tries| {
        let value = Value::from(&b""[..]);
        Request::Add { key: key.into(), value, end: QueueEnd::Tail, terms: terms(tries) }
    };
    let adds =
        vec![add_with(b"usual", None), add_with(b"twice", Some(NonZeroU32::new(2))), add_with(b"ever", Some(None))];
    real.commit(adds, 0).unwrap();
    let mut failed = Vec::new();
    for _ in 0..3 {
        let (token, key) = leased(real.commit_one(poll(1_000), 0));
        failed.push(key.clone());
        let give_back =
            Request::GiveBack { token: Some(token), key: key.into(), delay: Some(1_000), reason: Box::default() };
        assert_eq!(real.commit_one(give_back, 0), ReadAnswer::Plain(Outcome::Done));
    }
    failed.sort();
    assert_eq!(failed, [&b"ever"[..], b"twice", b"usual"]);
    let mut again: Vec<_> = (0..2).map(|_| leased(real.commit_one(poll(10_000), 2_000)).1).collect();
    again.sort();
    assert_eq!(again, [&b"ever"[..], b"twice"], "one try is all that the server gives");
    assert_eq!(real.commit_one(poll(10_000), 2_000), ReadAnswer::Plain(Outcome::Refused));
}
