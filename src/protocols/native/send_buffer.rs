//! Bytes on their way to a client. They are written as fast as the client reads them, some in each turn.
//!
//! ```text
//! sent ◄── bytes[taken..] ◄── large: a reply that several clients may share, and that is not copied
//! ```
//! Behind a large reply the connection is full, so nothing else is appended until little of that reply is left.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::receive_buffer::{give_back, kept};
use super::timed::TimedReply;
use crate::clock::Now;
use crate::limits::{LARGE_REPLIES_BYTES, OUTBOX_BYTES_MAX, SENT_BYTES_A_TURN};
use crate::zmtp::{Part, Sealer, encode_frame, encode_frame_header};

// `SendBuffer::push_shared` relies on it: a reply that is not copied ends its turn, so no other reply of the turn
// comes behind it.
const _: () = assert!(LARGE_REPLIES_BYTES <= OUTBOX_BYTES_MAX as u64);

/// Bytes that the system usually takes at once. Replies beyond them may have to wait for their client.
pub const TAKEN_AT_ONCE_BYTES: u64 = 64 << 10;

/// Timed replies for which a buffer keeps its memory: those of a usual turn.
const TIMED_KEPT: usize = 16;

/// Bytes to be sent to one client.
#[derive(Debug, Default)]
pub struct SendBuffer {
    /// The system has not taken `bytes[taken..]`.
    bytes: Vec<u8>,
    taken: usize,
    /// What follows `bytes`, and how many of it the system has taken.
    large: Option<(Arc<Vec<u8>>, usize)>,
    /// Bytes that the system has taken since the connection began.
    sent: u64,
    /// The frontend holds too much.
    tight: bool,
    /// With CURVE, the bytes on the wire. All other positions count the bytes before they are sealed.
    sealed: Option<Box<SealedOutput>>,
    /// When the requests arrived that have not been answered. None: at the last receive, after which nothing read the
    /// clock.
    arrived: Option<Now>,
    /// Replies that are timed, each with the position in the stream where it ends, in this order.
    timed: VecDeque<(u64, TimedReply)>,
}

/// Bytes that are sealed at once, beside one frame: some system calls' worth.
const SEALED_AT_ONCE: usize = 64 << 10;

/// Sealed frames that the system has not taken.
#[derive(Debug)]
struct SealedOutput {
    sealer: Sealer,
    /// Bytes that are sent as they are, before the first sealed frame.
    clear: usize,
    bytes: Vec<u8>,
    /// The system has not taken `bytes[taken..]`.
    taken: usize,
    /// For each sealed frame, its end in `bytes`, and its length before it was sealed.
    ends: VecDeque<(usize, usize)>,
}

impl SealedOutput {
    /// Seals the next frames if the system has taken the ones before.
    fn refill(&mut self, frames: &[u8]) {
        if self.clear > 0 || self.taken < self.bytes.len() {
            return;
        }
        self.bytes.clear();
        give_back(&mut self.bytes);
        self.taken = 0;
        let mut rest = frames;
        while !rest.is_empty() && self.bytes.len() < SEALED_AT_ONCE {
            let length = self.sealer.seal(rest, 1, &mut self.bytes);
            self.ends.push_back((self.bytes.len(), length));
            rest = rest.get(length..).unwrap_or_default();
        }
    }

    /// Notes that the system has taken `count` bytes. Returns how many bytes before sealing they complete.
    fn take(&mut self, count: usize) -> usize {
        if self.clear > 0 {
            self.clear -= count;
            return count;
        }
        self.taken += count;
        let mut complete = 0;
        while let Some((_, length)) = self.ends.pop_front_if(|(end, _)| *end <= self.taken) {
            complete += length;
        }
        complete
    }
}

impl SendBuffer {
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

    /// As [`SendBuffer::push_encoded`]. Frames that are too many to copy in one turn are kept as they are, and fill the
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

    /// From now on all that is appended is sealed.
    pub(super) fn seal_from_here(&mut self, sealer: Sealer) {
        let clear = self.len();
        self.sealed =
            Some(Box::new(SealedOutput { sealer, clear, bytes: Vec::new(), taken: 0, ends: VecDeque::new() }));
    }

    /// When the bytes arrived that the present turn answers. `now` if they have just been received.
    pub fn arrived(&mut self, now: Now) -> Now {
        *self.arrived.get_or_insert(now)
    }

    /// The thread receives again. It does so only when it has answered all that came before.
    pub(super) fn receive(&mut self) {
        self.arrived = None;
    }

    /// Times what was appended until now: [`Connections::timed`](super::Connections::timed) gives it back when the
    /// system has taken it.
    pub fn time(&mut self, reply: TimedReply) {
        self.timed.push_back((self.end(), reply));
    }

