//! Tables: concurrent maps of versioned elements with deadlines. Every committed change is announced to subscribers.
//!
//! This module opens no socket, parses no argument and reads no clock: callers pass the time in. This page follows one
//! write through the files. The guarantees of tables stand below.
//!
//! # One write
//!
//! A worker's [`Session`] gives a [`Batch`]: an epoch guard and one reading of the clock. [`Batch::update`] finds the
//! table in the `catalog` and the slot in the table's `index`, builds an entry, and swaps it in with a CAS (`slot`). It
//! pushes a change into the thread's ring (`change`) if somebody may receive it, notifies the expiry thread of an
//! earlier deadline (`expiry`), and charges the cost (`memory_budget`). The publisher's [`Changes::drain`] announces
//! the change. After a delete, the publisher retires the slot and the `reaper` removes it from the index.
//!
//! # One scan
//!
//! [`Batch::scan`] opens the client's cursor (`cursor`), walks over the index in an order that no split changes
//! (`index/walk.rs`), and makes a row of each slot that has an element (`scan`).
//!
//! # Scope
//!
//! The wheel does not read the clock. The slot does not know the name of its table. The change queue does not know the
//! subscribers. No file of this module knows frames.
//!
#![doc = include_str!("GUARANTEES.md")]

mod announce;
mod batch;
mod catalog;
mod change;
mod compactor;
mod cursor;
mod deadline;
mod durability;
mod durable;
mod eviction;
mod expiry;
mod failpoint;
mod feed;
mod garbage;
mod index;
mod latch;
mod latches;
mod limits;
mod loading;
mod lookup;
mod memory_budget;
#[cfg(all(test, feature = "models"))]
mod model;
mod ops;
mod pending_sends;
mod prefetch;
mod reaper;
mod refusal;
mod registry;
mod scan;
mod shelves;
mod sleep_state;
mod sleeper;
mod slot;
mod sync;
mod table;
mod table_audience;
#[cfg(test)]
pub(crate) mod tests;
mod version;

use std::sync::Arc;
use std::time::Duration;

use announce::AudienceHolds;
pub use announce::{Audience, AudienceHold, Changes, TopicCounts, Unsubscribed};
pub use batch::{Batch, ElementGrowth, LATCH_RECHECK, Lack, ManyProgress, PORTION_BYTES, Session, TransactionNeeds};
pub use change::{AnnouncedChange, ChangeSink};
pub use compactor::Compactor;
pub use cursor::ScanCursor;
pub use deadline::Deadline;
pub use durability::Durability;
pub use durable::check::check_log;
pub use durable::disk::DiskState;
pub use durable::log::{EffectLog, EpochLog, LogSource, LogThread, OpenLater, OpenLog};
pub use durable::opening::LoadProgress;
pub use durable::state::{EffectMetrics, LogStage};
pub use eviction::EvictionPolicy;
pub use expiry::Expiry;
pub use feed::FeedConfig;
pub use limits::changes_per_writer;
pub use loading::{LoadReport, LoadSettings, LoadedLog, LogClock};
pub use memory_budget::MemoryMetrics;
pub use ops::{Edit, ElementView};
pub use prefetch::Fetched;
pub use reaper::Reaper;
pub use refusal::{Refusal, Restored};
pub use scan::{ScanContent, ScanPage, ScanProgress, ScannedElement};
pub use table_audience::AudienceKind;
pub use version::version_base;

use crossbeam::epoch::{self, Guard};

use catalog::Catalog;
use change::ChangeQueue;
use cursor::CursorSeal;
use feed::FeedTap;
use memory_budget::{LocalBudget, MemoryBudget, MemoryRoom};
use table::Table;

use crate::clock::{ClockReading, Now};
use crate::feed::{Cause, FeedMetrics};
use crate::stats::LatencySnapshot;
use crate::store::{self, EffectFolder, StoreBackup};

/// The least number of bytes that a table with this many elements takes: with keys of one byte and empty values.
#[must_use]
pub fn bytes_for(elements: usize) -> u64 {
    bytes_of_element(1, 0, false).saturating_mul(elements as u64)
}

/// The bytes of one element: its key and its value have so many.
#[must_use]
pub fn bytes_of_element(key: usize, value: usize, has_deadline: bool) -> u64 {
    let element = memory_budget::slot_bytes(key, has_deadline) + memory_budget::entry_bytes(value);
    u64::try_from(element + index::BYTES_PER_ELEMENT).unwrap_or(0)
}

