//! The order of two steps that only these tests show: each test looks at the state between the two steps.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::failpoint::{Failpoint, hooks};
use super::super::index::CELLS;
use super::super::slot::NEVER;
use super::super::{ChangeKind, Refusal, Tables, TablesConfig};
use super::waiting::counting_waker;
use super::{TablesRig, in_seconds, set, settings};
use crate::clock::Now;
use crate::limits::{DUES_MAX, REAPER_CHUNK};

#[test]
fn every_key_is_found_while_a_bucket_is_being_split() {
    let rig = TablesRig::new();
    let mut reader = rig.another();
    let now = rig.now();
    let stored = Rc::new(Cell::new(0));
    let so_far = Rc::clone(&stored);
    hooks::at(Failpoint::HandedOver, move || {
        let mut batch = reader.batch(now);
        for key in 0..so_far.get() {
            assert!(batch.get(b"t", key.to_string().as_bytes()).is_ok(), "{key} of {}", so_far.get());
        }
    });
    while hooks::is_waiting() {
        rig.set(&stored.get().to_string(), "1", None).unwrap();
        stored.set(stored.get() + 1);
    }
    assert!(stored.get() > CELLS, "{}", stored.get());
}

/// Another writer creates "a" when a slot leaves. Its version is above the previous one.
fn a_new_slot_starts_above_one_that_has_just_left(delete: impl FnOnce(&TablesRig)) {
    let rig = TablesRig::new();
    for _ in 0..5 {
        rig.set("a", "1", None).unwrap();
    }
    let before = rig.version("a");
    delete(&rig);
    rig.publish();
    let mut other = rig.another();
    let now = rig.now();
    hooks::at(Failpoint::SlotLeft, move || set(&mut other, now, "a", "2", None).unwrap());
    for _ in 0..5 {
        rig.reap();
        rig.publish();
    }
    assert!(!hooks::is_waiting());
    assert!(rig.version("a") > before + 1, "above the deletion, too: {} after {before}", rig.version("a"));
}

#[test]
fn the_floor_is_raised_before_a_deleted_element_leaves() {
    a_new_slot_starts_above_one_that_has_just_left(|rig| {
        rig.delete("a").unwrap();
    });
}

#[test]
fn the_floor_is_raised_before_an_element_leaves_with_its_table() {
    a_new_slot_starts_above_one_that_has_just_left(|rig| {
        rig.drop_table("t").unwrap();
        rig.create("t").unwrap();
    });
}

#[test]
fn what_is_held_back_counts_as_waiting_and_gives_no_credit_back() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 56, ..settings() });
    let mut early = rig.another();
    let mut late = rig.another();
    let now = rig.now();
    set(&mut late, now, "a", "1", None).unwrap();
    let inner = rig.clone();
    hooks::at(Failpoint::Committed, move || {
        for round in 0..56 {
            set(&mut early, now, "a", &round.to_string(), None).unwrap();
        }
        inner.publish();
        assert_eq!(inner.notified(), ["a+"]);
        assert_eq!(inner.tables_metrics().changes_waiting, 56, "taken from the ring, and not announced");
        assert_eq!(set(&mut early, now, "b", "1", None), Err(Refusal::Busy));
    });
    set(&mut late, now, "a", "2", None).unwrap();
    assert!(!hooks::is_waiting());
    rig.publish();
    assert_eq!(rig.tables_metrics().changes_waiting, 0);
}

