//! How long requests take from end to end.
//!
//! ```text
//! received: arrived ─► the turn begins ─► all its requests are answered ─► flush: the system has the replies
//!           └─────── queue ───────┘└────────── execution ─────────┘└───────── write ─────────┘
//! ```
//! A turn reads the clock when it begins and when it ends, and once more after its flush if a reply of it is timed. One
//! of [`TIMED_ONE_OF`] requests is picked for the histograms before it is known how long it takes. A turn that was slow
//! is read again, and each of its requests goes to the slow log. The replies of a turn are sent together, so its times
//! are those of each of its requests.
//!
//! A reply is slow in sending only if the system does not take it at once. So a turn that leaves much in the send buffer
//! has its last request timed too.
//!
//! [`TIMED_ONE_OF`]: crate::services::tables::responder::TIMED_ONE_OF

use std::ops::Range;
use std::sync::Arc;

use super::{ConnectionTurn, FEW_FRAMES, WorkerState, read};
use crate::clock::{Clock, Now};
use crate::net::zeromq::{ConnectionState, Connections, ReplyBuffer, TAKEN_AT_ONCE_BYTES, TimedReply, TurnOutcome};
use crate::services::tables::handle::HandlerContext;
use crate::services::tables::report::WorkerMetrics;
use crate::services::tables::responder::RequestParts;
use crate::services::tables::timing::{NO_VERB, PROTOCOL, record_sent};
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::tables::ManyProgress;
use crate::zmtp::MessageView;

impl WorkerState {
    /// Answers the messages of a turn, and times it.
    pub(crate) fn answer_turn(
        &mut self,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        mut turn: ConnectionTurn<'_>,
        context: &HandlerContext<'_>,
    ) -> TurnOutcome {
        if !turn.client.is_current() {
            // Its connection is about to be closed.
            turn.client.progress = ManyProgress::default();
            self.clients.dropped_requests.add(messages.len() as u64);
            return TurnOutcome::All;
        }
        let begun = self.clock.now();
        let arrived = outbox.arrived(begun);
        let replies_begin = outbox.end();
        let outcome = self.answer_requests(messages, outbox, &mut turn, context, [arrived, begun]);
        outbox.set_open(turn.client.progress.has_partial_answer());
        let answered = outcome.count().unwrap_or(messages.len());
        let now = self.clock.now();
        if self.report.slow.is_slow(arrived.nanos_until(now)) {
            self.describe(messages, outbox, replies_begin, 0..answered, [arrived, begun, now]);
        } else if outbox.len() as u64 > TAKEN_AT_ONCE_BYTES {
            let last = answered.saturating_sub(1)..answered;
            self.describe(messages, outbox, replies_begin, last, [arrived, begun, now]);
        }
        outcome
    }

    /// Times these requests of a turn with what the slow log has to say of them.
    #[cold]
    fn describe(
        &self,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        replies_begin: u64,
        numbers: Range<usize>,
        [arrived, begun, answered]: [Now; 3],
    ) {
        let sizes: Vec<_> = outbox.messages_since(replies_begin).collect();
        for (number, message) in messages.iter().enumerate().take(numbers.end).skip(numbers.start) {
            let (mut few, mut many) = ([&[][..]; FEW_FRAMES], Vec::new());
            let parts: RequestParts<'_, &[u8]> = read(&message, &mut few, &mut many, self.limits);
            outbox.time(TimedReply {
                arrived,
                begun: Some(begun),
                answered,
                verb: parts.command().map_or(NO_VERB, |command| command.index()),
                samples: 0,
                request_bytes: message.frames().map(<[u8]>::len).sum(),
                reply_bytes: sizes.get(number).copied().unwrap_or_default(),
                table: Some(parts.table().map_or_else(Box::default, Box::from)),
            });
        }
    }
}

/// Records how long replies took that are timed.
pub(crate) struct ReplyTimes {
    pub(in super::super) clock: Clock,
    /// Written by the thread that sends.
    pub(in super::super) metrics: Arc<WorkerMetrics>,
    pub(in super::super) slow: Arc<SlowLog>,
}

impl ReplyTimes {
    /// Writes new bytes as far as the system takes them, and records how long the timed replies among them took. The
    /// metrics of verbs behind the tables' own are `others`.
    #[inline]
    pub(crate) fn send<S: ConnectionState>(&self, connections: &mut Connections<S>, others: Option<&ServiceMetrics>) {
        connections.flush();
        if connections.has_timed() {
            record_sent(connections, &self.metrics, others, &self.slow, PROTOCOL, self.clock);
        }
    }
}
