//! Power failures at any moment: after each batch of a history a copy of the store loses its power, and a second committer
//! starts on what is left.
//!
//! ```text
//! batch 1 ─► dump ─► batch 2 ─► dump ─► …       synced: up to batch s       written: up to batch w
//!                                     └► copy ─► the power fails, s … w are left ─► start ─► the dump of that batch?
//! ```
//! A dump shows each task with all that is stored of it, by its state, and the settings of all queues. Two dumps that are
//! equal have lost no task and doubled none, and no task has fewer tries than were seen. A dump that shows a task in two
//! states is refused. In between, the memory is compared with the records in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};
use proptest::{collection::vec, option, sample::select};

use super::{ReadAnswer, RecordingSink, at};
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{Error, Space, Store, TaskKey, Value};
use crate::tasks::record::{StateRecord, TaskRecord};
use crate::tasks::{
    AddTerms, Backoff, Browse, BrowsedState, BrowsedTask, Committer, Family, LeaseOrder, ListedQueue, Outcome, Policy,
    QueueChange, QueueEnd, QueueName, Rate, Request, ReservationEnd, Settlement, Submission, TaskTotals, Tasks, Ticket,
    USUAL_CLASS, open,
};

/// A queue of keys, and two job queues.
const QUEUES: [&[u8]; 3] = [b"tasks", b"jobs/a", b"jobs/b"];
const STATES: [BrowsedState; 5] =
    [BrowsedState::Ready, BrowsedState::Delayed, BrowsedState::Lent, BrowsedState::Dead, BrowsedState::Dropped];
const HOLDER: u64 = 5;

/// The queue and the key of a task.
type TaskName = (usize, Box<[u8]>);

/// What is known of all tasks and queues at one time.
#[derive(Debug, PartialEq)]
struct Dump {
    now: u64,
    tasks: BTreeMap<TaskName, (BrowsedState, BrowsedTask)>,
    records: BTreeMap<TaskKey, Vec<u8>>,
    queues: BTreeMap<Box<[u8]>, ListedQueue>,
}

#[derive(Clone, Debug)]
enum TaskInput {
    /// The key counts in the queue of keys.
    Add(u8, AddTerms),
    Lease(u64),
    /// About one of the tasks that are there, by its place among them.
    About(usize, AboutTask),
    Configure(QueueChange),
}

