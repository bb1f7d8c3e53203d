//! The frontend without libzmq: each worker owns its connections and runs a request from socket to slot and back.
//!
//! ```text
//! acceptor ═► handoff ─► connections ─► a turn of one connection: its received bytes, cut into messages
//!                           ▲             └─► read the clock ─► batch ─► decode, prefetch, handle ─► its send buffer
//!                           └──────────── written once ◄───────────────────────────────────────────────┘
//! ```
//! Where several connections have sent a short request each, the worker receives from up to [`LOOK_AHEAD`] of them
//! before it answers the first, and fetches what requests for elements of one table read: the cache misses of a single
//! look-up would overlap with no others.
//!
//! There is no proxy and no hand-over to another thread. One thread answers all requests of a connection, so their
//! order is kept. The worker reads the clock after it has received the requests that it answers by that reading. It
//! releases the guard before the thread waits.
//!
//! When the tables refuse a request as busy, the worker parks its connection and serves the others. It also parks a
//! connection that asks for a report, because the reporter makes the report. A turn ends when its replies together pass
//! [`LARGE_REPLIES_BYTES`], so at most one reply goes beyond that bound. This bounds the bytes that a client has not
//! read, for every sequence of requests. A turn also ends after a page of SCAN, which bounds its time.
//!
//! This module does not manage connections; see `protocols/native`. It does not interpret requests; see
//! [`handle`](super::handle).

mod timing;

use std::sync::Arc;
use std::time::Duration;

use super::handle::{Busy, HandlerContext};
use super::packet::PACKED_MAX;
use super::report::{ProxyMetrics, ReportSources, WorkerMetrics};
use super::reporter::{FinishedReport, ReportClient};
use super::responder::{RequestParts, Responder};
use super::waiting::WaitingClients;
use super::wire::{Command, Fault, Reason, split};
use crate::clock::{Clock, Now, TimeLimit};
use crate::limits::{
    BATCH_MAX, BUFFER_KEPT_BYTES, ENVELOPE_FRAMES_MAX, LARGE_REPLIES_BYTES, LINGER, LOOK_AHEAD, SCAN_BYTES_MAX,
};
use crate::protocols::native::{
    Admission, ConnectionId, ConnectionState, Connections, HandoffReceiver, SendBuffer, TurnOutcome,
};
use crate::protocols::sockets::{Stopper, WakeSignal};
use crate::security::Identity;
use crate::stats::Sampler;
use crate::tables::Session;
use crate::zmtp::{Message, Messages};

/// The state with which a worker answers, beside its connections.
pub(super) struct WorkerState {
    pub(super) session: Session,
    pub(super) clock: Clock,
    pub(super) value_max: usize,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) clients: Arc<ProxyMetrics>,
    pub(super) report: Arc<ReportSources>,
    pub(super) reports: ReportClient,
    /// Picks the requests that are timed, in the tables and from end to end.
    pub(super) picker: Sampler,
}

/// The state of a connection.
#[derive(Default)]
pub(super) struct NativeClient {
    /// The user, where users are named.
    user: Option<Identity>,
}

impl ConnectionState for NativeClient {
    fn admit(&mut self, identity: Identity) {
        self.user = Some(identity);
    }
}

/// A worker that owns its connections, ready to run.
pub struct NativeWorker {
    connections: Connections<NativeClient>,
    handoff: HandoffReceiver,
    stopper: Stopper,
    state: WorkerState,
    /// Connections that are parked.
    waiting: WaitingClients<ConnectionId>,
}

impl NativeWorker {
    /// A worker whose connections come through `handoff`. Each of its wake-ups rings `bell`, also that by `stopper`.
    pub(super) fn new(
        mut connections: Connections<NativeClient>,
        handoff: HandoffReceiver,
        (stopper, bell): (Stopper, &WakeSignal),
        mut state: WorkerState,
    ) -> Self {
        connections.spin_before_sleep();
        let waiting = WaitingClients::new(&mut state.session, bell);
        Self { connections, handoff, stopper, state, waiting }
    }

    /// From now on a peer has to prove that it is a user.
    pub(super) fn admit_only(&mut self, admission: &Admission) {
        self.connections.admit_only(admission);
    }

