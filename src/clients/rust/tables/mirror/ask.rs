//! The requests of a mirror, their replies as its algorithm sees them, and how far they have led.

use std::time::Duration;

use crate::feed::{FeedMessage, FeedPosition};
use crate::services::tables::wire::{FeedState, MirrorRow};

/// The first pause before the next request after a request without effect, and before the next scan after a vain scan.
const PAUSE: Duration = Duration::from_millis(10);
/// Doublings of the pause: at most 5 s.
const PAUSE_DOUBLINGS_MAX: u32 = 9;

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
pub(super) enum MirrorAnswer<'a> {
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

/// Where the copy is in the feed.
#[derive(Debug)]
pub(super) struct FeedPlace {
    pub(super) life: Option<Life>,
    /// The highest incarnation of this epoch that is known to be over.
    pub(super) ended: u64,
    /// The sequence that the copy needs next.
    pub(super) next: u64,
    /// The sequence behind the last one that the feed has shown. Above `next`: there is a gap.
    pub(super) seen: u64,
}

impl FeedPlace {
    /// The position that the copy needs next. `None`: it has not begun.
    pub(super) fn position(&self) -> Option<FeedPosition> {
        let Life { epoch, incarnation } = self.life?;
        Some(FeedPosition { epoch, incarnation, sequence: self.next })
    }

    pub(super) fn has_gap(&self) -> bool {
        self.next < self.seen
    }

    /// Whether this life is known to be over.
    pub(super) fn is_over(&self, life: Life) -> bool {
        let own = self.life.filter(|own| own.epoch == life.epoch);
        own.is_some_and(|own| life.incarnation != 0 && life.incarnation <= self.ended.max(own.incarnation))
    }

    /// The feed has shown these sequences. Returns whether a gap begins.
    pub(super) fn note_seen(&mut self, first: u64, end: u64) -> bool {
        let begins = first > self.next && !self.has_gap();
        self.seen = self.seen.max(end);
        begins
    }
}

/// How often the machine has asked in vain.
#[derive(Debug, Default)]
pub(super) struct VainAsks {
    /// Requests in a row that brought nothing.
    pub(super) fruitless: u32,
    /// Rounds since a digest was equal.
    pub(super) failures: u32,
}

impl VainAsks {
    pub(super) fn note_fruitless(&mut self) {
        self.fruitless = self.fruitless.saturating_add(1);
    }

    /// The pause before the next request: none, unless the last ones were in vain.
    pub(super) fn pause(&self, is_starting: bool) -> Duration {
        let vain = self.fruitless.max(if is_starting { self.failures } else { 0 });
        match vain.checked_sub(2) {
            None => Duration::ZERO,
            Some(times) => PAUSE * (1 << times.min(PAUSE_DOUBLINGS_MAX)),
        }
    }
}
