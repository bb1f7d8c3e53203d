//! The committer compared with a model of `tasks/PROTOCOL.md`. The operations include waiting, crashes and reopening.

use std::collections::HashMap;

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::{collection::vec, sample::select};

use super::{ReadAnswer, RealQueues, token_of};
use crate::store::Value;
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::{LeaseOrder, Outcome, Policy, QueueEnd, Request, Settlement};

#[derive(Clone, Debug, PartialEq, Eq)]
enum ModelState {
    Ready,
    Leased { token: u64, deadline: u64 },
    Unread { until: u64 },
    Dropped,
}

#[derive(Clone, Debug)]
struct ModelTask {
    value: Vec<u8>,
    priority: u64,
    entered: u64,
    boost: u32,
    state: ModelState,
    /// How often in a row its value could not be read.
    unread: u32,
}

/// The queue as `tasks/PROTOCOL.md` describes it, without regard to speed.
struct ModelQueue {
    order: LeaseOrder,
    serial: u64,
    tasks: HashMap<Vec<u8>, ModelTask>,
    waiters: Vec<(u64, u64)>,
    now: u64,
}

impl ModelQueue {
    fn next(&self) -> Option<Vec<u8>> {
        let ready = self.tasks.iter().filter(|(_, task)| task.state == ModelState::Ready);
        ready.min_by_key(|(_, task)| (task.priority, task.entered)).map(|(key, _)| key.clone())
    }

    fn holder(&mut self, key: &[u8], held: u64) -> Option<&mut ModelTask> {
        let task = self.tasks.get_mut(key)?;
        matches!(task.state, ModelState::Leased { token, .. } if token == held).then_some(task)
    }

    /// Leases the next task with the token that the committer granted.
    fn lease(&mut self, timeout: u64, token: u64) -> Option<ReadAnswer> {
        let key = self.next()?;
        let deadline = self.now.saturating_add(timeout);
        let task = self.tasks.get_mut(&key)?;
        task.state = ModelState::Leased { token, deadline };
        Some(ReadAnswer::Leased { token, key, value: task.value.clone() })
    }

    fn come_back(&mut self, key: &[u8]) {
        self.serial += 1;
        let (order, serial) = (self.order, self.serial);
        let task = self.tasks.get_mut(key).unwrap();
        task.state = ModelState::Ready;
        if order == LeaseOrder::Priority {
            (task.priority, task.entered) = (0, serial);
        }
    }

    /// Removes a task if it is leased. Returns whether it was.
    fn finish(&mut self, key: &[u8]) -> bool {
        let leased = |task: &ModelTask| matches!(task.state, ModelState::Leased { .. });
        self.tasks.get(key).is_some_and(leased) && self.tasks.remove(key).is_some()
    }

    fn run_out(&mut self, now: u64, expected: &mut Vec<(u64, ReadAnswer)>, tokens: &mut impl FnMut() -> u64) {
        self.now = now;
        for task in self.tasks.values_mut() {
            if matches!(task.state, ModelState::Unread { until } if until <= now) {
                task.state = ModelState::Ready;
            }
        }
        self.grant(expected, tokens);
        loop {
            let due = self.tasks.iter().filter_map(|(key, task)| match task.state {
                ModelState::Leased { token, deadline } if deadline <= now => Some((deadline, token, key.clone())),
                _ => None,
            });
            // All leases that are due now expire before any lease that a waiting request is granted meanwhile.
            let mut due: Vec<_> = due.collect();
            if due.is_empty() {
                return;
            }
            due.sort();
            for (_, _, key) in due {
                self.come_back(&key);
                self.grant(expected, tokens);
            }
        }
    }

    fn grant(&mut self, expected: &mut Vec<(u64, ReadAnswer)>, tokens: &mut impl FnMut() -> u64) {
        while !self.waiters.is_empty() && self.next().is_some() {
            let (ticket, timeout) = self.waiters.remove(0);
            let leased = self.lease(timeout, tokens()).unwrap();
            expected.push((ticket, leased));
        }
    }

