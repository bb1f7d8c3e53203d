//! The owner of a log: it knows the place of the last record of each key, and so which records are live.
//!
//! ```text
//! batch ─► copies of the oldest segment, in front ─► Log::append ─► new places ─► the old ones are dead
//! moment(keys) ─► the present places of the values ─► read by a frontend
//!                                                          └─► the bytes have changed: noted in `reports`
//! lost: reports, copies that could not be read ─► the record is set aside ─► its owner gets a report
//! ```
//! Records of `Meta` are few and in memory. Of tasks and their values only the places are: 44 bytes for both and the
//! key. The records of tasks that were found at the opening are kept until they are taken.
//!
//! This module knows the length of the keys of tasks, and does not interpret records.

mod views;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::disk::RealFolder;
use super::errors::Error;
use super::folder::Folder;
use super::format::LogKind;
use super::format::{Marks, Space};
use super::interface::{IdleWork, LostRecord, Store, StoreBackup, StoreSnapshot, StoreWatch, TaskKey, WriteBatch};
use super::log::admission::AddsRefused;
use super::log::chores::ChoreMode;
use super::log::cleaning::copies::{Copies, Liveness};
use super::log::cleaning::position::UnreadableRange;
use super::log::share::DiskMember;
use super::log::{Log, LogConfig};
use super::metrics::LogMetrics;
use super::opening::bodies::FoundBodies;
use super::opening::earlier::refuse_earlier;
use super::opening::winners::{Winner, Winners};
use super::opening::{OpenOptions, Opened, open};
use super::places::{TaskId, TaskPlaces};
use super::record::{Body, Record, RecordBatch, Value};
use super::segment::Place;
use crate::chunked_map::ChunkedMap;
use crate::descriptors::DescriptorBudget;
use views::{KeyedSnapshot, KeyedWatch, Reports};

/// How often a batch is tried for which no segment can be laid out. Each try follows a sync, which removes the segments
/// that are no longer needed.
const TRIES_MAX: u32 = 3;
/// The most batches of copies alone before a batch: those of several segments.
const CLEANINGS_MAX: u32 = 64;

/// The settings of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The size of a segment in bytes.
    pub segment_bytes: u64,
    /// The bytes that the folder may take. `None`: 95 % of the file system.
    pub max_disk: Option<u64>,
    /// Whether to open without records that are damaged.
    pub repair: bool,
    /// Whether the folder is a copy of one that a server has used since.
    pub copied: bool,
}

/// A log, and the place of the last record of each key.
#[derive(Debug)]
pub struct KeyedStore {
    pub(in crate::store) log: Log,
    folder: PathBuf,
    meta: BTreeMap<Box<[u8]>, (Place, Value)>,
    /// In the order of the keys: numbers of tasks grow, so the present ones are adjacent.
    places: ChunkedMap<TaskId, TaskPlaces>,
    /// Records of tasks that were found at the opening, until they are taken.
    found: FoundBodies,
    /// Records that were found lost, until their owner takes them.
    pub(in crate::store) lost: Vec<LostRecord>,
    reports: Reports,
    repair: bool,
    /// What the opening reports to the operator.
    notes: Vec<String>,
    /// Whether records were written since the log last rested.
    is_stirred: bool,
    /// The first failure. Written by this thread, read by watches.
    failed: Arc<OnceLock<Error>>,
    /// The number of the segment that is being written. Written by this thread, read by watches.
    newest: Arc<AtomicU32>,
}

impl KeyedStore {
    /// Opens the store in `folder`, and makes the folder if it does not exist, for its owner alone.
    ///
    /// # Errors
    /// [`Error`] if the folder cannot be made, is in use, is damaged, or was written by another version.
    pub fn open(folder: &Path, config: StoreConfig) -> Result<Self, Error> {
        refuse_earlier(folder)?;
        let locked: Arc<dyn Folder> = Arc::new(RealFolder::lock(folder)?);
        let files = DescriptorBudget::now().store_files();
        let log =
            LogConfig { kind: LogKind::States, segment_bytes: config.segment_bytes, files, max_disk: config.max_disk };
        let StoreConfig { repair, copied, .. } = config;
        let options = OpenOptions { config: log, repair, copied, chores: ChoreMode::Thread };
        Self::of(open(&locked, options)?, folder, repair)
    }

