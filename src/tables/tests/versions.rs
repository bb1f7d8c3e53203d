//! The versions that clients see, from any base.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::super::failpoint::{Failpoint, hooks};
use super::super::version::version_base;
use super::super::{Refusal, TablesConfig};
use super::{TablesRig, set, settings};

fn rig(version_base: u64) -> TablesRig {
    TablesRig::with(TablesConfig { version_base, ..settings() })
}

#[test]
fn versions_count_on_from_the_base_whatever_the_clock_said() {
    let (before_the_origin, beyond_all_years) = (version_base(0), version_base(u64::MAX));
    assert_eq!(before_the_origin, 0);
    for base in [before_the_origin, 1, beyond_all_years] {
        let rig = rig(base);
        assert_eq!(rig.swap("a", 0, "1"), Ok(base + 1));
        assert_eq!(rig.swap("a", base + 1, "2"), Ok(base + 2));
        assert_eq!(rig.version("a"), base + 2);
        assert_eq!(rig.swap("a", base + 1, "3"), Err(Refusal::VersionMismatch { current: base + 2 }));
        rig.delete("a").unwrap();
        assert_eq!(rig.swap("a", 0, "4"), Ok(base + 4), "the deletion has a version too");
        assert_eq!(rig.swap("b", 0, "1"), Ok(base + 1), "another key counts by itself");
        rig.delete("b").unwrap();
        rig.settle();
        assert_eq!(rig.swap("c", 0, "1"), Ok(base + 3), "above the slot that was removed");
    }
}

#[test]
fn a_version_that_no_element_can_have_matches_none() {
    let rig = rig(1_000);
    rig.set("a", "1", None).unwrap();
    for expected in [1, 1_000, 1_002, 1 << 60, u64::MAX] {
        assert_eq!(rig.swap("a", expected, "2"), Err(Refusal::VersionMismatch { current: 1_001 }), "{expected}");
        assert_eq!(rig.swap("b", expected, "2"), Err(Refusal::VersionMismatch { current: 0 }), "{expected}");
    }
}

#[test]
fn changes_keep_their_order_where_the_low_half_of_their_versions_begins_again() {
    let rig = rig(u64::from(u32::MAX) - 2);
    let (mut early, mut late) = (rig.another(), rig.another());
    let now = rig.now();
    rig.set("a", "1", None).unwrap();
    let inner = rig.clone();
    hooks::at(Failpoint::Committed, move || {
        set(&mut early, now, "a", "3", None).unwrap();
        inner.delete("a").unwrap();
        inner.publish();
        assert_eq!(inner.notified(), ["a+"], "the others wait for the one that is committed and not pushed");
    });
    set(&mut late, now, "a", "2", None).unwrap();
    assert!(!hooks::is_waiting());
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a+", "a-"]);
    assert_eq!(rig.tables_metrics().reaped, 1, "the slot is retired after its last change");
    rig.set("a", "4", None).unwrap();
    assert_eq!(rig.version("a"), u64::from(u32::MAX) + 3);
}
