//! Replies of a buffer that wait for the disk, and the refusals that take their place.
//!
//! This module does not know who writes to the disk.

use super::ReplyBuffer;
use crate::net::zeromq::reply_gates::{Gate, WaitingReply};

/// No refusal can take the place of a reply: the client has its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct NotWhole;

impl ReplyBuffer {
    /// What was appended from this position on waits for this epoch, if there is one. `envelope`: as in [`WaitingReply`].
    #[inline]
    pub fn wait_for_disk(&mut self, epoch: Option<u64>, begin: u64, envelope: impl FnOnce() -> Option<usize>) {
        if let Some(epoch) = epoch {
            self.hold_back(WaitingReply { begin, epoch, envelope: envelope() });
        }
    }

    /// This reply, which was appended last, waits for the disk.
    #[cold]
    pub fn hold_back(&mut self, reply: WaitingReply) {
        let end = self.end();
        if reply.begin < end {
            self.gates.get_or_insert_default().close(reply, end);
        }
    }

    /// The epoch that has to be on disk before all replies can be sent, if one has to.
    #[inline]
    #[must_use]
    pub fn awaited(&self) -> Option<u64> {
        self.gates.as_ref().map(|gates| gates.highest())
    }

    /// All epochs up to this one are on disk. Returns whether there is more to send.
    pub(in super::super) fn open_gates(&mut self, synced: u64) -> bool {
        let Some(gates) = &mut self.gates else { return false };
        let has_opened = gates.open(synced);
        if gates.is_empty() {
            self.gates = None;
        }
        has_opened
    }

    /// What the replies wait for will never be on disk: a refusal takes the place of each, behind its envelope.
    pub(in super::super) fn refuse_gated(&mut self, refusal: &[u8]) -> Result<(), NotWhole> {
        let Some(gates) = self.gates.take() else { return Ok(()) };
        let gates = gates.into_gates();
        if gates.iter().any(|gate| gate.reply.envelope.is_none()) {
            return Err(NotWhole);
        }
        self.copy_large();
        // `at` is the first byte of the old replies that is not dealt with. It comes to the end of the new ones.
        let mut at = gates.front().map_or(self.end(), |gate| gate.reply.begin);
        let old = self.bytes.split_off(self.place(at));
        let mut old = old.as_slice();
        let mut timed = std::mem::take(&mut self.timed).into_iter().peekable();
        for Gate { reply: WaitingReply { begin, envelope, .. }, end } in gates {
            while let Some((position, reply)) = timed.next_if(|(position, _)| *position < end) {
                self.timed.push_back(((self.end() + position).saturating_sub(at), reply));
            }
            let kept = begin - at + envelope.unwrap_or(0) as u64;
            let [kept, all] = [kept, end - at].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
            self.bytes.extend_from_slice(old.get(..kept).unwrap_or_default());
            self.bytes.extend_from_slice(refusal);
            old = old.get(all..).unwrap_or_default();
            at = end;
        }
        let end = self.end();
        self.timed.extend(timed.map(|(position, reply)| ((end + position).saturating_sub(at), reply)));
        self.bytes.extend_from_slice(old);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::sync::Arc;

    use super::*;
    use crate::clock::Now;
    use crate::limits::OUTBOX_BYTES_MAX;
    use crate::net::zeromq::TimedReply;

    fn waiting(buffer: &ReplyBuffer, epoch: u64, envelope: Option<usize>) -> WaitingReply {
        WaitingReply { begin: buffer.end(), epoch, envelope }
    }

    fn hold_back(buffer: &mut ReplyBuffer, reply: &[u8], epoch: u64, envelope: Option<usize>) {
        let waiting = waiting(buffer, epoch, envelope);
        buffer.push_encoded(reply);
        buffer.hold_back(waiting);
    }

    #[test]
    fn bytes_go_up_to_the_first_reply_that_is_not_on_disk() {
        let (mut buffer, mut replies) = (ReplyBuffer::default(), ReplyBuffer::default());
        buffer.push_encoded(b"sent,before,");
        buffer.take(5);
        replies.push_encoded(b"free,");
        hold_back(&mut replies, b"seven,", 7, Some(0));
        replies.push_encoded(b"behind,");
        hold_back(&mut replies, b"six,", 6, Some(0));
        hold_back(&mut replies, b"", 9, Some(0));
        assert_eq!(replies.next(), b"free,");
        buffer.take_over(&mut replies);
        assert_eq!((replies.awaited(), buffer.awaited()), (None, Some(7)));
        assert_eq!(buffer.next(), b"before,free,");
        assert!(!buffer.open_gates(6), "the reply of epoch 6 comes behind that of epoch 7");
        buffer.take(12);
        assert_eq!((buffer.next(), buffer.len()), (&b""[..], 17));
        assert!(buffer.open_gates(7));
        assert_eq!((buffer.next(), buffer.awaited()), (&b"seven,behind,six,"[..], None));
    }

    #[test]
    fn a_large_reply_waits_for_the_disk() {
        let mut buffer = ReplyBuffer::default();
        buffer.push_encoded(b"12");
        let waiting = waiting(&buffer, 3, Some(0));
        buffer.push_shared(&Arc::new(vec![7; OUTBOX_BYTES_MAX + 1]));
        buffer.hold_back(waiting);
        assert_eq!(buffer.next(), b"12");
        buffer.take(2);
        assert!(buffer.next().is_empty() && buffer.open_gates(3));
        assert_eq!(buffer.next().len(), OUTBOX_BYTES_MAX + 1);
    }

    #[test]
    fn a_refusal_takes_the_place_of_each_reply_that_is_not_on_disk() {
        let mut buffer = ReplyBuffer::default();
        let time = |buffer: &mut ReplyBuffer, verb| buffer.time(TimedReply::sampled(verb, Now::from_millis(1)));
        buffer.push_encoded(b"xfree,");
        buffer.take(1);
        time(&mut buffer, 1);
        hold_back(&mut buffer, b"id:value,", 2, Some(3));
        time(&mut buffer, 2);
        buffer.push_encoded(b"clean,");
        time(&mut buffer, 3);
        hold_back(&mut buffer, b"gone,", 3, Some(0));
        time(&mut buffer, 4);
        buffer.push_encoded(b"last");
        time(&mut buffer, 5);
        assert_eq!(buffer.refuse_gated(b"NO,"), Ok(()));
        assert_eq!(buffer.next(), b"free,id:NO,clean,NO,last");
        let ends: Vec<_> = buffer.timed.iter().map(|(end, reply)| (*end, reply.verb)).collect();
        assert_eq!(ends, [(6, 1), (12, 2), (18, 3), (21, 4), (25, 5)]);
    }

    #[test]
    fn a_portion_of_a_reply_is_not_replaced() {
        let mut buffer = ReplyBuffer::default();
        hold_back(&mut buffer, b"some of it,", 2, None);
        hold_back(&mut buffer, b"gone,", 3, Some(0));
        assert_eq!(buffer.refuse_gated(b"NO,"), Err(NotWhole));
    }
}
