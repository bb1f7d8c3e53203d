//! Job queues for connections that stay compared with a model: all answers, all figures, and what each batch stores. The
//! operations include waiting, crashes, and batches that are lost.
//!
//! `model.rs` holds the jobs, `answers.rs` carries the requests out in the model, and `operations.rs` makes them up. Named
//! cases are in `reserving.rs`.

mod answers;
mod model;
mod operations;

use answers::History;
use model::{ModelJobs, Place, death, end_of_delay};
use operations::{JobOperation, JobRequest, UNIT, operation};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, proptest};

use super::{ReadAnswer, RecordingSink, at};
use crate::store::tests::fake_disk::FakeDisk;
use crate::store::{Error, Space, Store, Value};
use crate::tasks::{
    Committer, Family, LeaseOrder, ListedQueue, Outcome, Policy, QueueName, Request, Submission, Tasks, Ticket,
    URGENT_CLASS, open,
};

const PREFIX: &[u8] = b"jobs/";
/// The name of the first one begins that of the second.
const QUEUES: [&[u8]; 3] = [b"a", b"ab", b"b"];

/// The name of a queue, with the prefix of the family.
fn full_name(queue: usize) -> Vec<u8> {
    [PREFIX, QUEUES[queue]].concat()
}

/// The committer with a family of job queues. Each request has a ticket of its own.
pub(super) struct RealJobs {
    pub(super) store: FakeDisk,
    sink: RecordingSink,
    pub(super) family: Family,
    pub(super) committer: Committer,
    pub(super) tasks: Tasks,
    submitted: u64,
}

impl RealJobs {
    pub(super) fn open(store: FakeDisk, now: u64) -> Self {
        let (tasks, mut committer) = open(Box::new(store.clone()), at(now)).unwrap();
        let sink = RecordingSink::default();
        committer.sink(Box::new(sink.clone()));
        let family = committer.family(PREFIX, LeaseOrder::Fifo, Policy::Always).unwrap();
        Self { store, sink, family, committer, tasks, submitted: 0 }
    }

    fn queue(&self, queue: usize) -> QueueName {
        self.family.queue(QUEUES[queue])
    }

    fn try_commit(&mut self, requests: Vec<(QueueName, Request)>, now: u64) -> Result<Vec<(u64, ReadAnswer)>, Error> {
        let mut submissions = Vec::new();
        for (queue, request) in requests {
            let ticket = Ticket { sink: 0, number: self.submitted };
            self.submitted += 1;
            submissions.push(Submission { queue, ticket, request });
        }
        self.tasks.submit(submissions);
        self.committer.batch(at(now))?;
        assert_eq!(self.store.unsynced(), 0, "answered before it was on disk");
        Ok(std::mem::take(&mut *self.sink.0.lock()))
    }

    /// The answers in the order in which they are given, with the numbers of their requests.
    pub(super) fn commit(&mut self, requests: Vec<(QueueName, Request)>, now: u64) -> Vec<(u64, ReadAnswer)> {
        self.try_commit(requests, now).unwrap()
    }

