//! The responder answers one message, with frames and a reply sink of its caller.
//!
//! ```text
//! frames ─► RequestParts: envelope, request ─► Responder::respond: handle ─► envelope and reply into the sink
//!                                                                         ─► counted, and some of them timed
//! ```
//! This module does not make batches, and does not receive or send.

use std::ops::Deref;

use super::handle::{HandlerContext, NotDone, handle, refused};
use super::permission::may;
use super::report::WorkerMetrics;
use super::wire::{Command, Fault, FieldLimits, Reason, Reply, Request, TableName, split};
use crate::clock::Clock;
use crate::security::Identity;
use crate::tables::{Batch, ManyProgress};

/// One of this many requests is timed.
pub(crate) const TIMED_ONE_OF: u32 = 32;

/// Answers the messages of one batch.
pub(super) struct Responder<'w> {
    pub(super) clock: Clock,
    pub(super) metrics: &'w WorkerMetrics,
    pub(super) context: &'w HandlerContext<'w>,
}

impl Responder<'_> {
    /// Writes the answer to one message, its envelope and the reply, or a portion of it, if that has at most `bytes_max`
    /// bytes. `progress` is that of this message, or new. `is_timed`: it was picked, and its time in the tables is
    /// recorded. The length of a value that a change returns is looked at before the change. A writer that comes in
    /// between may make the reply longer.
    #[inline]
    pub(super) fn respond<F>(
        &self,
        parts: &RequestParts<'_, F>,
        batch: &mut Batch<'_>,
        progress: &mut ManyProgress,
        is_timed: bool,
        bytes_max: Option<usize>,
        mut sink: impl FnMut(&[u8], bool),
    ) -> Answered
    where
        F: Deref<Target = [u8]>,
    {
        let fits = |reply: &Reply<'_>| bytes_max.is_none_or(|most| reply.bytes() <= most);
        if bytes_max.is_some() && !parts.value_to_return(batch).is_none_or(|value| fits(&Reply::Value(value))) {
            return Answered::Starved;
        }
        let timed = is_timed.then(|| self.clock.now().nanos());
        let command = parts.command();
        // The reply is not moved: a copy so soon after its fields were stored waits for the stores.
        let answered = match &parts.request {
            Ok(request) => handle(request, batch, self.context, progress).or_else(refused),
            Err(fault) => Ok(Reply::Refused(fault.reason)),
        };
        let reply = match &answered {
            Ok(reply) => reply,
            Err(NotDone::Busy) => return Answered::Busy,
            Err(NotDone::Unfinished) => return Answered::InPart,
        };
        if !command.is_some_and(Command::may_change_elements) && !fits(reply) {
            return Answered::Starved;
        }
        if !matches!(reply, Reply::SomeValues { is_first: false, .. }) {
            for frame in parts.envelope {
                sink(frame, true);
            }
        }
        reply.encode(sink);
        if let Reply::SomeValues { values, is_last: false, .. } = reply {
            progress.advance(values.len());
            return Answered::InPart;
        }
        if progress.has_begun() {
            *progress = ManyProgress::default();
        }
        let reason = match reply {
            Reply::Refused(reason) => Some(*reason),
            _ => None,
        };
        self.metrics.count(command, reason);
        if let (Some(command), Some(start)) = (command, timed) {
            let nanos = self.clock.now().nanos() - start;
            self.metrics.latencies(command).record(nanos);
        }
        Answered::Whole
    }
}

/// What has come of an attempt to answer a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// All that was left of the answer is written.
    Whole,
    /// A portion was carried out. If one of the answer is written ([`ManyProgress::has_partial_answer`]), nothing else may be
    /// written before the rest, which comes in further turns.
    InPart,
    /// Nothing is written, since it is too long. The message may be tried again.
    Starved,
    /// Nothing is written. The tables say when the message may be tried again.
    Busy,
}

/// The envelope of a message, and its request.
pub(super) struct RequestParts<'i, F> {
    pub(super) envelope: &'i [F],
    pub(super) request: Result<Request<'i, F>, Fault>,
}

impl<'i, F: Deref<Target = [u8]>> RequestParts<'i, F> {
    /// Splits and decodes a message that has come whole.
    pub(super) fn read(frames: &'i [F], limits: FieldLimits) -> Self {
        let parts = split(frames);
        Self { envelope: parts.envelope, request: Request::decode(parts.body, limits) }
    }

    /// Replaces a request that the user may not have carried out by its refusal.
    pub(super) fn restrict(&mut self, user: &Identity) {
        if self.restrict_silently(Some(user)) {
            user.note_denied();
        }
    }

    /// As [`RequestParts::restrict`], and the caller counts the refusal. No user may do nothing. Returns whether the
    /// request is refused.
    pub(super) fn restrict_silently(&mut self, user: Option<&Identity>) -> bool {
        match &self.request {
            Ok(request) if user.is_none_or(|user| !may(user, request)) => {
                self.request = Err(Fault { command: Some(request.command()), reason: Reason::Denied });
                true
            }
            _ => false,
        }
    }

