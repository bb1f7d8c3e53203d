//! Replaced entries and slots are freed. These tests count objects and not memory.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crossbeam::epoch;

use super::super::slot::count::SLOTS;
use super::super::{BackgroundThreads, Changes, Deadline, ManyProgress, Refusal, Session, Tables, TablesConfig};
use super::alone::{alone, entries as live};
use super::{TablesRig, settings};
use crate::clock::{Clock, Now};
use crate::limits::{BATCH_MAX, MANY_MAX, REST_AFTER, RETIRED_OBJECTS_MAX};

const VALUE_BYTES: [usize; 4] = [0, 8, 64, 1024];
const KEYS: usize = 1_000;
/// Entries of a thread beyond those of the table: the entries that it retires in three epochs, and the entries for its
/// next changes.
const KEPT_MAX: i64 = 4 * RETIRED_OBJECTS_MAX as i64;

fn key(number: usize) -> [u8; 8] {
    (number as u64).to_be_bytes()
}

fn large() -> TablesRig {
    TablesRig::with(TablesConfig { changes_per_writer: 1 << 14, ..settings() })
}

/// Frees all entries and slots that can be freed.
fn let_go() {
    for _ in 0..1_000 {
        epoch::pin().flush();
    }
}

#[test]
fn a_thread_that_replaces_values_keeps_few_of_them() {
    alone("tables::tests::reclaim::a_thread_that_replaces_values_keeps_few_of_them", || {
        let rig = large();
        let mut session = rig.another();
        for bytes in VALUE_BYTES {
            let mut most = 0;
            for round in 0..1_000 {
                let mut batch = session.batch(rig.now());
                for offset in 0..BATCH_MAX {
                    batch
                        .update(b"t", &key((round * BATCH_MAX + offset) % KEYS), &vec![7; bytes], Deadline::KEEP)
                        .unwrap();
                }
                drop(batch);
                rig.publish();
                most = most.max(live());
            }
            assert!(most <= KEYS as i64 + KEPT_MAX, "{most} entries, {KEYS} of them in the table, values of {bytes}");
        }
    });
}

#[test]
fn a_long_request_gives_back_what_it_replaces_while_it_goes_on() {
    alone("tables::tests::reclaim::a_long_request_gives_back_what_it_replaces_while_it_goes_on", || {
        let rig = large();
        let mut session = rig.another();
        let keys: Vec<_> = (0..MANY_MAX).map(key).collect();
        for bytes in VALUE_BYTES {
            let value = vec![7; bytes];
            let most = Cell::new(0);
            for _ in 0..20 {
                let pairs = keys.iter().map(|key| {
                    most.set(live().max(most.get()));
                    (&key[..], &value[..])
                });
                session
                    .batch(rig.now())
                    .update_many(b"t", Deadline::KEEP, pairs, &mut ManyProgress::default())
                    .unwrap();
                rig.publish();
            }
            let most = most.get();
            assert!(most <= MANY_MAX as i64 + KEPT_MAX, "{most} entries, values of {bytes}");
        }
    });
}

#[test]
fn a_thread_that_rests_has_all_freed_that_it_replaced() {
    alone("tables::tests::reclaim::a_thread_that_rests_has_all_freed_that_it_replaced", || {
        let rig = large();
        let mut session = rig.another();
        for number in 0..3_333 {
            session.batch(rig.now()).update(b"t", &key(number % KEYS), b"value", Deadline::KEEP).unwrap();
        }
        assert_eq!(session.patience(), REST_AFTER);
        session.rest(rig.now());
        assert!(live() > KEYS as i64, "it has just replaced something, and continues");
        let reader = epoch::pin();
        session.rest(rig.now().after(REST_AFTER));
        assert!(live() > KEYS as i64, "somebody may still look");
        drop(reader);
        session.rest(rig.now().after(2 * REST_AFTER));
        assert_eq!(live(), KEYS as i64);
        assert!(session.patience() > REST_AFTER);
    });
}

#[test]
fn what_is_deleted_expires_or_goes_with_its_table_is_freed_with_its_slot() {
    alone("tables::tests::reclaim::what_is_deleted_expires_or_goes_with_its_table_is_freed_with_its_slot", || {
        let rig = large();
        for (key, ttl) in (0..9_000).map(|number| (number.to_string(), number % 3)) {
            rig.set(&key, "value", (ttl == 1).then_some(1)).unwrap();
            if ttl == 2 {
                rig.delete(&key).unwrap();
                rig.set(&key, "again", None).unwrap();
                rig.delete(&key).unwrap();
            }
            rig.publish();
        }
        rig.at(10_000).settle();
        let_go();
        assert_eq!((live(), SLOTS.load(Ordering::Relaxed)), (3_000, 3_000));
        rig.drop_table("t").unwrap();
        let mut most = 0;
        for _ in 0..50 {
            rig.settle();
            most = most.max(SLOTS.load(Ordering::Relaxed));
        }
        assert!(rig.tables_metrics().tables.is_empty());
        assert!(live() + SLOTS.load(Ordering::Relaxed) <= KEPT_MAX, "without a rest");
        let_go();
        assert_eq!((live(), SLOTS.load(Ordering::Relaxed)), (0, 0));
    });
}

