//! Requests about one task that is there.
//!
//! This module knows no protocol.

use super::{Engine, done};
use crate::tasks::queue::TaskIndex;
use crate::tasks::{Outcome, Request, Ticket};

impl Engine {
    /// Applies a request to the task that it names. `None`: it waits.
    pub(super) fn apply_to_task(
        &mut self,
        queue_index: usize,
        task_index: Option<TaskIndex>,
        ticket: Ticket,
        request: Request,
    ) -> Option<Outcome> {
        if let Request::LeaseNext { token, timeout, wait, .. } = request {
            if let Some(task_index) = task_index {
                self.set_unread(queue_index, task_index, token);
            }
            return self.lease_or_wait(queue_index, ticket, timeout, wait, true);
        }
        let Some(task_index) = task_index else { return Some(Outcome::Refused) };
        Some(match request {
            Request::Extend { token, timeout, .. } => self.extend(queue_index, task_index, token, timeout),
            Request::Look { .. } => self.look(queue_index, task_index, |_| true),
            Request::LookDropped { .. } => self.look(queue_index, task_index, |dropped| dropped),
            Request::Has { .. } => Outcome::Found(None),
            Request::Reserve { holder, timeout, .. } => self.reserve(queue_index, task_index, holder, timeout),
            Request::Touch { holder, timeout, .. } => {
                let lease = self.entry(queue_index).queue.own_lease(task_index).unwrap_or(timeout);
                self.extend(queue_index, task_index, Some(holder), lease)
            }
            Request::Show { .. } => self.show(queue_index, task_index),
            Request::EndReservation { holder, how, .. } => self.end_reservation(queue_index, task_index, holder, how),
            request => done(self.change(queue_index, task_index, request)),
        })
    }

    /// Changes a task. False: it has no such lease, or is in another state.
    fn change(&mut self, queue_index: usize, task_index: TaskIndex, request: Request) -> bool {
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        match request {
            Request::Update { value, .. } => queue.set_value(task_index, value),
            Request::Remove { .. } => queue.remove(task_index, wheel),
            Request::Settle { token, value, how, .. } => return queue.settle(task_index, token, value, how, wheel),
            Request::Undo { token, .. } => return queue.undo(task_index, token, wheel),
            Request::SetUnread { token, .. } => return queue.set_unread(task_index, token, wheel),
            Request::GiveBack { token, delay, reason, .. } => {
                let token = token.or_else(|| queue.token_of(task_index));
                return token.is_some_and(|token| queue.give_back(task_index, token, delay, &reason, wheel));
            }
            Request::Bury { token, reason, .. } => return queue.bury(task_index, token, &reason, wheel),
            Request::Delete { holder, .. } => return queue.delete(task_index, holder, wheel),
            Request::Kick { .. } => return queue.kick(task_index, wheel),
            Request::Finish { .. } => return queue.finish(task_index, wheel),
            _ => return false,
        }
        true
    }

    /// Extends a lease. A timeout of 0 ends it at once.
    fn extend(&mut self, queue_index: usize, task_index: TaskIndex, token: Option<u64>, timeout: u64) -> Outcome {
        let Some(token) = token.or_else(|| self.entry(queue_index).queue.token_of(task_index)) else {
            return Outcome::Refused;
        };
        let deadline = self.timers.now.saturating_add(timeout);
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        done(match timeout {
            0 => queue.cut_short(task_index, token, wheel),
            _ => queue.extend(task_index, token, deadline, wheel),
        })
    }

    /// Looks at a task. `wanted` gets whether the task is dropped, and says whether the answer includes the value.
    fn look(&self, queue_index: usize, task_index: TaskIndex, wanted: impl FnOnce(bool) -> bool) -> Outcome {
        let queue = &self.entry(queue_index).queue;
        let is_wanted = wanted(queue.is_out(task_index));
        Outcome::Found(is_wanted.then(|| self.payload(queue_index, queue.number_of(task_index))))
    }
}
