//! Messages: one or more frames, of which only the last has no MORE. A [`MessageCutter`] cuts them out of the received
//! bytes.
//!
//! ```text
//! bytes    │ frame, more │ frame, more │ PING │ frame │ frame, more │ fra…
//!          └────────────── a message ─────────────┘    └─ begun: kept, and continued when more has come
//! ```
//! Commands may stand between any two frames. A PING is answered, and all other commands mean nothing to a receiver of
//! messages. If a message exceeds its bounds, only its beginning is kept, and
//! [`Message::is_whole`](crate::messages::Message::is_whole) returns false.

use std::ops::Range;

use super::frame::short_frame;
use super::{Part, ProtocolError, ZmtpCommand, encode_pong};
use crate::messages::{Messages, Unconsumed};

/// The bounds of the part of a message that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBounds {
    /// The largest frame, in bytes. A larger frame is a [`ProtocolError`].
    pub frame_bytes: u64,
    /// The number of frames of a message. Frames beyond it are skipped.
    pub frames: usize,
    /// Bytes of a message, headers included. Frames that end beyond it are skipped.
    pub bytes: usize,
}

/// Cuts messages out of received bytes. Keeps the state of a message that has not come whole.
#[derive(Debug, Default)]
pub struct MessageCutter {
    /// The frames of this message, counted from the first byte of [`Unconsumed::begun`].
    frames: Vec<Range<usize>>,
    /// Bytes of the message that were kept.
    kept: usize,
    /// Whether a part of the message was skipped.
    excess: bool,
    /// The peer has sent a PING.
    has_pings: bool,
}

/// Frames for which the cutter always keeps room: more than any request but those of many keys has.
const FRAMES_KEPT: usize = 16;

