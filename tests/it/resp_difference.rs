//! Random programs of Redis commands, on Redis and on Spindle: every reply is the same.
//!
//! ```text
//! generate: seed ─► Program ─► play, round: both servers ─► align ─► rules, known ─► shrink ─► report
//! families: commands           link, reply: bytes         which command  same?
//! ```
//! The oracle is Debian's redis-server 7.0. Replies are compared as values with their type and their bytes. Sets
//! without an order, times, and random keys have rules in `rules`. Differences on purpose are rows of a table, read by
//! `known`.
//!
//! | variable | meaning |
//! |---|---|
//! | `SPINDLE_RESP_SEED` | runs the round of this seed alone |
//! | `SPINDLE_RESP_FAMILIES` | families of commands, such as `strings,counters`. Unset: all that Spindle has |
//! | `SPINDLE_RESP_COMMANDS` | the number of commands. Unset: a short run |
//! | `SPINDLE_RESP_FROM` | the seed of the first round |
//! | `SPINDLE_RESP_WORKERS` | threads, each with two servers of its own. Unset: 2 |

use std::time::{Duration, Instant};

mod align;
mod campaign;
mod command;
mod dump;
mod families;
mod generate;
mod known;
pub(crate) mod link;
mod maker;
pub(crate) mod oracle;
mod planted;
mod play;
pub(crate) mod reply;
mod round;
mod rules;
mod shrink;
mod special;

use campaign::Campaign;
use generate::Selection;
use known::Known;
use link::Address;
use oracle::Running;

use crate::harness::{FRONTENDS, Server, number_of, real_peer};

/// Variables of the environment.
const SEED: &str = "SPINDLE_RESP_SEED";
const FAMILIES: &str = "SPINDLE_RESP_FAMILIES";
const COMMANDS: &str = "SPINDLE_RESP_COMMANDS";
const FROM: &str = "SPINDLE_RESP_FROM";
const WORKERS: &str = "SPINDLE_RESP_WORKERS";

/// Families whose clients may get events of keys.
const EVENTS: [&str; 3] = ["channels", "channels_in_transactions", "key_events"];
/// Families that are compared without events. A script is one change here, and as many in Redis as it makes.
const SILENT: [&str; 1] = ["scripts"];

/// Commands of an ordinary test.
const SHORT_RUN: u64 = 100_000;
/// A run of so many commands meets every difference on purpose.
const LONG_RUN: u64 = 1_000_000;
/// The longest run.
const TIME_MAX: Duration = Duration::from_secs(3_600);

/// A campaign of this environment.
fn campaign<'a>(start: &'a (dyn Fn() -> Running + Sync), known: &'a Known, absent: &[&str]) -> Campaign<'a> {
    let seed = number_of(SEED);
    Campaign {
        start,
        selection: std::env::var(FAMILIES).map_or_else(|_| Selection::without(absent), |list| Selection::of(&list)),
        known,
        seed: seed.or_else(|| number_of(FROM)).unwrap_or(1),
        rounds_max: if seed.is_some() { 1 } else { u64::MAX },
        commands_max: number_of(COMMANDS).unwrap_or(SHORT_RUN),
        time_max: TIME_MAX,
        workers: if seed.is_some() { 1 } else { number_of(WORKERS).map_or(2, |count| usize::try_from(count).unwrap()) },
    }
}

/// Compares a server with Redis. `page` has the table of the differences on purpose.
fn compare(start: &(dyn Fn() -> Running + Sync), page: &str, absences: &[&[&str]]) {
    let known = Known::read(page).unwrap();
    let mut is_long = std::env::var(FAMILIES).is_err();
    for absent in absences {
        let campaign = campaign(start, &known, absent);
        is_long &= campaign.rounds_max > 1 && campaign.commands_max >= LONG_RUN;
        let summary = campaign.run().unwrap_or_else(|report| panic!("{report}"));
        println!("{summary}");
    }
    let stale = known.stale();
    assert!(!is_long || stale.is_empty(), "differences that explain nothing any more: {stale:?}");
}

/// A page without any difference on purpose.
const NO_DIFFERENCE: &str = "| name | what Redis does | what Spindle does | rule |\n|---|---|---|---|\n";

fn has_oracle() -> bool {
    real_peer("redis-server").is_some()
}

/// Spindle with this frontend, which serves nothing else.
fn spindle(frontend: &str) -> Running {
    let flags = ["--kv", "off", "--publish", "off", "--resp", "127.0.0.1:0", "--frontend", frontend];
    let server = Server::start_exactly(&flags);
    Running::new(Address::Tcp(server.resp().parse().unwrap()), Box::new(server))
}

#[test]
fn redis_does_not_differ_from_redis() {
    if has_oracle() {
        compare(&oracle::redis, NO_DIFFERENCE, &[&[]]);
    }
}

#[test]
fn spindle_answers_as_redis() {
    if has_oracle() {
        let page = include_str!("../../src/services/resp/PROTOCOL.md");
        for frontend in FRONTENDS {
            println!("{frontend}:");
            compare(&|| spindle(frontend), page, &[&SILENT, &EVENTS]);
        }
    }
}

#[test]
fn planted_differences_are_found_and_shrunk() {
    if !has_oracle() {
        return;
    }
    for fault in planted::FAULTS {
        let known = Known::read(NO_DIFFERENCE).unwrap();
        let start = || planted::start(fault);
        let begin = Instant::now();
        let campaign = Campaign { workers: 1, seed: 1, rounds_max: u64::MAX, ..campaign(&start, &known, &[]) };
        let report = campaign.run().expect_err("the fuzz has not found it");
        println!("{fault:?}, after {:?}: {report}", begin.elapsed());
        let size = report.split_once("program of ").and_then(|(_, rest)| rest.split_once(' '));
        let commands: usize = size.unwrap().0.parse().unwrap();
        assert!((1..=6).contains(&commands), "{fault:?} is not shrunk: {report}");
    }
}

#[test]
fn a_difference_of_the_table_is_accepted_and_a_stale_row_is_named() {
    if !has_oracle() {
        return;
    }
    let page = format!(
        "{NO_DIFFERENCE}| words | long | short | `replace *: -ERR value is not an int* => -ERR value is no integer` |\n\
        | stale | a | b | `error GET: ERR no` |\n"
    );
    let known = Known::read(&page).unwrap();
    let start = || planted::start(planted::Fault::ErrorText);
    let families = Selection::of("strings,counters,times,transactions,walks");
    let campaign = Campaign { selection: families, commands_max: 20_000, ..campaign(&start, &known, &[]) };
    let summary = campaign.run().unwrap_or_else(|report| panic!("{report}"));
    println!("{summary}");
    assert_eq!(known.stale(), ["stale"]);
}
