//! A step of a kick or a purge of many tasks.
//!
//! ```text
//! kick    the order of deaths, or of the ends of delays ─► the next ones
//! purge   the memory of the tasks, place by place       ─► those in the named states
//! ```
//! This module does not know the other sweeps.

use super::task::TaskState;
use super::{LeaseTimer, TaskIndex, TaskQueue};
use crate::tasks::sweep::{Sweep, SweptStates};
use crate::wheel::Wheel;

/// How far a sweep has come.
#[derive(Clone, Copy, Debug)]
pub(in crate::tasks) struct SweepPlace {
    /// What has entered its state later stays.
    began: u64,
    /// Tasks with higher numbers were added later, and stay.
    last: u64,
    /// Tasks that died at a later serial stay dead.
    serial: u64,
    /// The next serial among the dead.
    dead: u64,
    /// The next time and number among the delayed tasks.
    delayed: (u64, u64),
    /// The next place in the memory of the tasks.
    next: TaskIndex,
}

/// What a step has done.
#[derive(Clone, Copy, Debug)]
pub(in crate::tasks) struct SweepStep {
    pub(in crate::tasks) taken: u64,
    /// Whether nothing is left that was there when the sweep began.
    pub(in crate::tasks) is_over: bool,
}

impl TaskQueue {
    /// A sweep begins. Returns which tasks it takes, and where.
    pub(in crate::tasks) fn sweep_begins(&self, sweep: Sweep) -> (Sweep, SweepPlace) {
        let sweep = match sweep {
            Sweep::Kick { most } if self.counts.dead > 0 => Sweep::KickDead { most },
            Sweep::Kick { most } => Sweep::KickDelayed { most },
            sweep => sweep,
        };
        let (serial, last) = (self.counters.serial, self.counters.last);
        let place = SweepPlace { began: self.time.now, last, serial, dead: 0, delayed: (0, 0), next: 0 };
        (sweep, place)
    }

    /// A step of a sweep: takes at most `left` tasks, and looks at no more than `budget`.
    pub(in crate::tasks) fn sweep(
        &mut self,
        sweep: &Sweep,
        place: &mut SweepPlace,
        left: u64,
        budget: usize,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> SweepStep {
        let mut step = SweepStep { taken: 0, is_over: false };
        for _ in 0..budget {
            if step.taken >= left {
                break;
            }
            let next = match sweep {
                Sweep::Kick { .. } | Sweep::KickDead { .. } => self.next_dead(place),
                Sweep::KickDelayed { .. } => self.next_delayed(place),
                Sweep::Purge { states, age } => self.next_purged(place, *states, *age),
            };
            match next {
                NextSwept::Take(task_index) if matches!(sweep, Sweep::Purge { .. }) => {
                    self.remove(task_index, wheel);
                    step.taken += 1;
                }
                NextSwept::Take(task_index) => {
                    step.taken += u64::from(self.rouse(task_index, wheel));
                }
                NextSwept::Leave => {}
                NextSwept::End => {
                    step.is_over = true;
                    break;
                }
            }
        }
        step
    }

    fn next_dead(&self, place: &mut SweepPlace) -> NextSwept {
        let first = self.aside.dead.first_from(&place.dead).filter(|(serial, _)| **serial <= place.serial);
        let Some((serial, &task_index)) = first else { return NextSwept::End };
        place.dead = serial + 1;
        NextSwept::Take(task_index)
    }

    fn next_delayed(&self, place: &mut SweepPlace) -> NextSwept {
        let Some((at, task_index)) = self.aside.delayed.from(place.delayed.0, place.delayed.1) else {
            return NextSwept::End;
        };
        place.delayed = (at.0, at.1 + 1);
        let task = self.task(task_index);
        if task.number <= place.last && task.since <= place.began {
            NextSwept::Take(task_index)
        } else {
            NextSwept::Leave
        }
    }

    fn next_purged(&self, place: &mut SweepPlace, states: SweptStates, age: u64) -> NextSwept {
        let Some(task_index) = self.tasks.next_from(place.next) else { return NextSwept::End };
        place.next = task_index + 1;
        let task = self.task(task_index);
        let is_named = match task.state {
            TaskState::Ready | TaskState::Unread(_) => states.ready,
            TaskState::Delayed(_) => states.delayed,
            TaskState::Dead => states.dead,
            TaskState::Dropped => states.dropped,
            TaskState::Leased(_) => false,
        };
        let is_old = task.since.saturating_add(age) <= place.began;
        if is_named && is_old && place.last >= task.number { NextSwept::Take(task_index) } else { NextSwept::Leave }
    }
}

/// What a sweep finds next.
#[derive(Clone, Copy, Debug)]
enum NextSwept {
    Take(TaskIndex),
    /// It stays.
    Leave,
    End,
}
