//! Leases: how they begin, change and end.
//!
//! This module does not know why a task is leased, nor what its failure brings: see `failure.rs`.

use super::task::{Lease, TaskState};
use super::{LeaseTimer, LeasedTask, TaskIndex, TaskQueue};
use crate::limits::EXPIRE_BUDGET;
use crate::store::Value;
use crate::tasks::order::Settlement;
use crate::tasks::terms::FailureCause;
use crate::wheel::Wheel;

impl TaskQueue {
    /// The task that is leased next, if the queue lends at present. One whose lifetime is over goes instead.
    pub(in crate::tasks) fn next(&mut self) -> Option<TaskIndex> {
        if self.settings.gate.opens_at() > self.time.now {
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
    pub(in crate::tasks) fn lease(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        deadline: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> LeasedTask<'_> {
        self.step_out(task_index);
        self.lend(task_index, token, deadline, wheel)
    }

    /// Leases a task that is in no structure.
    pub(in crate::tasks) fn lend(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        deadline: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> LeasedTask<'_> {
        if self.settings.gate.rate.is_some() {
            self.lends.note(token, self.time.now, self.settings.gate.debt(self.time.now));
        }
        self.settings.gate.lend(self.time.now);
        self.start_lease(task_index, token, deadline, wheel);
        self.counts.ever.lent += 1;
        self.ready.end_turn(self.task(task_index).group());
        self.touch_lease(task_index);
        let task = self.task_mut(task_index);
        task.lent = task.lent.saturating_add(1);
        LeasedTask { number: task.number, lent: task.lent, key: &task.key }
    }

    /// Ends a lease as its holder requests, and stores the new value if there is one. False: this lease is not held,
    /// and nothing changes.
    pub(in crate::tasks) fn settle(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        value: Option<Value>,
        how: Settlement,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if how == Settlement::Done {
            return self.is_held(task_index, token) && self.has_done(task_index, wheel);
        }
        if !self.release(task_index, token, wheel) {
            return false;
        }
        let task = self.task_mut(task_index);
        (task.unread, task.lent) = (0, if how == Settlement::Drop { task.lent } else { 0 });
        if let Some(value) = value {
            self.set_value(task_index, value);
        }
        self.touch(task_index);
        if how == Settlement::Drop {
            self.task_mut(task_index).since = self.time.now;
            self.drop_out(task_index);
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

    /// A task that is in no structure is dropped from now on.
    pub(super) fn drop_out(&mut self, task_index: TaskIndex) {
        self.counts.dropped += 1;
        let task = self.task_mut(task_index);
        task.state = TaskState::Dropped;
        let number = task.number;
        self.aside.dropped.insert(number, task_index);
    }

    /// Gives a lease a new deadline. False: this lease is not held.
    pub(in crate::tasks) fn extend(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        deadline: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if !self.release(task_index, token, wheel) {
            return false;
        }
        self.task_mut(task_index).unread = 0;
        self.start_lease(task_index, token, deadline, wheel);
        self.touch_lease(task_index);
        true
    }

    /// Ends a lease that its holder never received. The task keeps its position. False: this lease is not held.
    pub(in crate::tasks) fn undo(&mut self, task_index: TaskIndex, token: u64, wheel: &mut Wheel<LeaseTimer>) -> bool {
        if !self.release(task_index, token, wheel) {
            return false;
        }
        self.untry(task_index, token);
        self.touch(task_index);
        self.come_back(task_index);
        true
    }

    /// The deadline and the token of a leased task. Leases that end in the same pass expire in this order.
    pub(in crate::tasks) fn lease_of(&self, task_index: TaskIndex) -> Option<(u64, u64)> {
        match self.task(task_index).state {
            TaskState::Leased(lease) => Some((lease.deadline, lease.token)),
            TaskState::Ready | TaskState::Unread(_) | TaskState::Dropped => None,
            TaskState::Delayed(_) | TaskState::Dead => None,
        }
    }

    /// The lease of this task has expired, or the pause in which it was not read. Its timer is no longer in the wheel.
    pub(in crate::tasks) fn expire(&mut self, task_index: TaskIndex) {
        if self.is_unread(task_index) {
            return self.end_pause(task_index);
        }
        let Some((_, token)) = self.lease_of(task_index) else { return };
        self.end_lease(task_index, token);
        self.counts.ever.ran_out += 1;
        self.fail(task_index, FailureCause::RanOut, None);
    }

    /// Has the next batch store a lease, unless it is a connection's.
    pub(super) fn touch_lease(&mut self, task_index: TaskIndex) {
        if !self.task(task_index).is_reserved() {
            self.touch(task_index);
        }
    }

    /// Leases a task. The caller has already taken it out of the counts of its old state.
    pub(super) fn start_lease(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        deadline: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) {
        let timer = wheel.arm(deadline, LeaseTimer { queue: self.number, task_index });
        self.counts.leased += 1;
        self.ready.lend(self.task(task_index).group());
        let task = self.task_mut(task_index);
        (task.state, task.marks.has_reason) = (TaskState::Leased(Lease { token, deadline, timer }), false);
        let order = task.lease_order(token);
        self.aside.lent.insert(order, task_index);
    }

    /// A task with this lease is lent no more. The caller sets its new state.
    pub(super) fn end_lease(&mut self, task_index: TaskIndex, token: u64) {
        self.counts.leased -= 1;
        let task = self.task(task_index);
        let (order, group) = (task.lease_order(token), task.group());
        self.aside.lent.remove(&order);
        self.ready.end_lease(group);
    }

    /// Whether a lease with this deadline is held: a lease that is due is held no more, although it has not expired yet.
    pub(super) fn is_running(&self, deadline: u64) -> bool {
        self.time.due < deadline
    }

    /// Takes a task out of its lease. The caller sets its new state. False: this lease is not held.
    pub(super) fn release(&mut self, task_index: TaskIndex, token: u64, wheel: &mut Wheel<LeaseTimer>) -> bool {
        match self.task(task_index).state {
            TaskState::Leased(lease) if lease.token == token && self.is_running(lease.deadline) => {
                self.leave(task_index, wheel);
                true
            }
            TaskState::Leased(_) | TaskState::Ready | TaskState::Unread(_) | TaskState::Dropped => false,
            TaskState::Delayed(_) | TaskState::Dead => false,
        }
    }
}