    /// The answer to a request about a queue that is alone in its batch.
    pub(super) fn ask(&mut self, queue: QueueName, request: Request, now: u64) -> Outcome {
        match self.commit(vec![(queue, request)], now).pop() {
            Some((_, ReadAnswer::Plain(outcome))) => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// The next id of a job.
    fn next_id(&mut self, now: u64) -> u64 {
        let spare = self.family.queue(b"spare");
        let push = Request::Push { value: Value::from(&b""[..]), terms: None };
        let Outcome::Added(id) = self.ask(spare.clone(), push, now) else { panic!("it is added") };
        self.ask(spare, Request::Remove { key: id.to_be_bytes().into() }, now);
        id + 1
    }

    fn records(&self, space: Space, prefix: &[u8]) -> usize {
        let mut count = 0;
        self.store.clone().take(space, &mut |key, _| count += usize::from(key.starts_with(prefix)));
        count
    }
}

/// The committer, the model, and what both have come through.
struct Comparison {
    real: RealJobs,
    plain: ModelJobs,
    history: History,
    now: u64,
}

impl Comparison {
    fn new() -> Self {
        let now = 1_000_000;
        let mut real = RealJobs::open(FakeDisk::new(), now);
        let mut plain = ModelJobs::default();
        (plain.now, plain.next_token) = (now, real.next_id(now));
        Self { real, plain, history: History::default(), now }
    }

    fn run(&mut self, operation: &JobOperation) {
        match operation {
            JobOperation::Commit(inputs) => self.commit(inputs),
            JobOperation::Wait(units) => {
                let end = self.now + units * UNIT;
                // One after the other, so that it is known who gets a job. If nobody waits, all at once.
                while !self.plain.waits.is_empty()
                    && let Some(next) = self.plain.next_event().filter(|next| *next < end)
                {
                    self.now = next;
                    self.commit(&[]);
                }
                self.now = end;
                self.commit(&[]);
                while self.plain.is_sweeping() {
                    self.commit(&[]);
                }
                self.compare_queues();
            }
            JobOperation::Lose(inputs) => {
                let (mut lost, first) = (self.plain.clone(), self.real.submitted);
                lost.begin(self.now);
                let applied = (first..).zip(inputs);
                let requests = applied.map(|(ticket, input)| lost.apply(&self.real, &mut self.history, ticket, input));
                let requests = requests.collect();
                self.real.store.fail_after(0);
                let failed = self.real.try_commit(requests, self.now).is_err();
                assert_eq!(failed, lost.end(), "a batch without a change is not stored");
                self.start();
            }
            JobOperation::Crash(units) => {
                self.now += units * UNIT;
                self.start();
            }
        }
    }

    /// Starts the server again, as a crash has left its store.
    fn start(&mut self) {
        self.real.store.crash(0);
        self.real = RealJobs::open(self.real.store.clone(), self.now);
        self.plain.crash();
        self.plain.next_token = self.real.next_id(self.now);
        self.plain.begin(self.now);
        self.plain.end();
        self.compare_queues();
    }

    fn commit(&mut self, inputs: &[JobRequest]) {
        let Self { real, plain, history, now } = self;
        plain.begin(*now);
        let requests =
            (real.submitted..).zip(inputs).map(|(ticket, input)| plain.apply(real, history, ticket, input)).collect();
        let stores = plain.end();
        let commits = real.store.counts().0;
        let answers = real.commit(requests, *now);
        assert_eq!(answers, std::mem::take(&mut plain.answers), "{inputs:?}");
        assert_eq!(real.store.counts().0 > commits, stores, "what is stored by {inputs:?}");
        assert_eq!(real.records(Space::Tasks, b""), plain.jobs.len());
        assert_eq!(real.records(Space::Values, b""), plain.jobs.len());
    }

    /// Compares the figures of the queues.
    fn compare_queues(&mut self) {
        let request = Request::ListQueues { prefixes: vec![PREFIX.into()], from: 0, most: 9 };
        let Outcome::Queues { queues, .. } = self.real.ask(self.real.queue(0), request, self.now) else {
            panic!("a list")
        };
        let shown = |queue: ListedQueue| {
            let counts = [queue.counts.ready, queue.counts.delayed, queue.counts.leased, queue.counts.dead];
            (queue.name.into_vec(), counts, queue.urgent, queue.waiting)
        };
        let mut shown: Vec<_> = queues.into_iter().map(shown).collect();
        shown.sort();
        let expected = (0..QUEUES.len()).filter_map(|queue| {
            let jobs = || self.plain.jobs.values().filter(|job| job.queue == queue);
            let ready = jobs().filter(|job| job.place == Place::Ready);
            let urgent = ready.clone().filter(|job| job.class < URGENT_CLASS).count();
            let delayed = jobs().filter(|job| end_of_delay(job).is_some()).count();
            let leased = jobs().filter(|job| job.token().is_some()).count();
            let dead = jobs().filter(|job| death(job).is_some()).count();
            let waiting = self.plain.waits.iter().filter(|wait| wait.queues.contains(&queue)).count();
            let counts = [ready.count(), delayed, leased, dead].map(|count| count as u64);
            (jobs().count() + waiting > 0).then_some((full_name(queue), counts, urgent as u64, waiting as u64))
        });
        assert_eq!(shown, expected.collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn job_queues_do_as_the_model_does(operations in vec(operation(), 1..40)) {
        let mut comparison = Comparison::new();
        operations.iter().for_each(|operation| comparison.run(operation));
    }
}
