//! Simulated folders of one device: power failures, short writes and failing calls, all decided by a seed.
//!
//! ```text
//! write ─► unsynced ─► sync ─► durable            a power failure keeps any subset of the unsynced sectors
//! name  ─► unsynced ─► sync of the folder         and any subset of the unsynced names
//! ```
//! A file that was not synced keeps its old length, or its new one with zeros or with old bytes of the device. A sync
//! that fails writes any subset of the unsynced sectors. Its pages read well until the power goes, and no later sync
//! writes them. When the power fails at a call, the call may have had its effect, and all later calls fail.

#![allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "a test that fails should say where")]

mod file;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::lock::Mutex;

use super::simulated_pages::FileState;
use crate::seeded_rng::SeededRng;
use crate::store::failure::errnos::ENOSPC;
use crate::store::fault::{Fault, planted};
use crate::store::folder::{DiskSpace, FileIdentity, Folder, LogFile};
use crate::store::notes::REPAIR as REPAIR_NOTE;

#[derive(Clone, Debug)]
enum NameStep {
    Set(Name, usize),
    Moved(Name, Name, usize),
    Removed(Name),
}

impl NameStep {
    /// The folder that it changes.
    fn folder(&self) -> u8 {
        match self {
            Self::Set(name, _) | Self::Moved(name, _, _) | Self::Removed(name) => name.0,
        }
    }
}

/// A folder and a name in it.
type Name = (u8, String);

/// The failures that a simulation may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    /// The call that fails, counted from now.
    pub(crate) at: Option<u64>,
    /// The error number of the failing call.
    pub(crate) errno: i32,
    /// Whether all later calls fail as well.
    pub(crate) lasting: bool,
    /// Whether the call fails because the power does. Lasting, and the call may have had its effect.
    pub(crate) power: bool,
}

#[derive(Debug)]
struct World {
    rng: SeededRng,
    sector: usize,
    files: Vec<FileState>,
    names: BTreeMap<Name, usize>,
    durable_names: BTreeMap<Name, usize>,
    steps: Vec<NameStep>,
    failures: Failures,
    calls: u64,
    /// The reads that fail, counted from the first one ever, and the number of their error.
    unread: (Range<u64>, i32),
    reads: u64,
    /// The new names for which the folder needs a block.
    dear_names: u64,
    space: u64,
    /// The bytes that another program takes.
    foreign: u64,
    /// Whether a file can have names in two folders.
    links: bool,
}

/// A folder of a simulated device. Clones are the same folder.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedFolder {
    world: Arc<Mutex<World>>,
    folder: u8,
    path: PathBuf,
}

#[derive(Debug)]
struct SimulatedFile {
    world: Arc<Mutex<World>>,
    file: usize,
    _handle: Arc<()>,
}

impl World {
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        let Some(at) = self.failures.at else { return Ok(()) };
        let lasts = self.failures.lasting || self.failures.power;
        if self.calls == at || (lasts && self.calls > at) {
            return Err(io::Error::from_raw_os_error(self.failures.errno));
        }
        Ok(())
    }

    /// A call that reads: for a time it may fail when no other call does.
    fn read(&mut self) -> io::Result<()> {
        self.reads += 1;
        let (unread, errno) = &self.unread;
        if unread.contains(&self.reads) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        self.call()
    }

    /// A call that changes something. If it fails because the power does, its effect may come, and the error after it.
    fn change(&mut self, effect: impl FnOnce(&mut Self)) -> io::Result<()> {
        let called = self.call();
        let in_flight = self.failures.power && self.failures.at == Some(self.calls) && self.rng.one_in(2);
        if called.is_ok() || in_flight {
            effect(self);
        }
        called
    }

    /// The bytes of all files that have a name or are open, and of another program.
    fn bytes(&self) -> u64 {
        let named: std::collections::BTreeSet<usize> = self.names.values().copied().collect();
        let files = self.files.iter().enumerate();
        let held = files.filter(|(at, file)| named.contains(at) || Arc::strong_count(&file.handles) > 1);
        self.foreign + held.map(|(_, file)| file.allocated()).sum::<u64>()
    }

    fn open(this: &Arc<Mutex<Self>>, world: &mut Self, file: usize) -> Arc<dyn LogFile> {
        let state = &mut world.files[file];
        state.opens += 1;
        Arc::new(SimulatedFile { world: Arc::clone(this), file, _handle: Arc::clone(&state.handles) })
    }

    fn apply(names: &mut BTreeMap<Name, usize>, step: &NameStep) {
        match step {
            NameStep::Set(name, file) => drop(names.insert(name.clone(), *file)),
            NameStep::Moved(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            NameStep::Removed(name) => drop(names.remove(name)),
        }
    }
}

