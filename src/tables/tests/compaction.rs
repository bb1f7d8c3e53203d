//! Memory that the process has beyond the budget counts and is given back. Moving entries changes no element.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::Arc;

use super::super::failpoint::{Failpoint, hooks};
use super::super::sleeper::Sleeper;
use super::super::{Deadline, ManyProgress, Refusal, Tables, TablesConfig};
use super::waiting::{counted, counting_waker};
use super::{TablesRig, set, settings};
use crate::clock::Now;
use crate::limits::COMPACTOR_HURRY;
use crate::tables::Lack;

const LIMIT: i64 = 16 << 20;

fn small() -> TablesRig {
    TablesRig::with(TablesConfig { memory_max: LIMIT.cast_unsigned(), changes_per_writer: 1 << 14, ..settings() })
}

#[test]
fn memory_that_the_account_does_not_know_counts_too() {
    let rig = small();
    rig.set("k", "value", None).unwrap();
    rig.look(LIMIT);
    assert_eq!(rig.tables_metrics().memory.excess, LIMIT.cast_unsigned());
    assert_eq!(rig.set("more", "value", None), Err(Refusal::Busy), "it may be given back");
    assert_eq!(rig.set("k", "other", None), Ok(()), "what takes no more needs no room");
    rig.look(LIMIT);
    assert_eq!(rig.set("more", "value", None), Err(Refusal::OutOfMemory), "it was not");
    assert_eq!(rig.delete("k").unwrap(), "other");
    rig.look(0);
    rig.set("more", "value", None).unwrap();
}

#[test]
fn a_session_that_sleeps_is_woken_at_each_call_and_looks_often_while_a_write_waits() {
    let rig = small();
    let mut idle = rig.another();
    let woken = counted(&mut idle);
    rig.look(LIMIT);
    assert!(idle.patience() > COMPACTOR_HURRY, "nothing waits");
    assert_eq!(rig.set("k", "value", None), Err(Refusal::Busy));
    assert_eq!(idle.patience(), COMPACTOR_HURRY);
    let before = woken();
    rig.0.compactor.borrow_mut().look(LIMIT, rig.now());
    assert_eq!(woken(), before + 1, "the call for the write that waits");
    rig.look(0);
    assert!(idle.patience() > COMPACTOR_HURRY, "the write can be tried again");
    drop(idle);
    assert_eq!(rig.set("k", "value", None), Ok(()));
    rig.look(LIMIT);
    assert_eq!(rig.set("more", "value", None), Err(Refusal::Busy));
    let (calls, before) = (rig.0.tables.0.compactor.calls(), woken());
    rig.0.compactor.borrow_mut().look(LIMIT, rig.now());
    assert_eq!(rig.0.tables.0.compactor.calls(), calls + 1, "the call for the next write that waits");
    assert_eq!(woken(), before, "it is not there any more");
}

#[test]
fn a_thread_that_waits_for_memory_is_woken_once_when_the_compactor_has_done_all_it_can() {
    let rig = small();
    let compactor = &rig.0.tables.0.compactor;
    let (waker, woken) = counting_waker();
    let sleeper = Arc::new(Sleeper::default());
    sleeper.set_waker(waker);
    assert!(compactor.watch(&sleeper, None), "no write waits");
    assert!(compactor.may_give_back());
    assert!(!compactor.watch(&sleeper, None) && !compactor.watch(&sleeper, None));
    assert_eq!(woken(), 0);
    rig.look(0);
    assert_eq!(woken(), 1, "it is noted once, however often it asks");
    assert!(compactor.watch(&sleeper, None));
}

#[test]
fn many_pairs_wait_for_memory_as_one_does_and_store_nothing_meanwhile() {
    let rig = small();
    rig.look(LIMIT);
    let pairs = || [(&b"a"[..], &b"1"[..]), (b"b", b"2")].into_iter();
    let mut session = rig.another();
    let mut many = || session.batch(rig.now()).update_many(b"t", Deadline::KEEP, pairs(), &mut ManyProgress::default());
    assert_eq!(many(), Err(Refusal::Busy));
    assert_eq!(rig.tables_metrics().tables[0].elements, 0);
    rig.look(0);
    assert_eq!(many(), Ok(()));
}

#[test]
fn a_write_that_lacks_more_than_was_given_back_is_refused_and_smaller_ones_go_on() {
    let rig = small();
    let large = "x".repeat(4 << 20);
    rig.look(LIMIT - (1 << 20));
    assert_eq!(rig.set("large", &large, None), Err(Refusal::Busy));
    rig.look(LIMIT - (1 << 20));
    assert_eq!(rig.set("large", &large, None), Err(Refusal::OutOfMemory));
    assert_eq!(rig.set("small", "value", None), Ok(()));
    rig.look(LIMIT / 2);
    assert_eq!(rig.set("large", &large, None), Ok(()));
}

#[test]
fn a_write_that_waits_for_memory_is_let_in_when_it_was_given_back() {
    let rig = small();
    rig.look(LIMIT);
    assert_eq!(rig.set("k", "value", None), Err(Refusal::Busy));
    rig.look(0);
    assert_eq!(rig.set("k", "value", None), Ok(()));
    assert_eq!(rig.tables_metrics().moved, 0, "there are no holes between elements");
}

