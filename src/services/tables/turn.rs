//! A turn of requests answered: the function that the workers of every frontend call.
//!
//! ```text
//! messages of one connection ─► decode, prefetch up to LOOK_AHEAD of them ─► handle, one after the other ─► replies
//!                                                                              └─► outcome: all, some, or it waits
//! ```
//! When the tables refuse a request as busy, the turn has to wait, and the worker serves other connections. It also has
//! to wait when it asks for a report, because the reporter makes the report. A turn ends when its replies together pass
//! [`LARGE_REPLIES_BYTES`], so at most one reply goes beyond that bound. This bounds the bytes that a client has not
//! read, for every sequence of requests. A turn also ends after a page of SCAN, and after a portion of a request for many
//! elements, which bounds its time. The rest of such a request is the first of the connection's next turn.
//!
//! Two kinds of requests are not carried out: all of a user that is no more as it was when its connection was admitted,
//! and the reads of a connection that has ended. Its changes are made: the client has sent them whole.
//!
//! This module does not manage connections, and does not interpret requests; see [`handle`](super::handle).

mod timing;

use std::sync::Arc;

use super::disk_gates::envelope_bytes;
use super::handle::HandlerContext;
use super::report::{ClientMetrics, ReportSources, WorkerMetrics};
use super::reporter::{FinishedReport, ReportClient};
use super::responder::{Answered, RequestParts, Responder};
use super::waiting::WaitingClients;
use super::wire::{Command, Fault, FieldLimits, Reason, split};
use crate::clock::{Clock, Now};
use crate::limits::{BUFFER_KEPT_BYTES, ENVELOPE_FRAMES_MAX, LARGE_REPLIES_BYTES, LOOK_AHEAD};
use crate::net::zeromq::{ConnectionId, ConnectionState, ReplyBuffer, TurnOutcome};
use crate::security::Identity;
use crate::stats::Sampler;
use crate::tables::{Lack, ManyProgress, Session};
use crate::zmtp::{Message, MessageView};
pub(crate) use timing::ReplyTimes;

/// The most frames of a message for which no memory is allocated: an UPDATE with a TTL, and an envelope of three.
const FEW_FRAMES: usize = 8;

/// The state with which a worker answers, beside its connections.
pub(crate) struct WorkerState {
    pub(crate) session: Session,
    pub(crate) clock: Clock,
    pub(crate) limits: FieldLimits,
    /// Bytes of the rows in one page of SCAN.
    pub(crate) page_bytes_max: usize,
    pub(crate) metrics: Arc<WorkerMetrics>,
    pub(crate) clients: Arc<ClientMetrics>,
    pub(crate) report: Arc<ReportSources>,
    pub(crate) reports: ReportClient,
    /// Picks the requests that are timed, in the tables and from end to end.
    pub(crate) picker: Sampler,
}

/// The state of a connection.
#[derive(Debug, Default)]
pub(crate) struct TableClient {
    /// The user, where users are named.
    user: Option<Identity>,
    /// The generation of the users at which this one was last found to be as it was.
    judged: u64,
    /// How far its next request has come.
    progress: ManyProgress,
}

impl TableClient {
    /// Whether the user is still as it was when the connection was admitted.
    #[inline]
    fn is_current(&mut self) -> bool {
        let Some(user) = &self.user else { return true };
        // Read first: a change that comes meanwhile is noticed at the next turn.
        let generation = user.users_generation();
        let is_current = self.judged == generation || user.is_current();
        if is_current {
            self.judged = generation;
        }
        is_current
    }
}

impl ConnectionState for TableClient {
    fn admit(&mut self, identity: Identity) {
        // No generation is this one, so the first turn looks.
        (self.user, self.judged) = (Some(identity), u64::MAX);
    }
}

/// A connection's turn. `C` is the state of a client.
pub(crate) struct ConnectionTurn<'l, C = TableClient> {
    id: ConnectionId,
    waiting: &'l mut WaitingClients<ConnectionId>,
    /// It has waited in the queue for its first request.
    is_first: bool,
    /// The report for which it has waited, and for which its first request asks.
    made: Option<Arc<FinishedReport>>,
    /// The connection's state.
    pub(crate) client: &'l mut C,
}

impl<'l, C> ConnectionTurn<'l, C> {
    /// A turn of a connection whose messages have just been received.
    pub(crate) fn new(id: ConnectionId, client: &'l mut C, waiting: &'l mut WaitingClients<ConnectionId>) -> Self {
        Self { id, waiting, is_first: false, made: None, client }
    }

