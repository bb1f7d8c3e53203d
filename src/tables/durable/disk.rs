//! Which epochs are on disk, and who waits for one.
//!
//! ```text
//! log:     sync or failure ─► store the new state ─► take the list ─► wake each
//! waiting: look, and enter the list, under its lock ─► sleep ─► look again
//! ```
//! If the look comes before the log takes the list, the log finds the thread there. If it comes behind that, the look shows
//! the new epoch.
//!
//! This file writes nothing to the disk.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crossbeam::utils::CachePadded;

use super::lost::LostRecords;
use crate::tables::sleeper::Sleeper;
use crate::tables::sync::{AtomicU64, Mutex, Ordering};

/// What the log has on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskState {
    /// The last epoch on disk.
    pub synced: u64,
    /// The log has failed: no later epoch will be on disk.
    pub has_failed: bool,
}

/// A table has gone in this epoch.
struct GoneTable {
    epoch: u64,
    name: Box<[u8]>,
}

/// Which epochs are on disk, and who waits for one.
pub(in crate::tables) struct DiskEpochs {
    /// The last one on disk. Written by the log.
    synced: CachePadded<AtomicU64>,
    /// The last one in which a table came or went that is always on disk, or became so. Raised under the catalog's lock.
    names: AtomicU64,
    /// Tables that were always on disk, and have gone in epochs that are not. Pushed under the catalog's lock, and taken by
    /// the log behind each sync.
    gone: Mutex<Vec<GoneTable>>,
    /// Whether a table that is always on disk has changed. Written by writers, read by the publisher for each change.
    has_always: AtomicBool,
    /// What was not on disk when the log failed. Written by the log.
    lost: OnceLock<LostRecords>,
    /// Answers that have begun to wait, ever. Raised by the writers.
    asked: CachePadded<AtomicU64>,
    /// Threads with answers or changes that wait. The log wakes them behind each sync.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
}

impl DiskEpochs {
    /// All epochs up to this one are on disk.
    pub(in crate::tables) fn new(synced: u64) -> Self {
        Self {
            synced: CachePadded::new(AtomicU64::new(synced)),
            names: AtomicU64::new(0),
            gone: Mutex::default(),
            has_always: AtomicBool::new(false),
            lost: OnceLock::new(),
            asked: CachePadded::new(AtomicU64::new(0)),
            sleepers: Mutex::default(),
        }
    }

    /// The last epoch on disk.
    pub(in crate::tables) fn synced(&self) -> u64 {
        // Acquire: pairs with the Release in `note_synced`.
        self.synced.load(Ordering::Acquire)
    }

    /// Log: this epoch is on disk.
    pub(in crate::tables) fn note_synced(&self, epoch: u64) {
        // Release: pairs with the Acquire in `synced`.
        self.change(|| self.synced.store(epoch, Ordering::Release));
        self.gone.lock().retain(|gone| gone.epoch > epoch);
    }

    /// An answer begins to wait.
    pub(super) fn note_asked(&self) {
        // Relaxed, here and in `asked`: a count by which the log guesses.
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Log: the answers that have begun to wait, ever.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Log: it fails, and these records are not on disk.
    pub(super) fn note_lost(&self, lost: LostRecords) {
        // A log fails once.
        let _is_first = self.lost.set(lost);
    }

    /// What was not on disk when the log failed.
    pub(super) fn lost(&self) -> Option<&LostRecords> {
        self.lost.get()
    }

    /// What is on disk. If that is less than this epoch and may become more, `sleeper` is woken behind the next sync.
    pub(in crate::tables) fn watch(
        &self,
        epoch: u64,
        look: impl Fn() -> DiskState,
        sleeper: &Arc<Sleeper>,
    ) -> DiskState {
        // Under the lock, which the log takes behind each sync and behind a failure: it then finds this sleeper.
        let mut sleepers = self.sleepers.lock();
        let disk = look();
        let waits = disk.synced < epoch && !disk.has_failed;
        if waits && !sleepers.iter().any(|other| Arc::ptr_eq(other, sleeper)) {
            sleepers.push(Arc::clone(sleeper));
        }
        disk
    }

    /// Log: calls `store` behind a sync or a failure, and then wakes all sleepers of the list.
    pub(in crate::tables) fn change(&self, store: impl FnOnce()) {
        store();
        let woken = std::mem::take(&mut *self.sleepers.lock());
        woken.iter().for_each(|sleeper| sleeper.wake());
    }

    /// Log: whether a thread waits for an epoch.
    pub(super) fn has_sleepers(&self) -> bool {
        !self.sleepers.lock().is_empty()
    }

    /// Publisher: whether a table that is always on disk has changed.
    #[inline]
    pub(super) fn has_always(&self) -> bool {
        // Relaxed: the change has come through a ring, behind the store.
        self.has_always.load(Ordering::Relaxed)
    }

    /// Writer: a table that is always on disk is about to change. Each writer stores it before its own push, unless it is there.
    pub(super) fn note_always(&self) {
        if !self.has_always() {
            // Relaxed: as above.
            self.has_always.store(true, Ordering::Relaxed);
        }
    }

    /// The last epoch in which a table came or went, for a thread that has seen the change.
    pub(super) fn names(&self) -> u64 {
        // Relaxed: it was raised before that could be seen.
        self.names.load(Ordering::Relaxed)
    }

    /// In this epoch a table comes or goes. Called under the catalog's lock, before others can see it.
    pub(super) fn raise_names(&self, epoch: u64) {
        // Relaxed: a reader sees the new name only behind the catalog's Release, which comes later.
        self.names.fetch_max(epoch, Ordering::Relaxed);
    }

    /// In this epoch the table of a name goes. Called as [`DiskEpochs::raise_names`].
    pub(super) fn note_gone(&self, epoch: u64, name: &[u8]) {
        self.gone.lock().push(GoneTable { epoch, name: name.into() });
    }

    /// The last epoch, not on disk, in which a table of this name has gone. 0: none has.
    pub(super) fn gone(&self, name: &[u8]) -> u64 {
        let gone = self.gone.lock();
        gone.iter().filter(|gone| *gone.name == *name).map(|gone| gone.epoch).max().unwrap_or(0)
    }
}