impl SimulatedFolder {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = SeededRng(seed);
        let sector = if rng.one_in(2) { 512 } else { 4096 };
        Self::of(World {
            rng,
            sector,
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            steps: Vec::new(),
            failures: Failures::default(),
            calls: 0,
            unread: (0..0, 0),
            reads: 0,
            dear_names: 0,
            space: u64::MAX,
            foreign: 0,
            links: true,
        })
    }

    fn of(world: World) -> Self {
        Self { world: Arc::new(Mutex::new(world)), folder: 0, path: PathBuf::from("simulated/0") }
    }

    /// Another folder of the same device.
    pub(in crate::store) fn beside(&self, folder: u8) -> Self {
        Self { world: Arc::clone(&self.world), folder, path: PathBuf::from(format!("simulated/{folder}")) }
    }

    /// Whether files can have names in two folders.
    pub(in crate::store) fn have_links(&self, links: bool) {
        self.world.lock().links = links;
    }

    fn name(&self, name: &str) -> Name {
        (self.folder, name.to_owned())
    }

    /// Lets calls fail. `at` is counted from now.
    pub(crate) fn fail(&self, mut failures: Failures) {
        let mut world = self.world.lock();
        failures.at = failures.at.map(|at| at + world.calls);
        world.failures = failures;
    }

    /// Lets this many reads fail, after some others. Nothing else fails with them.
    pub(in crate::store) fn fail_reads(&self, after: u64, count: u64, errno: i32) {
        let mut world = self.world.lock();
        let first = world.reads + 1 + after;
        world.unread = (first..first.saturating_add(count), errno);
    }

    /// No read fails any more. Returns whether one has failed.
    pub(in crate::store) fn reads_succeed(&self) -> bool {
        let mut world = self.world.lock();
        let (unread, _) = std::mem::take(&mut world.unread);
        !unread.is_empty() && world.reads >= unread.start
    }

    /// The bytes of all files.
    pub(in crate::store) fn bytes(&self) -> u64 {
        self.world.lock().bytes()
    }

    /// The bytes of the files whose names end so.
    pub(in crate::store) fn bytes_of(&self, ending: &str) -> u64 {
        let world = self.world.lock();
        let named = world.names.iter().filter(|((_, name), _)| name.ends_with(ending));
        named.filter_map(|(_, &file)| world.files.get(file)).map(FileState::allocated).sum()
    }

    /// Another device with the same content. All is on it.
    pub(in crate::store) fn copy(&self) -> Self {
        let world = self.world.lock();
        let files = world.files.iter().map(|file| FileState {
            now: file.now.clone(),
            durable: file.now.clone(),
            holes: file.holes.clone(),
            durable_holes: file.holes.clone(),
            ..FileState::default()
        });
        let folder = self.folder;
        let copy = Self::of(World {
            rng: world.rng.clone(),
            sector: world.sector,
            files: files.collect(),
            names: world.names.clone(),
            durable_names: world.names.clone(),
            steps: Vec::new(),
            failures: Failures::default(),
            calls: 0,
            unread: (0..0, 0),
            reads: 0,
            dear_names: 0,
            space: u64::MAX,
            foreign: world.foreign,
            links: world.links,
        });
        copy.beside(folder)
    }

    /// Cuts a file.
    pub(in crate::store) fn truncate(&self, name: &str, length: usize) {
        let mut world = self.world.lock();
        let Some(&file) = world.names.get(&self.name(name)) else { return };
        if let Some(file) = world.files.get_mut(file) {
            file.now.truncate(length);
            file.durable.truncate(length);
        }
    }

    /// The folder needs a block for each of so many new names of segments.
    pub(in crate::store) fn need_blocks(&self, names: u64) {
        self.world.lock().dear_names = names;
    }

    /// Limits the space of the device.
    pub(in crate::store) fn limit(&self, bytes: u64) {
        self.world.lock().space = bytes;
    }

    /// Another program takes all but `left` bytes of the device.
    pub(in crate::store) fn fill(&self, left: u64) {
        self.make_room();
        let mut world = self.world.lock();
        world.foreign = world.space - world.bytes() - left;
    }

    /// The other program takes nothing any more.
    pub(in crate::store) fn make_room(&self) {
        self.world.lock().foreign = 0;
    }

    /// The power fails and comes back.
    pub(crate) fn power_failure(&self) {
        let mut world = self.world.lock();
        let World { rng, sector, files, names, durable_names, steps, failures, .. } = &mut *world;
        *failures = Failures::default();
        for step in steps.drain(..) {
            if rng.one_in(2) {
                World::apply(durable_names, &step);
            }
        }
        names.clone_from(durable_names);
        for file in files.iter_mut() {
            file.resize_perhaps(rng);
            file.write_some(rng, *sector);
            file.now.clone_from(&file.durable);
            file.holes.clone_from(&file.durable_holes);
        }
    }

    /// The process ends. The system stays. Returns the failures if a call has failed.
    pub(crate) fn process_ends(&self) -> Option<Failures> {
        let mut world = self.world.lock();
        let failures = std::mem::take(&mut world.failures);
        failures.at.is_some_and(|at| at <= world.calls).then_some(failures)
    }

    /// How often a file was opened since it was created.
    pub(in crate::store) fn opens(&self, name: &str) -> u32 {
        let world = self.world.lock();
        world.names.get(&self.name(name)).and_then(|&file| world.files.get(file)).map_or(0, |file| file.opens)
    }

    /// The durable names.
    pub(in crate::store) fn file_names(&self) -> Vec<String> {
        self.own_names(&self.world.lock())
    }

    fn own_names(&self, world: &World) -> Vec<String> {
        world.names.keys().filter(|(folder, _)| *folder == self.folder).map(|(_, name)| name.clone()).collect()
    }

    /// Changes a byte on the device and in memory.
    pub(in crate::store) fn rot(&self, name: &str, at: usize) -> bool {
        let mut world = self.world.lock();
        let Some(&file) = world.names.get(&self.name(name)) else { return false };
        let Some(file) = world.files.get_mut(file) else { return false };
        for bytes in [&mut file.now, &mut file.durable] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 0x20;
            }
        }
        true
    }

    /// From now on the device does not return this byte.
    pub(in crate::store) fn lose(&self, name: &str, at: usize) {
        let mut world = self.world.lock();
        let file = world.names[&self.name(name)];
        world.files[file].lost = Some(at);
    }

    /// The bytes of a file.
    pub(in crate::store) fn contents(&self, name: &str) -> Vec<u8> {
        let world = self.world.lock();
        world
            .names
            .get(&self.name(name))
            .and_then(|&file| world.files.get(file))
            .map_or_else(Vec::new, |file| file.now.clone())
    }
}

