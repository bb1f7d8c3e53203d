//! Encoded replies of one connection, with the times of some of them. Any thread may fill a buffer. The thread that
//! owns the connection fills the connection's own buffer. A worker fills another buffer, which the connection takes
//! over whole.
//!
//! ```text
//! bytes[taken..] ◄── large: a reply that several clients may share, and that is not copied
//! ```
//! Behind a large reply the buffer is full, so nothing else is appended until little of that reply is left.
//!
//! A reply may wait for the disk, and all behind it waits too: see `reply_buffer/gated.rs`.
//!
//! This module does not send; see `send_buffer`.

mod gated;

use std::collections::VecDeque;
use std::sync::Arc;

use super::receive_buffer::{give_back, kept};
use super::reply_gates::ReplyGates;
use super::timed::TimedReply;
use crate::clock::Now;
use crate::limits::{BUFFER_KEPT_BYTES, LARGE_REPLIES_BYTES, OUTBOX_BYTES_MAX};
use crate::zmtp::{Part, encode_frame, encode_frame_header};

// `ReplyBuffer::push_shared` relies on it: a reply that is not copied ends its turn, so no other reply of the turn
// comes behind it.
const _: () = assert!(LARGE_REPLIES_BYTES <= OUTBOX_BYTES_MAX as u64);

/// Bytes that the system usually takes at once. Replies beyond them may have to wait for their client.
pub const TAKEN_AT_ONCE_BYTES: u64 = 64 << 10;

/// Timed replies for which a buffer keeps its memory: those of a usual turn.
const TIMED_KEPT: usize = 16;

/// Replies to one client that the system has not taken.
#[derive(Debug, Default)]
pub struct ReplyBuffer {
    /// The system has not taken `bytes[taken..]`.
    bytes: Vec<u8>,
    taken: usize,
    /// What follows `bytes`, and how many of it the system has taken.
    large: Option<(Arc<Vec<u8>>, usize)>,
    /// Bytes that the system has taken since the connection began.
    sent: u64,
    /// The frontend holds too much. Written by the owner of the connection, read by the thread that answers.
    tight: bool,
    /// The last message in it is not whole: the thread that answers appends its further frames in later turns.
    is_open: bool,
    /// Commands and pushes that were put off to the end of that message, since none may stand between two frames.
    #[expect(clippy::box_collection, reason = "each connection has room for it, and hardly one has any")]
    put_off: Option<Box<Vec<u8>>>,
    /// Nobody reads the replies any more: the client takes no more bytes. Those that it sent before are still received.
    /// Written by the owner of the connection, read by the thread that answers.
    unread: bool,
    /// When the requests arrived that have not been answered. None: at the last receive, after which nothing read the
    /// clock.
    arrived: Option<Now>,
    /// Replies that are timed, each with the position in the stream where it ends, in this order.
    timed: VecDeque<(u64, TimedReply)>,
    /// Replies that wait for the disk. Written by the thread that answers, and by the owner of the connection.
    gates: Option<Box<ReplyGates>>,
}

