//! The checker rejects broken histories and accepts tricky ones, so it can be believed.
//!
//! Times are milliseconds. Every history starts with a table created from 0 to 1, unless it says otherwise.

use spindle::clock::Ttl;

use crate::checker::{Answer, COUNTER, Operation, Request, Span, is_linearizable};

use Answer::{
    Counted, Entry, KeyNotFound, NotANumber, Ok as Done, Swapped, TableExists, TableNotFound, Value, VersionMismatch,
};
use Request::{
    CompareAndDelete, CompareAndSwap, CreateTable, Delete, DeleteTable, Get, GetAndTouch, GetEntry, Increment, Pair,
    Touch, Update,
};

/// Invoked, returned, request, answer.
type Line = (u64, u64, Request, Answer);

fn operation((invoked, returned, request, answer): Line) -> Operation {
    let nanos = |millis: u64| millis * 1_000_000;
    Operation {
        span: Span {
            invoked: nanos(invoked),
            returned: nanos(returned),
            clock_min: nanos(invoked),
            clock_max: nanos(returned),
            latest: nanos(returned),
        },
        request,
        answer,
    }
}

fn history(lines: &[Line]) -> Vec<Operation> {
    let created = (0, 1, CreateTable, Done);
    std::iter::once(&created).chain(lines).copied().map(operation).collect()
}

#[track_caller]
fn accepts(lines: &[Line]) {
    assert!(is_linearizable(&history(lines)), "it can have happened: {lines:?}");
}

#[track_caller]
fn rejects(lines: &[Line]) {
    assert!(!is_linearizable(&history(lines)), "it cannot have happened: {lines:?}");
}

#[test]
fn what_happens_one_after_the_other_is_accepted() {
    accepts(&[
        (10, 11, Get, KeyNotFound),
        (20, 21, Update(1, None), Done),
        (30, 31, GetEntry, Entry(1, 7, None)),
        (40, 41, CompareAndSwap(7, 2, Some(Ttl::from_secs(1))), Swapped(8)),
        (50, 51, GetEntry, Entry(2, 8, Some(990))),
        (60, 61, Touch(Ttl::NONE), Done),
        (70, 71, GetEntry, Entry(2, 9, None)),
        (80, 81, CompareAndDelete(9), Value(2)),
        (90, 91, CompareAndSwap(9, 3, None), VersionMismatch(0)),
        (100, 101, CompareAndSwap(0, 4, None), Swapped(11)),
        (110, 111, CreateTable, TableExists),
        (120, 121, DeleteTable, Done),
        (130, 131, Get, TableNotFound),
        (140, 141, DeleteTable, TableNotFound),
        (150, 151, CreateTable, Done),
        (160, 161, Delete, KeyNotFound),
        (170, 171, CompareAndSwap(0, 5, None), Swapped(13)),
    ]);
}

#[test]
fn nothing_at_all_is_accepted() {
    assert!(is_linearizable(&[]));
}

#[test]
fn a_stale_read_is_rejected() {
    let written = [(10, 11, Update(1, None), Done), (20, 21, Update(2, None), Done)];
    rejects(&[&written[..], &[(30, 31, Get, Value(1))]].concat());
    accepts(&[&written[..], &[(15, 31, Get, Value(1))]].concat());
}

#[test]
fn a_read_of_what_nobody_wrote_is_rejected() {
    rejects(&[(10, 11, Update(1, None), Done), (20, 21, Get, Value(9))]);
    rejects(&[(10, 11, Get, Value(1)), (20, 21, Update(1, None), Done)]);
}

#[test]
fn a_lost_update_is_rejected() {
    rejects(&[(10, 11, Update(1, None), Done), (20, 21, Get, KeyNotFound)]);
    // Two swaps from one version: one of them was lost.
    rejects(&[
        (10, 11, CompareAndSwap(0, 1, None), Swapped(5)),
        (20, 29, CompareAndSwap(5, 2, None), Swapped(6)),
        (20, 29, CompareAndSwap(5, 3, None), Swapped(7)),
    ]);
}

