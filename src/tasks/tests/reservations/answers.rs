//! The requests with what only a history knows, and the answers of the model.

use std::sync::Arc;

use super::super::ReadAnswer;
use super::model::{Failure, ModelJob, ModelJobs, ModelWait, Past, Place, death, end_of_delay, holder};
use super::operations::{AboutJob, Found, JobRequest, Named, UNIT};
use super::{QUEUES, RealJobs, full_name};
use crate::store::Value;
use crate::tasks::{
    AddTerms, BrowsedState, JobState, Outcome, Payload, QueueName, Request, ReservationEnd, ShownJob, Sweep,
};

/// What a history knows beside the jobs.
#[derive(Default)]
pub(super) struct History {
    /// Of all jobs that were ever added.
    pub(super) ids: Vec<u64>,
    /// How many odd times were given.
    odd: u64,
}

impl History {
    /// The job that was added this many before the last one.
    fn id(&self, ago: usize) -> u64 {
        self.ids.len().checked_sub(ago + 1).map_or(7_777_777, |at| self.ids[at])
    }

    /// So many units and an odd time, so that no two times meet.
    fn time(&mut self, units: u64) -> u64 {
        self.odd += 1;
        let odd = self.odd.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        if units == 0 || units == u64::MAX { units } else { units * UNIT + odd }
    }

    /// The terms with times.
    fn terms(&mut self, terms: &AddTerms) -> AddTerms {
        let delay = self.time(terms.delay);
        let lifetime = terms.lifetime.map(|units| self.time(units));
        let lease = terms.lease.map(|units| self.time(units));
        AddTerms { delay, lifetime, lease, ..terms.clone() }
    }
}

fn refused() -> Outcome {
    Outcome::Refused
}

fn done_if(is_done: bool) -> Outcome {
    if is_done { Outcome::Done } else { Outcome::Refused }
}

impl ModelJobs {
    /// Carries out a request in the model. Returns the request for the committer, with its queue.
    pub(super) fn apply(
        &mut self,
        real: &RealJobs,
        history: &mut History,
        ticket: u64,
        input: &JobRequest,
    ) -> (QueueName, Request) {
        let (queue, request, answer) = match input {
            JobRequest::Push(queue, value, terms) => {
                let terms = history.terms(terms);
                let value = *value;
                let request = Request::Push { value: Value::from(&[value][..]), terms: Some(Box::new(terms.clone())) };
                let outcome = self.push(*queue, value, terms);
                history.ids.extend(outcome.added());
                (real.queue(*queue), request, Some(ReadAnswer::Plain(outcome)))
            }
            JobRequest::ReserveNext(queues, number, length, wait) => {
                let (length, wait, holder) = (history.time(*length), history.time(*wait), holder(*number));
                let names = queues.iter().map(|queue| real.queue(*queue)).collect();
                let request = Request::ReserveNext { queues: names, holder, timeout: length, wait };
                let until = self.now.saturating_add(wait);
                let wait = (wait > 0).then_some(until);
                (real.queue(0), request, self.lend_or_wait(ticket, queues, Some(holder), length, wait))
            }
            JobRequest::Get(queue, length, wait) => {
                let length = history.time(*length);
                let request = Request::Lease { timeout: length, wait: *wait };
                let answer = self.lend_or_wait(ticket, &[*queue], None, length, wait.then_some(u64::MAX));
                (real.queue(*queue), request, answer)
            }
            JobRequest::About(ago, found, about) => {
                let (queue, request, outcome) = self.about(real, history, history.id(*ago), *found, *about);
                (queue, request, Some(ReadAnswer::Plain(outcome)))
            }
            JobRequest::Peek(queue, state) => {
                let answer = ReadAnswer::Plain(self.peek(*queue, *state));
                (real.queue(*queue), Request::Peek { state: *state }, Some(answer))
            }
            JobRequest::KickMany(queue, most) => {
                let answer = self.begin_sweep(ticket, *queue, *most).map(ReadAnswer::Plain);
                (
                    real.queue(*queue),
                    Request::Sweep { sweep: Sweep::Kick { most: *most }, client: *queue as u64 },
                    answer,
                )
            }
        };
        self.answers.extend(answer.map(|answer| (ticket, answer)));
        self.grant();
        (queue, request)
    }

