//! Durable tables: what the log holds is what clients saw at the end of an epoch.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::clock::ClockReading;
use crate::seeded_rng::SeededRng;
use crate::store::{EffectFolder, Error, SharedDisk, StoreConfig};
use crate::tables::durable::records::live_bytes;
use crate::tables::durable::state::LogStage;
use crate::tables::slot::SlotState;
use crate::tables::table::Table;
use crate::tables::{ChangeSink, Durability, EpochLog, LoadSettings, LoadedLog, LogClock, ManyProgress, Restored};

/// An element, with its deadline by the log's clock.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) value: Vec<u8>,
    pub(super) version: u64,
    pub(super) deadline: Option<u64>,
}

impl Element {
    /// Whether its deadline has not passed at this time of the wall clock.
    pub(super) fn is_alive(&self, wall: u64) -> bool {
        self.deadline.is_none_or(|deadline| deadline > wall)
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, version, deadline } = self;
        write!(out, "{} bytes {:?}, version {version}, deadline {deadline:?}", value.len(), value.first())
    }
}

/// All elements, by table and key.
pub(super) type Contents = BTreeMap<(Vec<u8>, Vec<u8>), Element>;

/// A server's life: tables with a log.
pub(super) struct Life {
    pub(super) background: BackgroundThreads,
    pub(super) session: Session,
    pub(super) log: EpochLog,
    /// The time of the log's clock at the start, in milliseconds.
    pub(super) start: u64,
    /// The clocks at the start.
    pub(super) begun: ClockReading,
}

/// The folder of a log with small segments.
pub(super) fn folder_of(path: &Path) -> EffectFolder {
    folder_within(path, None)
}

/// The same, with so much of the disk.
pub(super) fn folder_within(path: &Path, max_disk: Option<u64>) -> EffectFolder {
    let config = StoreConfig { segment_bytes: 16 << 10, max_disk, repair: false, copied: false };
    let [member, _] = SharedDisk::members();
    EffectFolder::lock(path, config, member).unwrap()
}

impl Life {
    /// Begins at this time of the wall clock, in milliseconds.
    pub(super) fn begin(folder: &EffectFolder, start: u64) -> Self {
        Self::try_to_begin(folder, ClockReading::from_millis(start)).unwrap()
    }

    pub(super) fn try_to_begin(folder: &EffectFolder, reading: ClockReading) -> Result<Self, Error> {
        Self::begin_with(folder, reading, |_| {})
    }

    /// The same, with tables that were prepared before anything is loaded.
    fn begin_with(folder: &EffectFolder, reading: ClockReading, prepare: impl FnOnce(&Tables)) -> Result<Self, Error> {
        let clock = LogClock::find(folder, reading)?;
        let start = clock.time();
        let (tables, mut background) = Tables::new(TablesConfig {
            clock_start: start,
            version_base: crate::tables::version_base(reading.wall * 1_000_000),
            ..settings()
        });
        prepare(&tables);
        let settings = LoadSettings { readers: 2, reading, progress: Box::new(|_, _| {}) };
        let LoadedLog { log, .. } = tables.load(&mut background.expiry, folder, clock, settings)?;
        tables.0.epochs.set_stage(LogStage::On);
        let session = tables.session();
        Ok(Self { background, session, log, start, begun: reading })
    }

    /// The clocks so many milliseconds after the start.
    pub(super) fn reading(&self, now: u64) -> ClockReading {
        let ClockReading { wall, up, boot } = self.begun;
        ClockReading { wall: wall + now, up: up + 1_000_000 * now, boot }
    }

    pub(super) fn write(&mut self, now: u64) {
        self.log.write(self.reading(now)).unwrap();
    }

    /// Another session.
    pub(super) fn another(&self) -> Session {
        Session::new(Arc::clone(self.session.shared()))
    }

    pub(super) fn publish(&mut self) {
        self.background.changes.drain(usize::MAX, &mut |_, _, _| {});
    }

    pub(super) fn publish_to(&mut self, sink: &mut dyn ChangeSink) {
        self.background.changes.drain_to(usize::MAX, sink);
    }

    /// What clients see at this time of the tables that an opening knows.
    pub(super) fn contents(&mut self, now: u64) -> Contents {
        self.contents_of(now, KEYS)
    }

    /// The same of so many keys.
    pub(super) fn contents_of(&mut self, now: u64, keys: u64) -> Contents {
        let tables = self.durabilities();
        tables.keys().flat_map(|table| self.elements_of(table.as_bytes(), now, keys)).collect()
    }

    /// The elements of these keys in a table.
    pub(super) fn elements_of(&mut self, name: &[u8], now: u64, keys: u64) -> Contents {
        let mut contents = Contents::new();
        let mut batch = self.session.batch(Now::from_millis(now));
        for key in (0..keys).map(key_of) {
            if let Ok(element) = batch.element(name, &key) {
                let deadline = element.deadline.map(|deadline| self.start + deadline);
                let element = Element { value: element.value.to_vec(), version: element.version, deadline };
                contents.insert((name.to_vec(), key), element);
            }
        }
        contents
    }

