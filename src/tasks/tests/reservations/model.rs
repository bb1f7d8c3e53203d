//! Job queues as `spec` and pages describe them, without regard to speed. Beside each job stands what a crash leaves of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::ReadAnswer;
use super::QUEUES;
use crate::store::Value;
use crate::tasks::{AddTerms, Family, GrantedLease, Outcome, Payload};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Ready,
    Delayed {
        until: u64,
    },
    Leased {
        token: u64,
        deadline: u64,
    },
    /// The dead are in the order of these numbers.
    Dead {
        death: u64,
    },
}

/// What the figures of a job say about its past.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Past {
    pub(super) added: u64,
    /// In milliseconds.
    pub(super) delay: u64,
    /// Leases before the last kick.
    pub(super) lent_before: u32,
    pub(super) timeouts: u32,
    pub(super) releases: u32,
    pub(super) buries: u32,
    pub(super) kicks: u32,
}

#[derive(Clone, Debug)]
pub(super) struct ModelJob {
    pub(super) queue: usize,
    pub(super) value: u8,
    pub(super) place: Place,
    pub(super) class: u32,
    /// Leases since it was added or kicked.
    pub(super) lent: u32,
    /// When it entered its place, if that is no lease.
    pub(super) since: u64,
    pub(super) terms: AddTerms,
    /// When it goes if nobody holds it.
    pub(super) over: u64,
    pub(super) past: Past,
}

#[derive(Clone, Debug)]
pub(super) struct ModelWait {
    pub(super) ticket: u64,
    pub(super) queues: Vec<usize>,
    /// The token of the connection. `None`: the request is a GET.
    pub(super) holder: Option<u64>,
    pub(super) length: u64,
    pub(super) until: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ModelSweep {
    pub(super) ticket: u64,
    pub(super) queue: usize,
    pub(super) most: u64,
    /// Whether it takes dead jobs, or delayed ones.
    pub(super) of_dead: bool,
    pub(super) began: u64,
    /// Jobs from this id on are added later.
    pub(super) before: u64,
    pub(super) deaths: u64,
}

/// All queues.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelJobs {
    pub(super) now: u64,
    pub(super) jobs: BTreeMap<u64, ModelJob>,
    /// What a crash leaves.
    stored: BTreeMap<u64, ModelJob>,
    /// Jobs that the batch stores, or whose records it removes.
    touched: BTreeSet<u64>,
    /// First come, first served.
    pub(super) waits: Vec<ModelWait>,
    /// Those of a queue follow one another, and the queues take turns.
    sweeps: VecDeque<VecDeque<ModelSweep>>,
    /// Whether there are these queues, if only for those that wait.
    exists: [bool; QUEUES.len()],
    /// The next id or token of a lease that is stored.
    pub(super) next_token: u64,
    deaths: u64,
    /// The answers of the batch.
    pub(super) answers: Vec<(u64, ReadAnswer)>,
}

/// Why a lease has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    RanOut,
    GivenBack,
    Closed,
}

/// The token of a connection.
pub(super) fn holder(number: u64) -> u64 {
    Family::holder(number)
}

impl ModelJob {
    /// Whether a connection holds it.
    pub(super) fn is_reserved(&self) -> bool {
        matches!(self.place, Place::Leased { token, .. } if token >= holder(0))
    }

    /// The token of whoever holds it.
    pub(super) fn token(&self) -> Option<u64> {
        if let Place::Leased { token, .. } = self.place { Some(token) } else { None }
    }

    /// What its record says: nothing of a reservation.
    fn record(&self) -> Self {
        let mut record = self.clone();
        if self.is_reserved() {
            (record.place, record.lent) = (Place::Ready, self.lent - 1);
        }
        record
    }
}

impl ModelJobs {
    // ---------------------------------------------------------------------------------------------------------- batches

