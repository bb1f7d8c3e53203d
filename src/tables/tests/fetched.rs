//! Places that a prefetch has noted: a look-up may begin there, and returns the same as without the place.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam::epoch;
use proptest::prelude::*;

use super::{TablesRig, settings, with_table};
use crate::clock::Now;
use crate::limits::LOOK_AHEAD;
use crate::tables::index::Place;
use crate::tables::prefetch::Fetched;
use crate::tables::{Addition, Deadline, Reaper, Refusal, Session, Tables, TablesConfig};

/// More than an index of which nothing is fetched ahead has.
const KEYS: usize = 12_000;

fn key(number: usize) -> String {
    format!("{number:016}")
}

/// A rig with so many keys.
fn filled() -> TablesRig {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 16, ..settings() });
    (0..KEYS).for_each(|number| rig.set(&key(number), &number.to_string(), None).unwrap());
    rig.settle();
    rig
}

/// Fetches these keys of the table "t".
fn fetch(rig: &TablesRig, keys: &[String]) -> Fetched {
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    batch.prefetch(keys.iter().map(|key| Some((&b"t"[..], key.as_bytes()))))
}

/// The addresses of the slot of a key: at this place, and as a look-up finds it.
fn shown(rig: &TablesRig, key: &str, place: Place) -> [Option<usize>; 2] {
    let guard = epoch::pin();
    let table = rig.0.tables.0.catalog.find(b"t", &guard).unwrap();
    let key = key.as_bytes();
    [table.at(place, key, &guard), table.find(table.hash(key), key, &guard)].map(|slot| slot.map(|slot| slot.address()))
}

#[test]
fn a_place_shows_the_slot_of_its_key_and_of_no_other() {
    let rig = filled();
    let keys: Vec<String> = (0..LOOK_AHEAD).map(|number| key(number * 701)).collect();
    let fetched = fetch(&rig, &keys);
    for (number, key) in keys.iter().enumerate() {
        let [seen, found] = shown(&rig, key, fetched.place(number));
        assert!(seen.is_some() && seen == found, "{key}");
        let other = &keys[(number + 1) % LOOK_AHEAD];
        assert_eq!(shown(&rig, other, fetched.place(number))[0], None);
    }
    assert_eq!(shown(&rig, &keys[0], fetched.place(LOOK_AHEAD))[0], None, "no such request");
}

#[test]
fn requests_without_an_element_and_of_other_tables_keep_their_numbers() {
    let rig = filled();
    rig.create("u").unwrap();
    let keys: Vec<String> = (0..7).map(key).collect();
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    let tables = [Some(&b"t"[..]), None, Some(b"t"), Some(b"u"), Some(b"u"), Some(b"t"), Some(b"none")];
    let requests = tables.iter().zip(&keys).map(|(table, key)| table.map(|table| (table, key.as_bytes())));
    let fetched = batch.prefetch(requests);
    let has_place: Vec<bool> =
        keys.iter().enumerate().map(|(number, key)| shown(&rig, key, fetched.place(number))[0].is_some()).collect();
    // The sixth is alone among requests for other tables.
    assert_eq!(has_place, [true, false, true, false, false, false, false]);
}

#[test]
fn a_place_that_its_slot_has_left_shows_nothing_or_what_a_look_up_finds() {
    let rig = filled();
    let keys: Vec<String> = (0..LOOK_AHEAD).map(|number| key(number * 701)).collect();
    let fetched = fetch(&rig, &keys);
    let all_agree = |moment: &str| {
        let places = keys.iter().enumerate();
        let shown: Vec<_> = places.map(|(number, key)| (key, shown(&rig, key, fetched.place(number)))).collect();
        for (key, [seen, found]) in &shown {
            assert!(seen.is_none() || seen == found, "{key} {moment}");
        }
        shown.iter().filter(|(_, [seen, _])| seen.is_some()).count()
    };
    assert_eq!(all_agree("at once"), LOOK_AHEAD);
    rig.0.compactor.borrow_mut().move_all(rig.now());
    assert_eq!(all_agree("after a move, which leaves the cells"), LOOK_AHEAD);
    rig.delete(&keys[0]).unwrap();
    assert_eq!(all_agree("while a deletion is not announced"), LOOK_AHEAD);
    rig.settle();
    assert_eq!(all_agree("when the slot has been taken out"), LOOK_AHEAD - 1);
    (KEYS..3 * KEYS).for_each(|number| rig.set(&key(number), "", None).unwrap());
    rig.set(&keys[0], "again", None).unwrap();
    assert!(all_agree("after splits") < LOOK_AHEAD / 2 + LOOK_AHEAD / 4);
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    assert_eq!(all_agree("in a younger table of the name"), 0);
}

