//! Control clients of tasks, jobs and events: they note each acknowledged change, and look for it after the restart.
//!
//! A request is in doubt until it is answered. A request in doubt when the server ended may be done or not.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use spindle::clients::rust::events::EventsClient;
use spindle::clients::rust::jobs::JobsClient;
use spindle::clients::rust::tasks::TasksClient;
use spindle::services::jobs::wire::JobId;
use spindle::services::tasks::wire::{AddMode, LendMode, RepayStatus};

use super::connections::PATIENCE;
use super::siege::{ControlError, Siege, expect};

/// Milliseconds that are longer than any round: such leases do not expire.
const LONG: u64 = 86_400_000;
/// The queue that only the control client uses.
const QUEUE: &[u8] = b"control";
/// The longest answer to a check of whether ids have gaps.
const IDS_LOOKED_AT: u64 = 20_000;

// --------------------------------------------------------------------------------------------------------------- tasks

/// Tasks of the control client. Other clients may lend them, but not change them, since a lease is known to its holder
/// alone.
#[derive(Default)]
pub(super) struct Tasks {
    /// The value of each, and whether it was dropped.
    known: HashMap<Vec<u8>, (Vec<u8>, bool)>,
    /// The key in doubt.
    doubt: Option<Vec<u8>>,
    /// A Lend is in doubt, which may hold any task.
    lending: bool,
    token: u64,
}

impl Tasks {
    pub(super) fn step(&mut self, client: &mut TasksClient, siege: &Siege) -> Result<(), ControlError> {
        let number = self.known.len();
        let (key, value) = (format!("control {number}").into_bytes(), format!("value {number}").into_bytes());
        self.doubt = Some(key.clone());
        let added = siege.ask(|| client.add(&key, &value, AddMode::Tail))?;
        expect(added, || format!("task {number} was there before it was added"))?;
        self.doubt = None;
        self.known.insert(key.clone(), (value.clone(), false));
        let found = siege.ask(|| client.lookup(&key))?;
        expect(found.as_ref() == Some(&value), || format!("task {number} is {found:?}"))?;
        let added = siege.ask(|| client.add(&key, b"another", AddMode::Head))?;
        expect(!added, || format!("task {number} was added twice"))?;
        self.lend(client, siege)
    }

    /// Lends a task and repays it, once.
    fn lend(&mut self, client: &mut TasksClient, siege: &Siege) -> Result<(), ControlError> {
        self.lending = true;
        let lent = siege.ask(|| client.lend(LONG, LendMode::Poll))?;
        self.lending = false;
        let Some(lent) = lent else { return Ok(()) };
        self.doubt = Some(lent.key.clone());
        expect(lent.lend_key > self.token, || format!("lease {} comes after {}", lent.lend_key, self.token))?;
        self.token = lent.lend_key;
        let Some((value, dropped)) = self.known.get(&lent.key).cloned() else {
            // It belongs to an attacker, which may also remove it.
            return siege.ask(|| client.repay(lent.lend_key, &lent.key, &lent.value, RepayStatus::Penalty)).map(drop);
        };
        expect(lent.value == value && !dropped, || format!("{lent:?} was lent; dropped: {dropped}"))?;
        let held = siege.ask(|| client.heartbeat(lent.lend_key, &lent.key, LONG))?;
        expect(held, || format!("{lent:?} is not held"))?;
        let status = if lent.lend_key.is_multiple_of(2) { RepayStatus::Drop } else { RepayStatus::Penalty };
        let repaid = siege.ask(|| client.repay(lent.lend_key, &lent.key, &lent.value, status))?;
        expect(repaid, || format!("{lent:?} cannot be repaid"))?;
        self.doubt = None;
        self.known.insert(lent.key.clone(), (value, status == RepayStatus::Drop));
        let again = siege.ask(|| client.repay(lent.lend_key, &lent.key, &lent.value, status))?;
        expect(!again, || format!("{lent:?} was repaid twice"))
    }

