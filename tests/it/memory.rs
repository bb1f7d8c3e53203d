//! A memory limit holds: the process stays below it while elements come, go and come again in other sizes.
//!
//! By itself this tries 64 MiB, with elements of three sizes. With `SPINDLE_MEMORY_ROUNDS`, which `perf/memory` sets,
//! it takes 80 % of 512 MiB and that many further rounds of other sizes, with every allocator and both frontends, or
//! beside the two above with the one that `SPINDLE_MEMORY_ONLY` names, as `native,system`.
//! `SPINDLE_MEMORY_GROUP` names the folder of a control group that is limited to 512 MiB. Servers then run in it with
//! default flags.

use std::time::Duration;

use rustix::process::Pid;

use spindle::clients::rust::tables::{Client, Error};
use spindle::services::tables::wire::Reason;

use crate::admin::{awaited, get};
use crate::harness::Server;
use crate::seeded_rng::SeededRng;

const TABLE: &[u8] = b"t";
/// Pairs of a request.
const PAIRS: usize = 256;
/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Elements of a request that deletes.
const DELETED_AT_ONCE: usize = 1_000;
/// One in this many elements stays when the others are deleted, at random.
const STAYS_ONE_OF: usize = 20;
/// Bytes that the process may have beyond the limit: the slack of the flag, growth between two looks, and elements that
/// move.
const BEYOND_BYTES: u64 = (64 + 32) << 20;
/// The least share of the limit that elements fill in each round, in percent. An index does not shrink. So a round of
/// long values after one of four million short ones finds a quarter of the memory taken, and part of the rest is holes.
const FILLED_PERCENT: u64 = 50;
/// Bytes of an element beside its value: slot, header and index.
const ELEMENT_BYTES: u64 = 32 + 16 + 14;

/// One combination to try.
struct Trial {
    limit: u64,
    rounds: usize,
    group: Option<String>,
}

impl Trial {
    fn from_environment() -> Self {
        let group = std::env::var("SPINDLE_MEMORY_GROUP").ok();
        if let Ok(rounds) = std::env::var("SPINDLE_MEMORY_ROUNDS") {
            return Self { limit: (512 << 20) / 5 * 4, rounds: rounds.parse().unwrap(), group };
        }
        Self { limit: 64 << 20, rounds: 1, group }
    }

    fn start(&self, frontend: &str, allocator: &str) -> Server {
        let flags = ["--frontend", frontend, "--allocator", allocator];
        match &self.group {
            Some(group) => Server::start_in_group(group, &flags),
            None => Server::start(&[&flags[..], &["--max-memory", &self.limit.to_string()]].concat()),
        }
    }
}

