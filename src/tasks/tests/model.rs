//! The committer compared with a model of `tasks/PROTOCOL.md`. The operations include waiting, crashes and reopening.

mod bucket;
mod failing;
mod operations;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bucket::ModelBucket;
use operations::{ModelOperation, operation, with_lease};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, proptest};

use super::{ReadAnswer, RealQueues, token_of};
use crate::store::tests::fake_disk::FakeDisk;
use crate::tasks::terms::reason;
use crate::tasks::{
    AddTerms, Browse, BrowsedState, LeaseOrder, Outcome, Payload, Policy, QueueEnd, QueueTerms, Request, Settlement,
    ShownReason,
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum ModelState {
    Ready,
    Leased {
        token: u64,
        deadline: u64,
    },
    Unread {
        until: u64,
    },
    Dropped,
    Delayed {
        until: u64,
    },
    /// Its deaths are ordered by this number.
    Dead {
        serial: u64,
    },
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
    lent: u32,
    /// With the time at which its lifetime is over.
    terms: AddTerms,
    over: u64,
    number: u64,
    reason: Vec<u8>,
}

/// The queue as `tasks/PROTOCOL.md` describes it, without regard to speed.
struct ModelQueue {
    order: LeaseOrder,
    serial: u64,
    added: u64,
    tasks: HashMap<Vec<u8>, ModelTask>,
    waiters: Vec<(u64, u64)>,
    now: u64,
    terms: QueueTerms,
    paused_until: u64,
    bucket: Option<ModelBucket>,
    /// The turns of the groups that may be lent a task, by name. Tasks without a group are the group without a name.
    turns: BTreeMap<Vec<u8>, u64>,
    next_turn: u64,
}

impl ModelQueue {
    fn next(&mut self) -> Option<Vec<u8>> {
        if self.paused_until > self.now {
            return None;
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.refill(self.now);
            if bucket.level < bucket.interval() {
                return None;
            }
        }
        let ready = self.tasks.iter().filter(|(_, task)| task.state == ModelState::Ready);
        let open = ready.filter(|(_, task)| !self.has_groups() || self.turns.contains_key(&*task.terms.group));
        // The class of a group is that of its first task.
        let class = |task: &ModelTask| {
            let beside = self.tasks.values().filter(|other| other.state == ModelState::Ready);
            beside.filter(|other| other.terms.group == task.terms.group).map(|other| other.terms.class).min()
        };
        let turn = |task: &ModelTask| self.turns.get(&*task.terms.group).copied();
        let order = |task: &ModelTask| (class(task), turn(task), task.terms.class, task.priority, task.entered);
        open.min_by_key(|(_, task)| order(task)).map(|(key, _)| key.clone())
    }

    /// Ends lifetimes that are over.
    fn end_lifetimes(&mut self) {
        let now = self.now;
        let is_waiting = |task: &ModelTask| matches!(task.state, ModelState::Ready | ModelState::Delayed { .. });
        self.tasks.retain(|_, task| task.over > now || !is_waiting(task));
        self.take_turns(None);
    }

    /// Ends lifetimes and delays whose time has come.
    fn pass(&mut self) {
        self.end_lifetimes();
        let now = self.now;
        let due = |task: &ModelTask| match task.state {
            ModelState::Delayed { until } if until <= now => Some((until, task.number)),
            _ => None,
        };
        let mut ended: Vec<_> = self.tasks.iter().filter_map(|(key, task)| Some((due(task)?, key.clone()))).collect();
        ended.sort();
        for (_, key) in ended {
            self.tasks.get_mut(&key).unwrap().state = ModelState::Ready;
            self.take_turns(None);
        }
    }

    fn holder(&mut self, key: &[u8], held: u64) -> Option<&mut ModelTask> {
        let task = self.tasks.get_mut(key)?;
        matches!(task.state, ModelState::Leased { token, .. } if token == held).then_some(task)
    }

    /// Leases the next task with the token that the committer granted.
    fn lease(&mut self, timeout: u64, token: u64) -> Option<ReadAnswer> {
        let key = self.next()?;
        let (now, task) = (self.now, self.tasks.get_mut(&key)?);
        let deadline = now.saturating_add(task.terms.lease.unwrap_or(timeout));
        task.state = ModelState::Leased { token, deadline };
        task.lent += 1;
        task.reason.clear();
        if let Some(bucket) = &mut self.bucket {
            bucket.lend(token, now);
        }
        let (group, value) = (task.terms.group.clone(), task.value.clone());
        self.take_turns(Some(&group));
        Some(ReadAnswer::Leased { token, key, value })
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
        self.tasks.get(key).is_some_and(leased) && self.remove(key)
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let is_there = self.tasks.remove(key).is_some();
        self.take_turns(None);
        is_there
    }

    fn run_out(&mut self, now: u64, expected: &mut Vec<(u64, ReadAnswer)>, tokens: &mut impl FnMut() -> u64) {
        self.now = now;
        let is_due = |task: &ModelTask| matches!(task.state, ModelState::Unread { until } if until <= now);
        let ended = self.tasks.iter().filter(|(_, task)| is_due(task));
        let mut ended: Vec<_> = ended.map(|(key, task)| (task.number, key.clone())).collect();
        ended.sort();
        for (_, key) in &ended {
            self.tasks.get_mut(key).unwrap().state = ModelState::Ready;
            self.end_lifetimes();
        }
        if !ended.is_empty() {
            self.grant(expected, tokens);
        }
        self.pass();
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
                self.fail(&key, None, reason::RAN_OUT);
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
        let Some(terms) = self.holder(key, token).map(|task| task.terms.clone()) else { return false };
        let is_beside = |task: &&ModelTask| (task.terms.class, &task.terms.group) == (terms.class, &terms.group);
        let ready = self.tasks.values().filter(|task| task.state == ModelState::Ready).filter(is_beside);
        let front = ready.map(|task| task.priority).min().unwrap_or(0);
        let (order, serial) = (self.order, self.serial);
        let Some(task) = self.holder(key, token) else { return false };
        if how == Settlement::Done {
            return self.remove(key);
        }
        (task.value, task.unread) = (value, 0);
        if how == Settlement::Drop {
            task.state = ModelState::Dropped;
            self.take_turns(None);
            return true;
        }
        (task.state, task.lent) = (ModelState::Ready, 0);
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
        self.end_lifetimes();
        true
    }

    fn extend(&mut self, key: &[u8], token: u64, timeout: u64) -> bool {
        let deadline = self.now.saturating_add(timeout);
        let Some(task) = self.holder(key, token) else { return false };
        (task.state, task.unread) =
            (ModelState::Leased { token, deadline }, if timeout == 0 { task.unread } else { 0 });
        if timeout == 0 {
            self.fail(key, None, reason::RAN_OUT);
        }
        true
    }

    fn set_unread(&mut self, key: &[u8], token: u64) {
        let now = self.now;
        if let Some(task) = self.holder(key, token) {
            task.state = ModelState::Unread { until: now + (1_000 << task.unread).min(60_000) };
            task.unread += 1;
            self.untry(key, token);
            self.take_turns(None);
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

    fn add(&mut self, key: &[u8], value: &[u8], end: QueueEnd, terms: AddTerms) {
        (self.serial, self.added) = (self.serial + 1, self.added + 1);
        let has_others = self.tasks.values().any(|task| task.state == ModelState::Ready);
        if !terms.group.is_empty() && !self.has_groups() && has_others {
            // Before, there were no turns.
            self.next_turn += 1;
            self.turns.insert(Vec::new(), self.next_turn);
        }
        let priority = if self.order == LeaseOrder::Priority && end == QueueEnd::Head { 0 } else { self.serial };
        let task = ModelTask {
            value: value.to_vec(),
            priority,
            entered: self.serial,
            boost: 0,
            state: ModelState::Ready,
            unread: 0,
            lent: 0,
            over: terms.lifetime.map_or(u64::MAX, |lifetime| self.now + lifetime),
            number: self.added,
            reason: Vec::new(),
            terms,
        };
        let delay = task.terms.delay;
        self.tasks.insert(key.to_vec(), task);
        self.come_in(key, delay);
    }

    /// The immediate answer. `None` if the request waits.
    fn apply(&mut self, ticket: u64, request: &Request, tokens: &mut impl FnMut() -> u64) -> Option<ReadAnswer> {
        let plain = |changed: bool, yes: Outcome| Some(ReadAnswer::Plain(if changed { yes } else { Outcome::Refused }));
        match request {
            Request::Add { key, value, end, terms } => {
                if self.tasks.contains_key(&**key) {
                    return Some(ReadAnswer::Plain(Outcome::Refused));
                }
                self.add(key, value, *end, terms.as_deref().cloned().unwrap_or_default());
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
            Request::Extend { token, key, timeout } => {
                plain(self.extend(key, self.token(key, *token), *timeout), Outcome::Done)
            }
            Request::Undo { token, key } => {
                let undone = self.holder(key, *token).map(|task| task.state = ModelState::Ready).is_some();
                if undone {
                    self.untry(key, *token);
                    self.end_lifetimes();
                }
                plain(undone, Outcome::Done)
            }
            Request::GiveBack { token, key, delay, reason } => {
                let is_held = self.holder(key, self.token(key, *token)).map(|task| task.unread = 0).is_some();
                if is_held {
                    self.fail(key, *delay, reason);
                }
                plain(is_held, Outcome::Done)
            }
            Request::Bury { token, key, reason } => {
                let is_held = self.holder(key, *token).is_some();
                if is_held {
                    self.die(key, reason);
                }
                plain(is_held, Outcome::Done)
            }
            Request::Kick { key } => plain(self.kick(key), Outcome::Done),
            Request::Configure { change } => {
                self.configure(change);
                Some(ReadAnswer::Plain(Outcome::Done))
            }
            request => self.look(request),
        }
    }

    /// The answer to a request about no lease.
    fn look(&mut self, request: &Request) -> Option<ReadAnswer> {
        let plain = |changed: bool, yes: Outcome| Some(ReadAnswer::Plain(if changed { yes } else { Outcome::Refused }));
        match request {
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
            Request::Remove { key } => plain(self.remove(key), Outcome::Done),
            other => unreachable!("the model gets no {other:?}"),
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
    let mut plain = ModelQueue {
        order,
        serial: 1,
        added: 0,
        tasks: HashMap::new(),
        waiters: Vec::new(),
        now,
        terms: QueueTerms::default(),
        paused_until: 0,
        turns: BTreeMap::new(),
        next_turn: 0,
        bucket: None,
    };
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
                plain.bucket.iter_mut().for_each(ModelBucket::begin);
                plain.begin_round();
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
        if matches!(operation, ModelOperation::Crash | ModelOperation::Wait(_)) {
            compare_pages(&mut real, &plain);
        }
    }
}

/// Compares what pages show.
fn compare_pages(real: &mut RealQueues, plain: &ModelQueue) {
    let states = [BrowsedState::Ready, BrowsedState::Delayed, BrowsedState::Lent, BrowsedState::Dead];
    for state in states {
        let browse = Request::Browse(Browse { state, group: None, from: None, most: 100, first_bytes: 1 });
        let answer = real.commit_one(browse, plain.now);
        let ReadAnswer::Plain(Outcome::Browsed(page)) = answer else { panic!("{answer:?}") };
        let shown = page.tasks.into_iter().map(|task| {
            let reason = if let ShownReason::Fresh(reason) = task.reason { reason } else { Box::default() };
            let Payload::Fresh(value) = task.payload else { panic!("{:?}", task.payload) };
            (task.key.into_vec(), task.lent, reason.into_vec(), value.to_vec())
        });
        let is_shown = |task: &ModelTask| match task.state {
            ModelState::Ready => state == BrowsedState::Ready,
            ModelState::Delayed { .. } => state == BrowsedState::Delayed,
            ModelState::Leased { .. } => state == BrowsedState::Lent,
            ModelState::Dead { .. } => state == BrowsedState::Dead,
            ModelState::Dropped | ModelState::Unread { .. } => false,
        };
        let expected = plain.tasks.iter().filter(|(_, task)| is_shown(task));
        let expected = expected.map(|(key, task)| (key.clone(), task.lent, task.reason.clone(), task.value.clone()));
        assert_eq!(shown.collect::<BTreeSet<_>>(), expected.collect::<BTreeSet<_>>(), "{state:?}");
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
