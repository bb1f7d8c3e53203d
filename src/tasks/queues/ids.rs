//! Where the tasks are, by key or id.
//!
//! ```text
//! a queue of keys: its own table        all queues of ids: one table, id ─► queue, index of the task
//! ```
//! An id that is gone is in the table until the changes of its queue are drained. Until then it leads to no task, since the
//! key of the task is compared.
//!
//! This module changes no task.

use super::{Queues, number_of};
use crate::tasks::queue::TaskIndex;

/// The place of a task: its queue, and its index there.
pub(super) type IdPlace = (u32, TaskIndex);

impl Queues {
    /// The task of a queue with this key.
    pub(in crate::tasks) fn find_task(&self, queue_index: usize, key: &[u8]) -> Option<TaskIndex> {
        let queue = &self.get(queue_index)?.queue;
        if !queue.has_ids() {
            return queue.find(key);
        }
        let number = number_of(queue_index);
        let is_it = |(queue_number, task_index)| queue_number == number && queue.has(task_index, key);
        self.ids.find(self.ids.hash(key), is_it).map(|(_, task_index)| task_index)
    }

    /// The index of the queue in which a task has this id.
    pub(in crate::tasks) fn find_id(&self, id: u64) -> Option<usize> {
        let key = id.to_be_bytes();
        let is_it = |(number, task_index): IdPlace| {
            self.get(number as usize).is_some_and(|entry| entry.queue.has(task_index, &key))
        };
        self.ids.find(self.ids.hash(&key), is_it).map(|(number, _)| number as usize)
    }

    /// A task has come. Its id is new.
    pub(in crate::tasks) fn note_id(&mut self, queue_index: usize, key: &[u8], task_index: TaskIndex) {
        if self.get(queue_index).is_some_and(|entry| entry.queue.has_ids()) {
            self.ids.insert(self.ids.hash(key), (number_of(queue_index), task_index));
        }
    }

    /// Forgets the ids of the tasks of a queue that are gone.
    pub(in crate::tasks) fn forget_ids(&mut self, queue_index: usize) {
        let Some(entry) = self.get_mut(queue_index) else { return };
        for (task_index, key) in entry.queue.gone_ids() {
            self.ids.remove(self.ids.hash(&key), (number_of(queue_index), task_index));
        }
    }
}
