//! The catalog: the map from names to tables. The `registry` maps numbers to tables.
//!
//! A lookup takes no lock and counts no reference: the table is borrowed for as long as the guard lives. Creating and
//! deleting tables exclude each other. The catalog does not touch elements.

mod audience;
mod closing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;
use crossbeam::epoch::Guard;

use super::eviction::EvictionDefault;
use super::failpoint::{Failpoint, reach};
use super::index::{Index, Names, name_bytes};
use super::latch::Edition;
use super::latches::Latches;
use super::registry::{REGISTRY_CELL_BYTES, Registry};
use super::table::{ElementTotals, NameHistory, NewTable, Table, canonical};
use super::table_audience::TableAudience;
use super::version::VersionFloor;
use super::{Durability, EvictionPolicy, Refusal};
use crate::allocator::size_class;
use crate::lock::{Mutex, MutexGuard};
use closing::ClosingTables;

/// With this many tables of one name on their way down, `create` answers `Busy` for a further one. A client that drops
/// and creates a table in turn then waits for the reaper, and 64 tables of a few KB each are nothing to hold.
const CLOSING_PER_NAME_MAX: usize = 64;

/// Bytes of a history in its map, without the name: key and value, and as much free room again in a node.
const HISTORY_ENTRY_BYTES: usize = 2 * size_of::<(Box<[u8]>, Arc<NameHistory>)>();

/// Bytes of a table of this name without elements: the table, its names, and its cell in the registry.
pub(super) fn table_bytes(announced_name: &[u8]) -> i64 {
    let name = canonical(announced_name).len();
    let history = size_class(NameHistory::ALLOCATED_BYTES) + size_class(name) + HISTORY_ENTRY_BYTES;
    let table = size_class(Table::ALLOCATED_BYTES) + size_class(announced_name.len());
    i64::try_from(table + history + name_bytes(name) + REGISTRY_CELL_BYTES).unwrap_or(i64::MAX)
}

/// All tables that have a name.
pub(super) struct Catalog {
    names: Names,
    /// With the edition, which sessions read that keep a table's number. Names are changed under `admission`.
    pub(super) latches: Latches,
    admission: Mutex<NameHistories>,
    /// The life of the table that was created last. Written under `admission`.
    generation: AtomicU64,
    /// The audience of a new table. Written under `admission`.
    expected: TableAudience,
    registry: Arc<Registry>,
    hasher: RandomState,
    tables_max: usize,
    expected_keys: usize,
    pub(super) closing: ClosingTables,
    pub(super) floor: VersionFloor,
    /// Written under `admission`.
    pub(super) eviction: EvictionDefault,
}

#[derive(Default)]
struct NameHistories {
    /// Histories of names that have a table, or had one lately.
    histories: BTreeMap<Box<[u8]>, Arc<NameHistory>>,
}

/// Tables of some names.
pub(super) struct TablesOfNames {
    pub(super) tables: Vec<Arc<Table>>,
    /// The last of the names, if there may be more behind it.
    pub(super) last: Option<Box<[u8]>>,
}

/// What a new table is made with, beside its name.
#[derive(Clone, Copy)]
pub(super) struct NewName<'n> {
    /// The name exactly as CREATE_TABLE gave it.
    pub(super) announced: &'n [u8],
    /// What CREATE_TABLE said. `None`: as the server says.
    pub(super) eviction: Option<EvictionPolicy>,
    pub(super) durability: Durability,
}

/// Records what becomes of tables: the old one goes, and the new one comes. Called under the catalog's lock, before anybody
/// sees it.
pub(super) type RecordTables<'r> = &'r mut dyn FnMut(Option<&Arc<Table>>, Option<&Arc<Table>>);

/// The elements of a life of a table that was read from the log.
pub(super) struct LoadedLife {
    pub(super) generation: u64,
    pub(super) number: u32,
    pub(super) index: Index,
    pub(super) totals: ElementTotals,
}

/// What has come of the look for a table.
pub(super) enum Reached<'g> {
    Table(&'g Table),
    /// No table has the name.
    None,
    /// Some name is latched, perhaps this one.
    Latched,
}

/// A table's number, and the edition of the catalog in which a session found it.
#[derive(Clone, Copy)]
pub(super) struct KnownTable {
    number: u32,
    edition: u64,
}

