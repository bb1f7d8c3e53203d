//! Requests for many elements: the clock by which they see them, and the portions in which they are carried out.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::super::failpoint::{Failpoint, hooks};
use super::super::{BackgroundThreads, Deadline, ManyProgress, PORTION_BYTES, Refusal, Tables, TablesConfig};
use super::{TablesRig, in_seconds, settings};
use crate::clock::{Now, Ttl};

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
        batch.get_many(b"t", [&b"a"[..], b"b"].into_iter(), &ManyProgress::default(), &mut values).unwrap();
        assert_eq!(values, due, "{millis}");
    }
}

#[test]
fn many_are_deleted_each_by_itself_and_announced_once() {
    let rig = TablesRig::new();
    for key in ["a", "b", "c"] {
        rig.set(key, "1", Some(u32::from(key == "c"))).unwrap();
    }
    let mut session = rig.another();
    let mut batch = session.batch(rig.at(1_001).now());
    let keys = [&b"a"[..], b"none", b"c", b"a", b"b"];
    let mut delete = |table| batch.delete_many(table, keys.into_iter(), &mut ManyProgress::default());
    assert_eq!(delete(b"t"), Ok(vec![true, false, false, false, true]));
    assert_eq!(delete(b"n"), Err(Refusal::TableNotFound));
    drop(batch);
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "b+", "c+", "a-", "c-", "b-"]);
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
    let keys = [&b"a"[..], b"b"].into_iter();
    let outcome = session.batch(rig.now()).delete_many(b"t", keys, &mut ManyProgress::default());
    assert_eq!((outcome, hooks::is_waiting()), (Err(Refusal::TableNotFound), false));
    drop(session);
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "b+", "b-", "a-"]);
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
    let mut seconds = 1;
    session.batch(Now::from_millis(1_000)).create_table(b"t", b"t").unwrap();
    session.batch(Now::from_millis(1_000)).update(b"t", last, b"old", in_seconds(Now::from_millis(1_000), 1)).unwrap();
    let mut left = Vec::new();
    for ttl in [None, Some(Ttl::from_secs(5))] {
        let (mut progress, mut waits) = (ManyProgress::default(), 0);
        while let Err(refusal) = {
            let mut batch = session.batch(Now::from_millis(1_000 * seconds));
            batch.update_many(b"t", Deadline::after(batch.now(), ttl), pairs.clone(), &mut progress)
        } {
            assert_eq!(refusal, Refusal::Busy);
            waits += u64::from(progress.has_begun());
            changes.drain(100, &mut |_, _, _| {});
            assert!(session.watch());
            seconds += 10;
        }
        assert!(waits > 0 && progress.done() == 0, "it has waited halfway");
        let now = Now::from_millis(1_000 * seconds);
        left.push(session.batch(now).get_entry(b"t", last, || now).map(|entry| entry.remaining_millis));
    }
    assert_eq!(
        left,
        [Ok(None), Ok(Some(5_000))],
        "the old deadline has gone with its element; the new one is of the last reading"
    );
}

#[test]
fn many_deletions_that_had_to_wait_go_on_behind_those_that_were_made() {
    let (tables, BackgroundThreads { mut changes, expiry: _expiry, reaper: _reaper, .. }) =
        Tables::new(TablesConfig { changes_per_writer: CREDITS, ..settings() });
    let mut session = tables.session();
    let now = Now::from_millis(1_000);
    let keys: Vec<[u8; 8]> = (0..PAIRS).map(u64::to_be_bytes).collect();
    session.batch(now).create_table(b"t", b"t").unwrap();
    for key in &keys {
        session.batch(now).update(b"t", key, b"1", Deadline::KEEP).unwrap();
        changes.drain(100, &mut |_, _, _| {});
    }
    let (mut progress, mut waits) = (ManyProgress::default(), 0);
    let keys = keys.iter().map(|key| &key[..]);
    let deleted = loop {
        match session.batch(now).delete_many(b"t", keys.clone(), &mut progress) {
            Err(Refusal::Busy) => waits += u32::from(progress.has_begun()),
            deleted => break deleted.unwrap(),
        }
        changes.drain(100, &mut |_, _, _| {});
        assert!(session.watch());
    };
    assert!(waits > 0, "it has waited halfway");
    assert_eq!(deleted, vec![true; keys.len()]);
}

/// Each is longer than half a portion.
fn long_values() -> Vec<(String, Vec<u8>)> {
    (0..5).map(|number| (format!("k{number}"), vec![number; PORTION_BYTES / 2 + 1])).collect()
}