#[test]
fn reads_that_disagree_on_the_order_of_two_writes_are_rejected() {
    let racing = [(10, 100, Update(1, None), Done), (10, 100, Update(2, None), Done)];
    let one_way = [(20, 25, Get, Value(1)), (30, 35, Get, Value(2))];
    let and_back = [(40, 45, Get, Value(1))];
    accepts(&[&racing[..], &one_way[..]].concat());
    rejects(&[&racing[..], &one_way[..], &and_back[..]].concat());
}

#[test]
fn a_swap_that_ignores_the_version_is_rejected() {
    rejects(&[
        (10, 11, CompareAndSwap(0, 1, None), Swapped(5)),
        (20, 21, Update(2, None), Done),
        (30, 31, CompareAndSwap(5, 3, None), Swapped(8)),
    ]);
    rejects(&[(10, 11, Update(1, None), Done), (20, 21, CompareAndSwap(0, 2, None), Swapped(9))]);
}

#[test]
fn a_mismatch_where_the_version_fits_is_rejected() {
    let created = (10, 11, CompareAndSwap(0, 1, None), Swapped(5));
    rejects(&[created, (20, 21, CompareAndSwap(5, 2, None), VersionMismatch(5))]);
    rejects(&[created, (20, 21, CompareAndSwap(4, 2, None), VersionMismatch(6))]);
    rejects(&[created, (20, 21, CompareAndDelete(4), VersionMismatch(0))]);
    accepts(&[created, (20, 21, CompareAndSwap(4, 2, None), VersionMismatch(5))]);
}

#[test]
fn a_value_that_rises_after_its_expiry_is_rejected() {
    let expired = [(10, 11, Update(1, Some(Ttl::from_secs(1))), Done), (1_020, 1_021, Get, KeyNotFound)];
    accepts(&expired);
    rejects(&[&expired[..], &[(1_030, 1_031, Get, Value(1))]].concat());
    // Both reads are in the window of the deadline: gone is gone.
    let early = [(10, 21, Update(1, Some(Ttl::from_secs(1))), Done), (1_012, 1_013, Get, KeyNotFound)];
    accepts(&early);
    rejects(&[&early[..], &[(1_014, 1_015, Get, Value(1))]].concat());
}

#[test]
fn a_read_of_an_expired_value_is_rejected() {
    let written = (10, 11, Update(1, Some(Ttl::from_secs(1))), Done);
    rejects(&[written, (1_013, 1_014, Get, Value(1))]);
    rejects(&[written, (1_013, 1_014, Delete, Value(1))]);
    accepts(&[written, (1_005, 1_014, Get, Value(1))]);
}

#[test]
fn an_expiry_before_the_deadline_is_rejected() {
    let written = (10, 11, Update(1, Some(Ttl::from_secs(1))), Done);
    rejects(&[written, (900, 1_009, Get, KeyNotFound)]);
    accepts(&[written, (900, 1_010, Get, KeyNotFound)]);
}

#[test]
fn an_expiry_of_what_has_no_deadline_is_rejected() {
    rejects(&[(10, 11, Update(1, None), Done), (9_000, 9_001, Get, KeyNotFound)]);
    let touched = [(10, 11, Update(1, Some(Ttl::from_secs(1))), Done), (20, 21, Touch(Ttl::NONE), Done)];
    rejects(&[&touched[..], &[(9_000, 9_001, Get, KeyNotFound)]].concat());
}

#[test]
fn a_touch_or_a_write_that_moves_no_deadline_is_rejected() {
    let written = (10, 11, Update(1, Some(Ttl::from_secs(1))), Done);
    rejects(&[written, (500, 501, Touch(Ttl::from_secs(5)), Done), (1_100, 1_101, Get, KeyNotFound)]);
    rejects(&[written, (500, 501, Update(2, Some(Ttl::from_secs(5))), Done), (1_100, 1_101, Get, KeyNotFound)]);
    // Without a TTL the deadline stays.
    rejects(&[written, (500, 501, Update(2, None), Done), (1_100, 1_101, Get, Value(2))]);
    rejects(&[written, (500, 501, CompareAndSwap(3, 2, None), Swapped(4)), (1_100, 1_101, Get, Value(2))]);
}

