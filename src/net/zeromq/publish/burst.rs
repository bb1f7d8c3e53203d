//! Messages that were published and not yet handed to the subscribers. Each is encoded once, with its audience.
//!
//! ```text
//! bytes      │ message │ message │ message │ message │        audiences   {0, 2, 5}   {2}
//! spans      └───── for audience 0 ──┘└──── for 1 ───┘
//! ```
//! Changes come in runs of one table, so there are few spans. A message for many subscribers costs no more than one for
//! a single subscriber.

use super::readers::Readers;
use super::topics::{Member, Topics};
use crate::limits::{BURST_BYTES_MAX, BURST_MEMBERS_MAX};

/// Consecutive messages for the same subscribers.
#[derive(Clone, Copy, Debug)]
struct MessageSpan {
    /// End of the last message. The first begins where the span before ends.
    end: usize,
    messages: usize,
    audience: usize,
}

/// A part of the bytes of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRun {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) messages: usize,
}

/// Messages of one turn.
#[derive(Debug, Default)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    spans: Vec<MessageSpan>,
    /// The subscribers of all audiences, one audience after the other.
    members: Vec<Member>,
    /// The end of each audience in `members`.
    audiences: Vec<usize>,
    /// The topic looked up last, and its audience, if it has one.
    last: Option<(Vec<u8>, Option<usize>)>,
}

impl Burst {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the burst must be sent before a message is added.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= BURST_BYTES_MAX || self.members.len() >= BURST_MEMBERS_MAX
    }

    /// Adds a message if its topic has a subscriber.
    #[inline]
    pub(super) fn add(
        &mut self,
        topics: &Topics,
        readers: &Readers,
        topic: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let audience = match &self.last {
            Some((last, audience)) if last == topic => *audience,
            _ => self.look_up(topics, readers, topic),
        };
        let Some(audience) = audience else { return false };
        self.append(audience, encode);
        true
    }

    /// Adds a message for these subscribers, if there are any.
    pub(super) fn add_for(&mut self, members: &[Member], encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let start = self.audiences.last().copied().unwrap_or(0);
        self.members.extend_from_slice(members);
        let Some(audience) = self.audience_from(start) else { return false };
        self.append(audience, encode);
        true
    }

    #[inline]
    fn append(&mut self, audience: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.bytes);
        let end = self.bytes.len();
        match self.spans.last_mut().filter(|span| span.audience == audience) {
            Some(span) => (span.end, span.messages) = (end, span.messages + 1),
            None => self.spans.push(MessageSpan { end, messages: 1, audience }),
        }
    }

    fn look_up(&mut self, topics: &Topics, readers: &Readers, topic: &[u8]) -> Option<usize> {
        let start = self.audiences.last().copied().unwrap_or(0);
        let mut lists = 0;
        let members = &mut self.members;
        topics.matching(topic, |some| {
            members.extend_from_slice(some);
            lists += 1;
        });
        if lists > 1 || !readers.is_empty() {
            let mut found = members.split_off(start);
            found.retain(|member| readers.may_read(*member, topic));
            found.sort();
            found.dedup();
            members.append(&mut found);
        }
        let audience = self.audience_from(start);
        let mut name = self.last.take().map(|(name, _)| name).unwrap_or_default();
        name.clear();
        name.extend_from_slice(topic);
        self.last = Some((name, audience));
        audience
    }

    /// The audience of the members from `start` on. If the last audience has the same members, it is used again.
    fn audience_from(&mut self, start: usize) -> Option<usize> {
        let last = self.audiences.len().checked_sub(1);
        let (known, found) = self.members.split_at(start);
        if found.is_empty() {
            return None;
        }
        if last.is_some_and(|last| known.get(self.start_of(last)..) == Some(found)) {
            self.members.truncate(start);
            return last;
        }
        self.audiences.push(self.members.len());
        Some(self.audiences.len() - 1)
    }

    fn start_of(&self, audience: usize) -> usize {
        audience.checked_sub(1).and_then(|before| self.audiences.get(before)).copied().unwrap_or(0)
    }

    /// Calls `each` with each span and each of its subscribers in turn.
    pub(super) fn for_each(&self, mut each: impl FnMut(Member, ByteRun)) {
        let mut start = 0;
        for span in &self.spans {
            let run = ByteRun { start, end: span.end, messages: span.messages };
            let members = self.start_of(span.audience)..self.audiences.get(span.audience).copied().unwrap_or(0);
            self.members.get(members).unwrap_or_default().iter().for_each(|member| each(*member, run));
            start = span.end;
        }
    }

    /// Forgets all messages and audiences, and keeps the room for as much again.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * BURST_BYTES_MAX);
        self.spans.clear();
        self.members.clear();
        self.audiences.clear();
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::readers::TopicForm;
    use super::*;

    /// The runs of each subscriber.
    fn runs(burst: &Burst, member: Member) -> Vec<(usize, usize, usize)> {
        let mut found = Vec::new();
        burst.for_each(|other, ByteRun { start, end, messages }| {
            if other == member {
                found.push((start, end, messages));
            }
        });
        found
    }

    #[test]
    fn a_message_is_encoded_once_for_all_who_subscribe_and_not_at_all_for_nobody() {
        let (mut topics, readers) = (Topics::new(), Readers::new(TopicForm::Name));
        topics.subscribe(b"", 1);
        topics.subscribe(b"a", 2);
        topics.subscribe(b"ab", 2);
        let mut burst = Burst::default();
        let mut encoded = 0;
        let mut add = |burst: &mut Burst, topics: &Topics, topic: &[u8]| {
            burst.add(topics, &readers, topic, |bytes| {
                bytes.push(b'.');
                encoded += 1;
            })
        };
        for topic in [&b"ab"[..], b"ab", b"a", b"b", b"ab"] {
            assert!(add(&mut burst, &topics, topic));
        }
        assert_eq!(runs(&burst, 1), [(0, 3, 3), (3, 4, 1), (4, 5, 1)]);
        assert!(burst.add_for(&[1], |bytes| bytes.push(b'!')) && !burst.add_for(&[], |_| panic!("for nobody")));
        assert_eq!(runs(&burst, 1).last(), Some(&(5, 6, 1)));
        assert_eq!(runs(&burst, 2), [(0, 3, 3), (4, 5, 1)], "once, though two of its topics fit");
        assert_eq!(burst.audiences.len(), 4);
        burst.clear();
        topics.cancel(b"", 1);
        assert!(!add(&mut burst, &topics, b"b"));
        assert!(burst.spans.is_empty());
        assert_eq!(encoded, 5);
    }
}
