//! The buffers of one writer: what the log takes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam::utils::Backoff;

use super::epochs::WriterPlace;
use crate::lock::{Mutex, MutexGuard};
use crate::store::EncodedRecords;

/// How long the log sleeps between two looks whether a writer has left the epoch.
const LEAVE_CHECK: Duration = Duration::from_micros(50);

/// The records of one writer.
pub(in crate::tables) struct WriterRecords {
    pub(super) place: WriterPlace,
    /// By the parity of the epoch. The writer locks one inside its epoch, and the log when that is closed and left: never
    /// both at once.
    buffers: [Mutex<EncodedRecords>; 2],
    /// The highest version that the writer has recorded. Written by it before it leaves.
    version: AtomicU64,
}

impl WriterRecords {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { place: WriterPlace::new(), buffers: Default::default(), version: AtomicU64::new(0) })
    }

    /// The highest version that the writer has recorded. The log asks when the writer has left the epoch.
    pub(super) fn version(&self) -> u64 {
        // Relaxed: the leaving orders it.
        self.version.load(Ordering::Relaxed)
    }

    /// Writer: it has recorded this version.
    pub(super) fn note_version(&self, version: u64) {
        // Relaxed: this thread alone writes it, and the log reads it when the epoch is left.
        if version > self.version.load(Ordering::Relaxed) {
            self.version.store(version, Ordering::Relaxed);
        }
    }

    pub(super) fn buffer(&self, epoch: u64) -> MutexGuard<'_, EncodedRecords> {
        let [even, odd] = &self.buffers;
        if epoch.is_multiple_of(2) { even.lock() } else { odd.lock() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffers.iter().all(|buffer| buffer.lock().is_empty())
    }

    /// Log: waits until the writer is not in this epoch, which is closed. A writer stays for some microseconds, unless it
    /// is in a transaction or its thread has lost its core.
    pub(super) fn await_leave(&self, closed: u64) {
        let backoff = Backoff::new();
        while !self.place.is_left(closed) {
            match backoff.is_completed() {
                true => thread::park_timeout(LEAVE_CHECK),
                false => backoff.snooze(),
            }
        }
    }
}
