//! The catalog: names to tables, and numbers to tables until they are settled.
//!
//! Looking a table up takes no lock. Creating and deleting tables exclude each other. It does not touch elements.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::{AHashMap, RandomState};
use crossbeam::utils::CachePadded;

use super::Refusal;
use super::index::Names;
use super::slot::TABLE_NUMBERS;
use super::table::{Founding, Lineage, Table};

/// Tables of one name that may be on their way down before a further one has to wait.
const CLOSING_PER_NAME_MAX: usize = 64;
/// Tables that one thread's cache holds before it starts anew.
const CACHE_MAX: usize = 1024;

/// All tables that have a name.
pub(super) struct Catalog {
    names: Names<Table>,
    /// How often the names have changed. Raised after each change and before it is answered; read by whoever keeps a
    /// table at hand.
    edition: AtomicU64,
    admission: Mutex<Admission>,
    registry: Arc<Registry>,
    hasher: RandomState,
    tables_max: usize,
    expected_keys: usize,
    /// The highest version of a slot that has left an index. A new slot starts above it. Raised by the reaper before
    /// the slot leaves; read under the bucket's lock, so whoever misses the slot sees the floor.
    floor: CachePadded<AtomicU64>,
    /// Sessions that were ever made: at least as many as the threads that look tables up.
    threads: AtomicUsize,
}

#[derive(Default)]
struct Admission {
    generation: u64,
    /// Lineages of names that have, or lately had, a table.
    lineages: AHashMap<Box<[u8]>, Arc<Lineage>>,
}

