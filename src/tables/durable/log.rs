//! The thread of the tables' log: it closes epochs, and writes each as one batch.
//!
//! ```text
//! somebody waits for the open epoch, or the interval is over ─► close ─► batch ─► sync ─► those who wait are woken
//! ```
//! A batch has a record of the log's clock. Its head has the time of that clock, the highest version and the highest
//! incarnation.
//!
//! This file judges no record, see `judge.rs`.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::company::Company;
use super::judge::{CLOCK, LogJudge, RescuePlace};
use super::limits::ENDED_LIVES_MAX;
use super::records::{EndedLife, TableHead, put_clock, put_end};
use super::state::{Epochs, LogStage};
use super::writer::EffectWriter;
use crate::clock::ClockReading;
use crate::clock::lasting::LastingClock;
use crate::feed::LifeState;
use crate::store::{AddsRefused, EffectJudge, EffectStore, EncodedRecords, Error, LogMetrics, StoreBackup, TIME_MARK};
use crate::tables::TablesShared;

/// The mark in each head that is above all versions.
pub(in crate::tables) const VERSION_MARK: usize = 0;
/// That of the incarnations.
pub(in crate::tables) const INCARNATION_MARK: usize = 1;
/// The time of the log's clock, in milliseconds.
pub(in crate::tables) const CLOCK_MARK: usize = TIME_MARK;

/// How often the log looks for company at most: the clock may stand still.
const LOOKS_MAX: u32 = 1_000;
/// How often a thread without a log looks whether one is wanted. Sessions wake it.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of a buffer that are kept for a later epoch.
const SPARE_BYTES: usize = 1 << 20;
/// Buffers that are kept.
const SPARES_MAX: usize = 64;
/// With more tables than that the live bytes are summed for each so many batches.
const SUMMED_TABLES: usize = 256;
const SUMMED_BATCHES: u64 = 64;

/// Where the records of epochs go.
pub trait EffectLog: Send {
    /// Writes the records of an epoch, as [`EffectStore::append`].
    ///
    /// # Errors
    /// As there.
    fn append(&mut self, epoch: &mut Vec<EncodedRecords>, live: u64, judge: &mut dyn EffectJudge) -> Result<(), Error>;

    /// Has all of them on disk.
    ///
    /// # Errors
    /// As [`EffectStore::append`].
    fn sync(&mut self) -> Result<(), Error>;

    /// Has a later opening know that all of them are on disk.
    ///
    /// # Errors
    /// As [`EffectStore::append`].
    fn rest(&mut self) -> Result<(), Error>;

    /// Raises a high-water mark.
    fn raise(&mut self, mark: usize, value: u64);

    /// The bytes that the next epoch may store.
    ///
    /// # Errors
    /// Why it may store nothing.
    fn adds_room(&self) -> Result<u64, AddsRefused>;

    /// Has all of them on disk, and returns a backup of them.
    ///
    /// # Errors
    /// As [`EffectStore::append`].
    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error>;

    /// Whether an epoch without records is worth its batch, for the space that it gives back.
    fn may_shrink(&self) -> bool;

    /// Whether it has to rest once more, for files that it waits for.
    fn waits_for_files(&self) -> bool;

    /// The metrics of the log.
    fn metrics(&self) -> LogMetrics;
}

impl EffectLog for EffectStore {
    fn append(&mut self, epoch: &mut Vec<EncodedRecords>, live: u64, judge: &mut dyn EffectJudge) -> Result<(), Error> {
        Self::append(self, epoch, live, judge)
    }

    fn sync(&mut self) -> Result<(), Error> {
        Self::sync(self)
    }

    fn rest(&mut self) -> Result<(), Error> {
        Self::rest(self)
    }

    fn raise(&mut self, mark: usize, value: u64) {
        Self::raise(self, mark, value);
    }

