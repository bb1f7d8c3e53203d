//! What a session records, in a buffer for each of two epochs, until the log takes it.
//!
//! This file commits nothing: `ops` does, inside an epoch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Sender, bounded};
use crossbeam::utils::{Backoff, CachePadded};

use super::Durability;
use super::disk::DiskEpochs;
use super::epochs::{OpenEpoch, WriterPlace};
use super::limits::{EFFECTS_BYTES_LARGE, EFFECTS_BYTES_MAX, EPOCH_BYTES_MAX};
use super::records::{ElementHead, TableHead, put_table, remove, remove_table};
use crate::feed::Cause;
use crate::lock::{Mutex, MutexGuard};
use crate::store::{EncodedRecords, LogMetrics, StoreBackup};
use crate::tables::Refusal;
use crate::tables::sleeper::Sleeper;
use crate::tables::slot::NEVER;
use crate::tables::table::Table;

/// What a writer claims of the disk at once, in bytes: so claims are rare.
const CLAIM_BYTES: usize = 64 << 10;
/// How long the log sleeps between two looks whether a writer has left the epoch.
const LEAVE_CHECK: Duration = Duration::from_micros(50);

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
    /// It could not be opened. The next durable table has that tried again.
    Unopened = 4,
    /// What it holds is being loaded.
    Loading = 5,
}

const STAGES: [LogStage; 6] =
    [LogStage::Off, LogStage::Wanted, LogStage::On, LogStage::Failed, LogStage::Unopened, LogStage::Loading];

/// The bytes that the log has room for, beside what the writers have claimed in the two epochs that are not written.
struct DiskRoom {
    /// Written by the log behind each batch. 0: nothing may be added.
    room: AtomicU64,
    /// By the parity of the epoch. Raised by the writers inside the epoch, and cleared by the log behind its batch.
    claimed: [AtomicU64; 2],
}

impl DiskRoom {
    fn claimed(&self, epoch: u64) -> &AtomicU64 {
        let [even, odd] = &self.claimed;
        if epoch.is_multiple_of(2) { even } else { odd }
    }

    /// Claims bytes of this epoch, in which the caller is.
    fn claim(&self, epoch: u64, bytes: u64) -> Result<(), NotEntered> {
        // Relaxed, here and below: sums. A writer that reads an old room has claimed what the log then finds claimed.
        let room = self.room.load(Ordering::Relaxed);
        if bytes > room {
            return Err(NotEntered::NoRoom);
        }
        let of_epoch = self.claimed(epoch).fetch_add(bytes, Ordering::Relaxed) + bytes;
        let claimed: u64 = self.claimed.iter().map(|claimed| claimed.load(Ordering::Relaxed)).sum();
        if claimed > room || of_epoch > EPOCH_BYTES_MAX {
            self.claimed(epoch).fetch_sub(bytes, Ordering::Relaxed);
            return Err(NotEntered::Full);
        }
        Ok(())
    }

    /// Log: this epoch is written, and behind it there is room for so many bytes.
    fn report(&self, epoch: u64, room: u64) {
        self.room.store(room, Ordering::Relaxed);
        self.claimed(epoch).store(0, Ordering::Relaxed);
    }
}

/// Takes a backup.
type BackupOrder = Sender<Box<dyn StoreBackup>>;

