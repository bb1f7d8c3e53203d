//! The owner of a log on a device that others fill, and on one that does not return all bytes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::path::Path;
use std::sync::Arc;

use super::simulated_disk::SimulatedFolder;
use crate::store::fault::Fault;
use crate::store::segment::name_of;
use crate::store::*;

const SEGMENT_BYTES: u64 = 64 << 10;

fn open_in(folder: &SimulatedFolder, repair: bool) -> Result<KeyedStore, Error> {
    let folder: Arc<dyn Folder> = Arc::new(folder.clone());
    let config = LogConfig { kind: LogKind::States, segment_bytes: SEGMENT_BYTES, files: 100, max_disk: None };
    let opened = open(&folder, OpenOptions { config, repair, copied: false, chores: ChoreMode::Writer })?;
    KeyedStore::of(opened, Path::new("/simulated"), repair)
}

fn key(number: u64) -> TaskKey {
    let mut key = [0; 12];
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

fn add(store: &mut KeyedStore, numbers: std::ops::Range<u64>, bytes: usize) {
    let mut batch = WriteBatch::new();
    for number in numbers {
        batch.put(Space::Tasks, &key(number), &[1; 40]);
        batch.put(Space::Values, &key(number), &vec![2; bytes]);
    }
    store.commit(batch, true).unwrap();
}

/// A client leases a task and finishes it.
fn finish(store: &mut KeyedStore, number: u64) -> Result<(), Error> {
    let mut lease = WriteBatch::new();
    lease.put(Space::Tasks, &key(number), &[3; 56]);
    store.commit(lease, true)?;
    let mut done = WriteBatch::new();
    done.delete(Space::Tasks, &key(number));
    done.delete(Space::Values, &key(number));
    store.commit(done, true)
}

/// The oldest tasks are of a queue that nobody asks, so all that is given back costs copies of them.
#[test]
fn on_a_full_device_all_younger_tasks_can_be_finished() {
    // Tasks in a batch, their bytes, those that stay, and those that are finished.
    for (together, bytes, old, young) in [(50, 1_000, 5_000, 3_000), (1, 3_000, 500, 200), (1, 100_000, 20, 20)] {
        let folder = SimulatedFolder::new(7);
        folder.limit(1 << 30);
        let mut store = open_in(&folder, false).unwrap();
        let mut next = 0;
        while next < old + young {
            add(&mut store, next..next + together, bytes);
            next += together;
        }
        folder.fill(store.metrics().space.reserved + 3 * SEGMENT_BYTES);
        while store.adds_room().is_ok_and(|room| room >= together * bytes as u64) {
            add(&mut store, next..next + together, bytes);
            next += together;
        }
        for number in old..next {
            let done = finish(&mut store, number);
            done.unwrap_or_else(|error| panic!("{bytes}, {number} of {old}..{next}: {error}: {:?}", store.metrics()));
        }
        drop(store);
        assert_eq!(open_in(&folder, false).unwrap().metrics().space.set_aside, 0, "it can be opened");
    }
}

/// A device that is full: tasks with values of these bytes, and no room for another one. The number of tasks.
fn full(folder: &SimulatedFolder, store: &mut KeyedStore, together: u64, bytes: usize) -> u64 {
    let mut next = 0;
    while next < 2_000 / together * together {
        add(store, next..next + together, bytes);
        next += together;
    }
    folder.fill(3 * SEGMENT_BYTES);
    while store.adds_room().is_ok_and(|room| room >= together * bytes as u64) {
        add(store, next..next + together, bytes);
        next += together;
    }
    // Others take what is left.
    folder.fill(0);
    next
}

fn state(store: &mut KeyedStore, number: u64, length: usize) {
    let mut batch = WriteBatch::new();
    batch.put(Space::Tasks, &key(number), &vec![7; length]);
    let done = store.commit(batch, true);
    done.unwrap_or_else(|error| panic!("task {number}: {error}: {:?}", store.metrics()));
}

/// Every task is leased, extended and given back, over and over, also after restarts. No other program leaves a byte.
#[test]
fn on_a_full_device_states_can_be_stored_any_number_of_times() {
    for (together, bytes) in [(50, 1_000), (1, 10_000), (400, 0)] {
        let folder = SimulatedFolder::new(11);
        folder.limit(1 << 30);
        let mut store = open_in(&folder, false).unwrap();
        let tasks = full(&folder, &mut store, together, bytes);
        for round in 0..5_000 {
            state(&mut store, (round * 7) % tasks, if round % 2 == 0 { 40 } else { 56 });
            assert!(bytes == 0 || store.adds_room().is_err(), "{:?}", store.metrics());
            if round % 2_000 == 1_999 {
                drop(store);
                if round % 4_000 == 3_999 {
                    folder.power_failure();
                }
                store = open_in(&folder, false).unwrap();
            }
        }
        assert!(store.metrics().space.segments > 3 && store.metrics().counters.removed > 10, "{:?}", store.metrics());
        let folder_of: Arc<dyn Folder> = Arc::new(folder.copy());
        assert_eq!(check(&folder_of).unwrap().damages, Vec::<String>::new());
        for number in 0..tasks {
            finish(&mut store, number).unwrap();
        }
        while store.work_idle().unwrap() == IdleWork::More {}
        folder.make_room();
        store.sync().unwrap();
        assert!(store.adds_room().is_ok(), "{:?}", store.metrics());
    }
}

/// Old tasks are taken in any order, so the garbage of their values is everywhere, and their removals have to be kept.
#[test]
fn on_a_full_device_tasks_can_be_finished_in_any_order() {
    let folder = SimulatedFolder::new(12);
    folder.limit(1 << 30);
    let mut store = open_in(&folder, false).unwrap();
    let tasks = full(&folder, &mut store, 50, 1_000);
    let mut left: Vec<u64> = (0..tasks).collect();
    let mut rng = crate::seeded_rng::SeededRng(5);
    while !left.is_empty() {
        let number = left.swap_remove(usize::try_from(rng.below(left.len() as u64)).unwrap());
        finish(&mut store, number)
            .unwrap_or_else(|error| panic!("{} left: {error}: {:?}", left.len(), store.metrics()));
        if left.len().is_multiple_of(300) {
            drop(store);
            store = open_in(&folder, false).unwrap();
            let mut found = Vec::new();
            store.found(&mut |key| found.push(u64::from_be_bytes(key[4..].try_into().unwrap())));
            left.sort_unstable();
            assert_eq!(found, left, "none is back, none is lost");
        }
    }
}

#[test]
fn a_segment_that_a_backup_has_linked_never_becomes_a_spare() {
    let run = |_| beside_a_backup();
    run(0);
    super::model::find_planted(&[Fault::LinksIgnored], 1, run);
}

/// A backup on the same file system keeps the space of all its files, and readers keep the space of the files that they
/// read.
fn beside_a_backup() {
    let folder = SimulatedFolder::new(13);
    folder.limit(1 << 30);
    let mut store = open_in(&folder, false).unwrap();
    let tasks = full(&folder, &mut store, 2, 1_000);
    let saved = folder.beside(3);
    let to: Arc<dyn Folder> = Arc::new(saved.clone());
    let backup = store.log.backup().unwrap();
    let held: Vec<_> = (0..tasks).step_by(17).map(|number| store.moment(&[key(number)], &[])).collect();
    for round in 0..3_000 {
        state(&mut store, (round * 7) % tasks, 56);
    }
    folder.limit((1 << 30) + (1 << 20));
    let copied = backup.copy_to(&to, &mut || BackupTurn::Continue).unwrap();
    assert!(copied.linked > 4);
    drop(backup);
    folder.limit(folder.bytes());
    for round in 0..3_000 {
        state(&mut store, (round * 7) % tasks, 56);
    }
    for (number, moment) in (0..tasks).step_by(17).zip(held) {
        assert_eq!(&*moment.get(&key(number)).unwrap().unwrap(), &[2; 1_000][..], "{number}");
    }
    for number in (0..tasks).step_by(2) {
        finish(&mut store, number).unwrap();
    }
    drop(store);
    assert_eq!(check(&to).unwrap().damages, Vec::<String>::new());
    folder.limit(u64::MAX);
    let found = open_in(&saved, false).unwrap().metrics().opening.records;
    assert!(found >= 2 * tasks, "{found} records of {tasks} tasks");
}

#[test]
fn an_add_that_is_larger_than_the_reserve_needs_room_of_its_own() {
    let folder = SimulatedFolder::new(7);
    folder.limit(64 << 20);
    let mut store = open_in(&folder, false).unwrap();
    add(&mut store, 0..1, 1_000_000);
    assert!(store.adds_room().unwrap() > 1_000_000);
    folder.fill(1_700_000);
    let mut added = 0;
    while store.adds_room().is_ok_and(|room| room >= 1_000_000) {
        add(&mut store, 1 + added..2 + added, 1_000_000);
        added += 1;
    }
    assert!(store.adds_room().unwrap() >= SEGMENT_BYTES, "smaller ones are taken");
    assert!(added > 0);
}

/// Batches that replace values on a device that others have filled: each prepared batch is written.
#[test]
fn on_a_full_device_a_batch_that_is_prepared_finds_its_segment() {
    for (bytes, left) in [(100_000, 40_000), (100_000, 300_000), (100_000, 0), (1_000, 0), (30_000, 0)] {
        let folder = SimulatedFolder::new(7);
        folder.limit(64 << 20);
        let mut store = open_in(&folder, false).unwrap();
        (0..40).for_each(|number| add(&mut store, number..number + 1, bytes));
        folder.fill(left);
        let (mut written, mut refused) = (0, 0);
        for round in 0..400 {
            let mut batch = WriteBatch::new();
            batch.put(Space::Values, &key(round % 40), &vec![5; bytes]);
            if !store.prepare(bytes as u64 + 512) {
                refused += 1;
                continue;
            }
            let done = store.commit(batch, true);
            done.unwrap_or_else(|error| panic!("{bytes}, {left}, {round}: {error}: {:?}", store.metrics()));
            written += 1;
        }
        assert!(refused > 0 || bytes < 100_000, "{bytes}, {left}: {written} written");
        assert!(written > 0 || left < bytes as u64, "{bytes}, {left}: {refused} refused");
        folder.make_room();
        assert!(store.prepare(bytes as u64 + 512), "there is room again");
        let is_odd = || !folder.bytes_of(".new").is_multiple_of(SEGMENT_BYTES);
        assert_eq!(is_odd(), bytes > 64 << 10);
        // A place that no batch has needed goes with the next one.
        let mut batch = WriteBatch::new();
        batch.put(Space::Tasks, &key(1), &[3; 40]);
        store.commit(batch, true).unwrap();
        assert!(!is_odd());
        drop(store);
        assert_eq!(open_in(&folder, false).unwrap().metrics().space.set_aside, 0, "it can be opened");
    }
}

#[test]
fn adds_are_taken_again_when_others_have_made_room() {
    let folder = SimulatedFolder::new(7);
    folder.limit(64 << 20);
    let mut store = open_in(&folder, false).unwrap();
    add(&mut store, 0..100, 1_000);
    folder.fill(32 << 10);
    let mut next = 100;
    while store.adds_room().is_ok() {
        add(&mut store, next..next + 1, 1_000);
        next += 1;
    }
    let idle = |store: &mut KeyedStore| {
        loop {
            match store.work_idle().unwrap() {
                IdleWork::More => {}
                rest => return rest,
            }
        }
    };
    assert_eq!((idle(&mut store), idle(&mut store)), (IdleWork::Later, IdleWork::Later));
    folder.make_room();
    assert_eq!((idle(&mut store), store.adds_room().err()), (IdleWork::Done, None));
}

/// The numbers of the batches with which a value was found lost, when it got a new one with the batch `renewed`.
fn losses(renewed: Option<u64>) -> Vec<u64> {
    let folder = SimulatedFolder::new(7);
    folder.limit(1 << 30);
    let mut store = open_in(&folder, false).unwrap();
    add(&mut store, 1..2, 5_000);
    let at = folder.contents(&name_of(1)).windows(100).position(|run| run == [2; 100]).unwrap();
    assert!(folder.rot(&name_of(1), at + 50));
    let mut found = Vec::new();
    for round in 0..100 {
        let mut batch = WriteBatch::new();
        batch.put(Space::Values, &key(2), &[5; 20_000]);
        if renewed == Some(round) {
            batch.put(Space::Values, &key(1), b"new");
        }
        store.commit(batch, true).unwrap();
        if !store.lost().unwrap().is_empty() {
            found.push(round);
        }
    }
    found
}

#[test]
fn a_value_that_is_replaced_in_the_batch_that_finds_it_lost_is_not_lost() {
    let found = losses(None);
    assert_eq!(found.len(), 1, "the cleaner comes to it once");
    assert!(losses(Some(found[0])).is_empty());
    assert_eq!(losses(Some(found[0] + 1)), found);
}

/// A process that is being started has copies of all descriptors for a moment.
#[test]
fn a_folder_can_be_opened_as_soon_as_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig { segment_bytes: SEGMENT_BYTES, max_disk: None, repair: false, copied: false };
    std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            for _ in 0..200 {
                assert!(std::process::Command::new("true").status().unwrap().success());
            }
        });
        while !starter.is_finished() {
            drop(KeyedStore::open(folder.path(), config).unwrap());
        }
    });
}

