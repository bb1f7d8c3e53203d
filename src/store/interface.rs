//! What an engine asks of a store: batches of records, their values, and the reasons to refuse adds.
//!
//! ```text
//! opening: take, lost ─► engine        WriteBatch ─► commit(sync) ─► acknowledged        nothing waits: work_idle
//!                                      moment(keys) ─► StoreSnapshot ─► values, in any thread
//!                                      backup ─► StoreBackup ─► a folder, in any thread
//! ```
//! This module stores nothing; see `keyed.rs`.

use std::path::Path;
use std::sync::Arc;

use super::errors::Error;
use super::format::{Marks, Space};
use super::log::admission::AddsRefused;
use super::metrics::LogMetrics;
use super::record::{Body, Record, Value};

/// The index of the mark above all tokens that may have been granted.
pub const TOKENS_MARK: usize = 0;
/// The index of the mark of the highest number of a task in a queue that is never removed.
pub const IDS_MARK: usize = 1;
/// The index of the mark of the highest number of a task in a queue that was removed.
pub const NUMBERS_MARK: usize = 2;

/// The key of a task's record and of its value.
pub type TaskKey = [u8; 12];

/// Changes that are made together. Each key occurs at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    records: Vec<Record>,
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
        self.records.push(Record { space, key: key.into(), body: Body::Bytes(value) });
    }

    /// Removes a record, if it is there.
    pub fn delete(&mut self, space: Space, key: &[u8]) {
        self.records.push(Record { space, key: key.into(), body: Body::Removed });
    }

    /// The number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

impl IntoIterator for WriteBatch {
    type Item = Record;
    type IntoIter = std::vec::IntoIter<Record>;

    fn into_iter(self) -> Self::IntoIter {
        self.records.into_iter()
    }
}

/// A record whose bytes are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRecord {
    /// The space of the record: tasks or values.
    pub space: Space,
    /// Its key.
    pub key: TaskKey,
}

/// Where a value stands on the disk. Values are read in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadOrder {
    /// The number of its segment.
    pub segment: u32,
    /// Its offset there.
    pub offset: u32,
}

/// Values as they were at one moment. The store keeps their bytes as long as this exists.
pub trait StoreSnapshot: Send + Sync {
    /// The value of a task at that moment. `None`: it had none, or was not asked for.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read. If [`Error::loses_one_value`], the store has noted it, and the task will be set
    /// aside.
    fn get(&self, key: &TaskKey) -> Result<Option<Value>, Error>;

    /// The same, if it takes no time: the value is small, and in memory. `None`: it is to be read by [`Readers`].
    ///
    /// [`Readers`]: super::readers::Readers
    fn get_now(&self, key: &TaskKey) -> Option<Result<Option<Value>, Error>> {
        Some(self.get(key))
    }

    /// The first bytes of the value, at most so many. They are not compared with what was written.
    ///
    /// # Errors
    /// [`Error`] if they cannot be read.
    fn begin(&self, key: &TaskKey, most: usize) -> Result<Option<Value>, Error> {
        Ok(self.get(key)?.map(|value| Value::from(value.get(..most).unwrap_or(&value))))
    }

    /// The record of a task at that moment. `None`: it had none, or was not asked for.
    ///
    /// # Errors
    /// [`Error`] if it cannot be read.
    fn record(&self, _key: &TaskKey) -> Result<Option<Value>, Error> {
        Ok(None)
    }

    /// The length of the value of a task, without reading it.
    fn bytes(&self, _key: &TaskKey) -> usize {
        0
    }

    /// Where the value stands on the disk.
    fn order(&self, _key: &TaskKey) -> ReadOrder {
        ReadOrder::default()
    }

    /// The error for a record that is missing or wrong.
    fn damaged(&self, what: &str) -> Error;
}

/// Checks a store from a thread other than its writer.
pub trait StoreWatch: Send + Sync {
    /// Checks whether the store still takes changes.
    ///
    /// # Errors
    /// [`Error`] if it does not.
    fn check(&self) -> Result<(), Error>;
}

/// What a backup has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Its segments.
    pub segments: u64,
    /// Files that are links: they took no space.
    pub linked: u64,
    /// Files that were copied.
    pub copied: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Parts of copied files that are damaged, or that the device does not return.
    pub lost: u64,
    /// The first of these parts, by name.
    pub damages: Vec<String>,
}

