//! The effect of each verb, and its notifications.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a trial that fails should say where")]

use super::super::failpoint::{Failpoint, hooks};
use super::super::{Refusal, TablesConfig};
use super::{BASE, TablesRig, set, settings};

#[test]
fn an_element_is_stored_replaced_and_deleted_and_each_change_is_heard_once() {
    let stage = TablesRig::new();
    stage.set("a", "1", None).unwrap();
    stage.set("a", "2", None).unwrap();
    assert_eq!(stage.get("a").unwrap(), "2");
    assert_eq!(stage.delete("a").unwrap(), "2");
    assert_eq!(stage.delete("a"), Err(Refusal::KeyNotFound));
    assert_eq!(stage.get("a"), None);
    stage.publish();
    assert_eq!(stage.heard(), ["a+", "a+", "a-"]);
}

#[test]
fn versions_grow_over_delete_retirement_and_re_creation_of_the_table() {
    let stage = TablesRig::new();
    let mut last = 0;
    for round in 0..6 {
        stage.set("a", "1", None).unwrap();
        let version = stage.version("a");
        assert!(version > last && version > BASE, "round {round}: {version} after {last}");
        last = version;
        match round % 3 {
            0 => drop(stage.delete("a").unwrap()),
            1 => {
                stage.delete("a").unwrap();
                stage.settle();
            }
            _ => {
                stage.drop_table("t").unwrap();
                stage.create("t").unwrap();
            }
        }
    }
}

#[test]
fn a_stale_compare_fails_and_says_the_version() {
    let stage = TablesRig::new();
    let first = stage.swap("a", 0, "1").unwrap();
    assert_eq!(stage.swap("a", 0, "2"), Err(Refusal::VersionMismatch { current: first }));
    let second = stage.swap("a", first, "2").unwrap();
    assert_eq!(stage.swap("a", first, "3"), Err(Refusal::VersionMismatch { current: second }));
    stage.delete("a").unwrap();
    assert_eq!(stage.swap("a", second, "3"), Err(Refusal::VersionMismatch { current: 0 }));
    assert_eq!(
        stage.swap("b", 17, "3"),
        Err(Refusal::VersionMismatch { current: 0 }),
        "a version of an earlier server"
    );
    assert_eq!(stage.swap("b", BASE, "3"), Err(Refusal::VersionMismatch { current: 0 }), "no element has this version");
    let mut session = stage.another();
    let mut batch = session.batch(stage.now());
    assert_eq!(batch.compare_and_delete(b"t", b"b", 0), Err(Refusal::KeyNotFound));
    assert_eq!(batch.compare_and_delete(b"t", b"b", 9), Err(Refusal::VersionMismatch { current: 0 }));
}

#[test]
fn a_deadline_that_has_passed_means_absent_at_once_and_is_announced_once() {
    let stage = TablesRig::new();
    stage.set("a", "1", Some(1)).unwrap();
    assert!(stage.at(1_000).get("a").is_some(), "never early");
    assert_eq!(stage.at(1_001).get("a"), None);
    assert_eq!(stage.at(1_000).get("a"), None, "an older reading of the clock does not bring it back");
    assert_eq!(stage.at(1_000).swap("a", BASE + 1, "2"), Err(Refusal::VersionMismatch { current: 0 }));
    stage.at(1_001).settle();
    assert_eq!(stage.heard(), ["a+", "a-"]);
    assert_eq!(stage.tables_metrics().expired, 1);
}

#[test]
fn a_write_that_meets_an_expired_element_commits_the_expiry_first() {
    let stage = TablesRig::new();
    stage.set("a", "1", Some(1)).unwrap();
    stage.at(2_000).set("a", "2", None).unwrap();
    stage.set("b", "1", Some(1)).unwrap();
    assert_eq!(stage.at(4_000).delete("b"), Err(Refusal::KeyNotFound));
    stage.settle();
    assert_eq!(stage.heard(), ["a+", "a-", "a+", "b+", "b-"]);
    assert_eq!(stage.get("a").unwrap(), "2", "the new one has no deadline");
}

#[test]
fn an_update_keeps_the_deadline_unless_it_says_otherwise() {
    let stage = TablesRig::new();
    stage.set("kept", "1", Some(10)).unwrap();
    stage.set("kept", "2", None).unwrap();
    stage.set("cleared", "1", Some(10)).unwrap();
    stage.set("cleared", "2", Some(0)).unwrap();
    stage.set("shortened", "1", Some(100)).unwrap();
    stage.set("shortened", "2", Some(1)).unwrap();
    stage.set("lengthened", "1", Some(1)).unwrap();
    stage.set("lengthened", "2", Some(100)).unwrap();
    stage.expire();
    assert_eq!(stage.tables_metrics().timers, 4, "one record for each, however often its deadline was set");
    stage.at(1_001).settle();
    assert!(stage.get("shortened").is_none() && stage.get("lengthened").is_some());
    stage.at(10_001).settle();
    assert!(stage.get("kept").is_none() && stage.get("cleared").is_some());
    stage.at(100_001).settle();
    assert!(stage.get("lengthened").is_none());
}