impl MessageCutter {
    /// Bytes of memory that the positions of a message of many frames take.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        if self.frames.capacity() > FRAMES_KEPT { self.frames.capacity() * size_of::<Range<usize>>() } else { 0 }
    }

    /// Whether the peer has ever sent a PING.
    #[must_use]
    pub fn has_pings(&self) -> bool {
        self.has_pings
    }

    /// Answers the PINGs among bytes that cannot be cut yet: the bytes that the last [`MessageCutter::cut`] left, and
    /// the bytes behind. Removes these PINGs: commands belong to no message. The caller passes what the call before has
    /// returned, or 0 after a cut.
    #[must_use]
    pub fn answer_pings(&self, bytes: &mut Vec<u8>, scanned: usize, out: &mut Vec<u8>) -> usize {
        let mut at = scanned.max(self.kept);
        let mut end = at;
        // A fault is found when the bytes are cut.
        while let Ok(Some((part, length))) = Part::decode(bytes.get(at..).unwrap_or_default(), u64::MAX) {
            if let Part::Command(ZmtpCommand::Ping { context }) = part {
                encode_pong(out, context);
            } else if end == at {
                end += length;
            } else {
                bytes.copy_within(at..at + length, end);
                end += length;
            }
            at += length;
        }
        if end < at {
            bytes.drain(end..at);
        }
        end
    }

    /// Cuts the bytes that were left before, followed by the new ones, into at most `most` messages. Answers to PINGs
    /// are appended to `out`.
    ///
    /// # Errors
    /// The [`ProtocolError`] that ends the connection. The messages before it are valid.
    ///
    /// ```
    /// use spindle::zmtp::{MessageBounds, MessageCutter, Messages};
    ///
    /// let bounds = MessageBounds { frame_bytes: 100, frames: 10, bytes: 1_000 };
    /// let (mut cutter, mut messages) = (MessageCutter::default(), Messages::default());
    /// let bytes = b"\x01\x01a\x00\x02bc\x00\x05begun";
    /// let left = cutter.cut(&bytes[..11], &bounds, 64, &mut messages, &mut Vec::new()).unwrap();
    /// assert_eq!((left.begun, left.rest), (7..7, 7));
    /// let message = messages.iter(bytes).next().unwrap();
    /// assert!(message.is_whole() && message.frames().eq([&b"a"[..], b"bc"]));
    /// ```
    pub fn cut(
        &mut self,
        bytes: &[u8],
        bounds: &MessageBounds,
        most: usize,
        messages: &mut Messages,
        out: &mut Vec<u8>,
    ) -> Result<Unconsumed, ProtocolError> {
        messages.clear();
        messages.frames.append(&mut self.frames);
        let (mut start, mut at) = (0, self.kept);
        let (mut kept, mut excess) = (self.kept, self.excess);
        let mut first = 0;
        while messages.ends.len() < most {
            let (body, more) = match short_frame(bytes, at, bounds.frame_bytes) {
                Some(frame) => frame,
                None => match Part::decode(bytes.get(at..).unwrap_or_default(), bounds.frame_bytes)? {
                    Some((Part::Frame { body, more }, length)) => (at + length - body.len()..at + length, more),
                    Some((Part::Command(command), length)) => {
                        if let ZmtpCommand::Ping { context } = command {
                            encode_pong(out, context);
                            self.has_pings = true;
                        }
                        at += length;
                        // Commands before a message belong to no message.
                        if messages.frames.len() == first {
                            (start, kept) = (at, at);
                        }
                        continue;
                    }
                    None => break,
                },
            };
            at = body.end;
            let count = messages.frames.len() - first;
            excess |= count >= bounds.frames || at - start > bounds.bytes;
            // The first frame is always kept: a message has at least one frame.
            if !excess || count == 0 {
                messages.frames.push(body);
                kept = at;
            }
            if !more {
                first = messages.frames.len();
                messages.ends.push((first, !excess));
                (start, kept, excess) = (at, at, false);
            }
        }
        self.frames.extend(messages.frames.drain(first..).map(|frame| frame.start - start..frame.end - start));
        if self.frames.is_empty() {
            self.frames.shrink_to(FRAMES_KEPT);
        }
        (self.kept, self.excess) = (kept - start, excess);
        Ok(Unconsumed { begun: start..kept, rest: at })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use proptest::prelude::*;

    use super::*;
    use crate::messages::Message;
    use crate::zmtp::encode_frame;

    const BOUNDS: MessageBounds = MessageBounds { frame_bytes: 1_000, frames: 3, bytes: 600 };

    /// A message's frames, and whether it was whole.
    type CutMessage = (Vec<Vec<u8>>, bool);

    /// Cuts bytes that arrive in pieces of these sizes. Returns the messages, and the bytes to send.
    fn cut(bytes: &[u8], sizes: &[usize], most: usize) -> (Vec<CutMessage>, Vec<u8>) {
        let (mut cutter, mut messages, mut said) = (MessageCutter::default(), Messages::default(), Vec::new());
        let (mut held, mut came, mut found) = (Vec::new(), 0, Vec::new());
        let mut sizes = sizes.iter().cycle();
        loop {
            let next = (came + sizes.next().unwrap()).min(bytes.len());
            held.extend_from_slice(&bytes[came..next]);
            came = next;
            loop {
                let left = cutter.cut(&held, &BOUNDS, most, &mut messages, &mut said).unwrap();
                let whole = |message: &Message<'_>| message.is_whole();
                let frames = |message: &Message<'_>| message.frames().map(<[u8]>::to_vec).collect();
                found.extend(messages.iter(&held).map(|message| (frames(&message), whole(&message))));
                held = [&held[left.begun], &held[left.rest..]].concat();
                if messages.len() < most {
                    break;
                }
            }
            if came == bytes.len() {
                return (found, said);
            }
        }
    }

    fn encoded(message: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, frame) in message.iter().enumerate() {
            encode_frame(&mut out, frame, index + 1 < message.len());
        }
        out
    }

    #[test]
    fn commands_may_stand_anywhere_and_a_ping_is_answered() {
        let ping = b"\x04\x0a\x04PING\0\x00abc";
        let bytes = [&ping[..], b"\x01\x01a", ping, b"\x04\x05\x04NEW.", b"\x00\x01b", ping].concat();
        for size in 1..bytes.len() {
            let (found, said) = cut(&bytes, &[size], 10);
            assert_eq!(found, [(vec![b"a".to_vec(), b"b".to_vec()], true)], "{size}");
            assert_eq!(said, b"\x04\x08\x04PONGabc".repeat(3), "{size}");
        }
    }

    #[test]
    fn what_is_too_long_is_passed_over_and_reported() {
        let frames = |count: usize| (0..count).map(|_| b"f".to_vec()).collect::<Vec<_>>();
        let bytes = [encoded(&frames(3)), encoded(&frames(9)), encoded(&frames(1))].concat();
        for size in 1..bytes.len() {
            let (found, _) = cut(&bytes, &[size], 1);
            assert_eq!(found, [(frames(3), true), (frames(3), false), (frames(1), true)], "{size}");
        }
        let (found, _) = cut(&encoded(&[vec![1; 700], vec![2; 10]]), &[11], 4);
        assert_eq!(found, [(vec![vec![1; 700]], false)], "more bytes than are kept, and still a frame");
        let (found, _) = cut(&encoded(&[vec![1; 500], vec![2; 300], vec![3; 5]]), &[1_000], 4);
        assert_eq!(found, [(vec![vec![1; 500]], false)], "no frame after one that was passed over");
    }

    #[test]
    fn a_fault_ends_it() {
        let mut messages = Messages::default();
        let cut = MessageCutter::default().cut(b"\x00\x01a\xff\x00", &BOUNDS, 9, &mut messages, &mut Vec::new());
        assert_eq!(cut, Err(ProtocolError::Flags { flags: 0xff }));
        assert_eq!(messages.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn messages_come_out_as_they_went_in(
            sent in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6), 0..20),
            sizes in prop::collection::vec(1_usize..400, 1..8),
            most in 1_usize..5,
        ) {
            let bytes: Vec<u8> = sent.iter().flat_map(|message| encoded(message)).collect();
            let (found, said) = cut(&bytes, &sizes, most);
            prop_assert!(said.is_empty());
            prop_assert_eq!(found.len(), sent.len());
            for ((found, whole), sent) in found.iter().zip(&sent) {
                prop_assert!(sent.starts_with(found));
                prop_assert_eq!(*whole, found.len() == sent.len());
                let fits = sent.len() <= BOUNDS.frames && encoded(sent).len() <= BOUNDS.bytes;
                prop_assert_eq!(*whole, fits);
            }
        }
    }
}