    fn settle(&mut self, key: &[u8], token: u64, value: Vec<u8>, how: Settlement) -> bool {
        let front = self.next().and_then(|next| self.tasks.get(&next)).map_or(0, |task| task.priority);
        let (order, serial) = (self.order, self.serial);
        let Some(task) = self.holder(key, token) else { return false };
        if how == Settlement::Done {
            self.tasks.remove(key);
            return true;
        }
        (task.value, task.unread) = (value, 0);
        if how == Settlement::Drop {
            task.state = ModelState::Dropped;
            return true;
        }
        task.state = ModelState::Ready;
        if order == LeaseOrder::Priority {
            let region = serial + 1 - front;
            match how {
                Settlement::Penalty => task.boost = task.boost.saturating_sub(1),
                Settlement::Reward if region >> (task.boost + 1) != 0 => task.boost += 1,
                _ => {}
            }
            let serial = serial + 1;
            task.priority = if how == Settlement::Front { 0 } else { serial - (region - (region >> task.boost)) };
            task.entered = serial;
        }
        self.serial += 1;
        true
    }

    fn extend(&mut self, key: &[u8], token: u64, timeout: u64) -> bool {
        let deadline = self.now.saturating_add(timeout);
        let Some(task) = self.holder(key, token) else { return false };
        (task.state, task.unread) =
            (ModelState::Leased { token, deadline }, if timeout == 0 { task.unread } else { 0 });
        if timeout == 0 {
            self.come_back(key);
        }
        true
    }

    fn set_unread(&mut self, key: &[u8], token: u64) {
        let now = self.now;
        if let Some(task) = self.holder(key, token) {
            task.state = ModelState::Unread { until: now + (1_000 << task.unread).min(60_000) };
            task.unread += 1;
        }
    }

    /// Leases a task to a request that waits before the others.
    fn lease_next(&mut self, ticket: u64, lease: &Request, tokens: &mut impl FnMut() -> u64) -> Option<ReadAnswer> {
        let waited = self.waiters.len();
        let answer = self.apply(ticket, lease, tokens);
        let waits = self.waiters.len() - waited;
        self.waiters.rotate_right(waits);
        answer
    }

