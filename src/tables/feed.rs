//! The tables' side of the feed: the log that the publisher writes and other threads read, and the deleted tables that
//! the feed has yet to report.
//!
//! ```text
//! publisher   lock ─► publish each change, mark it announced ─► seal ─► unlock ─► send the messages
//! worker      lock ─► the state of a life, its replay, or the published version of a row ─► unlock
//! reaper      a deleted table is settled ─► the list of dropped tables ─► publisher: DROPPED
//! ```
//! The publisher holds the lock for one batch of changes, and neither waits nor sends meanwhile: it makes room for the
//! notifications of a batch before it locks. No writer takes the lock. So a thread that locks sees whole batches. A
//! scan needs this: a row that it marks as published is in the sequence that any later request reads.
//!
//! This module orders no changes: see `announce.rs`. It sends nothing.

use super::batch::Batch;
use super::change::{ChangeSink, Committed, full_version};
use super::slot::{EntryRef, NEVER, SeenWord, SlotRef, SlotState};
use super::table::Table;
use super::{Refusal, TablesShared};
use crate::feed::{Cause, Compacted, DueChange, FeedLog, FeedMetrics, FeedPosition, LifeState, PresentState};
use crate::lock::{Mutex, MutexGuard};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::AHashMap;
use crossbeam::epoch::{self, Guard};

/// The configuration of the feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedConfig {
    /// This start of the server.
    pub epoch: u64,
    /// Bytes of the messages that are kept.
    pub history_bytes: usize,
}

/// The state that the publisher, the workers and the reaper share.
pub(super) struct FeedTap {
    log: Mutex<FeedLog>,
    /// The time of the clock of deadlines at the start of this server, in milliseconds since 1970.
    clock_start: u64,
    /// The versions that were replaced by changes of a new slot (`ops/restore.rs`), by the address of that slot, until the
    /// turn of the change. Written by writers before they push it, and the credits bound it.
    jumps: Mutex<AHashMap<usize, u64>>,
    /// How many they are. Written under the lock.
    jumps_count: AtomicUsize,
    /// Settled lives of deleted tables, with their names. Written by the reaper, taken by the publisher.
    dropped: Mutex<Vec<(u64, Box<[u8]>)>>,
}

/// A change whose turn has come.
pub(super) struct TurnedChange<'t> {
    pub(super) table: &'t Table,
    pub(super) slot: SlotRef<'t>,
    /// Low bits of its version.
    pub(super) version: u32,
    pub(super) committed: Committed,
    /// What the element was when the change began to wait for the disk.
    pub(super) kept: Option<&'t KeptState>,
}

/// The state of an element at a moment, for the feed.
pub(super) struct KeptState {
    version: u64,
    value: Option<Box<[u8]>>,
    /// In milliseconds of the tables' clock.
    deadline: u64,
}

impl KeptState {
    /// The present state of the element in this slot, which has a change to announce.
    pub(super) fn of(slot: SlotRef<'_>, guard: &Guard) -> Self {
        let seen = slot.load(guard);
        let entry = entry(seen);
        let (value, deadline) =
            (entry.map(|entry| entry.value().into()), entry.map_or(NEVER, |entry| entry.deadline()));
        Self { version: seen.version(), value, deadline }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.value.as_ref().map_or(0, |value| value.len())
    }
}

/// The entry of a slot that has a change to announce.
fn entry<'g>(seen: SeenWord<'g>) -> Option<EntryRef<'g>> {
    match seen.state() {
        SlotState::Live(entry) | SlotState::Expired(entry) => Some(entry),
        SlotState::Absent(_) | SlotState::Dead(_) => None,
        SlotState::Moved(_) => unreachable!("a slot with a change to announce is not moved"),
    }
}

impl FeedTap {
    pub(super) fn new(config: FeedConfig, clock_start: u64) -> Self {
        Self {
            log: Mutex::new(FeedLog::new(config.epoch, config.history_bytes)),
            clock_start,
            jumps: Mutex::default(),
            jumps_count: AtomicUsize::new(0),
            dropped: Mutex::default(),
        }
    }

    /// Writer: the first change of this slot, which is not pushed yet, replaces a value of this version, in another slot.
    pub(super) fn note_jump(&self, slot: usize, replaced: u64) {
        let mut jumps = self.jumps.lock();
        jumps.insert(slot, replaced);
        // Relaxed: the push that follows orders it for the publisher.
        self.jumps_count.store(jumps.len(), Ordering::Relaxed);
    }

    /// Publisher: the version of the value that a change replaces.
    fn replaced(&self, slot: usize, version: u64) -> u64 {
        // Relaxed: see `note_jump`.
        if self.jumps_count.load(Ordering::Relaxed) == 0 {
            return version - 1;
        }
        let mut jumps = self.jumps.lock();
        let replaced = jumps.remove(&slot);
        self.jumps_count.store(jumps.len(), Ordering::Relaxed);
        replaced.unwrap_or(version - 1)
    }