/// How many elements each call stores, and what the last one returns.
fn portions(
    rig: &TablesRig,
    pairs: &[(String, Vec<u8>)],
    mut between: impl FnMut(),
) -> (Vec<usize>, Result<(), Refusal>) {
    let (mut progress, mut done) = (ManyProgress::default(), vec![0]);
    let mut session = rig.another();
    loop {
        let pairs = pairs.iter().map(|(key, value)| (key.as_bytes(), &value[..]));
        match session.batch(rig.now()).update_many(b"t", Deadline::KEEP, pairs, &mut progress) {
            Err(Refusal::Unfinished) => done.push(progress.done()),
            outcome => return (done, outcome),
        }
        between();
    }
}

#[test]
fn long_values_are_stored_in_portions_and_their_memory_is_kept_for_them() {
    let rig = TablesRig::with(TablesConfig { memory_max: 4 << 20, ..settings() });
    let pairs = long_values();
    let (mut least, mut greatest) = (u64::MAX, 0);
    let stored = portions(&rig, &pairs, || {
        let bytes = rig.tables_metrics().memory.used;
        (least, greatest) = (least.min(bytes), greatest.max(bytes));
        let mut other = rig.another();
        let more = other.batch(rig.now()).update(b"t", b"other", &vec![7; 3 * PORTION_BYTES / 2], Deadline::KEEP);
        assert_eq!(more, Err(Refusal::OutOfMemory), "there is no room beside it");
        assert_eq!(other.batch(rig.now()).update(b"t", b"other", b"short", Deadline::KEEP), Ok(()));
    });
    assert_eq!(stored, (vec![0, 1, 2, 3, 4], Ok(())));
    let most = rig.tables_metrics().memory.used;
    assert!(least + 4_096 > 5 * (PORTION_BYTES as u64 / 2) && most < least + 4_096, "{least} to {most} bytes");
    assert!(greatest < most + 4_096, "up to {greatest} bytes: what is stored is kept no more");
    pairs.iter().for_each(|(key, value)| assert_eq!(rig.get(key).map(String::into_bytes).as_ref(), Some(value)));
    // One that is never finished.
    let mut progress = ManyProgress::default();
    let again = pairs.iter().map(|(key, value)| (key.as_bytes(), &value[..]));
    rig.delete("k4").unwrap();
    let before = rig.tables_metrics().memory.used;
    let stored = rig.another().batch(rig.now()).update_many(b"t", Deadline::KEEP, again, &mut progress);
    assert_eq!((stored, progress.done()), (Err(Refusal::Unfinished), 1));
    assert!(rig.tables_metrics().memory.used > before);
    drop(progress);
    assert_eq!(rig.tables_metrics().memory.used, before);
}

#[test]
fn a_portion_goes_to_the_life_of_the_table_in_which_its_request_has_begun() {
    let rig = TablesRig::new();
    let mut session = rig.another();
    let (stored, outcome) = portions(&rig, &long_values(), || {
        rig.drop_table("t").unwrap();
        rig.create("t").unwrap();
    });
    assert_eq!((stored.len(), outcome), (2, Err(Refusal::TableNotFound)));
    assert_eq!(rig.get("k1"), None);
    assert_eq!(portions(&rig, &long_values(), || ()).1, Ok(()));
    let keys = ["k0", "k1", "none", "k2", "k3"];
    let keys = || keys.iter().map(|key| key.as_bytes());
    let mut progress = ManyProgress::default();
    let mut values = Vec::new();
    let mut batch = session.batch(rig.now());
    let life = batch.get_many(b"t", keys(), &progress, &mut values).unwrap();
    assert_eq!(values.iter().flatten().count(), 4, "as long as it has not begun, all are read");
    drop(batch);
    progress.begin(life);
    for (done, expected) in [(0, 1), (1, 2), (3, 1), (4, 1)] {
        let mut values = Vec::new();
        let mut batch = session.batch(rig.now());
        assert_eq!((progress.done(), batch.get_many(b"t", keys(), &progress, &mut values)), (done, Ok(life)));
        assert_eq!(values.len(), expected, "{done}");
        drop(batch);
        progress.advance(expected);
    }
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    let mut batch = session.batch(rig.now());
    assert_eq!(batch.get_many(b"t", keys(), &progress, &mut Vec::new()), Err(Refusal::TableNotFound));
}
