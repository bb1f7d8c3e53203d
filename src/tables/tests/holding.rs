//! Audiences that other threads hold: they ask without waiting, and are notified when it has begun.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::super::failpoint::{Failpoint, hooks};
use super::super::{
    AnnouncedChange, AudienceHold, AudienceKind, BackgroundThreads, ChangeKind, ChangeSink, Deadline, Refusal,
};
use super::alone::alone;
use super::audience::{Received, keep_audience};
use super::storm::{PATIENCE, until};
use super::{TablesRig, settings, with_table};
use crate::clock::Now;
use crate::feed::{Cause, PublishedMessage};
use crate::lock::Mutex;

impl TablesRig {
    /// Holds an audience. The flag says whether it has begun.
    fn hold(&self, topic: &str, kind: AudienceKind) -> (AudienceHold, Arc<AtomicBool>) {
        let begun = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&begun);
        let on_begun = Box::new(move || assert!(!flag.swap(true, Ordering::Relaxed), "it is called once"));
        (self.0.session.borrow().hold_audience(topic.as_bytes(), kind, on_begun), begun)
    }

    fn review(&self) {
        assert!(self.0.changes.borrow().wants_review());
        self.end_audience();
        let changes = self.0.changes.borrow();
        assert!(!changes.reviews() && (!changes.wants_review() || changes.is_held()), "once is enough");
    }

    fn notified_kinds(&self) -> Vec<String> {
        self.publish();
        let kinds = |kind| if kind == ChangeKind::Updated { '+' } else { '-' };
        self.0
            .notified
            .borrow_mut()
            .drain(..)
            .map(|(table, kind, key)| format!("{table} {key}{}", kinds(kind)))
            .collect()
    }
}

#[test]
fn a_hold_begins_with_the_next_drain_and_lasts_as_long_as_its_owner_wants() {
    let rig = TablesRig::new();
    rig.create("u").unwrap();
    rig.end_audience();
    let (hold, begun) = rig.hold("t\0", AudienceKind::Changes);
    assert!(rig.0.changes.borrow().is_held() && !begun.load(Ordering::Relaxed));
    rig.set_in("t", "early");
    rig.publish();
    assert!(begun.load(Ordering::Relaxed));
    rig.notified_keys();
    rig.set_in("t", "k");
    rig.set_in("u", "k");
    assert_eq!(rig.notified_keys(), ["t k"]);
    rig.end_audience();
    rig.set_in("t", "k");
    assert_eq!(rig.notified_keys(), ["t k"], "a review leaves it");
    let (second, _) = rig.hold("t", AudienceKind::Changes);
    drop(hold);
    rig.review();
    rig.set_in("t", "k");
    assert_eq!(rig.notified_keys(), ["t k"], "another holds it");
    rig.create("tu").unwrap();
    rig.set_in("tu", "k");
    assert_eq!(rig.notified_keys(), ["tu k"], "of one that was created later");
    drop(second);
    rig.review();
    assert!(!rig.0.changes.borrow().is_held());
    ["t", "tu"].into_iter().for_each(|table| rig.set_in(table, "k"));
    assert_eq!((rig.notified_keys(), rig.waiting()), (vec![], 0));
    rig.create("v").unwrap();
    rig.set_in("v", "k");
    assert_eq!((rig.notified_keys(), rig.waiting()), (vec![], 0), "nor of new ones");
}

#[test]
fn each_of_two_holders_of_a_topic_keeps_its_audience() {
    let rig = TablesRig::new();
    rig.end_audience();
    let [(first, _), (second, begun)] = [(); 2].map(|()| rig.hold("t", AudienceKind::Changes));
    rig.publish();
    assert!(begun.load(Ordering::Relaxed));
    drop(first);
    rig.end_audience();
    rig.set_in("t", "k");
    assert_eq!(rig.notified_keys(), ["t k"]);
    drop(second);
    rig.review();
    rig.set_in("t", "k");
    assert_eq!((rig.notified_keys(), rig.waiting()), (vec![], 0));
    assert!(!rig.0.changes.borrow().wants_review());
}

