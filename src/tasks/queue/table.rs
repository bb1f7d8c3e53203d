//! The tasks of a queue, by index. Memory that no task needs any more is given back.
//!
//! ```text
//! index   chunk 0: 0 … 1023        chunk 1: 1024 … 2047        chunk 2: no task, no memory
//!         a new task takes a place in the lowest chunk with room
//! ```
//! So tasks that come and go gather in the lower chunks. A queue that was long keeps a chunk only while the chunk has a
//! task. Indices never move.
//!
//! This module knows neither keys nor states.

use std::collections::BTreeSet;

use slab::Slab;

use super::TaskIndex;
use super::task::Task;

/// The tasks of a chunk: about 100 KiB.
const CHUNK_TASKS: usize = 1 << 10;

/// Tasks, each at an index that stays the same.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    chunks: Vec<Slab<Task>>,
    /// The chunks with room, those without a task included.
    roomy: BTreeSet<usize>,
    len: usize,
}

impl TaskTable {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of tasks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: TaskIndex) -> Option<&Task> {
        let (chunk, place) = split(index);
        self.chunks.get(chunk)?.get(place)
    }

    pub(super) fn get_mut(&mut self, index: TaskIndex) -> Option<&mut Task> {
        let (chunk, place) = split(index);
        self.chunks.get_mut(chunk)?.get_mut(place)
    }

    /// The index of the first task from this one on.
    pub(super) fn next_from(&self, index: TaskIndex) -> Option<TaskIndex> {
        let (chunk, place) = split(index);
        let number = |chunk: usize, place: usize| TaskIndex::try_from(chunk * CHUNK_TASKS + place).ok();
        let in_chunk = |at: usize, from: usize| {
            let tasks = self.chunks.get(at).filter(|tasks| !tasks.is_empty())?;
            (from..CHUNK_TASKS).find(|place| tasks.contains(*place)).and_then(|place| number(at, place))
        };
        let later = || (chunk + 1..self.chunks.len()).find_map(|at| in_chunk(at, 0));
        in_chunk(chunk, place).or_else(later)
    }

    /// Keeps a task. Returns its index.
    pub(super) fn insert(&mut self, task: Task) -> TaskIndex {
        let chunk = self.roomy.first().copied().unwrap_or(self.chunks.len());
        if chunk == self.chunks.len() {
            // The first chunk may stay small. Behind it the next one fills up.
            self.chunks.push(if chunk == 0 { Slab::new() } else { Slab::with_capacity(CHUNK_TASKS) });
            self.roomy.insert(chunk);
        }
        let (place, is_full) = match self.chunks.get_mut(chunk) {
            Some(tasks) => (tasks.insert(task), tasks.len() == CHUNK_TASKS),
            None => unreachable!("a chunk with room is there"),
        };
        if is_full {
            self.roomy.remove(&chunk);
        }
        self.len += 1;
        TaskIndex::try_from(chunk * CHUNK_TASKS + place).expect("a queue has fewer than 2^32 tasks")
    }

    /// Takes a task out. `None`: there is none.
    pub(super) fn remove(&mut self, index: TaskIndex) -> Option<Task> {
        let (chunk, place) = split(index);
        let tasks = self.chunks.get_mut(chunk)?;
        let task = tasks.try_remove(place)?;
        if tasks.is_empty() {
            *tasks = Slab::new();
        }
        self.roomy.insert(chunk);
        self.len -= 1;
        while self.chunks.last().is_some_and(Slab::is_empty) {
            self.chunks.pop();
            self.roomy.remove(&self.chunks.len());
        }
        if self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
        Some(task)
    }

    /// All tasks with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskIndex, &Task)> {
        let index = |chunk: usize, place: usize| TaskIndex::try_from(chunk * CHUNK_TASKS + place);
        self.chunks.iter().enumerate().flat_map(move |(chunk, tasks)| {
            tasks.iter().map(move |(place, task)| (index(chunk, place).expect("it has this index"), task))
        })
    }

    /// The number of tasks for which there is memory.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        self.chunks.iter().map(Slab::capacity).sum()
    }
}

/// The chunk of an index, and the place in it.
fn split(index: TaskIndex) -> (usize, usize) {
    (index as usize / CHUNK_TASKS, index as usize % CHUNK_TASKS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::super::super::order::Position;
    use super::super::task::{TaskMarks, TaskState};
    use super::*;

    fn task(number: u64) -> Task {
        let position = Position { priority: 0, entered: number };
        let state = TaskState::Dropped;
        let (marks, unread, lent, class, terms) = (TaskMarks::default(), 0, 0, 0, None);
        let key = Box::default();
        Task { number, key, position, boost: 0, since: 0, state, marks, unread, lent, class, terms }
    }

    #[test]
    fn an_index_leads_to_its_task_as_long_as_the_task_is_there() {
        let mut table = TaskTable::default();
        let mut indices: Vec<TaskIndex> = (0..5_000).map(|number| table.insert(task(number))).collect();
        for (number, &index) in (0..).zip(&indices).step_by(3) {
            assert_eq!(table.remove(index).unwrap().number, number);
            assert!(table.remove(index).is_none());
        }
        for (number, index) in (0..).zip(&mut indices).step_by(3) {
            *index = table.insert(task(number));
        }
        assert!(indices.iter().zip(0..).all(|(&index, number)| table.get(index).unwrap().number == number));
        let mut found: Vec<(TaskIndex, u64)> = table.iter().map(|(index, task)| (index, task.number)).collect();
        found.sort_unstable_by_key(|(_, number)| *number);
        assert!(found.iter().map(|(index, _)| *index).eq(indices.iter().copied()));
        assert!(indices.iter().all(|&index| index < 5_000), "the places were used again");
    }

    #[test]
    fn the_memory_of_a_long_queue_comes_back() {
        let mut table = TaskTable::default();
        let indices: Vec<TaskIndex> = (0..100_000).map(|number| table.insert(task(number))).collect();
        assert!(table.capacity() >= 100_000);
        for &index in &indices[..99_000] {
            table.remove(index).unwrap();
        }
        assert!(table.capacity() <= 2 * CHUNK_TASKS, "the newest are left: {}", table.capacity());
        let low = table.insert(task(0));
        assert!(low < 1_024, "the lowest place is taken: {low}");
        for &index in &indices[99_000..] {
            table.remove(index).unwrap();
        }
        table.remove(low).unwrap();
        assert!(table.is_empty() && table.capacity() == 0 && table.roomy.is_empty());
        assert_eq!((table.chunks.capacity() < 64, table.insert(task(1))), (true, 0));
    }
}
