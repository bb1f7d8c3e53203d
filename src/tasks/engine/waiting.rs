//! Requests for tasks: leased at once, or kept until a task is there.
//!
//! ```text
//! Lease, LeaseMany ─► something is ready ─► leased
//!                 └─► waits in all its queues ─► a task is ready, a token comes, a pause ends ─► grant
//!                                            └─► its time is over, it is withdrawn ─► refused
//! ```
//! A task that becomes ready is granted in the same step. So no request waits while a task may be leased to it.
//!
//! This module knows no protocol.

use std::sync::Arc;

use super::{Engine, TAKEN};
use crate::limits::WAITERS_MAX;
use crate::store::Store;
use crate::tasks::queue::{LeaseTimer, disarm};
use crate::tasks::queues::number_of;
use crate::tasks::record::task_key;
use crate::tasks::waits::{Wait, WaitNumber, WantedLeases};
use crate::tasks::{GrantedLease, NameKind, Outcome, QueueName, Ticket};

/// Bytes of the tasks behind the first one that a request for many is leased: of their values, keys and some.
pub(in crate::tasks) const LEASED_BYTES_MAX: u64 = 1 << 20;

/// Queues whose first job is looked at in the time of a lease.
const LOOKS_OF_A_LEASE: usize = 16;

impl Engine {
    /// Leases what is ready in these queues, in their order, or waits for it. `None`: it waits. `wait` is the longest time
    /// that it does, in milliseconds. 0: not at all.
    pub(super) fn lease_many(
        &mut self,
        ticket: Ticket,
        names: &[QueueName],
        wanted: WantedLeases,
        wait: u64,
        store: &dyn Store,
    ) -> Option<Outcome> {
        let waits = wait > 0 && !names.is_empty() && !self.closing;
        let mut queues = Vec::with_capacity(names.len());
        for name in names {
            let queue_index = match name {
                QueueName(NameKind::Opened(queue_index)) => Some(*queue_index),
                QueueName(NameKind::OfFamily { family, name }) if waits => self.queues.find_or_create(*family, name),
                name => self.index_of(name),
            };
            // The places in the answer are those of the request, so a queue that is missing keeps its place.
            queues.push(queue_index.unwrap_or(usize::MAX));
        }
        queues.iter().filter(|queue_index| **queue_index != usize::MAX).for_each(|queue_index| self.mark(*queue_index));
        let is_behind = waits && queues.iter().any(|queue_index| self.is_behind(*queue_index));
        let granted = if is_behind { Vec::new() } else { self.grant_from(&queues, wanted, store) };
        if !granted.is_empty() {
            return Some(Outcome::LeasedMany(granted));
        }
        let has_place =
            |queue_index: &usize| *queue_index != usize::MAX && self.entry(*queue_index).waiters.len() < WAITERS_MAX;
        if !waits || !queues.iter().all(has_place) {
            return Some(Outcome::Refused);
        }
        if is_behind {
            // The queues that have something have not been asked. The next batch asks them.
            self.waits.to_grant.extend_from_slice(&queues);
        }
        let until = (wait < u64::MAX).then(|| self.timers.now.saturating_add(wait));
        self.keep_waiting(ticket, wanted, queues.into(), false, until);
        None
    }

    /// Keeps a request until a task is there, or its time is over.
    pub(super) fn keep_waiting(
        &mut self,
        ticket: Ticket,
        wanted: WantedLeases,
        queues: Arc<[usize]>,
        is_first: bool,
        until: Option<u64>,
    ) {
        let place = self.waits.place(is_first);
        let number = self.waits.add(Wait { ticket, wanted, queues: Arc::clone(&queues), place, timer: None });
        if let Some(until) = until {
            let timer = self.timers.wheel.arm(until, LeaseTimer::end_of_wait(number));
            self.waits.set_timer(number, Some(timer));
        }
        for &queue_index in &*queues {
            self.entry_mut(queue_index).waiters.insert(place, number);
        }
    }

    /// A request waits no more: takes it out of all its queues.
    pub(super) fn stop_waiting(&mut self, number: WaitNumber) -> Option<Wait> {
        let wait = self.waits.remove(number)?;
        if let Some(timer) = wait.timer {
            disarm(&mut self.timers.wheel, timer, LeaseTimer::end_of_wait(number));
        }
        for queue_index in &*wait.queues {
            // A queue of a family may go with the last one that waits.
            self.mark(*queue_index);
            self.entry_mut(*queue_index).waiters.remove(&wait.place);
        }
        Some(wait)
    }

    /// Ends the waiting of these requests, first come first.
    pub(super) fn refuse_waiting(&mut self, mut numbers: Vec<WaitNumber>) {
        numbers.sort_unstable_by_key(|number| self.waits.get(*number).map(|wait| wait.place));
        for number in numbers {
            let refused = self.stop_waiting(number).map(|wait| (wait.ticket, Outcome::Refused));
            self.answers.extend(refused);
        }
    }

