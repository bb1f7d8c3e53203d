//! Histories of a log of effects on a simulated device: after each power failure the log holds the state at the end of
//! one epoch, none before the last one that was acknowledged.
//!
//! ```text
//! changes of epoch n ─► close ─► changes of n + 1 … ─► append(n), with copies that memory judges as it is now ─► sync
//! ```
//! Changes come at every step of the writer, within `append` too: memory is newer than the disk, as it is with writers in
//! other threads.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test that fails should say where"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::simulated_disk::{Failures, SimulatedFolder};
use crate::lock::Mutex;
use crate::seeded_rng::SeededRng;
use crate::store::effects::EffectStore;
use crate::store::failure::errnos::EIO;
use crate::store::fault::{Fault, plant};
use crate::store::*;

const KEYS: u64 = 9;

/// Mistakes of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The value of a touched element counts as dead.
    TouchedValueDropped,
    /// The removal of an element is not recorded.
    RemovalForgotten,
    /// A record is judged by memory as it was before the epoch before was closed.
    JudgedEarly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element {
    version: u64,
    is_live: bool,
    /// The version that has the value.
    of_value: u64,
}

type Elements = BTreeMap<u8, Element>;

fn encode_key(version: u64, key: u8) -> [u8; 9] {
    let mut bytes = [0; 9];
    bytes[..8].copy_from_slice(&version.to_be_bytes());
    bytes[8] = key;
    bytes
}

fn decode_key(bytes: &[u8]) -> (u64, u8) {
    let (version, key) = bytes.split_at(8);
    (u64::from_be_bytes(version.try_into().unwrap()), key[0])
}

/// The value that a version of a key has.
fn value_of(version: u64, key: u8) -> Vec<u8> {
    let length = match (version ^ u64::from(key)) % 17 {
        0 => 2_500,
        1..=3 => 700,
        4 => 0,
        _ => 40,
    };
    vec![(version % 251) as u8; length]
}

/// What the log says of each key, whatever the order of its records.
#[derive(Debug, Default)]
struct FoundElements(Mutex<BTreeMap<u8, (Element, u64)>>);

impl EffectReader for &FoundElements {
    fn take(&mut self, effect: FoundEffect<'_>) {
        let (version, key) = decode_key(effect.key);
        let mut all = self.0.lock();
        let none = Element { version: 0, is_live: false, of_value: 0 };
        let (full, touched) = all.entry(key).or_insert((none, 0));
        match (effect.space, effect.body) {
            (Space::Touches, _) => *touched = version.max(*touched),
            (_, body) if version > full.version => {
                if let FoundBody::Value(value) = body {
                    assert_eq!(value, value_of(version, key), "the bytes of version {version}");
                }
                *full = Element { version, is_live: body != FoundBody::Removed, of_value: version };
            }
            _ => {}
        }
    }
}

impl EffectOwner for FoundElements {
    fn reader(&self) -> Box<dyn EffectReader + '_> {
        Box::new(self)
    }

    fn live(&self) -> (u64, u64) {
        let elements = self.elements();
        (elements.values().filter(|element| element.is_live).count() as u64, live_bytes(&elements))
    }

    fn encode_all(
        &self,
        _bytes: usize,
        write: &mut dyn FnMut(EncodedRecords) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (key, Element { version, is_live, of_value }) in self.elements() {
            let mut records = EncodedRecords::default();
            if is_live {
                records.put(Space::Elements, [&encode_key(of_value, key), &[]], &value_of(of_value, key));
                if of_value != version {
                    records.put(Space::Touches, [&encode_key(version, key), &[]], &[]);
                }
            } else {
                records.remove(Space::Elements, [&encode_key(version, key), &[]]);
            }
            write(records)?;
        }
        Ok(())
    }
}

impl FoundElements {
    fn elements(&self) -> Elements {
        let all = self.0.lock();
        let touched = |(key, (full, touched)): (&u8, &(Element, u64))| {
            let version = if full.is_live { full.version.max(*touched) } else { full.version };
            (*key, Element { version, ..*full })
        };
        all.iter().map(touched).collect()
    }
}

