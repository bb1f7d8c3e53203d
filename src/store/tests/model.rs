//! A log on a simulated device, its owner, and a model of what the log must hold. The histories of the other files run
//! on it.
//!
//! ```text
//! open ─► batches, syncs, copies, idling … ─► power failure, end of the process, or a failing call ─► open …
//! ```
//! After each opening the log holds the state after one of the batches that were written, and none before the last
//! batch that was acknowledged. A value that has rotted is there, and cannot be read.

#![allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(in crate::store) use super::owner::Owner;
use super::simulated_disk::{Failures, SimulatedFolder};
use crate::seeded_rng::SeededRng;
use crate::store::failure::errnos::{EACCES, EIO, EMFILE, ENOMEM, ENOSPC};
use crate::store::fault::Fault;
use crate::store::segment::name_of;
use crate::store::*;

/// Bytes of a segment in [`open_in`].
pub(in crate::store) const SEGMENT_BYTES: u64 = 16 << 10;

/// The error numbers that calls fail with.
const ERRNOS: [i32; 4] = [EIO, ENOSPC, EMFILE, EACCES];

pub(in crate::store) type RecordKey = (Space, Vec<u8>);
pub(in crate::store) type State = BTreeMap<RecordKey, Vec<u8>>;

pub(in crate::store) struct History {
    pub(in crate::store) seed: u64,
    pub(in crate::store) rng: SeededRng,
    pub(in crate::store) folder: SimulatedFolder,
    /// The state after each batch since the last opening, the first one before all.
    pub(in crate::store) states: Vec<State>,
    /// The index of the last acknowledged state.
    pub(in crate::store) acknowledged: usize,
    pub(in crate::store) mark: u64,
    written_mark: u64,
    pub(in crate::store) acknowledged_mark: u64,
    pub(in crate::store) config: LogConfig,
    chores: ChoreMode,
    /// Whether values rot while the log runs.
    pub(in crate::store) rots: bool,
    /// Values that have rotted, with their right bodies.
    pub(in crate::store) rotten: BTreeSet<(RecordKey, Vec<u8>)>,
    /// Batches that were refused for want of a segment.
    pub(in crate::store) without_room: u32,
    /// Segments that are gone although older ones are there.
    pub(in crate::store) gaps: u32,
}

/// A state that was read. The body of a value that cannot be read is `None`.
pub(in crate::store) type Found = BTreeMap<RecordKey, Option<Vec<u8>>>;

/// Reads all records of an opened log, in the order of keys: each seed is then one history.
pub(in crate::store) fn read_all(opened: &mut Opened) -> Result<(Found, BTreeMap<RecordKey, Place>), Error> {
    let (mut found, mut places) = (Found::new(), BTreeMap::new());
    for space in Space::ALL {
        for (key, winner) in opened.winners.all(space) {
            let body = match winner.body {
                Some(body) => Some(body),
                None => match opened.log.value(winner.place).expect("a winner is in use").read() {
                    Ok(body) => Some(body),
                    Err(Error::Rotten { .. } | Error::SetAside { .. }) => None,
                    Err(error) => return Err(error),
                },
            };
            found.insert((space, key.to_vec()), body.map(|body| body.to_vec()));
            places.insert((space, key.to_vec()), winner.place);
        }
    }
    Ok((found, places))
}

impl History {
    pub(in crate::store) fn new(seed: u64) -> Self {
        let mut rng = SeededRng(seed);
        let segment_bytes = [4096, 8192, 16_384][rng.below(3) as usize];
        let chores = if rng.one_in(2) { ChoreMode::Writer } else { ChoreMode::Queue };
        Self {
            seed,
            rng,
            folder: SimulatedFolder::new(seed ^ 0x5eed),
            states: vec![State::new()],
            acknowledged: 0,
            mark: 0,
            written_mark: 0,
            acknowledged_mark: 0,
            config: LogConfig { kind: LogKind::States, segment_bytes, files: 3, max_disk: None },
            chores,
            rots: false,
            rotten: BTreeSet::new(),
            without_room: 0,
            gaps: 0,
        }
    }

    /// The state after all batches.
    pub(in crate::store) fn last_state(&self) -> &State {
        self.states.last().expect("a state")
    }

    /// Whether what was found is this state, apart from values that have rotted.
    pub(in crate::store) fn is_state(&self, found: &Found, state: &State) -> bool {
        let is_body = |key: &RecordKey, body: &Vec<u8>, found: &Option<Vec<u8>>| match found {
            Some(found) => found == body,
            None => self.rotten.contains(&(key.clone(), body.clone())),
        };
        let mut pairs = state.iter().zip(found);
        found.len() == state.len() && pairs.all(|((key, body), (at, found))| key == at && is_body(key, body, found))
    }

