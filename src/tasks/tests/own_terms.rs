//! What a job may have of its own: a unique name, and the length of its leases. And leases whose holder names no token.

use super::{ReadAnswer, RealQueues, add, leased, poll};
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{AddTerms, LeaseOrder, Outcome, Policy, Request};

fn start(store: &FakeDisk, now: u64) -> RealQueues {
    RealQueues::open(store.clone(), LeaseOrder::Fifo, Policy::Always, now)
}

fn push(terms: AddTerms) -> Request {
    Request::Push { value: Value::from(&b"v"[..]), terms: Some(Box::new(terms)) }
}

fn named(name: &[u8]) -> Request {
    push(AddTerms { unique: name.into(), ..AddTerms::default() })
}

/// The key of the task that was added.
fn added(answer: ReadAnswer) -> Box<[u8]> {
    match answer {
        ReadAnswer::Plain(Outcome::Added(number)) => number.to_be_bytes().into(),
        other => panic!("{other:?}"),
    }
}

fn kept(key: &[u8]) -> ReadAnswer {
    ReadAnswer::Plain(Outcome::Kept(key.into()))
}

#[test]
fn a_unique_name_is_kept_in_every_state_and_over_a_start_until_its_task_is_gone() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let first = added(real.commit_one(named(b"order-7"), 0));
    let other = added(real.commit_one(named(b"order-8"), 0));
    let delayed =
        added(real.commit_one(push(AddTerms { delay: 9_000, unique: Box::from(*b"late"), ..AddTerms::default() }), 0));
    assert_ne!(first, other);
    // The name is none of a key: a job without a name has no name.
    for _ in 0..2 {
        added(real.commit_one(push(AddTerms::default()), 0));
    }
    for _ in 0..2 {
        for (name, key) in [(&b"order-7"[..], &first), (b"order-8", &other), (b"late", &delayed)] {
            assert_eq!(real.commit_one(named(name), 0), kept(key));
        }
        real = start(&store, 0);
    }
    // Lent, then dead.
    let (token, key) = leased(real.commit_one(poll(1_000), 0));
    assert_eq!((&*key, real.commit_one(named(b"order-7"), 0)), (&*first, kept(&first)));
    let bury = Request::Bury { token, key: first.clone(), reason: Box::default() };
    assert_eq!(real.commit_one(bury, 0), ReadAnswer::Plain(Outcome::Done));
    assert_eq!(real.commit_one(named(b"order-7"), 0), kept(&first));
    let mut real = start(&store, 0);
    assert_eq!(real.commit_one(named(b"order-7"), 0), kept(&first));
    // Gone in the same batch in which the name is used again.
    let answers = real.commit(vec![Request::Remove { key: first.clone() }, named(b"order-7"), named(b"order-7")], 0);
    let answers: Vec<ReadAnswer> = answers.unwrap().into_iter().map(|(_, answer)| answer).collect();
    let again = added(answers[1].clone());
    assert!(again != first && answers[2] == kept(&again));
    let mut real = start(&store, 0);
    assert_eq!(real.commit_one(named(b"order-7"), 0), kept(&again));
    assert_eq!(real.commit_one(named(b"order-8"), 0), kept(&other));
}

#[test]
fn names_come_and_go_by_thousands_and_none_is_left_behind() {
    let mut real = start(&FakeDisk::new(), 0);
    for round in 0..3 {
        let names: Vec<String> = (0..2_000).map(|number| format!("name {number}")).collect();
        let keys: Vec<Box<[u8]>> =
            names.iter().map(|name| added(real.commit_one(named(name.as_bytes()), round))).collect();
        for (name, key) in names.iter().zip(&keys).step_by(7) {
            assert_eq!(real.commit_one(named(name.as_bytes()), round), kept(key));
        }
        for key in keys {
            assert_eq!(real.commit_one(Request::Remove { key }, round), ReadAnswer::Plain(Outcome::Done));
        }
    }
}

#[test]
fn what_is_there_is_kept_also_when_no_task_may_come() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let first = added(real.commit_one(named(b"one"), 0));
    added(real.commit_one(add("key"), 0).clone());
    real.committer.bound_tasks(2);
    assert_eq!(real.commit_one(named(b"one"), 0), kept(&first));
    assert_eq!(real.commit_one(add("key"), 0), ReadAnswer::Plain(Outcome::Refused), "the key is there");
    assert!(matches!(real.commit_one(named(b"two"), 0), ReadAnswer::Plain(Outcome::NoRoom { .. })));
}

#[test]
fn a_job_with_a_lease_of_its_own_has_it_whoever_leases_it_also_after_a_start() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let own = AddTerms { lease: Some(50), ..AddTerms::default() };
    let key = added(real.commit_one(push(own), 0));
    for from in [0, 1_000] {
        let (_, leased_key) = leased(real.commit_one(poll(100_000), from));
        assert_eq!(*leased_key, *key);
        assert_eq!(real.commit_one(poll(100_000), from + 49), ReadAnswer::Plain(Outcome::Refused));
        assert_eq!(*leased(real.commit_one(poll(100_000), from + 51)).1, *key);
        real = start(&store, from + 500);
    }
}

#[test]
fn without_a_token_it_is_the_lease_of_whoever_holds_the_task() {
    let mut real = start(&FakeDisk::new(), 0);
    let key = added(real.commit_one(push(AddTerms::default()), 0));
    let touch = |timeout| Request::Extend { token: None, key: key.clone(), timeout };
    let nack =
        || Request::GiveBack { token: None, key: key.clone(), delay: Some(0), reason: Box::from(&b"no such host"[..]) };
    let (done, refused) = (ReadAnswer::Plain(Outcome::Done), ReadAnswer::Plain(Outcome::Refused));
    assert_eq!(real.commit(vec![touch(10), nack()], 0).unwrap().len(), 2);
    assert_eq!((real.commit_one(touch(10), 0), real.commit_one(nack(), 0)), (refused.clone(), refused.clone()));
    leased(real.commit_one(poll(100), 0));
    assert_eq!(real.commit_one(touch(1_000), 50), done);
    assert_eq!(real.commit_one(poll(100), 1_049), refused, "it is held for a thousand from then");
    assert_eq!(real.commit_one(nack(), 1_049), done);
    leased(real.commit_one(poll(100), 1_049));
    assert_eq!(real.commit_one(touch(1_000), 1_150), refused, "the lease has run out");
}

/// Both are found in one table.
#[test]
fn a_key_is_no_unique_name_and_a_unique_name_is_no_key() {
    let mut real = RealQueues::open(FakeDisk::new(), LeaseOrder::Priority, Policy::Always, 0);
    added(real.commit_one(add("one"), 0));
    let first = added(real.commit_one(named(b"one"), 0));
    assert_eq!(real.commit_one(named(b"one"), 0), kept(&first));
    added(real.commit_one(named(b"two"), 0));
    added(real.commit_one(add("two"), 0));
    let has = |key: &[u8]| Request::Has { key: key.into() };
    assert_eq!(real.commit_one(has(b"two"), 0), ReadAnswer::Plain(Outcome::Found(None)));
    assert_eq!(real.commit_one(has(b"three"), 0), ReadAnswer::Plain(Outcome::Refused));
}
