//! Where the tasks are, by key.
//!
//! ```text
//! half of the hash of a key, place of its task ─► the caller compares the key of that task
//! ```
//! With the hash beside the place, a table that grows looks at no task.
//!
//! A queue of keys has a table of its own. All queues of ids share one: an id is found without the name of its queue.
//!
//! This module has no keys.

use ahash::RandomState;
use hashbrown::HashTable;

/// Places that an empty table keeps.
const KEPT: usize = 1 << 10;

/// The half of a key's hash that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyHash(u32);

impl KeyHash {
    /// For the table, which places by the lower bits and compares the upper ones first.
    fn long(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

/// The places of tasks.
#[derive(Debug)]
pub(super) struct KeyTable<P> {
    table: HashTable<(KeyHash, P)>,
    hasher: RandomState,
}

impl<P> Default for KeyTable<P> {
    fn default() -> Self {
        Self { table: HashTable::new(), hasher: RandomState::default() }
    }
}

impl<P: Copy + Eq> KeyTable<P> {
    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        let [a, b, c, d, ..] = self.hasher.hash_one(key).to_le_bytes();
        KeyHash(u32::from_le_bytes([a, b, c, d]))
    }

    /// The task with this hash whose key is the right one.
    pub(super) fn find(&self, hash: KeyHash, is_right: impl Fn(P) -> bool) -> Option<P> {
        let is_it = |(found, place): &(KeyHash, P)| *found == hash && is_right(*place);
        self.table.find(hash.long(), is_it).map(|(_, place)| *place)
    }

    /// Adds a task whose key is new.
    pub(super) fn insert(&mut self, hash: KeyHash, place: P) {
        self.table.insert_unique(hash.long(), (hash, place), |(hash, _)| hash.long());
    }

    /// Removes a task. After a drain the memory goes back.
    pub(super) fn remove(&mut self, hash: KeyHash, place: P) {
        // A task may have a key and a name here.
        if let Ok(entry) = self.table.find_entry(hash.long(), |found| *found == (hash, place)) {
            entry.remove();
        }
        if self.table.capacity() > KEPT && self.table.len() < self.table.capacity() / 8 {
            self.table.shrink_to(self.table.len() * 2, |(hash, _)| hash.long());
        }
    }

    /// Makes room for this many tasks more.
    pub(super) fn reserve(&mut self, tasks: usize) {
        self.table.reserve(tasks, |(hash, _)| hash.long());
    }
}
