//! Bounds and sizes, and memory that comes back.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::Arc;

use crossbeam::epoch;

use super::super::{Deadline, ManyProgress, Refusal, TablesConfig};
use super::{TablesRig, in_seconds, set, settings};
use crate::clock::Now;

#[test]
fn memory_is_refused_at_the_limit_and_comes_back_with_what_is_deleted() {
    let rig = TablesRig::with(TablesConfig { memory_max: 64 << 10, ..settings() });
    let value = "x".repeat(1_000);
    let stored = (0..1_000).take_while(|key| rig.set(&key.to_string(), &value, None).is_ok()).count();
    assert!((30..64).contains(&stored), "{stored}");
    assert_eq!(rig.set("more", &value, None), Err(Refusal::OutOfMemory));
    assert_eq!(rig.get("0").as_ref(), Some(&value), "reads continue");
    rig.set("0", "small", None).unwrap();
    for key in 1..stored {
        rig.publish();
        rig.delete(&key.to_string()).unwrap();
    }
    rig.settle();
    rig.set("more", &value, None).unwrap();
    let many: Vec<(String, String)> = (0..100).map(|key| (key.to_string(), value.clone())).collect();
    let pairs = many.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()));
    let mut session = rig.another();
    let before = rig.tables_metrics().tables[0].elements;
    assert_eq!(
        session.batch(rig.now()).update_many(b"t", Deadline::KEEP, pairs, &mut ManyProgress::default()),
        Err(Refusal::OutOfMemory)
    );
    assert_eq!(rig.tables_metrics().tables[0].elements, before, "nothing of it was stored");
}

#[test]
fn deadlines_are_refused_at_the_limit_as_well() {
    let rig = TablesRig::with(TablesConfig { memory_max: 4 << 20, ..settings() });
    let mut count = 0;
    while rig.set(&format!("{count:016}"), "value", None).is_ok() {
        count += 1;
        rig.settle();
    }
    let touch = |key: u32| {
        let mut session = rig.0.session.borrow_mut();
        let touched =
            session.batch(rig.now()).touch(b"t", format!("{key:016}").as_bytes(), in_seconds(rig.now(), 1_000));
        drop(session);
        rig.settle();
        touched
    };
    for key in 0..1_000 {
        rig.delete(&format!("{key:016}")).unwrap();
        rig.publish();
    }
    rig.settle();
    let granted = (1_000..count).take_while(|key| touch(*key).is_ok()).count();
    // The index may have exceeded the limit at the end, by some buckets.
    assert!(
        (700..1_500).contains(&granted),
        "1,000 elements of 64 bytes went, and a later deadline takes 73: {granted}"
    );
    let key = format!("{:016}", count - 1);
    assert_eq!(rig.set(&key, "value", Some(1_000)), Err(Refusal::OutOfMemory));
    assert_eq!(rig.set(&key, "value", None), Ok(()));
    assert_eq!(touch(1_000), Ok(()), "it has a deadline already");
    assert_eq!(touch(1_000 + u32::try_from(granted).unwrap()), Err(Refusal::OutOfMemory));
    let many = |ttl| {
        let key = format!("{:016}", 1_000 + granted);
        let mut session = rig.0.session.borrow_mut();
        let mut batch = session.batch(rig.now());
        batch.update_many(b"t", ttl, [(key.as_bytes(), &b"value"[..])].into_iter(), &mut ManyProgress::default())
    };
    assert_eq!(
        many(in_seconds(rig.now(), 1_000)),
        Err(Refusal::OutOfMemory),
        "pairs of many are admitted with their deadlines"
    );
    assert_eq!(many(in_seconds(rig.now(), 0)), Ok(()), "a TTL of 0 is no deadline");
    assert_eq!(many(Deadline::KEEP), Ok(()));
    rig.settle();
    let tables_metrics = rig.tables_metrics();
    assert!(tables_metrics.memory.used <= (4 << 20) + (64 << 10), "{}", tables_metrics.memory.used);
}

#[test]
fn the_budget_is_back_at_zero_when_all_is_deleted() {
    let rig = TablesRig::new();
    for key in 0..20_000 {
        rig.set(&key.to_string(), "value", Some(1 + key % 3)).unwrap();
        rig.publish();
    }
    rig.settle();
    rig.drop_table("t").unwrap();
    rig.at(10_000);
    for _ in 0..100 {
        rig.settle();
    }
    drop(rig.0.session.replace(rig.another()));
    let tables_metrics = rig.tables_metrics();
    assert_eq!((tables_metrics.timers, tables_metrics.reaped, tables_metrics.tables.len()), (0, 20_000, 0));
    assert!(tables_metrics.memory.used < 64 << 10, "what sessions keep back: {}", tables_metrics.memory.used);
}

