//! Pages of the tasks in one state.
//!
//! ```text
//! ready   class, position       delayed   time, number       lent   lease       dead   serial       dropped   number
//! ```
//! A task that stays in its state keeps its place there, over a start too, so each is on one page. A page looks at a bounded
//! number of tasks.
//!
//! This module changes nothing.

use super::task::{Task, TaskState};
use super::{TaskIndex, TaskQueue};
use crate::chunked_map::ChunkedMap;
use crate::tasks::order::Position;
use crate::tasks::shown::{BrowsePlace, BrowsedState, ShownReason};

impl TaskQueue {
    /// The next task of a state from this place on, and the place behind it. Of the ready ones those of a group alone, if one
    /// is given. Tasks in other states may be among them.
    pub(in crate::tasks) fn browse(
        &self,
        state: BrowsedState,
        group: Option<&[u8]>,
        from: BrowsePlace,
    ) -> Option<(TaskIndex, BrowsePlace)> {
        let BrowsePlace([first, second, third, fourth]) = from;
        let behind = |place: u64| BrowsePlace([place.saturating_add(1), 0, 0, 0]);
        let of_map = |tasks: &ChunkedMap<u64, TaskIndex>| {
            tasks.first_from(&first).map(|(place, task_index)| (*task_index, behind(*place)))
        };
        match state {
            BrowsedState::Ready => {
                let class = u32::try_from(first).unwrap_or(u32::MAX);
                let position = Position { priority: second, entered: third };
                let ((class, position), task_index) = self.ready.from(class, position, group)?;
                let behind = [u64::from(class), position.priority, position.entered.saturating_add(1), fourth];
                Some((task_index, BrowsePlace(behind)))
            }
            BrowsedState::Delayed => {
                let ((time, number), task_index) = self.aside.delayed.from(first, second)?;
                Some((task_index, BrowsePlace([time, number.saturating_add(1), third, fourth])))
            }
            BrowsedState::Lent => of_map(&self.aside.lent),
            BrowsedState::Dead => of_map(&self.aside.dead),
            BrowsedState::Dropped => of_map(&self.aside.dropped),
        }
    }

    /// The number of groups that have tasks.
    pub(in crate::tasks) fn groups(&self) -> u64 {
        self.ready.groups.count()
    }

    /// What a page shows of a task, but for its value. `None`: it is in another state or of another group, or its
    /// lifetime is over.
    pub(in crate::tasks) fn shown(
        &self,
        task_index: TaskIndex,
        state: BrowsedState,
        group: Option<&[u8]>,
    ) -> Option<ShownTask<'_>> {
        let task = self.task(task_index);
        let is_waiting = matches!(task.state, TaskState::Ready | TaskState::Delayed(_));
        let until = match (task.state, state) {
            // It has not gone yet, but its lifetime is over.
            _ if is_waiting && self.is_over(task_index) => return None,
            (TaskState::Ready, BrowsedState::Ready) | (TaskState::Dead, BrowsedState::Dead) => None,
            (TaskState::Dropped, BrowsedState::Dropped) => None,
            (TaskState::Delayed(until), BrowsedState::Delayed) => Some(until),
            (TaskState::Leased(lease), BrowsedState::Lent) => Some(lease.deadline),
            _ => return None,
        };
        let &Task { number, class, lent, since, .. } = task;
        let reason = match self.changes.reason(number) {
            _ if !task.marks.has_reason => ShownReason::None,
            Some(reason) => ShownReason::Fresh(reason.into()),
            None => ShownReason::Stored,
        };
        let name = task.group().map_or(&[][..], |number| self.ready.groups.name(number));
        let is_wanted = group.is_none_or(|group| group == name);
        is_wanted.then_some(ShownTask { number, class, lent, since, until, reason, key: &task.key, group: name })
    }
}

/// What a page shows of a task.
#[derive(Clone, Debug)]
pub(in crate::tasks) struct ShownTask<'q> {
    pub(in crate::tasks) number: u64,
    pub(in crate::tasks) class: u32,
    pub(in crate::tasks) lent: u32,
    pub(in crate::tasks) since: u64,
    pub(in crate::tasks) until: Option<u64>,
    pub(in crate::tasks) reason: ShownReason,
    pub(in crate::tasks) key: &'q [u8],
    pub(in crate::tasks) group: &'q [u8],
}