/// The configuration of the tables.
#[derive(Clone, Debug)]
pub struct TablesConfig {
    /// The number of elements that the map of a new table is laid out for.
    pub expected_keys: usize,
    /// The limit for all elements together, in bytes.
    pub memory_max: u64,
    /// The largest number of tables at one time.
    pub tables_max: usize,
    /// The durability of tables that do not say.
    pub durability: Durability,
    /// Changes that one writing thread may have on the way to the publisher. At least 56; for a server with this many
    /// workers: [`changes_per_writer`].
    pub changes_per_writer: usize,
    /// All versions are above this: [`version_base`] of the start of the server. So versions do not repeat across
    /// restarts.
    pub version_base: u64,
    /// The time of the clock of feed and log at the start of the clock that the callers pass, in milliseconds since 1970.
    pub clock_start: u64,
}

/// What is added to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The summand.
    pub delta: i64,
    /// The deadline of a counter that is made by this.
    pub deadline: Deadline,
    /// The most bytes of the sum in decimal.
    pub value_max: usize,
}

/// A value with its version and its remaining time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryView<'b> {
    /// The value.
    pub value: &'b [u8],
    /// The version.
    pub version: u64,
    /// Milliseconds until the deadline. `None`: no deadline.
    pub remaining_millis: Option<u64>,
}

/// A table as LIST_TABLES and STATS show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// What is on disk of it.
    pub durability: Durability,
    /// The name exactly as CREATE_TABLE gave it.
    pub name: Box<[u8]>,
    /// The number of elements, including those whose deadline has just passed.
    pub elements: u64,
    /// Bytes of the elements, as the memory budget counts them.
    pub bytes: u64,
    /// The number of elements with a deadline.
    pub expiring: u64,
    /// The mean of their deadlines. The clock's start, if there is none.
    pub mean_deadline: Now,
}

/// The kind of a change as subscribers receive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A value was stored.
    Updated,
    /// A value was removed: deleted, expired, evicted, or deleted with its table.
    Deleted,
}

impl ChangeKind {
    /// The kind of a change with this cause. `None`: subscribers do not receive it, because the value stays.
    #[must_use]
    pub fn of(cause: Cause) -> Option<Self> {
        match cause {
            Cause::Set
            | Cause::CompareAndSwap
            | Cause::Increment
            | Cause::Restore
            | Cause::Append
            | Cause::SetRange
            | Cause::IncrementByFloat
            | Cause::RenameTo
            | Cause::CopyTo => Some(Self::Updated),
            Cause::Delete | Cause::Expire | Cause::DeleteWithTable | Cause::Evict | Cause::RenameFrom => {
                Some(Self::Deleted)
            }
            Cause::Touch | Cause::Persist => None,
        }
    }
}

/// The result of one pass of the publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Changes taken from the rings.
    pub taken: usize,
    /// Changes left in the rings, by recent counts.
    pub left: usize,
    /// The tables are closed: no session is made any more.
    pub closing: bool,
    /// The tables are closed, all sessions are dropped, and all changes are announced.
    pub closed: bool,
}

/// Metrics for STATS.
#[derive(Clone, Debug)]
pub struct TablesMetrics {
    /// All tables, in the order of their names.
    pub tables: Vec<TableSummary>,
    /// The memory budget.
    pub memory: MemoryMetrics,
    /// Elements that were moved in memory to make room.
    pub moved: u64,
    /// Records of the wheel: one for each element with a deadline. The element of a record may be deleted already.
    pub timers: u64,
    /// Expiries that were committed.
    pub expired: u64,
    /// Elements that were evicted.
    pub evicted: u64,
    /// Changes that the publisher has not dealt with.
    pub changes_waiting: u64,
    /// The number of times that a writer waited for the publisher.
    pub writer_waits: u64,
    /// The number of times that a time-out found work without a wake-up for it. Each one is a bug.
    pub lost_wakeups: u64,
    /// Dead slots that were freed.
    pub reaped: u64,
    /// Nanoseconds from the deadlines to the commits of the expiries.
    pub expiry_lag: LatencySnapshot,
    /// The feed, if there is one.
    pub feed: Option<FeedMetrics>,
}