#[test]
fn the_index_is_in_the_budget() {
    let rig = TablesRig::new();
    for key in 0..20_000 {
        rig.set(&key.to_string(), "", None).unwrap();
        rig.publish();
    }
    let slots_and_entries = 20_000 * (32 + 16);
    let index = rig.tables_metrics().tables[0].bytes - slots_and_entries;
    assert!((8..40).contains(&(index / 20_000)), "{index}");
    for key in 0..20_000 {
        rig.delete(&key.to_string()).unwrap();
        rig.settle();
    }
    assert_eq!(rig.tables_metrics().tables[0].bytes, index, "the index stays");
}

#[test]
fn tables_are_limited_in_number_and_found_by_name() {
    let rig = TablesRig::with(TablesConfig { tables_max: 2, ..settings() });
    assert_eq!(rig.create("t"), Err(Refusal::TableExists));
    rig.create("u").unwrap();
    assert_eq!(rig.create("v"), Err(Refusal::TooManyTables));
    assert_eq!(rig.drop_table("v"), Err(Refusal::TableNotFound));
    rig.drop_table("u").unwrap();
    rig.create("v").unwrap();
    let names: Vec<_> = rig.tables_metrics().tables.iter().map(|table| table.name.to_vec()).collect();
    assert_eq!(names, [b"t".to_vec(), b"v".to_vec()]);
}

#[test]
fn many_keys_are_all_found_while_the_index_splits() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 14, ..settings() });
    for key in 0..10_000 {
        rig.set(&key.to_string(), &(key * 7).to_string(), None).unwrap();
    }
    rig.publish();
    for key in 0..10_000 {
        assert_eq!(rig.get(&key.to_string()), Some((key * 7).to_string()), "{key}");
    }
    for key in (0..10_000).step_by(2) {
        rig.delete(&key.to_string()).unwrap();
    }
    rig.settle();
    assert_eq!(rig.tables_metrics().tables[0].elements, 5_000);
    rig.drop_table("t").unwrap();
    for _ in 0..20 {
        rig.settle();
    }
    assert_eq!(rig.notified().len(), 20_000);
    assert_eq!(rig.tables_metrics().reaped, 10_000);
}

#[test]
fn many_pairs_are_stored_in_order_and_many_keys_are_read() {
    let rig = TablesRig::new();
    let mut session = rig.another();
    let pairs = [(b"a".as_slice(), b"1".as_slice()), (b"b", b"2"), (b"a", b"3")];
    session
        .batch(rig.now())
        .update_many(b"t", in_seconds(rig.now(), 5), pairs.into_iter(), &mut ManyProgress::default())
        .unwrap();
    let mut batch = session.batch(rig.now());
    let mut values = Vec::new();
    batch.get_many(b"t", [b"a".as_slice(), b"x", b"b"].into_iter(), &ManyProgress::default(), &mut values).unwrap();
    assert_eq!(values, [Some(b"3".as_slice()), None, Some(b"2")]);
    assert_eq!(batch.get_entry(b"t", b"b", || rig.now()).unwrap().remaining_millis, Some(5_000));
    let mut none = Vec::new();
    assert_eq!(
        batch.get_many(b"u", std::iter::empty(), &ManyProgress::default(), &mut none),
        Err(Refusal::TableNotFound)
    );
}

#[test]
fn what_is_left_of_a_ttl_is_never_more_than_was_set_though_the_batch_began_before_it_was_set() {
    let rig = TablesRig::new();
    let mut reader = rig.another();
    for (began, set, read) in [(0, 0, 0), (0, 1, 1), (1, 999_999, 999_999), (0, 700_000_001, 700_000_002)] {
        let at = |nanos: u64| Now::from_nanos(5_000_000 + nanos);
        let mut earlier = reader.batch(at(began));
        let mut writer = rig.another();
        writer.batch(at(set)).update(b"t", b"a", b"1", in_seconds(at(set), 300)).unwrap();
        let left = earlier.get_entry(b"t", b"a", || at(read)).unwrap().remaining_millis;
        assert_eq!(left, Some(300_000), "began {began}, set {set}, read {read}");
    }
}

#[test]
fn a_batch_counts_no_reference_to_its_table() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let catalog = &rig.0.tables.0.catalog;
    let guard = epoch::pin();
    let table = catalog.find(b"t", &guard).unwrap();
    let table = catalog.registry().keep(table, &guard).unwrap();
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    assert_eq!(batch.get(b"t", b"a"), Ok(&b"1"[..]));
    batch.update(b"t", b"a", b"2", in_seconds(rig.now(), 1)).unwrap();
    assert_eq!(Arc::strong_count(&table), 2, "the registry's and the one here");
    drop(batch);
    rig.at(2_000).expire();
    rig.publish();
    assert_eq!(rig.notified(), ["a+", "a+", "a-"]);
    assert_eq!(Arc::strong_count(&table), 2, "neither expiry nor publisher has counted one");
}

