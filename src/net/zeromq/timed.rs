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
use crate::clock::{Clock, Now};
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

    /// Its stages, if the system has it since `sent`.
    fn stages(&self, sent: Now) -> Stages {
        Stages {
            queue: self.begun.map(|begun| self.arrived.nanos_until(begun)),
            execution: Some(self.begun.unwrap_or(self.arrived).nanos_until(self.answered)),
            write: Some(self.answered.nanos_until(sent)),
        }
    }
}

impl<S: ConnectionState> Connections<S> {
    /// Takes the timed replies that the system has taken until now. `record` records one, which has taken so many
    /// nanoseconds, and returns the names of its protocol and its verb. Those that were slow and belong there go to the slow log.
    pub fn record_timed(
        &mut self,
        clock: Clock,
        log: &SlowLog,
        mut record: impl FnMut(&TimedReply, u64) -> (&'static str, &'static str),
    ) {
        let now = clock.now();
        while let Some((id, reply)) = self.timed() {
            let nanos = reply.nanos(now);
            let (protocol, verb) = record(&reply, nanos);
            if !log.is_slow(nanos) {
                continue;
            }
            let stages = reply.stages(now);
            let Some(table) = reply.table else { continue };
            log.add(SlowRequest {
                unix_millis: clock.start_wall_millis() + now.millis(),
                nanos,
                stages,
                client: self.peer(id),
                protocol,
                verb,
                table,
                request_bytes: reply.request_bytes as u64,
                reply_bytes: reply.reply_bytes,
            });
        }
    }

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
