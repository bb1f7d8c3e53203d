//! One queue: a pure state machine. Its caller passes the time in. It does no I/O and reads no clock.
//!
//! ```text
//!            add                  lease                       settle Drop
//!     ─ ─ ─ ─ ─ ─ ─► Ready ─────────────────► Leased ──────────────────────► Dropped ◄─ ─ ─ append
//!                      ▲                        │ │                             │
//!                      ├── settle, another way ─┘ │      settle Done; remove, from any state: gone
//!                      ├── the lease expires ─────┤
//!                      ├── the lease is undone ───┤
//!                      └─◄── a pause ◄── Unread ◄─┘ the value could not be read
//! ```
//! An undone lease puts the task back in its old position. `order.rs` defines its position after the other two ways.
//! Keys, order and leases are in memory. Values are in the store: [`TaskQueue::drain`] returns the effects to store.

mod changes;
mod keys;
mod loss;
mod ready;
mod table;
mod task;

use changes::{QueueChanges, RECORD_BYTES};
use keys::{KeyHash, KeyTable};
use ready::ReadyTasks;
use table::TaskTable;
use task::{Lease, Task, TaskState};

use super::order::{LeaseOrder, Position, QueueEnd, Settlement};
use super::record::{LeaseRecord, QueueCounters, StateRecord, TaskRecord};
use crate::store::Value;
use crate::wheel::Wheel;

/// The index of a task in the memory of its queue, valid as long as the task exists.
pub(super) type TaskIndex = u32;

/// The payload of a lease's timer: the task whose lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseTimer {
    pub(super) queue: u32,
    pub(super) task_index: TaskIndex,
}

/// A task that has just been leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeasedTask<'q> {
    pub(super) number: u64,
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

/// The number of tasks in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Tasks that a client can lease.
    pub ready: u64,
    /// Tasks that a client holds.
    pub leased: u64,
    /// Tasks that are out of the queue for good.
    pub dropped: u64,
    /// Tasks that are out of the order for a pause, since their values could not be read.
    pub unread: u64,
    /// Leases that have expired since the server started.
    pub ran_out: u64,
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
    /// Milliseconds of the leases' clock. Written by [`TaskQueue::set_time`].
    now: u64,
    /// Leases with a deadline up to this one are held by nobody, although some have not expired yet. 0: all have.
    due: u64,
    counts: TaskCounts,
    changes: QueueChanges,
}

