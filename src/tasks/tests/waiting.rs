//! Requests for many tasks, and requests that wait in many queues.

use std::num::NonZeroU32;

use super::{ReadAnswer, RecordingSink, at};
use crate::limits::LEASES_PER_BATCH;
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{Space, Store, Value};
use crate::tasks::engine::waiting::LEASED_BYTES_MAX;
use crate::tasks::{
    AddTerms, Committer, Family, GrantedLease, LeaseOrder, Outcome, Payload, Policy, QueueChange, QueueEnd, QueueName,
    Request, Settlement, Submission, Tasks, Ticket, open,
};

/// The committer with a family of queues. Each request has a ticket of its own.
struct Rig {
    store: FakeDisk,
    sink: RecordingSink,
    family: Family,
    committer: Committer,
    tasks: Tasks,
    submitted: u64,
}

impl Rig {
    fn new() -> Self {
        let store = FakeDisk::new();
        let (tasks, mut committer) = open(Box::new(store.clone()), at(0)).unwrap();
        let sink = RecordingSink::default();
        committer.sink(Box::new(sink.clone()));
        let family = committer.family(b"tasks/", LeaseOrder::Priority, Policy::Always).unwrap();
        Self { store, sink, family, committer, tasks, submitted: 0 }
    }

    fn queue(&self, name: &str) -> QueueName {
        self.family.queue(name.as_bytes())
    }

    fn lease_many(&self, queues: &[&str], count: u32, wait: u64) -> Request {
        let queues = queues.iter().map(|name| self.queue(name)).collect();
        Request::LeaseMany { queues, count, timeout: 1_000, wait }
    }

    /// Commits requests, each about its queue. Returns the answers with the numbers of their requests.
    fn commit(&mut self, requests: Vec<(&str, Request)>, now: u64) -> Vec<(u64, Outcome)> {
        let mut submissions = Vec::new();
        for (name, request) in requests {
            let ticket = Ticket { sink: 0, number: self.submitted };
            self.submitted += 1;
            submissions.push(Submission { queue: self.queue(name), ticket, request });
        }
        self.tasks.submit(submissions);
        self.batch(now)
    }

