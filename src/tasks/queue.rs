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
mod keys;
mod loss;
mod named;
mod ready;
mod restoring;
mod sweeping;
mod table;
mod task;
mod timed;

pub(super) use browsing::ShownTask;
use changes::{QueueChanges, RECORD_BYTES};
use keys::{KeyHash, KeyTable};
use ready::ReadyTasks;
pub(super) use sweeping::SweepPlace;
use table::TaskTable;
use task::{Lease, Task, TaskMarks, TaskState};
pub(super) use timed::LeaseTimer;
use timed::TasksAside;

use std::num::NonZeroU32;

use super::counts::TaskCounts;
use super::order::{LeaseOrder, Position, QueueEnd, Settlement};
use super::record::{QueueCounters, TaskRecord};
use super::settings::QueueSettings;
use super::terms::{AddTerms, QueueChange, TaskTerms, reason};
use crate::limits::EXPIRE_BUDGET;
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
pub(super) enum Effect<'q> {
    /// The new record of a task.
    Task(u64, TaskRecord<'q>),
    /// The new value of a task.
    Value(u64, Value),
    /// The task and its value are removed.
    Gone(u64),
}

/// One queue.
#[derive(Debug)]
pub(super) struct TaskQueue {
    number: u32,
    /// Stored with the queue.
    counters: QueueCounters,
    tasks: TaskTable,
    keys: KeyTable,
    ready: ReadyTasks,
    aside: TasksAside,
    settings: QueueSettings,
    /// The number of leases after which a task is dead, where neither it nor the queue says so.
    usual_tries: Option<NonZeroU32>,
    /// Milliseconds of the leases' clock. Written by [`TaskQueue::set_time`].
    now: u64,
    /// Leases with a deadline up to this one are held by nobody, although some have not expired yet. 0: all have.
    due: u64,
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
            keys: KeyTable::default(),
            ready: ReadyTasks::new(order, settings.terms.group_limit),
            aside: TasksAside::default(),
            settings,
            usual_tries: None,
            now: 0,
            due: 0,
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
        self.counts
    }

    /// Sets the time, and up to which deadline leases are due, in milliseconds of the leases' clock.
    pub(super) fn set_time(&mut self, now: u64, due: u64) {
        (self.now, self.due) = (now, due);
    }

    // ---------------------------------------------------------------------------------------------------------- verbs

    /// Adds a task and returns its number. `None`: the key exists, and nothing changes.
    pub(super) fn add(&mut self, key: &[u8], value: Value, end: QueueEnd, terms: &AddTerms) -> Option<u64> {
        let task_index = self.create(key, value, end, terms)?;
        let &Task { number, position, .. } = self.task(task_index);
        self.come_in(task_index, position, terms.delay);
        Some(number)
    }

    /// Adds a task at the tail with its number as its key, ready or dropped. `None`: the key exists.
    pub(super) fn append(&mut self, value: Value, dropped: bool) -> Option<u64> {
        let (key, terms) = ((self.counters.last + 1).to_string(), AddTerms::default());
        let task_index = self.create(key.as_bytes(), value, QueueEnd::Tail, &terms)?;
        let &Task { number, position, .. } = self.task(task_index);
        match dropped {
            true => self.counts.dropped += 1,
            false => self.come_in(task_index, position, 0),
        }
        Some(number)
    }

    /// Replaces the value of a task in any state. False: there is no task with this key.
    pub(super) fn update(&mut self, key: &[u8], value: Value) -> bool {
        let Some(task_index) = self.find(key) else { return false };
        self.set_value(task_index, value);
        true
    }

    pub(super) fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// Whether anything is set that holds at present.
    pub(super) fn is_set(&self) -> bool {
        self.settings.is_set(self.now)
    }

    /// Sets the number of leases after which a task is dead, where neither it nor the queue says so.
    pub(super) fn bound_tries(&mut self, tries: Option<NonZeroU32>) {
        self.usual_tries = tries;
    }

    /// Changes the settings.
    pub(super) fn configure(&mut self, change: &QueueChange) {
        self.settings.change(change, self.now);
        self.ready.set_limit(self.settings.terms.group_limit);
    }

    /// The task that is leased next, if the queue lends at present. One whose lifetime is over goes instead.
    pub(super) fn next(&mut self) -> Option<TaskIndex> {
        if self.settings.gate.opens_at() > self.now {
            self.counts.ever.throttled += u64::from(self.counts.ready > 0);
            return None;
        }
        for _ in 0..EXPIRE_BUDGET {
            let (_, task_index) = self.ready.next()?;
            if !self.is_over(task_index) {
                return Some(task_index);
            }
            self.step_out(task_index);
            self.forget_expired(task_index);
        }
        // The alarm goes on with them, and grants what is behind them.
        None
    }

    /// Leases a task that is ready.
    pub(super) fn lease(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        deadline: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> LeasedTask<'_> {
        self.step_out(task_index);
        self.settings.gate.lend(self.now);
        self.start_lease(task_index, token, deadline, wheel);
        self.counts.ever.lent += 1;
        self.ready.end_turn(self.task(task_index).group());
        self.touch(task_index);
        let task = self.task_mut(task_index);
        task.lent = task.lent.saturating_add(1);
        LeasedTask { number: task.number, lent: task.lent, key: &task.key }
    }

    /// Ends a lease as its holder requests, and stores the new value if there is one. False: this lease is not held,
    /// and nothing changes.
    pub(super) fn settle(
        &mut self,
        key: &[u8],
        token: u64,
        value: Option<Value>,
        how: Settlement,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if how == Settlement::Done {
            return self.is_held(key, token) && self.has_done(key, wheel);
        }
        let Some(task_index) = self.release(key, token, wheel) else { return false };
        let task = self.task_mut(task_index);
        (task.unread, task.lent) = (0, if how == Settlement::Drop { task.lent } else { 0 });
        if let Some(value) = value {
            self.set_value(task_index, value);
        }
        self.touch(task_index);
        if how == Settlement::Drop {
            self.counts.dropped += 1;
            let now = self.now;
            let task = self.task_mut(task_index);
            (task.since, task.state) = (now, TaskState::Dropped);
        } else {
            let task = self.task(task_index);
            let (boost, position) = (task.boost, task.position);
            let front = self.ready.first_in(task.class, task.group()).map_or(0, |position| position.priority);
            let serial = self.counters.next_serial();
            let (boost, position) = self.ready.order.settled(how, boost, position, serial, front);
            self.task_mut(task_index).boost = boost;
            self.come_in(task_index, position, 0);
        }
        true
    }

    /// Gives a lease a new deadline. False: this lease is not held.
    pub(super) fn extend(&mut self, key: &[u8], token: u64, deadline: u64, wheel: &mut Wheel<LeaseTimer>) -> bool {
        let Some(task_index) = self.release(key, token, wheel) else { return false };
        self.task_mut(task_index).unread = 0;
        self.start_lease(task_index, token, deadline, wheel);
        self.touch(task_index);
        true
    }

    /// Ends a lease that its holder never received. The task keeps its position. False: this lease is not held.
    pub(super) fn undo(&mut self, key: &[u8], token: u64, wheel: &mut Wheel<LeaseTimer>) -> bool {
        let Some(task_index) = self.release(key, token, wheel) else { return false };
        self.untry(task_index);
        self.touch(task_index);
        self.come_back(task_index);
        true
    }

    /// Removes the task with this key, in any state. False: there is none.
    pub(super) fn remove(&mut self, key: &[u8], wheel: &mut Wheel<LeaseTimer>) -> bool {
        let Some(task_index) = self.find(key) else { return false };
        self.leave(task_index, wheel);
        self.forget(task_index);
        true
    }

    /// Removes the task with this key if it is leased, by any holder, or its value is lost. False: neither, or the lease
    /// is due.
    pub(super) fn finish(&mut self, key: &[u8], wheel: &mut Wheel<LeaseTimer>) -> bool {
        let is_held = |(deadline, _)| self.is_running(deadline);
        let may_go = |task_index| self.lease_of(task_index).is_some_and(is_held) || self.task(task_index).marks.is_lost;
        self.find(key).is_some_and(may_go) && self.has_done(key, wheel)
    }

    fn has_done(&mut self, key: &[u8], wheel: &mut Wheel<LeaseTimer>) -> bool {
        self.counts.ever.done += 1;
        self.remove(key, wheel)
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

    /// The number of the task with this key, and whether nobody is granted it any more: it is dropped, or its value is
    /// lost.
    pub(super) fn standing(&self, key: &[u8]) -> Option<(u64, bool)> {
        let task = self.task(self.find(key)?);
        Some((task.number, matches!(task.state, TaskState::Dropped) || task.marks.is_lost))
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
        self.changes.drain(&mut self.tasks, &self.ready.groups, &self.keys, each);
    }

    /// The time at which the longest-ready task entered the queue, in milliseconds of the leases' clock.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.ready.oldest().map(|task_index| self.task(task_index).since).min()
    }

    /// The deadline and the token of a leased task. Leases that end in the same pass expire in this order.
    pub(super) fn lease_of(&self, task_index: TaskIndex) -> Option<(u64, u64)> {
        match self.task(task_index).state {
            TaskState::Leased(lease) => Some((lease.deadline, lease.token)),
            TaskState::Ready | TaskState::Unread(_) | TaskState::Dropped => None,
            TaskState::Delayed(_) | TaskState::Dead => None,
        }
    }

    /// The lease of this task has expired, or the pause in which it was not read. Its timer is no longer in the wheel.
    pub(super) fn expire(&mut self, task_index: TaskIndex) {
        if self.is_unread(task_index) {
            return self.end_pause(task_index);
        }
        self.end_lease(task_index);
        self.counts.ever.ran_out += 1;
        self.fail(task_index, None, reason::RAN_OUT);
    }

    // --------------------------------------------------------------------------------------------------------- pieces

    fn task(&self, task_index: TaskIndex) -> &Task {
        self.tasks.get(task_index).expect("an index is kept no longer than its task")
    }

    fn task_mut(&mut self, task_index: TaskIndex) -> &mut Task {
        self.tasks.get_mut(task_index).expect("an index is kept no longer than its task")
    }

    fn find(&self, key: &[u8]) -> Option<TaskIndex> {
        self.find_hashed(self.keys.hash(key), key)
    }

    fn find_hashed(&self, hash: KeyHash, key: &[u8]) -> Option<TaskIndex> {
        self.keys.find(hash, |task_index| *self.task(task_index).key == *key)
    }

    /// Creates a task, Dropped: in no structure. The caller counts it, or makes it ready. `None`: its key exists.
    fn create(&mut self, key: &[u8], value: Value, end: QueueEnd, terms: &AddTerms) -> Option<TaskIndex> {
        let hash = self.keys.hash(key);
        if self.find_hashed(hash, key).is_some() {
            return None;
        }
        let (number, serial) = (self.counters.next_number(), self.counters.next_serial());
        let position = self.ready.order.added(end, serial);
        let (since, state, key) = (self.now, TaskState::Dropped, key.into());
        let (marks, unread, lent) = (TaskMarks::default(), 0, 0);
        let group = (!terms.group.is_empty()).then(|| self.ready.join(&terms.group));
        let unique = self.keep_name(&terms.unique);
        let (class, terms) = (terms.class, TaskTerms::of(terms, self.now, group, unique));
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
        self.keys.insert(hash, task_index);
        if let Some(number) = unique {
            self.keys.insert(self.keys.hash(self.keys.name(number)), task_index);
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
        self.keys.remove(self.keys.hash(&task.key), task_index);
        self.changes.note_gone(task.number);
        if let Some(number) = task.unique() {
            self.keys.remove_name(number, task_index);
        }
        if let Some(number) = task.group() {
            self.ready.groups.leave(number);
        }
    }

    /// Leases a task. The caller has already taken it out of the counts of its old state.
    fn start_lease(&mut self, task_index: TaskIndex, token: u64, deadline: u64, wheel: &mut Wheel<LeaseTimer>) {
        let timer = wheel.arm(deadline, LeaseTimer { queue: self.number, task_index });
        self.counts.leased += 1;
        self.ready.lend(self.task(task_index).group());
        let task = self.task_mut(task_index);
        (task.state, task.marks.has_reason) = (TaskState::Leased(Lease { token, deadline, timer }), false);
    }

    /// A task is lent no more.
    fn end_lease(&mut self, task_index: TaskIndex) {
        self.counts.leased -= 1;
        self.ready.end_lease(self.task(task_index).group());
    }

    /// Whether a lease with this deadline is held: a lease that is due is held no more, although it has not expired yet.
    fn is_running(&self, deadline: u64) -> bool {
        self.due < deadline
    }

    /// Takes a task out of its lease. The caller sets its new state. `None`: this lease is not held.
    fn release(&mut self, key: &[u8], token: u64, wheel: &mut Wheel<LeaseTimer>) -> Option<TaskIndex> {
        let task_index = self.find(key)?;
        match self.task(task_index).state {
            TaskState::Leased(lease) if lease.token == token && self.is_running(lease.deadline) => {
                let _due = wheel.cancel(lease.timer);
                self.end_lease(task_index);
                Some(task_index)
            }
            TaskState::Leased(_) | TaskState::Ready | TaskState::Unread(_) | TaskState::Dropped => None,
            TaskState::Delayed(_) | TaskState::Dead => None,
        }
    }

    /// Takes a task out of the counts and structures of its state.
    fn leave(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) {
        match self.task(task_index).state {
            TaskState::Ready => self.step_out(task_index),
            TaskState::Delayed(until) => self.end_delay(task_index, until),
            TaskState::Dead => self.rise(task_index),
            TaskState::Leased(lease) => {
                let _due = wheel.cancel(lease.timer);
                self.end_lease(task_index);
            }
            TaskState::Unread(timer) => {
                let _due = wheel.cancel(timer);
                self.counts.unread -= 1;
            }
            TaskState::Dropped => self.counts.dropped -= 1,
        }
    }
}
