//! Commands of a subscriber after its handshake. This module does no I/O.
//!
//! ```text
//! ZMTP 3.0   a frame of a message: 01 and a topic subscribes, 00 and a topic cancels
//! ZMTP 3.1   the commands SUBSCRIBE and CANCEL with a topic
//! both       PING                   a publisher ignores all else
//! ```
//! As with libzmq, each frame of a message counts by itself. So of an unfinished message the publisher keeps only a
//! part of one frame.

use crate::limits::SUBSCRIBER_FRAME_BYTES_MAX;
use crate::zmtp::{Part, ProtocolError, ZmtpCommand};

/// One command of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriberCommand<'b> {
    /// It wants the messages that begin with this topic.
    Subscribe(&'b [u8]),
    /// It does not want them any more.
    Cancel(&'b [u8]),
    /// It wants a PONG with this context.
    Ping(&'b [u8]),
    /// It does not concern the publisher.
    Other,
}

impl<'b> SubscriberCommand<'b> {
    /// Decodes the first command of these bytes. Returns it and its length, or `None` if it has not come whole.
    ///
    /// # Errors
    /// The fault that ends the connection.
    pub(super) fn decode(bytes: &'b [u8]) -> Result<Option<(Self, usize)>, ProtocolError> {
        let Some((part, length)) = Part::decode(bytes, SUBSCRIBER_FRAME_BYTES_MAX)? else { return Ok(None) };
        let said = match part {
            Part::Frame { body: [1, topic @ ..], .. } | Part::Command(ZmtpCommand::Subscribe(topic)) => {
                Self::Subscribe(topic)
            }
            Part::Frame { body: [0, topic @ ..], .. } | Part::Command(ZmtpCommand::Cancel(topic)) => {
                Self::Cancel(topic)
            }
            Part::Command(ZmtpCommand::Ping { context }) => Self::Ping(context),
            Part::Frame { .. } | Part::Command(_) => Self::Other,
        };
        Ok(Some((said, length)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use bolero::check;

    use super::*;

    /// All commands in these bytes, owned, if they come in pieces of `size` bytes.
    fn decoded(bytes: &[u8], size: usize) -> (Vec<String>, Option<ProtocolError>) {
        let (mut said, mut held) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(size) {
            held.extend_from_slice(piece);
            let mut taken = 0;
            loop {
                match SubscriberCommand::decode(&held[taken..]) {
                    Ok(Some((one, length))) => {
                        said.push(format!("{one:?}"));
                        taken += length;
                    }
                    Ok(None) => break,
                    Err(fault) => return (said, Some(fault)),
                }
            }
            held.drain(..taken);
        }
        (said, None)
    }

    #[test]
    fn both_forms_of_a_subscription_are_understood() {
        let bytes = b"\x00\x02\x01a\x00\x02\x00a\x04\x0b\x09SUBSCRIBEb\x04\x08\x06CANCELb";
        let (said, fault) = decoded(bytes, bytes.len());
        let expected = [
            SubscriberCommand::Subscribe(b"a"),
            SubscriberCommand::Cancel(b"a"),
            SubscriberCommand::Subscribe(b"b"),
            SubscriberCommand::Cancel(b"b"),
        ];
        assert_eq!(said, expected.map(|one| format!("{one:?}")));
        assert_eq!(fault, None);
    }

    #[test]
    fn each_frame_of_a_message_counts_and_other_messages_say_nothing() {
        let bytes = b"\x01\x02\x01a\x01\x00\x01\x01\x02\x00\x01\x01\x04\x04\x03NEW\x04\x0a\x04PING\0\0abc";
        let expected = [
            SubscriberCommand::Subscribe(b"a"),
            SubscriberCommand::Other,
            SubscriberCommand::Other,
            SubscriberCommand::Subscribe(b""),
            SubscriberCommand::Other,
            SubscriberCommand::Ping(b"abc"),
        ];
        for size in 1..=bytes.len() {
            assert_eq!(decoded(bytes, size), (expected.map(|one| format!("{one:?}")).to_vec(), None), "{size}");
        }
    }

    #[test]
    fn faults_end_it() {
        assert!(
            matches!(SubscriberCommand::decode(b"\x04\x05\x04PING"), Err(ProtocolError::Command { .. })),
            "no time to live"
        );
        let long = b"\x04\x18\x04PING\0\x0a01234567890123456";
        assert!(matches!(SubscriberCommand::decode(long), Err(ProtocolError::Command { .. })), "a context of 17 bytes");
        assert!(
            matches!(SubscriberCommand::decode(b"\x02\0\0\0\0\0\x10\0\0"), Err(ProtocolError::TooLong { .. })),
            "before it has come"
        );
    }

    #[test]
    fn any_bytes_say_the_same_however_they_are_split() {
        check!().with_type().for_each(|(bytes, size): &(Vec<u8>, u8)| {
            assert_eq!(decoded(bytes, bytes.len().max(1)), decoded(bytes, usize::from(*size).max(1)));
        });
    }
}
