//! The races that the design writes down, each of them forced.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::RefCell;
use std::rc::Rc;

use super::super::Refusal;
use super::super::failpoint::{Failpoint, hooks};
use super::{BASE, Deadline, TablesRig, in_seconds, set};

#[test]
fn a_writer_that_was_delayed_at_a_slot_that_retired_stores_in_its_successor() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let inner = rig.clone();
    let mut delayed = rig.another();
    hooks::at(Failpoint::BeforeCas, move || {
        inner.delete("a").unwrap();
        inner.settle();
        assert_eq!(inner.tables_metrics().reaped, 1, "the slot that the writer holds is dead and out");
        inner.set("a", "successor", None).unwrap();
    });
    set(&mut delayed, rig.now(), "a", "delayed", None).unwrap();
    assert!(!hooks::is_waiting());
    assert_eq!(rig.get("a").unwrap(), "delayed");
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+", "a+"]);
    assert_eq!(rig.tables_metrics().tables[0].elements, 1);
}

#[test]
fn a_tombstone_that_came_back_to_life_is_not_retired() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.delete("a").unwrap();
    rig.set("a", "2", None).unwrap();
    rig.settle();
    assert_eq!((rig.get("a").as_deref(), rig.tables_metrics().reaped), (Some("2"), 0));
    assert_eq!(rig.notified(), ["a+", "a-", "a+"]);
}

#[test]
fn a_new_slot_starts_above_the_floor_though_its_writer_missed_the_old_slot_before() {
    let rig = TablesRig::new();
    let inner = rig.clone();
    let seen = Rc::new(RefCell::new(0));
    let highest = Rc::clone(&seen);
    let mut delayed = rig.another();
    hooks::at(Failpoint::BeforeEnter, move || {
        for _ in 0..5 {
            inner.set("a", "1", None).unwrap();
        }
        *highest.borrow_mut() = inner.version("a");
        inner.delete("a").unwrap();
        inner.settle();
        assert_eq!(
            inner.tables_metrics().reaped,
            1,
            "slot and floor are gone and raised before the delayed writer enters"
        );
    });
    set(&mut delayed, rig.now(), "a", "late", None).unwrap();
    assert!(!hooks::is_waiting());
    assert!(rig.version("a") > *seen.borrow() + 1, "above the deletion, too");
}

#[test]
fn an_insert_into_a_table_that_is_being_deleted_is_refused_or_announced() {
    let rig = TablesRig::new();
    let inner = rig.clone();
    let mut delayed = rig.another();
    hooks::at(Failpoint::BeforeEnter, move || {
        inner.drop_table("t").unwrap();
        inner.settle();
    });
    assert_eq!(set(&mut delayed, rig.now(), "a", "1", None), Err(Refusal::TableNotFound));
    assert!(!hooks::is_waiting());
    rig.settle();
    assert_eq!(rig.notified(), Vec::<String>::new());

    rig.create("t").unwrap();
    let inner = rig.clone();
    hooks::at(Failpoint::Committed, move || {
        inner.drop_table("t").unwrap();
        inner.settle();
        assert_eq!(inner.notified(), Vec::<String>::new(), "DELETED waits for the UPDATED that is not pushed yet");
    });
    set(&mut delayed, rig.now(), "a", "1", None).unwrap();
    assert!(!hooks::is_waiting());
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-"]);
}

#[test]
fn an_update_of_an_element_whose_table_is_deleted_under_it_stands_or_is_refused() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let inner = rig.clone();
    let mut delayed = rig.another();
    hooks::at(Failpoint::BeforeCas, move || {
        inner.drop_table("t").unwrap();
        inner.create("t").unwrap();
        inner.settle();
    });
    assert_eq!(set(&mut delayed, rig.now(), "a", "2", None), Err(Refusal::TableNotFound));
    assert!(!hooks::is_waiting());
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-"]);
    assert_eq!(rig.get("a"), None, "nothing of the old table shows in the new one");
}

#[test]
fn a_re_created_table_is_silent_about_a_key_until_the_older_one_has_announced_its_end() {
    let rig = TablesRig::new();
    rig.set("b", "1", None).unwrap();
    rig.publish();
    assert_eq!(rig.notified(), ["b+"]);
    let inner = rig.clone();
    let mut delayed = rig.another();
    hooks::at(Failpoint::Committed, move || {
        // The UPDATED of the delayed writer to the old table is committed and not pushed. The reaper has not run
        // either.
        inner.drop_table("t").unwrap();
        inner.create("t").unwrap();
        inner.set("a", "new", None).unwrap();
        inner.set("b", "new", None).unwrap();
        inner.publish();
        assert_eq!(inner.notified(), ["b-", "b+"], "b is settled by its first writer; a waits for the delayed one");
    });
    set(&mut delayed, rig.now(), "a", "old", None).unwrap();
    assert!(!hooks::is_waiting());
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+"]);
    assert_eq!(rig.get("a").unwrap(), "new");
}