#[test]
fn a_write_after_the_expiry_that_keeps_the_old_deadline_is_rejected() {
    let expired = [(10, 11, Update(1, Some(Ttl::from_secs(1))), Done), (1_020, 1_021, Update(2, None), Done)];
    rejects(&[&expired[..], &[(1_030, 1_031, Get, KeyNotFound)]].concat());
    accepts(&[&expired[..], &[(9_030, 9_031, Get, Value(2))]].concat());
}

#[test]
fn a_remaining_time_that_does_not_fit_the_deadline_is_rejected() {
    let written = (10, 11, Update(1, Some(Ttl::from_secs(1))), Done);
    rejects(&[written, (500, 501, GetEntry, Entry(1, 3, Some(900)))]);
    rejects(&[written, (500, 501, GetEntry, Entry(1, 3, None))]);
    rejects(&[(10, 11, Update(1, None), Done), (500, 501, GetEntry, Entry(1, 3, Some(900)))]);
    accepts(&[written, (500, 501, GetEntry, Entry(1, 3, Some(510)))]);
}

#[test]
fn a_delete_that_returns_an_old_value_is_rejected() {
    let written = [(10, 11, Update(1, None), Done), (20, 21, Update(2, None), Done)];
    rejects(&[&written[..], &[(30, 31, Delete, Value(1))]].concat());
}

#[test]
fn a_value_that_is_deleted_twice_is_rejected() {
    let written = (10, 11, Update(1, None), Done);
    rejects(&[written, (20, 30, Delete, Value(1)), (20, 30, Delete, Value(1))]);
    rejects(&[written, (20, 30, Delete, Value(1)), (20, 30, CompareAndDelete(3), Value(1))]);
}

#[test]
fn a_version_that_repeats_or_falls_is_rejected() {
    let read = [(10, 11, Update(1, None), Done), (20, 21, GetEntry, Entry(1, 5, None))];
    rejects(&[&read[..], &[(30, 31, Update(2, None), Done), (40, 41, GetEntry, Entry(2, 5, None))]].concat());
    rejects(&[&read[..], &[(30, 31, CompareAndSwap(5, 2, None), Swapped(4))]].concat());
    rejects(&[&read[..], &[(30, 31, GetEntry, Entry(1, 6, None))]].concat());
    // Two changes in between need two versions.
    let twice = [(30, 31, Update(2, None), Done), (32, 33, Update(3, None), Done)];
    rejects(&[&read[..], &twice[..], &[(40, 41, GetEntry, Entry(3, 6, None))]].concat());
}

#[test]
fn a_version_that_repeats_after_deletion_or_expiry_or_in_a_new_table_is_rejected() {
    let created = (10, 11, CompareAndSwap(0, 1, Some(Ttl::from_secs(1))), Swapped(5));
    let again = |at| (at, at + 1, CompareAndSwap(0, 2, None), Swapped(5));
    rejects(&[created, (20, 21, Delete, Value(1)), again(30)]);
    rejects(&[created, again(1_020)]);
    rejects(&[created, (20, 21, DeleteTable, Done), (30, 31, CreateTable, Done), again(40)]);
    // The expiry takes a version too.
    rejects(&[created, (1_020, 1_021, CompareAndSwap(0, 2, None), Swapped(6))]);
    accepts(&[created, (1_020, 1_021, CompareAndSwap(0, 2, None), Swapped(7))]);
}

