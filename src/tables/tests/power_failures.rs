//! Histories of durable tables on a simulated device: after each failure an opening finds the state at the end of one epoch,
//! none before the last one that was synced. No version comes again.
//!
//! ```text
//! two sessions and a transaction change elements ─► the epoch is closed ─► its batch, while the sessions go on ─► sync
//! ```
//! The sessions make changes whenever the log judges a record: memory is newer than the disk then. All threads are run by
//! hand, so a seed decides everything but the order of two readers in an opening.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::durable::{Contents, KEYS, Life, key_of};
use super::*;
use crate::clock::ClockReading;
use crate::lock::Mutex;
use crate::seeded_rng::SeededRng;
use crate::store::tests::simulated_disk::{Failures, SimulatedFolder};
use crate::store::{
    AddsRefused, EffectFolder, EffectJudge, EffectState, EncodedRecords, Error, LogMetrics, Space, StoreBackup,
};
use crate::tables::durable::log::EffectLog;
use crate::tables::{Addition, Batch, TransactionNeeds};

/// The wall clock at the beginning, in milliseconds: in 2026.
const WALL: u64 = 1_780_000_000_000;
/// EIO.
const ERROR_NUMBER: i32 = 5;
/// The tables, and what is on disk of each.
const TABLES: [(&[u8], Durability); 3] =
    [(b"soon", Durability::Soon), (b"always", Durability::Always), (b"memory", Durability::None)];

/// An element that clients have seen: its value and its deadline.
type Seen = (Vec<u8>, Option<u64>);

/// The clients of a server.
struct Clients {
    rng: SeededRng,
    /// Of the present life.
    sessions: Vec<Session>,
    /// The time of the log's clock at the start of this life, and the time since then.
    start: u64,
    now: u64,
    /// What was seen under each version of a key, in all lives.
    seen: BTreeMap<(usize, Vec<u8>), BTreeMap<u64, Seen>>,
}

impl Clients {
    fn some_key(&mut self) -> Vec<u8> {
        key_of(self.rng.below(KEYS) * self.rng.below(KEYS) / KEYS)
    }

    /// Notes a version that clients see. What has another version is another state, also in other lives.
    fn see(&mut self, table: usize, key: &[u8]) {
        let mut batch = self.sessions[0].batch(Now::from_millis(self.now));
        let Ok(element) = batch.element(TABLES[table].0, key) else { return };
        let (version, value) = (element.version, element.value.to_vec());
        let deadline = element.deadline.map(|deadline| deadline + self.start);
        drop(batch);
        let seen = self.seen.entry((table, key.to_vec())).or_default();
        let highest = seen.last_key_value().map_or(0, |(version, _)| *version);
        let known = seen.entry(version).or_insert_with(|| {
            assert!(version > highest, "version {version} is new, and {highest} was seen");
            (value.clone(), deadline)
        });
        assert_eq!(*known, (value, deadline), "version {version} came again");
    }

    /// A change of an element or of a table, which may be refused.
    fn change(rng: &mut SeededRng, batch: &mut Batch<'_>, table: usize, key: &[u8]) {
        let (name, durability) = TABLES[table];
        let deadline = match rng.below(4) {
            0 => Deadline::after(batch.now(), Ttl::from_millis(1 + rng.below(300))),
            1 => Deadline::KEEP,
            _ => Deadline::NONE,
        };
        let value = vec![rng.below(256) as u8; [0, 10, 300, 2_500][rng.below(4) as usize]];
        let version = batch.element(name, key).map_or(0, |element| element.version);
        let addition = Addition { delta: 1 + rng.below(9).cast_signed(), deadline, value_max: 100 };
        let _refused = match rng.below(24) {
            0..=6 => batch.update(name, key, &value, deadline),
            7..=9 => batch.delete(name, key).map(drop),
            10..=15 => batch.touch(name, key, deadline),
            16..=17 => batch.compare_and_swap(name, key, version, &value, deadline).map(drop),
            18 => batch.compare_and_swap(name, key, version + 1, &value, deadline).map(drop),
            19 => batch.compare_and_delete(name, key, version).map(drop),
            20..=21 => {
                let done = batch.update(name, key, b"7", deadline);
                done.and_then(|()| batch.increment(name, key, addition).map(drop))
            }
            22 if rng.one_in(2) => batch.replace_table(name),
            22 if rng.one_in(2) && !batch.is_in_transaction() => batch.delete_table(name),
            _ if !batch.is_in_transaction() => batch.create_table_with(name, name, None, Some(durability)),
            _ => Ok(()),
        };
    }