/// The state that the writers and the log share.
pub(in crate::tables) struct Epochs {
    /// A [`LogStage`]. Written by the log, and by sessions that want it.
    stage: AtomicU8,
    pub(super) open: OpenEpoch,
    /// What is on disk, and who waits for it.
    pub(super) disk: DiskEpochs,
    /// The highest epoch that somebody waits for. Raised by the writers.
    wanted: CachePadded<AtomicU64>,
    /// The durable tables that have a name, by their incarnations. Changed under the catalog's lock.
    tables: Mutex<Arc<BTreeMap<u64, Arc<Table>>>>,
    /// The number of the last record of a table.
    number: AtomicU64,
    /// Above all versions that are recorded in epochs that the log has taken. Written by the log.
    version: AtomicU64,
    /// The highest incarnation of a durable table.
    incarnation: AtomicU64,
    /// All sessions are gone, and the log ends. And whether all that they have committed is announced.
    is_closed: AtomicBool,
    is_in_order: AtomicBool,
    /// The time of the log's clock at the start of this server, in milliseconds.
    clock_start: u64,
    writers: Mutex<Vec<Arc<WriterRecords>>>,
    /// Sessions with writes that wait for room. The log wakes them when it has taken the records.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
    /// Wakes the log.
    pub(super) log: Sleeper,
    room: DiskRoom,
    /// The share of the segments that is read, in percent. Written while they are loaded.
    loaded: AtomicU64,
    /// How often a write has waited for room, or for the log to open.
    waits: AtomicU64,
    /// Who waits for a backup. Taken by the log behind each epoch.
    backup_orders: Mutex<Vec<BackupOrder>>,
    /// Written by the log behind each batch.
    reported: Mutex<LogMetrics>,
}

/// The records of one writer.
pub(in crate::tables) struct WriterRecords {
    place: WriterPlace,
    /// By the parity of the epoch. The writer locks one inside its epoch, and the log when that is closed and left: never
    /// both at once.
    buffers: [Mutex<EncodedRecords>; 2],
    /// The highest version that the writer has recorded. Written by it before it leaves.
    version: AtomicU64,
}

impl WriterRecords {
    fn buffer(&self, epoch: u64) -> MutexGuard<'_, EncodedRecords> {
        let [even, odd] = &self.buffers;
        if epoch.is_multiple_of(2) { even.lock() } else { odd.lock() }
    }

    fn is_empty(&self) -> bool {
        self.buffers.iter().all(|buffer| buffer.lock().is_empty())
    }

    /// Log: waits until the writer is not in this epoch, which is closed. A writer stays for some microseconds, unless it
    /// is in a transaction or its thread has lost its core.
    fn await_leave(&self, closed: u64) {
        let backoff = Backoff::new();
        while !self.place.is_left(closed) {
            match backoff.is_completed() {
                true => thread::park_timeout(LEAVE_CHECK),
                false => backoff.snooze(),
            }
        }
    }
}

