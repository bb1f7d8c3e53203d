//! Reservations of connections by example: the records of the store, the ends of reservations, and their bounds.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::reservations::RealJobs;
use super::{ReadAnswer, token_of};
use crate::limits::LEASES_PER_BATCH;
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{Space, Store, Value};
use crate::tasks::record::{StateRecord, TaskRecord, task_key};
use crate::tasks::{
    AddTerms, Backoff, Browse, BrowsedState, Family, GrantedLease, JobState, Outcome, Payload, QueueChange, Rate,
    Request, ReservationEnd, ShownJob, ShownReason, USUAL_CLASS,
};

/// Longer than any test.
const LONG: u64 = 1 << 40;

fn start(store: &FakeDisk, now: u64) -> RealJobs {
    RealJobs::open(store.clone(), now)
}

fn of(id: u64) -> Box<[u8]> {
    id.to_be_bytes().into()
}

fn holder() -> u64 {
    Family::holder(7)
}

fn push(terms: AddTerms) -> Request {
    Request::Push { value: Value::from(&b"v"[..]), terms: Some(Box::new(terms)) }
}

/// A job of queue a. Returns its id.
fn pushed(real: &mut RealJobs, terms: AddTerms, now: u64) -> u64 {
    real.ask(real.family.queue(b"a"), push(terms), now).added().unwrap()
}

/// Asks about a job of queue a.
fn ask(real: &mut RealJobs, request: Request, now: u64) -> Outcome {
    real.ask(real.family.queue(b"a"), request, now)
}

fn next(real: &RealJobs, queues: &[&[u8]], wait: u64) -> Request {
    let queues = queues.iter().map(|name| real.family.queue(name)).collect();
    Request::ReserveNext { queues, holder: holder(), timeout: LONG, wait }
}

fn reserve(id: u64) -> Request {
    Request::Reserve { key: of(id), holder: holder(), timeout: LONG }
}

fn end(id: u64, how: ReservationEnd) -> Request {
    Request::EndReservation { key: of(id), holder: holder(), how }
}

fn release(delay: u64) -> ReservationEnd {
    ReservationEnd::Released { class: USUAL_CLASS, delay }
}