    /// Opens any folder as a log of this history.
    pub(in crate::store) fn open_folder(&self, folder: &SimulatedFolder, repair: bool) -> Result<Opened, Error> {
        let folder: Arc<dyn Folder> = Arc::new(folder.clone());
        open(&folder, OpenOptions { config: self.config, repair, copied: false, chores: self.chores })
    }

    pub(in crate::store) fn open(&mut self) -> Result<Owner, Error> {
        let mut opened = self.open_folder(&self.folder, false)?;
        assert_eq!(opened.lost, Vec::<String>::new());
        let (state, places) = read_all(&mut opened)?;
        let log = opened.log;
        let found = self.states.iter().rposition(|known| self.is_state(&state, known));
        let Some(found) = found.filter(|found| *found >= self.acknowledged) else {
            let (seed, all) = (self.seed, self.states.len());
            panic!("seed {seed}: {found:?} was found, {} of {all} was acknowledged", self.acknowledged);
        };
        assert!(log.marks()[0] >= self.acknowledged_mark, "seed {}: a mark went back", self.seed);
        let listed = log.set_aside().count();
        assert_eq!(listed, places.values().filter(|place| place.is_set_aside()).count(), "seed {}", self.seed);
        self.states = vec![self.states.swap_remove(found)];
        self.acknowledged = 0;
        self.mark = log.marks()[0];
        (self.written_mark, self.acknowledged_mark) = (self.mark, self.mark);
        let tasks = state.into_iter().filter(|((space, _), _)| *space == Space::Tasks);
        let known = tasks.filter_map(|(key, body)| Some((key, Value::from(body?)))).collect();
        Ok(Owner { places, known, ..Owner::new(log) })
    }

    fn batch(&mut self, refused: bool) -> RecordBatch {
        let mut records = Vec::new();
        for _ in 0..self.rng.below(6) {
            let space = [Space::Meta, Space::Tasks, Space::Values, Space::Values][self.rng.below(4) as usize];
            let key = self.rng.below(12).to_be_bytes();
            let length = match self.rng.below(40) {
                0 => self.rng.below(40_000),
                1..=10 => self.rng.below(3_000),
                11..=15 => 0,
                _ => self.rng.below(200),
            };
            let byte = self.rng.next() as u8;
            let before = self.last_state().get(&(space, key.to_vec())).map(Vec::len);
            let is_small = |before: &usize| refused && space == Space::Tasks && *before < 1_000;
            let body = match before.filter(is_small) {
                // A state is stored again.
                Some(before) if byte > 99 => Body::Bytes(Value::from(vec![byte; before])),
                _ if self.rng.one_in(3) || refused => Body::Removed,
                _ => Body::Bytes(Value::from(vec![byte; length as usize])),
            };
            records.push(Record { space, key: key[..].into(), body });
        }
        RecordBatch::from(records)
    }

    /// Writes a batch, with copies in front of it. It may be found after a crash from the moment on at which its
    /// writing begins.
    pub(in crate::store) fn commit(&mut self, owner: &mut Owner, batch: RecordBatch, idle: bool) -> Result<(), Error> {
        let mut state = self.last_state().clone();
        for Record { space, key, body } in &batch.records {
            let key = (*space, key.to_vec());
            match body {
                Body::Bytes(body) => drop(state.insert(key, body.to_vec())),
                Body::Removed => drop(state.remove(&key)),
                // The record is there, and its body was known to have rotted.
                Body::SetAside => {}
            }
        }
        self.states.push(state);
        let drops = !idle && self.rng.one_in(6);
        match owner.commit(batch, idle, drops) {
            Err(Error::NoRoom { .. }) => {
                self.without_room += 1;
                self.states.pop();
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.written_mark = self.mark;
                Ok(())
            }
        }
    }

    pub(in crate::store) fn acknowledge(&mut self) {
        self.acknowledged = self.states.len() - 1;
        self.acknowledged_mark = self.acknowledged_mark.max(self.written_mark);
    }

    /// Forgets the states before the last acknowledged one: none of them can be found.
    pub(in crate::store) fn forget_older(&mut self) {
        self.states.drain(..self.acknowledged);
        self.acknowledged = 0;
    }

