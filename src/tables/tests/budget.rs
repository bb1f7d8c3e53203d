//! The memory budget to the byte: a write that fits exactly is admitted, and one that takes a byte more is not.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use crossbeam::epoch;

use super::super::catalog::table_bytes;
use super::super::index::{CELLS, Inserted};
use super::super::memory_budget::{TIMER_BYTES, entry_bytes, slot_bytes};
use super::super::slot::{EXTENSION_BYTES, EntryBox, NEVER, SlotHandle};
use super::super::{ManyProgress, Refusal, Tables, TablesConfig, bytes_for};
use super::{TablesRig, in_seconds, set, settings};
use crate::clock::Now;

impl TablesRig {
    /// Leaves room for so many bytes. A session that keeps no bytes back finds exactly these.
    fn leave_room(&self, bytes: i64) {
        let memory_budget = &self.0.tables.0.memory_budget;
        let excess = memory_budget.limit() - memory_budget.used() - bytes;
        memory_budget.set_excess(excess, memory_budget.read());
    }
}

#[test]
fn an_element_is_counted_with_its_slot_its_entry_and_its_share_of_the_index() {
    assert_eq!((slot_bytes(1, false), entry_bytes(0)), (32, 16));
    assert_eq!(bytes_for(1_000), 1_000 * (32 + 16 + 8));
}

#[test]
fn the_deadline_of_a_new_element_takes_room_too() {
    let stage = TablesRig::new();
    let element = slot_bytes(1, false) + entry_bytes(1);
    let with_deadline = slot_bytes(1, true) + entry_bytes(1) + TIMER_BYTES;
    let set_with = |ttl| set(&mut stage.another(), stage.now(), "k", "v", ttl);
    stage.leave_room(element - 1);
    assert_eq!(set_with(None), Err(Refusal::Busy));
    stage.leave_room(with_deadline - 1);
    assert_eq!(set_with(Some(1)), Err(Refusal::Busy));
    stage.leave_room(with_deadline);
    assert_eq!(set_with(Some(1)), Ok(()));
}

#[test]
fn pairs_that_replace_elements_with_deadlines_take_no_more_room_for_theirs() {
    let stage = TablesRig::new();
    stage.set("with", "value", Some(10)).unwrap();
    stage.set("without", "value", None).unwrap();
    stage.settle();
    let many = |key: &str| {
        let pairs = [(key.as_bytes(), &b"value"[..])].into_iter();
        stage.another().batch(stage.now()).update_many(
            b"t",
            in_seconds(stage.now(), 20),
            pairs,
            &mut ManyProgress::default(),
        )
    };
    stage.leave_room(TIMER_BYTES + EXTENSION_BYTES - 1);
    assert_eq!((many("with"), many("without")), (Ok(()), Err(Refusal::Busy)));
    stage.leave_room(TIMER_BYTES + EXTENSION_BYTES);
    assert_eq!(many("without"), Ok(()));
}

/// The bytes of table "t" as they are charged, once all threads are done.
fn charged(stage: &TablesRig) -> i64 {
    stage.settle();
    stage.tables_metrics().tables[0].bytes.cast_signed()
}

#[test]
fn an_element_that_gets_a_deadline_later_is_charged_for_it_until_it_goes_or_moves() {
    let stage = TablesRig::new();
    // The index has a line for both from now on.
    stage.set("another", "v", None).unwrap();
    let before = charged(&stage);
    let [short, long] = [false, true].map(|has_deadline| slot_bytes(1, has_deadline) + entry_bytes(1));
    stage.set("k", "v", None).unwrap();
    assert_eq!(charged(&stage), before + short);
    for _ in 0..2 {
        stage.set("k", "v", Some(10)).unwrap();
        assert_eq!(charged(&stage), before + short + EXTENSION_BYTES, "once");
    }
    // Without a deadline again, the slot moves when the wheel has looked, and leaves the extension behind.
    stage.set("k", "v", Some(0)).unwrap();
    stage.at(11_000).settle();
    stage.0.compactor.borrow_mut().move_all(stage.now());
    assert_eq!(charged(&stage), before + short);
    stage.set("k", "v", Some(10)).unwrap();
    assert_eq!(charged(&stage), before + short + EXTENSION_BYTES);
    stage.at(30_000);
    assert_eq!(charged(&stage), before, "expired");
    stage.set("k", "v", Some(10)).unwrap();
    assert_eq!(charged(&stage), before + long);
    stage.set("k", "v", Some(0)).unwrap();
    stage.at(50_000).settle();
    stage.0.compactor.borrow_mut().move_all(stage.now());
    assert_eq!(charged(&stage), before + short, "it was made with a deadline, and moves without");
    stage.delete("k").unwrap();
    assert_eq!(charged(&stage), before);
}

#[test]
fn a_table_takes_room_with_its_index() {
    for expected_keys in [0, 1_000_000] {
        let (tables, _backstage) = Tables::new(TablesConfig { expected_keys, ..settings() });
        tables.session().batch(Now::from_millis(1)).create_table(b"t", b"t").unwrap();
        let index = tables.0.catalog.find(b"t", &epoch::pin()).unwrap().index().bytes();
        assert_eq!(index > 0, expected_keys > 0);
        assert_eq!(tables.metrics().memory.used, (table_bytes(b"t") + index).cast_unsigned());
    }
}

#[test]
fn a_table_that_has_been_taken_down_counts_no_elements() {
    let stage = TablesRig::new();
    for key in ["a", "b", "c"] {
        stage.set(key, "1", None).unwrap();
    }
    let guard = epoch::pin();
    let catalog = &stage.0.tables.0.catalog;
    let table = catalog.registry().keep(catalog.find(b"t", &guard).unwrap(), &guard).unwrap();
    drop(guard);
    assert_eq!(table.summary().elements, 3);
    stage.drop_table("t").unwrap();
    stage.settle();
    assert_eq!((table.summary().elements, stage.notified().len()), (0, 6));
}

#[test]
fn a_key_that_agrees_with_56_others_in_32_bits_of_the_hash_is_refused() {
    let stage = TablesRig::new();
    {
        let guard = epoch::pin();
        let table = stage.0.tables.0.catalog.find(b"t", &guard).unwrap();
        let hash = table.hash(b"k");
        for number in 0..=CELLS {
            let key = [u8::try_from(number).unwrap()];
            let mut make = |_: Option<u64>| {
                let mut entry = EntryBox::new(b"");
                entry.stamp(1, NEVER);
                Some(SlotHandle::new(table.number(), &key, entry))
            };
            let entered = table.index().enter(hash, &key, &guard, &|_| hash, &|| true, &mut make);
            match entered {
                Inserted::Created => assert!(number < CELLS),
                Inserted::Overfull => assert_eq!(number, CELLS),
                Inserted::Occupied | Inserted::Refused => panic!("the key is new, and the table is open"),
            }
        }
    }
    assert_eq!(stage.set("k", "1", None), Err(Refusal::OutOfMemory));
    assert_eq!((stage.get("k"), stage.set("another", "1", None)), (None, Ok(())));
}

/// A server without a table said for ever that its tables have some bytes.
#[test]
fn a_session_that_rests_keeps_no_bytes_back() {
    let rig = TablesRig::new();
    rig.set("k", "value", None).unwrap();
    rig.drop_table("t").unwrap();
    for millis in [1, 102, 203] {
        rig.at(millis).settle();
        rig.0.session.borrow_mut().rest(rig.now());
        rig.0.reaper.borrow_mut().rest_session(rig.now());
    }
    assert_eq!(rig.tables_metrics().memory.used, 0);
}