// ------------------------------------------------------------------------------------------------------ the log alone

fn put(key: &str, body: &[u8]) -> Record {
    Record { space: Space::Tasks, key: key.as_bytes().into(), body: Body::Bytes(Value::from(body)) }
}

fn batch(records: impl IntoIterator<Item = Record>) -> RecordBatch {
    records.into_iter().collect::<Vec<_>>().into()
}

/// The part of the segment before the sector was read again for each batch behind it.
#[test]
fn a_sector_that_the_device_does_not_return_costs_its_record_and_few_reads() {
    const BYTES: u64 = 2 << 20;
    let folder = SimulatedFolder::new(21);
    let open_large = |repair| {
        let folder: Arc<dyn Folder> = Arc::new(folder.clone());
        let config = LogConfig { kind: LogKind::States, segment_bytes: BYTES, files: 2, max_disk: None };
        open(&folder, OpenOptions { config, repair, copied: false, chores: ChoreMode::Writer })
    };
    let mut log = open_large(false).unwrap().log;
    let mut places = Vec::new();
    for index in 0..400 {
        let state = batch([put(&format!("{index:03}"), &[1; 4_000])]);
        places.extend(log.append(&state).unwrap().into_iter().flatten());
    }
    log.rest().unwrap();
    drop(log);
    let lost = places[100];
    folder.lose(&name_of(lost.segment), lost.offset as usize + 2_000);
    assert!(matches!(open_large(false), Err(Error::Device { .. })));
    let opened = open_large(true).unwrap();
    let read = opened.log.metrics().opening.bytes;
    assert!(read <= 10 * BYTES, "{read} bytes of {BYTES}");
    assert!(opened.lost.iter().any(|what| what.starts_with("a state of 100")), "{:?}", opened.lost);
    let found: Vec<String> =
        opened.winners.all(Space::Tasks).keys().map(|key| key.escape_ascii().to_string()).collect();
    assert!(found.len() == 399 && !found.contains(&"100".to_owned()), "{}", found.len());
}

