//! Bytes that a client has sent and the thread has not used yet.
//!
//! Most of the input is whole messages. The thread uses them where it has received them, in a buffer that all its
//! connections share. Only the unused rest is copied to the connection's own buffer, and the next bytes are received
//! behind it.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::limits::{BUFFER_KEPT_BYTES, RECEIVE_BYTES};
use crate::zmtp::Unconsumed;

/// Outcome of one receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveOutcome {
    /// No bytes, or some more bytes.
    Bytes,
    /// The client sends no more.
    End,
}

/// Bytes that are not used yet.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    /// `bytes[used..]` is not used yet.
    bytes: Vec<u8>,
    used: usize,
}

impl ReceiveBuffer {
    /// Length of the buffer, in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Memory kept for the buffer, in bytes.
    pub(super) fn kept(&self) -> usize {
        kept(&self.bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Receives once: into `shared` if no earlier bytes are left, else into the connection's own buffer.
    pub(super) fn receive(&mut self, descriptor: &OwnedFd, shared: &mut Vec<u8>) -> Result<ReceiveOutcome, Errno> {
        shared.clear();
        let buffer = if self.is_empty() { shared } else { &mut self.bytes };
        // The buffer doubles while a large message comes: its bytes move a few times, and not once for each portion.
        buffer.reserve(RECEIVE_BYTES);
        match recv(descriptor, spare_capacity(buffer), RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(ReceiveOutcome::End),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(ReceiveOutcome::Bytes),
            Err(error) => Err(error),
        }
    }

    /// The bytes not used yet: in `shared`, or in the connection's own buffer if earlier bytes were left.
    pub(super) fn unused<'b>(&'b self, shared: &'b [u8]) -> &'b [u8] {
        if self.is_empty() { shared } else { self.bytes.get(self.used..).unwrap_or_default() }
    }

    /// Keeps the unused bytes.
    pub(super) fn keep(&mut self, left: &Unconsumed, shared: &[u8]) {
        if self.is_empty() {
            self.bytes.clear();
            self.used = 0;
            self.bytes.extend_from_slice(shared.get(left.begun.clone()).unwrap_or_default());
            self.bytes.extend_from_slice(shared.get(left.rest..).unwrap_or_default());
            return;
        }
        if left.begun.end < left.rest {
            self.bytes.drain(self.used + left.begun.end..self.used + left.rest);
        }
        self.used += left.begun.start;
        // At least half of the buffer has been used since the last move.
        if self.used > self.bytes.len() / 2 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        give_back(&mut self.bytes);
    }
}

/// Memory kept for a buffer, in bytes. For a buffer at or below [`BUFFER_KEPT_BYTES`], only its used length counts.
pub(super) fn kept(bytes: &Vec<u8>) -> usize {
    if bytes.capacity() > BUFFER_KEPT_BYTES { bytes.capacity() } else { bytes.len() }
}

/// Shrinks a buffer that a large message has grown.
pub(super) fn give_back(bytes: &mut Vec<u8>) {
    if bytes.capacity() > BUFFER_KEPT_BYTES.max(4 * bytes.len()) {
        bytes.shrink_to(BUFFER_KEPT_BYTES);
    }
}
