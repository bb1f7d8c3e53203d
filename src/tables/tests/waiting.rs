//! A session that waits for credits or for the reaper is woken once, when it can continue.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::super::sleeper::Waker;
use super::super::{Deadline, ManyProgress, Refusal, Session, Tables, TablesConfig};
use super::{TablesRig, set, settings};
use crate::clock::Now;
use crate::limits::SEALING_MAX;
use crate::tables::Lack;

/// A waker, and how often it was called.
pub(in crate::tables) fn counting_waker() -> (Waker, impl Fn() -> u64) {
    let count = Arc::new(AtomicU64::new(0));
    let inner = Arc::clone(&count);
    let waker = Box::new(move || {
        inner.fetch_add(1, Ordering::Relaxed);
    });
    (waker, move || count.load(Ordering::Relaxed))
}

/// Counts the wake-ups of the session.
pub(super) fn counted(session: &mut Session) -> impl Fn() -> u64 + use<> {
    let (waker, woken) = counting_waker();
    session.set_waker(waker);
    woken
}

/// A rig whose writers have 64 credits, and a session that has used all of its own.
fn used_up() -> (TablesRig, Session) {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 64, ..settings() });
    let mut session = rig.another();
    for round in 0..64 {
        set(&mut session, rig.now(), "a", &round.to_string(), None).unwrap();
    }
    assert_eq!(set(&mut session, rig.now(), "b", "1", None), Err(Refusal::Busy));
    assert!(session.batch(rig.now()).lack() != Lack::Memory);
    (rig, session)
}

/// The publisher announces `count` changes.
fn drain(rig: &TablesRig, count: usize) {
    let mut changes = rig.0.changes.borrow_mut();
    let taken: usize = (0..count).map(|_| changes.drain(1, &mut |_, _, _| {}).taken).sum();
    assert_eq!(taken, count);
}

#[test]
fn a_writer_is_woken_once_when_a_quarter_of_its_ring_is_free() {
    let (rig, mut session) = used_up();
    let woken = counted(&mut session);
    assert!(!session.watch());
    drain(&rig, 15);
    assert!(!session.watch(), "registered twice is registered once");
    assert_eq!(set(&mut session, rig.now(), "b", "1", None), Err(Refusal::Busy), "nothing overtakes what waits");
    assert_eq!((woken(), rig.tables_metrics().writer_waits), (0, 1));
    drain(&rig, 1);
    assert_eq!(woken(), 1);
    for round in 0..16 {
        set(&mut session, rig.now(), "b", &round.to_string(), None).unwrap();
    }
    assert_eq!(set(&mut session, rig.now(), "b", "1", None), Err(Refusal::Busy));
    drain(&rig, 64);
    assert_eq!((woken(), rig.tables_metrics().writer_waits, rig.tables_metrics().lost_wakeups), (1, 1, 0));
}

#[test]
fn credits_that_are_back_already_are_not_waited_for() {
    let (rig, mut session) = used_up();
    let woken = counted(&mut session);
    rig.publish();
    assert!(session.watch());
    set(&mut session, rig.now(), "b", "1", None).unwrap();
    assert_eq!((woken(), rig.tables_metrics().writer_waits), (0, 0));
}

#[test]
fn a_writer_that_wants_more_than_a_quarter_is_woken_when_all_of_it_is_there() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 64, ..settings() });
    let mut session = rig.another();
    let woken = counted(&mut session);
    for round in 0..60 {
        set(&mut session, rig.now(), "a", &round.to_string(), None).unwrap();
    }
    let pairs = || (0..20).map(|_| (b"b".as_slice(), b"1".as_slice()));
    let update_many = |session: &mut Session| {
        let now = rig.now();
        session.batch(now).update_many(b"t", Deadline::KEEP, pairs(), &mut ManyProgress::default())
    };
    assert_eq!(update_many(&mut session), Err(Refusal::Busy));
    assert!(!session.watch());
    drain(&rig, 35);
    assert_eq!(woken(), 0);
    drain(&rig, 1);
    assert_eq!(woken(), 1);
    update_many(&mut session).unwrap();
}

