//! The latch of a name: whom it holds up, and in which order it is taken.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::super::failpoint::{Failpoint, hooks};
use super::super::{
    BackgroundThreads, Batch, Deadline, ElementGrowth, Lack, ManyProgress, Refusal, ScanContent, ScanPage, Session,
    TablesConfig, TransactionNeeds,
};
use super::{TablesRig, set, settings, with_table};
use crate::clock::Now;

/// A call of each operation on a table, by its name.
type Verb = (&'static str, fn(&mut Batch<'_>, &[u8]) -> Result<(), Refusal>);

const VERBS: &[Verb] = &[
    ("get", |batch, table| batch.get(table, b"a").map(drop)),
    ("get_entry", |batch, table| batch.get_entry(table, b"a", || Now::from_millis(1)).map(drop)),
    ("update", |batch, table| batch.update(table, b"a", b"2", Deadline::NONE)),
    ("compare_and_swap", |batch, table| batch.compare_and_swap(table, b"a", 1, b"2", Deadline::NONE).map(drop)),
    ("touch", |batch, table| batch.touch(table, b"a", Deadline::NONE)),
    ("count", |batch, table| batch.count(table).map(drop)),
    ("get_many", |batch, table| {
        batch.get_many(table, [&b"a"[..]].into_iter(), &ManyProgress::default(), &mut Vec::new()).map(drop)
    }),
    ("update_many", |batch, table| {
        batch.update_many(table, Deadline::NONE, [(&b"a"[..], &b"2"[..])].into_iter(), &mut ManyProgress::default())
    }),
    ("scan", |batch, table| {
        let page = ScanPage { cursor: &[], count: 9, bytes_max: 99, prefix: b"", content: ScanContent::WithoutValues };
        batch.scan_from(table, &page, 0, |_| {}).map(drop)
    }),
    ("delete_many", |batch, table| {
        batch.delete_many(table, [&b"a"[..]].into_iter(), &mut ManyProgress::default()).map(drop)
    }),
    ("delete", |batch, table| batch.delete(table, b"b").map(drop)),
    ("replace_table", |batch, table| batch.replace_table(table)),
    ("delete_table", |batch, table| batch.delete_table(table)),
    ("create_table", |batch, table| batch.create_table(table, table)),
];

impl TablesRig {
    fn latch(&self, session: &mut Session, tables: &[&str]) -> Result<(), Refusal> {
        let names: Vec<&[u8]> = tables.iter().map(|name| name.as_bytes()).collect();
        session.batch(self.now()).latch(&names)
    }

    fn read(&self, session: &mut Session, table: &str) -> Result<String, Refusal> {
        let mut batch = session.batch(self.now());
        batch.get(table.as_bytes(), b"a").map(|value| String::from_utf8_lossy(value).into_owned())
    }
}

/// The session tries what it was refused, as a worker does after it is woken.
fn try_again<R>(session: &mut Session, attempt: impl FnOnce(&mut Session) -> R) -> R {
    assert!(session.watch_latch(), "it is worth another try");
    session.begin_tries();
    let tried = attempt(session);
    session.note_tried();
    tried
}

#[test]
fn a_latch_holds_up_each_operation_of_others_on_its_table_alone() {
    let rig = TablesRig::new();
    rig.create("u").unwrap();
    for table in ["t", "u"] {
        for key in [b"a", b"b"] {
            rig.0.session.borrow_mut().batch(rig.now()).update(table.as_bytes(), key, b"1", Deadline::NONE).unwrap();
        }
    }
    let [mut holder, mut other] = [rig.another(), rig.another()];
    rig.latch(&mut holder, &["t"]).unwrap();
    for (name, verb) in VERBS {
        let mut batch = other.batch(rig.now());
        assert_eq!(verb(&mut batch, b"t"), Err(Refusal::Busy), "{name}");
        assert_eq!(batch.lack(), Lack::Latch, "{name}");
        assert_ne!(verb(&mut batch, b"u"), Err(Refusal::Busy), "{name}");
    }
    assert!(!other.watch_latch(), "the latch is held");
    holder.batch(rig.now()).update(b"t", b"a", b"2", Deadline::NONE).unwrap();
    holder.end_latch();
    assert_eq!(try_again(&mut other, |other| rig.read(other, "t")), Ok("2".into()));
    assert!(other.watch_latch() && !other.is_latching());
}

