//! The reading of the clock by which GET_MANY and UPDATE_MANY see their elements.

#![allow(clippy::unwrap_used, reason = "a trial that fails should say where")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::failpoint::{Failpoint, hooks};
use super::super::{BackgroundThreads, Refusal, Tables, TablesConfig};
use super::{TablesRig, settings};
use crate::clock::Now;

const CREDITS: usize = 56;
const PAIRS: u64 = 100;

#[test]
fn many_are_read_by_the_clock_of_their_batch() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    rig.set("b", "2", None).unwrap();
    let mut session = rig.another();
    for (millis, due) in [(1_000, [Some(&b"1"[..]), Some(b"2")]), (1_001, [None, Some(b"2")])] {
        let mut values = Vec::new();
        let mut batch = session.batch(rig.at(millis).now());
        batch.get_many(b"t", [&b"a"[..], b"b"].into_iter(), &mut values).unwrap();
        assert_eq!(values, due, "{millis}");
    }
}

#[test]
fn many_are_deleted_each_by_itself_and_heard_once() {
    let rig = TablesRig::new();
    for key in ["a", "b", "c"] {
        rig.set(key, "1", Some(u32::from(key == "c"))).unwrap();
    }
    let mut deleted = Vec::new();
    let mut session = rig.another();
    let mut batch = session.batch(rig.at(1_001).now());
    let keys = [&b"a"[..], b"none", b"c", b"a", b"b"];
    batch.delete_many(b"t", keys.into_iter(), &mut deleted, || rig.now()).unwrap();
    assert_eq!(deleted, [true, false, false, false, true]);
    assert_eq!(batch.delete_many(b"no", keys.into_iter(), &mut deleted, || rig.now()), Err(Refusal::TableNotFound));
    drop(batch);
    rig.settle();
    assert_eq!(rig.heard(), ["a+", "b+", "c+", "a-", "c-", "b-"]);
    assert_eq!(rig.tables_metrics().reaped, 3);
}

#[test]
fn a_table_that_is_deleted_between_two_of_many_is_not_found() {
    let rig = TablesRig::new();
    for key in ["a", "b"] {
        rig.set(key, "1", None).unwrap();
    }
    let (inner, mut session) = (rig.clone(), rig.another());
    hooks::at(Failpoint::Committed, move || {
        inner.drop_table("t").unwrap();
        inner.settle();
    });
    let mut deleted = Vec::new();
    let keys = [&b"a"[..], b"b"].into_iter();
    let outcome = session.batch(rig.now()).delete_many(b"t", keys, &mut deleted, || rig.now());
    assert_eq!((outcome, hooks::is_waiting()), (Err(Refusal::TableNotFound), false));
    drop(session);
    rig.settle();
    assert_eq!(rig.heard(), ["a+", "b+", "b-", "a-"]);
}

#[test]
fn many_that_had_to_wait_are_written_by_the_clock_that_was_read_after_it() {
    let (tables, BackgroundThreads { mut changes, expiry: _expiry, reaper: _reaper, .. }) =
        Tables::new(TablesConfig { changes_per_writer: CREDITS, ..settings() });
    let mut session = tables.session();
    let keys: Vec<[u8; 8]> = (0..PAIRS).map(u64::to_be_bytes).collect();
    let last = keys.last().unwrap();
    let pairs = keys.iter().map(|key| (&key[..], &b"new"[..]));
    // After each wait it is ten seconds later.
    let seconds = Cell::new(1);
    let now = || Now::from_millis(1_000 * seconds.get());
    let read_anew = || {
        seconds.set(seconds.get() + 10);
        now()
    };
    session.batch(now()).create_table(b"t", b"t").unwrap();
    session.batch(now()).update(b"t", last, b"old", Some(1)).unwrap();
    changes.drain(1, &mut |_, _, _| {});
    let (mut left, ended) = (Vec::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (all, ended) = (&tables, &ended);
        scope.spawn(move || {
            // The publisher announces no change before the writer waits.
            while all.metrics().writer_waits == 0 {
                std::thread::yield_now();
            }
            while !ended.load(Ordering::Relaxed) {
                changes.drain(1, &mut |_, _, _| {});
                std::thread::yield_now();
            }
        });
        for ttl in [None, Some(5)] {
            while session.batch(now()).update_many(b"t", ttl, pairs.clone(), read_anew) == Err(Refusal::Busy) {
                session.wait();
            }
            left.push(session.batch(now()).get_entry(b"t", last, now).map(|entry| entry.remaining_millis));
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(seconds.get() > 1, "it has waited");
    assert_eq!(
        left,
        [Ok(None), Ok(Some(5_000))],
        "the old deadline has gone with its element; the new one is of the last reading"
    );
}
