//! The effect of each verb, and its notifications.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use super::super::failpoint::{Failpoint, hooks};
use super::super::{Addition, Deadline, Refusal, TablesConfig};
use super::{BASE, TablesRig, in_seconds, set, settings};

#[test]
fn an_element_is_stored_replaced_and_deleted_and_each_change_is_announced_once() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.set("a", "2", None).unwrap();
    assert_eq!(rig.get("a").unwrap(), "2");
    assert_eq!(rig.delete("a").unwrap(), "2");
    assert_eq!(rig.delete("a"), Err(Refusal::KeyNotFound));
    assert_eq!(rig.get("a"), None);
    rig.publish();
    assert_eq!(rig.notified(), ["a+", "a+", "a-"]);
}

#[test]
fn versions_grow_over_delete_retirement_and_re_creation_of_the_table() {
    let rig = TablesRig::new();
    let mut last = 0;
    for round in 0..6 {
        rig.set("a", "1", None).unwrap();
        let version = rig.version("a");
        assert!(version > last && version > BASE, "round {round}: {version} after {last}");
        last = version;
        match round % 3 {
            0 => drop(rig.delete("a").unwrap()),
            1 => {
                rig.delete("a").unwrap();
                rig.settle();
            }
            _ => {
                rig.drop_table("t").unwrap();
                rig.create("t").unwrap();
            }
        }
    }
}

#[test]
fn a_stale_compare_fails_and_says_the_version() {
    let rig = TablesRig::new();
    let first = rig.swap("a", 0, "1").unwrap();
    assert_eq!(rig.swap("a", 0, "2"), Err(Refusal::VersionMismatch { current: first }));
    let second = rig.swap("a", first, "2").unwrap();
    assert_eq!(rig.swap("a", first, "3"), Err(Refusal::VersionMismatch { current: second }));
    rig.delete("a").unwrap();
    assert_eq!(rig.swap("a", second, "3"), Err(Refusal::VersionMismatch { current: 0 }));
    assert_eq!(rig.swap("b", 17, "3"), Err(Refusal::VersionMismatch { current: 0 }), "a version of an earlier server");
    assert_eq!(rig.swap("b", BASE, "3"), Err(Refusal::VersionMismatch { current: 0 }), "no element has this version");
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    assert_eq!(batch.compare_and_delete(b"t", b"b", 0), Err(Refusal::KeyNotFound));
    assert_eq!(batch.compare_and_delete(b"t", b"b", 9), Err(Refusal::VersionMismatch { current: 0 }));
}

#[test]
fn a_deadline_that_has_passed_means_absent_at_once_and_is_announced_once() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    assert!(rig.at(1_000).get("a").is_some(), "never early");
    assert_eq!(rig.at(1_001).get("a"), None);
    assert_eq!(rig.at(1_000).get("a"), None, "an older reading of the clock does not bring it back");
    assert_eq!(rig.at(1_000).swap("a", BASE + 1, "2"), Err(Refusal::VersionMismatch { current: 0 }));
    rig.at(1_001).settle();
    assert_eq!(rig.notified(), ["a+", "a-"]);
    assert_eq!(rig.tables_metrics().expired, 1);
}

#[test]
fn a_write_that_meets_an_expired_element_commits_the_expiry_first() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    rig.at(2_000).set("a", "2", None).unwrap();
    rig.set("b", "1", Some(1)).unwrap();
    assert_eq!(rig.at(4_000).delete("b"), Err(Refusal::KeyNotFound));
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+", "b+", "b-"]);
    assert_eq!(rig.get("a").unwrap(), "2", "the new one has no deadline");
}

#[test]
fn an_update_keeps_the_deadline_unless_it_says_otherwise() {
    let rig = TablesRig::new();
    rig.set("kept", "1", Some(10)).unwrap();
    rig.set("kept", "2", None).unwrap();
    rig.set("cleared", "1", Some(10)).unwrap();
    rig.set("cleared", "2", Some(0)).unwrap();
    rig.set("shortened", "1", Some(100)).unwrap();
    rig.set("shortened", "2", Some(1)).unwrap();
    rig.set("lengthened", "1", Some(1)).unwrap();
    rig.set("lengthened", "2", Some(100)).unwrap();
    rig.expire();
    assert_eq!(rig.tables_metrics().timers, 4, "one record for each, however often its deadline was set");
    rig.at(1_001).settle();
    assert!(rig.get("shortened").is_none() && rig.get("lengthened").is_some());
    rig.at(10_001).settle();
    assert!(rig.get("kept").is_none() && rig.get("cleared").is_some());
    rig.at(100_001).settle();
    assert!(rig.get("lengthened").is_none());
}

#[test]
fn a_touch_changes_deadline_and_version_and_is_not_notified() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let version = rig.version("a");
    rig.0.session.borrow_mut().batch(rig.now()).touch(b"t", b"a", in_seconds(rig.now(), 1)).unwrap();
    assert_eq!(rig.version("a"), version + 1);
    assert_eq!(rig.swap("a", version, "2"), Err(Refusal::VersionMismatch { current: version + 1 }));
    rig.publish();
    assert_eq!((rig.notified(), rig.tables_metrics().changes_waiting), (vec!["a+".to_owned()], 0));
    rig.at(1_001).settle();
    assert_eq!(rig.notified(), ["a-"]);
    let mut session = rig.another();
    assert_eq!(session.batch(rig.now()).touch(b"t", b"a", in_seconds(rig.now(), 1)), Err(Refusal::KeyNotFound));
}