#[test]
fn a_latch_is_held_when_the_batches_that_had_begun_are_over() {
    let rig = TablesRig::new();
    let [mut holder, mut first, mut second] = [rig.another(), rig.another(), rig.another()];
    let batch = first.batch(rig.now());
    assert_eq!(rig.latch(&mut holder, &["t"]), Err(Refusal::Busy));
    assert!(holder.is_latching() && !holder.watch_latch());
    assert_eq!(rig.read(&mut second, "t"), Err(Refusal::Busy), "who begins now is held up");
    drop(batch);
    let later = first.batch(rig.now());
    assert!(holder.watch_latch(), "a later batch of the same session is not waited for");
    assert_eq!(rig.latch(&mut holder, &["t"]), Ok(()));
    drop(later);
    assert!(!second.watch_latch());
    drop(holder);
    assert!(second.watch_latch(), "a session that ends releases its latch");
}

#[test]
fn a_batch_is_over_while_its_thread_does_other_work() {
    let rig = TablesRig::new();
    let [mut holder, mut other] = [rig.another(), rig.another()];
    let mut batch = other.batch(rig.now());
    batch.aside(|| assert_eq!(rig.latch(&mut holder, &["t"]), Ok(())));
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::Busy), "it has begun anew");
}

#[test]
fn an_update_of_many_makes_way_between_two_pairs() {
    let rig = TablesRig::new();
    let mut other = rig.another();
    let pairs = || [b"a", b"b", b"c"].into_iter().map(|key| (&key[..], &b"1"[..]));
    let holder = std::rc::Rc::new(std::cell::RefCell::new(rig.another()));
    let (hooked, claimer) = (rig.clone(), std::rc::Rc::clone(&holder));
    hooks::at(Failpoint::Committed, move || {
        assert_eq!(hooked.latch(&mut claimer.borrow_mut(), &["t"]), Err(Refusal::Busy));
    });
    let mut progress = ManyProgress::default();
    let mut update = |session: &mut Session| {
        session.batch(rig.now()).update_many(b"t", Deadline::NONE, pairs(), &mut progress).map_err(|busy| {
            assert_eq!(busy, Refusal::Busy);
            progress.done()
        })
    };
    assert_eq!(update(&mut other), Err(1));
    assert_eq!(rig.latch(&mut holder.borrow_mut(), &["t"]), Ok(()));
    assert_eq!(update(&mut other), Err(1));
    holder.borrow_mut().end_latch();
    assert_eq!(try_again(&mut other, update), Ok(()));
}

#[test]
fn an_element_does_not_expire_under_a_latch_and_does_so_a_millisecond_later() {
    let rig = TablesRig::new();
    let mut holder = rig.another();
    rig.set("a", "1", Some(1)).unwrap();
    rig.settle();
    rig.latch(&mut holder, &["t"]).unwrap();
    rig.at(1_001).settle();
    assert_eq!(rig.notified(), ["a+"]);
    assert_eq!(rig.read(&mut holder, "t"), Err(Refusal::KeyNotFound), "its time is over all the same");
    holder.end_latch();
    rig.settle();
    assert_eq!(rig.notified(), [""; 0], "the record is filed again");
    rig.at(1_002).settle();
    assert_eq!(rig.notified(), ["a-"]);
}

