//! Where events are: one of two stores, asked in the same words.

use super::embedded::Embedded;
use super::mysql::Database;

/// Why a store has not done what it was asked, in a sentence for who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble(pub(super) String);

/// A store. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub(super) enum Store {
    /// The server's own.
    Embedded(Embedded),
    /// A database.
    MySql(Database),
}

impl Store {
    /// A new event with this value, or a pending one; its id, when it is durable.
    pub(super) async fn add(&self, value: Option<&'static str>) -> Result<u64, Trouble> {
        match self {
            Self::Embedded(store) => store.add(value).await,
            Self::MySql(store) => store.add(value).await,
        }
    }

    /// How many events there are.
    pub(super) async fn count(&self) -> Result<u64, Trouble> {
        match self {
            Self::Embedded(store) => store.count().await,
            Self::MySql(store) => store.count().await,
        }
    }

    /// The value of an event, if it has one; none: there is no such event.
    pub(super) async fn find(&self, id: u64) -> Result<Option<Option<String>>, Trouble> {
        match self {
            Self::Embedded(store) => store.find(id).await,
            Self::MySql(store) => store.find(id).await,
        }
    }

    /// Whether it answers.
    pub(super) async fn check(&self) -> Result<(), Trouble> {
        match self {
            Self::Embedded(store) => store.check().await,
            Self::MySql(store) => store.check().await,
        }
    }
}
