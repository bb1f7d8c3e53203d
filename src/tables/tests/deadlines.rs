//! The deadlines that writes give: kept, none, or a time, which may have passed.

use crossbeam::epoch;

use super::super::slot::{NEVER, SlotState};
use super::super::{Addition, Batch, Deadline, ManyProgress, Refusal};
use super::TablesRig;
use crate::clock::{Now, Ttl};

/// The last deadline of an entry.
const LAST: u64 = (1 << 43) - 2;

/// A write of the element "a", which gets this deadline.
type Write = fn(&mut Batch<'_>, Deadline) -> Result<(), Refusal>;

/// The writes that give a deadline to an element that exists.
const WRITES: [(&str, Write); 5] = [
    ("UPDATE", |batch, deadline| batch.update(b"t", b"a", b"1", deadline)),
    ("COMPARE_AND_SWAP", |batch, deadline| {
        let now = batch.now();
        let version = batch.get_entry(b"t", b"a", || now).map_or(0, |entry| entry.version);
        batch.compare_and_swap(b"t", b"a", version, b"1", deadline).map(drop)
    }),
    ("TOUCH", |batch, deadline| batch.touch(b"t", b"a", deadline)),
    ("GET_AND_TOUCH", |batch, deadline| batch.get_and_touch(b"t", b"a", deadline).map(drop)),
    ("UPDATE_MANY", |batch, deadline| {
        batch.update_many(b"t", deadline, [(&b"a"[..], &b"1"[..])].into_iter(), &mut ManyProgress::default())
    }),
];

/// INCREMENT, which gives a deadline to an element that it makes.
fn increment(batch: &mut Batch<'_>, deadline: Deadline) -> Result<(), Refusal> {
    batch.increment(b"t", b"a", Addition { delta: 1, deadline, value_max: 20 }).map(drop)
}

impl TablesRig {
    /// Carries out a write of "a".
    fn write(&self, write: Write, deadline: Deadline) {
        let mut session = self.0.session.borrow_mut();
        write(&mut session.batch(self.now()), deadline).unwrap();
    }

    /// The deadline of the entry of "a", whether it has passed or not.
    fn deadline(&self) -> u64 {
        self.with_slot("a", |slot| {
            let guard = epoch::pin();
            match slot.load(&guard).state() {
                SlotState::Live(entry) | SlotState::Expired(entry) => entry.deadline(),
                _ => panic!("the slot has no entry"),
            }
        })
    }
}

#[test]
fn each_write_keeps_removes_or_sets_the_deadline() {
    for (name, write) in WRITES {
        let rig = TablesRig::new();
        rig.at(1_000).set("a", "1", None).unwrap();
        for (deadline, expected) in [
            (Deadline::KEEP, NEVER),
            (Deadline::at(1_001), 1_001),
            (Deadline::KEEP, 1_001),
            (Deadline::NONE, NEVER),
            (Deadline::at(2_500), 2_500),
            (Deadline::at(u64::MAX), LAST),
            (Deadline::KEEP, LAST),
            (Deadline::NONE, NEVER),
        ] {
            let version = rig.version("a");
            rig.write(write, deadline);
            assert_eq!((rig.deadline(), rig.version("a")), (expected, version + 1), "{name}: {deadline:?}");
        }
    }
}

#[test]
fn a_counter_gets_its_deadline_when_it_is_made_and_keeps_it() {
    for (deadline, expected) in [(Deadline::KEEP, NEVER), (Deadline::NONE, NEVER), (Deadline::at(1_007), 1_007)] {
        let rig = TablesRig::new();
        rig.at(1_000).write(increment, deadline);
        assert_eq!(rig.deadline(), expected);
        rig.write(increment, Deadline::at(9_000));
        assert_eq!((rig.deadline(), rig.get("a").as_deref()), (expected, Some("2")));
    }
}

/// An element with a deadline at or before now is stored, absent at once for every command, and its expiry announced.
#[test]
fn a_deadline_that_has_passed_is_taken_and_the_element_is_absent_at_once() {
    let creations = [("UPDATE", WRITES[0].1), ("UPDATE_MANY", WRITES[4].1), ("INCREMENT", increment as Write)];
    for deadline in [0, 1, 999, 1_000] {
        for (name, write) in creations.into_iter().chain(WRITES) {
            let rig = TablesRig::new();
            rig.at(1_000).write(|batch, _| batch.update(b"t", b"other", b"1", Deadline::KEEP), Deadline::KEEP);
            let exists = name.contains("TOUCH") || name.contains("SWAP");
            if exists {
                rig.set("a", "1", None).unwrap();
            }
            rig.publish();
            rig.notified();
            rig.write(write, Deadline::at(deadline));
            let before = rig.with_slot("a", |slot| slot.load(&epoch::pin()).version());
            is_absent(&rig, name);
            rig.settle();
            let expected = if name.contains("TOUCH") { "a-" } else { "a+ a-" };
            assert_eq!((&*rig.notified().join(" "), rig.tables_metrics().expired), (expected, 1), "{name}");
            rig.set("a", "2", None).unwrap();
            assert!(rig.version("a") > before + 1, "{name}: the expiry has a version of its own");
        }
    }
}

/// Every command finds that there is no element "a".
fn is_absent(rig: &TablesRig, name: &str) {
    let mut session = rig.another();
    let now = rig.now();
    let mut batch = session.batch(now);
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::KeyNotFound), "{name}");
    assert_eq!(batch.get_entry(b"t", b"a", || now), Err(Refusal::KeyNotFound), "{name}");
    assert_eq!(batch.touch(b"t", b"a", Deadline::NONE), Err(Refusal::KeyNotFound), "{name}");
    assert_eq!(batch.get_and_touch(b"t", b"a", Deadline::NONE), Err(Refusal::KeyNotFound), "{name}");
    let swapped = batch.compare_and_swap(b"t", b"a", 1, b"2", Deadline::NONE);
    assert!(swapped == Err(Refusal::VersionMismatch { current: 0 }), "{name}");
    let mut values = Vec::new();
    batch.get_many(b"t", [&b"a"[..], b"other"].into_iter(), &ManyProgress::default(), &mut values).unwrap();
    assert_eq!(values, [None, Some(&b"1"[..])], "{name}");
    drop(batch);
    assert_eq!(rig.delete("a"), Err(Refusal::KeyNotFound), "{name}");
}