    /// Shares the disk with other logs.
    pub fn share_disk(&mut self, share: DiskMember) {
        self.log.share_disk(share);
    }

    /// The store of an opened log.
    pub(in crate::store) fn of(opened: Opened, folder: &Path, repair: bool) -> Result<Self, Error> {
        let Opened { log, mut winners, lost, harmless, was_backup, mut notes } = opened;
        notes.extend(lost.iter().map(|what| format!("{what} is lost: finished tasks may have returned")));
        notes.extend(harmless.iter().map(|what| format!("{what}: nothing is lost by it; look at the device")));
        if was_backup {
            notes.push("this was a backup: lend keys and ids continue far above those in it".to_owned());
        }
        let newest = Arc::new(AtomicU32::new(log.written_segment()));
        let mut store = Self {
            log,
            folder: folder.to_owned(),
            meta: BTreeMap::new(),
            places: ChunkedMap::default(),
            found: FoundBodies::default(),
            lost: Vec::new(),
            reports: Arc::default(),
            repair,
            notes,
            is_stirred: true,
            failed: Arc::default(),
            newest,
        };
        store.take_winners(&mut winners)?;
        if repair {
            store.match_values()?;
        }
        Ok(store)
    }

    /// The reports of the opening for the operator: the parts that a repair has lost, damage without cost, and whether
    /// the folder was a backup.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn take_winners(&mut self, winners: &mut Winners) -> Result<(), Error> {
        let mut lost: Vec<(Box<[u8]>, Place)> = Vec::new();
        for (key, Winner { place, body }) in winners.take_others(Space::Meta) {
            match body {
                Some(body) => drop(self.meta.insert(key, (place, body))),
                None if self.repair => lost.push((key, place)),
                None => return Err(damaged(&self.folder, "a record about a queue is lost")),
            }
        }
        if [Space::Tasks, Space::Values].into_iter().any(|space| !winners.take_others(space).is_empty()) {
            return Err(damaged(&self.folder, "the key of a task is damaged"));
        }
        (self.places, self.found) = winners.take_tasks();
        let set_aside = self.log.set_aside().filter(|(space, _)| *space != Space::Meta);
        self.lost.extend(set_aside.filter_map(|(space, key)| Some(LostRecord { space, key: key.try_into().ok()? })));
        // All places are known by now: the batch may carry copies.
        for (key, place) in lost {
            self.notes.push("a record about a queue is lost: so are its tasks".to_owned());
            let length = key.len();
            self.write(vec![Record { space: Space::Meta, key, body: Body::Removed }])?;
            self.log.replaced(Space::Meta, place, length);
        }
        Ok(())
    }

    /// After a repair: sets the values aside that are missing, and removes those without a task.
    fn match_values(&mut self) -> Result<(), Error> {
        let mut records = Vec::new();
        for (&id, places) in self.places.iter() {
            let key = TaskKey::from(id);
            let body = match (places.get(Space::Tasks), places.get(Space::Values)) {
                (Some(_), None) => {
                    self.lost.push(LostRecord { space: Space::Values, key });
                    Body::SetAside
                }
                (None, Some(_)) => Body::Removed,
                _ => continue,
            };
            records.push(Record { space: Space::Values, key: key.into(), body });
        }
        if !records.is_empty() {
            self.write(records)?;
            self.log.sync()?;
        }
        Ok(())
    }

    // -------------------------------------------------------------------------------------------------------- writing

    /// Writes records, with copies of the oldest segment in front.
    pub(in crate::store) fn write(&mut self, records: Vec<Record>) -> Result<(), Error> {
        let mut own = RecordBatch::from(records);
        let mut tries = 1;
        loop {
            let mut rounds = 0..CLEANINGS_MAX;
            while self.log.is_tight() && rounds.next().is_some() && self.shrink()? {}
            // The last try is without copies: a large one may be what finds no room.
            let copies = if tries == TRIES_MAX { Copies::default() } else { self.copies(&own, false)? };
            match self.write_behind(copies, &mut own) {
                Err(Error::NoRoom(folder)) if tries == TRIES_MAX => match split_off(&mut own.records) {
                    rest if rest.is_empty() => return Err(Error::Full(folder)),
                    rest => {
                        self.write(own.records)?;
                        return self.write(rest);
                    }
                },
                Err(Error::NoRoom { .. }) => self.log.sync()?,
                written => return written,
            }
            tries += 1;
        }
    }

    /// Writes a batch behind the copies. If there is no room for it, `own` keeps its records.
    fn write_behind(&mut self, mut copies: Copies, own: &mut RecordBatch) -> Result<(), Error> {
        if copies.is_apart {
            self.append(&mut std::mem::take(&mut copies.batch))?;
        }
        let batch = &mut copies.batch;
        let in_front = batch.records.len();
        batch.records.append(&mut own.records);
        let written = self.append(batch);
        if written.is_err() {
            own.records = batch.records.split_off(in_front);
        }
        written
    }

    /// Writes copies of the oldest segment, and syncs them. Returns false if that gives no space back at present.
    fn shrink(&mut self) -> Result<bool, Error> {
        let mut copies = self.copies(&RecordBatch::default(), true)?;
        if copies.batch.records.is_empty() && !self.log.advances(copies.batch.cleaned.as_ref()) {
            return Ok(false);
        }
        match self.append(&mut copies.batch) {
            Err(Error::NoRoom { .. }) => Ok(false),
            written => {
                written?;
                self.log.sync()?;
                Ok(true)
            }
        }
    }

    /// The copies that the next batch carries. Records among them that are lost are noted.
    fn copies(&mut self, own: &RecordBatch, is_idle: bool) -> Result<Copies, Error> {
        let Self { log, meta, places, .. } = self;
        let is_live = &mut |space, key: &[u8], place: Option<Place>| match space {
            Space::Meta => match (meta.get(key), place) {
                (Some((at, value)), Some(place)) if *at == place => Liveness::Known(value.clone()),
                (None, None) => Liveness::Live,
                _ => Liveness::Dead,
            },
            Space::Tasks | Space::Values if place_in(places, space, key) == place => Liveness::Live,
            _ => Liveness::Dead,
        };
        let mut copies = if is_idle { log.idle_copies(is_live)? } else { log.copies(own, is_live)? };
        let again = self.unreadable(&copies.unreadable);
        // The next call returns the same copies.
        let Some((again, lost)) = self.log.unless_unread(again)? else { return Ok(Copies::default()) };
        self.lost.extend(lost);
        for (space, key, _) in &copies.set_aside {
            if let Ok(key) = TaskKey::try_from(&**key) {
                self.lost.push(LostRecord { space: *space, key });
            }
        }
        copies.batch.records.extend(again);
        Ok(copies)
    }

    /// The records in these ranges, to be written again, and those among them whose bytes are lost.
    pub(in crate::store) fn unreadable(
        &self,
        ranges: &[UnreadableRange],
    ) -> Result<(Vec<Record>, Vec<LostRecord>), Error> {
        let mut lost = Vec::new();
        if ranges.is_empty() {
            return Ok((Vec::new(), lost));
        }
        let is_in = |place: Place| ranges.iter().any(|range| range.contains(place));
        let meta = self.meta.iter().filter(|(_, (place, _))| is_in(*place));
        let known = meta.map(|(key, (_, value))| Record {
            space: Space::Meta,
            key: key.clone(),
            body: Body::Bytes(value.clone()),
        });
        let mut records: Vec<Record> = known.collect();
        for (&id, places) in self.places.iter() {
            let key = TaskKey::from(id);
            for space in [Space::Tasks, Space::Values] {
                let Some(place) = places.get(space).filter(|place| is_in(*place)) else { continue };
                let body = self.log.read_again(place)?;
                if body == Body::SetAside && !place.is_set_aside() {
                    lost.push(LostRecord { space, key });
                }
                records.push(Record { space, key: key.into(), body });
            }
        }
        Ok((records, lost))
    }

    /// Writes a batch, and notes the new places of its records.
    fn append(&mut self, batch: &mut RecordBatch) -> Result<(), Error> {
        let new = self.log.append(batch)?;
        // Relaxed: the number publishes no data.
        self.newest.store(self.log.written_segment(), Ordering::Relaxed);
        self.is_stirred = true;
        for (Record { space, key, body }, place) in batch.records.drain(..).zip(new) {
            let length = key.len();
            let old = match space {
                Space::Meta => match (place, body) {
                    (Some(place), Body::Bytes(value)) => self.meta.insert(key, (place, value)),
                    _ => self.meta.remove(&key),
                }
                .map(|(place, _)| place),
                _ => self.note(space, &key, place),
            };
            if let Some(old) = old {
                self.log.replaced(space, old, length);
            }
        }
        Ok(())
    }

    /// Notes the new place of a record of a task. Returns the old one.
    fn note(&mut self, space: Space, key: &[u8], place: Option<Place>) -> Option<Place> {
        let id = TaskId::of(key).expect("the keys of tasks and values have twelve bytes");
        let Some(places) = self.places.get_mut(&id) else {
            let mut places = TaskPlaces::default();
            places.set(space, place);
            if !places.is_empty() {
                self.places.insert(id, places);
            }
            return None;
        };
        let old = places.set(space, place);
        if places.is_empty() {
            self.places.remove(&id);
        }
        old
    }

    /// Notes the first failure for the watches.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        work(self).inspect_err(|error| {
            self.failed.get_or_init(|| error.clone());
        })
    }
}