    /// The loop of the thread. Returns when it was told to stop and the requests that were taken are answered.
    pub fn run(mut self) {
        let report = Arc::clone(&self.state.report);
        let clock = self.state.clock;
        let reply_bytes_max = report.reply_bytes_max;
        let (stats, start_wall_millis) = (&|| report.render(), clock.start_wall_millis());
        let (page_bytes_max, value_max) = (SCAN_BYTES_MAX, self.state.value_max);
        let now = &|| clock.now();
        let context = HandlerContext {
            stats,
            now,
            reply_bytes_max,
            page_bytes_max,
            value_max,
            start_wall_millis,
            may_read: None,
        };
        while !self.stopper.is_told() {
            self.wait(clock);
            self.state.metrics.busy.begin(self.connections.now().nanos());
            self.let_in();
            self.serve(&context);
            self.show();
            self.state.metrics.busy.end(clock.now().nanos());
        }
        // Answers the requests that have come until now.
        let limit = TimeLimit::begin(clock.now(), LINGER);
        self.connections.wait(Some(Duration::ZERO), || clock.now());
        self.serve(&context);
        self.connections.stop_receiving();
        while (self.connections.has_backlog() || !self.waiting.is_empty() || self.state.reports.is_waiting())
            && !limit.is_over(clock.now())
        {
            self.wait(clock);
            self.serve(&context);
        }
        self.connections.disconnect_all();
        while !self.connections.is_empty() && !limit.is_over(clock.now()) {
            self.connections.wait(Some(limit.left(clock.now())), || clock.now());
            self.serve(&context);
        }
    }

    /// Waits until there is work, for the clients or for memory that has to be given back.
    fn wait(&mut self, clock: Clock) {
        let session = &mut self.state.session;
        let rest = session.patience();
        let patience = self.waiting.patience(session).map_or(rest, |patience| patience.min(rest));
        self.connections.wait(Some(patience), || clock.now());
        session.rest(self.connections.now());
    }

    fn let_in(&mut self) {
        while let Some(descriptor) = self.handoff.next() {
            self.connections.insert(descriptor, self.connections.now());
        }
        if self.handoff.is_place_wanted() {
            self.connections.make_place();
        }
    }

    /// Gives turns: to some of the clients for whom the tables may have room again, to those whose reports are made,
    /// and to all that have sent bytes.
    fn serve(&mut self, context: &HandlerContext<'_>) {
        let Self { connections, state, handoff, waiting, .. } = self;
        if !waiting.is_empty() {
            waiting.begin(&mut state.session);
            for _ in 0..BATCH_MAX {
                let Some(id) = waiting.next() else { break };
                connections.resume(id, |id, client, outbox, messages, bytes| {
                    let turn = ConnectionTurn { id, waiting, is_first: true, made: None, user: client.user.as_ref() };
                    state.answer_turn((messages, bytes), outbox, turn, context)
                });
                state.send(connections);
            }
        }
        while let Some((id, made)) = state.reports.next() {
            connections.resume(id, |id, client, outbox, messages, bytes| {
                let turn =
                    ConnectionTurn { id, waiting, is_first: false, made: Some(made), user: client.user.as_ref() };
                state.answer_turn((messages, bytes), outbox, turn, context)
            });
            state.send(connections);
        }
        loop {
            if connections.gather(BATCH_MAX, context.now) {
                state.foresee(connections.gathered(), connections.now());
            }
            let turn = connections.receive(BATCH_MAX, |id, client, outbox, messages, bytes| {
                let turn = ConnectionTurn { id, waiting, is_first: false, made: None, user: client.user.as_ref() };
                state.answer_turn((messages, bytes), outbox, turn, context)
            });
            state.send(connections);
            if turn.is_none() {
                break;
            }
        }
        while connections.drained().is_some() {}
        while connections.gone().is_some() {}
        handoff.left(connections.closed());
    }

    fn show(&self) {
        self.state.clients.clients.set(self.connections.len() as u64);
        self.state.clients.traffic.show(&self.connections);
        self.state.clients.held_bytes.set(self.connections.bytes());
        self.state.clients.cut_off.set(self.connections.cut());
        self.state.metrics.waiting.set(self.waiting.len() as u64);
    }
}

/// A connection's turn.
struct ConnectionTurn<'l> {
    id: ConnectionId,
    waiting: &'l mut WaitingClients<ConnectionId>,
    /// It has waited in the queue for its first request.
    is_first: bool,
    /// The report for which it has waited, and for which its first request asks.
    made: Option<Arc<FinishedReport>>,
    /// The user, where users are named.
    user: Option<&'l Identity>,
}

impl ConnectionTurn<'_> {
    /// Whether the next request has to wait without being tried.
    fn is_held_up(&self, command: Option<Command>) -> bool {
        !self.is_first && self.waiting.is_ahead_of(command)
    }

    /// Queues the connection with its next request.
    fn wait(self, command: Option<Command>, lacks_memory: bool) {
        if self.is_first {
            self.waiting.stay(self.id, command, lacks_memory);
        } else {
            self.waiting.join(self.id, command, lacks_memory);
        }
    }
}

