//! A store for tests, in memory. A crash loses its unsynced batches, and it fails on request.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Error, Space, Store, StoreSnapshot, StoreWatch, Value, WriteBatch};
use crate::lock::{Mutex, MutexGuard};

type Records = BTreeMap<(Space, Vec<u8>), Value>;

/// State shared by all handles of one store.
#[derive(Debug, Default)]
struct Content {
    /// The visible records.
    now: Arc<Records>,
    /// The records that every crash leaves.
    synced: Arc<Records>,
    /// Batches after `synced`, the oldest first. A crash leaves a prefix of them.
    unsynced: Vec<WriteBatch>,
    /// The number of commits and syncs that succeed before one fails. `None`: all succeed.
    until_failure: Option<usize>,
    commits: usize,
    syncs: usize,
}

/// A handle of a store. A test keeps a clone when the committer has the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeDisk {
    content: Arc<Mutex<Content>>,
}

impl FakeDisk {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Simulates a crash of the system: the first `left` of the unsynced batches remain.
    pub(crate) fn crash(&self, left: usize) {
        let mut content = self.lock();
        let left = left.min(content.unsynced.len());
        let mut records = Records::clone(&content.synced);
        content.unsynced.drain(..).take(left).for_each(|batch| make(&mut records, batch));
        content.now = Arc::new(records);
        content.synced = Arc::clone(&content.now);
        content.until_failure = None;
    }

    /// Lets `count` more commits and syncs succeed, and all later ones fail.
    pub(crate) fn fail_after(&self, count: usize) {
        self.lock().until_failure = Some(count);
    }

    /// The number of unsynced batches.
    pub(crate) fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// The numbers of commits and of syncs so far.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let content = self.lock();
        (content.commits, content.syncs)
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock()
    }
}

impl Content {
    fn try_once(&mut self) -> Result<(), Error> {
        match &mut self.until_failure {
            Some(0) => Err(failed()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn sync(&mut self) {
        self.syncs += 1;
        self.unsynced.clear();
        self.synced = Arc::clone(&self.now);
    }
}

fn make(records: &mut Records, batch: WriteBatch) {
    for item in batch {
        let key = (item.space, item.key.to_vec());
        match item.value {
            Some(value) => drop(records.insert(key, value)),
            None => drop(records.remove(&key)),
        }
    }
}

impl Store for FakeDisk {
    fn scan(&self, space: Space, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Error> {
        let now = Arc::clone(&self.lock().now);
        now.iter().filter(|((at, _), _)| *at == space).for_each(|((_, key), value)| each(key, value));
        Ok(())
    }

    fn commit(&mut self, batch: WriteBatch, sync: bool) -> Result<(), Error> {
        let mut content = self.lock();
        content.try_once()?;
        content.commits += 1;
        make(Arc::make_mut(&mut content.now), batch.clone());
        content.unsynced.push(batch);
        if sync {
            content.sync();
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        let mut content = self.lock();
        content.try_once()?;
        content.sync();
        Ok(())
    }

    fn set_lazy(&mut self, _lazy: bool) -> Result<(), Error> {
        self.lock().try_once()
    }

    fn watch(&self) -> Arc<dyn StoreWatch> {
        Arc::new(FakeWatch(self.clone()))
    }

    fn moment(&self) -> Arc<dyn StoreSnapshot> {
        Arc::new(FakeSnapshot(Arc::clone(&self.lock().now)))
    }

    fn damaged(&self, what: &str) -> Error {
        damaged(what)
    }
}

/// A watch that fails when the next commit will fail.
struct FakeWatch(FakeDisk);

impl StoreWatch for FakeWatch {
    fn check(&self) -> Result<(), Error> {
        match self.0.lock().until_failure {
            Some(0) => Err(failed()),
            Some(_) | None => Ok(()),
        }
    }
}

struct FakeSnapshot(Arc<Records>);

impl StoreSnapshot for FakeSnapshot {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Value>, Error> {
        Ok(self.0.get(&(space, key.to_vec())).cloned())
    }

    fn damaged(&self, what: &str) -> Error {
        damaged(what)
    }
}

fn damaged(what: &str) -> Error {
    Error::Damaged { folder: PathBuf::from("double"), what: what.to_owned() }
}

fn failed() -> Error {
    Error::Failed { folder: PathBuf::from("double"), why: "on purpose".to_owned() }
}
