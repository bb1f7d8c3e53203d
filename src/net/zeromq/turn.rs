//! A turn: messages of one connection, answered in order.
//!
//! This module does not know where turns are answered; see `connections` and `turn_batch`.

use std::ops::Range;

/// Outcome of one turn's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The frontend took all of them.
    All,
    /// It took this many. The others have another turn when the send buffer has room.
    Some(usize),
    /// It took this many. The next reply is too large while [`ReplyBuffer::is_tight`](super::ReplyBuffer::is_tight), and the others wait until then.
    Starved(usize),
    /// It took this many. The others, and later input of the client, wait until [`Connections::resume`](super::Connections::resume).
    Parked(usize),
    /// It took all that it wants of this client. The connection ends behind the replies.
    Last,
}

impl TurnOutcome {
    /// How many were taken, if not all.
    #[must_use]
    pub fn count(self) -> Option<usize> {
        match self {
            Self::All | Self::Last => None,
            Self::Some(count) | Self::Starved(count) | Self::Parked(count) => Some(count),
        }
    }
}

/// Bytes of the messages of a turn.
#[derive(Debug)]
pub(super) enum TurnBytes {
    /// A part of the bytes of the batch.
    Shared(Range<usize>),
    /// A buffer of its own, and where its messages begin.
    Own(Vec<u8>, usize),
}

impl TurnBytes {
    pub(super) fn of<'b>(&'b self, shared: &'b [u8]) -> &'b [u8] {
        match self {
            Self::Shared(range) => shared.get(range.clone()),
            Self::Own(bytes, start) => bytes.get(*start..),
        }
        .unwrap_or_default()
    }

    /// Memory of the messages, in bytes.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Shared(range) => range.len(),
            Self::Own(bytes, _) => bytes.capacity(),
        }
    }
}
