//! The wheel compared with an ordered map: any sequence of operations, with the promises of `mod.rs` checked at each
//! step.
//!
//! The map holds for each armed timer the tick at which it belongs. All other expectations follow from that.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;

use crate::wheel::{Progress, TimerId, Wheel};

/// Ticks to sleep through at the end of a test. A jump reaches deadlines that are farther.
const FAR: u64 = 1 << 52;
/// The largest number of moves of one timer: one for each round of the top ring, and one for each level.
const MOVES_MAX: usize = (1 << 16) + 5;

/// The next step of a test. Deadlines and steps count from the time at which it happens.
#[derive(Clone, Debug)]
enum ModelStep {
    /// Arms some timers for the same deadline.
    Arm(Deadline, usize),
    /// Cancels the timer at this index of the list of armed ones, modulo its length.
    Cancel(usize),
    /// Cancels that timer and arms its payload again.
    Rearm(usize, Deadline),
    /// Advances the wheel once, by some ticks.
    Advance(u64, usize),
    /// Advances the wheel to its next wake, until it is done.
    Sleep(usize),
}

#[derive(Clone, Debug)]
enum Deadline {
    In(u64),
    Ago(u64),
    At(u64),
}

/// Distances around the sizes of slots and windows, and everything between them.
fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..20_u64,
        3 => 0..20_000_u64,
        4 => (prop::sample::select(vec![12_u32, 13, 24, 25, 36, 37, 43, 48, 49]), 1..4_u64, 0..5_u64)
            .prop_map(|(bits, times, off)| (times << bits) + off - 2),
        2 => (0..52_u32).prop_flat_map(|bits| 0..2_u64 << bits),
    ]
}

fn deadline() -> impl Strategy<Value = Deadline> {
    prop_oneof![
        12 => distance().prop_map(Deadline::In),
        1 => distance().prop_map(Deadline::Ago),
        1 => prop::sample::select(vec![0, 4_095, 4_096, 1 << 43, u64::MAX - 1, u64::MAX])
            .prop_map(Deadline::At),
    ]
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        8 => (deadline(), prop_oneof![3 => Just(1), 1 => 2..30_usize])
            .prop_map(|(deadline, count)| ModelStep::Arm(deadline, count)),
        2 => any::<usize>().prop_map(ModelStep::Cancel),
        2 => (any::<usize>(), deadline()).prop_map(|(pick, deadline)| ModelStep::Rearm(pick, deadline)),
        3 => (distance(), 1..40_usize).prop_map(|(ticks, budget)| ModelStep::Advance(ticks, budget)),
        2 => (1..40_usize).prop_map(ModelStep::Sleep),
    ]
}

/// The time at which a test begins. Some of these times are just before the end of windows of all levels, or of time
/// itself.
fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        (prop::sample::select(vec![12_u32, 13, 24, 36, 48]), 0..6_u64).prop_map(|(bits, off)| (1 << bits) + off - 3),
        (0..10_000_u64).prop_map(|off| u64::MAX - off),
        any::<u64>(),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Armed {
    id: TimerId,
    deadline: u64,
    /// The deadline, or the tick at which the wheel stood when it was armed.
    tick: u64,
}

/// The wheel and the map that the test compares it with.
struct Pair {
    wheel: Wheel<u64>,
    /// The latest time that the wheel got.
    now: u64,
    armed: BTreeMap<u64, Armed>,
    /// The same timers by tick.
    ticks: BTreeSet<(u64, u64)>,
    /// Their ids.
    ids: HashSet<TimerId>,
    payloads: u64,
}

impl Pair {
    fn new(now: u64) -> Self {
        Self {
            wheel: Wheel::new(now),
            now,
            armed: BTreeMap::new(),
            ticks: BTreeSet::new(),
            ids: HashSet::new(),
            payloads: 0,
        }
    }

    fn run(&mut self, step: &ModelStep) {
        match step {
            ModelStep::Arm(deadline, count) => {
                for _ in 0..*count {
                    self.payloads += 1;
                    self.arm(deadline, self.payloads);
                }
            }
            ModelStep::Cancel(pick) => {
                self.cancel(*pick);
            }
            ModelStep::Rearm(pick, deadline) => {
                if let Some(payload) = self.cancel(*pick) {
                    self.arm(deadline, payload);
                }
            }
            ModelStep::Advance(ticks, budget) => {
                self.now = self.now.saturating_add(*ticks);
                let _ = self.advance(*budget);
            }
            ModelStep::Sleep(budget) => self.sleep(*budget),
        }
        self.check();
    }