/// The ids of the jobs that were leased, with the leases of each.
fn leased(outcome: &Outcome) -> Vec<(u64, u32)> {
    let id = |lease: &GrantedLease| (u64::from_be_bytes(lease.key[..].try_into().unwrap()), lease.lent);
    match outcome {
        Outcome::LeasedMany(leases) => leases.iter().map(id).collect(),
        Outcome::Refused => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// Reserves the next job of queue a.
fn taken(real: &mut RealJobs, now: u64) -> Vec<(u64, u32)> {
    let request = next(real, &[b"a"], 0);
    leased(&ask(real, request, now))
}

/// Reserves this job of queue a.
fn reserved(real: &mut RealJobs, id: u64, now: u64) -> Vec<(u64, u32)> {
    leased(&ask(real, reserve(id), now))
}

fn shown(real: &mut RealJobs, id: u64, now: u64) -> ShownJob {
    match ask(real, Request::Show { key: of(id) }, now) {
        Outcome::Shown { job, .. } => *job,
        other => panic!("{other:?}"),
    }
}

/// The jobs of queue a in a state, with the reasons of their failures.
fn browsed(real: &mut RealJobs, state: BrowsedState, now: u64) -> Vec<(u64, Vec<u8>)> {
    let browse = Browse { state, group: None, from: None, most: 9, first_bytes: 0 };
    let Outcome::Browsed(page) = ask(real, Request::Browse(browse), now) else { panic!("a page") };
    let tasks = page.tasks.into_iter().map(|task| {
        let reason = if let ShownReason::Fresh(reason) = task.reason { reason.into_vec() } else { Vec::new() };
        (u64::from_be_bytes(task.key[..].try_into().unwrap()), reason)
    });
    tasks.collect()
}

fn configure(real: &mut RealJobs, change: QueueChange, now: u64) {
    assert_eq!(ask(real, Request::Configure { change: Box::new(change) }, now), Outcome::Done);
}

/// Jobs of one connection took one place on a page.
#[test]
fn all_jobs_that_are_lent_are_shown_those_of_connections_last() {
    let mut real = start(&FakeDisk::new(), 0);
    let ids: Vec<u64> = (0..4).map(|_| pushed(&mut real, AddTerms::default(), 0)).collect();
    reserved(&mut real, ids[2], 0);
    reserved(&mut real, ids[0], 0);
    for _ in 0..2 {
        let queue = real.family.queue(b"a");
        real.commit(vec![(queue, Request::Lease { timeout: LONG, wait: false })], 0);
    }
    let lent = |real: &mut RealJobs| -> Vec<u64> {
        browsed(real, BrowsedState::Lent, 0).into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(lent(&mut real), [ids[1], ids[3], ids[0], ids[2]]);
    ask(&mut real, end(ids[0], release(0)), 0);
    assert_eq!(lent(&mut real), [ids[1], ids[3], ids[2]]);
}

// -------------------------------------------------------------------------------------------------------------- stored

/// A lease by GET is stored with its try, which a crash may leave although nobody has begun the job.
#[test]
fn a_crash_ends_a_reservation_without_its_try_and_leaves_a_lease_with_its_try() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let [held, lent] = [(); 2].map(|()| pushed(&mut real, AddTerms::default(), 0));
    assert_eq!(reserved(&mut real, held, 0), [(held, 1)]);
    let get = Request::Lease { timeout: LONG, wait: false };
    let answers = real.commit(vec![(real.family.queue(b"a"), get)], 0);
    assert!(token_of(&answers[0].1).is_some());
    assert_eq!([held, lent].map(|id| shown(&mut real, id, 0).reserves), [1, 1]);
    store.crash(0);
    let mut real = start(&store, 0);
    let after = [held, lent].map(|id| {
        let ShownJob { state, reserves, .. } = shown(&mut real, id, 0);
        (state, reserves)
    });
    assert_eq!(after, [(JobState::Ready, 0), (JobState::Reserved, 1)]);
    // A try that has failed before is counted still.
    ask(&mut real, reserve(held), 0);
    assert_eq!(ask(&mut real, end(held, release(0)), 0), Outcome::Done);
    assert_eq!(reserved(&mut real, held, 0), [(held, 2)]);
    store.crash(0);
    assert_eq!(shown(&mut start(&store, 0), held, 0).reserves, 1);
}

/// Reserving a dead job took a serial, so each such reserve waited for a sync of the record of its queue.
#[test]
fn whoever_reserves_stores_nothing_and_a_crash_leaves_each_job_where_it_was() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let [ready, dead] = [(); 2].map(|()| pushed(&mut real, AddTerms::default(), 0));
    let delayed = pushed(&mut real, AddTerms { delay: LONG, ..AddTerms::default() }, 0);
    ask(&mut real, reserve(dead), 0);
    let bury = Request::Bury { token: holder(), key: of(dead), reason: Box::from(*b"no such host") };
    assert_eq!(ask(&mut real, bury, 0), Outcome::Done);
    let (commits, syncs) = store.counts();
    for id in [ready, delayed, dead] {
        assert_eq!(reserved(&mut real, id, 5).len(), 1);
        let touch = Request::Extend { token: Some(holder()), key: of(id), timeout: 2 * LONG };
        assert_eq!(ask(&mut real, touch, 5), Outcome::Done);
        assert_eq!(reserved(&mut real, id, 5), [], "it is held");
    }
    assert_eq!(store.counts(), (commits, syncs), "nothing is stored, and nothing synced");
    store.crash(0);
    let mut real = start(&store, 5);
    assert_eq!(browsed(&mut real, BrowsedState::Ready, 5), [(ready, Vec::new())]);
    assert_eq!(browsed(&mut real, BrowsedState::Delayed, 5), [(delayed, Vec::new())]);
    assert_eq!(browsed(&mut real, BrowsedState::Dead, 5), [(dead, b"no such host".to_vec())]);
    assert_eq!(shown(&mut real, delayed, 5).left, LONG - 5);
}

/// The record that is stored with a reservation says that the job is ready.
#[test]
fn a_job_that_comes_and_is_reserved_in_one_batch_is_ready_after_a_crash() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let queue = || real.family.queue(b"a");
    let batch = vec![(queue(), push(AddTerms::default())), (queue(), next(&real, &[b"a"], 0))];
    let answers = real.commit(batch, 0);
    let [ReadAnswer::Plain(added), ReadAnswer::Plain(granted)] = [&answers[0].1, &answers[1].1] else { panic!() };
    let id = added.added().unwrap();
    assert_eq!(leased(granted), [(id, 1)]);
    store.crash(0);
    let mut real = start(&store, 0);
    assert_eq!(taken(&mut real, 0), [(id, 1)]);
}