impl WorkerState {
    /// Answers messages in their order, up to one that has to wait, or until the replies are large together. The
    /// proxy's worker has a loop of its own (`WorkerReplies::answer_some`), because it has messages of many clients: it
    /// defers a busy one and goes on, where this one ends the turn. One loop for both was tried: it takes more lines
    /// and more instructions (`perf/serving.md`).
    fn answer_all(
        &mut self,
        (messages, bytes): (&Messages, &[u8]),
        outbox: &mut SendBuffer,
        mut turn: ConnectionTurn<'_>,
        context: &HandlerContext<'_>,
        (begun, arrived): (Now, Now),
    ) -> TurnOutcome {
        let Self { session, clock, value_max, metrics, clients, reports, picker, .. } = self;
        let responder = Responder { clock: *clock, value_max: *value_max, metrics, context };
        let mut batch = session.batch(begun);
        let bytes_max = outbox.is_tight().then_some(BUFFER_KEPT_BYTES);
        let replies_end = outbox.end() + LARGE_REPLIES_BYTES;
        let mut answered = 0;
        let mut left = messages.iter(bytes);
        while answered < messages.len() {
            let mut few = [[&[][..]; PACKED_MAX]; LOOK_AHEAD];
            let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
            let mut decoded: [Option<RequestParts<'_, &[u8]>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
            let mut is_whole = [true; LOOK_AHEAD];
            let spaces = decoded.iter_mut().zip(&mut is_whole).zip(few.iter_mut().zip(&mut many));
            for (((parsed, is_whole), (few, many)), message) in spaces.zip(&mut left) {
                *parsed = Some(read(&message, few, many, *value_max));
                *is_whole = message.is_whole();
                if let (Some(user), Some(parts)) = (turn.user, parsed) {
                    parts.restrict(user);
                }
            }
            let fetched = batch.prefetch(decoded.iter().flatten().map(RequestParts::element));
            for ((parts, is_whole), number) in decoded.iter().flatten().zip(is_whole).zip(0..) {
                batch.expect(&fetched, number);
                let is_timed = picker.picks();
                if let Some(command) = parts.report() {
                    let Some(made) = turn.made.take() else {
                        reports.order(turn.id, command, turn.user);
                        return TurnOutcome::Parked(answered);
                    };
                    parts.envelope.iter().for_each(|frame| outbox.push(frame, true));
                    outbox.push_shared(&made.frames);
                    metrics.count(Some(command), made.refused);
                } else {
                    let sink = |frame: &[u8], more| outbox.push(frame, more);
                    let is_held_up = turn.is_held_up(parts.command());
                    let tried =
                        (!is_held_up).then(|| responder.answer_if(parts, &mut batch, is_timed, bytes_max, sink));
                    match tried {
                        Some(Ok(true)) => {}
                        Some(Ok(false)) => return TurnOutcome::Starved(answered),
                        Some(Err(Busy)) | None => {
                            let lacks_memory = !is_held_up && batch.lacks_memory();
                            turn.wait(parts.command(), lacks_memory);
                            return TurnOutcome::Parked(answered);
                        }
                    }
                }
                if is_timed && let Some(command) = parts.command() {
                    outbox.sample(usize::from(command.code()), arrived);
                }
                turn.is_first = false;
                answered += 1;
                clients.requests.add(1);
                clients.oversized.add(u64::from(!is_whole));
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
    fn foresee<'b>(&mut self, turns: impl Iterator<Item = (&'b NativeClient, &'b Messages, &'b [u8])>, now: Now) {
        let mut few = [[&[][..]; PACKED_MAX]; LOOK_AHEAD];
        let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
        let mut decoded: [Option<RequestParts<'_, &[u8]>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
        let firsts = turns.filter_map(|(client, messages, bytes)| Some((client, messages.iter(bytes).next()?)));
        let spaces = decoded.iter_mut().zip(few.iter_mut().zip(&mut many));
        for ((parsed, (few, many)), (client, message)) in spaces.zip(firsts) {
            let parts = parsed.insert(read(&message, few, many, self.value_max));
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
    few: &'p mut [&'b [u8]; PACKED_MAX],
    many: &'p mut Vec<&'b [u8]>,
    value_max: usize,
) -> RequestParts<'p, &'b [u8]> {
    let count = message.frames().len();
    let frames: &'p [&'b [u8]] = if count <= PACKED_MAX {
        few.iter_mut().zip(message.frames()).for_each(|(place, frame)| *place = frame);
        few.get(..count).unwrap_or_default()
    } else {
        many.extend(message.frames());
        many
    };
    if message.is_whole() {
        return RequestParts::read(frames, value_max);
    }
    // Only the beginning of the message is there. If it has a whole envelope, the refusal carries that envelope.
    let envelope = split(frames).envelope;
    let envelope = if envelope.len() > ENVELOPE_FRAMES_MAX { &[] } else { envelope };
    RequestParts { envelope, request: Err(Fault { command: None, reason: Reason::BadRequest }) }
}
