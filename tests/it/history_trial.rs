//! Recording and checking finds stores with a flaw, and accepts the same store without a flaw.
//!
//! The store is a plain version of the promises in `GUARANTEES.md`, behind one lock. Each flaw is a possible mistake of
//! a lock-free server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spindle::clock::Ttl;

use crate::checker::{Answer, COUNTER, Request, Span, Value};
use crate::history::{Ask, Peer, Plan, find_violation, record_round};
use crate::lock::{Mutex, MutexGuard};

const PLAN: Plan = Plan {
    tables: 1,
    keys: 2,
    requests: 60,
    lasting: Duration::ZERO,
    batch_max: 1,
    table_request_every: 25,
    ttls: &[None, None, Some(Ttl::from_secs(1)), Ttl::from_millis(750), Some(Ttl::NONE)],
};

/// How many of the store's seconds pass in a real second.
const HASTE: u64 = 20_000;
const MILLI: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Looks at the version, lets go of the lock, and writes.
    SwapsInTwoSteps,
    /// Looks at a counter, lets go of the lock, and writes the sum.
    CountsInTwoSteps,
    /// Answers one read in ten with the value before.
    ReadsStale,
    /// Forgets that a deadline has passed when a write without a TTL comes.
    WakesTheExpired,
    /// Never looks at deadlines.
    NeverExpires,
    /// Starts again at version 1 when an element is created anew.
    ReusesVersions,
    /// Keeps the elements of a table that is deleted.
    KeepsElements,
    /// Loses one write in ten.
    LosesWrites,
    /// Extends the life of an element that is read.
    TouchesOnRead,
    /// Reads many with the clock reading of the request before.
    GetsManyByAnOldClock,
    /// Writes many with that reading.
    UpdatesManyByAnOldClock,
}

#[derive(Clone, Copy, Debug)]
struct Element {
    value: Value,
    before: Value,
    version: u64,
    /// In nanoseconds. `None`: the element never expires.
    deadline: Option<u64>,
}

#[derive(Default)]
struct State {
    tables: HashMap<usize, bool>,
    elements: HashMap<(usize, usize), Element>,
    floors: HashMap<(usize, usize), u64>,
    /// Requests so far, to make a mistake only now and then.
    count: usize,
}

struct Store {
    flaw: Flaw,
    state: Mutex<State>,
    stamps: AtomicU64,
    start: Instant,
}

impl Store {
    fn new(flaw: Flaw) -> Self {
        Self { flaw, state: Mutex::default(), stamps: AtomicU64::new(0), start: Instant::now() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap() * HASTE
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn answer(&self, ask: &Ask, now: u64) -> Answer {
        let mut state = self.lock();
        state.count += 1;
        let exists = state.tables.get(&ask.table) == Some(&true);
        match ask.request {
            Request::CreateTable if exists => Answer::TableExists,
            Request::CreateTable => {
                state.tables.insert(ask.table, true);
                Answer::Ok
            }
            _ if !exists => Answer::TableNotFound,
            Request::DeleteTable => {
                state.tables.insert(ask.table, false);
                if self.flaw != Flaw::KeepsElements {
                    state.elements.retain(|(table, _), _| *table != ask.table);
                }
                Answer::Ok
            }
            request => self.answer_on_element(state, (ask.table, ask.key), request, now),
        }
    }

    fn answer_on_element<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        at: (usize, usize),
        request: Request,
        now: u64,
    ) -> Answer {
        let wakes = self.flaw == Flaw::WakesTheExpired && matches!(request, Request::Update(_, None));
        let dead = |element: &Element| element.deadline.is_some_and(|deadline| deadline <= now);
        if state.elements.get(&at).is_some_and(dead) && self.flaw != Flaw::NeverExpires && !wakes {
            state.remove(at);
        }
        let current = state.elements.get(&at).map_or(0, |element| element.version);
        let mistake = state.count.is_multiple_of(10);
        match request {
            Request::Update(..) if self.flaw == Flaw::LosesWrites && mistake => Answer::Ok,
            Request::Update(value, ttl) => {
                state.write(at, value, ttl, now, self.flaw);
                Answer::Ok
            }
            Request::CompareAndSwap(expected, ..) | Request::CompareAndDelete(expected) if expected != current => {
                Answer::VersionMismatch(current)
            }
            Request::CompareAndSwap(_, value, ttl) => {
                if self.flaw == Flaw::SwapsInTwoSteps {
                    drop(state);
                    std::thread::yield_now();
                    state = self.lock();
                }
                Answer::Swapped(state.write(at, value, ttl, now, self.flaw))
            }
            Request::Delete | Request::CompareAndDelete(_) => {
                state.remove(at).map_or(Answer::KeyNotFound, |element| Answer::Value(element.value))
            }
            Request::Increment(ttl) => {
                let before = state.elements.get(&at).map(|element| element.value);
                if before.is_some_and(|value| value & COUNTER == 0) {
                    return Answer::NotANumber;
                }
                if self.flaw == Flaw::CountsInTwoSteps {
                    drop(state);
                    std::thread::yield_now();
                    state = self.lock();
                }
                let sum = before.unwrap_or(COUNTER) + 1;
                Answer::Counted(sum, state.write(at, sum, ttl.filter(|_| before.is_none()), now, self.flaw))
            }
            Request::GetAndTouch(ttl) => match state.elements.get(&at).copied() {
                Some(element) => {
                    state.write(at, element.value, Some(ttl), now, self.flaw);
                    Answer::Value(element.value)
                }
                None => Answer::KeyNotFound,
            },
            Request::Touch(ttl) => match state.elements.get(&at).copied() {
                Some(element) => {
                    state.write(at, element.value, Some(ttl), now, self.flaw);
                    Answer::Ok
                }
                None => Answer::KeyNotFound,
            },
            _ => {
                let flaw = self.flaw;
                let element = state.elements.get_mut(&at);
                element.map_or(Answer::KeyNotFound, |element| element.answer(request, now, flaw, mistake))
            }
        }
    }
}

impl State {
    fn write(&mut self, at: (usize, usize), value: Value, ttl: Option<Ttl>, now: u64, flaw: Flaw) -> u64 {
        let old = self.elements.get(&at).copied();
        let floor = self.floors.get(&at).copied().unwrap_or(0);
        let version = match old {
            None if flaw == Flaw::ReusesVersions => 1,
            _ => floor + 1,
        };
        self.floors.insert(at, version);
        let element = Element {
            value,
            before: old.map_or(value, |old| old.value),
            version,
            deadline: deadline(ttl, now, old.and_then(|old| old.deadline)),
        };
        self.elements.insert(at, element);
        version
    }