    /// After a restart every task is there, and a dropped one is lent to no client. `alone`: the control client was the
    /// only one.
    pub(super) fn check(&self, endpoint: &str, siege: &Siege, alone: bool) {
        let mut client = TasksClient::connect(endpoint).unwrap();
        client.set_timeout(PATIENCE);
        for (key, (value, _)) in &self.known {
            let found = client.lookup(key).unwrap();
            if found.as_ref() != Some(value) {
                siege.fault("tasks after the restart", format!("{:?} is {found:?}", String::from_utf8_lossy(key)));
            }
        }
        let mut lent = HashMap::new();
        while let Some(task) = client.lend(LONG, LendMode::Poll).unwrap() {
            *lent.entry(task.key).or_insert(0) += 1;
        }
        let mut spared = usize::from(self.lending);
        for (key, (_, dropped)) in self.known.iter().filter(|(key, _)| Some(*key) != self.doubt.as_ref()) {
            let times = lent.get(key).copied().unwrap_or(0);
            let missing = times == 0 && !dropped && alone;
            if missing && spared > 0 {
                spared -= 1;
            } else if missing || times > usize::from(!dropped) {
                let key = String::from_utf8_lossy(key);
                siege.fault("tasks after the restart", format!("{key} was lent {times} times; dropped: {dropped}"));
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------- jobs

/// The request about jobs in doubt.
enum Doubt {
    Nothing,
    /// A job with this data may be there.
    Add(Vec<u8>),
    /// The first job may be handed out.
    Get,
}

/// The jobs of a queue that no other client uses.
pub(super) struct Jobs {
    ready: VecDeque<(JobId, Vec<u8>)>,
    last: Option<JobId>,
    number: u64,
    doubt: Doubt,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { ready: VecDeque::new(), last: None, number: 0, doubt: Doubt::Nothing }
    }
}

impl Jobs {
    pub(super) fn step(&mut self, client: &JobsClient, siege: &Siege) -> Result<(), ControlError> {
        let data = format!("job {}", self.number).into_bytes();
        self.number += 1;
        self.doubt = Doubt::Add(data.clone());
        let id = siege.ask(|| client.add(QUEUE, &data))?;
        self.doubt = Doubt::Nothing;
        expect(Some(id) > self.last, || format!("id {id} comes after {:?}", self.last))?;
        self.last = Some(id);
        self.ready.push_back((id, data));
        let there = siege.ask(|| client.is_in(QUEUE, id))?;
        expect(there, || format!("job {id} is not in the queue"))?;
        if self.number.is_multiple_of(2) { self.work_off(client, siege) } else { Ok(()) }
    }

    fn work_off(&mut self, client: &JobsClient, siege: &Siege) -> Result<(), ControlError> {
        self.doubt = Doubt::Get;
        let job = siege.ask(|| client.get(QUEUE))?.map(|job| (job.id, job.data));
        self.doubt = Doubt::Nothing;
        let due = self.ready.pop_front();
        expect(job == due, || format!("{job:?} was handed out instead of {due:?}"))?;
        let Some((id, _)) = due else { return Ok(()) };
        let done = siege.ask(|| client.ack(QUEUE, id))?;
        expect(done, || format!("job {id} cannot be acknowledged"))?;
        let again = siege.ask(|| client.ack(QUEUE, id))?;
        let there = siege.ask(|| client.is_in(QUEUE, id))?;
        expect(!again && !there, || format!("job {id} is done: acknowledged again {again}, in the queue {there}"))
    }

    /// After a restart the ready jobs are handed out in their order, and no other.
    pub(super) fn check(&mut self, address: &str, siege: &Siege) {
        let mut client = JobsClient::new(address);
        client.set_timeout(PATIENCE);
        let mut found = Vec::new();
        while let Some(job) = client.get(QUEUE).unwrap() {
            found.push((job.id, job.data));
        }
        let mut due: Vec<_> = self.ready.drain(..).collect();
        match &self.doubt {
            Doubt::Add(data) => found.retain(|(_, other)| other != data),
            Doubt::Get if found.len() < due.len() => drop(due.remove(0)),
            Doubt::Get | Doubt::Nothing => {}
        }
        if found != due {
            let differ = found.iter().zip(&due).find(|(found, due)| found != due);
            let counts = format!("{} jobs instead of {}", found.len(), due.len());
            siege.fault("jobs after the restart", format!("{counts}, the first that differs {differ:?}"));
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- events

/// Events that were answered, with their values.
#[derive(Default)]
pub(super) struct Events {
    known: BTreeMap<u64, Option<String>>,
}

impl Events {
    pub(super) fn step(&mut self, client: &mut EventsClient, siege: &Siege) -> Result<(), ControlError> {
        let last = self.known.last_key_value().map_or(0, |(id, _)| *id);
        let (id, value) = if last.is_multiple_of(4) {
            (siege.ask(|| client.defer())?, None)
        } else {
            let event = siege.ask(|| client.create())?;
            (event.id, event.value)
        };
        expect(id > last, || format!("event {id} comes after {last}"))?;
        self.known.insert(id, value.clone());
        let found = siege.ask(|| client.find(id))?.map(|event| event.value);
        expect(found.as_ref() == Some(&value), || format!("event {id} is {found:?} instead of {value:?}"))?;
        let count = siege.ask(|| client.count())?;
        expect(count >= id, || format!("{count} events, and one of them is {id}"))
    }

    /// After a restart every event is there as it was, and no number is missing.
    pub(super) fn check(&self, address: SocketAddr, siege: &Siege) {
        let mut client = EventsClient::new(address);
        for (id, value) in &self.known {
            let found = client.find(*id).unwrap().map(|event| event.value);
            if found.as_ref() != Some(value) {
                siege.fault("events after the restart", format!("{id} is {found:?} instead of {value:?}"));
            }
        }
        let count = client.count().unwrap();
        let gaps = (1..=count.min(IDS_LOOKED_AT)).filter(|id| client.find(*id).unwrap().is_none()).count();
        if gaps > 0 {
            siege.fault("events after the restart", format!("{gaps} numbers of {count} are missing"));
        }
    }
}