    fn push(&mut self, queue: usize, value: u8, terms: AddTerms) -> Outcome {
        self.make(&[queue]);
        let is_it = |job: &ModelJob| job.queue == queue && job.terms.unique == terms.unique;
        if !terms.unique.is_empty()
            && let Some((id, _)) = self.jobs.iter().find(|(_, job)| is_it(job))
        {
            return Outcome::Kept(id.to_be_bytes().into());
        }
        let (id, now, delay) = (self.token(), self.now, terms.delay);
        let over = terms.lifetime.map_or(u64::MAX, |lifetime| now + lifetime);
        let (place, class, past) = (Place::Ready, terms.class, Past { added: now, delay, ..Past::default() });
        self.jobs.insert(id, ModelJob { queue, value, place, class, lent: 0, since: now, terms, over, past });
        self.come_in(id, delay);
        Outcome::Added(id)
    }

    /// `wait` is the time until which it waits, if it does.
    fn lend_or_wait(
        &mut self,
        ticket: u64,
        queues: &[usize],
        holder: Option<u64>,
        length: u64,
        wait: Option<u64>,
    ) -> Option<ReadAnswer> {
        if wait.is_some() {
            self.make(queues);
        }
        if let Some(answer) = self.lend_next(queues, holder, length) {
            return Some(answer);
        }
        let Some(until) = wait else { return Some(ReadAnswer::Plain(refused())) };
        self.waits.push(ModelWait { ticket, queues: queues.to_vec(), holder, length, until });
        None
    }

    fn peek(&self, queue: usize, state: BrowsedState) -> Outcome {
        let id = match state {
            BrowsedState::Ready => self.next_of(&[queue]),
            BrowsedState::Delayed => self.in_order(queue, end_of_delay).first().copied(),
            BrowsedState::Dead => self.in_order(queue, death).first().copied(),
            BrowsedState::Lent | BrowsedState::Dropped => None,
        };
        id.map_or(refused(), |id| Outcome::Peeked {
            key: id.to_be_bytes().into(),
            payload: Payload::Fresh(Value::from(&[self.jobs[&id].value][..])),
        })
    }

    // ------------------------------------------------------------------------------------------------------- of one job

    fn about(
        &mut self,
        real: &RealJobs,
        history: &mut History,
        id: u64,
        found: Found,
        about: AboutJob,
    ) -> (QueueName, Request, Outcome) {
        let queue = self.jobs.get(&id).map(|job| job.queue);
        let (name, is_found) = match found {
            Found::InItsQueue => (real.queue(queue.unwrap_or(0)), queue.is_some()),
            Found::InAnotherQueue => (real.queue((queue.unwrap_or(0) + 1) % QUEUES.len()), false),
            Found::Beginning(names) => {
                let prefixes: Arc<[Box<[u8]>]> = names.iter().map(|name| Box::from(*name)).collect();
                let begins = |queue| names.iter().any(|name| full_name(queue).starts_with(name));
                (real.family.queue_of(id, &prefixes), queue.is_some_and(begins))
            }
        };
        // The token of whoever holds the job, if the request names that.
        let held = self.jobs.get(&id).and_then(ModelJob::token);
        let token = |named| match named {
            Named::Holder => held.unwrap_or(holder(0)),
            Named::Connection(number) => holder(number),
        };
        let key: Box<[u8]> = id.to_be_bytes().into();
        let request = match about {
            AboutJob::Reserve(number) => Request::Reserve { key, holder: holder(number), timeout: history.time(1) },
            AboutJob::Release(named, class, delay) => {
                let how = ReservationEnd::Released { class, delay: history.time(delay) };
                Request::EndReservation { key, holder: token(named), how }
            }
            AboutJob::Bury(named, class) => {
                Request::EndReservation { key, holder: token(named), how: ReservationEnd::Buried { class } }
            }
            AboutJob::Close(named) => {
                Request::EndReservation { key, holder: token(named), how: ReservationEnd::Closed }
            }
            AboutJob::Delete(named) => Request::Delete { key, holder: token(named) },
            AboutJob::Touch(named, units) => {
                Request::Extend { token: named.map(token), key, timeout: history.time(units) }
            }
            AboutJob::Undo(named) => Request::Undo { token: token(named), key },
            AboutJob::GiveBack(delay) => {
                let delay = delay.map(|units| history.time(units));
                Request::GiveBack { token: None, key, delay, reason: Box::from(*b"no such host") }
            }
            AboutJob::Kick => Request::Kick { key },
            AboutJob::Show => Request::Show { key },
            AboutJob::Has => Request::Has { key },
            AboutJob::Finish => Request::Finish { key },
        };
        let outcome = if is_found { self.carry_out(id, &request) } else { refused() };
        (name, request, outcome)
    }