#[test]
fn an_element_that_outlives_its_table_is_rejected() {
    let dropped = [(10, 11, Update(1, None), Done), (20, 21, DeleteTable, Done)];
    rejects(&[&dropped[..], &[(30, 31, Get, Value(1))]].concat());
    rejects(&[&dropped[..], &[(30, 31, Get, KeyNotFound)]].concat());
    rejects(&[&dropped[..], &[(30, 31, Update(2, None), Done)]].concat());
    rejects(&[&dropped[..], &[(30, 31, CreateTable, Done), (40, 41, Get, Value(1))]].concat());
}

#[test]
fn an_element_that_goes_before_its_table_does_is_rejected() {
    let written = (10, 11, Update(1, None), Done);
    rejects(&[written, (20, 60, DeleteTable, Done), (30, 31, Get, KeyNotFound), (40, 41, Get, TableNotFound)]);
    accepts(&[written, (20, 60, DeleteTable, Done), (30, 31, Get, Value(1)), (40, 41, Get, TableNotFound)]);
}

#[test]
fn two_creations_of_one_table_are_rejected() {
    rejects(&[(10, 20, CreateTable, Done)]);
    rejects(&[(10, 20, DeleteTable, Done), (10, 20, DeleteTable, Done)]);
    rejects(&[(10, 20, CreateTable, TableNotFound)]);
}

#[test]
fn an_answer_of_another_request_is_rejected() {
    rejects(&[(10, 11, Update(1, None), Done), (20, 21, Get, Done)]);
    rejects(&[(10, 11, Update(1, None), KeyNotFound)]);
    rejects(&[(10, 11, Touch(Ttl::from_secs(1)), Done)]);
}

#[test]
fn a_touch_that_keeps_the_version_is_rejected() {
    let swapped = (10, 11, CompareAndSwap(0, 1, None), Swapped(7));
    let touched = (20, 21, Touch(Ttl::NONE), Done);
    rejects(&[swapped, touched, (30, 31, GetEntry, Entry(1, 7, None))]);
    accepts(&[swapped, touched, (30, 31, GetEntry, Entry(1, 8, None))]);
}

#[test]
fn a_sum_that_was_counted_twice_is_rejected() {
    let one = (10, 11, Increment(None), Counted(COUNTER | 1, 7));
    accepts(&[
        one,
        (20, 31, Increment(None), Counted(COUNTER | 2, 8)),
        (20, 31, Increment(None), Counted(COUNTER | 3, 9)),
    ]);
    rejects(&[
        one,
        (20, 31, Increment(None), Counted(COUNTER | 2, 8)),
        (20, 31, Increment(None), Counted(COUNTER | 2, 9)),
    ]);
    rejects(&[one, (20, 31, Increment(None), Counted(COUNTER | 2, 7))]);
    rejects(&[one, (20, 31, Increment(None), NotANumber)]);
    accepts(&[(10, 11, Update(1, None), Done), (20, 21, Increment(None), NotANumber), (30, 31, Get, Value(1))]);
    rejects(&[(10, 11, Update(1, None), Done), (20, 21, Increment(None), Counted(2, 8))]);
    rejects(&[(10, 11, Increment(None), Counted(COUNTER | 2, 7))]);
    // The deadline of the first one stays.
    let short = (10, 11, Increment(Some(Ttl::from_secs(1))), Counted(COUNTER | 1, 7));
    let next = (500, 501, Increment(Some(Ttl::from_secs(5))), Counted(COUNTER | 2, 8));
    rejects(&[short, next, (1_100, 1_101, Get, Value(COUNTER | 2))]);
    accepts(&[short, next, (1_100, 1_101, Increment(None), Counted(COUNTER | 1, 10))]);
}

#[test]
fn a_value_that_is_touched_and_another_is_rejected() {
    let written = (10, 11, Update(1, Some(Ttl::from_secs(1))), Done);
    accepts(&[written, (500, 501, GetAndTouch(Ttl::from_secs(5)), Value(1)), (1_100, 1_101, Get, Value(1))]);
    rejects(&[written, (500, 501, GetAndTouch(Ttl::from_secs(5)), Value(2))]);
    rejects(&[written, (500, 501, GetAndTouch(Ttl::from_secs(5)), Value(1)), (1_100, 1_101, Get, KeyNotFound)]);
}

