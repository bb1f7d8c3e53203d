//! The owner of a log on a real folder: its records, the space that comes back, lost values, and earlier folders.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::chance::Chance;
use super::{Error, IdleWork, KeyedStore, Space, Store, StoreConfig, TaskKey, Value, WriteBatch};

const CONFIG: StoreConfig = StoreConfig { segment_bytes: 64 << 10, max_disk: None, repair: false };

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
    let values = store.moment(&keys);
    let value = |key: &TaskKey| values.get(key).unwrap().map(|value| value.to_vec());
    tasks.into_iter().map(|(key, record)| (key, (record, value(&key)))).collect()
}

fn drained(store: &mut KeyedStore) {
    while store.work_idle().unwrap() == IdleWork::More {}
}

fn bytes_in(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn all_records_are_there_after_any_changes_and_the_space_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let (mut model, mut chance) = (BTreeMap::new(), Chance(3));
    let (mut most, mut copies) = (0, 0);
    for round in 0..6_u64 {
        let mut store = open(folder.path());
        for number in 0..150 {
            let mut batch = WriteBatch::new();
            let changed: std::collections::BTreeSet<_> = (0..4).map(|_| key(chance.below(60))).collect();
            for key in changed {
                if chance.one_in(3) {
                    batch.delete(Space::Tasks, &key);
                    batch.delete(Space::Values, &key);
                    model.remove(&key);
                } else {
                    let record = [round.to_be_bytes(), u64::to_be_bytes(number)].concat();
                    let value = vec![number.to_le_bytes()[0]; usize::try_from(chance.below(3_000)).unwrap()];
                    batch.put(Space::Tasks, &key, &record);
                    batch.put_value(Space::Values, &key, Value::from(value.clone()));
                    model.insert(key, (record, Some(value)));
                }
            }
            batch.put(Space::Meta, b"number", &u64::to_be_bytes(number));
            store.commit(batch, true).unwrap();
            most = most.max(store.metrics().disk);
        }
        if round % 2 == 1 {
            drained(&mut store);
            assert!(!store.has_idle_work());
        }
        copies += store.metrics().copies;
        drop(store);
        assert!(content(folder.path()) == model, "after round {round}");
    }
    assert!(copies > 100 && most < 1 << 20, "{copies} copies, {most} bytes");
    let mut store = open(folder.path());
    for number in 0..60 {
        let mut batch = WriteBatch::new();
        batch.delete(Space::Tasks, &key(number));
        batch.delete(Space::Values, &key(number));
        store.commit(batch, true).unwrap();
    }
    drained(&mut store);
    drop(store);
    // An idle log leaves eight segments alone, and has two laid out. Another one may wait for its removal.
    let bytes = bytes_in(folder.path());
    assert!(bytes <= 11 * CONFIG.segment_bytes, "{bytes} bytes are left of an empty store");
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
    let before = store.moment(&[key(1), key(3)]);
    (1..100).for_each(|byte| put(&mut store, byte));
    drained(&mut store);
    assert_eq!(*before.get(&key(1)).unwrap().unwrap(), [0; 5_000]);
    assert_eq!(before.get(&key(2)).unwrap(), None, "it was not asked for");
    assert_eq!(before.get(&key(3)).unwrap(), None, "it is not there");
    drop(before);
    assert_eq!(*store.moment(&[key(1)]).get(&key(1)).unwrap().unwrap(), [99; 5_000]);
}

#[test]
fn a_value_that_the_device_has_changed_is_told_once_and_again_after_a_restart() {
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
    let moment = store.moment(&[key(1), key(2)]);
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
    assert!(matches!(store.moment(&[key(1)]).get(&key(1)), Err(Error::SetAside { .. })));
    let mut batch = WriteBatch::new();
    batch.put(Space::Values, &key(1), b"new");
    store.commit(batch, true).unwrap();
    drop(store);
    assert_eq!(open(folder.path()).lost().unwrap(), []);
}

#[test]
fn a_folder_of_an_earlier_version_is_told_and_left_alone() {
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
