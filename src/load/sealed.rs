//! What stands between a connection's frames and the wire when it is encrypted.
//!
//! ```text
//! frames to be sent ─► Sealer ─► out ─► wire        wire ─► come ─► Opener ─► frames that were received
//! ```

use std::io::{self, Read};

use crate::limits::FRAME_BYTES_MAX;
use crate::zmtp::{Cipher, ProtocolError};

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// The sealed bytes of a connection, and its cipher.
pub(super) struct SealedBytes {
    cipher: Box<Cipher>,
    /// Sealed frames that were not sent yet, or not whole.
    out: Vec<u8>,
    /// Received bytes that are not a whole frame yet.
    come: Vec<u8>,
    /// The room of one read.
    room: Box<[u8]>,
}

impl SealedBytes {
    /// A connection whose handshake is over, and which has received these bytes behind it.
    pub(super) fn new(cipher: Box<Cipher>, come: &[u8]) -> Self {
        Self { cipher, out: Vec::new(), come: come.to_vec(), room: vec![0; READ_BYTES].into_boxed_slice() }
    }

    /// Seals whole frames, which it takes out of `frames`. Returns all bytes that are to be sent.
    pub(super) fn seal(&mut self, frames: &mut Vec<u8>) -> &mut Vec<u8> {
        self.cipher.sealer.seal(frames, usize::MAX, &mut self.out);
        frames.clear();
        &mut self.out
    }

    /// Reads once.
    ///
    /// # Errors
    /// That of the read.
    pub(super) fn read(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        let count = stream.read(&mut self.room)?;
        self.come.extend_from_slice(self.room.get(..count).unwrap_or_default());
        Ok(count)
    }

    /// Opens the frames that have come whole, and appends them to `frames`.
    ///
    /// # Errors
    /// If the bytes are not sealed by the server, for this connection and in this order.
    pub(super) fn open(&mut self, frames: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let taken = self.cipher.opener.open(&self.come, FRAME_BYTES_MAX as u64, frames)?;
        self.come.drain(..taken);
        Ok(())
    }
}