    /// The durability of each table that an opening knows. The bytes of the records that count are as many as the elements
    /// of the table have.
    pub(super) fn durabilities(&self) -> BTreeMap<String, Durability> {
        let (guard, catalog) = (epoch::pin(), &self.session.shared().catalog);
        let tables = catalog.tables(&guard).into_iter();
        let durable = tables.filter(|table| table.is_durable() && !table.durability.is_coming());
        durable
            .map(|table| {
                assert_eq!(table.logged(), logged(table), "{}", table.announced_name().escape_ascii());
                (table.announced_name().escape_ascii().to_string(), table.durability.kind())
            })
            .collect()
    }
}

/// Fails with the elements that differ.
pub(super) fn assert_same(found: &Contents, expected: &Contents, seed: u64) {
    let shown = |contents: &Contents, other: &Contents| -> Vec<String> {
        let differing = contents.iter().filter(|(key, element)| other.get(*key) != Some(*element));
        differing
            .map(|((table, key), element)| format!("{} {}: {element:?}", table.escape_ascii(), key.escape_ascii()))
            .collect()
    };
    assert_eq!(shown(found, expected), shown(expected, found), "seed {seed}");
}

/// The bytes of the records that count of all elements.
fn logged(table: &Table) -> i64 {
    let (guard, mut slots, mut next, mut sum) = (epoch::pin(), Vec::new(), Some(0), 0);
    let walk = table.index().walk(&guard);
    while let Some(position) = next {
        next = walk.read(position, &guard, |key| table.hash(key), &mut slots);
        for (_, slot) in &slots {
            if let SlotState::Live(entry) | SlotState::Expired(entry) = slot.load(&guard).state() {
                sum += live_bytes(slot.key().len(), entry.value().len(), entry.is_touched());
            }
        }
    }
    sum
}

pub(super) const KEYS: u64 = 12;

pub(super) fn key_of(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Makes a change of an element, a table, or a durability, which may be refused.
pub(super) fn step(life: &mut Life, rng: &mut SeededRng, now: u64) {
    let table = [&b"soon"[..], b"always", b"altered"][rng.below(3) as usize];
    change(life, rng, now, table, KEYS);
}

fn durability(rng: &mut SeededRng) -> Durability {
    [Durability::None, Durability::Soon, Durability::Always][rng.below(3) as usize]
}

/// The same of this table, which has so many keys.
pub(super) fn change(life: &mut Life, rng: &mut SeededRng, now: u64, table: &[u8], keys: u64) {
    let key = key_of(rng.below(keys));
    let mut batch = life.session.batch(Now::from_millis(now));
    let deadline = match rng.below(4) {
        0 => Deadline::after(batch.now(), Ttl::from_millis(1 + rng.below(400))),
        1 => Deadline::KEEP,
        _ => Deadline::NONE,
    };
    let length = [0, 10, 300, 3_000][rng.below(4) as usize];
    let done = match rng.below(20) {
        0..=10 => batch.update(table, &key, &vec![rng.below(256) as u8; length], deadline),
        11..=13 => batch.delete(table, &key).map(drop),
        14..=16 => batch.touch(table, &key, deadline),
        17 => batch.compare_and_swap(table, &key, 0, b"cas", deadline).map(drop),
        18 if rng.one_in(4) => batch.replace_table(table),
        18 if rng.one_in(4) => batch.delete_table(table),
        19 if table == b"altered" && rng.one_in(3) => {
            // Each step is one that a server may end behind.
            let (said, mut progress) = (durability(rng), ManyProgress::default());
            (0..rng.below(6)).try_for_each(|_| match batch.alter_table(table, said, &mut progress) {
                Err(Refusal::Unfinished) => Ok(()),
                outcome => outcome,
            })
        }
        _ => {
            let durability = match table {
                b"soon" => Durability::Soon,
                b"always" => Durability::Always,
                _ => durability(rng),
            };
            batch.create_table_with(table, table, None, Some(durability))
        }
    };
    let _refused = done;
}

/// The log had records of these keys with higher versions. So the next start took the restored elements for older ones.
#[test]
fn what_is_restored_behind_a_start_is_there_at_the_next_one() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = Life::begin(&folder, 1_000_000);
    let mut batch = life.session.batch(Now::from_millis(0));
    batch.create_table_with(b"soon", b"soon", None, Some(Durability::Soon)).unwrap();
    let deadlines = [Deadline::NONE, Deadline::after(batch.now(), Ttl::from_millis(10))];
    let versions = [0, 1].map(|key| {
        batch.update(b"soon", &key_of(key), b"old", deadlines[key as usize]).unwrap();
        batch.element(b"soon", &key_of(key)).unwrap().version
    });
    batch.delete(b"soon", &key_of(0)).unwrap();
    drop(batch);
    life.write(20);
    drop(life);
    let mut life = Life::begin(&folder, 1_000_100);
    let mut batch = life.session.batch(Now::from_millis(0));
    for (key, version) in (0..).zip(versions) {
        let restored = batch.restore(b"soon", &key_of(key), b"restored", version, Deadline::NONE);
        assert_eq!(restored, Ok(Restored::Anew), "the key had this version");
    }
    drop(batch);
    life.write(1);
    let contents = life.contents(1);
    assert_eq!(contents.len(), 2);
    drop(life);
    assert_same(&Life::begin(&folder, 1_000_200).contents(0), &contents, 0);
}