    fn adds_room(&self) -> Result<u64, AddsRefused> {
        Self::adds_room(self)
    }

    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error> {
        Ok(Box::new(Self::backup(self)?))
    }

    fn may_shrink(&self) -> bool {
        Self::may_shrink(self)
    }

    fn waits_for_files(&self) -> bool {
        Self::waits_for_files(self)
    }

    fn metrics(&self) -> LogMetrics {
        Self::metrics(self)
    }
}

/// A log that is open, and its clock.
pub struct OpenLog {
    /// Where the records go.
    pub log: Box<dyn EffectLog>,
    /// The clock of their deadlines.
    pub clock: LastingClock,
}

/// Opens the log of a server that has none. It reports a failure by itself, and may be called again.
pub type OpenLater = Box<dyn FnMut() -> Result<OpenLog, Error> + Send>;

/// The thread of the log.
pub struct LogThread {
    shared: Arc<TablesShared>,
    source: LogSource,
    interval: Duration,
}

/// The log that the thread writes.
pub enum LogSource {
    /// It is open.
    Open(Box<EpochLog>),
    /// It is opened for the first durable table.
    Later(OpenLater),
}

impl LogThread {
    pub(in crate::tables) fn new(shared: &Arc<TablesShared>, source: LogSource, interval: Duration) -> Self {
        if matches!(source, LogSource::Open(_)) {
            shared.epochs.set_stage(LogStage::On);
        }
        Self { shared: Arc::clone(shared), source, interval }
    }

    /// The loop of the thread. Returns when the tables are closed and all is on disk, or when the log has failed. `now` reads
    /// the clocks.
    ///
    /// # Errors
    /// Those of the log, which takes nothing more.
    pub fn run(self, now: impl FnMut() -> ClockReading) -> Result<(), Error> {
        let Self { shared, source, interval } = self;
        let epochs = &shared.epochs;
        let log = match source {
            LogSource::Open(log) => Some(*log),
            LogSource::Later(open) => open_when_wanted(epochs, open).map(|open| EpochLog::new(&shared, open)),
        };
        let Some(log) = log else { return Ok(()) };
        epochs.set_stage(LogStage::On);
        let ended = log.run(interval, now);
        drop(epochs.reports.take_backup_orders(u64::MAX));
        ended
    }
}

/// Opens the log for the first durable table. `None`: the tables are closed, and there was none. Whoever waits for a log
/// that cannot be opened is refused, and the next one has it tried again.
fn open_when_wanted(epochs: &Epochs, mut open: OpenLater) -> Option<OpenLog> {
    loop {
        epochs.log.park(LOOK, || epochs.stage() == LogStage::Wanted || epochs.is_closed());
        if epochs.stage() != LogStage::Wanted {
            return None;
        }
        match open() {
            Ok(open) => return Some(open),
            Err(_) => epochs.set_stage(LogStage::Unopened),
        }
    }
}

/// The work of the thread on a log that is open.
pub struct EpochLog {
    shared: Arc<TablesShared>,
    epochs: Arc<Epochs>,
    writer: EffectWriter,
    log: Box<dyn EffectLog>,
    clock: LastingClock,
    spares: Vec<EncodedRecords>,
    live: LiveBytes,
    /// The number of the last record of the clock.
    clock_number: u64,
    /// The time of the clock in the last head on disk.
    synced_clock: u64,
    /// Whether records were written since the log last rested.
    is_stirred: bool,
    /// `None`: no list of keys is lost.
    rescue: Option<RescuePlace>,
    company: Company,
}

/// The bytes of all records that count.
#[derive(Default)]
struct LiveBytes {
    /// The last sum.
    sum: u64,
    /// Batches that were written.
    batches: u64,
}

