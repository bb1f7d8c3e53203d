//! The indices of the tasks of a queue, by key.
//!
//! ```text
//! table   half of the key's hash, index of the task ─► the queue compares the key of that task
//! ```
//! With the hash beside the index, a table that grows looks at no task.
//!
//! This module has no keys.

use ahash::RandomState;
use hashbrown::HashTable;

use super::TaskIndex;

/// Places for keys that a queue keeps when it is empty.
const KEPT: usize = 1 << 10;

/// The task of a key.
#[derive(Clone, Copy, Debug)]
struct KeyPlace {
    hash: KeyHash,
    task_index: TaskIndex,
}

/// The half of a key's hash that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyHash(u32);

impl KeyHash {
    /// For the table, which places by the lower bits and compares the upper ones first.
    fn long(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

/// The indices of tasks.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    table: HashTable<KeyPlace>,
    hasher: RandomState,
}

impl KeyTable {
    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        let [a, b, c, d, ..] = self.hasher.hash_one(key).to_le_bytes();
        KeyHash(u32::from_le_bytes([a, b, c, d]))
    }

    /// The task with this hash whose key is the right one.
    pub(super) fn find(&self, hash: KeyHash, is_right: impl Fn(TaskIndex) -> bool) -> Option<TaskIndex> {
        let is_it = |place: &KeyPlace| place.hash == hash && is_right(place.task_index);
        self.table.find(hash.long(), is_it).map(|place| place.task_index)
    }

    /// Adds a task whose key is new.
    pub(super) fn insert(&mut self, hash: KeyHash, task_index: TaskIndex) {
        self.table.insert_unique(hash.long(), KeyPlace { hash, task_index }, |place| place.hash.long());
    }

    /// Removes a task. After a drain the memory goes back.
    pub(super) fn remove(&mut self, hash: KeyHash, task_index: TaskIndex) {
        if let Ok(entry) = self.table.find_entry(hash.long(), |place| place.task_index == task_index) {
            entry.remove();
        }
        if self.table.capacity() > KEPT && self.table.len() < self.table.capacity() / 8 {
            self.table.shrink_to(self.table.len() * 2, |place| place.hash.long());
        }
    }

    /// Makes room for this many tasks.
    pub(super) fn reserve(&mut self, tasks: usize) {
        self.table.reserve(tasks, |place| place.hash.long());
    }
}
