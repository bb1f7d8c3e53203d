//! What the committer asks of its store beside commits: room for adds, lost values, and idle work.

use std::path::Path;

use super::{ReadAnswer, RealQueues, add, at, leased, poll};
use crate::store::fake_disk::FakeDisk;
use crate::store::{AddsRefused, BackupTurn, Value};
use crate::tasks::record::task_key;
use crate::tasks::{LeaseOrder, Outcome, Policy, Request, Settlement};

fn start(store: &FakeDisk) -> RealQueues {
    RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0)
}

fn key(name: &str) -> Box<[u8]> {
    name.as_bytes().into()
}

#[test]
fn without_room_adds_are_refused_and_what_takes_away_goes_on() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.commit(vec![add("a"), add("b")], 0).unwrap();
    store.refuse_adds(Some(AddsRefused::NoSegment));
    let (commits, _) = store.counts();
    let value = || Value::from(&b"value"[..]);
    let adds = vec![add("c"), Request::Push { value: value() }, Request::Append { value: value(), dropped: true }];
    let heard: Vec<_> = real.commit(adds, 0).unwrap().into_iter().map(|(_, answer)| answer).collect();
    let refused = |bytes| ReadAnswer::Plain(Outcome::NoRoom { bytes });
    assert_eq!(heard, [refused(2), refused(5), refused(5)]);
    assert_eq!(store.counts().0, commits, "nothing changed");
    let (token, name) = leased(real.commit_one(poll(1_000), 0));
    let settle = Request::Settle { token, key: name.into(), value: Some(value()), how: Settlement::Drop };
    for request in [settle, Request::Remove { key: key("a") }, Request::Update { key: key("b"), value: value() }] {
        assert_eq!(real.commit_one(request, 0), ReadAnswer::Plain(Outcome::Done));
    }
    store.refuse_adds(None);
    assert_eq!(real.commit_one(add("c"), 0), ReadAnswer::Plain(Outcome::Added(3)));
}

#[test]
fn an_add_that_needs_more_room_than_a_batch_has_is_refused_and_a_smaller_one_is_not() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    store.bound_adds(10);
    let push = |bytes: usize| Request::Push { value: Value::from(vec![7; bytes]) };
    let mut heard = |requests: Vec<Request>| -> Vec<bool> {
        let heard = real.commit(requests, 0).unwrap();
        heard.iter().map(|(_, answer)| matches!(answer, ReadAnswer::Plain(Outcome::Added(_)))).collect()
    };
    assert_eq!(heard(vec![push(11), push(6), push(5), push(4)]), [false, true, false, true]);
    assert_eq!(heard(vec![push(0)]), [true], "each batch has its own room");
}

#[test]
fn a_task_whose_value_is_lost_is_dropped_until_it_gets_another_value() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.commit(vec![add("a"), add("b")], 0).unwrap();
    store.rot(task_key(0, 1));
    let ReadAnswer::Lost { token: Some(token) } = real.commit_one(poll(1_000), 0) else { panic!("a is the first") };
    let undone = real.commit_one(Request::Undo { token, key: key("a") }, 0);
    assert_eq!(undone, ReadAnswer::Plain(Outcome::Done));
    let look = || Request::LookDropped { key: key("a") };
    assert_eq!(real.commit_one(look(), 0), ReadAnswer::Lost { token: None });
    assert_eq!(leased(real.commit_one(poll(1_000), 0)).1, b"b");
    assert_eq!(real.commit_one(poll(1_000), 0), ReadAnswer::Plain(Outcome::Refused));
    let update = Request::Update { key: key("a"), value: Value::from(&b"new"[..]) };
    assert_eq!(real.commit_one(update, 0), ReadAnswer::Plain(Outcome::Done));
    store.crash(0);
    let mut real = start(&store);
    assert_eq!(real.commit_one(look(), 0), ReadAnswer::Found(b"new".to_vec()));
}

#[test]
fn a_holder_keeps_its_lease_when_the_value_is_lost_and_its_own_value_counts() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.commit(vec![add("a")], 0).unwrap();
    let (token, _) = leased(real.commit_one(poll(1_000), 0));
    store.rot(task_key(0, 1));
    assert_eq!(real.commit_one(Request::Look { key: key("a") }, 0), ReadAnswer::Lost { token: None });
    let value = Some(Value::from(&b"new"[..]));
    let settle = Request::Settle { token, key: key("a"), value, how: Settlement::Front };
    assert_eq!(real.commit_one(settle, 0), ReadAnswer::Plain(Outcome::Done));
    let ReadAnswer::Leased { value, .. } = real.commit_one(poll(1_000), 0) else { panic!("it is ready") };
    assert_eq!(value, b"new");
}

#[test]
fn a_job_whose_value_is_lost_can_be_finished() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.commit(vec![add("a")], 0).unwrap();
    store.rot(task_key(0, 1));
    let finish = || Request::Finish { key: key("a") };
    assert_eq!(real.commit_one(finish(), 0), ReadAnswer::Plain(Outcome::Refused), "it is ready");
    assert_eq!(real.commit_one(Request::Look { key: key("a") }, 0), ReadAnswer::Lost { token: None });
    assert_eq!(real.commit_one(finish(), 0), ReadAnswer::Plain(Outcome::Done));
}

#[test]
fn idle_work_is_done_piece_by_piece_when_no_batch_was_stored_for_a_while() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    store.leave_idle_work(2);
    real.commit(vec![add("a")], 0).unwrap();
    let mut left_after = |requests: Vec<Request>, now| {
        // A message without a request is a message too.
        match requests.is_empty() {
            true => real.committer.batch(at(now)).unwrap(),
            false => drop(real.commit(requests, now).unwrap()),
        }
        store.idle_work()
    };
    assert_eq!(left_after(vec![], 99), 2, "it is too early");
    assert_eq!(left_after(vec![], 100), 1);
    assert_eq!(left_after(vec![Request::Count], 100), 1, "a request waited");
    assert_eq!(left_after(vec![add("b")], 150), 2);
    assert_eq!(left_after(vec![], 249), 2);
    assert_eq!([250, 250, 250].map(|now| left_after(vec![], now)), [1, 0, 0]);
}

#[test]
fn a_backup_holds_all_that_was_answered_and_its_sync_is_the_one_that_was_due() {
    let store = FakeDisk::new();
    let mut real = RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Within(1_000), 0);
    real.commit(vec![add("a"), add("b")], 0).unwrap();
    assert!(store.unsynced() > 0);
    let backup = real.tasks.backup().unwrap().unwrap();
    assert_eq!(store.unsynced(), 0);
    let (_, syncs) = store.counts();
    real.commit(vec![Request::Count], 2_000).unwrap();
    assert_eq!(store.counts().1, syncs, "nothing is left to sync");
    let mut asked = 0;
    let report = backup.write_to(Path::new("/backup"), &mut || {
        asked += 1;
        BackupTurn::GoOn
    });
    assert_eq!((report.unwrap().bytes, asked), (2, 1), "a byte for each task");
}

#[test]
fn a_backup_whose_sync_fails_ends_the_store_and_a_second_one_is_none() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    store.fail_after(0);
    assert!(real.tasks.backup().is_err());
    store.fail_after(100);
    assert!(real.tasks.backup().unwrap().is_none());
    assert!(real.commit(vec![add("a")], 0).unwrap().is_empty(), "nothing is answered any more");
}
