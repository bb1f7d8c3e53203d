//! What waits to be sent to a subscriber: pieces of buffers, most of which subscribers share.
//!
//! ```text
//! buffer (shared)   │ message │ message │ message │ …      buffer (its own)   │ message │
//! queue             └──────────── piece ───────────┘──────────────────────────└─ piece ─┘
//!                        ▲ sent                                              shortened here, between two messages ▲
//! ```
//! A queue is shortened at its end, by whole messages; a message of which the system has taken a part stays. A piece
//! holds messages, or what ZMTP itself has to say (greetings, PONGs), never both.
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
pub(super) struct Held(Arc<AtomicUsize>);

impl Held {
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
pub(super) struct Buffer {
    bytes: Vec<u8>,
    counted: usize,
    held: Held,
}

impl Buffer {
    pub(super) fn new(bytes: &[u8], held: &Held) -> Self {
        let mut buffer = Self { bytes: Vec::new(), counted: 0, held: held.clone() };
        buffer.append(bytes);
        buffer
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let now = self.bytes.capacity();
        self.held.change(self.counted, now);
        self.counted = now;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.held.change(self.counted, 0);
    }
}

/// A part of a buffer; it begins and ends between two messages.
#[derive(Debug)]
struct Piece {
    buffer: Arc<Buffer>,
    begin: usize,
    end: usize,
    /// 0: it is not messages.
    messages: usize,
}

impl Piece {
    fn bytes_from(&self, start: usize) -> &[u8] {
        self.buffer.bytes.get(start..self.end).unwrap_or_default()
    }