#[test]
fn an_expected_place_is_for_the_next_operation_alone() {
    let rig = filled();
    let keys = [key(1), key(2)];
    let fetched = fetch(&rig, &keys);
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    batch.expect(&fetched, 0);
    // Whatever is expected, each operation is for its own key.
    assert_eq!(batch.get(b"t", keys[1].as_bytes()), Ok(&b"2"[..]));
    assert_eq!(batch.get(b"t", keys[0].as_bytes()), Ok(&b"1"[..]));
    batch.expect(&fetched, 1);
    let addition = Addition { delta: 5, deadline: Deadline::KEEP, value_max: 100 };
    assert_eq!(batch.increment(b"t", keys[0].as_bytes(), addition).unwrap().0, 6);
    batch.expect(&fetched, 0);
    assert_eq!(batch.increment(b"t", keys[0].as_bytes(), addition).unwrap().0, 11);
    batch.expect(&fetched, 0);
    assert_eq!(batch.delete(b"t", keys[0].as_bytes()), Ok(&b"11"[..]));
    batch.expect(&fetched, 0);
    assert!(batch.get(b"t", keys[0].as_bytes()).is_err());
}

/// What is done with one of the keys.
#[derive(Clone, Debug)]
enum Operation {
    Get,
    Set(u8),
    Add,
    Delete,
    /// Its deletion is announced, and the slot taken out.
    Settle,
    /// All keys are fetched anew.
    Fetch,
    MoveAll,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => Just(Operation::Get),
        4 => (0..10_u8).prop_map(Operation::Set),
        2 => Just(Operation::Add),
        3 => Just(Operation::Delete),
        1 => Just(Operation::Settle),
        1 => Just(Operation::Fetch),
        1 => Just(Operation::MoveAll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_place_is_expected_the_outcome_is_the_same(
        operations in prop::collection::vec((0..LOOK_AHEAD, 0..LOOK_AHEAD + 1, operation()), 1..300),
    ) {
        let rig = filled();
        let keys: Vec<String> = (0..LOOK_AHEAD).map(|number| key(number * 701)).collect();
        let mut model: HashMap<&str, i64> =
            keys.iter().enumerate().map(|(at, key)| (key.as_str(), i64::try_from(at * 701).unwrap())).collect();
        let mut fetched = fetch(&rig, &keys);
        let mut session = rig.another();
        for (number, expected, operation) in operations {
            let key = keys[number].as_str();
            let mut batch = session.batch(rig.now());
            // Half of the time the right one.
            batch.expect(&fetched, if expected % 2 == 0 { number } else { expected });
            match operation {
                Operation::Get => {
                    let value = batch.get(b"t", key.as_bytes()).ok().map(|value| String::from_utf8_lossy(value).into());
                    prop_assert_eq!(value, model.get(key).map(ToString::to_string));
                }
                Operation::Set(value) => {
                    batch.update(b"t", key.as_bytes(), value.to_string().as_bytes(), Deadline::KEEP).unwrap();
                    model.insert(key, i64::from(value));
                }
                Operation::Add => {
                    let addition = Addition { delta: 1, deadline: Deadline::KEEP, value_max: 100 };
                    let sum = model.get(key).copied().unwrap_or_default() + 1;
                    prop_assert_eq!(batch.increment(b"t", key.as_bytes(), addition).unwrap().0, sum);
                    model.insert(key, sum);
                }
                Operation::Delete => {
                    prop_assert_eq!(batch.delete(b"t", key.as_bytes()).is_ok(), model.remove(key).is_some());
                }
                Operation::Settle => {
                    drop(batch);
                    rig.settle();
                }
                Operation::Fetch => {
                    drop(batch);
                    fetched = fetch(&rig, &keys);
                }
                Operation::MoveAll => {
                    drop(batch);
                    rig.0.compactor.borrow_mut().move_all(rig.now());
                }
            }
        }
    }
}

/// Keys that are always there, but for the first ones, which are deleted and made again.
const STABLE: u64 = 16_000;
const PASSING: u64 = 400;
const NOW: Now = Now::from_millis(1);

/// Stores a value, and waits for room if there is none.
fn set(session: &mut Session, number: u64, value: &[u8]) {
    while session.batch(NOW).update(b"t", &number.to_be_bytes(), value, Deadline::KEEP).is_err() {
        session.wait();
    }
}

/// Reads by expected places, until it is done.
fn read(tables: &Tables, mut first: u64, done: &AtomicBool) {
    let mut session = tables.session();
    while !done.load(Ordering::Relaxed) {
        let keys: Vec<[u8; 8]> = (0..16).map(|at| ((first + at * 997) % STABLE).to_be_bytes()).collect();
        first += 1;
        let mut batch = session.batch(NOW);
        let fetched = batch.prefetch(keys.iter().map(|key| Some((&b"t"[..], &key[..]))));
        thread::yield_now();
        for (number, key) in keys.iter().enumerate() {
            batch.expect(&fetched, number);
            match batch.get(b"t", key) {
                Err(Refusal::KeyNotFound) => assert!(u64::from_be_bytes(*key) < PASSING),
                value => assert_eq!(value, Ok(&key[..])),
            }
        }
    }
}

/// Adds to counters by expected places, until it is done. Returns the number of additions.
fn add(tables: &Tables, counters: &[[u8; 9]], done: &AtomicBool) -> u64 {
    let (mut session, mut added) = (tables.session(), 0);
    while !done.load(Ordering::Relaxed) {
        let mut batch = session.batch(NOW);
        let fetched = batch.prefetch(counters.iter().map(|key| Some((&b"t"[..], &key[..]))));
        thread::yield_now();
        for (number, key) in counters.iter().enumerate() {
            batch.expect(&fetched, number);
            let addition = Addition { delta: 1, deadline: Deadline::KEEP, value_max: 100 };
            added += u64::from(batch.increment(b"t", key, addition).is_ok());
        }
    }
    added
}

/// Deletes the passing keys and makes them again, while the reaper takes their slots out, until it is done.
fn pass(tables: &Tables, reaper: &mut Reaper, done: &AtomicBool) {
    let mut session = tables.session();
    for number in (0..PASSING).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
        let _absent_or_busy = session.batch(NOW).delete(b"t", &number.to_be_bytes()).map(drop);
        reaper.step(NOW);
        set(&mut session, number, &number.to_be_bytes());
    }
}

