//! Durable storage: a log of records in segments.
//!
//! ```text
//! owner: records ─► Log::append ─► one write ─► Log::sync ─► acknowledged
//!        an old segment ─► Log::copies ─► in front of the records of the next batch ─► the segment is removed
//! ```
//! A batch is written whole or not at all. After any failure the log holds the state after one of the batches, and
//! none before the last one that was acknowledged. Each record is a whole state: the later one of a key counts.
//!
//! - `format`, `table`, `encoding`, `record`, `segment`, `summary`: the bytes
//! - `folder`: the disk as a trait; `disk`: the real one; `failure`, `errors`: names of errors
//! - `log/`: the writer; `chores` is the work beside it; `segments`, `in_use` count; `admission` refuses adds;
//!   `cleaning` gives space back
//! - `opening/`: from the files to the last record of each key; also `repair`, and `check` for a folder without a server
//! - `backup`: a copy of a log that is open; `notes`: small files beside the segments
//! - `interface`: the demands of an engine on a store; `keyed/`: the owner of a log, which knows the place of each
//!   record, in `places`; `keyed/views`: the part of the owner that its readers have; `readers`: threads that read
//!   values
//! - `tests/`: a simulated disk with power failures, histories on it, and the store of other rooms' tests (`fake_disk`)
//!
//! One thread owns a [`Log`]. Values are read by any thread. This module does not interpret records, and does not
//! decide when to sync; see `tasks`.

mod backup;
mod disk;
mod effects;
mod encoded;
mod encoding;
mod errors;
mod failure;
mod fault;
mod folder;
mod format;
mod gaps;
mod interface;
mod keyed;
mod log;
mod metrics;
mod notes;
mod opening;
mod places;
mod readers;
mod record;
mod segment;
mod summary;
mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use backup::Backup;
pub use disk::RealFolder;
pub use effects::{EffectFolder, EffectJudge, EffectState, EffectStore};
pub use encoded::EncodedRecords;
pub use errors::Error;
pub use folder::{DiskSpace, FileIdentity, Folder, LogFile};
pub use format::{LogKind, Marks, Space};
pub use interface::{
    BackupReport, BackupTurn, IDS_MARK, IdleWork, LostRecord, NUMBERS_MARK, ReadOrder, Store, StoreBackup,
    StoreSnapshot, StoreWatch, TOKENS_MARK, TaskKey, WriteBatch,
};
pub use keyed::{KeyedStore, StoreConfig};
pub use log::admission::{AddsRefused, SEGMENTS_MIN};
pub use log::chores::ChoreMode;
pub use log::cleaning::copies::{Copies, Liveness};
pub use log::cleaning::position::UnreadableRange;
pub use log::share::{DiskMember, SharedDisk};
pub use log::{Log, LogConfig};
pub use metrics::{LogCounters, LogMetrics, LogSpace, OpeningShape};
pub(crate) use opening::TIME_MARK;
pub use opening::absent::{folders_with_logs, refuse_without_log};
pub use opening::check::{CheckCounts, CheckReport, check, check_effects};
pub use opening::cut::CutOff;
pub use opening::earlier::refuse_earlier;
pub use opening::effects::{EffectOwner, EffectReader, FoundBody, FoundEffect};
pub use opening::winners::{Winner, Winners};
pub use opening::{OpenOptions, Opened, open, open_effects};
pub use readers::{ReadRequest, Readers};
pub use record::{Body, Cleaned, Record, RecordBatch, Value};
pub use segment::{Place, StoredValue};

/// The folder of the log of durable tables, in that of the log of tasks.
pub const TABLES_FOLDER: &str = "tables";
