//! The connections of a thread by their ids. An id whose connection has closed finds nothing, also when another
//! connection has its slot.

use slab::Slab;

use super::super::connection::Connection;
use super::ConnectionId;
use crate::limits::CONNECTIONS_MAX;

/// All connections of a thread.
pub(super) struct Slots<S> {
    slab: Slab<Connection<S>>,
    /// That of the newest connection.
    generation: u32,
    /// How many connections there may be.
    most: usize,
}

impl<S> Slots<S> {
    pub(super) fn new() -> Self {
        Self { slab: Slab::new(), generation: 0, most: CONNECTIONS_MAX }
    }

    /// Adds a connection, unless `make` gives none. `make` receives the connection's id.
    pub(super) fn insert(&mut self, make: impl FnOnce(ConnectionId) -> Option<Connection<S>>) -> Option<ConnectionId> {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.slab.vacant_entry();
        let id = ConnectionId::new(entry.key(), self.generation);
        entry.insert(make(id)?);
        Some(id)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection<S>> {
        self.slab.get(id.slot() as usize).filter(|connection| connection.generation == id.generation())
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection<S>> {
        self.slab.get_mut(id.slot() as usize).filter(|connection| connection.generation == id.generation())
    }

    /// Removes a connection that is there.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Connection<S> {
        self.slab.remove(id.slot() as usize)
    }

    /// In the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection<S>)> {
        self.slab.iter().map(|(slot, connection)| (ConnectionId::new(slot, connection.generation), connection))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection<S>> {
        self.slab.iter_mut().map(|(_, connection)| connection)
    }

    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.iter().map(|(id, _)| id).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many connections may still come.
    pub(super) fn room(&self) -> usize {
        self.most.saturating_sub(self.slab.len())
    }

    /// From now on there are at most so many connections.
    #[cfg(test)]
    pub(super) fn limit_to(&mut self, most: usize) {
        self.most = most;
    }
}
