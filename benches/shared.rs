//! Threads on one table: the cost of an operation to each, when one works alone and when two do.
//!
//! ```text
//! cargo bench --bench shared     nanoseconds of an operation, one and two threads, batches of 1 and 32
//! … -- get 1 1000000             this many GETs of one thread in batches of 1, for a counter of instructions:
//! valgrind --tool=callgrind --toggle-collect='*measured*' TARGET/release/deps/shared-… get 1 1000000
//! … -- get 1 1000000 always      the same of a table that is always on disk
//! … -- tables 65536              bytes of this many tables: empty, and with one element each
//! ```
//! Where two cores are free, the difference between the columns is the cost that two threads cause each other.
//! Publisher, expiry thread and reaper run as in the server, without subscribers.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a bench that fails should say where")]

#[allow(dead_code, reason = "this bench needs a part of the fixture")]
mod fixture;

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use spindle::allocator::Switch;
use spindle::tables::{Deadline, Durability, Refusal, Session};

use fixture::{Fixture, KEY_BYTES, keys, resident_bytes};

#[global_allocator]
static ALLOCATOR: Switch = Switch;

/// Elements: few enough to be in the nearest cache.
const ELEMENTS: usize = 1_000;
/// Operations of one round, of each thread.
const OPERATIONS: usize = 2_000_000;
/// Rounds. The median is printed.
const ROUNDS: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Get,
    Set,
}

fn main() {
    // cargo bench adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["tables", count] => table_bytes(count.parse().unwrap()),
        [verb, batch, count] | [verb, batch, count, "always"] => {
            let durability = if words.contains(&"always") { Durability::Always } else { Durability::None };
            let fixture = Fixture::with(ELEMENTS, durability);
            let keys = keys(ELEMENTS, 1);
            let verb = if verb == "get" { Verb::Get } else { Verb::Set };
            measured(&fixture, &mut fixture.session(), verb, &keys[..count.parse().unwrap()], batch.parse().unwrap());
        }
        _ => all(),
    }
}

fn all() {
    let fixture = Fixture::filled(ELEMENTS);
    println!("nanoseconds of an operation, median of {ROUNDS} rounds   1 thread   2 threads, each");
    for verb in [Verb::Get, Verb::Set] {
        for batch in [1, 32] {
            let [one, two] = [1, 2].map(|threads| median(|| round(&fixture, verb, batch, threads)));
            println!("{:<40}{one:>14.1}{two:>18.1}", format!("{verb:?}, batches of {batch}"));
        }
    }
}

fn median(mut measure: impl FnMut() -> f64) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Nanoseconds of each operation of a thread.
fn round(fixture: &Fixture, verb: Verb, batch: usize, threads: usize) -> f64 {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let keys = keys(ELEMENTS, thread as u64 + 1);
                    let mut session = fixture.session();
                    barrier.wait();
                    for _ in 0..OPERATIONS / keys.len() {
                        measured(fixture, &mut session, verb, &keys, batch);
                    }
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        start.elapsed().as_nanos() as f64 / (OPERATIONS / keys(1, 1).len() * keys(1, 1).len()) as f64
    })
}

/// One operation for each key, this many in a batch.
#[inline(never)]
fn measured(fixture: &Fixture, session: &mut Session, verb: Verb, keys: &[[u8; KEY_BYTES]], batch: usize) {
    for some in keys.chunks(batch) {
        match verb {
            Verb::Get => {
                let mut batch = session.batch(fixture.now());
                for key in some {
                    black_box(batch.get(b"bench", key).unwrap().first());
                }
            }
            Verb::Set => {
                let mut done = 0;
                while done < some.len() {
                    done += fixture.update(session, some[done..].iter(), 0);
                }
            }
        }
    }
}

/// The memory of tables: resident memory of the process, beside the memory budget.
fn table_bytes(count: usize) {
    let fixture = Fixture::filled(0);
    let mut session = fixture.session();
    let names: Vec<String> = (0..count - 1).map(|number| format!("table-{number:06}")).collect();
    let mut before = (resident_bytes(), fixture.census().memory.used);
    let mut report = |what: &str| {
        let now = (resident_bytes(), fixture.census().memory.used);
        let each = |bytes: f64| bytes / names.len() as f64;
        let (resident, account) = (each((now.0 - before.0) as f64), each(now.1 as f64 - before.1 as f64));
        println!("{what:<28} {resident:>8.0} bytes resident, {account:>8.0} by the account, each of {count}");
        before = now;
    };
    for name in &names {
        session.batch(fixture.now()).create_table(name.as_bytes(), name.as_bytes()).unwrap();
    }
    report("empty tables");
    for name in &names {
        while session.batch(fixture.now()).update(name.as_bytes(), &[7; KEY_BYTES], &[7; 64], Deadline::KEEP)
            == Err(Refusal::Busy)
        {
            session.wait();
        }
    }
    while fixture.census().changes_waiting > 0 {
        std::thread::yield_now();
    }
    report("the first element of each");
}
