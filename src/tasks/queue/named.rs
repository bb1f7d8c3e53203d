//! What a job may have of its own beside its id: a unique name, and the length of its leases.
//!
//! This module changes no state.

use super::{TaskIndex, TaskQueue};
use crate::tasks::terms::UniqueNumber;

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
        let of_task = |task_index| self.task(task_index).unique().map(|number| self.keys.name(number));
        self.keys.find(self.keys.hash(name), |task_index| of_task(task_index) == Some(name))
    }

    /// Keeps the unique name of a task that comes. `None`: it has none.
    pub(super) fn keep_name(&mut self, name: &[u8]) -> Option<UniqueNumber> {
        (!name.is_empty()).then(|| self.keys.keep_name(name))
    }

    /// The length of the leases of a task, if it has one of its own.
    pub(in crate::tasks) fn own_lease(&self, task_index: TaskIndex) -> Option<u64> {
        self.task(task_index).terms.as_ref().and_then(|terms| terms.lease)
    }

    /// The token of the lease in which the task with this key is held.
    pub(in crate::tasks) fn token_of(&self, key: &[u8]) -> Option<u64> {
        let (deadline, token) = self.lease_of(self.find(key)?)?;
        self.is_running(deadline).then_some(token)
    }
}
