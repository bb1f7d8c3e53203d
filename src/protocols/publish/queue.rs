//! What waits to be sent to a subscriber: pieces of buffers, most of which subscribers share.
//!
//! ```text
//! buffer (shared)   │ message │ message │ message │ …      buffer (its own)   │ message │
//! queue             └──────────── piece ───────────┘──────────────────────────└─ piece ─┘
//!                        ▲ sent                                              shortened here, between two messages ▲
//! ```
//! A queue is shortened at its end, by whole messages; a message of which the system has taken a part stays, and so does what
//! ZMTP itself has to say (greetings, PONGs). A piece holds the one or the other, never both.
//!
//! What is not here: when a queue is too long.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::limits::SHARED_BYTES_MIN;
use crate::zmtp::Part;

/// Pieces that are sent at once.
const PIECES_AT_ONCE: usize = 32;

/// Bytes in all buffers of all queues. Clones are the same count.
#[derive(Clone, Debug, Default)]
pub(super) struct QueuedBytes(Arc<AtomicUsize>);

impl QueuedBytes {
    pub(super) fn bytes(&self) -> usize {
        // Relaxed: the publisher's thread alone reads and writes it. It is atomic so that the publisher can be made in
        // another.
        self.0.load(Ordering::Relaxed)
    }

    fn change(&self, before: usize, after: usize) {
        // Relaxed: as in `bytes`.
        self.0.store(self.bytes() - before + after, Ordering::Relaxed);
    }
}

/// Bytes on the wire, counted as long as a queue has a piece of them.
#[derive(Debug)]
pub(super) struct SharedBuffer {
    bytes: Vec<u8>,
    counted: usize,
    held: QueuedBytes,
}

impl SharedBuffer {
    pub(super) fn new(bytes: &[u8], held: &QueuedBytes) -> Self {
        let mut buffer = Self { bytes: Vec::new(), counted: 0, held: held.clone() };
        buffer.append(bytes);
        buffer
    }

    /// What a buffer with this capacity has when it has grown to so many bytes: small pieces cost no copy each.
    fn grown(capacity: usize, length: usize) -> usize {
        if length > capacity { length.max(2 * capacity) } else { capacity }
    }

    fn append(&mut self, bytes: &[u8]) {
        let length = self.bytes.len() + bytes.len();
        self.bytes.reserve_exact(Self::grown(self.bytes.capacity(), length) - self.bytes.len());
        self.bytes.extend_from_slice(bytes);
        let now = self.bytes.capacity();
        self.held.change(self.counted, now);
        self.counted = now;
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        self.held.change(self.counted, 0);
    }
}

/// A part of a buffer; it begins and ends between two messages.
#[derive(Debug)]
struct Piece {
    buffer: Arc<SharedBuffer>,
    begin: usize,
    end: usize,
    /// 0: it is not messages.
    messages: usize,
}

impl Piece {
    fn length(&self) -> usize {
        self.end - self.begin
    }

    fn bytes_from(&self, start: usize) -> &[u8] {
        self.buffer.bytes.get(start..self.end).unwrap_or_default()
    }

    /// Where the message that begins at `start` ends.
    fn message_end(&self, start: usize) -> usize {
        message_end(self.buffer.bytes.get(..self.end).unwrap_or_default(), start)
    }
}

/// Where the message that begins at `start` of these whole messages ends.
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

/// What waits for one subscriber.
#[derive(Debug, Default)]
pub(super) struct SubscriberQueue {
    pieces: VecDeque<Piece>,
    /// How far the system has taken the first piece.
    sent: usize,
    /// An end of a message in the first piece that is not behind `sent`, and the messages before it.
    walked: (usize, usize),
    /// Messages of all pieces, those included that the system has taken of the first.
    messages: usize,
    /// Bytes that the system has not taken.
    bytes: usize,
    /// Bytes of pieces that are not messages.
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

    /// What ZMTP has to say and the system has not taken, in bytes, about.
    pub(super) fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Messages of which the system has not taken all, at least. Cheap.
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

    /// Appends a copy of messages, or of what ZMTP has to say if `messages` is 0.
    pub(super) fn push_copy(&mut self, bytes: &[u8], messages: usize, held: &QueuedBytes) {
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

    /// The last piece, if more of its kind can be appended to its buffer.
    fn open_end(&mut self, is_control: bool) -> Option<&mut Piece> {
        let last = self.pieces.back_mut().filter(|last| (last.messages == 0) == is_control)?;
        let is_open = last.buffer.bytes.len() == last.end && last.end < SHARED_BYTES_MIN;
        (is_open && Arc::get_mut(&mut last.buffer).is_some()).then_some(last)
    }

    /// By how many bytes all buffers together grow with a copy of so many bytes of messages.
    pub(super) fn cost_of_copy(&mut self, bytes: usize) -> usize {
        let Some(last) = self.open_end(false) else { return bytes };
        let (capacity, length) = (last.buffer.bytes.capacity(), last.buffer.bytes.len() + bytes);
        SharedBuffer::grown(capacity, length) - capacity
    }

    /// Appends what is left of these messages as far as all buffers together grow by so many bytes at most, and in any case one of
    /// which the system has taken a part. How many messages it has taken or will be sent. If it has taken any, the queue is empty.
    pub(super) fn push_fitting(&mut self, bytes: &[u8], sent: usize, most: usize, held: &QueuedBytes) -> usize {
        let (mut begin, mut end, mut messages) = (0, 0, 0);
        while end < sent {
            (begin, end, messages) = (end, message_end(bytes, end), messages + 1);
        }
        // A piece begins where a message does, also if that one has been begun.
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

    /// Has the system take what it takes of about `most` bytes.
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

    /// The system has taken so many bytes more.
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

    /// Takes messages away from the end, until there are at most so many messages and bytes. How many that are. What ZMTP has to
    /// say stays, and a message of which the system has taken a part.
    pub(super) fn shorten(&mut self, messages: usize, bytes: usize) -> usize {
        let before = self.messages();
        let mut place = self.pieces.len();
        while place > 0 && (self.messages_at_most() > messages || self.bytes > bytes) {
            place -= 1;
            self.cut(place, messages, bytes);
        }
        before - self.messages_at_most()
    }

    /// Takes messages away from the end of one piece, the last that has any.
    fn cut(&mut self, place: usize, most_messages: usize, most_bytes: usize) {
        let (others, other_bytes) = (self.messages_at_most(), self.bytes);
        let Some(piece) = self.pieces.get_mut(place).filter(|piece| piece.messages > 0) else { return };
        // Of the first piece only what is behind the last message that was begun can go.
        let (first_end, walked) = if place == 0 { self.walked } else { (piece.begin, 0) };
        let begin = if place == 0 { self.sent } else { piece.begin };
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
            self.remove(place);
        }
    }

    /// Removes a piece of which nothing is left to be sent.
    fn remove(&mut self, place: usize) {
        let Some(piece) = self.pieces.remove(place) else { return };
        self.messages -= piece.messages;
        if place == 0 {
            let start = self.pieces.front().map_or(0, |next| next.begin);
            self.begin(start);
        }
    }

    /// Gives back the memory of what is sent or cut off, where no other queue needs it and it is half of a buffer or more.
    pub(super) fn tighten(&mut self, held: &QueuedBytes) {
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

    /// Takes all messages away but one of which the system has taken a part.
    pub(super) fn discard(&mut self) {
        self.shorten(0, 0);
    }
}

/// Has the system take what it takes; how many bytes that were.
pub(super) fn send(descriptor: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(descriptor, slices, &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            // It is told when there is room, or memory, again.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(0),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests;
