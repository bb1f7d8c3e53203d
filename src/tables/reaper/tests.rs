//! The reaper's queue, its pieces, and its rests between them.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use super::*;
use crate::clock::Clock;
use crate::limits::KEY_BYTES_DEFAULT;
use crate::tables::failpoint::hooks;
use crate::tables::pending_sends::PendingSends;
use crate::tables::tests::{settings, with_table};
use crate::tables::{BackgroundThreads, Changes, Deadline, Refusal, Tables, TablesConfig};

const NOW: Now = Now::from_millis(1);

fn reaper_of(settings: TablesConfig) -> (Tables, Reaper, Changes) {
    let (tables, BackgroundThreads { reaper, changes, .. }) = with_table(settings);
    (tables, reaper, changes)
}

/// Stores `count` elements, and has them announced.
fn fill(tables: &Tables, changes: &mut Changes, count: usize) {
    for key in 0..count {
        tables.session().batch(NOW).update(b"t", &key.to_be_bytes(), b"", Deadline::KEEP).unwrap();
        changes.drain(10, &mut |_, _, _| {});
    }
}

fn delete(tables: &Tables) {
    tables.session().batch(NOW).delete_table(b"t").unwrap();
}

#[test]
fn messages_that_find_the_queue_full_are_kept_and_sent_when_there_is_room() {
    let (tables, mut reaper, _changes) = reaper_of(settings());
    let (shared, mut pending) = (&tables.0, PendingSends::default());
    assert!(pending.is_empty());
    // No table has this number, so the message means nothing.
    let nothing = 1_000;
    pending.settled(shared, nothing);
    assert!(pending.is_empty() && shared.reaper.sender.len() == 1, "there was room");
    for _ in 1..DEAD_MAX {
        assert!(shared.reaper.try_settled(nothing));
    }
    assert!(!shared.reaper.try_settled(nothing));
    pending.settled(shared, nothing);
    assert!(!pending.is_empty());
    let table = shared.catalog.delete(b"t", &mut |_, _| {}, &epoch::pin()).unwrap();
    pending.take_down(shared, table);
    reaper.receive();
    assert_eq!((shared.reaper.sender.len(), reaper.sealing.len(), reaper.emptying.len()), (0, 0, 0));
    pending.run(shared);
    assert!(pending.is_empty() && shared.reaper.sender.len() == 2);
    reaper.receive();
    assert_eq!(reaper.sealing.len(), 1);
}

#[test]
fn tables_that_are_taken_down_are_counted_and_their_memory_is_back() {
    let (tables, mut reaper, mut changes) = reaper_of(TablesConfig { memory_max: 1 << 20, ..settings() });
    delete(&tables);
    for _ in 0..10 {
        reaper.step(NOW);
    }
    let before = tables.metrics().memory.used;
    let mut session = tables.session();
    session.batch(NOW).create_table(b"t", b"t").unwrap();
    for length in [1, KEY_BYTES_DEFAULT] {
        session.batch(NOW).update(b"t", &vec![7; length], b"value", Deadline::KEEP).unwrap();
    }
    drop(session);
    assert!(tables.metrics().memory.used > before);
    delete(&tables);
    for _ in 0..10 {
        reaper.step(NOW);
        changes.drain(10, &mut |_, _, _| {});
    }
    assert_eq!((tables.0.reaper.taken_down(), tables.metrics().memory.used), (2, before));
}

#[test]
fn the_floor_is_above_all_slots_that_have_arrived_before_the_first_of_them_leaves() {
    let (tables, mut reaper, mut changes) = reaper_of(settings());
    let mut session = tables.session();
    for key in [&b"first"[..], b"last", b"last"] {
        session.batch(NOW).update(b"t", key, b"", Deadline::KEEP).unwrap();
    }
    for key in [&b"first"[..], b"last"] {
        session.batch(NOW).delete(b"t", key).unwrap();
    }
    assert_eq!(changes.drain(10, &mut |_, _, _| {}).taken, 5);
    let shared = Arc::clone(&tables.0);
    let highest = shared.catalog.floor.get() + 3;
    hooks::at(Failpoint::SlotLeft, move || assert_eq!(shared.catalog.floor.get(), highest));
    reaper.step(NOW);
    assert!(!hooks::is_waiting());
    assert_eq!(tables.metrics().reaped, 2);
}

