//! Without an audience stores cost the publisher nothing, and with one it hears of every change, whatever was on its way
//! when the audience came or went.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a trial that fails should say where")]

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::epoch;

use super::super::{ChangeKind, Changes, FeedConfig, Refusal, Session, Tables, TablesConfig};
use super::{TablesRig, settings, with_table};
use crate::clock::Now;

impl TablesRig {
    fn waiting(&self) -> u64 {
        self.tables_metrics().changes_waiting
    }

    fn begin_audience(&self) {
        let audience = self.0.changes.borrow().audience();
        audience.begin();
    }

    fn end_audience(&self) {
        self.0.changes.borrow_mut().end_audience();
    }
}

#[test]
fn without_an_audience_only_ends_are_pushed_and_nothing_is_announced() {
    let rig = TablesRig::new();
    rig.end_audience();
    rig.set("a", "1", None).unwrap();
    rig.set("a", "2", None).unwrap();
    rig.set("b", "1", Some(1)).unwrap();
    rig.set("c", "1", None).unwrap();
    assert_eq!(rig.waiting(), 0);
    rig.delete("a").unwrap();
    assert_eq!(rig.waiting(), 1);
    rig.at(5_000).settle();
    assert_eq!((rig.waiting(), rig.tables_metrics().reaped, rig.tables_metrics().expired), (0, 2, 1));
    rig.drop_table("t").unwrap();
    for _ in 0..3 {
        rig.settle();
    }
    assert_eq!((rig.heard(), rig.waiting(), rig.tables_metrics().tables.len()), (vec![], 0, 0));
}

#[test]
fn an_audience_hears_of_all_that_is_committed_after_it_has_begun() {
    let rig = TablesRig::new();
    rig.end_audience();
    for key in ["a", "b", "c"] {
        (0..3).for_each(|_| rig.set(key, "quiet", None).unwrap());
    }
    rig.delete("c").unwrap();
    rig.begin_audience();
    rig.set("c", "again", None).unwrap();
    rig.set("a", "1", None).unwrap();
    rig.set("a", "2", None).unwrap();
    rig.delete("b").unwrap();
    rig.set("d", "new", None).unwrap();
    rig.settle();
    assert_eq!(rig.heard(), ["c+", "a+", "a+", "b-", "d+"]);
    assert_eq!((rig.waiting(), rig.tables_metrics().reaped), (0, 1));
}

#[test]
fn what_is_on_the_way_when_the_audience_ends_is_announced_to_nobody_and_gives_its_credits_back() {
    let rig = TablesRig::with(TablesConfig { changes_per_writer: 56, ..settings() });
    for round in 0..20 {
        rig.set("a", "1", None).unwrap();
        rig.set("b", "1", None).unwrap();
        rig.delete("b").unwrap();
        rig.end_audience();
        assert_eq!(rig.waiting(), 0, "{round}");
        rig.set("a", "quiet", None).unwrap();
        rig.begin_audience();
        rig.set("a", "2", None).unwrap();
        rig.settle();
        assert_eq!(rig.heard(), ["a+"], "{round}");
    }
}

#[test]
fn a_table_that_is_dropped_quietly_makes_room_for_one_that_is_heard() {
    let rig = TablesRig::new();
    rig.set("a", "1", None).unwrap();
    rig.set("b", "1", None).unwrap();
    rig.publish();
    rig.heard();
    rig.end_audience();
    rig.set("b", "2", None).unwrap();
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    // It seals the key in the old table.
    rig.set("b", "3", None).unwrap();
    rig.begin_audience();
    rig.set("a", "4", None).unwrap();
    rig.set("b", "5", None).unwrap();
    for _ in 0..3 {
        rig.settle();
    }
    assert_eq!(rig.heard(), ["a-", "a+", "b+"], "a is sealed with an audience, b was without");
    assert_eq!((rig.waiting(), rig.tables_metrics().tables.len()), (0, 1));
}

#[test]
fn a_quiet_element_moves_and_is_heard_of_afterwards() {
    let rig = TablesRig::new();
    rig.end_audience();
    rig.set("k", "1", None).unwrap();
    rig.0.compactor.borrow_mut().move_all(rig.now());
    rig.begin_audience();
    rig.0.compactor.borrow_mut().move_all(rig.now());
    rig.set("k", "2", None).unwrap();
    rig.publish();
    assert_eq!((rig.heard(), rig.waiting()), (vec!["k+".to_owned()], 0));
}