    /// A batch begins: what is over by now ends.
    pub(super) fn begin(&mut self, now: u64) {
        self.now = now;
        let is_waiting = |job: &ModelJob| matches!(job.place, Place::Ready | Place::Delayed { .. });
        let over = self.jobs.iter().filter(|(_, job)| job.over <= now && is_waiting(job));
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove(id);
        }
        for (_, job) in self.jobs.iter_mut() {
            if matches!(job.place, Place::Delayed { until } if until <= now) {
                job.place = Place::Ready;
            }
        }
        self.grant();
        let due = self.jobs.iter().filter_map(|(id, job)| match job.place {
            Place::Leased { token, deadline } if deadline <= now => Some((deadline, token, *id)),
            _ => None,
        });
        let mut due: Vec<_> = due.collect();
        due.sort_unstable();
        for (_, _, id) in due {
            self.fail(id, Failure::RanOut, 0);
            self.grant();
        }
        let over = self.waits.extract_if(.., |wait| wait.until <= now);
        self.answers.extend(over.map(|wait| (wait.ticket, ReadAnswer::Plain(Outcome::Refused))));
        if let Some(mut line) = self.sweeps.pop_front() {
            let sweep = line.pop_front().unwrap();
            self.sweeps.extend((!line.is_empty()).then_some(line));
            self.sweep(&sweep);
            self.grant();
        }
    }

    /// The batch is over. Returns whether it stores anything.
    pub(super) fn end(&mut self) -> bool {
        for id in &self.touched {
            match self.jobs.get(id) {
                Some(job) => drop(self.stored.insert(*id, job.record())),
                None => drop(self.stored.remove(id)),
            }
        }
        for queue in 0..QUEUES.len() {
            let has_jobs = self.jobs.values().any(|job| job.queue == queue);
            let is_wanted = self.waits.iter().any(|wait| wait.queues.contains(&queue));
            self.exists[queue] = has_jobs || is_wanted || self.sweeps.iter().any(|line| line[0].queue == queue);
        }
        !std::mem::take(&mut self.touched).is_empty()
    }

    /// The server starts again.
    pub(super) fn crash(&mut self) {
        *self =
            Self { now: self.now, deaths: self.deaths, stored: std::mem::take(&mut self.stored), ..Self::default() };
        self.jobs = self.stored.clone();
        for job in self.jobs.values() {
            self.exists[job.queue] = true;
        }
    }

    /// The next time at which something happens by itself.
    pub(super) fn next_event(&self) -> Option<u64> {
        let of_job = |job: &ModelJob| match job.place {
            Place::Ready => job.over,
            Place::Delayed { until } => until.min(job.over),
            Place::Leased { deadline, .. } => deadline,
            Place::Dead { .. } => u64::MAX,
        };
        let times = self.jobs.values().map(of_job).chain(self.waits.iter().map(|wait| wait.until));
        times.filter(|time| *time > self.now).min()
    }

    // ---------------------------------------------------------------------------------------------------------- leases

    /// The most urgent job of these queues that is ready.
    pub(super) fn next_of(&self, queues: &[usize]) -> Option<u64> {
        let ready = self.jobs.iter().filter(|(_, job)| job.place == Place::Ready && queues.contains(&job.queue));
        ready.min_by_key(|(id, job)| (job.class, **id)).map(|(id, _)| *id)
    }

    /// Leases a job, whatever its place. Returns the length of the lease.
    pub(super) fn lend(&mut self, id: u64, token: u64, length: u64) -> u64 {
        let (now, job) = (self.now, self.jobs.get_mut(&id).unwrap());
        let length = job.terms.lease.unwrap_or(length);
        job.place = Place::Leased { token, deadline: now.saturating_add(length) };
        job.lent += 1;
        if !job.is_reserved() {
            self.touched.insert(id);
        }
        length
    }

    /// The answer with a job that is reserved. `queue` is its place in the request.
    pub(super) fn reserve(&mut self, id: u64, queue: usize, holder: u64, length: u64) -> Outcome {
        let lease = self.lend(id, holder, length);
        let job = &self.jobs[&id];
        let payload = Payload::Fresh(Value::from(&[job.value][..]));
        let key = id.to_be_bytes().into();
        Outcome::LeasedMany(vec![GrantedLease { queue, token: holder, key, lent: job.lent, lease, payload }])
    }

    /// Leases the next job of these queues, if there is one.
    pub(super) fn lend_next(&mut self, queues: &[usize], holder: Option<u64>, length: u64) -> Option<ReadAnswer> {
        let id = self.next_of(queues)?;
        if let Some(holder) = holder {
            let place = queues.iter().position(|queue| *queue == self.jobs[&id].queue).unwrap();
            return Some(ReadAnswer::Plain(self.reserve(id, place, holder, length)));
        }
        let token = self.token();
        self.lend(id, token, length);
        Some(ReadAnswer::Leased { token, key: id.to_be_bytes().to_vec(), value: vec![self.jobs[&id].value] })
    }

    /// Leases what is ready to those that wait.
    pub(super) fn grant(&mut self) {
        while let Some(at) = self.waits.iter().position(|wait| self.next_of(&wait.queues).is_some()) {
            let ModelWait { ticket, queues, holder, length, .. } = self.waits.remove(at);
            let answer = self.lend_next(&queues, holder, length).unwrap();
            self.answers.push((ticket, answer));
        }
    }

    pub(super) fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token - 1
    }

    // ---------------------------------------------------------------------------------------------------------- changes

    /// The record of a job changes.
    pub(super) fn touch(&mut self, id: u64) {
        self.touched.insert(id);
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.jobs.remove(&id);
        self.touched.insert(id);
    }

    /// A job enters its queue.
    pub(super) fn come_in(&mut self, id: u64, delay: u64) {
        let (now, job) = (self.now, self.jobs.get_mut(&id).unwrap());
        job.since = now;
        job.place = if delay > 0 { Place::Delayed { until: now + delay } } else { Place::Ready };
        self.touched.insert(id);
        self.end_if_over(id);
    }

    /// A lease has failed.
    pub(super) fn fail(&mut self, id: u64, failure: Failure, delay: u64) {
        let job = self.jobs.get_mut(&id).unwrap();
        job.past.timeouts += u32::from(failure == Failure::RanOut);
        job.past.releases += u32::from(failure == Failure::GivenBack);
        if job.terms.tries.flatten().is_some_and(|tries| job.lent >= tries.get()) {
            return self.die(id);
        }
        self.come_in(id, delay);
    }

    pub(super) fn die(&mut self, id: u64) {
        self.deaths += 1;
        let (now, job) = (self.now, self.jobs.get_mut(&id).unwrap());
        job.past.buries += 1;
        (job.place, job.since) = (Place::Dead { death: self.deaths }, now);
        self.touched.insert(id);
        self.end_if_over(id);
    }

    /// A dead or delayed job begins again.
    pub(super) fn kick(&mut self, id: u64) {
        let job = self.jobs.get_mut(&id).unwrap();
        job.past.kicks += 1;
        job.past.lent_before += std::mem::take(&mut job.lent);
        self.come_in(id, 0);
    }

    /// A job that nobody holds goes when its time is over.
    pub(super) fn end_if_over(&mut self, id: u64) {
        if self.jobs[&id].over <= self.now {
            self.remove(id);
        }
    }

    // ----------------------------------------------------------------------------------------------------------- queues

    pub(super) fn make(&mut self, queues: &[usize]) {
        queues.iter().for_each(|queue| self.exists[*queue] = true);
    }

    /// The jobs of a state, in its order.
    pub(super) fn in_order(&self, queue: usize, order: impl Fn(&ModelJob) -> Option<u64>) -> Vec<u64> {
        let of_queue = self.jobs.iter().filter(|(_, job)| job.queue == queue);
        let mut found: Vec<_> = of_queue.filter_map(|(id, job)| Some((order(job)?, *id))).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// A kick of many begins, and is answered by a later batch. `Some`: there is no such queue.
    pub(super) fn begin_sweep(&mut self, ticket: u64, queue: usize, most: u64) -> Option<Outcome> {
        if !self.exists[queue] {
            return Some(Outcome::Counted(0));
        }
        let of_dead = !self.in_order(queue, death).is_empty();
        let (began, before, deaths) = (self.now, self.next_token, self.deaths);
        let sweep = ModelSweep { ticket, queue, most, of_dead, began, before, deaths };
        match self.sweeps.iter_mut().find(|line| line[0].queue == queue) {
            Some(line) => line.push_back(sweep),
            None => self.sweeps.push_back([sweep].into()),
        }
        None
    }

    /// Whether a kick of many goes on.
    pub(super) fn is_sweeping(&self) -> bool {
        !self.sweeps.is_empty()
    }

    fn sweep(&mut self, sweep: &ModelSweep) {
        let dead = |job: &ModelJob| death(job).filter(|death| *death <= sweep.deaths);
        let delayed = |job: &ModelJob| end_of_delay(job).filter(|_| job.since <= sweep.began);
        let found = if sweep.of_dead { self.in_order(sweep.queue, dead) } else { self.in_order(sweep.queue, delayed) };
        let found = found.into_iter().filter(|id| sweep.of_dead || *id < sweep.before);
        let taken: Vec<u64> = found.take(usize::try_from(sweep.most).unwrap_or(usize::MAX)).collect();
        taken.iter().for_each(|id| self.kick(*id));
        self.answers.push((sweep.ticket, ReadAnswer::Plain(Outcome::Counted(taken.len() as u64))));
    }
}

/// The place of a job among the dead.
pub(super) fn death(job: &ModelJob) -> Option<u64> {
    if let Place::Dead { death } = job.place { Some(death) } else { None }
}

/// The place of a job among those that are delayed.
pub(super) fn end_of_delay(job: &ModelJob) -> Option<u64> {
    if let Place::Delayed { until } = job.place { Some(until) } else { None }
}
