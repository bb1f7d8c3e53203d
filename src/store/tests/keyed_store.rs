//! The owner of a log on a real folder: its records, the space that comes back, lost values, and earlier folders.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use super::simulated_disk::{Failures, SimulatedFolder};
use crate::seeded_rng::SeededRng;
use crate::store::failure::errnos::{EACCES, EIO, EMFILE, ENOMEM, EROFS};
use crate::store::folder::Folder;
use crate::store::keyed::split_off;
use crate::store::segment::name_of;
use crate::store::{
    Body, ChoreMode, Error, IdleWork, KeyedStore, LogConfig, OpenOptions, Record, Space, Store, StoreConfig, TaskKey,
    UnreadableRange, Value, WriteBatch,
};

const CONFIG: StoreConfig = StoreConfig { segment_bytes: 64 << 10, max_disk: None, repair: false, copied: false };

fn open(folder: &Path) -> KeyedStore {
    KeyedStore::open(folder, CONFIG).unwrap()
}

fn key(number: u64) -> TaskKey {
    let mut key = [0; 12];
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

/// All tasks with their values, as they are after an opening.
fn content(folder: &Path) -> BTreeMap<TaskKey, (Vec<u8>, Option<Vec<u8>>)> {
    let mut store = open(folder);
    let mut tasks = Vec::new();
    store.take(Space::Tasks, &mut |key, record| tasks.push((TaskKey::try_from(key).unwrap(), record.to_vec())));
    assert!(tasks.is_sorted());
    let keys: Vec<TaskKey> = tasks.iter().map(|(key, _)| *key).collect();
    let values = store.moment(&keys, &[]);
    let value = |key: &TaskKey| values.get(key).unwrap().map(|value| value.to_vec());
    tasks.into_iter().map(|(key, record)| (key, (record, value(&key)))).collect()
}

fn drained(store: &mut KeyedStore) {
    while store.work_idle().unwrap() == IdleWork::More {}
}

/// The files that are laid out for the next segments.
fn spares_in(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().is_some_and(|name| name.ends_with(".new"))).count()
}

fn bytes_in(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn all_records_are_there_after_any_changes_and_the_space_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let (mut model, mut rng) = (BTreeMap::new(), SeededRng(3));
    let (mut most, mut copies) = (0, 0);
    for round in 0..6_u64 {
        let mut store = open(folder.path());
        for number in 0..150 {
            let mut batch = WriteBatch::new();
            let changed: std::collections::BTreeSet<_> = (0..4).map(|_| key(rng.below(60))).collect();
            for key in changed {
                if rng.one_in(3) {
                    batch.delete(Space::Tasks, &key);
                    batch.delete(Space::Values, &key);
                    model.remove(&key);
                } else {
                    let record = [round.to_be_bytes(), u64::to_be_bytes(number)].concat();
                    let value = vec![number.to_le_bytes()[0]; usize::try_from(rng.below(3_000)).unwrap()];
                    batch.put(Space::Tasks, &key, &record);
                    batch.put_value(Space::Values, &key, Value::from(value.clone()));
                    model.insert(key, (record, Some(value)));
                }
            }
            batch.put(Space::Meta, b"number", &u64::to_be_bytes(number));
            store.commit(batch, true).unwrap();
            most = most.max(store.metrics().space.disk);
        }
        if round % 2 == 1 {
            drained(&mut store);
            assert!(!store.has_idle_work());
        }
        copies += store.metrics().counters.copies;
        drop(store);
        assert!(content(folder.path()) == model, "after round {round}");
    }
    assert!(copies > 100 && most < 1 << 20, "{copies} copies, {most} bytes");
    empty(folder.path(), open(folder.path()), 0..60);
}