#[derive(Clone, Debug)]
enum AboutTask {
    GiveBack(Option<u64>, &'static [u8]),
    Bury(&'static [u8]),
    Settle(Settlement),
    Undo,
    Extend(u64),
    Kick,
    Update(u8),
    Remove,
    Finish,
    /// It is reserved, and the reservation ends in the same batch.
    Reserve(ReservationEnd),
}

#[derive(Clone, Debug)]
enum PowerOperation {
    Commit(Vec<(usize, TaskInput)>),
    Wait(u64),
    /// The committer itself loses its power, with a batch that is not stored. So many batches that are not synced are left.
    Fail(Vec<(usize, TaskInput)>, usize),
}

// ---------------------------------------------------------------------------------------------------------- operations

fn terms() -> impl Strategy<Value = AddTerms> {
    let class = select(vec![USUAL_CLASS, USUAL_CLASS, 0, 7, u32::MAX]);
    let (delay, lifetime) = (select(vec![0_u64, 0, 30, 500]), option::weighted(0.3, select(vec![20_u64, 700])));
    let tries = option::of((0_u32..3).prop_map(NonZeroU32::new));
    let backoff = option::of(select(vec![(20, 20), (10, 1_000)]));
    let (group, unique) = (select(vec![&b""[..], b"", b"acme", b"other"]), select(vec![&b""[..], b"", b"one", b"two"]));
    let all = (class, delay, lifetime, tries, backoff, group, option::of(40_u64..90), unique);
    all.prop_map(|(class, delay, lifetime, tries, backoff, group, lease, unique)| AddTerms {
        class,
        delay,
        lifetime,
        tries,
        backoff: backoff.map(|(first, most)| Backoff { first, most }),
        group: group.into(),
        lease,
        unique: unique.into(),
    })
}

fn about() -> impl Strategy<Value = AboutTask> {
    let reason = || select(vec![&b""[..], b"no such host", b"broken"]);
    let class = || select(vec![1_u32, USUAL_CLASS]);
    let how = vec![Settlement::Penalty, Settlement::Reward, Settlement::Front, Settlement::Drop, Settlement::Done];
    let ends = prop_oneof![
        (class(), select(vec![0_u64, 1_000, 7_000]))
            .prop_map(|(class, delay)| ReservationEnd::Released { class, delay }),
        class().prop_map(|class| ReservationEnd::Buried { class }),
        Just(ReservationEnd::Closed),
    ];
    prop_oneof![
        3 => (option::of(select(vec![0_u64, 30, 2_000])), reason())
            .prop_map(|(delay, reason)| AboutTask::GiveBack(delay, reason)),
        3 => reason().prop_map(AboutTask::Bury),
        2 => select(how).prop_map(AboutTask::Settle),
        1 => Just(AboutTask::Undo),
        1 => select(vec![0_u64, 30, 600]).prop_map(AboutTask::Extend),
        2 => Just(AboutTask::Kick),
        1 => (0_u8..9).prop_map(AboutTask::Update),
        1 => Just(AboutTask::Remove),
        1 => Just(AboutTask::Finish),
        4 => ends.prop_map(AboutTask::Reserve),
    ]
}

/// One setting, so that they meet.
fn change() -> impl Strategy<Value = QueueChange> {
    let none = QueueChange::default;
    prop_oneof![
        option::of((0_u32..3).prop_map(NonZeroU32::new))
            .prop_map(move |tries| QueueChange { tries: Some(tries), ..none() }),
        option::of(Just(Backoff { first: 10, most: 500 }))
            .prop_map(move |backoff| QueueChange { backoff: Some(backoff), ..none() }),
        (0_u32..3).prop_map(move |limit| QueueChange { group_limit: Some(NonZeroU32::new(limit)), ..none() }),
        select(vec![None, Rate::of(1, 10, 3), Rate::of(3, 100, 2)])
            .prop_map(move |rate| QueueChange { rate: Some(rate), ..none() }),
        select(vec![0, 50, u64::MAX]).prop_map(move |pause| QueueChange { pause: Some(pause), ..none() }),
        option::of(policy()).prop_map(move |sync| QueueChange { sync: Some(sync), ..none() }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    select(vec![Policy::Always, Policy::Within(40), Policy::Never])
}

fn inputs() -> impl Strategy<Value = Vec<(usize, TaskInput)>> {
    let input = prop_oneof![
        5 => (0_u8..6, terms()).prop_map(|(key, terms)| TaskInput::Add(key, terms)),
        4 => select(vec![30_u64, 100, 1_000]).prop_map(TaskInput::Lease),
        9 => (0_usize..6, about()).prop_map(|(place, about)| TaskInput::About(place, about)),
        1 => change().prop_map(TaskInput::Configure),
    ];
    vec((0..QUEUES.len(), input), 1..5)
}

fn operation() -> impl Strategy<Value = PowerOperation> {
    prop_oneof![
        8 => inputs().prop_map(PowerOperation::Commit),
        3 => (1_u64..60).prop_map(PowerOperation::Wait),
        1 => (500_u64..3_000).prop_map(PowerOperation::Wait),
        1 => (inputs(), 0_usize..4).prop_map(|(inputs, left)| PowerOperation::Fail(inputs, left)),
    ]
}

// ------------------------------------------------------------------------------------------------------------ the server

struct Server {
    store: FakeDisk,
    sink: RecordingSink,
    tasks: Tasks,
    committer: Committer,
    queue: QueueName,
    family: Family,
}

impl Server {
    fn start(store: FakeDisk, policy: Policy, now: u64) -> Self {
        let (tasks, mut committer) = open(Box::new(store.clone()), at(now)).unwrap();
        let sink = RecordingSink::default();
        committer.sink(Box::new(sink.clone()));
        let queue = committer.queue(QUEUES[0], LeaseOrder::Priority, policy).unwrap();
        let family = committer.family(b"jobs/", LeaseOrder::Fifo, policy).unwrap();
        Self { store, sink, tasks, committer, queue, family }
    }

    fn name(&self, queue: usize) -> QueueName {
        let own_name = QUEUES[queue].strip_prefix(self.family.prefix());
        own_name.map_or_else(|| self.queue.clone(), |name| self.family.queue(name))
    }

    fn commit(&mut self, requests: Vec<(usize, Request)>, now: u64) -> Result<Vec<ReadAnswer>, Error> {
        let ticket = Ticket { sink: 0, number: 0 };
        let named = |(queue, request)| Submission { queue: self.name(queue), ticket, request };
        let submissions = requests.into_iter().map(named).collect();
        self.tasks.submit(submissions);
        self.committer.batch(at(now))?;
        Ok(std::mem::take(&mut *self.sink.0.lock()).into_iter().map(|(_, answer)| answer).collect())
    }

    fn ask(&mut self, queue: usize, request: Request, now: u64) -> Outcome {
        match self.commit(vec![(queue, request)], now).unwrap().pop() {
            Some(ReadAnswer::Plain(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    fn dump(&mut self, now: u64) -> Dump {
        let mut tasks = BTreeMap::new();
        for queue in 0..QUEUES.len() {
            for state in STATES {
                let browse = Browse { state, group: None, from: None, most: 500, first_bytes: 9 };
                let Outcome::Browsed(page) = self.ask(queue, Request::Browse(browse), now) else { panic!("a page") };
                for task in page.tasks {
                    let other = tasks.insert((queue, task.key.clone()), (state, task));
                    assert!(other.is_none(), "in two states: {other:?} and {state:?}");
                }
            }
        }
        let list = Request::ListQueues { prefixes: vec![Box::default()], from: 0, most: 9 };
        let Outcome::Queues { queues, .. } = self.ask(0, list, now) else { panic!("a list") };
        let queues = queues.into_iter().map(|mut queue| {
            // These count since the start.
            queue.counts.ever = TaskTotals::default();
            (queue.name.clone(), queue)
        });
        let dump =
            Dump { now, tasks, records: self.committer.records().into_iter().collect(), queues: queues.collect() };
        self.compare_with_store(&dump);
        dump
    }

    /// The memory is what the store says.
    fn compare_with_store(&mut self, dump: &Dump) {
        let mut stored = BTreeMap::new();
        self.store.take(Space::Tasks, &mut |key, bytes| {
            let mut record = TaskRecord::decode(bytes).unwrap();
            record.reason = &[];
            if let StateRecord::Delayed(until) = record.state
                && until <= dump.now
            {
                // The end of a delay is not stored.
                (record.state, record.since) = (StateRecord::Ready, until);
            }
            stored.insert(TaskKey::try_from(key).unwrap(), record.encode());
        });
        assert_eq!(stored, dump.records, "what is stored, and what is in memory");
        assert_eq!(dump.tasks.len(), stored.len(), "each task is in one state");
        let values = &mut BTreeSet::new();
        self.store.take(Space::Values, &mut |key, _| assert!(values.insert(TaskKey::try_from(key).unwrap())));
        assert!(values.iter().eq(dump.records.keys()), "each task has its value");
    }
}

// ----------------------------------------------------------------------------------------------------------- histories

struct PowerHistory {
    server: Server,
    policy: Policy,
    now: u64,
    /// By the number of batches that were written by then.
    dumps: BTreeMap<usize, Dump>,
    /// The tokens of leases.
    tokens: BTreeMap<Vec<u8>, u64>,
}

impl PowerHistory {
    fn new(policy: Policy) -> Self {
        let now = 1_000_000;
        let server = Server::start(FakeDisk::new(), policy, now);
        let mut history = Self { server, policy, now, dumps: BTreeMap::new(), tokens: BTreeMap::new() };
        history.keep_dump();
        history
    }

    fn run(&mut self, operation: &PowerOperation) {
        match operation {
            PowerOperation::Commit(inputs) => {
                let requests = self.requests(inputs);
                self.commit(requests);
            }
            PowerOperation::Wait(millis) => {
                self.now += millis;
                self.commit(Vec::new());
            }
            PowerOperation::Fail(inputs, left) => {
                let requests = self.requests(inputs);
                self.server.store.fail_after(0);
                let _failed = self.server.commit(requests, self.now);
                let store = self.server.store.clone();
                let kept = self.kept(&store, *left);
                self.server = self.start_on(store.clone(), *left);
                // The others are of batches that are lost.
                self.dumps.retain(|at, _| *at == kept);
                let dump = self.dumps.remove(&kept).unwrap();
                self.now = dump.now;
                self.dumps.insert(store.counts().0, dump);
                self.keep_dump();
            }
        }
        for left in 0..=self.server.store.unsynced() {
            self.start_on(self.server.store.copy(), left);
        }
    }

    fn commit(&mut self, requests: Vec<(usize, Request)>) {
        for answer in self.server.commit(requests, self.now).unwrap() {
            if let ReadAnswer::Leased { token, key, .. } = answer {
                self.tokens.insert(key, token);
            }
        }
        self.keep_dump();
    }

    fn keep_dump(&mut self) {
        let dump = self.server.dump(self.now);
        self.dumps.insert(self.server.store.counts().0, dump);
    }

    /// The dump of a store that keeps so many of its batches without a sync, by its number.
    fn kept(&self, store: &FakeDisk, left: usize) -> usize {
        let (written, unsynced) = (store.counts().0, store.unsynced());
        let before = self.dumps.range(..=written - unsynced + left.min(unsynced)).next_back();
        // Nothing is there before the first one.
        before.or(self.dumps.first_key_value()).map(|(at, _)| *at).unwrap()
    }

    /// The power of a store fails, and a server starts on what is left.
    fn start_on(&self, store: FakeDisk, left: usize) -> Server {
        let before = &self.dumps[&self.kept(&store, left)];
        store.crash(left);
        let mut server = Server::start(store, self.policy, before.now);
        let after = server.dump(before.now);
        assert_eq!(&after, before, "{left} batches were left");
        server
    }

    // ------------------------------------------------------------------------------------------------------- requests

    fn requests(&self, inputs: &[(usize, TaskInput)]) -> Vec<(usize, Request)> {
        let of_one = |(queue, input): &(usize, TaskInput)| {
            self.request(*queue, input).into_iter().map(|request| (*queue, request)).collect::<Vec<_>>()
        };
        inputs.iter().flat_map(of_one).collect()
    }

    fn request(&self, queue: usize, input: &TaskInput) -> Vec<Request> {
        match input {
            TaskInput::Add(key, terms) if queue == 0 => {
                let (key, value) = (Box::from([*key]), Value::from(&[*key][..]));
                // Tasks of keys have no other names.
                let terms = Some(Box::new(AddTerms { unique: Box::default(), ..terms.clone() }));
                vec![Request::Add { key, value, end: QueueEnd::Tail, terms }]
            }
            TaskInput::Add(value, terms) => {
                let terms = Some(Box::new(terms.clone()));
                vec![Request::Push { value: Value::from(&[*value][..]), terms }]
            }
            TaskInput::Lease(timeout) => vec![Request::Lease { timeout: *timeout, wait: false }],
            TaskInput::About(place, about) => {
                let (_, last) = self.dumps.last_key_value().unwrap();
                let mut keys = last.tasks.keys().filter(|(of, _)| *of == queue).map(|(_, key)| key.clone());
                keys.nth(*place).map_or_else(Vec::new, |key| self.about(key, about))
            }
            TaskInput::Configure(change) => vec![Request::Configure { change: Box::new(*change) }],
        }
    }

    fn about(&self, key: Box<[u8]>, about: &AboutTask) -> Vec<Request> {
        let token = self.tokens.get(&*key).copied().unwrap_or(7_777_777);
        vec![match about {
            AboutTask::GiveBack(delay, reason) => {
                Request::GiveBack { token: None, key, delay: *delay, reason: (*reason).into() }
            }
            AboutTask::Bury(reason) => Request::Bury { token, key, reason: (*reason).into() },
            AboutTask::Settle(how) => Request::Settle { token, key, value: Some(Value::from(&b"new"[..])), how: *how },
            AboutTask::Undo => Request::Undo { token, key },
            AboutTask::Extend(timeout) => Request::Extend { token: None, key, timeout: *timeout },
            AboutTask::Kick => Request::Kick { key },
            AboutTask::Update(value) => Request::Update { key, value: Value::from(&[*value][..]) },
            AboutTask::Remove => Request::Remove { key },
            AboutTask::Finish => Request::Finish { key },
            AboutTask::Reserve(how) => {
                let holder = Family::holder(HOLDER);
                let reserve = Request::Reserve { key: key.clone(), holder, timeout: 1_000 };
                return vec![reserve, Request::EndReservation { key, holder, how: *how }];
            }
        }]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_a_power_failure_all_is_as_it_was_at_one_of_the_last_batches(
        policy in policy(), operations in vec(operation(), 1..30),
    ) {
        let mut history = PowerHistory::new(policy);
        operations.iter().for_each(|operation| history.run(operation));
    }
}
