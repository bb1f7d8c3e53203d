//! Queues of a family compared with a model: all answers, all metrics, and the content of the store.

use std::collections::BTreeMap;

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::{collection::vec, sample::select};

use super::{ReadAnswer, RecordingSink, at};
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{AddsRefused, Space, Store, Value};
use crate::tasks::record::task_of_key;
use crate::tasks::{
    Committer, Family, LeaseOrder, Outcome, Policy, QueueChange, QueueName, Request, Settlement, Submission, Tasks,
    Ticket, open,
};

const PREFIX: &[u8] = b"jobs/";

/// The committer with one family.
struct RealFamily {
    store: FakeDisk,
    sink: RecordingSink,
    family: Family,
    committer: Committer,
    tasks: Tasks,
}

impl RealFamily {
    fn open(store: FakeDisk, now: u64) -> Self {
        let (tasks, mut committer) = open(Box::new(store.clone()), at(now)).unwrap();
        let sink = RecordingSink::default();
        committer.sink(Box::new(sink.clone()));
        let family = committer.family(PREFIX, LeaseOrder::Fifo, Policy::Always).unwrap();
        Self { store, sink, family, committer, tasks }
    }

    fn commit(&mut self, requests: Vec<(QueueName, Request)>, now: u64) -> Vec<ReadAnswer> {
        let ticket = Ticket { sink: 0, number: 0 };
        let submissions = requests.into_iter().map(|(queue, request)| Submission { queue, ticket, request });
        self.tasks.submit(submissions.collect());
        self.committer.batch(at(now)).unwrap();
        assert_eq!(self.store.unsynced(), 0, "answered before it was on disk");
        std::mem::take(&mut *self.sink.0.lock()).into_iter().map(|(_, answer)| answer).collect()
    }

    /// The number of queues, of ready tasks and of leased tasks, from the metrics.
    fn metrics(&self) -> [u64; 3] {
        let family = self.tasks.metrics().families().pop().unwrap();
        [family.queues(), family.counts().ready, family.counts().leased]
    }

    fn records(&self, space: Space, prefix: &[u8]) -> u64 {
        let mut count = 0;
        self.store.clone().take(space, &mut |key, _| count += u64::from(key.starts_with(prefix)));
        count
    }
}

#[derive(Clone, Debug)]
struct ModelJob {
    id: u64,
    value: u8,
    /// `Some` while the job is leased.
    deadline: Option<u64>,
}

/// The queues of the model: jobs in their order.
type ModelFamily = BTreeMap<u8, Vec<ModelJob>>;

#[derive(Clone, Debug)]
enum FamilyRequest {
    Push(u8),
    Lease(u64),
    /// The task that was pushed this many before the last.
    Finish(usize),
    Has(usize),
}

#[derive(Clone, Debug)]
enum FamilyOperation {
    Commit(Vec<(u8, FamilyRequest)>),
    Wait(u64),
    Crash,
}

fn input() -> impl Strategy<Value = (u8, FamilyRequest)> {
    let input = prop_oneof![
        3 => any::<u8>().prop_map(FamilyRequest::Push),
        4 => select(vec![0_u64, 1, 5, 20, 100, u64::MAX]).prop_map(FamilyRequest::Lease),
        4 => (0_usize..8).prop_map(FamilyRequest::Finish),
        1 => (0_usize..8).prop_map(FamilyRequest::Has),
    ];
    (select(vec![b'a', b'a', b'a', b'b', b'c']), input)
}

fn operation() -> impl Strategy<Value = FamilyOperation> {
    prop_oneof![
        8 => vec(input(), 1..6).prop_map(FamilyOperation::Commit),
        3 => (0_u64..40).prop_map(FamilyOperation::Wait),
        1 => Just(FamilyOperation::Crash),
    ]
}

