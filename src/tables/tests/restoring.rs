//! Elements that are restored with the versions that they had elsewhere.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::Cell;
use std::rc::Rc;

use proptest::prelude::*;

use super::super::failpoint::{Failpoint, hooks};
use super::super::slot::ANNOUNCED_ROUND;
use super::super::version::highest_version;
use super::super::{Deadline, FeedConfig, Refusal, Restored, Session};
use super::{BASE, TablesRig, set, settings};
use crate::clock::Now;

fn restore(session: &mut Session, now: Now, key: &str, value: &str, version: u64) -> Result<Restored, Refusal> {
    session.batch(now).restore(b"t", key.as_bytes(), value.as_bytes(), version, Deadline::KEEP)
}

impl TablesRig {
    fn restore(&self, key: &str, value: &str, version: u64) -> Result<Restored, Refusal> {
        restore(&mut self.0.session.borrow_mut(), self.now(), key, value, version)
    }
}

#[test]
fn a_new_table_takes_old_versions_and_gives_new_ones_above_all_that_were_given() {
    let rig = TablesRig::new();
    assert_eq!(rig.restore("a", "old", 7), Ok(Restored::AsItWas));
    assert_eq!((rig.get("a").unwrap(), rig.version("a")), ("old".to_owned(), 7));
    for version in [6, 7] {
        assert_eq!(rig.restore("a", "other", version), Ok(Restored::Not));
    }
    assert_eq!(rig.restore("a", "newer", 9), Err(Refusal::Busy), "the change before is on its way");
    assert!(rig.0.session.borrow_mut().watch(), "it is worth another try at once");
    rig.publish();
    assert_eq!(rig.restore("a", "newer", 9), Ok(Restored::AsItWas));
    rig.publish();
    assert_eq!((rig.get("a").unwrap(), rig.version("a")), ("newer".to_owned(), 9));
    rig.set("a", "own", None).unwrap();
    assert!(rig.version("a") > BASE, "a client may know what the other server gave as 10");
    let own = rig.version("a");
    rig.set("a", "own", None).unwrap();
    assert_eq!(rig.version("a"), own + 1);
    rig.settle();
    assert_eq!(rig.notified(), ["a+"; 4]);
    assert_eq!((rig.tables_metrics().tables[0].elements, rig.waiting()), (1, 0));
    rig.delete("a").unwrap();
    rig.settle();
    assert_eq!(rig.tables_metrics().tables[0].elements, 0);
}

#[test]
fn every_verb_that_stores_gives_a_version_of_this_server() {
    type Verb = fn(&mut Session, Now) -> Result<(), Refusal>;
    let verbs: [Verb; 4] = [
        |session, now| session.batch(now).compare_and_swap(b"t", b"a", 7, b"1", Deadline::KEEP).map(drop),
        |session, now| session.batch(now).touch(b"t", b"a", Deadline::at(1_000_000)),
        |session, now| {
            let addition = super::super::Addition { delta: 1, deadline: Deadline::KEEP, value_max: 64 };
            session.batch(now).increment(b"t", b"a", addition).map(drop)
        },
        |session, now| {
            let pairs = [(&b"a"[..], &b"1"[..])].into_iter();
            session.batch(now).update_many(b"t", Deadline::KEEP, pairs, &mut super::super::ManyProgress::default())
        },
    ];
    for verb in verbs {
        let rig = TablesRig::new();
        rig.restore("a", "0", 7).unwrap();
        rig.publish();
        assert_eq!(verb(&mut rig.another(), rig.now()), Ok(()));
        assert!(rig.version("a") > BASE);
        rig.settle();
    }
}

#[test]
fn elsewhere_a_version_that_may_have_been_given_out_is_refused() {
    let rig = TablesRig::new();
    rig.set("own", "1", None).unwrap();
    assert_eq!(rig.restore("a", "1", BASE), Err(Refusal::VersionRefused));
    assert_eq!(rig.restore("a", "1", BASE + 1_000), Ok(Restored::AsItWas));
    rig.publish();
    assert_eq!(rig.restore("own", "2", BASE), Ok(Restored::Not));
    assert_eq!(rig.restore("own", "2", BASE + 2_000), Ok(Restored::AsItWas), "a key never had a version above its own");
    rig.publish();
    rig.delete("a").unwrap();
    rig.settle();
    assert_eq!(rig.restore("a", "1", BASE + 1_001), Err(Refusal::VersionRefused), "the deletion had it");
    assert_eq!(rig.restore("a", "1", BASE + 1_002), Ok(Restored::AsItWas));
}

#[test]
fn a_restored_element_that_was_deleted_comes_back_with_its_version_only_above_its_deletion() {
    let rig = TablesRig::new();
    rig.restore("a", "1", 7).unwrap();
    rig.delete("a").unwrap();
    assert_eq!(rig.restore("a", "1", 8), Ok(Restored::Not), "the deletion has this version");
    rig.settle();
    assert_eq!(rig.restore("b", "1", 9), Ok(Restored::AsItWas));
    assert_eq!(rig.restore("a", "1", 8), Ok(Restored::Anew), "the deletion had that one");
    assert!(rig.version("a") > BASE);
    assert_eq!(rig.restore("c", "1", 7), Ok(Restored::Anew), "nobody knows whose it was");
    assert_eq!(rig.restore("d", "1", 10), Ok(Restored::AsItWas));
}

