//! The wheel with 4 thousand to 5 million timers: the cost of arming, cancelling and coming up, in nanoseconds a timer.
//!
//! Deadlines are random within an hour, and timers are cancelled in random order, so ids, chunks and slots are
//! unrelated. Beside it is the opposite, timers that are refreshed in the order in which they were armed: the same
//! instructions without the cache misses. At the end the bench prints the sizes, and the cost of the memory alone: see
//! `perf/budget.md` for how to read them.

#![expect(clippy::indexing_slicing, reason = "a wrong index must stop the measurement")]
#![allow(missing_docs, reason = "criterion_group! makes a function without words")]

use std::hint::black_box;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group};
use spindle::wheel::{TimerId, Wheel};

/// The payload of a timer: 8 bytes with a niche, like the pointer that the tables store.
type Payload = NonZeroU64;
const PAYLOAD: Payload = NonZeroU64::MIN;

/// Timers in the wheel.
const CROWDS: [u32; 4] = [4_000, 64_000, 1_000_000, 5_000_000];
/// Ticks over which the deadlines are spread: an hour.
const SPREAD: u32 = 3_600_000;
/// Operations between two readings of the clock, as a share of each crowd.
const BATCH: u32 = 1_000;
/// Timers that come up or move in one call.
const BUDGET: usize = 1_000;

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    if std::env::args().any(|argument| argument == "--bench") {
        CROWDS.into_iter().for_each(print_memory);
    }
}

criterion_group!(benches, arm_and_cancel_shuffled, arm_and_cancel_in_turn, expire);

fn arm_and_cancel_shuffled(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("shuffled");
    group.sampling_mode(SamplingMode::Flat).sample_size(20);
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for count in CROWDS {
        let mut crowd = Shuffled::new(count);
        group.bench_function(BenchmarkId::new("arm", count), |bencher| {
            bencher.iter_custom(|timers| per_timer(timers, || crowd.refresh_batch().armed));
        });
        group.bench_function(BenchmarkId::new("cancel", count), |bencher| {
            bencher.iter_custom(|timers| per_timer(timers, || crowd.refresh_batch().cancelled));
        });
    }
    group.finish();
}

fn arm_and_cancel_in_turn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("in turn");
    group.sampling_mode(SamplingMode::Flat).sample_size(20);
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for count in CROWDS {
        let mut crowd = InTurn::new(count);
        group.bench_function(BenchmarkId::new("arm", count), |bencher| {
            bencher.iter_custom(|timers| per_timer(timers, || crowd.refresh_batch().armed));
        });
        group.bench_function(BenchmarkId::new("cancel", count), |bencher| {
            bencher.iter_custom(|timers| per_timer(timers, || crowd.refresh_batch().cancelled));
        });
    }
    group.finish();
}

fn expire(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("shuffled");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for count in CROWDS {
        let mut crowd = Shuffled::new(count);
        group.bench_function(BenchmarkId::new("expire", count), |bencher| {
            bencher.iter_custom(|timers| per_timer(timers, || crowd.expire_all(count)));
        });
    }
    group.finish();
}

/// Some operations and how long they took.
struct Timed {
    operations: u32,
    elapsed: Duration,
}

impl Timed {
    /// The time of `work`, which does this many operations.
    fn of(operations: u32, work: impl FnOnce()) -> Self {
        let start = Instant::now();
        work();
        let elapsed = start.elapsed();
        Self { operations, elapsed }
    }

    fn nanos_each(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / f64::from(self.operations)
    }
}

/// Runs whole batches until there were at least `timers` operations. Returns the time that `timers` of them take.
fn per_timer(timers: u64, mut batch: impl FnMut() -> Timed) -> Duration {
    let mut operations = 0;
    let mut elapsed = Duration::ZERO;
    while operations < timers {
        let timed = batch();
        operations += u64::from(timed.operations);
        elapsed += timed.elapsed;
    }
    elapsed.mul_f64(timers as f64 / operations as f64)
}

/// A batch of timers that were cancelled and armed anew.
struct Refreshed {
    cancelled: Timed,
    armed: Timed,
}

impl Refreshed {
    /// Cancels the timers of `ids` and arms as many for `deadlines`.
    fn new(wheel: &mut Wheel<Payload>, ids: &mut [TimerId], deadlines: &[u64]) -> Self {
        let cancelled = Timed::of(BATCH, || {
            for &id in &*ids {
                black_box(wheel.cancel(id));
            }
        });
        let armed = Timed::of(BATCH, || {
            for (id, &deadline) in ids.iter_mut().zip(deadlines) {
                *id = wheel.arm(deadline, PAYLOAD);
            }
        });
        Self { cancelled, armed }
    }
}

/// Timers without any order.
struct Shuffled {
    wheel: Wheel<Payload>,
    ids: Vec<TimerId>,
    now: u64,
    random: Random,
}

impl Shuffled {
    /// Arms `count` timers and refreshes as many, so that ids and chunks lose their order too.
    fn new(count: u32) -> Self {
        let mut crowd = Self { wheel: Wheel::new(0), ids: Vec::new(), now: 0, random: Random(0x9E37_79B9_7F4A_7C15) };
        crowd.fill(count);
        for _ in 0..count / BATCH {
            crowd.refresh_batch();
        }
        crowd
    }

    fn fill(&mut self, count: u32) {
        for _ in 0..count {
            let deadline = self.deadline();
            self.ids.push(self.wheel.arm(deadline, PAYLOAD));
        }
    }

    fn deadline(&mut self) -> u64 {
        self.now + 1 + u64::from(self.random.below(SPREAD))
    }