impl TaskQueue {
    /// A queue without tasks.
    pub(super) fn new(number: u32, order: LeaseOrder, counters: QueueCounters) -> Self {
        Self {
            number,
            counters,
            tasks: TaskTable::default(),
            keys: KeyTable::default(),
            ready: ReadyTasks::new(order),
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

    /// Makes room for the keys of this many tasks.
    pub(super) fn reserve(&mut self, tasks: usize) {
        self.keys.reserve(tasks);
    }

    /// Restores a task from its record. False: the record is invalid, or another task has its key or its position.
    pub(super) fn restore(&mut self, number: u64, record: &TaskRecord<'_>, wheel: &mut Wheel<LeaseTimer>) -> bool {
        let hash = self.keys.hash(record.key);
        if self.find_hashed(hash, record.key).is_some() || !self.counters.allow(number, record.position) {
            return false;
        }
        let task_index = self.put(
            hash,
            Task {
                number,
                key: record.key.into(),
                position: record.position,
                boost: record.boost,
                since: record.since,
                state: TaskState::Dropped,
                touched: false,
                is_lost: false,
                unread: 0,
            },
        );
        match record.state {
            StateRecord::Ready => self.make_ready(task_index, record.position),
            StateRecord::Leased(LeaseRecord { token, deadline }) => {
                self.start_lease(task_index, token, deadline, wheel);
                true
            }
            StateRecord::Dropped => {
                self.counts.dropped += 1;
                true
            }
        }
    }

    /// Sets the time, and up to which deadline leases are due, in milliseconds of the leases' clock.
    pub(super) fn set_time(&mut self, now: u64, due: u64) {
        (self.now, self.due) = (now, due);
    }

    // ---------------------------------------------------------------------------------------------------------- verbs

    /// Adds a task and returns its number. `None`: the key exists, and nothing changes.
    pub(super) fn add(&mut self, key: &[u8], value: Value, end: QueueEnd) -> Option<u64> {
        let task_index = self.create(key, value, end)?;
        let &Task { number, position, .. } = self.task(task_index);
        self.make_ready_now(task_index, position);
        Some(number)
    }

    /// Adds a task at the tail with its number as its key, ready or dropped. `None`: the key exists.
    pub(super) fn append(&mut self, value: Value, dropped: bool) -> Option<u64> {
        let task_index = self.create((self.counters.last + 1).to_string().as_bytes(), value, QueueEnd::Tail)?;
        let &Task { number, position, .. } = self.task(task_index);
        match dropped {
            true => self.counts.dropped += 1,
            false => self.make_ready_now(task_index, position),
        }
        Some(number)
    }

    /// Replaces the value of a task in any state. False: there is no task with this key.
    pub(super) fn update(&mut self, key: &[u8], value: Value) -> bool {
        let Some(task_index) = self.find(key) else { return false };
        self.set_value(task_index, value);
        true
    }

    /// Leases the first ready task, if there is one.
    pub(super) fn lease(&mut self, token: u64, deadline: u64, wheel: &mut Wheel<LeaseTimer>) -> Option<LeasedTask<'_>> {
        let (&position, &task_index) = self.ready.first()?;
        self.step_out(position);
        self.start_lease(task_index, token, deadline, wheel);
        self.touch(task_index);
        let task = self.task(task_index);
        Some(LeasedTask { number: task.number, key: &task.key })
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
            return self.is_held(key, token) && self.remove(key, wheel);
        }
        let Some(task_index) = self.release(key, token, wheel) else { return false };
        self.task_mut(task_index).unread = 0;
        if let Some(value) = value {
            self.set_value(task_index, value);
        }
        if how == Settlement::Drop {
            self.counts.dropped += 1;
            self.task_mut(task_index).state = TaskState::Dropped;
        } else {
            let front = self.ready.first().map_or(0, |(position, _)| position.priority);
            let serial = self.counters.next_serial();
            let &Task { boost, position, .. } = self.task(task_index);
            let (boost, position) = self.ready.order.settled(how, boost, position, serial, front);
            self.task_mut(task_index).boost = boost;
            self.make_ready_now(task_index, position);
        }
        self.touch(task_index);
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
        let position = self.task(task_index).position;
        self.make_ready(task_index, position);
        self.touch(task_index);
        true
    }

    /// Removes the task with this key, in any state. False: there is none.
    pub(super) fn remove(&mut self, key: &[u8], wheel: &mut Wheel<LeaseTimer>) -> bool {
        let Some(task_index) = self.find(key) else { return false };
        self.leave(task_index, wheel);
        self.keys.remove(self.keys.hash(key), task_index);
        let task = self.tasks.remove(task_index).expect("an index is kept no longer than its task");
        self.changes.note_gone(task.number);
        true
    }

    /// Removes the task with this key if it is leased, by any holder, or its value is lost. False: neither, or the lease
    /// is due.
    pub(super) fn finish(&mut self, key: &[u8], wheel: &mut Wheel<LeaseTimer>) -> bool {
        let is_held = |(deadline, _)| self.is_running(deadline);
        let may_go = |task_index| self.lease_of(task_index).is_some_and(is_held) || self.task(task_index).is_lost;
        self.find(key).is_some_and(may_go) && self.remove(key, wheel)
    }

    /// Whether the queue has no task in any state.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The number of the task with this key, and whether it is dropped.
    pub(super) fn standing(&self, key: &[u8]) -> Option<(u64, bool)> {
        let task = self.task(self.find(key)?);
        Some((task.number, matches!(task.state, TaskState::Dropped)))
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
        self.changes.drain(&mut self.tasks, each);
    }