    /// Where the message that begins at `start` ends.
    fn message_end(&self, start: usize) -> usize {
        let mut at = start;
        loop {
            match Part::decode(self.bytes_from(at), u64::MAX) {
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
}

/// What waits for one subscriber.
#[derive(Debug, Default)]
pub(super) struct Queue {
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

impl Queue {
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
    pub(super) fn push_shared(&mut self, buffer: &Arc<Buffer>, messages: usize) {
        let (begin, end) = (0, buffer.bytes.len());
        self.push(Piece { buffer: Arc::clone(buffer), begin, end, messages });
    }

    /// Appends a copy of messages, or of what ZMTP has to say if `messages` is 0.
    pub(super) fn push_copy(&mut self, bytes: &[u8], messages: usize, held: &Held) {
        if bytes.is_empty() {
            return;
        }
        if let Some(last) = self.pieces.back_mut()
            && (last.messages == 0) == (messages == 0)
            && last.buffer.bytes.len() == last.end
            && last.end < SHARED_BYTES_MIN
            && let Some(buffer) = Arc::get_mut(&mut last.buffer)
        {
            buffer.append(bytes);
            last.end += bytes.len();
            last.messages += messages;
            self.count(bytes.len(), messages);
            return;
        }
        let buffer = Arc::new(Buffer::new(bytes, held));
        self.push(Piece { buffer, begin: 0, end: bytes.len(), messages });
    }

    fn push(&mut self, piece: Piece) {
        if self.pieces.is_empty() {
            self.begin(piece.begin);
        }
        self.count(piece.end - piece.begin, piece.messages);
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
                self.control_bytes -= first.end - first.begin;
            }
            self.pieces.pop_front();
            let start = self.pieces.front().map_or(0, |next| next.begin);
            self.begin(start);
        }
    }

    /// Takes messages away from the end, until there are at most so many messages, and no more bytes, or only one
    /// piece. How many that are.
    pub(super) fn shorten(&mut self, messages: usize, bytes: usize) -> usize {
        let before = self.messages();
        while self.pieces.len() > 1
            && let Some(last) = self.pieces.back()
            && (self.bytes > bytes || self.messages_at_most() >= messages + last.messages.max(1))
        {
            let last = self.pieces.pop_back().expect("there is a last one");
            self.uncount(last.end - last.begin, last.messages);
            self.control_bytes -= if last.messages == 0 { last.end - last.begin } else { 0 };
        }
        self.cut(self.messages_at_most().saturating_sub(messages));
        before - self.messages_at_most()
    }

    /// Takes so many messages away from the last piece, but for one of which the system has taken a part.
    fn cut(&mut self, excess: usize) {
        let is_first = self.pieces.len() == 1;
        let (sent, walked) = (self.sent, self.walked);
        let Some(last) = self.pieces.back_mut().filter(|last| excess > 0 && last.messages > 0) else { return };
        let (mut end, mut kept) = if is_first { walked } else { (last.begin, 0) };
        let goal = last.messages - excess.min(last.messages);
        while kept < goal || (is_first && end < sent) {
            end = last.message_end(end);
            kept += 1;
        }
        let (bytes, messages) = (last.end - end, last.messages - kept);
        (last.end, last.messages) = (end, kept);
        self.uncount(bytes, messages);
        if is_first && end == sent {
            self.pieces.clear();
            self.messages = 0;
            self.begin(0);
        }
    }

    fn uncount(&mut self, bytes: usize, messages: usize) {
        self.bytes -= bytes;
        self.messages -= messages;
    }

    /// Takes everything away but a message of which the system has taken a part.
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
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::zmtp::encode_frame;

    /// A message of two frames, so many bytes and a number.
    fn message(number: u32, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, &vec![7; length], true);
        encode_frame(&mut bytes, &number.to_be_bytes(), false);
        bytes
    }

    /// The numbers of the messages that these bytes are; nothing may be left over.
    fn numbers(bytes: &[u8]) -> Vec<u32> {
        let (mut at, mut numbers) = (0, Vec::new());
        while at < bytes.len() {
            let (part, length) = Part::decode(&bytes[at..], u64::MAX).unwrap().expect("whole messages");
            at += length;
            if let Part::Frame { body, more: false } = part {
                numbers.push(u32::from_be_bytes(body.try_into().unwrap()));
            }
        }
        numbers
    }

    /// What a peer is sent of it.
    fn drained(queue: &mut Queue) -> Vec<u8> {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let (near, mut out) = (OwnedFd::from(near), Vec::new());
        while !queue.is_empty() {
            queue.flush(&near, 10_000).unwrap();
            let mut some = vec![0; 100_000];
            while let Ok(count @ 1..) = far.read(&mut some) {
                out.extend_from_slice(&some[..count]);
            }
        }
        out
    }

    #[test]
    fn small_messages_are_copied_together_and_buffers_are_counted_until_nobody_has_them() {
        let held = Held::default();
        let mut queues = [Queue::default(), Queue::default()];
        let shared = Arc::new(Buffer::new(&vec![0; 10_000], &held));
        assert_eq!(held.bytes(), 10_000);
        queues.iter_mut().for_each(|queue| queue.push_shared(&shared, 1));
        drop(shared);
        assert_eq!(held.bytes(), 10_000, "once, not twice");
        (0..10).for_each(|number| queues[0].push_copy(&message(number, 3), 1, &held));
        assert_eq!(queues[0].pieces.len(), 2);
        queues.iter_mut().for_each(|queue| queue.advance(queue.bytes()));
        assert!(queues.iter().all(Queue::is_empty));
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn what_zmtp_says_stays_between_messages() {
        let held = Held::default();
        let mut queue = Queue::default();
        queue.push_copy(&message(1, 5), 1, &held);
        queue.push_copy(b"\x04\x05\x04PONG", 0, &held);
        queue.push_copy(b"\x04\x05\x04PONG", 0, &held);
        queue.push_copy(&message(2, 5), 1, &held);
        assert_eq!((queue.pieces.len(), queue.messages(), queue.control_bytes()), (3, 2, 14));
        let out = drained(&mut queue);
        assert_eq!(out, [&message(1, 5)[..], b"\x04\x05\x04PONG\x04\x05\x04PONG", &message(2, 5)].concat());
        assert_eq!(queue.control_bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever was sent before, what is left are whole messages, the oldest ones, as many as may be.
        #[test]
        fn a_queue_is_shortened_by_its_newest_messages(
            pieces in prop::collection::vec((1_usize..20, 0_usize..400, any::<bool>()), 1..12),
            taken in 0_usize..20_000,
            keep in 0_usize..60,
        ) {
            let held = Held::default();
            let (mut queue, mut all, mut count) = (Queue::default(), Vec::new(), 0);
            for (messages, length, is_shared) in pieces {
                let bytes: Vec<u8> = (count..).take(messages).flat_map(|number| message(number, length)).collect();
                count += u32::try_from(messages).unwrap();
                if is_shared {
                    queue.push_shared(&Arc::new(Buffer::new(&bytes, &held)), messages);
                } else {
                    queue.push_copy(&bytes, messages, &held);
                }
                all.extend_from_slice(&bytes);
            }
            let taken = taken.min(all.len());
            queue.advance(taken);
            let unsent = queue.messages();
            let lost = queue.shorten(keep, usize::MAX);
            prop_assert_eq!(queue.messages(), unsent - lost);
            let out = [&all[..taken], &drained(&mut queue)].concat();
            let heard = numbers(&out);
            prop_assert_eq!(heard.len(), count as usize - lost);
            prop_assert!(heard.iter().copied().eq(0..u32::try_from(heard.len()).unwrap()), "the oldest, in order");
            // One message more than may be kept is one that was begun.
            prop_assert!(unsent - lost <= keep.max(1));
            prop_assert!(lost == 0 || unsent - lost >= keep);
            prop_assert_eq!(held.bytes(), 0);
            prop_assert_eq!((queue.bytes(), queue.messages()), (0, 0));
        }
    }
}
