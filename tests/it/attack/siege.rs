//! How long attackers continue, how much they may send, and the counts.
//!
//! ```text
//! attack ──────────── until `end` ─► ending: SIGTERM, attackers continue ─► over: the server is gone
//! ```
//! This module does not make the attackers' messages.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::lock::{Condvar, Mutex};

/// Wrong answers that are reported one by one.
const REPORTED_MAX: usize = 8;

/// The state of one round, shared by all its threads. Counters are only ever added to and read at the end, so Relaxed
/// is enough for them. It is enough for the flags too, which order no other data.
pub(super) struct Siege {
    lasting: Duration,
    ending: AtomicBool,
    over: Mutex<bool>,
    ends: Condvar,
    pub(super) sent: AtomicU64,
    pub(super) asked: AtomicU64,
    pub(super) wrong: AtomicU64,
    gap_nanos: AtomicU64,
    reported: Mutex<Vec<String>>,
}

/// The reason why a control client stops.
#[derive(Debug)]
pub(super) enum ControlError {
    /// There was no answer.
    Missing(String),
    /// The answer was not the due one.
    Wrong(String),
}

/// Passes if the answer is the due one. Otherwise `what` is wrong.
pub(super) fn expect(due: bool, what: impl FnOnce() -> String) -> Result<(), ControlError> {
    if due { Ok(()) } else { Err(ControlError::Wrong(what())) }
}

impl Siege {
    pub(super) fn lasting(time: Duration) -> Self {
        Self {
            lasting: time,
            ending: AtomicBool::new(false),
            over: Mutex::new(false),
            ends: Condvar::new(),
            sent: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            gap_nanos: AtomicU64::new(0),
            reported: Mutex::default(),
        }
    }

    /// Waits from now until it is time for the server to end, and sets that state.
    pub(super) fn wait_for_end(&self) {
        let end = Instant::now() + self.lasting;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.rest(left);
        }
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether the server has the signal to end, so that it need not answer any more.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// The server is gone.
    pub(super) fn is_over(&self) -> bool {
        *self.over.lock()
    }

    pub(super) fn end(&self) {
        *self.over.lock() = true;
        self.ends.notify_all();
    }

    /// Waits until the server is gone, at most this long. Returns whether it is gone.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let mut over = self.over.lock();
        let _timed_out = self.ends.wait_while_for(&mut over, |over| !*over, time);
        *over
    }

    /// Counts messages or connections of attackers.
    pub(super) fn count(&self, sent: usize) {
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }

    /// Counts a wrong answer, and reports the first ones.
    pub(super) fn fault(&self, who: &str, what: impl Display) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        let mut reported = self.reported.lock();
        if reported.len() < REPORTED_MAX {
            reported.push(format!("{who}: {what}"));
        }
    }

    /// A question of a control client and its answer, counted and timed.
    pub(super) fn ask<T, E: Display>(&self, question: impl FnOnce() -> Result<T, E>) -> Result<T, ControlError> {
        self.ask_many(1, question)
    }

    /// Several questions at once.
    pub(super) fn ask_many<T, E: Display>(
        &self,
        count: usize,
        questions: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, ControlError> {
        let asked = Instant::now();
        let answer = questions();
        if answer.is_ok() && !self.is_ending() {
            let nanos = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.gap_nanos.fetch_max(nanos, Ordering::Relaxed);
        }
        self.asked.fetch_add(count as u64, Ordering::Relaxed);
        answer.map_err(|error| ControlError::Missing(error.to_string()))
    }

    /// Makes a control client ask until the server is gone. A missing answer is a fault unless the server is ending.
    pub(super) fn keep_asking(&self, who: &str, mut step: impl FnMut() -> Result<(), ControlError>) {
        while !self.is_over() {
            match step() {
                Ok(()) => {}
                Err(ControlError::Missing(_)) if self.is_ending() => return,
                Err(ControlError::Missing(what) | ControlError::Wrong(what)) => return self.fault(who, what),
            }
        }
    }

    /// The longest time that a control client waited for an answer.
    pub(super) fn longest_gap(&self) -> Duration {
        Duration::from_nanos(self.gap_nanos.load(Ordering::Relaxed))
    }

    pub(super) fn reported(&self) -> Vec<String> {
        self.reported.lock().clone()
    }
}