#[test]
fn a_place_in_memory_that_is_used_again_in_one_batch_is_that_of_the_new_job_alone() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let old = pushed(&mut real, AddTerms::default(), 0);
    ask(&mut real, reserve(old), 0);
    assert_eq!(ask(&mut real, end(old, ReservationEnd::Buried { class: 3 }), 0), Outcome::Died);
    let queue = || real.family.queue(b"a");
    let all: Arc<[Box<[u8]>]> = Arc::from([Box::from(&b"jobs/"[..])]);
    let by_id = real.family.queue_of(old, &all);
    let show = || Request::Show { key: of(old) };
    let delete = Request::Delete { key: of(old), holder: holder() };
    let batch = vec![(queue(), delete), (queue(), push(AddTerms::default())), (queue(), show()), (by_id, show())];
    let answers: Vec<ReadAnswer> = real.commit(batch, 9).into_iter().map(|(_, answer)| answer).collect();
    let plain = ReadAnswer::Plain;
    assert_eq!(
        [&answers[0], &answers[2], &answers[3]],
        [&plain(Outcome::Done), &plain(Outcome::Refused), &plain(Outcome::Refused)]
    );
    let ReadAnswer::Plain(Outcome::Added(new)) = answers[1] else { panic!("{answers:?}") };
    for _ in 0..2 {
        let job = shown(&mut real, new, 9);
        assert_eq!((job.state, job.class, job.buries, job.reserves, job.age), (JobState::Ready, USUAL_CLASS, 0, 0, 0));
        assert_eq!(ask(&mut real, show(), 9), Outcome::Refused);
        assert_eq!(real.ask(real.family.queue_of(new, &all), Request::Has { key: of(new) }, 9), Outcome::Found(None));
        real = start(&store, 9);
    }
}

/// A death takes the place in the order of deaths, and a job that comes back has its old place all the same.
#[test]
fn a_dead_job_that_is_reserved_and_given_back_stands_where_it_stood() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let id = pushed(&mut real, AddTerms::default(), 0);
    let place = |expected| {
        let mut found = None;
        store.clone().take(Space::Tasks, &mut |_, bytes| {
            let record = TaskRecord::decode(bytes).unwrap();
            assert_eq!(record.state, expected);
            found = Some(record.position);
        });
        found.unwrap()
    };
    let first = place(StateRecord::Ready);
    reserved(&mut real, id, 0);
    assert_eq!(ask(&mut real, end(id, ReservationEnd::Buried { class: USUAL_CLASS }), 0), Outcome::Died);
    assert_ne!(place(StateRecord::Dead), first);
    reserved(&mut real, id, 0);
    assert_eq!(ask(&mut real, end(id, release(0)), 0), Outcome::Done);
    assert_eq!(place(StateRecord::Ready), first);
}

// ---------------------------------------------------------------------------------------------------------------- ends

#[test]
fn a_job_that_is_deleted_is_done_if_its_connection_held_it_and_removed_if_nobody_did() {
    let mut real = start(&FakeDisk::new(), 0);
    let ids = [(); 3].map(|()| pushed(&mut real, AddTerms::default(), 0));
    reserved(&mut real, ids[0], 0);
    let delete = |id, holder| Request::Delete { key: of(id), holder };
    assert_eq!(ask(&mut real, delete(ids[0], Family::holder(8)), 0), Outcome::Refused);
    assert_eq!(ask(&mut real, delete(ids[0], holder()), 0), Outcome::Done);
    assert_eq!(ask(&mut real, delete(ids[1], holder()), 0), Outcome::Done);
    assert_eq!(ask(&mut real, delete(ids[1], holder()), 0), Outcome::Refused, "it is gone");
    let counts = real.tasks.metrics().families().pop().unwrap().counts();
    assert_eq!((counts.ready, counts.ever.done, counts.ever.removed), (1, 1, 1));
}

#[test]
fn a_reservation_that_runs_out_or_whose_connection_is_gone_has_failed_and_counts() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let tries = Some(NonZeroU32::new(2));
    let id = pushed(&mut real, AddTerms { tries, lease: Some(50), ..AddTerms::default() }, 0);
    assert_eq!(taken(&mut real, 0), [(id, 1)]);
    assert_eq!(taken(&mut real, 49), []);
    assert_eq!(browsed(&mut real, BrowsedState::Ready, 50), [(id, b"lease ran out".to_vec())]);
    // A crash does not undo the failure.
    store.crash(0);
    let mut real = start(&store, 60);
    let job = shown(&mut real, id, 60);
    assert_eq!((job.reserves, job.timeouts, job.releases, job.age), (1, 1, 0, 60));
    assert_eq!(taken(&mut real, 60), [(id, 2)]);
    assert_eq!(ask(&mut real, end(id, ReservationEnd::Closed), 61), Outcome::Died, "it was the last try");
    assert_eq!(browsed(&mut real, BrowsedState::Dead, 61), [(id, b"connection closed".to_vec())]);
    let job = shown(&mut real, id, 61);
    assert_eq!((job.state, job.reserves, job.timeouts, job.buries), (JobState::Buried, 2, 1, 1));
    let ever = real.tasks.metrics().families().pop().unwrap().counts().ever;
    assert_eq!((ever.lent, ever.failed, ever.ran_out), (1, 1, 0), "since the start");
}

