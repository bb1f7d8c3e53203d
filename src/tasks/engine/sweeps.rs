//! Kicks and purges of many tasks, in steps between which others have their turn.
//!
//! ```text
//! KickMany, Purge ─► a sweep ─► each batch: a step of the first one, which goes behind the others ─► Counted, at its end
//! ```
//! A sweep takes what was there when it began: tasks that have entered their state later stay. After a crash a part of them
//! is taken. So a batch with a step alone waits for no sync. The next answer does, since it may show what is gone.
//!
//! This module reads no clock.

use std::collections::VecDeque;

use super::{Engine, SyncWithin};
use crate::limits::TASKS_BATCH_BYTES;
use crate::tasks::queue::SweepPlace;
use crate::tasks::sweep::Sweep;
use crate::tasks::{Outcome, Ticket};

/// Tasks at which one step looks. A batch has one step, for which the requests of others wait: with 2,048 their p99 grew
/// sixfold.
pub(in crate::tasks) const SWEEP_STEP: usize = 1 << 6;

/// A sweep that goes on.
#[derive(Debug)]
struct RunningSweep {
    ticket: Ticket,
    queue_index: usize,
    sweep: Sweep,
    place: SweepPlace,
    taken: u64,
}

/// All sweeps.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// The first has its turn.
    running: VecDeque<RunningSweep>,
    /// Whether steps have been stored without a sync.
    is_owed: bool,
}

impl Sweeps {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// When a batch has to be on disk that would need `sync` by its changes.
    pub(super) fn put_off(&mut self, sync: SyncWithin, has_answers: bool) -> SyncWithin {
        if !has_answers && !self.is_empty() && sync == SyncWithin::Now {
            self.is_owed = true;
            return SyncWithin::Whenever;
        }
        if has_answers && std::mem::take(&mut self.is_owed) { SyncWithin::Now } else { sync }
    }
}

impl Engine {
    /// Begins a sweep, which is answered at its end.
    pub(super) fn begin_sweep(&mut self, queue_index: usize, ticket: Ticket, sweep: Sweep) {
        let entry = self.entry_mut(queue_index);
        entry.holds.sweeps += 1;
        let (sweep, place) = entry.queue.sweep_begins(sweep);
        self.sweeps.running.push_back(RunningSweep { ticket, queue_index, sweep, place, taken: 0 });
    }

    /// A step of a sweep, if there is one.
    pub(super) fn sweep_some(&mut self) {
        if self.batch_bytes() >= TASKS_BATCH_BYTES {
            return;
        }
        let Some(mut running) = self.sweeps.running.pop_front() else { return };
        let queue_index = running.queue_index;
        self.mark(queue_index);
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        let left = running.sweep.most() - running.taken;
        let step = queue.sweep(&running.sweep, &mut running.place, left, SWEEP_STEP, wheel);
        running.taken += step.taken;
        self.waits.to_grant.push(queue_index);
        if step.is_over || running.taken >= running.sweep.most() {
            self.end_sweep(&running);
        } else {
            self.sweeps.running.push_back(running);
        }
    }

    /// Ends all sweeps where they are.
    pub(super) fn end_sweeps(&mut self) {
        for running in std::mem::take(&mut self.sweeps.running) {
            self.mark(running.queue_index);
            self.end_sweep(&running);
        }
    }

    fn end_sweep(&mut self, running: &RunningSweep) {
        self.entry_mut(running.queue_index).holds.sweeps -= 1;
        self.answers.push((running.ticket, Outcome::Counted(running.taken)));
    }
}
