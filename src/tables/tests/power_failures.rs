//! Histories of durable tables on a simulated device: after each failure an opening finds the state at the end of one epoch,
//! none before the last one that was synced. Of tables that are always on disk all answers hold that have gone to clients,
//! reads and refusals too. No version comes again.
//!
//! ```text
//! two sessions and a transaction change elements ─► the epoch is closed ─► its batch, while the sessions go on ─► sync
//! ```
//! Requests are RESTORE and the steps of ALTER_TABLE too. The sessions make changes whenever the log judges a record: memory
//! is newer than the disk then. After a power failure the wall clock may have gone back. All threads are run by hand, so a
//! seed decides everything but the order of two readers in an opening.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

mod answers;
mod clients;
mod interrupted;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use clients::Clients;
use interrupted::InterruptedLog;

use super::durable::{Contents, Life, assert_same, key_of};
use super::*;
use crate::clock::ClockReading;
use crate::lock::Mutex;
use crate::seeded_rng::SeededRng;
use crate::store::tests::simulated_disk::{Failures, SimulatedFolder};
use crate::store::{EffectFolder, Error};

/// The wall clock at the beginning, in milliseconds: in 2026.
const WALL: u64 = 1_780_000_000_000;
/// EIO.
const ERROR_NUMBER: i32 = 5;
/// The durable tables, and their elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    tables: BTreeMap<String, Durability>,
    elements: Contents,
}

impl State {
    fn of(life: &mut Life, now: u64) -> Self {
        Self { tables: life.durabilities(), elements: life.contents(now) }
    }

    /// The state at this time of the log's clock, if nothing changes until then.
    fn at(&self, time: u64) -> Self {
        let mut state = self.clone();
        state.elements.retain(|_, element| element.is_alive(time));
        state
    }
}

struct History {
    seed: u64,
    rng: SeededRng,
    device: SimulatedFolder,
    folder: EffectFolder,
    clients: Arc<Mutex<Clients>>,
    /// The states at the ends of epochs since the last opening, the first one at its beginning.
    states: Vec<(u64, State)>,
    /// The last one that was synced.
    synced: usize,
    /// The clocks at the next start.
    reading: ClockReading,
    found: Found,
}

/// What runs have come by.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    elements: usize,
    altered: usize,
    cleaned: u64,
    answers: usize,
    announced: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = SeededRng(seed);
        let device = SimulatedFolder::new(seed ^ 0x5eed);
        let folder = EffectFolder::simulated(&device, [4_096, 8_192][rng.below(2) as usize]);
        Self {
            seed,
            rng,
            device,
            folder,
            clients: Arc::new(Mutex::new(Clients::new(SeededRng(seed ^ 0xc11e)))),
            states: vec![(0, State::default())],
            synced: 0,
            reading: ClockReading::from_millis(WALL),
            found: Found::default(),
        }
    }

    /// Starts a server. What it finds is one of the states.
    fn begin(&mut self) -> Result<Life, Error> {
        let mut life = Life::try_to_begin(&self.folder, self.reading)?;
        let (found, start) = (State::of(&mut life, 0), life.start);
        // An opening may forget what has a millisecond left.
        let rounded = found.at(start + 1);
        let at = self.states.iter().rposition(|(_, state)| state.at(start + 1) == rounded);
        let at = at.filter(|at| *at >= self.synced).unwrap_or_else(|| {
            let (_, synced) = &self.states[self.synced];
            assert_eq!(found.tables, synced.tables, "seed {}: {at:?}, {} is synced", self.seed, self.synced);
            assert_same(&found.elements, &synced.at(start).elements, self.seed);
            panic!("seed {}: {at:?} was found, {} is synced", self.seed, self.synced)
        });
        self.found.elements += found.elements.len();
        self.found.altered += usize::from(found.tables.contains_key("altered"));
        let clients = Arc::clone(&self.clients);
        let mut entered = clients.lock();
        entered.answers.check(self.states[at].0, &found, start, self.seed);
        entered.begin(vec![life.another(), life.another()], start);
        drop(entered);
        (self.states, self.synced) = (vec![(0, found)], 0);
        life.log = life.log.interposed(|log| Box::new(InterruptedLog { log, clients }));
        Ok(life)
    }

    /// An epoch, and some work of the other threads.
    fn epoch(&mut self, life: &mut Life) -> Result<(), Error> {
        self.clients.lock().steps(24);
        let now = self.clients.lock().now;
        if self.rng.one_in(2) {
            life.publish_to(&mut self.clients.lock().answers);
        }
        if self.rng.one_in(3) {
            life.background.expiry.pass(Now::from_millis(now));
        }
        if self.rng.one_in(3) {
            life.background.reaper.step(Now::from_millis(now));
        }
        let (epoch, batches) = (life.session.shared().epochs.open_epoch(), self.clients.lock().batches);
        self.states.push((epoch, State::of(life, now)));
        life.log.write(life.reading(now))?;
        let mut clients = self.clients.lock();
        clients.answers.note_synced(epoch);
        // An epoch without a batch leaves the time on disk as it was.
        if clients.batches > batches {
            self.synced = self.states.len() - 1;
        }
        Ok(())
    }

    /// The life is over. Its clients have seen what is lost.
    fn end(&mut self, life: &Life) {
        let mut clients = self.clients.lock();
        clients.steps(12);
        clients.sessions.clear();
        self.reading = life.reading(clients.now + self.rng.below(50));
        self.found.cleaned += life.session.shared().epochs.metrics().log.counters.removed;
    }

    /// The power fails. The wall clock may go back.
    fn fail(&mut self) {
        self.device.power_failure();
        let ClockReading { wall, up, boot } = self.reading;
        let wall = if self.rng.one_in(2) { wall - self.rng.below(1_000) } else { wall };
        self.reading = ClockReading { wall, up: if self.rng.one_in(2) { 0 } else { up }, boot: boot + 1 };
    }

    fn run(&mut self) -> Found {
        for _ in 0..6 {
            if self.rng.one_in(2) {
                let (at, lasting, power) = (1 + self.rng.below(400), self.rng.one_in(2), self.rng.one_in(2));
                self.device.fail(Failures { at: Some(at), errno: ERROR_NUMBER, lasting, power });
            }
            if let Ok(mut life) = self.begin() {
                let epochs = self.rng.below(40);
                let _failed = (0..epochs).find_map(|_| self.epoch(&mut life).err());
                self.end(&life);
            }
            match self.rng.one_in(2) {
                true => self.fail(),
                false => drop(self.device.process_ends()),
            }
        }
        let answers = &self.clients.lock().answers;
        Found { answers: answers.checked, announced: answers.announced, ..self.found }
    }
}

