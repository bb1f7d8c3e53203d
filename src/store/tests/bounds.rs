//! Histories at the limits of space: a small device, or a small `--max-disk`.
//!
//! ```text
//! add until adds are refused ─► remove until they are not, or all is gone ─► …     restarts and power failures between
//! ```
//! The log never ends for want of space, a removal finds room in the end, and an empty log takes adds again.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use super::model::{History, Owner, find_planted, histories};
use crate::store::fault::Fault;
use crate::store::record::removal_bytes;
use crate::store::*;

const SEGMENT_BYTES: u64 = 64 << 10;

struct Filled {
    history: History,
    owner: Owner,
    /// The bytes that the log may take.
    most: u64,
    next_key: u64,
    refusals: u32,
}

impl Filled {
    fn new(seed: u64) -> Self {
        let mut history = History::new(seed);
        history.config.segment_bytes = SEGMENT_BYTES;
        let most = (14 + history.rng.below(20)) * SEGMENT_BYTES;
        if history.rng.one_in(2) {
            history.config.max_disk = Some(most);
        } else {
            history.folder.limit(most);
        }
        let owner = history.open().expect("there is room");
        Self { history, owner, most, next_key: 0, refusals: 0 }
    }

    /// Live bytes and those of their removals, as the owner counts them.
    fn live_bytes(&self) -> u64 {
        let places = self.owner.places.iter();
        places.map(|((_, key), place)| 2 * removal_bytes(key.len()) + u64::from(place.length)).sum()
    }

    /// Adds some records. Returns false if adds are refused.
    fn add(&mut self) -> bool {
        if self.owner.log.adds_refused().is_some() {
            self.refusals += 1;
            return false;
        }
        assert!(self.live_bytes() <= self.most / 4 * 3, "seed {}: more than the bound", self.history.seed);
        let mut records = Vec::new();
        for _ in 0..=self.history.rng.below(12) {
            self.next_key += 1;
            let space = if self.history.rng.one_in(3) { Space::Tasks } else { Space::Values };
            let body = vec![self.next_key as u8; self.history.rng.below(3000) as usize];
            let key = self.next_key.to_be_bytes()[..].into();
            records.push(Record { space, key, body: Body::Bytes(body.into()) });
        }
        self.commit(records);
        true
    }

    /// Removes some records.
    fn remove(&mut self) {
        let count = 1 + self.history.rng.below(16);
        let all = self.owner.places.len() as u64;
        let keys = self.owner.places.keys();
        let keys: Vec<_> = keys.skip(self.history.rng.below(all) as usize).take(count as usize).cloned().collect();
        let records = keys.into_iter().map(|(space, key)| Record { space, key: key.into(), body: Body::Removed });
        let records: Vec<_> = records.collect();
        let before = self.history.without_room;
        for _ in 0..100 {
            self.commit(records.clone());
            if self.history.without_room == before {
                return;
            }
            self.history.without_room = before;
        }
        panic!("seed {}: removals find no room: {:?}", self.history.seed, self.owner.log.metrics());
    }

    fn commit(&mut self, records: Vec<Record>) {
        let Self { history, owner, .. } = self;
        history.commit(owner, RecordBatch::from(records), false).expect("the log continues");
        if history.rng.one_in(3) {
            owner.log.sync().expect("the log continues");
            history.acknowledge();
            history.forget_older();
        }
        if history.rng.one_in(3) {
            owner.log.chores.work_off();
        }
    }

    /// The process ends, and perhaps the power fails.
    fn restart(mut self) -> Self {
        drop(self.owner);
        if self.history.rng.one_in(2) {
            self.history.folder.power_failure();
        }
        self.owner = self.history.open().unwrap_or_else(|error| panic!("seed {}: {error}", self.history.seed));
        self
    }
}

/// Runs a history and returns how often adds were refused.
fn run(seed: u64) -> u32 {
    let mut filled = Filled::new(seed);
    for _ in 0..3 {
        for _ in 0..2_000 {
            if !filled.add() {
                break;
            }
        }
        if filled.history.rng.one_in(2) {
            filled = filled.restart();
        }
        let until_empty = filled.history.rng.one_in(2);
        while !filled.owner.places.is_empty() && (until_empty || filled.owner.log.adds_refused().is_some()) {
            filled.remove();
        }
    }
    while !filled.owner.places.is_empty() {
        filled.remove();
    }
    filled.owner.shrink().expect("the log continues");
    for _ in 0..4 {
        filled.owner.log.rest().expect("the log continues");
        (0..100).for_each(|_| filled.owner.log.chores.work_off());
    }
    assert_eq!(filled.owner.log.adds_refused(), None, "seed {seed}: {:?}", filled.owner.log.metrics());
    let bytes = filled.history.folder.bytes();
    assert!(
        bytes <= 12 * SEGMENT_BYTES,
        "seed {seed}: an empty log has {bytes} bytes: {:?}",
        filled.owner.log.metrics()
    );
    filled.refusals
}

#[test]
fn at_its_limits_the_log_refuses_adds_and_continues() {
    let (count, refusals) = histories(100, run);
    println!("{count} histories at the limits, {refusals} refusals");
    assert!(refusals > count, "{refusals}");
}

#[test]
fn every_planted_fault_of_limits_is_found() {
    find_planted(&[Fault::AddsUnbounded], 100, |seed| {
        run(seed);
    });
}
