//! Leases that are a connection's: they end with it and are not stored.
//!
//! ```text
//! Ready ─► reserved under the token of the connection ─► deleted, released, buried, its time is over: as a lease
//!                                                     └─► the connection is gone: the lease has failed
//! ```
//! The record of a reserved job says that it is ready, and does not count the try. So a server that starts has no
//! reservations, and whoever reserves waits for no sync.
//!
//! This module knows no connections.

use super::task::TaskState;
use super::{LeaseTimer, TaskIndex, TaskQueue};
use crate::tasks::reservation::{JobState, ReservationEnd, ShownJob};
use crate::tasks::shown::BrowsedState;
use crate::tasks::terms::{FailureCause, reason};
use crate::wheel::Wheel;

impl TaskQueue {
    /// The class and the key of a task.
    pub(in crate::tasks) fn rank(&self, task_index: TaskIndex) -> (u32, &[u8]) {
        let task = self.task(task_index);
        (task.class, &task.key)
    }

    /// Takes a job that is ready, delayed or dead out of its state, so that it can be leased. False: it is in another
    /// state, or its value is lost, or its group is full, or the rate of the queue is reached.
    pub(in crate::tasks) fn fetch(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) -> bool {
        let task = self.task(task_index);
        let has_state = matches!(task.state, TaskState::Ready | TaskState::Delayed(_) | TaskState::Dead);
        let is_free = has_state && !task.marks.is_lost && !self.is_over(task_index);
        if !is_free || self.ready.is_full(task.group()) || self.settings.gate.has_token_at() > self.time.now {
            return false;
        }
        if matches!(task.state, TaskState::Dead) {
            let place = self.place_of_old(task_index);
            self.leave(task_index, wheel);
            self.task_mut(task_index).position = place;
        } else {
            self.leave(task_index, wheel);
        }
        true
    }

    /// Ends a reservation. False: it is not held.
    pub(in crate::tasks) fn end_reservation(
        &mut self,
        task_index: TaskIndex,
        holder: u64,
        how: ReservationEnd,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if !self.release(task_index, holder, wheel) {
            return false;
        }
        self.task_mut(task_index).unread = 0;
        match how {
            ReservationEnd::Released { class, delay } => {
                self.task_mut(task_index).class = class;
                self.note_delay(task_index, delay);
                self.fail(task_index, FailureCause::GivenBack(&[]), Some(delay));
            }
            ReservationEnd::Buried { class } => {
                self.task_mut(task_index).class = class;
                self.die(task_index, &[]);
            }
            ReservationEnd::Closed => self.fail(task_index, FailureCause::Closed, None),
        }
        true
    }

    /// Removes a task, unless somebody else holds it. False: somebody does.
    pub(in crate::tasks) fn delete(
        &mut self,
        task_index: TaskIndex,
        holder: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        match self.token_of(task_index) {
            Some(token) if token == holder => return self.has_done(task_index, wheel),
            Some(_) => return false,
            None => self.remove(task_index, wheel),
        }
        true
    }

    /// Whether a task is dead.
    pub(in crate::tasks) fn is_dead(&self, task_index: TaskIndex) -> bool {
        self.tasks.get(task_index).is_some_and(|task| matches!(task.state, TaskState::Dead))
    }

    /// The first task of a state, in its order.
    pub(in crate::tasks) fn first(&mut self, state: BrowsedState) -> Option<TaskIndex> {
        match state {
            BrowsedState::Ready => self.ready.next().map(|(_, task_index)| task_index),
            BrowsedState::Delayed => self.aside.delayed.from(0, 0).map(|(_, task_index)| task_index),
            BrowsedState::Dead => self.aside.dead.first_key_value().map(|(_, task_index)| *task_index),
            BrowsedState::Lent | BrowsedState::Dropped => None,
        }
    }

    /// What is known of a job, but for the name of its queue.
    pub(in crate::tasks) fn job(&self, task_index: TaskIndex) -> ShownJob {
        let (task, history) = (self.task(task_index), self.history(task_index));
        let (state, until) = match task.state {
            TaskState::Ready | TaskState::Dropped => (JobState::Ready, 0),
            TaskState::Leased(lease) => (JobState::Reserved, lease.deadline),
            TaskState::Delayed(until) => (JobState::Delayed, until),
            TaskState::Dead | TaskState::Unread(_) => (JobState::Buried, 0),
        };
        ShownJob {
            queue: Box::default(),
            state,
            class: task.class,
            age: self.time.now.saturating_sub(history.added),
            delay: history.delay,
            lease: self.own_lease(task_index),
            left: until.saturating_sub(self.time.now),
            reserves: history.lent_before.saturating_add(task.lent),
            timeouts: history.timeouts,
            releases: history.releases,
            buries: history.buries,
            kicks: history.kicks,
        }
    }

    /// The jobs of the most urgent classes that are ready.
    pub(in crate::tasks) fn urgent(&self) -> u64 {
        self.ready.urgent
    }
}

impl FailureCause<'_> {
    /// Why the task has failed.
    pub(super) fn reason(&self) -> &[u8] {
        match self {
            Self::RanOut => reason::RAN_OUT,
            Self::Closed => reason::CLOSED,
            Self::GivenBack(reason) => reason,
        }
    }
}
