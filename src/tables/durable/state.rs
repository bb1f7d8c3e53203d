//! The state that the writers of durable tables and their log share.
//!
//! This file records nothing: the writers do (`writer.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use super::disk::DiskEpochs;
use super::epochs::OpenEpoch;
use super::lost::LostRecords;
use super::marks::EffectMarks;
use super::reports::LogReports;
use super::room::DiskRoom;
use super::tables::DurableTables;
use super::writer_records::WriterRecords;
use crate::feed::DiskMoment;
use crate::lock::Mutex;
use crate::store::{EncodedRecords, LogMetrics, StoreBackup};
use crate::tables::sleeper::Sleeper;
use crate::tables::slot::NEVER;
use crate::tables::table::Table;

/// The stages of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogStage {
    /// It is not open. There is no durable table.
    Off = 0,
    /// It is to be opened for the first durable table.
    Wanted = 1,
    /// It is open.
    On = 2,
    /// A write or a sync has failed: it takes nothing more.
    Failed = 3,
    /// The same, and what is lost is being found: no writer enters.
    Failing = 6,
    /// It could not be opened. The next durable table has that tried again.
    Unopened = 4,
    /// What it holds is being loaded.
    Loading = 5,
}

const STAGES: [LogStage; 7] = [
    LogStage::Off,
    LogStage::Wanted,
    LogStage::On,
    LogStage::Failed,
    LogStage::Unopened,
    LogStage::Loading,
    LogStage::Failing,
];

/// In `end`: sessions may come.
const RUNNING: u8 = 0;
/// All sessions are gone, and the log ends.
const ENDS: u8 = 1;
/// And all that they have committed is announced.
const ENDS_IN_ORDER: u8 = 2;

/// The writers.
#[derive(Default)]
pub(super) struct Writers {
    all: Mutex<Vec<Arc<WriterRecords>>>,
    /// Sessions with writes that wait for room. The log wakes them when it has taken the records.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
}

impl Writers {
    /// A session comes.
    pub(super) fn enter(&self, records: &Arc<WriterRecords>) {
        self.all.lock().push(Arc::clone(records));
    }
}

/// The durable tables that have a name.
#[derive(Default)]
struct NamedTables {
    /// By their incarnations. Changed under the catalog's lock.
    all: Mutex<Arc<DurableTables>>,
    /// Whether one of them has begun to come. Set by sessions, and taken by the reaper.
    has_coming: AtomicBool,
}

/// The epochs that are closed before the interval is over. Raised by the writers.
#[derive(Default)]
struct DueEpochs {
    /// The highest one that somebody waits for.
    wanted: CachePadded<AtomicU64>,
    /// The highest one that has many bytes.
    heavy: CachePadded<AtomicU64>,
}

/// The state that the writers and the log share.
pub(in crate::tables) struct Epochs {
    /// A [`LogStage`]. Written by the log, and by sessions that want it.
    stage: AtomicU8,
    /// [`RUNNING`] until the tables are closed.
    end: AtomicU8,
    pub(super) open: OpenEpoch,
    /// What is on disk, and who waits for it.
    pub(super) disk: DiskEpochs,
    due: DueEpochs,
    tables: NamedTables,
    pub(in crate::tables) marks: EffectMarks,
    /// The time of the log's clock at the start of this server, in milliseconds.
    clock_start: u64,
    pub(super) writers: Writers,
    /// Wakes the log.
    pub(super) log: Sleeper,
    pub(super) room: DiskRoom,
    pub(super) reports: LogReports,
}

impl Epochs {
    /// No epoch was written. The log's clock has the time `clock_start` at the start of this server.
    pub(in crate::tables) fn new(clock_start: u64) -> Arc<Self> {
        let epoch = 0;
        Arc::new(Self {
            stage: AtomicU8::new(LogStage::Off as u8),
            end: AtomicU8::new(RUNNING),
            open: OpenEpoch::behind(epoch),
            disk: DiskEpochs::new(epoch),
            due: DueEpochs::default(),
            tables: NamedTables::default(),
            marks: EffectMarks::default(),
            clock_start,
            writers: Writers::default(),
            log: Sleeper::default(),
            room: DiskRoom::default(),
            reports: LogReports::default(),
        })
    }

    /// The stage of the log.
    pub(in crate::tables) fn stage(&self) -> LogStage {
        // Acquire: pairs with the Release in `set_stage`.
        let stage = self.stage.load(Ordering::Acquire);
        STAGES.into_iter().find(|known| *known as u8 == stage).unwrap_or(LogStage::Failed)
    }

    /// The number of the open epoch.
    #[cfg(test)]
    pub(in crate::tables) fn open_epoch(&self) -> u64 {
        self.open.number()
    }

    /// Log: it has come to this stage.
    pub(in crate::tables) fn set_stage(&self, stage: LogStage) {
        // Release: pairs with the Acquire in `stage`.
        self.disk.change(|| self.stage.store(stage as u8, Ordering::Release));
        self.wake_all();
    }

