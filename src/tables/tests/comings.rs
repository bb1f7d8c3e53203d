//! The audience comes and goes while threads write, expire, take down and move.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::super::{ChangeKind, Changes, Deadline, Refusal, Session, Tables, TablesConfig};
use super::audience::{Received, keep_audience};
use super::{in_seconds, settings, with_table};
use crate::clock::Now;

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
    let table = if random.below(2) == 0 { b"t" } else { b"u" };
    loop {
        let done = match choice {
            0 => {
                let deleted = session.batch(now).delete_table(table);
                deleted.and_then(|()| session.batch(now).create_table(table, table))
            }
            1..300 => session.batch(now).delete(table, &key).map(drop),
            300..400 => session.batch(now).update(table, &key, b"short", in_seconds(now, 1)),
            400..500 => session.batch(now).touch(table, &key, Deadline::NONE).map(drop),
            _ => session.batch(now).update(table, &key, b"value", Deadline::KEEP),
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

impl Received {
    fn take(&mut self, changes: &mut Changes) {
        changes.drain_to(1_000, self);
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
    fn listen(&self, changes: &mut Changes, random: &mut Random, received: &mut Received) {
        let until = self.now().after(Duration::from_millis(random.below(200)));
        while self.now() < until {
            received.take(changes);
        }
    }

    /// Drains until all writers pause. A writer that waits for credits needs the publisher before that.
    fn pause(&self, changes: &mut Changes, received: &mut Received) {
        self.pausing.store(true, Ordering::Release);
        thread::scope(|scope| {
            let all = scope.spawn(|| self.barrier.wait());
            while !all.is_finished() {
                received.take(changes);
            }
        });
    }

    /// Drains until each key that was received is as it was received last, and no change is on the way. Elements expire
    /// and tables are sealed meanwhile.
    fn agrees(&self, changes: &mut Changes, received: &mut Received) -> bool {
        let mut session = self.tables.session();
        (0..10_000).any(|_| {
            received.take(changes);
            thread::yield_now();
            let mut agrees = |(number, table): (u64, &[u8])| {
                let exists = session.batch(self.now()).get(table, &key(number)).is_ok();
                let last = received.last.get(&[table, &key(number)].concat());
                last.is_none_or(|last| (*last == ChangeKind::Updated) == exists)
            };
            let mut keys = (0..KEYS).flat_map(|number| [(number, &b"t"[..]), (number, b"u")]);
            keys.all(&mut agrees) && self.tables.metrics().changes_waiting == 0
        })
    }
}

/// Writers, the expiry thread, the reaper and the compactor work all the time while the audience comes and goes. Each
/// round ends with an audience: when all is announced, the last notification of a key that was received gives its
/// state, and no change is held back. In every other round one of the two tables has an audience all the time.
#[test]
fn an_audience_that_comes_and_goes_receives_the_state_of_every_key_that_it_receives() {
    let (tables, background) = with_table(TablesConfig { changes_per_writer: 64, ..settings() });
    tables.session().batch(Now::from_millis(1)).create_table(b"u", b"u").unwrap();
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
            let mut received = Received::default();
            let kept = (round % 2 == 1).then_some("u");
            keep_audience(&mut changes, kept, &mut received);
            stage.listen(&mut changes, &mut random, &mut received);
            assert!(
                kept.is_some() || received.announced.is_empty(),
                "{round}: without an audience nothing is announced"
            );
            // Of the other table, the lives that began meanwhile are announced.
            received.last.retain(|name, _| name.starts_with(b"u"));
            received.faults.retain(|name| name.starts_with(b"u"));
            audience.begin([&b""[..]]);
            stage.listen(&mut changes, &mut random, &mut received);
            stage.pause(&mut changes, &mut received);
            let agrees = stage.agrees(&mut changes, &mut received);
            stage.pausing.store(false, Ordering::Release);
            stage.barrier.wait();
            assert!(agrees, "{round}: {:?}, {} wait", received.last, tables.metrics().changes_waiting);
            assert!(received.faults.is_empty(), "{round}: {:?}", received.faults);
        }
    });
    assert_eq!(tables.metrics().lost_wakeups, 0);
}