fn live_bytes(elements: &Elements) -> u64 {
    let live = elements.iter().filter(|(_, element)| element.is_live);
    let of = |(key, element): (&u8, &Element)| {
        let touch = if element.of_value == element.version { 0 } else { EncodedRecords::bytes_of(9, 0) };
        EncodedRecords::bytes_of(9, value_of(element.of_value, *key).len()) + touch
    };
    live.map(of).sum::<usize>() as u64
}

/// Memory, which changes whenever it is looked at.
struct Memory {
    rng: SeededRng,
    mistake: Mistake,
    elements: Elements,
    /// The records of the open epoch.
    open: EncodedRecords,
    /// As memory was before the epoch that precedes the one that is written.
    early: Elements,
}

impl Memory {
    fn change(&mut self) {
        let key = (self.rng.below(KEYS) * self.rng.below(KEYS) / KEYS) as u8;
        let none = Element { version: 0, is_live: false, of_value: 0 };
        let before = self.elements.get(&key).copied().unwrap_or(none);
        let version = before.version + 1;
        let encoded = encode_key(version, key);
        let after = match self.rng.below(5) {
            0 if before.is_live => {
                if self.mistake != Mistake::RemovalForgotten {
                    self.open.remove(Space::Elements, [&encoded, &[]]);
                }
                Element { version, is_live: false, of_value: version }
            }
            1 if before.is_live => {
                self.open.put(Space::Touches, [&encoded, &[]], &[]);
                Element { version, ..before }
            }
            _ => {
                self.open.put(Space::Elements, [&encoded, &[]], &value_of(version, key));
                Element { version, is_live: true, of_value: version }
            }
        };
        self.elements.insert(key, after);
    }

    fn change_some(&mut self, most: u64) {
        (0..self.rng.below(most)).for_each(|_| self.change());
    }
}

impl EffectJudge for Memory {
    fn judge(&mut self, space: Space, key: &[u8]) -> EffectState {
        if self.rng.one_in(3) {
            self.change();
        }
        let (version, key) = decode_key(key);
        let elements = if self.mistake == Mistake::JudgedEarly { &self.early } else { &self.elements };
        let Some(element) = elements.get(&key).filter(|element| element.is_live) else { return EffectState::Dead };
        let counts = match space {
            Space::Touches => element.version == version,
            _ if self.mistake == Mistake::TouchedValueDropped => element.version == version,
            _ => element.of_value == version,
        };
        if counts { EffectState::Live } else { EffectState::Dead }
    }

    fn lost(&mut self, _space: Space, _key: &[u8]) {
        unreachable!("nothing rots here")
    }

    fn all_lost(&mut self) -> bool {
        unreachable!("nothing rots here")
    }
}

struct History {
    seed: u64,
    folder: SimulatedFolder,
    config: LogConfig,
    memory: Memory,
    /// The states at the ends of epochs since the last opening, the first one before all.
    states: Vec<Elements>,
    acknowledged: usize,
}

impl History {
    fn new(seed: u64, mistake: Mistake) -> Self {
        let mut rng = SeededRng(seed);
        let segment_bytes = [4096, 8192][rng.below(2) as usize];
        Self {
            seed,
            folder: SimulatedFolder::new(seed ^ 0x5eed),
            config: LogConfig { kind: LogKind::Effects, segment_bytes, files: 3, max_disk: None },
            memory: Memory {
                rng,
                mistake,
                elements: Elements::new(),
                open: EncodedRecords::default(),
                early: Elements::new(),
            },
            states: vec![Elements::new()],
            acknowledged: 0,
        }
    }

