//! ALTER_TABLE: a table becomes durable while it lives, and is in memory again.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::super::failpoint::{Failpoint, hooks};
use super::durable::{Life, assert_same, change, folder_of, folder_within, key_of};
use super::*;
use crate::clock::ClockReading;
use crate::seeded_rng::SeededRng;
use crate::store::EffectFolder;
use crate::tables::durable::writer::EffectWriter;
use crate::tables::{Batch, Durability, EvictionPolicy, ManyProgress};

const T: &[u8] = b"altered";
/// Keys of a table that takes some portions.
const MANY: u64 = 3_000;

/// A life with a table in memory that has many elements.
fn begin(folder: &EffectFolder) -> Life {
    let mut life = Life::begin(folder, 1_000_000);
    life.session.batch(Now::from_millis(0)).create_table(T, T).unwrap();
    for key in 0..MANY {
        put(&mut life, key, &[7; 1_000]);
    }
    life.publish();
    life
}

fn put(life: &mut Life, key: u64, value: &[u8]) {
    let mut batch = life.session.batch(Now::from_millis(0));
    while batch.update(T, &key_of(key), value, Deadline::NONE).is_err() {
        drop(batch);
        life.publish();
        batch = life.session.batch(Now::from_millis(0));
    }
}

/// One step of ALTER_TABLE.
fn alter(life: &mut Life, said: Durability, now: u64) -> Result<(), Refusal> {
    life.session.batch(Now::from_millis(now)).alter_table(T, said, &mut ManyProgress::default())
}

/// ALTER_TABLE, with an epoch behind each step. Returns the number of steps.
fn alter_all(life: &mut Life, said: Durability) -> usize {
    let mut steps = 1;
    while alter(life, said, 0) == Err(Refusal::Unfinished) {
        life.write(0);
        steps += 1;
    }
    assert_eq!(alter(life, said, 0), Ok(()));
    steps
}

fn durability(life: &Life) -> (Durability, bool) {
    let guard = epoch::pin();
    let table = life.session.shared().catalog.find(T, &guard).unwrap();
    (table.durability.kind(), table.durability.is_coming())
}

/// Between two portions the table is changed, replaced, dropped, or altered otherwise. The server ends at some moment.
fn run(seed: u64) {
    let mut rng = SeededRng(seed);
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    let (mut expected, mut now) = (life.contents_of(0, MANY), 0);
    for _ in 0..rng.below(12) {
        let said = [Durability::Soon, Durability::Always][rng.below(2) as usize];
        let _portion = alter(&mut life, said, now);
        for _ in 0..rng.below(60) {
            now += rng.below(3);
            change(&mut life, &mut rng, now, T, MANY);
        }
        if rng.one_in(3) {
            life.publish();
        }
        if !rng.one_in(3) {
            life.write(now);
            expected = life.contents_of(now, MANY);
        }
    }
    drop(life);
    let wall = 1_000_000 + now;
    let mut life = Life::begin(&folder, wall);
    expected.retain(|_, element| element.is_alive(wall));
    assert_same(&life.contents_of(0, MANY), &expected, seed);
}

#[test]
fn an_opening_knows_a_table_from_the_record_behind_its_copies_on() {
    (0..40).for_each(run);
}

#[test]
fn a_table_becomes_durable_in_portions_and_then_has_all() {
    for said in [Durability::Soon, Durability::Always] {
        let path = tempfile::tempdir().unwrap();
        let folder = folder_of(path.path());
        let mut life = begin(&folder);
        assert!(alter_all(&mut life, said) > 4, "each portion is about a MiB");
        assert_eq!(durability(&life), (said, false));
        let contents = life.contents_of(0, MANY);
        assert_eq!(contents.len() as u64, MANY);
        assert_eq!(alter(&mut life, said, 0), Ok(()), "nothing is left to do");
        drop(life);
        let mut life = Life::begin(&folder, 1_000_000);
        assert_same(&life.contents_of(0, MANY), &contents, 0);
        assert_eq!(durability(&life), (said, false));
    }
}