impl Epochs {
    /// No epoch was written. The log's clock has the time `clock_start` at the start of this server.
    pub(in crate::tables) fn new(clock_start: u64) -> Arc<Self> {
        let (epoch, number) = (0, 0);
        Arc::new(Self {
            stage: AtomicU8::new(LogStage::Off as u8),
            open: OpenEpoch::behind(epoch),
            disk: DiskEpochs::new(epoch),
            wanted: CachePadded::new(AtomicU64::new(epoch)),
            tables: Mutex::default(),
            number: AtomicU64::new(number),
            version: AtomicU64::new(0),
            incarnation: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_in_order: AtomicBool::new(false),
            clock_start,
            writers: Mutex::default(),
            sleepers: Mutex::default(),
            log: Sleeper::default(),
            room: DiskRoom { room: AtomicU64::new(0), claimed: Default::default() },
            loaded: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            backup_orders: Mutex::default(),
            reported: Mutex::default(),
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
        self.stage.store(stage as u8, Ordering::Release);
        self.wake_all();
        self.disk.wake();
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

    /// Wakes the sessions that wait for the log.
    fn wake_all(&self) {
        let woken = std::mem::take(&mut *self.sleepers.lock());
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

    /// The number of the open epoch.
    #[cfg(test)]
    pub(in crate::tables) fn open_number(&self) -> u64 {
        self.open.number()
    }

    /// Somebody waits until this epoch is on disk.
    pub(in crate::tables) fn want(&self, epoch: u64) {
        // Relaxed, both: the wake-up comes behind, and the log looks again when it is awake. A higher number of another
        // writer has woken it.
        if self.wanted.load(Ordering::Relaxed) < epoch && self.wanted.fetch_max(epoch, Ordering::Relaxed) < epoch {
            self.log.wake();
        }
    }

    /// Log: whether somebody waits for the open epoch.
    pub(super) fn is_wanted(&self) -> bool {
        // Relaxed: see `want`.
        self.wanted.load(Ordering::Relaxed) >= self.open.number()
    }

    /// The durable tables that have a name, by their incarnations.
    pub(super) fn tables(&self) -> Arc<BTreeMap<u64, Arc<Table>>> {
        Arc::clone(&self.tables.lock())
    }

    /// Changes the durable tables that have a name. Called under the catalog's lock.
    fn change_tables(&self, change: impl FnOnce(&mut BTreeMap<u64, Arc<Table>>)) {
        change(Arc::make_mut(&mut *self.tables.lock()));
    }

    /// The records of this table count. Called under the catalog's lock.
    pub(super) fn enter_table(&self, table: &Arc<Table>) {
        let incarnation = table.durability.incarnation();
        // Relaxed: the log raises its mark behind the lock of the tables.
        self.incarnation.fetch_max(incarnation, Ordering::Relaxed);
        self.change_tables(|tables| drop(tables.insert(incarnation, Arc::clone(table))));
    }

    /// The records of this table count no more. Called under the catalog's lock.
    pub(super) fn leave_table(&self, table: &Table) {
        self.change_tables(|tables| drop(tables.remove(&table.durability.incarnation())));
    }

    /// The highest version that is recorded in epochs that the log has taken.
    pub(super) fn highest_version(&self) -> u64 {
        // Relaxed: the log writes it.
        self.version.load(Ordering::Relaxed)
    }

    /// The highest incarnation of a durable table.
    pub(super) fn highest_incarnation(&self) -> u64 {
        // Relaxed: the table is in an epoch that the log has taken, or in a later one.
        self.incarnation.load(Ordering::Relaxed)
    }

    /// Log: whether all sessions are gone.
    pub(super) fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `close`.
        self.is_closed.load(Ordering::Acquire)
    }

    /// Log, when it is closed: whether all that was committed is announced.
    pub(super) fn is_closed_in_order(&self) -> bool {
        // Relaxed: `is_closed` was read before.
        self.is_in_order.load(Ordering::Relaxed)
    }

    /// A life of a table, durable or not, has this number, or a lower one.
    pub(super) fn note_incarnation(&self, incarnation: u64) {
        // Relaxed: see `highest_incarnation`.
        self.incarnation.fetch_max(incarnation, Ordering::Relaxed);
    }

    /// All sessions are gone, and the log ends when all is on disk. `is_in_order`: all that was committed is announced.
    pub(in crate::tables) fn close(&self, is_in_order: bool) {
        // Relaxed: the store below orders it.
        self.is_in_order.store(is_in_order, Ordering::Relaxed);
        // Release: pairs with the Acquire in `is_closed`.
        self.is_closed.store(true, Ordering::Release);
        self.log.wake();
    }

    /// What the log held when it was opened.
    pub(super) fn resume(&self, number: u64, version: u64, incarnation: u64) {
        // Relaxed: nobody else uses them yet.
        self.number.fetch_max(number, Ordering::Relaxed);
        self.version.fetch_max(version, Ordering::Relaxed);
        self.incarnation.fetch_max(incarnation, Ordering::Relaxed);
    }

    /// The number of the next record of a table.
    pub(in crate::tables) fn next_number(&self) -> u64 {
        // Relaxed: it only has to be another one, and a later record of a table follows under the catalog's lock.
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Log: its metrics and its room behind this epoch.
    pub(super) fn report(&self, epoch: u64, room: u64, metrics: LogMetrics) {
        self.room.report(epoch, room);
        *self.reported.lock() = metrics;
    }

    /// So many of all segments are read.
    pub(super) fn note_loaded(&self, read: usize, all: usize) {
        // Relaxed: a metric.
        self.loaded.store((100 * read / all.max(1)) as u64, Ordering::Relaxed);
    }

    /// Log: whether nothing may be added at present.
    pub(super) fn is_full(&self) -> bool {
        // Relaxed: the log writes it.
        self.room.room.load(Ordering::Relaxed) == 0
    }

    /// Waits for a backup of what is committed by now. `None`: there is no log, or it has failed.
    pub(in crate::tables) fn backup(&self) -> Option<Box<dyn StoreBackup>> {
        let (order, backup) = bounded(1);
        self.backup_orders.lock().push(order);
        if self.stage() != LogStage::On {
            drop(self.take_backup_orders());
        }
        self.want(self.open.number());
        backup.recv().ok()
    }

    /// Log: those who wait for a backup.
    pub(super) fn take_backup_orders(&self) -> Vec<BackupOrder> {
        std::mem::take(&mut *self.backup_orders.lock())
    }

    /// The metrics of the log.
    pub(in crate::tables) fn metrics(&self) -> EffectMetrics {
        EffectMetrics {
            stage: self.stage(),
            // Relaxed: metrics.
            waits: self.waits.load(Ordering::Relaxed),
            loaded_percent: self.loaded.load(Ordering::Relaxed),
            is_full: self.is_full(),
            epochs: self.disk.synced(),
            log: *self.reported.lock(),
        }
    }

    /// Whether there is room for the write that was refused last. If not, `sleeper` is woken when there may be.
    pub(in crate::tables) fn watch(&self, epoch: u64, sleeper: &Arc<Sleeper>) -> bool {
        let mut sleepers = self.sleepers.lock();
        // Under the lock, which the log takes behind the close and behind each stage: it then finds this sleeper.
        let stage = self.stage();
        if matches!(stage, LogStage::Failed | LogStage::Unopened) || stage == LogStage::On && self.open.number() > epoch
        {
            return true;
        }
        // Relaxed: a metric.
        self.waits.fetch_add(1, Ordering::Relaxed);
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
        let writers = self.writers.lock().clone();
        for writer in &writers {
            writer.await_leave(closed);
            let mut buffer = writer.buffer(closed);
            // Relaxed: the writer has left the epoch, so it is seen.
            self.version.fetch_max(writer.version.load(Ordering::Relaxed), Ordering::Relaxed);
            if !buffer.is_empty() {
                taken.push(std::mem::replace(&mut *buffer, spare()));
            }
        }
        drop(writers);
        self.open.note_left(closed);
        self.writers.lock().retain(|writer| Arc::strong_count(writer) > 1 || !writer.is_empty());
        self.wake_all();
        closed
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
    /// The files.
    pub log: LogMetrics,
}

/// A session's end.
pub(in crate::tables) struct EffectWriter {
    pub(super) epochs: Arc<Epochs>,
    records: Arc<WriterRecords>,
    /// The epoch in which the writer is.
    entered: Option<u64>,
    /// A transaction is being carried out: the writer leaves the epoch at its end.
    is_in_transaction: bool,
    /// The last epoch that was found full. Before the log is open, none.
    full: Option<u64>,
    /// The request that was refused last waits until the log is open.
    awaits_log: bool,
    claimed: Claimed,
    /// The epoch for which the answer waits to what the session does. 0: for none.
    pub(super) awaited: u64,
}

/// What a writer has claimed of the disk.
#[derive(Debug, Default)]
struct Claimed {
    epoch: u64,
    bytes: usize,
}

/// What the records of a transaction need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tables) struct RecordNeeds {
    /// Their bytes, at most. 0: there are none.
    pub(in crate::tables) bytes: usize,
    /// Whether some of them store a value.
    pub(in crate::tables) adds: bool,
}

/// Why nothing can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tables) enum NotEntered {
    /// There is no room in the buffer.
    Full,
    /// The log takes nothing more.
    Failed,
    /// There is no room on the disk.
    NoRoom,
}

impl EffectWriter {
    pub(in crate::tables) fn new(epochs: &Arc<Epochs>) -> Self {
        let records = Arc::new(WriterRecords {
            place: WriterPlace::new(),
            buffers: Default::default(),
            version: AtomicU64::new(0),
        });
        epochs.writers.lock().push(Arc::clone(&records));
        let epochs = Arc::clone(epochs);
        Self {
            epochs,
            records,
            entered: None,
            is_in_transaction: false,
            full: None,
            awaits_log: false,
            claimed: Claimed::default(),
            awaited: 0,
        }
    }

    /// Enters the open epoch for a record of so many bytes. One that `adds` needs room on the disk too. The caller has
    /// loaded the word that its CAS expects, or sees the state of the table under a lock.
    pub(in crate::tables) fn enter(&mut self, bytes: usize, adds: bool) -> Result<(), NotEntered> {
        if self.entered.is_some() {
            return Ok(());
        }
        if self.epochs.stage() == LogStage::Failed {
            return Err(NotEntered::Failed);
        }
        let epoch = self.epochs.open.enter(&self.records.place);
        let kept = self.records.buffer(epoch).bytes();
        // A large record is not kept out for ever by small ones, which come again in each epoch.
        let entered = match kept > EFFECTS_BYTES_LARGE && kept + bytes > EFFECTS_BYTES_MAX {
            true => Err(NotEntered::Full),
            false if adds => self.claim(epoch, kept + bytes),
            false => Ok(()),
        };
        match entered {
            Ok(()) => self.entered = Some(epoch),
            Err(_) => {
                self.records.place.leave();
                self.full = Some(epoch);
            }
        }
        entered
    }

    /// Claims room on the disk, so that this writer's records of the epoch may have so many bytes.
    fn claim(&mut self, epoch: u64, bytes: usize) -> Result<(), NotEntered> {
        if self.claimed.epoch != epoch {
            self.claimed = Claimed { epoch, bytes: 0 };
        }
        if bytes <= self.claimed.bytes {
            return Ok(());
        }
        let more = (bytes - self.claimed.bytes).max(CLAIM_BYTES);
        self.epochs.room.claim(epoch, more as u64)?;
        self.claimed.bytes += more;
        Ok(())
    }

    /// Begins a transaction, whose changes are all of one epoch. It enters the open epoch if it has records of so many bytes.
    /// The session holds the latches of its tables, so no word that it replaces can change any more.
    pub(in crate::tables) fn begin_transaction(
        &mut self,
        RecordNeeds { bytes, adds }: RecordNeeds,
    ) -> Result<(), NotEntered> {
        if bytes > 0 {
            self.enter(bytes, adds)?;
        }
        self.is_in_transaction = true;
        Ok(())
    }

    /// Whether the writer is in an epoch.
    pub(in crate::tables) fn is_inside(&self) -> bool {
        self.entered.is_some()
    }

    /// The transaction is over, whatever has come of it.
    pub(in crate::tables) fn end_transaction(&mut self) {
        self.is_in_transaction = false;
        self.leave();
    }

    /// Enters the open epoch, for a record of any size.
    pub(in crate::tables) fn enter_large(&mut self) {
        if self.entered.is_none() {
            self.entered = Some(self.epochs.open.enter(&self.records.place));
        }
    }

    /// Records that a table goes, and that another one comes. Called under the catalog's lock, before anybody sees it. The
    /// caller leaves the epoch when it can be seen.
    pub(in crate::tables) fn record_tables(&mut self, old: Option<&Arc<Table>>, new: Option<&Arc<Table>>) {
        let is_durable = |table: Option<&Arc<Table>>| table.is_some_and(|table| table.is_durable());
        if !is_durable(old) && !is_durable(new) {
            return;
        }
        self.enter_large();
        let epochs = Arc::clone(&self.epochs);
        for table in old.into_iter().chain(new).filter(|table| table.is_always()) {
            self.raise_epoch_of(table);
            epochs.disk.raise_names(table.durability.last_epoch());
        }
        for table in old.into_iter().filter(|table| table.is_durable()) {
            self.record_end(table);
        }
        for table in new.into_iter().filter(|table| table.is_durable()) {
            self.record_table(table, table.durability.kind());
            epochs.enter_table(table);
        }
    }

    /// Records that a table is there, with this durability. Called as [`EffectWriter::record_tables`].
    pub(super) fn record_table(&mut self, table: &Table, durability: Durability) {
        let state = &table.durability;
        if durability == Durability::Always {
            self.raise_epoch_of(table);
        }
        let head = TableHead { incarnation: state.incarnation(), number: self.epochs.next_number() };
        self.record(|records| put_table(records, head, durability, table.announced_name()));
        // What holds already need not be awaited.
        let is_less = durability < state.said() && !state.is_coming();
        let epoch = if is_less { state.epoch() } else { self.entered.unwrap_or(0) };
        state.note_record(durability, head.number, epoch);
    }

    /// Records that a table is gone for an opening. Called as [`EffectWriter::record_tables`].
    pub(super) fn record_end(&mut self, table: &Table) {
        let head = TableHead { incarnation: table.durability.incarnation(), number: self.epochs.next_number() };
        self.record(|records| remove_table(records, head));
        self.epochs.leave_table(table);
    }

    /// Whether all writers have left the epochs before that in which this one is.
    pub(in crate::tables) fn is_behind_all(&self) -> bool {
        self.entered.is_some_and(|entered| self.epochs.open.left() + 1 >= entered)
    }

    /// The writer is about to change an element of the table. Answers that show the change wait for this epoch.
    pub(in crate::tables) fn raise_epoch_of(&self, table: &Table) {
        if let Some(epoch) = self.entered {
            table.durability.raise_epoch(epoch);
            self.epochs.disk.note_always();
        }
    }

    /// Records what was committed inside the epoch, or is about to be, with nobody to see it before.
    pub(in crate::tables) fn record(&mut self, encode: impl FnOnce(&mut EncodedRecords)) {
        debug_assert!(self.entered.is_some(), "a writer records inside an epoch");
        if let Some(epoch) = self.entered {
            encode(&mut self.records.buffer(epoch));
        }
    }

    /// Records that an element with this version has expired: its value may stand behind the touch that has its deadline.
    pub(super) fn record_expiry(&mut self, table: &Table, key: &[u8], version: u64) {
        let (incarnation, version) = (table.durability.incarnation(), version + 1);
        let head = ElementHead { incarnation, version, deadline: 0, cause: Cause::Expire };
        self.enter_large();
        self.note_version(version);
        self.record(|records| remove(records, head, key));
        self.leave();
    }

    /// Notes the version of what was recorded.
    pub(in crate::tables) fn note_version(&mut self, version: u64) {
        // Relaxed: this thread alone writes it, and the log reads it when the epoch is left.
        if version > self.records.version.load(Ordering::Relaxed) {
            self.records.version.store(version, Ordering::Relaxed);
        }
    }

    /// Leaves the epoch, unless a transaction stays in it.
    pub(in crate::tables) fn leave(&mut self) {
        if !self.is_in_transaction && self.entered.take().is_some() {
            self.records.place.leave();
        }
    }

    /// Whether there is room for the write that was refused last. If not, `sleeper` is woken when there may be.
    pub(in crate::tables) fn watch(&self, sleeper: &Arc<Sleeper>) -> bool {
        self.full.is_none_or(|full| self.epochs.watch(full, sleeper))
    }

    /// Whether the log takes records. If it is not open, that begins, and the caller waits.
    pub(in crate::tables) fn has_log(&mut self) -> Result<bool, Refusal> {
        let has_waited = std::mem::take(&mut self.awaits_log);
        match self.epochs.stage() {
            LogStage::On => Ok(true),
            LogStage::Failed => Err(Refusal::DiskFailed),
            LogStage::Unopened if has_waited => Err(Refusal::DiskFailed),
            LogStage::Off | LogStage::Wanted | LogStage::Unopened | LogStage::Loading => {
                self.epochs.want_log();
                (self.full, self.awaits_log) = (Some(0), true);
                Ok(false)
            }
        }
    }
}

impl Drop for EffectWriter {
    fn drop(&mut self) {
        self.end_transaction();
        // The log takes what it has recorded, and then forgets the buffers, which nobody else has any more.
    }
}
