//! All queues together: applies requests, expires leases, and gathers the answers and the changes to store.
//!
//! ```text
//! expire(now) ─► apply(request) … ─► drain: a batch for the store, and the answers to send once it is stored
//! ```
//! Waiting leases are granted first come, first served, in the same step that makes a task ready. So no request waits
//! while a task is ready. A value in an answer is either part of the batch ([`Payload::Fresh`]), or its key in the
//! store *before* the batch ([`Payload::Stored`]). Both are the value at that point of the order.
//!
//! This module uses no threads and no clock; see `committer.rs`. It writes to no store: `room.rs` refuses what the store
//! has no room for, `loss.rs` notes what the store has lost, and `expiry.rs` expires leases.

pub(super) mod browsing;
mod expiry;
mod loss;
mod of_task;
mod reserving;
mod room;
pub(super) mod sweeps;
pub(super) mod waiting;

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use expiry::LeaseTimers;
use room::BatchRoom;
use sweeps::Sweeps;

use super::metrics::TaskMetrics;
use super::order::{LeaseOrder, QueueEnd};
use super::queue::{LeaseTimer, TaskQueue};
use super::queues::{QueueEntry, Queues, number_of};
use super::record::{
    Damaged, FORMAT, FORMAT_KEY, QueueRecord, TOKENS_KEY, TaskRecord, queue_of_key, task_key, task_of_key,
};
use super::submission::Submission;
use super::waits::{Waits, WantedLeases};
use super::{AddTerms, BrowsedPage, Family, NameKind, Outcome, Payload, Policy, QueueName, Request, Ticket};
use crate::limits::WAITERS_MAX;
use crate::store::{Space, Store, Value, WriteBatch};
use crate::wheel::Wheel;

/// Why a queue exists at an index: a queue is removed only when its last batch is stored.
const TAKEN: &str = "a queue stays while a request or a lease refers to it";
/// Why a token is left.
const RESERVED: &str = "tokens are reserved before requests are applied";

/// All queues.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) queues: Queues,
    timers: LeaseTimers,
    waits: Waits,
    sweeps: Sweeps,
    /// Tokens that may be granted: their reservation is stored.
    tokens: Range<u64>,
    /// Indices of the queues that may have changed since the last [`Engine::drain`].
    marked: Vec<usize>,
    /// Indices of the queues that were drained and are not yet reported as stored.
    drained: Vec<usize>,
    /// Whether everything is synced with the next batch.
    sync_asked: bool,
    /// The server stops: no request waits any more.
    closing: bool,
    room: BatchRoom,
    /// New queues that are of no family begin above this number. 0, unless a repair or a backup has lost numbers.
    ids_floor: u64,
    answers: Vec<(Ticket, Outcome)>,
}

/// When a batch has to be on disk. A stricter deadline compares as less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SyncWithin {
    /// Before any answer.
    Now,
    /// Within this many milliseconds.
    Millis(u64),
    /// When the system writes it.
    Whenever,
}

/// The result of a step.
#[derive(Debug)]
pub(super) struct StepResult {
    pub(super) batch: WriteBatch,
    pub(super) sync: SyncWithin,
    pub(super) answers: Vec<(Ticket, Outcome)>,
    /// The highest number of a task in the queues of no family that have changed.
    pub(super) ids: u64,
    /// Numbers up to this one may have been given to tasks of queues that were removed.
    pub(super) floor: u64,
}

impl Engine {
    /// An engine without queues. `now` is the time of the leases' clock. Tokens begin at `tokens`.
    pub(super) fn new(now: u64, tokens: u64, metrics: Arc<TaskMetrics>) -> Self {
        Self {
            queues: Queues::new(metrics),
            timers: LeaseTimers::new(now),
            waits: Waits::default(),
            sweeps: Sweeps::default(),
            tokens: tokens..tokens,
            marked: Vec::new(),
            drained: Vec::new(),
            sync_asked: false,
            closing: false,
            room: BatchRoom::default(),
            ids_floor: 0,
            answers: Vec::new(),
        }
    }

    // ------------------------------------------------------------------------------------------------------ restoring

    /// Restores a queue from its record.
    pub(super) fn restore_queue(&mut self, key: &[u8], record: &[u8]) -> Result<(), Damaged> {
        let record = QueueRecord::decode(record)?;
        let restored = queue_of_key(key).is_some_and(|number| self.queues.restore(number, &record));
        restored.then_some(()).ok_or(Damaged { what: "list of the queues" })
    }

