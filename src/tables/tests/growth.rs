//! Between two looks of the compactor the process grows by a bounded number of bytes, whatever is replaced or deleted.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::epoch;

use super::super::memory_budget::{MemoryBudget, entry_bytes};
use super::super::{BackgroundThreads, Deadline, ManyProgress, Refusal, Session, Tables, TablesConfig};
use super::alone::alone;
use super::waiting::counted;
use super::{TablesRig, set, settings};
use crate::clock::Now;
use crate::limits::RETIRED_BYTES_MAX;
use crate::tables::Lack;

const MIB: i64 = 1 << 20;
const LIMIT: i64 = 16 * MIB;
/// Bytes that threads may retire beyond the limit until the next look: a 32nd of it.
const ALLOWANCE: i64 = LIMIT / 32;
const VALUE: [u8; 1_000] = [7; 1_000];

fn config() -> TablesConfig {
    TablesConfig { memory_max: LIMIT.cast_unsigned(), changes_per_writer: 1 << 14, ..settings() }
}

impl TablesRig {
    pub(super) fn budget(&self) -> &MemoryBudget {
        &self.0.tables.0.memory_budget
    }

    /// One look, at which the process has `beyond` more bytes than the budget.
    pub(super) fn look_once(&self, beyond: i64) {
        self.0.compactor.borrow_mut().look(self.budget().used() + beyond, self.now());
    }
}

fn put(session: &mut Session, now: Now, key: &str, value: &[u8]) -> Result<(), Refusal> {
    session.batch(now).update(b"t", key.as_bytes(), value, Deadline::KEEP)
}

/// Replaces the value of a key until this is refused. Returns the bytes that were retired.
fn replace_until_refused(rig: &TablesRig, session: &mut Session, at_most: i64) -> i64 {
    let before = rig.budget().garbage().retired();
    let mut replaced = 0;
    while replaced <= at_most {
        match put(session, rig.now(), "k", &VALUE) {
            Ok(()) => replaced += entry_bytes(VALUE.len()),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Busy);
                return rig.budget().garbage().retired() - before;
            }
        }
        rig.publish();
    }
    replaced
}

#[test]
fn at_the_limit_threads_replace_an_allowance_and_wait_for_a_look() {
    alone("tables::tests::growth::at_the_limit_threads_replace_an_allowance_and_wait_for_a_look", || {
        let rig = TablesRig::with(config());
        let mut session = rig.another();
        let woken = counted(&mut session);
        put(&mut session, rig.now(), "k", &VALUE).unwrap();
        rig.look_once(LIMIT);
        for _ in 0..3 {
            let retired = replace_until_refused(&rig, &mut session, LIMIT);
            assert!(retired > ALLOWANCE && retired <= ALLOWANCE + RETIRED_BYTES_MAX as i64, "{retired}");
            assert!(session.batch(rig.now()).lack() == Lack::Memory);
            assert_eq!(session.batch(rig.now()).get(b"t", b"k").unwrap(), VALUE, "reads continue");
            assert!(!session.watch_memory() && !session.watch());
            let before = woken();
            rig.look_once(LIMIT);
            assert_eq!(woken(), before + 1);
            assert!(session.watch_memory() && session.watch());
        }
        replace_until_refused(&rig, &mut session, LIMIT);
        assert!(session.batch(rig.now()).delete(b"t", b"k").is_ok(), "deletions continue");
        assert_eq!(rig.tables_metrics().lost_wakeups, 0);
    });
}

#[test]
fn far_from_the_limit_no_write_waits_for_a_look() {
    let rig = TablesRig::with(config());
    rig.look_once(0);
    for _ in 0..100 {
        let replaced = replace_until_refused(&rig, &mut rig.another(), LIMIT / 4);
        assert!(replaced > LIMIT / 4);
        rig.look_once(0);
    }
}

#[test]
fn without_looks_retired_memory_counts_for_nothing() {
    let rig = TablesRig::with(config());
    let mut session = rig.another();
    assert!(replace_until_refused(&rig, &mut session, 4 * LIMIT) > 4 * LIMIT);
    assert_eq!(rig.budget().taken(), rig.budget().used());
    rig.look_once(LIMIT);
    replace_until_refused(&rig, &mut session, LIMIT);
    rig.budget().go_blind();
    rig.0.tables.0.compactor.note_look();
    assert!(replace_until_refused(&rig, &mut session, 4 * LIMIT) > 4 * LIMIT);
}

/// Elements of a mebibyte, until the next does not fit. Returns their number.
fn fill(rig: &TablesRig, session: &mut Session) -> usize {
    let value = vec![7; 1 << 20];
    (0..).find(|number| put(session, rig.now(), &number.to_string(), &value).is_err()).unwrap()
}

#[test]
fn memory_of_deleted_elements_is_room_only_after_a_look() {
    let rig = TablesRig::with(config());
    let mut session = rig.another();
    rig.look_once(0);
    let count = fill(&rig, &mut session);
    assert!(count > 10);
    rig.look_once(0);
    let before = rig.budget().used();
    for number in 0..count / 2 {
        session.batch(rig.now()).delete(b"t", number.to_string().as_bytes()).unwrap();
    }
    let deleted = before - rig.budget().used();
    assert!(deleted > 4 * MIB);
    assert!(rig.budget().taken() >= before, "all of it may still be there");
    let large = vec![7; 3 << 20];
    assert_eq!(put(&mut session, rig.now(), "large", &large), Err(Refusal::Busy));
    assert!(session.batch(rig.now()).lack() == Lack::Memory && !session.watch_memory());
    assert!(!rig.0.tables.0.compactor.is_wanted(), "it waits for a look, not for memory");
    rig.look_once(0);
    assert!(session.watch_memory());
    assert_eq!(put(&mut session, rig.now(), "large", &large), Ok(()), "it was free");
    assert_eq!(rig.tables_metrics().lost_wakeups, 0);
}