#[test]
fn a_version_that_no_server_can_have_given_is_refused() {
    let rig = TablesRig::new();
    let highest = highest_version(BASE, rig.now().nanos());
    for version in [0, highest + 1, 1 << 59, u64::MAX] {
        assert_eq!(rig.restore("a", "1", version), Err(Refusal::VersionRefused), "{version}");
    }
    assert_eq!(rig.restore("a", "1", highest), Ok(Restored::AsItWas));
    rig.publish();
    rig.set("a", "2", None).unwrap();
    assert_eq!(rig.version("a"), highest + 1);
    assert_eq!(rig.restore("a", "3", 0), Err(Refusal::VersionRefused), "also of a key that is there");
}

#[test]
fn the_first_own_version_is_above_those_of_an_older_table_that_is_being_taken_down() {
    let rig = TablesRig::new();
    (0..10).for_each(|_| rig.set("a", "1", None).unwrap());
    let older = rig.version("a");
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    assert_eq!(rig.restore("a", "old", 7), Ok(Restored::AsItWas));
    rig.publish();
    rig.set("a", "own", None).unwrap();
    assert!(rig.version("a") > older + 1, "above the deletion");
    rig.settle();
    assert_eq!(rig.get("a").as_deref(), Some("own"));
}

/// It had another version there if a key had gone from any table meanwhile.
#[test]
fn a_new_table_takes_the_versions_of_another_one_that_stays() {
    let rig = TablesRig::new();
    rig.create("copy").unwrap();
    rig.set("a", "1", None).unwrap();
    (0..3).for_each(|_| rig.set("gone", "1", None).unwrap());
    rig.publish();
    rig.delete("gone").unwrap();
    rig.settle();
    let version = rig.version("a");
    let mut session = rig.0.session.borrow_mut();
    assert!(session.shared().catalog.floor.get() > version);
    let restored = session.batch(rig.now()).restore(b"copy", b"a", b"1", version, Deadline::KEEP);
    assert_eq!(restored, Ok(Restored::AsItWas));
}

/// The version that followed the restored one had been given in the older table.
#[test]
fn a_version_that_was_given_in_an_older_table_is_not_given_again() {
    for (is_settled, has_older) in [(false, false), (true, false), (false, true), (true, true)] {
        let rig = TablesRig::new();
        rig.set("a", "1", None).unwrap();
        let first = rig.version("a");
        rig.set("a", "2", None).unwrap();
        let last = rig.version("a");
        rig.publish();
        rig.drop_table("t").unwrap();
        rig.create("t").unwrap();
        if is_settled {
            rig.settle();
        }
        if has_older {
            assert_eq!(rig.restore("a", "0", 7), Ok(Restored::AsItWas));
            rig.publish();
        }
        assert_eq!(rig.restore("a", "1", first), Ok(Restored::Anew), "the next one would follow it");
        rig.publish();
        rig.set("a", "3", None).unwrap();
        assert!(rig.version("a") > last + 1);
    }
}

/// The key came back with the version behind that deletion, which it had had in an older table.
#[test]
fn the_deletion_of_a_restored_element_has_a_version_from_before_the_table() {
    for (version, restored) in [(BASE - 2, Restored::AsItWas), (BASE - 1, Restored::Anew)] {
        let rig = TablesRig::new();
        rig.set("a", "1", None).unwrap();
        let older = rig.version("a");
        rig.publish();
        rig.drop_table("t").unwrap();
        rig.create("t").unwrap();
        assert_eq!(rig.restore("a", "1", version), Ok(restored));
        rig.publish();
        rig.delete("a").unwrap();
        rig.publish();
        rig.set("a", "2", None).unwrap();
        assert!(rig.version("a") > older, "{version}");
    }
}

/// Whatever the low bits of the two versions are, the changes behind a jump are announced behind it.
#[test]
fn a_jump_of_any_width_is_announced_in_its_turn() {
    for width in [
        2,
        ANNOUNCED_ROUND - 1,
        ANNOUNCED_ROUND,
        ANNOUNCED_ROUND + 1,
        ANNOUNCED_ROUND / 2,
        ANNOUNCED_ROUND / 2 + 1,
        1 << 40,
    ] {
        let rig = TablesRig::new();
        rig.restore("a", "1", BASE + 7).unwrap();
        rig.publish();
        let (mut first, mut second) = (rig.another(), rig.another());
        let now = rig.now();
        let later = Rc::new(Cell::new(false));
        let ran = Rc::clone(&later);
        let inner = rig.clone();
        // The next change of the key comes before the jump is pushed, and is drained before it.
        hooks::at(Failpoint::Committed, move || {
            assert_eq!(set(&mut second, now, "a", "3", None), Ok(()));
            inner.publish();
            assert_eq!(inner.notified(), ["a+"], "the later change waits for the earlier one");
            ran.set(true);
        });
        assert_eq!(restore(&mut first, now, "a", "2", BASE + 7 + width), Ok(Restored::AsItWas));
        assert!(later.get());
        rig.publish();
        assert_eq!((rig.notified().len(), rig.waiting(), rig.get("a").unwrap()), (2, 0, "3".to_owned()), "{width}");
    }
}

