//! What the committer asks of its store beside commits: room for adds, lost values, and idle work.

use std::path::Path;

use super::{ReadAnswer, RealQueues, add, at, leased, poll};
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{AddsRefused, BackupTurn, Value};
use crate::tasks::record::task_key;
use crate::tasks::{
    Browse, BrowsedState, LeaseOrder, Outcome, Policy, QueueEnd, Request, Settlement, ShownReason, Sweep,
};

fn start(store: &FakeDisk) -> RealQueues {
    RealQueues::open(store.clone(), LeaseOrder::Priority, Policy::Always, 0)
}

fn key(name: &str) -> Box<[u8]> {
    name.as_bytes().into()
}

#[test]
fn without_room_adds_are_refused_and_removals_are_applied() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.commit(vec![add("a"), add("b")], 0).unwrap();
    store.refuse_adds(Some(AddsRefused::NoSegment));
    let (commits, _) = store.counts();
    let value = || Value::from(&b"value"[..]);
    let adds = vec![
        add("c"),
        Request::Push { value: value(), terms: None },
        Request::Append { value: value(), dropped: true },
    ];
    let answers: Vec<_> = real.commit(adds, 0).unwrap().into_iter().map(|(_, answer)| answer).collect();
    let refused = |bytes| ReadAnswer::Plain(Outcome::NoRoom { bytes });
    assert_eq!(answers, [refused(2), refused(5), refused(5)]);
    assert_eq!(store.counts().0, commits, "nothing changed");
    let (token, name) = leased(real.commit_one(poll(1_000), 0));
    let settle = Request::Settle { token, key: name.into(), value: Some(of_bytes(1)), how: Settlement::Drop };
    for request in [settle, Request::Remove { key: key("a") }, Request::Update { key: key("b"), value: of_bytes(0) }] {
        assert_eq!(real.commit_one(request, 0), ReadAnswer::Plain(Outcome::Done));
    }
    store.refuse_adds(None);
    assert_eq!(real.commit_one(add("c"), 0), ReadAnswer::Plain(Outcome::Added(3)));
}

fn of_bytes(bytes: usize) -> Value {
    Value::from(vec![7; bytes])
}

/// Larger values were never refused, and filled the disk.
#[test]
fn without_room_a_larger_value_is_refused_and_a_value_that_is_no_larger_is_not() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.commit(vec![add("aa"), add("bb"), add("cc")], 0).unwrap();
    let (token, name) = leased(real.commit_one(poll(1_000), 0));
    store.refuse_adds(Some(AddsRefused::NoSegment));
    let (commits, _) = store.counts();
    let done = || ReadAnswer::Plain(Outcome::Done);
    let refused = |bytes| ReadAnswer::Plain(Outcome::NoRoom { bytes });
    let update = |name: &str, bytes| Request::Update { key: key(name), value: of_bytes(bytes) };
    let settle = |token, bytes, how| {
        let value = (bytes > 0).then(|| of_bytes(bytes));
        Request::Settle { token, key: name.as_slice().into(), value, how }
    };
    assert_eq!(real.commit_one(update("bb", 3), 0), refused(3));
    assert_eq!(real.commit_one(settle(token, 3, Settlement::Drop), 0), refused(3));
    assert_eq!(store.counts().0, commits, "nothing changed");
    // Requests that change nothing are answered as ever.
    assert_eq!(real.commit_one(update("none", 3), 0), ReadAnswer::Plain(Outcome::Refused));
    assert_eq!(real.commit_one(settle(token + 1, 3, Settlement::Drop), 0), ReadAnswer::Plain(Outcome::Refused));
    // The lease is still held. The value of the batch counts, not the one before.
    let answers = real.commit(vec![update("cc", 1), update("cc", 2), settle(token, 2, Settlement::Reward)], 0).unwrap();
    let answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
    assert_eq!(answers, [done(), refused(2), done()]);
    assert_eq!(real.commit_one(update("cc", 1), 0), done());
    assert_eq!(real.commit_one(Request::Look { key: key("bb") }, 0), ReadAnswer::Found(b"bb".to_vec()));
    store.refuse_adds(None);
    assert_eq!(real.commit_one(update("bb", 3), 0), done());
    // With room for less than the value it is the same.
    store.bound_adds(3);
    let answers = real.commit(vec![update("bb", 4), update("bb", 3), update("cc", 1), update("cc", 2)], 0).unwrap();
    let answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
    assert_eq!(answers, [refused(4), done(), done(), refused(2)]);
}

