//! One queue: a pure state machine. Its caller passes the time in. It does no I/O and reads no clock.
//!
//! ```text
//!            add                  lease                       settle Drop
//!     ─ ─ ─ ─ ─ ─ ─► Ready ─────────────────► Leased ──────────────────────► Dropped ◄─ ─ ─ append
//!      │             ▲ ▲ ▲                     │ │ │                            │
//!      │ delay       │ │ ├ settle, another way ┘ │ │      settle Done; remove, from any state: gone
//!      │             │ │ ├ the lease is undone ──┤ │
//!      │             │ │ └──◄ a pause ◄ Unread ◄─┘ │ the value could not be read
//!      └──► Delayed ─┘ │                           │
//!             ▲        └───────────────────────────┤ the lease expires, or is given back: it has failed
//!             └────────────── a backoff, a delay ──┤
//!                          kick ◄─── Dead ◄────────┘ too often, or buried
//! ```
//! An undone lease puts the task back in its old position. `order.rs` defines its position after the other ways. A task
//! with a lifetime goes when it is over: at once if it is ready or delayed, and otherwise when it comes back.
//! Keys, order and leases are in memory. Values are in the store: [`TaskQueue::drain`] returns the effects to store.

mod browsing;
mod changes;
mod failure;
mod groups;
mod history;
mod leasing;
mod lends;
mod loss;
mod named;
mod ready;
mod reserving;
mod restoring;
mod sweeping;
mod table;
mod task;
mod timed;

pub(super) use browsing::ShownTask;
use changes::{QueueChanges, RECORD_BYTES};
use lends::RatedLends;
use named::TaskKeys;
use ready::ReadyTasks;
pub(super) use sweeping::SweepPlace;
use table::TaskTable;
use task::{Task, TaskMarks, TaskState};
use timed::TasksAside;
pub(super) use timed::{LeaseTimer, disarm};

use std::num::NonZeroU32;

use super::counts::TaskCounts;
use super::keys::KeyHash;
use super::order::{LeaseOrder, Position, QueueEnd};
use super::record::{QueueCounters, TaskRecord};
use super::settings::QueueSettings;
use super::terms::{AddTerms, QueueChange, TaskTerms};
use crate::store::Value;
use crate::wheel::Wheel;

/// The index of a task in the memory of its queue, valid as long as the task exists.
pub(super) type TaskIndex = u32;

/// A task that has just been leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeasedTask<'q> {
    pub(super) number: u64,
    pub(super) lent: u32,
    pub(super) key: &'q [u8],
}

/// A change to store.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time is handed over, on the stack")]
pub(super) enum Effect<'q> {
    /// The new record of a task.
    Task(u64, TaskRecord<'q>),
    /// The new value of a task.
    Value(u64, Value),
    /// The task and its value are removed.
    Gone(u64),
}

/// The time of a queue, in milliseconds of the leases' clock.
#[derive(Clone, Copy, Debug, Default)]
struct QueueTime {
    now: u64,
    /// Leases with a deadline up to this one are held by nobody, although some have not expired yet. 0: all have.
    due: u64,
}

/// One queue.
#[derive(Debug)]
pub(super) struct TaskQueue {
    number: u32,
    /// Stored with the queue.
    counters: QueueCounters,
    tasks: TaskTable,
    keys: TaskKeys,
    ready: ReadyTasks,
    aside: TasksAside,
    settings: QueueSettings,
    /// What leases have taken of the rate.
    lends: RatedLends,
    /// The number of leases after which a task is dead, where neither it nor the queue says so.
    usual_tries: Option<NonZeroU32>,
    /// Written by [`TaskQueue::set_time`].
    time: QueueTime,
    counts: TaskCounts,
    changes: QueueChanges,
}

impl TaskQueue {
    /// A queue without tasks.
    pub(super) fn new(number: u32, order: LeaseOrder, counters: QueueCounters, settings: QueueSettings) -> Self {
        Self {
            number,
            counters,
            tasks: TaskTable::default(),
            keys: TaskKeys::default(),
            ready: ReadyTasks::new(order, settings.terms.group_limit),
            aside: TasksAside::default(),
            settings,
            lends: RatedLends::default(),
            usual_tries: None,
            time: QueueTime::default(),
            counts: TaskCounts::default(),
            changes: QueueChanges::default(),
        }
    }

    pub(super) fn order(&self) -> LeaseOrder {
        self.ready.order
    }

    pub(super) fn counters(&self) -> QueueCounters {
        self.counters
    }

    pub(super) fn counts(&self) -> TaskCounts {
        self.counts_at(self.time.now)
    }

