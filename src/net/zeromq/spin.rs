//! Whether a thread that has nothing to do looks for work for a while before it sleeps.
//!
//! ```text
//! nothing to do ─► is it worth while? ─ no ──────────────────────────────► sleep
//!                        │ yes                                              ▲
//!                        ▼                                                  │ SPIN_TIME is over, or
//!                  look ─► yield the core ─► look ─► … ─► work has come     │ another thread has the core
//! ```
//! To wake a thread that sleeps costs the client's system call some microseconds, and the request tens of them on a
//! virtual machine. A client without pauses sends its next request within this time after the reply.
//!
//! The thread keeps a score: it rises when work came while the thread looked for it, and falls when none came. At zero
//! the thread sleeps at once, and only tries again now and then. So a thread looks for work only where it finds some in
//! more than half of the cases, and an idle thread costs next to nothing.
//!
//! Between two looks the thread yields its core. If that takes long, another thread needs the core, and looking for
//! work would only delay it: then the thread does not look for the next [`SHARED_CORE_TIME`].
//!
//! This module reads no clock, yields no core and waits for nothing: the caller passes all of them in.

use std::time::Duration;

use crate::clock::Now;

/// How long a thread looks for work before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(40);
/// A yield that takes longer has given the core to another thread.
const YIELD_NANOS_MAX: u64 = 5_000;
/// How long a thread does not look for work after another thread has needed its core.
const SHARED_CORE_TIME: Duration = Duration::from_millis(5);
/// The highest score.
const SCORE_MAX: u32 = 16;
/// With the score 0 one of so many waits looks for work nevertheless.
const TRIAL_ONE_OF: u32 = 64;

/// The record by which one thread decides.
#[derive(Debug)]
pub(super) struct SpinRecord {
    score: u32,
    /// Waits since the last look for work.
    skipped: u32,
    /// The core is shared until then.
    shared_until: Now,
}

impl SpinRecord {
    pub(super) fn new() -> Self {
        Self { score: 0, skipped: 0, shared_until: Now::from_nanos(0) }
    }

    /// Begins a search for work, if that is worth while. `now` may be a little old.
    pub(super) fn begin(&mut self, now: Now, clock: impl Fn() -> Now) -> Option<WorkSearch<'_>> {
        if !self.is_worth_while(now) {
            return None;
        }
        let before = clock();
        Some(WorkSearch { end: before.after(SPIN_TIME), before, record: self })
    }

    fn is_worth_while(&mut self, now: Now) -> bool {
        if now < self.shared_until {
            return false;
        }
        self.skipped += 1;
        let looks = self.score > 0 || self.skipped >= TRIAL_ONE_OF;
        if looks {
            self.skipped = 0;
        }
        looks
    }
}

/// A thread looks for work, again and again.
pub(super) struct WorkSearch<'r> {
    record: &'r mut SpinRecord,
    before: Now,
    end: Now,
}

impl WorkSearch<'_> {
    /// The thread has found work.
    pub(super) fn succeed(self) {
        self.record.score = (self.record.score + 1).min(SCORE_MAX);
    }

    /// The thread has found none. `None`: it sleeps now.
    pub(super) fn search_again(mut self, clock: impl Fn() -> Now, yield_core: impl Fn()) -> Option<Self> {
        yield_core();
        let now = clock();
        let record = &mut *self.record;
        if self.before.nanos_until(now) > YIELD_NANOS_MAX {
            (record.score, record.shared_until) = (record.score / 2, now.after(SHARED_CORE_TIME));
            return None;
        }
        if now >= self.end {
            record.score = record.score.saturating_sub(1);
            return None;
        }
        self.before = now;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A clock that each look and each yield moves.
    struct Script {
        nanos: Cell<u64>,
        yield_nanos: u64,
        looks: Cell<u32>,
    }

    impl Script {
        fn new() -> Self {
            Self { nanos: Cell::new(1_000_000_000), yield_nanos: 100, looks: Cell::new(0) }
        }

        fn now(&self) -> Now {
            Now::from_nanos(self.nanos.get())
        }

        /// One wait, in which work comes after so many nanoseconds. Returns whether the thread found it awake.
        fn wait(&self, record: &mut SpinRecord, work_after: u64) -> bool {
            let work_at = self.nanos.get() + work_after;
            let mut search = record.begin(self.now(), || self.now());
            let mut found = false;
            while let Some(going) = search.take() {
                self.looks.set(self.looks.get() + 1);
                self.nanos.set(self.nanos.get() + 400);
                if self.nanos.get() >= work_at {
                    going.succeed();
                    found = true;
                } else {
                    search = going.search_again(|| self.now(), || self.nanos.set(self.nanos.get() + self.yield_nanos));
                }
            }
            self.nanos.set(self.nanos.get().max(work_at));
            found
        }
    }

    #[test]
    fn a_thread_with_a_quick_client_finds_its_requests_awake() {
        let (script, mut record) = (Script::new(), SpinRecord::new());
        let found = (0..1_000).filter(|_| script.wait(&mut record, 10_000)).count();
        assert!(found > 1_000 - 2 * TRIAL_ONE_OF as usize, "{found}");
    }

    #[test]
    fn a_thread_with_few_requests_hardly_ever_looks() {
        let (script, mut record) = (Script::new(), SpinRecord::new());
        (0..100).for_each(|_| _ = script.wait(&mut record, 10_000));
        script.looks.set(0);
        assert_eq!((0..6_400).filter(|_| script.wait(&mut record, 1_000_000)).count(), 0);
        let each = (40_000 / 500) + 1;
        let waits = script.looks.get() / each;
        assert!(waits <= 100 + SCORE_MAX + 2, "{waits} waits looked for work in vain");
        assert!((0..200).any(|_| script.wait(&mut record, 10_000)), "it notices that the client is quick again");
    }

    #[test]
    fn a_thread_leaves_its_core_to_another_that_needs_it() {
        let (mut script, mut record) = (Script::new(), SpinRecord::new());
        (0..200).for_each(|_| _ = script.wait(&mut record, 10_000));
        script.yield_nanos = 50_000;
        assert!(!script.wait(&mut record, 10_000), "the other thread ran");
        script.looks.set(0);
        (0..100).for_each(|_| _ = script.wait(&mut record, 10_000));
        assert_eq!(script.looks.get(), 0, "not within for some milliseconds");
        script.yield_nanos = 100;
        assert!((0..1_000).any(|_| script.wait(&mut record, 10_000)), "later it tries again");
    }
}
