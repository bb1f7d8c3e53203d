//! The output of a connection with CURVE: frames are sealed just before the system takes them.
//!
//! ```text
//! burst, or the subscriber's queue ─► seal, some frames at once ─► bytes ─► the system
//! ```
//! The queues keep frames that are not sealed, so that subscribers still share them. A frame that is sealed has its
//! place in the order of the connection: it counts as taken by the system, and is sent in any case.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use std::sync::Arc;

use rustix::io::Errno;

use super::queue::send;
use crate::limits::BUFFER_KEPT_BYTES;
use crate::net::budget::Budget;
use crate::zmtp::Sealer;

/// Bytes that are sealed at once, beside one frame: some system calls' worth.
const SEALED_AT_ONCE: usize = 64 << 10;

/// Sealed frames that the system has not taken.
#[derive(Debug)]
pub(super) struct SealedOutput {
    sealer: Sealer,
    bytes: Vec<u8>,
    /// The system has not taken `bytes[taken..]`.
    taken: usize,
    /// Bytes that are counted in `held`.
    counted: usize,
    held: Arc<Budget>,
}

impl SealedOutput {
    /// Seals everything behind these bytes, which are sent as they are.
    pub(super) fn new(sealer: Sealer, clear: Vec<u8>, held: &Arc<Budget>) -> Self {
        let mut output = Self { sealer, bytes: clear, taken: 0, counted: 0, held: Arc::clone(held) };
        output.count();
        output
    }

    /// Whether the system has taken all.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// Seals the first of these frames, as long as there is room. Returns how many bytes of them.
    pub(super) fn seal(&mut self, frames: &[u8]) -> usize {
        let room = SEALED_AT_ONCE.saturating_sub(self.bytes.len());
        let sealed = self.sealer.seal(frames, room, &mut self.bytes);
        self.count();
        sealed
    }

    /// Writes as many bytes as the system takes. Returns whether it took all.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn send(&mut self, descriptor: &OwnedFd) -> Result<bool, Errno> {
        if !self.is_empty() {
            let rest = self.bytes.get(self.taken..).unwrap_or_default();
            self.taken += send(descriptor, &[IoSlice::new(rest)])?;
        }
        if !self.is_empty() {
            return Ok(false);
        }
        self.taken = 0;
        self.bytes.clear();
        self.bytes.shrink_to(BUFFER_KEPT_BYTES);
        self.count();
        Ok(true)
    }

    /// Seals and writes as many of these frames as the system takes, if it has taken all before. Returns how many bytes
    /// of them are sealed.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn offer(&mut self, frames: &[u8], descriptor: &OwnedFd) -> Result<usize, Errno> {
        let mut sealed = 0;
        while self.is_empty() && sealed < frames.len() {
            sealed += self.seal(frames.get(sealed..).unwrap_or_default());
            self.send(descriptor)?;
        }
        Ok(sealed)
    }

    fn count(&mut self) {
        let now = self.bytes.capacity();
        self.held.change(self.counted as u64, now as u64);
        self.counted = now;
    }
}

impl Drop for SealedOutput {
    fn drop(&mut self) {
        self.held.change(self.counted as u64, 0);
    }
}