#[test]
fn tables_deleted_and_created_many_times_over_settle_in_order() {
    let rig = TablesRig::new();
    for round in 0..5 {
        rig.set("a", &round.to_string(), None).unwrap();
        rig.drop_table("t").unwrap();
        rig.create("t").unwrap();
    }
    rig.set("a", "last", None).unwrap();
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+", "a-", "a+", "a-", "a+", "a-", "a+", "a-", "a+"]);
    assert_eq!(rig.get("a").unwrap(), "last");
    assert_eq!(rig.tables_metrics().tables.len(), 1);
}

#[test]
fn a_name_whose_older_tables_pile_up_makes_the_creator_wait() {
    let rig = TablesRig::new();
    let refused = (0..100).find_map(|_| {
        rig.drop_table("t").unwrap();
        rig.create("t").err()
    });
    assert_eq!(refused, Some(Refusal::Busy));
    rig.settle();
    rig.create("t").unwrap();
}

/// Gives an element a record, then sets its deadline to `second` (in seconds). While the record comes up, another
/// writer sets the deadline to 2 s at `point`. Returns the rig after that deadline has passed.
fn deadline_set_at(point: Failpoint, second: u32) -> TablesRig {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    rig.expire();
    rig.set("a", "2", Some(second)).unwrap();
    let mut other = rig.another();
    let now = rig.at(1_001).now();
    hooks::at(point, move || set(&mut other, now, "a", "3", Some(2)).unwrap());
    rig.expire();
    assert!(!hooks::is_waiting());
    rig.at(3_001).settle();
    rig
}

#[test]
fn a_deadline_that_is_set_while_the_timer_is_being_cleared_is_kept() {
    for point in [Failpoint::BeforeRearm, Failpoint::AfterRearm] {
        let rig = deadline_set_at(point, 0);
        assert_eq!(rig.tables_metrics().expired, 1, "{point:?}");
        assert_eq!(rig.tables_metrics().timers, 0, "{point:?}");
        assert_eq!(rig.notified(), ["a+", "a+", "a+", "a-"]);
    }
}

#[test]
fn a_deadline_that_moves_nearer_while_the_record_is_filed_anew_is_met() {
    for point in [Failpoint::BeforeRearm, Failpoint::AfterRearm] {
        let rig = deadline_set_at(point, 1_000);
        assert_eq!((rig.tables_metrics().expired, rig.get("a")), (1, None), "{point:?}");
    }
}

#[test]
fn a_batch_that_began_before_a_deadline_cannot_extend_what_another_has_called_expired() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    let version = rig.version("a");
    let mut earlier = rig.another();
    let before = rig.at(1_000).now();
    let inner = rig.clone();
    hooks::at(Failpoint::BeforeCas, move || assert_eq!(inner.at(1_001).get("a"), None));
    let swapped = earlier.batch(before).compare_and_swap(b"t", b"a", version, b"2", in_seconds(before, 100));
    assert!(!hooks::is_waiting());
    assert_eq!(swapped, Err(Refusal::VersionMismatch { current: 0 }));
    assert_eq!(earlier.batch(before).get(b"t", b"a"), Err(Refusal::KeyNotFound));
}

#[test]
fn a_touch_from_before_the_deadline_cannot_revive_what_another_has_called_expired() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    let before = rig.at(1_000).now();
    assert_eq!(rig.at(1_001).get("a"), None);
    let mut earlier = rig.another();
    assert_eq!(earlier.batch(before).touch(b"t", b"a", in_seconds(before, 100)), Err(Refusal::KeyNotFound));
}

#[test]
fn a_table_settles_once_though_a_writer_of_its_successor_was_delayed_at_its_slot() {
    let rig = TablesRig::new();
    rig.set("a", "old", None).unwrap();
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    let inner = rig.clone();
    let mut delayed = rig.another();
    hooks::at(Failpoint::BeforeSeal, move || {
        inner.settle();
        inner.create("u").unwrap();
    });
    set(&mut delayed, rig.now(), "a", "new", None).unwrap();
    assert!(!hooks::is_waiting());
    rig.settle();
    let mut session = rig.another();
    session.batch(rig.now()).update(b"u", b"b", b"1", Deadline::KEEP).unwrap();
    drop(session);
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+", "b+"], "u has the number of the old table, and keeps it");
}

#[test]
fn a_table_that_goes_while_its_element_comes_up_is_no_concern_of_the_expiry_thread() {
    let rig = TablesRig::new();
    rig.set("a", "1", Some(1)).unwrap();
    rig.expire();
    rig.at(1_001);
    let inner = rig.clone();
    hooks::at(Failpoint::BeforeExpire, move || {
        inner.drop_table("t").unwrap();
        for _ in 0..5 {
            inner.publish();
            inner.reap();
        }
        assert_eq!(inner.tables_metrics().tables.len(), 0);
    });
    rig.expire();
    assert!(!hooks::is_waiting());
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-"]);
    assert_eq!(rig.tables_metrics().timers, 0);
}