    fn batch(&mut self, now: u64) -> Vec<(u64, Outcome)> {
        self.committer.batch(at(now)).unwrap();
        let answers = std::mem::take(&mut *self.sink.0.lock());
        answers
            .into_iter()
            .map(|(number, answer)| match answer {
                ReadAnswer::Plain(outcome) => (number, outcome),
                ReadAnswer::Leased { token, key, value } => {
                    let payload = Payload::Fresh(Value::from(value));
                    (number, Outcome::Leased { token, key: key.into(), lent: 1, lease: 1_000, payload })
                }
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn queue_records(&self) -> usize {
        let mut count = 0;
        self.store.clone().take(Space::Meta, &mut |key, _| count += usize::from(key.starts_with(b"queue")));
        count
    }
}

fn add_sized(key: &str, bytes: usize) -> Request {
    Request::Add {
        key: key.as_bytes().into(),
        value: Value::from(&vec![1; bytes][..]),
        end: QueueEnd::Tail,
        terms: None,
    }
}

fn add(key: &str) -> Request {
    add_sized(key, 1)
}

/// Which queues and keys were leased.
fn leased(outcome: &Outcome) -> Vec<(usize, String)> {
    let Outcome::LeasedMany(granted) = outcome else { panic!("{outcome:?}") };
    let name = |lease: &GrantedLease| (lease.queue, String::from_utf8_lossy(&lease.key).into_owned());
    granted.iter().map(name).collect()
}

fn named(list: &[(usize, &str)]) -> Vec<(usize, String)> {
    list.iter().map(|(queue, key)| (*queue, (*key).to_owned())).collect()
}

#[test]
fn many_tasks_come_from_the_queues_in_the_order_of_the_request() {
    let mut rig = Rig::new();
    rig.commit(vec![("b", add("b1")), ("a", add("a1")), ("b", add("b2")), ("a", add("a2"))], 0);
    let request = rig.lease_many(&["a", "none", "b"], 3, 0);
    let answers = rig.commit(vec![("", request)], 0);
    assert_eq!(leased(&answers[0].1), named(&[(0, "a1"), (0, "a2"), (2, "b1")]));
    let request = rig.lease_many(&["a", "b"], 3, 0);
    assert_eq!(leased(&rig.commit(vec![("", request)], 0)[0].1), named(&[(1, "b2")]));
    let request = rig.lease_many(&["a", "b"], 3, 0);
    assert_eq!(rig.commit(vec![("", request)], 0), [(6, Outcome::Refused)]);
}

#[test]
fn the_values_behind_the_first_one_are_bounded_together() {
    let mut rig = Rig::new();
    // With a record and a key each, two have exactly as much as there may be.
    let part = usize::try_from(LEASED_BYTES_MAX).unwrap() / 2 - 65;
    let sizes = [3 * part, part, part, 1];
    let names = ["1", "2", "3", "4"];
    rig.commit(names.iter().zip(sizes).map(|(name, bytes)| ("a", add_sized(name, bytes))).collect(), 0);
    for expected in [&[(0, "1"), (0, "2"), (0, "3")][..], &[(0, "4")]] {
        // In the same batch, and in a later one: the sizes are those of the store.
        let request = rig.lease_many(&["a"], 100, 0);
        assert_eq!(leased(&rig.commit(vec![("", request)], 0)[0].1), named(expected));
    }
}

#[test]
fn a_request_waits_in_all_its_queues_and_leaves_all_of_them() {
    let mut rig = Rig::new();
    let request = rig.lease_many(&["a", "b"], 2, u64::MAX);
    assert_eq!(rig.commit(vec![("", request), ("b", Request::Lease { timeout: 9, wait: true })], 0), []);
    assert_eq!(rig.queue_records(), 0, "who only waits makes nothing durable");
    let answers = rig.commit(vec![("b", add("1")), ("b", add("2")), ("a", add("3"))], 0);
    assert_eq!(leased(&answers[1].1), named(&[(1, "1")]), "the first who waits is the first who is served");
    assert_eq!(answers.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 0, 3, 1, 4]);
    assert_eq!(rig.commit(vec![("a", Request::Count)], 0)[0].1, Outcome::Counted(1), "it waits in `a` no more");
}

#[test]
fn a_wait_ends_in_time_and_behind_a_task_that_comes_at_its_end() {
    let mut rig = Rig::new();
    let request = || Request::LeaseMany { queues: [].into(), count: 1, timeout: 9, wait: 1 };
    assert_eq!(rig.commit(vec![("", request())], 0), [(0, Outcome::Refused)], "of no queue");
    let requests = [rig.lease_many(&["a"], 1, 50), rig.lease_many(&["a", "b"], 1, 50), rig.lease_many(&["b"], 1, 60)];
    assert_eq!(rig.commit(requests.map(|request| ("", request)).to_vec(), 0), []);
    let terms = Some(Box::new(AddTerms { delay: 50, ..AddTerms::default() }));
    let (key, value) = (Box::from(&b"k"[..]), Value::from(&b""[..]));
    rig.commit(vec![("a", Request::Add { key, value, end: QueueEnd::Tail, terms })], 0);
    assert_eq!(rig.batch(49), []);
    let answers = rig.batch(50);
    assert_eq!((leased(&answers[0].1), &answers[1]), (named(&[(0, "k")]), &(2, Outcome::Refused)));
    assert_eq!(answers.len(), 2);
    assert_eq!(rig.batch(60), [(3, Outcome::Refused)]);
    assert_eq!(rig.tasks.metrics().families()[0].queues(), 1, "a queue without a task goes with the last who waits");
}

#[test]
fn who_is_withdrawn_leaves_all_queues() {
    let mut rig = Rig::new();
    let requests = [rig.lease_many(&["a", "b"], 1, 50), rig.lease_many(&["a"], 1, 50)];
    rig.commit(requests.map(|request| ("", request)).to_vec(), 0);
    let answers = rig.commit(vec![("elsewhere", Request::Withdraw { tickets: vec![1, 0, 7] })], 0);
    assert_eq!(answers, [(0, Outcome::Refused), (1, Outcome::Refused), (2, Outcome::Done)]);
    assert_eq!((rig.tasks.metrics().families()[0].queues(), rig.batch(100)), (0, vec![]));
}

/// One batch had all leases that its requests could take: 100,000 requests that wait for 1,024 tasks each.
#[test]
fn a_batch_leases_a_bounded_number_and_goes_on_with_the_others() {
    let mut rig = Rig::new();
    let tasks = LEASES_PER_BATCH + 100;
    let adds = (0..tasks).map(|_| ("a", Request::Push { value: Value::from(&b""[..]), terms: None }));
    let pause =
        |pause| Request::Configure { change: Box::new(QueueChange { pause: Some(pause), ..QueueChange::default() }) };
    rig.commit(vec![("a", pause(u64::MAX))], 0);
    rig.tasks.submit(Vec::new());
    for chunk in adds.collect::<Vec<_>>().chunks(1_000) {
        rig.commit(chunk.to_vec(), 0);
    }
    let waits: Vec<_> = (0..20).map(|_| ("", rig.lease_many(&["a"], 1_000, u64::MAX))).collect();
    assert_eq!(rig.commit(waits, 0), []);
    let mut sizes = Vec::new();
    let mut answers = rig.commit(vec![("a", pause(0))], 0);
    assert_eq!(answers.remove(0).1, Outcome::Done);
    for _ in 0..3 {
        sizes.push(answers.iter().map(|(_, outcome)| leased(outcome).len()).sum::<usize>());
        answers = rig.batch(0);
    }
    assert_eq!(sizes, [LEASES_PER_BATCH, 100, 0]);
}

#[test]
fn many_requests_are_one_batch_and_have_one_answer() {
    let mut rig = Rig::new();
    let many = |requests: Vec<(QueueName, Request)>| ("", Request::Many { requests });
    let (a, b) = (rig.queue("a"), rig.queue("b"));
    rig.commit(vec![("b", add("k"))], 0);
    let (commits, _) = rig.store.counts();
    let answers = rig.commit(vec![many(vec![(a.clone(), add("k")), (b.clone(), add("k")), (b.clone(), add("l"))])], 0);
    let Outcome::Many(outcomes) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!(outcomes.iter().map(|outcome| outcome.added().is_some()).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(rig.store.counts().0, commits + 1);
    let request = rig.lease_many(&["a", "b"], 9, 0);
    let Outcome::LeasedMany(leases) = rig.commit(vec![("", request)], 0).remove(0).1 else { panic!("there are three") };
    assert_eq!(leases.iter().map(|lease| lease.lent).collect::<Vec<_>>(), [1; 3]);
    let token = |index: usize| leases[index].token;
    let key = |index: usize| leases[index].key.clone();
    let settle = |index, how| Request::Settle { token: token(index), key: key(index), value: None, how };
    let requests = vec![
        (a.clone(), settle(0, Settlement::Done)),
        (b.clone(), Request::GiveBack { token: Some(token(1)), key: key(1), delay: Some(10), reason: Box::default() }),
        (b.clone(), Request::Bury { token: token(2), key: key(2), reason: Box::default() }),
        (b, settle(2, Settlement::Done)),
        // What may wait is refused here.
        (a, Request::Lease { timeout: 1, wait: true }),
    ];
    let outcomes = [Outcome::Done, Outcome::Done, Outcome::Done, Outcome::Refused, Outcome::Refused];
    assert_eq!(rig.commit(vec![many(requests)], 0)[0].1, Outcome::Many(outcomes.to_vec()));
    let counts = rig.tasks.metrics().families()[0].counts();
    assert_eq!((counts.delayed, counts.dead, counts.all(), counts.ever.failed), (1, 1, 2, 1));
}

#[test]
fn a_configured_queue_stays_without_tasks_and_its_pause_too() {
    let mut rig = Rig::new();
    let change = QueueChange { tries: Some(Some(NonZeroU32::new(2))), ..QueueChange::default() };
    let pause = QueueChange { pause: Some(100), ..QueueChange::default() };
    let configure = |change| Request::Configure { change: Box::new(change) };
    rig.commit(vec![("a", configure(change)), ("b", configure(pause)), ("b", add("1"))], 0);
    let settle = |token| Request::Settle { token, key: Box::from(&b"1"[..]), value: None, how: Settlement::Done };
    assert_eq!(rig.commit(vec![("b", Request::Lease { timeout: 9, wait: false })], 99)[0].1, Outcome::Refused);
    let request = rig.lease_many(&["b"], 1, 0);
    let Outcome::LeasedMany(leases) = rig.commit(vec![("", request)], 100).remove(0).1 else { panic!("it is over") };
    rig.commit(vec![("b", settle(leases[0].token))], 100);
    assert_eq!(rig.queue_records(), 1, "a queue goes with its last task when its pause is over");
    let reset = QueueChange { tries: Some(None), ..QueueChange::default() };
    rig.commit(vec![("a", configure(reset))], 100);
    assert_eq!((rig.queue_records(), rig.tasks.metrics().families()[0].queues()), (0, 0));
}

#[test]
fn lends_go_round_the_groups_and_a_full_one_is_skipped() {
    let mut rig = Rig::new();
    let of_group = |key: &str, group: &str, class| {
        let terms = AddTerms { group: group.as_bytes().into(), class, ..AddTerms::default() };
        let (key, value) = (key.as_bytes().into(), Value::from(&b""[..]));
        ("a", Request::Add { key, value, end: QueueEnd::Tail, terms: Some(Box::new(terms)) })
    };
    let limit = |limit| {
        let change = QueueChange { group_limit: Some(NonZeroU32::new(limit)), ..QueueChange::default() };
        ("a", Request::Configure { change: Box::new(change) })
    };
    let plain = |key: &str| ("a", add(key));
    let requests = ["x1", "x2", "x3"].map(|key| of_group(key, "x", 7));
    rig.commit(requests.into_iter().chain([of_group("y1", "y", 7), of_group("y2", "y", 7)]).collect(), 0);
    rig.commit(vec![plain("1"), of_group("z1", "z", 8), limit(2)], 0);
    let taken = |rig: &mut Rig, count| {
        let request = rig.lease_many(&["a"], count, 0);
        let outcome = rig.commit(vec![("", request)], 0).remove(0).1;
        let tokens: Vec<u64> = match &outcome {
            Outcome::LeasedMany(leases) => leases.iter().map(|lease| lease.token).collect(),
            _ => return (Vec::new(), Vec::new()),
        };
        (leased(&outcome).into_iter().map(|(_, key)| key).collect::<Vec<_>>(), tokens)
    };
    let (keys, tokens) = taken(&mut rig, 9);
    assert_eq!(keys, ["x1", "y1", "x2", "y2", "z1", "1"], "classes first, then turns; x is full, with x3 left");
    let settle = |token, key: &str, how| Request::Settle { token, key: key.as_bytes().into(), value: None, how };
    assert_eq!(rig.commit(vec![("a", settle(tokens[0], "x1", Settlement::Done))], 0)[0].1, Outcome::Done);
    assert_eq!(taken(&mut rig, 9).0, ["x3"], "a place in the group has come free");
    rig.commit(vec![of_group("x4", "x", 7)], 0);
    assert_eq!(taken(&mut rig, 9).0, [""; 0]);
    rig.commit(vec![limit(3)], 0);
    assert_eq!(taken(&mut rig, 9).0, ["x4"], "a higher limit lets it go on");
}

/// Who waits was asked again only when a task came.
#[test]
fn who_waits_is_asked_again_when_a_place_comes_free_or_a_limit_rises() {
    let mut rig = Rig::new();
    let of_group = |key: &str| {
        let terms = AddTerms { group: Box::from(&b"x"[..]), ..AddTerms::default() };
        let (key, value) = (key.as_bytes().into(), Value::from(&b""[..]));
        ("a", Request::Add { key, value, end: QueueEnd::Tail, terms: Some(Box::new(terms)) })
    };
    let change = |change| ("a", Request::Configure { change: Box::new(change) });
    let limit = |limit| change(QueueChange { group_limit: Some(NonZeroU32::new(limit)), ..QueueChange::default() });
    rig.commit(vec![limit(1), of_group("1"), of_group("2"), of_group("3"), of_group("4")], 0);
    let waits = (0..4).map(|_| ("a", Request::Lease { timeout: 50, wait: true })).collect();
    let token = |answers: &[ReadAnswer]| answers.iter().filter_map(super::token_of).collect::<Vec<_>>();
    let commit = |rig: &mut Rig, requests: Vec<(&str, Request)>, now| {
        let submissions = requests.into_iter().map(|(name, request)| {
            rig.submitted += 1;
            let ticket = Ticket { sink: 0, number: rig.submitted };
            Submission { queue: rig.family.queue(name.as_bytes()), ticket, request }
        });
        let submissions = submissions.collect();
        rig.tasks.submit(submissions);
        rig.committer.batch(at(now)).unwrap();
        std::mem::take(&mut *rig.sink.0.lock()).into_iter().map(|(_, answer)| answer).collect::<Vec<_>>()
    };
    let first = token(&commit(&mut rig, waits, 0));
    assert_eq!(first.len(), 1, "the others wait, with tasks that are ready");
    let undo = Request::Undo { token: first[0], key: Box::from(&b"1"[..]) };
    assert_eq!(token(&commit(&mut rig, vec![("a", undo)], 0)).len(), 1, "the lease is undone");
    assert_eq!(token(&commit(&mut rig, vec![], 50)).len(), 1, "the lease has expired");
    assert_eq!(token(&commit(&mut rig, vec![limit(2)], 60)).len(), 1, "the limit has risen");
}

/// The id of a timer that had come up was used to disarm it, and was the id of a new lease by then: that lease never ended.
#[test]
fn a_lease_that_begins_as_a_wait_ends_runs_out_in_its_time() {
    // The wait that ends is served itself, or another one is served before it is refused.
    for waits_elsewhere in [false, true] {
        let mut rig = Rig::new();
        rig.commit(vec![("a", add("k"))], 0);
        let lease = rig.lease_many(&["a"], 1, 0);
        assert_eq!(leased(&rig.commit(vec![("", lease)], 0)[0].1), named(&[(0, "k")]));
        let until = rig.lease_many(&[if waits_elsewhere { "b" } else { "a" }], 1, 1_000);
        let for_ever = rig.lease_many(&["a"], 1, u64::MAX);
        assert_eq!(rig.commit(vec![("", until)], 0), []);
        if waits_elsewhere {
            assert_eq!(rig.commit(vec![("", for_ever)], 0), []);
        }
        let answers = rig.batch(1_000);
        let served = if waits_elsewhere { 3 } else { 2 };
        let (number, outcome) = answers.iter().find(|(_, outcome)| *outcome != Outcome::Refused).unwrap();
        assert_eq!((*number, leased(outcome)), (served, named(&[(0, "k")])));
        assert_eq!(answers.len(), if waits_elsewhere { 2 } else { 1 });
        let again = rig.lease_many(&["a"], 1, 0);
        assert_eq!(leased(&rig.commit(vec![("", again)], 2_000)[0].1), named(&[(0, "k")]), "its lease is over");
    }
}
