//! Commits of a frontend by itself: only while the committer is idle, in one order with the committer's, and with the
//! answers of other frontends delivered to their sinks.

use super::{ReadAnswer, RealQueues, RecordingSink, add, at};
use crate::clock::ClockReading;
use crate::limits::{INBOX_MAX, SUBMIT_MAX, TASKS_PER_BATCH, WAITERS_MAX};
use crate::store::AddsRefused;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{
    CommitAttempt, Delivery, LeaseOrder, Outcome, Policy, ReplySink, Request, RoomWait, Submission, Ticket,
};

fn open(store: &FakeDisk) -> RealQueues {
    RealQueues::open(store.clone(), LeaseOrder::Fifo, Policy::Always, 0)
}

fn submission(real: &RealQueues, sink: usize, number: u64, request: Request) -> Submission {
    Submission { queue: real.queue.clone(), ticket: Ticket { sink, number }, request }
}

/// The answers of a commit of the frontend with sink 0.
fn committed(real: &RealQueues, requests: Vec<Submission>) -> Vec<(u64, Outcome)> {
    match real.tasks.try_commit(0, requests, || at(0)).unwrap() {
        CommitAttempt::Committed(delivery) => delivery.map_or_else(Vec::new, |delivery| delivery.answers),
        CommitAttempt::Busy(requests) => panic!("the committer is idle: {requests:?}"),
    }
}

#[test]
fn a_frontend_commits_by_itself_and_gets_its_own_answers_back() {
    let store = FakeDisk::new();
    let mut real = open(&store);
    let other = RecordingSink::default();
    assert_eq!(real.committer.sink(Box::new(other.clone())), 1);
    let wait = submission(&real, 1, 5, Request::Lease { timeout: 10, wait: true });
    real.tasks.submit(vec![wait]);
    real.committer.batch(at(0)).unwrap();
    let answers = committed(&real, vec![submission(&real, 0, 7, add("a")), submission(&real, 0, 8, Request::Count)]);
    assert_eq!(answers, [(7, Outcome::Added(1)), (8, Outcome::Counted(0))]);
    assert_eq!(store.unsynced(), 0, "answered before it was on disk");
    assert!(real.sink.0.lock().is_empty(), "the own answers are returned alone");
    let delivered = std::mem::take(&mut *other.0.lock());
    assert!(matches!(&delivered[..], [(5, ReadAnswer::Leased { key, .. })] if key == b"a"), "{delivered:?}");
}

#[test]
fn a_frontend_gets_its_requests_back_until_all_submitted_ones_are_answered() {
    let mut real = open(&FakeDisk::new());
    real.tasks.submit(vec![submission(&real, 0, 0, add("first"))]);
    let later = vec![submission(&real, 0, 1, add("second"))];
    let CommitAttempt::Busy(back) = real.tasks.try_commit(0, later.clone(), || at(0)).unwrap() else {
        panic!("committed before the request that was submitted first")
    };
    assert_eq!(back, later);
    real.committer.batch(at(0)).unwrap();
    assert_eq!(committed(&real, back), [(1, Outcome::Added(2))]);
    assert_eq!(real.sink.0.lock()[..], [(0, ReadAnswer::Plain(Outcome::Added(1)))]);
}

/// A sink that tries a commit of its own while another batch is being answered.
struct Meddling(crate::tasks::Tasks, Submission);

impl ReplySink for Meddling {
    fn deliver(&self, _: Delivery) {
        let attempt = self.0.try_commit(0, vec![self.1.clone()], || at(0)).unwrap();
        assert!(matches!(attempt, CommitAttempt::Busy(_)), "two commits at once");
    }

    fn notify_room(&self) {}
}

#[test]
fn no_frontend_commits_while_a_commit_is_under_way() {
    let mut real = open(&FakeDisk::new());
    let meddling = Meddling(real.tasks.clone(), submission(&real, 0, 0, add("b")));
    let sink = real.committer.sink(Box::new(meddling));
    assert_eq!(committed(&real, vec![submission(&real, sink, 0, add("a"))]), []);
    assert_eq!(committed(&real, vec![submission(&real, 0, 0, Request::Count)]), [(0, Outcome::Counted(1))]);
}