#[test]
fn a_table_that_is_created_behind_a_review_has_the_audience_of_earlier_holds() {
    let rig = TablesRig::new();
    rig.end_audience();
    let _holds = [rig.hold("t", AudienceKind::Changes), rig.hold("u", AudienceKind::Ends)];
    rig.publish();
    rig.end_audience();
    rig.create("tu").unwrap();
    rig.create("u").unwrap();
    rig.set_in("tu", "k");
    assert_eq!(rig.notified_keys(), ["tu k"]);
    rig.set_in("u", "k");
    rig.0.session.borrow_mut().batch(rig.now()).delete(b"u", b"k").unwrap();
    assert_eq!(rig.notified_kinds().last().map(String::as_str), Some("u k-"));
}

#[test]
fn ends_of_a_table_that_nobody_holds_are_not_announced() {
    let rig = TablesRig::new();
    rig.create("u").unwrap();
    rig.end_audience();
    let (_hold, _) = rig.hold("t\0", AudienceKind::Ends);
    rig.publish();
    rig.end_audience();
    // A table that comes later may be one that is held, until the next review.
    rig.create("v").unwrap();
    rig.end_audience();
    for table in ["t", "u", "v"] {
        rig.set_in(table, "k");
        rig.0.session.borrow_mut().batch(rig.now()).delete(table.as_bytes(), b"k").unwrap();
    }
    assert_eq!(rig.notified_kinds(), ["t k-"]);
}

#[test]
fn subscriptions_and_holds_do_not_end_each_other() {
    let rig = TablesRig::new();
    rig.end_audience();
    let (hold, _) = rig.hold("t", AudienceKind::Changes);
    rig.subscribe(&["t"]);
    rig.publish();
    drop(hold);
    assert!(rig.keep_audience("t").announced.is_empty());
    rig.set_in("t", "k");
    assert_eq!(rig.notified_keys(), ["t k"], "a subscription is left");
    let (_hold, _) = rig.hold("t", AudienceKind::Changes);
    rig.publish();
    rig.end_audience();
    rig.set_in("t", "k");
    assert_eq!(rig.notified_keys(), ["t k"], "a hold is left");
}

/// One that is asked for while a review has tables left, before the publisher has begun it.
#[test]
fn a_review_leaves_an_audience_that_was_just_asked_for() {
    let rig = TablesRig::new();
    let unsubscribed = rig.0.changes.borrow_mut().review(false, |_| false);
    let (_hold, begun) = rig.hold("t", AudienceKind::Changes);
    rig.0.changes.borrow_mut().silence(unsubscribed, &mut Received::default());
    rig.publish();
    assert!(begun.load(Ordering::Relaxed));
    rig.set_in("t", "k");
    assert_eq!(rig.notified_keys(), ["t k"]);
    rig.end_audience();
    rig.set_in("t", "k");
    assert_eq!(rig.notified_keys(), ["t k"]);
}

#[test]
fn an_audience_of_ends_alone_receives_each_of_them_and_stores_stay_quiet() {
    let rig = TablesRig::new();
    rig.end_audience();
    let (hold, begun) = rig.hold("t", AudienceKind::Ends);
    rig.publish();
    assert!(begun.load(Ordering::Relaxed));
    rig.set("a", "1", None).unwrap();
    rig.set("a", "2", None).unwrap();
    rig.set("b", "1", Some(1)).unwrap();
    rig.set("c", "1", None).unwrap();
    assert_eq!(rig.waiting(), 0, "no store is pushed");
    rig.delete("a").unwrap();
    assert_eq!(rig.notified_kinds(), ["t a-"]);
    rig.at(2_000);
    rig.expire();
    assert_eq!(rig.notified_kinds(), ["t b-"]);
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    rig.settle();
    assert_eq!(rig.notified_kinds(), ["t c-"]);
    rig.set("d", "1", None).unwrap();
    rig.delete("d").unwrap();
    assert_eq!(rig.notified_kinds(), ["t d-"], "of a table that was created later too");
    drop(hold);
    rig.review();
    rig.set("e", "1", None).unwrap();
    rig.delete("e").unwrap();
    assert_eq!((rig.notified_kinds(), rig.waiting()), (vec![], 0));
}