#[test]
fn the_reaper_looks_at_its_queue_after_a_chunk() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 14, ..settings() });
    let keys = 4 * REAPER_CHUNK;
    for key in 0..keys {
        rig.set(&key.to_string(), "1", None).unwrap();
    }
    rig.publish();
    rig.drop_table("t").unwrap();
    let step = || {
        rig.notified();
        let before = rig.tables_metrics().reaped;
        rig.reap();
        rig.publish();
        (rig.notified().len(), rig.tables_metrics().reaped - before)
    };
    let (mut sealed, mut freed, mut steps) = (0, 0, 0);
    while freed < keys as u64 {
        let (sealed_now, freed_now) = step();
        assert!(sealed_now < REAPER_CHUNK + CELLS, "{sealed_now} sealed before it looked at its queue");
        assert!(freed_now < (REAPER_CHUNK + CELLS) as u64, "{freed_now} freed before it looked at its queue");
        (sealed, freed, steps) = (sealed + sealed_now, freed + freed_now, steps + 1);
        assert!(steps < keys, "it gets on");
    }
    assert_eq!(sealed, keys);
}

#[test]
fn the_reaper_waits_for_a_message_only_when_it_has_nothing_to_do() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 14, ..settings() });
    for key in 0..4 * REAPER_CHUNK {
        rig.set(&key.to_string(), "1", None).unwrap();
    }
    rig.publish();
    let waits = || rig.0.reaper.borrow_mut().idle_time(true).is_some();
    assert!(waits(), "no table is deleted");
    rig.drop_table("t").unwrap();
    rig.reap();
    assert!(!waits(), "slots are left to seal");
    for _ in 0..40 {
        rig.settle();
    }
    assert!(waits(), "the table is taken down");
    rig.0.tables.close();
    rig.reap();
    assert!(!waits(), "the thread ends at once");
}

#[test]
fn an_earlier_deadline_wakes_the_expiry_thread_and_a_later_one_does_not() {
    let rig = TablesRig::new();
    let (waker, woken) = counting_waker();
    rig.0.tables.0.expiry.sleeper().set_waker(waker);
    assert!(rig.0.expiry.borrow().falls_asleep(5_000));
    rig.set("a", "1", Some(10)).unwrap();
    assert_eq!(woken(), 0, "it comes up before that anyway");
    rig.set("b", "1", Some(2)).unwrap();
    assert_eq!(woken(), 1);
    rig.set("c", "1", Some(1)).unwrap();
    assert_eq!(woken(), 1, "it is awake, and looks before it sleeps");
    assert!(!rig.0.expiry.borrow().falls_asleep(5_000), "there are messages");
    rig.expire();
    assert!(rig.0.expiry.borrow().falls_asleep(NEVER));
    rig.set("d", "1", Some(100)).unwrap();
    assert_eq!((woken(), rig.tables_metrics().lost_wakeups), (2, 0));
}

#[test]
fn a_deadline_that_becomes_earlier_while_its_message_is_queued_wakes_the_expiry_thread() {
    let rig = TablesRig::new();
    let (waker, woken) = counting_waker();
    rig.0.tables.0.expiry.sleeper().set_waker(waker);
    assert!(rig.0.expiry.borrow().falls_asleep(5_000));
    rig.set("a", "1", Some(10)).unwrap();
    assert_eq!(woken(), 0, "the message waits until the thread is awake");
    rig.set("a", "2", Some(2)).unwrap();
    assert_eq!(woken(), 1, "the thread would sleep beyond the new deadline");
    rig.expire();
    assert_eq!(rig.tables_metrics().timers, 1, "two messages of a slot file one record");
    rig.at(2_001).expire();
    assert_eq!((rig.tables_metrics().timers, rig.tables_metrics().expired), (0, 1));
}

