//! The start of durable tables: the log is opened, and what it holds becomes tables.
//!
//! This file reads no file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam::epoch;

use super::judge::CLOCK;
use super::log::{CLOCK_MARK, INCARNATION_MARK, OpenLog, VERSION_MARK};
use super::opening::{FoundTable, LoadProgress, Opening};
use super::records::TableHead;
use crate::clock::ClockReading;
use crate::clock::lasting::{ClockMark, LastingClock};
use crate::store::{EffectFolder, EffectOwner, EffectReader, Error, FoundBody, FoundEffect, Space};
use crate::tables::TablesShared;
use crate::tables::catalog::table_bytes;
use crate::tables::expiry::Expiry;
use crate::tables::table::canonical;

/// How far versions jump beyond the highest that is on disk, unless the log was ended in order: more were perhaps given
/// out. They take five hours as ticks of the clock.
const VERSIONS_LOST: u64 = 1 << 40;

/// The last mark of the clock in a segment.
#[derive(Default)]
struct LastClock {
    number: u64,
    mark: Option<ClockMark>,
}

impl EffectReader for LastClock {
    fn take(&mut self, effect: FoundEffect<'_>) {
        let FoundEffect { space: Space::Tables, key, body: FoundBody::Value(body) } = effect else { return };
        let Some(head) = TableHead::decode(key).filter(|head| head.incarnation == CLOCK) else { return };
        if head.number >= self.number {
            (self.number, self.mark) = (head.number, ClockMark::decode(body));
        }
    }
}

/// What was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Durable tables.
    pub tables: usize,
    /// Their elements.
    pub elements: u64,
}

/// The clock of a log, which continues that of the lives before.
#[derive(Clone, Debug)]
pub struct LogClock {
    clock: LastingClock,
    /// The number of its last record.
    number: u64,
}

impl LogClock {
    /// The clock of a log that is not there yet.
    #[must_use]
    pub fn begin(reading: ClockReading) -> Self {
        Self { clock: LastingClock::resume(None, reading), number: 0 }
    }

    /// The clock of the log in this folder.
    ///
    /// # Errors
    /// Those of the log.
    pub fn find(folder: &EffectFolder, reading: ClockReading) -> Result<Self, Error> {
        let mut last = LastClock::default();
        folder.peek(&mut last)?;
        Ok(Self { clock: LastingClock::resume(last.mark, reading), number: last.number })
    }

    /// Its time at the reading, in milliseconds.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.clock.now()
    }
}

/// A log that is open, with what it holds in memory.
pub struct LoadedLog {
    /// The log.
    pub log: OpenLog,
    /// What was loaded.
    pub report: LoadReport,
    /// What the opening reports to the operator.
    pub notes: Vec<String>,
}

/// Opens the log, and loads its tables, before any of the tables' threads runs.
pub(in crate::tables) fn load(
    shared: &Arc<TablesShared>,
    expiry: &mut Expiry,
    folder: &EffectFolder,
    LogClock { clock, number }: LogClock,
    readers: usize,
    progress: LoadProgress,
) -> Result<LoadedLog, Error> {
    let clock_start = shared.epochs.clock_start();
    let opening = Arc::new(Opening::new(shared, progress));
    let store = folder.open(Arc::clone(&opening) as Arc<dyn EffectOwner>, readers)?;
    let marks = *store.marks();
    let [version, incarnation, synced_clock] =
        [VERSION_MARK, INCARNATION_MARK, CLOCK_MARK].map(|mark| marks.get(mark).copied().unwrap_or(0));
    if version > 0 {
        shared.catalog.floor.raise(version + VERSIONS_LOST);
    }
    shared.catalog.skip_generations(incarnation);
    shared.epochs.resume(number.max(opening.highest_number()), version, incarnation);
    let report = enter_tables(shared, &opening);
    arm(shared, &opening, expiry, synced_clock.saturating_sub(clock_start));
    let notes = store.notes().to_vec();
    Ok(LoadedLog { log: OpenLog { log: Box::new(store), clock }, report, notes })
}

/// Begins a log in a folder that has none.
pub(in crate::tables) fn begin(
    shared: &Arc<TablesShared>,
    folder: &EffectFolder,
    LogClock { clock, .. }: LogClock,
    reading: ClockReading,
) -> Result<OpenLog, Error> {
    // Each batch has a record of the clock.
    if LogClock::find(folder, reading)?.number > 0 {
        return Err(Error::CameLater(folder.path().to_owned()));
    }
    let nothing = Arc::new(Opening::new(shared, Box::new(|_, _| {})));
    let store = folder.open(nothing as Arc<dyn EffectOwner>, 1)?;
    Ok(OpenLog { log: Box::new(store), clock })
}

/// Enters the tables that have a name. Of several lives of a name the newest one has it.
fn enter_tables(shared: &Arc<TablesShared>, opening: &Opening) -> LoadReport {
    let mut named = BTreeMap::new();
    for (incarnation, FoundTable { number, state }) in opening.take_found() {
        if let Some((durability, name)) = state {
            named.insert(Box::<[u8]>::from(canonical(&name)), (incarnation, number, durability, name));
        }
    }
    let (guard, mut report) = (epoch::pin(), LoadReport::default());
    for (name, (incarnation, number, durability, announced)) in named {
        let Some(loaded) = opening.take_loaded(incarnation) else { continue };
        let index = loaded.index.take_growth();
        let table = shared.catalog.load(&name, &announced, incarnation, loaded, durability, &guard);
        table.set_record_number(number);
        table.count_bytes(index);
        shared.memory_budget.add(table.bytes() + table_bytes(&announced));
        report.tables += 1;
        report.elements += table.summary().elements;
        shared.epochs.change_tables(|tables| drop(tables.insert(incarnation, table)));
    }
    report
}

/// Files the elements that have a deadline. Those whose deadline is known on disk as passed have expired before.
fn arm(shared: &TablesShared, opening: &Opening, expiry: &mut Expiry, passed: u64) {
    let guard = epoch::pin();
    for handle in std::mem::take(&mut *opening.armed.lock()) {
        let slot = handle.slot();
        let table = shared.catalog.registry().get(slot.table(), &guard);
        // A life without a name goes with its elements.
        let Some(table) = table.filter(|table| table.is_durable()) else { continue };
        if !table.forget_expired(slot, passed, &guard) {
            expiry.file(handle);
        }
    }
}
