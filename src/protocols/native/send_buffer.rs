//! What goes out to a peer: bytes that are written as fast as it reads them.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::receive_buffer::{give_back, kept};
use crate::zmtp::{encode_frame, encode_frame_header};

/// What is to be sent.
#[derive(Debug, Default)]
pub struct SendBuffer {
    /// `bytes[taken..]` has not been taken by the system.
    bytes: Vec<u8>,
    taken: usize,
    /// Bytes that the system has taken, ever.
    sent: u64,
    /// The frontend holds too much.
    tight: bool,
}

impl SendBuffer {
    /// Bytes that have not been taken by the system.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether all has been taken by the system.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// Where the next byte stands in all that is ever sent to the peer.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.sent + self.len() as u64
    }

    /// How many of these bytes the system has taken. They may have come to the peer.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Appends a frame; `more` of its message follow.
    #[inline]
    pub fn push(&mut self, body: &[u8], more: bool) {
        encode_frame(&mut self.bytes, body, more);
    }

    /// Appends frames as they are on the wire.
    #[inline]
    pub fn push_encoded(&mut self, frames: &[u8]) {
        self.bytes.extend_from_slice(frames);
    }

    /// Appends a frame of `length` bytes, which `write` appends; `more` of its message follow.
    ///
    /// # Panics
    /// If it appends another number of bytes.
    #[inline]
    pub fn push_with(&mut self, length: usize, more: bool, write: impl FnOnce(&mut Vec<u8>)) {
        encode_frame_header(&mut self.bytes, length, more);
        let end = self.bytes.len() + length;
        self.bytes.reserve(length);
        write(&mut self.bytes);
        assert_eq!(self.bytes.len(), end, "a frame has the length that its header says");
    }

    /// What it holds, in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// What it keeps in memory.
    pub(super) fn kept(&self) -> usize {
        kept(&self.bytes)
    }

    /// Whether the frontend holds too much: what is large, and can wait, is not to be appended.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.tight
    }

    pub(super) fn set_tight(&mut self, tight: bool) {
        self.tight = tight;
    }

    /// For what `zmtp` itself has to say.
    pub(super) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Has the system take what it takes.
    pub(super) fn flush(&mut self, descriptor: &OwnedFd) -> Result<(), Errno> {
        while let Some(rest) = self.bytes.get(self.taken..).filter(|rest| !rest.is_empty()) {
            match send(descriptor, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => {
                    self.taken += count;
                    self.sent += count as u64;
                }
                Err(Errno::INTR) => {}
                // It is told when there is room, or memory, again.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(error) => return Err(error),
            }
        }
        self.compact();
        Ok(())
    }

    /// Nobody will take what is left.
    pub(super) fn discard(&mut self) {
        self.bytes = Vec::new();
        self.taken = 0;
    }

    /// Keeps neither what was sent nor, after something large, the room for it.
    fn compact(&mut self) {
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            give_back(&mut self.bytes);
        }
    }
}