/// The removal of an element while the table is in memory is in no record, and an older record of the element is.
#[test]
fn a_table_that_becomes_durable_again_has_nothing_of_the_time_before() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    // So few that nothing is cleaned.
    let mut life = Life::begin(&folder, 1_000_000);
    life.session.batch(Now::from_millis(0)).create_table(T, T).unwrap();
    (0..3).for_each(|key| put(&mut life, key, b"old"));
    alter_all(&mut life, Durability::Soon);
    assert_eq!(alter_all(&mut life, Durability::None), 2);
    life.session.batch(Now::from_millis(0)).delete(T, &key_of(1)).unwrap();
    put(&mut life, 2, b"new");
    alter_all(&mut life, Durability::Soon);
    let contents = life.contents(0);
    assert_eq!(contents.len(), 2);
    drop(life);
    assert_same(&Life::begin(&folder, 1_000_000).contents(0), &contents, 0);
}

#[test]
fn a_table_in_memory_again_is_gone_with_the_server() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    alter_all(&mut life, Durability::Always);
    alter_all(&mut life, Durability::None);
    assert_eq!(durability(&life), (Durability::None, false));
    assert!(life.contents_of(0, MANY).is_empty() && life.session.batch(Now::from_millis(0)).get(T, &key_of(1)).is_ok());
    drop(life);
    let mut life = Life::begin(&folder, 1_000_000);
    assert_eq!(life.session.batch(Now::from_millis(0)).count(T), Err(Refusal::TableNotFound));
}

/// Only what is more than before has to be awaited.
#[test]
fn a_higher_promise_has_a_later_epoch_and_a_lower_one_has_none() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    let epoch_of = |life: &Life| {
        let guard = epoch::pin();
        life.session.shared().catalog.find(T, &guard).unwrap().durability.epoch()
    };
    alter_all(&mut life, Durability::Soon);
    let soon = epoch_of(&life);
    alter_all(&mut life, Durability::Always);
    let always = epoch_of(&life);
    alter_all(&mut life, Durability::Soon);
    assert!(soon < always);
    assert_eq!((epoch_of(&life), durability(&life)), (always, (Durability::Soon, false)));
}

#[test]
fn a_table_without_room_on_the_disk_is_in_memory_as_before() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_within(path.path(), Some(2 << 20));
    let mut life = begin(&folder);
    let (mut progress, mut steps) = (ManyProgress::default(), 0);
    let refusal = loop {
        match life.session.batch(Now::from_millis(0)).alter_table(T, Durability::Soon, &mut progress) {
            Err(Refusal::Unfinished | Refusal::Busy) => steps += 1,
            outcome => break outcome,
        }
        life.write(0);
        assert!(steps < 100, "it is refused");
    };
    assert_eq!((refusal, durability(&life)), (Err(Refusal::OutOfDisk), (Durability::None, false)));
    put(&mut life, 1, b"is stored");
}

/// Turns of the reaper, a second apart at first, with an epoch behind each, until nothing is coming any more.
fn reap(life: &mut Life) {
    for turn in 0.. {
        life.background.reaper.step(Now::from_millis(1_000 * turn));
        life.write(0);
        if !durability(life).1 {
            return;
        }
        assert!(turn < 100, "nobody finishes it");
    }
}

#[test]
fn a_table_whose_client_is_gone_comes_all_the_same() {
    for (steps, said) in [(1, Durability::Soon), (3, Durability::Always), (usize::MAX, Durability::Always)] {
        let path = tempfile::tempdir().unwrap();
        let folder = folder_of(path.path());
        let mut life = begin(&folder);
        for _ in 0..steps {
            assert_eq!(alter(&mut life, Durability::Soon, 0), Err(Refusal::Unfinished));
            life.write(0);
            let guard = epoch::pin();
            if life.session.shared().catalog.find(T, &guard).unwrap().durability.walked().is_none() {
                break;
            }
        }
        assert_eq!(alter(&mut life, said, 0), Err(Refusal::Unfinished));
        reap(&mut life);
        assert_eq!(durability(&life), (said, false), "what was said last holds");
        let contents = life.contents_of(0, MANY);
        assert_eq!(contents.len() as u64, MANY);
        drop(life);
        let mut life = Life::begin(&folder, 1_000_000);
        assert_same(&life.contents_of(0, MANY), &contents, 0);
    }
}