    /// The counts at this time. A task whose lifetime is over counts no more, although it may not have gone yet.
    pub(super) fn counts_at(&self, now: u64) -> TaskCounts {
        let expiring = &self.aside.expiring;
        let (ready, delayed) = (expiring.ready.count_due(now), expiring.delayed.count_due(now));
        TaskCounts { ready: self.counts.ready - ready, delayed: self.counts.delayed - delayed, ..self.counts }
    }

    /// Sets the time, and up to which deadline leases are due, in milliseconds of the leases' clock.
    pub(super) fn set_time(&mut self, now: u64, due: u64) {
        self.time = QueueTime { now, due };
    }

    // ---------------------------------------------------------------------------------------------------------- verbs

    /// Adds a task and returns its number and its index. `None`: the key exists, and nothing changes. The caller knows of
    /// an id that it is new.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        value: Value,
        end: QueueEnd,
        terms: &AddTerms,
    ) -> Option<(u64, TaskIndex)> {
        let task_index = self.create(key, value, end, terms)?;
        let &Task { number, position, .. } = self.task(task_index);
        if terms.delay > 0 {
            self.note_delay(task_index, terms.delay);
        }
        self.come_in(task_index, position, terms.delay);
        Some((number, task_index))
    }

    /// Adds a task at the tail with its number as its key, ready or dropped. `None`: the key exists.
    pub(super) fn append(&mut self, value: Value, dropped: bool) -> Option<u64> {
        let (key, terms) = ((self.counters.last + 1).to_string(), AddTerms::default());
        let task_index = self.create(key.as_bytes(), value, QueueEnd::Tail, &terms)?;
        let &Task { number, position, .. } = self.task(task_index);
        match dropped {
            true => self.drop_out(task_index),
            false => self.come_in(task_index, position, 0),
        }
        Some(number)
    }

    pub(super) fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// Whether anything is set that holds at present.
    pub(super) fn is_set(&self) -> bool {
        self.settings.is_set(self.time.now)
    }

    /// Sets the number of leases after which a task is dead, where neither it nor the queue says so.
    pub(super) fn bound_tries(&mut self, tries: Option<NonZeroU32>) {
        self.usual_tries = tries;
    }

    /// Changes the settings.
    pub(super) fn configure(&mut self, change: &QueueChange) {
        self.settings.change(change, self.time.now);
        if change.rate.is_some() {
            self.lends.clear();
        }
        self.ready.set_limit(self.settings.terms.group_limit);
    }

    /// Removes a task, in any state, as a request asks.
    pub(super) fn remove(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) {
        self.counts.ever.removed += 1;
        self.take_out(task_index, wheel);
    }

    /// Takes a task out of its state and out of the queue.
    fn take_out(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) {
        self.leave(task_index, wheel);
        self.forget(task_index);
    }

    /// Removes a task if it is leased, by any holder, or its value is lost. False: neither, or the lease is due.
    pub(super) fn finish(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) -> bool {
        let may_go = self.token_of(task_index).is_some() || self.task(task_index).marks.is_lost;
        may_go && self.has_done(task_index, wheel)
    }

    fn has_done(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) -> bool {
        self.counts.ever.done += 1;
        self.take_out(task_index, wheel);
        true
    }

    /// The number of a task in the store.
    pub(super) fn number_of(&self, task_index: TaskIndex) -> u64 {
        self.task(task_index).number
    }

    /// The number of tasks in all states.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the queue has no task in any state.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether nobody is granted a task any more: it is dropped, or its value is lost.
    pub(super) fn is_out(&self, task_index: TaskIndex) -> bool {
        let task = self.task(task_index);
        matches!(task.state, TaskState::Dropped) || task.marks.is_lost
    }

    /// The value of a task, if the next batch stores it.
    pub(super) fn fresh(&self, number: u64) -> Option<&Value> {
        self.changes.value(number)
    }

    /// The bytes of the changes that the next drain hands over, approximately.
    pub(super) fn changed_bytes(&self) -> u64 {
        self.changes.bytes()
    }

    /// Hands over all changes to store, each task and value once, in its present state.
    pub(super) fn drain(&mut self, each: impl FnMut(Effect<'_>)) {
        self.changes.drain(&mut self.tasks, &self.ready.groups, &self.keys.names, &self.aside.histories, each);
    }

    /// The time at which the longest-ready task entered the queue, in milliseconds of the leases' clock.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.ready.oldest().map(|task_index| self.task(task_index).since).min()
    }

    // --------------------------------------------------------------------------------------------------------- pieces

    fn task(&self, task_index: TaskIndex) -> &Task {
        self.tasks.get(task_index).expect("an index is kept no longer than its task")
    }

    fn task_mut(&mut self, task_index: TaskIndex) -> &mut Task {
        self.tasks.get_mut(task_index).expect("an index is kept no longer than its task")
    }

    /// Whether its keys are ids, which a table of all such queues has.
    pub(super) fn has_ids(&self) -> bool {
        self.order() == LeaseOrder::Fifo
    }

    /// The task with this key, unless the queue [`TaskQueue::has_ids`].
    pub(super) fn find(&self, key: &[u8]) -> Option<TaskIndex> {
        self.find_hashed(self.keys.table.hash(key), key)
    }

    fn find_hashed(&self, hash: KeyHash, key: &[u8]) -> Option<TaskIndex> {
        if self.has_ids() { None } else { self.keys.table.find(hash, |task_index| *self.task(task_index).key == *key) }
    }

    /// Whether there is a task at an index, with this key.
    pub(super) fn has(&self, task_index: TaskIndex, key: &[u8]) -> bool {
        self.tasks.get(task_index).is_some_and(|task| *task.key == *key)
    }

    /// Creates a task, Dropped: in no structure. The caller counts it, or makes it ready. `None`: its key exists.
    fn create(&mut self, key: &[u8], value: Value, end: QueueEnd, terms: &AddTerms) -> Option<TaskIndex> {
        let hash = self.keys.table.hash(key);
        if self.find_hashed(hash, key).is_some() {
            return None;
        }
        let (number, serial) = (self.counters.next_number(), self.counters.next_serial());
        let position = self.ready.order.added(end, serial);
        let (since, state, key) = (self.time.now, TaskState::Dropped, key.into());
        let (marks, unread, lent) = (TaskMarks::default(), 0, 0);
        let group = (!terms.group.is_empty()).then(|| self.ready.join(&terms.group));
        let unique = self.keep_name(&terms.unique);
        let (class, terms) = (terms.class, TaskTerms::of(terms, self.time.now, group, unique));
        self.counts.ever.added += 1;
        let task = Task { number, key, position, boost: 0, since, state, marks, unread, lent, class, terms };
        let task_index = self.put(hash, task);
        self.changes.store_value(number, value);
        self.touch(task_index);
        Some(task_index)
    }

    /// Keeps a task whose key is new.
    fn put(&mut self, hash: KeyHash, task: Task) -> TaskIndex {
        let unique = task.unique();
        let task_index = self.tasks.insert(task);
        if !self.has_ids() {
            self.keys.table.insert(hash, task_index);
        }
        if let Some(number) = unique {
            self.note_name(number, task_index);
        }
        task_index
    }

    /// The bytes of the record of a task, approximately.
    pub(super) fn record_bytes(&self, task_index: TaskIndex) -> u64 {
        RECORD_BYTES + self.task(task_index).key.len() as u64
    }

    /// Has the next batch store the record of a task.
    fn touch(&mut self, task_index: TaskIndex) {
        if !std::mem::replace(&mut self.task_mut(task_index).marks.touched, true) {
            self.changes.note_task(task_index, self.record_bytes(task_index));
        }
    }

    /// Makes a task ready at `position`. False: another task has this position.
    fn make_ready(&mut self, task_index: TaskIndex, position: Position) -> bool {
        let task = self.task_mut(task_index);
        task.position = position;
        task.state = TaskState::Ready;
        let place = task.place();
        self.counts.ready += 1;
        self.watch_lifetime(task_index);
        self.ready.insert(place, task_index)
    }

    /// A task is no longer ready.
    fn step_out(&mut self, task_index: TaskIndex) {
        self.ready.remove(self.task(task_index).place());
        self.counts.ready -= 1;
        self.unwatch_lifetime(task_index);
    }

    /// Removes a task that is in no structure but the keys.
    fn forget(&mut self, task_index: TaskIndex) {
        let task = self.tasks.remove(task_index).expect("an index is kept no longer than its task");
        if !self.has_ids() {
            self.keys.table.remove(self.keys.table.hash(&task.key), task_index);
        }
        self.changes.note_gone(task.number);
        if let Some(number) = task.unique() {
            self.forget_name(number, task_index);
        }
        if let Some(number) = task.group() {
            self.ready.groups.leave(number);
        }
        if self.has_ids() {
            self.aside.histories.remove(&task_index);
            self.changes.note_gone_id(task_index, task.key);
        }
    }

    /// Takes a task out of the counts and structures of its state.
    fn leave(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) {
        let timer = LeaseTimer { queue: self.number, task_index };
        match self.task(task_index).state {
            TaskState::Ready => self.step_out(task_index),
            TaskState::Delayed(until) => self.end_delay(task_index, until),
            TaskState::Dead => self.rise(task_index),
            TaskState::Leased(lease) => {
                disarm(wheel, lease.timer, timer);
                self.end_lease(task_index, lease.token);
            }
            TaskState::Unread(id) => {
                disarm(wheel, id, timer);
                self.counts.unread -= 1;
            }
            TaskState::Dropped => {
                let number = self.task(task_index).number;
                self.counts.dropped -= 1;
                self.aside.dropped.remove(&number);
            }
        }
    }
}
