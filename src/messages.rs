//! Messages that were cut out of received bytes: for each, the positions of its frames. The bytes stay where they are.
//!
//! ```text
//! bytes    │ … frame … frame … │ … frame … │ … frame … frame …   │ not whole yet
//! messages └──── message ──────┴─ message ─┴───── message ───────┘
//! ```
//! The cutters of two protocols make them: `zmtp`, whose frames are bodies, and `resp3`, whose frames are arguments. This
//! module knows neither.

use std::ops::{Deref, Range};

/// Messages that have come whole. The receiver keeps the bytes.
#[derive(Debug, Default)]
pub struct Messages {
    /// The positions of the bodies of all frames. A cutter writes them.
    pub(crate) frames: Vec<Range<usize>>,
    /// For each message, the number of frames up to its end, and whether it is whole. A cutter writes them.
    pub(crate) ends: Vec<(usize, bool)>,
}

impl Messages {
    /// The number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The messages in order. `bytes` are the bytes that they were cut from.
    pub fn iter<'b>(&'b self, bytes: &'b [u8]) -> impl Iterator<Item = Message<'b>> {
        let mut start = 0;
        self.ends.iter().map(move |(end, whole)| {
            let frames = self.frames.get(start..*end).unwrap_or_default();
            start = *end;
            Message { bytes, frames, whole: *whole }
        })
    }

    /// The messages with the bytes that they were cut from.
    #[inline]
    #[must_use]
    pub fn view<'b>(&'b self, bytes: &'b [u8]) -> MessageView<'b> {
        MessageView { messages: self, bytes }
    }

    /// The messages from the `first` on, and a copy of the part of `bytes` in which they lie. Their positions count
    /// from its beginning.
    #[must_use]
    pub fn rest(&self, first: usize, bytes: &[u8]) -> (Self, Vec<u8>) {
        let passed = first.checked_sub(1).and_then(|last| self.ends.get(last)).map_or(0, |(end, _)| *end);
        let frames = self.frames.get(passed..).unwrap_or_default();
        let start = frames.first().map_or(0, |frame| frame.start);
        let end = frames.last().map_or(0, |frame| frame.end);
        let rest = Self {
            frames: frames.iter().map(|frame| frame.start - start..frame.end - start).collect(),
            ends: self.ends.iter().skip(first).map(|(end, whole)| (end - passed, *whole)).collect(),
        };
        (rest, bytes.get(start..end).unwrap_or_default().to_vec())
    }

    /// Bytes of memory that the positions take.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Range<usize>>() + self.ends.capacity() * size_of::<(usize, bool)>()
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.ends.clear();
    }

    /// Adds `by` to all positions: the messages were cut from bytes that begin at this offset.
    pub fn shift(&mut self, by: usize) {
        if by > 0 {
            self.frames.iter_mut().for_each(|frame| *frame = frame.start + by..frame.end + by);
        }
    }
}

/// Messages with the bytes that they were cut from.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'b> {
    messages: &'b Messages,
    bytes: &'b [u8],
}

impl<'b> MessageView<'b> {
    /// The messages in order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Message<'b>> {
        self.messages.iter(self.bytes)
    }

    /// The messages from the `first` on, with bytes of their own ([`Messages::rest`]).
    #[must_use]
    pub fn rest(self, first: usize) -> (Messages, Vec<u8>) {
        self.messages.rest(first, self.bytes)
    }
}

impl Deref for MessageView<'_> {
    type Target = Messages;

    #[inline]
    fn deref(&self) -> &Messages {
        self.messages
    }
}

/// A message. It has at least one frame.
#[derive(Clone, Copy, Debug)]
pub struct Message<'b> {
    bytes: &'b [u8],
    frames: &'b [Range<usize>],
    whole: bool,
}

impl<'b> Message<'b> {
    /// The frames of the message, or as many of them as are kept.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &'b [u8]> + ExactSizeIterator {
        let bytes = self.bytes;
        self.frames.iter().map(move |frame| bytes.get(frame.clone()).unwrap_or_default())
    }

    /// Whether all frames are kept. If not, the message was longer than its bounds.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.whole
    }
}

/// The bytes to keep: those at `begun`, followed by those from `rest` on. The next call gets them first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconsumed {
    /// The kept part of a message that has not come whole.
    pub begun: Range<usize>,
    /// The offset of the first byte that was not read.
    pub rest: usize,
}
