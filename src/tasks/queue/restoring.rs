//! Tasks as they are read from the store, at an opening and after a repair.
//!
//! This module reads no store.

use super::ready::ReadyPlace;
use super::task::{Task, TaskMarks, TaskState};
use super::{LeaseTimer, TaskIndex, TaskQueue};
#[cfg(test)]
use crate::store::TaskKey;
use crate::tasks::order::Position;
#[cfg(test)]
use crate::tasks::record::task_key;
use crate::tasks::record::{LeaseRecord, StateRecord, TaskRecord};
use crate::tasks::terms::TaskTerms;
use crate::wheel::Wheel;

impl TaskQueue {
    /// Makes room for the keys of this many tasks.
    pub(in crate::tasks) fn reserve(&mut self, tasks: usize) {
        self.keys.table.reserve(tasks);
    }

    /// Restores a task from its record. `None`: the record is invalid, or another task has its key or its position. Of an
    /// id the caller knows whether there is another.
    pub(in crate::tasks) fn restore(
        &mut self,
        number: u64,
        record: &TaskRecord<'_>,
        wheel: &mut Wheel<LeaseTimer>,
    ) -> Option<TaskIndex> {
        let hash = self.keys.table.hash(record.key);
        if self.find_hashed(hash, record.key).is_some() || !self.counters.allow(number, record.position) {
            return None;
        }
        if self.named(record.unique).is_some() {
            return None;
        }
        let group = (!record.group.is_empty()).then(|| self.ready.join(record.group));
        let unique = self.keep_name(record.unique);
        let terms = TaskTerms { group, unique, ..record.terms };
        let task_index = self.put(
            hash,
            Task {
                number,
                key: record.key.into(),
                position: record.position,
                boost: record.boost,
                since: record.since,
                state: TaskState::Dropped,
                marks: TaskMarks { has_reason: !record.reason.is_empty(), ..TaskMarks::default() },
                unread: 0,
                lent: record.lent,
                class: record.class,
                terms: terms.boxed(),
            },
        );
        self.aside.histories.extend(record.history.map(|history| (task_index, history)));
        let stands = match record.state {
            StateRecord::Ready => self.make_ready(task_index, record.position),
            StateRecord::Delayed(until) if until <= self.time.now => {
                self.task_mut(task_index).since = until;
                self.make_ready(task_index, record.position)
            }
            StateRecord::Delayed(until) => {
                self.start_delay(task_index, until);
                true
            }
            StateRecord::Dead => self.make_dead(task_index),
            StateRecord::Leased(LeaseRecord { token, deadline }) => {
                self.start_lease(task_index, token, deadline, wheel);
                true
            }
            StateRecord::Dropped => {
                self.drop_out(task_index);
                true
            }
        };
        stands.then_some(task_index)
    }

    /// The record of each task as it is in memory, without the reason of its failure.
    #[cfg(test)]
    pub(in crate::tasks) fn records(&self) -> Vec<(TaskKey, Vec<u8>)> {
        let record = |(task_index, task): (TaskIndex, &Task)| {
            let history = self.aside.histories.get(&task_index).copied();
            let record = task.record(&self.ready.groups, &self.keys.names, history, &[]);
            (task_key(self.number, task.number), record.encode())
        };
        self.tasks.iter().map(record).collect()
    }

    /// The tasks whose ids the table of ids may forget, with these ids.
    pub(in crate::tasks) fn gone_ids(&mut self) -> Vec<(TaskIndex, Box<[u8]>)> {
        self.changes.gone_ids()
    }

    /// Makes the numbers continue above this one: those up to it may have been given.
    pub(in crate::tasks) fn raise_last(&mut self, last: u64) {
        self.counters.raise_last(last);
    }

    /// Whether another task has the place of this one.
    fn is_taken(&mut self, record: &TaskRecord<'_>) -> bool {
        let group = self.ready.groups.find(record.group);
        self.ready.is_taken(ReadyPlace { class: record.class, group, position: record.position })
    }

    /// All tasks are restored: the round of the groups begins.
    pub(in crate::tasks) fn begin_round(&mut self) {
        self.ready.begin_round();
    }

    /// After a repair: makes the counts of the queue fit to a task that was found, and gives the task a place of its
    /// own if another one has it.
    pub(in crate::tasks) fn fit(&mut self, number: u64, record: &mut TaskRecord<'_>) {
        let Position { priority, entered } = record.position;
        self.counters.raise_last(number);
        self.counters.serial = self.counters.serial.max(entered).max(priority);
        if self.is_taken(record) {
            record.position.entered = self.counters.next_serial();
        }
    }
}