/// Runs so many histories from this seed on.
fn run(seeds: Range<u64>) -> Found {
    seeds.fold(Found::default(), |all, seed| {
        let Found { elements, altered, cleaned, answers, announced } = History::new(seed).run();
        Found {
            elements: all.elements + elements,
            altered: all.altered + altered,
            cleaned: all.cleaned + cleaned,
            answers: all.answers + answers,
            announced: all.announced + announced,
        }
    })
}

#[test]
fn a_failure_leaves_the_state_at_the_end_of_an_epoch_and_no_version_comes_again() {
    let found = run(0..100);
    let Found { elements, altered, cleaned, answers, announced } = found;
    assert!(elements > 2_000 && altered > 100 && cleaned > 2_000, "{found:?}");
    assert!(answers > 500 && announced > 5_000, "{found:?}");
}

/// More histories, for a run by hand. `SPINDLE_SEEDS` says how many, from `SPINDLE_SEED` on.
#[test]
fn as_many_histories_as_are_asked_for_lose_nothing_that_was_promised() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (first, count) = (number("SPINDLE_SEED").unwrap_or(1_000), number("SPINDLE_SEEDS").unwrap_or(0));
    println!("{:?}", run(first..first + count));
}

/// The cleaning came to the touch of an expired element before it came to a copy of the value, which has no deadline.
#[test]
fn an_expired_element_stays_away_wherever_its_value_and_its_touch_stand() {
    let mut cleaned = 0;
    for (before, behind) in (0..10).flat_map(|before| (0..10).map(move |behind| (before, behind))) {
        let device = SimulatedFolder::new(10 * before + behind);
        let folder = EffectFolder::simulated(&device, 4_096);
        let mut life = Life::begin(&folder, WALL);
        let mut batch = life.session.batch(Now::from_millis(0));
        batch.create_table_with(b"soon", b"soon", None, Some(Durability::Soon)).unwrap();
        batch.update(b"soon", &key_of(0), &[1; 300], Deadline::NONE).unwrap();
        drop(batch);
        let fill = |life: &mut Life, now: u64| {
            let mut batch = life.session.batch(Now::from_millis(now));
            batch.update(b"soon", &key_of(1), &[2; 2_500], Deadline::NONE).unwrap();
            drop(batch);
            life.write(now);
        };
        // The touch stands in a later segment than the value, and in an earlier one than its copy.
        (0..3).for_each(|_| fill(&mut life, 1));
        life.session.batch(Now::from_millis(1)).touch(b"soon", &key_of(0), Deadline::at(1_000)).unwrap();
        (0..=before).for_each(|_| fill(&mut life, 1));
        life.background.expiry.pass(Now::from_millis(2_000));
        (0..behind).for_each(|_| fill(&mut life, 2_000));
        cleaned += life.session.shared().epochs.metrics().log.counters.removed;
        drop(life);
        device.power_failure();
        let found = Life::begin(&folder, WALL + 2_000).contents(0);
        assert!(!found.contains_key(&(b"soon".to_vec(), key_of(0))), "{before} epochs before, {behind} behind");
    }
    assert!(cleaned > 100, "{cleaned} segments were given back");
}
