//! A store for tests, in memory. A crash loses its unsynced batches, and it fails on request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::lock::{Mutex, MutexGuard};
use crate::store::{
    AddsRefused, BackupReport, BackupTurn, Body, Error, IdleWork, LogMetrics, LostRecord, Marks, Space, Store,
    StoreBackup, StoreSnapshot, StoreWatch, TaskKey, Value, WriteBatch,
};

type Records = BTreeMap<(Space, Vec<u8>), Value>;

/// State shared by all handles of one store.
#[derive(Clone, Debug, Default)]
struct Content {
    /// The visible records.
    now: Arc<Records>,
    /// The records that every crash leaves.
    synced: Arc<Records>,
    /// Batches after `synced` with their marks, the oldest first. A crash leaves a prefix of them.
    unsynced: Vec<(WriteBatch, Marks)>,
    /// The marks, and those that every crash leaves.
    marks: Marks,
    synced_marks: Marks,
    /// The number of commits and syncs that succeed before one fails. `None`: all succeed.
    until_failure: Option<usize>,
    /// The size of each batch.
    batches: Vec<BatchSize>,
    syncs: usize,
    /// Values that have changed.
    rotten: BTreeSet<TaskKey>,
    /// Values that cannot be read at present.
    unread: BTreeSet<TaskKey>,
    /// Whether reads wait until this is taken back.
    holds_reads: bool,
    /// Rotten values that a reader has found, until the owner takes them.
    found: Vec<LostRecord>,
    adds_refused: Option<AddsRefused>,
    /// Whether backups continue until they are ended.
    holds_backups: bool,
    /// The bytes that the adds of a batch may have. `None`: any.
    adds_room: Option<u64>,
    /// The bytes for which a batch can be prepared. `None`: any.
    prepared_max: Option<u64>,
    /// How much of the idle work is left, after each batch that many pieces.
    idle: (usize, usize),
}

/// The size of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchSize {
    pub(crate) records: usize,
    /// Bytes of the bodies of its records.
    pub(crate) bytes: u64,
}

impl BatchSize {
    fn of(batch: &WriteBatch) -> Self {
        batch.clone().into_iter().fold(Self::default(), |Self { records, bytes }, record| {
            let body = match record.body {
                Body::Bytes(value) => value.len() as u64,
                Body::Removed | Body::SetAside => 0,
            };
            Self { records: records + 1, bytes: bytes + body }
        })
    }
}

/// A handle of a store. A test keeps a clone when the committer has the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeDisk {
    content: Arc<Mutex<Content>>,
}

impl FakeDisk {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A second store with the same content, which goes its own way from now on.
    pub(crate) fn copy(&self) -> Self {
        Self { content: Arc::new(Mutex::new(self.lock().clone())) }
    }

    /// Simulates a crash of the system: the first `left` of the unsynced batches remain.
    pub(crate) fn crash(&self, left: usize) {
        let mut content = self.lock();
        let left = left.min(content.unsynced.len());
        let mut records = Records::clone(&content.synced);
        let mut marks = content.synced_marks;
        for (batch, its) in content.unsynced.drain(..).take(left) {
            make(&mut records, batch);
            marks = its;
        }
        (content.marks, content.synced_marks) = (marks, marks);
        content.now = Arc::new(records);
        content.synced = Arc::clone(&content.now);
        content.until_failure = None;
    }

    /// Lets `count` more commits and syncs succeed, and all later ones fail.
    pub(crate) fn fail_after(&self, count: usize) {
        self.lock().until_failure = Some(count);
    }

    /// From now on the value of this task cannot be read.
    pub(crate) fn rot(&self, key: TaskKey) {
        self.lock().rotten.insert(key);
    }

    /// From now on the value of this task cannot be read, or it can again.
    pub(crate) fn unread(&self, key: TaskKey, is_unread: bool) {
        let unread = &mut self.lock().unread;
        if is_unread {
            unread.insert(key)
        } else {
            unread.remove(&key)
        };
    }

    /// From now on reads take until this is taken back.
    pub(crate) fn hold_reads(&self, is_held: bool) {
        self.lock().holds_reads = is_held;
    }

    /// The values of these tasks are found lost.
    pub(crate) fn lose(&self, keys: &[TaskKey]) {
        let lost = keys.iter().map(|key| LostRecord { space: Space::Values, key: *key });
        self.lock().found.extend(lost);
    }