/// Whether a backup that is being written continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupTurn {
    /// It continues.
    Continue,
    /// It ends with [`Error::Cancelled`], and is removed.
    Cancel,
    /// It ends with [`Error::Left`] at once. It stays, marked as unfinished.
    Leave,
}

/// All that a store held at one sync. The store keeps it as long as this exists.
pub trait StoreBackup: Send {
    /// Writes the backup to an empty folder, which is made if it is not there. It is durable and whole when this
    /// returns. A backup that fails or is cancelled is removed. `turn` is asked again and again.
    ///
    /// # Errors
    /// [`Error`] of either folder, or what `turn` says.
    fn write_to(&self, to: &Path, turn: &mut dyn FnMut() -> BackupTurn) -> Result<BackupReport, Error>;
}

/// The work that a store has for a time in which nothing waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleWork {
    /// None, until a batch is committed.
    Done,
    /// There is more at once.
    More,
    /// There may be more after a while: values are being read.
    Later,
}

/// A store that one thread writes.
pub trait Store: Send {
    /// Calls `each` with the keys of all records of tasks that [`Store::take`] would pass, in their order.
    fn found(&self, each: &mut dyn FnMut(&TaskKey));

    /// Calls `each` with key and bytes of all records of a space that were found when the store was opened, in the
    /// order of their keys. The first call passes them, later ones pass none. Values are never passed.
    fn take(&mut self, space: Space, each: &mut dyn FnMut(&[u8], &[u8]));

    /// Returns the records that were found lost since the last call: at the opening, by a reader, or while the store
    /// cleaned up. It has set the values aside.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn lost(&mut self) -> Result<Vec<LostRecord>, Error>;

    /// Whether the owner leaves out records that do not fit to each other.
    fn is_repairing(&self) -> bool;

    /// Makes all changes. With `sync`, these and all changes before them are on disk before it returns. Where no space is
    /// left for a segment that holds them all, they are written in parts: after a crash some may be there alone, but no
    /// task without its value.
    ///
    /// # Errors
    /// [`Error`]: the content of the disk is unknown then, and the store takes no more changes.
    fn commit(&mut self, batch: WriteBatch, sync: bool) -> Result<(), Error>;

    /// Syncs all changes before it returns.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn sync(&mut self) -> Result<(), Error>;

    /// Syncs all changes, and has a later opening know that.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn rest(&mut self) -> Result<(), Error>;

    /// Does a small piece of the work that can wait until nothing else does.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn work_idle(&mut self) -> Result<IdleWork, Error>;

    /// Whether the store has work for a time in which nothing waits, after a batch.
    fn has_idle_work(&self) -> bool;

    /// The length of the value of a task, without reading it. 0: it has none.
    fn value_bytes(&self, key: &TaskKey) -> u64;

    /// The bytes that new and larger values of the next batch may have together, with the keys of those that are added.
    ///
    /// # Errors
    /// Why the store takes no adds at present.
    fn adds_room(&self) -> Result<u64, AddsRefused>;

    /// Asks for the space of the file system, so that [`Store::adds_room`] is of this moment. A store without one does
    /// nothing.
    fn measure_space(&mut self) {}

    /// Makes sure that the next batch can be written if its keys and values have these bytes, although adds are refused.
    /// False: there is no room for it.
    fn prepare(&mut self, bytes: u64) -> bool;

    /// The high-water marks: numbers that only grow, also when a repair or a backup has lost records.
    fn marks(&self) -> Marks;

    /// Raises a high-water mark. It is on disk with the next synced batch.
    fn raise(&mut self, mark: usize, value: u64);

    /// Returns a watch for another thread.
    fn watch(&self) -> Arc<dyn StoreWatch>;

    /// Returns a snapshot of the values with these keys. Other threads can read it while the store changes.
    fn moment(&self, values: &[TaskKey], records: &[TaskKey]) -> Arc<dyn StoreSnapshot>;

    /// Syncs all changes, and returns a backup of them. The store takes further changes meanwhile.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error>;

    /// The metrics of the store, for STATS.
    fn metrics(&self) -> LogMetrics;

    /// The error for a record that is missing or wrong.
    fn damaged(&self, what: &str) -> Error;
}