/// Readers fetch and expect, while other keys come, which splits the buckets, slots move, and some keys go and come back
/// in other slots. No reader misses a key that is always there, or gets the value of another, and no addition to a
/// counter is lost.
#[test]
fn no_reader_misses_a_key_while_buckets_split_and_slots_move() {
    let (tables, mut background) = with_table(TablesConfig { changes_per_writer: 1 << 12, ..settings() });
    let (done, mut session) = (AtomicBool::new(false), tables.session());
    let counters: Vec<[u8; 9]> = (0..16_u8).map(|number| [b'c', number, 0, 0, 0, 0, 0, 0, 0]).collect();
    // The publisher is the last to end: those who write wait for it.
    let is_over = AtomicBool::new(false);
    let (tables, done, is_over, counters) = (&tables, &done, &is_over, &counters[..]);
    let added: u64 = thread::scope(|scope| {
        let (changes, compactor) = (&mut background.changes, &mut background.compactor);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                changes.drain(1_000, &mut |_, _, _| {});
            }
        });
        (0..STABLE).for_each(|number| set(&mut session, number, &number.to_be_bytes()));
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                compactor.move_all(NOW);
                thread::yield_now();
            }
        });
        let passer = scope.spawn(|| pass(tables, &mut background.reaper, done));
        for first in [0, 1] {
            scope.spawn(move || read(tables, first, done));
        }
        let adders = [0, 1].map(|_| scope.spawn(|| add(tables, counters, done)));
        for number in STABLE..12 * STABLE {
            set(&mut session, number, b"");
            if number % 3 == 0 {
                set(&mut session, number % STABLE, &(number % STABLE).to_be_bytes());
            }
        }
        done.store(true, Ordering::Relaxed);
        let added = adders.into_iter().map(|adder| adder.join().unwrap()).sum();
        passer.join().unwrap();
        is_over.store(true, Ordering::Relaxed);
        added
    });
    let mut batch = session.batch(NOW);
    let counted = counters.iter().map(|key| {
        let digits = batch.get(b"t", key).unwrap();
        std::str::from_utf8(digits).unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(counted.sum::<u64>(), added);
}