/// Whether all threads let the epochs move on.
fn epochs_move() -> bool {
    let mark = Arc::new(AtomicBool::new(false));
    let freed = Arc::clone(&mark);
    epoch::pin().defer(move || freed.store(true, Ordering::Release));
    let_go();
    mark.load(Ordering::Acquire)
}

#[test]
fn a_long_request_that_waits_for_the_publisher_holds_no_guard() {
    alone("tables::tests::reclaim::a_long_request_that_waits_for_the_publisher_holds_no_guard", || {
        let (tables, BackgroundThreads { mut changes, .. }) =
            Tables::new(TablesConfig { changes_per_writer: 64, ..settings() });
        let mut session = tables.session();
        session.batch(Now::from_millis(1)).create_table(b"t", b"t").unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let keys: Vec<_> = (0..MANY_MAX).map(key).collect();
                let pairs = keys.iter().map(|key| (&key[..], &b"value"[..]));
                let (now, mut progress) = (Now::from_millis(1), ManyProgress::default());
                loop {
                    let outcome = session.batch(now).update_many(b"t", Deadline::KEEP, pairs.clone(), &mut progress);
                    if outcome == Ok(()) {
                        break;
                    }
                    assert_eq!(outcome, Err(Refusal::Busy));
                    session.wait();
                }
            });
            // From then on the writer waits until changes are announced.
            while tables.metrics().writer_waits == 0 {
                std::thread::yield_now();
            }
            let moved = epochs_move();
            while !writer.is_finished() {
                drain(&mut changes);
            }
            assert!(moved, "nothing is freed while a request waits");
        });
    });
}

fn drain(changes: &mut Changes) {
    changes.drain(1 << 16, &mut |_, _, _| {});
}

/// Updates all keys again and again, as fast as the publisher lets it. `most` gets the largest number of entries at one
/// time.
fn overwrite(mut session: Session, rounds: usize, most: &AtomicI64) {
    let clock = Clock::start();
    for number in 0..rounds {
        loop {
            let stored = session.batch(clock.now()).update(b"t", &key(number % KEYS), b"value", Deadline::KEEP);
            match stored {
                Ok(()) => break,
                Err(Refusal::Busy) => session.wait(),
                Err(refusal) => panic!("{refusal:?}"),
            }
        }
        most.fetch_max(live(), Ordering::Relaxed);
    }
    for _ in 0..10_000 {
        session.rest(clock.now().after(2 * REST_AFTER));
        if session.patience() > REST_AFTER {
            return;
        }
        std::thread::yield_now();
    }
    panic!("it is not all freed, though no thread writes any more");
}

#[test]
fn several_threads_free_as_much_as_they_replace() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 100_000;
    alone("tables::tests::reclaim::several_threads_free_as_much_as_they_replace", || {
        let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 12, ..settings() });
        let most = AtomicI64::new(0);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS).map(|_| rig.another()).collect();
            let most = &most;
            let writers: Vec<_> =
                writers.into_iter().map(|session| scope.spawn(move || overwrite(session, ROUNDS, most))).collect();
            while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                drain(&mut rig.0.changes.borrow_mut());
            }
        });
        assert_eq!(live(), KEYS as i64);
        // If the system stops a thread that holds a guard, that thread holds back all memory that is retired meanwhile.
        let most = most.into_inner();
        assert!(most < (THREADS * ROUNDS / 2) as i64, "{most} entries, {KEYS} of them in the table");
    });
}

#[test]
fn garbage_is_counted_until_it_is_freed() {
    alone("tables::tests::reclaim::garbage_is_counted_until_it_is_freed", || {
        let rig = large();
        let mut session = rig.another();
        let garbage = || (rig.tables_metrics().memory.garbage_bytes, rig.tables_metrics().memory.garbage_objects);
        let reader = epoch::pin();
        for _ in 0..=4 * RETIRED_OBJECTS_MAX {
            session.batch(rig.now()).update(b"t", b"k", b"value", Deadline::KEEP).unwrap();
        }
        let objects = 4 * RETIRED_OBJECTS_MAX as u64;
        // An entry with its header takes 32 bytes.
        assert_eq!(garbage(), (32 * objects, objects));
        session.batch(rig.now()).delete(b"t", b"k").unwrap();
        rig.settle();
        session.rest(rig.now().after(REST_AFTER));
        assert!(garbage().1 > objects, "the value that was deleted, and perhaps the key");
        drop(reader);
        session.rest(rig.now().after(2 * REST_AFTER));
        let_go();
        assert_eq!(garbage(), (0, 0));
    });
}
