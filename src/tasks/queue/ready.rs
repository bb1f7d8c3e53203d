//! The ready tasks of a queue, in the order of their leases and in the order of their entries.
//!
//! This module changes no task.

use super::TaskIndex;
use crate::chunked_map::ChunkedMap;
use crate::tasks::order::{LeaseOrder, Position};

/// The ready tasks.
#[derive(Debug)]
pub(super) struct ReadyTasks {
    pub(super) order: LeaseOrder,
    by_position: ChunkedMap<Position, TaskIndex>,
    /// Used in priority order only: in a fifo queue, `by_position` has this order.
    by_entry: ChunkedMap<u64, TaskIndex>,
}

impl ReadyTasks {
    pub(super) fn new(order: LeaseOrder) -> Self {
        Self { order, by_position: ChunkedMap::default(), by_entry: ChunkedMap::default() }
    }

    /// The task that is leased next, with its position.
    pub(super) fn first(&self) -> Option<(&Position, &TaskIndex)> {
        self.by_position.first_key_value()
    }

    /// The task that has been ready for longest.
    pub(super) fn oldest(&self) -> Option<TaskIndex> {
        match self.order {
            LeaseOrder::Priority => self.by_entry.first_key_value().map(|(_, task_index)| *task_index),
            LeaseOrder::Fifo => self.first().map(|(_, task_index)| *task_index),
        }
    }

    /// Whether a task has this position, or has entered with the same serial.
    pub(super) fn is_taken(&self, position: Position) -> bool {
        self.by_position.contains_key(&position) || self.by_entry.contains_key(&position.entered)
    }

    /// Adds a task. False: another one has its position.
    pub(super) fn insert(&mut self, position: Position, task_index: TaskIndex) -> bool {
        let mut alone = self.by_position.insert(position, task_index).is_none();
        if self.order == LeaseOrder::Priority {
            alone &= self.by_entry.insert(position.entered, task_index).is_none();
        }
        alone
    }

    pub(super) fn remove(&mut self, position: Position) {
        self.by_position.remove(&position);
        self.by_entry.remove(&position.entered);
    }
}