    /// The time at which the longest-ready task entered the queue, in milliseconds of the leases' clock.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.ready.oldest().map(|task_index| self.task(task_index).since)
    }

    /// The deadline and the token of a leased task. Leases that end in the same pass expire in this order.
    pub(super) fn lease_of(&self, task_index: TaskIndex) -> Option<(u64, u64)> {
        match self.task(task_index).state {
            TaskState::Leased(lease) => Some((lease.deadline, lease.token)),
            TaskState::Ready | TaskState::Unread(_) | TaskState::Dropped => None,
        }
    }

    /// Ends a lease as if it had expired. False: this lease is not held.
    pub(super) fn cut_short(&mut self, key: &[u8], token: u64, wheel: &mut Wheel<LeaseTimer>) -> bool {
        let Some(task_index) = self.release(key, token, wheel) else { return false };
        self.come_back(task_index);
        true
    }

    /// The lease of this task has expired, or the pause in which it was not read. Its timer is no longer in the wheel.
    pub(super) fn expire(&mut self, task_index: TaskIndex) {
        if self.is_unread(task_index) {
            return self.end_pause(task_index);
        }
        self.counts.leased -= 1;
        self.come_back(task_index);
    }

    fn come_back(&mut self, task_index: TaskIndex) {
        self.counts.ran_out += 1;
        let serial = self.counters.next_serial();
        let position = self.ready.order.expired(self.task(task_index).position, serial);
        self.make_ready_now(task_index, position);
        self.touch(task_index);
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
    fn create(&mut self, key: &[u8], value: Value, end: QueueEnd) -> Option<TaskIndex> {
        let hash = self.keys.hash(key);
        if self.find_hashed(hash, key).is_some() {
            return None;
        }
        let (number, serial) = (self.counters.next_number(), self.counters.next_serial());
        let position = self.ready.order.added(end, serial);
        let (since, state, key) = (self.now, TaskState::Dropped, key.into());
        let (touched, is_lost, unread) = (false, false, 0);
        let task = Task { number, key, position, boost: 0, since, state, touched, is_lost, unread };
        let task_index = self.put(hash, task);
        self.changes.store_value(number, value);
        self.touch(task_index);
        Some(task_index)
    }

    /// Keeps a task whose key is new.
    fn put(&mut self, hash: KeyHash, task: Task) -> TaskIndex {
        let task_index = self.tasks.insert(task);
        self.keys.insert(hash, task_index);
        task_index
    }

    /// The bytes of the record of a task, approximately.
    pub(super) fn record_bytes(&self, task_index: TaskIndex) -> u64 {
        RECORD_BYTES + self.task(task_index).key.len() as u64
    }

    /// Has the next batch store the record of a task.
    fn touch(&mut self, task_index: TaskIndex) {
        if !std::mem::replace(&mut self.task_mut(task_index).touched, true) {
            self.changes.note_task(task_index, self.record_bytes(task_index));
        }
    }

    /// Makes a task ready at `position`, and records the time of its entry.
    fn make_ready_now(&mut self, task_index: TaskIndex, position: Position) {
        self.task_mut(task_index).since = self.now;
        let stands = self.make_ready(task_index, position);
        debug_assert!(stands, "a serial is given once");
    }

    /// Makes a task ready at `position`, or drops it if its value is lost. False: another task has this position.
    fn make_ready(&mut self, task_index: TaskIndex, position: Position) -> bool {
        let task = self.task_mut(task_index);
        task.position = position;
        if task.is_lost {
            task.state = TaskState::Dropped;
            self.counts.dropped += 1;
            return true;
        }
        task.state = TaskState::Ready;
        self.counts.ready += 1;
        self.ready.insert(position, task_index)
    }

    /// The task at `position` is no longer ready.
    fn step_out(&mut self, position: Position) {
        self.ready.remove(position);
        self.counts.ready -= 1;
    }

    /// Leases a task. The caller has already taken it out of the counts of its old state.
    fn start_lease(&mut self, task_index: TaskIndex, token: u64, deadline: u64, wheel: &mut Wheel<LeaseTimer>) {
        let timer = wheel.arm(deadline, LeaseTimer { queue: self.number, task_index });
        self.counts.leased += 1;
        self.task_mut(task_index).state = TaskState::Leased(Lease { token, deadline, timer });
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
                self.counts.leased -= 1;
                Some(task_index)
            }
            TaskState::Leased(_) | TaskState::Ready | TaskState::Unread(_) | TaskState::Dropped => None,
        }
    }

    /// Takes a task out of the counts and structures of its state.
    fn leave(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) {
        match self.task(task_index).state {
            TaskState::Ready => {
                let position = self.task(task_index).position;
                self.step_out(position);
            }
            TaskState::Leased(lease) => {
                let _due = wheel.cancel(lease.timer);
                self.counts.leased -= 1;
            }
            TaskState::Unread(timer) => {
                let _due = wheel.cancel(timer);
                self.counts.unread -= 1;
            }
            TaskState::Dropped => self.counts.dropped -= 1,
        }
    }
}
