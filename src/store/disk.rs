//! The store in a folder, kept by fjall: a journal to which batches are appended, and an LSM-tree for each space.
//!
//! Values of more than a few hundred bytes are in separate files beside the tree, so that merging small records does
//! not move them.
//!
//! This module starts no thread. fjall merges its trees in a thread of its own.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Readable, Slice,
    Snapshot,
};
use rustix::fs::statvfs;

use super::journal::{self, RepairError};
use super::{Error, Space, Store, StoreSnapshot, StoreWatch, WriteBatch};
use crate::descriptors::DescriptorBudget;

/// The name of fjall's thread that writes the trees.
const TREE_WRITER: &str = "fjall:worker";
/// With less free space than this a failed write counts as out of space: a file of a tree has up to 64 MiB.
const FULL_BYTES: u64 = 64 << 20;
/// A file that exists while batches may be unsynced when later ones are written.
const LAZY_FILE: &str = "lazy";
/// Permissions of the folder: all for its owner, none for others.
const FOLDER_MODE: u32 = 0o700;
/// The file that fjall locks as long as it has the store open.
const LOCK_FILE: &str = "lock";

/// A run of bytes that is cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(Slice);

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self(Slice::from(bytes))
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// State shared by all handles: the spaces and their folder.
struct Spaces {
    folder: PathBuf,
    keyspaces: [Keyspace; 3],
}

/// A store in a folder.
pub struct Disk {
    database: Database,
    spaces: Arc<Spaces>,
    commit_under_way: Arc<CommitUnderWay>,
}

impl Disk {
    /// Opens the store in `folder`, and makes the folder if it does not exist, for its owner alone.
    ///
    /// # Errors
    /// [`Error`] if the folder cannot be made, is in use, or is damaged.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        make(folder).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => Error::NoFolder { folder: folder.to_owned() },
            _ => explain_io(folder, &error),
        })?;
        mend(folder)?;
        let opened = catch_unwind(|| Self::open_mended(folder));
        opened.unwrap_or_else(|_| Err(damaged(folder, "it cannot be read")))
    }

    fn open_mended(folder: &Path) -> Result<Self, Error> {
        let explain = |error: fjall::Error| explain(folder, &error);
        let files = DescriptorBudget::now().store_files();
        let builder = Database::builder(folder).worker_threads(1).max_cached_files(Some(files));
        let builder = builder.journal_compression(CompressionType::None);
        let database = builder.open().map_err(explain)?;
        let space = |space: Space| database.keyspace(name(space), || options(space));
        let [meta, tasks, values] = Space::ALL.map(space);
        let keyspaces = [meta.map_err(explain)?, tasks.map_err(explain)?, values.map_err(explain)?];
        let spaces = Arc::new(Spaces { folder: folder.to_owned(), keyspaces });
        Ok(Self { database, spaces, commit_under_way: Arc::default() })
    }
}

/// Makes the folder if it does not exist, readable by its owner alone. Parent folders get the user's default
/// permissions.
fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(around) = folder.parent() {
        fs::create_dir_all(around)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made,
    }
}

/// Cuts off the remains of a torn last batch, while no process has the store open.
fn mend(folder: &Path) -> Result<(), Error> {
    let Ok(lock) = File::options().read(true).write(true).open(folder.join(LOCK_FILE)) else {
        return Ok(()); // the store is new
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(explain_io(folder, &error)),
    }
    match journal::mend(folder, folder.join(LAZY_FILE).exists()) {
        Ok(()) => Ok(()),
        Err(RepairError::Io(error)) => Err(explain_io(folder, &error)),
        Err(RepairError::Damaged { file, at }) => Err(damaged(folder, &format!("{} at byte {at}", file.display()))),
    }
}

fn name(space: Space) -> &'static str {
    match space {
        Space::Meta => "meta",
        Space::Tasks => "tasks",
        Space::Values => "values",
    }
}

fn options(space: Space) -> KeyspaceCreateOptions {
    let options = KeyspaceCreateOptions::default();
    match space {
        Space::Values => options.with_kv_separation(Some(KvSeparationOptions::default())),
        Space::Meta | Space::Tasks => options,
    }
}

impl Spaces {
    fn of(&self, space: Space) -> &Keyspace {
        let [meta, tasks, values] = &self.keyspaces;
        match space {
            Space::Meta => meta,
            Space::Tasks => tasks,
            Space::Values => values,
        }
    }

    fn damaged(&self, what: &str) -> Error {
        damaged(&self.folder, what)
    }
}

