//! The size of a message, as flow control and pipes count it.

use super::Frame;
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

    /// Counts in a frame that was received within this process and goes to a client, and may be encoded
    /// ([`Frame::encoded`]). An encoded frame is the last one of its message, and goes on the wire without a head.
    #[inline]
    pub fn count_received(&mut self, frame: &Frame, more: bool) {
        if more || !frame.is_encoded() {
            return self.count(frame.len());
        }
        let bytes = frame.len() as u64;
        self.frames += 1;
        self.bytes += bytes + FRAME_OVERHEAD_BYTES;
        self.wire += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zmtp::encode_frame;

    /// Regression: a head that an encoded reply never has was counted as sent. It was never acknowledged, so a client
    /// that read all its pages stood still when the heads had filled its pipe's share.
    #[test]
    fn an_encoded_frame_is_on_the_wire_what_its_frames_are() {
        let (mut encoded, mut apart, mut together) = (Vec::new(), MessageSize::default(), MessageSize::default());
        for length in [0, 1, 255, 256, 70_000] {
            encode_frame(&mut encoded, &vec![7; length], true);
            apart.count_received(&Frame::from(&vec![7; length][..]), true);
        }
        encode_frame(&mut encoded, b"last", false);
        apart.count_received(&Frame::from(&b"last"[..]), false);
        together.count_received(&Frame::encoded(&encoded), false);
        assert_eq!((apart.frames, together.frames), (6, 1));
        assert_eq!((apart.wire, together.wire), (encoded.len() as u64, encoded.len() as u64));
    }
}