    /// The immediate answer. `None` if the request waits.
    fn apply(&mut self, ticket: u64, request: &Request, tokens: &mut impl FnMut() -> u64) -> Option<ReadAnswer> {
        let plain = |changed: bool, yes: Outcome| Some(ReadAnswer::Plain(if changed { yes } else { Outcome::Refused }));
        match request {
            Request::Add { key, value, end } => {
                if self.tasks.contains_key(&**key) {
                    return Some(ReadAnswer::Plain(Outcome::Refused));
                }
                self.serial += 1;
                let priority =
                    if self.order == LeaseOrder::Priority && *end == QueueEnd::Head { 0 } else { self.serial };
                let task = ModelTask {
                    value: value.to_vec(),
                    priority,
                    entered: self.serial,
                    boost: 0,
                    state: ModelState::Ready,
                    unread: 0,
                };
                self.tasks.insert(key.to_vec(), task);
                Some(ReadAnswer::Plain(Outcome::Added(0)))
            }
            Request::Update { key, value } => {
                let task = self.tasks.get_mut(&**key);
                plain(task.map(|task| task.value = value.to_vec()).is_some(), Outcome::Done)
            }
            Request::Lease { timeout, wait } => {
                if self.next().is_some() {
                    return self.lease(*timeout, tokens());
                }
                if *wait {
                    self.waiters.push((ticket, *timeout));
                    return None;
                }
                Some(ReadAnswer::Plain(Outcome::Refused))
            }
            Request::LeaseNext { token, key, timeout, wait } => {
                self.set_unread(key, *token);
                self.lease_next(ticket, &Request::Lease { timeout: *timeout, wait: *wait }, tokens)
            }
            Request::Settle { token, key, value, how } => {
                let value = value.as_ref().unwrap().to_vec();
                plain(self.settle(key, *token, value, *how), Outcome::Done)
            }
            Request::Extend { token, key, timeout } => plain(self.extend(key, *token, *timeout), Outcome::Done),
            Request::Undo { token, key } => {
                let undone = self.holder(key, *token).map(|task| task.state = ModelState::Ready);
                plain(undone.is_some(), Outcome::Done)
            }
            Request::Withdraw { .. } | Request::Push { .. } => unreachable!("the model gets no such request"),
            Request::Append { .. } | Request::CountAll | Request::LookDropped { .. } => {
                unreachable!("the model gets no such request")
            }
            Request::Nothing => Some(ReadAnswer::Plain(Outcome::Done)),
            Request::Refuse => Some(ReadAnswer::Plain(Outcome::Refused)),
            Request::Count => {
                let ready = self.tasks.values().filter(|task| task.state == ModelState::Ready).count();
                Some(ReadAnswer::Plain(Outcome::Counted(ready as u64)))
            }
            Request::Look { key } => Some(match self.tasks.get(&**key) {
                Some(task) => ReadAnswer::Found(task.value.clone()),
                None => ReadAnswer::Plain(Outcome::Refused),
            }),
            Request::Sync => Some(ReadAnswer::Plain(Outcome::Done)),
            Request::Has { key } => plain(self.tasks.contains_key(&**key), Outcome::Found(None)),
            Request::Finish { key } => plain(self.finish(key), Outcome::Done),
            Request::Remove { key } => plain(self.tasks.remove(&**key).is_some(), Outcome::Done),
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- operations

/// A request that names a lease by how long ago it was granted.
#[derive(Clone, Debug)]
enum ModelRequest {
    Just(Request),
    Settle(usize, Settlement, u8),
    Extend(usize, u64),
    Undo(usize),
    LeaseNext(usize, u64, bool),
}

#[derive(Clone, Debug)]
enum ModelOperation {
    Commit(Vec<ModelRequest>),
    Wait(u64),
    Crash,
}

fn key() -> impl Strategy<Value = Box<[u8]>> {
    (0_u8..6).prop_map(|key| Box::from([b'k', key]))
}

fn value() -> impl Strategy<Value = Value> {
    any::<u8>().prop_map(|byte| Value::from(&[byte][..]))
}

fn input() -> impl Strategy<Value = ModelRequest> {
    let timeout = || select(vec![0_u64, 1, 5, 20, 20, 100, u64::MAX]);
    let how = select(vec![
        Settlement::Penalty,
        Settlement::Reward,
        Settlement::Reward,
        Settlement::Front,
        Settlement::Drop,
        Settlement::Done,
    ]);
    let end = select(vec![QueueEnd::Head, QueueEnd::Tail, QueueEnd::Tail]);
    prop_oneof![
        4 => (key(), value(), end).prop_map(|(key, value, end)| ModelRequest::Just(Request::Add { key, value, end })),
        1 => (key(), value()).prop_map(|(key, value)| ModelRequest::Just(Request::Update { key, value })),
        4 => (timeout(), any::<bool>())
            .prop_map(|(timeout, wait)| ModelRequest::Just(Request::Lease { timeout, wait })),
        3 => (0_usize..4, how, any::<u8>()).prop_map(|(lease, how, value)| ModelRequest::Settle(lease, how, value)),
        2 => (0_usize..4, timeout()).prop_map(|(lease, timeout)| ModelRequest::Extend(lease, timeout)),
        1 => (0_usize..4).prop_map(ModelRequest::Undo),
        1 => (0_usize..4, timeout(), any::<bool>())
            .prop_map(|(lease, timeout, wait)| ModelRequest::LeaseNext(lease, timeout, wait)),
        1 => Just(ModelRequest::Just(Request::Count)),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Look { key })),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Has { key })),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Finish { key })),
        1 => Just(ModelRequest::Just(Request::Sync)),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Remove { key })),
    ]
}

fn operation() -> impl Strategy<Value = ModelOperation> {
    prop_oneof![
        8 => vec(input(), 1..6).prop_map(ModelOperation::Commit),
        3 => (0_u64..40).prop_map(ModelOperation::Wait),
        1 => (0_u64..5_000).prop_map(ModelOperation::Wait),
        1 => Just(ModelOperation::Crash),
    ]
}

