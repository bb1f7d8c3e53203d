//! The feed on the wire: the state of a table in it, the payloads of CHANGES, and the two frames that a subscriber
//! receives. [`crate::feed`] has the payloads themselves.
//!
//! ```text
//! FEED_STATE │ table                          1 │ epoch │ incarnation │ next sequence │ oldest kept │ elements │ digest
//! CHANGES    │ table │ epoch │ incarnation │ sequence      1 │ payload…       numbers: 8 bytes each, big-endian
//! message      topic │ payload
//! ```

use std::ops::Deref;
use std::sync::Arc;

use super::reply::{decode_number, malformed};
use super::{Malformed, OK};
use crate::feed::{FeedContent, FeedMessage, FeedPosition, MessageFault, table_of_topic};

/// The state of a table in the feed, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedState {
    /// The position of the change that comes next.
    pub next: FeedPosition,
    /// The oldest sequence that is kept. The next one if none is.
    pub oldest: u64,
    /// Elements that were published as live.
    pub elements: u64,
    /// The digest over them.
    pub digest: u64,
}

impl FeedState {
    pub(super) fn encode(&self, sink: &mut impl FnMut(&[u8], bool)) {
        let FeedPosition { epoch, incarnation, sequence } = self.next;
        sink(&[OK], true);
        for number in [epoch, incarnation, sequence, self.oldest, self.elements] {
            sink(&number.to_be_bytes(), true);
        }
        sink(&self.digest.to_be_bytes(), false);
    }

    pub(super) fn decode<F: Deref<Target = [u8]>>(fields: &[F]) -> Result<Self, Malformed> {
        let [epoch, incarnation, sequence, oldest, elements, digest] = fields else {
            return Err(malformed("the state of a feed has 6 numbers", fields.len()));
        };
        let (epoch, incarnation) = (decode_number(epoch)?, decode_number(incarnation)?);
        let sequence = decode_number(sequence)?;
        Ok(Self {
            next: FeedPosition { epoch, incarnation, sequence },
            oldest: decode_number(oldest)?,
            elements: decode_number(elements)?,
            digest: decode_number(digest)?,
        })
    }
}

/// One payload of a reply to CHANGES.
#[derive(Clone, Debug)]
pub enum Payload<'b> {
    /// In the server: of the feed's history.
    Kept(Arc<[u8]>),
    /// In the client: a frame.
    Received(&'b [u8]),
}

impl Payload<'_> {
    pub(super) fn encode(payloads: &[Self], sink: &mut impl FnMut(&[u8], bool)) {
        sink(&[OK], !payloads.is_empty());
        let mut left = payloads.len();
        for payload in payloads {
            left -= 1;
            sink(payload, left > 0);
        }
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Kept(bytes) => bytes,
            Self::Received(bytes) => bytes,
        }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Payload<'_> {}

impl From<MessageFault> for Malformed {
    fn from(MessageFault { rule, given }: MessageFault) -> Self {
        Self { rule, given }
    }
}

/// One message of the feed, as a subscriber receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedEvent<'m> {
    /// The name of the table, without its NUL.
    pub table: &'m [u8],
    /// The payload.
    pub message: FeedMessage<'m>,
}

impl<'m> FeedEvent<'m> {
    /// Reads the frames of one message.
    ///
    /// # Errors
    /// [`Malformed`] if no server of this protocol sends these frames.
    pub fn decode<F: Deref<Target = [u8]>>(message: &'m [F]) -> Result<Self, Malformed> {
        let [topic, payload] = message else {
            return Err(malformed("a message of the feed has 2 frames", message.len()));
        };
        let table =
            table_of_topic(topic).ok_or(malformed("a topic has the length of a name, and a name", topic.len()))?;
        Ok(Self { table, message: FeedMessage::decode(payload)? })
    }