    /// Some changes of several elements, in one transaction.
    fn transact(&mut self, session: usize) {
        let keys: Vec<_> = (0..1 + self.rng.below(5)).map(|_| self.some_key()).collect();
        let tables: Vec<usize> = keys.iter().map(|_| self.rng.below(3) as usize).collect();
        let names: Vec<&[u8]> = tables.iter().map(|table| TABLES[*table].0).collect();
        let session = &mut self.sessions[session];
        let mut batch = session.batch(Now::from_millis(self.now));
        batch.latch(&names).unwrap();
        let mut needs = TransactionNeeds::default();
        // Each step makes two changes at most.
        let added = names.iter().zip(&keys).try_for_each(|(name, key)| {
            batch.add_replacement(&mut needs, name);
            batch.add_change(&mut needs, name, key, Some(2_500))?;
            batch.add_change(&mut needs, name, key, Some(2_500))
        });
        if added.and_then(|()| batch.begin_transaction(needs)).is_ok() {
            for (table, key) in tables.iter().zip(&keys) {
                Self::change(&mut self.rng, &mut batch, *table, key);
            }
            batch.end_transaction();
        }
        drop(batch);
        session.end_latch();
        tables.iter().zip(&keys).for_each(|(table, key)| self.see(*table, key));
    }

    fn step(&mut self) {
        self.now += self.rng.below(4);
        let session = self.rng.below(2) as usize;
        if self.rng.one_in(8) {
            return self.transact(session);
        }
        let (table, key) = (self.rng.below(3) as usize, self.some_key());
        let mut batch = self.sessions[session].batch(Now::from_millis(self.now));
        Self::change(&mut self.rng, &mut batch, table, &key);
        drop(batch);
        self.see(table, &key);
    }

    fn steps(&mut self, most: u64) {
        (0..self.rng.below(most)).for_each(|_| self.step());
    }
}

/// A log between whose steps the clients make changes.
struct InterruptedLog {
    log: Box<dyn EffectLog>,
    clients: Arc<Mutex<Clients>>,
}

/// A judge between whose looks the clients make changes.
struct InterruptedJudge<'j> {
    judge: &'j mut dyn EffectJudge,
    clients: &'j Mutex<Clients>,
}

impl EffectJudge for InterruptedJudge<'_> {
    fn judge(&mut self, space: Space, key: &[u8]) -> EffectState {
        let mut clients = self.clients.lock();
        if clients.rng.one_in(4) {
            clients.steps(3);
        }
        drop(clients);
        self.judge.judge(space, key)
    }

    fn lost(&mut self, space: Space, key: &[u8]) {
        self.judge.lost(space, key);
    }

    fn all_lost(&mut self) -> bool {
        self.judge.all_lost()
    }
}

impl EffectLog for InterruptedLog {
    fn append(&mut self, epoch: &mut Vec<EncodedRecords>, live: u64, judge: &mut dyn EffectJudge) -> Result<(), Error> {
        self.clients.lock().steps(5);
        self.log.append(epoch, live, &mut InterruptedJudge { judge, clients: &self.clients })
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.clients.lock().steps(3);
        self.log.sync()
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.log.rest()
    }

    fn raise(&mut self, mark: usize, value: u64) {
        self.log.raise(mark, value);
    }

    fn adds_room(&self) -> Result<u64, AddsRefused> {
        self.log.adds_room()
    }

    fn backup(&mut self) -> Result<Box<dyn StoreBackup>, Error> {
        self.log.backup()
    }

    fn may_shrink(&self) -> bool {
        self.log.may_shrink()
    }

    fn metrics(&self) -> LogMetrics {
        self.log.metrics()
    }
}

/// The durable tables, and their elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    tables: BTreeSet<Vec<u8>>,
    elements: Contents,
}

impl State {
    fn of(life: &mut Life, now: u64) -> Self {
        let all = life.session.batch(Now::from_millis(now)).list_tables();
        let names = all.into_iter().map(|table| table.name.to_vec());
        let mut elements = life.contents(now);
        elements.retain(|(table, _), _| table != b"memory");
        Self { tables: names.filter(|name| name != b"memory").collect(), elements }
    }

