//! The tables that a log holds, while they are read: several threads take its records, in no order.
//!
//! ```text
//! value    newer than that of the slot ─► CAS to it        and then: what is remembered of the key is applied
//! removal  remembered ─► an older slot goes
//! touch    remembered ─► a slot with an older version gets the deadline
//! ```
//! A removal or a touch may be read before the value of its key. So the highest of each key is remembered until all records
//! are read (`remembered.rs`).
//!
//! # Races
//!
//! Two threads may have records of one key. Each thread stores its record in the slot or among the remembered records. Then
//! it fences, and looks at the other place. So at least one thread sees both records. Its change is one CAS of the very word
//! that it has judged.
//!
//! This file reads no file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ahash::RandomState;
use crossbeam::epoch::{self, Guard};

use super::judge::CLOCK;
use super::loaded::{LoadedEntry, LoadedTotals};
use super::records::{END, ElementHead, TableHead, decode_table, encode_element, put_table};
use super::remembered::RememberedKeys;
use super::tables::DurableTables;
use crate::lock::Mutex;
use crate::store::{EffectOwner, EffectReader, EncodedRecords, Error, FoundBody, FoundEffect, Space};
use crate::tables::Durability;
use crate::tables::TablesShared;
use crate::tables::index::{Index, Inserted};
use crate::tables::memory_budget::{settle, slot_bytes};
use crate::tables::slot::{EXTENSION_BYTES, EntryBox, EntryRef, NEVER, SeenWord, SlotHandle, SlotRef, SlotState};
use crate::tables::table::{ElementTotals, hash_of};

/// Records that a reader takes under one guard.
const RECORDS_A_GUARD: u32 = 256;

/// Called with the segments that are read, and with all.
pub type LoadProgress = Box<dyn Fn(usize, usize) + Send + Sync>;

/// All that is read.
pub(in crate::tables) struct Opening {
    shared: Arc<TablesShared>,
    /// The time of the log's clock at the start of this server, in milliseconds.
    clock_start: u64,
    hasher: RandomState,
    /// By their incarnations.
    loaded: Mutex<BTreeMap<u64, Arc<LoadedTable>>>,
    found: Mutex<BTreeMap<u64, FoundTable>>,
    /// The number and the body of the last clean end.
    end: Mutex<Option<(u64, Box<[u8]>)>>,
    remembered: RememberedKeys,
    /// Slots that have a deadline.
    pub(in crate::tables) armed: Mutex<Vec<SlotHandle>>,
    /// Called with the segments that are read, and with all.
    progress: LoadProgress,
    /// The lives and keys of records that are lost, and their versions.
    lost: Mutex<Vec<LostRecord>>,
}

/// The last record of a table.
pub(in crate::tables) struct FoundTable {
    pub(in crate::tables) number: u64,
    /// `None`: it is gone.
    pub(in crate::tables) state: Option<(Durability, Box<[u8]>)>,
}

/// The elements of a life of a table.
pub(in crate::tables) struct LoadedTable {
    /// `None`: there are no more numbers, and no element is taken.
    pub(in crate::tables) number: Option<u32>,
    pub(in crate::tables) index: Index,
    pub(in crate::tables) totals: Mutex<LoadedTotals>,
}

/// A record whose bytes are lost.
struct LostRecord {
    life: u64,
    key: Box<[u8]>,
    version: u64,
}

impl Opening {
    pub(in crate::tables) fn new(shared: &Arc<TablesShared>, progress: LoadProgress) -> Self {
        let clock_start = shared.epochs.clock_start();
        Self {
            shared: Arc::clone(shared),
            clock_start,
            hasher: shared.catalog.hasher().clone(),
            loaded: Mutex::default(),
            found: Mutex::default(),
            end: Mutex::default(),
            remembered: RememberedKeys::new(),
            armed: Mutex::default(),
            progress,
            lost: Mutex::default(),
        }
    }

    /// The last records of all tables, the oldest life first.
    pub(in crate::tables) fn take_found(&self) -> BTreeMap<u64, FoundTable> {
        std::mem::take(&mut *self.found.lock())
    }

    /// The number and the body of the last clean end.
    pub(in crate::tables) fn take_end(&self) -> Option<(u64, Box<[u8]>)> {
        self.end.lock().take()
    }

