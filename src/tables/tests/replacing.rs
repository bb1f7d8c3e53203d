//! One life of a table takes the place of another, in one step.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam::epoch;

use super::super::failpoint::{Failpoint, hooks};
use super::super::table::Table;
use super::super::{
    Addition, Deadline, ManyProgress, PORTION_BYTES, Refusal, ScanContent, ScanPage, Session, Tables, TablesConfig,
};
use super::{TablesRig, set, settings, with_table};
use crate::clock::Now;

impl TablesRig {
    fn replace(&self, table: &str) -> Result<(), Refusal> {
        self.0.session.borrow_mut().batch(self.now()).replace_table(table.as_bytes())
    }
}

/// Calls the session until it is not refused as `Busy`, and lets the background threads work in between.
fn until_done<R>(session: &mut Session, now: Now, call: impl Fn(&mut Session) -> Result<R, Refusal>) -> R {
    loop {
        match call(session) {
            Err(Refusal::Busy) => session.wait(),
            outcome => return outcome.unwrap_or_else(|refusal| panic!("{refusal:?} at {now:?}")),
        }
    }
}

#[test]
fn the_old_elements_are_gone_at_once_and_announced_before_the_new_ones() {
    let rig = TablesRig::new();
    assert_eq!(rig.replace("u"), Err(Refusal::TableNotFound));
    rig.set("a", "1", None).unwrap();
    rig.set("b", "1", None).unwrap();
    let before = rig.version("a");
    rig.replace("t").unwrap();
    assert_eq!((rig.get("a"), rig.get("b")), (None, None));
    let tables = rig.tables_metrics().tables;
    assert_eq!((tables.len(), tables[0].elements), (1, 0));
    assert_eq!(rig.create("t"), Err(Refusal::TableExists));
    rig.set("a", "2", None).unwrap();
    assert!(rig.version("a") > before + 1, "above the deletion of the old one");
    rig.settle();
    let notified = rig.notified();
    assert_eq!(notified[..2], ["a+", "b+"]);
    let of = |key: &str| notified.iter().filter(|change| change.starts_with(key)).cloned().collect::<Vec<_>>();
    assert_eq!((of("a"), of("b")), (vec!["a+".into(), "a-".into(), "a+".into()], vec!["b+".into(), "b-".into()]));
    assert_eq!(rig.get("a").unwrap(), "2");
}

#[test]
fn a_name_that_gets_another_table_while_tables_are_listed_is_listed_once() {
    let rig = TablesRig::new();
    let guard = epoch::pin();
    let catalog = &rig.0.tables.0.catalog;
    let number = |name: &[u8]| catalog.find(name, &guard).unwrap().number();
    let old = number(b"t");
    rig.create("u").unwrap();
    rig.replace("t").unwrap();
    let (new, other) = (number(b"t"), number(b"u"));
    assert!(catalog.registry().get(old, &guard).is_some(), "the old table is still being taken down");
    for numbers in [[old, other, new], [new, other, old], [other, new, old], [old, new, other]] {
        let listed = catalog.newest_of_names(numbers.to_vec(), &guard);
        assert_eq!(listed.into_iter().map(Table::number).collect::<Vec<_>>(), [new, other], "{numbers:?}");
    }
}

#[test]
fn a_request_that_began_before_is_carried_out_in_the_new_life() {
    let write = |session: &mut Session, now: Now| set(session, now, "a", "2", None);
    let swap = |session: &mut Session, now: Now| {
        session.batch(now).compare_and_swap(b"t", b"a", 0, b"2", Deadline::KEEP).map(drop)
    };
    let count = |session: &mut Session, now: Now| {
        session
            .batch(now)
            .increment(b"t", b"a", Addition { delta: 2, deadline: Deadline::KEEP, value_max: 64 })
            .map(drop)
    };
    for request in [&write as &dyn Fn(&mut Session, Now) -> Result<(), Refusal>, &swap, &count] {
        let rig = TablesRig::new();
        let (inner, mut delayed) = (rig.clone(), rig.another());
        hooks::at(Failpoint::BeforeEnter, move || inner.replace("t").unwrap());
        assert_eq!(request(&mut delayed, rig.now()), Err(Refusal::Busy));
        assert!(!hooks::is_waiting() && delayed.watch(), "it is worth another try at once");
        assert_eq!(request(&mut delayed, rig.now()), Ok(()));
        assert_eq!(rig.get("a").unwrap(), "2");
    }
}

