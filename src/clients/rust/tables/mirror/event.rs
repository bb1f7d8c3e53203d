//! The events of a mirror: the changes of its copy, and whether the copy is exact.

use std::sync::Arc;

use crate::feed::{Cause, FeedPosition};

/// One event of a [`Mirror`](super::Mirror), in the order in which its copy changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorEvent {
    /// An element of the copy is new, different or gone.
    Changed(MirrorChange),
    /// From now on the copy is exact. Each later change keeps it so, until [`MirrorEvent::NotExact`].
    Exact(FeedPosition),
    /// The copy may lack changes. It stays readable, and the mirror brings it up to date.
    NotExact(NotExact),
    /// There is no such table. The copy is empty. The mirror waits for the table to be created.
    NoTable,
}

/// A change of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorChange {
    /// The key.
    pub key: Arc<[u8]>,
    /// The value. `None`: the element is gone.
    pub value: Option<Arc<[u8]>>,
    /// The version of the element or of its deletion. 0: a scan, or the end of the table, has shown that it is gone.
    pub version: u64,
    /// The deadline, in milliseconds since 1970. The element is there until the mirror says otherwise.
    pub deadline_millis: Option<u64>,
    /// The cause. `None`: the mirror found the change in a scan.
    pub cause: Option<Cause>,
}

/// Why a copy is no longer exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotExact {
    /// The connection to the feed is lost. The mirror connects again.
    Disconnected,
    /// Messages were lost: the mirror was too slow, or the connection was cut. It asks for them.
    Missed,
    /// The server no longer keeps the changes that were missed. The mirror reads the table again.
    Compacted,
    /// The table was made anew, or the server has started again. The mirror reads the table.
    Replaced,
    /// The digest of the server differs from that of the copy. The mirror reads the table again.
    Differs,
}

impl NotExact {
    /// A word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Missed => "missed",
            Self::Compacted => "compacted",
            Self::Replaced => "replaced",
            Self::Differs => "differs",
        }
    }
}

/// Counters of a mirror. All of them grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorMetrics {
    /// Digests of the server, in bookmarks and in states, that were at the mirror's own sequence and equal to its own.
    pub verified: u64,
    /// Digests that should have been equal, and were not.
    pub differences: u64,
    /// Scans of the whole table that were begun.
    pub scans: u64,
    /// Gaps, each of which the mirror asked the server to fill.
    pub gaps: u64,
    /// Changes of the feed that the copy has taken.
    pub changes: u64,
    /// Messages of the table's topic that have come, bookmarks among them.
    pub messages: u64,
}