#[test]
fn a_change_that_comes_before_its_predecessor_is_held_back() {
    let rig = TablesRig::new();
    let mut early = rig.another();
    let mut late = rig.another();
    rig.publish();
    let now = rig.now();
    set(&mut late, now, "a", "1", None).unwrap();
    let inner = rig.clone();
    hooks::at(Failpoint::Committed, move || {
        set(&mut early, now, "a", "3", None).unwrap();
        inner.publish();
        assert_eq!(inner.notified(), ["a+"], "version 3 waits for version 2, which is committed and not pushed");
    });
    set(&mut late, now, "a", "2", None).unwrap();
    assert!(!hooks::is_waiting());
    rig.publish();
    assert_eq!(rig.notified(), ["a+", "a+"]);
}

#[test]
fn a_touch_takes_its_turn_among_the_changes_of_its_key() {
    let rig = TablesRig::new();
    let mut toucher = rig.another();
    let mut late = rig.another();
    rig.publish();
    let now = rig.now();
    set(&mut late, now, "a", "1", None).unwrap();
    let inner = rig.clone();
    hooks::at(Failpoint::Committed, move || {
        toucher.batch(now).touch(b"t", b"a", in_seconds(now, 100)).unwrap();
        inner.publish();
        assert_eq!(inner.notified(), ["a+"]);
        assert_eq!(inner.tables_metrics().changes_waiting, 1, "the touch waits for version 2, which is not pushed");
    });
    set(&mut late, now, "a", "2", None).unwrap();
    assert!(!hooks::is_waiting());
    rig.publish();
    assert_eq!((rig.notified(), rig.tables_metrics().changes_waiting), (vec!["a+".to_owned()], 0));
    assert_eq!(rig.delete("a").unwrap(), "2");
    rig.settle();
    assert_eq!(rig.tables_metrics().reaped, 1, "the slot retires when the touch is announced, too");
}

#[test]
fn a_value_is_read_and_touched_at_once() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let version = rig.version("a");
    let touch = |key: &str, ttl| {
        let mut session = rig.0.session.borrow_mut();
        let mut batch = session.batch(rig.now());
        batch.get_and_touch(b"t", key.as_bytes(), in_seconds(rig.now(), ttl)).map(<[u8]>::to_vec)
    };
    assert_eq!((touch("a", 1), touch("b", 1)), (Ok(b"1".to_vec()), Err(Refusal::KeyNotFound)));
    assert_eq!(rig.version("a"), version + 1);
    rig.at(1_001);
    assert_eq!(touch("a", 1), Err(Refusal::KeyNotFound));
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-"]);
}

#[test]
fn an_absent_element_counts_from_0_and_gets_the_time_to_live() {
    let rig = TablesRig::new();
    let add = |key: &str, delta, seconds| {
        let mut session = rig.0.session.borrow_mut();
        session.batch(rig.now()).increment(b"t", key.as_bytes(), adding(delta, in_seconds(rig.now(), seconds)))
    };
    let (sum, first) = add("a", 5, 1).unwrap();
    let (next, second) = add("a", -7, 100).unwrap();
    assert_eq!((sum, next, second, rig.get("a").as_deref()), (5, -2, first + 1, Some("-2")));
    assert_eq!(add("b", i64::MIN, 0).map(|(sum, _)| sum), Ok(i64::MIN));
    rig.at(1_001);
    assert_eq!(add("a", 1, 1).map(|(sum, _)| sum), Ok(1), "the deadline of the first one stayed");
    rig.delete("a").unwrap();
    assert_eq!(add("a", 2, 1).map(|(sum, _)| sum), Ok(2), "in the slot that is still there");
    rig.at(2_002).settle();
    assert_eq!((rig.get("a"), rig.get("b")), (None, Some(i64::MIN.to_string())));
    assert_eq!(rig.notified(), ["a+", "a+", "b+", "a-", "a+", "a-", "a+", "a-"]);
}

fn adding(delta: i64, deadline: Deadline) -> Addition {
    Addition { delta, deadline, value_max: 1024 }
}

#[test]
fn a_counter_is_no_longer_than_a_value_may_be() {
    let rig = TablesRig::new();
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    let mut add = |delta| batch.increment(b"t", b"k", Addition { value_max: 4, ..adding(delta, Deadline::KEEP) });
    let first = add(9_999).unwrap();
    assert_eq!((first.0, add(1), add(-11_000)), (9_999, Err(Refusal::ValueTooLong), Err(Refusal::ValueTooLong)));
    assert_eq!(add(-10_998), Ok((-999, first.1 + 1)));
}

