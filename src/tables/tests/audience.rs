//! Without an audience stores cost the publisher nothing, and with one it receives every change, whatever was on its
//! way when the audience came or went.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam::epoch;

use super::super::slot::ANNOUNCED_ROUND;
use super::super::{AnnouncedChange, ChangeKind, ChangeSink, Changes, Deadline, FeedConfig, TablesConfig};
use super::{TablesRig, settings};
use crate::feed::PublishedMessage;

impl TablesRig {
    pub(super) fn waiting(&self) -> u64 {
        self.tables_metrics().changes_waiting
    }

    fn begin_audience(&self) {
        self.subscribe(&[""]);
    }

    pub(super) fn subscribe(&self, topics: &[&str]) {
        let audience = self.0.changes.borrow().audience();
        audience.begin(topics.iter().map(|topic| topic.as_bytes()));
    }

    pub(super) fn end_audience(&self) {
        keep_audience(&mut self.0.changes.borrow_mut(), None, &mut Received::default());
    }

    /// Only tables with this name have an audience now.
    pub(super) fn keep_audience(&self, name: &str) -> Received {
        let mut received = Received::default();
        keep_audience(&mut self.0.changes.borrow_mut(), Some(name), &mut received);
        received
    }

    pub(super) fn set_in(&self, table: &str, key: &str) {
        let now = self.now();
        self.0
            .session
            .borrow_mut()
            .batch(now)
            .update(table.as_bytes(), key.as_bytes(), b"value", Deadline::KEEP)
            .unwrap();
    }

    /// The notifications since the last call, as `table key`.
    pub(super) fn notified_keys(&self) -> Vec<String> {
        self.publish();
        self.0.notified.borrow_mut().drain(..).map(|(table, _, key)| format!("{table} {key}")).collect()
    }
}

/// A whole review: only tables with this name keep an audience, or none.
pub(super) fn keep_audience(changes: &mut Changes, name: Option<&str>, received: &mut Received) {
    loop {
        let is_subscribed = |topic: &[u8]| name.is_some_and(|name| topic.strip_suffix(b"\0") == Some(name.as_bytes()));
        let unsubscribed = changes.review(name.is_some(), is_subscribed);
        changes.silence(unsubscribed, received);
        if !changes.reviews() {
            return;
        }
    }
}

/// All notifications, as the table's name and the key, the last notification of each key, and the keys with two
/// deletions without a store in between.
#[derive(Default)]
pub(super) struct Received {
    pub(super) announced: Vec<Vec<u8>>,
    pub(super) last: HashMap<Vec<u8>, ChangeKind>,
    pub(super) faults: Vec<Vec<u8>>,
}

impl ChangeSink for Received {
    fn announce(&mut self, change: &AnnouncedChange<'_>) {
        let Some(kind) = ChangeKind::of(change.cause) else { return };
        let name = [change.table, change.key].concat();
        let before = self.last.insert(name.clone(), kind);
        if before == Some(ChangeKind::Deleted) && kind == ChangeKind::Deleted {
            self.faults.push(name.clone());
        }
        self.announced.push(name);
    }

    fn publish(&mut self, _message: &PublishedMessage) {}
}

/// A subscriber to one table cost the writers of all others a fifth.
#[test]
fn a_subscription_is_an_audience_of_the_tables_that_it_touches_also_of_those_made_later() {
    let rig = TablesRig::new();
    ["user", "users", "users.eu"].into_iter().for_each(|name| rig.create(name).unwrap());
    let tables = |more: &[&'static str]| [&["t", "user", "users", "users.eu"], more].concat();
    let notified = |more: &[&'static str]| {
        tables(more).into_iter().for_each(|table| rig.set_in(table, "k"));
        rig.notified_keys()
    };
    for (topics, expected) in [
        (&["users"][..], &["users", "users.eu"][..]),
        (&["users\0"], &["users"]),
        // As it is in lock-step: the name, NUL, and more.
        (&["users\x000\0key"], &["users"]),
        (&["users.eu.west"], &[]),
        (&["t", "users.e"], &["t", "users.eu"]),
        (&["x", "tt"], &[]),
        (&[], &[]),
        (&[""], &["t", "user", "users", "users.eu"]),
    ] {
        rig.end_audience();
        rig.subscribe(topics);
        let expected: Vec<_> = expected.iter().map(|table| format!("{table} k")).collect();
        assert_eq!((notified(&[]), rig.waiting()), (expected, 0), "{topics:?}");
    }
    rig.keep_audience("user");
    rig.create("later").unwrap();
    rig.create("users.us").unwrap();
    assert!(rig.0.changes.borrow().wants_review());
    assert_eq!(notified(&["later", "users.us"]), ["user k", "later k", "users.us k"], "a new one has one at first");
    rig.keep_audience("user");
    assert!(!rig.0.changes.borrow().wants_review());
    assert_eq!(notified(&["later", "users.us"]), ["user k"]);
    rig.end_audience();
    rig.create("last").unwrap();
    assert_eq!((notified(&["last"]), rig.waiting()), (vec![], 0));
    assert!(!rig.0.changes.borrow().wants_review(), "without any subscription it has none to lose");
}

#[test]
fn a_subscription_receives_the_ends_of_a_table_that_is_being_taken_down() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.end_audience();
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    rig.subscribe(&["t"]);
    rig.set("a", "2", None).unwrap();
    for _ in 0..3 {
        rig.settle();
    }
    assert_eq!((rig.notified(), rig.waiting()), (vec!["a-".to_owned(), "a+".to_owned()], 0));
}

