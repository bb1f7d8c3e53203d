//! What has come from a peer and is not used yet.
//!
//! Most of what comes is whole messages, and is used where the thread has received it: in a buffer that all its connections
//! share. Only what is left of it lies in the inbox of its peer, and what comes next is received behind that.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::limits::{BUFFER_KEPT_BYTES, RECEIVE_BYTES};
use crate::zmtp::Unconsumed;

/// What came of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveOutcome {
    /// Nothing, or more bytes than there were.
    Bytes,
    /// The peer sends no more.
    End,
}

/// What is not used yet.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    /// `bytes[used..]` is not used yet.
    bytes: Vec<u8>,
    used: usize,
}

impl ReceiveBuffer {
    /// What it holds, in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// What it keeps in memory.
    pub(super) fn kept(&self) -> usize {
        kept(&self.bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Receives once what is there: into `shared` if nothing is left of before, else into the inbox.
    pub(super) fn receive(&mut self, descriptor: &OwnedFd, shared: &mut Vec<u8>) -> Result<ReceiveOutcome, Errno> {
        shared.clear();
        let buffer = if self.is_empty() { shared } else { &mut self.bytes };
        // Doubling while a large message comes: its bytes are moved a few times, and not once for each portion.
        buffer.reserve(RECEIVE_BYTES);
        match recv(descriptor, spare_capacity(buffer), RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(ReceiveOutcome::End),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(ReceiveOutcome::Bytes),
            Err(error) => Err(error),
        }
    }

    /// What is not used yet: in `shared`, or in the inbox if anything was left of before.
    pub(super) fn unused<'b>(&'b self, shared: &'b [u8]) -> &'b [u8] {
        if self.is_empty() { shared } else { self.bytes.get(self.used..).unwrap_or_default() }
    }

    /// Keeps what is left.
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
        // Half of it at least has been used since it was moved last.
        if self.used > self.bytes.len() / 2 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        give_back(&mut self.bytes);
    }
}

/// What a buffer takes in memory, in bytes; of one that is as small as any may be, what is used of it.
pub(super) fn kept(bytes: &Vec<u8>) -> usize {
    if bytes.capacity() > BUFFER_KEPT_BYTES { bytes.capacity() } else { bytes.len() }
}

/// Gives back the room that something large has left behind.
pub(super) fn give_back(bytes: &mut Vec<u8>) {
    if bytes.capacity() > BUFFER_KEPT_BYTES.max(4 * bytes.len()) {
        bytes.shrink_to(BUFFER_KEPT_BYTES);
    }
}
