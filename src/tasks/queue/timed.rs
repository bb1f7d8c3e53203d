//! Timers, and the tasks of a queue that are in no order of leases: those that nobody may be lent. Some have a lifetime.
//!
//! ```text
//! delayed   until, number ─► task      the first of both is the queue's alarm in the wheel:
//! expiring  expires, number ─► task    one timer, however many wait
//! ```
//! A delay that ends stores nothing: what is ready follows from the clock, at an opening too. A wheel has no order, and
//! delayed tasks are shown and kicked in the order of their times.
//!
//! This module changes no task.

use super::TaskIndex;
use super::history::Histories;
use crate::chunked_map::ChunkedMap;
use crate::limits::QUEUES_MAX;
use crate::tasks::waits::WaitNumber;
use crate::wheel::{TimerId, Wheel};

/// The payload of a lease's timer: the task whose lease ends. Or the alarm of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tasks) struct LeaseTimer {
    pub(in crate::tasks) queue: u32,
    pub(in crate::tasks) task_index: TaskIndex,
}

impl LeaseTimer {
    /// The alarm of a queue.
    pub(in crate::tasks) fn alarm(queue: u32) -> Self {
        Self { queue, task_index: NO_TASK }
    }

    pub(in crate::tasks) fn is_alarm(self) -> bool {
        self.task_index == NO_TASK
    }

    /// Whether it is the timer of a task.
    pub(in crate::tasks) fn is_of_task(&self) -> bool {
        !self.is_alarm() && self.queue != NO_QUEUE
    }

    /// The end of a request's waiting.
    pub(in crate::tasks) fn end_of_wait(number: WaitNumber) -> Self {
        Self { queue: NO_QUEUE, task_index: number }
    }

    /// The request whose waiting ends.
    pub(in crate::tasks) fn waiting(self) -> Option<WaitNumber> {
        (self.queue == NO_QUEUE).then_some(self.task_index)
    }
}

/// Disarms a timer. The caller forgets the id of a timer that comes up: from then on it may name another timer.
pub(in crate::tasks) fn disarm(wheel: &mut Wheel<LeaseTimer>, id: TimerId, timer: LeaseTimer) {
    let disarmed = wheel.cancel(id);
    debug_assert_eq!(disarmed, Some(timer), "a timer is disarmed by its own id");
}

/// No queue has this index.
const NO_QUEUE: u32 = u32::MAX;
const _: () = assert!(QUEUES_MAX < NO_QUEUE as usize);

/// No task has this index: the chunks of a queue would take 400 GB.
const NO_TASK: TaskIndex = TaskIndex::MAX;

/// The tasks beside the ready ones that have an order.
#[derive(Debug, Default)]
pub(super) struct TasksAside {
    /// By the end of their delays.
    pub(super) delayed: TimedTasks,
    pub(super) expiring: ExpiringTasks,
    /// By the token of the lease. Those of connections follow, by the number of the task.
    pub(super) lent: ChunkedMap<u64, TaskIndex>,
    /// By the serial at which they died.
    pub(super) dead: ChunkedMap<u64, TaskIndex>,
    /// By the number of the task.
    pub(super) dropped: ChunkedMap<u64, TaskIndex>,
    /// Of the jobs that were ever aside.
    pub(super) histories: Histories,
}

/// Tasks with a lifetime that nobody holds, by its end.
#[derive(Debug, Default)]
pub(super) struct ExpiringTasks {
    pub(super) ready: TimedTasks,
    pub(super) delayed: TimedTasks,
}

impl ExpiringTasks {
    /// The first end of a lifetime.
    pub(super) fn next(&self) -> Option<u64> {
        self.ready.next().into_iter().chain(self.delayed.next()).min()
    }

    /// A task whose lifetime is over, one that may be lent first.
    pub(super) fn due(&self, now: u64) -> Option<TaskIndex> {
        self.ready.due(now).or_else(|| self.delayed.due(now))
    }
}

/// Times in milliseconds of the leases' clock, each with the number of its task.
#[derive(Debug, Default)]
pub(super) struct TimedTasks(ChunkedMap<(u64, u64), TaskIndex>);

impl TimedTasks {
    pub(super) fn insert(&mut self, time: u64, number: u64, task_index: TaskIndex) {
        self.0.insert((time, number), task_index);
    }

    pub(super) fn remove(&mut self, time: u64, number: u64) {
        self.0.remove(&(time, number));
    }

    /// The first time.
    pub(super) fn next(&self) -> Option<u64> {
        self.0.first_key_value().map(|((time, _), _)| *time)
    }

    /// The first time and number from this one on, and its task.
    pub(super) fn from(&self, time: u64, number: u64) -> Option<((u64, u64), TaskIndex)> {
        self.0.first_from(&(time, number)).map(|(at, task_index)| (*at, *task_index))
    }

    /// The number of tasks whose time has come.
    pub(super) fn count_due(&self, now: u64) -> u64 {
        self.0.count_to(&(now, u64::MAX)) as u64
    }

    /// The first task, if its time has come.
    pub(super) fn due(&self, now: u64) -> Option<TaskIndex> {
        self.0.first_key_value().filter(|((time, _), _)| *time <= now).map(|(_, task_index)| *task_index)
    }
}