impl Folder for SimulatedFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut world = self.world.lock();
        world.call()?;
        Ok(self.own_names(&world))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let mut world = self.world.lock();
        let file = world.files.len();
        world.change(|world| {
            world.files.push(FileState::default());
            world.names.insert(self.name(name), file);
            world.steps.push(NameStep::Set(self.name(name), file));
        })?;
        Ok(World::open(&self.world, &mut world, file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let mut world = self.world.lock();
        world.read()?;
        let file = *world.names.get(&self.name(name)).ok_or(ErrorKind::NotFound)?;
        Ok(World::open(&self.world, &mut world, file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world.lock();
        let file = *world.names.get(&self.name(from)).ok_or(ErrorKind::NotFound)?;
        if to == REPAIR_NOTE && planted(Fault::RepairUnnoted) {
            return Ok(());
        }
        if world.dear_names > 0 && to.ends_with(".log") {
            if world.bytes() + 512 > world.space {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            world.dear_names -= 1;
        }
        world.change(|world| {
            world.names.remove(&self.name(from));
            world.names.insert(self.name(to), file);
            world.steps.push(NameStep::Moved(self.name(from), self.name(to), file));
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world.lock();
        if !world.names.contains_key(&self.name(name)) {
            return Err(ErrorKind::NotFound.into());
        }
        world.change(|world| {
            world.names.remove(&self.name(name));
            world.steps.push(NameStep::Removed(self.name(name)));
        })
    }

    fn link(&self, name: &str, from: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        let folder =
            from.file_name().and_then(|folder| folder.to_str()?.parse::<u8>().ok()).ok_or(ErrorKind::NotFound)?;
        let file = *world.names.get(&(folder, name.to_owned())).ok_or(ErrorKind::NotFound)?;
        if !world.links {
            return Err(ErrorKind::CrossesDevices.into());
        }
        world.change(|world| {
            world.names.insert(self.name(name), file);
            world.steps.push(NameStep::Set(self.name(name), file));
        })
    }

    fn identity(&self, name: &str) -> io::Result<FileIdentity> {
        let world = self.world.lock();
        let file = *world.names.get(&self.name(name)).ok_or(ErrorKind::NotFound)?;
        Ok(FileIdentity { inode: file as u64, birth: 0 })
    }

    fn sync(&self) -> io::Result<()> {
        if planted(Fault::FolderUnsynced) || planted(Fault::BackupUnsynced) && self.folder > 0 {
            return Ok(());
        }
        self.world.lock().change(|world| {
            let World { durable_names, steps, .. } = world;
            let own = steps.extract_if(.., |step| step.folder() == self.folder);
            own.for_each(|step| World::apply(durable_names, &step));
        })
    }

    fn probe(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let mut world = self.world.lock();
        world.call()?;
        let total = world.space;
        Ok(DiskSpace { free: total.saturating_sub(world.bytes()), total })
    }

    fn nonce(&self) -> io::Result<[u8; 16]> {
        let mut world = self.world.lock();
        let (high, low) = (world.rng.next(), world.rng.next());
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&high.to_le_bytes());
        nonce[8..].copy_from_slice(&low.to_le_bytes());
        Ok(nonce)
    }
}