    fn arm(&mut self, deadline: &Deadline, payload: u64) {
        let deadline = match *deadline {
            Deadline::In(ticks) => self.now.saturating_add(ticks),
            Deadline::Ago(ticks) => self.now.saturating_sub(ticks),
            Deadline::At(tick) => tick,
        };
        let tick = deadline.max(self.wheel.now);
        let id = self.wheel.arm(deadline, payload);
        assert!(self.ids.insert(id), "an id was given twice");
        self.armed.insert(payload, Armed { id, deadline, tick });
        self.ticks.insert((tick, payload));
    }

    fn cancel(&mut self, pick: usize) -> Option<u64> {
        let pick = pick.checked_rem(self.armed.len())?;
        let (&payload, &armed) = self.armed.iter().nth(pick).unwrap();
        assert_eq!(self.wheel.cancel(armed.id), Some(payload));
        assert_eq!(self.wheel.cancel(armed.id), None);
        self.armed.remove(&payload);
        self.ids.remove(&armed.id);
        self.ticks.remove(&(armed.tick, payload));
        Some(payload)
    }

    /// One call of `advance`. Each timer that comes up must be the first by tick, due, armed and unchanged.
    fn advance(&mut self, budget: usize) -> Progress {
        let Self { wheel, now, armed, ticks, ids, .. } = self;
        let mut fired = 0;
        let progress = wheel.advance(*now, budget, |id, deadline, payload| {
            fired += 1;
            let expected = armed.remove(&payload).expect("it came up twice");
            assert_eq!((id, deadline), (expected.id, expected.deadline));
            assert!(expected.tick <= *now, "it came up early");
            assert_eq!(ticks.first().unwrap().0, expected.tick, "another came before it");
            ticks.remove(&(expected.tick, payload));
            ids.remove(&id);
        });
        assert!(fired <= budget);
        if progress == Progress::Done {
            assert!(self.ticks.first().is_none_or(|&(tick, _)| tick > self.now));
            assert!(self.wheel.next_wake().is_none_or(|wake| wake > self.now));
        }
        progress
    }

    /// Sleeps until the wheel's next wake.
    fn sleep(&mut self, budget: usize) {
        let Some(wake) = self.wheel.next_wake() else {
            return;
        };
        self.now = self.now.max(wake);
        self.finish(budget);
    }

    /// Calls the wheel until it is done. Each call must bring that nearer.
    fn finish(&mut self, budget: usize) {
        let moves = self.wheel.len() * MOVES_MAX;
        let mut calls = 0;
        while self.advance(budget) == Progress::More {
            calls += 1;
            assert!(calls <= moves / budget + 1, "it is never done");
        }
    }

    fn check(&self) {
        assert_eq!(self.wheel.len(), self.armed.len());
        assert_eq!(self.wheel.is_empty(), self.armed.is_empty());
        let wake = self.wheel.next_wake();
        assert_eq!(wake.is_none(), self.ticks.is_empty());
        if let (Some(wake), Some(&(tick, _))) = (wake, self.ticks.first()) {
            assert!(wake <= tick, "it would be woken too late");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_order_of_operations_behaves_like_an_ordered_map(
        start in start(),
        steps in prop::collection::vec(step(), 1..200),
        budget in 1..40_usize,
    ) {
        let mut pair = Pair::new(start);
        for step in &steps {
            pair.run(step);
        }
        // The wheel wakes for a timer at most once on each level, and now and then while the timer is beyond the top
        // ring.
        let mut sleeps = 0;
        while pair.ticks.first().is_some_and(|&(tick, _)| tick - pair.now.min(tick) < FAR) {
            pair.sleep(budget);
            pair.check();
            sleeps += 1;
            prop_assert!(sleeps <= 30 * pair.payloads, "it wakes too often");
        }
        pair.now = u64::MAX;
        pair.finish(budget);
        pair.check();
        prop_assert!(pair.armed.is_empty());
    }
}