#[test]
fn a_table_that_another_thread_shows_is_freed_after_that() {
    let (tables, mut reaper, mut changes) = reaper_of(settings());
    let shown = tables.0.catalog.registry().share(0, &epoch::pin()).unwrap();
    assert_eq!(shown.announced_name(), b"t");
    delete(&tables);
    for _ in 0..100 {
        reaper.step(NOW);
        changes.drain(10, &mut |_, _, _| {});
    }
    assert_eq!((tables.0.reaper.taken_down(), reaper.leaving.len()), (1, 1));
    assert!(reaper.leaving.iter().all(|table| table.parts.is_none()), "no piece of it is freed");
    drop(shown);
    let is_freed = (0..1_000_000).any(|_| {
        reaper.step(NOW);
        std::thread::yield_now();
        reaper.is_rid_of_all()
    });
    assert!(is_freed);
}

/// One client made and dropped tables of new names, one at a time: after 15 s the server had 3.2 GB, and another
/// client's table of 100 elements was announced after 2.2 s.
#[test]
fn a_storm_of_new_names_is_bounded_and_holds_up_no_other_table() {
    let (tables, mut reaper, mut changes) = reaper_of(TablesConfig { tables_max: 4, ..settings() });
    fill(&tables, &mut changes, 100);
    while changes.drain(1_000, &mut |_, _, _| {}).taken > 0 {}
    let before = tables.metrics().memory.used;
    let mut session = tables.session();
    let mut storm = |number: usize| {
        let name = format!("storm{number}");
        session.batch(NOW).create_table(name.as_bytes(), name.as_bytes())?;
        session.batch(NOW).delete_table(name.as_bytes())
    };
    let refused = (0..100_000).find(|number| storm(*number).is_err()).unwrap();
    assert_eq!(storm(refused), Err(Refusal::Busy));
    assert!((64..=1_024).contains(&refused), "{refused} tables are being taken down");
    let most = tables.metrics().memory.used;
    assert!(most - before < 64 << 20, "{most} bytes");
    delete(&tables);
    let mut received = 0;
    let steps = (1..1_000).find(|_| {
        reaper.step(NOW);
        changes.drain(1_000, &mut |table, _, _| received += usize::from(table == b"t"));
        received == 100
    });
    assert!(
        steps.is_some_and(|steps| steps <= 1 + refused / 16),
        "its last element was announced after {steps:?} steps"
    );
    let is_done = (0..1_000_000).any(|_| {
        reaper.step(NOW);
        changes.drain(1_000, &mut |_, _, _| {});
        std::thread::yield_now();
        reaper.is_rid_of_all()
    });
    assert!(is_done && tables.metrics().memory.used < before);
    assert_eq!((storm(refused), tables.0.catalog.histories()), (Ok(()), 1), "there is room again");
}

/// A name without tables takes no memory. A younger table of a name outlives the name's older ones.
#[test]
fn a_name_is_forgotten_with_its_last_table_and_not_before() {
    let (tables, mut reaper, mut changes) = reaper_of(settings());
    let names = || tables.0.catalog.histories();
    fill(&tables, &mut changes, 1);
    delete(&tables);
    tables.session().batch(NOW).create_table(b"t", b"t").unwrap();
    for _ in 0..10 {
        reaper.step(NOW);
        changes.drain(10, &mut |_, _, _| {});
    }
    assert_eq!((tables.0.reaper.taken_down(), names()), (1, 1));
    delete(&tables);
    for _ in 0..10 {
        reaper.step(NOW);
    }
    assert_eq!((tables.0.reaper.taken_down(), names()), (2, 0));
}