    /// The elements of a life. `None`: readers have it.
    pub(in crate::tables) fn take_loaded(&self, incarnation: u64) -> Option<LoadedTable> {
        drop(self.table(incarnation));
        let loaded = self.loaded.lock().remove(&incarnation)?;
        Arc::into_inner(loaded)
    }

    /// Sentences on the elements whose newest record is lost: no older state has taken their place.
    pub(in crate::tables) fn lost_elements(&self, tables: &DurableTables) -> Vec<String> {
        let (lost, guard) = (std::mem::take(&mut *self.lost.lock()), epoch::pin());
        let sentence = |LostRecord { life, key, version }: LostRecord| {
            let table = tables.get(life)?;
            let slot = table.find(table.hash(&key), &key, &guard);
            let is_there = slot.is_some_and(|slot| live(slot, &guard).is_some());
            let is_removed = self.remembered.get(life, &key).is_some_and(|remembered| remembered.removed > version);
            let (key, name) = (key.escape_ascii(), table.announced_name().escape_ascii());
            (!is_there && !is_removed).then(|| format!("the element {key} of the table {name} is lost"))
        };
        lost.into_iter().filter_map(sentence).collect()
    }

    /// The lives that have no name are gone: their numbers come back.
    pub(in crate::tables) fn drop_nameless(&self, guard: &Guard) {
        for life in std::mem::take(&mut *self.loaded.lock()).into_values() {
            life.number.into_iter().for_each(|number| self.shared.catalog.registry().leave(number, guard));
        }
    }

    /// The highest number of a record of a table.
    pub(in crate::tables) fn highest_number(&self) -> u64 {
        self.found.lock().values().map(|table| table.number).max().unwrap_or(0)
    }

    /// A deadline as an entry has it. One that has passed before this start has passed at its beginning.
    fn deadline(&self, of_log: u64) -> u64 {
        if of_log == 0 { NEVER } else { of_log.saturating_sub(self.clock_start).min(NEVER - 1) }
    }

    fn table(&self, incarnation: u64) -> Arc<LoadedTable> {
        let mut loaded = self.loaded.lock();
        let made = loaded.entry(incarnation).or_insert_with(|| {
            let number = self.shared.catalog.registry().reserve();
            let index = Index::new(0);
            Arc::new(LoadedTable { number, index, totals: Mutex::default() })
        });
        Arc::clone(made)
    }

    fn hash(&self, key: &[u8]) -> u64 {
        hash_of(&self.hasher, key)
    }
}

/// One thread's part.
struct OpeningReader<'o> {
    opening: &'o Opening,
    /// The table of the last record.
    table: Option<(u64, Arc<LoadedTable>)>,
    /// What it has added to that table.
    totals: LoadedTotals,
    guard: Guard,
    taken: u32,
    armed: Vec<SlotHandle>,
}

impl EffectReader for OpeningReader<'_> {
    fn take(&mut self, effect: FoundEffect<'_>) {
        if effect.space == Space::Tables {
            self.take_table(effect);
            return;
        }
        let Some((head, key)) = ElementHead::decode(effect.key) else { return };
        if self.table.as_ref().is_none_or(|(incarnation, _)| *incarnation != head.incarnation) {
            self.settle();
            self.table = Some((head.incarnation, self.opening.table(head.incarnation)));
        }
        self.taken += 1;
        if self.taken.is_multiple_of(RECORDS_A_GUARD) {
            self.guard.repin();
        }
        match (effect.space, effect.body) {
            (Space::Touches, _) => {
                let deadline = self.opening.deadline(head.deadline);
                self.opening.remembered.change(head.incarnation, key, |remembered| {
                    if head.version > remembered.touched {
                        (remembered.touched, remembered.deadline) = (head.version, deadline);
                    }
                });
            }
            (_, FoundBody::Value(value)) => {
                if !self.store(head, key, value) {
                    return;
                }
            }
            (_, body) => {
                if body == FoundBody::Lost {
                    let lost = LostRecord { life: head.incarnation, key: key.into(), version: head.version };
                    self.opening.lost.lock().push(lost);
                }
                self.opening.remembered.change(head.incarnation, key, |remembered| {
                    remembered.removed = head.version.max(remembered.removed);
                });
            }
        }
        // SeqCst: what was stored or remembered comes before the look at the other place, in the order of all threads.
        fence(Ordering::SeqCst);
        self.apply(head.incarnation, key);
    }
}