/// The work of the four background threads of the tables.
pub struct BackgroundThreads {
    /// For the publisher.
    pub changes: Changes,
    /// For the expiry thread.
    pub expiry: Expiry,
    /// For the reaper.
    pub reaper: Reaper,
    /// For the compactor. Without it only the memory budget counts against the limit.
    pub compactor: Compactor,
}

/// State that all parts of the tables share.
struct TablesShared {
    catalog: Catalog,
    change_queue: Arc<ChangeQueue>,
    memory_budget: MemoryBudget,
    expiry: expiry::ExpirySender,
    reaper: reaper::ReaperSender,
    compactor: compactor::CompactorShared,
    evictor: eviction::EvictorShared,
    cursors: CursorSeal,
    feed: Option<FeedTap>,
    audience_holds: AudienceHolds,
    epochs: Arc<durable::state::Epochs>,
    /// That of tables that do not say.
    durability: Durability,
}

impl TablesShared {
    /// Checks that `bytes` more fit into the memory budget, in addition to the session's `local_budget`.
    fn admit(&self, local_budget: &mut LocalBudget, bytes: i64) -> Result<(), Refusal> {
        match local_budget.room(&self.memory_budget, bytes) {
            MemoryRoom::Enough => Ok(()),
            MemoryRoom::Unknown => self.await_look(local_budget),
            MemoryRoom::Blocked | MemoryRoom::None if self.evicts_for(bytes) => self.await_look(local_budget),
            MemoryRoom::Blocked if self.compactor.may_give_back() => Err(Refusal::Busy),
            MemoryRoom::Blocked if self.compactor.is_look_worthwhile(self.memory_budget.used()) => {
                self.await_look(local_budget)
            }
            MemoryRoom::Blocked | MemoryRoom::None => Err(Refusal::OutOfMemory),
        }
    }

    fn await_look(&self, local_budget: &mut LocalBudget) -> Result<(), Refusal> {
        local_budget.await_look(self.compactor.looks());
        self.compactor.want_look();
        Err(Refusal::Busy)
    }

    fn set_eviction(&self, policy: EvictionPolicy, guard: &Guard) {
        self.catalog.set_eviction(policy, guard);
        self.wake_evictor_if_full();
    }

    fn summaries(&self, guard: &Guard) -> Vec<TableSummary> {
        self.catalog.tables(guard).into_iter().map(Table::summary).collect()
    }
}

/// All tables. Cloning is cheap, and clones share the same tables.
#[derive(Clone)]
pub struct Tables(Arc<TablesShared>);

impl Tables {
    /// Creates empty tables and the work of the four background threads. The tables make no progress without these
    /// threads.
    ///
    /// # Panics
    /// If `changes_per_writer` is below 56.
    #[must_use]
    pub fn new(settings: TablesConfig) -> (Self, BackgroundThreads) {
        Self::with_feed(settings, None)
    }

    /// The same, with a feed.
    ///
    /// # Panics
    /// If `changes_per_writer` is below 56.
    #[must_use]
    pub fn with_feed(settings: TablesConfig, feed: Option<FeedConfig>) -> (Self, BackgroundThreads) {
        let (reaper_sender, reaper_inbox) = reaper::ReaperSender::new();
        let (expiry_sender, expiry_inbox) = expiry::ExpirySender::new();
        let shared = Arc::new(TablesShared {
            catalog: Catalog::new(settings.tables_max, settings.expected_keys, settings.version_base),
            change_queue: ChangeQueue::new(settings.changes_per_writer),
            memory_budget: MemoryBudget::new(settings.memory_max),
            expiry: expiry_sender,
            reaper: reaper_sender,
            compactor: compactor::CompactorShared::default(),
            evictor: eviction::EvictorShared::default(),
            cursors: CursorSeal::new(settings.version_base),
            feed: feed.map(|feed| FeedTap::new(feed, settings.clock_start)),
            audience_holds: AudienceHolds::default(),
            epochs: durable::state::Epochs::new(settings.clock_start),
            durability: settings.durability,
        });
        let registry = Arc::clone(shared.catalog.registry());
        let background = BackgroundThreads {
            changes: Changes::new(
                Arc::clone(&shared.change_queue),
                registry,
                reaper::RetireSender(Arc::clone(&shared)),
            ),
            expiry: Expiry::new(&shared, expiry_inbox),
            reaper: Reaper::new(&shared, reaper_inbox),
            compactor: Compactor::new(&shared),
        };
        (Self(shared), background)
    }

