//! The start of durable tables: the log is opened, and what it holds becomes tables.
//!
//! This file reads no file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam::epoch;

use super::judge::CLOCK;
use super::log::{CLOCK_MARK, INCARNATION_MARK, VERSION_MARK};
use super::opening::{FoundTable, Opening};
use super::records::TableHead;
use crate::clock::lasting::{ClockMark, LastingClock};
use crate::clock::{ClockReading, Now};
use crate::store::{EffectFolder, EffectOwner, EffectReader, EffectStore, Error, FoundBody, FoundEffect, Space};
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

/// Readings of the clocks, of one moment.
#[derive(Clone, Copy, Debug)]
pub struct LoadTime {
    /// Of the clocks that run on when the process ends.
    pub reading: ClockReading,
    /// Of that of the elements.
    pub now: Now,
}

/// A log that is open, with what it holds in memory.
pub struct LoadedLog {
    /// The log.
    pub store: EffectStore,
    /// Its clock.
    pub clock: LastingClock,
    /// What was loaded.
    pub report: LoadReport,
}

/// Opens the log, and loads its tables, before any of the tables' threads runs.
pub(in crate::tables) fn load(
    shared: &Arc<TablesShared>,
    expiry: &mut Expiry,
    folder: &EffectFolder,
    readers: usize,
    LoadTime { reading, now }: LoadTime,
) -> Result<LoadedLog, Error> {
    let mut last = LastClock::default();
    folder.peek(&mut last)?;
    let clock = LastingClock::resume(last.mark, reading);
    let clock_start = clock.now().saturating_sub(now.millis());
    let opening = Arc::new(Opening::new(shared, clock_start));
    let store = folder.open(Arc::clone(&opening) as Arc<dyn EffectOwner>, readers)?;
    let marks = *store.marks();
    let [version, incarnation, synced_clock] =
        [VERSION_MARK, INCARNATION_MARK, CLOCK_MARK].map(|mark| marks.get(mark).copied().unwrap_or(0));
    if version > 0 {
        shared.catalog.floor.raise(version + VERSIONS_LOST);
    }
    shared.catalog.skip_generations(incarnation);
    shared.epochs.resume(last.number.max(opening.highest_number()), version, incarnation, clock_start);
    let report = enter_tables(shared, &opening);
    arm(shared, &opening, expiry, synced_clock.saturating_sub(clock_start));
    Ok(LoadedLog { store, clock, report })
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
