//! What other threads have of a store: values as they were at one moment, and whether the store and its folder go on.
//!
//! This module changes nothing. A value that cannot be read is reported to the owner, see `keyed.rs`.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use ahash::RandomState;

use super::errors::Error;
use super::folder::Folder;
use super::interface::{StoreSnapshot, StoreWatch, TaskKey};
use super::record::Value;
use super::segment::{Place, StoredValue, name_of};
use crate::lock::Mutex;

/// Values that a reader could not read, with the places at which it tried.
pub(super) type Reports = Arc<Mutex<Vec<(TaskKey, Place)>>>;

/// Knows whether the store has failed, and looks whether its folder is still there and takes changes. A folder that is
/// gone does not show itself to the writer, whose files stay open.
pub(super) struct KeyedWatch {
    pub(super) folder: Arc<dyn Folder>,
    /// The first failure of the store.
    pub(super) failed: Arc<OnceLock<Error>>,
    /// The number of the segment that is being written.
    pub(super) newest: Arc<AtomicU32>,
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

/// The places of some values at one moment.
pub(super) struct KeyedSnapshot {
    pub(super) folder: PathBuf,
    pub(super) values: HashMap<TaskKey, StoredValue, RandomState>,
    pub(super) reports: Reports,
}

impl StoreSnapshot for KeyedSnapshot {
    fn get(&self, key: &TaskKey) -> Result<Option<Value>, Error> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let read = value.read().map(Some);
        read.inspect_err(|error| {
            if error.loses_one_value() {
                self.reports.lock().push((*key, value.place));
            }
        })
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Damaged { folder: self.folder.clone(), what: what.to_owned() }
    }
}