    /// Has the log opened for the first durable table.
    pub(in crate::tables) fn want_log(&self) {
        for unopened in [LogStage::Off, LogStage::Unopened] {
            let (seen, wanted) = (unopened as u8, LogStage::Wanted as u8);
            // Relaxed: the stage carries nothing else.
            if self.stage.compare_exchange(seen, wanted, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.log.wake();
            }
        }
    }

    /// Log: it has failed with these records of the last epoch. Those of the open epoch are lost too.
    pub(super) fn fail(&self, taken: &[EncodedRecords]) {
        // Release: as in `set_stage`. Nobody is woken, since nothing is decided before the next stage.
        self.stage.store(LogStage::Failing as u8, Ordering::Release);
        let mut open = Vec::new();
        self.take(&mut open, EncodedRecords::default);
        let mut lost = LostRecords::default();
        taken.iter().chain(&open).for_each(|records| lost.add(records));
        self.disk.note_lost(lost);
        // Behind the lost records: who finds that the log has failed finds them too.
        self.set_stage(LogStage::Failed);
    }

    /// What was not on disk when the log failed. `None`: it has not failed.
    pub(in crate::tables) fn lost(&self) -> Option<&LostRecords> {
        self.disk.lost()
    }

    /// Wakes the sessions that wait for the log.
    fn wake_all(&self) {
        let woken = std::mem::take(&mut *self.writers.sleepers.lock());
        woken.iter().for_each(|sleeper| sleeper.wake());
    }

    /// The time of the log's clock at the start of this server, in milliseconds.
    pub(in crate::tables) fn clock_start(&self) -> u64 {
        self.clock_start
    }

    /// A deadline of an entry as records have it.
    pub(in crate::tables) fn deadline_of_log(&self, deadline: u64) -> u64 {
        if deadline == NEVER { 0 } else { deadline + self.clock_start }
    }

    /// Somebody waits until this epoch is on disk.
    pub(in crate::tables) fn want(&self, epoch: u64) {
        self.raise(&self.due.wanted, epoch);
    }

    /// Writer: the log closes this epoch as soon as it can. Nobody waits for that.
    pub(super) fn note_heavy(&self, epoch: u64) {
        self.raise(&self.due.heavy, epoch);
    }

    /// Raises the number of an epoch that the log is to close.
    fn raise(&self, number: &AtomicU64, epoch: u64) {
        // Relaxed, both: the wake-up comes behind, and the log looks again when it is awake. A higher number of another
        // writer has woken it.
        if number.load(Ordering::Relaxed) < epoch && number.fetch_max(epoch, Ordering::Relaxed) < epoch {
            self.log.wake();
        }
    }

    /// Log: whether the open epoch is to be closed before the interval is over.
    pub(super) fn is_due(&self) -> bool {
        // Relaxed: see `raise`.
        let DueEpochs { wanted, heavy } = &self.due;
        wanted.load(Ordering::Relaxed).max(heavy.load(Ordering::Relaxed)) >= self.open.number()
    }

    /// Log: whether somebody waits for its present batch, or for the open epoch. `answered`: the answers that had begun to
    /// wait, ever, when the last epoch on disk was closed.
    pub(super) fn is_awaited(&self, answered: u64) -> bool {
        // Relaxed: see `raise`.
        let is_wanted = self.due.wanted.load(Ordering::Relaxed) >= self.open.number();
        is_wanted || self.disk.asked() != answered || self.is_closed() || self.disk.has_sleepers()
    }

    /// The durable tables that have a name.
    pub(in crate::tables) fn tables(&self) -> Arc<DurableTables> {
        Arc::clone(&self.tables.all.lock())
    }

    /// Changes the durable tables that have a name. Called under the catalog's lock.
    fn change_tables(&self, change: impl FnOnce(&mut DurableTables)) {
        change(Arc::make_mut(&mut *self.tables.all.lock()));
    }

    /// The records of this table count. Called under the catalog's lock.
    pub(in crate::tables) fn enter_table(&self, table: &Arc<Table>) {
        self.marks.note_incarnation(table.durability.incarnation());
        self.change_tables(|tables| tables.insert(table));
    }

    /// The records of this table count no more. Called under the catalog's lock.
    pub(super) fn leave_table(&self, table: &Table) {
        self.change_tables(|tables| tables.remove(table.durability.incarnation()));
    }

    /// A table that is among them has begun to come.
    pub(super) fn note_coming(&self) {
        // Release: pairs with the Acquire in `take_coming`. The table is among them.
        self.tables.has_coming.store(true, Ordering::Release);
    }

    /// Reaper: whether a table has begun to come since the last call.
    pub(in crate::tables) fn take_coming(&self) -> bool {
        // Acquire: pairs with the Release in `note_coming`. Relaxed: most calls find nothing.
        let has_coming = &self.tables.has_coming;
        has_coming.load(Ordering::Relaxed) && has_coming.swap(false, Ordering::Acquire)
    }