/// On a full disk a value that was as long as the one before ended the server if its batch found no segment.
#[test]
fn without_room_a_value_that_is_no_larger_needs_a_place_for_its_batch() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    let old = |name| Request::Add { key: key(name), value: of_bytes(5_000), end: QueueEnd::Tail, terms: None };
    real.commit(vec![old("a"), old("b"), old("c")], 0).unwrap();
    let (token, name) = leased(real.commit_one(poll(1_000), 0));
    store.refuse_adds(Some(AddsRefused::NoSegment));
    store.bound_prepared(12_000);
    let update = |name: &str| Request::Update { key: key(name), value: of_bytes(5_000) };
    let settle = |value| Request::Settle { token, key: name.as_slice().into(), value, how: Settlement::Drop };
    let mut answers_to = |requests| -> Vec<_> {
        real.commit(requests, 0).unwrap().into_iter().map(|(_, answer)| answer).collect::<Vec<_>>()
    };
    let done = || ReadAnswer::Plain(Outcome::Done);
    let refused = || ReadAnswer::Plain(Outcome::NoRoom { bytes: 5_000 });
    assert_eq!(answers_to(vec![update("b"), update("c"), settle(Some(of_bytes(5_000)))]), [done(), done(), refused()]);
    assert_eq!(answers_to(vec![update("c")]), [done()], "each batch has its own place");
    store.bound_prepared(5_000);
    let nothing = ReadAnswer::Plain(Outcome::Refused);
    let gone = Request::Remove { key: key("b") };
    assert_eq!(answers_to(vec![update("c"), update("none"), gone, settle(None)]), [refused(), nothing, done(), done()]);
}

/// Each of them was searched among all tasks of its queue: this would take minutes.
#[test]
fn a_hundred_thousand_lost_records_of_one_queue_are_set_aside_together() {
    const TASKS: u64 = 200_000;
    let store = FakeDisk::new();
    let mut real = start(&store);
    let adds: Vec<Request> = (0..TASKS).map(|_| Request::Push { value: of_bytes(1), terms: None }).collect();
    for some in adds.chunks(10_000) {
        real.commit(some.to_vec(), 0).unwrap();
    }
    let lost: Vec<_> = (2..=TASKS).step_by(2).map(|number| task_key(0, number)).collect();
    store.lose(&lost);
    assert_eq!(real.commit_one(Request::Count, 0), ReadAnswer::Plain(Outcome::Counted(TASKS / 2)));
    assert_eq!(real.commit_one(Request::CountAll, 0), ReadAnswer::Plain(Outcome::Counted(TASKS)));
    let rest = real.commit_one(poll(1_000), 0);
    assert!(matches!(rest, ReadAnswer::Leased { .. }), "{rest:?}");
}

