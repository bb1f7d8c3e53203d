//! What has happened to a job, for those who ask for its figures. A job that was only lent has none: it costs nothing.
//!
//! ```text
//! added ─► lent: counted by the task itself ─► delayed, failed, kicked: a history, from then on stored with the job
//! ```
//! This module changes no state.

use std::collections::HashMap;

use ahash::RandomState;

use super::{TaskIndex, TaskQueue};
use crate::tasks::reservation::JobHistory;

/// The histories of jobs that have one.
pub(super) type Histories = HashMap<TaskIndex, JobHistory, RandomState>;

impl TaskQueue {
    /// Changes the history of a job, before anything else of it changes.
    pub(super) fn note_history(&mut self, task_index: TaskIndex, note: impl FnOnce(&mut JobHistory)) {
        if !self.has_ids() {
            return;
        }
        let new = JobHistory { added: self.task(task_index).since, ..JobHistory::default() };
        note(self.aside.histories.entry(task_index).or_insert(new));
    }

    /// Notes a delay that somebody has asked for.
    pub(super) fn note_delay(&mut self, task_index: TaskIndex, millis: u64) {
        let seconds = u32::try_from(millis / 1_000).unwrap_or(u32::MAX);
        self.note_history(task_index, |history| history.delay = seconds);
    }

    /// The history of a job.
    pub(super) fn history(&self, task_index: TaskIndex) -> JobHistory {
        let usual = || JobHistory { added: self.task(task_index).since, ..JobHistory::default() };
        self.aside.histories.get(&task_index).copied().unwrap_or_else(usual)
    }
}