    /// Restores a task from its record. Its queue is already restored. `fits`: the queue is made to fit to it.
    pub(super) fn restore_task(&mut self, key: &[u8], record: &[u8], fits: bool) -> Result<(), Damaged> {
        let (queue, number) = task_of_key(key)?;
        let mut record = TaskRecord::decode(record)?;
        let entry = self.queues.get_mut(queue as usize).ok_or(Damaged { what: "list of the queues" })?;
        entry.queue.set_time(self.timers.now, 0);
        if fits && number > entry.queue.counters().first {
            entry.queue.fit(number, &mut record);
        }
        let is_there = entry.queue.has_ids() && self.queues.find_task(queue as usize, record.key).is_some();
        let entry = self.queues.get_mut(queue as usize).filter(|_| !is_there);
        let restored = entry.and_then(|entry| entry.queue.restore(number, &record, &mut self.timers.wheel));
        let task_index = restored.ok_or(Damaged { what: "order of a queue" })?;
        self.queues.note_id(queue as usize, record.key, task_index);
        Ok(())
    }

    /// Returns the queue with this name, and creates it if there is none. `None`: it exists with another order.
    pub(super) fn open(&mut self, name: &[u8], order: LeaseOrder, policy: Policy) -> Option<QueueName> {
        let queue_index = self.queues.open(name, order, policy)?;
        self.mark(queue_index);
        let floor = self.ids_floor;
        self.entry_mut(queue_index).queue.raise_last(floor);
        (self.entry(queue_index).queue.order() == order).then_some(QueueName(NameKind::Opened(queue_index)))
    }

    /// Makes a family of all queues whose names begin with `prefix`. `None`: one of them has another order.
    pub(super) fn family(&mut self, prefix: &[u8], order: LeaseOrder, policy: Policy) -> Option<Family> {
        let number = self.queues.family(prefix, order, policy)?;
        // A queue may have been stored without a task, for a request that waited.
        for queue_index in self.queues.indices() {
            if self.entry(queue_index).is_over() {
                self.mark(queue_index);
            }
        }
        Some(Family { number, prefix: prefix.into() })
    }

    /// Numbers of tasks up to `floor` may have been given in queues that were removed. Numbers up to `mark` may have
    /// been given in a queue of no family. The mark is above all numbers only if some are lost. Then the numbers of
    /// all queues continue above it.
    pub(super) fn restore_ids(&mut self, mark: u64, floor: u64) {
        self.queues.raise_floor(floor);
        if mark <= self.queues.last() {
            return;
        }
        self.ids_floor = mark;
        self.mark_all();
        for queue_index in self.queues.indices() {
            self.entry_mut(queue_index).queue.raise_last(mark);
        }
    }

    /// Tasks of a queue that is opened, or of the queues of a family, are dead after so many leases, where neither they nor
    /// their queue say otherwise.
    pub(super) fn bound_tries(&mut self, queue: &QueueName, tries: Option<NonZeroU32>) {
        match queue {
            QueueName(NameKind::Opened(queue_index)) => self.entry_mut(*queue_index).queue.bound_tries(tries),
            QueueName(NameKind::OfFamily { family, .. }) => self.queues.bound_tries(*family, tries),
            QueueName(NameKind::OfId { .. }) => {}
        }
    }

    /// Beyond so many tasks, in any state, none is added.
    pub(super) fn bound_tasks(&mut self, most: u64) {
        self.room.bound_tasks(most);
    }

    /// Has the next [`Engine::drain`] store all records of queues that have changed.
    pub(super) fn mark_all(&mut self) {
        self.queues.indices().into_iter().for_each(|queue_index| self.mark(queue_index));
    }

    // ---------------------------------------------------------------------------------------------------------- steps

    /// Applies a request. The answer comes with the next [`Engine::drain`], or with a later one if the request waits.
    /// A request that adds a task, waits or configures creates its queue of a family. Any other request about a queue that
    /// does not exist is answered as for an empty one. `store` is as it was before the batch.
    pub(super) fn apply(&mut self, Submission { queue, ticket, request }: Submission, store: &mut dyn Store) {
        let outcome = self.carry_out(&queue, ticket, request, store);
        self.answers.extend(outcome.map(|outcome| (ticket, outcome)));
        self.grant_all(store);
    }