#[test]
fn between_two_holds_of_a_name_all_who_have_met_it_get_a_batch() {
    let rig = TablesRig::new();
    rig.create("u").unwrap();
    rig.set("a", "1", None).unwrap();
    let [mut holder, mut other] = [rig.another(), rig.another()];
    rig.latch(&mut holder, &["t"]).unwrap();
    assert_eq!(rig.read(&mut other, "t"), Err(Refusal::Busy));
    holder.end_latch();
    assert_eq!(rig.latch(&mut holder, &["t"]), Err(Refusal::Busy), "the other one has not had its turn");
    holder.give_up_latch();
    assert_eq!(rig.latch(&mut holder, &["u"]), Ok(()), "it has met no latch of this name");
    holder.end_latch();
    assert_eq!(rig.latch(&mut holder, &["t"]), Err(Refusal::Busy));
    assert_eq!(try_again(&mut other, |other| rig.read(other, "t")), Ok("1".into()));
    assert_eq!(rig.latch(&mut holder, &["t"]), Ok(()));
    assert_eq!(rig.read(&mut other, "t"), Err(Refusal::Busy));
    holder.end_latch();
    drop(other);
    assert_eq!(rig.latch(&mut holder, &["t"]), Ok(()), "a session that has ended is owed nothing");
}

/// Regression: a request was tried again just after a release, for another reason. Its session was owed a turn for ever, since
/// none of its requests waited, and the name was never latched again.
#[test]
fn a_session_of_which_no_request_waits_is_owed_nothing() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    let [mut holder, mut other] = [rig.another(), rig.another()];
    rig.latch(&mut holder, &["t"]).unwrap();
    assert_eq!(rig.read(&mut other, "t"), Err(Refusal::Busy));
    other.begin_tries();
    holder.end_latch();
    assert_eq!(rig.read(&mut other, "t"), Ok("1".into()));
    other.note_tried();
    assert_eq!(rig.latch(&mut holder, &["t"]), Err(Refusal::Busy));
    other.note_none_waits();
    assert_eq!(rig.latch(&mut holder, &["t"]), Ok(()));
}

#[test]
fn claims_are_set_in_the_order_in_which_they_came_and_all_names_at_once() {
    let rig = TablesRig::new();
    rig.create("u").unwrap();
    let [mut first, mut both, mut last, mut beside] = [(); 4].map(|()| rig.another());
    rig.latch(&mut first, &["t"]).unwrap();
    assert_eq!(rig.latch(&mut both, &["t", "u"]), Err(Refusal::Busy));
    assert_eq!(rig.latch(&mut last, &["u"]), Err(Refusal::Busy), "behind the one that waits for both");
    assert_ne!(rig.read(&mut beside, "u"), Err(Refusal::Busy), "what waits holds nobody up");
    first.end_latch();
    assert!(both.watch_latch() && !last.watch_latch());
    assert_eq!(rig.latch(&mut both, &["u"]), Ok(()), "it has both");
    assert_eq!(rig.latch(&mut first, &["t"]), Err(Refusal::Busy));
    both.end_latch();
    assert_eq!((rig.latch(&mut last, &["u"]), rig.latch(&mut first, &["t"])), (Ok(()), Ok(())));
}

#[test]
fn a_table_is_replaced_under_a_latch_and_nobody_sees_the_moment_between() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.settle();
    let [mut holder, mut other] = [rig.another(), rig.another()];
    rig.latch(&mut holder, &["t"]).unwrap();
    let mut batch = holder.batch(rig.now());
    batch.begin_transaction(TransactionNeeds::of_changes(1)).unwrap();
    batch.replace_table(b"t").unwrap();
    assert_eq!(batch.get(b"t", b"a"), Err(Refusal::KeyNotFound));
    assert_eq!(rig.read(&mut other, "t"), Err(Refusal::Busy), "the latch is of the name");
    batch.update(b"t", b"a", b"2", Deadline::NONE).unwrap();
    batch.end_transaction();
    drop(batch);
    holder.end_latch();
    assert_eq!(try_again(&mut other, |other| rig.read(other, "t")), Ok("2".into()));
    rig.settle();
    assert_eq!(rig.notified(), ["a+", "a-", "a+"]);
}