    /// Creates a session. Each thread that works on the tables has its own.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(Arc::clone(&self.0))
    }

    /// There is a log, which will be loaded.
    pub fn expect_log(&self) {
        self.0.epochs.set_stage(LogStage::Loading);
    }

    /// Opens the log of durable tables, and loads what it holds, before the background threads run.
    ///
    /// # Errors
    /// Those of the log.
    pub fn load(
        &self,
        expiry: &mut Expiry,
        folder: &EffectFolder,
        clock: LogClock,
        settings: LoadSettings,
    ) -> Result<LoadedLog, store::Error> {
        loading::load(&self.0, &mut |handle| expiry.file(handle), folder, clock, settings)
    }

    /// Begins a log in a folder that has none, with this clock.
    ///
    /// # Errors
    /// Those of the log. [`store::Error::CameLater`] if the folder has one.
    pub fn begin_log(
        &self,
        folder: &EffectFolder,
        clock: LogClock,
        reading: ClockReading,
    ) -> Result<OpenLog, store::Error> {
        loading::begin(&self.0, folder, clock, reading)
    }

    /// The time of the clock of feed and log at the start of the clock that the callers pass, in milliseconds since 1970.
    #[must_use]
    pub fn clock_start(&self) -> u64 {
        self.0.epochs.clock_start()
    }

    /// The work of the thread that writes what durable tables record.
    #[must_use]
    pub fn log_thread(&self, source: LogSource, interval: Duration) -> LogThread {
        LogThread::new(&self.0, source, interval)
    }

    /// The same, step by step.
    #[must_use]
    pub fn epoch_log(&self, log: OpenLog) -> EpochLog {
        self.0.epochs.set_stage(LogStage::On);
        EpochLog::new(&self.0, log)
    }

    /// All sessions are gone. The thread of the log ends when all is on disk. `is_in_order`: all that was committed is
    /// announced, so that the next start continues.
    pub fn close_log(&self, is_in_order: bool) {
        self.0.epochs.close(is_in_order);
    }

    /// The metrics. Each value is of some moment during the call.
    #[must_use]
    pub fn metrics(&self) -> TablesMetrics {
        let shared = &self.0;
        TablesMetrics {
            tables: shared.summaries(&epoch::pin()),
            memory: shared.memory_budget.metrics(),
            moved: shared.compactor.moved(),
            timers: shared.memory_budget.timers(),
            expired: shared.expiry.expired(),
            evicted: shared.evictor.evicted(),
            changes_waiting: shared.change_queue.waiting(),
            writer_waits: shared.change_queue.waits(),
            lost_wakeups: shared.change_queue.lost_wakeups() + shared.expiry.lost_wakeups(),
            reaped: shared.reaper.reaped(),
            expiry_lag: shared.expiry.lag(),
            feed: shared.feed_metrics(),
        }
    }

    /// Waits for a backup of durable tables, as they are by now. `None`: there is no log, or it has failed.
    #[must_use]
    pub fn backup(&self) -> Option<Box<dyn StoreBackup>> {
        self.0.epochs.backup()
    }

    /// The metrics of the log of durable tables.
    #[must_use]
    pub fn log_metrics(&self) -> EffectMetrics {
        self.0.epochs.metrics()
    }

    /// The metrics of the memory, for which no table is read.
    #[must_use]
    pub fn memory(&self) -> MemoryMetrics {
        self.0.memory_budget.metrics()
    }

    /// Sets what becomes of the elements of tables that do not say, when the memory is full. It holds at once, for present
    /// and future tables.
    pub fn set_eviction(&self, policy: EvictionPolicy) {
        self.0.set_eviction(policy, &epoch::pin());
    }

    /// The metrics of the feed, if there is one.
    #[must_use]
    pub fn feed_metrics(&self) -> Option<FeedMetrics> {
        self.0.feed_metrics()
    }

    /// Lets the four background threads end. The expiry thread and the compactor end at once. The reaper ends when
    /// deleted tables are sealed. The publisher ends when all sessions are dropped and all changes are announced. The
    /// caller drops the workers' sessions first.
    pub fn close(&self) {
        self.0.expiry.close();
        self.0.compactor.close();
        self.0.reaper.close();
        self.0.change_queue.close();
    }
}
