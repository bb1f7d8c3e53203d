//! The responder answers one message. Both frontends use it, with their own source of frames and their own reply sink.
//!
//! ```text
//! frames ─► RequestParts: envelope, request ─► Responder::answer: handle ─► envelope and reply into the sink
//!                                                                         ─► counted, and some of them timed
//! ```
//! This module does not make batches, and does not receive or send.

use std::ops::Deref;

use super::handle::{Busy, HandlerContext, handle};
use super::report::WorkerMetrics;
use super::wire::{Command, Fault, Reply, Request, split};
use crate::clock::Clock;
use crate::stats::Sampler;
use crate::tables::Batch;

/// One of this many requests is timed.
pub(super) const TIMED_ONE_OF: u32 = 32;

/// Answers the messages of one batch.
pub(super) struct Responder<'w> {
    pub(super) clock: Clock,
    pub(super) value_max: usize,
    pub(super) metrics: &'w WorkerMetrics,
    pub(super) context: &'w HandlerContext<'w>,
}

impl Responder<'_> {
    /// Writes the answer to one message: its envelope, and the reply. A message that is [`Busy`] has not been answered.
    #[inline]
    pub(super) fn answer<F>(
        &self,
        parts: &RequestParts<'_, F>,
        batch: &mut Batch<'_>,
        sampler: &mut Sampler,
        sink: impl FnMut(&[u8], bool),
    ) -> Result<(), Busy>
    where
        F: Deref<Target = [u8]>,
    {
        let answered = self.answer_if(parts, batch, sampler, |_| true, sink)?;
        debug_assert!(answered, "every reply fits");
        Ok(())
    }

    /// Like [`Responder::answer`], if `fits` accepts the reply. False: the message has not been answered, and may be
    /// tried again. A reply to a change of elements always fits.
    #[inline]
    pub(super) fn answer_if<F>(
        &self,
        parts: &RequestParts<'_, F>,
        batch: &mut Batch<'_>,
        sampler: &mut Sampler,
        fits: impl FnOnce(&Reply<'_>) -> bool,
        mut sink: impl FnMut(&[u8], bool),
    ) -> Result<bool, Busy>
    where
        F: Deref<Target = [u8]>,
    {
        let timed = sampler.picks().then(|| self.clock.now().nanos());
        let (command, reply) = match &parts.request {
            Ok(request) => (Some(request.command()), handle(request, batch, self.context)?),
            Err(fault) => (fault.command, Reply::Refused(fault.reason)),
        };
        if !command.is_some_and(Command::may_change_elements) && !fits(&reply) {
            return Ok(false);
        }
        for frame in parts.envelope {
            sink(frame, true);
        }
        reply.encode(sink);
        let reason = match reply {
            Reply::Refused(reason) => Some(reason),
            _ => None,
        };
        self.metrics.count(command, reason);
        if let (Some(command), Some(start)) = (command, timed) {
            let nanos = self.clock.now().nanos() - start;
            self.metrics.latencies(command).record(nanos);
        }
        Ok(true)
    }
}

/// The envelope of a message, and its request.
pub(super) struct RequestParts<'i, F> {
    pub(super) envelope: &'i [F],
    pub(super) request: Result<Request<'i, F>, Fault>,
}

impl<'i, F: Deref<Target = [u8]>> RequestParts<'i, F> {
    /// Splits and decodes a message that has come whole.
    pub(super) fn read(frames: &'i [F], value_max: usize) -> Self {
        let parts = split(frames);
        Self { envelope: parts.envelope, request: Request::decode(parts.body, value_max) }
    }

    /// The command, if the message names one.
    #[inline]
    pub(super) fn command(&self) -> Option<Command> {
        match &self.request {
            Ok(request) => Some(request.command()),
            Err(fault) => fault.command,
        }
    }

    /// The command, if the request asks for a report.
    #[inline]
    pub(super) fn report(&self) -> Option<Command> {
        match &self.request {
            Ok(request @ (Request::ListTables | Request::Stats)) => Some(request.command()),
            _ => None,
        }
    }

    /// The table and the key of a request for one element.
    pub(super) fn element(&self) -> Option<(&'i [u8], &'i [u8])> {
        self.request.as_ref().ok().and_then(Request::element)
    }
}
