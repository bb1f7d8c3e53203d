//! Leases whose deadline has passed: each batch expires a bounded portion of them.
//!
//! ```text
//! wheel ─► take_due: so many, and of so many bytes ─► sorted by deadline ─► ready ─► granted to those that wait
//!   └── more are due: the next batch, after the requests that have come meanwhile
//! ```
//! A lease that is due and has not expired is held by nobody, and its task is granted to nobody.
//!
//! This module reads no clock and stores nothing.

use super::Engine;
use crate::limits::{EXPIRE_BUDGET, TASKS_BATCH_BYTES};
use crate::tasks::queue::LeaseTimer;
use crate::wheel::{Progress, Wheel};

/// Leases that are taken from the wheel before their bytes are looked at.
const EXPIRE_STEP: usize = 1 << 8;
/// Bytes of the wheel that are kept while there is no lease: an empty wheel, and some.
const WHEEL_KEPT: usize = 1 << 20;

/// The timers of all leases, and the time.
#[derive(Debug)]
pub(super) struct LeaseTimers {
    pub(super) wheel: Wheel<LeaseTimer>,
    /// Milliseconds of the leases' clock.
    pub(super) now: u64,
    /// Leases with a deadline up to this one are due, and some have not expired yet. 0: all have.
    pub(super) due_until: u64,
    /// The memory for the timers of one step.
    due: Vec<LeaseTimer>,
}

impl LeaseTimers {
    pub(super) fn new(now: u64) -> Self {
        Self { wheel: Wheel::new(now), now, due_until: 0, due: Vec::new() }
    }

    fn is_due(&self) -> bool {
        self.wheel.next_wake().is_some_and(|wake| wake <= self.now)
    }

    /// Notes whether leases are left that are due.
    fn note_left(&mut self) -> Progress {
        let is_behind = self.is_due();
        self.due_until = if is_behind { self.now } else { 0 };
        if is_behind { Progress::More } else { Progress::Done }
    }

    /// After many leases at once the memory of their timers goes back. No lease is left that names a timer.
    pub(super) fn give_back(&mut self) {
        if self.wheel.is_empty() && self.wheel.bytes() > WHEEL_KEPT {
            self.wheel = Wheel::new(self.now);
        }
    }
}

impl Engine {
    /// Sets the time and expires leases whose deadline has passed. Each pass is sorted by deadline. One call expires at
    /// most [`EXPIRE_BUDGET`] leases, and about as many as [`TASKS_BATCH_BYTES`] have records. [`Progress::More`]: more leases
    /// are due, for the next call. Until then nobody holds them, and nobody is granted their tasks. Among them may be a
    /// lease of zero length that is granted in this call.
    pub(in super::super) fn expire(&mut self, now: u64) -> Progress {
        self.timers.now = self.timers.now.max(now);
        let mut left = EXPIRE_BUDGET;
        while left > 0 && self.timers.is_due() && self.batch_bytes() < TASKS_BATCH_BYTES {
            left -= self.expire_some(left).clamp(1, left);
        }
        self.timers.note_left()
    }

    /// Takes at most `budget` leases that are due from the wheel, and no more when their records have [`TASKS_BATCH_BYTES`].
    fn take_due(&mut self, budget: usize) -> Vec<LeaseTimer> {
        let (mut due, mut bytes) = (std::mem::take(&mut self.timers.due), 0);
        while due.len() < budget && bytes < TASKS_BATCH_BYTES && self.timers.is_due() {
            let taken = due.len();
            let LeaseTimers { wheel, now, .. } = &mut self.timers;
            let _again = wheel.advance(*now, EXPIRE_STEP.min(budget - taken), |_, _, lease| due.push(lease));
            let records = due.iter().skip(taken).map(|lease| {
                let queue = &self.entry(lease.queue as usize).queue;
                queue.record_bytes(lease.task_index)
            });
            bytes += records.sum::<u64>();
            if due.len() == taken {
                // Timers have moved down, and none is due yet.
                break;
            }
        }
        due
    }

    /// Expires at most `budget` leases and returns their number.
    fn expire_some(&mut self, budget: usize) -> usize {
        let mut due = self.take_due(budget);
        let count = due.len();
        self.end_pauses(&mut due);
        due.sort_by_cached_key(|lease| self.entry(lease.queue as usize).queue.lease_of(lease.task_index));
        for LeaseTimer { queue, task_index } in due.drain(..) {
            let queue_index = queue as usize;
            self.mark(queue_index);
            self.entry_mut(queue_index).queue.expire(task_index);
            self.grant(queue_index);
        }
        self.timers.due = due;
        count
    }

    /// The bytes of the changes since the last [`Engine::drain`], approximately.
    pub(in super::super) fn batch_bytes(&self) -> u64 {
        self.marked.iter().map(|queue_index| self.entry(*queue_index).queue.changed_bytes()).sum()
    }

    /// When the next lease may expire, in milliseconds of the leases' clock.
    pub(in super::super) fn next_wake(&self) -> Option<u64> {
        self.timers.wheel.next_wake()
    }
}
