//! The numbers that every batch keeps: so no version, life of a table, or record of one comes twice.

use std::sync::atomic::{AtomicU64, Ordering};

/// The highest numbers that were given out.
#[derive(Default)]
pub(in crate::tables) struct EffectMarks {
    /// Of a record of a table.
    number: AtomicU64,
    /// Of the versions that are recorded in epochs that the log has taken. Written by the log.
    version: AtomicU64,
    /// Of the lives of durable tables.
    incarnation: AtomicU64,
}

impl EffectMarks {
    /// What the log held when it was opened.
    pub(in crate::tables) fn resume(&self, number: u64, version: u64, incarnation: u64) {
        // Relaxed: nobody else uses them yet.
        self.number.fetch_max(number, Ordering::Relaxed);
        self.note_version(version);
        self.note_incarnation(incarnation);
    }

    /// The number of the next record of a table.
    pub(super) fn next_number(&self) -> u64 {
        // Relaxed: it only has to be another one, and a later record of a table follows under the catalog's lock.
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The highest version that is recorded in epochs that the log has taken.
    pub(super) fn version(&self) -> u64 {
        // Relaxed: the log writes it.
        self.version.load(Ordering::Relaxed)
    }

    /// Log: this version is recorded in an epoch that it takes.
    pub(super) fn note_version(&self, version: u64) {
        // Relaxed: see `version`.
        self.version.fetch_max(version, Ordering::Relaxed);
    }

    /// The highest incarnation of a durable table.
    pub(super) fn incarnation(&self) -> u64 {
        // Relaxed: the table is in an epoch that the log has taken, or in a later one.
        self.incarnation.load(Ordering::Relaxed)
    }

    /// A life of a table has this number.
    pub(super) fn note_incarnation(&self, incarnation: u64) {
        // Relaxed: the log raises its mark behind the lock of the tables.
        self.incarnation.fetch_max(incarnation, Ordering::Relaxed);
    }
}
