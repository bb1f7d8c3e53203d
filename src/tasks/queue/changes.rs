//! The changes of a queue that the next batch stores, and their bytes.
//!
//! ```text
//! note_task: a record ┐
//! store_value         ├─► bytes: enough for a batch? ─► drain: each task and value once
//! note_gone           ┘
//! ```
//! This module changes no task, and does not know the bound of a batch; see `engine/expiry.rs` and `state.rs`.

use std::collections::HashMap;

use ahash::RandomState;

use super::groups::Groups;
use super::history::Histories;
use super::named::UniqueNames;
use super::table::TaskTable;
use super::{Effect, TaskIndex};
use crate::store::Value;

/// The bytes of a task's record in the store beside its key, approximately.
pub(super) const RECORD_BYTES: u64 = 64;

/// What the next batch stores.
#[derive(Debug, Default)]
pub(super) struct QueueChanges {
    /// Tasks whose records must be stored.
    touched: Vec<TaskIndex>,
    /// Numbers of tasks that are removed from the store.
    gone: Vec<u64>,
    /// Values, by the number of their task.
    fresh: HashMap<u64, Value, RandomState>,
    /// Why tasks have failed, by their numbers: a part of their records.
    reasons: HashMap<u64, Box<[u8]>, RandomState>,
    /// Ids of tasks that are removed, until the table of ids forgets them.
    gone_ids: Vec<(TaskIndex, Box<[u8]>)>,
    /// The bytes of all these changes, approximately.
    bytes: u64,
}

impl QueueChanges {
    /// The bytes that the next drain hands over, approximately.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The value of a task, if the next batch stores it.
    pub(super) fn value(&self, number: u64) -> Option<&Value> {
        self.fresh.get(&number)
    }

    /// Has the next batch store a record of so many bytes. The task is noted once.
    pub(super) fn note_task(&mut self, task_index: TaskIndex, bytes: u64) {
        self.touched.push(task_index);
        self.bytes += bytes;
    }

    /// Has the next batch store a value.
    pub(super) fn store_value(&mut self, number: u64, value: Value) {
        self.bytes += value.len() as u64;
        self.fresh.insert(number, value);
    }

    /// Why a task has failed, if the next batch stores it.
    pub(super) fn reason(&self, number: u64) -> Option<&[u8]> {
        self.reasons.get(&number).map(|reason| &**reason)
    }

    /// Has the next batch store why a task has failed, with its record.
    pub(super) fn note_reason(&mut self, number: u64, reason: &[u8]) {
        self.bytes += reason.len() as u64;
        self.reasons.insert(number, reason.into());
    }

    /// Has the next batch remove a task and its value from the store.
    pub(super) fn note_gone(&mut self, number: u64) {
        self.fresh.remove(&number);
        self.bytes += RECORD_BYTES;
        self.gone.push(number);
    }

    /// Has the table of ids forget a task.
    pub(super) fn note_gone_id(&mut self, task_index: TaskIndex, id: Box<[u8]>) {
        self.gone_ids.push((task_index, id));
    }

    /// The ids of tasks that were removed since the last call.
    pub(super) fn gone_ids(&mut self) -> Vec<(TaskIndex, Box<[u8]>)> {
        std::mem::take(&mut self.gone_ids)
    }

    /// Hands over all changes, each task and value once, in its present state.
    pub(super) fn drain(
        &mut self,
        tasks: &mut TaskTable,
        groups: &Groups,
        names: &UniqueNames,
        histories: &Histories,
        mut each: impl FnMut(Effect<'_>),
    ) {
        self.bytes = 0;
        for number in self.gone.drain(..) {
            each(Effect::Gone(number));
        }
        for task_index in self.touched.drain(..) {
            // The index of a removed task may be empty, or reused for a task that was already handed over.
            if let Some(task) = tasks.get_mut(task_index).filter(|task| task.marks.touched) {
                task.marks.touched = false;
                // A record that is stored again for another cause loses what is not in memory.
                let reason = self.reasons.get(&task.number).filter(|_| task.marks.has_reason);
                task.marks.has_reason = reason.is_some();
                let (reason, history) = (reason.map_or(&[][..], |reason| reason), histories.get(&task_index).copied());
                each(Effect::Task(task.number, task.record(groups, names, history, reason)));
            }
        }
        self.reasons.clear();
        for (number, value) in self.fresh.drain() {
            each(Effect::Value(number, value));
        }
    }
}