#[test]
fn a_value_that_is_stored_after_the_replacement_in_the_old_life_goes_with_it() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let (inner, mut delayed) = (rig.clone(), rig.another());
    hooks::at(Failpoint::BeforeCas, move || inner.replace("t").unwrap());
    assert_eq!(set(&mut delayed, rig.now(), "a", "2", None), Ok(()), "it comes before the replacement");
    assert_eq!(rig.get("a"), None);
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a+", "a-"]);
}

#[test]
fn a_table_that_was_deleted_is_not_replaced_and_one_that_was_replaced_is_deleted() {
    let rig = TablesRig::new();
    rig.replace("t").unwrap();
    rig.drop_table("t").unwrap();
    assert_eq!(rig.replace("t"), Err(Refusal::TableNotFound));
    rig.settle();
    assert_eq!(rig.tables_metrics().memory.used, 0);
}

#[test]
fn lives_that_are_taken_down_are_bounded_and_the_next_waits_for_the_reaper() {
    let rig = TablesRig::new();
    let replaced = (0..1_000).take_while(|_| rig.replace("t").is_ok()).count();
    assert_eq!(replaced, 64);
    assert_eq!(rig.replace("t"), Err(Refusal::Busy));
    assert!(!rig.0.session.borrow_mut().watch());
    rig.set("a", "1", None).unwrap();
    assert_eq!(rig.get("a").unwrap(), "1", "the table is there meanwhile");
    rig.settle();
    assert!(rig.0.session.borrow_mut().watch());
    rig.replace("t").unwrap();
}

#[test]
fn at_the_memory_limit_a_table_is_replaced_and_its_memory_is_awaited() {
    let rig = TablesRig::with(TablesConfig { memory_max: 4 << 20, ..settings() });
    rig.look(0);
    let value = "v".repeat(64 << 10);
    assert_eq!(rig.fill(&value), Some(Refusal::OutOfMemory));
    rig.replace("t").unwrap();
    assert_eq!(rig.set("k", &value, None), Err(Refusal::Busy), "it waits for what is about to be free");
    while rig.set("k", &value, None) == Err(Refusal::Busy) {
        rig.settle();
        rig.look(0);
    }
    assert_eq!(rig.get("k").unwrap(), value);
}

#[test]
fn requests_for_many_elements_go_on_in_the_new_life() {
    let rig = TablesRig::new();
    let value = vec![7; PORTION_BYTES];
    let keys = [&b"a"[..], b"b", b"c"];
    let pairs = || keys.iter().map(|key| (*key, &value[..]));
    let mut session = rig.another();
    let mut progress = ManyProgress::default();
    let update = |session: &mut Session, progress: &mut ManyProgress| {
        session.batch(rig.now()).update_many(b"t", Deadline::KEEP, pairs(), progress)
    };
    assert_eq!(update(&mut session, &mut progress), Err(Refusal::Unfinished));
    rig.replace("t").unwrap();
    assert_eq!(update(&mut session, &mut progress), Err(Refusal::Unfinished));
    assert_eq!(update(&mut session, &mut progress), Ok(()));
    assert_eq!([rig.get("a"), rig.get("b"), rig.get("c")].map(|value| value.is_some()), [false, true, true]);
    let mut progress = ManyProgress::default();
    let mut get = |progress: &ManyProgress| {
        let (mut batch, mut values) = (session.batch(rig.now()), Vec::new());
        let line = batch.get_many(b"t", keys.iter().copied(), progress, &mut values);
        line.map(|line| (line, values.iter().map(Option::is_some).collect::<Vec<_>>()))
    };
    let (line, _) = get(&progress).unwrap();
    progress.begin(line);
    assert_eq!(get(&progress), Ok((line, vec![false, true])));
    progress.advance(2);
    rig.replace("t").unwrap();
    assert_eq!(get(&progress), Ok((line, vec![false])));
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    assert_eq!(get(&progress), Err(Refusal::TableNotFound), "that is another table");
}

