//! The changes of a queue that the next batch stores, and their bytes.
//!
//! ```text
//! touch: a record ┐
//! store_value     ├─► changed_bytes: enough for a batch? ─► drain: each task and value once
//! has_gone        ┘
//! ```
//! This module changes no task, and does not know the bound of a batch; see `engine/expiry.rs` and `state.rs`.

use super::{Effect, TaskIndex, TaskQueue};
use crate::store::Value;

/// The bytes of a task's record in the store beside its key, approximately.
const RECORD_BYTES: u64 = 64;

impl TaskQueue {
    /// The bytes of the changes that the next drain hands over, approximately.
    pub(in super::super) fn changed_bytes(&self) -> u64 {
        self.changed_bytes
    }

    /// The bytes of the record of a task, approximately.
    pub(in super::super) fn record_bytes(&self, task_index: TaskIndex) -> u64 {
        RECORD_BYTES + self.task(task_index).key.len() as u64
    }

    /// Hands over all changes to store, each task and value once, in its present state.
    pub(in super::super) fn drain(&mut self, mut each: impl FnMut(Effect<'_>)) {
        self.changed_bytes = 0;
        for number in self.gone.drain(..) {
            each(Effect::Gone(number));
        }
        for task_index in self.touched.drain(..) {
            // The index of a removed task may be empty, or reused for a task that was already handed over.
            if let Some(task) = self.tasks.get_mut(task_index).filter(|task| task.touched) {
                task.touched = false;
                each(Effect::Task(task.number, task.record()));
            }
        }
        for (number, value) in self.fresh.drain() {
            each(Effect::Value(number, value));
        }
    }

    /// Has the next batch store the record of a task.
    pub(super) fn touch(&mut self, task_index: TaskIndex) {
        if !std::mem::replace(&mut self.task_mut(task_index).touched, true) {
            self.touched.push(task_index);
            self.changed_bytes += self.record_bytes(task_index);
        }
    }

    /// Has the next batch store a value.
    pub(super) fn store_value(&mut self, number: u64, value: Value) {
        self.changed_bytes += value.len() as u64;
        self.fresh.insert(number, value);
    }

    /// Has the next batch remove a task and its value from the store.
    pub(super) fn has_gone(&mut self, number: u64) {
        self.changed_bytes += RECORD_BYTES;
        self.gone.push(number);
    }
}
