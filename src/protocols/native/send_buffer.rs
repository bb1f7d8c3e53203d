//! Bytes on their way to a client. They are written as fast as the client reads them.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::receive_buffer::{give_back, kept};
use crate::zmtp::{encode_frame, encode_frame_header};

/// Bytes to be sent to one client.
#[derive(Debug, Default)]
pub struct SendBuffer {
    /// The system has not taken `bytes[taken..]`.
    bytes: Vec<u8>,
    taken: usize,
    /// Bytes that the system has taken since the connection began.
    sent: u64,
    /// The frontend holds too much.
    tight: bool,
}

impl SendBuffer {
    /// Bytes that the system has not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether the system has taken all bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
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

    /// Length of the buffer, in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Memory kept for the buffer, in bytes.
    pub(super) fn kept(&self) -> usize {
        kept(&self.bytes)
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

    /// Writes as many bytes as the system takes.
    pub(super) fn flush(&mut self, descriptor: &OwnedFd) -> Result<(), Errno> {
        while let Some(rest) = self.bytes.get(self.taken..).filter(|rest| !rest.is_empty()) {
            match send(descriptor, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => {
                    self.taken += count;
                    self.sent += count as u64;
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

    /// Drops the unsent bytes. The client will not take them.
    pub(super) fn discard(&mut self) {
        self.bytes = Vec::new();
        self.taken = 0;
    }

    /// Drops the sent bytes, and shrinks the buffer after a large reply.
    fn compact(&mut self) {
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