#[test]
fn a_table_that_is_left_on_a_full_disk_is_in_memory_again() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_within(path.path(), Some(2 << 20));
    let mut life = begin(&folder);
    assert_eq!(alter(&mut life, Durability::Soon, 0), Err(Refusal::Unfinished));
    reap(&mut life);
    assert_eq!(durability(&life), (Durability::None, false));
    put(&mut life, 1, b"is stored");
}

#[test]
fn a_table_that_is_left_and_deleted_holds_nobody_up() {
    let path = tempfile::tempdir().unwrap();
    let mut life = begin(&folder_of(path.path()));
    assert_eq!(alter(&mut life, Durability::Soon, 0), Err(Refusal::Unfinished));
    life.background.reaper.step(Now::from_millis(0));
    life.session.batch(Now::from_millis(0)).delete_table(T).unwrap();
    life.session.batch(Now::from_millis(0)).create_table(T, T).unwrap();
    for turn in 1..10 {
        life.background.reaper.step(Now::from_millis(1_000 * turn));
        life.write(0);
    }
    assert_eq!(durability(&life), (Durability::None, false));
    assert_eq!(alter_all(&mut life, Durability::Soon), 4, "the new table is empty");
}

#[test]
fn durable_tables_evict_nothing_and_those_in_memory_do_as_before() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = Life::begin(&folder, 1_000_000);
    let mut batch = life.session.batch(Now::from_millis(0));
    batch.create_table_with(T, T, Some(EvictionPolicy::Lru), None).unwrap();
    drop(batch);
    let evicts = |life: &Life| {
        let guard = epoch::pin();
        let catalog = &life.session.shared().catalog;
        (catalog.find(T, &guard).unwrap().eviction.is_allowed(), catalog.eviction.has_tables())
    };
    assert_eq!(evicts(&life), (true, true));
    alter_all(&mut life, Durability::Soon);
    assert_eq!(evicts(&life), (false, false));
    alter_all(&mut life, Durability::None);
    assert_eq!(evicts(&life), (true, true));
}

/// A removal in the epoch before would stand before the copy, and go from the log before it.
#[test]
fn a_copy_waits_until_the_epoch_before_is_left() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    assert_eq!(alter(&mut life, Durability::Soon, 0), Err(Refusal::Unfinished));
    let shared = Arc::clone(life.session.shared());
    let epochs = Arc::clone(&shared.epochs);
    let walked = || {
        let guard = epoch::pin();
        shared.catalog.find(T, &guard).unwrap().durability.walked()
    };
    let mut writer = EffectWriter::new(&epochs);
    writer.enter(1, false).unwrap();
    let (open, log) = (epochs.open_epoch(), &mut life.log);
    thread::scope(|scope| {
        let written = scope.spawn(|| log.write(ClockReading::from_millis(1_000_000)));
        while epochs.open_epoch() == open {
            thread::yield_now();
        }
        let mut progress = ManyProgress::default();
        let mut portion = || life.session.batch(Now::from_millis(0)).alter_table(T, Durability::Soon, &mut progress);
        let early = (portion(), walked());
        writer.leave();
        written.join().unwrap().unwrap();
        assert_eq!(early, (Err(Refusal::Unfinished), Some(0)));
        assert_eq!(portion(), Err(Refusal::Unfinished));
        assert_ne!(walked(), Some(0));
    });
}

