//! Durable storage: a log of records in segments.
//!
//! ```text
//! owner: records ─► Log::append ─► one write ─► Log::sync ─► acknowledged
//!        the oldest segment ─► Log::copies ─► in front of the records of the next batch ─► the segment is removed
//! ```
//! A batch is written whole or not at all. After any failure the log holds the state after one of the batches, and
//! none before the last one that was acknowledged. Each record is a whole state: the later one of a key counts.
//!
//! - `format`, `encoding`, `segment`, `summary`: the bytes
//! - `folder`: the disk as a trait; `disk`: the real one; `failure`, `errors`: names of errors
//! - `log`: the writer; `chores` is the work beside it; `segments`, `in_use` count; `admission` refuses adds
//! - `cleaner`, `clean`: space comes back only from the head of the log
//! - `history`, `missing`, `batches`, `winners`, `bodies`, `open`, `repair`: opening
//! - `backup`, `check`: copies of a log, and folders that no process uses
//! - `interface`: what an engine asks of a store; `keyed`: the owner of a log, which knows the place of each record, in
//!   `places`; `keyed_views`: the part of it that its readers have
//! - `fake_disk`: the store of tests, which loses unsynced batches and fails on request
//! - `earlier`: folders of the library that was here before
//!
//! One thread owns a [`Log`]. Values are read by any thread. This module does not interpret records, and does not
//! decide when to sync; see `tasks`.

mod admission;
mod backup;
mod batches;
mod bodies;
mod check;
mod chores;
mod clean;
mod cleaner;
mod disk;
mod earlier;
mod encoding;
mod errors;
mod failure;
#[cfg(test)]
pub(crate) mod fake_disk;
mod fault;
mod folder;
mod format;
mod history;
mod in_use;
mod interface;
mod keyed;
mod keyed_views;
mod log;
mod metrics;
mod missing;
mod open;
mod places;
mod record;
mod repair;
mod segment;
mod segments;
mod summary;
mod winners;

#[cfg(test)]
mod backups;
#[cfg(test)]
mod chance;
#[cfg(test)]
mod full_trial;
#[cfg(test)]
mod gone;
#[cfg(test)]
mod keyed_trial;
#[cfg(test)]
mod killed;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod model;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod regressions;
#[cfg(test)]
mod repairs;
#[cfg(test)]
mod rot;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod simulated_pages;

pub use admission::{AddsRefused, SEGMENTS_MIN};
pub use backup::Backup;
pub use check::{CheckReport, check};
pub use chores::ChoreMode;
pub use clean::{Copies, Liveness};
pub use cleaner::UnreadableRange;
pub use disk::RealFolder;
pub use earlier::refuse_earlier;
pub use errors::Error;
pub use folder::{DiskSpace, Folder, LogFile};
pub use format::{Marks, Space};
pub use interface::{
    BackupReport, BackupTurn, IDS_MARK, IdleWork, LostRecord, NUMBERS_MARK, Store, StoreBackup, StoreSnapshot,
    StoreWatch, TOKENS_MARK, TaskKey, WriteBatch,
};
pub use keyed::{KeyedStore, StoreConfig};
pub use log::{Log, LogConfig};
pub use metrics::{LogMetrics, OpeningShape};
pub use open::{OpenOptions, Opened, open};
pub use record::{Body, CleanedUpTo, Record, RecordBatch, Value};
pub use segment::{Place, StoredValue};
pub use winners::{Winner, Winners};