/// Removes what these keys have and lets the store rest. Two spares are left, with the segment that is written and perhaps
/// the one before.
fn empty(folder: &Path, mut store: KeyedStore, keys: Range<u64>) {
    let had = keys.end;
    for number in keys {
        let mut batch = WriteBatch::new();
        batch.delete(Space::Tasks, &key(number));
        batch.delete(Space::Values, &key(number));
        store.commit(batch, true).unwrap();
    }
    let mut looks = 0;
    while store.work_idle().unwrap() != IdleWork::Done {
        looks += 1;
        assert!(looks < 10_000_000, "the store comes to rest");
        thread::yield_now();
    }
    // That waits for the removal of files.
    drop(store);
    // While it was written, one more may have come from cleaned segments.
    assert_eq!(spares_in(folder), 2, "a log at rest keeps no more than it needs");
    let bytes = bytes_in(folder);
    assert!(bytes <= 4 * CONFIG.segment_bytes, "{bytes} bytes are left of a store that had {had} tasks");
}

#[test]
fn an_emptied_store_keeps_four_segments_at_most() {
    for tasks in (10..130).step_by(7) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        for number in 0..tasks {
            let mut batch = WriteBatch::new();
            batch.put(Space::Tasks, &key(number), b"task");
            batch.put_value(Space::Values, &key(number), Value::from(vec![7; 3_000]));
            store.commit(batch, true).unwrap();
        }
        empty(folder.path(), store, 0..tasks);
    }
}

#[test]
fn a_moment_shows_values_that_were_replaced_and_removed_since() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    let put = |store: &mut KeyedStore, byte: u8| {
        let mut batch = WriteBatch::new();
        batch.put(Space::Values, &key(1), &vec![byte; 5_000]);
        batch.put(Space::Values, &key(2), &vec![byte; 5_000]);
        store.commit(batch, true).unwrap();
    };
    put(&mut store, 0);
    let before = store.moment(&[key(1), key(3)], &[]);
    (1..100).for_each(|byte| put(&mut store, byte));
    drained(&mut store);
    assert_eq!(*before.get(&key(1)).unwrap().unwrap(), [0; 5_000]);
    assert_eq!(before.get(&key(2)).unwrap(), None, "it was not asked for");
    assert_eq!(before.get(&key(3)).unwrap(), None, "it is not there");
    drop(before);
    assert_eq!(*store.moment(&[key(1)], &[]).get(&key(1)).unwrap().unwrap(), [99; 5_000]);
}

#[test]
fn a_value_that_the_device_has_changed_is_reported_once_and_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    let mut batch = WriteBatch::new();
    for number in [1, 2] {
        batch.put(Space::Tasks, &key(number), b"task");
        batch.put(Space::Values, &key(number), &[0xa0 + number.to_le_bytes()[0]; 700]);
    }
    store.commit(batch, true).unwrap();
    store.rest().unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(700).position(|run| run == [0xa1; 700]) {
            bytes[at + 9] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
    assert_eq!(store.lost().unwrap(), []);
    let moment = store.moment(&[key(1), key(2)], &[]);
    assert!(matches!(moment.get(&key(1)), Err(Error::Rotten { .. })));
    assert_eq!(*moment.get(&key(2)).unwrap().unwrap(), [0xa2; 700]);
    let lost = |store: &mut KeyedStore| {
        let lost = store.lost().unwrap();
        lost.iter().map(|lost| (lost.space, lost.key)).collect::<Vec<_>>()
    };
    assert_eq!(lost(&mut store), [(Space::Values, key(1))]);
    assert_eq!(lost(&mut store), []);
    store.sync().unwrap();
    drop((store, moment));
    let mut store = open(folder.path());
    assert_eq!(lost(&mut store), [(Space::Values, key(1))]);
    assert!(matches!(store.moment(&[key(1)], &[]).get(&key(1)), Err(Error::SetAside { .. })));
    let mut batch = WriteBatch::new();
    batch.put(Space::Values, &key(1), b"new");
    store.commit(batch, true).unwrap();
    drop(store);
    assert_eq!(open(folder.path()).lost().unwrap(), []);
}

#[test]
fn a_folder_of_an_earlier_version_is_recognized_and_left_alone() {
    for (name, bytes) in [("version", Some(&b"FJL\x03"[..])), ("0.jnl", Some(b"")), ("keyspaces", None)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        match bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::create_dir(&path).unwrap(),
        }
        let refused = KeyedStore::open(folder.path(), CONFIG).map(drop);
        assert!(matches!(refused, Err(Error::Earlier { .. })), "{name}: {refused:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{name}");
    }
}