/// Changes of both tables are on their way, in two rings, each slot's in the opposite order of their commits.
#[test]
fn when_the_audience_of_one_table_ends_the_others_are_announced_as_ever() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 56, ..settings() });
    let mut other = rig.another();
    rig.create("u").unwrap();
    for round in 0..20 {
        for table in ["t", "u"] {
            other.batch(rig.now()).update(table.as_bytes(), b"k", b"first", Deadline::KEEP).unwrap();
            rig.set_in(table, "k");
        }
        let received = rig.keep_audience("u");
        assert_eq!((received.announced, rig.waiting()), (vec![b"uk".to_vec(); 2], 0), "{round}");
        rig.set_in("t", "k");
        rig.set_in("u", "k");
        assert_eq!(rig.notified_keys(), ["u k"], "{round}");
        rig.subscribe(&["t"]);
        rig.set_in("t", "k");
        assert_eq!((rig.notified_keys(), rig.waiting()), (vec!["t k".to_owned()], 0), "{round}");
    }
}

/// A table that is forgotten while its audience ends would leave its number to a table with an audience.
#[test]
fn a_table_that_is_being_taken_down_is_silenced_to_its_end() {
    let rig = TablesRig::new();
    rig.create("u").unwrap();
    rig.set("a", "1", None).unwrap();
    rig.drop_table("t").unwrap();
    (0..5).for_each(|_| rig.reap());
    assert!(rig.keep_audience("u").announced.is_empty());
    for _ in 0..3 {
        rig.settle();
    }
    assert_eq!((rig.notified(), rig.waiting(), rig.tables_metrics().tables.len()), (vec![], 0, 1));
    rig.create("t").unwrap();
    rig.set("a", "2", None).unwrap();
    assert_eq!(rig.notified_keys(), ["t a"]);
}

#[test]
fn without_an_audience_only_ends_are_pushed_and_nothing_is_announced() {
    let rig = TablesRig::new();
    rig.end_audience();
    rig.set("a", "1", None).unwrap();
    rig.set("a", "2", None).unwrap();
    rig.set("b", "1", Some(1)).unwrap();
    rig.set("c", "1", None).unwrap();
    assert_eq!(rig.waiting(), 0);
    rig.delete("a").unwrap();
    assert_eq!(rig.waiting(), 1);
    rig.at(5_000).settle();
    assert_eq!((rig.waiting(), rig.tables_metrics().reaped, rig.tables_metrics().expired), (0, 2, 1));
    rig.drop_table("t").unwrap();
    for _ in 0..3 {
        rig.settle();
    }
    assert_eq!((rig.notified(), rig.waiting(), rig.tables_metrics().tables.len()), (vec![], 0, 0));
}

#[test]
fn an_audience_receives_all_that_is_committed_after_it_has_begun() {
    let rig = TablesRig::new();
    rig.end_audience();
    for key in ["a", "b", "c"] {
        (0..3).for_each(|_| rig.set(key, "quiet", None).unwrap());
    }
    rig.delete("c").unwrap();
    rig.begin_audience();
    rig.set("c", "again", None).unwrap();
    rig.set("a", "1", None).unwrap();
    rig.set("a", "2", None).unwrap();
    rig.delete("b").unwrap();
    rig.set("d", "new", None).unwrap();
    rig.settle();
    assert_eq!(rig.notified(), ["c+", "a+", "a+", "b-", "d+"]);
    assert_eq!((rig.waiting(), rig.tables_metrics().reaped), (0, 1));
}

#[test]
fn what_is_on_the_way_when_the_audience_ends_is_announced_to_nobody_and_gives_its_credits_back() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 56, ..settings() });
    for round in 0..20 {
        rig.set("a", "1", None).unwrap();
        rig.set("b", "1", None).unwrap();
        rig.delete("b").unwrap();
        rig.end_audience();
        assert_eq!(rig.waiting(), 0, "{round}");
        rig.set("a", "quiet", None).unwrap();
        rig.begin_audience();
        rig.set("a", "2", None).unwrap();
        rig.settle();
        assert_eq!(rig.notified(), ["a+"], "{round}");
    }
}