#[test]
fn a_write_that_saw_the_old_slot_of_a_jump_is_made_in_the_new_one() {
    let rig = TablesRig::new();
    rig.restore("a", "1", 7).unwrap();
    rig.publish();
    let (inner, mut delayed) = (rig.clone(), rig.another());
    hooks::at(Failpoint::BeforeCas, move || assert_eq!(inner.restore("a", "2", 1_000), Ok(Restored::AsItWas)));
    assert_eq!(
        delayed.batch(rig.now()).compare_and_swap(b"t", b"a", 7, b"3", Deadline::KEEP),
        Err(Refusal::VersionMismatch { current: 1_000 })
    );
    rig.publish();
    assert_eq!(rig.get("a").unwrap(), "2");
}

#[test]
fn a_quiet_change_before_a_jump_leaves_the_slot_is_not_lost() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.publish();
    rig.end_audience();
    let (now, version) = (rig.now(), rig.version("a"));
    let (mut other, mut first) = (rig.another(), rig.another());
    hooks::at(Failpoint::BeforeJump, move || {
        assert_eq!(set(&mut other, now, "a", "2", None), Ok(()));
        assert_eq!(other.batch(now).get_entry(b"t", b"a", || now).unwrap().version, version + 1);
    });
    assert_eq!(restore(&mut first, now, "a", "3", version + 1_000), Ok(Restored::AsItWas));
    assert!(!hooks::is_waiting());
    assert_eq!((rig.get("a").unwrap(), rig.version("a")), ("3".to_owned(), version + 1_000));
}

#[test]
fn a_jump_into_a_table_that_was_deleted_is_refused() {
    let rig = TablesRig::new();
    rig.restore("a", "1", 7).unwrap();
    rig.publish();
    let inner = rig.clone();
    hooks::at(Failpoint::BeforeCas, move || inner.drop_table("t").unwrap());
    let mut delayed = rig.another();
    assert_eq!(restore(&mut delayed, rig.now(), "a", "2", 1_000), Err(Refusal::TableNotFound));
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-"]);
}

#[test]
fn jumps_leave_no_memory_and_no_timer_behind() {
    let rig = TablesRig::new();
    let mut session = rig.another();
    for version in 1..=50 {
        let restored = session.batch(rig.now()).restore(b"t", b"a", b"value", version * 1_000, Deadline::at(1_000_000));
        assert_eq!(restored, Ok(Restored::AsItWas));
        rig.publish();
        rig.expire();
    }
    assert_eq!(rig.tables_metrics().timers, 1, "those of the slots before are cancelled");
    rig.delete("a").unwrap();
    drop(session);
    rig.drop_table("t").unwrap();
    rig.settle();
    rig.expire();
    assert_eq!((rig.tables_metrics().memory.used, rig.tables_metrics().timers), (0, 0));
}

proptest! {
    /// A copy that takes every row of a server's history in any order, some of them twice, ends as the highest version of
    /// each key, and its feed says the same.
    #[test]
    fn rows_in_any_order_end_as_the_highest_version_of_each_key(
        rows in prop::collection::vec((0_u8..4, 1_u64..60, 0_u8..3), 1..60),
        has_feed: bool,
    ) {
        let config = FeedConfig { epoch: 1, history_bytes: 1 << 20 };
        let rig = TablesRig::with_feed(settings(), has_feed.then_some(config));
        let mut highest = std::collections::BTreeMap::new();
        for (key, version, spread) in rows {
            let version = version * [1, ANNOUNCED_ROUND, ANNOUNCED_ROUND / 2 + 1][usize::from(spread)];
            let (key, value) = (key.to_string(), version.to_string());
            let before = highest.get(&key).copied().unwrap_or(0);
            loop {
                match rig.restore(&key, &value, version) {
                    Err(Refusal::Busy) => rig.publish(),
                    stored => {
                        let expected = if version > before { Restored::AsItWas } else { Restored::Not };
                        prop_assert_eq!(stored, Ok(expected));
                        break;
                    }
                }
            }
            highest.insert(key, version.max(before));
        }
        rig.publish();
        for (key, version) in &highest {
            prop_assert_eq!((rig.version(key), rig.get(key)), (*version, Some(version.to_string())));
        }
        prop_assert_eq!(rig.waiting(), 0);
        if has_feed {
            let digest = highest.iter().fold(crate::feed::Digest::default(), |mut digest, (key, version)| {
                digest.add(key.as_bytes(), *version);
                digest
            });
            let state = rig.0.session.borrow_mut().batch(rig.now()).feed_state(b"t").unwrap();
            prop_assert_eq!(state.digest, digest);
        }
    }
}
