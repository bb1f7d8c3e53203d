//! The log of durable tables: found at the start, loaded, and begun when the first durable table is made.
//!
//! ```text
//! find: the folder is there ─► locked, its clock continues ─► open: its tables are loaded ─► LogSource::Open
//!       it is not           ─► the clock begins            ─► open: nothing               ─► LogSource::Later: made
//! ```
//! The clock is needed for the tables, and the endpoints are bound before a store is opened. So the folder is found first.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::services::{BoundService, control};
use super::{Error, LateServices, StorageConfig};
use crate::clock::Clock;
use crate::store::{self, DiskMember, EffectFolder, StoreConfig, TABLES_FOLDER};
use crate::tables::{
    Expiry, LoadProgress, LoadReport, LoadSettings, LoadedLog, LogClock, LogSource, LogThread, Tables,
};
use crate::threads;

/// The largest segment of the log, in bytes. Three are laid out at least, for tables that may be few.
pub(crate) const TABLES_SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// The log, as it was found.
pub(super) struct TablesLog {
    /// `None`: there is none.
    folder: Option<EffectFolder>,
    clock: LogClock,
    path: PathBuf,
    store: StoreConfig,
    share: DiskMember,
    /// The time of its clock at the start of the server's clock.
    pub(super) clock_start: u64,
}

impl TablesLog {
    /// Looks for the folder, and locks it.
    pub(super) fn find(storage: &StorageConfig, share: DiskMember, clock: Clock) -> Result<Self, Error> {
        let path = storage.data.join(TABLES_FOLDER);
        let segment_bytes = storage.store.segment_bytes.min(TABLES_SEGMENT_BYTES_MAX);
        let store = StoreConfig { segment_bytes, ..storage.store };
        let folder = if path.is_dir() { Some(EffectFolder::lock(&path, store, share.clone())?) } else { None };
        let (now, reading) = clock.now_and_reading();
        let clock = match &folder {
            Some(folder) => LogClock::find(folder, reading)?,
            None => LogClock::begin(reading),
        };
        let clock_start = clock.time().saturating_sub(now.millis());
        Ok(Self { folder, clock, path, store, share, clock_start })
    }

    /// Whether there is a log to load.
    pub(super) fn is_there(&self) -> bool {
        self.folder.is_some()
    }

    /// Loads what the log holds, and returns the work of its thread. The service of backups starts now, or when the log
    /// begins.
    pub(super) fn open(
        self,
        tables: &Tables,
        expiry: &mut Expiry,
        interval: Duration,
        late: LateServices,
    ) -> Result<LogThread, Error> {
        let Self { folder, clock, path, store, share, .. } = self;
        let source = match folder {
            Some(folder) => {
                let settings = LoadSettings {
                    readers: threads::cores().len(),
                    reading: Clock::start().reading(),
                    progress: progress(),
                };
                let LoadedLog { log, report, notes } = tables.load(expiry, &folder, clock, settings)?;
                for note in notes {
                    tracing::warn!("{}: {note}", path.display());
                }
                let LoadReport { tables: count, elements, continues } = report;
                let how = if continues { "the feed continues" } else { "the feed begins anew" };
                tracing::info!("{count} durable tables with {elements} elements are loaded; {how}");
                backups(&path, tables).into_iter().for_each(|service| late.start(service));
                LogSource::Open(Box::new(log))
            }
            None => {
                let (tables, clock_now) = (tables.clone(), Clock::start());
                LogSource::Later(Box::new(move || {
                    let folder = EffectFolder::lock(&path, store, share.clone());
                    let begun = folder.and_then(|folder| tables.begin_log(&folder, clock.clone(), clock_now.reading()));
                    let failed = |error: &store::Error| tracing::error!("no table can be made durable: {error}");
                    begun
                        .inspect_err(failed)
                        .inspect(|_| backups(&path, &tables).into_iter().for_each(|service| late.start(service)))
                }))
            }
        };
        Ok(tables.log_thread(source, interval))
    }
}

/// The service of backups.
fn backups(folder: &Path, tables: &Tables) -> Option<BoundService> {
    let tables = tables.clone();
    control("tables-control", folder, Box::new(move || Ok(tables.backup())))
}

/// Shows the progress of the loading, if standard error is a terminal.
fn progress() -> LoadProgress {
    let bar = ProgressBar::new(0).with_message("loading durable tables");
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent} %") {
        bar.set_style(style);
    }
    Box::new(move |read, all| {
        bar.set_length(all as u64);
        bar.set_position(read as u64);
        if read == all {
            bar.finish_and_clear();
        }
    })
}