/// Takes the second half of the records of a batch that no segment has room for. After a crash one half may be there
/// without the other: a task stays with its value, and a queue comes before its tasks and goes after them.
pub(in crate::store) fn split_off(records: &mut Vec<Record>) -> Vec<Record> {
    let rank = |record: &Record| match (record.space, &record.body) {
        (Space::Meta, Body::Removed) => 2,
        (Space::Meta, _) => 0,
        _ => 1,
    };
    records.sort_by(|one, next| rank(one).cmp(&rank(next)).then_with(|| one.key.cmp(&next.key)));
    let keys = records.iter().zip(records.iter().skip(1)).map(|(one, next)| one.key != next.key);
    let ends = keys.enumerate().filter(|(_, differ)| *differ).map(|(at, _)| at + 1);
    let at = ends.min_by_key(|at| at.abs_diff(records.len() / 2)).unwrap_or(records.len());
    records.split_off(at)
}

fn place_in(places: &ChunkedMap<TaskId, TaskPlaces>, space: Space, key: &[u8]) -> Option<Place> {
    places.get(&TaskId::of(key)?)?.get(space)
}

fn damaged(folder: &Path, what: &str) -> Error {
    Error::Damaged { folder: folder.to_owned(), what: what.to_owned() }
}

impl Store for KeyedStore {
    fn found(&self, each: &mut dyn FnMut(&TaskKey)) {
        self.found.keys().for_each(|key| each(&key));
    }

