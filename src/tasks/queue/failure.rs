//! Tasks that fail, wait and die: delays, tries, lifetimes, and the way back.
//!
//! ```text
//! fail ─► lent as often as it may be? ─► dead ─► kick: at the tail, or at the place of a job
//!     └─► a delay, its own or the backoff ─► delayed ─► pass: ready when the time has come
//!                                              └─► kick: ready at once
//! ```
//! The place of a task is settled when it comes back, not when its delay ends.
//!
//! This module reads no clock.

use super::ready::ReadyPlace;
use super::task::TaskState;
use super::timed::TimedTasks;
use super::{LeaseTimer, TaskIndex, TaskQueue};
use crate::tasks::order::{LeaseOrder, Position, QueueEnd};
use crate::tasks::terms::{FailureCause, reason};
use crate::wheel::Wheel;

impl TaskQueue {
    /// Gives a lease back, which has failed. The task is ready after this delay, or after its backoff. False: this lease is
    /// not held.
    pub(in crate::tasks) fn give_back(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        delay: Option<u64>,
        reason: &[u8],
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if !self.release(task_index, token, wheel) {
            return false;
        }
        self.task_mut(task_index).unread = 0;
        if let Some(delay) = delay {
            self.note_delay(task_index, delay);
        }
        self.fail(task_index, FailureCause::GivenBack(reason), delay);
        true
    }

    /// Ends a lease as if it had expired. False: this lease is not held.
    pub(in crate::tasks) fn cut_short(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if !self.release(task_index, token, wheel) {
            return false;
        }
        self.counts.ever.ran_out += 1;
        self.fail(task_index, FailureCause::RanOut, None);
        true
    }

    /// Ends a lease, whose task is dead from now on. False: this lease is not held.
    pub(in crate::tasks) fn bury(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        reason: &[u8],
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if !self.release(task_index, token, wheel) {
            return false;
        }
        self.die(task_index, reason);
        true
    }

    /// Makes a dead or delayed task ready. False: it is in another state, or its value is lost.
    pub(in crate::tasks) fn kick(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) -> bool {
        let is_kicked = matches!(self.task(task_index).state, TaskState::Dead | TaskState::Delayed(_));
        is_kicked && self.rouse(task_index, wheel)
    }

    /// Makes a dead or delayed task ready, as one that was never leased. False: its value is lost.
    pub(super) fn rouse(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) -> bool {
        if self.task(task_index).marks.is_lost {
            return false;
        }
        let lent = self.task(task_index).lent;
        self.note_history(task_index, |history| {
            history.kicks = history.kicks.saturating_add(1);
            history.lent_before = history.lent_before.saturating_add(lent);
        });
        self.leave(task_index, wheel);
        let position = self.place_of_old(task_index);
        let task = self.task_mut(task_index);
        (task.lent, task.marks.has_reason) = (0, false);
        self.touch(task_index);
        self.come_in(task_index, position, 0);
        true
    }

    /// The position of a dead or delayed task that comes back: at the tail, or at the place of a job. The latter changes
    /// nothing that is stored.
    pub(super) fn place_of_old(&mut self, task_index: TaskIndex) -> Position {
        let (order, task) = (self.order(), self.task(task_index));
        let (place, position) = (task.place(), Position { entered: task.position.priority, ..task.position });
        match order {
            LeaseOrder::Priority => order.added(QueueEnd::Tail, self.counters.next_serial()),
            // After a repair another task may have the place that this one had before it died.
            LeaseOrder::Fifo if self.ready.is_taken(ReadyPlace { position, ..place }) => {
                Position { entered: self.counters.next_serial(), ..position }
            }
            LeaseOrder::Fifo => position,
        }
    }

    /// The next time at which something happens by itself, leases aside.
    pub(in crate::tasks) fn next_event(&self) -> Option<u64> {
        let gate = &self.settings.gate;
        // A pause that is over is forgotten, and with it a queue without tasks.
        let resumes = Some(gate.paused_until).filter(|until| *until > self.time.now && *until < u64::MAX);
        let lends = Some(gate.opens_at()).filter(|at| self.counts.ready > 0 && *at > self.time.now && *at < u64::MAX);
        [self.aside.delayed.next(), self.aside.expiring.next(), resumes, lends].into_iter().flatten().min()
    }

