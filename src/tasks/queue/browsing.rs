//! Pages of the tasks in one state.
//!
//! ```text
//! ready       group, class, position         delayed   time, number         dead   serial
//! lent and dropped   the memory of the tasks, place by place
//! ```
//! A task that stays in its state keeps its place there, so each is on one page. A page looks at a bounded number of tasks.
//!
//! This module changes nothing.

use super::ready::ReadyPlace;
use super::task::{Task, TaskState};
use super::{TaskIndex, TaskQueue};
use crate::tasks::order::Position;
use crate::tasks::shown::{BrowsePlace, BrowsedState, ShownReason};

impl TaskQueue {
    /// The next task of a state from this place on, and the place behind it. Tasks in other states may be among them.
    pub(in crate::tasks) fn browse(&self, state: BrowsedState, from: BrowsePlace) -> Option<(TaskIndex, BrowsePlace)> {
        let BrowsePlace([first, second, third, fourth]) = from;
        match state {
            BrowsedState::Ready => {
                let (place, task_index) = self.ready.from(ready_place(from))?;
                Some((task_index, behind(place)))
            }
            BrowsedState::Delayed => {
                let ((time, number), task_index) = self.aside.delayed.from(first, second)?;
                Some((task_index, BrowsePlace([time, number + 1, third, fourth])))
            }
            BrowsedState::Dead => {
                let (serial, task_index) = self.aside.dead.first_from(&first)?;
                Some((*task_index, BrowsePlace([serial + 1, 0, 0, 0])))
            }
            BrowsedState::Lent | BrowsedState::Dropped => {
                let task_index = self.tasks.next_from(TaskIndex::try_from(first).ok()?)?;
                Some((task_index, BrowsePlace([u64::from(task_index) + 1, 0, 0, 0])))
            }
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

/// The first number of a place is 0 for tasks without a group, and else the number of the group and 1.
fn ready_place(BrowsePlace([group, class, priority, entered]): BrowsePlace) -> ReadyPlace {
    let group = group.checked_sub(1).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let class = u32::try_from(class).unwrap_or(u32::MAX);
    ReadyPlace { class, group, position: Position { priority, entered } }
}

fn behind(ReadyPlace { class, group, position: Position { priority, entered } }: ReadyPlace) -> BrowsePlace {
    let group = group.map_or(0, |number| u64::from(number) + 1);
    BrowsePlace([group, u64::from(class), priority, entered + 1])
}