    fn take(&mut self, space: Space, each: &mut dyn FnMut(&[u8], &[u8])) {
        match space {
            Space::Meta => self.meta.iter().for_each(|(key, (_, value))| each(key, value)),
            Space::Tasks => std::mem::take(&mut self.found).consume(|key, body| each(key, body)),
            _ => {}
        }
    }

    fn lost(&mut self) -> Result<Vec<LostRecord>, Error> {
        let reports = std::mem::take(&mut *self.reports.lock());
        let (mut records, mut known): (Vec<Record>, HashSet<TaskKey>) = Default::default();
        for (key, place) in reports {
            // A record that is set aside was reported to the owner before.
            let is_present = !place.is_set_aside() && place_in(&self.places, Space::Values, &key) == Some(place);
            if is_present && known.insert(key) {
                records.push(Record { space: Space::Values, key: key.into(), body: Body::SetAside });
                self.lost.push(LostRecord { space: Space::Values, key });
            }
        }
        if !records.is_empty() {
            self.guarded(|store| store.write(records))?;
        }
        let lost = std::mem::take(&mut self.lost);
        // A value that was found lost may have been replaced in the same batch, or the batch was not written.
        let is_lost = |lost: &LostRecord| {
            lost.space != Space::Values
                || place_in(&self.places, lost.space, &lost.key).is_some_and(|place| place.is_set_aside())
        };
        Ok(lost.into_iter().filter(is_lost).collect())
    }

