//! Durable storage: batches of small records. A batch is written whole or not at all, and synced on request.
//!
//! ```text
//! WriteBatch ─► commit(sync) ─► journal, one fdatasync ─► visible to get, scan and snapshots
//! ```
//! A batch that was committed with a sync is there after any crash. A batch without a sync is there after the death of
//! the process, and may be lost when the system dies. Then all later batches are lost too, and no earlier one.
//!
//! `disk` keeps the records in a folder, in the embedded LSM-tree *fjall*. It is the only file that names fjall.
//! `journal` repairs the journal after a crash. `fake_disk` is for tests: it loses unsynced batches and fails on
//! request.
//!
//! This module does not interpret records and does not decide when to sync; see `tasks`.

mod disk;
#[cfg(test)]
pub(crate) mod fake_disk;
mod journal;

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

pub use disk::{Disk, Value};

/// The kinds of records. Each has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// A few records about the others.
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

/// One change of a record: its new value, or `None` to remove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The space of the record.
    pub space: Space,
    /// Its key, of at most 65,535 bytes.
    pub key: Value,
    /// Its value, of less than 4 GiB.
    pub value: Option<Value>,
}

/// Changes that are made together. Each key occurs at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    items: Vec<Item>,
}

impl WriteBatch {
    /// A batch without a change.
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

    /// The number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no change.
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

/// The reason why the store is unusable.
#[derive(Debug, Error)]
pub enum Error {
    /// Another process has it open.
    #[error("{} is in use by another process: stop that one, or choose another --data", folder.display())]
    InUse {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// The path is a file, or lies below one.
    #[error("{} is no folder: choose a folder for --data, which is made if it is not there", folder.display())]
    NoFolder {
        /// The path of `--data`.
        folder: PathBuf,
    },
    /// The store cannot have written these bytes.
    #[error("{} is damaged ({what}): nothing was changed; restore it from a copy, or choose another --data", folder.display())]
    Damaged {
        /// The folder of the store.
        folder: PathBuf,
        /// The damaged part.
        what: String,
    },
    /// The device is full.
    #[error("no space is left for {}: make room and start again; nothing that was acknowledged is lost", folder.display())]
    Full {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// The system reports an error.
    #[error("{}: {why}", folder.display())]
    Failed {
        /// The folder of the store.
        folder: PathBuf,
        /// The system's message.
        why: String,
    },
}

/// The store at one moment.
pub trait StoreSnapshot: Send + Sync {
    /// The value of a record at that moment.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Value>, Error>;

    /// The error for a record that is missing or wrong.
    fn damaged(&self, what: &str) -> Error;
}

/// Checks a store from a thread other than its writer.
pub trait StoreWatch: Send + Sync {
    /// Checks whether the present write can still end.
    ///
    /// # Errors
    /// [`Error`] if it cannot: the writer waits for ever.
    fn check(&self) -> Result<(), Error>;
}

/// A store that one thread writes.
pub trait Store: Send {
    /// Calls `each` with key and value of all records of a space, in the order of their keys.
    ///
    /// # Errors
    /// [`Error`] if a record cannot be read.
    fn scan(&self, space: Space, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Error>;

    /// Makes all changes. With `sync`, these and all changes before them are on disk before it returns.
    ///
    /// # Errors
    /// [`Error`]: the content of the disk is unknown then, and the store takes no more changes.
    fn commit(&mut self, batch: WriteBatch, sync: bool) -> Result<(), Error>;

    /// Syncs all changes before it returns.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn sync(&mut self) -> Result<(), Error>;

    /// Stores, and syncs, whether there will be commits without a sync. The repair after a crash depends on it.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn set_lazy(&mut self, lazy: bool) -> Result<(), Error>;

    /// Returns a watch for another thread.
    fn watch(&self) -> Arc<dyn StoreWatch>;

    /// Returns a snapshot that other threads can read while the store changes.
    fn moment(&self) -> Arc<dyn StoreSnapshot>;

    /// The error for a record that is missing or wrong.
    fn damaged(&self, what: &str) -> Error;
}
