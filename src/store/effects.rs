//! The owner of a log of effects: batches of encoded records, one for each epoch, and the copies that they carry.
//!
//! ```text
//! epoch closed ─► begin_epoch ─► copies of the oldest segment, as the caller judges them ─► batch ─► sync
//! ```
//! Nothing of a record is kept in memory. What is live is the caller's knowledge, which may be newer than the disk; so a
//! segment goes two epochs after it was judged (`log/segments.rs`).
//!
//! This module judges no record.

use std::path::Path;
use std::sync::Arc;

use super::backup::Backup;
use super::encoded::EncodedRecords;
use super::errors::Error;
use super::folder::Folder;
use super::format::LogKind;
use super::format::{Marks, Space};
use super::log::admission::AddsRefused;
use super::log::chores::ChoreMode;
use super::log::cleaning::copies::{Liveness, RecordJudge};
use super::log::share::DiskMember;
use super::log::{Log, LogConfig};
use super::metrics::LogMetrics;
use super::opening::effects::{EffectOwner, EffectReader};
use super::opening::{OpenOptions, Opened, open_effects, peek};
use super::record::RecordBatch;
use super::segment::Place;
use super::{RealFolder, StoreConfig};
#[cfg(test)]
use super::{log::share::SharedDisk, tests::simulated_disk::SimulatedFolder};
use crate::descriptors::DescriptorBudget;

/// How often a batch is tried for which no segment can be laid out. Each try follows a sync, which removes the segments
/// that are no longer needed.
const TRIES_MAX: u32 = 3;

/// What a caller says of a record in the oldest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectState {
    /// It counts, and is copied.
    Live,
    /// It counts no more, or the caller has recorded its state anew.
    Dead,
}

/// Judges the records of the oldest segment.
pub trait EffectJudge {
    /// Whether a record counts.
    fn judge(&mut self, space: Space, key: &[u8]) -> EffectState;

    /// The records of these keys, [`LOOK_AHEAD`](crate::limits::LOOK_AHEAD) at most, are judged next.
    fn foresee(&mut self, _keys: &mut dyn Iterator<Item = (Space, &[u8])>) {}

    /// The bytes of this record are lost. What it says is recorded anew in the open epoch.
    fn lost(&mut self, space: Space, key: &[u8]);

    /// The keys of records are lost, so that they cannot be judged: all that counts is recorded anew in the open epoch.
    /// Returns whether that was done.
    fn all_lost(&mut self) -> bool;
}

/// Has the owner of effects judge what may be copied. What is live has no place.
struct CopyJudge<'j>(&'j mut dyn EffectJudge);

impl RecordJudge for CopyJudge<'_> {
    fn judge(&mut self, space: Space, key: &[u8], _: Option<Place>) -> Liveness {
        match self.0.judge(space, key) {
            EffectState::Live => Liveness::Live,
            EffectState::Dead => Liveness::Dead,
        }
    }

    fn foresee(&mut self, keys: &mut dyn Iterator<Item = (Space, &[u8])>) {
        self.0.foresee(keys);
    }
}

/// The folder of a log of effects, locked.
#[derive(Debug)]
pub struct EffectFolder {
    folder: Arc<dyn Folder>,
    options: OpenOptions,
    share: DiskMember,
}

impl EffectFolder {
    /// Locks the folder, and makes it and the one around it if they do not exist, for their owner alone. The log shares its
    /// disk as a member.
    ///
    /// # Errors
    /// [`Error`] if the folder cannot be made, or is in use.
    pub fn lock(folder: &Path, config: StoreConfig, share: DiskMember) -> Result<Self, Error> {
        let folder: Arc<dyn Folder> = Arc::new(RealFolder::lock_below(folder)?);
        let files = DescriptorBudget::now().store_files();
        let StoreConfig { segment_bytes, max_disk, repair, copied } = config;
        let config = LogConfig { kind: LogKind::Effects, segment_bytes, files, max_disk };
        Ok(Self { folder, options: OpenOptions { config, repair, copied, chores: ChoreMode::Thread }, share })
    }

    /// The same on a simulated device. The caller writes segments and removes them.
    #[cfg(test)]
    pub(crate) fn simulated(folder: &SimulatedFolder, segment_bytes: u64) -> Self {
        let config = LogConfig { kind: LogKind::Effects, segment_bytes, files: 3, max_disk: None };
        let options = OpenOptions { config, repair: false, copied: false, chores: ChoreMode::Writer };
        let [share, _] = SharedDisk::members();
        Self { folder: Arc::new(folder.clone()), options, share }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Passes the records of the newest segment that has some.
    ///
    /// # Errors
    /// [`Error`] if the folder cannot be read, is damaged, or was written by another version.
    pub fn peek(&self, reader: &mut dyn EffectReader) -> Result<(), Error> {
        peek(&self.folder, self.options, reader)
    }

    /// Opens the log. The owner takes all of its records, from so many threads.
    ///
    /// # Errors
    /// As [`EffectFolder::peek`].
    pub fn open(&self, owner: Arc<dyn EffectOwner>, readers: usize) -> Result<EffectStore, Error> {
        let is_copied = self.options.copied;
        let mut store = EffectStore::of(open_effects(&self.folder, self.options, owner, readers)?, is_copied);
        store.log.share_disk(self.share.clone());
        Ok(store)
    }
}

/// A log of effects that one thread writes.
#[derive(Debug)]
pub struct EffectStore {
    log: Log,
    /// What the opening reports to the operator.
    notes: Vec<String>,
    /// Whether the last server wrote this very log, and all of it is here.
    is_continued: bool,
    anew: RecordedAnew,
}

/// How much is recorded anew, since a list of keys in the oldest segment is lost. A change that follows is recorded anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecordedAnew {
    /// No list is lost.
    #[default]
    Nothing,
    /// The caller is at work.
    Some,
    /// The segment can go with the next batch that finds room.
    All,
}