    /// A turn that has waited in the queue for its first request.
    pub(crate) fn tried_again(self) -> Self {
        Self { is_first: true, ..self }
    }

    /// A turn that has waited for a report.
    pub(crate) fn with_report(self, made: Arc<FinishedReport>) -> Self {
        Self { made: Some(made), ..self }
    }

    /// The same turn with the state of a client of one protocol or of another one.
    pub(crate) fn split<A, B>(
        self,
        of: impl FnOnce(&'l mut C) -> Result<&'l mut A, &'l mut B>,
    ) -> Result<ConnectionTurn<'l, A>, ConnectionTurn<'l, B>> {
        let Self { id, waiting, is_first, made, client } = self;
        match of(client) {
            Ok(client) => Ok(ConnectionTurn { id, waiting, is_first, made, client }),
            Err(client) => Err(ConnectionTurn { id, waiting, is_first, made, client }),
        }
    }

    /// The connection.
    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Whether the next request has to wait without being tried.
    pub(crate) fn is_held_up(&self, may_change_elements: bool) -> bool {
        !self.is_first && self.waiting.is_ahead_of(may_change_elements)
    }

    /// A request is answered: the next one has not waited.
    pub(crate) fn note_answer(&mut self) {
        self.is_first = false;
    }

    /// Queues the connection with its next request, which lacks this.
    pub(crate) fn wait(&mut self, lack: Lack) {
        if self.is_first {
            self.waiting.stay(self.id, lack);
        } else {
            self.waiting.join(self.id, lack);
        }
    }
}

impl ConnectionTurn<'_> {
    fn user(&self) -> Option<&Identity> {
        self.client.user.as_ref()
    }

    /// The report for which the turn has waited. If it has not, the report is ordered.
    fn report(&mut self, command: Command, reports: &mut ReportClient) -> Option<Arc<FinishedReport>> {
        let made = self.made.take();
        if made.is_none() {
            reports.order(self.id, command, self.user());
        }
        made
    }

    /// The turn ends before its next request is answered whole.
    #[cold]
    fn end(&mut self, tried: Answered, lack: Lack, answered: usize) -> TurnOutcome {
        match tried {
            Answered::InPart | Answered::Whole => TurnOutcome::Some(answered),
            Answered::Starved => TurnOutcome::Starved(answered),
            Answered::Busy => {
                self.wait(lack);
                TurnOutcome::Parked(answered)
            }
        }
    }
}

impl WorkerState {
    /// Records the times of replies that this worker sends itself.
    pub(crate) fn reply_times(&self) -> ReplyTimes {
        ReplyTimes { clock: self.clock, metrics: Arc::clone(&self.metrics), slow: Arc::clone(&self.report.slow) }
    }

    /// What the handler needs to know, with a report of STATS and the time.
    pub(crate) fn context<'c>(&self, stats: &'c dyn Fn() -> String, now: &'c dyn Fn() -> Now) -> HandlerContext<'c> {
        HandlerContext {
            stats,
            now,
            reply_bytes_max: self.report.reply_bytes_max,
            page_bytes_max: self.page_bytes_max,
            value_max: self.limits.value,
            clock_start: self.session.clock_start(),
            may_read: None,
        }
    }

