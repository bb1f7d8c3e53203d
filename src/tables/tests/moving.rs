//! Slots that the compactor moves: no change is lost, and no reader misses the element at any moment.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crossbeam::epoch;

use super::super::failpoint::{Failpoint, hooks};
use super::super::{ManyProgress, Refusal, Session};
use super::alone::alone;
use super::{TablesRig, in_seconds, settings};
use crate::clock::Now;
use crate::tables::slot::count::SLOTS;
use crate::tables::{Batch, Deadline, Tables, TablesConfig};

impl TablesRig {
    fn address(&self, key: &str) -> usize {
        self.with_slot(key, |slot| slot.address())
    }

    fn move_all(&self) {
        let now = self.now();
        self.0.compactor.borrow_mut().move_all(now);
    }
}

#[test]
fn slots_without_a_deadline_move_and_keep_everything() {
    alone("tables::tests::moving::slots_without_a_deadline_move_and_keep_everything", || {
        let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 14, ..settings() });
        let key = |number: usize| format!("{number:016}");
        for number in 0..2_000 {
            rig.set(&key(number), &format!("value {number}"), (number % 2 == 1).then_some(10)).unwrap();
        }
        rig.settle();
        rig.notified();
        let before: Vec<_> = (0..2_000).map(|number| (rig.address(&key(number)), rig.version(&key(number)))).collect();
        let tables_metrics = rig.tables_metrics();
        rig.move_all();
        for (number, (address, version)) in before.into_iter().enumerate() {
            assert_eq!(rig.address(&key(number)) == address, number % 2 == 1, "{number}");
            assert_eq!(rig.get(&key(number)), Some(format!("value {number}")));
            assert_eq!(rig.version(&key(number)), version);
        }
        rig.settle();
        assert!(rig.notified().is_empty(), "a move is no change");
        let after = rig.tables_metrics();
        assert_eq!((tables_metrics.memory.used, tables_metrics.timers), (after.memory.used, after.timers));
        // A moved element can be changed, expire and be deleted as before.
        rig.set(&key(0), "again", Some(10)).unwrap();
        rig.delete(&key(2)).unwrap();
        rig.at(20_000).settle();
        assert_eq!(rig.notified().len(), 3 + 1_000);
        assert_eq!((rig.tables_metrics().expired, rig.tables_metrics().reaped), (1_001, 1_002));
        for _ in 0..10 {
            rig.0.session.borrow_mut().rest(rig.now());
            rig.move_all();
            epoch::pin().flush();
        }
        assert_eq!(SLOTS.load(Ordering::Relaxed), 998, "old slots are freed");
        rig.drop_table("t").unwrap();
        for _ in 0..40 {
            rig.settle();
        }
        assert_eq!(rig.notified().len(), 998);
        assert_eq!(rig.tables_metrics().tables.len(), 0);
    });
}

#[test]
fn a_slot_stays_while_a_change_of_it_is_to_be_announced() {
    let rig = TablesRig::new();
    rig.set("k", "1", None).unwrap();
    let address = rig.address("k");
    rig.move_all();
    assert_eq!(rig.address("k"), address);
    rig.publish();
    rig.move_all();
    let moved = rig.address("k");
    assert_ne!(moved, address);
    rig.set("k", "2", None).unwrap();
    rig.move_all();
    assert_eq!(rig.address("k"), moved);
    rig.publish();
    assert_eq!(rig.notified(), ["k+", "k+"]);
}

#[test]
fn slots_of_a_table_that_is_taken_down_stay() {
    let rig = TablesRig::new();
    rig.set("k", "1", None).unwrap();
    rig.settle();
    let inner = rig.clone();
    hooks::at(Failpoint::BeforeSeal, move || {
        inner.move_all();
        let guard = epoch::pin();
        assert!(inner.0.tables.0.catalog.find(b"t", &guard).is_none());
    });
    rig.drop_table("t").unwrap();
    rig.settle();
    assert!(!hooks::is_waiting());
    assert_eq!(rig.tables_metrics().moved, 0);
    rig.create("t").unwrap();
    rig.set("k", "2", None).unwrap();
    rig.settle();
    assert_eq!(rig.notified(), ["k+", "k-", "k+"]);
}

#[test]
fn a_writer_whose_slot_moves_under_it_stores_in_the_other_one() {
    let rig = TablesRig::new();
    rig.set("k", "1", None).unwrap();
    rig.settle();
    let inner = rig.clone();
    let mut delayed = rig.another();
    hooks::at(Failpoint::BeforeCas, move || inner.move_all());
    super::set(&mut delayed, rig.now(), "k", "2", None).unwrap();
    assert!(!hooks::is_waiting());
    assert_eq!(rig.get("k").as_deref(), Some("2"));
    rig.settle();
    assert_eq!(rig.notified(), ["k+", "k+"]);
}