/// The request, and the model's answer to it. `ids` are those granted so far.
fn answer(plain: &mut ModelFamily, name: u8, input: &FamilyRequest, now: u64, ids: &[u64]) -> (Request, ReadAnswer) {
    let jobs = plain.entry(name).or_default();
    let id = |ago: &usize| ids.len().checked_sub(ago + 1).map_or(u64::MAX, |at| ids[at]);
    let key = |id: u64| Box::from(id.to_be_bytes());
    let (request, outcome) = match input {
        FamilyRequest::Push(value) => {
            (Request::Push { value: Value::from(&[*value][..]), terms: None }, Outcome::Added(0))
        }
        FamilyRequest::Lease(timeout) => {
            let request = Request::Lease { timeout: *timeout, wait: false };
            if let Some(job) = jobs.iter_mut().find(|job| job.deadline.is_none()) {
                job.deadline = Some(now.saturating_add(*timeout));
                let (key, value) = (job.id.to_be_bytes().to_vec(), vec![job.value]);
                return (request, ReadAnswer::Leased { token: 0, key, value });
            }
            (request, Outcome::Refused)
        }
        FamilyRequest::Finish(ago) => {
            let index = jobs.iter().position(|job| job.id == id(ago) && job.deadline.is_some());
            let gone = index.map(|index| jobs.remove(index)).is_some();
            let outcome = if gone { Outcome::Done } else { Outcome::Refused };
            (Request::Finish { key: key(id(ago)) }, outcome)
        }
        FamilyRequest::Has(ago) => {
            let there = jobs.iter().any(|job| job.id == id(ago));
            let outcome = if there { Outcome::Found(None) } else { Outcome::Refused };
            (Request::Has { key: key(id(ago)) }, outcome)
        }
    };
    (request, ReadAnswer::Plain(outcome))
}

/// Compares each answer. Within a batch, each request must see the changes of those before it.
fn compare(operations: &[FamilyOperation]) {
    let mut now = 1_000_000;
    let mut real = RealFamily::open(FakeDisk::new(), now);
    let mut plain = ModelFamily::new();
    let (mut ids, mut last) = (Vec::new(), 0);
    for operation in operations {
        match operation {
            FamilyOperation::Wait(millis) => now += millis,
            FamilyOperation::Crash => {
                real.store.crash(0);
                real = RealFamily::open(real.store, now);
            }
            FamilyOperation::Commit(_) => {}
        }
        let inputs = if let FamilyOperation::Commit(inputs) = operation { &inputs[..] } else { &[] };
        for job in plain.values_mut().flatten() {
            job.deadline = job.deadline.filter(|deadline| *deadline > now);
        }
        // The committer assigns the numbers of tasks that are pushed in this batch. The model knows them only after the
        // batch.
        let known = ids.clone();
        let mut pushed = Vec::new();
        let (mut requests, mut expected) = (Vec::new(), Vec::new());
        for (name, input) in inputs {
            let (request, answer) = answer(&mut plain, *name, input, now, &known);
            if let FamilyRequest::Push(value) = input {
                pushed.push(*name);
                plain.get_mut(name).unwrap().push(ModelJob { id: 0, value: *value, deadline: None });
            }
            requests.push((real.family.queue(&[*name]), request));
            expected.push(answer);
        }
        let answers = real.commit(requests, now);
        let mut pushed = pushed.into_iter();
        for number in answers.iter().filter_map(number_of) {
            assert!(number > last, "{number} after {last}");
            last = number;
            let job = plain.get_mut(&pushed.next().unwrap()).unwrap().iter_mut().find(|job| job.id == 0);
            job.unwrap().id = number;
            ids.push(number);
        }
        // A task that is pushed and leased in one batch is leased under a number that the model does not know yet.
        let same = answers
            .iter()
            .zip(&expected)
            .all(|(answer, expected)| plainly(answer, &known) == plainly(expected, &known));
        assert!(same && answers.len() == expected.len(), "{operation:?}: {answers:?}, and not {expected:?}");
        check_what_is_left(&real, &mut plain);
    }
}

fn number_of(answer: &ReadAnswer) -> Option<u64> {
    match answer {
        ReadAnswer::Plain(Outcome::Added(number)) => Some(*number),
        _ => None,
    }
}