/// Whoever comes late to a table that is taken down finds none of the slots that are freed.
#[test]
fn a_bucket_that_is_emptied_holds_no_slot_any_more() {
    let (tables, mut reaper, mut changes) = reaper_of(settings());
    fill(&tables, &mut changes, 5);
    let guard = epoch::pin();
    let table = tables.0.catalog.find(b"t", &guard).unwrap();
    let slots = || {
        let mut count = 0;
        table.index().visit(0, &guard, &mut Vec::new(), |_| count += 1);
        count
    };
    assert_eq!(slots(), 5);
    delete(&tables);
    for _ in 0..10 {
        reaper.step(NOW);
        changes.drain(10, &mut |_, _, _| {});
    }
    assert_eq!(slots(), 0);
}

#[test]
fn a_table_of_empty_buckets_is_taken_down_in_pieces_as_well() {
    const KEYS: usize = 40_000;
    let (tables, mut reaper, mut changes) = reaper_of(settings());
    fill(&tables, &mut changes, KEYS);
    for key in 0..KEYS {
        tables.session().batch(NOW).delete(b"t", &key.to_be_bytes()).unwrap();
        changes.drain(10, &mut |_, _, _| {});
        if key % 5_000 == 0 {
            reaper.step(NOW);
        }
    }
    reaper.step(NOW);
    assert_eq!(tables.metrics().reaped, KEYS as u64);
    delete(&tables);
    // There are 715 buckets at least, and a piece has at most 512.
    let (mut sealed, mut emptied) = (0, 0);
    for _ in 0..100 {
        reaper.step(NOW);
        (sealed, emptied) = (sealed + reaper.sealing.len(), emptied + reaper.emptying.len());
    }
    assert!(sealed > 0 && emptied > 0, "{sealed}, {emptied} times it continued");
    assert_eq!(tables.0.reaper.taken_down(), 1);
}

/// The number of times that the reaper reads the clock until it ends. `end` closes the tables at its time.
fn readings(tables: &Tables, reaper: Reaper, end: Duration) -> usize {
    let (clock, mut readings, mut is_open) = (Clock::start(), 0, true);
    let start = clock.now();
    reaper.run(|| {
        readings += 1;
        let now = clock.now();
        if is_open && now >= start.after(end) {
            is_open = false;
            tables.close();
        }
        now
    });
    readings
}

#[test]
fn a_reaper_without_work_rests() {
    let (tables, reaper, _changes) = reaper_of(settings());
    let readings = readings(&tables, reaper, Duration::from_millis(50));
    assert!(readings < 50, "{readings} looks");
}

#[test]
fn a_reaper_without_credits_rests_until_it_gives_up() {
    let (tables, reaper, mut changes) = reaper_of(TablesConfig { changes_per_writer: 64, ..settings() });
    fill(&tables, &mut changes, 200);
    delete(&tables);
    // The publisher announces no change any more.
    let readings = readings(&tables, reaper, Duration::ZERO);
    assert!(readings < 50, "{readings} looks");
    assert_eq!(tables.metrics().writer_waits, 1);
}

#[test]
fn a_reaper_with_work_at_hand_takes_no_rest() {
    let (tables, reaper, mut changes) = reaper_of(TablesConfig { changes_per_writer: 1 << 12, ..settings() });
    fill(&tables, &mut changes, 2 * REAPER_CHUNK);
    delete(&tables);
    let sender = tables.0.reaper.sender.clone();
    let count = sender.clone();
    // A message that comes while the first piece is sealed. A rest would end with it.
    hooks::at(Failpoint::BeforeSeal, move || sender.send(ReaperMessage::Continue).unwrap());
    let mut waiting = Vec::new();
    reaper.run(|| {
        waiting.push(count.len());
        if waiting.len() == 2 {
            tables.close();
        }
        NOW
    });
    assert!(!hooks::is_waiting());
    assert_eq!(waiting.get(..2), Some(&[1, 1][..]), "the deleted table, then the message");
}
