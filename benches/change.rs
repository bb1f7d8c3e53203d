//! The change queue: the cost of committing and pushing for a writer, and the rate at which the publisher orders and
//! announces.
//!
//! ```text
//! cargo bench --bench change
//! ```

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that fails should say where")]

use std::time::{Duration, Instant};

use criterion::{BatchSize, Bencher, Criterion, Throughput};
use spindle::allocator::Switch;
use spindle::clock::lasting::LastingClock;
use spindle::clock::{ClockReading, Now};
use spindle::store::{AddsRefused, EffectJudge, EncodedRecords, Error, LogMetrics, StoreBackup};
use spindle::tables::{BackgroundThreads, Deadline, Durability, EffectLog, OpenLog, Session, Tables, TablesConfig};

#[global_allocator]
static ALLOCATOR: Switch = Switch;

/// Changes of one round, fewer than the credits of a writer.
const ROUND: usize = 16_384;

fn main() {
    let mut criterion =
        Criterion::default().configure_from_args().sample_size(20).measurement_time(Duration::from_secs(3));
    for keys in [16, ROUND] {
        one_writer(&mut criterion, keys);
    }
    two_writers(&mut criterion);
    for keys in [16, ROUND] {
        durable(&mut criterion, keys);
    }
    criterion.final_summary();
}

fn tables() -> (Tables, BackgroundThreads) {
    let (tables, backstage) = Tables::new(TablesConfig {
        expected_keys: 0,
        memory_max: 1 << 30,
        tables_max: 1,
        durability: Durability::None,
        changes_per_writer: 1 << 16,
        version_base: 1,
        clock_start: 0,
    });
    tables.session().batch(Now::from_nanos(0)).create_table(b"bench", b"bench").unwrap();
    (tables, backstage)
}

fn commit_round(session: &mut Session, keys: usize) {
    let mut batch = session.batch(Now::from_nanos(0));
    for number in 0..ROUND {
        batch.update(b"bench", &(number % keys).to_be_bytes(), &[7; 64], Deadline::KEEP).unwrap();
    }
}

/// Times rounds of updates. `behind` does the other threads' part after each, untimed.
fn time_commits(bencher: &mut Bencher<'_>, session: &mut Session, keys: usize, mut behind: impl FnMut()) {
    bencher.iter_custom(|rounds| {
        let mut total = Duration::ZERO;
        for _ in 0..rounds {
            let start = Instant::now();
            commit_round(session, keys);
            total += start.elapsed();
            behind();
        }
        total
    });
}

/// Updates by one writer, then the publisher's part alone.
fn one_writer(criterion: &mut Criterion, keys: usize) {
    let (tables, mut backstage) = tables();
    let mut session = tables.session();
    let mut group = criterion.benchmark_group(format!("{keys} keys"));
    group.throughput(Throughput::Elements(ROUND as u64));
    group.bench_function("commit and push", |bencher| {
        time_commits(bencher, &mut session, keys, || {
            while backstage.changes.drain(1 << 16, &mut |_, _, _| {}).taken > 0 {}
        });
    });
    group.bench_function("order and announce", |bencher| {
        let session = std::cell::RefCell::new(&mut session);
        let changes = std::cell::RefCell::new(&mut backstage.changes);
        bencher.iter_batched(
            || commit_round(&mut session.borrow_mut(), keys),
            |()| while changes.borrow_mut().drain(1 << 16, &mut |_, _, _| {}).taken > 0 {},
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Two threads change the same few keys while the publisher announces: the whole queue, with changes out of order.
fn two_writers(criterion: &mut Criterion) {
    let (tables, mut backstage) = tables();
    let mut group = criterion.benchmark_group("two writers of 16 keys, and the publisher");
    group.throughput(Throughput::Elements(2 * ROUND as u64));
    group.bench_function("through the queue", |bencher| {
        bencher.iter_custom(|rounds| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    let mut session = tables.session();
                    scope.spawn(move || {
                        for _ in 0..rounds {
                            write_waiting(&mut session);
                        }
                    });
                }
                let mut announced = 0;
                while announced < 2 * rounds * ROUND as u64 {
                    backstage.changes.drain(1 << 16, &mut |_, _, _| announced += 1);
                }
            });
            start.elapsed()
        });
    });
    group.finish();
}

/// One round, waiting for the publisher where it must.
fn write_waiting(session: &mut Session) {
    let mut number = 0_usize;
    while number < ROUND {
        let mut batch = session.batch(Now::from_nanos(0));
        let end = ROUND.min(number + 64);
        while number < end && batch.update(b"bench", &(number % 16).to_be_bytes(), &[7; 64], Deadline::KEEP).is_ok() {
            number += 1;
        }
        let busy = number < end;
        drop(batch);
        if busy {
            session.wait();
        }
    }
}

/// A log that writes nothing.
struct NoLog;

impl EffectLog for NoLog {
    fn append(&mut self, _: &mut Vec<EncodedRecords>, _: u64, _: &mut dyn EffectJudge) -> Result<(), Error> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn rest(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn raise(&mut self, _: usize, _: u64) {}

    fn adds_room(&self) -> Result<u64, AddsRefused> {
        Ok(u64::MAX / 2)
    }

    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error> {
        Err(Error::CameLater("no log".into()))
    }

    fn may_shrink(&self) -> bool {
        false
    }

    fn waits_for_files(&self) -> bool {
        false
    }

    fn metrics(&self) -> LogMetrics {
        LogMetrics::default()
    }
}

/// Updates by one writer: of a table in memory, then of a durable table. The log drops the epochs.
fn durable(criterion: &mut Criterion, keys: usize) {
    let mut group = criterion.benchmark_group(format!("{keys} keys, durable"));
    group.throughput(Throughput::Elements(ROUND as u64));
    for (name, durability) in [("commit and push", Durability::None), ("commit, push and record", Durability::Soon)] {
        let (tables, mut backstage) = tables();
        let mut session = tables.session();
        let clock = LastingClock::resume(None, ClockReading::from_millis(0));
        let mut log = tables.epoch_log(OpenLog { log: Box::new(NoLog), clock });
        let mut batch = session.batch(Now::from_nanos(0));
        batch.delete_table(b"bench").unwrap();
        while batch.create_table_with(b"bench", b"bench", None, Some(durability)).is_err() {}
        drop(batch);
        group.bench_function(name, |bencher| {
            time_commits(bencher, &mut session, keys, || {
                backstage.changes.drain(usize::MAX, &mut |_, _, _| {});
                log.write(ClockReading::from_millis(0)).unwrap();
            });
        });
    }
}
