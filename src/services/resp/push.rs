//! The frames of a message of a channel, for subscribers of either version.
//!
//! ```text
//! message │ channel │ payload               of a subscription to the channel
//! pmessage │ pattern │ channel │ payload    of one to a pattern
//! ```
//! A frame is encoded once for all who get the same bytes one after the other. This module sends nothing.

use crate::resp3::{ReplyWriter, RespVersion};

/// A message, and its last frame.
pub(super) struct PushFrames<'m> {
    channel: &'m [u8],
    payload: &'m [u8],
    /// What the frame below was encoded for.
    encoded: Option<(RespVersion, Option<Vec<u8>>)>,
    frame: Vec<u8>,
}

impl<'m> PushFrames<'m> {
    pub(super) fn new(channel: &'m [u8], payload: &'m [u8]) -> Self {
        Self { channel, payload, encoded: None, frame: Vec::new() }
    }

    pub(super) fn channel(&self) -> &'m [u8] {
        self.channel
    }

    /// The frame for a subscriber who speaks this version, by its subscription to a pattern or to the channel itself.
    pub(super) fn frame(&mut self, version: RespVersion, pattern: Option<&[u8]>) -> &[u8] {
        let is_encoded =
            self.encoded.as_ref().is_some_and(|(encoded, of)| *encoded == version && of.as_deref() == pattern);
        if !is_encoded {
            self.frame.clear();
            let mut writer = ReplyWriter::new(&mut self.frame, version);
            match pattern {
                None => {
                    writer.push(3);
                    writer.bulk(b"message");
                }
                Some(pattern) => {
                    writer.push(4);
                    writer.bulk(b"pmessage");
                    writer.bulk(pattern);
                }
            }
            writer.bulk(self.channel);
            writer.bulk(self.payload);
            self.encoded = Some((version, pattern.map(<[u8]>::to_vec)));
        }
        &self.frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_of_its_version_and_subscription() {
        let mut frames = PushFrames::new(b"c", b"hello");
        assert_eq!(frames.frame(RespVersion::Two, None), b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n");
        assert_eq!(frames.frame(RespVersion::Three, None), b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n");
        let pattern = b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$5\r\nhello\r\n";
        assert_eq!([(); 2].map(|()| frames.frame(RespVersion::Three, Some(b"*")).to_vec()), [pattern; 2]);
    }
}
