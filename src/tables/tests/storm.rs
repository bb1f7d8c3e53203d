//! Everything at once, in threads of their own: clients with all verbs on few keys of few tables, tables that come and
//! go, a feed, audiences that come and go, timers, a compactor that moves all elements, too little memory and few
//! credits.
//!
//! ```text
//! clients ─┐                      ┌─ publisher: Comings, then All
//! holders ─┼─► tables ◄───────────┼─ expiry, reaper
//!          │                      └─ compactor: moves all the time, or reads that memory is short
//!          └─ end of the round ─► all is announced ─► the last notification and the copy are the state
//! ```
//! A storm has rounds of two phases. In the first one audiences come and go. In the second phase all tables have an
//! audience, so the announcements by its end must give the state of each key. After the last round all tables are
//! deleted, and nothing may be left: no byte, timer or change. Each thread must end within [`PATIENCE`].
//!
//! `perf/storm` runs long ones, under AddressSanitizer. `SPINDLE_STORM_SECONDS` says how long, and `SPINDLE_SEED` is the
//! first seed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

mod client;
mod holder;
mod listener;
mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::super::{
    AudienceKind, BackgroundThreads, ChangeKind, Compactor, Durability, EvictionPolicy, FeedConfig, Refusal, Session,
    Tables, TablesConfig,
};
use super::BASE;
use super::alone::alone;
use super::totals::{counted, kept};
use crate::clock::{Clock, Now};
use crate::lock::Mutex;
use crate::seeded_rng::SeededRng;
use client::{Client, Counts};
use holder::Holder;
use listener::{Listener, Received};
use values::{KEYS, key_of, seed_of_now};

/// The table that has an audience all the time.
const KEPT: &[u8] = b"kept";
/// The table whose elements are restored with versions of another server.
const OLD: &[u8] = b"old";
/// Tables that come and go. Some names begin like others.
const NAMES: &[&[u8]] = &[b"a", b"ab", b"abc", b"b", b"kept by chance"];
const EPOCH: u64 = 5;
/// The longest time that anything may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: u64 = 4;
const HOLDERS: u64 = 2;

/// What a storm is like, by its seed.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    has_feed: bool,
    /// Elements of [`KEPT`] are restored. If not, its lives change.
    restores: bool,
    /// A hold keeps the audience of [`KEPT`]. If not, a subscription does.
    is_kept_by_hold: bool,
    holds_ends: bool,
    /// The compactor runs as ever, and reads that memory is short. If not, it moves all the time.
    is_short_of_memory: bool,
    memory_max: u64,
    credits: usize,
    /// Elements of all tables may be evicted.
    evicts: bool,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = SeededRng(seed);
        Self {
            seed,
            has_feed: random.one_in(2),
            restores: random.one_in(2),
            is_kept_by_hold: random.one_in(2),
            holds_ends: random.one_in(2),
            is_short_of_memory: random.one_in(2),
            memory_max: random.pick(&[2 << 20, 8 << 20, 64 << 20]),
            credits: random.pick(&[56, 64, 256]),
            evicts: random.one_in(2),
        }
    }
}

/// What the audience does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It comes and goes.
    Comings,
    /// Every table has one.
    All,
}

/// What the threads share.
struct Stage {
    plan: Plan,
    tables: Tables,
    clock: Clock,
    /// The clients of the round end.
    is_over: AtomicBool,
    /// All threads end.
    is_closed: AtomicBool,
    phase_is_all: AtomicBool,
    /// All tables have had an audience since the phase began.
    all_have_audience: AtomicBool,
    received: Mutex<Received>,
}