#[test]
fn after_a_failed_commit_a_frontend_gets_no_answer() {
    let store = FakeDisk::new();
    let real = open(&store);
    store.fail_after(0);
    assert!(real.tasks.try_commit(0, vec![submission(&real, 0, 0, add("a"))], || at(0)).is_err());
    assert_eq!(committed(&real, vec![submission(&real, 0, 1, Request::Count)]), []);
}

#[test]
fn a_batch_takes_a_bounded_number_of_requests_from_the_inbox() {
    let mut real = open(&FakeDisk::new());
    let burst = vec![submission(&real, 0, 0, Request::Nothing); SUBMIT_MAX];
    let bursts = TASKS_PER_BATCH / 2 / SUBMIT_MAX;
    (0..=bursts).for_each(|_| real.tasks.submit(burst.clone()));
    let mut answered = || {
        real.committer.batch(at(0)).unwrap();
        std::mem::take(&mut *real.sink.0.lock()).len()
    };
    assert_eq!((answered(), answered()), (bursts * SUBMIT_MAX, SUBMIT_MAX));
}

#[test]
fn a_lease_beyond_the_bound_of_waiting_ones_is_refused() {
    let mut real = open(&FakeDisk::new());
    let wait = || Request::Lease { timeout: 10, wait: true };
    assert_eq!(real.commit(vec![wait(); WAITERS_MAX], 0).unwrap(), []);
    assert_eq!(real.commit_one(wait(), 0), ReadAnswer::Plain(Outcome::Refused));
}

/// A clock whose readings are these, in milliseconds, in turn.
fn readings(millis: &'static [u64]) -> impl FnMut() -> ClockReading {
    let mut millis = millis.iter();
    move || at(*millis.next().unwrap())
}

#[test]
fn after_a_slow_commit_frontends_commit_only_when_the_committer_found_the_disk_fast() {
    let mut real = open(&FakeDisk::new());
    let requests = |real: &RealQueues, key| vec![submission(real, 0, 0, add(key))];
    let attempt = |real: &RealQueues, key, millis| {
        let attempt = real.tasks.try_commit(0, requests(real, key), readings(millis)).unwrap();
        matches!(attempt, CommitAttempt::Committed(_))
    };
    assert!(attempt(&real, "a", &[0, 20]), "this one was fast enough");
    assert!(attempt(&real, "b", &[20, 220]), "this one was slow");
    assert!(!attempt(&real, "c", &[]), "and no other frontend tries");
    real.tasks.submit(requests(&real, "c"));
    real.committer.batch(at(300)).unwrap();
    assert!(!attempt(&real, "d", &[]), "a fast commit within the pause does not end it");
    real.committer.batch(at(10_220)).unwrap();
    assert!(!attempt(&real, "d", &[]), "the committer wrote nothing");
    real.tasks.submit(requests(&real, "d"));
    real.committer.batch(at(10_220)).unwrap();
    assert!(attempt(&real, "e", &[10_221, 10_222]));
}

#[test]
fn a_frontend_does_not_wait_for_a_committer_that_takes_nothing() {
    let real = open(&FakeDisk::new());
    (0..=4 * INBOX_MAX).for_each(|_| real.tasks.submit(vec![]));
    assert!(!real.tasks.has_room(0, &mut RoomWait::default()), "it takes no more requests");
}

#[test]
fn a_probe_writes_and_syncs_a_record_although_nothing_has_changed() {
    let store = FakeDisk::new();
    let mut real = open(&store);
    let written = |real: &RealQueues| (real.tasks.metrics().commits(), real.tasks.metrics().syncs());
    let (commits, syncs) = written(&real);
    assert_eq!(real.tasks.probe(|| at(0)).unwrap(), Some(Ok(())));
    assert_eq!(written(&real), (commits + 1, syncs + 1));
    real.committer.batch(at(0)).unwrap();
    assert_eq!(written(&real), (commits + 1, syncs + 1), "the next batch is not forced");
    let why = AddsRefused::FreeBytes { free: 1, reserve: 2 };
    store.refuse_adds(Some(why));
    assert_eq!(real.tasks.probe(|| at(0)).unwrap(), Some(Err(why)));
    assert_eq!(written(&real), (commits + 1, syncs + 1), "what is left is for what takes away");
    store.refuse_adds(None);
    store.fail_after(0);
    assert!(real.tasks.probe(|| at(0)).is_err());
    assert_eq!(real.tasks.probe(|| at(0)).unwrap(), None, "the store has failed");
}