#[test]
fn a_table_is_gone_for_every_session_as_soon_as_it_is_for_one() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let mut knows = rig.another();
    assert_eq!(knows.batch(rig.now()).get(b"t", b"a"), Ok(&b"1"[..]));
    let mut new = rig.another();
    let inner = rig.clone();
    hooks::at(Failpoint::Renamed, move || {
        // The table is deleted, and the deletion is not answered yet. A client with an answer from one session may use
        // another session next.
        assert_eq!(new.batch(inner.now()).get(b"t", b"a"), Err(Refusal::TableNotFound));
        assert_eq!(knows.batch(inner.now()).get(b"t", b"a"), Err(Refusal::TableNotFound));
    });
    rig.drop_table("t").unwrap();
    assert!(!hooks::is_waiting());
}

#[test]
fn a_session_that_knows_a_table_finds_its_successor_of_the_same_name_and_of_the_same_number() {
    let rig = TablesRig::new();
    let mut knows = rig.another();
    for round in 0..5 {
        rig.set("a", &round.to_string(), None).unwrap();
        assert_eq!(knows.batch(rig.now()).get(b"t", b"a"), Ok(round.to_string().as_bytes()));
        rig.drop_table("t").unwrap();
        rig.settle();
        assert_eq!(knows.batch(rig.now()).get(b"t", b"a"), Err(Refusal::TableNotFound));
        // This table takes the number of the deleted one. The next takes another.
        let name = if round % 2 == 0 { "t" } else { "other" };
        rig.create(name).unwrap();
        assert_eq!(knows.batch(rig.now()).get(name.as_bytes(), b"a"), Err(Refusal::KeyNotFound));
        if name != "t" {
            assert_eq!(knows.batch(rig.now()).get(b"t", b"a"), Err(Refusal::TableNotFound));
            rig.drop_table(name).unwrap();
            rig.create("t").unwrap();
        }
    }
}

#[test]
fn a_reader_that_sees_a_deadline_pass_judges_the_entry_that_comes_before_its_mark() {
    for touch in [false, true] {
        let rig = TablesRig::new();
        rig.set("a", "1", Some(1)).unwrap();
        let before = rig.at(1_000).now();
        let mut earlier = rig.another();
        let late = rig.at(1_001).now();
        hooks::at(Failpoint::BeforeMark, move || set(&mut earlier, before, "a", "2", Some(100)).unwrap());
        let mut session = rig.another();
        let mut batch = session.batch(late);
        let found = if touch {
            batch.touch(b"t", b"a", in_seconds(batch.now(), 50)).map(|()| &b"2"[..])
        } else {
            batch.get(b"t", b"a")
        };
        assert_eq!(found, Ok(&b"2"[..]));
        assert!(!hooks::is_waiting());
    }
}

#[test]
fn a_writer_that_finds_its_key_created_meanwhile_stores_in_that_slot() {
    let rig = TablesRig::new();
    let inner = rig.clone();
    let mut delayed = rig.another();
    hooks::at(Failpoint::BeforeEnter, move || inner.set("a", "first", None).unwrap());
    set(&mut delayed, rig.now(), "a", "second", None).unwrap();
    assert!(!hooks::is_waiting());
    assert_eq!(rig.get("a").as_deref(), Some("second"));
    rig.settle();
    assert_eq!((rig.notified(), rig.tables_metrics().tables[0].elements), (vec!["a+".to_owned(); 2], 1));
}

#[test]
fn a_slot_that_takes_the_place_of_a_dead_one_stays_when_the_reaper_comes() {
    let rig = TablesRig::new();
    let key = "k".repeat(64);
    rig.set(&key, "1", None).unwrap();
    rig.delete(&key).unwrap();
    let deleted = BASE + 2;
    rig.publish();
    // The slot is dead and on its way to the reaper, and the index still shows it.
    rig.set(&key, "2", None).unwrap();
    assert_eq!(rig.version(&key), deleted + 1);
    rig.settle();
    assert_eq!((rig.get(&key).as_deref(), rig.tables_metrics().reaped), (Some("2"), 1));
    assert_eq!(rig.notified(), [format!("{key}+"), format!("{key}-"), format!("{key}+")]);
}

#[test]
fn a_name_keeps_its_history_while_it_has_a_table() {
    let rig = TablesRig::new();
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    rig.settle();
    rig.set("a", "1", None).unwrap();
    let version = rig.version("a");
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    rig.set("a", "2", None).unwrap();
    assert!(rig.version("a") > version + 1, "above the deletion");
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+"]);
}