impl Stage {
    fn now(&self) -> Now {
        self.clock.now()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn phase(&self) -> Phase {
        if self.phase_is_all.load(Ordering::Relaxed) { Phase::All } else { Phase::Comings }
    }
}

/// Waits until it is so. Returns false if it is not in time.
pub(super) fn until(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Joins a thread that must end soon.
fn join<T>(name: &str, thread: JoinHandle<T>) -> T {
    assert!(until(PATIENCE, || thread.is_finished()), "{name} does not end");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Lets all threads end, also when a check fails.
struct Closing(Arc<Stage>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
        self.0.is_closed.store(true, Ordering::Relaxed);
        self.0.tables.close();
    }
}

/// Starts the threads that serve the tables. The last one is the publisher.
fn start(stage: &Arc<Stage>, background: BackgroundThreads) -> [(&'static str, JoinHandle<()>); 4] {
    let BackgroundThreads { changes, expiry, reaper, compactor } = background;
    let [of_publisher, of_expiry, of_reaper, of_compactor] = [(); 4].map(|()| Arc::clone(stage));
    [
        ("expiry", thread::spawn(move || expiry.run(|| of_expiry.now()))),
        ("reaper", thread::spawn(move || reaper.run(|| of_reaper.now()))),
        ("compactor", thread::spawn(move || compact(&of_compactor, compactor))),
        ("publisher", thread::spawn(move || Listener::new(&of_publisher, changes).run())),
    ]
}

fn compact(stage: &Stage, mut compactor: Compactor) {
    if stage.plan.is_short_of_memory {
        let mut looks = 0_u64;
        let resident = || {
            looks += 1;
            // Beyond the limit all holes count, so the eviction has work.
            let beyond = if stage.plan.evicts { stage.plan.memory_max / 64 } else { 0 };
            Some(if looks % 8 < 4 { 0 } else { stage.plan.memory_max + beyond })
        };
        return compactor.run(0, || stage.now(), resident);
    }
    while !stage.is_closed.load(Ordering::Relaxed) {
        compactor.look(stage.tables.metrics().memory.used.cast_signed(), stage.now());
        compactor.move_all(stage.now());
        thread::yield_now();
    }
}

/// Runs a storm of so many rounds of so long. Returns what the clients did.
fn storm(plan: Plan, rounds: u64, lasting: Duration) -> Counts {
    let config = TablesConfig {
        expected_keys: 0,
        memory_max: plan.memory_max,
        tables_max: 16,
        durability: Durability::None,
        changes_per_writer: plan.credits,
        version_base: BASE,
        clock_start: 1_000_000,
    };
    let feed = FeedConfig { epoch: EPOCH, history_bytes: 1 << 20 };
    let (tables, background) = Tables::with_feed(config, plan.has_feed.then_some(feed));
    if plan.evicts {
        tables.set_eviction(EvictionPolicy::Lru);
    }
    let stage = Arc::new(Stage {
        plan,
        tables,
        clock: Clock::start(),
        is_over: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        phase_is_all: AtomicBool::new(false),
        all_have_audience: AtomicBool::new(false),
        received: Mutex::default(),
    });
    let mut session = stage.tables.session();
    let hold = stage.plan.is_kept_by_hold.then(|| session.hold_audience(KEPT, AudienceKind::Changes, Box::new(|| ())));
    for table in [KEPT, OLD] {
        session.batch(stage.now()).create_table(table, table).unwrap();
    }
    let closing = Closing(Arc::clone(&stage));
    let backstage = start(&stage, background);
    let mut counts = Counts::new();
    for round in 0..rounds {
        play(&stage, round, lasting, &mut counts);
        agree(&stage, &mut session);
    }
    clear(&stage, &mut session);
    drop((hold, session, closing));
    backstage.into_iter().for_each(|(name, thread)| join(name, thread));
    assert_eq!(stage.tables.metrics().lost_wakeups, 0);
    counts.entry("(evicted)").or_default()[0] += stage.tables.metrics().evicted;
    counts
}

/// The two phases of a round.
fn play(stage: &Arc<Stage>, round: u64, lasting: Duration, counts: &mut Counts) {
    stage.is_over.store(false, Ordering::Relaxed);
    stage.all_have_audience.store(false, Ordering::Relaxed);
    stage.phase_is_all.store(false, Ordering::Relaxed);
    let seed = |number: u64| stage.plan.seed ^ (round * 1_000 + number) << 32;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| Client::new(stage, round * CLIENTS + number, seed(number)))
        .map(|client| thread::spawn(move || client.run()))
        .collect();
    let holders: Vec<_> = (0..HOLDERS)
        .map(|number| Holder::new(stage, seed(100 + number), round * HOLDERS + number))
        .map(|holder| thread::spawn(move || holder.run()))
        .collect();
    until(lasting / 2, || false);
    stage.phase_is_all.store(true, Ordering::Relaxed);
    assert!(until(PATIENCE, || stage.all_have_audience.load(Ordering::Relaxed)), "the publisher hangs");
    until(lasting / 2, || false);
    stage.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        for (verb, [done, refused, waited]) in join("client", client) {
            let all = counts.entry(verb).or_default();
            *all = [all[0] + done, all[1] + refused, all[2] + waited];
        }
    }
    holders.into_iter().for_each(|holder| counts.entry("(probes received)").or_default()[0] += join("holder", holder));
}

/// All is announced, and the announcements give the state.
fn agree(stage: &Stage, session: &mut Session) {
    let mut differs = String::new();
    let agrees = until(PATIENCE, || {
        differs = difference(stage, session).unwrap_or_default();
        differs.is_empty()
    });
    assert!(agrees, "{differs}");
}

/// What differs between the tables and what was announced and published of them.
fn difference(stage: &Stage, session: &mut Session) -> Option<String> {
    let metrics = stage.tables.metrics();
    if metrics.changes_waiting > 0 {
        return Some(format!("{} changes wait", metrics.changes_waiting));
    }
    let received = stage.received.lock();
    assert!(received.faults.is_empty(), "{:#?}", received.faults);
    for table in [KEPT, OLD].iter().chain(NAMES) {
        let totals = [kept(&stage.tables, table), counted(&stage.tables, table)];
        if totals[0] != totals[1] {
            return Some(format!("{}: {totals:?} are counted, and are there", String::from_utf8_lossy(table)));
        }
        for number in 0..KEYS {
            let key = key_of(number);
            let is_there = session.batch(stage.now()).get(table, &key).is_ok();
            let last = received.last.get(&(table.to_vec(), key)).map(|last| last.0);
            let agrees = match last {
                None => !is_there || *table != KEPT,
                Some(last) => is_there == (last == ChangeKind::Updated),
            };
            if !agrees {
                let name = String::from_utf8_lossy(table);
                return Some(format!("{name} {number}: is there: {is_there}, received last: {last:?}"));
            }
        }
        if let Some(fault) = stage.plan.has_feed.then(|| copy_differs(stage, &received, session, table)).flatten() {
            return Some(fault);
        }
    }
    None
}

/// How the follower's copy of the newest life of a table differs from the table.
fn copy_differs(stage: &Stage, received: &Received, session: &mut Session, table: &[u8]) -> Option<String> {
    let state = match session.batch(stage.now()).feed_state(table) {
        Ok(state) => state,
        Err(Refusal::TableNotFound) => return None,
        Err(refusal) => return Some(format!("{refusal:?}")),
    };
    let life = state.next.incarnation;
    let follower = (table.to_vec(), if table == OLD { life } else { 0 });
    let Some(copy) = received.followers.get(&follower).and_then(|follower| follower.lives.get(&life)) else {
        return (state.next.sequence != 1).then(|| format!("nothing was published of life {life}"));
    };
    if (copy.next, copy.digest()) != (state.next.sequence, state.digest) {
        return Some(format!("the copy is {:?} at {}, the feed {state:?}", copy.digest(), copy.next));
    }
    let mut present = Vec::new();
    for (key, (version, value)) in &copy.elements {
        match session.batch(stage.now()).get_entry(table, key, || stage.now()) {
            Ok(entry) if (entry.version, entry.value) == (*version, &value[..]) => present.push(key),
            other => {
                return Some(format!(
                    "{key:?} is {:?} in the copy and {:?}",
                    version,
                    other.map(|entry| entry.version)
                ));
            }
        }
    }
    None
}

/// Deletes all tables. Nothing is left.
fn clear(stage: &Stage, session: &mut Session) {
    for table in stage.tables.metrics().tables {
        session.batch(stage.now()).delete_table(&table.name).unwrap();
    }
    let mut left = String::new();
    let is_clear = until(PATIENCE, || {
        session.rest(stage.now());
        let metrics = stage.tables.metrics();
        let counts = [metrics.tables.len() as u64, metrics.memory.used, metrics.timers, metrics.changes_waiting];
        let shared = &stage.tables.0;
        let more = (shared.memory_budget.is_table_leaving(), shared.catalog.histories());
        left = format!("{counts:?} tables, bytes, timers and changes are left, {more:?}");
        counts == [0; 4] && more == (false, 0)
    });
    assert!(is_clear, "{left}");
    let received = stage.received.lock();
    assert!(received.faults.is_empty(), "{:#?}", received.faults);
    assert!(received.announced > 0 && (received.published > 0) == stage.plan.has_feed);
}

/// In a process of its own: its threads wait for guards, also for those of tests beside it.
#[test]
fn a_short_storm_leaves_no_fault_and_nothing_behind() {
    alone("tables::tests::storm::a_short_storm_leaves_no_fault_and_nothing_behind", || {
        let seed = seed_of_now();
        for seed in [1, 2, 3, seed] {
            let plan = Plan::new(seed);
            println!("{plan:?}");
            storm(plan, 2, Duration::from_millis(400));
        }
    });
}

/// The long form: nothing unless it is asked for.
#[test]
fn a_storm_of_as_many_seconds_as_are_asked_for_leaves_no_fault() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let Some(seconds) = number("SPINDLE_STORM_SECONDS") else { return };
    let (first, start) = (number("SPINDLE_SEED").unwrap_or_else(seed_of_now), Instant::now());
    let mut all = Counts::new();
    let seeds = (first..).take_while(|_| start.elapsed() < Duration::from_secs(seconds));
    for seed in seeds {
        let plan = Plan::new(seed);
        println!("{:>5} s  {plan:?}", start.elapsed().as_secs());
        for (verb, [done, refused, waited]) in storm(plan, 3, Duration::from_secs(2)) {
            let sum = all.entry(verb).or_default();
            *sum = [sum[0] + done, sum[1] + refused, sum[2] + waited];
        }
    }
    println!("| verb | done | refused | put off |\n|---|---:|---:|---:|");
    all.iter().for_each(|(verb, [done, refused, waited])| println!("| {verb} | {done} | {refused} | {waited} |"));
    println!("0 faults");
}
