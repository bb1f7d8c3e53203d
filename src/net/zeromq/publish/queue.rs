//! The messages that wait to be sent to a subscriber: pieces of buffers, most of which subscribers share.
//!
//! ```text
//! buffer (shared)   │ message │ message │ message │ …      buffer (its own)   │ message │
//! queue             └──────────── piece ───────────┘──────────────────────────└─ piece ─┘
//!                        ▲ sent                                              shortened here, between two messages ▲
//! ```
//! The publisher shortens a queue at its end, by whole messages. A message of which the system has taken a part stays,
//! and so do ZMTP's own bytes (greetings, PONGs). A piece holds either messages or ZMTP's own bytes, never both.
//!
//! This module does not decide when a queue is too long; see `deliver`.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::limits::SHARED_BYTES_MIN;
use crate::net::budget::Budget;
use crate::zmtp::Part;

/// Pieces sent in one call: their list takes 512 bytes of the stack. More pieces take another call.
const PIECES_AT_ONCE: usize = 32;

/// Bytes on the wire, counted as long as a queue has a piece of them.
#[derive(Debug)]
pub(super) struct SharedBuffer {
    bytes: Vec<u8>,
    counted: usize,
    held: Arc<Budget>,
}

impl SharedBuffer {
    pub(super) fn new(bytes: &[u8], held: &Arc<Budget>) -> Self {
        let mut buffer = Self { bytes: Vec::new(), counted: 0, held: Arc::clone(held) };
        buffer.append(bytes);
        buffer
    }

    /// The capacity that a buffer of this capacity has after it has grown to `length` bytes. It doubles, so small
    /// pieces do not cost a copy each.
    fn grown(capacity: usize, length: usize) -> usize {
        if length > capacity { length.max(2 * capacity) } else { capacity }
    }

    fn append(&mut self, bytes: &[u8]) {
        let length = self.bytes.len() + bytes.len();
        self.bytes.reserve_exact(Self::grown(self.bytes.capacity(), length) - self.bytes.len());
        self.bytes.extend_from_slice(bytes);
        let now = self.bytes.capacity();
        self.held.change(self.counted as u64, now as u64);
        self.counted = now;
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        self.held.change(self.counted as u64, 0);
    }
}

/// A part of a buffer. It begins and ends between two messages.
#[derive(Debug)]
struct Piece {
    buffer: Arc<SharedBuffer>,
    begin: usize,
    end: usize,
    /// 0: the piece holds ZMTP's own bytes.
    messages: usize,
}

impl Piece {
    fn length(&self) -> usize {
        self.end - self.begin
    }

    fn bytes_from(&self, start: usize) -> &[u8] {
        self.buffer.bytes.get(start..self.end).unwrap_or_default()
    }

    /// End of the message that begins at `start`.
    fn message_end(&self, start: usize) -> usize {
        message_end(self.buffer.bytes.get(..self.end).unwrap_or_default(), start)
    }
}

/// End of the message that begins at `start` in these whole messages.
fn message_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    loop {
        match Part::decode(bytes.get(at..).unwrap_or_default(), u64::MAX) {
            Ok(Some((Part::Frame { more, .. }, length))) => {
                at += length;
                if !more {
                    return at;
                }
            }
            other => unreachable!("a piece is whole messages: {other:?}"),
        }
    }
}

/// The queue of one subscriber.
#[derive(Debug, Default)]
pub(super) struct SubscriberQueue {
    pieces: VecDeque<Piece>,
    /// Position in the first piece up to which the system has taken it.
    sent: usize,
    /// The last known end of a message in the first piece, at or before `sent`, and the messages up to it.
    walked: (usize, usize),
    /// Messages of all pieces, including those of the first that the system has taken.
    messages: usize,
    /// Bytes that the system has not taken.
    bytes: usize,
    /// Bytes of pieces that hold ZMTP's own bytes.
    control_bytes: usize,
}

