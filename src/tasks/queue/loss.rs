//! Tasks whose value or record is lost, or cannot be read at present, and records that do not fit to each other after a
//! repair.
//!
//! ```text
//! Ready, Delayed ─► the value is lost ─► Dead    Leased ─► the value is lost ─► not leased any more ─► Dead
//! Leased ─► the value cannot be read ─► Unread for a pause: 1 s, 2 s, 4 s … 60 s ─► Ready, in its old position
//! ```
//! A new value (Update, or the holder's) ends the loss. A task that is dead for it can be kicked then.
//!
//! This module reads no store.

use std::collections::HashMap;

use super::task::TaskState;
use super::{LeaseTimer, TaskIndex, TaskQueue};
use crate::limits::{UNREAD_PAUSE, UNREAD_PAUSE_MAX};
use crate::store::Value;
use crate::tasks::terms::reason;
use crate::wheel::Wheel;

/// How often a pause doubles at most. It has reached its bound by then.
const PAUSE_DOUBLED_MAX: u8 = 16;
const _: () = assert!(UNREAD_PAUSE << PAUSE_DOUBLED_MAX >= UNREAD_PAUSE_MAX);

impl TaskQueue {
    /// Gives a task a new value.
    pub(in super::super) fn set_value(&mut self, task_index: TaskIndex, value: Value) {
        let task = self.task_mut(task_index);
        task.marks.is_lost = false;
        let number = task.number;
        self.changes.store_value(number, value);
    }

    /// The value of a task is lost: it is dead, now or when its lease ends. Returns its key. `None`: it has a new value.
    pub(in super::super) fn lose_value(
        &mut self,
        task_index: TaskIndex,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> Option<Box<[u8]>> {
        if self.changes.value(self.task(task_index).number).is_some() {
            return None;
        }
        let task = self.task_mut(task_index);
        task.marks.is_lost = true;
        let key = task.key.clone();
        match task.state {
            TaskState::Ready | TaskState::Delayed(_) => {
                self.leave(task_index, wheel);
                self.die(task_index, reason::DAMAGED);
            }
            TaskState::Dead => {
                self.note_failure(task_index, reason::DAMAGED);
                self.touch(task_index);
            }
            TaskState::Leased(_) | TaskState::Unread(_) | TaskState::Dropped => {}
        }
        Some(key)
    }

    /// Ends a lease whose value could not be read, and keeps the task out of the order for a pause. If the value is lost,
    /// the task is dead. False: this lease is not held.
    pub(in super::super) fn set_unread(
        &mut self,
        task_index: TaskIndex,
        token: u64,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> bool {
        if !self.release(task_index, token, wheel) {
            return false;
        }
        self.touch(task_index);
        self.untry(task_index, token);
        let (now, number) = (self.time.now, self.number);
        let task = self.task_mut(task_index);
        if task.marks.is_lost {
            self.come_back(task_index);
            return true;
        }
        let pause = (UNREAD_PAUSE << task.unread.min(PAUSE_DOUBLED_MAX)).min(UNREAD_PAUSE_MAX);
        task.unread = task.unread.saturating_add(1);
        let timer = wheel.arm(now.saturating_add(pause), LeaseTimer { queue: number, task_index });
        task.state = TaskState::Unread(timer);
        self.counts.unread += 1;
        true
    }

    /// Whether the value of this task could not be read, and its pause is not over.
    pub(in super::super) fn is_unread(&self, task_index: TaskIndex) -> bool {
        matches!(self.task(task_index).state, TaskState::Unread(_))
    }

    /// The pause of a task is over.
    pub(super) fn end_pause(&mut self, task_index: TaskIndex) {
        self.counts.unread -= 1;
        self.come_back(task_index);
    }

    /// The record of a task is lost in the store: the next batch stores it again. Returns its key.
    pub(in super::super) fn store_again(&mut self, task_index: TaskIndex) -> &[u8] {
        self.touch(task_index);
        &self.task(task_index).key
    }

    /// Finds the indices of the tasks with these numbers, in one pass over all tasks: losses are rare.
    pub(in super::super) fn find_numbers(&self, numbers: &mut HashMap<u64, Option<TaskIndex>>) {
        for (task_index, task) in self.tasks.iter() {
            if let Some(index) = numbers.get_mut(&task.number) {
                *index = Some(task_index);
            }
        }
    }

    /// Whether a task is leased under this token.
    pub(in super::super) fn is_held(&self, task_index: TaskIndex, token: u64) -> bool {
        self.token_of(task_index) == Some(token)
    }
}
