//! How much of what was sent to a client may still lie in its pipe.
//!
//! libzmq bounds a pipe in messages, and a reply may be one frame of one byte or two thousand frames of a megabyte. So
//! who sends bounds it in bytes of memory too. Nobody tells what the I/O thread has taken out of a pipe, but the
//! system tells how many bytes a connection has had acknowledged, and what is sent goes through both in order:
//!
//! ```text
//! sent ──► pipe ──► the system's buffer ──► acknowledged
//!          └──────── unacknowledged ──────┘   = sent − acknowledged, in bytes on the wire
//! ```
//! In memory that is at most as many times more as the reply had that is the worst in this respect. The system is asked
//! only when what was sent since it was asked last could fill the share of the pipe: once for many thousand replies.

use super::{MessageSize, SendProgress};

/// Counts what is sent over one connection.
#[derive(Clone, Copy, Debug)]
pub struct InFlightBytes {
    /// Bytes on the wire that may not have been acknowledged: never too few, as far as this meter has seen them sent.
    wire: u64,
    /// Bytes in memory of the same.
    memory: u64,
    /// As many times more bytes in memory as on the wire the worst message had since the pipe was last empty.
    worst: u64,
    /// Acknowledged when last asked.
    acknowledged: Option<u64>,
    /// Bytes on the wire that were found to have gone, ever.
    read: u64,
}

impl Default for InFlightBytes {
    fn default() -> Self {
        Self::new()
    }
}

impl InFlightBytes {
    /// Of a connection over which nothing is known to be sent.
    #[must_use]
    pub const fn new() -> Self {
        Self { wire: 0, memory: 0, worst: 1, acknowledged: None, read: 0 }
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

    /// Whether the pipe may take one more message, so that what it held before is within `most` bytes of memory. Asks
    /// about the connection only if that is not clear.
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

    /// Bytes in memory of what may not have been read: never too few.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.memory
    }

    /// Bytes on the wire that were found to have been read, ever.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    fn learn(&mut self, progress: SendProgress) {
        let before = self.wire;
        match progress {
            SendProgress::Acknowledged(total) => {
                // The first time what was acknowledged before says nothing about what this meter has seen.
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