impl SubscriberQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that the system has not taken.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// ZMTP's own bytes that the system has not taken. A piece counts whole until all of it is sent.
    pub(super) fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Upper bound of [`SubscriberQueue::messages`]. Cheap.
    pub(super) fn messages_at_most(&self) -> usize {
        self.messages - self.walked.1
    }

    /// Messages of which the system has not taken all.
    pub(super) fn messages(&mut self) -> usize {
        if let Some(first) = self.pieces.front().filter(|first| first.messages > 0) {
            while self.walked.0 < self.sent {
                let end = first.message_end(self.walked.0);
                if end > self.sent {
                    break;
                }
                self.walked = (end, self.walked.1 + 1);
            }
        }
        self.messages_at_most()
    }

    /// Appends messages that others may also wait for.
    pub(super) fn push_shared(&mut self, buffer: &Arc<SharedBuffer>, messages: usize) {
        let (begin, end) = (0, buffer.bytes.len());
        self.push(Piece { buffer: Arc::clone(buffer), begin, end, messages });
    }

    /// Appends a copy of messages, or of ZMTP's own bytes if `messages` is 0.
    pub(super) fn push_copy(&mut self, bytes: &[u8], messages: usize, held: &Arc<Budget>) {
        if bytes.is_empty() {
            return;
        }
        if let Some(last) = self.open_end(messages == 0)
            && let Some(buffer) = Arc::get_mut(&mut last.buffer)
        {
            buffer.append(bytes);
            last.end += bytes.len();
            last.messages += messages;
            self.count(bytes.len(), messages);
            return;
        }
        let buffer = Arc::new(SharedBuffer::new(bytes, held));
        self.push(Piece { buffer, begin: 0, end: bytes.len(), messages });
    }

    /// The last piece, if more bytes of its kind can be appended to its buffer.
    fn open_end(&mut self, is_control: bool) -> Option<&mut Piece> {
        let last = self.pieces.back_mut().filter(|last| (last.messages == 0) == is_control)?;
        let is_open = last.buffer.bytes.len() == last.end && last.end < SHARED_BYTES_MIN;
        (is_open && Arc::get_mut(&mut last.buffer).is_some()).then_some(last)
    }

    /// Bytes by which all buffers together grow with a copy of `bytes` bytes of messages.
    pub(super) fn cost_of_copy(&mut self, bytes: usize) -> usize {
        let Some(last) = self.open_end(false) else { return bytes };
        let (capacity, length) = (last.buffer.bytes.capacity(), last.buffer.bytes.len() + bytes);
        SharedBuffer::grown(capacity, length) - capacity
    }

    /// Appends the unsent messages, as long as all buffers together grow by at most `most` bytes. It appends in any
    /// case a message of which the system has taken a part. Returns how many messages the system has taken or the queue
    /// now holds. If the system has taken any, the queue is empty before.
    pub(super) fn push_fitting(&mut self, bytes: &[u8], sent: usize, most: usize, held: &Arc<Budget>) -> usize {
        let (mut begin, mut end, mut messages) = (0, 0, 0);
        while end < sent {
            (begin, end, messages) = (end, message_end(bytes, end), messages + 1);
        }
        // A piece begins at the start of a message, even if the system has taken a part of that message.
        begin = if end > sent { begin } else { end };
        let mut waiting = usize::from(end > sent);
        while end < bytes.len() {
            let next = message_end(bytes, end);
            if self.cost_of_copy(next - begin) > most {
                break;
            }
            (end, messages, waiting) = (next, messages + 1, waiting + 1);
        }
        self.push_copy(bytes.get(begin..end).unwrap_or_default(), waiting, held);
        if begin < sent {
            self.advance(sent - begin);
        }
        messages
    }

    fn push(&mut self, piece: Piece) {
        if self.pieces.is_empty() {
            self.begin(piece.begin);
        }
        self.count(piece.length(), piece.messages);
        self.pieces.push_back(piece);
    }

    fn count(&mut self, bytes: usize, messages: usize) {
        self.bytes += bytes;
        self.messages += messages;
        if messages == 0 {
            self.control_bytes += bytes;
        }
    }

    fn begin(&mut self, start: usize) {
        self.sent = start;
        self.walked = (start, 0);
    }

    /// Writes as many bytes as the system takes, of about `most` bytes.
    pub(super) fn flush(&mut self, descriptor: &OwnedFd, most: usize) -> Result<(), Errno> {
        let mut slices = [IoSlice::new(&[]); PIECES_AT_ONCE];
        let (mut count, mut bytes, mut start) = (0, 0, Some(self.sent));
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            if bytes >= most {
                break;
            }
            let part = piece.bytes_from(start.take().unwrap_or(piece.begin));
            *slice = IoSlice::new(part);
            bytes += part.len();
            count += 1;
        }
        let taken = send(descriptor, slices.get(..count).unwrap_or_default())?;
        self.advance(taken);
        Ok(())
    }

    /// Offers the first frames to `take`, until it takes none. `take` returns the bytes that it has taken. Returns the
    /// bytes taken. They are then gone from the queue.
    pub(super) fn hand_over(&mut self, mut take: impl FnMut(&[u8]) -> usize) -> usize {
        let before = self.bytes;
        while let Some(first) = self.pieces.front() {
            let count = take(first.bytes_from(self.sent));
            if count == 0 {
                break;
            }
            self.advance(count);
        }
        before - self.bytes
    }

    /// Removes all bytes, and returns them.
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes);
        for piece in &self.pieces {
            let start = if bytes.is_empty() { self.sent } else { piece.begin };
            bytes.extend_from_slice(piece.bytes_from(start));
        }
        *self = Self::default();
        bytes
    }

    /// Notes that the system has taken `taken` bytes more.
    pub(super) fn advance(&mut self, mut taken: usize) {
        self.bytes -= taken;
        while let Some(first) = self.pieces.front() {
            let left = first.end - self.sent;
            if taken < left {
                self.sent += taken;
                return;
            }
            taken -= left;
            self.messages -= first.messages;
            if first.messages == 0 {
                self.control_bytes -= first.length();
            }
            self.pieces.pop_front();
            let start = self.pieces.front().map_or(0, |next| next.begin);
            self.begin(start);
        }
    }

    /// Removes messages from the end until at most `messages` messages and `bytes` bytes are left. Returns how many it
    /// removed. ZMTP's own bytes stay, and so does a message of which the system has taken a part.
    pub(super) fn shorten(&mut self, messages: usize, bytes: usize) -> usize {
        let before = self.messages();
        let mut index = self.pieces.len();
        while index > 0 && (self.messages_at_most() > messages || self.bytes > bytes) {
            index -= 1;
            self.cut(index, messages, bytes);
        }
        before - self.messages_at_most()
    }

    /// Removes messages from the end of one piece, the last that has any.
    fn cut(&mut self, index: usize, most_messages: usize, most_bytes: usize) {
        let (others, other_bytes) = (self.messages_at_most(), self.bytes);
        let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.messages > 0) else { return };
        // In the first piece, only messages behind the last begun one can go.
        let (first_end, walked) = if index == 0 { self.walked } else { (piece.begin, 0) };
        let begin = if index == 0 { self.sent } else { piece.begin };
        let others = others - (piece.messages - walked);
        let other_bytes = other_bytes - (piece.end - begin);
        let (mut end, mut kept) = (first_end, walked);
        if end < begin {
            (end, kept) = (piece.message_end(end), kept + 1);
        }
        while kept < piece.messages && others + kept - walked < most_messages {
            let next = piece.message_end(end);
            if other_bytes + next - begin > most_bytes {
                break;
            }
            (end, kept) = (next, kept + 1);
        }
        let (bytes, messages) = (piece.end - end, piece.messages - kept);
        (piece.end, piece.messages) = (end, kept);
        self.bytes -= bytes;
        self.messages -= messages;
        if end == begin {
            self.remove(index);
        }
    }

    /// Removes a piece whose bytes are all sent or cut off.
    fn remove(&mut self, index: usize) {
        let Some(piece) = self.pieces.remove(index) else { return };
        self.messages -= piece.messages;
        if index == 0 {
            let start = self.pieces.front().map_or(0, |next| next.begin);
            self.begin(start);
        }
    }

    /// Frees the memory of sent and removed bytes, if no other queue needs the buffer and they are at least half of it.
    pub(super) fn tighten(&mut self, held: &Arc<Budget>) {
        let mut walked = self.walked;
        for piece in &mut self.pieces {
            let (start, gone) = std::mem::take(&mut walked);
            if Arc::strong_count(&piece.buffer) > 1 || 2 * (piece.end - start) > piece.buffer.bytes.capacity() {
                continue;
            }
            piece.buffer = Arc::new(SharedBuffer::new(piece.bytes_from(start), held));
            (piece.begin, piece.end, piece.messages) = (0, piece.end - start, piece.messages - gone);
            if start > 0 {
                self.sent -= start;
                self.walked = (0, 0);
                self.messages -= gone;
            }
        }
    }

    /// Removes all messages, except one of which the system has taken a part.
    pub(super) fn discard(&mut self) {
        self.shorten(0, 0);
    }
}

/// Writes as many bytes as the system takes. Returns how many that are.
pub(super) fn send(descriptor: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(descriptor, slices, &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            // Epoll reports when the system has room, or memory, again.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(0),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests;
