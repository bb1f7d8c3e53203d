//! Lines that come and go: whatever moves between them, every key is found and walked over once, and no line is lost.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crossbeam::epoch::{self, Guard};
use proptest::prelude::*;

use crate::tables::failpoint::hooks;
use crate::tables::index::*;
use crate::tables::slot::{EntryBox, NEVER};

/// The hash of a key of four bytes. Any two differ in the bits that choose a bucket.
fn hash(key: &[u8]) -> u64 {
    let number = u64::from(u32::from_be_bytes(key.try_into().unwrap()));
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn insert(index: &Index, number: u32, guard: &Guard) -> bool {
    let key = number.to_be_bytes();
    let mut make = |_: Option<u64>| {
        let mut entry = EntryBox::new(b"");
        entry.stamp(1, NEVER);
        Some(SlotHandle::new(0, &key, entry))
    };
    match index.enter(hash(&key), &key, guard, &hash, &|| true, &mut make) {
        Inserted::Created => true,
        Inserted::Occupied => false,
        Inserted::Refused | Inserted::Overfull => panic!("there is room for {number}"),
    }
}

fn remove(index: &Index, number: u32, guard: &Guard) -> bool {
    let key = number.to_be_bytes();
    let Some(slot) = index.find(hash(&key), &key, guard) else { return false };
    index.leave(hash(&key), slot, guard);
    true
}

fn is_found(index: &Index, number: u32, guard: &Guard) -> bool {
    let key = number.to_be_bytes();
    index.find(hash(&key), &key, guard).is_some()
}

/// The numbers of all keys in the order of a walk.
fn walked(index: &Index, guard: &Guard) -> Vec<u32> {
    let (walk, mut slots, mut numbers, mut position) = (index.walk(guard), Vec::new(), Vec::new(), Some(0));
    while let Some(from) = position {
        position = walk.read(from, guard, hash, &mut slots);
        numbers.extend(slots.iter().map(|(_, slot)| u32::from_be_bytes(slot.key().try_into().unwrap())));
    }
    numbers
}

/// How many lines the buckets have. Each is on one bucket.
fn lines_of_all_buckets(index: &Index, guard: &Guard) -> usize {
    let (view, mut buckets, mut lines) = (index.segments.view(guard), vec![0], HashSet::new());
    while let Some(number) = buckets.pop() {
        index.visit(number, guard, &mut buckets, |_| {});
        let bucket = view.bucket_at(number).unwrap();
        assert!(bucket.ready.load(Ordering::Relaxed));
        for (line, _) in bucket.lines(&index.lines, guard) {
            assert!(lines.insert(line), "line {line} is on two buckets");
        }
    }
    lines.len()
}

/// Runs `look` at the `nth` time that this thread reaches the point.
fn at_nth(point: Failpoint, nth: u32, look: impl FnOnce() + 'static) {
    hooks::at(point, move || if nth == 0 { look() } else { at_nth(point, nth - 1, look) });
}

#[test]
fn every_key_is_found_and_walked_over_at_each_step_of_a_move() {
    for point in [Failpoint::Doubled, Failpoint::Drawn, Failpoint::HandedOver] {
        for nth in 0..60 {
            let (index, guard) = (Rc::new(Index::new(0)), epoch::pin());
            let stored = Rc::new(Cell::new(0));
            let (inner, so_far) = (Rc::clone(&index), Rc::clone(&stored));
            at_nth(point, nth, move || {
                let guard = epoch::pin();
                let numbers = 0..so_far.get();
                let missed: Vec<u32> = numbers.clone().filter(|number| !is_found(&inner, *number, &guard)).collect();
                assert!(missed.is_empty(), "{missed:?} of {}", so_far.get());
                let mut shown = walked(&inner, &guard);
                shown.sort_unstable();
                assert_eq!(shown, numbers.collect::<Vec<_>>());
            });
            while hooks::is_waiting() {
                assert!(insert(&index, stored.get(), &guard));
                stored.set(stored.get() + 1);
            }
        }
    }
}

/// A reader has read one line, and then more slots come. They move slots to the line that the reader has read, from the
/// lines that the reader reads next.
#[test]
fn a_reader_between_two_lines_misses_no_key() {
    let mut interrupted = 0;
    for stored in 8..120 {
        for key in 0..stored {
            let (index, guard) = (Rc::new(Index::new(0)), epoch::pin());
            (0..stored).for_each(|number| assert!(insert(&index, number, &guard)));
            let inner = Rc::clone(&index);
            let grow = move || (stored..stored + 12).for_each(|number| assert!(insert(&inner, number, &epoch::pin())));
            hooks::at(Failpoint::LineRead, grow);
            assert!(is_found(&index, key, &guard), "{key} of {stored}");
            interrupted += u32::from(!hooks::is_waiting());
        }
    }
    assert!(interrupted > 300, "{interrupted} keys were not at home");
}

#[test]
fn a_walker_between_two_lines_misses_no_key() {
    for stored in 1..120 {
        for nth in 0..12 {
            let (index, guard) = (Rc::new(Index::new(0)), epoch::pin());
            (0..stored).for_each(|number| assert!(insert(&index, number, &guard)));
            let inner = Rc::clone(&index);
            let grow = move || (stored..stored + 12).for_each(|number| assert!(insert(&inner, number, &epoch::pin())));
            at_nth(Failpoint::LineRead, nth, grow);
            let shown: BTreeSet<u32> = walked(&index, &guard).into_iter().collect();
            assert!(shown.is_superset(&(0..stored).collect()), "{shown:?} of {stored}");
        }
    }
}

#[test]
fn most_slots_stand_on_their_home_and_lines_are_filled() {
    let (index, guard) = (Index::new(0), epoch::pin());
    let keys = 20_000;
    (0..keys).for_each(|number| assert!(insert(&index, number, &guard)));
    let (view, mut buckets, mut at_home) = (index.segments.view(&guard), vec![0], 0);
    while let Some(number) = buckets.pop() {
        index.visit(number, &guard, &mut buckets, |_| {});
        let bucket = view.bucket_at(number).unwrap();
        for (line, cells) in bucket.lines(&index.lines, &guard) {
            let is_home = |cell: &&SlotCell| bucket.home(cell.hash_bits(), &index.lines, &guard).unwrap().0 == line;
            at_home += cells.0.iter().filter(|cell| !cell.is_empty()).filter(is_home).count();
        }
    }
    let cells = lines_of_all_buckets(&index, &guard) * LINE_CELLS;
    assert!(at_home > 17_000 && cells < 25_000, "{at_home} of {keys} at home, in {cells} cells");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn an_index_is_a_set_of_keys(steps in prop::collection::vec((any::<bool>(), 0_u32..1_500, 1_u32..400), 1..25)) {
        let (index, guard) = (Index::new(0), epoch::pin());
        let mut model = BTreeSet::new();
        for (is_insertion, first, count) in steps {
            for number in first..first + count {
                if is_insertion {
                    prop_assert_eq!(insert(&index, number, &guard), model.insert(number));
                } else {
                    prop_assert_eq!(remove(&index, number, &guard), model.remove(&number));
                }
            }
            let shown = walked(&index, &guard);
            prop_assert_eq!(shown.len(), model.len());
            prop_assert_eq!(shown.iter().copied().collect::<BTreeSet<_>>(), model.clone());
            let position = |number: &u32| hash(&number.to_be_bytes()).reverse_bits();
            prop_assert!(shown.is_sorted_by_key(position));
            for number in 0..2_000 {
                prop_assert_eq!(is_found(&index, number, &guard), model.contains(&number));
            }
            let used = lines_of_all_buckets(&index, &guard);
            prop_assert_eq!(index.lines.taken(), used, "a line is lost");
        }
    }
}

/// Keys come, which adds lines and splits buckets, while others go and come back. Readers and walkers miss none of those
/// that stay.
#[test]
fn no_reader_and_no_walker_misses_a_key_while_lines_come_and_go() {
    for round in 0..40_u32 {
        let (index, done, stored) = (Index::new(0), AtomicBool::new(false), AtomicU32::new(0));
        let (index, done, stored) = (&index, &done, &stored);
        thread::scope(|scope| {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let guard = epoch::pin();
                    let there = stored.load(Ordering::Acquire);
                    for number in (0..there).filter(|number| number % 4 != 3) {
                        assert!(is_found(index, number, &guard), "{number} of {there}");
                    }
                }
            });
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let guard = epoch::pin();
                    let there = stored.load(Ordering::Acquire);
                    let shown: HashSet<u32> = walked(index, &guard).into_iter().collect();
                    let missed = (0..there).find(|number| number % 4 != 3 && !shown.contains(number));
                    assert_eq!(missed, None, "of {there}");
                }
            });
            for number in 0..3_000 {
                let guard = epoch::pin();
                insert(index, number, &guard);
                stored.store(number + 1, Ordering::Release);
                let other = number.wrapping_mul(round + 7) % (number + 1) / 4 * 4 + 3;
                if other < number && !remove(index, other, &guard) {
                    insert(index, other, &guard);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let guard = epoch::pin();
        assert_eq!(index.lines.taken(), lines_of_all_buckets(index, &guard));
    }
}