/// An operation of a thread on the key.
type Operation = fn(&mut Batch<'_>) -> Result<Vec<u8>, Refusal>;

#[test]
fn whoever_finds_a_slot_that_has_just_moved_finds_the_element() {
    let operations: [(Operation, &[u8]); 5] = [
        (|batch| batch.get(b"t", b"k").map(<[u8]>::to_vec), b"first"),
        (|batch| batch.delete(b"t", b"k").map(<[u8]>::to_vec), b"first"),
        (|batch| batch.touch(b"t", b"k", in_seconds(batch.now(), 100)).map(|()| Vec::new()), b""),
        (|batch| batch.update(b"t", b"k", b"second", Deadline::KEEP).map(|()| Vec::new()), b""),
        (
            |batch| {
                let mut values = Vec::new();
                batch.get_many(b"t", [&b"k"[..]].into_iter(), &ManyProgress::default(), &mut values)?;
                Ok(values[0].unwrap().to_vec())
            },
            b"first",
        ),
    ];
    for (operation, expected) in operations {
        let rig = TablesRig::new();
        rig.set("k", "first", None).unwrap();
        rig.settle();
        let (mut session, now) = (rig.another(), rig.now());
        let (sender, receiver) = crossbeam::channel::bounded(1);
        hooks::at(Failpoint::MovedOut, move || {
            let thread = thread::spawn(move || operation(&mut session.batch(now)));
            // The thread may have come to the slot by now. If not, it comes later, which is as good.
            for _ in 0..1_000 {
                thread::yield_now();
            }
            sender.send(thread).unwrap();
        });
        rig.move_all();
        assert!(!hooks::is_waiting());
        assert_eq!(receiver.recv().unwrap().join().unwrap(), Ok(expected.to_vec()));
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Adds one to the number in the value of a key, by CAS.
fn add(session: &mut Session, now: Now, number: u64) {
    loop {
        let before = session
            .batch(now)
            .get_entry(b"t", &key(number), || now)
            .map(|entry| (entry.version, u64::from_be_bytes(entry.value.try_into().unwrap())));
        let (version, value) = before.unwrap_or((0, 0));
        let next = (value + 1).to_be_bytes();
        let result = session.batch(now).compare_and_swap(b"t", &key(number), version, &next, Deadline::KEEP);
        match result {
            Ok(_) => return,
            Err(Refusal::VersionMismatch { .. }) => {}
            Err(Refusal::Busy) => session.wait(),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_goes_back_while_slots_move_all_the_time() {
    const KEYS: u64 = 40;
    const WRITES: u64 = 20_000;
    let key_count = usize::try_from(KEYS).unwrap();
    let (tables, background) = Tables::new(TablesConfig { changes_per_writer: 256, ..settings() });
    let now = Now::from_millis(1);
    tables.session().batch(now).create_table(b"t", b"t").unwrap();
    let (done, announced) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut compactor, mut changes) = (background.compactor, background.changes);
    let count = || {
        announced.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                changes.drain(1_000, &mut |_, _, _| count());
            }
            changes.drain(usize::MAX, &mut |_, _, _| count());
        });
        let mover = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                compactor.move_all(now);
            }
        });
        let reader = scope.spawn(|| {
            let (mut session, mut last) = (tables.session(), vec![0; key_count]);
            while !done.load(Ordering::Relaxed) {
                for number in 0..KEYS {
                    let found = session.batch(now).get(b"t", &key(number)).map(|value| value.try_into().unwrap());
                    let value = found.map_or(0, u64::from_be_bytes);
                    assert!(
                        value >= last[usize::try_from(number).unwrap()],
                        "{number} had {}, and has {value}",
                        last[usize::try_from(number).unwrap()]
                    );
                    last[usize::try_from(number).unwrap()] = value;
                }
            }
        });
        let writers = [0, 1].map(|writer| {
            let tables = &tables;
            scope.spawn(move || {
                let mut session = tables.session();
                (0..WRITES).for_each(|write| add(&mut session, now, (write * 7 + writer * 3) % KEYS));
            })
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
        [publisher, mover, reader].into_iter().for_each(|thread| thread.join().unwrap());
    });
    let mut session = tables.session();
    let values = (0..KEYS)
        .map(|number| u64::from_be_bytes(session.batch(now).get(b"t", &key(number)).unwrap().try_into().unwrap()));
    assert_eq!(values.sum::<u64>(), 2 * WRITES);
    assert_eq!(announced.load(Ordering::Relaxed), 2 * WRITES);
}
