//! How long attackers go on, how much they may send, and what was counted.
//!
//! ```text
//! attack ──────────── until `end` ─► ending: SIGTERM, attackers go on ─► over: the server is gone
//! ```
//! What is not here: what attackers send.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong answers that are told one by one.
const TOLD_MAX: usize = 8;

/// Where one round stands, shared by all its threads. Counters are only ever added to and read at the end, so Relaxed is
/// enough for them; so it is for the flags, which order nothing.
pub(super) struct Siege {
    end: Instant,
    ending: AtomicBool,
    over: Mutex<bool>,
    ends: Condvar,
    pub(super) sent: AtomicU64,
    pub(super) asked: AtomicU64,
    pub(super) wrong: AtomicU64,
    gap_nanos: AtomicU64,
    told: Mutex<Vec<String>>,
}

/// Why a control client does not go on.
#[derive(Debug)]
pub(super) enum Trouble {
    /// There was no answer.
    Missing(String),
    /// It was not the one that is due.
    Wrong(String),
}

/// The answer is the one that is due, or `what` is wrong.
pub(super) fn expect(due: bool, what: impl FnOnce() -> String) -> Result<(), Trouble> {
    if due { Ok(()) } else { Err(Trouble::Wrong(what())) }
}

impl Siege {
    pub(super) fn lasting(time: Duration) -> Self {
        Self {
            end: Instant::now() + time,
            ending: AtomicBool::new(false),
            over: Mutex::new(false),
            ends: Condvar::new(),
            sent: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            gap_nanos: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    /// Waits until it is time for the server to end, and says that it does.
    pub(super) fn wait_for_end(&self) {
        while let Some(left) = self.end.checked_duration_since(Instant::now()) {
            self.rest(left);
        }
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether the server has been told to end, so that it may not answer any more.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// The server is gone.
    pub(super) fn is_over(&self) -> bool {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ends.notify_all();
    }

    /// Waits until the server is gone, at most so long. Whether it is gone.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let (over, _) = self.ends.wait_timeout_while(over, time, |over| !*over).unwrap_or_else(PoisonError::into_inner);
        *over
    }

    /// Counts messages or connections of attackers.
    pub(super) fn count(&self, sent: usize) {
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }

    /// Counts a wrong answer, and tells of the first ones.
    pub(super) fn fault(&self, who: &str, what: impl Display) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TOLD_MAX {
            told.push(format!("{who}: {what}"));
        }
    }

    /// A question of a control client and its answer: counted, and timed.
    pub(super) fn ask<T, E: Display>(&self, question: impl FnOnce() -> Result<T, E>) -> Result<T, Trouble> {
        self.ask_many(1, question)
    }

    /// Some that are asked at once.
    pub(super) fn ask_many<T, E: Display>(
        &self,
        count: usize,
        questions: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Trouble> {
        let asked = Instant::now();
        let answer = questions();
        if answer.is_ok() && !self.is_ending() {
            let nanos = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.gap_nanos.fetch_max(nanos, Ordering::Relaxed);
        }
        self.asked.fetch_add(count as u64, Ordering::Relaxed);
        answer.map_err(|error| Trouble::Missing(error.to_string()))
    }

    /// Has a control client ask until the server is gone. An answer that is missing is a fault unless the server is ending.
    pub(super) fn keep_asking(&self, who: &str, mut step: impl FnMut() -> Result<(), Trouble>) {
        while !self.is_over() {
            match step() {
                Ok(()) => {}
                Err(Trouble::Missing(_)) if self.is_ending() => return,
                Err(Trouble::Missing(what) | Trouble::Wrong(what)) => return self.fault(who, what),
            }
        }
    }

    /// The longest time that a control client waited for an answer.
    pub(super) fn longest_gap(&self) -> Duration {
        Duration::from_nanos(self.gap_nanos.load(Ordering::Relaxed))
    }

    pub(super) fn told(&self) -> Vec<String> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