#[test]
fn what_cannot_be_counted_stays_as_it_is() {
    let rig = TablesRig::new();
    let max = i64::MAX.to_string();
    rig.set("text", "7 ", None).unwrap();
    rig.set("most", &max, None).unwrap();
    let version = rig.version("most");
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    assert_eq!(batch.increment(b"t", b"text", adding(1, Deadline::KEEP)), Err(Refusal::NotANumber));
    assert_eq!(batch.increment(b"t", b"most", adding(1, Deadline::KEEP)), Err(Refusal::OutOfRange));
    assert_eq!(batch.increment(b"none", b"most", adding(1, Deadline::KEEP)), Err(Refusal::TableNotFound));
    assert_eq!(
        batch.increment(b"t", b"most", adding(0, Deadline::KEEP)),
        Ok((i64::MAX, version + 1)),
        "adding 0 is a change"
    );
    drop(batch);
    assert_eq!((rig.get("text").as_deref(), rig.get("most")), (Some("7 "), Some(max)));
}

#[test]
fn a_sum_that_was_overtaken_is_computed_anew() {
    let rig = TablesRig::new();
    rig.set("a", "9", None).unwrap();
    let (inner, mut adder) = (rig.clone(), rig.another());
    hooks::at(Failpoint::BeforeCas, move || inner.set("a", "99", None).unwrap());
    assert_eq!(adder.batch(rig.now()).increment(b"t", b"a", adding(1, Deadline::KEEP)).map(|(sum, _)| sum), Ok(100));
    let inner = rig.clone();
    hooks::at(Failpoint::BeforeEnter, move || inner.set("b", "9", None).unwrap());
    assert_eq!(
        adder.batch(rig.now()).increment(b"t", b"b", adding(1, in_seconds(rig.now(), 1))).map(|(sum, _)| sum),
        Ok(10)
    );
    let inner = rig.clone();
    hooks::at(Failpoint::BeforeCas, move || drop(inner.delete("b").unwrap()));
    assert_eq!(adder.batch(rig.now()).increment(b"t", b"b", adding(1, Deadline::KEEP)).map(|(sum, _)| sum), Ok(1));
    assert!(!hooks::is_waiting());
    rig.settle();
    let (of_a, of_b): (Vec<_>, Vec<_>) = rig.notified().into_iter().partition(|change| change.starts_with('a'));
    assert_eq!((of_a, of_b.concat()), (vec!["a+".to_owned(); 3], "b+b+b-b+".to_owned()));
}

#[test]
fn looking_ahead_changes_nothing() {
    let rig = TablesRig::new();
    let keys: Vec<String> = (0..12_000).map(|key| key.to_string()).collect();
    for key in keys.iter().step_by(2) {
        rig.set(key, "1", None).unwrap();
        rig.publish();
    }
    let before = rig.tables_metrics();
    rig.notified();
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    let tables = [&b"t"[..], b"t", b"none", b"t"];
    batch.prefetch(keys.iter().enumerate().map(|(at, key)| Some((tables[at / 3 % 4], key.as_bytes()))));
    batch.prefetch(std::iter::empty());
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(batch.get(b"t", key.as_bytes()).is_ok(), at % 2 == 0, "{key}");
    }
    drop(batch);
    rig.settle();
    assert!(rig.notified().is_empty());
    assert_eq!(rig.tables_metrics().tables, before.tables);
}

#[test]
fn a_batch_does_not_go_on_with_a_table_that_was_deleted_meanwhile() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    assert_eq!(batch.get(b"t", b"a"), Ok(&b"1"[..]));
    rig.drop_table("t").unwrap();
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::TableNotFound));
    rig.create("t").unwrap();
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::KeyNotFound));
    rig.set("a", "2", None).unwrap();
    assert_eq!(batch.get(b"t", b"a"), Ok(&b"2"[..]));
}

#[test]
fn a_writer_without_credits_is_refused_and_changes_nothing() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 56, ..settings() });
    for round in 0..56 {
        rig.set("a", &round.to_string(), None).unwrap();
    }
    assert_eq!(rig.set("a", "x", None), Err(Refusal::Busy));
    assert_eq!(rig.set("b", "x", None), Err(Refusal::Busy));
    assert_eq!(rig.delete("a"), Err(Refusal::Busy));
    let touched = rig.0.session.borrow_mut().batch(rig.now()).touch(b"t", b"a", in_seconds(rig.now(), 1));
    assert_eq!(touched, Err(Refusal::Busy));
    assert_eq!((rig.get("a").as_deref(), rig.get("b")), (Some("55"), None));
    rig.publish();
    rig.set("b", "x", None).unwrap();
    assert_eq!(rig.notified().len(), 56);
}

#[test]
fn expiry_waits_for_credits_and_loses_nothing() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 56, ..settings() });
    for key in 0..70 {
        rig.set(&key.to_string(), "1", Some(1)).unwrap();
        rig.publish();
    }
    rig.expire();
    rig.at(1_001).expire();
    rig.expire();
    assert_eq!(rig.tables_metrics().expired, 56, "as many as there are credits");
    assert_eq!(rig.get("69"), None, "absent all the same");
    rig.settle();
    assert_eq!(rig.tables_metrics().expired, 70);
    assert_eq!(rig.notified().iter().filter(|change| change.ends_with('-')).count(), 70);
}
