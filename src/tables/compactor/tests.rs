//! The compactor's decisions at their bounds, and its wake-ups.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::*;
use crate::tables::sleeper::Sleeper;
use crate::tables::slot::count::SLOTS;
use crate::tables::tests::alone::alone;
use crate::tables::tests::waiting::counting_waker;
use crate::tables::tests::{settings, with_table};
use crate::tables::{BackgroundThreads, Changes, Deadline, Tables, TablesConfig};

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
/// The limit here. 8 MiB of it are room enough, and 1 MiB is worth another attempt.
const LIMIT: i64 = 64 * MIB;
const NOW: Now = Now::from_millis(1);

/// A table with one announced element of these bytes, and no session.
fn with_element(key: &[u8], value: &[u8]) -> (Tables, Compactor, Changes) {
    let memory_max = LIMIT.cast_unsigned();
    let (tables, background) = with_table(TablesConfig { memory_max, ..settings() });
    let BackgroundThreads { compactor, mut changes, .. } = background;
    tables.session().batch(NOW).update(b"t", key, value, Deadline::KEEP).unwrap();
    assert_eq!(changes.drain(10, &mut |_, _, _| {}).taken, 1);
    (tables, compactor, changes)
}

fn small() -> (Tables, Compactor) {
    let (tables, compactor, _changes) = with_element(b"key", b"value");
    (tables, compactor)
}

fn sleeper() -> (Arc<Sleeper>, impl Fn() -> u64) {
    let (waker, woken) = counting_waker();
    let sleeper = Arc::<Sleeper>::default();
    sleeper.set_waker(waker);
    (sleeper, woken)
}

fn level(used: i64, resident: i64) -> MemoryLevel {
    MemoryLevel { used, resident }
}

#[test]
fn there_are_as_many_passes_as_bound_what_each_moves_and_none_for_few_holes() {
    const LIMIT: i64 = 320 << 20;
    let count = |used: i64, resident: i64| {
        let level = MemoryLevel { used: used << 20, resident: resident << 20 };
        passes(level, LIMIT).map(|MovePass { number, count }| (number, count))
    };
    // A pass moves at most a 32nd of the limit: 10 MiB here.
    assert_eq!(count(5, 40), Some((0, 1)));
    assert_eq!(count(95, 300), Some((0, 10)));
    assert_eq!(count(101, 300), Some((0, 11)));
    assert_eq!(count(226, 300), None, "less than a quarter are holes");
    assert_eq!(count(2, 11), None, "less than a 32nd of the limit");
    let regions = |number| (0..100_usize).filter(move |at| MovePass { number, count: 7 }.include(at << REGION_BITS));
    assert_eq!((0..7).flat_map(regions).collect::<std::collections::HashSet<_>>().len(), 100, "each in one pass");
    assert_eq!((0..7).map(|number| regions(number).count()).sum::<usize>(), 100);
}

// ------------------------------------------------------------------------------------------------ the shared state

#[test]
fn every_session_is_awaited_at_each_call_until_it_leaves() {
    let shared = CompactorShared::default();
    let ((first, woken_first), (second, woken_second)) = (sleeper(), sleeper());
    shared.enter(&first);
    shared.enter(&second);
    shared.call();
    assert_eq!((shared.calls(), woken_first(), woken_second()), (1, 1, 1));
    for _ in 0..2 {
        assert!(!shared.all_have_acknowledged());
        shared.collect();
    }
    assert!(shared.all_have_acknowledged());
    shared.leave(&first);
    shared.call();
    assert_eq!((shared.calls(), woken_first(), woken_second()), (2, 1, 2));
    assert!(!shared.all_have_acknowledged());
    shared.collect();
    assert!(shared.all_have_acknowledged(), "one session is left");
}

#[test]
fn a_session_whose_write_waits_is_woken_once_when_the_compactor_has_done_all_it_can() {
    let shared = CompactorShared::default();
    let (sleeper, woken) = sleeper();
    assert!(shared.watch(&sleeper, None), "no write waits");
    assert!(shared.may_give_back() && shared.is_wanted());
    assert!(!shared.watch(&sleeper, None) && !shared.watch(&sleeper, None), "noted twice is noted once");
    assert_eq!(woken(), 0);
    shared.finish();
    assert_eq!((woken(), shared.is_wanted()), (1, false));
    assert!(shared.watch(&sleeper, None), "the write is tried again");
    shared.finish();
    assert_eq!(woken(), 1);
}

/// Whether `wake` wakes the compactor's thread, which is parked.
fn wakes(wake: impl FnOnce(&CompactorShared)) -> bool {
    let shared = Arc::new(CompactorShared::default());
    let (inner, (ready, is_ready)) = (Arc::clone(&shared), crossbeam::channel::bounded(1));
    let compactor = thread::spawn(move || {
        *inner.thread.lock() = Some(thread::current());
        ready.send(()).unwrap();
        thread::park();
    });
    is_ready.recv().unwrap();
    wake(&shared);
    // A thread whose wake-up is lost stays parked, and the test gives up.
    (0..10_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        compactor.is_finished()
    })
}