    fn is_repairing(&self) -> bool {
        self.repair
    }

    fn commit(&mut self, batch: WriteBatch, sync: bool) -> Result<(), Error> {
        self.guarded(|store| {
            store.write(batch.into_iter().collect())?;
            if sync { store.log.sync() } else { Ok(()) }
        })
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.guarded(|store| store.log.sync())
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.guarded(|store| store.log.rest())
    }

    fn work_idle(&mut self) -> Result<IdleWork, Error> {
        self.guarded(|store| {
            if store.log.may_shrink() && store.shrink()? {
                return Ok(IdleWork::More);
            }
            store.log.rest()?;
            store.is_stirred = false;
            // While adds are refused, only a sync asks for the space again.
            let waits =
                store.log.waits_for_files() || store.log.waits_for_reads() || store.log.adds_refused().is_some();
            Ok(if waits { IdleWork::Later } else { IdleWork::Done })
        })
    }

    fn has_idle_work(&self) -> bool {
        self.is_stirred
    }

    fn value_bytes(&self, key: &TaskKey) -> u64 {
        place_in(&self.places, Space::Values, key).map_or(0, |place| u64::from(place.length))
    }

    fn adds_room(&self) -> Result<u64, AddsRefused> {
        self.log.adds_room()
    }

    fn measure_space(&mut self) {
        self.log.measure();
    }

    fn prepare(&mut self, bytes: u64) -> bool {
        // A sync removes the segments that are no longer needed. If it fails, the next batch says so.
        self.log.prepare(bytes) || self.log.sync().is_ok() && self.log.prepare(bytes)
    }

    fn marks(&self) -> Marks {
        *self.log.marks()
    }

    fn raise(&mut self, mark: usize, value: u64) {
        self.log.raise(mark, value);
    }

    fn watch(&self) -> Arc<dyn StoreWatch> {
        let folder = Arc::clone(&self.log.disk.files.folder);
        Arc::new(KeyedWatch { folder, failed: Arc::clone(&self.failed), newest: Arc::clone(&self.newest) })
    }

    fn moment(&self, values: &[TaskKey], records: &[TaskKey]) -> Arc<dyn StoreSnapshot> {
        let at = |space, key: &TaskKey| Some((*key, self.log.value(place_in(&self.places, space, key)?)?));
        let values = values.iter().filter_map(|key| at(Space::Values, key)).collect();
        let records = records.iter().filter_map(|key| at(Space::Tasks, key)).collect();
        Arc::new(KeyedSnapshot { folder: self.folder.clone(), values, records, reports: Arc::clone(&self.reports) })
    }

    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error> {
        self.guarded(|store| Ok(Box::new(store.log.backup()?) as Box<dyn StoreBackup>))
    }

    fn metrics(&self) -> LogMetrics {
        self.log.metrics()
    }

    fn damaged(&self, what: &str) -> Error {
        damaged(&self.folder, what)
    }
}