    pub(in crate::store) fn step(&mut self, owner: &mut Owner) -> Result<(), Error> {
        match self.rng.below(16) {
            0 => owner.log.rest()?,
            1 if owner.log.may_shrink() => return self.commit(owner, RecordBatch::default(), true),
            2 => {
                self.mark += self.rng.below(100);
                owner.log.raise(0, self.mark);
                return Ok(());
            }
            12 | 13 => return self.read_values(owner),
            14 => {
                owner.log.chores.work_off();
                return Ok(());
            }
            15 if self.rots => {
                self.rot_a_value(owner);
                return Ok(());
            }
            3..=6 => owner.log.sync()?,
            _ => {
                let refused = owner.log.adds_refused().is_some();
                let batch = self.batch(refused);
                self.commit(owner, batch, false)?;
                if !self.rng.one_in(3) {
                    return Ok(());
                }
                owner.log.sync()?;
            }
        }
        self.acknowledge();
        Ok(())
    }

    /// A reader takes a value, or a holder reads its value and perhaps releases it.
    fn read_values(&mut self, owner: &mut Owner) -> Result<(), Error> {
        if owner.held.is_empty() || self.rng.one_in(2) {
            let index = self.rng.below(owner.places.len().max(1) as u64) as usize;
            if let Some((key, place)) = owner.places.iter().nth(index) {
                let value = owner.log.value(*place).expect("it is in use");
                owner.held.push((value, key.clone(), self.last_state()[key].clone()));
            }
            return Ok(());
        }
        let index = self.rng.below(owner.held.len() as u64) as usize;
        let (value, key, body) = owner.held[index].clone();
        if self.rng.one_in(2) {
            owner.held.swap_remove(index);
        }
        match value.read() {
            Ok(read) => assert!(read == Value::from(&body[..]), "seed {}: another body", self.seed),
            Err(Error::Rotten { .. } | Error::SetAside { .. }) => {
                assert!(self.rotten.contains(&(key.clone(), body)), "seed {}: it has not rotted", self.seed);
                // A reader found it before the cleaner did.
                if owner.places.get(&key) == Some(&value.place) {
                    let record = Record { space: key.0, key: key.1.into(), body: Body::SetAside };
                    return self.commit(owner, vec![record].into(), false);
                }
            }
            Err(error) if error.may_pass() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A value in a closed segment rots.
    fn rot_a_value(&mut self, owner: &Owner) {
        let newest = owner.log.written_segment();
        let is_old =
            |(key, place): &(&RecordKey, &Place)| key.0 == Space::Values && place.length > 0 && place.segment < newest;
        let old: Vec<_> = owner.places.iter().filter(is_old).collect();
        let Some((key, place)) = old.get(self.rng.below(old.len() as u64) as usize) else { return };
        let at = u64::from(place.offset) + self.rng.below(u64::from(place.length));
        let body = self.last_state()[*key].clone();
        self.folder.rot(&name_of(place.segment), at as usize);
        self.rotten.insert(((*key).clone(), body));
    }

    /// Has a call fail, or the power at a call.
    pub(in crate::store) fn fail_a_call(&mut self, within: u64) {
        let at = 1 + self.rng.below(within);
        let errno = ERRNOS[self.rng.below(ERRNOS.len() as u64) as usize];
        let (lasting, power) = (self.rng.one_in(2), self.rng.one_in(2));
        self.folder.fail(Failures { at: Some(at), errno, lasting, power });
    }

    /// Runs a history without failures. At its end everything is known synced.
    pub(in crate::store) fn run_and_rest(&mut self) {
        for _ in 0..4 {
            let mut owner = self.open().expect("nothing fails");
            for _ in 0..self.rng.below(60) {
                self.step(&mut owner).expect("nothing fails");
            }
            owner.log.rest().expect("nothing fails");
            self.acknowledge();
        }
    }

    /// Runs a history and returns the number of its openings.
    pub(in crate::store) fn run(&mut self) -> u32 {
        let (mut openings, mut limited) = (0, false);
        for _ in 0..8 {
            let fails = self.rng.one_in(3);
            if fails {
                self.fail_a_call(400);
            }
            if self.rng.one_in(5) {
                limited = true;
                self.folder.limit(self.folder.bytes() + self.rng.below(10) * self.config.segment_bytes);
            }
            if self.rng.one_in(4) {
                let errno = [EIO, EMFILE, ENOMEM][self.rng.below(3) as usize];
                self.folder.fail_reads(self.rng.below(60), 1 + self.rng.below(60), errno);
            }
            let failed = match self.open() {
                Ok(mut owner) => {
                    openings += 1;
                    let steps = self.rng.below(if limited { 160 } else { 80 });
                    let failed = (0..steps).find_map(|_| self.step(&mut owner).err());
                    self.gaps += u32::from(owner.log.heads.gaps.len() > 0);
                    failed
                }
                Err(error) => Some(error),
            };
            let failures = self.folder.process_ends();
            // An opening ends if a read fails again and again, and can be repeated.
            let unread = self.folder.reads_succeed() && failed.as_ref().is_some_and(is_of_a_read);
            self.judge(failed.filter(|_| !unread), failures, limited);
            if self.rng.one_in(3) {
                limited = false;
                self.folder.limit(u64::MAX);
            }
            if failures.is_some_and(|failures| failures.power) || self.rng.one_in(2) {
                self.folder.power_failure();
            }
            if self.rng.one_in(4) {
                self.check_copy();
            }
        }
        openings
    }

    /// An error must be that of the failing call.
    pub(in crate::store) fn judge(&self, failed: Option<Error>, failures: Option<Failures>, limited: bool) {
        if let Some(error) = failed.filter(|error| !(limited && matches!(error, Error::Full { .. }))) {
            let Some(failures) = failures else { panic!("seed {}: {error:?}", self.seed) };
            assert!(is_of(&error, failures.errno), "seed {}: {error:?} of {failures:?}", self.seed);
        }
    }

    /// A check finds no damage in the folder, except values that have rotted.
    pub(in crate::store) fn check_copy(&self) {
        let folder: Arc<dyn Folder> = Arc::new(self.folder.copy());
        let report = check(&folder).unwrap_or_else(|error| panic!("seed {}: {error:?}", self.seed));
        assert_eq!(report.damages, Vec::<String>::new(), "seed {}", self.seed);
        let changed = report.lost_values.len() as u64 + report.dead_values;
        assert!(changed == 0 || !self.rotten.is_empty(), "seed {}: {changed} values have changed", self.seed);
        assert_eq!(report.counts.live + report.counts.dead(), report.counts.records, "seed {}", self.seed);
    }
}

/// Whether the log names an error of a read so.
fn is_of_a_read(error: &Error) -> bool {
    matches!(error, Error::Device { .. } | Error::Descriptors { .. } | Error::Unread { .. } | Error::Failed { .. })
}

/// Whether the log names this error number so.
fn is_of(error: &Error, errno: i32) -> bool {
    match error {
        // A value that a test reads by itself.
        Error::Unread { .. } => true,
        Error::Device { .. } => errno == EIO,
        Error::Full { .. } => errno == ENOSPC,
        Error::Descriptors { .. } => errno == EMFILE,
        Error::Denied { .. } => errno == EACCES,
        _ => false,
    }
}

/// Opens a folder as a log of small segments, whose writer does its chores.
pub(in crate::store) fn open_in(folder: &SimulatedFolder, repair: bool) -> Result<Opened, Error> {
    let folder: Arc<dyn Folder> = Arc::new(folder.clone());
    let config = LogConfig { kind: LogKind::States, segment_bytes: SEGMENT_BYTES, files: 2, max_disk: None };
    open(&folder, OpenOptions { config, repair, copied: false, chores: ChoreMode::Writer })
}

/// A number from the environment.
pub(in crate::store) fn number_of_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// Runs `run` with each seed: `SPINDLE_HISTORIES` of them, or this many, from `SPINDLE_SEED` on. Returns their number
/// and the sum of what it returns.
pub(in crate::store) fn histories(count: u64, mut run: impl FnMut(u64) -> u32) -> (u64, u64) {
    let count = number_of_env("SPINDLE_HISTORIES").unwrap_or(count);
    let first = number_of_env("SPINDLE_SEED").unwrap_or(0);
    (count, (first..first + count).map(|seed| u64::from(run(seed))).sum())
}

/// Runs histories with each fault until one finds it, from `SPINDLE_SEED` on.
pub(in crate::store) fn find_planted(faults: &[Fault], seeds: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let (mut missed, first) = (Vec::new(), number_of_env("SPINDLE_SEED").unwrap_or(0));
    for fault in faults {
        fault::plant(Some(*fault));
        let found = (first..first + seeds).find(|seed| std::panic::catch_unwind(|| run(*seed)).is_err());
        fault::plant(None);
        println!("planted {fault:?}: found by seed {found:?}");
        if found.is_none() {
            missed.push(*fault);
        }
    }
    assert_eq!(missed, Vec::new());
}