impl Catalog {
    pub(super) fn new(tables_max: usize, expected_keys: usize) -> Self {
        Self {
            names: Names::new(),
            edition: AtomicU64::new(0),
            admission: Mutex::new(Admission::default()),
            registry: Arc::new(Registry::default()),
            hasher: RandomState::new(),
            tables_max,
            expected_keys,
            floor: CachePadded::new(AtomicU64::new(0)),
            threads: AtomicUsize::new(0),
        }
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread more will look tables up.
    pub(super) fn count_thread(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The table of this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<Arc<Table>> {
        self.names.with(name, Arc::clone)
    }

    /// As long as this stays the same, a name that is looked up after reading it stands for the same table: a change
    /// meanwhile has not been answered yet. Another thread may have noticed that change all the same; so what is kept by
    /// this is good for requests that had come before the name was looked up, and a batch has no others.
    pub(super) fn edition(&self) -> u64 {
        // Acquire: pairs with the Release in `changed`.
        self.edition.load(Ordering::Acquire)
    }

    fn changed(&self) {
        // Release: pairs with the Acquire in `edition`: who sees it looks the name up, and finds it changed.
        self.edition.fetch_add(1, Ordering::Release);
    }

    pub(super) fn tables(&self) -> Vec<Arc<Table>> {
        self.names.values()
    }

    /// Makes a table.
    ///
    /// # Errors
    /// `TableExists`, `TooManyTables`, `OutOfMemory` if not `room`, and `Busy` while too many tables of the name are
    /// still being taken down.
    pub(super) fn create(&self, name: &[u8], announced_name: &[u8], room: bool) -> Result<Arc<Table>, Refusal> {
        let mut admission = self.admission();
        if self.names.with(name, |_| ()).is_some() {
            return Err(Refusal::TableExists);
        }
        if self.names.len() >= self.tables_max {
            return Err(Refusal::TooManyTables);
        }
        if !room {
            return Err(Refusal::OutOfMemory);
        }
        let lineage = admission.lineages.get(name).map_or_else(Lineage::new, Arc::clone);
        if lineage.len() >= CLOSING_PER_NAME_MAX {
            return Err(Refusal::Busy);
        }
        admission.generation += 1;
        let generation = admission.generation;
        let table = self.registry.enter(|number| {
            Table::new(Founding {
                number,
                generation,
                announced_name,
                lineage: Arc::clone(&lineage),
                hasher: self.hasher.clone(),
                expected_keys: self.expected_keys,
            })
        });
        let Some(table) = table else { return Err(Refusal::TooManyTables) };
        admission.lineages.insert(name.into(), lineage);
        self.names.insert(name, Arc::clone(&table));
        self.changed();
        Ok(table)
    }

    /// Unlinks and closes the table of this name. The caller hands it to the reaper.
    pub(super) fn delete(&self, name: &[u8]) -> Option<Arc<Table>> {
        let _admission = self.admission();
        let table = self.find(name)?;
        self.names.remove(name, self.threads.load(Ordering::Relaxed));
        self.changed();
        table.close();
        Some(table)
    }

    /// Reaper: a settled table is no longer in the way of younger ones, and its number is free.
    pub(super) fn forget(&self, table: &Arc<Table>) {
        let mut admission = self.admission();
        table.lineage().leave(table);
        let name = canonical(table.announced_name());
        let idle = self.names.with(name, |_| ()).is_none() && table.lineage().len() == 0;
        if idle {
            admission.lineages.remove(name);
        }
        self.registry.leave(table);
    }

    /// The version that every new slot must start above.
    pub(super) fn floor(&self) -> u64 {
        // Acquire: pairs with the Release of `raise_floor`; the bucket's lock orders the two for one key.
        self.floor.load(Ordering::Acquire)
    }

    /// Reaper: a slot that ended at `version` is about to leave its index.
    pub(super) fn raise_floor(&self, version: u64) {
        self.floor.fetch_max(version, Ordering::AcqRel);
    }
}

/// A name without the NUL that may end it.
pub(super) fn canonical(name: &[u8]) -> &[u8] {
    name.strip_suffix(b"\0").unwrap_or(name)
}

/// Numbers to tables: slots carry the number.
#[derive(Default)]
pub(super) struct Registry {
    places: Mutex<Places>,
    /// Tables that were forgotten so far: caches look through what they have when it grows.
    departures: AtomicU64,
}

#[derive(Default)]
struct Places {
    tables: Vec<Option<Arc<Table>>>,
    free: Vec<u32>,
}

impl Registry {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, make: impl FnOnce(u32) -> Table) -> Option<Arc<Table>> {
        let mut places = self.places();
        let number = match places.free.pop() {
            Some(number) => number,
            None => u32::try_from(places.tables.len()).ok().filter(|number| *number < TABLE_NUMBERS)?,
        };
        let table = Arc::new(make(number));
        let entry = Some(Arc::clone(&table));
        match places.tables.get_mut(number as usize) {
            Some(place) => *place = entry,
            None => places.tables.push(entry),
        }
        Some(table)
    }

    fn leave(&self, table: &Arc<Table>) {
        let mut places = self.places();
        let place = places.tables.get_mut(table.number() as usize);
        if let Some(place) = place.filter(|place| place.as_ref().is_some_and(|here| Arc::ptr_eq(here, table))) {
            *place = None;
            places.free.push(table.number());
        }
        drop(places);
        // Release: pairs with the Acquire in `TableCache::purge`.
        self.departures.fetch_add(1, Ordering::Release);
    }

    fn get(&self, number: u32) -> Option<Arc<Table>> {
        self.places().tables.get(number as usize).and_then(Clone::clone)
    }
}

/// One thread's copy of the registry, so that it asks once for each table.
///
/// A number is used again only after its table has been settled, so an entry that is not settled is the right one.
pub(super) struct TableCache {
    registry: Arc<Registry>,
    departures: u64,
    last: Option<Arc<Table>>,
    tables: AHashMap<u32, Arc<Table>>,
}

impl TableCache {
    pub(super) fn new(registry: Arc<Registry>) -> Self {
        Self { registry, departures: 0, last: None, tables: AHashMap::new() }
    }

    /// The table of this number, to be given back with [`TableCache::put_back`]; none if it has been forgotten.
    pub(super) fn take(&mut self, number: u32) -> Option<Arc<Table>> {
        if let Some(table) = self.last.take_if(|table| table.number() == number && !table.is_settled()) {
            return Some(table);
        }
        if let Some(table) = self.tables.get(&number).filter(|table| !table.is_settled()) {
            return Some(Arc::clone(table));
        }
        let table = self.registry.get(number)?;
        if self.tables.len() >= CACHE_MAX {
            self.tables.clear();
        }
        self.tables.insert(number, Arc::clone(&table));
        Some(table)
    }

    /// Keeps the table at hand for the next call.
    pub(super) fn put_back(&mut self, table: Arc<Table>) {
        self.last = Some(table);
    }

    /// Lets go of tables that are settled, if any were forgotten since the last call.
    pub(super) fn purge(&mut self) {
        // Acquire: pairs with the Release in `Registry::leave`.
        let departures = self.registry.departures.load(Ordering::Acquire);
        if departures == self.departures {
            return;
        }
        self.departures = departures;
        self.last.take_if(|table| table.is_settled());
        self.tables.retain(|_, table| !table.is_settled());
    }
}
