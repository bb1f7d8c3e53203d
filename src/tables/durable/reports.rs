//! What the log reports, and who waits for a backup of it.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::lock::Mutex;
use crate::store::{LogMetrics, StoreBackup};

/// Takes a backup.
pub(super) type BackupOrder = Sender<Box<dyn StoreBackup>>;

/// What the log reports.
#[derive(Default)]
pub(super) struct LogReports {
    /// The share of the segments that is read, in percent. Written while they are loaded.
    loaded: AtomicU64,
    /// How often a write has waited for room, or for the log to open.
    waits: AtomicU64,
    /// Who waits for a backup, of this epoch and all before it. Taken by the log behind that.
    backup_orders: Mutex<Vec<(u64, BackupOrder)>>,
    /// The last moment that is on disk, in milliseconds since 1970. 0: there is none. Written by the log.
    moment: AtomicU64,
    /// The epoch that a client has ordered last to be on disk.
    ordered: AtomicU64,
    /// Written by the log behind each batch.
    reported: Mutex<LogMetrics>,
}

impl LogReports {
    /// A write waits.
    pub(super) fn count_wait(&self) {
        // Relaxed: a metric.
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a write has waited.
    pub(super) fn waits(&self) -> u64 {
        // Relaxed: a metric.
        self.waits.load(Ordering::Relaxed)
    }

    /// So many of all segments are read.
    pub(super) fn note_loaded(&self, read: usize, all: usize) {
        // Relaxed: a metric.
        self.loaded.store((100 * read / all.max(1)) as u64, Ordering::Relaxed);
    }

    /// The share of the segments that is read, in percent.
    pub(super) fn loaded_percent(&self) -> u64 {
        // Relaxed: a metric.
        self.loaded.load(Ordering::Relaxed)
    }

    /// Log: all that was committed by this time of the wall clock is on disk.
    pub(super) fn note_moment(&self, wall_millis: u64) {
        // Relaxed: a metric.
        self.moment.store(wall_millis, Ordering::Relaxed);
    }

    /// The last moment that is on disk, in milliseconds since 1970. 0: there is none.
    pub(super) fn moment(&self) -> u64 {
        // Relaxed: a metric.
        self.moment.load(Ordering::Relaxed)
    }

    /// A client has ordered this epoch to be on disk.
    pub(super) fn note_ordered(&self, epoch: u64) {
        // Relaxed: a metric.
        self.ordered.fetch_max(epoch, Ordering::Relaxed);
    }

    /// The last epoch that a client has ordered to be on disk.
    pub(super) fn ordered(&self) -> u64 {
        // Relaxed: a metric.
        self.ordered.load(Ordering::Relaxed)
    }

    /// Somebody waits for a backup of this epoch. Nothing comes if the order is dropped.
    pub(super) fn order_backup(&self, epoch: u64) -> Receiver<Box<dyn StoreBackup>> {
        let (order, backup) = bounded(1);
        self.backup_orders.lock().push((epoch, order));
        backup
    }

    /// Log: the clients that wait for a backup of this epoch, or of an earlier one.
    pub(super) fn take_backup_orders(&self, epoch: u64) -> Vec<BackupOrder> {
        let mut orders = self.backup_orders.lock();
        orders.extract_if(.., |(wanted, _)| *wanted <= epoch).map(|(_, order)| order).collect()
    }

    /// Log: its metrics.
    pub(super) fn set_log(&self, metrics: LogMetrics) {
        *self.reported.lock() = metrics;
    }

    pub(super) fn log(&self) -> LogMetrics {
        *self.reported.lock()
    }
}