    /// Log: whether all sessions are gone.
    pub(super) fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `close`.
        self.end.load(Ordering::Acquire) != RUNNING
    }

    /// Log, when it is closed: whether all that was committed is announced.
    pub(super) fn is_closed_in_order(&self) -> bool {
        // Relaxed: `is_closed` was read before.
        self.end.load(Ordering::Relaxed) == ENDS_IN_ORDER
    }

    /// All sessions are gone, and the log ends when all is on disk. `is_in_order`: all that was committed is announced.
    pub(in crate::tables) fn close(&self, is_in_order: bool) {
        // Release: pairs with the Acquire in `is_closed`.
        self.end.store(if is_in_order { ENDS_IN_ORDER } else { ENDS }, Ordering::Release);
        self.log.wake();
    }

    /// Whether there is room for the write that was refused last. If not, `sleeper` is woken when there may be.
    pub(in crate::tables) fn watch(&self, epoch: u64, sleeper: &Arc<Sleeper>) -> bool {
        let mut sleepers = self.writers.sleepers.lock();
        // Under the lock, which the log takes behind the close and behind each stage: it then finds this sleeper.
        let stage = self.stage();
        if matches!(stage, LogStage::Failed | LogStage::Unopened) || stage == LogStage::On && self.open.number() > epoch
        {
            return true;
        }
        self.reports.count_wait();
        if !sleepers.iter().any(|other| Arc::ptr_eq(other, sleeper)) {
            sleepers.push(Arc::clone(sleeper));
        }
        drop(sleepers);
        if stage == LogStage::On {
            self.want(epoch);
        }
        false
    }

    /// Log: closes the open epoch, waits until it is left, and takes its records in exchange for empty buffers. Returns its
    /// number.
    pub(super) fn take(&self, taken: &mut Vec<EncodedRecords>, mut spare: impl FnMut() -> EncodedRecords) -> u64 {
        let closed = self.open.close();
        // Behind the close: a session that is not in the list has not entered the closed epoch.
        let writers = self.writers.all.lock().clone();
        for writer in &writers {
            writer.await_leave(closed);
            let mut buffer = writer.buffer(closed);
            self.marks.note_version(writer.version());
            if !buffer.is_empty() {
                taken.push(std::mem::replace(&mut *buffer, spare()));
            }
        }
        drop(writers);
        self.open.note_left(closed);
        self.writers.all.lock().retain(|writer| Arc::strong_count(writer) > 1 || !writer.is_empty());
        self.wake_all();
        closed
    }

    /// Log: its metrics and its room behind this epoch.
    pub(super) fn report(&self, epoch: u64, room: u64, metrics: LogMetrics) {
        self.room.report(epoch, room);
        self.reports.set_log(metrics);
    }

    /// Waits for a backup of what is committed by now. `None`: there is no log, or it has failed.
    pub(in crate::tables) fn backup(&self) -> Option<Box<dyn StoreBackup>> {
        let epoch = self.open.number();
        let backup = self.reports.order_backup(epoch);
        if self.stage() != LogStage::On {
            drop(self.reports.take_backup_orders(u64::MAX));
        }
        self.want(epoch);
        backup.recv().ok()
    }

    /// Has all on disk that is committed by now. Nobody waits for it.
    pub(super) fn order_disk(&self) {
        let epoch = self.open.number();
        self.reports.note_ordered(epoch);
        self.want(epoch);
    }

    /// The open epoch, and the last one on disk.
    pub(in crate::tables) fn moment(&self) -> DiskMoment {
        DiskMoment { open: self.open.number(), synced: self.disk.synced() }
    }

    /// The metrics of the log.
    pub(in crate::tables) fn metrics(&self) -> EffectMetrics {
        EffectMetrics {
            stage: self.stage(),
            waits: self.reports.waits(),
            loaded_percent: self.reports.loaded_percent(),
            is_full: self.room.is_full(),
            epochs: self.disk.synced(),
            moment: self.reports.moment(),
            is_ordered: self.reports.ordered() > self.disk.synced(),
            log: self.reports.log(),
        }
    }
}

/// The metrics of the log of durable tables.
#[derive(Clone, Copy, Debug)]
pub struct EffectMetrics {
    /// The stage of the log.
    pub stage: LogStage,
    /// The share of the segments that is read, in percent, while they are loaded.
    pub loaded_percent: u64,
    /// Whether nothing may be added for want of room.
    pub is_full: bool,
    /// How often a write has waited for the log.
    pub waits: u64,
    /// Epochs that have ended, those without a record included.
    pub epochs: u64,
    /// The last moment that is on disk with all before it, in milliseconds since 1970. 0: there is none.
    pub moment: u64,
    /// Whether a client has ordered an epoch to be on disk that is not.
    pub is_ordered: bool,
    /// The files.
    pub log: LogMetrics,
}