#[test]
fn deleted_elements_that_a_look_still_finds_have_to_be_given_back_first() {
    // In a process of its own: another test's guards would keep what is deleted here from being freed, and while it is
    // not, a write waits for a look.
    alone("tables::tests::growth::deleted_elements_that_a_look_still_finds_have_to_be_given_back_first", || {
        let rig = TablesRig::with(config());
        let mut session = rig.another();
        rig.look_once(0);
        let count = fill(&rig, &mut session);
        let full = rig.budget().used();
        for number in 0..count / 2 {
            session.batch(rig.now()).delete(b"t", number.to_string().as_bytes()).unwrap();
        }
        let large = vec![7; 3 << 20];
        assert_eq!(put(&mut session, rig.now(), "large", &large), Err(Refusal::Busy));
        while rig.budget().garbage().waiting() > 0 {
            rig.publish();
            let _too_early = session.watch_memory();
        }
        rig.0.compactor.borrow_mut().look(full, rig.now());
        assert!(session.watch_memory());
        assert_eq!(put(&mut session, rig.now(), "large", &large), Err(Refusal::Busy));
        assert!(rig.0.tables.0.compactor.is_wanted(), "it waits for memory now");
        rig.look(0);
        assert_eq!(put(&mut session, rig.now(), "large", &large), Ok(()));
    });
}

#[test]
fn slack_that_is_left_takes_what_is_retired() {
    let budget = MemoryBudget::new(LIMIT.cast_unsigned());
    let mut garbage = super::super::garbage::Garbage::new(budget.garbage());
    let retire = |garbage: &mut super::super::garbage::Garbage, bytes: i64| {
        garbage.add(usize::try_from(bytes).unwrap(), &epoch::pin(), Now::from_millis(1));
    };
    budget.set_excess(-4 * MIB, budget.read());
    retire(&mut garbage, 4 * MIB);
    assert_eq!((budget.taken(), budget.excess()), (0, 0));
    retire(&mut garbage, MIB);
    assert_eq!((budget.taken(), budget.excess()), (MIB, 0), "the next look reports the excess");
    // A look counts what is retired while it measures.
    let reading = budget.read();
    retire(&mut garbage, MIB);
    budget.set_excess(3 * MIB, reading);
    assert_eq!((budget.taken(), budget.excess()), (4 * MIB, 3 * MIB));
}

#[test]
fn writes_wait_for_garbage_that_a_pinned_thread_holds_back_but_not_for_ever() {
    alone("tables::tests::growth::writes_wait_for_garbage_that_a_pinned_thread_holds_back_but_not_for_ever", || {
        for releases in [true, false] {
            let rig = TablesRig::with(config());
            let mut session = rig.another();
            put(&mut session, rig.now(), "k", &VALUE).unwrap();
            rig.look_once(2 * LIMIT);
            let mut reader = Some(epoch::pin());
            replace_until_refused(&rig, &mut session, LIMIT);
            let mut looks = 0;
            while !session.watch_memory() {
                looks += 1;
                assert!(looks < 100);
                if releases && looks == 5 {
                    drop(reader.take());
                }
                rig.look_once(2 * LIMIT);
            }
            assert_eq!(looks > 10, !releases, "{looks} looks");
            assert_eq!(put(&mut session, rig.now(), "k", &VALUE), Ok(()));
        }
    });
}

#[test]
fn many_pairs_at_the_limit_wait_for_looks_and_are_all_stored() {
    let (tables, BackgroundThreads { mut compactor, mut changes, .. }) = Tables::new(config());
    let now = Now::from_millis(1);
    let mut session = tables.session();
    session.batch(now).create_table(b"t", b"t").unwrap();
    set(&mut session, now, "k", "value", None).unwrap();
    let value = vec![7; 16 << 10];
    put(&mut session, now, "k", &value).unwrap();
    let budget = &tables.0.memory_budget;
    compactor.look(budget.used() + LIMIT, now);
    let looks = tables.0.compactor.looks();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Eight allowances of replaced values in one request.
            let pairs = (0..256).map(|_| (&b"k"[..], &value[..]));
            let mut progress = ManyProgress::default();
            loop {
                let outcome = session.batch(now).update_many(b"t", Deadline::KEEP, pairs.clone(), &mut progress);
                match outcome {
                    Err(Refusal::Busy) => session.wait(),
                    Err(refusal) => assert_eq!(refusal, Refusal::Unfinished),
                    Ok(()) => break,
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            changes.drain(100, &mut |_, _, _| {});
            if tables.0.compactor.is_look_wanted() {
                compactor.look(budget.used() + LIMIT, now);
            }
            std::thread::yield_now();
        }
    });
    assert!(tables.0.compactor.looks() >= looks + 7, "{looks}, {}", tables.0.compactor.looks());
}