impl EpochLog {
    pub(in crate::tables) fn new(shared: &Arc<TablesShared>, open: OpenLog) -> Self {
        let epochs = &shared.epochs;
        let OpenLog { log, clock } = open;
        epochs.report(0, log.adds_room().unwrap_or(0), log.metrics());
        Self {
            shared: Arc::clone(shared),
            epochs: Arc::clone(epochs),
            writer: EffectWriter::new(epochs),
            log,
            clock,
            spares: Vec::new(),
            live: LiveBytes::default(),
            clock_number: 0,
            synced_clock: 0,
            is_stirred: false,
            rescue: None,
            company: Company::default(),
        }
    }

    /// The loop. A record waits for its batch for `interval` at most, if nobody waits for it.
    fn run(mut self, interval: Duration, mut now: impl FnMut() -> ClockReading) -> Result<(), Error> {
        self.epochs.log.enlist();
        loop {
            // Read before the epoch is closed: what is recorded until then is written.
            let (is_closed, begin) = (self.epochs.is_closed(), now());
            self.write_with(&mut now)?;
            if is_closed {
                return self.end(now()).inspect_err(|_| self.epochs.set_stage(LogStage::Failed));
            }
            // A record of the first moment waits for the close, and for a batch like this one.
            let written = between(begin, now());
            self.wait(interval.saturating_sub(2 * written).max(interval / 4), &mut now);
        }
    }

    /// Waits until somebody waits for the open epoch, or the interval is over. Where company is expected, the log looks for it
    /// without sleeping: a wake-up would take as long.
    fn wait(&self, interval: Duration, now: &mut dyn FnMut() -> ClockReading) {
        let (epochs, company, begin, mut is_over) = (&self.epochs, &self.company, now(), false);
        let is_due = || (company.is_complete(epochs.disk.asked()) && epochs.is_due()) || epochs.is_closed();
        for _ in 0..LOOKS_MAX {
            if !company.has_patience(between(begin, now())) || is_due() {
                break;
            }
            thread::yield_now();
        }
        epochs.log.park(interval, || std::mem::replace(&mut is_over, true) || epochs.is_due() || epochs.is_closed());
    }

    /// Its records go where `with` has them go.
    #[cfg(test)]
    pub(in crate::tables) fn interposed(self, with: impl FnOnce(Box<dyn EffectLog>) -> Box<dyn EffectLog>) -> Self {
        Self { log: with(self.log), ..self }
    }

    /// Has a batch with the clock on disk.
    ///
    /// # Errors
    /// Those of the log, which takes nothing more.
    pub(in crate::tables) fn stamp(&mut self, now: ClockReading) -> Result<(), Error> {
        self.append(&mut Vec::new(), now)
    }

    /// Ends the log. If all that was committed is announced, its last record says so.
    fn end(&mut self, now: ClockReading) -> Result<(), Error> {
        if self.epochs.is_closed_in_order() {
            let mut end = EncodedRecords::default();
            self.epochs.marks.note_incarnation(self.shared.catalog.generation());
            let (epoch, lives) = self.ended_lives();
            if lives.len() <= ENDED_LIVES_MAX {
                // Above the number of the clock's record in this batch.
                put_end(&mut end, self.epochs.marks.next_number() + 2, epoch, &lives);
                self.append(&mut vec![end], now)?;
            }
        }
        self.log.rest()
    }

    /// The epoch of the feed, and what it has published of each durable table.
    fn ended_lives(&self) -> (u64, Vec<EndedLife>) {
        let Some(feed) = &self.shared.feed else { return (0, Vec::new()) };
        let (log, tables) = (feed.log(), self.epochs.tables());
        // An opening knows no table that is coming.
        let lives = tables.iter().filter(|(_, table)| !table.durability.is_coming()).map(|(incarnation, table)| {
            let of_feed = table.generation();
            let LifeState { next, digest, .. } = log.state(of_feed);
            EndedLife { incarnation, of_feed, next: next.sequence, digest }
        });
        (log.state(0).next.epoch, lives.collect())
    }