#[test]
fn beside_a_subscription_ends_are_announced_once_and_still_are_when_it_goes() {
    let rig = TablesRig::new();
    let (_hold, _) = rig.hold("t", AudienceKind::Ends);
    rig.publish();
    rig.set("a", "1", None).unwrap();
    rig.delete("a").unwrap();
    assert_eq!(rig.notified_kinds(), ["t a+", "t a-"]);
    rig.set("a", "1", None).unwrap();
    rig.delete("a").unwrap();
    let mut received = Received::default();
    keep_audience(&mut rig.0.changes.borrow_mut(), None, &mut received);
    assert_eq!((received.announced, rig.waiting()), (vec![b"ta".to_vec()], 0), "the end that was on its way");
    rig.set("a", "1", None).unwrap();
    rig.delete("a").unwrap();
    assert_eq!(rig.notified_kinds(), ["t a-"]);
}

/// The causes of the changes, and whether each came in order.
#[derive(Default)]
struct Orders(Vec<(Cause, bool)>);

impl ChangeSink for Orders {
    fn announce(&mut self, change: &AnnouncedChange<'_>) {
        self.0.push((change.cause, change.is_in_order));
    }

    fn publish(&mut self, _message: &PublishedMessage) {}
}

/// A subscriber received DELETED last, though the element was there. The deletion was older than the subscription, and
/// was only for subscribers of ends alone.
#[test]
fn an_end_from_before_an_audience_does_not_come_in_order_and_says_so() {
    let rig = TablesRig::new();
    let mut other = rig.another();
    rig.end_audience();
    let (_hold, _) = rig.hold("t", AudienceKind::Ends);
    rig.publish();
    rig.set("a", "1", None).unwrap();
    other.batch(rig.now()).delete(b"t", b"a").unwrap();
    rig.subscribe(&["t"]);
    // The publisher looks at this writer's changes first.
    rig.set("a", "2", None).unwrap();
    let mut received = Orders::default();
    rig.0.changes.borrow_mut().drain_to(100, &mut received);
    assert_eq!(received.0, [(Cause::Set, true), (Cause::Delete, false)]);
    rig.delete("a").unwrap();
    rig.0.changes.borrow_mut().drain_to(100, &mut received);
    assert_eq!(received.0[2..], [(Cause::Delete, true)]);
}

/// In a process of its own: each beginning and each end waits for the guards of all tests beside it.
#[test]
fn what_is_committed_after_a_hold_has_begun_is_announced_whatever_comes_and_goes_meanwhile() {
    alone(
        "tables::tests::holding::what_is_committed_after_a_hold_has_begun_is_announced_whatever_comes_and_goes_meanwhile",
        || {
            let (tables, background) = with_table(settings());
            let mut changes = background.changes;
            let (announced, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                let (tables, announced, is_over) = (&tables, &announced, &is_over);
                let writer = scope.spawn(move || {
                    let mut session = tables.session();
                    while !is_over.load(Ordering::Relaxed) {
                        let written = session.batch(Now::from_millis(1)).update(b"t", b"other", b"1", Deadline::KEEP);
                        if written == Err(Refusal::Busy) {
                            session.wait();
                        }
                    }
                });
                scope.spawn(move || {
                    let mut received = Received::default();
                    // The writer may wait for credits.
                    while !writer.is_finished() {
                        changes.drain_to(1_000, &mut received);
                        announced.fetch_add(
                            received.announced.drain(..).filter(|name| name == b"tmarked").count(),
                            Ordering::Release,
                        );
                        if changes.wants_review() {
                            keep_audience(&mut changes, None, &mut received);
                        }
                        thread::yield_now();
                    }
                });
                let mut session = tables.session();
                for round in 1..=100 {
                    let begun = Arc::new(AtomicBool::new(false));
                    let flag = Arc::clone(&begun);
                    let topic = if round % 2 == 0 { &b""[..] } else { b"t\0" };
                    let hold = session.hold_audience(
                        topic,
                        AudienceKind::Changes,
                        Box::new(move || flag.store(true, Ordering::Release)),
                    );
                    while !begun.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                    let before = announced.load(Ordering::Acquire);
                    session.batch(Now::from_millis(1)).update(b"t", b"marked", b"1", Deadline::KEEP).unwrap();
                    while announced.load(Ordering::Acquire) == before {
                        thread::yield_now();
                    }
                    drop(hold);
                }
                is_over.store(true, Ordering::Release);
            });
        },
    );
}

