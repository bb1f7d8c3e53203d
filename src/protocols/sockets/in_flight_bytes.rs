//! Bounds the bytes sent to a client that may still lie in its pipe.
//!
//! libzmq bounds a pipe in messages, and a reply may be one frame of one byte or two thousand frames of a megabyte. So
//! the sender also bounds the pipe in bytes of memory. libzmq does not say how much its I/O thread has taken out of a
//! pipe. The system does say how many bytes a connection has had acknowledged, and sent bytes pass through both in
//! order:
//!
//! ```text
//! sent ──► pipe ──► the system's buffer ──► acknowledged
//!          └──────── unacknowledged ──────┘   = sent − acknowledged, in bytes on the wire
//! ```
//! The memory is at most the unacknowledged bytes times the worst ratio of memory to wire of any message sent. The
//! sender asks the system only when the bytes sent since the last answer could fill the pipe's share: once for many
//! thousand replies.
//!
//! So the count is one from above: after a client has read megabytes at once, it holds until the next answer. The bytes
//! *found* unread are the count as the last answer left it. Messages sent since then are not among them. The memory of
//! a process may be compared with them, but not with the count.

use super::{MessageSize, SendProgress};

/// Counts the bytes sent over one connection.
#[derive(Clone, Copy, Debug)]
pub struct InFlightBytes {
    /// Bytes on the wire that may not have been acknowledged. Never too few, as far as this count has seen them sent.
    wire: u64,
    /// Bytes in memory of the same messages.
    memory: u64,
    /// Highest ratio of bytes in memory to bytes on the wire of any message since the pipe was last empty.
    worst: u64,
    /// Acknowledged bytes in the system's last answer.
    acknowledged: Option<u64>,
    /// Bytes on the wire found to have gone, ever.
    read: u64,
    /// `memory` after the system's last answer, unless that is too old.
    found: u64,
}

impl Default for InFlightBytes {
    fn default() -> Self {
        Self::new()
    }
}

impl InFlightBytes {
    /// The count of a connection over which no message is known to be sent.
    #[must_use]
    pub const fn new() -> Self {
        Self { wire: 0, memory: 0, worst: 1, acknowledged: None, read: 0, found: 0 }
    }

    /// Notes a message that is sent.
    #[inline]
    pub fn sent(&mut self, size: MessageSize) {
        self.wire += size.wire;
        self.memory += size.bytes;
        if size.bytes > size.wire * self.worst {
            self.worst = size.bytes.div_ceil(size.wire.max(1));
        }
    }

    /// Whether the pipe may take one more message, with its earlier messages within `most` bytes of memory. Asks about
    /// the connection only if the count alone cannot tell.
    #[inline]
    pub fn has_room(&mut self, most: u64, progress: impl FnOnce() -> SendProgress) -> bool {
        if self.memory <= most && self.acknowledged.is_some() {
            return true;
        }
        self.learn(progress());
        self.memory <= most
    }

    /// Whether the pipe is known to be empty.
    pub fn is_empty(&mut self, progress: impl FnOnce() -> SendProgress) -> bool {
        if self.wire > 0 {
            self.learn(progress());
        }
        self.wire == 0
    }