#[test]
fn the_creator_of_a_table_is_woken_when_an_older_one_has_been_taken_down() {
    let rig = TablesRig::new();
    let mut session = rig.another();
    let woken = counted(&mut session);
    let now = rig.now();
    let refused = (0..100).find_map(|_| {
        rig.drop_table("t").unwrap();
        session.batch(now).create_table(b"t", b"t").err()
    });
    assert_eq!(refused, Some(Refusal::Busy));
    assert!(!session.watch());
    assert!(!session.watch(), "registered twice is registered once");
    assert_eq!(woken(), 0);
    rig.settle();
    assert_eq!(woken(), 1);
    assert!(session.watch());
    session.batch(now).create_table(b"t", b"t").unwrap();
}

#[test]
fn the_creator_of_a_table_waits_from_its_refusal_on_and_not_before() {
    let rig = TablesRig::new();
    let mut session = rig.another();
    let woken = counted(&mut session);
    let now = rig.now();
    let mut create_again = || {
        rig.drop_table("t").unwrap();
        session.batch(now).create_table(b"t", b"t")
    };
    assert_eq!(create_again(), Ok(()));
    rig.settle();
    assert_eq!(woken(), 0, "it waits for no table");
    assert_eq!((0..100).find_map(|_| create_again().err()), Some(Refusal::Busy));
    rig.settle();
    assert_eq!(woken(), 1, "without a call of `watch`");
}

#[test]
fn a_thread_that_waits_goes_on_when_its_credits_are_back() {
    let (rig, mut session) = used_up();
    let now = rig.now();
    let writer = std::thread::spawn(move || {
        session.wait();
        set(&mut session, now, "b", "1", None)
    });
    while rig.tables_metrics().writer_waits == 0 {
        std::thread::yield_now();
    }
    rig.publish();
    assert_eq!(writer.join().unwrap(), Ok(()));
    assert_eq!(rig.tables_metrics().lost_wakeups, 0);
}

#[test]
fn the_publisher_of_closed_tables_sleeps_until_the_last_session_is_gone() {
    let (tables, background) = Tables::new(settings());
    let (mut changes, mut sessions) = (background.changes, vec![tables.session(), tables.session()]);
    drop((background.expiry, background.reaper, background.compactor));
    let woken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&woken);
    changes.set_waker(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    tables.close();
    while let Some(session) = sessions.pop() {
        assert!(!changes.drain(1, &mut |_, _, _| {}).closed);
        assert!(changes.prepare_sleep(false), "there is nothing to do");
        let before = woken.load(Ordering::Relaxed);
        drop(session);
        assert_eq!(woken.load(Ordering::Relaxed), before + 1, "each that goes wakes the publisher");
    }
    assert!(!changes.prepare_sleep(false), "all are gone");
    assert!(changes.drain(1, &mut |_, _, _| {}).closed);
}

#[test]
fn a_reaper_that_gets_no_credits_gives_up_at_the_end_in_its_time() {
    let (tables, background) = Tables::new(TablesConfig { changes_per_writer: 64, ..settings() });
    let (mut changes, reaper) = (background.changes, background.reaper);
    drop((background.expiry, background.compactor));
    let (mut session, now) = (tables.session(), Now::from_millis(1));
    session.batch(now).create_table(b"t", b"t").unwrap();
    for key in 0..200 {
        set(&mut session, now, &key.to_string(), "", None).unwrap();
        assert_eq!(changes.drain(1, &mut |_, _, _| {}).taken, 1);
    }
    session.batch(now).delete_table(b"t").unwrap();
    drop(session);
    tables.close();
    // From here on the publisher announces no change.
    let mut clock = Duration::ZERO;
    reaper.run(|| {
        clock += Duration::from_millis(100);
        Now::from_nanos(0).after(clock)
    });
    assert!((SEALING_MAX..SEALING_MAX + Duration::from_millis(400)).contains(&clock), "{clock:?}");
    let mut announced = 0;
    changes.drain(1_000, &mut |_, _, _| announced += 1);
    assert!((1..=64).contains(&announced), "{announced}: no more than it had credits for");
}