    /// The state at this time, if nothing changes until then.
    fn at(&self, time: u64) -> Self {
        let mut state = self.clone();
        state.elements.retain(|_, element| element.deadline.is_none_or(|deadline| deadline > time));
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
    states: Vec<State>,
    /// The last one that was synced.
    synced: usize,
    wall: u64,
    /// What the run has come by.
    found: usize,
    cleaned: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = SeededRng(seed);
        let device = SimulatedFolder::new(seed ^ 0x5eed);
        let folder = EffectFolder::simulated(&device, [4_096, 8_192][rng.below(2) as usize]);
        let clients =
            Clients { rng: SeededRng(seed ^ 0xc11e), sessions: Vec::new(), start: 0, now: 0, seen: BTreeMap::new() };
        Self {
            seed,
            rng,
            device,
            folder,
            clients: Arc::new(Mutex::new(clients)),
            states: vec![State::default()],
            synced: 0,
            wall: WALL,
            found: 0,
            cleaned: 0,
        }
    }

    /// Starts a server. What it finds is one of the states.
    fn begin(&mut self) -> Result<Life, Error> {
        let mut life = Life::try_to_begin(&self.folder, self.wall)?;
        let found = State::of(&mut life, 0);
        let at = self.states.iter().rposition(|state| state.at(self.wall) == found);
        assert!(
            at.is_some_and(|at| at >= self.synced),
            "seed {}: {at:?} of {}, {} is synced\nfound {found:?}\nsynced {:?}",
            self.seed,
            self.states.len(),
            self.synced,
            self.states[self.synced].at(self.wall)
        );
        self.found += found.elements.len();
        (self.states, self.synced) = (vec![found], 0);
        let clients = Arc::clone(&self.clients);
        let mut entered = clients.lock();
        (entered.start, entered.now) = (self.wall, 0);
        entered.sessions = vec![life.another(), life.another()];
        for (table, key) in (0..2).flat_map(|table| (0..KEYS).map(move |key| (table, key_of(key)))) {
            entered.see(table, &key);
        }
        drop(entered);
        life.log = life.log.interposed(|log| Box::new(InterruptedLog { log, clients }));
        Ok(life)
    }

    /// An epoch, and some work of the other threads.
    fn epoch(&mut self, life: &mut Life) -> Result<(), Error> {
        self.clients.lock().steps(24);
        let now = self.clients.lock().now;
        if self.rng.one_in(2) {
            life.publish();
        }
        if self.rng.one_in(3) {
            life.background.expiry.pass(Now::from_millis(now));
        }
        if self.rng.one_in(3) {
            life.background.reaper.step(Now::from_millis(now));
        }
        self.states.push(State::of(life, now));
        life.log.write(ClockReading::from_millis(life.start + now))?;
        self.synced = self.states.len() - 1;
        Ok(())
    }

    fn run(&mut self) {
        for _ in 0..6 {
            if self.rng.one_in(2) {
                let (at, lasting, power) = (1 + self.rng.below(400), self.rng.one_in(2), self.rng.one_in(2));
                self.device.fail(Failures { at: Some(at), errno: ERROR_NUMBER, lasting, power });
            }
            if let Ok(mut life) = self.begin() {
                let epochs = self.rng.below(40);
                let _failed = (0..epochs).find_map(|_| self.epoch(&mut life).err());
                self.cleaned += life.session.shared().epochs.metrics().log.counters.removed;
                let mut clients = self.clients.lock();
                // What is not on disk may be lost now, and clients have seen it.
                clients.steps(12);
                self.wall += clients.now + self.rng.below(50);
                clients.sessions.clear();
            }
            match self.rng.one_in(2) {
                true => self.device.power_failure(),
                false => drop(self.device.process_ends()),
            }
        }
    }
}

#[test]
fn a_failure_leaves_the_state_at_the_end_of_an_epoch_and_no_version_comes_again() {
    let (mut found, mut cleaned) = (0, 0);
    for seed in 0..100 {
        let mut history = History::new(seed);
        history.run();
        (found, cleaned) = (found + history.found, cleaned + history.cleaned);
    }
    assert!(found > 2_000, "{found} elements were found");
    assert!(cleaned > 500, "{cleaned} segments were given back");
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
