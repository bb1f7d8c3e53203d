//! What is durable: batches of small records that are written whole or not at all, and synced when it is asked for.
//!
//! ```text
//! Batch ─► commit(sync) ─► journal, one fdatasync ─► visible to get, scan and snapshots
//! ```
//! A batch that was committed with a sync is there after any crash. One without is there after the death of the process, and
//! may be lost when the system dies; then everything later is lost with it, never something in between.
//!
//! `disk` keeps them in a folder, by the embedded LSM-tree *fjall*; it is the only place that names it. `journal` looks at
//! what a crash has left. `double` is for tests: it forgets what was not synced, and fails when it is told to.
//!
//! What is not here: what the records mean, and when to sync.

mod disk;
#[cfg(test)]
pub(crate) mod fake_disk;
mod journal;

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

pub use disk::{Disk, Value};

/// The kinds of records; each has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Few records, about the others.
    Meta,
    /// Small records that are all read when the store is opened.
    Tasks,
    /// Records of any size, read one by one.
    Values,
}

impl Space {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Meta, Self::Tasks, Self::Values];
}

/// One change of a record: its new value, or none if it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it is kept.
    pub space: Space,
    /// Its key, of at most 65,535 bytes.
    pub key: Value,
    /// Its value, of less than 4 GiB.
    pub value: Option<Value>,
}

/// Changes that are made together. Each key at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    items: Vec<Item>,
}

impl WriteBatch {
    /// Without a change.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a record with a copy of `value`.
    pub fn put(&mut self, space: Space, key: &[u8], value: &[u8]) {
        self.put_value(space, key, Value::from(value));
    }

    /// Adds or replaces a record.
    pub fn put_value(&mut self, space: Space, key: &[u8], value: Value) {
        self.items.push(Item { space, key: Value::from(key), value: Some(value) });
    }

    /// Removes a record, if it is there.
    pub fn delete(&mut self, space: Space, key: &[u8]) {
        self.items.push(Item { space, key: Value::from(key), value: None });
    }

    /// How many changes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl IntoIterator for WriteBatch {
    type Item = Item;
    type IntoIter = std::vec::IntoIter<Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

/// Why the store is of no more use.
#[derive(Debug, Error)]
pub enum Error {
    /// Somebody else has it open.
    #[error("{} is in use by another process: stop that one, or choose another --data", folder.display())]
    InUse {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// It is a file, or lies below one.
    #[error("{} is no folder: choose a folder for --data, which is made if it is not there", folder.display())]
    NoFolder {
        /// What was to be the folder of the store.
        folder: PathBuf,
    },
    /// It cannot have been written so.
    #[error("{} is damaged ({what}): nothing was changed; restore it from a copy, or choose another --data", folder.display())]
    Damaged {
        /// The folder of the store.
        folder: PathBuf,
        /// What was found.
        what: String,
    },
    /// The device is full.
    #[error("no space is left for {}: make room and start again; nothing that was acknowledged is lost", folder.display())]
    Full {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// The system refuses.
    #[error("{}: {why}", folder.display())]
    Failed {
        /// The folder of the store.
        folder: PathBuf,
        /// What the system says.
        why: String,
    },
}

/// The store as one moment left it.
pub trait StoreSnapshot: Send + Sync {
    /// The value of a record at that moment.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Value>, Error>;

    /// The error that says that something else was found than must be there.
    fn damaged(&self, what: &str) -> Error;
}

/// Looks after a store from another thread than the one that writes it.
pub trait StoreWatch: Send + Sync {
    /// Whether what is being written can still come to an end.
    ///
    /// # Errors
    /// [`Error`] if it cannot: who writes waits for ever.
    fn check(&self) -> Result<(), Error>;
}

/// A store that one thread writes.
pub trait Store: Send {
    /// Calls `each` with key and value of all records of a space, in the order of their keys.
    ///
    /// # Errors
    /// [`Error`] if one cannot be read.
    fn scan(&self, space: Space, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Error>;

    /// Makes all changes, and if `sync` has them on disk before it returns, with all changes before them.
    ///
    /// # Errors
    /// [`Error`]: then it is unknown what is on disk, and the store takes nothing more.
    fn commit(&mut self, batch: WriteBatch, sync: bool) -> Result<(), Error>;

    /// Has all changes on disk before it returns.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn sync(&mut self) -> Result<(), Error>;

    /// Says, and has on disk, whether there will be commits without a sync: what a crash leaves of them is judged by it.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn set_lazy(&mut self, lazy: bool) -> Result<(), Error>;

    /// For another thread to look after it.
    fn watch(&self) -> Arc<dyn StoreWatch>;

    /// The store as it is now, for other threads to read while it changes.
    fn moment(&self) -> Arc<dyn StoreSnapshot>;

    /// The error that says that something else was found than must be there.
    fn damaged(&self, what: &str) -> Error;
}
