//! The publisher takes its turns, and sleeps and wakes as its work is urgent.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::super::{Deadline, ManyProgress, Refusal, TablesConfig};
use super::waiting::counting_waker;
use super::{TablesRig, set, settings};

#[test]
fn the_publisher_takes_equal_shares_of_the_rings_and_gives_away_what_is_not_used() {
    let rig = TablesRig::new();
    for writer in ["a", "b"] {
        let mut session = rig.another();
        for number in 0..10 {
            set(&mut session, rig.now(), &format!("{writer}{number}"), "1", None).unwrap();
        }
    }
    let rings = rig.0.tables.0.change_queue.rings.lock().len();
    let mut announced = Vec::new();
    rig.0.changes.borrow_mut().drain(4 * rings, &mut |_, _, key| {
        announced.push(String::from_utf8_lossy(key).into_owned());
    });
    let turns = [("a", 0..4), ("b", 0..4), ("a", 4..10), ("b", 4..10)];
    let all = turns.map(|(writer, numbers)| numbers.map(move |number| format!("{writer}{number}")));
    let all: Vec<_> = all.into_iter().flatten().collect();
    assert_eq!(announced, all, "{rings} rings");
}

#[test]
fn a_publisher_with_subscribers_sleeps_only_when_no_change_waits() {
    let rig = TablesRig::new();
    assert!(rig.0.changes.borrow_mut().prepare_sleep(false));
    rig.set("a", "1", None).unwrap();
    assert!(!rig.0.changes.borrow_mut().prepare_sleep(false));
    rig.publish();
    assert!(rig.0.changes.borrow_mut().prepare_sleep(false));
}

/// A rig whose writers have 64 credits, and whose publisher has no subscribers and sleeps. With it the count of its
/// wake-ups.
fn asleep() -> (TablesRig, impl Fn() -> u64) {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 64, ..settings() });
    let (waker, woken) = counting_waker();
    rig.0.changes.borrow_mut().set_waker(waker);
    assert!(rig.0.changes.borrow_mut().prepare_sleep(true));
    (rig, woken)
}

#[test]
fn a_publisher_without_subscribers_sleeps_until_a_ring_is_more_than_half_full() {
    let (rig, woken) = asleep();
    for key in 0..32 {
        rig.set(&key.to_string(), "1", None).unwrap();
    }
    assert_eq!(woken(), 0);
    assert!(rig.0.changes.borrow_mut().prepare_sleep(true), "it continues to sleep");
    rig.set("more", "1", None).unwrap();
    assert_eq!(woken(), 1);
    assert!(!rig.0.changes.borrow_mut().prepare_sleep(true), "it is to take them first");
    rig.publish();
    assert!(rig.0.changes.borrow_mut().prepare_sleep(true));
}

#[test]
fn a_publisher_without_subscribers_is_woken_for_a_writer_that_waits() {
    let (rig, woken) = asleep();
    let mut session = rig.another();
    let pairs = || (0..25).map(|_| (&b"a"[..], &b"1"[..]));
    let mut many = || session.batch(rig.now()).update_many(b"t", Deadline::KEEP, pairs(), &mut ManyProgress::default());
    assert_eq!(many(), Ok(()));
    assert_eq!(many(), Err(Refusal::Busy), "two credits for each pair");
    assert_eq!(woken(), 0);
    assert!(!session.watch());
    assert_eq!(woken(), 1);
    assert!(!rig.0.changes.borrow_mut().prepare_sleep(true), "the writer waits for these changes");
}

#[test]
fn the_publisher_is_woken_when_a_table_is_gone() {
    let (rig, woken) = asleep();
    rig.drop_table("t").unwrap();
    for _ in 0..10 {
        rig.reap();
    }
    assert_eq!((rig.0.tables.0.reaper.taken_down(), woken()), (1, 1));
}