    pub(super) fn log(&self) -> MutexGuard<'_, FeedLog> {
        self.log.lock()
    }

    /// Publisher: publishes a change. `cause_of` knows the causes of the versions of this slot whose changes have come, by
    /// their low bits.
    ///
    /// The word may be ahead of the change. It has not been announced so far, so the slot is neither moved nor retired
    /// (`SlotRef::move_out`, `Changes::retire`): it has the element, or is absent, or sealed.
    pub(super) fn publish<'g>(
        &self,
        log: &mut FeedLog,
        change: &TurnedChange<'g>,
        guard: &'g Guard,
        cause_of: impl FnOnce(u32) -> Option<Cause>,
    ) {
        let TurnedChange { table, slot, version, committed, kept } = *change;
        let present = match kept {
            Some(KeptState { version, value, deadline }) => {
                let deadline_millis = value.as_ref().and_then(|_| self.deadline_millis(*deadline));
                PresentState { version: *version, value: value.as_deref(), deadline_millis }
            }
            None => {
                let seen = slot.load(guard);
                let entry = entry(seen);
                let deadline_millis = entry.and_then(|entry| self.deadline_millis(entry.deadline()));
                PresentState { version: seen.version(), value: entry.map(|entry| entry.value()), deadline_millis }
            }
        };
        let version = full_version(present.version, version);
        let due = DueChange {
            incarnation: table.generation(),
            table: table.announced_name(),
            element: slot.address(),
            key: slot.key(),
            version,
            cause: committed.changes(),
            replaced: committed.replaces_value.then(|| self.replaced(slot.address(), version)),
            present,
        };
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what a change carries")]
        log.publish(&due, |published| cause_of(published as u32));
    }

    fn deadline_millis(&self, deadline: u64) -> Option<u64> {
        (deadline != NEVER).then(|| self.clock_start + deadline)
    }

    /// Publisher: ends the batch, and unlocks before it hands the messages on. It evicts a few messages at a time: no
    /// thread waits for the lock as long as the eviction of very many messages takes.
    pub(super) fn send_batch(&self, mut log: MutexGuard<'_, FeedLog>, sink: &mut dyn ChangeSink) {
        log.seal();
        let published = log.take_published();
        let mut evicts = log.evict_some();
        drop(log);
        published.iter().for_each(|message| sink.publish(message));
        while evicts {
            evicts = self.log().evict_some();
        }
    }

    /// Reaper: all changes of a deleted table are announced.
    pub(super) fn note_dropped(&self, table: &Table) {
        self.dropped.lock().push((table.generation(), table.announced_name().into()));
    }

    /// Publisher: publishes the end of the lives that the reaper has noted. Their last changes were announced before the
    /// reaper noted the lives, so those changes were published.
    pub(super) fn publish_dropped(&self, sink: &mut dyn ChangeSink) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        if dropped.is_empty() {
            return;
        }
        let mut log = self.log();
        dropped.iter().for_each(|(incarnation, table)| log.dropped(*incarnation, table));
        self.send_batch(log, sink);
    }
}

impl TablesShared {
    /// A bookmark of the newest life of a table, as a payload. `None`: there is no feed.
    pub(super) fn bookmark(&self, topic: &[u8], table: &[u8]) -> Option<Vec<u8>> {
        let guard = epoch::pin();
        let current = self.catalog.find(table, &guard);
        let mut log = self.feed.as_ref()?.log();
        // Behind the lock: what was published before is in the open epoch, or in one before it. Changes of a table that is
        // always on disk are published behind their sync.
        let disk = current.filter(|table| table.is_durable() && !table.is_always()).map(|_| self.epochs.moment());
        Some(log.bookmark(topic, current.map(Table::generation), disk))
    }

    pub(super) fn feed_metrics(&self) -> Option<FeedMetrics> {
        self.feed.as_ref().map(|feed| feed.log().metrics())
    }
}

impl Batch<'_> {
    /// The state of the table in the feed, at one moment.
    ///
    /// # Errors
    /// `TableNotFound`, `FeedOff`
    pub fn feed_state(&mut self, table: &[u8]) -> Result<LifeState, Refusal> {
        self.on_feed(table, |log, incarnation| Ok(log.state(incarnation)))
    }

    /// Reads the feed of a table that is there.
    ///
    /// A life that is over may have left the log. The log would then take it for a new life. A table that is open after
    /// the reading was not over before it.
    fn on_feed<R>(
        &mut self,
        table: &[u8],
        read: impl FnOnce(&FeedLog, u64) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        self.on_published(table, |ops, table| {
            let feed = ops.shared.feed.as_ref().ok_or(Refusal::FeedOff)?;
            let found = read(&feed.log(), table.generation());
            if !table.is_closed() {
                return found;
            }
            if table.is_always() {
                ops.effects.await_table(table);
            }
            Err(Refusal::TableNotFound)
        })
    }

    /// The messages of the table's feed from a position on.
    ///
    /// # Errors
    /// `TableNotFound`, `FeedOff`, `Compacted` with the oldest sequence that is kept
    pub fn changes(&mut self, table: &[u8], position: FeedPosition) -> Result<Vec<Arc<[u8]>>, Refusal> {
        self.on_feed(table, |log, incarnation| {
            let replayed = log.replay(incarnation, position);
            replayed.map_err(|Compacted { oldest }| Refusal::Compacted { oldest })
        })
    }
}