#[test]
fn a_connection_that_is_gone_gives_its_job_back_at_once_unless_there_is_a_backoff() {
    let mut real = start(&FakeDisk::new(), 0);
    let usual = pushed(&mut real, AddTerms::default(), 0);
    let backoff = Some(Backoff { first: 30, most: 30 });
    let slow = pushed(&mut real, AddTerms { backoff, ..AddTerms::default() }, 0);
    for id in [usual, slow] {
        ask(&mut real, reserve(id), 0);
        assert_eq!(ask(&mut real, end(id, ReservationEnd::Closed), 0), Outcome::Done);
    }
    assert_eq!(taken(&mut real, 0), [(usual, 2)]);
    assert_eq!(taken(&mut real, 29), []);
    assert_eq!(taken(&mut real, 30), [(slow, 2)]);
}

#[test]
fn a_reserved_job_that_cannot_be_read_is_set_aside_for_a_pause_and_its_try_does_not_count() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let id = pushed(&mut real, AddTerms::default(), 0);
    ask(&mut real, reserve(id), 0);
    let unread = |token| Request::SetUnread { token, key: of(id) };
    assert_eq!(ask(&mut real, unread(Family::holder(8)), 0), Outcome::Refused, "another connection holds it");
    assert_eq!(ask(&mut real, unread(holder()), 0), Outcome::Done);
    let job = shown(&mut real, id, 0);
    assert_eq!((job.state, job.reserves, job.buries), (JobState::Buried, 0, 0));
    assert_eq!(reserved(&mut real, id, 999), []);
    assert_eq!(taken(&mut real, 1_000), [(id, 1)]);
    // The bytes of a value that is lost do not come back.
    store.rot(task_key(0, 2));
    let look = Request::Look { key: of(id) };
    assert_eq!(real.commit(vec![(real.family.queue(b"a"), look)], 1_000)[0].1, ReadAnswer::Lost { token: None });
    assert_eq!(ask(&mut real, end(id, release(0)), 1_000), Outcome::Died);
    assert_eq!(browsed(&mut real, BrowsedState::Dead, 1_000), [(id, b"value damaged".to_vec())]);
    assert_eq!(ask(&mut real, reserve(id), 1_000), Outcome::Refused, "it can only be updated or removed");
    assert_eq!(ask(&mut real, Request::Kick { key: of(id) }, 1_000), Outcome::Refused);
}

/// A dead job stays when its time is over, and nobody is lent it.
#[test]
fn a_dead_job_whose_time_is_over_is_not_reserved_and_goes_when_it_is_kicked() {
    let mut real = start(&FakeDisk::new(), 0);
    let id = pushed(&mut real, AddTerms { lifetime: Some(50), ..AddTerms::default() }, 0);
    reserved(&mut real, id, 0);
    assert_eq!(ask(&mut real, end(id, ReservationEnd::Buried { class: 1 }), 0), Outcome::Died);
    assert_eq!(reserved(&mut real, id, 49), [(id, 2)]);
    assert_eq!(ask(&mut real, end(id, ReservationEnd::Buried { class: 1 }), 49), Outcome::Died);
    assert_eq!(reserved(&mut real, id, 50), []);
    assert_eq!(shown(&mut real, id, 50).state, JobState::Buried);
    assert_eq!(ask(&mut real, Request::Kick { key: of(id) }, 50), Outcome::Done);
    assert_eq!(ask(&mut real, Request::Show { key: of(id) }, 50), Outcome::Refused);
}

// -------------------------------------------------------------------------------------------------------------- bounds