#[test]
fn an_element_is_there_until_the_millisecond_of_its_deadline() {
    let rig = TablesRig::new();
    rig.at(1_000).write(WRITES[0].1, Deadline::at(1_001));
    assert_eq!(rig.get("a").as_deref(), Some("1"));
    rig.expire();
    assert_eq!(rig.at(1_001).get("a"), None);
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-"]);
}

/// A thread that has read its clock before sees no element whose deadline had passed even then.
#[test]
fn a_deadline_of_long_ago_hides_the_element_from_a_batch_that_began_earlier_too() {
    let rig = TablesRig::new();
    let mut earlier = rig.another();
    let mut batch = earlier.batch(Now::from_millis(500));
    rig.at(1_000).write(WRITES[0].1, Deadline::at(500));
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::KeyNotFound));
}

#[test]
fn a_write_after_a_deadline_that_had_passed_makes_another_element() {
    let rig = TablesRig::new();
    rig.at(1_000).write(WRITES[0].1, Deadline::at(1));
    rig.write(increment, Deadline::KEEP);
    assert_eq!((rig.get("a").as_deref(), rig.deadline()), (Some("1"), NEVER));
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+"]);
}

/// The element, the wheel and the remaining time hold every deadline, and the end of each comes at its millisecond.
#[test]
fn the_longest_ttl_and_the_last_deadline_hold_to_their_millisecond() {
    let longest = Ttl::MAX.millis();
    for (began, deadline, end) in [
        (1_000, Deadline::after(Now::from_millis(1_000), Some(Ttl::MAX)), 1_000 + longest),
        (longest, Deadline::after(Now::from_millis(longest), Some(Ttl::MAX)), 2 * longest),
        (longest + 9, Deadline::after(Now::from_millis(longest + 9), Some(Ttl::MAX)), LAST),
        (1_000, Deadline::at(LAST), LAST),
        (LAST - 2, Deadline::at(u64::MAX), LAST),
    ] {
        let rig = TablesRig::new();
        rig.at(began).write(WRITES[0].1, deadline);
        rig.settle();
        let remaining = |millis| {
            rig.at(millis);
            let mut session = rig.another();
            let mut batch = session.batch(rig.now());
            batch.get_entry(b"t", b"a", || rig.now()).unwrap().remaining_millis
        };
        assert_eq!(remaining(began), Some(end - began));
        rig.at(end - 1).settle();
        assert_eq!(remaining(end - 1), Some(1));
        assert_eq!(rig.notified(), ["a+"], "until {end}");
        rig.at(end).settle();
        assert_eq!((rig.get("a"), rig.notified()), (None, vec!["a-".to_owned()]), "at {end}");
    }
}

/// The cost of the last deadline is charged like the cost of any other, though its value is one before "none".
#[test]
fn the_last_deadline_is_one() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.write(WRITES[2].1, Deadline::at(u64::MAX));
    rig.settle();
    assert_eq!(rig.tables_metrics().timers, 1);
    rig.write(WRITES[2].1, Deadline::NONE);
    assert_eq!(rig.deadline(), NEVER);
}