#[test]
fn a_transaction_for_which_memory_is_short_changes_nothing_and_is_held_up_by_nothing() {
    let rig = TablesRig::with(TablesConfig { memory_max: 256 << 10, ..settings() });
    assert_eq!(rig.fill(&"x".repeat(1_000)), Some(Refusal::OutOfMemory));
    let [mut holder, mut other] = [rig.another(), rig.another()];
    rig.latch(&mut holder, &["t"]).unwrap();
    let mut needs = TransactionNeeds::of_changes(2);
    needs.add(ElementGrowth { key: 1, value: None, longest: 1 << 20, has_deadline: false });
    assert_eq!(holder.batch(rig.now()).begin_transaction(needs), Err(Refusal::OutOfMemory));
    assert_eq!(rig.read(&mut other, "t"), Err(Refusal::KeyNotFound), "the latch is released");
    // A replacement of the same length needs no memory.
    rig.latch(&mut holder, &["t"]).unwrap();
    let mut needs = TransactionNeeds::of_changes(1);
    needs.add(ElementGrowth { key: 1, value: Some(1_000), longest: 1_000, has_deadline: true });
    let mut batch = holder.batch(rig.now());
    batch.begin_transaction(needs).unwrap();
    batch.update(b"t", b"0", "y".repeat(1_000).as_bytes(), Deadline::NONE).unwrap();
    // What is admitted is stored, whatever others have taken meanwhile.
    batch.update(b"t", b"more", &[7; 2_000], Deadline::NONE).unwrap();
    batch.end_transaction();
    assert_eq!(batch.update(b"t", b"still more", &[7; 2_000], Deadline::NONE), Err(Refusal::OutOfMemory));
}

#[test]
fn a_transaction_without_credits_does_not_begin_and_releases_its_latch() {
    let rig = TablesRig::new();
    let [mut holder, mut other] = [rig.another(), rig.another()];
    let mut count = 0;
    while set(&mut holder, rig.now(), &count.to_string(), "1", None).is_ok() && holder_deletes(&mut holder, &rig, count)
    {
        count += 1;
    }
    assert!(count > 0);
    rig.latch(&mut holder, &["t"]).unwrap();
    let needs = TransactionNeeds::of_changes(100);
    let mut batch = holder.batch(rig.now());
    assert_eq!(batch.begin_transaction(needs), Err(Refusal::Busy));
    assert_eq!(batch.lack(), Lack::Credits);
    drop(batch);
    assert_ne!(rig.read(&mut other, "t"), Err(Refusal::Busy));
    rig.publish();
    rig.latch(&mut holder, &["t"]).unwrap();
    assert_eq!(holder.batch(rig.now()).begin_transaction(needs), Ok(()));
}

/// Regression: while a session waited for a latch, the small changes of its other requests took the credits of the
/// transaction, each time anew.
#[test]
fn credits_are_kept_for_a_transaction_while_it_waits_for_its_latch() {
    let rig = TablesRig::new();
    rig.create("u").unwrap();
    rig.set("a", "1", None).unwrap();
    let [mut holder, mut other] = [rig.another(), rig.another()];
    // As many changes as a writer has credits for at most, a third of them.
    let needs = TransactionNeeds::of_changes(settings().changes_per_writer / 3);
    let attempt = |session: &mut Session| {
        let mut batch = session.batch(rig.now());
        batch
            .keep_credits(needs.changes)
            .and_then(|()| batch.latch(&[b"t"]))
            .and_then(|()| batch.begin_transaction(needs))
    };
    let batch = other.batch(rig.now());
    assert_eq!(attempt(&mut holder), Err(Refusal::Busy));
    assert!(holder.is_latching());
    for round in 0..settings().changes_per_writer {
        let mut small = holder.batch(rig.now());
        let refused =
            small.update(b"u", b"small", b"1", Deadline::NONE).and_then(|()| small.delete(b"u", b"small").map(drop));
        if refused == Err(Refusal::Busy) {
            assert_eq!(small.lack(), Lack::Latch, "it comes behind the transaction, in round {round}");
        }
        let reads = small.get(b"u", b"small").map(drop);
        assert_ne!(reads, Err(Refusal::Busy));
        drop(small);
        assert!(holder.watch_changes(false), "nothing is waited for but the latch");
    }
    drop(batch);
    assert_eq!(attempt(&mut holder), Ok(()));
    let mut batch = holder.batch(rig.now());
    (0..needs.changes).for_each(|_| batch.update(b"t", b"a", b"2", Deadline::NONE).unwrap());
    batch.end_transaction();
    drop(batch);
    holder.end_latch();
    rig.settle();
    assert_eq!(set(&mut holder, rig.now(), "a", "3", None), Ok(()), "nothing is kept any more");
}

