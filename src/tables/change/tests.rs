//! The writer's end alone: its credits, and a wake-up that gets lost.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::*;
use crate::tables::slot::{EntryBox, NEVER, SlotHandle};

/// A queue whose writers have 64 credits, and a writer that has used `count` of its own.
fn used(count: u32) -> (Arc<ChangeQueue>, ChangeWriter) {
    let queue = ChangeQueue::new(64);
    let mut writer = queue.writer();
    let mut entry = EntryBox::new(b"value");
    entry.stamp(1, NEVER);
    let slot = SlotHandle::new(0, b"key", entry);
    for version in 1..=count {
        let version = u64::from(version);
        let committed = Committed { cause: Cause::Set, replaces_value: true, sets_deadline: false };
        let commit = Commit { version, committed, is_quiet: false, follows_quiet: false };
        writer.push(Change::new(slot.slot().handle(), 7, commit));
    }
    (queue, writer)
}

#[test]
fn a_writer_reads_what_is_announced_only_when_it_lacks_credits() {
    let (_queue, mut writer) = used(4);
    assert!(!writer.ring.credits.give_back(1));
    assert_eq!((writer.credits(60), writer.credits(61)), (60, 61));
}

#[test]
fn credits_that_are_back_end_the_wait_and_a_time_out_that_finds_them_is_a_lost_wake_up() {
    for (overslept, lost) in [(false, 0), (true, 1)] {
        let (queue, mut writer) = used(64);
        assert!(!writer.watch(1, overslept), "a quarter of the ring is awaited");
        assert!(!writer.ring.credits.give_back(15));
        assert!(!writer.watch(1, overslept) && writer.credits(1) == 0, "the credits are not there");
        writer.lose_wake_up();
        assert!(writer.watch(1, overslept));
        assert_eq!((queue.lost_wakeups(), queue.waits(), writer.credits(16)), (lost, 1, 15));
        assert!(!writer.ring.credits.is_registered(), "no wake-up is awaited");
    }
}

#[test]
fn a_wake_up_in_time_is_not_counted_as_lost() {
    let (queue, mut writer) = used(64);
    assert!(!writer.watch(1, false));
    assert!(writer.ring.credits.give_back(16));
    assert!(writer.watch(1, true), "the publisher has taken the registration, so it wakes the writer");
    assert_eq!((queue.lost_wakeups(), queue.waits(), writer.credits(16)), (0, 1, 16));
}

#[test]
fn a_change_keeps_its_table_its_cause_and_its_flags() {
    let mut entry = EntryBox::new(b"value");
    entry.stamp(1, NEVER);
    let slot = SlotHandle::new(0, b"key", entry);
    for table in [0, 1, TABLE_NUMBERS - 1] {
        for (cause, replaces_value) in Cause::ALL.into_iter().flat_map(|cause| [(cause, false), (cause, true)]) {
            let committed = Committed { cause, replaces_value, sets_deadline: replaces_value == cause.is_live() };
            for (is_quiet, follows_quiet) in [(false, false), (false, true), (true, false), (true, true)] {
                let commit = Commit { version: (1 << 58) - 1, committed, is_quiet, follows_quiet };
                let change = Change::new(slot.slot().handle(), table, commit);
                assert_eq!((change.version, change.table(), change.committed()), (u32::MAX, table, committed));
                assert_eq!(change.table_and_cause & 0x20, 0, "reserved");
                assert_eq!((change.is_quiet(), change.follows_quiet()), (is_quiet, follows_quiet));
            }
        }
    }
}