    fn remove(&mut self, at: (usize, usize)) -> Option<Element> {
        let removed = self.elements.remove(&at)?;
        *self.floors.entry(at).or_default() += 1;
        Some(removed)
    }
}

impl Element {
    /// Requests that do not change the value.
    fn answer(&mut self, request: Request, now: u64, flaw: Flaw, mistake: bool) -> Answer {
        match request {
            Request::GetEntry => {
                let left = self.deadline.map(|deadline| deadline.saturating_sub(now) / MILLI);
                Answer::Entry(self.value, self.version, left)
            }
            _ => {
                if flaw == Flaw::TouchesOnRead && self.deadline.is_some() {
                    self.deadline = deadline(Some(Ttl::from_secs(1)), now, None);
                }
                let stale = flaw == Flaw::ReadsStale && mistake;
                Answer::Value(if stale { self.before } else { self.value })
            }
        }
    }
}

fn deadline(ttl: Option<Ttl>, now: u64, kept: Option<u64>) -> Option<u64> {
    match ttl {
        None => kept,
        Some(Ttl::NONE) => None,
        Some(ttl) => Some(now.next_multiple_of(MILLI) + ttl.millis() * MILLI),
    }
}

struct Visitor<'s> {
    store: &'s Store,
    /// The clock reading of the last request.
    before: u64,
}

impl Visitor<'_> {
    fn perform_one(&mut self, ask: &Ask) -> (Span, Vec<Answer>) {
        let invoked = self.store.stamp();
        let now = self.store.now();
        let flawed = match ask.request {
            Request::Get => Flaw::GetsManyByAnOldClock,
            _ => Flaw::UpdatesManyByAnOldClock,
        };
        let reading = if ask.many.is_some() && self.store.flaw == flawed { self.before } else { now };
        self.before = now;
        // Other threads run in between, even on one core.
        std::thread::yield_now();
        let mut answers = Vec::new();
        for one in ask.each() {
            answers.push(self.store.answer(&one, reading));
            if answers.last() == Some(&Answer::TableNotFound) {
                answers = vec![Answer::TableNotFound];
                break;
            }
        }
        let (latest, returned) = (self.store.now(), self.store.stamp());
        (Span { invoked, clock_min: now, clock_max: now, latest, returned }, answers)
    }
}

impl Peer for Visitor<'_> {
    fn perform(&mut self, asks: &[Ask]) -> Vec<(Span, Vec<Answer>)> {
        asks.iter().map(|ask| self.perform_one(ask)).collect()
    }
}

/// Records rounds with stores of this flaw until one is found.
fn find_out(flaw: Flaw, rounds: u64) -> Option<u64> {
    (0..rounds).find(|&seed| {
        let store = Store::new(flaw);
        let mut peers: Vec<_> = (0..4).map(|_| Visitor { store: &store, before: 0 }).collect();
        find_violation(&PLAN, &record_round(&PLAN, seed, &mut peers)).is_some()
    })
}

#[test]
fn a_store_without_a_flaw_is_believed() {
    assert_eq!(find_out(Flaw::None, 300), None);
}

#[test]
fn every_flaw_is_found_out() {
    for flaw in [
        Flaw::SwapsInTwoSteps,
        Flaw::CountsInTwoSteps,
        Flaw::ReadsStale,
        Flaw::WakesTheExpired,
        Flaw::NeverExpires,
        Flaw::ReusesVersions,
        Flaw::KeepsElements,
        Flaw::LosesWrites,
        Flaw::TouchesOnRead,
        Flaw::GetsManyByAnOldClock,
        Flaw::UpdatesManyByAnOldClock,
    ] {
        let found = find_out(flaw, 2_000);
        println!("{flaw:?}: found in round {found:?}");
        assert!(found.is_some(), "{flaw:?} went unnoticed");
    }
}
