//! The start of durable tables: the log is opened, and what it holds becomes tables.
//!
//! This file reads no file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam::epoch::{self, Guard};

use super::TablesShared;
use super::catalog::{self, table_bytes};
use super::durable::judge::CLOCK;
use super::durable::loaded::LoadedTotals;
use super::durable::log::{CLOCK_MARK, EpochLog, INCARNATION_MARK, OpenLog, VERSION_MARK};
use super::durable::opening::{FoundTable, LoadProgress, LoadedTable, Opening};
use super::durable::records::{EndedLife, TableHead, decode_end, logged_bytes};
use super::durable::writer::EffectWriter;
use super::memory_budget::{entry_cost, settle};
use super::slot::{SlotHandle, SlotRef, SlotState};
use super::table::{ElementTotals, Table, canonical};
use crate::clock::ClockReading;
use crate::clock::lasting::{ClockMark, LastingClock};
use crate::feed::Digest;
use crate::store::{EffectFolder, EffectOwner, EffectReader, Error, FoundBody, FoundEffect, Space};

/// How far versions jump beyond the highest that is on disk, unless the log was ended in order: more were perhaps given
/// out. They take five hours as ticks of the clock.
const VERSIONS_LOST: u64 = 1 << 40;

/// How far the time of an element and that of the log may differ, in milliseconds: both are rounded.
const CLOCK_ERROR: u64 = 1;

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
    /// Whether the tables were ended in order, and the feed continues.
    pub continues: bool,
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

/// How a log is loaded.
pub struct LoadSettings {
    /// The threads that read it.
    pub readers: usize,
    /// A reading of the clocks.
    pub reading: ClockReading,
    /// Called with the segments that are read, and with all.
    pub progress: LoadProgress,
}

/// A loaded life of a table.
struct LoadedLife {
    name: Box<[u8]>,
    /// Its incarnation in the feed.
    generation: u64,
    digest: Digest,
}

/// A log that is open, with what it holds in memory.
pub struct LoadedLog {
    /// The log.
    pub log: EpochLog,
    /// What was loaded.
    pub report: LoadReport,
    /// What the opening reports to the operator.
    pub notes: Vec<String>,
}

/// Opens the log, and loads its tables, before any of the tables' threads runs. `file` takes the elements that have a
/// deadline.
pub(super) fn load(
    shared: &Arc<TablesShared>,
    file: &mut dyn FnMut(SlotHandle),
    folder: &EffectFolder,
    LogClock { clock, number }: LogClock,
    LoadSettings { readers, reading, progress }: LoadSettings,
) -> Result<LoadedLog, Error> {
    let clock_start = shared.epochs.clock_start();
    let opening = Arc::new(Opening::new(shared, progress));
    let store = folder.open(Arc::clone(&opening) as Arc<dyn EffectOwner>, readers)?;
    let marks = *store.marks();
    let [version, incarnation, synced_clock] =
        [VERSION_MARK, INCARNATION_MARK, CLOCK_MARK].map(|mark| marks.get(mark).copied().unwrap_or(0));
    let end = opening.take_end();
    let last = number.max(opening.highest_number()).max(end.as_ref().map_or(0, |(number, _)| *number));
    // Each batch has a record of the clock, so no batch is behind an end with a higher number.
    let end = end.filter(|(end, _)| *end > number && store.is_continued()).and_then(|(_, body)| decode_end(&body));
    if version > 0 {
        shared.catalog.floor.raise(version + if end.is_some() { 0 } else { VERSIONS_LOST });
    }
    shared.catalog.skip_generations(incarnation);
    // The first batch has the raised floor: the versions of this life may be lost too.
    shared.epochs.marks.resume(last, shared.catalog.floor.get(), incarnation);
    let mut lives = BTreeMap::new();
    let ended = end.iter().flat_map(|(_, ended)| ended).map(|life| (life.incarnation, life.of_feed)).collect();
    let elements = enter_tables(shared, &opening, &ended, &mut lives)
        .ok_or_else(|| Error::TooManyTables(folder.path().to_owned()))?;
    // A repair and a backup have marks that jump, but time does not. Elements that have expired by now were alive at a clean
    // end.
    let passed = if end.is_some() {
        None
    } else {
        Some((synced_clock.min(clock.now()) + CLOCK_ERROR).saturating_sub(clock_start))
    };
    arm(shared, &opening, file, passed, &mut lives);
    // What has expired before counts no more.
    let bytes = |table: &Arc<Table>| table.bytes() + table_bytes(table.announced_name());
    shared.memory_budget.add(shared.epochs.tables().values().map(bytes).sum());
    let report = LoadReport { tables: lives.len(), elements, continues: resume_feed(shared, lives, end) };
    let mut notes = store.notes().to_vec();
    notes.extend(opening.lost_elements(&shared.epochs.tables()));
    let mut log = EpochLog::new(shared, OpenLog { log: Box::new(store), clock });
    // A crash from here on is none behind a clean end.
    log.stamp(reading)?;
    Ok(LoadedLog { log, report, notes })
}