    /// Answers messages in their order, up to one that has to wait, or until the replies are large together.
    fn answer_requests(
        &mut self,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        turn: &mut ConnectionTurn<'_>,
        context: &HandlerContext<'_>,
        [arrived, begun]: [Now; 2],
    ) -> TurnOutcome {
        let Self { session, clock, limits, metrics, clients, reports, picker, .. } = self;
        let responder = Responder { clock: *clock, metrics, context };
        let mut batch = session.batch(begun);
        let bytes_max = outbox.is_tight().then_some(BUFFER_KEPT_BYTES);
        let replies_end = outbox.end() + LARGE_REPLIES_BYTES;
        let (mut answered, mut left) = (0, messages.iter());
        while answered < messages.len() {
            let mut few = [[&[][..]; FEW_FRAMES]; LOOK_AHEAD];
            let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
            let mut decoded: [Option<RequestParts<'_, &[u8]>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
            let mut is_whole = [true; LOOK_AHEAD];
            let spaces = decoded.iter_mut().zip(&mut is_whole).zip(few.iter_mut().zip(&mut many));
            for (((parsed, is_whole), (few, many)), message) in spaces.zip(&mut left) {
                *parsed = Some(read(&message, few, many, *limits));
                *is_whole = message.is_whole();
                if let (Some(user), Some(parts)) = (turn.user(), parsed) {
                    parts.restrict(user);
                }
            }
            let fetched = batch.prefetch(decoded.iter().flatten().map(RequestParts::element));
            for ((parts, is_whole), number) in decoded.iter().flatten().zip(is_whole).zip(0..) {
                batch.expect(&fetched, number);
                let (reply_begin, is_rest) = (outbox.end(), turn.client.progress.has_partial_answer());
                let is_timed = picker.picks();
                if outbox.is_unread() && parts.only_reads() {
                    turn.client.progress = ManyProgress::default();
                    clients.dropped_requests.add(1);
                } else if let Some(command) = parts.report() {
                    let Some(made) = turn.report(command, reports) else { return TurnOutcome::Parked(answered) };
                    made.write(parts.envelope, outbox);
                    batch.await_names();
                    metrics.count(Some(command), made.refused);
                } else {
                    let sink = |frame: &[u8], more| outbox.push(frame, more);
                    let is_held_up = turn.is_held_up(parts.command().is_some_and(Command::may_change_elements));
                    let progress = &mut turn.client.progress;
                    let tried = match is_held_up {
                        true => Answered::Busy,
                        false => responder.respond(parts, &mut batch, progress, is_timed, bytes_max, sink),
                    };
                    if tried != Answered::Whole {
                        outbox.wait_for_disk(batch.take_awaited(), reply_begin, || None);
                        let lack = if is_held_up { Lack::Credits } else { batch.lack() };
                        return turn.end(tried, lack, answered);
                    }
                }
                outbox.wait_for_disk(batch.take_awaited(), reply_begin, || envelope_bytes(parts.envelope, is_rest));
                if is_timed && let Some(command) = parts.command() {
                    outbox.sample(command.index(), arrived);
                }
                turn.note_answer();
                answered += 1;
                clients.count(is_whole, outbox.is_unread() && !parts.only_reads());
                // A page may take a millisecond and have no row. So all other clients have their turn after it.
                let is_long = outbox.end() > replies_end || parts.command() == Some(Command::Scan);
                if is_long && answered < messages.len() {
                    return TurnOutcome::Some(answered);
                }
            }
        }
        TurnOutcome::All
    }

    /// Lets the processor fetch what the first requests of these turns read, so that their cache misses overlap. See
    /// [`Batch::prefetch`](crate::tables::Batch::prefetch) for those of which nothing is fetched.
    pub(crate) fn prefetch_first<'b>(
        &mut self,
        turns: impl Iterator<Item = (&'b TableClient, MessageView<'b>)>,
        now: Now,
    ) {
        let mut few = [[&[][..]; FEW_FRAMES]; LOOK_AHEAD];
        let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
        let mut decoded: [Option<RequestParts<'_, &[u8]>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
        let firsts = turns.filter_map(|(client, messages)| Some((client, messages.iter().next()?)));
        let spaces = decoded.iter_mut().zip(few.iter_mut().zip(&mut many));
        for ((parsed, (few, many)), (client, message)) in spaces.zip(firsts) {
            let parts = parsed.insert(read(&message, few, many, self.limits));
            // The refusal is counted when it is answered.
            if let Some(user) = &client.user {
                parts.restrict_silently(Some(user));
            }
        }
        let _places = self.session.batch(now).prefetch(decoded.iter().flatten().map(RequestParts::element));
    }
}

/// Splits a message into its envelope and its request. The frames go to `few` if they fit there, else to `many`.
fn read<'p, 'b: 'p>(
    message: &Message<'b>,
    few: &'p mut [&'b [u8]; FEW_FRAMES],
    many: &'p mut Vec<&'b [u8]>,
    limits: FieldLimits,
) -> RequestParts<'p, &'b [u8]> {
    let count = message.frames().len();
    let frames: &'p [&'b [u8]] = if count <= FEW_FRAMES {
        few.iter_mut().zip(message.frames()).for_each(|(place, frame)| *place = frame);
        few.get(..count).unwrap_or_default()
    } else {
        many.extend(message.frames());
        many
    };
    if message.is_whole() {
        return RequestParts::read(frames, limits);
    }
    // Only the beginning of the message is there. If it has a whole envelope, the refusal carries that envelope.
    let envelope = split(frames).envelope;
    let envelope = if envelope.len() > ENVELOPE_FRAMES_MAX { &[] } else { envelope };
    RequestParts { envelope, request: Err(Fault { command: None, reason: Reason::BadRequest }) }
}