    fn open(&mut self) -> Result<EffectStore, Error> {
        let folder: Arc<dyn Folder> = Arc::new(self.folder.clone());
        let options = OpenOptions { config: self.config, repair: false, copied: false, chores: ChoreMode::Writer };
        let owner = Arc::new(FoundElements::default());
        let opened = open_effects(&folder, options, Arc::clone(&owner) as Arc<dyn EffectOwner>, 1)?;
        let found = owner.elements();
        // What is gone may have left no record.
        let live = |elements: &Elements| -> Elements {
            elements.iter().filter(|(_, element)| element.is_live).map(|(key, element)| (*key, *element)).collect()
        };
        let at = self.states.iter().rposition(|state| live(state) == live(&found));
        let (seed, all) = (self.seed, self.states.len());
        assert!(
            at.is_some_and(|at| at >= self.acknowledged),
            "seed {seed}: {at:?} of {all}, {} was acknowledged: {found:?}",
            self.acknowledged
        );
        // Versions go on above all that were given out.
        let highest = self.memory.elements.values().map(|element| element.version).max().unwrap_or(0);
        let mut elements = live(&found);
        for key in 0..KEYS as u8 {
            let gone = Element { version: highest, is_live: false, of_value: highest };
            elements.entry(key).or_insert(gone);
        }
        self.memory.elements = elements.clone();
        self.memory.open.clear(0);
        (self.states, self.acknowledged) = (vec![elements], 0);
        Ok(EffectStore::of(opened, false))
    }

    fn epoch(&mut self, store: &mut EffectStore) -> Result<(), Error> {
        self.memory.change_some(12);
        self.memory.early = self.states.iter().rev().nth(1).cloned().unwrap_or_default();
        let mut closed = vec![std::mem::take(&mut self.memory.open)];
        self.states.push(self.memory.elements.clone());
        self.memory.change_some(5);
        let live = live_bytes(&self.memory.elements);
        store.append(&mut closed, live, &mut self.memory)?;
        self.memory.change_some(3);
        if !self.memory.rng.one_in(4) {
            store.sync()?;
            self.acknowledged = self.states.len() - 1;
        }
        if self.memory.rng.one_in(16) {
            store.rest()?;
            self.acknowledged = self.states.len() - 1;
        }
        Ok(())
    }

    /// Returns how many segments were given back.
    fn run(&mut self) -> u64 {
        let mut removed = 0;
        for _ in 0..6 {
            if self.memory.rng.one_in(2) {
                let at = 1 + self.memory.rng.below(300);
                let (lasting, power) = (self.memory.rng.one_in(2), self.memory.rng.one_in(2));
                self.folder.fail(Failures { at: Some(at), errno: EIO, lasting, power });
            }
            if let Ok(mut store) = self.open() {
                let steps = self.memory.rng.below(60);
                let _failed = (0..steps).find_map(|_| self.epoch(&mut store).err());
                removed += store.metrics().counters.removed;
            }
            match self.memory.rng.one_in(2) {
                true => self.folder.power_failure(),
                false => drop(self.folder.process_ends()),
            }
        }
        removed
    }
}

fn run_all(seeds: std::ops::Range<u64>, mistake: Mistake) -> u64 {
    seeds.map(|seed| History::new(seed, mistake).run()).sum()
}

#[test]
fn a_power_failure_leaves_the_state_at_the_end_of_an_epoch() {
    let removed = run_all(0..600, Mistake::None);
    assert!(removed > 1_000, "{removed} segments were given back");
}

#[test]
fn each_mistake_of_an_owner_and_of_the_log_is_found() {
    let finds = |mistake: Mistake, fault: Option<Fault>| {
        (0..4_000).any(|seed| {
            plant(fault);
            let run = std::panic::catch_unwind(|| History::new(seed, mistake).run());
            plant(None);
            run.is_err()
        })
    };
    for mistake in [Mistake::TouchedValueDropped, Mistake::RemovalForgotten, Mistake::JudgedEarly] {
        assert!(finds(mistake, None), "{mistake:?} is not found");
    }
    assert!(finds(Mistake::None, Some(Fault::SegmentGoneEarly)), "a segment that goes an epoch early is not found");
}