    /// From now on adds are refused for this reason, or no longer.
    pub(crate) fn refuse_adds(&self, why: Option<AddsRefused>) {
        self.lock().adds_refused = why;
    }

    /// From now on a backup continues until its turn ends it, or until this is taken back.
    pub(crate) fn hold_backups(&self, is_held: bool) {
        self.lock().holds_backups = is_held;
    }

    /// From now on the adds of a batch may have this many bytes.
    pub(crate) fn bound_adds(&self, bytes: u64) {
        self.lock().adds_room = Some(bytes);
    }

    /// From now on no batch with more bytes than this can be prepared.
    pub(crate) fn bound_prepared(&self, bytes: u64) {
        self.lock().prepared_max = Some(bytes);
    }

    /// From now on each batch leaves this many pieces of idle work.
    pub(crate) fn leave_idle_work(&self, pieces: usize) {
        self.lock().idle = (pieces, pieces);
    }

    /// The pieces of idle work that are left.
    pub(crate) fn idle_work(&self) -> usize {
        self.lock().idle.0
    }

    /// The number of unsynced batches.
    pub(crate) fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// The numbers of commits and of syncs so far.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let content = self.lock();
        (content.batches.len(), content.syncs)
    }

    /// The sizes of the batches after the first `count`.
    pub(crate) fn batches_after(&self, count: usize) -> Vec<BatchSize> {
        self.lock().batches.get(count..).unwrap_or_default().to_vec()
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock()
    }
}