/// An answer without the parts that the model cannot know: tokens and new numbers.
fn plainly(answer: &ReadAnswer, known: &[u64]) -> ReadAnswer {
    match answer {
        ReadAnswer::Plain(Outcome::Added(_)) => ReadAnswer::Plain(Outcome::Added(0)),
        ReadAnswer::Leased { key, value, .. } => {
            let id = u64::from_be_bytes(key[..].try_into().unwrap());
            let key = if known.contains(&id) { key.clone() } else { Vec::new() };
            ReadAnswer::Leased { token: 0, key, value: value.clone() }
        }
        other => other.clone(),
    }
}

/// Checks that a queue exists exactly as long as it has a task, in the metrics and in the store.
fn check_what_is_left(real: &RealFamily, plain: &mut ModelFamily) {
    plain.retain(|_, jobs| !jobs.is_empty());
    let jobs = || plain.values().flatten();
    let leased = jobs().filter(|job| job.deadline.is_some()).count() as u64;
    let (queues, all) = (plain.len() as u64, jobs().count() as u64);
    assert_eq!(real.metrics(), [queues, all - leased, leased]);
    assert_eq!(real.records(Space::Meta, b"queue"), queues);
    assert_eq!((real.records(Space::Tasks, b""), real.records(Space::Values, b"")), (all, all));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queues_that_come_and_go_do_as_the_model_does(operations in vec(operation(), 1..60)) {
        compare(&operations);
    }
}

#[test]
fn a_few_of_many_queues_are_listed_and_an_index_is_used_again() {
    let mut real = RealFamily::open(FakeDisk::new(), 0);
    let name = |real: &RealFamily, number: u32| real.family.queue(&number.to_be_bytes());
    let push = || Request::Push { value: Value::from(&b"v"[..]), terms: None };
    let requests = (0..1_000).map(|number| (name(&real, number), push())).collect();
    real.commit(requests, 0);
    let listed = |real: &RealFamily| real.tasks.metrics().queues().len();
    assert_eq!((real.metrics(), listed(&real)), ([1_000, 1_000, 0], 100));
    for number in 0..1_000 {
        let leased = real.commit(vec![(name(&real, number), Request::Lease { timeout: 10, wait: false })], 0);
        let ReadAnswer::Leased { key, .. } = &leased[0] else { panic!("{leased:?}") };
        real.commit(vec![(name(&real, number), Request::Finish { key: key[..].into() })], 0);
    }
    assert_eq!((real.metrics(), listed(&real)), ([0, 0, 0], 0));
    real.commit(vec![(name(&real, 7), push())], 0);
    let mut keys = Vec::new();
    real.store.clone().take(Space::Tasks, &mut |key, _| keys.push(key.to_vec()));
    assert!(keys.len() == 1 && keys[0][..4] < 1_000_u32.to_be_bytes()[..], "{keys:?}");
    assert_eq!(real.metrics(), [1, 1, 0]);
}

/// A repair may find a record of a finished task. It must not become a task of the queue that has the number now.
#[test]
fn the_numbers_of_a_removed_queues_tasks_are_not_given_again() {
    let store = FakeDisk::new();
    let mut real = RealFamily::open(store.clone(), 0);
    let push = || Request::Push { value: Value::from(&b"v"[..]), terms: None };
    let numbers = |real: &RealFamily| {
        let mut numbers = Vec::new();
        real.store.clone().take(Space::Tasks, &mut |key, _| numbers.push(task_of_key(key).unwrap()));
        numbers
    };
    let finish = |real: &mut RealFamily, name: &[u8]| {
        let lease = (real.family.queue(name), Request::Lease { timeout: 10, wait: false });
        let leased = real.commit(vec![lease], 0);
        let ReadAnswer::Leased { key, .. } = &leased[0] else { panic!("{leased:?}") };
        real.commit(vec![(real.family.queue(name), Request::Finish { key: key[..].into() })], 0);
    };
    real.commit(vec![(real.family.queue(b"a"), push()), (real.family.queue(b"a"), push())], 0);
    let (queue, first) = numbers(&real)[0];
    finish(&mut real, b"a");
    finish(&mut real, b"a");
    real.commit(vec![(real.family.queue(b"b"), push())], 0);
    assert_eq!(numbers(&real), [(queue, first + 2)]);
    finish(&mut real, b"b");
    assert_eq!(real.metrics(), [0, 0, 0]);
    store.crash(usize::MAX);
    let mut real = RealFamily::open(store, 0);
    real.commit(vec![(real.family.queue(b"c"), push())], 0);
    assert_eq!(numbers(&real), [(queue, first + 3)], "also after a restart without a queue");
}