    /// Ends lifetimes and delays whose time has come, at most `budget`. Returns how many.
    pub(in crate::tasks) fn pass(&mut self, budget: usize, wheel: &mut Wheel<LeaseTimer>) -> usize {
        let mut count = 0;
        while count < budget {
            if let Some(task_index) = self.aside.expiring.due(self.time.now) {
                self.leave(task_index, wheel);
                self.forget_expired(task_index);
            } else if let Some(task_index) = self.aside.delayed.due(self.time.now) {
                self.be_ready(task_index, wheel);
            } else {
                break;
            }
            count += 1;
        }
        count
    }

    /// The delay of a task is over. Its record says so already.
    fn be_ready(&mut self, task_index: TaskIndex, wheel: &mut Wheel<LeaseTimer>) {
        let state = self.task(task_index).state;
        self.leave(task_index, wheel);
        if let TaskState::Delayed(until) = state {
            self.task_mut(task_index).since = until;
        }
        self.come_back(task_index);
    }

    /// A lease has ended that was no try: what it has counted for comes back.
    pub(super) fn untry(&mut self, task_index: TaskIndex, token: u64) {
        let task = self.task_mut(task_index);
        task.lent = task.lent.saturating_sub(1);
        if let Some(rate) = self.settings.gate.rate {
            let time = self.lends.undo(token, rate.interval());
            self.settings.gate.undo(time, self.time.now);
        }
    }

    /// A lease has failed. Its task is in no structure.
    pub(super) fn fail(&mut self, task_index: TaskIndex, cause: FailureCause<'_>, delay: Option<u64>) {
        self.counts.ever.failed += 1;
        self.note_history(task_index, |history| match cause {
            FailureCause::RanOut => history.timeouts = history.timeouts.saturating_add(1),
            FailureCause::GivenBack(_) => history.releases = history.releases.saturating_add(1),
            FailureCause::Closed => {}
        });
        let reason = cause.reason();
        let task = self.task(task_index);
        if task.marks.is_lost {
            return self.die(task_index, reason::DAMAGED);
        }
        let (own, lent) = (task.terms.as_deref().copied().unwrap_or_default(), task.lent);
        let of_queue = self.settings.terms;
        let tries = own.tries.or(of_queue.tries).unwrap_or(self.usual_tries);
        if tries.is_some_and(|tries| lent >= tries.get()) {
            return self.die(task_index, reason);
        }
        let backoff = || own.backoff.or(of_queue.backoff).map_or(0, |backoff| backoff.after(lent, task.number));
        let delay = delay.unwrap_or_else(backoff);
        let position = self.ready.order.expired(task.position, self.counters.next_serial());
        self.touch(task_index);
        self.note_failure(task_index, reason);
        self.come_in(task_index, position, delay);
    }

    /// Keeps why a task has failed.
    pub(super) fn note_failure(&mut self, task_index: TaskIndex, reason: &[u8]) {
        let task = self.task_mut(task_index);
        task.marks.has_reason = !reason.is_empty();
        let number = task.number;
        if !reason.is_empty() {
            self.changes.note_reason(number, reason);
        }
    }

    /// A task that is in no structure enters the queue at `position`: it is ready after this delay. If its lifetime is
    /// over, it goes.
    pub(super) fn come_in(&mut self, task_index: TaskIndex, position: Position, delay: u64) {
        let now = self.time.now;
        let task = self.task_mut(task_index);
        (task.since, task.position) = (now, position);
        if self.is_over(task_index) {
            self.forget_expired(task_index);
        } else if delay > 0 {
            self.start_delay(task_index, now.saturating_add(delay));
        } else {
            let stands = self.make_ready(task_index, position);
            debug_assert!(stands, "a serial is given once");
        }
    }