    /// Leases the next task, or waits for it. `None`: it waits.
    pub(super) fn lease_or_wait(
        &mut self,
        queue_index: usize,
        ticket: Ticket,
        timeout: u64,
        wait: bool,
        is_first: bool,
    ) -> Option<Outcome> {
        let is_behind = wait && self.is_behind(queue_index);
        if !is_behind && let Some(leased) = self.lease(queue_index, timeout) {
            return Some(leased);
        }
        if !wait || self.closing {
            return Some(Outcome::Refused);
        }
        let wanted = WantedLeases { timeout, most: 1, in_list: false, holder: None };
        self.keep_waiting(ticket, wanted, [queue_index].into(), is_first, None);
        None
    }

    /// Whether requests wait in a queue for the leases of the next batch. They come before one that comes now.
    fn is_behind(&self, queue_index: usize) -> bool {
        let first = self.queues.get(queue_index).and_then(|entry| entry.first_waiting());
        self.waits.leases_left == 0 && first.is_some()
    }

    /// Leases what has become ready to requests that wait.
    pub(super) fn grant_all(&mut self, store: &dyn Store) {
        while self.waits.leases_left > 0
            && let Some(queue_index) = self.waits.to_grant.pop()
        {
            self.grant(queue_index, store);
        }
    }

    /// Whether requests that wait have to be looked at in the next batch.
    pub(super) fn has_to_grant(&self) -> bool {
        !self.waits.to_grant.is_empty()
    }

    /// Leases ready tasks to requests that wait in this queue.
    fn grant(&mut self, queue_index: usize, store: &dyn Store) {
        while let Some(number) = self.queues.get(queue_index).and_then(|entry| entry.first_waiting()) {
            let Some(wait) = self.waits.get(number) else { return };
            let (ticket, wanted) = (wait.ticket, wait.wanted);
            if self.waits.leases_left == 0 {
                self.waits.to_grant.push(queue_index);
                return;
            }
            let outcome = if wanted.in_list {
                let queues = Arc::clone(&wait.queues);
                let granted = self.grant_from(&queues, wanted, store);
                (!granted.is_empty()).then_some(Outcome::LeasedMany(granted))
            } else {
                self.waits.leases_left -= 1;
                self.lease(queue_index, wanted.timeout)
            };
            let Some(outcome) = outcome else { return };
            self.stop_waiting(number);
            self.answers.push((ticket, outcome));
        }
    }

    /// Leases from these queues, in their order, up to the wanted number, and about [`LEASED_BYTES_MAX`] of values behind
    /// the first.
    fn grant_from(&mut self, queues: &[usize], wanted: WantedLeases, store: &dyn Store) -> Vec<GrantedLease> {
        if let Some(holder) = wanted.holder {
            // A look at many queues takes as long as several leases.
            let looks = 1 + queues.len() / LOOKS_OF_A_LEASE;
            self.waits.leases_left = self.waits.leases_left.saturating_sub(looks);
            return self.reserve_next(queues, holder, wanted.timeout);
        }
        let (mut granted, mut bytes) = (Vec::new(), 0);
        // The first one is always leased: an answer that there is none has to be true.
        let most = (wanted.most as usize).min(self.waits.leases_left.max(1));
        for (queue, &queue_index) in queues.iter().enumerate() {
            while queue_index != usize::MAX && granted.len() < most {
                let Some(next) = self.next_bytes(queue_index, store) else { break };
                if !granted.is_empty() && bytes + next > LEASED_BYTES_MAX {
                    return granted;
                }
                let Some(lease) = self.lease_in_list(queue, queue_index, wanted.timeout) else { break };
                bytes += if granted.is_empty() { 0 } else { next };
                granted.push(lease);
                self.waits.leases_left = self.waits.leases_left.saturating_sub(1);
            }
        }
        granted
    }

    /// The bytes of the task that is leased next.
    fn next_bytes(&mut self, queue_index: usize, store: &dyn Store) -> Option<u64> {
        let entry = self.queues.get_mut(queue_index).expect(TAKEN);
        let task_index = entry.queue.next()?;
        let number = entry.queue.number_of(task_index);
        let value = match entry.queue.fresh(number) {
            Some(value) => value.len() as u64,
            None => store.value_bytes(&task_key(number_of(queue_index), number)),
        };
        Some(value + entry.queue.record_bytes(task_index))
    }

    /// Leases the next task, if the queue has one that may be leased.
    pub(super) fn lease(&mut self, queue_index: usize, timeout: u64) -> Option<Outcome> {
        let GrantedLease { token, key, lent, lease, payload, .. } = self.lease_in_list(0, queue_index, timeout)?;
        Some(Outcome::Leased { token, key, lent, lease, payload })
    }

    /// Leases the next task of a queue, which has this place in the request.
    fn lease_in_list(&mut self, queue: usize, queue_index: usize, timeout: u64) -> Option<GrantedLease> {
        let entry = self.queues.get_mut(queue_index).expect(TAKEN);
        let task_index = entry.queue.next()?;
        let token = self.tokens.next().expect(super::RESERVED);
        let lease = entry.queue.own_lease(task_index).unwrap_or(timeout);
        let deadline = self.timers.now.saturating_add(lease);
        let leased = entry.queue.lease(task_index, token, deadline, &mut self.timers.wheel);
        let (number, lent, key) = (leased.number, leased.lent, leased.key.into());
        let payload = self.payload(queue_index, number);
        Some(GrantedLease { queue, token, key, lent, lease, payload })
    }
}