#[test]
fn the_first_write_that_waits_wakes_the_compactor_and_so_does_the_end() {
    assert!(wakes(|shared| assert!(shared.may_give_back())));
    assert!(wakes(CompactorShared::close));
}

// -------------------------------------------------------------------------------------------------------- its looks

#[test]
fn the_excess_is_what_the_process_has_grown_beyond_the_budget_and_the_slack() {
    let (tables, compactor) = small();
    let (shared, memory_budget) = (&tables.0.compactor, &tables.0.memory_budget);
    let used = memory_budget.used();
    assert!(used > 0);
    // The third time the memory of the process is unknown.
    let resident = [Some(100 * MIB), Some(110 * MIB), None, Some(103 * MIB)];
    let before_each = [0, 0, 9 * MIB, 0];
    let looks = Cell::new(0);
    compactor.run(
        MIB.cast_unsigned(),
        || {
            assert_eq!(memory_budget.excess(), before_each[looks.get()], "before look {}", looks.get());
            looks.set(looks.get() + 1);
            if looks.get() == resident.len() {
                shared.close();
            }
            NOW
        },
        || resident[looks.get() - 1].map(i64::cast_unsigned),
    );
    assert_eq!((looks.get(), memory_budget.excess(), memory_budget.used()), (4, 2 * MIB, used));
    assert!(!shared.may_give_back(), "nobody gives memory back any more");
}

#[test]
fn a_compactor_that_cannot_measure_lets_the_writes_go_on() {
    let (tables, mut compactor) = small();
    let shared = &tables.0.compactor;
    let (sleeper, woken) = sleeper();
    assert!(shared.may_give_back() && !shared.watch(&sleeper, None));
    assert_eq!(compactor.patience(), COMPACTOR_LOOK);
    compactor.look(LIMIT, NOW);
    assert_ne!(compactor.state, CompactorState::Idle);
    assert_eq!(compactor.patience(), COMPACTOR_HURRY);
    assert!(tables.0.memory_budget.excess() > 0);
    compactor.go_blind();
    assert_eq!((compactor.state, tables.0.memory_budget.excess()), (CompactorState::Idle, 0));
    assert_eq!((woken(), shared.is_wanted()), (1, false));
}

#[test]
fn the_compactor_waits_for_a_session_that_does_not_acknowledge_but_not_for_ever() {
    for acknowledges in [false, true] {
        let (tables, mut compactor) = small();
        let mut session = tables.session();
        assert!(tables.0.compactor.may_give_back());
        let used = tables.0.memory_budget.used();
        for looks in 0..=ACKNOWLEDGED_LOOKS_MAX {
            compactor.look(used, NOW);
            assert_eq!(compactor.state, CompactorState::Collecting { looks, next: None });
            if acknowledges && looks == 3 {
                session.rest(NOW);
                break;
            }
        }
        compactor.look(used, NOW);
        assert_eq!((compactor.state, tables.0.compactor.is_wanted()), (CompactorState::Idle, false));
    }
}

#[test]
fn while_idle_the_compactor_calls_after_twenty_looks_and_again_if_memory_has_changed() {
    let (tables, mut compactor) = small();
    let mut calls_after = |looks: i64, resident| {
        (0..looks).for_each(|_| compactor.look(resident, NOW));
        tables.0.compactor.calls()
    };
    assert_eq!(calls_after(IDLE_LOOKS, 32 * MIB), 0);
    assert_eq!(calls_after(1, 32 * MIB), 1);
    assert_eq!(calls_after(100, 32 * MIB), 1, "no more than last time");
    assert_eq!(calls_after(1, 48 * MIB), 2);
}

#[test]
fn much_more_memory_than_the_budget_says_is_worth_a_call_if_it_has_changed_since_the_last() {
    let (_tables, mut compactor) = small();
    let mut is_loose = |before, looks, now| {
        compactor.called = (before, looks);
        compactor.is_loose(now)
    };
    // Much more is an eighth of the budget and 8 MiB.
    assert!(!is_loose(level(0, 0), 1_000, level(16 * MIB, 26 * MIB)));
    assert!(is_loose(level(0, 0), 1_000, level(16 * MIB, 26 * MIB + 1)));
    // The calls are 20 looks apart, and 20 more for each GiB of elements.
    assert!(!is_loose(level(0, 0), 60, level(2 * GIB, 4 * GIB)));
    assert!(is_loose(level(0, 0), 61, level(2 * GIB, 4 * GIB)));
    // One of the two has changed by more than a sixteenth and 1 MiB.
    for (used, resident, expected) in [
        (29 * MIB, 320 * MIB, false),
        (29 * MIB - 1, 320 * MIB, true),
        (35 * MIB, 320 * MIB, false),
        (35 * MIB + 1, 320 * MIB, true),
        (32 * MIB, 299 * MIB, false),
        (32 * MIB, 299 * MIB - 1, true),
        (32 * MIB, 341 * MIB, false),
        (32 * MIB, 341 * MIB + 1, true),
    ] {
        let is_worthwhile = is_loose(level(used, resident), 1_000, level(32 * MIB, 320 * MIB));
        assert_eq!(is_worthwhile, expected, "{used}, {resident} before");
    }
}

