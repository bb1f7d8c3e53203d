//! The store of the events: one of two, with the same methods.

use super::embedded::Embedded;
use super::error::EventStoreError;
use super::mysql::Database;

/// A handle to a store. It is cheap to clone, and clones share the store.
#[derive(Clone)]
pub(super) enum EventStore {
    /// The server's own store.
    Embedded(Embedded),
    /// A database.
    MySql(Database),
}

impl EventStore {
    /// Stores a new event with this value, or a pending one. Returns its id when the event is durable.
    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, EventStoreError> {
        match self {
            Self::Embedded(store) => store.add(value).await,
            Self::MySql(store) => store.add(value).await,
        }
    }

    /// The number of events.
    pub(super) async fn count(&self) -> Result<u64, EventStoreError> {
        match self {
            Self::Embedded(store) => store.count().await,
            Self::MySql(store) => store.count().await,
        }
    }

    /// Finds the value of an event. `None`: there is no such event. `Some(None)`: it is pending, without a value.
    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, EventStoreError> {
        match self {
            Self::Embedded(store) => store.find(id).await,
            Self::MySql(store) => store.find(id).await,
        }
    }

    /// Checks that the store answers.
    pub(super) async fn check(&self) -> Result<(), EventStoreError> {
        match self {
            Self::Embedded(store) => store.check().await,
            Self::MySql(store) => store.check().await,
        }
    }
}