/// A store on a simulated device, whose first segment is closed. Tasks and values are in it, and 20 of them are live.
fn simulated() -> (SimulatedFolder, KeyedStore) {
    let folder = SimulatedFolder::new(21);
    let mut store = open_simulated(&folder);
    for number in 0..20_u64 {
        let mut batch = WriteBatch::new();
        batch.put(Space::Meta, b"meta", &number.to_le_bytes());
        batch.put(Space::Tasks, &key(number), b"task");
        batch.put(Space::Values, &key(number), &[number.to_le_bytes()[0]; 270]);
        store.commit(batch, true).unwrap();
    }
    store.rest().unwrap();
    (folder, store)
}

fn open_simulated(folder: &SimulatedFolder) -> KeyedStore {
    let shared: Arc<dyn Folder> = Arc::new(folder.clone());
    let config = LogConfig { kind: crate::store::LogKind::States, segment_bytes: 16 << 10, files: 1, max_disk: None };
    let opened =
        crate::store::open(&shared, OpenOptions { config, repair: false, copied: false, chores: ChoreMode::Writer })
            .unwrap();
    KeyedStore::of(opened, folder.path(), false).unwrap()
}

/// The parts of the first segment, as if none of its tables could be read.
const ALL: UnreadableRange = UnreadableRange { segment: 1, from: 0, to: u64::MAX };

#[test]
fn records_behind_a_table_that_cannot_be_read_are_lost_only_if_their_bytes_are() {
    let (folder, mut store) = simulated();
    let kinds = |records: &[Record]| {
        let of = |is: fn(&Body) -> bool| records.iter().filter(|record| is(&record.body)).count();
        (of(|body| matches!(body, Body::Bytes(_))), of(|body| *body == Body::SetAside))
    };
    assert_eq!(kinds(&store.unreadable(&[ALL]).unwrap().0), (41, 0), "meta is in memory, the others are read");
    assert!(store.unreadable(&[]).unwrap().0.is_empty());
    let segment = folder.contents(&name_of(1));
    let at = segment.windows(270).position(|run| run == [7; 270]).unwrap();
    assert!(folder.rot(&name_of(1), at));
    let (again, lost) = store.unreadable(&[ALL]).unwrap();
    assert_eq!((kinds(&again), lost.len()), ((40, 1), 1));
    assert_eq!(store.lost().unwrap(), [], "nothing was written, so nothing is lost yet");
    store.lost = lost;
    store.write(again).unwrap();
    let lost: Vec<_> = store.lost().unwrap().iter().map(|lost| (lost.space, lost.key)).collect();
    assert_eq!(lost, [(Space::Values, key(7))]);
}

#[test]
fn an_error_that_says_nothing_of_the_bytes_sets_no_record_aside() {
    let mut unread = 0;
    for errno in [EMFILE, EACCES, EIO] {
        for at in 1..45 {
            let (folder, mut store) = simulated();
            folder.fail(Failures { at: Some(at), errno, lasting: false, power: false });
            let read = store.unreadable(&[ALL]);
            let failures = folder.process_ends();
            match read {
                Ok((records, _)) => assert!(
                    failures.is_none() && records.iter().all(|record| record.body != Body::SetAside),
                    "{errno} at {at}"
                ),
                Err(Error::Unread { .. }) => unread += 1,
                Err(error) => panic!("{errno} at {at}: {error:?}"),
            }
            assert_eq!(store.lost().unwrap(), [], "{errno} at {at}");
        }
    }
    assert!(unread >= 3 * 40, "{unread}: each record takes a call");
}