#[test]
fn thousands_of_tables_are_announced_and_expire_while_the_registry_is_locked() {
    let rig = TablesRig::with(TablesConfig { tables_max: 5_000, changes_per_writer: 1 << 14, ..settings() });
    let mut session = rig.another();
    let mut batch = session.batch(rig.now());
    for number in 0..3_000 {
        let name = format!("table {number}");
        batch.create_table(name.as_bytes(), name.as_bytes()).unwrap();
        batch.update(name.as_bytes(), b"a", b"1", in_seconds(rig.now(), 1)).unwrap();
    }
    drop(batch);
    let locked = rig.0.tables.0.catalog.registry().lock();
    rig.publish();
    rig.at(2_000).expire();
    for _ in 0..3 {
        rig.expire();
    }
    rig.publish();
    rig.publish();
    drop(locked);
    assert_eq!((rig.notified().len(), rig.tables_metrics().expired), (6_000, 3_000));
}

#[test]
fn a_table_that_outgrows_its_directory_is_whole_and_its_memory_goes_back_in_pieces() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 1 << 16, ..settings() });
    let mut session = rig.another();
    for key in 0..40_000 {
        set(&mut session, rig.now(), &key.to_string(), "1", None).unwrap();
    }
    assert!((0..40_000).all(|key| rig.get(&key.to_string()).is_some()));
    rig.publish();
    for _ in 0..10 {
        rig.settle();
    }
    let before = rig.tables_metrics().memory.used;
    rig.drop_table("t").unwrap();
    for _ in 0..40 {
        rig.settle();
    }
    let catalog = &rig.0.tables.0.catalog;
    assert!(catalog.find(b"t", &epoch::pin()).is_none());
    assert!(
        before > 40_000 * 56 && rig.tables_metrics().memory.used < 70_000,
        "{before}, then {}",
        rig.tables_metrics().memory.used
    );
    for _ in 0..1_000_000 {
        if rig.0.reaper.borrow().is_rid_of_all() {
            return;
        }
        rig.reap();
        std::thread::yield_now();
    }
    panic!("what was deleted is never freed");
}

#[test]
fn each_expiry_is_counted_once_with_its_lag_whichever_thread_commits_it() {
    let rig = TablesRig::new();
    for key in ["a", "b", "c"] {
        rig.set(key, "1", Some(1)).unwrap();
    }
    rig.expire();
    rig.at(2_500);
    rig.set("a", "2", None).unwrap();
    assert_eq!((rig.tables_metrics().expired, rig.tables_metrics().expiry_lag.count()), (1, 1), "by the writer");
    rig.expire();
    let tables_metrics = rig.tables_metrics();
    assert_eq!((tables_metrics.expired, tables_metrics.expiry_lag.count()), (3, 3), "by the expiry thread");
    assert!(
        (1_499_000_000..1_501_000_000).contains(&tables_metrics.expiry_lag.percentiles().max),
        "{:?}",
        tables_metrics.expiry_lag
    );
}

/// It was refused for up to a quarter of a second, until the table had been taken down.
#[test]
fn right_after_a_table_was_deleted_at_the_limit_a_write_waits_for_its_memory() {
    let rig = TablesRig::with(TablesConfig { memory_max: 4 << 20, ..settings() });
    rig.create("u").unwrap();
    rig.look(0);
    let value = "v".repeat(64 << 10);
    assert_eq!(rig.fill(&value), Some(Refusal::OutOfMemory));
    let mut session = rig.another();
    let mut write = |bytes: usize| session.batch(rig.now()).update(b"u", b"k", &vec![7; bytes], Deadline::KEEP);
    assert_eq!(write(64 << 10), Err(Refusal::OutOfMemory), "nothing is on its way to be free");
    rig.drop_table("t").unwrap();
    assert_eq!(write(5 << 20), Err(Refusal::OutOfMemory), "more than there ever is");
    assert_eq!(rig.create("v"), Ok(()));
    for _ in 0..3 {
        assert_eq!(write(64 << 10), Err(Refusal::Busy));
    }
    for _ in 0..10 {
        rig.settle();
        rig.look(0);
    }
    assert_eq!(write(64 << 10), Ok(()));
    assert_eq!(write(5 << 20), Err(Refusal::OutOfMemory));
}