    /// Carries out a request. `None`: it waits.
    fn carry_out(
        &mut self,
        queue: &QueueName,
        ticket: Ticket,
        mut request: Request,
        store: &mut dyn Store,
    ) -> Option<Outcome> {
        self.bound_reason(&mut request);
        match request {
            Request::Many { requests } => {
                let of_one = |(queue, request): (QueueName, Request)| {
                    let request = if request.may_wait() { Request::Refuse } else { request };
                    self.carry_out(&queue, ticket, request, store).unwrap_or(Outcome::Refused)
                };
                return Some(Outcome::Many(requests.into_iter().map(of_one).collect()));
            }
            Request::LeaseMany { queues, count, timeout, wait } => {
                let wanted = WantedLeases { timeout, most: count, in_list: true, holder: None };
                return self.lease_many(ticket, &queues, wanted, wait, store);
            }
            Request::ReserveNext { queues, holder, timeout, wait } => {
                let wanted = WantedLeases { timeout, most: 1, in_list: true, holder: Some(holder) };
                return self.lease_many(ticket, &queues, wanted, wait, store);
            }
            Request::ListQueues { prefixes, from, most } => return Some(self.list_queues(&prefixes, from, most)),
            Request::Withdraw { tickets } => {
                let of_sink = |number: &u64| self.waits.of(Ticket { number: *number, ..ticket });
                let waiting = tickets.iter().filter_map(of_sink).collect();
                self.refuse_waiting(waiting);
                self.withdraw_sweeps(ticket.sink, &tickets);
                return Some(Outcome::Done);
            }
            _ => {}
        }
        if let Some(refused) = self.take_room(queue, &request, store) {
            return Some(refused);
        }
        let queue_index = match queue {
            QueueName(NameKind::OfFamily { family, name }) if request.creates() => {
                self.queues.find_or_create(*family, name)
            }
            _ => self.index_of(queue),
        };
        let Some(queue_index) = queue_index else { return Some(of_no_queue(&request)) };
        let before = self.entry(queue_index).queue.len();
        let outcome = self.apply_to(queue_index, ticket, request, store);
        self.room.note_tasks(before, self.entry(queue_index).queue.len());
        outcome
    }

    /// Applies a request to a queue that exists. `None`: it waits.
    fn apply_to(&mut self, queue_index: usize, ticket: Ticket, request: Request, store: &dyn Store) -> Option<Outcome> {
        self.mark(queue_index);
        self.waits.to_grant.push(queue_index);
        if let Some(key) = request.key() {
            let task_index = self.queues.find_task(queue_index, key);
            return self.apply_to_task(queue_index, task_index, ticket, request);
        }
        Some(match request {
            Request::Add { key, value, end, terms } => {
                added(self.add(queue_index, &key, value, end, &terms.unwrap_or_default()))
            }
            Request::Append { value, dropped } => added(self.entry_mut(queue_index).queue.append(value, dropped)),
            Request::Push { value, terms } => {
                let terms = terms.unwrap_or_default();
                if let Some(key) = self.entry(queue_index).queue.key_named(&terms.unique) {
                    return Some(Outcome::Kept(key.into()));
                }
                let number = self.token();
                let added = self.add(queue_index, &number.to_be_bytes(), value, QueueEnd::Tail, &terms);
                debug_assert!(added.is_some(), "a token is given once");
                Outcome::Added(number)
            }
            Request::Lease { timeout, wait } => {
                let wait = wait && self.entry(queue_index).waiters.len() < WAITERS_MAX;
                return self.lease_or_wait(queue_index, ticket, timeout, wait, false);
            }
            Request::ShowQueue => self.show_queue(queue_index),
            Request::Peek { state } => self.peek(queue_index, state),
            Request::Browse(browse) => self.browse(queue_index, &browse, store),
            Request::Sweep { .. } if self.closing => Outcome::Counted(0),
            Request::Sweep { sweep, client } => {
                self.begin_sweep(queue_index, ticket, client, sweep);
                return None;
            }
            Request::Configure { change } => {
                self.entry_mut(queue_index).queue.configure(&change);
                Outcome::Done
            }
            Request::Nothing => Outcome::Done,
            Request::Keep { kept } => {
                self.entry_mut(queue_index).holds.is_kept = kept;
                Outcome::Done
            }
            Request::Count => Outcome::Counted(self.entry(queue_index).queue.counts().ready),
            Request::CountAll => Outcome::Counted(self.entry(queue_index).queue.counts().all()),
            Request::Sync => {
                self.sync_asked = true;
                Outcome::Done
            }
            // The others are of no queue, or of a task.
            _ => Outcome::Refused,
        })
    }

    /// Adds a task. `None`: its key exists.
    fn add(&mut self, queue_index: usize, key: &[u8], value: Value, end: QueueEnd, terms: &AddTerms) -> Option<u64> {
        if self.queues.find_task(queue_index, key).is_some() {
            return None;
        }
        let (number, task_index) = self.entry_mut(queue_index).queue.add(key, value, end, terms)?;
        self.queues.note_id(queue_index, key, task_index);
        Some(number)
    }

    /// Answers all waiting requests [`Outcome::Refused`]. From now on no request waits.
    pub(super) fn dismiss(&mut self) {
        self.closing = true;
        self.refuse_waiting(self.waits.all());
        self.end_sweeps();
    }