/// The value of this name in `/proc/PID/status`, in bytes.
pub(crate) fn status(process: Pid, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

fn key(number: usize) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// Stores elements from this number on until memory is out. Returns the first number that was not stored.
fn fill(client: &mut Client, first: usize, bytes: usize) -> usize {
    let value = vec![b'v'; bytes];
    let mut next = first;
    loop {
        let keys: Vec<_> = (next..next + PAIRS).map(key).collect();
        let pairs: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&key[..], &value[..]]).collect();
        match client.update_many(TABLE, None, &pairs) {
            Ok(()) => next += PAIRS,
            Err(Error::Refused(Reason::OutOfMemory)) => return next,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Deletes elements, many at a time.
fn delete(client: &mut Client, numbers: &[usize]) {
    for numbers in numbers.chunks(DELETED_AT_ONCE) {
        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let deleted = client.delete_many(TABLE, &keys).unwrap();
        assert!(deleted.len() == keys.len() && deleted.iter().all(|was_there| *was_there));
    }
}

/// Deletes all but one in twenty of these elements, and those that stayed before. Returns the elements that stay.
fn thin_out(client: &mut Client, rng: &mut SeededRng, stayed: Vec<usize>, range: std::ops::Range<usize>) -> Vec<usize> {
    let (stay, go): (Vec<_>, Vec<_>) = range.partition(|_| rng.index(STAYS_ONE_OF) == 0);
    delete(client, &go);
    delete(client, &stayed);
    stay
}

/// Fills with long values, keeps one in twenty, fills with short ones; then with others, again and again.
fn fills_and_thins(trial: &Trial, frontend: &str, allocator: &str) {
    let server = trial.start(frontend, allocator);
    let before = status(server.pid(), "VmRSS");
    let mut client = Client::connect_within(server.kv(), PATIENCE).unwrap();
    client.create_table(TABLE).unwrap();
    let mut rng = SeededRng(7);
    let sizes = [1024, 64, 500, 16, 200, 1000, 8, 100, 700, 40, 300, 1024];
    let (mut stayed, mut first) = (Vec::new(), 0);
    for (round, bytes) in sizes.into_iter().take(trial.rounds + 2).enumerate() {
        let end = fill(&mut client, first, bytes);
        let stored = (end - first) as u64 * (ELEMENT_BYTES + bytes as u64);
        let most = status(server.pid(), "VmHWM");
        let share = 100 * stored / trial.limit;
        println!("{frontend} {allocator}: {} of {bytes} bytes ({share} %), most {} MiB", end - first, most >> 20);
        assert!(most < before + trial.limit + BEYOND_BYTES, "{most} bytes at most, {before} at first");
        assert!(share >= FILLED_PERCENT, "{stored} bytes of {} were stored, {bytes} at a time", trial.limit);
        let number = rng.index(end - first) + first;
        assert_eq!(client.get(TABLE, &key(number)).unwrap(), vec![b'v'; bytes], "it is still read");
        for number in &stayed {
            assert!(client.get(TABLE, &key(*number)).is_ok(), "what was not deleted is there");
        }
        if round <= trial.rounds {
            stayed = thin_out(&mut client, &mut rng, stayed, first..end);
        }
        first = end;
    }
    drop(client);
    server.stop();
}

#[test]
fn a_limit_of_memory_holds_with_mimalloc_over_the_queue() {
    fills_and_thins(&Trial::from_environment(), "queue", "mimalloc");
}

#[test]
fn a_limit_of_memory_holds_with_jemalloc_over_native_connections() {
    fills_and_thins(&Trial::from_environment(), "native", "jemalloc");
}

#[test]
fn a_limit_of_memory_holds_with_any_allocator_over_any_frontend() {
    let trial = Trial::from_environment();
    if trial.limit > BEYOND_BYTES * 2 {
        let only = std::env::var("SPINDLE_MEMORY_ONLY").unwrap_or_default();
        for (frontend, allocator) in
            [("native", "mimalloc"), ("queue", "jemalloc"), ("queue", "system"), ("native", "system")]
        {
            if only.is_empty() || only == format!("{frontend},{allocator}") {
                fills_and_thins(&trial, frontend, allocator);
            }
        }
    }
}

/// STATS and the metrics have the garbage. At rest there is none.
#[test]
fn garbage_is_gone_at_rest_and_the_metrics_say_so() {
    let server = Server::start(&["--admin", "0"]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(TABLE).unwrap();
    for round in 0..4_u8 {
        let pairs: Vec<_> = (0..PAIRS).map(|number| (key(number), [round; 1_000])).collect();
        let pairs: Vec<[&[u8]; 2]> = pairs.iter().map(|(key, value)| [&key[..], &value[..]]).collect();
        client.update_many(TABLE, None, &pairs).unwrap();
    }
    awaited("a server without garbage", || {
        let memory = &server.stats()["memory"];
        (memory["garbage_bytes"] == 0 && memory["garbage_objects"] == 0).then_some(())
    });
    let (_, metrics) = get(server.admin(), "/metrics");
    for name in ["spindle_memory_garbage_bytes", "spindle_memory_garbage_objects"] {
        assert!(metrics.contains(&format!("\n{name} 0")), "{metrics}");
    }
    server.stop();
}