#[test]
fn a_touch_changes_the_deadline_alone_and_is_not_heard() {
    let stage = TablesRig::new();
    stage.set("a", "1", None).unwrap();
    let version = stage.version("a");
    stage.0.session.borrow_mut().batch(stage.now()).touch(b"t", b"a", 1).unwrap();
    assert_eq!(stage.version("a"), version);
    stage.publish();
    assert_eq!(stage.heard(), ["a+"]);
    stage.at(1_001).settle();
    assert_eq!(stage.heard(), ["a-"]);
    let mut session = stage.another();
    assert_eq!(session.batch(stage.now()).touch(b"t", b"a", 1), Err(Refusal::KeyNotFound));
}

#[test]
fn a_change_that_comes_before_its_predecessor_is_held_back() {
    let stage = TablesRig::new();
    let mut early_lane = stage.another();
    let mut late_lane = stage.another();
    stage.publish();
    let now = stage.now();
    set(&mut late_lane, now, "a", "1", None).unwrap();
    let inner = stage.clone();
    hooks::at(Failpoint::Committed, move || {
        set(&mut early_lane, now, "a", "3", None).unwrap();
        inner.publish();
        assert_eq!(inner.heard(), ["a+"], "version 3 waits for version 2, which is committed and not pushed");
    });
    set(&mut late_lane, now, "a", "2", None).unwrap();
    assert!(!hooks::is_waiting());
    stage.publish();
    assert_eq!(stage.heard(), ["a+", "a+"]);
}

#[test]
fn looking_ahead_changes_nothing() {
    let stage = TablesRig::new();
    let keys: Vec<String> = (0..12_000).map(|key| key.to_string()).collect();
    for key in keys.iter().step_by(2) {
        stage.set(key, "1", None).unwrap();
        stage.publish();
    }
    let before = stage.tables_metrics();
    stage.heard();
    let mut session = stage.another();
    let mut batch = session.batch(stage.now());
    let tables = [&b"t"[..], b"t", b"none", b"t"];
    batch.prefetch(keys.iter().enumerate().map(|(at, key)| (tables[at / 3 % 4], key.as_bytes())));
    batch.prefetch(std::iter::empty());
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(batch.get(b"t", key.as_bytes()).is_ok(), at % 2 == 0, "{key}");
    }
    drop(batch);
    stage.settle();
    assert!(stage.heard().is_empty());
    assert_eq!(stage.tables_metrics().tables, before.tables);
}

#[test]
fn a_batch_does_not_go_on_with_a_table_that_was_deleted_meanwhile() {
    let stage = TablesRig::new();
    stage.set("a", "1", None).unwrap();
    let mut session = stage.another();
    let mut batch = session.batch(stage.now());
    assert_eq!(batch.get(b"t", b"a"), Ok(&b"1"[..]));
    stage.drop_table("t").unwrap();
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::TableNotFound));
    stage.create("t").unwrap();
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::KeyNotFound));
    stage.set("a", "2", None).unwrap();
    assert_eq!(batch.get(b"t", b"a"), Ok(&b"2"[..]));
}

#[test]
fn a_writer_without_credits_is_refused_and_changes_nothing() {
    let stage = TablesRig::with(TablesConfig { changes_per_writer: 15, ..settings() });
    for round in 0..15 {
        stage.set("a", &round.to_string(), None).unwrap();
    }
    assert_eq!(stage.set("a", "x", None), Err(Refusal::Busy));
    assert_eq!(stage.set("b", "x", None), Err(Refusal::Busy));
    assert_eq!(stage.delete("a"), Err(Refusal::Busy));
    assert_eq!((stage.get("a").as_deref(), stage.get("b")), (Some("14"), None));
    stage.publish();
    stage.set("b", "x", None).unwrap();
    assert_eq!(stage.heard().len(), 15);
}

#[test]
fn expiry_waits_for_credits_and_loses_nothing() {
    let stage = TablesRig::with(TablesConfig { changes_per_writer: 15, ..settings() });
    for key in 0..20 {
        stage.set(&key.to_string(), "1", Some(1)).unwrap();
        stage.publish();
    }
    stage.expire();
    stage.at(1_001).expire();
    stage.expire();
    assert_eq!(stage.tables_metrics().expired, 15, "as many as there are credits");
    assert_eq!(stage.get("19"), None, "absent all the same");
    stage.settle();
    assert_eq!(stage.tables_metrics().expired, 20);
    assert_eq!(stage.heard().iter().filter(|heard| heard.ends_with('-')).count(), 20);
}