    /// Carries out a request about a job that is there.
    fn carry_out(&mut self, id: u64, request: &Request) -> Outcome {
        let job = &self.jobs[&id];
        let (held, place) = (job.token(), job.place);
        match request {
            Request::Reserve { holder, timeout, .. } => match place {
                Place::Leased { .. } => refused(),
                // Dead ones stay when their time is over, and nobody is lent them.
                _ if job.over <= self.now => refused(),
                _ => self.reserve(id, 0, *holder, *timeout),
            },
            Request::EndReservation { holder, how, .. } if held == Some(*holder) => self.end_reservation(id, *how),
            Request::Delete { holder, .. } if held.is_none_or(|held| held == *holder) => {
                self.remove(id);
                Outcome::Done
            }
            Request::Extend { token, timeout, .. }
                if held.is_some() && token.is_none_or(|token| held == Some(token)) =>
            {
                self.extend(id, *timeout);
                Outcome::Done
            }
            Request::Undo { token, .. } if held == Some(*token) => {
                let job = self.jobs.get_mut(&id).unwrap();
                (job.place, job.lent) = (Place::Ready, job.lent - 1);
                self.touch(id);
                self.end_if_over(id);
                Outcome::Done
            }
            Request::GiveBack { delay, .. } if held.is_some() => {
                let job = self.jobs.get_mut(&id).unwrap();
                job.past.delay = delay.unwrap_or(job.past.delay);
                self.fail(id, Failure::GivenBack, delay.unwrap_or(0));
                Outcome::Done
            }
            Request::Kick { .. } => {
                let is_kicked = matches!(place, Place::Dead { .. } | Place::Delayed { .. });
                if is_kicked {
                    self.kick(id);
                }
                done_if(is_kicked)
            }
            Request::Show { .. } => Outcome::Shown {
                job: Box::new(self.shown(id)),
                payload: Payload::Fresh(Value::from(&[self.jobs[&id].value][..])),
            },
            Request::Has { .. } => Outcome::Found(None),
            Request::Finish { .. } if held.is_some() => {
                self.remove(id);
                Outcome::Done
            }
            _ => refused(),
        }
    }

    fn extend(&mut self, id: u64, length: u64) {
        if length == 0 {
            return self.fail(id, Failure::RanOut, 0);
        }
        let (end, job) = (self.now.saturating_add(length), self.jobs.get_mut(&id).unwrap());
        if let Place::Leased { deadline, .. } = &mut job.place {
            *deadline = end;
        }
        if !job.is_reserved() {
            self.touch(id);
        }
    }

    fn end_reservation(&mut self, id: u64, how: ReservationEnd) -> Outcome {
        let job = self.jobs.get_mut(&id).unwrap();
        match how {
            ReservationEnd::Released { class, delay } => {
                (job.class, job.past.delay) = (class, delay);
                self.fail(id, Failure::GivenBack, delay);
            }
            ReservationEnd::Buried { class } => {
                job.class = class;
                self.die(id);
            }
            ReservationEnd::Closed => self.fail(id, Failure::Closed, 0),
        }
        let is_dead = self.jobs.get(&id).is_some_and(|job| death(job).is_some());
        if is_dead { Outcome::Died } else { Outcome::Done }
    }

    fn shown(&self, id: u64) -> ShownJob {
        let job = &self.jobs[&id];
        let Past { added, delay, lent_before, timeouts, releases, buries, kicks } = job.past;
        let (state, until) = match job.place {
            Place::Ready => (JobState::Ready, 0),
            Place::Delayed { until } => (JobState::Delayed, until),
            Place::Leased { deadline, .. } => (JobState::Reserved, deadline),
            Place::Dead { .. } => (JobState::Buried, 0),
        };
        ShownJob {
            queue: full_name(job.queue).into(),
            state,
            class: job.class,
            age: self.now - added,
            delay: u32::try_from(delay / 1_000).unwrap_or(u32::MAX),
            lease: job.terms.lease,
            left: until.saturating_sub(self.now),
            reserves: lent_before + job.lent,
            timeouts,
            releases,
            buries,
            kicks,
        }
    }
}