/// Tries until the outcome is final. Meanwhile other threads have their turns.
fn insist<R>(
    session: &mut Session,
    mut operation: impl FnMut(&mut Batch<'_>) -> Result<R, Refusal>,
) -> Result<R, Refusal> {
    loop {
        let outcome = operation(&mut session.batch(Now::from_millis(0)));
        session.note_tried();
        match outcome {
            Err(Refusal::Busy) => session.wait(),
            Err(Refusal::Unfinished) => thread::yield_now(),
            outcome => return outcome,
        }
    }
}

/// Writes, deletes and touches elements at random.
fn work(session: &mut Session, mut rng: SeededRng) {
    for _ in 0..4_000 {
        let (key, value) = (key_of(rng.below(MANY)), vec![7; rng.index(2_000)]);
        let _refused = match rng.below(4) {
            0 | 1 => insist(session, |batch| batch.update(T, &key, &value, Deadline::NONE)),
            2 => insist(session, |batch| batch.delete(T, &key).map(drop)),
            _ => insist(session, |batch| batch.touch(T, &key, Deadline::after(batch.now(), Ttl::from_millis(1 << 30)))),
        };
    }
}

/// A write that has found the table in memory is over before its changes are recorded.
#[test]
fn a_table_becomes_durable_behind_the_batches_of_before() {
    let path = tempfile::tempdir().unwrap();
    let folder = folder_of(path.path());
    let mut life = begin(&folder);
    let (mut other, shared) = (life.another(), Arc::clone(life.session.shared()));
    hooks::at(Failpoint::BeforeCas, move || {
        for _ in 0..4 {
            let mut progress = ManyProgress::default();
            let altered = other.batch(Now::from_millis(0)).alter_table(T, Durability::Soon, &mut progress);
            assert_eq!(altered, Err(Refusal::Busy));
        }
        let guard = epoch::pin();
        assert!(!shared.catalog.find(T, &guard).unwrap().is_durable());
    });
    put(&mut life, 1, b"by a batch of before");
    alter_all(&mut life, Durability::Soon);
    let contents = life.contents_of(0, MANY);
    drop(life);
    assert_same(&Life::begin(&folder, 1_000_000).contents_of(0, MANY), &contents, 0);
}

/// Two sessions alter the table, and two change it. The log is written, and changes are announced, all the time.
#[test]
fn a_table_is_altered_while_other_sessions_change_it() {
    for seed in 0..5 {
        let path = tempfile::tempdir().unwrap();
        let folder = folder_of(path.path());
        let mut life = begin(&folder);
        let mut sessions: Vec<_> = (0..4).map(|_| life.another()).collect();
        let Life { background, log, .. } = &mut life;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let until_over = |work: &mut dyn FnMut()| {
                while !is_over.load(Ordering::SeqCst) {
                    work();
                }
            };
            scope.spawn(move || until_over(&mut || log.write(ClockReading::from_millis(1_000_000)).unwrap()));
            let changes = &mut background.changes;
            scope.spawn(move || {
                until_over(&mut || {
                    changes.drain(usize::MAX, &mut |_, _, _| {});
                })
            });
            let workers: Vec<_> = (0..)
                .zip(&mut sessions)
                .map(|(number, session)| {
                    scope.spawn(move || match number {
                        0 | 1 => work(session, SeededRng(10 * seed + number)),
                        _ => {
                            let said = if number == 2 { Durability::Soon } else { Durability::Always };
                            let mut progress = ManyProgress::default();
                            insist(session, |batch| batch.alter_table(T, said, &mut progress)).unwrap();
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            is_over.store(true, Ordering::SeqCst);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        drop(sessions);
        assert_ne!(durability(&life).0, Durability::None);
        life.write(0);
        let contents = life.elements_of(T, 0, MANY);
        assert!(contents.len() > 1_000);
        drop(life);
        assert_same(&Life::begin(&folder, 1_000_000).elements_of(T, 0, MANY), &contents, seed);
    }
}
