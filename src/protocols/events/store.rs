//! Where events are: one of two stores, asked in the same words.

use super::embedded::Embedded;
use super::mysql::Database;

/// Why a store has not done what it was asked, in a sentence for who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventStoreError(pub(super) String);

/// A store. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub(super) enum EventStore {
    /// The server's own.
    Embedded(Embedded),
    /// A database.
    MySql(Database),
}

impl EventStore {
    /// A new event with this value, or a pending one; its id, when it is durable.
    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, EventStoreError> {
        match self {
            Self::Embedded(store) => store.add(value).await,
            Self::MySql(store) => store.add(value).await,
        }
    }

    /// How many events there are.
    pub(super) async fn count(&self) -> Result<u64, EventStoreError> {
        match self {
            Self::Embedded(store) => store.count().await,
            Self::MySql(store) => store.count().await,
        }
    }

    /// The value of an event, if it has one; none: there is no such event.
    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, EventStoreError> {
        match self {
            Self::Embedded(store) => store.find(id).await,
            Self::MySql(store) => store.find(id).await,
        }
    }

    /// Whether it answers.
    pub(super) async fn check(&self) -> Result<(), EventStoreError> {
        match self {
            Self::Embedded(store) => store.check().await,
            Self::MySql(store) => store.check().await,
        }
    }
}