#[test]
fn a_transaction_that_replaces_a_table_waits_for_the_reaper_before_it_begins() {
    let rig = TablesRig::new();
    let [mut holder, mut other] = [rig.another(), rig.another()];
    while holder.batch(rig.now()).replace_table(b"t").is_ok() {}
    for times in [1, 1_000] {
        rig.latch(&mut holder, &["t"]).unwrap();
        let mut batch = holder.batch(rig.now());
        assert_eq!(batch.admit_replacements(b"t", times), Err(Refusal::Busy));
        assert_eq!(batch.lack(), Lack::Tables);
        drop(batch);
        assert_eq!(rig.read(&mut other, "t"), Err(Refusal::KeyNotFound), "the latch is released");
    }
    rig.settle();
    rig.latch(&mut holder, &["t"]).unwrap();
    let mut batch = holder.batch(rig.now());
    assert_eq!(batch.admit_replacements(b"t", 1_000), Ok(()), "more often than a name may at all");
    batch.begin_transaction(TransactionNeeds::default()).unwrap();
    assert_eq!(batch.replace_table(b"t"), Ok(()));
}

fn holder_deletes(holder: &mut Session, rig: &TablesRig, key: usize) -> bool {
    holder.batch(rig.now()).delete(b"t", key.to_string().as_bytes()).is_ok()
}

/// Moves 1 from one counter to another, in two tables, and returns their sum.
fn transfer(session: &mut Session, from: &[u8], to: &[u8], extra: usize) -> i64 {
    let now = Now::from_millis(1);
    loop {
        let mut batch = session.batch(now);
        let needs = TransactionNeeds::of_changes(2 + 2 * extra);
        let latched = batch.keep_credits(needs.changes).and_then(|()| batch.latch(&[from, to]));
        if latched.and_then(|()| batch.begin_transaction(needs)).is_err() {
            drop(batch);
            session.wait();
            continue;
        }
        let mut number = |table: &[u8], delta: i64| {
            let value = batch.get(table, b"sum").map_or(0, |value| String::from_utf8_lossy(value).parse().unwrap());
            let text = (value + delta).to_string();
            batch.insist(|batch| batch.update(table, b"sum", text.as_bytes(), Deadline::NONE)).unwrap();
            value
        };
        let sum = number(from, -1) + number(to, 1);
        for _ in 0..extra {
            batch.insist(|batch| batch.update(from, b"more", b"1", Deadline::NONE)).unwrap();
            batch.insist(|batch| batch.delete(from, b"more").map(drop)).unwrap();
        }
        batch.end_transaction();
        drop(batch);
        session.end_latch();
        session.begin_tries();
        session.note_tried();
        return sum;
    }
}

#[test]
fn transactions_of_four_threads_in_the_same_two_tables_see_each_other_whole() {
    let (tables, BackgroundThreads { mut changes, .. }) =
        with_table(TablesConfig { changes_per_writer: 64, ..settings() });
    tables.session().batch(Now::from_millis(1)).create_table(b"u", b"u").unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                changes.drain(100, &mut |_, _, _| {});
            }
        });
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let mut session = tables.session();
                scope.spawn(move || {
                    let (from, to) = if number % 2 == 0 { (b"t", b"u") } else { (b"u", b"t") };
                    (0..2_000).for_each(|round| {
                        // Now and then more changes than a writer has credits.
                        let extra = if round % 100 == 0 { 100 } else { 0 };
                        assert_eq!(transfer(&mut session, from, to, extra), 0, "in round {round}");
                    });
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    let mut session = tables.session();
    assert_eq!(transfer(&mut session, b"t", b"u", 0), 0, "one session alone waits for nobody");
}