/// Three reads that failed within a millisecond took a task for ever, and one without a descriptor ended the server.
#[test]
fn a_store_that_cannot_read_its_oldest_segment_continues_and_loses_nothing() {
    let (mut paused, mut cleaned) = (0, 0);
    for (at, errno) in (0..300).zip([EMFILE, EIO, ENOMEM].into_iter().cycle()) {
        let (folder, mut store) = simulated();
        // The table of one batch rots, and the store cleans the segment: it needs the bodies by themselves.
        let segment = folder.contents(&name_of(1));
        let body = segment.windows(270).position(|run| run == [7; 270]).unwrap();
        assert!(folder.rot(&name_of(1), body - 40));
        folder.fail_reads(at, u64::MAX, errno);
        let mut commit = |number: u64| {
            let mut batch = WriteBatch::new();
            batch.put(Space::Values, &key(100 + number % 2), &[200; 900]);
            store.commit(batch, true).unwrap();
            store.watch().check().unwrap();
        };
        (0..40).for_each(&mut commit);
        assert_eq!(store.lost().unwrap(), [], "{at}");
        paused += u32::from(store.log.waits_for_reads());
        if folder.reads_succeed() && at % 2 == 0 {
            for _ in 0..100 {
                store.work_idle().unwrap();
            }
            assert!(!folder.file_names().contains(&name_of(1)), "{at}: it cleans again");
        }
        drop(store);
        // The table is right again, unless its segment is gone.
        cleaned += u32::from(!folder.rot(&name_of(1), body - 40));
        let mut store = open_simulated(&folder);
        assert_eq!(store.lost().unwrap(), [], "{at}");
        let keys: Vec<TaskKey> = (0..20).map(key).collect();
        let values = store.moment(&keys, &[]);
        for (number, key) in keys.iter().enumerate() {
            let value = values.get(key).unwrap().unwrap();
            assert!(value.len() == 270 && value.iter().all(|byte| usize::from(*byte) == number), "{at}: {number}");
        }
    }
    assert!(paused > 30 && cleaned > 100, "{paused} pauses, {cleaned} cleaned segments");
}

/// A health check said "an earlier write has failed", and not why, when the writer had found it out first.
#[test]
fn a_store_that_has_failed_keeps_reporting_why() {
    let mut read_only = 0;
    for (errno, at) in [(EROFS, 1), (EROFS, 2), (EIO, 1), (EACCES, 1)] {
        let (folder, mut store) = simulated();
        let watch = store.watch();
        folder.fail(Failures { at: Some(at), errno, lasting: true, power: false });
        let mut write = || {
            let mut batch = WriteBatch::new();
            batch.put(Space::Values, &key(1), &[200; 900]);
            store.commit(batch, true)
        };
        let first = write().unwrap_err().to_string();
        // The disk would take it again, but what the failed call has left there nobody knows.
        folder.process_ends();
        let later = [write().unwrap_err(), watch.check().unwrap_err(), store.rest().unwrap_err()];
        assert_eq!(later.map(|error| error.to_string()), [first.as_str(); 3], "{errno} at {at}");
        read_only += u32::from(errno == EROFS && first.contains("read-only"));
    }
    assert_eq!(read_only, 2);
}

/// The queue hands over all tasks of a batch before all values.
#[test]
fn a_batch_in_parts_keeps_each_task_with_its_value() {
    let record = |space, number: u8, body| Record { space, key: [number; 12].into(), body };
    let bytes = |number: u8| Body::Bytes(Value::from(&[number][..]));
    let tasks = (1..=9).map(|number| record(Space::Tasks, number, bytes(number)));
    let values = (1..=9).map(|number| record(Space::Values, number, bytes(number)));
    let queues = [record(Space::Meta, 100, Body::Removed), record(Space::Meta, 101, bytes(1))];
    let mut parts: Vec<Vec<Record>> = vec![queues.into_iter().chain(tasks).chain(values).collect()];
    while let Some(at) = parts.iter().position(|part| part.len() > 2) {
        let rest = split_off(&mut parts[at]);
        assert!(!rest.is_empty());
        parts.insert(at + 1, rest);
    }
    let of = |space| {
        move |part: &Vec<Record>| {
            part.iter().filter(|at| at.space == space).map(|at| at.key.clone()).collect::<Vec<_>>()
        }
    };
    assert!(parts.iter().all(|part| of(Space::Tasks)(part) == of(Space::Values)(part)), "{parts:?}");
    let all: Vec<&Record> = parts.iter().flatten().collect();
    assert_eq!((all.len(), all[0].key[0], all[19].key[0]), (20, 101, 100), "a queue comes first, and goes last");
}