/// The request with its lease filled in. `leases` are the granted tokens and keys.
fn with_lease(input: &ModelRequest, leases: &[(u64, Vec<u8>)]) -> Request {
    let lease = |ago: usize| {
        let at = leases.len().checked_sub(ago + 1);
        at.map_or((7_777_777, Vec::new()), |at| leases[at].clone())
    };
    match input {
        ModelRequest::Just(request) => request.clone(),
        ModelRequest::Settle(ago, how, value) => {
            let (token, key) = lease(*ago);
            Request::Settle { token, key: key.into(), value: Some(Value::from(&[*value][..])), how: *how }
        }
        ModelRequest::Extend(ago, timeout) => {
            let (token, key) = lease(*ago);
            Request::Extend { token, key: key.into(), timeout: *timeout }
        }
        ModelRequest::Undo(ago) => {
            let (token, key) = lease(*ago);
            Request::Undo { token, key: key.into() }
        }
        ModelRequest::LeaseNext(ago, timeout, wait) => {
            let (token, key) = lease(*ago);
            Request::LeaseNext { token, key: key.into(), timeout: *timeout, wait: *wait }
        }
    }
}

/// Removes a task's number, which the model does not have. Other tests check it.
fn without_number(answer: ReadAnswer) -> ReadAnswer {
    match answer {
        ReadAnswer::Plain(Outcome::Added(_)) => ReadAnswer::Plain(Outcome::Added(0)),
        other => other,
    }
}

/// Runs the committer and the model, and compares each answer.
fn compare(order: LeaseOrder, operations: &[ModelOperation]) {
    let mut now = 1_000_000;
    let mut real = RealQueues::open(FakeDisk::new(), order, Policy::Always, now);
    let mut plain = ModelQueue { order, serial: 1, tasks: HashMap::new(), waiters: Vec::new(), now };
    let mut leases: Vec<(u64, Vec<u8>)> = Vec::new();
    for operation in operations {
        let inputs = match operation {
            ModelOperation::Commit(inputs) => &inputs[..],
            ModelOperation::Wait(millis) => {
                now += millis;
                &[]
            }
            ModelOperation::Crash => {
                real.store.crash(0);
                real = RealQueues::open(real.store, order, Policy::Always, now);
                plain.waiters.clear();
                for task in plain.tasks.values_mut() {
                    task.unread = 0;
                    if matches!(task.state, ModelState::Unread { .. }) {
                        task.state = ModelState::Ready;
                    }
                }
                &[]
            }
        };
        let requests: Vec<Request> = inputs.iter().map(|input| with_lease(input, &leases)).collect();
        let first = real.submitted;
        let answers = real.commit(requests.clone(), now).unwrap();
        assert_eq!(real.store.unsynced(), 0, "answered before it was on disk");
        let given: Vec<u64> = answers.iter().filter_map(|(_, answer)| token_of(answer)).collect();
        let last = leases.last().map_or(0, |(token, _)| *token);
        assert!(given.iter().is_sorted() && given.iter().all(|token| *token > last), "tokens grow: {given:?}");
        let mut given = given.into_iter();
        let mut tokens = || given.next().unwrap_or_default();
        let mut expected = Vec::new();
        plain.run_out(now, &mut expected, &mut tokens);
        for (ticket, request) in (first..).zip(&requests) {
            let answer = plain.apply(ticket, request, &mut tokens);
            expected.extend(answer.map(|answer| (ticket, answer)));
            plain.grant(&mut expected, &mut tokens);
        }
        let answers: Vec<_> = answers.into_iter().map(|(ticket, answer)| (ticket, without_number(answer))).collect();
        assert_eq!(answers, expected, "{operation:?}");
        leases.extend(answers.into_iter().filter_map(|(_, answer)| match answer {
            ReadAnswer::Leased { token, key, .. } => Some((token, key)),
            _ => None,
        }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_priority_queue_does_as_the_model_does(operations in vec(operation(), 1..40)) {
        compare(LeaseOrder::Priority, &operations);
    }

    #[test]
    fn a_fifo_queue_does_as_the_model_does(operations in vec(operation(), 1..40)) {
        compare(LeaseOrder::Fifo, &operations);
    }
}
