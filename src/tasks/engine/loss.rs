//! Records that the store has lost, and tasks whose values cannot be read at present.
//!
//! ```text
//! records ─► one pass over the tasks of each queue that has some ─► their indices ─► dead, or stored again
//! ```
//! A device that fails may lose a part of a long queue, so a search of the queue for each record would take minutes.
//!
//! This module reads no store.

use std::collections::HashMap;
use std::sync::Arc;

use super::Engine;
use crate::store::{LostRecord, Space, Store};
use crate::tasks::queue::{LeaseTimer, TaskIndex};
use crate::tasks::record::task_of_key;

impl Engine {
    /// These records are lost in the store. A task without its value is dead, and a lost record is stored again.
    /// Returns a report of each for the operator.
    pub(in super::super) fn lose(&mut self, lost: &[LostRecord]) -> Vec<String> {
        let named = |lost: &LostRecord| task_of_key(&lost.key).ok().map(|(queue, number)| (queue as usize, number));
        let mut wanted: HashMap<usize, HashMap<u64, Option<TaskIndex>>> = HashMap::new();
        for (queue_index, number) in lost.iter().filter_map(named) {
            wanted.entry(queue_index).or_default().insert(number, None);
        }
        for (queue_index, numbers) in &mut wanted {
            if let Some(entry) = self.queues.get(*queue_index) {
                entry.queue.find_numbers(numbers);
            }
        }
        let index = |queue_index, number| *wanted.get(&queue_index)?.get(&number)?;
        let report = |lost: &LostRecord| {
            let (queue_index, number) = named(lost)?;
            self.lose_one(lost.space, queue_index, number, index(queue_index, number))
        };
        lost.iter().filter_map(report).collect()
    }

    /// Ends a lease whose value could not be read. If it has ended meanwhile, nothing changes.
    pub(super) fn set_unread(&mut self, queue_index: usize, task_index: TaskIndex, token: u64) {
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        let _ended = queue.set_unread(task_index, token, wheel);
    }

    /// Takes the pauses of tasks that could not be read out of what is due, and ends them.
    pub(super) fn end_pauses(&mut self, due: &mut Vec<LeaseTimer>, store: &dyn Store) {
        let is_unread = |timer: &mut LeaseTimer| self.entry(timer.queue as usize).queue.is_unread(timer.task_index);
        let mut unread: Vec<LeaseTimer> = due.extract_if(.., is_unread).collect();
        unread.sort_by_cached_key(|timer| {
            (timer.queue, self.entry(timer.queue as usize).queue.number_of(timer.task_index))
        });
        // All of them are ready before any is leased.
        for LeaseTimer { queue, task_index } in &unread {
            self.mark(*queue as usize);
            self.entry_mut(*queue as usize).queue.expire(*task_index);
        }
        self.waits.to_grant.extend(unread.iter().map(|timer| timer.queue as usize));
        self.grant_all(store);
    }

    fn lose_one(
        &mut self,
        space: Space,
        queue_index: usize,
        number: u64,
        task_index: Option<TaskIndex>,
    ) -> Option<String> {
        let name = Arc::clone(&self.queues.get(queue_index)?.name);
        self.mark(queue_index);
        let (queue, wheel) = self.queue_and_wheel(queue_index);
        let what = match (space, task_index) {
            (_, None) => None,
            (Space::Values, Some(index)) => {
                queue.lose_value(index, wheel).map(|key| ("the value of the task", key.escape_ascii().to_string()))
            }
            (_, Some(index)) => {
                Some(("a record in the store of the task", queue.store_again(index).escape_ascii().to_string()))
            }
        };
        let name = name.escape_ascii();
        Some(match what {
            Some((what, key)) => format!("{what} {key} of {name} is lost"),
            None => format!("task {number} of {name} is lost"),
        })
    }
}