/// Runs lives that end without warning. Each begins with what the last epoch of the one before had. Returns how many elements
/// were found.
fn run(seed: u64) -> usize {
    let mut rng = SeededRng(seed);
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let (mut wall, mut expected, mut count) = (1_000_000, Contents::new(), 0);
    for _ in 0..4 {
        let mut life = Life::begin(&folder, wall);
        let found = life.contents(0);
        expected.retain(|_, element| element.is_alive(wall));
        assert_same(&found, &expected, seed);
        count += found.len();
        let mut now = 0;
        for _ in 0..rng.below(400) {
            now += rng.below(4);
            step(&mut life, &mut rng, now);
            if rng.one_in(8) {
                life.publish();
            }
            if rng.one_in(6) {
                life.write(now);
                expected = life.contents(now);
            }
        }
        wall += now + rng.below(100);
    }
    count
}

#[test]
fn a_server_begins_with_what_the_last_epoch_had() {
    let count: usize = (0..40).map(run).sum();
    assert!(count > 1_000, "{count} elements were found");
}

/// The file of the oldest segment, and of a record in it.
fn oldest_segment(folder: &Path) -> std::path::PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).min().unwrap()
}

/// Elements of some portions, of two tables. All but one are as old as the segment.
#[test]
fn a_lost_list_of_keys_is_recorded_anew_and_its_segment_goes() {
    const COLD: u64 = 9_000;
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = Life::begin(&folder, 1_000_000);
    for name in [&b"one"[..], b"two"] {
        let soon = Some(Durability::Soon);
        life.session.batch(Now::from_millis(0)).create_table_with(name, name, None, soon).unwrap();
    }
    let put = |life: &mut Life, name: &[u8], key: u64| {
        if key.is_multiple_of(64) {
            life.publish();
        }
        let mut batch = life.session.batch(Now::from_millis(0));
        batch.update(name, &key_of(key), &[7; 1_000], Deadline::NONE).unwrap();
    };
    for key in 0..COLD {
        put(&mut life, if key % 2 == 0 { b"one" } else { b"two" }, key);
        if key % 1_000 == 0 {
            life.write(0);
        }
    }
    life.write(0);
    let oldest = oldest_segment(path.path());
    let mut bytes = std::fs::read(&oldest).unwrap();
    let at = bytes.windows(5).position(|window| window == b"key 0").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&oldest, bytes).unwrap();
    for round in 0.. {
        (0..COLD / 8).for_each(|key| put(&mut life, b"one", 2 * key));
        life.write(0);
        if !oldest.exists() {
            break;
        }
        assert!(round < 200, "the segment stays");
    }
    let contents = life.contents_of(0, COLD);
    assert_eq!(contents.len() as u64, COLD);
    life.write(0);
    drop(life);
    assert!(Life::begin(&folder, 1_000_000).contents_of(0, COLD) == contents, "elements are lost");
}

#[test]
fn a_log_with_more_tables_than_numbers_is_refused() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = Life::begin(&folder, 1_000_000);
    for name in [&b"one"[..], b"two", b"empty"] {
        let mut batch = life.session.batch(Now::from_millis(0));
        batch.create_table_with(name, name, None, Some(Durability::Soon)).unwrap();
        if name != b"empty" {
            batch.update(name, b"key", name, Deadline::NONE).unwrap();
        }
    }
    life.write(0);
    drop(life);
    for numbers in 0..3 {
        let begun = Life::begin_with(&folder, ClockReading::from_millis(1_000_000), |tables| {
            tables.0.catalog.registry().leave_only(numbers)
        });
        assert!(matches!(begun, Err(Error::TooManyTables(_))), "{numbers} numbers");
    }
    let begun = Life::begin_with(&folder, ClockReading::from_millis(1_000_000), |tables| {
        tables.0.catalog.registry().leave_only(3)
    });
    let mut life = begun.unwrap();
    assert_eq!(life.session.batch(Now::from_millis(0)).get(b"two", b"key").unwrap(), b"two");
}