/// Runs the compactor over a process that has much more memory than the budget, for 100 looks that writes ask for, so
/// far apart. Returns its calls to collect.
fn calls_of_wanted_looks(apart: Duration) -> u64 {
    let (tables, compactor) = small();
    let shared = &tables.0.compactor;
    let (looks, resident) = (Cell::new(0), Cell::new(0));
    compactor.run(
        0,
        || {
            looks.set(looks.get() + 1);
            shared.want_look();
            if looks.get() == 100 {
                shared.close();
            }
            NOW.after(apart * looks.get())
        },
        || {
            // The first reading is that of a process without elements.
            Some(resident.replace(32 << 20))
        },
    );
    assert_eq!((looks.get(), shared.looks()), (100, 101), "the last is the end");
    shared.calls()
}

#[test]
fn a_look_that_a_write_waits_for_comes_at_once_and_is_no_step() {
    assert_eq!(calls_of_wanted_looks(Duration::from_millis(1)), 0);
    assert_eq!(calls_of_wanted_looks(COMPACTOR_LOOK), 1);
}

// ---------------------------------------------------------------------------------------------------- its decisions

#[test]
fn writes_wait_again_when_elements_were_deleted_or_the_room_has_changed() {
    let (tables, mut compactor) = small();
    let exhausted = &tables.0.compactor.exhausted;
    let room = compactor.room();
    let mut is_over = |(used, room), level: MemoryLevel| {
        exhausted.store(true, Ordering::Relaxed);
        compactor.exhausted_at = (used, room);
        compactor.watch(level);
        !exhausted.load(Ordering::Relaxed)
    };
    let used = 10 * MIB;
    assert!(!is_over((used, room), level(used - MIB, used)));
    assert!(is_over((used, room), level(used - MIB - 1, used)));
    for (before, expected) in [(room - MIB + 1, false), (room - MIB, true), (room + MIB - 1, false), (room + MIB, true)]
    {
        assert_eq!(is_over((used, before), level(used, used)), expected, "{before} before, {room} now");
    }
}

#[test]
fn passes_follow_each_other_until_the_last_or_until_there_is_room_enough() {
    let (tables, mut compactor) = small();
    let budget = &tables.0.memory_budget;
    let pass = |number| Some(MovePass { number, count: 2 });
    let mut state_after = |room, next| {
        budget.set_excess(LIMIT - budget.used() - room, budget.read());
        compactor.decide(level(MIB, LIMIT), next, NOW);
        compactor.state
    };
    let enough = LIMIT / ROOM_SHARE;
    assert_eq!(state_after(enough - 1, pass(0)), CompactorState::Collecting { looks: 0, next: pass(1) });
    assert_eq!(state_after(enough - 1, pass(1)), CompactorState::Collecting { looks: 0, next: None });
    assert_eq!(state_after(enough, pass(1)), CompactorState::Idle);
}

#[test]
fn without_more_room_than_before_no_write_waits_any_longer() {
    for (gain, expected) in [(MIB - 1, true), (MIB, false)] {
        let (tables, mut compactor) = small();
        compactor.room_before = compactor.room() - gain;
        compactor.decide(level(MIB, MIB), None, NOW);
        assert_eq!(compactor.state, CompactorState::Idle);
        assert_eq!(tables.0.compactor.exhausted.load(Ordering::Relaxed), expected, "{gain} gained");
    }
}

// ----------------------------------------------------------------------------------------------------------- moving

const ALL: MovePass = MovePass { number: 0, count: 1 };

#[test]
fn what_moves_is_retired_with_its_header() {
    let (tables, ..) = small();
    let guard = epoch::pin();
    let table = tables.0.catalog.find(b"t", &guard).unwrap();
    let slot = table.find(table.hash(b"key"), b"key", &guard).unwrap();
    assert_eq!(slot.bytes(), 16 + b"key".len());
    assert_eq!(relocate(slot, ALL, &guard), Some(b"value".len() + super::super::slot::ENTRY_HEADER_BYTES));
}

#[test]
fn a_slot_that_moves_without_its_entry_is_freed_with_the_pass() {
    alone("tables::compactor::tests::a_slot_that_moves_without_its_entry_is_freed_with_the_pass", || {
        // An entry this large has memory pages of its own.
        let key = [7; 64];
        let (tables, mut compactor, _changes) = with_element(&key, &vec![7; 8 << 20]);
        let find = || {
            let guard = epoch::pin();
            let table = tables.0.catalog.find(b"t", &guard).unwrap();
            let slot = table.find(table.hash(&key), &key, &guard).unwrap();
            let SlotState::Live(entry) = slot.load(&guard).state() else { unreachable!("it is not deleted") };
            (slot.address(), entry.address())
        };
        let (slot, entry) = find();
        let region_of_slot = MovePass { number: slot >> REGION_BITS, count: usize::MAX };
        assert!(!region_of_slot.include(entry));
        compactor.move_entries(region_of_slot, NOW);
        let (moved, same) = find();
        assert!(moved != slot && same == entry);
        assert_eq!(SLOTS.load(Ordering::Relaxed), 1, "the old one is freed");
    });
}
