//! What a job may have of its own beside its id: a unique name, and the length of its leases.
//!
//! This module changes no state.

use slab::Slab;

use super::{TaskIndex, TaskQueue};
use crate::tasks::keys::KeyTable;
use crate::tasks::terms::UniqueNumber;

/// Where the tasks of a queue are.
#[derive(Debug, Default)]
pub(super) struct TaskKeys {
    /// By unique name, and by key unless [`TaskQueue::has_ids`].
    pub(super) table: KeyTable<TaskIndex>,
    pub(super) names: UniqueNames,
}

/// The unique names of the tasks of a queue, by number.
#[derive(Debug, Default)]
pub(super) struct UniqueNames(Slab<Box<[u8]>>);

impl UniqueNames {
    /// The name of this number.
    pub(super) fn get(&self, number: UniqueNumber) -> &[u8] {
        self.0.get(number as usize).map_or(&[], |name| name)
    }

    fn keep(&mut self, name: &[u8]) -> UniqueNumber {
        UniqueNumber::try_from(self.0.insert(name.into())).expect("a queue has fewer than 2^32 tasks")
    }

    fn remove(&mut self, number: UniqueNumber) -> Option<Box<[u8]>> {
        let name = self.0.try_remove(number as usize);
        if self.0.is_empty() {
            self.0 = Slab::new();
        }
        name
    }
}

impl TaskQueue {
    /// The key of the task with this unique name.
    pub(in crate::tasks) fn key_named(&self, name: &[u8]) -> Option<&[u8]> {
        self.named(name).map(|task_index| &*self.task(task_index).key)
    }

    /// The task with this unique name.
    pub(super) fn named(&self, name: &[u8]) -> Option<TaskIndex> {
        if name.is_empty() {
            return None;
        }
        let of_task = |task_index| self.task(task_index).unique().map(|number| self.keys.names.get(number));
        self.keys.table.find(self.keys.table.hash(name), |task_index| of_task(task_index) == Some(name))
    }

    /// Keeps the unique name of a task that comes. `None`: it has none.
    pub(super) fn keep_name(&mut self, name: &[u8]) -> Option<UniqueNumber> {
        (!name.is_empty()).then(|| self.keys.names.keep(name))
    }

    /// Finds a task by its unique name from now on.
    pub(super) fn note_name(&mut self, number: UniqueNumber, task_index: TaskIndex) {
        self.keys.table.insert(self.keys.table.hash(self.keys.names.get(number)), task_index);
    }

    /// Forgets the unique name of a task.
    pub(super) fn forget_name(&mut self, number: UniqueNumber, task_index: TaskIndex) {
        if let Some(name) = self.keys.names.remove(number) {
            self.keys.table.remove(self.keys.table.hash(&name), task_index);
        }
    }

    /// The length of the leases of a task, if it has one of its own.
    pub(in crate::tasks) fn own_lease(&self, task_index: TaskIndex) -> Option<u64> {
        self.task(task_index).terms.as_ref().and_then(|terms| terms.lease)
    }

    /// The token of the lease in which a task is held.
    pub(in crate::tasks) fn token_of(&self, task_index: TaskIndex) -> Option<u64> {
        let (deadline, token) = self.lease_of(task_index)?;
        self.is_running(deadline).then_some(token)
    }
}
