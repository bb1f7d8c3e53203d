//! What has come from a peer and is not used yet.
//!
//! Most of what comes is whole messages, and is used where the thread has received it: in a buffer that all its connections
//! share. Only what is left of it lies in the inbox of its peer, and what comes next is received behind that.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::limits::{BUFFER_KEPT_BYTES, RECEIVE_BYTES};
use crate::zmtp::Left;

/// What came of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Nothing, or more bytes than there were.
    Bytes,
    /// The peer sends no more.
    End,
}

/// What is not used yet.
#[derive(Debug, Default)]
pub(super) struct Inbox(Vec<u8>);

impl Inbox {
    /// What it takes in memory, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Receives once what is there: into `shared` if nothing is left of before, else into the inbox.
    pub(super) fn receive(&mut self, descriptor: &OwnedFd, shared: &mut Vec<u8>) -> Result<Came, Errno> {
        shared.clear();
        let buffer = if self.0.is_empty() { shared } else { &mut self.0 };
        // Doubling while a large message comes: its bytes are moved a few times, and not once for each portion.
        buffer.reserve(RECEIVE_BYTES);
        match recv(descriptor, spare_capacity(buffer), RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(Came::End),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(Came::Bytes),
            Err(error) => Err(error),
        }
    }

    /// What is not used yet: in `shared`, or in the inbox if anything was left of before.
    pub(super) fn unused<'b>(&'b self, shared: &'b [u8]) -> &'b [u8] {
        if self.0.is_empty() { shared } else { &self.0 }
    }

    /// Keeps what is left.
    pub(super) fn keep(&mut self, left: &Left, shared: &[u8]) {
        if self.0.is_empty() {
            self.0.extend_from_slice(shared.get(left.begun.clone()).unwrap_or_default());
            self.0.extend_from_slice(shared.get(left.rest..).unwrap_or_default());
            return;
        }
        self.0.drain(left.begun.end..left.rest);
        self.0.drain(..left.begun.start);
        if self.0.is_empty() && self.0.capacity() > BUFFER_KEPT_BYTES {
            self.0 = Vec::new();
        }
    }
}
