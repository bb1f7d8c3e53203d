//! The requests of a mirror, and their replies as its algorithm sees them.

use crate::feed::{FeedMessage, FeedPosition};
use crate::services::tables::wire::{FeedState, MirrorRow};

/// A request of the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// FEED_STATE
    State,
    /// SCAN for a mirror, from this cursor.
    Page(Vec<u8>),
    /// CHANGES from this position.
    Changes(FeedPosition),
}

/// The reply to it.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// To FEED_STATE.
    State(FeedState),
    /// To SCAN.
    Page {
        /// The cursor of the next page. Empty: this is the last one.
        next: &'a [u8],
        /// The rows.
        rows: &'a [MirrorRow<'a>],
    },
    /// To CHANGES.
    Changes(&'a [FeedMessage<'a>]),
    /// TABLE NOT FOUND, to any of them.
    NoTable,
    /// BAD CURSOR.
    BadCursor,
    /// COMPACTED.
    Compacted,
}

/// One life of a table in one start of the server. Incarnation 0: there is no such table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) epoch: u64,
    pub(super) incarnation: u64,
}

/// The outstanding request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) is_state: bool,
    /// The round in which it was asked.
    pub(super) round: u32,
    /// Our `next` at that time.
    pub(super) next: u64,
    /// The life of the message that made us ask.
    pub(super) doubtful: Option<Life>,
}