    /// Bytes in memory of messages that may not have been read. Never too few.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.memory
    }

    /// Bytes in memory of messages that had not been read at the system's last answer. If the answer has no number,
    /// these are all that may not have been. Never more than [`InFlightBytes::bytes`].
    #[must_use]
    #[inline]
    pub const fn found(&self) -> u64 {
        self.found
    }

    /// The last answer is too old: no bytes are found unread until the next.
    pub const fn forget_found(&mut self) {
        self.found = 0;
    }

    /// Bytes on the wire found to have been read, ever.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    fn learn(&mut self, progress: SendProgress) {
        let before = self.wire;
        match progress {
            SendProgress::Acknowledged(total) => {
                // The first answer also counts bytes from before this count began, so it acknowledges none of the
                // counted ones.
                let more = total - self.acknowledged.unwrap_or(total).min(total);
                self.wire = self.wire.saturating_sub(more);
                self.acknowledged = Some(total);
                self.memory = self.memory.min(self.wire * self.worst);
            }
            SendProgress::Nothing => {
                self.acknowledged = Some(0);
                self.wire = 0;
                self.memory = 0;
            }
            SendProgress::Something => self.acknowledged = Some(0),
        }
        self.read += before - self.wire;
        self.found = self.memory;
        if self.wire == 0 {
            self.worst = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1_000;

    fn sent(wire: u64, bytes: u64) -> MessageSize {
        MessageSize { frames: 1, bytes, wire }
    }

    #[test]
    fn a_pipe_is_asked_about_only_when_it_could_be_full() {
        let mut in_flight = InFlightBytes::new();
        assert!(in_flight.has_room(MOST, || SendProgress::Acknowledged(77)));
        for _ in 0..10 {
            in_flight.sent(sent(50, 100));
            assert!(in_flight.has_room(MOST, || unreachable!("1,000 bytes are allowed")));
        }
        in_flight.sent(sent(50, 100));
        assert!(!in_flight.has_room(MOST, || SendProgress::Acknowledged(77)), "nothing has gone");
        assert!(!in_flight.has_room(MOST, || SendProgress::Acknowledged(77 + 49)));
        assert!(in_flight.has_room(MOST, || SendProgress::Acknowledged(77 + 50)));
    }

    #[test]
    fn what_is_left_counts_as_the_worst_that_was_sent() {
        let mut in_flight = InFlightBytes::new();
        assert!(in_flight.has_room(MOST, || SendProgress::Acknowledged(0)));
        in_flight.sent(sent(1_000, 1_100));
        in_flight.sent(sent(10, 700));
        assert!(!in_flight.has_room(MOST, || SendProgress::Acknowledged(995)), "15 bytes may be 1,050");
        assert!(in_flight.has_room(MOST, || SendProgress::Acknowledged(1_000)));
    }

    #[test]
    fn bytes_are_found_unread_by_an_answer_alone_and_until_the_next() {
        let mut in_flight = InFlightBytes::new();
        assert!(in_flight.has_room(MOST, || SendProgress::Acknowledged(0)));
        in_flight.sent(sent(600, 600));
        assert_eq!((in_flight.bytes(), in_flight.found()), (600, 0), "they may have been read");
        assert!(!in_flight.is_empty(|| SendProgress::Acknowledged(100)));
        in_flight.sent(sent(300, 300));
        assert_eq!((in_flight.bytes(), in_flight.found()), (800, 500));
        assert!(in_flight.is_empty(|| SendProgress::Acknowledged(900)));
        assert_eq!((in_flight.bytes(), in_flight.found()), (0, 0));
        in_flight.sent(sent(200, 200));
        assert!(!in_flight.is_empty(|| SendProgress::Acknowledged(900)));
        in_flight.forget_found();
        assert_eq!((in_flight.bytes(), in_flight.found()), (200, 0));
    }

    #[test]
    fn acknowledged_bytes_that_were_not_metered_do_no_harm() {
        let mut in_flight = InFlightBytes::new();
        assert!(in_flight.has_room(MOST, || SendProgress::Acknowledged(0)));
        in_flight.sent(sent(2_000, 2_000));
        assert!(in_flight.has_room(MOST, || SendProgress::Acknowledged(5_000)));
        in_flight.sent(sent(2_000, 2_000));
        assert!(!in_flight.has_room(MOST, || SendProgress::Acknowledged(5_500)));
    }

    #[test]
    fn where_nothing_is_counted_an_empty_buffer_says_that_all_has_gone() {
        let mut in_flight = InFlightBytes::new();
        assert!(in_flight.has_room(MOST, || SendProgress::Nothing));
        in_flight.sent(sent(2_000, 2_000));
        assert!(!in_flight.has_room(MOST, || SendProgress::Something));
        assert!(in_flight.has_room(MOST, || SendProgress::Nothing));
    }
}
