//! Tests of the promises of the tables, step by step. Each thread's part is run by hand, so every order is forced.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::cell::RefCell;
use std::rc::Rc;

use crossbeam::epoch;

use super::slot::SlotRef;
use super::{
    BackgroundThreads, ChangeKind, Changes, Compactor, Deadline, Durability, Expiry, FeedConfig, Reaper, Refusal,
    Session, Tables, TablesConfig,
};
use crate::clock::{Now, Ttl};

pub(crate) mod alone;
mod altering;
mod always;
mod always_waking;
mod audience;
mod budget;
mod comings;
mod compaction;
mod deadlines;
mod durable;
mod durable_epochs;
mod evicting;
mod feeding;
mod fetched;
mod growth;
mod holding;
mod keys;
mod latching;
mod limits;
mod many;
mod moving;
mod orders;
mod power_failures;
mod publishing;
mod races;
mod reclaim;
mod replacing;
mod restoring;
mod scanning;
mod storm;
mod totals;
mod verbs;
mod versions;
pub(super) mod waiting;

const BASE: u64 = 1_000_000;
type NotifiedChange = (String, ChangeKind, String);

/// Tables, their background threads, and one ordinary writer, all run by hand. Hooks share it.
#[derive(Clone)]
struct TablesRig(Rc<RigParts>);

struct RigParts {
    tables: Tables,
    changes: RefCell<Changes>,
    expiry: RefCell<Expiry>,
    reaper: RefCell<Reaper>,
    compactor: RefCell<Compactor>,
    session: RefCell<Session>,
    notified: RefCell<Vec<NotifiedChange>>,
    now: RefCell<u64>,
}

pub(super) fn settings() -> TablesConfig {
    TablesConfig {
        expected_keys: 0,
        memory_max: 1 << 30,
        tables_max: 16,
        durability: Durability::None,
        changes_per_writer: 256,
        version_base: BASE,
        clock_start: 0,
    }
}

/// Tables with an empty table "t", and their background threads.
pub(super) fn with_table(settings: TablesConfig) -> (Tables, BackgroundThreads) {
    let (tables, background) = Tables::new(settings);
    tables.session().batch(Now::from_millis(1)).create_table(b"t", b"t").unwrap();
    (tables, background)
}

impl TablesRig {
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: TablesConfig) -> Self {
        Self::with_feed(settings, None)
    }

    fn with_feed(settings: TablesConfig, feed: Option<FeedConfig>) -> Self {
        let (tables, background) = Tables::with_feed(settings, feed);
        let session = tables.session();
        let rig = Self(Rc::new(RigParts {
            tables,
            changes: RefCell::new(background.changes),
            expiry: RefCell::new(background.expiry),
            reaper: RefCell::new(background.reaper),
            compactor: RefCell::new(background.compactor),
            session: RefCell::new(session),
            notified: RefCell::default(),
            now: RefCell::new(1),
        }));
        rig.create("t").unwrap();
        rig
    }

    fn now(&self) -> Now {
        Now::from_millis(*self.0.now.borrow())
    }

    fn at(&self, millis: u64) -> &Self {
        *self.0.now.borrow_mut() = millis;
        self
    }

    fn create(&self, table: &str) -> Result<(), Refusal> {
        self.0.session.borrow_mut().batch(self.now()).create_table(table.as_bytes(), table.as_bytes())
    }

    fn drop_table(&self, table: &str) -> Result<(), Refusal> {
        self.0.session.borrow_mut().batch(self.now()).delete_table(table.as_bytes())
    }

    fn set(&self, key: &str, value: &str, ttl: Option<u32>) -> Result<(), Refusal> {
        set(&mut self.0.session.borrow_mut(), self.now(), key, value, ttl)
    }

    /// Sets one key after another to this value, until the first is refused.
    fn fill(&self, value: &str) -> Option<Refusal> {
        (0..1_000).find_map(|key| {
            self.publish();
            self.set(&key.to_string(), value, None).err()
        })
    }

    fn delete(&self, key: &str) -> Result<String, Refusal> {
        let mut session = self.0.session.borrow_mut();
        let mut batch = session.batch(self.now());
        batch.delete(b"t", key.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    fn get(&self, key: &str) -> Option<String> {
        let mut session = self.0.session.borrow_mut();
        let mut batch = session.batch(self.now());
        batch.get(b"t", key.as_bytes()).ok().map(|value| String::from_utf8_lossy(value).into_owned())
    }

    fn version(&self, key: &str) -> u64 {
        let mut session = self.0.session.borrow_mut();
        let mut batch = session.batch(self.now());
        batch.get_entry(b"t", key.as_bytes(), || self.now()).map_or(0, |entry| entry.version)
    }

    fn swap(&self, key: &str, expected: u64, value: &str) -> Result<u64, Refusal> {
        let mut session = self.0.session.borrow_mut();
        session.batch(self.now()).compare_and_swap(b"t", key.as_bytes(), expected, value.as_bytes(), Deadline::KEEP)
    }

    fn publish(&self) {
        let mut notified = self.0.notified.borrow_mut();
        let drained = self.0.changes.borrow_mut().drain(10_000, &mut |table, kind, key| {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            notified.push((text(table), kind, text(key)));
        });
        assert!(!drained.closed);
    }

    fn expire(&self) {
        let now = self.now();
        self.0.expiry.borrow_mut().pass(now);
    }

    fn reap(&self) {
        let now = self.now();
        self.0.reaper.borrow_mut().step(now);
    }

    /// The process has `beyond` more bytes than the budget. The compactor looks as often as its work may take.
    fn look(&self, beyond: i64) {
        for _ in 0..1_000 {
            let used = i64::try_from(self.tables_metrics().memory.used).unwrap();
            self.0.compactor.borrow_mut().look(used + beyond, self.now());
            self.0.session.borrow_mut().rest(self.now());
        }
    }

    /// Each background thread does its work until none is left.
    fn settle(&self) {
        for _ in 0..20 {
            self.expire();
            self.publish();
            self.reap();
        }
    }

    /// The notifications since the last call, as `key+` and `key-`.
    fn notified(&self) -> Vec<String> {
        let sign = |kind| if kind == ChangeKind::Updated { '+' } else { '-' };
        self.0.notified.borrow_mut().drain(..).map(|(_, kind, key)| format!("{key}{}", sign(kind))).collect()
    }

    fn tables_metrics(&self) -> super::TablesMetrics {
        self.0.tables.metrics()
    }

    /// Looks at the slot of this key.
    fn with_slot<T>(&self, key: &str, look: impl FnOnce(SlotRef<'_>) -> T) -> T {
        let guard = epoch::pin();
        let table = self.0.tables.0.catalog.find(b"t", &guard).unwrap();
        look(table.find(table.hash(key.as_bytes()), key.as_bytes(), &guard).unwrap())
    }

    /// A session of another thread.
    fn another(&self) -> Session {
        self.0.tables.session()
    }
}

fn set(session: &mut Session, now: Now, key: &str, value: &str, ttl: Option<u32>) -> Result<(), Refusal> {
    let deadline = Deadline::after(now, ttl.map(Ttl::from_secs));
    session.batch(now).update(b"t", key.as_bytes(), value.as_bytes(), deadline)
}

/// The deadline of a TTL of so many seconds. 0: none.
pub(in crate::tables) fn in_seconds(now: Now, seconds: u32) -> Deadline {
    Deadline::after(now, Some(Ttl::from_secs(seconds)))
}
