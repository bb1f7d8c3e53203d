//! Tables: concurrent maps of versioned elements with deadlines, and every change announced.
//!
//! They know no socket and no argument, and are told the time. This page walks one write through, and then says what tables
//! guarantee.
//!
//! # One write
//!
//! A worker's [`Session`] gives a [`Batch`] (a guard and a reading of the clock). [`Batch::update`] finds the table in
//! the `catalog` and the slot in its `index`, builds an entry, and swaps it in (`slot`). It pushes a change into the
//! thread's ring (`change`), tells the expiry thread about an earlier deadline (`expiry`), and settles the costs
//! (`memory_budget`). The publisher's [`Changes::drain`] announces it. After a delete, the publisher retires the slot and the
//! `reaper` takes it out.
//!
//! # What is not here
//!
//! The wheel does not know the clock, the slot does not know its table's name, the change queue does not know who
//! listens, and nothing here knows frames.
//!
#![doc = include_str!("GUARANTEES.md")]

mod announce;
mod batch;
mod catalog;
mod change;
mod compactor;
mod expiry;
mod failpoint;
mod garbage;
mod index;
mod memory_budget;
#[cfg(all(test, feature = "models"))]
mod model;
mod ops;
mod pending_sends;
mod prefetch;
mod reaper;
mod registry;
mod sleep_state;
mod sleeper;
mod slot;
mod sync;
mod table;
#[cfg(test)]
pub(crate) mod trials;

use std::sync::Arc;

pub use announce::Changes;
pub use batch::{Batch, Session};
pub use compactor::Compactor;
pub use expiry::Expiry;
pub use reaper::Reaper;

use crossbeam::epoch::{self, Guard};

use catalog::Catalog;
use change::ChangeQueue;
use memory_budget::{LocalBudget, MemoryBudget, MemoryRoom};
use table::Table;

use crate::stats::Percentiles;

/// What a table with so many elements takes at least, in bytes: with keys of one byte, and values of none.
#[must_use]
pub fn bytes_for(elements: usize) -> u64 {
    let element = memory_budget::slot_bytes(1) + memory_budget::entry_bytes(0) + index::BYTES_PER_ELEMENT;
    u64::try_from(element).unwrap_or(0).saturating_mul(elements as u64)
}

/// What the tables are made with.
#[derive(Clone, Debug)]
pub struct TablesConfig {
    /// Elements that the map of a new table is laid out for.
    pub expected_keys: usize,
    /// What all elements together may take, in bytes.
    pub memory_max: u64,
    /// How many tables there may be at once.
    pub tables_max: usize,
    /// Changes that one writing thread may have on the way to the publisher; at least 15.
    pub changes_per_writer: usize,
    /// Added to every version that leaves the tables: nanoseconds since 1970 at the start of the server, so that
    /// versions do not repeat across restarts.
    pub version_base: u64,
}

/// Why an operation changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A table of this name is there.
    TableExists,
    /// No table of this name is there.
    TableNotFound,
    /// The key has no element.
    KeyNotFound,
    /// The element's version is another; 0 is none.
    VersionMismatch {
        /// The version that it has.
        current: u64,
    },
    /// The limit of `memory_max` is reached; reading and deleting go on.
    OutOfMemory,
    /// The limit of `tables_max` is reached.
    TooManyTables,
    /// Nothing was done, for want of credits or of memory that may be given back: drop the batch, call [`Session::wait`], read the clock, try again.
    Busy,
}

/// A value with its version and what is left of its time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryView<'b> {
    /// The value.
    pub value: &'b [u8],
    /// The version.
    pub version: u64,
    /// Milliseconds until the deadline; `None` is for ever.
    pub remaining_millis: Option<u64>,
}

/// A table as LIST_TABLES and STATS show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// Exactly as CREATE_TABLE gave it.
    pub name: Box<[u8]>,
    /// Elements, those included whose deadline has just passed.
    pub elements: u64,
    /// What they take, in bytes, by the account that `memory_max` limits.
    pub bytes: u64,
}

/// What subscribers hear about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A value was stored.
    Updated,
    /// A value went: deleted, expired, or with its table.
    Deleted,
}

/// What one pass of the publisher found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Changes taken from the rings.
    pub taken: usize,
    /// The tables are closed, all sessions are gone and all is announced.
    pub closed: bool,
}

/// Figures for STATS.
#[derive(Clone, Debug)]
pub struct TablesMetrics {
    /// All tables, in the order of their names.
    pub tables: Vec<TableSummary>,
    /// What all elements and tables take, in bytes, by the account.
    pub bytes: u64,
    /// The limit of that account.
    pub memory_max: u64,
    /// What counts against the limit besides the account: memory that the process has for other reasons.
    pub excess_bytes: u64,
    /// Elements that were moved in memory to make room.
    pub moved: u64,
    /// Records of the wheel: elements with a deadline, some of them gone already.
    pub timers: u64,
    /// Expiries committed.
    pub expired: u64,
    /// Changes committed and not yet announced.
    pub changes_waiting: u64,
    /// How often a writer had to wait for the publisher.
    pub writer_waits: u64,
    /// How often a time-out found what no wake-up had told of. Each is a bug.
    pub lost_wakeups: u64,
    /// Dead slots freed.
    pub reaped: u64,
    /// Nanoseconds from deadlines to the commits of their expiry.
    pub expiry_lag: Percentiles,
}