/// Has the feed continue where a clean end left it, or begin with the elements that are there. Returns whether it continues.
fn resume_feed(shared: &TablesShared, lives: BTreeMap<u64, LoadedLife>, end: Option<(u64, Vec<EndedLife>)>) -> bool {
    let Some(feed) = &shared.feed else { return end.is_some() };
    let mut log = feed.log();
    let (epoch, ended) = end.unwrap_or_default();
    let ended: BTreeMap<_, _> = ended.into_iter().map(|life| (life.incarnation, life)).collect();
    let is_same = |(incarnation, life): (&u64, &LoadedLife)| {
        ended.get(incarnation).is_some_and(|ended| ended.digest == life.digest)
    };
    let continues = epoch > 0 && ended.len() == lives.len() && lives.iter().all(is_same);
    if continues {
        log.resume(epoch);
    }
    for (incarnation, LoadedLife { name, generation, digest }) in lives {
        let next = ended.get(&incarnation).filter(|_| continues).map_or(1, |ended| ended.next);
        log.resume_life(generation, &name, next, digest);
    }
    continues
}

/// Begins a log in a folder that has none.
pub(super) fn begin(
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

/// Enters the tables that have a name. Of several lives of a name the newest one has it. `ended` has the incarnations in the
/// feed of lives that ended in order. Returns the number of their elements. `None`: they are more than there are numbers.
fn enter_tables(
    shared: &Arc<TablesShared>,
    opening: &Opening,
    ended: &BTreeMap<u64, u64>,
    lives: &mut BTreeMap<u64, LoadedLife>,
) -> Option<u64> {
    let mut named = BTreeMap::new();
    for (incarnation, FoundTable { number, state }) in opening.take_found() {
        if let Some((durability, name)) = state {
            named.insert(Box::<[u8]>::from(canonical(&name)), (incarnation, number, durability, name));
        }
    }
    let (guard, mut elements) = (epoch::pin(), 0);
    for (name, (incarnation, number, durability, announced)) in named {
        let LoadedTable { number: of_registry, index, totals } = opening.take_loaded(incarnation)?;
        let generation = ended.get(&incarnation).copied().unwrap_or(incarnation);
        let (growth, LoadedTotals { sums, digest }) = (index.take_growth(), totals.into_inner());
        let loaded = catalog::LoadedLife { generation, number: of_registry?, index, totals: sums };
        let table = shared.catalog.load(&name, &announced, loaded, durability, &guard);
        table.durability.load(durability, incarnation, number);
        table.count_bytes(growth);
        elements += table.summary().elements;
        shared.epochs.enter_table(&table);
        lives.insert(incarnation, LoadedLife { name: announced, generation, digest });
    }
    opening.drop_nameless(&guard);
    Some(elements)
}

/// Has the elements filed that have a deadline. Those whose deadline is known on disk as `passed` have expired before.
fn arm(
    shared: &TablesShared,
    opening: &Opening,
    file: &mut dyn FnMut(SlotHandle),
    passed: Option<u64>,
    lives: &mut BTreeMap<u64, LoadedLife>,
) {
    let (guard, mut writer) = (epoch::pin(), EffectWriter::new(&shared.epochs));
    for handle in std::mem::take(&mut *opening.armed.lock()) {
        let slot = handle.slot();
        let table = shared.catalog.registry().get(slot.table(), &guard);
        // A life without a name goes with its elements.
        let Some(table) = table.filter(|table| table.is_durable()) else { continue };
        let is_touched = Table::is_touched(slot, &guard);
        match passed.and_then(|passed| forget_expired(table, slot, passed, &guard)) {
            None => file(handle),
            Some(version) => {
                if is_touched {
                    writer.record_expiry(table, slot.key(), version);
                }
                let life = lives.get_mut(&table.durability.incarnation());
                life.into_iter().for_each(|life| life.digest.remove(slot.key(), version));
            }
        }
    }
}

/// Takes an element out whose deadline is not behind `passed`. Returns its version if it did.
fn forget_expired(table: &Table, slot: SlotRef<'_>, passed: u64, guard: &Guard) -> Option<u64> {
    let seen = slot.load(guard);
    let (SlotState::Live(entry) | SlotState::Expired(entry)) = seen.state() else { return None };
    if entry.deadline() > passed || !slot.kill(seen, entry.version() + 1, guard) {
        return None;
    }
    let mut totals = ElementTotals::default();
    totals.bytes = -entry_cost(entry) - settle(slot);
    totals.count(Some(entry.deadline()), None);
    totals.logged = -logged_bytes(slot.key(), entry);
    table.add(&totals);
    table.leave(slot, guard);
    Some(entry.version())
}
