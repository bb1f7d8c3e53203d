//! What other threads have of a store: values as they were at one moment, and whether store and folder still work.
//!
//! This module changes nothing. A value that cannot be read is reported to the owner, see `keyed.rs`.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use ahash::RandomState;

use crate::lock::Mutex;
use crate::store::errors::Error;
use crate::store::folder::Folder;
use crate::store::interface::{ReadOrder, StoreSnapshot, StoreWatch, TaskKey};
use crate::store::record::Value;
use crate::store::segment::{Place, StoredValue, name_of};

/// Values that a reader could not read, with the places at which it tried.
pub(in crate::store) type Reports = Arc<Mutex<Vec<(TaskKey, Place)>>>;

/// Knows whether the store has failed, and looks whether its folder is still there and takes changes. A folder that is
/// gone does not show itself to the writer, whose files stay open.
pub(in crate::store) struct KeyedWatch {
    pub(in crate::store) folder: Arc<dyn Folder>,
    /// The first failure of the store.
    pub(in crate::store) failed: Arc<OnceLock<Error>>,
    /// The number of the segment that is being written.
    pub(in crate::store) newest: Arc<AtomicU32>,
}

impl KeyedWatch {
    fn probe(&self) -> io::Result<()> {
        loop {
            // Relaxed: the number publishes no data.
            let newest = self.newest.load(Ordering::Relaxed);
            match self.folder.probe(&name_of(newest)) {
                // The writer has begun another segment, and this one may be gone by right.
                Err(_) if self.newest.load(Ordering::Relaxed) != newest => {}
                probed => return probed,
            }
        }
    }
}

impl StoreWatch for KeyedWatch {
    fn check(&self) -> Result<(), Error> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        self.probe().map_err(|error| Error::of_open_store(self.folder.path(), &error))
    }
}

/// The places of some values and records at one moment.
pub(in crate::store) struct KeyedSnapshot {
    pub(in crate::store) folder: PathBuf,
    pub(in crate::store) values: HashMap<TaskKey, StoredValue, RandomState>,
    pub(in crate::store) records: HashMap<TaskKey, StoredValue, RandomState>,
    pub(in crate::store) reports: Reports,
}

impl KeyedSnapshot {
    /// Reports a value whose bytes are lost.
    fn note(&self, key: &TaskKey, value: &StoredValue, read: &Result<Value, Error>) {
        if read.as_ref().is_err_and(Error::loses_one_value) {
            self.reports.lock().push((*key, value.place));
        }
    }
}

impl StoreSnapshot for KeyedSnapshot {
    fn get(&self, key: &TaskKey) -> Result<Option<Value>, Error> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let read = value.read();
        self.note(key, value, &read);
        read.map(Some)
    }

    fn get_now(&self, key: &TaskKey) -> Option<Result<Option<Value>, Error>> {
        let Some(value) = self.values.get(key) else { return Some(Ok(None)) };
        let read = value.read_now()?;
        self.note(key, value, &read);
        Some(read.map(Some))
    }

    fn begin(&self, key: &TaskKey, most: usize) -> Result<Option<Value>, Error> {
        self.values.get(key).map(|value| value.begin(most)).transpose()
    }

    fn record(&self, key: &TaskKey) -> Result<Option<Value>, Error> {
        self.records.get(key).map(StoredValue::read).transpose()
    }

    fn bytes(&self, key: &TaskKey) -> usize {
        self.values.get(key).map_or(0, |value| value.place.length as usize)
    }

    fn order(&self, key: &TaskKey) -> ReadOrder {
        let order = |value: &StoredValue| ReadOrder { segment: value.place.segment, offset: value.place.offset };
        self.values.get(key).map(order).unwrap_or_default()
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Damaged { folder: self.folder.clone(), what: what.to_owned() }
    }
}
