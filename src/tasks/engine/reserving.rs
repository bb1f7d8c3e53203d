//! Jobs for connections: the most urgent one of many queues, or one by its id. And how a job is shown.
//!
//! This module knows no protocol and no connection.

use super::{Engine, TAKEN};
use crate::tasks::queue::TaskIndex;
use crate::tasks::reservation::ReservationEnd;
use crate::tasks::shown::BrowsedState;
use crate::tasks::{GrantedLease, Outcome};

impl Engine {
    /// Reserves the most urgent job of these queues, and of several the one with the lowest id. Empty: there is none.
    pub(super) fn reserve_next(&mut self, queues: &[usize], holder: u64, timeout: u64) -> Vec<GrantedLease> {
        let mut best: Option<(u32, Box<[u8]>, usize, TaskIndex)> = None;
        for (queue, &queue_index) in queues.iter().enumerate() {
            let Some(entry) = self.queues.get_mut(queue_index) else { continue };
            let Some(task_index) = entry.queue.next() else { continue };
            let (class, key) = entry.queue.rank(task_index);
            if best.as_ref().is_none_or(|(best_class, best_key, ..)| (class, key) < (*best_class, best_key)) {
                best = Some((class, key.into(), queue, task_index));
            }
        }
        let Some((_, _, queue, task_index)) = best else { return Vec::new() };
        let Some(&queue_index) = queues.get(queue) else { return Vec::new() };
        let (of_queue, wheel) = self.queue_and_wheel(queue_index);
        let fetched = of_queue.fetch(task_index, wheel);
        debug_assert!(fetched, "it is ready, and its queue lends");
        vec![self.reserve_fetched(queue, queue_index, task_index, holder, timeout)]
    }

    /// Reserves this job, if it is free.
    pub(super) fn reserve(&mut self, queue_index: usize, task_index: TaskIndex, holder: u64, timeout: u64) -> Outcome {
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        if !queue.fetch(task_index, wheel) {
            return Outcome::Refused;
        }
        Outcome::LeasedMany(vec![self.reserve_fetched(0, queue_index, task_index, holder, timeout)])
    }

    fn reserve_fetched(
        &mut self,
        queue: usize,
        queue_index: usize,
        task_index: TaskIndex,
        holder: u64,
        timeout: u64,
    ) -> GrantedLease {
        let entry = self.queues.get_mut(queue_index).expect(TAKEN);
        let lease = entry.queue.own_lease(task_index).unwrap_or(timeout);
        let deadline = self.timers.now.saturating_add(lease);
        let leased = entry.queue.lend(task_index, holder, deadline, &mut self.timers.wheel);
        let (number, lent, key) = (leased.number, leased.lent, leased.key.into());
        GrantedLease { queue, token: holder, key, lent, lease, payload: self.payload(queue_index, number) }
    }

    /// Ends a reservation.
    pub(super) fn end_reservation(
        &mut self,
        queue_index: usize,
        task_index: TaskIndex,
        holder: u64,
        how: ReservationEnd,
    ) -> Outcome {
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        match queue.end_reservation(task_index, holder, how, wheel) {
            false => Outcome::Refused,
            true if queue.is_dead(task_index) => Outcome::Died,
            true => Outcome::Done,
        }
    }

    /// Shows the first job of a state.
    pub(super) fn peek(&mut self, queue_index: usize, state: BrowsedState) -> Outcome {
        let queue = &mut self.entry_mut(queue_index).queue;
        let Some(task_index) = queue.first(state) else { return Outcome::Refused };
        let (number, key) = (queue.number_of(task_index), queue.rank(task_index).1.into());
        Outcome::Peeked { key, payload: self.payload(queue_index, number) }
    }

    /// Shows what is known of a job.
    pub(super) fn show(&self, queue_index: usize, task_index: TaskIndex) -> Outcome {
        let entry = self.entry(queue_index);
        let mut job = entry.queue.job(task_index);
        job.queue = (*entry.name).into();
        let payload = self.payload(queue_index, entry.queue.number_of(task_index));
        Outcome::Shown { job: Box::new(job), payload }
    }
}
