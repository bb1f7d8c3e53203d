//! Replies on their way to a client. They are written as fast as the client reads them, some in each turn, and sealed
//! first where the connection has CURVE or TLS.
//!
//! ```text
//! sent ◄── (sealed ◄──) ReplyBuffer ◄── replies
//! ```
//! This module does not make replies; see `reply_buffer`.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::receive_buffer::{give_back, kept};
use super::reply_buffer::ReplyBuffer;
use super::tls::TlsSession;
use crate::limits::{OUTBOX_BYTES_MAX, SENT_BYTES_A_TURN};
use crate::zmtp::Sealer;

/// Bytes to be sent to one client.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    replies: ReplyBuffer,
    /// With CURVE or TLS, the bytes on the wire. All other positions count the bytes before they are sealed.
    sealed: Option<Box<SealedOutput>>,
    /// The thread receives no more until the client has read.
    pub(super) is_paused: bool,
    /// It is in the list of buffers to flush.
    pub(super) is_touched: bool,
    /// It is in the list of buffers with replies that wait for the disk.
    pub(super) is_gated: bool,
    /// The client sends no more, and the connection closes when all is sent.
    pub(super) is_last: bool,
}

/// Bytes that are sealed at once, beside one frame: some system calls' worth.
const SEALED_AT_ONCE: usize = 64 << 10;

/// Sealed frames that the system has not taken.
#[derive(Debug)]
struct SealedOutput {
    sealer: OutputSealer,
    /// Bytes that are sent as they are, before the first sealed frame.
    clear: usize,
    bytes: Vec<u8>,
    /// The system has not taken `bytes[taken..]`.
    taken: usize,
    /// For each sealed frame, its end in `bytes`, and its length before it was sealed.
    ends: VecDeque<(usize, usize)>,
}

/// Seals output.
#[derive(Debug)]
enum OutputSealer {
    /// Into frames of CURVE.
    Curve(Sealer),
    /// Into records of TLS, whose session has also something to say itself.
    Tls(TlsSession),
}

impl OutputSealer {
    /// Seals the first of these bytes, and appends them to `out`. Returns how many they are.
    fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        match self {
            Self::Curve(sealer) => sealer.seal(bytes, 1, out),
            Self::Tls(session) => session.seal(bytes, out),
        }
    }

    /// Drops what it has to say itself, in the place where it would be sealed.
    fn discard(&mut self, out: &mut Vec<u8>) {
        if self.has_output() {
            self.seal(&[], out);
        }
    }

    fn has_output(&self) -> bool {
        if let Self::Tls(session) = self { session.has_output() } else { false }
    }
}

impl SealedOutput {
    fn new(sealer: OutputSealer, clear: usize) -> Self {
        Self { sealer, clear, bytes: Vec::new(), taken: 0, ends: VecDeque::new() }
    }

    /// Whether it has bytes for the system beside those of replies.
    fn has_output(&self) -> bool {
        self.taken < self.bytes.len() || self.sealer.has_output()
    }

    /// Seals the next frames if the system has taken the ones before.
    fn refill(&mut self, frames: &[u8]) {
        if self.clear > 0 || self.taken < self.bytes.len() {
            return;
        }
        self.bytes.clear();
        give_back(&mut self.bytes);
        self.taken = 0;
        let mut rest = frames;
        while (!rest.is_empty() || self.sealer.has_output()) && self.bytes.len() < SEALED_AT_ONCE {
            let length = self.sealer.seal(rest, &mut self.bytes);
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

impl Deref for SendBuffer {
    type Target = ReplyBuffer;

    fn deref(&self) -> &ReplyBuffer {
        &self.replies
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut ReplyBuffer {
        &mut self.replies
    }
}

impl SendBuffer {
    /// From now on all that is appended is sealed.
    pub(super) fn seal_from_here(&mut self, sealer: Sealer) {
        let clear = self.len();
        self.sealed = Some(Box::new(SealedOutput::new(OutputSealer::Curve(sealer), clear)));
    }

    /// All that is appended is sent by this session of TLS.
    pub(super) fn secure(&mut self, session: TlsSession) {
        self.sealed = Some(Box::new(SealedOutput::new(OutputSealer::Tls(session), 0)));
    }

    /// Ends a session of TLS: nothing more is appended. Returns whether there is one, which then has something to say.
    pub(super) fn close(&mut self) -> bool {
        let Some(OutputSealer::Tls(session)) = self.sealed.as_ref().map(|sealed| &sealed.sealer) else { return false };
        session.close();
        session.has_output()
    }

    /// Whether there are no bytes for the system.
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty() && !self.sealed.as_ref().is_some_and(|sealed| sealed.has_output())
    }

    /// Whether there are bytes that the system may have now.
    pub(super) fn has_next(&self) -> bool {
        !self.replies.next().is_empty() || self.sealed.as_ref().is_some_and(|sealed| sealed.has_output())
    }

    /// Length of the buffers, in bytes.
    pub(super) fn held(&self) -> usize {
        self.replies.held() + self.sealed.as_ref().map_or(0, |sealed| sealed.bytes.len())
    }

    /// Memory kept for the buffers, in bytes.
    pub(super) fn kept(&self) -> usize {
        self.replies.kept() + self.sealed.as_ref().map_or(0, |sealed| kept(&sealed.bytes))
    }

    /// Writes as many bytes as the system takes. Returns true if the buffer was too full and has room again.
    pub(super) fn drain(&mut self, descriptor: &OwnedFd) -> bool {
        let was_full = self.is_paused || self.len() > OUTBOX_BYTES_MAX;
        if self.is_unread() || self.flush(descriptor).is_err() {
            self.give_up();
        }
        self.is_paused = was_full && self.len() > OUTBOX_BYTES_MAX / 2;
        was_full && !self.is_paused
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
        self.replies.compact();
        Ok(())
    }

    fn seal_next(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.refill(self.replies.next());
        }
    }

    /// The bytes that the system gets next.
    fn next_on_wire(&self) -> &[u8] {
        match &self.sealed {
            None => self.replies.next(),
            Some(sealed) if sealed.clear > 0 => self.replies.next().get(..sealed.clear).unwrap_or_default(),
            Some(sealed) => sealed.bytes.get(sealed.taken..).unwrap_or_default(),
        }
    }

    /// Notes that the system has taken `count` of [`SendBuffer::next_on_wire`].
    fn take_on_wire(&mut self, count: usize) {
        match &mut self.sealed {
            None => self.replies.take(count),
            Some(sealed) => {
                let mut complete = sealed.take(count);
                // Frames of one refill lie together: before a large reply, or in it.
                while complete > 0 {
                    let some = complete.min(self.replies.next().len());
                    self.replies.take(some);
                    complete -= some;
                }
            }
        }
    }

    /// Drops the unsent bytes, and later ones too. Received requests are still handled.
    pub(super) fn give_up(&mut self) {
        self.replies.note_unread();
        self.is_paused = false;
        self.discard();
    }

    /// Drops the unsent bytes. The client will not take them.
    pub(super) fn discard(&mut self) {
        self.replies.discard();
        if let Some(sealed) = &mut self.sealed {
            sealed.sealer.discard(&mut sealed.bytes);
            (sealed.bytes, sealed.taken, sealed.clear) = (Vec::new(), 0, 0);
            sealed.ends.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::clock::Now;
    use crate::net::zeromq::{TAKEN_AT_ONCE_BYTES, TimedReply};

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
        assert!(buffer.kept() < 100 * size_of::<TimedReply>());
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
}