    fn refresh_batch(&mut self) -> Refreshed {
        let deadlines: Vec<u64> = (0..BATCH).map(|_| self.deadline()).collect();
        let picked = self.random.pick(&mut self.ids, BATCH);
        Refreshed::new(&mut self.wheel, picked, &deadlines)
    }

    /// Sleeps from wake to wake until no timer is left, then fills the wheel again.
    fn expire_all(&mut self, count: u32) -> Timed {
        let mut sum = 0_u64;
        let timed = Timed::of(count, || {
            while let Some(wake) = self.wheel.next_wake() {
                let due = |_, deadline, payload: Payload| sum = sum.wrapping_add(deadline ^ payload.get());
                let _ = self.wheel.advance(wake, BUDGET, due);
                self.now = wake;
            }
        });
        black_box(sum);
        self.ids.clear();
        self.fill(count);
        timed
    }
}

/// Timers with a TTL of two hours, each refreshed after one, in the order in which they were armed.
struct InTurn {
    wheel: Wheel<Payload>,
    /// In the order of their deadlines, except where the ring begins.
    ids: Vec<TimerId>,
    /// Index in `ids` of the oldest.
    oldest: usize,
    /// Timers armed so far.
    armed: u64,
}

impl InTurn {
    fn new(count: u32) -> Self {
        let mut crowd = Self { wheel: Wheel::new(0), ids: Vec::new(), oldest: 0, armed: u64::from(count) };
        let spread = u64::from(SPREAD);
        for armed in 0..u64::from(count) {
            let deadline = armed * spread / u64::from(count) + 2 * spread;
            crowd.ids.push(crowd.wheel.arm(deadline, PAYLOAD));
        }
        for _ in 0..count / BATCH {
            crowd.refresh_batch();
        }
        crowd
    }

    fn refresh_batch(&mut self) -> Refreshed {
        let (spread, count) = (u64::from(SPREAD), self.ids.len() as u64);
        let now = self.armed * spread / count;
        let _ = self.wheel.advance(now, usize::MAX, |_, _, _| ());
        let deadlines: Vec<u64> =
            (self.armed..self.armed + u64::from(BATCH)).map(|armed| armed * spread / count + 2 * spread).collect();
        let batch = self.oldest..self.oldest + BATCH as usize;
        self.oldest = batch.end % self.ids.len();
        self.armed += u64::from(BATCH);
        Refreshed::new(&mut self.wheel, &mut self.ids[batch], &deadlines)
    }
}

/// Prints the size of a record, and the cost of the memory alone for as many.
fn print_memory(count: u32) {
    let bytes = Shuffled::new(count).wheel.bytes();
    println!(
        "{count:>9} timers: {:5.1} bytes each, {:5.1} MiB; a dependent load from as much memory: {:5.1} ns; \
         the memory of a cancel alone: {:5.1} ns",
        bytes as f64 / f64::from(count),
        bytes as f64 / f64::from(1 << 20),
        dependent_load(bytes).nanos_each(),
        bare_cancel(count).nanos_each(),
    );
}

/// One cache line.
type Line = [u32; 16];

/// Number of loads and of cancels that are timed for the cost of the memory.
const PROBES: u32 = 2_000_000;

/// Loads that each wait for the one before, over `bytes` of memory in random order.
fn dependent_load(bytes: usize) -> Timed {
    let length = u32::try_from(bytes / size_of::<Line>()).expect("sizes are small numbers");
    let lines: Vec<Line> = Random(7).tour(length).into_iter().map(|next| [next; 16]).collect();
    let mut at = 0;
    let mut run = || {
        for _ in 0..PROBES {
            at = lines[at as usize][0];
        }
    };
    run();
    let timed = Timed::of(PROBES, run);
    black_box(at);
    timed
}

/// The least memory that a cancel must touch: a word of the table of ids, the chunk that it leads to, and the word of
/// the timer that fills the hole.
fn bare_cancel(count: u32) -> Timed {
    let mut random = Random(11);
    let mut chunks: Vec<[Line; 2]> = vec![[[1; 16]; 2]; (count / 6) as usize];
    let mut table: Vec<u32> = (0..count).map(|_| random.below(count / 6)).collect();
    let ids: Vec<(u32, u32)> = (0..PROBES).map(|_| (random.below(count), random.below(count))).collect();
    let mut run = || {
        for &(cancelled, moved) in &ids {
            let number = table[cancelled as usize];
            let [first, second] = &mut chunks[number as usize];
            first[0] = second[15] ^ moved;
            table[moved as usize] = number;
        }
    };
    run();
    let timed = Timed::of(PROBES, run);
    black_box((table, chunks));
    timed
}

const fn high_half(number: u64) -> u32 {
    (number >> 32) as u32
}

/// xorshift64*: the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        high_half(number * u64::from(bound))
    }

    /// Brings `count` random items to the front, and returns them.
    fn pick<'a, I>(&mut self, items: &'a mut [I], count: u32) -> &'a mut [I] {
        let mut left = u32::try_from(items.len()).expect("crowds are small numbers");
        let count = count as usize;
        for front in 0..count {
            items.swap(front, front + self.below(left) as usize);
            left -= 1;
        }
        &mut items[..count]
    }

    /// For each index the next one on a tour through all of them (Sattolo's algorithm).
    fn tour(&mut self, length: u32) -> Vec<u32> {
        let mut next: Vec<u32> = (0..length).collect();
        for last in 1..length {
            next.swap(last as usize, self.below(last) as usize);
        }
        next
    }
}