impl Store for Disk {
    fn scan(&self, space: Space, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Error> {
        for guard in self.spaces.of(space).iter() {
            let (key, value) = guard.into_inner().map_err(|error| explain(&self.spaces.folder, &error))?;
            each(&key, &value);
        }
        Ok(())
    }

    fn commit(&mut self, batch: WriteBatch, sync: bool) -> Result<(), Error> {
        let _end = self.commit_under_way.begin();
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut write = self.database.batch().durability(Some(mode));
        for item in batch {
            let keyspace = self.spaces.of(item.space);
            match item.value {
                Some(value) => write.insert(keyspace, item.key.0, value.0),
                None => write.remove(keyspace, item.key.0),
            }
        }
        write.commit().map_err(|error| explain(&self.spaces.folder, &error))
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.database.persist(PersistMode::SyncData).map_err(|error| explain(&self.spaces.folder, &error))
    }

    fn watch(&self) -> Arc<dyn StoreWatch> {
        Arc::new(HealthCheck {
            folder: self.spaces.folder.clone(),
            commit_under_way: Arc::clone(&self.commit_under_way),
        })
    }

    fn moment(&self) -> Arc<dyn StoreSnapshot> {
        Arc::new(DiskSnapshot { snapshot: self.database.snapshot(), spaces: Arc::clone(&self.spaces) })
    }

    fn set_lazy(&mut self, lazy: bool) -> Result<(), Error> {
        let folder = &self.spaces.folder;
        let path = folder.join(LAZY_FILE);
        if lazy == path.exists() {
            return Ok(());
        }
        let note = || {
            if lazy {
                File::create(&path)?.sync_all()?;
            } else {
                fs::remove_file(&path)?;
            }
            File::open(folder)?.sync_all()
        };
        self.database.persist(PersistMode::SyncAll).map_err(|error| explain(folder, &error))?;
        note().map_err(|error| explain_io(folder, &error))
    }

    fn damaged(&self, what: &str) -> Error {
        self.spaces.damaged(what)
    }
}

/// Whether a commit is under way. A commit waits while the trees are far behind the journal.
#[derive(Debug, Default)]
struct CommitUnderWay(AtomicBool);

impl CommitUnderWay {
    fn begin(&self) -> impl Drop + '_ {
        struct CommitEnd<'c>(&'c CommitUnderWay);
        impl Drop for CommitEnd<'_> {
            fn drop(&mut self) {
                // Relaxed: the flag only says that a check is useful. It publishes no data.
                self.0.0.store(false, Ordering::Relaxed);
            }
        }
        self.0.store(true, Ordering::Relaxed);
        CommitEnd(self)
    }
}

/// Checks whether the thread that writes the trees has died while a commit waits for it.
struct HealthCheck {
    folder: PathBuf,
    commit_under_way: Arc<CommitUnderWay>,
}

impl StoreWatch for HealthCheck {
    fn check(&self) -> Result<(), Error> {
        if !self.commit_under_way.0.load(Ordering::Relaxed) || has_thread(TREE_WRITER) {
            return Ok(());
        }
        if is_full(&self.folder) {
            return Err(Error::Full { folder: self.folder.clone() });
        }
        Err(failed(&self.folder, "the thread that writes the trees has failed; the next start makes up for it"))
    }
}

/// Whether this process has a thread with this name. True if that cannot be determined.
fn has_thread(name: &str) -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return true };
    let is_it = |comm: String| comm.trim_end() == name;
    threads.flatten().any(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(is_it))
}

/// A snapshot of the store.
struct DiskSnapshot {
    snapshot: Snapshot,
    spaces: Arc<Spaces>,
}

impl StoreSnapshot for DiskSnapshot {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Value>, Error> {
        let found = self.snapshot.get(self.spaces.of(space), key);
        found.map(|value| value.map(Value)).map_err(|error| explain(&self.spaces.folder, &error))
    }

    fn damaged(&self, what: &str) -> Error {
        self.spaces.damaged(what)
    }
}

/// Whether so little space is left that a write may have failed for want of it.
fn is_full(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|space| space.f_bavail * space.f_frsize < FULL_BYTES)
}

fn damaged(folder: &Path, what: &str) -> Error {
    Error::Damaged { folder: folder.to_owned(), what: what.to_owned() }
}

/// Converts an error of fjall.
fn explain(folder: &Path, error: &fjall::Error) -> Error {
    match error {
        fjall::Error::Locked => Error::InUse { folder: folder.to_owned() },
        fjall::Error::Io(error) => explain_io(folder, error),
        fjall::Error::Poisoned if is_full(folder) => Error::Full { folder: folder.to_owned() },
        fjall::Error::Poisoned => failed(folder, "an earlier write has failed"),
        other => damaged(folder, &other.to_string()),
    }
}

fn explain_io(folder: &Path, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::Full { folder: folder.to_owned() },
        _ => failed(folder, &error.to_string()),
    }
}

fn failed(folder: &Path, why: &str) -> Error {
    Error::Failed { folder: folder.to_owned(), why: why.to_owned() }
}
