//! Kicks and purges of many tasks, in steps between which others have their turn.
//!
//! ```text
//! KickMany, Purge ─► a sweep ─► each batch: a step of the first one, which goes behind the others ─► Counted, at its end
//! ```
//! The sweeps of a client wait in a line, and the lines take turns. So many sweeps of one client have as many turns as a
//! single one of another. A frontend may withdraw the sweeps of a client that is gone, and what they have taken is taken.
//!
//! A sweep takes what was there when it began: tasks that have entered their state later stay. After a crash a part of them
//! is taken. So a batch with a step alone waits for no sync. The next answer does, since it may show what is gone.
//!
//! This module reads no clock.

use std::collections::{HashMap, HashSet, VecDeque};

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
    client: u64,
    queue_index: usize,
    sweep: Sweep,
    place: SweepPlace,
    taken: u64,
}

impl RunningSweep {
    fn line(&self) -> SweepLine {
        (self.ticket.sink, self.client)
    }
}

/// The sink of a sweep, and its client there. Sweeps of one line follow one another.
type SweepLine = (usize, u64);

/// All sweeps.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// The lines that have sweeps. The first has its turn.
    turns: VecDeque<SweepLine>,
    /// None of them is empty.
    lines: HashMap<SweepLine, VecDeque<RunningSweep>>,
    /// Whether steps have been stored without a sync.
    is_owed: bool,
}

impl Sweeps {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The sweeps of the line of this one. An empty line gets a turn behind all others.
    fn line_of(&mut self, sweep: &RunningSweep) -> &mut VecDeque<RunningSweep> {
        let line = sweep.line();
        let sweeps = self.lines.entry(line).or_default();
        if sweeps.is_empty() {
            self.turns.push_back(line);
        }
        sweeps
    }

    /// The first sweep of the line that has its turn. The next one of the line has a turn behind all other lines.
    fn next(&mut self) -> Option<RunningSweep> {
        let line = self.turns.pop_front()?;
        let sweeps = self.lines.get_mut(&line)?;
        let next = sweeps.pop_front();
        if sweeps.is_empty() {
            self.lines.remove(&line);
        } else {
            self.turns.push_back(line);
        }
        next
    }

    /// Takes the sweeps out for whose tickets `is_wanted` returns true.
    fn extract(&mut self, is_wanted: impl Fn(Ticket) -> bool) -> Vec<RunningSweep> {
        let Self { turns, lines, .. } = self;
        let mut extracted = Vec::new();
        for line in turns.iter() {
            let Some(sweeps) = lines.get_mut(line) else { continue };
            let (out, left): (Vec<_>, Vec<_>) =
                std::mem::take(sweeps).into_iter().partition(|sweep| is_wanted(sweep.ticket));
            extracted.extend(out);
            *sweeps = left.into();
        }
        lines.retain(|_, sweeps| !sweeps.is_empty());
        turns.retain(|line| lines.contains_key(line));
        extracted
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
    pub(super) fn begin_sweep(&mut self, queue_index: usize, ticket: Ticket, client: u64, sweep: Sweep) {
        let entry = self.entry_mut(queue_index);
        entry.holds.sweeps += 1;
        let (sweep, place) = entry.queue.sweep_begins(sweep);
        let running = RunningSweep { ticket, client, queue_index, sweep, place, taken: 0 };
        self.sweeps.line_of(&running).push_back(running);
    }

    /// A step of a sweep, if there is one.
    pub(super) fn sweep_some(&mut self) {
        if self.batch_bytes() >= TASKS_BATCH_BYTES {
            return;
        }
        let Some(mut running) = self.sweeps.next() else { return };
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
            self.sweeps.line_of(&running).push_front(running);
        }
    }

    /// Ends the sweeps of a sink with these tickets where they are.
    pub(super) fn withdraw_sweeps(&mut self, sink: usize, tickets: &[u64]) {
        if self.sweeps.is_empty() {
            return;
        }
        let tickets: HashSet<&u64> = tickets.iter().collect();
        let withdrawn = self.sweeps.extract(|ticket| ticket.sink == sink && tickets.contains(&ticket.number));
        self.end_all(withdrawn);
    }

    /// Ends all sweeps where they are.
    pub(super) fn end_sweeps(&mut self) {
        let all = self.sweeps.extract(|_| true);
        self.end_all(all);
    }

    fn end_all(&mut self, sweeps: Vec<RunningSweep>) {
        for running in sweeps {
            self.mark(running.queue_index);
            self.end_sweep(&running);
        }
    }

    fn end_sweep(&mut self, running: &RunningSweep) {
        self.entry_mut(running.queue_index).holds.sweeps -= 1;
        self.answers.push((running.ticket, Outcome::Counted(running.taken)));
    }
}