impl OpeningReader<'_> {
    fn take_table(&mut self, effect: FoundEffect<'_>) {
        let Some(TableHead { incarnation, number }) = TableHead::decode(effect.key) else { return };
        if incarnation == CLOCK {
            return;
        }
        if incarnation == END {
            self.take_end(number, effect.body);
            return;
        }
        let state = match effect.body {
            FoundBody::Value(body) => decode_table(body).map(|(durability, name)| (durability, name.into())),
            FoundBody::Removed | FoundBody::Lost => None,
        };
        let mut found = self.opening.found.lock();
        let last = found.entry(incarnation).or_insert(FoundTable { number: 0, state: None });
        if number >= last.number {
            *last = FoundTable { number, state };
        }
    }

    fn take_end(&self, number: u64, body: FoundBody<'_>) {
        let mut end = self.opening.end.lock();
        if let FoundBody::Value(body) = body
            && end.as_ref().is_none_or(|(last, _)| *last < number)
        {
            *end = Some((number, body.into()));
        }
    }

    /// Stores a value, unless a newer record of its key was read before. Returns whether it is stored.
    fn store(&mut self, head: ElementHead, key: &[u8], value: &[u8]) -> bool {
        let Some((_, table)) = self.table.clone() else { return false };
        // The slot would have the number of another table. If the life turns out to have a name, the opening fails.
        let Some(number) = table.number else { return false };
        let (hash, deadline) = (self.opening.hash(key), self.opening.deadline(head.deadline));
        let remembered = self.opening.remembered.get(head.incarnation, key);
        if remembered.is_some_and(|remembered| remembered.removed > head.version) {
            return false;
        }
        let mut kept: Option<EntryBox> = None;
        loop {
            let slot = table.index.find(hash, key, &self.guard);
            let found = slot.and_then(|slot| live(slot, &self.guard));
            if found.as_ref().is_some_and(|(_, _, old)| old.version_of_value() >= head.version) {
                return false;
            }
            let entry = kept.take().unwrap_or_else(|| loaded_entry(head.version, deadline, value));
            let counted = LoadedEntry::of(&entry, key);
            if let Some((slot, seen, old)) = found {
                match slot.replace(seen, entry, &self.guard) {
                    Ok(()) => {
                        self.totals.count(key, Some(LoadedEntry::of_published(old, key)), Some(counted));
                        arm(&mut self.totals.sums, &mut self.armed, slot, number, deadline);
                        return true;
                    }
                    Err(unused) => kept = Some(unused),
                }
                continue;
            }
            let (mut unused, mut made) = (Some(entry), None);
            let rehash = &|key: &[u8]| self.opening.hash(key);
            let entered = table.index.enter(hash, key, &self.guard, rehash, &|| true, &mut |_| {
                let slot = SlotHandle::new(number, key, unused.take()?);
                made = Some(slot.slot().handle());
                Some(slot)
            });
            match (entered, made, unused) {
                (Inserted::Created, Some(made), _) => {
                    self.totals.sums.bytes += slot_bytes(key.len(), deadline != NEVER);
                    self.totals.count(key, None, Some(counted));
                    arm(&mut self.totals.sums, &mut self.armed, made.slot(), number, deadline);
                    return true;
                }
                (Inserted::Occupied, _, Some(unused)) => kept = Some(unused),
                // The index takes no more keys of this hash: nobody could have stored it either.
                _ => return false,
            }
        }
    }

    /// Applies to a key what is remembered of it.
    fn apply(&mut self, incarnation: u64, key: &[u8]) {
        let Some(remembered) = self.opening.remembered.get(incarnation, key) else { return };
        let Some((_, table)) = self.table.clone() else { return };
        let hash = self.opening.hash(key);
        loop {
            let slot = table.index.find(hash, key, &self.guard);
            let Some((slot, seen, old)) = slot.and_then(|slot| live(slot, &self.guard)) else { return };
            let before = LoadedEntry::of_published(old, key);
            if remembered.removed > old.version_of_value() {
                if slot.kill(seen, remembered.removed.max(old.version()), &self.guard) {
                    self.totals.count(key, Some(before), None);
                    self.totals.sums.bytes -= settle(slot);
                    table.index.leave(hash, slot, &self.guard);
                    return;
                }
            } else if remembered.touched > old.version() {
                let mut entry = EntryBox::touched(old.value(), old.version_of_value());
                entry.stamp(remembered.touched, remembered.deadline);
                entry.make_quiet();
                let after = LoadedEntry::of(&entry, key);
                if slot.replace(seen, entry, &self.guard).is_ok() {
                    self.totals.count(key, Some(before), Some(after));
                    let armed = &mut self.armed;
                    let number = table.number.into_iter();
                    number.for_each(|number| arm(&mut self.totals.sums, armed, slot, number, remembered.deadline));
                    return;
                }
            } else {
                return;
            }
        }
    }

    /// What was counted of the table counts for all.
    fn settle(&mut self) {
        let totals = std::mem::take(&mut self.totals);
        if let Some((_, table)) = &self.table {
            let mut all = table.totals.lock();
            all.sums.add(&totals.sums);
            all.digest.merge(totals.digest);
        }
        self.opening.armed.lock().append(&mut self.armed);
    }
}