/// After an exact multiple of 2^25 quiet changes the version that was announced before them was taken for the one before
/// a change of now. It stood there again afterwards, and all further changes of the key were held for ever, with their
/// credits.
#[test]
fn a_version_announced_before_a_silence_is_not_taken_for_one_of_now() {
    for is_deleted in [false, true] {
        let rig = TablesRig::new();
        let mut other = rig.another();
        rig.set("k", "1", None).unwrap();
        rig.publish();
        rig.heard();
        rig.end_audience();
        rig.set("k", "quiet", None).unwrap();
        let quiet = rig.version("k");
        rig.begin_audience();
        // As it is after 2^25 of them: what is left from before has the low bits of the first change of now.
        rig.with_slot("k", |slot| slot.leave_announced(quiet + 1));
        super::set(&mut other, rig.now(), "k", "2", None).unwrap();
        // The publisher looks at this writer's changes first.
        if is_deleted {
            rig.delete("k").unwrap();
        }
        for _ in 0..64 {
            rig.set("k", "3", None).unwrap();
        }
        rig.settle();
        let deleted = is_deleted.then_some("k-");
        let expected: Vec<_> = ["k+"].into_iter().chain(deleted).chain(["k+"; 64]).collect();
        assert_eq!((rig.heard(), rig.waiting()), (expected.iter().map(ToString::to_string).collect(), 0));
    }
}

/// The changes of two writers are on their way, in the opposite order of their commits, when the audience ends.
#[test]
fn the_next_audience_hears_of_a_slot_whose_last_changes_were_on_their_way_when_the_one_before_ended() {
    let rig = TablesRig::new();
    let mut other = rig.another();
    rig.set("k", "1", None).unwrap();
    rig.publish();
    rig.heard();
    for round in 0..3 {
        super::set(&mut other, rig.now(), "k", "2", None).unwrap();
        rig.set("k", "3", None).unwrap();
        rig.end_audience();
        if round == 1 {
            rig.set("k", "quiet", None).unwrap();
        }
        rig.begin_audience();
        super::set(&mut other, rig.now(), "k", "4", None).unwrap();
        rig.set("k", "5", None).unwrap();
        rig.settle();
        assert_eq!((rig.heard(), rig.waiting()), (vec!["k+".to_owned(); 2], 0), "{round}");
    }
}

#[test]
fn with_a_feed_there_always_is_an_audience() {
    let rig =
        TablesRig::with_feed(settings(), Some(FeedConfig { epoch: 1, history_bytes: 1 << 20, start_wall_millis: 1 }));
    rig.end_audience();
    rig.set("a", "1", None).unwrap();
    assert_eq!(rig.waiting(), 1);
}

// --------------------------------------------------------------------------------------------------- with threads

const KEYS: u64 = 24;
const WRITERS: usize = 3;
const ROUNDS: u64 = 60;

fn key(number: u64) -> [u8; 2] {
    [b'k', u8::try_from(number).unwrap()]
}

/// Numbers by a linear congruence, of which the high half counts.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % bound
    }
}

/// One random change, by a writer that waits for its credits.
fn change(session: &mut Session, random: &mut Random, now: Now, is_over: impl Fn() -> bool) {
    let (key, choice) = (key(random.below(KEYS)), random.below(1_000));
    loop {
        let done = match choice {
            0 => {
                let deleted = session.batch(now).delete_table(b"t");
                deleted.and_then(|()| session.batch(now).create_table(b"t", b"t"))
            }
            1..300 => session.batch(now).delete(b"t", &key).map(drop),
            300..400 => session.batch(now).update(b"t", &key, b"short", Some(1)),
            400..500 => session.batch(now).touch(b"t", &key, 0).map(drop),
            _ => session.batch(now).update(b"t", &key, b"value", None),
        };
        match done {
            Err(Refusal::Busy) if !is_over() => {
                let _has_credits = session.watch();
                thread::yield_now();
            }
            _ => return,
        }
    }
}

/// The last notification of each key, and how often two deletions came without a store between them.
#[derive(Default)]
struct Heard {
    last: HashMap<Vec<u8>, ChangeKind>,
    faults: Vec<Vec<u8>>,
}

impl Heard {
    fn take(&mut self, changes: &mut Changes) {
        changes.drain(1_000, &mut |_, kind, key| {
            let before = self.last.insert(key.to_vec(), kind);
            if before == Some(ChangeKind::Deleted) && kind == ChangeKind::Deleted {
                self.faults.push(key.to_vec());
            }
        });
    }
}

/// What the threads share.
struct Stage<'t> {
    tables: &'t Tables,
    done: AtomicBool,
    pausing: AtomicBool,
    /// For the writers and the publisher.
    barrier: Barrier,
    start: Instant,
}

/// Lets the threads end, also when a check fails.
struct LastCall<'s>(&'s AtomicBool);

