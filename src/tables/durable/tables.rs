//! The durable tables that have a name, as a map of which a copy is cheap.
//!
//! The log holds the tables as they are while it writes a batch. A table that comes meanwhile changes a copy: one shard
//! is copied, and the others are shared. With one map each table would cost a copy of all.
//!
//! This file does not know which tables count: see `state.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::tables::table::Table;

/// With 65,536 tables a shard has as many entries as there are shards.
const SHARDS: usize = 256;

/// A part of the tables, by their incarnations.
type Shard = Arc<BTreeMap<u64, Arc<Table>>>;

/// The durable tables that have a name, by their incarnations.
#[derive(Clone)]
pub(in crate::tables) struct DurableTables([Shard; SHARDS]);

impl Default for DurableTables {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Shard::default()))
    }
}

impl DurableTables {
    /// The table with this incarnation.
    pub(in crate::tables) fn get(&self, incarnation: u64) -> Option<&Arc<Table>> {
        self.0.get(shard_of(incarnation))?.get(&incarnation)
    }

    /// All of them with their incarnations, in no order.
    pub(in crate::tables) fn iter(&self) -> impl Iterator<Item = (u64, &Arc<Table>)> {
        self.0.iter().flat_map(|shard| shard.iter()).map(|(incarnation, table)| (*incarnation, table))
    }

    /// The one with the lowest incarnation from this one on.
    pub(super) fn first_from(&self, incarnation: u64) -> Option<(u64, &Arc<Table>)> {
        let firsts = self.0.iter().filter_map(|shard| shard.range(incarnation..).next());
        firsts.map(|(incarnation, table)| (*incarnation, table)).min_by_key(|(incarnation, _)| *incarnation)
    }

    /// All of them, in no order.
    pub(in crate::tables) fn values(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.iter().map(|(_, table)| table)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.len()).sum()
    }

    pub(super) fn insert(&mut self, table: &Arc<Table>) {
        let incarnation = table.durability.incarnation();
        self.change(incarnation, |shard| drop(shard.insert(incarnation, Arc::clone(table))));
    }

    pub(super) fn remove(&mut self, incarnation: u64) {
        self.change(incarnation, |shard| drop(shard.remove(&incarnation)));
    }

    fn change(&mut self, incarnation: u64, change: impl FnOnce(&mut BTreeMap<u64, Arc<Table>>)) {
        if let Some(shard) = self.0.get_mut(shard_of(incarnation)) {
            change(Arc::make_mut(shard));
        }
    }
}

/// Incarnations count up.
fn shard_of(incarnation: u64) -> usize {
    usize::from(incarnation.to_le_bytes()[0])
}

const _: () = assert!(SHARDS == 1 << u8::BITS);