/// The ends that are announced when a table goes between the deletion of an element and the push of that change: what
/// seals the element comes first. `is_first`: they are held before all that. If not, they are held when the table is
/// gone and another has its number.
fn ends_of_a_table_that_goes(is_first: bool) -> Vec<String> {
    let (tables, BackgroundThreads { mut changes, reaper, .. }) = with_table(settings());
    keep_audience(&mut changes, None, &mut Received::default());
    let (announced, hold) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let (publisher, session) = (Arc::clone(&announced), RefCell::new(tables.session()));
    let publisher = thread::spawn(move || {
        let mut announce = |table: &[u8], _, key: &[u8]| {
            publisher.lock().push([table, b" ", key].map(String::from_utf8_lossy).concat());
        };
        while !changes.drain(1_000, &mut announce).closed {
            thread::yield_now();
        }
    });
    let reaper = thread::spawn(move || reaper.run(|| Now::from_millis(1)));
    let begun = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&begun);
    let store = |table: &[u8], key: &[u8]| {
        session.borrow_mut().batch(Now::from_millis(1)).update(table, key, b"1", Deadline::NONE).unwrap();
    };
    let delete = |table: &[u8], key: &[u8]| {
        session.borrow_mut().batch(Now::from_millis(1)).delete(table, key).map(drop).unwrap();
    };
    store(b"t", b"gone");
    let hold_ends = {
        let (session, hold) = (tables.session(), Arc::clone(&hold));
        move || {
            let on_begun = Box::new(move || flag.store(true, Ordering::Release));
            *hold.lock() = Some(session.hold_audience(b"", AudienceKind::Ends, on_begun));
        }
    };
    let is_begun = || begun.load(Ordering::Acquire);
    let shared = Arc::clone(&tables.0);
    let mut other = tables.session();
    let mut go = move |hold_ends: Option<Box<dyn FnOnce()>>| {
        other.batch(Now::from_millis(1)).delete_table(b"t").unwrap();
        // While ends are held the table stays until this thread has pushed its change.
        let is_forgotten = until(Duration::from_millis(200), || shared.catalog.histories() == 0);
        assert_eq!(is_forgotten, hold_ends.is_some());
        other.batch(Now::from_millis(1)).create_table(b"u", b"u").unwrap();
        hold_ends.into_iter().for_each(|hold_ends| hold_ends());
    };
    if is_first {
        hold_ends();
        assert!(until(PATIENCE, is_begun));
        hooks::at(Failpoint::Committed, move || go(None));
    } else {
        hooks::at(Failpoint::Committed, move || go(Some(Box::new(hold_ends))));
    }
    delete(b"t", b"gone");
    assert!(!hooks::is_waiting() && until(PATIENCE, is_begun));
    store(b"u", b"later");
    delete(b"u", b"later");
    assert!(until(PATIENCE, || announced.lock().iter().any(|end| end == "u later")));
    drop((session, hold.lock().take()));
    tables.close();
    [publisher, reaper].into_iter().for_each(|thread| thread.join().unwrap());
    announced.lock().drain(..).collect()
}

/// In a process of its own: a guard of a test beside it would keep the table.
#[test]
fn an_end_is_announced_also_when_its_table_goes_before_it_has_come() {
    alone("tables::tests::holding::an_end_is_announced_also_when_its_table_goes_before_it_has_come", || {
        assert_eq!(ends_of_a_table_that_goes(true), ["t gone", "u later"]);
    });
}

/// In a process of its own, as the one above.
#[test]
fn an_end_is_not_announced_of_another_table_that_has_the_number_of_its_own_by_now() {
    alone(
        "tables::tests::holding::an_end_is_not_announced_of_another_table_that_has_the_number_of_its_own_by_now",
        || {
            assert_eq!(ends_of_a_table_that_goes(false), ["u later"]);
        },
    );
}