    /// Closes the open epoch, and has it on disk.
    ///
    /// # Errors
    /// Those of the log, which takes nothing more.
    pub fn write(&mut self, now: ClockReading) -> Result<(), Error> {
        self.write_with(&mut || now)
    }

    fn write_with(&mut self, now: &mut dyn FnMut() -> ClockReading) -> Result<(), Error> {
        let mut taken = Vec::new();
        self.write_epoch(&mut taken, now).inspect_err(|_| self.epochs.fail(&taken))?;
        taken.truncate(SPARES_MAX - self.spares.len().min(SPARES_MAX));
        for mut spare in taken {
            spare.clear(SPARE_BYTES);
            self.spares.push(spare);
        }
        Ok(())
    }

    /// Closes the open epoch, takes its records, and has them on disk.
    fn write_epoch(
        &mut self,
        taken: &mut Vec<EncodedRecords>,
        now: &mut dyn FnMut() -> ClockReading,
    ) -> Result<(), Error> {
        let is_due = self.epochs.is_due();
        // Before the close: all that is committed by then is in this epoch or on disk.
        let moment = now().wall;
        let epoch = self.epochs.take(taken, || self.spares.pop().unwrap_or_default());
        let (closed, begin) = (self.epochs.disk.asked(), now());
        if !taken.is_empty() || is_due || self.log.may_shrink() {
            // Behind the close: who waits for the epoch has seen an earlier time.
            self.append(taken, now())?;
        } else if self.is_stirred {
            self.log.rest()?;
            self.is_stirred = self.log.waits_for_files();
        } else if self.epochs.room.is_full() {
            // Looks whether there is room again.
            self.log.sync()?;
        }
        for order in self.epochs.reports.take_backup_orders(epoch) {
            // A client that is gone needs none.
            let _gone = order.send(self.log.backup()?);
        }
        self.epochs.report(epoch, self.log.adds_room().unwrap_or(0), self.log.metrics());
        self.epochs.reports.note_moment(moment);
        self.epochs.disk.note_synced(epoch);
        self.company.note_synced(closed, self.epochs.disk.asked(), between(begin, now()));
        Ok(())
    }

    fn append(&mut self, taken: &mut Vec<EncodedRecords>, now: ClockReading) -> Result<(), Error> {
        let clock = self.clock.advance(now);
        self.clock_number = self.epochs.marks.next_number();
        let mut records = self.spares.pop().unwrap_or_default();
        let head = TableHead { incarnation: CLOCK, number: self.clock_number };
        put_clock(&mut records, head, &self.clock.take_mark());
        taken.push(records);
        self.log.raise(CLOCK_MARK, clock);
        self.log.raise(VERSION_MARK, self.epochs.marks.version());
        self.log.raise(INCARNATION_MARK, self.epochs.marks.incarnation());
        let live = self.live_bytes();
        {
            // Not during the sync: the judge keeps memory from being freed.
            let Self { epochs, writer, rescue, clock_number, synced_clock, company, .. } = self;
            let mut judge = LogJudge::new(epochs, writer, rescue, *clock_number, *synced_clock, company.answered());
            self.log.append(taken, live, &mut judge)?;
        }
        self.log.sync()?;
        self.synced_clock = clock;
        self.is_stirred = true;
        Ok(())
    }

    /// Bytes of all records that count, a while ago if there are many tables.
    fn live_bytes(&mut self) -> u64 {
        let tables = self.epochs.tables();
        if tables.len() <= SUMMED_TABLES || self.live.batches.is_multiple_of(SUMMED_BATCHES) {
            let sum = tables.values().map(|table| table.logged().max(0)).sum::<i64>();
            self.live.sum = u64::try_from(sum).unwrap_or(0);
        }
        self.live.batches += 1;
        self.live.sum
    }
}

/// The time between two readings of the clock.
fn between(begin: ClockReading, end: ClockReading) -> Duration {
    Duration::from_nanos(end.up.saturating_sub(begin.up))
}