/// What the four threads behind the tables are made of.
pub struct BackgroundThreads {
    /// For the publisher.
    pub changes: Changes,
    /// For the expiry thread.
    pub expiry: Expiry,
    /// For the reaper.
    pub reaper: Reaper,
    /// For the compactor. Without it the limit is that of the account alone.
    pub compactor: Compactor,
}

/// What all parts of the tables share.
struct TablesShared {
    catalog: Catalog,
    change_queue: Arc<ChangeQueue>,
    memory_budget: MemoryBudget,
    expiry: expiry::ExpirySender,
    reaper: reaper::ReaperSender,
    compactor: compactor::CompactorState,
    version_base: u64,
}

impl TablesShared {
    /// Whether `bytes` more fit, besides what the session has in its `local_budget`.
    fn admit(&self, local_budget: &LocalBudget, bytes: i64) -> Result<(), Refusal> {
        match local_budget.room(&self.memory_budget, bytes) {
            MemoryRoom::Enough => Ok(()),
            MemoryRoom::Blocked if self.compactor.may_give_back() => Err(Refusal::Busy),
            MemoryRoom::Blocked | MemoryRoom::None => Err(Refusal::OutOfMemory),
        }
    }

    fn outer_version(&self, version: u64) -> u64 {
        self.version_base + version
    }

    /// A version that a client expects; one that this server never gave out matches nothing.
    fn inner_version(&self, version: u64) -> u64 {
        match version {
            0 => 0,
            given => given.checked_sub(self.version_base).filter(|inner| *inner > 0).unwrap_or(u64::MAX),
        }
    }

    fn outward(&self, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::VersionMismatch { current } if current > 0 => {
                Refusal::VersionMismatch { current: self.outer_version(current) }
            }
            other => other,
        }
    }

    fn summaries(&self, guard: &Guard) -> Vec<TableSummary> {
        let mut summaries: Vec<_> = self.catalog.tables(guard).map(Table::summary).collect();
        summaries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        summaries
    }
}

/// All tables. Cheap to clone; clones are the same tables.
#[derive(Clone)]
pub struct Tables(Arc<TablesShared>);

impl Tables {
    /// Makes empty tables, and the work of the four threads without which they do not get on.
    ///
    /// # Panics
    /// If `changes_per_writer` is below 15.
    #[must_use]
    pub fn new(settings: TablesConfig) -> (Self, BackgroundThreads) {
        let (reaper_link, inbox) = reaper::ReaperSender::new();
        let (expiry_link, dues) = expiry::ExpirySender::new();
        let shared = Arc::new(TablesShared {
            catalog: Catalog::new(settings.tables_max, settings.expected_keys),
            change_queue: ChangeQueue::new(settings.changes_per_writer),
            memory_budget: MemoryBudget::new(settings.memory_max),
            expiry: expiry_link,
            reaper: reaper_link,
            compactor: compactor::CompactorState::default(),
            version_base: settings.version_base,
        });
        let registry = Arc::clone(shared.catalog.registry());
        let backstage = BackgroundThreads {
            changes: Changes::new(
                Arc::clone(&shared.change_queue),
                registry,
                reaper::RetireSender(Arc::clone(&shared)),
            ),
            expiry: Expiry::new(&shared, dues),
            reaper: Reaper::new(&shared, inbox),
            compactor: Compactor::new(&shared),
        };
        (Self(shared), backstage)
    }

    /// One for each thread that works on the tables.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(Arc::clone(&self.0))
    }

    /// Figures, each of some moment of the call.
    #[must_use]
    pub fn metrics(&self) -> TablesMetrics {
        let shared = &self.0;
        TablesMetrics {
            tables: shared.summaries(&epoch::pin()),
            bytes: u64::try_from(shared.memory_budget.used()).unwrap_or(0),
            memory_max: u64::try_from(shared.memory_budget.limit()).unwrap_or(0),
            excess_bytes: u64::try_from(shared.memory_budget.excess()).unwrap_or(0),
            moved: shared.compactor.moved(),
            timers: shared.memory_budget.timers(),
            expired: shared.expiry.expired(),
            changes_waiting: shared.change_queue.waiting(),
            writer_waits: shared.change_queue.waits(),
            lost_wakeups: shared.change_queue.lost_wakeups() + shared.expiry.lost_wakeups(),
            reaped: shared.reaper.reaped(),
            expiry_lag: shared.expiry.lag(),
        }
    }

    /// Lets the four threads end: expiry and the compactor at once, the reaper when deleted tables are sealed, the publisher when all
    /// sessions are gone and all is announced. To be called when the workers' sessions have been dropped.
    pub fn close(&self) {
        self.0.expiry.close();
        self.0.compactor.close();
        self.0.reaper.close();
        self.0.change_queue.close();
    }
}