    /// The command, if the message names one.
    #[inline]
    pub(super) fn command(&self) -> Option<Command> {
        match &self.request {
            Ok(request) => Some(request.command()),
            Err(fault) => fault.command,
        }
    }

    /// Whether the request changes nothing, so that without its reply it is for nobody.
    #[inline]
    pub(super) fn only_reads(&self) -> bool {
        !self.command().is_some_and(Command::changes_something)
    }

    /// The command, if the request asks for a report.
    #[inline]
    pub(super) fn report(&self) -> Option<Command> {
        match &self.request {
            Ok(request @ (Request::ListTables | Request::Stats)) => Some(request.command()),
            _ => None,
        }
    }

    /// The value that the request returns if it changes the element, as far as another thread does not come first.
    fn value_to_return<'b>(&self, batch: &'b mut Batch<'_>) -> Option<&'b [u8]> {
        let (table, key) = self.element().filter(|_| self.command().is_some_and(Command::returns_value))?;
        batch.get(table, key).ok()
    }

    /// The table that the request is about, if it is about one.
    pub(super) fn table(&self) -> Option<&[u8]> {
        self.request.as_ref().ok().and_then(Request::table).map(TableName::name)
    }

    /// The table and the key of a request for one element.
    pub(super) fn element(&self) -> Option<(&'i [u8], &'i [u8])> {
        self.request.as_ref().ok().and_then(Request::element)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::clock::Now;
    use crate::limits::{REPLY_BYTES_MAX, SCAN_BYTES_MAX};
    use crate::security::{Denied, Permissions, Users};
    use crate::tables::{Durability, Tables, TablesConfig};

    #[test]
    fn a_request_that_its_user_may_not_make_is_counted() {
        let (users, user) = Users::invented(Permissions::default());
        let frames: [&[u8]; 2] = [&[0], b"t"];
        let mut parts = RequestParts::read(&frames, FieldLimits::DEFAULT);
        parts.restrict(&user);
        assert!(parts.request.is_err_and(|fault| fault.reason == Reason::Denied));
        assert_eq!(users.refusals(Denied::Permission), 1);
    }

    /// Regression: a change was made before its reply was measured, so its reply went past the bound.
    #[test]
    fn a_change_whose_reply_does_not_fit_is_not_made() {
        let (tables, _backstage) = Tables::new(TablesConfig {
            expected_keys: 0,
            memory_max: 1 << 30,
            tables_max: 1,
            durability: Durability::None,
            changes_per_writer: 64,
            version_base: 0,
            clock_start: 0,
        });
        let mut session = tables.session();
        let clock = Clock::start();
        let (stats, metrics) = (String::new, WorkerMetrics::new(Now::from_millis(0), None));
        let context = HandlerContext {
            stats: &stats,
            now: &|| Now::from_millis(1),
            reply_bytes_max: REPLY_BYTES_MAX,
            page_bytes_max: SCAN_BYTES_MAX,
            value_max: 1_024,
            clock_start: 0,
            may_read: None,
        };
        let responder = Responder { clock, metrics: &metrics, context: &context };
        let mut batch = session.batch(Now::from_millis(1));
        let mut answer = |frames: &[&[u8]], bytes_max: Option<usize>| {
            let mut reply = Vec::new();
            let parts = RequestParts::read(frames, FieldLimits::DEFAULT);
            let sink = |frame: &[u8], _| reply.push(frame.to_vec());
            let progress = &mut ManyProgress::default();
            let answered = responder.respond(&parts, &mut batch, progress, true, bytes_max, sink);
            (answered == Answered::Whole).then_some(reply)
        };
        let value = [7; 500];
        answer(&[&[0], b"t"], None).unwrap();
        answer(&[&[2], b"t", b"k", &value], None).unwrap();
        let entry: [&[u8]; 3] = [&[6], b"t", b"k"];
        let before = answer(&entry, None).unwrap();
        let version = before.get(2).unwrap();
        let touch: [&[u8]; 4] = [&[16], b"t", b"k", &9_u64.to_be_bytes()];
        for request in [&touch[..], &[&[3], b"t", b"k"], &[&[8], b"t", b"k", version]] {
            assert_eq!(answer(request, Some(100)), None);
            assert_eq!(answer(&entry, None).as_ref(), Some(&before));
        }
        assert_eq!(answer(&touch, Some(1_000)), Some(vec![vec![1], value.to_vec()]));
        assert_ne!(answer(&entry, None), Some(before));
        let none = answer(&[&[16], b"t", b"none", &[0; 8]], Some(100));
        assert_eq!(none.unwrap().pop().unwrap(), b"KEY NOT FOUND");
    }
}
