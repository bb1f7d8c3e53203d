//! Many rounds: workers with servers of their own, until a limit or the first difference, and the report of both.
//!
//! ```text
//! worker ─► a redis-server and the other server ─► rounds, a seed each ─► difference: run again, shrink, report
//! ```
//! A round begins with empty databases and new connections, so its seed is enough to repeat it.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::command::Program;
use super::generate::{Selection, program};
use super::known::Known;
use super::oracle::{Running, redis};
use super::play::{Difference, Outcome, run};
use super::round::{CONNECT, Pair};
use super::shrink::shrink;

/// How long a server may take to answer a step.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same while a program is shrunk: what is left may wait for replies that never come.
const SHRINKING_PATIENCE: Duration = Duration::from_secs(2);
/// How often a difference is looked for again before it counts as one that came once.
const REPEATS: usize = 3;
/// Characters of a reply in a report.
const SHOWN_MAX: usize = 2_000;
/// Rounds that may stall: one in so many, and a few.
const ROUNDS_PER_STALL: u64 = 200;

/// What to run.
pub(crate) struct Campaign<'a> {
    /// Starts the server beside the oracle, once for each worker.
    pub(crate) start: &'a (dyn Fn() -> Running + Sync),
    pub(crate) selection: Selection,
    pub(crate) known: &'a Known,
    /// The seed of the first round. Each further round takes the next number.
    pub(crate) seed: u64,
    pub(crate) rounds_max: u64,
    pub(crate) commands_max: u64,
    pub(crate) time_max: Duration,
    pub(crate) workers: usize,
}

/// What was run. Written by all workers, read when they have ended.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    next: AtomicU64,
    pub(crate) rounds: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) stalled: AtomicU64,
    is_over: AtomicBool,
    found: Mutex<Option<String>>,
    stall: Mutex<Option<u64>>,
}

impl Campaign<'_> {
    /// Runs all rounds. Returns a summary.
    ///
    /// # Errors
    ///
    /// The report of the first difference, or of too many rounds in which no server answered.
    pub(crate) fn run(&self) -> Result<String, String> {
        let progress = Progress::default();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..self.workers {
                scope.spawn(|| self.work(&progress, begin));
            }
        });
        if let Some(found) = progress.found.lock().expect("no worker panicked").take() {
            return Err(found);
        }
        let summary = self.summary(&progress, begin.elapsed());
        // Relaxed: the workers have been joined, here and below.
        let stalled = progress.stalled.load(Ordering::Relaxed);
        let may_stall = 3 + progress.rounds.load(Ordering::Relaxed) / ROUNDS_PER_STALL;
        if stalled > may_stall { Err(format!("too many rounds stalled\n{summary}")) } else { Ok(summary) }
    }

    fn summary(&self, progress: &Progress, time: Duration) -> String {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (rounds, commands) = (load(&progress.rounds), load(&progress.commands));
        let speed = u128::from(commands) * 1_000 / time.as_millis().max(1);
        let mut text = format!("{commands} commands in {rounds} rounds, {speed} a second, from seed {}\n", self.seed);
        let stall = *progress.stall.lock().expect("no worker panicked");
        let last = stall.map_or_else(String::new, |seed| format!(" (the last with seed {seed})"));
        let (ended, stalled) = (load(&progress.ended), load(&progress.stalled));
        writeln!(text, "{ended} rounds ended at a difference on purpose, {stalled} stalled{last}").expect("it fits");
        text + &self.known.to_string()
    }

    /// Runs rounds until a limit, or until some worker has found a difference.
    fn work(&self, progress: &Progress, begin: Instant) {
        let (redis, other) = (redis(), (self.start)());
        let addresses = [redis.address.clone(), other.address.clone()];
        let pair = Pair { addresses, known: self.known, patience: PATIENCE };
        // Relaxed: the limits are rough, and a late worker does a round too much.
        while !progress.is_over.load(Ordering::Relaxed)
            && progress.commands.load(Ordering::Relaxed) < self.commands_max
            && begin.elapsed() < self.time_max
        {
            let number = progress.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.rounds_max {
                return;
            }
            let seed = self.seed.wrapping_add(number);
            let program = program(seed, &self.selection);
            match run(&pair, &program) {
                Outcome::Same => {}
                Outcome::Ended => _ = progress.ended.fetch_add(1, Ordering::Relaxed),
                Outcome::Stalled => {
                    progress.stalled.fetch_add(1, Ordering::Relaxed);
                    *progress.stall.lock().expect("no worker panicked") = Some(seed);
                }
                Outcome::Different(last) => {
                    let is_first = !progress.is_over.swap(true, Ordering::Relaxed);
                    if is_first {
                        let pair = Pair { patience: SHRINKING_PATIENCE, ..pair };
                        let mut repeater = Repeater { start: self.start, pair, other, last: *last };
                        let report = report(&mut repeater, seed, &program);
                        *progress.found.lock().expect("no worker panicked") = Some(report);
                    }
                    return;
                }
            }
            progress.rounds.fetch_add(1, Ordering::Relaxed);
            progress.commands.fetch_add(program.commands() as u64, Ordering::Relaxed);
        }
    }
}

/// Runs programs for a report, and starts the other server again after each crash.
struct Repeater<'a> {
    start: &'a (dyn Fn() -> Running + Sync),
    pair: Pair<'a>,
    other: Running,
    last: Difference,
}

impl Repeater<'_> {
    fn differs(&mut self, program: &Program) -> bool {
        let mut outcome = run(&self.pair, program);
        if matches!(&outcome, Outcome::Different(difference) if difference.command == CONNECT) {
            self.other = (self.start)();
            self.pair.addresses[1] = self.other.address.clone();
            outcome = run(&self.pair, program);
        }
        match outcome {
            Outcome::Different(difference) if difference.command != CONNECT => {
                self.last = *difference;
                true
            }
            _ => false,
        }
    }
}

/// The difference, the smallest program that shows it, and how to repeat the round.
fn report(repeater: &mut Repeater<'_>, seed: u64, program: &Program) -> String {
    let mut cut = program.clone();
    cut.steps.truncate(repeater.last.step + 1);
    let repeats = (0..REPEATS).any(|_| repeater.differs(&cut));
    let small = if repeats { shrink(&cut, &mut |program| repeater.differs(program)) } else { cut };
    let note = if repeats { "" } else { " (once, and not again)" };
    let mut text = format!("the servers differ{note}\n\n");
    let Difference { command, redis, other, .. } = &repeater.last;
    let [command, redis, other] = [command, redis, other].map(|text| shortened(text));
    writeln!(text, "  command: {command}\n  redis:   {redis}\n  other:   {other}").expect("it fits");
    writeln!(text, "\nprogram of {} commands ({} before):", small.commands(), program.commands()).expect("it fits");
    text += &small.shown();
    writeln!(text, "\nrepeat with {}={seed}", super::SEED).expect("it fits");
    text
}

/// The text without what a person would not read.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