#[test]
fn a_table_that_is_dropped_quietly_makes_room_for_one_with_an_audience() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.set("b", "1", None).unwrap();
    rig.publish();
    rig.notified();
    rig.end_audience();
    rig.set("b", "2", None).unwrap();
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    // It seals the key in the old table.
    rig.set("b", "3", None).unwrap();
    rig.begin_audience();
    rig.set("a", "4", None).unwrap();
    rig.set("b", "5", None).unwrap();
    for _ in 0..3 {
        rig.settle();
    }
    assert_eq!(rig.notified(), ["a-", "a+", "b+"], "a is sealed with an audience, b was without");
    assert_eq!((rig.waiting(), rig.tables_metrics().tables.len()), (0, 1));
}

#[test]
fn a_quiet_element_moves_and_is_announced_afterwards() {
    let rig = TablesRig::new();
    rig.end_audience();
    rig.set("k", "1", None).unwrap();
    rig.0.compactor.borrow_mut().move_all(rig.now());
    rig.begin_audience();
    rig.0.compactor.borrow_mut().move_all(rig.now());
    rig.set("k", "2", None).unwrap();
    rig.publish();
    assert_eq!((rig.notified(), rig.waiting()), (vec!["k+".to_owned()], 0));
}

/// After an exact multiple of 2^25 quiet changes the version that was announced before them was taken for the one before
/// a change of now. It stood there again afterwards, and all further changes of the key were held for ever, with their
/// credits. In tests fewer bits of it count.
#[test]
fn a_version_announced_before_a_silence_is_not_taken_for_one_of_now() {
    let near = |round: u64| round - 2..=round + 2;
    let counts = [1, 2].into_iter().chain(near(ANNOUNCED_ROUND)).chain(near(2 * ANNOUNCED_ROUND));
    for (quiet, is_deleted) in counts.flat_map(|quiet| [(quiet, false), (quiet, true)]) {
        let rig = TablesRig::new();
        let mut other = rig.another();
        rig.set("k", "1", None).unwrap();
        rig.publish();
        rig.notified();
        rig.end_audience();
        (0..quiet).for_each(|_| rig.set("k", "quiet", None).unwrap());
        rig.begin_audience();
        super::set(&mut other, rig.now(), "k", "2", None).unwrap();
        // The publisher looks at this writer's changes first.
        if is_deleted {
            rig.delete("k").unwrap();
        }
        for _ in 0..64 {
            rig.set("k", "3", None).unwrap();
        }
        rig.settle();
        let deleted = is_deleted.then_some("k-");
        let expected: Vec<_> = ["k+"].into_iter().chain(deleted).chain(["k+"; 64]).collect();
        let expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
        assert_eq!((rig.notified(), rig.waiting()), (expected, 0), "after {quiet} quiet changes");
    }
}

/// The changes of two writers are on their way, in the opposite order of their commits, when the audience ends.
#[test]
fn the_next_audience_receives_changes_of_a_slot_whose_last_changes_were_on_their_way_when_the_one_before_ended() {
    let rig = TablesRig::new();
    let mut other = rig.another();
    rig.set("k", "1", None).unwrap();
    rig.publish();
    rig.notified();
    for round in 0..3 {
        super::set(&mut other, rig.now(), "k", "2", None).unwrap();
        rig.set("k", "3", None).unwrap();
        rig.end_audience();
        if round == 1 {
            rig.set("k", "quiet", None).unwrap();
        }
        rig.begin_audience();
        super::set(&mut other, rig.now(), "k", "4", None).unwrap();
        rig.set("k", "5", None).unwrap();
        rig.settle();
        assert_eq!((rig.notified(), rig.waiting()), (vec!["k+".to_owned(); 2], 0), "{round}");
    }
}

#[test]
fn with_a_feed_there_always_is_an_audience() {
    let rig = TablesRig::with_feed(settings(), Some(FeedConfig { epoch: 1, history_bytes: 1 << 20 }));
    rig.end_audience();
    rig.set("a", "1", None).unwrap();
    assert_eq!(rig.waiting(), 1);
}

/// Its seal is in a ring since the silence before when the audience ends, and a change of the new table waits for it.
#[test]
fn a_quiet_seal_of_an_earlier_silence_lets_its_successor_go_before_the_next_silence() {
    let rig = TablesRig::new();
    rig.set("k", "1", None).unwrap();
    rig.publish();
    rig.notified();
    rig.end_audience();
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    (0..5).for_each(|_| rig.reap());
    rig.begin_audience();
    rig.set("k", "2", None).unwrap();
    let (tables, now, pinned, deleted) = (rig.0.tables.clone(), rig.now(), Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = epoch::pin();
            pinned.wait();
            while !deleted.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            drop(guard);
        });
        scope.spawn(|| {
            let mut session = tables.session();
            while tables.0.catalog.find(b"t", &epoch::pin()).is_some_and(|table| table.audience.has_changes()) {
                thread::yield_now();
            }
            session.batch(now).delete(b"t", b"k").unwrap();
            deleted.store(true, Ordering::Relaxed);
        });
        pinned.wait();
        rig.end_audience();
    });
    rig.settle();
    rig.begin_audience();
    rig.set("k", "3", None).unwrap();
    rig.settle();
    assert_eq!((rig.notified(), rig.waiting()), (vec!["k+".to_owned()], 0));
}