#[test]
fn after_a_refusal_the_next_is_only_tried_when_something_was_deleted() {
    let rig = small();
    let value = "x".repeat(1_000);
    for key in 0..400 {
        rig.set(&key.to_string(), &value, None).unwrap();
    }
    rig.publish();
    // So few that one pass moves them. A later pass would move the copies that come to lie in its regions again.
    assert!(rig.tables_metrics().memory.used < LIMIT.cast_unsigned() / 32);
    let moved = move_all(&rig);
    assert_eq!(moved, 400, "the most that can be done was done, once");
    for _ in 0..3 {
        assert_eq!(rig.set("more", &value, None), Err(Refusal::OutOfMemory));
        rig.look(LIMIT);
    }
    assert_eq!(rig.tables_metrics().moved, moved);
    for key in 0..300 {
        rig.delete(&key.to_string()).unwrap();
    }
    rig.settle();
    rig.look(LIMIT);
    assert_eq!(rig.set("more", &value, None), Err(Refusal::Busy), "there may be more to have again");
}

/// Has the compactor move the entries of all tables. Returns the number of moves.
fn move_all(rig: &TablesRig) -> u64 {
    let before = rig.tables_metrics().moved;
    rig.look(LIMIT);
    assert_eq!(rig.set("no room", "", None), Err(Refusal::Busy));
    rig.look(LIMIT);
    rig.tables_metrics().moved - before
}

#[test]
fn an_entry_that_moves_keeps_value_version_and_deadline_and_is_not_announced() {
    let rig = small();
    for key in 0..2_000 {
        rig.set(&key.to_string(), &format!("value {key}"), (key % 2 == 1).then_some(10)).unwrap();
    }
    rig.settle();
    rig.notified();
    let versions: Vec<_> = (0..2_000).map(|key| rig.version(&key.to_string())).collect();
    rig.0.session.borrow_mut().rest(rig.now());
    let before = rig.tables_metrics();
    assert_eq!(move_all(&rig), 2_000);
    rig.settle();
    assert!(rig.notified().is_empty(), "a move is no change");
    for (key, version) in versions.iter().enumerate() {
        assert_eq!(rig.get(&key.to_string()), Some(format!("value {key}")));
        assert_eq!(rig.version(&key.to_string()), *version);
    }
    let after = rig.tables_metrics();
    assert_eq!((before.memory.used, before.timers), (after.memory.used, after.timers));
    rig.at(20_000).settle();
    assert_eq!((rig.tables_metrics().expired, rig.get("0").is_some(), rig.get("1")), (1_000, true, None));
    rig.look(0);
    assert_eq!(rig.swap("0", versions[0], "next"), Ok(versions[0] + 1));
}

#[test]
fn a_writer_whose_entry_moves_under_it_stores_all_the_same() {
    let rig = small();
    rig.set("k", "first", None).unwrap();
    let version = rig.version("k");
    let moving = rig.clone();
    let mut session = rig.another();
    move_all(&rig);
    hooks::at(Failpoint::BeforeCas, move || {
        moving.look(0);
        moving.look(LIMIT);
        // The hook uses the session of the rig, because this thread's session is at work.
        assert_eq!(moving.tables_metrics().memory.excess, LIMIT.cast_unsigned());
        assert_eq!(moving.set("no room", "", None), Err(Refusal::Busy));
        let before = moving.tables_metrics().moved;
        moving.look(LIMIT);
        assert_eq!(moving.tables_metrics().moved, before + 1);
    });
    let swapped = session
        .batch(rig.now())
        .compare_and_swap(b"t", b"k", version, b"later", Deadline::KEEP)
        .expect("the version is the same");
    assert!(!hooks::is_waiting());
    assert_eq!((swapped, rig.get("k")), (version + 1, Some("later".to_owned())));
    rig.publish();
    assert_eq!(rig.notified(), ["k+", "k+"]);
}

#[test]
fn the_compactor_continues_when_each_session_has_acknowledged_its_call() {
    let (tables, threads) = Tables::new(TablesConfig { memory_max: LIMIT.cast_unsigned(), ..settings() });
    let (mut compactor, _changes) = (threads.compactor, threads.changes);
    drop((threads.reaper, threads.expiry));
    let now = Now::from_millis(1);
    let (mut writer, mut idle, gone) = (tables.session(), tables.session(), tables.session());
    writer.batch(now).create_table(b"t", b"t").unwrap();
    set(&mut writer, now, "k", "value", None).unwrap();
    compactor.look(LIMIT, now);
    assert_eq!(set(&mut writer, now, "more", "value", None), Err(Refusal::Busy));
    compactor.look(LIMIT, now);
    drop(gone);
    for _ in 0..3 {
        writer.rest(now);
    }
    compactor.look(LIMIT, now);
    assert_eq!(tables.metrics().moved, 0, "one session has not acknowledged the call");
    idle.rest(now);
    compactor.look(LIMIT, now);
    assert_eq!(tables.metrics().moved, 1, "all have, but the one that is gone");
}

#[test]
fn a_session_that_waits_for_memory_knows_it_and_is_woken_when_there_is_some() {
    let rig = small();
    let mut session = rig.another();
    let woken = counted(&mut session);
    assert!(session.batch(rig.now()).lack() != Lack::Memory);
    assert!(session.watch_memory(), "no write waits");
    rig.look(LIMIT);
    assert_eq!(set(&mut session, rig.now(), "k", "value", None), Err(Refusal::Busy));
    assert!(session.batch(rig.now()).lack() == Lack::Memory);
    assert!(!session.watch_memory() && !session.watch());
    let before = woken();
    rig.look(0);
    assert_eq!(woken(), before + 2, "by the call to collect, and at the end of the wait");
    assert!(session.watch_memory() && session.watch());
    assert_eq!(set(&mut session, rig.now(), "k", "value", None), Ok(()));
}
