//! The indices of the tasks of a queue, by key and by unique name.
//!
//! ```text
//! table   half of the hash of a key or name, index of the task ─► the queue compares the key or name of that task
//! names   number ─► unique name
//! ```
//! With the hash beside the index, a table that grows looks at no task.
//!
//! This module has no keys.

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::TaskIndex;
use crate::tasks::terms::UniqueNumber;

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
    names: Slab<Box<[u8]>>,
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
        // A task may have a key and a name here.
        let is_it = |place: &KeyPlace| place.hash == hash && place.task_index == task_index;
        if let Ok(entry) = self.table.find_entry(hash.long(), is_it) {
            entry.remove();
        }
        if self.table.capacity() > KEPT && self.table.len() < self.table.capacity() / 8 {
            self.table.shrink_to(self.table.len() * 2, |place| place.hash.long());
        }
    }

    /// The unique name of this number.
    pub(super) fn name(&self, number: UniqueNumber) -> &[u8] {
        self.names.get(number as usize).map_or(&[], |name| name)
    }

    /// Keeps a unique name.
    pub(super) fn keep_name(&mut self, name: &[u8]) -> UniqueNumber {
        UniqueNumber::try_from(self.names.insert(name.into())).expect("a queue has fewer than 2^32 tasks")
    }

    /// Removes the unique name of a task.
    pub(super) fn remove_name(&mut self, number: UniqueNumber, task_index: TaskIndex) {
        if let Some(name) = self.names.try_remove(number as usize) {
            self.remove(self.hash(&name), task_index);
        }
        if self.names.is_empty() {
            self.names = Slab::new();
        }
    }

    /// Makes room for this many tasks.
    pub(super) fn reserve(&mut self, tasks: usize) {
        self.table.reserve(tasks, |place| place.hash.long());
    }
}