#[test]
fn a_family_of_another_order_is_refused() {
    let store = FakeDisk::new();
    let mut real = RealFamily::open(store.clone(), 0);
    real.commit(vec![(real.family.queue(b"a"), Request::Push { value: Value::from(&b"v"[..]), terms: None })], 0);
    let (_tasks, mut committer) = open(Box::new(store), at(0)).unwrap();
    assert!(committer.family(PREFIX, LeaseOrder::Priority, Policy::Always).is_err());
    assert!(committer.queue(b"jobs/a", LeaseOrder::Priority, Policy::Always).is_err());
}

#[test]
fn a_queue_that_does_not_exist_answers_as_an_empty_one() {
    let mut real = RealFamily::open(FakeDisk::new(), 0);
    let empty = real.committer.queue(b"empty", LeaseOrder::Fifo, Policy::Always).unwrap();
    let key = || Box::from(*b"key");
    let value = || Value::from(&b"v"[..]);
    let requests = [
        Request::Update { key: key(), value: value() },
        Request::Lease { timeout: 1, wait: false },
        Request::Settle { token: 1, key: key(), value: None, how: Settlement::Drop },
        Request::Extend { token: Some(1), key: key(), timeout: 1 },
        Request::Undo { token: 1, key: key() },
        Request::Nothing,
        Request::Refuse,
        Request::Withdraw { tickets: vec![7] },
        Request::Count,
        Request::CountAll,
        Request::Look { key: key() },
        Request::LookDropped { key: key() },
        Request::Has { key: key() },
        Request::Sync,
        Request::Remove { key: key() },
        Request::Finish { key: key() },
    ];
    for request in requests {
        let missing = real.family.queue(b"missing");
        let answers = real.commit(vec![(missing, request.clone()), (empty.clone(), request.clone())], 0);
        assert!(answers.len() == 2 && answers[0] == answers[1], "{request:?}: {answers:?}");
    }
    assert_eq!(real.metrics(), [0, 0, 0], "none of them creates the queue");
}

/// Settings of new queues filled the disk until the record of a lease or of its end had no room.
#[test]
fn without_room_no_queue_is_set_up_and_others_are_set() {
    let store = FakeDisk::new();
    let mut real = RealFamily::open(store.clone(), 0);
    let mut ask = |name: &[u8], request| real.commit(vec![(real.family.queue(name), request)], 0).pop().unwrap();
    let pause =
        |millis| Request::Configure { change: Box::new(QueueChange { pause: Some(millis), ..QueueChange::default() }) };
    let push = |bytes| Request::Push { value: Value::from(vec![7; bytes]), terms: None };
    let done = || ReadAnswer::Plain(Outcome::Done);
    assert_eq!(ask(b"set", pause(1_000)), done());
    ask(b"filled", push(1));
    store.refuse_adds(Some(AddsRefused::NoSegment));
    assert_eq!(ask(b"new", pause(1_000)), ReadAnswer::Plain(Outcome::NoRoom { bytes: 512 }));
    assert_eq!(ask(b"new", pause(0)), done(), "it sets nothing");
    for name in [&b"set"[..], b"filled"] {
        assert_eq!(ask(name, pause(2_000)), done(), "the log has reserved its room");
    }
    store.refuse_adds(None);
    assert_eq!(ask(b"new", pause(1_000)), done());
    store.bound_adds(128 + 10);
    let long = [b'q'; 200];
    assert_eq!(ask(&long, push(1)), ReadAnswer::Plain(Outcome::NoRoom { bytes: 1 }), "its name takes room");
    assert!(matches!(ask(b"new", push(10)), ReadAnswer::Plain(Outcome::Added(_))));
}
