//! The bytes of one connection in both directions, on a socket that does not block.
//!
//! ```text
//! frames to be sent:  outbox ─► Sealer ─► sealed ─► socket        received frames:  inbox ◄─ Opener ◄─ come ◄─ socket
//!                        └──── without CURVE ────────┘                                └──── without CURVE ──────┘
//! ```
//! It receives only when it is asked to, and once: into the room of a buffer. What a client has not asked for waits in
//! the system and in the server, up to their bounds. The clients and the load generator use this type.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::sleep;
use crate::zmtp::{Cipher, ProtocolError, Unconsumed};

/// Bytes of room for one receive.
const READ_BYTES: usize = 64 << 10;

/// Bytes of memory that an empty buffer keeps.
const KEPT_BYTES: usize = 1 << 20;

/// Why a connection brings nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The other end has closed it.
    Closed,
    /// It broke.
    Broken(Errno),
    /// A frame was not sealed by the server, for this connection and in this order.
    Fault(ProtocolError),
}

impl std::fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the server has closed it"),
            Self::Broken(error) => error.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

/// A connection with its bytes.
pub(crate) struct ByteStream {
    descriptor: OwnedFd,
    /// Received bytes: `inbox[read..]` is not used yet.
    inbox: Vec<u8>,
    read: usize,
    /// Frames to be sent. Without CURVE `outbox[..sent]` is sent.
    outbox: Vec<u8>,
    sent: usize,
    /// With CURVE: what stands between these two and the socket.
    sealed: Option<Box<SealedBytes>>,
}

/// The sealed bytes of a connection.
struct SealedBytes {
    cipher: Box<Cipher>,
    /// Bytes of the longest frame that is received.
    frame_bytes: u64,
    /// Sealed frames. `out[..sent]` is sent.
    out: Vec<u8>,
    /// Received bytes that are no whole frame yet.
    come: Vec<u8>,
}

impl SealedBytes {
    /// Opens the frames that have come whole, and appends them to `inbox`.
    fn open(&mut self, inbox: &mut Vec<u8>) -> Result<(), StreamEnd> {
        let taken = self.cipher.opener.open(&self.come, self.frame_bytes, inbox).map_err(StreamEnd::Fault)?;
        self.come.drain(..taken);
        Ok(())
    }
}

impl ByteStream {
    /// The connection of a socket that does not block.
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, inbox: Vec::new(), read: 0, outbox: Vec::new(), sent: 0, sealed: None }
    }

    /// From now on all bytes are sealed, the unused ones too. Frames of at most `frame_bytes` are received.
    ///
    /// # Errors
    /// [`StreamEnd::Fault`]
    pub(super) fn seal(&mut self, cipher: Box<Cipher>, frame_bytes: u64) -> Result<(), StreamEnd> {
        let come = self.inbox.split_off(self.read);
        let mut sealed = Box::new(SealedBytes { cipher, frame_bytes, out: std::mem::take(&mut self.outbox), come });
        self.inbox.clear();
        self.read = 0;
        let opened = sealed.open(&mut self.inbox);
        self.sealed = Some(sealed);
        opened
    }

    /// The buffer for whole frames to be sent.
    pub(crate) fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// The received bytes that are not used yet, and the outbox.
    pub(crate) fn unused(&mut self) -> (&[u8], &mut Vec<u8>) {
        (self.inbox.get(self.read..).unwrap_or_default(), &mut self.outbox)
    }

    /// The first unused bytes are used now.
    pub(crate) fn consume(&mut self, count: usize) {
        self.read += count;
    }

    /// The unused bytes are used now but for these.
    pub(super) fn keep(&mut self, left: &Unconsumed) {
        self.inbox.drain(self.read + left.begun.end..self.read + left.rest);
        self.read += left.begun.start;
    }

    /// Whether there is something to be sent.
    fn is_sending(&self) -> bool {
        !self.outbox.is_empty() || self.sealed.as_ref().is_some_and(|sealed| !sealed.out.is_empty())
    }

    /// Sends as many bytes as the system takes. Returns whether all are sent.
    ///
    /// # Errors
    /// [`StreamEnd::Broken`]
    pub(crate) fn flush(&mut self) -> Result<bool, StreamEnd> {
        let Self { descriptor, outbox, sent, sealed, .. } = self;
        let out = match sealed {
            None => outbox,
            Some(sealed) => {
                sealed.cipher.sealer.seal(outbox, usize::MAX, &mut sealed.out);
                outbox.clear();
                &mut sealed.out
            }
        };
        while let Some(rest) = out.get(*sent..).filter(|rest| !rest.is_empty()) {
            match send(&*descriptor, rest, SendFlags::NOSIGNAL) {
                Ok(count) => *sent += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(StreamEnd::Broken(error)),
            }
        }
        clear(out);
        *sent = 0;
        Ok(true)
    }

    /// Receives once. Returns whether bytes were there.
    ///
    /// # Errors
    /// [`StreamEnd`]. The bytes that were received before stay.
    pub(crate) fn receive(&mut self) -> Result<bool, StreamEnd> {
        self.inbox.drain(..self.read);
        self.read = 0;
        if self.inbox.is_empty() {
            clear(&mut self.inbox);
        }
        let bytes = self.sealed.as_mut().map_or(&mut self.inbox, |sealed| &mut sealed.come);
        if bytes.is_empty() {
            clear(bytes);
        }
        // The buffer doubles while a large message comes: its bytes move a few times, and not once for each portion.
        bytes.reserve(READ_BYTES);
        let count = recv(&self.descriptor, spare_capacity(bytes), RecvFlags::DONTWAIT);
        match count {
            Ok((0, _)) => Err(StreamEnd::Closed),
            Ok(_) => self.sealed.as_mut().map_or(Ok(()), |sealed| sealed.open(&mut self.inbox)).map(|()| true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(StreamEnd::Broken(error)),
        }
    }

    /// The descriptor to poll before a receive, and before what is left is sent.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let sending = if self.is_sending() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(self.descriptor.as_fd(), PollFlags::IN | sending)
    }

    /// Sleeps until there is something to receive, or room for what is left to be sent. False: the time is over, or a
    /// signal came.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<bool, Errno> {
        sleep(&mut [self.poll_fd()], timeout)
    }
}

impl AsFd for ByteStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Empties a buffer, and gives back the memory that a large message took.
fn clear(bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.shrink_to(KEPT_BYTES);
}