impl Catalog {
    pub(super) fn new(tables_max: usize, expected_keys: usize, version_base: u64) -> Self {
        Self {
            names: Names::new(),
            latches: Latches::new(),
            admission: Mutex::default(),
            generation: AtomicU64::new(0),
            expected: TableAudience::new(true, false, false),
            registry: Arc::new(Registry::new()),
            hasher: RandomState::new(),
            tables_max,
            expected_keys,
            closing: ClosingTables::new(expected_keys),
            floor: VersionFloor::new(version_base),
            eviction: EvictionDefault::default(),
        }
    }

    fn admission(&self) -> MutexGuard<'_, NameHistories> {
        self.admission.lock()
    }

    /// Lives of tables begin above this.
    pub(super) fn skip_generations(&self, incarnation: u64) {
        // Relaxed: no table is made yet.
        self.generation.fetch_max(incarnation, Ordering::Relaxed);
    }

    /// Enters a table that was read from the log. The name has none.
    pub(super) fn load(
        &self,
        name: &[u8],
        announced: &[u8],
        LoadedLife { generation, number, index, totals }: LoadedLife,
        durability: Durability,
        guard: &Guard,
    ) -> Arc<Table> {
        let mut admission = self.admission();
        let history = admission.histories.get(name).map_or_else(NameHistory::new, Arc::clone);
        self.skip_generations(generation);
        let table = Arc::new(Table::new(NewTable {
            number,
            generation,
            line: None,
            base: self.floor.get(),
            has_older: false,
            announced_name: announced,
            history: Arc::clone(&history),
            hasher: self.hasher.clone(),
            index,
            audience: self.audience_of_new(None, durability),
            eviction: self.eviction.of_new(None, durability != Durability::None),
            durability,
        }));
        // The log may have records of elements that are gone, with versions up to the floor.
        table.versions.note_left(self.floor.get());
        table.add(&totals);
        admission.histories.insert(name.into(), history);
        self.registry.enter(Arc::clone(&table), guard);
        self.change(|names| names.insert(name, number));
        table
    }

    /// The hasher of all keys.
    pub(super) fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    // ----------------------------------------------------------------------------------------------------- looking up

    /// The table of this name.
    pub(super) fn find<'g>(&self, name: &[u8], guard: &'g Guard) -> Option<&'g Table> {
        loop {
            let number = self.names.get(name)?;
            // A table is registered before it has a name, and loses its name before it is forgotten. So if the number
            // leads to another table or to none, the name has changed since the number was read. The next round of the
            // loop reads the change.
            let table = self.registry.get(number, guard);
            if let Some(table) = table.filter(|table| canonical(table.announced_name()) == name) {
                return Some(table);
            }
        }
    }

    /// The table of this name. `known` is the table that the session found last. This call sets it to the table it
    /// finds.
    ///
    /// A known number is valid while the edition is plain and the same as at the lookup. A change of a name raises the
    /// edition before the change is visible, and again before the change is answered. So a client that has seen the
    /// change in any way has seen it after the first increment. If a request was sent after that, this call reads
    /// another edition, because the request came before this load.
    ///
    /// While some name is latched, no table is reached: the caller asks for the latch of this name.
    #[inline]
    pub(super) fn reach<'g>(&self, known: &mut Option<KnownTable>, name: &[u8], guard: &'g Guard) -> Reached<'g> {
        let edition = self.latches.edition.load();
        let stands = known.filter(|known| known.edition == edition && Edition::is_plain(edition));
        let table = stands.and_then(|known| self.registry.get(known.number, guard));
        if let Some(table) = table.filter(|table| canonical(table.announced_name()) == name) {
            return Reached::Table(table);
        }
        if Edition::is_latched(edition) {
            return Reached::Latched;
        }
        let table = self.find(name, guard);
        *known = table.map(|table| KnownTable { number: table.number(), edition });
        table.map_or(Reached::None, Reached::Table)
    }

    /// The numbers of all tables that have a name, in no order.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.names.numbers()
    }

    /// All tables that have a name, in the order of their names.
    pub(super) fn tables<'g>(&self, guard: &'g Guard) -> Vec<&'g Table> {
        self.newest_of_names(self.numbers(), guard)
    }

    /// The tables with these numbers, in the order of their names. Of a name that got another table while the numbers
    /// were read, they may lead to both: the newer one counts.
    pub(super) fn newest_of_names<'g>(&self, numbers: Vec<u32>, guard: &'g Guard) -> Vec<&'g Table> {
        let mut tables: Vec<_> = numbers.into_iter().filter_map(|number| self.registry.get(number, guard)).collect();
        tables.sort_unstable_by(|a, b| {
            let names = canonical(a.announced_name()).cmp(canonical(b.announced_name()));
            names.then(b.generation().cmp(&a.generation()))
        });
        tables.dedup_by_key(|table| canonical(table.announced_name()));
        tables
    }

    // ------------------------------------------------------------------------------------------------------- changing

    /// Adds or removes a name.
    fn change(&self, names: impl FnOnce(&Names)) {
        self.latches.edition.begin_change();
        names(&self.names);
        reach(Failpoint::Renamed);
        self.latches.edition.end_change();
    }

    /// Checks whether another table, of this name, may be created.
    fn check(&self, name: &[u8], has_room: bool) -> Result<(), Refusal> {
        if self.names.get(name).is_some() {
            return Err(Refusal::TableExists);
        }
        if self.names.len() >= self.tables_max {
            return Err(Refusal::TooManyTables);
        }
        if has_room { Ok(()) } else { Err(Refusal::OutOfMemory) }
    }

    /// Creates a table.
    ///
    /// # Errors
    /// `TableExists`, `TooManyTables`, `OutOfMemory` if not `has_room`, and `Busy` while too many tables, of the name or
    /// of all names, are still being taken down.
    pub(super) fn create<'g>(
        &self,
        name: &[u8],
        new_name: NewName<'_>,
        has_room: bool,
        record: RecordTables<'_>,
        guard: &'g Guard,
    ) -> Result<&'g Table, Refusal> {
        // The index may be large, so it is made before the lock is taken. This first check saves that work for a
        // request that is refused anyway.
        self.check(name, has_room)?;
        let index = Index::new(self.expected_keys);
        let mut admission = self.admission();
        self.check(name, has_room)?;
        self.check_closing(false)?;
        self.enter(&mut admission, new_name, index, None, record, guard)
    }

    /// Whether the table of this name may be replaced so often, or as often as a name may at all.
    ///
    /// # Errors
    /// `Busy` as [`Catalog::create`].
    pub(super) fn admit_replacements(&self, name: &[u8], times: usize) -> Result<(), Refusal> {
        let lives = self.admission().histories.get(name).map_or(0, |history| history.len());
        // One life is that of the table itself.
        let is_full = self.closing.are_full() || lives > 1 && lives + times > CLOSING_PER_NAME_MAX;
        if is_full { Err(Refusal::Busy) } else { Ok(()) }
    }

    /// Puts an empty table in the place of the one of this name, in one step: there is no moment without a table. Returns
    /// the new one, and the old one, which the caller hands to the reaper. `is_admitted`: the bound of all names does not
    /// hold for it, since [`Catalog::admit_replacements`] has looked.
    ///
    /// The old table is closed, and known as older, before the new one is shown. A write that finds the old table closed is
    /// tried again, until it finds the new one. So each key is settled in the old table before it has a slot in the new.
    ///
    /// # Errors
    /// `TableNotFound`, `TooManyTables`, and `Busy` as [`Catalog::create`].
    pub(super) fn replace<'g>(
        &self,
        name: &[u8],
        is_admitted: bool,
        record: RecordTables<'_>,
        guard: &'g Guard,
    ) -> Result<(&'g Table, Arc<Table>), Refusal> {
        let index = Index::new(self.expected_keys);
        let mut admission = self.admission();
        let number = self.names.get(name).ok_or(Refusal::TableNotFound)?;
        let old = self.registry.share(number, guard).ok_or(Refusal::TableNotFound)?;
        self.check_closing(is_admitted)?;
        let new_name = NewName {
            announced: old.announced_name(),
            eviction: old.eviction.said(),
            durability: old.durability.said(),
        };
        let new = self.enter(&mut admission, new_name, index, Some(&old), record, guard)?;
        Ok((new, old))
    }

    /// Checks whether there may be another table, as far as all names are asked.
    fn check_closing(&self, is_admitted: bool) -> Result<(), Refusal> {
        if self.closing.are_full() && !is_admitted { Err(Refusal::Busy) } else { Ok(()) }
    }

    /// Enters a table under this name, in the place of `old` if there is one.
    fn enter<'g>(
        &self,
        admission: &mut NameHistories,
        NewName { announced: announced_name, eviction, durability }: NewName<'_>,
        index: Index,
        old: Option<&Arc<Table>>,
        record: RecordTables<'_>,
        guard: &'g Guard,
    ) -> Result<&'g Table, Refusal> {
        let name = canonical(announced_name);
        let history = admission.histories.get(name).map_or_else(NameHistory::new, Arc::clone);
        if history.len() >= CLOSING_PER_NAME_MAX {
            return Err(Refusal::Busy);
        }
        let number = self.registry.reserve().ok_or(Refusal::TooManyTables)?;
        let generation = self.next_generation();
        let table = Arc::new(Table::new(NewTable {
            number,
            generation,
            line: old.map(|old| old.line()),
            base: self.floor.get(),
            has_older: old.is_some() || history.len() > 0,
            announced_name,
            history: Arc::clone(&history),
            hasher: self.hasher.clone(),
            index,
            audience: self.audience_of_new(old, durability),
            eviction: self.eviction.of_new(eviction, durability != Durability::None),
            durability,
        }));
        record(old, Some(&table));
        if let Some(old) = old {
            self.closing.add();
            self.eviction.leave(&old.eviction);
            old.give_place();
        }
        admission.histories.insert(name.into(), history);
        self.registry.enter(table, guard);
        self.change(|names| names.insert(name, number));
        Ok(self
            .registry
            .get(number, guard)
            .expect("it was entered just now, and is forgotten only after it was deleted"))
    }

    /// Unlinks and closes the table of this name. The caller hands it to the reaper.
    pub(super) fn delete(&self, name: &[u8], record: RecordTables<'_>, guard: &Guard) -> Option<Arc<Table>> {
        let _admission = self.admission();
        let table = self.registry.share(self.names.get(name)?, guard)?;
        record(Some(&table), None);
        self.change(|names| names.remove(name));
        table.close();
        self.eviction.leave(&table.eviction);
        self.closing.add();
        Some(table)
    }

    /// Changes the durability of the table of this name, while no table comes or goes.
    pub(super) fn alter(&self, name: &[u8], guard: &Guard, change: impl FnOnce(&Arc<Table>)) -> Result<(), Refusal> {
        let _admission = self.admission();
        let number = self.names.get(name).ok_or(Refusal::TableNotFound)?;
        let table = self.registry.share(number, guard).ok_or(Refusal::TableNotFound)?;
        change(&table);
        self.eviction.set_durable(&table.eviction, table.is_durable());
        Ok(())
    }

    /// The number of a life that no table has. Called under `admission`.
    pub(super) fn next_generation(&self) -> u64 {
        // Relaxed: the lock orders it, and who reads it without the lock looks again later.
        self.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Called by the reaper: a settled table no longer blocks younger tables of the name, and its number is free.
    pub(super) fn forget(&self, table: &Arc<Table>, guard: &Guard) {
        let mut admission = self.admission();
        table.history().leave(table);
        let name = canonical(table.announced_name());
        if self.names.get(name).is_none() && table.history().len() == 0 {
            admission.histories.remove(name);
        }
        self.registry.leave(table.number(), guard);
    }

    /// The number of names that have tables, settled or not.
    #[cfg(test)]
    pub(super) fn histories(&self) -> usize {
        self.admission().histories.len()
    }

    // -------------------------------------------------------------------------------------------------------- eviction

    /// Sets the policy of the tables that do not say, of present and future ones.
    pub(super) fn set_eviction(&self, policy: EvictionPolicy, guard: &Guard) {
        let _admission = self.admission();
        self.eviction.set(policy, self.tables(guard).into_iter().map(|table| &table.eviction));
    }

    /// Bytes of all elements that may be evicted.
    pub(super) fn evictable_bytes(&self, guard: &Guard) -> i64 {
        self.numbers()
            .into_iter()
            .filter_map(|number| self.registry.get(number, guard))
            .map(Table::evictable_bytes)
            .sum()
    }

    // ------------------------------------------------------------------------------------------------------- audiences

    /// The life of the table that was created last.
    pub(super) fn generation(&self) -> u64 {
        // Relaxed: who asks looks again later.
        self.generation.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_costs_all_of_its_parts() {
        let parts = |name: usize, announced_name: usize| {
            let allocations = [NameHistory::ALLOCATED_BYTES, Table::ALLOCATED_BYTES, name, announced_name];
            let allocated: usize = allocations.into_iter().map(size_class).sum();
            allocated + HISTORY_ENTRY_BYTES + name_bytes(name) + REGISTRY_CELL_BYTES
        };
        assert_eq!(usize::try_from(table_bytes(b"users")), Ok(parts(5, 5)));
        assert_eq!(usize::try_from(table_bytes(&[b"u".repeat(200), b"\0".to_vec()].concat())), Ok(parts(200, 201)));
    }
}