    /// Reads the payloads of a reply to CHANGES. Each is a message of changes, of the life that was asked for, and they
    /// follow each other without a gap.
    ///
    /// # Errors
    /// [`Malformed`] if no server of this protocol sends them as the answer to this position.
    pub(crate) fn replayed(
        position: FeedPosition,
        payloads: &[Payload<'m>],
    ) -> Result<Vec<FeedMessage<'m>>, Malformed> {
        let mut messages = Vec::with_capacity(payloads.len());
        let mut next = None;
        for payload in payloads {
            let Payload::Received(bytes) = *payload else { continue };
            let message = FeedMessage::decode(bytes)?;
            let FeedContent::Changes(changes) = message.content else {
                return Err(malformed("a reply to CHANGES has messages of changes alone", bytes.len()));
            };
            let FeedPosition { epoch, incarnation, sequence } = message.position;
            let end = sequence + changes.len() as u64;
            let follows =
                next.map_or(sequence <= position.sequence && position.sequence < end, |next| next == sequence);
            if !follows || (epoch, incarnation) != (position.epoch, position.incarnation) {
                return Err(malformed("a reply to CHANGES begins with the position, and has no gap", bytes.len()));
            }
            next = Some(end);
            messages.push(message);
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use bolero::check;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::feed::topic_of_table;
    use crate::services::tables::wire::fuzz::EncodedFrames;
    use crate::services::tables::wire::{Command, Reason, Reply};

    fn encoded(reply: &Reply<'_>) -> EncodedFrames {
        let mut frames = EncodedFrames::default();
        reply.encode(frames.sink());
        frames
    }

    #[test]
    fn the_frames_are_those_of_the_specification() {
        let next = FeedPosition { epoch: 1, incarnation: 2, sequence: 3 };
        let frames = encoded(&Reply::FeedState(FeedState { next, oldest: 4, elements: 5, digest: 6 }));
        let numbers = [1, 2, 3, 4, 5, 6].map(u64::to_be_bytes);
        let expected: Vec<&[u8]> = [&[1][..]].into_iter().chain(numbers.iter().map(|number| &number[..])).collect();
        assert_eq!(frames.slices(), expected);
        let kept = Payload::Kept(Arc::from(&b"payload"[..]));
        let frames: [&[u8]; 3] = [&[1], b"payload", b"payload"];
        assert_eq!(encoded(&Reply::Changes(vec![kept.clone(), kept])).slices(), frames);
        assert_eq!(encoded(&Reply::Changes(Vec::new())).slices(), [&[1]]);
        let compacted = Reply::Refused(Reason::Compacted { oldest: 258 });
        let frames: [&[u8]; 3] = [&[0], b"COMPACTED", &[0, 0, 0, 0, 0, 0, 1, 2]];
        assert_eq!(encoded(&compacted).slices(), frames);
        assert_eq!(Reply::decode(Command::Changes, &encoded(&compacted).slices()), Ok(compacted));
    }

    #[test]
    fn a_message_has_a_topic_and_a_payload_that_are_whole() {
        let mut dropped = Vec::new();
        let position = FeedPosition { epoch: 1, incarnation: 2, sequence: 3 };
        FeedMessage { position, content: FeedContent::Dropped }.encode(&mut dropped);
        let message = [topic_of_table(b"users"), dropped.clone()];
        let event = FeedEvent::decode(&message).unwrap();
        assert_eq!((event.table, event.message.position), (&b"users"[..], position));
        assert!(FeedEvent::decode(&[dropped.clone()]).is_err());
        assert!(FeedEvent::decode(&[b"\x06users".to_vec(), dropped.clone()]).is_err());
        assert!(FeedEvent::decode(&[topic_of_table(b"users"), dropped[1..].to_vec()]).is_err());
    }

    #[test]
    fn what_a_hostile_server_publishes_or_replays_makes_no_client_panic() {
        check!().with_iterations(20_000).with_type::<(Vec<Vec<u8>>, u64)>().for_each(|(frames, sequence)| {
            let _any = FeedEvent::decode(frames);
            let payloads: Vec<Payload<'_>> = frames.iter().map(|frame| Payload::Received(frame)).collect();
            let position = FeedPosition { epoch: 1, incarnation: 2, sequence: *sequence };
            let _any = FeedEvent::replayed(position, &payloads);
        });
    }

    fn comes_back(command: Command, reply: &Reply<'_>) {
        let frames = encoded(reply);
        assert_eq!(Reply::decode(command, &frames.slices()).as_ref(), Ok(reply));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(numbers: [u64; 6], payloads in vec(vec(any::<u8>(), 0..100), 0..10)) {
            let [epoch, incarnation, sequence, oldest, elements, digest] = numbers;
            let next = FeedPosition { epoch, incarnation, sequence };
            let state = Reply::FeedState(FeedState { next, oldest, elements, digest });
            comes_back(Command::FeedState, &state);
            let changes = Reply::Changes(payloads.iter().map(|payload| Payload::Received(payload)).collect());
            comes_back(Command::Changes, &changes);
        }
    }
}