    /// A task that is in no structure is ready at its position, as one that was never leased. If its lifetime is over, it
    /// goes, and if its value was lost meanwhile, it is dead.
    pub(super) fn come_back(&mut self, task_index: TaskIndex) {
        if self.is_over(task_index) {
            return self.forget_expired(task_index);
        }
        if self.task(task_index).marks.is_lost {
            return self.die(task_index, reason::DAMAGED);
        }
        let stands = self.make_ready(task_index, self.task(task_index).position);
        debug_assert!(stands, "its position is kept for it");
    }

    /// A task that is in no structure is dead from now on, for this reason. If its lifetime is over, it goes.
    pub(super) fn die(&mut self, task_index: TaskIndex, reason: &[u8]) {
        self.note_history(task_index, |history| history.buries = history.buries.saturating_add(1));
        self.touch(task_index);
        self.note_failure(task_index, reason);
        if self.is_over(task_index) {
            return self.forget_expired(task_index);
        }
        let (now, serial) = (self.time.now, self.counters.next_serial());
        let task = self.task_mut(task_index);
        (task.since, task.position.entered) = (now, serial);
        let is_alone = self.make_dead(task_index);
        debug_assert!(is_alone, "a serial is given once");
    }

    /// Keeps a task among the dead. False: another one has died at the same serial.
    pub(super) fn make_dead(&mut self, task_index: TaskIndex) -> bool {
        let task = self.task_mut(task_index);
        task.state = TaskState::Dead;
        let serial = task.position.entered;
        self.counts.dead += 1;
        self.aside.dead.insert(serial, task_index).is_none()
    }

    /// A task is no longer among the dead.
    pub(super) fn rise(&mut self, task_index: TaskIndex) {
        self.counts.dead -= 1;
        let serial = self.task(task_index).position.entered;
        self.aside.dead.remove(&serial);
    }

    /// A task is not ready before this time.
    pub(super) fn start_delay(&mut self, task_index: TaskIndex, until: u64) {
        let task = self.task_mut(task_index);
        task.state = TaskState::Delayed(until);
        let number = task.number;
        self.counts.delayed += 1;
        self.aside.delayed.insert(until, number, task_index);
        self.watch_lifetime(task_index);
    }

    /// A task is no longer delayed.
    pub(super) fn end_delay(&mut self, task_index: TaskIndex, until: u64) {
        let number = self.task(task_index).number;
        self.counts.delayed -= 1;
        self.aside.delayed.remove(until, number);
        self.unwatch_lifetime(task_index);
    }

    /// A task that is ready or delayed goes when its lifetime is over.
    pub(super) fn watch_lifetime(&mut self, task_index: TaskIndex) {
        let task = self.task(task_index);
        if let (number, Some(expires)) = (task.number, task.expires()) {
            self.expiring(task_index).insert(expires, number, task_index);
        }
    }

    /// A task is neither ready nor delayed any more.
    pub(super) fn unwatch_lifetime(&mut self, task_index: TaskIndex) {
        let task = self.task(task_index);
        if let (number, Some(expires)) = (task.number, task.expires()) {
            self.expiring(task_index).remove(expires, number);
        }
    }

    /// Where the lifetime of a task is watched that is ready or delayed.
    fn expiring(&mut self, task_index: TaskIndex) -> &mut TimedTasks {
        match self.task(task_index).state {
            TaskState::Delayed(_) => &mut self.aside.expiring.delayed,
            _ => &mut self.aside.expiring.ready,
        }
    }

    /// Whether the lifetime of a task is over.
    pub(super) fn is_over(&self, task_index: TaskIndex) -> bool {
        self.task(task_index).expires().is_some_and(|expires| expires <= self.time.now)
    }

    /// Removes a task whose lifetime is over, and which is in no structure but the keys.
    pub(super) fn forget_expired(&mut self, task_index: TaskIndex) {
        self.counts.ever.expired += 1;
        self.forget(task_index);
    }
}
