//! Replies that are timed on their way to the system.
//!
//! ```text
//! frontend ─► ReplyBuffer::time ─► flush: the system has taken it ─► Connections::timed ─► frontend: histogram, slow log
//! ```
//! A frontend times every reply, or a sample of them that does not depend on how long they take. This module reads no
//! clock.

use std::net::SocketAddr;

use rustix::net::getpeername;

use super::{ConnectionId, ConnectionState, Connections};
use crate::clock::Now;
use crate::stats::slow_log::{SlowLog, SlowRequest, Stages};

/// A reply that is timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedReply {
    /// When its request had arrived.
    pub arrived: Now,
    /// When the turn of its request began, if the frontend knows it.
    pub begun: Option<Now>,
    /// When it was made.
    pub answered: Now,
    /// The number of its verb, for the frontend.
    pub verb: usize,
    /// Samples of the histogram that it represents.
    pub samples: u64,
    /// Bytes of the request.
    pub request_bytes: usize,
    /// Bytes of the reply.
    pub reply_bytes: u64,
    /// The table or queue, if it may belong into the slow log.
    pub table: Option<Box<[u8]>>,
}

impl TimedReply {
    /// A reply for the histogram alone.
    pub fn sampled(verb: usize, arrived: Now) -> Self {
        Self {
            arrived,
            begun: None,
            answered: arrived,
            verb,
            samples: 1,
            request_bytes: 0,
            reply_bytes: 0,
            table: None,
        }
    }

    /// Nanoseconds from the arrival of its request until `sent`.
    pub fn nanos(&self, sent: Now) -> u64 {
        self.arrived.nanos_until(sent)
    }

    /// Adds it to the slow log if it was slow and belongs there. The system has it since `sent`, which is at
    /// `unix_millis`.
    pub fn log(
        self,
        log: &SlowLog,
        (sent, unix_millis): (Now, u64),
        (protocol, verb): (&'static str, &'static str),
        client: impl FnOnce() -> String,
    ) {
        let nanos = self.nanos(sent);
        let Some(table) = self.table.filter(|_| log.is_slow(nanos)) else { return };
        let stages = Stages {
            queue: self.begun.map(|begun| self.arrived.nanos_until(begun)),
            execution: Some(self.begun.unwrap_or(self.arrived).nanos_until(self.answered)),
            write: Some(self.answered.nanos_until(sent)),
        };
        let (request_bytes, reply_bytes) = (self.request_bytes as u64, self.reply_bytes);
        log.add(SlowRequest {
            unix_millis,
            nanos,
            stages,
            client: client(),
            protocol,
            verb,
            table,
            request_bytes,
            reply_bytes,
        });
    }
}

impl<S: ConnectionState> Connections<S> {
    /// The address of the peer, as people write it. `gone` after its connection has closed, and `local` if it is on
    /// this host and has no address.
    pub fn peer(&mut self, id: ConnectionId) -> String {
        match self.descriptor(id).map(getpeername) {
            Some(Ok(Some(address))) => {
                SocketAddr::try_from(address).map_or_else(|_| "local".to_owned(), |address| address.to_string())
            }
            Some(Ok(None)) => "local".to_owned(),
            Some(Err(_)) | None => "gone".to_owned(),
        }
    }
}
