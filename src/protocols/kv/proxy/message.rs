//! The message that the proxy is forwarding, and the replacement for a message that is too long to keep.

use crate::limits::{
    BODY_FRAMES_MAX, ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX, FRAME_OVERHEAD_BYTES, KEY_BYTES_MAX, MANY_MAX,
    MESSAGE_FRAMES_MAX, TABLE_NAME_BYTES_MAX,
};
use crate::protocols::kv::flow_control::{By, MessageSize};
use crate::protocols::kv::wire;
use crate::protocols::sockets::Frame;

/// A body that is neither an envelope nor a command.
const SENSELESS: &[u8] = b"??";

/// A message on its way through the proxy, in frames that are reused.
pub(super) struct ProxyMessage {
    frames: Vec<Frame>,
    /// The number of leading frames that belong to the message.
    used: usize,
}

impl ProxyMessage {
    pub(super) fn new() -> Self {
        Self { frames: Vec::with_capacity(BODY_FRAMES_MAX), used: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// The next frame, to receive into.
    pub(super) fn next(&mut self) -> &mut Frame {
        if self.used == self.frames.len() {
            self.frames.push(Frame::new());
        }
        self.used += 1;
        self.frames.get_mut(self.used - 1).expect("there are as many frames as are used")
    }

    /// The executor of the request.
    pub(super) fn executor(&mut self) -> By {
        let frames = self.frames();
        if wire::is_report(frames) {
            By::Reporter
        } else if wire::is_scan(frames) {
            By::WorkerAlone
        } else {
            By::Worker
        }
    }

    /// The frames of the message.
    pub(super) fn frames(&mut self) -> &mut [Frame] {
        self.frames.get_mut(..self.used).expect("there are as many frames as are used")
    }

    /// Forgets a message that has been sent, so the next one begins. Frames left in place are received into again.
    pub(super) fn forget(&mut self) {
        self.used = 0;
    }

    /// Takes the frames out, and leaves an empty message.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Frame> {
        self.frames.drain(..std::mem::take(&mut self.used))
    }

    /// Drops the frames.
    pub(super) fn clear(&mut self) {
        drop(self.take());
    }

    /// Replaces the beginning of a message that was too long by one with its envelope, which is answered BAD REQUEST.
    pub(super) fn shorten(&mut self) -> MessageSize {
        let mut frames: Vec<Frame> = self.take().collect();
        let envelope = wire::split(&frames).envelope.len();
        if envelope == 0 || envelope > ENVELOPE_FRAMES_MAX {
            frames = vec![Frame::from(SENSELESS)];
        } else {
            frames.truncate(envelope);
            frames.push(Frame::new());
        }
        let mut size = MessageSize::default();
        frames.iter().for_each(|frame| size.count(frame.len()));
        self.used = frames.len();
        self.frames = frames;
        size
    }
}

/// The longest message that is kept, in bytes of memory: the longest UPDATE_MANY, and an envelope.
pub(in super::super) fn message_bytes_max(value_max: usize) -> u64 {
    // A command, a table with its NUL, a TTL, and the pairs.
    let body = 1 + TABLE_NAME_BYTES_MAX + 1 + 8 + MANY_MAX * (KEY_BYTES_MAX + value_max);
    (ENVELOPE_BYTES_MAX + body) as u64 + MESSAGE_FRAMES_MAX as u64 * FRAME_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::protocols::kv::wire::{Reason, Request};

    fn shortened(frames: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut message = ProxyMessage::new();
        frames.iter().for_each(|frame| *message.next() = Frame::from(*frame));
        let size = message.shorten();
        assert_eq!(size.frames as usize, message.len());
        let frames: Vec<Frame> = message.take().collect();
        let parts = wire::split(&frames);
        assert_eq!(Request::decode(parts.body, 1024).unwrap_err().reason, Reason::BadRequest);
        parts.envelope.iter().map(|frame| frame.to_vec()).collect()
    }

    #[test]
    fn a_message_that_is_too_long_keeps_its_envelope_and_is_a_bad_request() {
        assert_eq!(shortened(&[b"", b"\x05", b"more"]), [b""]);
        assert_eq!(shortened(&[b"cookie", b"", b"\x0a", b"t"]), [&b"cookie"[..], b""]);
        assert!(shortened(&[b"\x0a", b"t", b"key", b""]).is_empty());
        assert!(shortened(&[b"neither", b"nor"]).is_empty());
        let hops = vec![&b"hop"[..]; 100];
        assert!(shortened(&hops).is_empty());
    }

    #[test]
    fn the_longest_command_is_kept() {
        let longest = 1 + 255 + 8 + 1024 * (64 + 1024);
        assert!(message_bytes_max(1024) >= longest);
        let mut size = MessageSize::default();
        (0..MESSAGE_FRAMES_MAX).for_each(|_| size.count(0));
        assert!(message_bytes_max(1024) >= longest + size.bytes);
    }
}
