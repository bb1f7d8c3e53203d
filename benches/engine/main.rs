//! The table engine in process: bytes per element beside Redis, and GET and UPDATE in nanoseconds.
//!
//! ```text
//! cargo bench --bench engine
//! ```
//! Keys are 16 bytes, values 64. Publisher, expiry thread and reaper run as in the server, without subscribers. On a
//! machine with two cores the measuring threads share them with the publisher, as they do in the server.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a bench that fails should say where")]

#[path = "../fixture/mod.rs"]
mod fixture;
mod redis;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use spindle::allocator::Switch;
use spindle::limits::LOOK_AHEAD;

use fixture::{Fixture, KEY_BYTES, VALUE_BYTES, keys, random, resident_bytes};

#[global_allocator]
static ALLOCATOR: Switch = Switch;

/// Operations of one batch: as many as a worker fetches together.
const BATCH: usize = LOOK_AHEAD;
const SMALL: usize = 1_000;
const LARGE: usize = 1_000_000;

fn main() {
    let mut criterion =
        Criterion::default().configure_from_args().sample_size(10).measurement_time(Duration::from_secs(3));
    bytes_per_element();
    for count in [SMALL, LARGE] {
        let fixture = Fixture::filled(count);
        for threads in [1, 2] {
            operations(&mut criterion, &fixture, count, threads);
        }
    }
    dependent_loads(&mut criterion);
    criterion.final_summary();
}

/// The full memory of a million elements: resident memory after less before.
fn bytes_per_element() {
    let before = resident_bytes();
    let fixture = Fixture::filled(LARGE);
    let ours = (resident_bytes() - before) as f64 / LARGE as f64;
    let account = fixture.census().memory.used as f64 / LARGE as f64;
    let payload = KEY_BYTES + VALUE_BYTES;
    println!("bytes per element, 1,000,000 of {KEY_BYTES} B keys and {VALUE_BYTES} B values ({payload} B of payload):");
    println!("  spindle  {ours:>6.1}   (the account of --max-memory says {account:.1})");
    match redis::bytes_per_element(LARGE) {
        Some((version, bytes)) => println!("  redis    {bytes:>6.1}   ({version})"),
        None => println!("  redis    not installed: skipped"),
    }
}

/// GET and UPDATE of keys in random order, by one or two threads.
fn operations(criterion: &mut Criterion, fixture: &Fixture, count: usize, threads: usize) {
    let mut group = criterion.benchmark_group(format!("{count} keys"));
    group.throughput(Throughput::Elements(threads as u64));
    for (name, verb) in [("get", Verb::Get), ("update", Verb::Update)] {
        for (how, ahead) in [("one at a time", false), ("looking ahead", true)] {
            let plan = Plan { verb, ahead, count, threads };
            group.bench_function(BenchmarkId::new(format!("{name}, {how}"), format!("{threads} threads")), |bencher| {
                bencher.iter_custom(|rounds| run_threads(fixture, plan, rounds));
            });
        }
    }
    group.finish();
}

#[derive(Clone, Copy)]
enum Verb {
    Get,
    Update,
}

#[derive(Clone, Copy)]
struct Plan {
    verb: Verb,
    /// Whether the keys of a batch are prefetched together, as a worker does with the waiting requests.
    ahead: bool,
    /// Keys in the table.
    count: usize,
    threads: usize,
}

/// Every thread does `rounds` operations. Returns the time until the last has finished.
fn run_threads(fixture: &Fixture, plan: Plan, rounds: u64) -> Duration {
    let barrier = std::sync::Barrier::new(plan.threads + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let keys = keys(plan.count, thread as u64 + 1);
                    barrier.wait();
                    work(fixture, plan, &keys, rounds);
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for worker in workers {
            worker.join().unwrap();
        }
        start.elapsed()
    })
}

fn work(fixture: &Fixture, plan: Plan, keys: &[[u8; KEY_BYTES]], rounds: u64) {
    let mut session = fixture.session();
    let mut done = 0_usize;
    let rounds = usize::try_from(rounds).unwrap();
    while done < rounds {
        // Under one guard and one reading of the clock, whether they are prefetched together or not.
        let group = (done..rounds.min(done + BATCH)).map(|at| &keys[at % keys.len()]);
        let ahead = if plan.ahead { group.len() } else { 0 };
        match plan.verb {
            Verb::Get => {
                let mut batch = session.batch(fixture.now());
                let fetched = batch.prefetch(group.clone().take(ahead).map(|key| Some((&b"bench"[..], &key[..]))));
                for (number, key) in group.enumerate() {
                    batch.expect(&fetched, number);
                    black_box(batch.get(b"bench", key).unwrap().first());
                    done += 1;
                }
            }
            Verb::Update => done += fixture.update(&mut session, group, ahead),
        }
    }
}

/// A chase through random cache lines over as much memory as a million elements take: the cost of one dependent load.
fn dependent_loads(criterion: &mut Criterion) {
    let lines = 150 * LARGE / 64;
    let mut next: Vec<[u32; 16]> = vec![[0; 16]; lines];
    let order = shuffled(lines);
    for pair in order.windows(2) {
        next[pair[0] as usize][0] = pair[1];
    }
    next[order[lines - 1] as usize][0] = order[0];
    criterion.bench_function("one dependent load over 150 MB", |bencher| {
        let mut at = order[0];
        bencher.iter(|| {
            at = next[at as usize][0];
            at
        });
    });
}

/// The numbers below `count` in a random order (Fisher and Yates).
fn shuffled(count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
    let mut state = 0x2545_f491_4f6c_dd1d;
    for last in (1..count).rev() {
        order.swap(last, usize::try_from(random(&mut state)).unwrap() % (last + 1));
    }
    order
}