/// The summaries of small records took as much as their segments, and counted nowhere.
#[test]
fn a_bound_of_the_folder_counts_the_summaries() {
    const BOUND: u64 = 40 * SEGMENT_BYTES;
    let folder = SimulatedFolder::new(22);
    let open_bounded = || {
        let folder: Arc<dyn Folder> = Arc::new(folder.clone());
        let config = LogConfig { kind: LogKind::States, segment_bytes: SEGMENT_BYTES, files: 2, max_disk: Some(BOUND) };
        open(&folder, OpenOptions { config, repair: false, copied: false, chores: ChoreMode::Writer })
    };
    let mut log = open_bounded().unwrap().log;
    let mut next = 0;
    while log.adds_refused().is_none() {
        let records = (0..40).map(|index| put(&format!("{:08}", next + index), &[1; 20]));
        log.append(&batch(records)).unwrap();
        log.sync().unwrap();
        next += 40;
    }
    let summaries = folder.bytes_of(".sum");
    assert!(next > 1_000 && summaries > BOUND / 8, "{next} records, {summaries} bytes of summaries");
    assert!(folder.bytes() <= BOUND, "{} of {BOUND} bytes", folder.bytes());
    // The note of the origin has a few bytes.
    let counted = || folder.bytes() - folder.bytes_of("origin");
    assert!(log.disk_bytes() >= counted(), "{} of {}", log.disk_bytes(), counted());
    drop(log);
    let log = open_bounded().unwrap().log;
    assert!(log.adds_refused().is_some(), "{:?}", log.metrics());
    assert!(log.disk_bytes() >= counted(), "{} of {}", log.disk_bytes(), counted());
}
