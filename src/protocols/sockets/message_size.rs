//! The size of a message, as flow control and pipes count it.

use crate::limits::FRAME_OVERHEAD_BYTES;

/// The size of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageSize {
    /// How many frames.
    pub frames: u32,
    /// Bytes in memory, with the overhead of the frames.
    pub bytes: u64,
    /// Bytes on the wire.
    pub wire: u64,
}

impl MessageSize {
    /// Counts one frame in. On the wire a frame has a flag byte and its length in one byte, or in eight (ZMTP 3.1,
    /// "traffic").
    #[inline]
    pub fn count(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.frames += 1;
        self.bytes += bytes + FRAME_OVERHEAD_BYTES;
        self.wire += bytes + if bytes > 255 { 9 } else { 2 };
    }
}
