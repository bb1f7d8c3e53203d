//! Leases whose deadline has passed, and delays and lifetimes that are over: each batch ends a bounded portion of them.
//!
//! ```text
//! wheel ─► take_due: so many, and of so many bytes ─► sorted by deadline ─► ready ─► granted to those that wait
//!   ├── the alarm of a queue ─► pass: delays and lifetimes, in the order of their times
//!   └── more are due: the next batch, after the requests that have come meanwhile
//! ```
//! A queue has one alarm: for the first of its times. It is set when the changes of a batch are handed over.
//! A lease that is due and has not expired is held by nobody, and its task is granted to nobody.
//!
//! This module reads no clock and stores nothing.

use super::{Engine, TAKEN};
use crate::limits::{EXPIRE_BUDGET, LEASES_PER_BATCH, TASKS_BATCH_BYTES};
use crate::store::Store;
use crate::tasks::queue::{LeaseTimer, disarm};
use crate::tasks::queues::number_of;
use crate::tasks::waits::WaitNumber;
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
    fn note_left(&mut self, is_behind: bool) -> Progress {
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
    pub(in super::super) fn expire(&mut self, now: u64, store: &dyn Store) -> Progress {
        self.timers.now = self.timers.now.max(now);
        self.waits.leases_left = LEASES_PER_BATCH;
        let mut left = EXPIRE_BUDGET;
        // A search of the wheel costs as much as a small request.
        let mut is_due = self.timers.is_due();
        while left > 0 && is_due && self.batch_bytes() < TASKS_BATCH_BYTES {
            left -= self.expire_some(left, store).clamp(1, left);
            is_due = self.timers.is_due();
        }
        if self.has_to_grant() || !self.sweeps.is_empty() {
            self.sweep_some();
            self.grant_all(store);
            is_due = self.timers.is_due();
        }
        self.timers.note_left(is_due)
    }

    /// Takes at most `budget` leases that are due from the wheel, and no more when their records have [`TASKS_BATCH_BYTES`].
    fn take_due(&mut self, budget: usize) -> Vec<LeaseTimer> {
        let (mut due, mut bytes) = (std::mem::take(&mut self.timers.due), 0);
        while due.len() < budget && bytes < TASKS_BATCH_BYTES && self.timers.is_due() {
            let taken = due.len();
            let LeaseTimers { wheel, now, .. } = &mut self.timers;
            let _again = wheel.advance(*now, EXPIRE_STEP.min(budget - taken), |_, _, lease| due.push(lease));
            let leases = due.iter().skip(taken).filter(|timer| timer.is_of_task());
            let records = leases.map(|lease| {
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

    /// Expires at most `budget` leases, and ends as many delays and lifetimes. Returns their number.
    fn expire_some(&mut self, budget: usize, store: &dyn Store) -> usize {
        let mut due = self.take_due(budget);
        let mut count = due.len();
        let over = due.extract_if(.., |timer| timer.waiting().is_some());
        let over: Vec<WaitNumber> = over.filter_map(LeaseTimer::waiting).collect();
        // They may be served before they are refused, and their timers have come up.
        over.iter().for_each(|number| self.waits.set_timer(*number, None));
        let alarms: Vec<LeaseTimer> = due.extract_if(.., |timer| timer.is_alarm()).collect();
        self.end_pauses(&mut due, store);
        for LeaseTimer { queue, .. } in alarms {
            count += self.sound_alarm(queue as usize, budget.saturating_sub(count), store);
        }
        due.sort_by_cached_key(|lease| self.entry(lease.queue as usize).queue.lease_of(lease.task_index));
        for LeaseTimer { queue, task_index } in due.drain(..) {
            let queue_index = queue as usize;
            self.mark(queue_index);
            self.entry_mut(queue_index).queue.expire(task_index);
            self.waits.to_grant.push(queue_index);
            self.grant_all(store);
        }
        self.timers.due = due;
        // Behind the tasks that are due at the same time.
        self.refuse_waiting(over);
        count
    }

    /// The alarm of a queue has gone off: ends delays and lifetimes, at most `budget`. Returns how many.
    fn sound_alarm(&mut self, queue_index: usize, budget: usize, store: &dyn Store) -> usize {
        self.mark(queue_index);
        self.entry_mut(queue_index).alarm = None;
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        let count = queue.pass(budget, wheel);
        self.set_alarm(queue_index);
        self.waits.to_grant.push(queue_index);
        self.grant_all(store);
        count
    }

    /// Has the wheel go off when something happens in a queue by itself.
    pub(super) fn set_alarm(&mut self, queue_index: usize) {
        let entry = self.queues.get_mut(queue_index).expect(TAKEN);
        let next = entry.queue.next_event();
        if entry.alarm.map(|(time, _)| time) == next {
            return;
        }
        let wheel = &mut self.timers.wheel;
        if let Some((_, timer)) = entry.alarm.take() {
            disarm(wheel, timer, LeaseTimer::alarm(number_of(queue_index)));
        }
        entry.alarm = next.map(|time| (time, wheel.arm(time, LeaseTimer::alarm(number_of(queue_index)))));
    }

    /// All queues are restored: sets their alarms, and begins the rounds of their groups.
    pub(in super::super) fn has_restored(&mut self) {
        for queue_index in self.queues.indices() {
            self.queues.recount(queue_index);
            self.entry_mut(queue_index).queue.begin_round();
            self.set_alarm(queue_index);
        }
    }

    /// The bytes of the changes since the last [`Engine::drain`], approximately.
    pub(in super::super) fn batch_bytes(&self) -> u64 {
        self.marked.iter().map(|queue_index| self.entry(*queue_index).queue.changed_bytes()).sum()
    }

    /// When the next lease may expire, in milliseconds of the leases' clock.
    pub(in super::super) fn next_wake(&self) -> Option<u64> {
        if self.has_to_grant() || !self.sweeps.is_empty() {
            Some(self.timers.now)
        } else {
            self.timers.wheel.next_wake()
        }
    }
}