impl ReplyBuffer {
    /// Bytes that the system has not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken + self.large_left()
    }

    fn large_left(&self) -> usize {
        self.large.as_ref().map_or(0, |(bytes, taken)| bytes.len() - taken)
    }

    /// Whether the system has taken all bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == self.bytes.len() && self.large.is_none()
    }

    /// Position of the next byte in the whole stream to the client.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.sent + self.len() as u64
    }

    /// Bytes of that stream that the system has taken. The client may have received them.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Appends a frame. `more` says whether another frame of the message follows.
    #[inline]
    pub fn push(&mut self, body: &[u8], more: bool) {
        encode_frame(&mut self.bytes, body, more);
    }

    /// Appends frames that are encoded as on the wire.
    #[inline]
    pub fn push_encoded(&mut self, frames: &[u8]) {
        self.bytes.extend_from_slice(frames);
    }

    /// Appends what `encode` encodes.
    #[inline]
    pub fn encode(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.bytes);
    }

    /// The bytes from a position of the stream on, as far as the system has not taken them and they are not shared.
    pub fn since(&self, position: u64) -> &[u8] {
        self.bytes.get(self.place(position)..).unwrap_or_default()
    }

    /// Takes back what was appended from a position of the stream on.
    pub fn truncate(&mut self, position: u64) {
        self.bytes.truncate(self.place(position));
    }

    /// Where in the buffer a position of the stream is.
    fn place(&self, position: u64) -> usize {
        self.taken + self.ahead(position)
    }

    /// How far a position of the stream is ahead of what the system has taken.
    fn ahead(&self, position: u64) -> usize {
        let ahead = position.checked_sub(self.sent).and_then(|ahead| usize::try_from(ahead).ok());
        ahead.unwrap_or_default()
    }

    /// As [`ReplyBuffer::push_encoded`]. Frames that are too many to copy in one turn are kept as they are, and fill the
    /// buffer: the caller appends no more until it has room again.
    pub fn push_shared(&mut self, frames: &Arc<Vec<u8>>) {
        if frames.len() <= OUTBOX_BYTES_MAX {
            self.push_encoded(frames);
        } else {
            debug_assert!(self.large.is_none(), "the buffer is full behind a large reply");
            self.large = Some((Arc::clone(frames), 0));
        }
    }

    /// Appends a frame of `length` bytes, which `write` appends. `more` says whether another frame of the message
    /// follows.
    ///
    /// # Panics
    /// If `write` appends another number of bytes.
    #[inline]
    pub fn push_with(&mut self, length: usize, more: bool, write: impl FnOnce(&mut Vec<u8>)) {
        encode_frame_header(&mut self.bytes, length, more);
        let end = self.bytes.len() + length;
        self.bytes.reserve(length);
        write(&mut self.bytes);
        assert_eq!(self.bytes.len(), end, "a frame has the length that its header says");
    }

    /// Appends the replies that a worker has made, and leaves their buffer empty. If nothing is unsent here, the two
    /// buffers are swapped.
    pub(super) fn take_over(&mut self, replies: &mut Self) {
        let before = self.end();
        self.copy_large();
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
            std::mem::swap(&mut self.bytes, &mut replies.bytes);
        } else {
            self.bytes.append(&mut replies.bytes);
            give_back(&mut replies.bytes);
        }
        self.large = replies.large.take();
        self.set_open(replies.is_open);
        self.timed.extend(replies.timed.drain(..).map(|(end, reply)| (before + end, reply)));
        if let Some(gates) = replies.gates.take() {
            self.gates.get_or_insert_default().append(*gates, before);
        }
    }

    /// When the bytes arrived that the present turn answers. `now` if they have just been received.
    pub fn arrived(&mut self, now: Now) -> Now {
        *self.arrived.get_or_insert(now)
    }

    /// The thread receives again. It does so only when it has answered all that came before.
    pub(super) fn receive(&mut self) {
        self.arrived = None;
    }

    /// Makes an empty buffer ready for a turn: when its requests arrived, whether the frontend holds too much, and
    /// whether nobody reads the replies.
    pub(super) fn begin(&mut self, arrived: Now, tight: bool, unread: bool) {
        debug_assert!(self.is_empty() && self.timed.is_empty() && self.gates.is_none());
        (self.arrived, self.tight, self.unread) = (Some(arrived), tight, unread);
        self.is_open = false;
    }

    /// An empty buffer for the rest of a turn.
    pub(super) fn successor(&self) -> Self {
        Self { arrived: self.arrived, tight: self.tight, unread: self.unread, ..Self::default() }
    }

    /// Times what was appended until now: [`Connections::timed`](super::Connections::timed) gives it back when the
    /// system has taken it.
    pub fn time(&mut self, reply: TimedReply) {
        self.timed.push_back((self.end(), reply));
    }

    /// Adds a sample for the histogram: the reply that was appended last. If a reply follows another reply of its verb
    /// and turn closely, the system takes both together. So one time is kept for both.
    pub fn sample(&mut self, verb: usize, arrived: Now) {
        let end = self.end();
        match self.timed.back_mut() {
            Some((last_end, last))
                if last.samples > 0
                    && (last.verb, last.arrived) == (verb, arrived)
                    && end - *last_end <= TAKEN_AT_ONCE_BYTES =>
            {
                last.samples += 1;
                *last_end = end;
            }
            _ => self.timed.push_back((end, TimedReply::sampled(verb, arrived))),
        }
    }

    /// The bytes of each message that was appended from this position on.
    pub fn messages_since(&self, position: u64) -> impl Iterator<Item = u64> {
        let (mut rest, mut large) = match self.bytes.get(self.place(position)..) {
            Some(rest) => (rest, self.large_left()),
            None => (&[][..], 0),
        };
        std::iter::from_fn(move || {
            let before = rest.len();
            while let Ok(Some((Part::Frame { more, .. }, length))) = Part::decode(rest, u64::MAX) {
                rest = rest.get(length..).unwrap_or_default();
                if !more {
                    return Some((before - rest.len()) as u64);
                }
            }
            // The last message ends with the large reply.
            (large > 0).then(|| (before - rest.len() + std::mem::take(&mut large)) as u64)
        })
    }

    /// The next timed reply that the system has taken.
    #[inline]
    pub(super) fn next_timed(&mut self) -> Option<TimedReply> {
        let sent = self.sent;
        let reply = self.timed.pop_front_if(|(end, _)| *end <= sent).map(|(_, reply)| reply);
        // A client that reads slowly may have had many. Their memory is given back, as that of a large reply is.
        if self.timed.is_empty() && self.timed.capacity() > TIMED_KEPT {
            self.timed = VecDeque::new();
        }
        reply
    }

    /// Length of the buffer, in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len() + self.large_left()
    }

    /// Memory kept for the buffer, in bytes. A shared reply counts whole for each connection.
    pub(super) fn kept(&self) -> usize {
        // Those of a usual turn are not counted, as little buffers are not.
        let timed = self.timed.capacity().saturating_sub(TIMED_KEPT) * size_of::<(u64, TimedReply)>();
        let gates = self.gates.as_ref().map_or(0, |gates| gates.bytes());
        kept(&self.bytes) + self.large.as_ref().map_or(0, |(bytes, _)| bytes.capacity()) + timed + gates
    }

    /// Whether the frontend holds too much. A caller then appends no large reply that can wait.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.tight
    }

    pub(super) fn set_tight(&mut self, tight: bool) {
        self.tight = tight;
    }

    /// Whether the connection has ended, so that nobody reads what is appended.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.unread
    }

    pub(super) fn note_unread(&mut self) {
        self.unread = true;
    }

    /// The buffer, for commands and greetings that `zmtp` itself sends.
    pub(super) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        if self.is_open { self.put_off.get_or_insert_default() } else { &mut self.bytes }
    }

    /// Appends what the client has not asked for: behind the reply that is not whole, if there is one.
    pub fn push_between(&mut self, bytes: &[u8]) {
        self.copy_large();
        self.bytes_mut().extend_from_slice(bytes);
    }

    /// Bytes that the system has not taken, with those that were put off.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.len() + self.put_off()
    }

    /// Whether the last message in it is not whole. Its further frames are the next that are appended. Said at the end of
    /// each turn.
    pub fn set_open(&mut self, is_open: bool) {
        self.is_open = is_open;
        if let Some(commands) = self.put_off.take_if(|_| !is_open) {
            self.bytes.extend_from_slice(&commands);
        }
    }

    /// Bytes of commands that were put off.
    pub(super) fn put_off(&self) -> usize {
        self.put_off.as_ref().map_or(0, |commands| commands.len())
    }

    /// The bytes to send next, which lie together. None of them waits for the disk.
    pub(super) fn next(&self) -> &[u8] {
        let bytes = match (self.bytes.get(self.taken..), &self.large) {
            (None | Some([]), Some((bytes, taken))) => bytes.get(*taken..).unwrap_or_default(),
            (bytes, _) => bytes.unwrap_or_default(),
        };
        match self.gates.as_ref().and_then(|gates| gates.first()) {
            Some(first) => bytes.get(..self.ahead(first)).unwrap_or(bytes),
            None => bytes,
        }
    }

    /// Notes that the system has taken `count` of [`ReplyBuffer::next`].
    pub(super) fn take(&mut self, count: usize) {
        match &mut self.large {
            Some((_, taken)) if self.taken == self.bytes.len() => *taken += count,
            _ => self.taken += count,
        }
        self.sent += count as u64;
    }

    /// Drops the unsent bytes. The client will not take them.
    pub(super) fn discard(&mut self) {
        self.bytes = Vec::new();
        self.taken = 0;
        (self.large, self.put_off) = (None, None);
        (self.timed, self.gates) = (VecDeque::new(), None);
    }

    /// Drops the sent bytes, and shrinks the buffer after a large reply. Copies the rest of a shared one when the
    /// buffer is about to have room.
    pub(super) fn compact(&mut self) {
        if self.len() <= OUTBOX_BYTES_MAX / 2 {
            self.copy_large();
        }
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            give_back(&mut self.bytes);
        }
    }

    fn copy_large(&mut self) {
        if let Some((bytes, taken)) = self.large.take() {
            self.bytes.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        }
    }

    /// Whether it would allocate memory for the next reply.
    pub(super) fn lacks_memory(&self) -> bool {
        self.bytes.capacity() == 0
    }

    /// Gives an empty buffer memory for replies.
    pub(super) fn lend(&mut self, memory: Option<Vec<u8>>) {
        self.bytes = memory.unwrap_or_default();
    }

    /// Takes the memory of an empty buffer, unless it was large.
    pub(super) fn spare(&mut self) -> Option<Vec<u8>> {
        let is_usual = self.is_empty() && (1..=BUFFER_KEPT_BYTES).contains(&self.bytes.capacity());
        is_usual.then(|| {
            self.taken = 0;
            self.bytes.clear();
            std::mem::take(&mut self.bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn frames_are_the_same_however_they_are_appended() {
        let (mut pushed, mut encoded, mut written) =
            (ReplyBuffer::default(), ReplyBuffer::default(), ReplyBuffer::default());
        pushed.push(b"abc", true);
        encoded.push_encoded(b"\x01\x03abc");
        written.push_with(3, true, |out| out.extend(b"abc"));
        for buffer in [pushed, encoded, written] {
            assert_eq!(buffer.bytes, b"\x01\x03abc");
            assert_eq!((buffer.len(), buffer.end(), buffer.sent(), buffer.is_empty()), (5, 5, 0, false));
        }
    }

    #[test]
    fn each_message_has_its_own_size() {
        let mut buffer = ReplyBuffer::default();
        buffer.push(b"before", false);
        buffer.take(3);
        let begin = buffer.end();
        buffer.push(b"envelope", true);
        buffer.push(&[0; 300], false);
        buffer.push(b"", false);
        assert_eq!(buffer.messages_since(begin).collect::<Vec<_>>(), [10 + 309, 2]);
        buffer.push(b"id", true);
        buffer.push_shared(&Arc::new(vec![0; OUTBOX_BYTES_MAX + 1]));
        assert_eq!(buffer.messages_since(begin).collect::<Vec<_>>(), [319, 2, 4 + OUTBOX_BYTES_MAX as u64 + 1]);
        assert_eq!(buffer.messages_since(buffer.end()).count(), 0);
    }

    #[test]
    fn a_small_shared_reply_is_copied_and_a_large_one_only_when_half_of_it_is_sent() {
        let frames = |length: usize| Arc::new(vec![7; length]);
        let mut small = ReplyBuffer::default();
        small.push_shared(&frames(OUTBOX_BYTES_MAX));
        assert!(small.large.is_none() && small.held() == OUTBOX_BYTES_MAX);
        let mut large = ReplyBuffer::default();
        large.push_encoded(b"12");
        large.push_shared(&frames(OUTBOX_BYTES_MAX + 1));
        assert!(large.large.is_some() && large.held() == OUTBOX_BYTES_MAX + 3);
        large.take(2);
        large.take(OUTBOX_BYTES_MAX / 2);
        large.compact();
        assert!(large.large.is_some(), "one byte more than half is left");
        large.take(1);
        large.compact();
        assert!(large.large.is_none());
        assert_eq!((large.len(), large.held(), large.next().len()), [OUTBOX_BYTES_MAX / 2; 3].into());
    }

    #[test]
    fn sent_bytes_are_dropped_once_they_are_more_than_half() {
        let held = |taken| {
            let mut buffer = ReplyBuffer { bytes: vec![7; 10], taken, ..ReplyBuffer::default() };
            buffer.compact();
            (buffer.held(), buffer.len())
        };
        assert_eq!([4, 5, 6, 10].map(held), [(10, 6), (10, 5), (4, 4), (0, 0)]);
        let mut large = ReplyBuffer { bytes: vec![7; 8 * BUFFER_KEPT_BYTES], ..ReplyBuffer::default() };
        large.taken = large.bytes.len() - 1;
        large.compact();
        assert!((1..=BUFFER_KEPT_BYTES).contains(&large.bytes.capacity()) && large.kept() == 1);
    }

    #[test]
    fn replies_of_a_worker_come_behind_those_that_are_not_sent() {
        let filled = |text: &[u8]| {
            let mut buffer = ReplyBuffer::default();
            buffer.push_encoded(text);
            buffer.time(TimedReply::sampled(text.len(), Now::from_millis(1)));
            buffer
        };
        let mut buffer = ReplyBuffer::default();
        let mut replies = filled(b"first");
        let memory = replies.bytes.as_ptr();
        buffer.take_over(&mut replies);
        assert_eq!((buffer.next(), buffer.bytes.as_ptr()), (&b"first"[..], memory), "it is not copied");
        assert!(replies.is_empty() && replies.timed.is_empty());
        buffer.take(3);
        buffer.take_over(&mut filled(b"second"));
        assert_eq!((buffer.next(), buffer.end()), (&b"stsecond"[..], 11));
        buffer.take(2);
        assert_eq!(buffer.next_timed().map(|reply| reply.verb), Some(5));
        assert_eq!(buffer.next_timed(), None, "the second is not sent");
        buffer.take(6);
        assert_eq!(buffer.next_timed().map(|reply| reply.verb), Some(6));
    }

    #[test]
    fn behind_a_large_shared_reply_a_further_one_keeps_its_place() {
        let large = Arc::new(vec![7; OUTBOX_BYTES_MAX + 1]);
        let mut buffer = ReplyBuffer::default();
        buffer.push_shared(&large);
        buffer.take(1);
        let mut replies = ReplyBuffer::default();
        replies.push_encoded(b"next");
        buffer.take_over(&mut replies);
        let sent: Vec<u8> = std::iter::from_fn(|| {
            let some = buffer.next().to_vec();
            buffer.take(some.len());
            (!some.is_empty()).then_some(some)
        })
        .flatten()
        .collect();
        assert_eq!((sent.len(), &sent[OUTBOX_BYTES_MAX..]), (OUTBOX_BYTES_MAX + 4, &b"next"[..]));
    }
}