impl Drop for OpeningReader<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

/// The entry of a value, as nobody has changed it since.
fn loaded_entry(version: u64, deadline: u64, value: &[u8]) -> EntryBox {
    let mut entry = EntryBox::new(value);
    entry.stamp(version, deadline);
    entry.make_quiet();
    entry
}

/// The live entry of a slot, with the word in which it was seen.
fn live<'g>(slot: SlotRef<'g>, guard: &'g Guard) -> Option<(SlotRef<'g>, SeenWord<'g>, EntryRef<'g>)> {
    let seen = slot.load(guard);
    match seen.state() {
        SlotState::Live(entry) | SlotState::Expired(entry) => Some((slot, seen, entry)),
        SlotState::Absent(_) | SlotState::Dead(_) | SlotState::Moved(_) => None,
    }
}

/// Has the wheel look at a slot, when there is one.
fn arm(totals: &mut ElementTotals, armed: &mut Vec<SlotHandle>, slot: SlotRef<'_>, table: u32, deadline: u64) {
    if deadline == NEVER {
        return;
    }
    if slot.extend(table) {
        totals.bytes += EXTENSION_BYTES;
    }
    if slot.arm(deadline) {
        armed.push(slot.handle());
    }
}

impl EffectOwner for Opening {
    fn reader(&self) -> Box<dyn EffectReader + '_> {
        Box::new(OpeningReader {
            opening: self,
            table: None,
            totals: LoadedTotals::default(),
            guard: epoch::pin(),
            taken: 0,
            armed: Vec::new(),
        })
    }

    fn report(&self, read: usize, all: usize) {
        self.shared.epochs.reports.note_loaded(read, all);
        (self.progress)(read, all);
    }

    fn live(&self) -> (u64, u64) {
        let found = self.found.lock();
        let loaded = self.loaded.lock();
        let there =
            loaded.iter().filter(|(incarnation, _)| found.get(incarnation).is_some_and(|table| table.state.is_some()));
        there.fold((0, 0), |(records, bytes), (_, table)| {
            let totals = &table.totals.lock().sums;
            let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
            (records + unsigned(totals.elements), bytes + unsigned(totals.logged))
        })
    }

    fn encode_all(
        &self,
        bytes: usize,
        write: &mut dyn FnMut(EncodedRecords) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut records = EncodedRecords::default();
        let (found, loaded) = (self.found.lock(), self.loaded.lock());
        for (&incarnation, FoundTable { number, state }) in found.iter() {
            let Some((durability, name)) = state else { continue };
            put_table(&mut records, TableHead { incarnation, number: *number }, *durability, name);
            let Some(table) = loaded.get(&incarnation) else { continue };
            self.encode_elements(incarnation, table, bytes, &mut records, write)?;
        }
        write(records)
    }
}

impl Opening {
    fn encode_elements(
        &self,
        incarnation: u64,
        table: &LoadedTable,
        bytes: usize,
        records: &mut EncodedRecords,
        write: &mut dyn FnMut(EncodedRecords) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut position, mut next) = (0, Some(0));
        while let Some(from) = next {
            let (guard, mut slots) = (epoch::pin(), Vec::new());
            position = from.max(position);
            next = table.index.walk(&guard).read(position, &guard, |key| self.hash(key), &mut slots);
            for (_, slot) in slots {
                let Some((_, _, entry)) = live(slot, &guard) else { continue };
                let deadline = if entry.deadline() == NEVER { 0 } else { entry.deadline() + self.clock_start };
                encode_element(records, incarnation, slot.key(), entry, deadline);
                if records.bytes() >= bytes {
                    write(std::mem::take(records))?;
                }
            }
        }
        Ok(())
    }
}