impl Content {
    fn try_once(&mut self) -> Result<(), Error> {
        match &mut self.until_failure {
            Some(0) => Err(failed()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn sync(&mut self) {
        self.syncs += 1;
        // A mark that was raised after the last batch is in no head yet.
        if let Some((_, marks)) = self.unsynced.drain(..).next_back() {
            self.synced_marks = marks;
        }
        self.synced = Arc::clone(&self.now);
    }
}

fn make(records: &mut Records, batch: WriteBatch) {
    for record in batch {
        let key = (record.space, record.key.to_vec());
        match record.body {
            Body::Bytes(value) => drop(records.insert(key, value)),
            Body::Removed | Body::SetAside => drop(records.remove(&key)),
        }
    }
}

impl Store for FakeDisk {
    fn found(&self, each: &mut dyn FnMut(&TaskKey)) {
        let now = Arc::clone(&self.lock().now);
        let keys = now.keys().filter(|(space, _)| *space == Space::Tasks);
        keys.filter_map(|(_, key)| TaskKey::try_from(&**key).ok()).for_each(|key| each(&key));
    }

    fn take(&mut self, space: Space, each: &mut dyn FnMut(&[u8], &[u8])) {
        let now = Arc::clone(&self.lock().now);
        now.iter().filter(|((at, _), _)| *at == space).for_each(|((_, key), value)| each(key, value));
    }

    fn lost(&mut self) -> Result<Vec<LostRecord>, Error> {
        Ok(std::mem::take(&mut self.lock().found))
    }

    fn is_repairing(&self) -> bool {
        false
    }

    fn commit(&mut self, batch: WriteBatch, sync: bool) -> Result<(), Error> {
        let mut content = self.lock();
        content.try_once()?;
        content.batches.push(BatchSize::of(&batch));
        for record in batch.clone() {
            if let (Space::Values, Ok(key)) = (record.space, TaskKey::try_from(&*record.key)) {
                content.rotten.remove(&key);
            }
        }
        content.idle.0 = content.idle.1;
        make(Arc::make_mut(&mut content.now), batch.clone());
        let marks = content.marks;
        content.unsynced.push((batch, marks));
        if sync {
            content.sync();
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        let mut content = self.lock();
        content.try_once()?;
        content.sync();
        Ok(())
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.sync()
    }

    fn work_idle(&mut self) -> Result<IdleWork, Error> {
        let mut content = self.lock();
        content.try_once()?;
        content.idle.0 = content.idle.0.saturating_sub(1);
        Ok(if content.idle.0 > 0 { IdleWork::More } else { IdleWork::Done })
    }

    fn has_idle_work(&self) -> bool {
        self.lock().idle.0 > 0
    }

    fn value_bytes(&self, key: &TaskKey) -> u64 {
        self.lock().now.get(&(Space::Values, key.to_vec())).map_or(0, |value| value.len() as u64)
    }

    fn adds_room(&self) -> Result<u64, AddsRefused> {
        let content = self.lock();
        content.adds_refused.map_or(Ok(content.adds_room.unwrap_or(u64::MAX)), Err)
    }

    fn prepare(&mut self, bytes: u64) -> bool {
        self.lock().prepared_max.is_none_or(|most| bytes <= most)
    }

    fn marks(&self) -> Marks {
        self.lock().marks
    }

    fn raise(&mut self, mark: usize, value: u64) {
        self.lock().marks.get_mut(mark).into_iter().for_each(|mark| *mark = value.max(*mark));
    }

    fn metrics(&self) -> LogMetrics {
        LogMetrics { refuses_adds: self.adds_room().is_err(), ..LogMetrics::default() }
    }

    fn watch(&self) -> Arc<dyn StoreWatch> {
        Arc::new(FakeWatch(self.clone()))
    }

    fn moment(&self, _: &[TaskKey], _: &[TaskKey]) -> Arc<dyn StoreSnapshot> {
        Arc::new(FakeSnapshot(Arc::clone(&self.lock().now), self.clone()))
    }

    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error> {
        self.sync()?;
        let synced = Arc::clone(&self.lock().synced);
        Ok(Box::new(FakeBackup(synced, self.clone())))
    }

    fn damaged(&self, what: &str) -> Error {
        damaged(what)
    }
}

/// A backup that only counts the bytes of the values in it.
struct FakeBackup(Arc<Records>, FakeDisk);

impl StoreBackup for FakeBackup {
    fn write_to(&self, to: &Path, turn: &mut dyn FnMut() -> BackupTurn) -> Result<BackupReport, Error> {
        loop {
            match turn() {
                BackupTurn::Continue if self.1.lock().holds_backups => std::thread::yield_now(),
                BackupTurn::Continue => break,
                BackupTurn::Cancel => return Err(Error::Cancelled(to.to_owned())),
                BackupTurn::Leave => return Err(Error::Left(to.to_owned())),
            }
        }
        let values = self.0.iter().filter(|((space, _), _)| *space == Space::Values);
        let bytes = values.map(|(_, value)| value.len() as u64).sum();
        Ok(BackupReport { segments: 1, linked: 0, copied: 1, bytes, ..BackupReport::default() })
    }
}

/// A watch that fails when the next commit will fail.
struct FakeWatch(FakeDisk);

impl StoreWatch for FakeWatch {
    fn check(&self) -> Result<(), Error> {
        match self.0.lock().until_failure {
            Some(0) => Err(failed()),
            Some(_) | None => Ok(()),
        }
    }
}

struct FakeSnapshot(Arc<Records>, FakeDisk);

impl StoreSnapshot for FakeSnapshot {
    fn get(&self, key: &TaskKey) -> Result<Option<Value>, Error> {
        while self.1.lock().holds_reads {
            std::thread::yield_now();
        }
        let mut content = self.1.lock();
        if content.unread.contains(key) {
            let (folder, segment, why) = (PathBuf::from("double"), "segment".to_owned(), "on purpose".to_owned());
            return Err(Error::Unread { folder, segment, why });
        }
        if content.rotten.contains(key) {
            content.found.push(LostRecord { space: Space::Values, key: *key });
            return Err(Error::SetAside(PathBuf::from("double")));
        }
        Ok(self.0.get(&(Space::Values, key.to_vec())).cloned())
    }

    fn record(&self, key: &TaskKey) -> Result<Option<Value>, Error> {
        Ok(self.0.get(&(Space::Tasks, key.to_vec())).cloned())
    }

    fn get_now(&self, key: &TaskKey) -> Option<Result<Option<Value>, Error>> {
        let content = self.1.lock();
        let is_on_disk = content.holds_reads || content.unread.contains(key) || content.rotten.contains(key);
        drop(content);
        (!is_on_disk).then(|| self.get(key))
    }

    fn bytes(&self, key: &TaskKey) -> usize {
        self.0.get(&(Space::Values, key.to_vec())).map_or(0, |value| value.len())
    }

    fn damaged(&self, what: &str) -> Error {
        damaged(what)
    }
}

fn damaged(what: &str) -> Error {
    Error::Damaged { folder: PathBuf::from("double"), what: what.to_owned() }
}

fn failed() -> Error {
    Error::Failed { folder: PathBuf::from("double"), why: "on purpose".to_owned() }
}