impl EffectStore {
    /// The store of an opened log.
    pub(in crate::store) fn of(opened: Opened, is_copied: bool) -> Self {
        let Opened { log, lost, harmless, was_backup, mut notes, .. } = opened;
        let is_continued = !was_backup && !is_copied && lost.is_empty();
        notes.extend(lost.iter().map(|what| format!("{what} is lost")));
        notes.extend(harmless.iter().map(|what| format!("{what}: nothing is lost by it; look at the device")));
        if was_backup {
            notes.push("this was a backup: versions continue far above those in it".to_owned());
        }
        Self { log, notes, is_continued, anew: RecordedAnew::Nothing }
    }

    /// The reports of the opening for the operator.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the last server wrote this very log, and all of it is here. A backup, a copy and a repaired log are not
    /// continued.
    #[must_use]
    pub fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// Writes the records of an epoch that is closed, behind copies. `live` is the number of bytes of all records that
    /// count. The buffers come back empty of records, with their memory.
    ///
    /// # Errors
    /// [`Error`]: the content of the disk is unknown then, and the log takes nothing more.
    pub fn append(
        &mut self,
        epoch: &mut Vec<EncodedRecords>,
        live: u64,
        judge: &mut dyn EffectJudge,
    ) -> Result<(), Error> {
        self.log.begin_epoch();
        self.log.set_live_bytes(live);
        let mut own = RecordBatch { encoded: std::mem::take(epoch), ..RecordBatch::default() };
        let written = self.write(&mut own, judge);
        *epoch = std::mem::take(&mut own.encoded);
        self.log.set_live_bytes(live);
        written
    }

    fn write(&mut self, own: &mut RecordBatch, judge: &mut dyn EffectJudge) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            // The last try is without copies: a large one may be what finds no room.
            let written = match tries == TRIES_MAX {
                true => self.log.append(own).map(drop),
                false => self.write_with_copies(own, judge),
            };
            match written {
                Err(Error::NoRoom(folder)) if tries == TRIES_MAX => return Err(Error::Full(folder)),
                Err(Error::NoRoom(_)) => self.log.sync()?,
                written => return written,
            }
            tries += 1;
        }
    }

    fn write_with_copies(&mut self, own: &mut RecordBatch, judge: &mut dyn EffectJudge) -> Result<(), Error> {
        let copies = self.log.copies(own, &mut CopyJudge(judge))?;
        let mut batch = copies.batch;
        for (space, key, _) in &copies.set_aside {
            judge.lost(*space, key);
        }
        batch.records.retain(|record| {
            !copies.set_aside.iter().any(|(space, key, _)| (*space, key) == (record.space, &record.key))
        });
        let has_lost = !copies.unreadable.is_empty();
        if has_lost && !self.records_anew(judge) {
            // The segment stays, and is looked at again with the next batch.
            batch = RecordBatch::default();
        }
        if copies.is_apart {
            self.log.append(&std::mem::take(&mut batch))?;
        }
        batch.encoded = std::mem::take(&mut own.encoded);
        let written = self.log.append(&batch).map(drop);
        own.encoded = batch.encoded;
        if has_lost && self.anew == RecordedAnew::All && written.is_ok() {
            self.anew = RecordedAnew::Nothing;
        }
        written
    }

    /// Has all that counts recorded anew, since a list of keys is lost. Returns whether that is done.
    fn records_anew(&mut self, judge: &mut dyn EffectJudge) -> bool {
        let folder = self.log.disk.files.folder.path().display();
        if self.anew == RecordedAnew::Nothing {
            tracing::warn!("{folder}: a list of keys in the oldest segment is lost: all that counts is recorded anew");
            self.anew = RecordedAnew::Some;
        }
        if self.anew == RecordedAnew::Some && judge.all_lost() {
            tracing::warn!("{folder}: all that counts has been recorded anew, and the segment can go");
            self.anew = RecordedAnew::All;
        }
        self.anew == RecordedAnew::All
    }

    /// Has all batches on disk.
    ///
    /// # Errors
    /// As [`EffectStore::append`].
    pub fn sync(&mut self) -> Result<(), Error> {
        self.log.sync()
    }

    /// Has a later opening know that all batches are on disk.
    ///
    /// # Errors
    /// As [`EffectStore::append`].
    pub fn rest(&mut self) -> Result<(), Error> {
        self.log.rest()
    }

    /// Whether there is space to give back, for which epochs without records are worth their batches.
    #[must_use]
    pub fn may_shrink(&self) -> bool {
        self.log.may_shrink() && !self.log.waits_for_reads()
    }

    /// Whether another [`EffectStore::rest`] is due later, see [`Log::waits_for_files`].
    #[must_use]
    pub fn waits_for_files(&self) -> bool {
        self.log.waits_for_files()
    }

    /// The bytes that may be stored in the next epoch.
    ///
    /// # Errors
    /// Why nothing may be stored at present.
    pub fn adds_room(&self) -> Result<u64, AddsRefused> {
        self.log.adds_room()
    }

    /// The high-water marks.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        self.log.marks()
    }

    /// Raises a high-water mark. It is on disk with the next synced batch.
    pub fn raise(&mut self, mark: usize, value: u64) {
        self.log.raise(mark, value);
    }

    /// The metrics of the log.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        self.log.metrics()
    }

    /// Syncs all batches, and returns a backup of them.
    ///
    /// # Errors
    /// As [`EffectStore::append`].
    pub fn backup(&mut self) -> Result<Backup, Error> {
        self.log.backup()
    }
}