#[test]
fn a_batch_keeps_what_it_cannot_send_until_its_guard_is_gone() {
    let changes_per_writer = 4 * DUES_MAX;
    let rig = TablesRig::with(TablesConfig { changes_per_writer, ..settings() });
    for key in 0..DUES_MAX {
        rig.set(&key.to_string(), "1", Some(1)).unwrap();
    }
    // The queue is full. A batch that waited for room would wait for ever, because the expiry thread is run below.
    let tables = rig.0.tables.clone();
    let now = rig.now();
    let (in_the_batch, at_the_end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (within, after) = (Arc::clone(&in_the_batch), Arc::clone(&at_the_end));
    let writer = std::thread::spawn(move || {
        let mut session = tables.session();
        let mut batch = session.batch(now);
        for key in ["x", "y", "z"] {
            batch.update(b"t", key.as_bytes(), b"1", in_seconds(batch.now(), 1)).unwrap();
        }
        within.store(1, Ordering::Release);
        drop(batch);
        after.store(1, Ordering::Release);
    });
    while in_the_batch.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(at_the_end.load(Ordering::Acquire), 0, "it waits at the end of the batch");
    while !writer.is_finished() {
        rig.expire();
    }
    writer.join().unwrap();
    rig.expire();
    assert_eq!(rig.tables_metrics().timers, DUES_MAX as u64 + 3);
}

#[test]
fn a_record_that_is_filed_anew_while_its_slot_dies_does_not_stay() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    rig.expire();
    rig.delete("a").unwrap();
    let again = rig.clone();
    let mut other = rig.another();
    let now = rig.at(1_001).now();
    hooks::at(Failpoint::BeforeRearm, move || {
        // The record has come up without an element. Now there is one, and its writer finds the slot armed.
        set(&mut other, now, "a", "2", Some(1_000)).unwrap();
        hooks::at(Failpoint::BeforeRearm, move || {
            // The expiry thread is about to file the record. The slot is not armed at this moment, dies and leaves.
            again.delete("a").unwrap();
            again.publish();
            again.reap();
            assert_eq!(again.tables_metrics().reaped, 1);
        });
    });
    rig.expire();
    assert!(!hooks::is_waiting());
    rig.settle();
    assert_eq!(rig.tables_metrics().timers, 0, "nothing is there that the wheel should look at");
}

#[test]
fn what_is_deleted_before_its_deadline_leaves_the_wheel() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1_000)).unwrap();
    rig.settle();
    assert_eq!(rig.tables_metrics().timers, 1);
    rig.delete("a").unwrap();
    rig.settle();
    assert_eq!((rig.tables_metrics().timers, rig.tables_metrics().reaped), (0, 1));
}

#[test]
fn a_throttled_writer_waits_once_for_a_portion() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 64, ..settings() });
    let mut sessions: Vec<_> = (0..4).map(|_| rig.another()).collect();
    let (now, rounds) = (rig.now(), 2_000);
    let mut written = 0;
    while written < rounds {
        for (number, session) in sessions.iter_mut().enumerate() {
            while set(session, now, &number.to_string(), "1", None).is_ok() {
                written += 1;
            }
            let _woken_later = session.watch();
        }
        // The publisher takes four changes from each ring at a time.
        rig.0.changes.borrow_mut().drain(4 * 4, &mut |_, _, _| {});
    }
    let waits = rig.tables_metrics().writer_waits;
    assert!(waits <= written / 16 + 4, "{waits} waits for {written} changes");
}

#[test]
fn sealing_a_large_table_ends_with_its_time_when_the_tables_are_closed() {
    const KEYS: usize = 30_000;
    let (tables, background) = Tables::new(TablesConfig { changes_per_writer: 1 << 16, ..settings() });
    let now = Now::from_millis(1);
    let mut session = tables.session();
    session.batch(now).create_table(b"t", b"t").unwrap();
    for key in 0..KEYS {
        set(&mut session, now, &key.to_string(), "", None).unwrap();
    }
    session.batch(now).delete_table(b"t").unwrap();
    drop(session);
    tables.close();
    // Each look at the clock is 200 ms after the last one.
    let mut millis = 0;
    background.reaper.run(|| {
        millis += 200;
        Now::from_millis(millis)
    });
    let mut changes = background.changes;
    let mut deleted = 0;
    drop((background.expiry, background.compactor));
    while !changes.drain(10_000, &mut |_, kind, _| deleted += usize::from(kind == ChangeKind::Deleted)).closed {}
    assert!((1..KEYS / 2).contains(&deleted), "{deleted}");
}