#[test]
fn operations_that_overlap_may_take_effect_in_any_order() {
    // The update that began last took effect first, and each read saw another state.
    accepts(&[
        (10, 100, Update(1, None), Done),
        (50, 60, Update(2, None), Done),
        (20, 65, Get, KeyNotFound),
        (61, 70, Get, Value(2)),
        (71, 110, Get, Value(1)),
        (10, 200, Delete, Value(1)),
        (150, 160, Get, KeyNotFound),
    ]);
}

#[test]
fn a_version_that_is_learnt_late_decides_an_earlier_order() {
    // Whether the swap found version 6 depends on which of the updates came before it.
    let racing = [
        (10, 11, CompareAndSwap(0, 1, None), Swapped(5)),
        (20, 60, Update(2, None), Done),
        (20, 60, Update(3, None), Done),
        (30, 50, CompareAndSwap(6, 4, None), Swapped(7)),
    ];
    accepts(&[&racing[..], &[(70, 71, GetEntry, Entry(3, 8, None))]].concat());
    rejects(&[&racing[..], &[(70, 71, GetEntry, Entry(4, 7, None))]].concat());
}

#[test]
fn a_write_that_is_past_its_deadline_when_it_takes_effect_is_accepted() {
    // It read the clock early and was held up: no read saw the value.
    accepts(&[
        (10, 3_000, Update(1, Some(Ttl::from_secs(1))), Done),
        (2_000, 2_001, Get, KeyNotFound),
        (3_010, 3_011, Get, KeyNotFound),
    ]);
}

#[test]
fn an_expiry_in_the_midst_of_a_race_is_accepted() {
    accepts(&[
        (10, 11, Update(1, Some(Ttl::from_secs(1))), Done),
        (1_000, 1_020, Update(2, None), Done),
        (1_005, 1_030, Get, KeyNotFound),
        (1_030, 1_031, GetEntry, Entry(2, 9, None)),
        (9_000, 9_001, Get, Value(2)),
    ]);
    // The same, but the update came in time and kept the deadline.
    accepts(&[
        (10, 11, Update(1, Some(Ttl::from_secs(1))), Done),
        (1_000, 1_020, Update(2, None), Done),
        (1_005, 1_030, Get, KeyNotFound),
        (1_031, 1_040, Get, KeyNotFound),
    ]);
}

#[test]
fn a_table_that_is_dropped_and_made_again_in_the_midst_of_a_write_is_accepted() {
    accepts(&[
        (10, 100, Update(1, None), Done),
        (20, 30, DeleteTable, Done),
        (40, 50, CreateTable, Done),
        (60, 70, Get, KeyNotFound),
        (110, 111, Get, Value(1)),
    ]);
}

#[test]
fn long_races_are_decided_without_searching_twice() {
    // 40 groups of 8 racing updates, then a read of a value that none of them wrote: every order has to be ruled out.
    let mut lines: Vec<Line> =
        (0..320).map(|index| (10 + index / 8 * 10, 19 + index / 8 * 10, Update(index, None), Done)).collect();
    lines.push((1_000, 1_001, Get, Value(999)));
    rejects(&lines);
}

#[test]
fn a_pair_of_many_whose_table_goes_is_stored_or_not() {
    let deleted = (7, 9, DeleteTable, Done);
    accepts(&[(2, 9, Pair(1, None), TableNotFound), (4, 5, Get, Value(1)), deleted]);
    accepts(&[(2, 9, Pair(1, None), TableNotFound), (4, 5, Get, KeyNotFound), deleted]);
    accepts(&[(2, 3, Pair(1, None), Done), (4, 5, Get, Value(1))]);
    rejects(&[(2, 3, Pair(1, None), Done), (4, 5, Get, KeyNotFound)]);
    rejects(&[(2, 3, Update(1, None), TableNotFound), deleted]);
}