impl Drop for LastCall<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Stage<'_> {
    /// A clock that is 50 times too fast, so that elements expire.
    fn now(&self) -> Now {
        Now::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap() * 50 + 1_000_000)
    }

    fn is_over(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// One writer. It pauses when the publisher wants it.
    fn write(&self, seed: u64) {
        let (mut session, mut random) = (self.tables.session(), Random(seed));
        while !self.is_over() {
            change(&mut session, &mut random, self.now(), || self.is_over());
            if self.pausing.load(Ordering::Acquire) {
                self.barrier.wait();
                self.barrier.wait();
            }
        }
    }

    /// Drains for a random time.
    fn listen(&self, changes: &mut Changes, random: &mut Random) -> Heard {
        let mut heard = Heard::default();
        let until = self.now().after(Duration::from_millis(random.below(200)));
        while self.now() < until {
            heard.take(changes);
        }
        heard
    }

    /// Drains until all writers pause. A writer that waits for credits needs the publisher before that.
    fn pause(&self, changes: &mut Changes, heard: &mut Heard) {
        self.pausing.store(true, Ordering::Release);
        thread::scope(|scope| {
            let all = scope.spawn(|| self.barrier.wait());
            while !all.is_finished() {
                heard.take(changes);
            }
        });
    }

    /// Drains until each key that was heard of is as it was heard last, and no change is on the way. Elements expire and
    /// tables are sealed meanwhile.
    fn agrees(&self, changes: &mut Changes, heard: &mut Heard) -> bool {
        let mut session = self.tables.session();
        (0..10_000).any(|_| {
            heard.take(changes);
            thread::yield_now();
            let mut is_told = |number: u64| {
                let exists = session.batch(self.now()).get(b"t", &key(number)).is_ok();
                heard.last.get(&key(number)[..]).is_none_or(|last| (*last == ChangeKind::Updated) == exists)
            };
            (0..KEYS).all(&mut is_told) && self.tables.metrics().changes_waiting == 0
        })
    }
}

/// Writers, the expiry thread, the reaper and the compactor work all the time while the audience comes and goes. Each
/// round ends with an audience: when all is announced, the last notification of a key that was heard of tells its state,
/// and no change is held back.
#[test]
fn an_audience_that_comes_and_goes_hears_the_state_of_every_key_it_hears_of() {
    let (tables, background) = with_table(TablesConfig { changes_per_writer: 64, ..settings() });
    let (mut changes, mut expiry) = (background.changes, background.expiry);
    let (mut reaper, mut compactor) = (background.reaper, background.compactor);
    let stage = Stage {
        tables: &tables,
        done: AtomicBool::new(false),
        pausing: AtomicBool::new(false),
        barrier: Barrier::new(WRITERS + 1),
        start: Instant::now(),
    };
    let (audience, mut random) = (changes.audience(), Random(7));
    thread::scope(|scope| {
        let stage = &stage;
        (0..WRITERS).for_each(|seed| _ = scope.spawn(move || stage.write(seed as u64)));
        scope.spawn(move || {
            while !stage.is_over() {
                expiry.pass(stage.now());
                reaper.step(stage.now());
                thread::yield_now();
            }
        });
        scope.spawn(move || {
            while !stage.is_over() {
                compactor.move_all(stage.now());
                thread::yield_now();
            }
        });
        let _last_call = LastCall(&stage.done);
        for round in 0..ROUNDS {
            changes.end_audience();
            let nobody = stage.listen(&mut changes, &mut random);
            assert!(nobody.last.is_empty(), "{round}: without an audience nothing is announced");
            audience.begin();
            let mut heard = stage.listen(&mut changes, &mut random);
            stage.pause(&mut changes, &mut heard);
            let agrees = stage.agrees(&mut changes, &mut heard);
            stage.pausing.store(false, Ordering::Release);
            stage.barrier.wait();
            assert!(agrees, "{round}: {:?}, {} wait", heard.last, tables.metrics().changes_waiting);
            assert!(heard.faults.is_empty(), "{round}: {:?}", heard.faults);
        }
    });
    assert_eq!(tables.metrics().lost_wakeups, 0);
}

/// Its seal is in a ring since the silence before when the audience ends, and a change of the new table waits for it.
#[test]
fn a_quiet_seal_of_an_earlier_silence_lets_its_successor_go_before_the_next_silence() {
    let rig = TablesRig::new();
    rig.set("k", "1", None).unwrap();
    rig.publish();
    rig.heard();
    rig.end_audience();
    rig.drop_table("t").unwrap();
    rig.create("t").unwrap();
    (0..5).for_each(|_| rig.reap());
    rig.begin_audience();
    rig.set("k", "2", None).unwrap();
    let (tables, now, pinned, deleted) = (rig.0.tables.clone(), rig.now(), Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = epoch::pin();
            pinned.wait();
            while !deleted.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            drop(guard);
        });
        scope.spawn(|| {
            let mut session = tables.session();
            while tables.0.change_queue.has_audience() {
                thread::yield_now();
            }
            session.batch(now).delete(b"t", b"k").unwrap();
            deleted.store(true, Ordering::Relaxed);
        });
        pinned.wait();
        rig.end_audience();
    });
    rig.settle();
    rig.begin_audience();
    rig.set("k", "3", None).unwrap();
    rig.settle();
    assert_eq!((rig.heard(), rig.waiting()), (vec!["k+".to_owned()], 0));
}
