//! What an opening remembers of keys until all records are read: their highest removals and touches.
//!
//! A key takes sixteen bytes of a secret hash, and three numbers.
//!
//! This file knows no slot: see `opening.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use ahash::RandomState;

use crate::lock::Mutex;

/// The parts, each with a lock.
const SHARDS: usize = 256;

/// What is remembered of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Remembered {
    /// The version of its highest removal.
    pub(super) removed: u64,
    /// The version of its highest touch.
    pub(super) touched: u64,
    /// The deadline of this touch, as an entry has it.
    pub(super) deadline: u64,
}

/// What is remembered of the keys with these hashes.
type Shard = Mutex<HashMap<[u64; 2], Remembered, RandomState>>;

/// What is remembered of all keys. Written and read by all threads of an opening.
pub(super) struct RememberedKeys {
    shards: [Shard; SHARDS],
    /// Whether some key is remembered. Set before its record is entered.
    has_any: AtomicBool,
    secrets: [RandomState; 2],
}

impl RememberedKeys {
    pub(super) fn new() -> Self {
        let shards = std::array::from_fn(|_| Shard::default());
        Self { shards, has_any: AtomicBool::new(false), secrets: [RandomState::new(), RandomState::new()] }
    }

    /// Changes what is remembered of a key of this life.
    pub(super) fn change(&self, incarnation: u64, key: &[u8], change: impl FnOnce(&mut Remembered)) {
        let hashes = self.hashes(incarnation, key);
        // Relaxed: both sides of the race in `opening.rs` fence between their store and their look.
        self.has_any.store(true, Ordering::Relaxed);
        change(self.shard(hashes).lock().entry(hashes).or_default());
    }

    /// What is remembered of a key of this life.
    pub(super) fn get(&self, incarnation: u64, key: &[u8]) -> Option<Remembered> {
        // Relaxed: as in `change`.
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let hashes = self.hashes(incarnation, key);
        self.shard(hashes).lock().get(&hashes).copied()
    }

    fn hashes(&self, incarnation: u64, key: &[u8]) -> [u64; 2] {
        self.secrets.each_ref().map(|secret| secret.hash_one((incarnation, key)))
    }

    #[expect(clippy::indexing_slicing, reason = "a remainder of the number of shards is below it")]
    fn shard(&self, [hash, _]: [u64; 2]) -> &Shard {
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }
}