/// As with beanstalkd a job that is named by its id is reserved in a queue that pauses.
#[test]
fn a_pause_holds_back_who_takes_the_next_job_and_nobody_who_names_one() {
    let mut real = start(&FakeDisk::new(), 0);
    let [first, second] = [(); 2].map(|()| pushed(&mut real, AddTerms::default(), 0));
    configure(&mut real, QueueChange { pause: Some(100), ..QueueChange::default() }, 0);
    assert_eq!(taken(&mut real, 0), []);
    assert_eq!(reserved(&mut real, second, 0), [(second, 1)]);
    assert_eq!(real.commit(vec![(real.family.queue(b"a"), next(&real, &[b"a"], u64::MAX))], 0), []);
    assert_eq!(real.commit(Vec::new(), 99), []);
    let answers = real.commit(Vec::new(), 100);
    let [(_, ReadAnswer::Plain(granted))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(leased(granted), [(first, 1)], "the wait goes on until the pause is over");
}

#[test]
fn reservations_count_for_the_rate_of_their_queue_over_a_start() {
    let store = FakeDisk::new();
    let mut real = start(&store, 0);
    let ids = [(); 4].map(|()| pushed(&mut real, AddTerms::default(), 0));
    configure(&mut real, QueueChange { rate: Some(Rate::of(1, 100, 2)), ..QueueChange::default() }, 0);
    assert_eq!(taken(&mut real, 0), [(ids[0], 1)]);
    assert_eq!(reserved(&mut real, ids[2], 0), [(ids[2], 1)]);
    store.crash(0);
    let mut real = start(&store, 50);
    assert_eq!(taken(&mut real, 50), [], "the burst was lent before");
    assert_eq!(reserved(&mut real, ids[3], 99), []);
    assert_eq!(reserved(&mut real, ids[3], 100), [(ids[3], 1)]);
    assert_eq!(taken(&mut real, 199), []);
    assert_eq!(taken(&mut real, 200), [(ids[0], 1)]);
}

/// A job that was named by its id was lent beyond the limit of its group.
#[test]
fn at_most_the_limit_of_a_group_is_reserved_also_by_id() {
    let mut real = start(&FakeDisk::new(), 0);
    configure(&mut real, QueueChange { group_limit: Some(NonZeroU32::new(1)), ..QueueChange::default() }, 0);
    let of_group = |group: &[u8], delay| AddTerms { group: group.into(), delay, ..AddTerms::default() };
    let [first, second] = [(); 2].map(|()| pushed(&mut real, of_group(b"acme", 0), 0));
    let delayed = pushed(&mut real, of_group(b"acme", LONG), 0);
    let other = pushed(&mut real, of_group(b"other", 0), 0);
    assert_eq!(reserved(&mut real, first, 0), [(first, 1)]);
    assert_eq!([second, delayed].map(|id| ask(&mut real, reserve(id), 0)), [Outcome::Refused, Outcome::Refused]);
    assert_eq!(taken(&mut real, 0), [(other, 1)]);
    assert_eq!(taken(&mut real, 0), [], "both groups are full");
    assert_eq!(ask(&mut real, end(first, ReservationEnd::Buried { class: 1 }), 0), Outcome::Died);
    assert_eq!(reserved(&mut real, delayed, 0), [(delayed, 1)]);
    assert_eq!(ask(&mut real, Request::Delete { key: of(delayed), holder: holder() }, 0), Outcome::Done);
    assert_eq!(reserved(&mut real, first, 0), [(first, 2)], "the dead one has the place");
}

/// It waited beside a job that was ready, until something else changed in that queue.
#[test]
fn who_comes_behind_those_that_wait_for_the_next_batch_is_served_by_it() {
    let mut real = start(&FakeDisk::new(), 0);
    let b = real.family.queue(b"b");
    let Outcome::Added(id) = real.ask(b.clone(), push(AddTerms::default()), 0) else { panic!("it is added") };
    assert_eq!(real.commit(vec![(b.clone(), next(&real, &[b"a"], u64::MAX))], 0), []);
    let mut batch = vec![(b.clone(), next(&real, &[b"none"], 0)); LEASES_PER_BATCH];
    batch.push((b, next(&real, &[b"a", b"b"], u64::MAX)));
    let last = batch.len() as u64 + 1;
    let answers = real.commit(batch, 0);
    assert!(answers.iter().all(|(number, _)| *number < last), "the leases of the batch are used up");
    let answers = real.commit(Vec::new(), 0);
    let [(number, ReadAnswer::Plain(granted))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((*number, leased(granted)), (last, vec![(id, 1)]));
}

#[test]
fn a_peek_shows_the_value_of_the_batch_and_of_the_store() {
    let mut real = start(&FakeDisk::new(), 0);
    let queue = || real.family.queue(b"a");
    let peek = || Request::Peek { state: BrowsedState::Ready };
    let answers = real.commit(vec![(queue(), push(AddTerms::default())), (queue(), peek())], 0);
    let ReadAnswer::Plain(Outcome::Added(id)) = answers[0].1 else { panic!("{answers:?}") };
    let expected = Outcome::Peeked { key: of(id), payload: Payload::Fresh(Value::from(&b"v"[..])) };
    assert_eq!(answers[1].1, ReadAnswer::Plain(expected.clone()));
    assert_eq!(ask(&mut real, peek(), 0), expected);
}
