//! What other threads have of a store: values as they were at one moment, and whether the store goes on.
//!
//! This module changes nothing. A value that cannot be read is reported to the owner, see `keyed.rs`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ahash::RandomState;

use super::errors::Error;
use super::interface::{StoreSnapshot, StoreWatch, TaskKey};
use super::record::Value;
use super::segment::{Place, StoredValue};
use crate::lock::Mutex;

/// Values that a reader could not read, with the places at which it tried.
pub(super) type Reports = Arc<Mutex<Vec<(TaskKey, Place)>>>;

/// Knows whether the store has failed.
pub(super) struct KeyedWatch {
    pub(super) folder: PathBuf,
    pub(super) failed: Arc<AtomicBool>,
}

impl StoreWatch for KeyedWatch {
    fn check(&self) -> Result<(), Error> {
        // Relaxed: as in `guarded`.
        match self.failed.load(Ordering::Relaxed) {
            true => Err(Error::Failed { folder: self.folder.clone(), why: "an earlier write has failed".to_owned() }),
            false => Ok(()),
        }
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