/// A reason makes the record of its task longer.
#[test]
fn without_room_a_task_is_given_back_and_buried_without_its_reason() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    real.commit(["a", "b", "c", "d"].map(add).to_vec(), 0).unwrap();
    let lend = |real: &mut RealQueues| leased(real.commit_one(poll(1_000), 0));
    let [first, second, third] = [(); 3].map(|()| lend(&mut real));
    let reason = || Box::from(*b"broken");
    let bury = |(token, key): (u64, Vec<u8>)| Request::Bury { token, key: key.into(), reason: reason() };
    store.bound_adds(6);
    real.commit(vec![bury(first), bury(second)], 0).unwrap();
    store.refuse_adds(Some(AddsRefused::NoSegment));
    let (token, key) = third;
    let give_back = Request::GiveBack { token: Some(token), key: key.into(), delay: Some(50), reason: reason() };
    assert_eq!(real.commit_one(give_back, 0), ReadAnswer::Plain(Outcome::Done));
    let mut shown = |state| {
        let browse = Request::Browse(Browse { state, group: None, from: None, most: 9, first_bytes: 0 });
        let ReadAnswer::Plain(Outcome::Browsed(page)) = real.commit_one(browse, 0) else { panic!("a page") };
        page.tasks.into_iter().map(|task| task.reason).collect::<Vec<_>>()
    };
    assert_eq!(shown(BrowsedState::Dead), [ShownReason::Fresh(reason()), ShownReason::None]);
    assert_eq!(shown(BrowsedState::Delayed), [ShownReason::None]);
}

#[test]
fn an_add_that_needs_more_room_than_a_batch_has_is_refused_and_a_smaller_one_is_not() {
    let store = FakeDisk::new();
    let mut real = start(&store);
    // A record takes 128 beside its value.
    store.bound_adds(2 * 128 + 10);
    let push = |bytes: usize| Request::Push { value: Value::from(vec![7; bytes]), terms: None };
    let mut are_added = |requests: Vec<Request>| -> Vec<bool> {
        let answers = real.commit(requests, 0).unwrap();
        answers.iter().map(|(_, answer)| matches!(answer, ReadAnswer::Plain(Outcome::Added(_)))).collect()
    };
    assert_eq!(are_added(vec![push(139), push(6), push(5), push(4)]), [false, true, false, true]);
    assert_eq!(are_added(vec![push(0), push(10)]), [true, true], "each batch has its own room");
    assert_eq!(are_added(vec![push(0), push(0), push(0)]), [true, true, false], "a record has bytes of its own");
}

#[test]
fn a_task_whose_value_is_lost_is_dead_until_it_gets_another_value_and_is_kicked() {
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
    let browse =
        Request::Browse(Browse { state: BrowsedState::Dead, group: None, from: None, most: 9, first_bytes: 9 });
    let ReadAnswer::Plain(Outcome::Browsed(page)) = real.commit_one(browse, 0) else { panic!("a page") };
    let shown = page.tasks.iter().map(|task| (&*task.key, task.reason.clone()));
    assert_eq!(shown.collect::<Vec<_>>(), [(&b"a"[..], ShownReason::Fresh(Box::from(*b"value damaged")))]);
    let kick = || Request::Kick { key: key("a") };
    assert_eq!(real.commit_one(kick(), 0), ReadAnswer::Plain(Outcome::Refused), "it has no value");
    let sweep = Request::Sweep { sweep: Sweep::KickDead { most: 9 }, client: 0 };
    real.commit(vec![sweep, add("c")], 0).unwrap();
    assert_eq!(real.commit(Vec::new(), 0).unwrap(), [(9, ReadAnswer::Plain(Outcome::Counted(0)))]);
    let update = Request::Update { key: key("a"), value: Value::from(&b"new"[..]) };
    assert_eq!(real.commit_one(update, 0), ReadAnswer::Plain(Outcome::Done));
    store.crash(0);
    let mut real = start(&store);
    assert_eq!(real.commit_one(look(), 0), ReadAnswer::Plain(Outcome::Found(None)));
    assert_eq!(real.commit_one(kick(), 0), ReadAnswer::Plain(Outcome::Done));
    let (token, first) = leased(real.commit_one(poll(1_000), 0));
    assert_eq!((first, token > 0), (b"c".to_vec(), true));
    let ReadAnswer::Leased { key, value, .. } = real.commit_one(poll(1_000), 0) else { panic!("it is ready") };
    assert_eq!((key, value), (b"a".to_vec(), b"new".to_vec()));
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
        BackupTurn::Continue
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