#[test]
fn a_scan_that_meets_the_replacement_ends_and_its_cursor_is_of_another_life() {
    let rig = TablesRig::new();
    for key in 0..1_000 {
        rig.set(&format!("k{key}"), "1", None).unwrap();
        rig.publish();
    }
    let page = |session: &mut Session, cursor: &[u8], met: &dyn Fn()| {
        let page = ScanPage { cursor, count: 10, content: ScanContent::WithoutValues, prefix: b"", bytes_max: 1 << 20 };
        session.batch(rig.now()).scan(b"t", &page, |_| met()).map(|next| next.map(|cursor| cursor.as_bytes().to_vec()))
    };
    let mut session = rig.another();
    let cursor = page(&mut session, b"", &|| ()).unwrap().unwrap();
    let met = AtomicBool::new(false);
    let replace_once = || {
        if !met.swap(true, Ordering::Relaxed) {
            rig.replace("t").unwrap();
        }
    };
    assert_eq!(page(&mut session, &cursor, &replace_once), Ok(None));
    assert_eq!(page(&mut session, &cursor, &|| ()), Err(Refusal::BadCursor));
}

/// Each request that can be made of a table, over and over, until the others are done.
fn use_table(tables: &Tables, number: u64, is_over: &AtomicBool) -> u64 {
    let (mut session, mut rounds) = (tables.session(), 0);
    let now = Now::from_millis(1);
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("k{}", (number + rounds) % 8);
        let key = key.as_bytes();
        let absent = |refusal| matches!(refusal, Refusal::KeyNotFound).then_some(()).ok_or(refusal);
        until_done(&mut session, now, |session| session.batch(now).update(b"t", key, b"1", Deadline::KEEP));
        until_done(&mut session, now, |session| session.batch(now).get(b"t", key).map(drop).or_else(absent));
        until_done(&mut session, now, |session| session.batch(now).touch(b"t", key, Deadline::NONE).or_else(absent));
        until_done(&mut session, now, |session| {
            let swapped = session.batch(now).compare_and_swap(b"t", b"c", 0, b"1", Deadline::KEEP);
            swapped.map(drop).or_else(|refusal| match refusal {
                Refusal::VersionMismatch { .. } => Ok(()),
                refusal => Err(refusal),
            })
        });
        until_done(&mut session, now, |session| {
            let addition = Addition { delta: 1, deadline: Deadline::KEEP, value_max: 64 };
            session.batch(now).increment(b"t", b"n", addition).map(drop)
        });
        until_done(&mut session, now, |session| {
            session.batch(now).delete_many(b"t", [key].into_iter(), &mut ManyProgress::default()).map(drop)
        });
        rounds += 1;
    }
    rounds
}

#[test]
fn no_request_finds_the_name_without_a_table() {
    let (tables, background) = with_table(TablesConfig { changes_per_writer: 256, ..settings() });
    let (is_over, drained) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut changes = background.changes;
    thread::scope(|scope| {
        let reaper = background.reaper;
        scope.spawn(|| reaper.run(|| Now::from_millis(1)));
        scope.spawn(|| {
            while !drained.load(Ordering::Relaxed) {
                if changes.drain(1_000, &mut |_, _, _| ()).taken == 0 {
                    thread::yield_now();
                }
            }
        });
        let users: Vec<_> = (0..2)
            .map(|number| {
                scope.spawn({
                    let (tables, is_over) = (&tables, &is_over);
                    move || use_table(tables, number, is_over)
                })
            })
            .collect();
        let mut session = tables.session();
        let now = Now::from_millis(1);
        for _ in 0..500 {
            until_done(&mut session, now, |session| session.batch(now).update(b"t", b"own", b"1", Deadline::KEEP));
            until_done(&mut session, now, |session| session.batch(now).replace_table(b"t"));
            assert_eq!(session.batch(now).get(b"t", b"own"), Err(Refusal::KeyNotFound));
        }
        is_over.store(true, Ordering::Relaxed);
        let rounds = users.into_iter().map(|user| user.join().unwrap());
        assert!(rounds.sum::<u64>() > 0);
        drop(session);
        drained.store(true, Ordering::Relaxed);
        tables.close();
    });
}