    /// Adds a sample for the histogram: the reply that was appended last. One that follows another of its verb and turn
    /// closely is taken by the system together with it, so one time is kept for both.
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
        let taken = position.checked_sub(self.sent).and_then(|ahead| usize::try_from(ahead).ok()).unwrap_or_default();
        let (mut rest, mut large) = match self.bytes.get(self.taken + taken..) {
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
        self.bytes.len() + self.large_left() + self.sealed.as_ref().map_or(0, |sealed| sealed.bytes.len())
    }

    /// Memory kept for the buffer, in bytes. A shared reply counts whole for each connection.
    pub(super) fn kept(&self) -> usize {
        let sealed = self.sealed.as_ref().map_or(0, |sealed| kept(&sealed.bytes));
        // Those of a usual turn are not counted, as little buffers are not.
        let timed = self.timed.capacity().saturating_sub(TIMED_KEPT) * size_of::<(u64, TimedReply)>();
        kept(&self.bytes) + self.large.as_ref().map_or(0, |(bytes, _)| bytes.capacity()) + sealed + timed
    }

    /// Whether the frontend holds too much. A caller then appends no large reply that can wait.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.tight
    }

    pub(super) fn set_tight(&mut self, tight: bool) {
        self.tight = tight;
    }

    /// The buffer, for commands and greetings that `zmtp` itself sends.
    pub(super) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Writes as many bytes as the system takes, up to [`SENT_BYTES_A_TURN`]. Epoll reports at once that the system
    /// takes more.
    pub(super) fn flush(&mut self, descriptor: &OwnedFd) -> Result<(), Errno> {
        let mut turn = SENT_BYTES_A_TURN;
        loop {
            self.seal_next();
            let next = self.next_on_wire();
            let some = next.get(..turn).unwrap_or(next);
            if some.is_empty() {
                break;
            }
            match send(descriptor, some, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => {
                    self.take_on_wire(count);
                    turn -= count;
                }
                Err(Errno::INTR) => {}
                // Epoll reports when the system has room, or memory, again.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(error) => return Err(error),
            }
        }
        self.compact();
        Ok(())
    }

    fn seal_next(&mut self) {
        if let Some(mut sealed) = self.sealed.take() {
            sealed.refill(self.next());
            self.sealed = Some(sealed);
        }
    }

    /// The bytes that the system gets next.
    fn next_on_wire(&self) -> &[u8] {
        match &self.sealed {
            None => self.next(),
            Some(sealed) if sealed.clear > 0 => self.next().get(..sealed.clear).unwrap_or_default(),
            Some(sealed) => sealed.bytes.get(sealed.taken..).unwrap_or_default(),
        }
    }

    /// Notes that the system has taken `count` of [`SendBuffer::next_on_wire`].
    fn take_on_wire(&mut self, count: usize) {
        match &mut self.sealed {
            None => self.take(count),
            Some(sealed) => {
                let mut complete = sealed.take(count);
                // Frames of one refill lie together: before a large reply, or in it.
                while complete > 0 {
                    let some = complete.min(self.next().len());
                    self.take(some);
                    complete -= some;
                }
            }
        }
    }

    /// The bytes to send next, which lie together.
    fn next(&self) -> &[u8] {
        match (self.bytes.get(self.taken..), &self.large) {
            (None | Some([]), Some((bytes, taken))) => bytes.get(*taken..).unwrap_or_default(),
            (bytes, _) => bytes.unwrap_or_default(),
        }
    }

    /// Notes that the system has taken `count` of [`SendBuffer::next`].
    fn take(&mut self, count: usize) {
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
        self.large = None;
        self.timed = VecDeque::new();
        if let Some(sealed) = &mut self.sealed {
            (sealed.bytes, sealed.taken, sealed.clear) = (Vec::new(), 0, 0);
            sealed.ends.clear();
        }
    }

    /// Drops the sent bytes, and shrinks the buffer after a large reply. Copies the rest of a shared one when the
    /// buffer is about to have room.
    fn compact(&mut self) {
        if self.len() <= OUTBOX_BYTES_MAX / 2
            && let Some((bytes, taken)) = self.large.take()
        {
            self.bytes.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        }
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            give_back(&mut self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::limits::BUFFER_KEPT_BYTES;

    #[test]
    fn frames_are_the_same_however_they_are_appended() {
        let (mut pushed, mut encoded, mut written) =
            (SendBuffer::default(), SendBuffer::default(), SendBuffer::default());
        pushed.push(b"abc", true);
        encoded.push_encoded(b"\x01\x03abc");
        written.push_with(3, true, |out| out.extend(b"abc"));
        for buffer in [pushed, encoded, written] {
            assert_eq!(buffer.bytes, b"\x01\x03abc");
            assert_eq!((buffer.len(), buffer.end(), buffer.sent(), buffer.is_empty()), (5, 5, 0, false));
        }
    }

    #[test]
    fn samples_that_are_sent_together_are_kept_together() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (descriptor, mut buffer) = (OwnedFd::from(ours), SendBuffer::default());
        let (first, second) = (Now::from_millis(1), Now::from_millis(2));
        for (verb, arrived) in [(1, first), (1, first), (2, first), (2, second), (2, second), (2, second)] {
            buffer.push(b"reply", false);
            buffer.sample(verb, arrived);
        }
        let far = vec![0; usize::try_from(TAKEN_AT_ONCE_BYTES).unwrap()];
        buffer.push(&far, false);
        buffer.sample(2, second);
        assert!(buffer.next_timed().is_none());
        let samples = |buffer: &mut SendBuffer| -> Vec<_> {
            std::iter::from_fn(|| buffer.next_timed()).map(|reply| (reply.verb, reply.samples)).collect()
        };
        buffer.take(13);
        assert_eq!(samples(&mut buffer), [], "the second reply is not whole");
        buffer.take(1);
        assert_eq!(samples(&mut buffer), [(1, 2)]);
        buffer.flush(&descriptor).unwrap();
        assert_eq!(samples(&mut buffer), [(2, 1), (2, 3), (2, 1)]);
    }

    #[test]
    fn the_sizes_of_messages_are_told_apart() {
        let mut buffer = SendBuffer::default();
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

    /// The memory for the times of many replies was kept as long as the connection.
    #[test]
    fn the_times_of_many_replies_are_given_back_with_the_replies() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (descriptor, mut buffer) = (OwnedFd::from(ours), SendBuffer::default());
        for number in 0..1_000 {
            buffer.push(b"x", false);
            buffer.sample(number, Now::from_millis(1));
        }
        assert!(buffer.next_timed().is_none() && buffer.kept() > 900 * size_of::<TimedReply>());
        buffer.flush(&descriptor).unwrap();
        let verbs = std::iter::from_fn(|| buffer.next_timed()).map(|reply| reply.verb);
        assert_eq!(verbs.collect::<Vec<_>>(), (0..1_000).collect::<Vec<_>>());
        assert!(buffer.timed.capacity() == 0 && buffer.kept() < 100 * size_of::<TimedReply>());
    }

    /// The descriptor blocks: the flush must not.
    #[test]
    fn a_flush_sends_as_much_as_there_is_room_for_and_counts_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (descriptor, mut buffer) = (OwnedFd::from(ours), SendBuffer::default());
        buffer.push_encoded(&vec![7; 8 << 20]);
        buffer.flush(&descriptor).unwrap();
        let sent = usize::try_from(buffer.sent()).unwrap();
        assert!(sent > 1 && sent < 8 << 20, "{sent}");
        assert_eq!((buffer.len(), buffer.end()), ((8 << 20) - sent, 8 << 20));
        let mut got = vec![0; sent];
        theirs.read_exact(&mut got).unwrap();
        buffer.flush(&descriptor).unwrap();
        assert!(buffer.sent() > sent as u64 && buffer.end() == 8 << 20);
        let sent = buffer.sent();
        buffer.discard();
        assert_eq!((buffer.len(), buffer.held(), buffer.kept(), buffer.sent()), (0, 0, 0, sent));
    }

    #[test]
    fn a_small_shared_reply_is_copied_and_a_large_one_only_when_half_of_it_is_sent() {
        let frames = |length: usize| Arc::new(vec![7; length]);
        let mut small = SendBuffer::default();
        small.push_shared(&frames(OUTBOX_BYTES_MAX));
        assert!(small.large.is_none() && small.held() == OUTBOX_BYTES_MAX);
        let mut large = SendBuffer::default();
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
            let mut buffer = SendBuffer { bytes: vec![7; 10], taken, ..SendBuffer::default() };
            buffer.compact();
            (buffer.held(), buffer.len())
        };
        assert_eq!([4, 5, 6, 10].map(held), [(10, 6), (10, 5), (4, 4), (0, 0)]);
        let mut large = SendBuffer { bytes: vec![7; 8 * BUFFER_KEPT_BYTES], ..SendBuffer::default() };
        large.taken = large.bytes.len() - 1;
        large.compact();
        assert!((1..=BUFFER_KEPT_BYTES).contains(&large.bytes.capacity()) && large.kept() == 1);
    }
}