    /// Returns the changes since the last call, and the answers to send once they are stored.
    pub(super) fn drain(&mut self) -> StepResult {
        let answers = std::mem::take(&mut self.answers);
        let sync = if std::mem::take(&mut self.sync_asked) { SyncWithin::Now } else { SyncWithin::Whenever };
        let mut step = StepResult { batch: WriteBatch::new(), sync, answers, ids: 0, floor: 0 };
        let mut marked = std::mem::take(&mut self.marked);
        self.drained.extend_from_slice(&marked);
        for queue_index in marked.drain(..) {
            self.set_alarm(queue_index);
            let before = step.batch.len();
            let entry = self.entry_mut(queue_index);
            entry.drain(number_of(queue_index), &mut step.batch);
            self.queues.forget_ids(queue_index);
            self.queues.recount(queue_index);
            let entry = self.entry(queue_index);
            if step.batch.len() > before {
                step.sync = step.sync.min(entry.policy().within());
            }
            let last = entry.queue.counters().last;
            if entry.is_permanent() {
                step.ids = step.ids.max(last);
            } else if !entry.is_stored() {
                self.queues.raise_floor(last);
            }
        }
        step.sync = self.sweeps.put_off(step.sync, !step.answers.is_empty());
        step.floor = self.queues.floor();
        self.room.has_counted();
        self.marked = marked;
        step
    }

    /// The drained changes are stored: updates the metrics.
    pub(super) fn stored(&mut self) {
        for queue_index in std::mem::take(&mut self.drained) {
            self.queues.stored(queue_index);
        }
        self.timers.give_back();
    }

    // --------------------------------------------------------------------------------------------------------- tokens

    /// The number of leases that can be granted before more tokens must be reserved.
    pub(super) fn tokens_left(&self) -> u64 {
        self.tokens.end - self.tokens.start
    }

    /// The batch that reserves this many more tokens, and the new end of the tokens.
    pub(super) fn reservation(&self, tokens: u64) -> (WriteBatch, u64) {
        let end = self.tokens.end + tokens;
        let mut batch = WriteBatch::new();
        batch.put(Space::Meta, TOKENS_KEY, &end.to_be_bytes());
        batch.put(Space::Meta, FORMAT_KEY, &FORMAT.to_be_bytes());
        (batch, end)
    }

    /// The reservation up to `end` is on disk.
    pub(super) fn reserved(&mut self, end: u64) {
        self.tokens.end = end;
    }

    // --------------------------------------------------------------------------------------------------------- pieces

    fn entry(&self, queue_index: usize) -> &QueueEntry {
        self.queues.get(queue_index).expect(TAKEN)
    }

    fn entry_mut(&mut self, queue_index: usize) -> &mut QueueEntry {
        self.queues.get_mut(queue_index).expect(TAKEN)
    }

    /// Marks a queue as possibly changed, and sets its time.
    fn mark(&mut self, queue_index: usize) {
        let LeaseTimers { now, due_until, .. } = self.timers;
        let entry = self.entry_mut(queue_index);
        entry.queue.set_time(now, due_until);
        if !std::mem::replace(&mut entry.marked, true) {
            self.marked.push(queue_index);
        }
    }

    fn queue_and_wheel(&mut self, queue_index: usize) -> (&mut TaskQueue, &mut Wheel<LeaseTimer>) {
        let entry = self.queues.get_mut(queue_index).expect(TAKEN);
        (&mut entry.queue, &mut self.timers.wheel)
    }

    fn token(&mut self) -> u64 {
        self.tokens.next().expect(RESERVED)
    }

    fn payload(&self, queue_index: usize, number: u64) -> Payload {
        match self.entry(queue_index).queue.fresh(number) {
            Some(value) => Payload::Fresh(value.clone()),
            None => Payload::Stored(task_key(number_of(queue_index), number)),
        }
    }
}

/// The answer about a queue that does not exist.
fn of_no_queue(request: &Request) -> Outcome {
    match request {
        Request::Nothing | Request::Withdraw { .. } | Request::Sync => Outcome::Done,
        Request::Count | Request::CountAll | Request::Sweep { .. } => Outcome::Counted(0),
        Request::ShowQueue => Outcome::Queues { queues: Vec::new(), next: None },
        Request::Browse(_) => Outcome::Browsed(BrowsedPage { tasks: Vec::new(), next: None, first_bytes: 0 }),
        _ => Outcome::Refused,
    }
}

fn added(number: Option<u64>) -> Outcome {
    number.map_or(Outcome::Refused, Outcome::Added)
}

fn done(changed: bool) -> Outcome {
    if changed { Outcome::Done } else { Outcome::Refused }
}

impl Policy {
    fn within(self) -> SyncWithin {
        match self {
            Self::Always => SyncWithin::Now,
            Self::Within(millis) => SyncWithin::Millis(millis),
            Self::Never => SyncWithin::Whenever,
        }
    }
}
