//! The loop between the clients and the tables. One thread owns all connections, and has a session of its own.
//!
//! ```text
//! Connections ─► a turn of one connection: its messages ─► Conversation: collect, or execute on the tables
//!                    ▲                                          └─► its send buffer
//!                    └────────── written once ◄─────────────────────┘
//! ```
//! When the tables refuse a command as busy, the thread parks its connection before the last argument and serves the
//! others, as a worker of the `kv` protocol does. So the replies on a connection keep the order of its requests.
//!
//! This module does not know the bytes (`wire`) or the state of one client (`conversation`).

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;

use super::conversation::{Answer, Bounds, Conversation};
use super::handle::execute;
use super::memory::{Change, ConversationMemory, LOOK_EVERY};
use super::wire::{Argument, envelope_frames, message_bounds};
use crate::clock::{Clock, Now, TimeLimit};
use crate::limits::{
    BATCH_MAX, BUFFER_KEPT_BYTES, CONVERSATION_BYTES_MIN, KEY_BYTES_DEFAULT, LARGE_REPLIES_BYTES, TABLE_NAME_BYTES_MAX,
};
use crate::net::service::{BoundConnections, Service, ServiceParts};
use crate::net::sockets::{ServeError, Stopper};
use crate::net::zeromq::{ConnectionId, Connections, ReplyBuffer, Serving, ServingParts, TimedReply, TurnOutcome};
use crate::services::tables::disk_gates::open_gates;
use crate::services::tables::handle::HandlerContext;
use crate::services::tables::responder::TIMED_ONE_OF;
use crate::services::tables::serve::LockstepMetrics;
use crate::services::tables::timing::record_sent;
use crate::services::tables::waiting::WaitingClients;
use crate::services::tables::wire::{Command, Request, TableName};
use crate::stats::Sampler;
use crate::stats::slow_log::SlowLog;
use crate::tables::{Lack, Session};
use crate::zmtp::{Message, MessageView};

/// The name of the protocol.
const PROTOCOL: &str = "lockstep";

/// The settings of the frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockstepConfig {
    /// The endpoint to listen at.
    pub endpoint: String,
    /// Whether each reply ends with a NUL.
    pub nul: bool,
}

/// Listens at the endpoint. Values may have `value_max` bytes.
///
/// # Errors
/// [`ServeError`] if the endpoint is not available, or the system has no descriptor left.
pub fn bind(
    settings: &LockstepConfig,
    value_max: usize,
    mut session: Session,
    clock: Clock,
    metrics: Arc<LockstepMetrics>,
    parts: ServiceParts,
) -> Result<Service<LockstepFrontend>, ServeError> {
    let BoundConnections { connections, wake_signal, budget, endpoint } =
        parts.listen(&settings.endpoint, message_bounds(value_max))?;
    let stopper = Stopper::new(&wake_signal);
    let longest = TABLE_NAME_BYTES_MAX + 1 + KEY_BYTES_DEFAULT + value_max;
    let memory = ConversationMemory::new(usize::try_from(parts.held_bytes_max / 2).unwrap_or(usize::MAX), longest);
    let budgets = vec![budget, Arc::clone(memory.budget())];
    let waiting = WaitingClients::new(&mut session, &wake_signal);
    let (picker, table) = (Sampler::new(TIMED_ONE_OF), Vec::new());
    let (nul, slow) = (settings.nul, parts.slow);
    let answering = Answering { session, clock, waiting, memory, metrics, slow, picker, table, value_max, nul };
    let front = LockstepFrontend { connections, stopper: stopper.clone(), answering };
    Ok(Service { front, stopper, endpoint, budgets })
}

/// The frontend, to be run in the thread `lockstep`.
pub struct LockstepFrontend {
    connections: Connections<Conversation>,
    stopper: Stopper,
    answering: Answering,
}

impl LockstepFrontend {
    /// The loop of the thread. Returns after [`Stopper::stop`], when the requests that were taken are answered.
    pub fn run(mut self) {
        let clock = self.answering.clock;
        let (stats, now) = (String::new, &|| clock.now());
        let value_max = self.answering.value_max;
        // The five commands of this dialect report nothing and return one value.
        let context = HandlerContext {
            stats: &stats,
            now,
            reply_bytes_max: value_max,
            page_bytes_max: 0,
            value_max,
            clock_start: self.answering.session.clock_start(),
            may_read: None,
        };
        let serve = |front: &mut Self, _limit| {
            front.serve(&context);
            Ok::<(), Infallible>(())
        };
        let Ok(()) = Serving::run(&mut self, serve, |_, _| Ok(()));
    }

    /// Gives turns: to some of the clients for whom the tables may have room again, and to all that have sent bytes.
    fn serve(&mut self, context: &HandlerContext<'_>) {
        let Self { connections, answering, .. } = self;
        let now = connections.now();
        if !answering.waiting.is_empty() {
            answering.waiting.begin(&mut answering.session, now);
            for _ in 0..BATCH_MAX {
                let Some(id) = answering.waiting.next() else { break };
                connections.resume(id, |id, conversation, outbox, messages| {
                    answering.turn(conversation, messages, outbox, Turn::new(id, true, now), context)
                });
                answering.send(connections);
            }
        }
        loop {
            let turn = connections.receive(BATCH_MAX, |id, conversation, outbox, messages| {
                answering.turn(conversation, messages, outbox, Turn::new(id, false, now), context)
            });
            answering.send(connections);
            if turn.is_none() {
                break;
            }
        }
        open_gates(connections, &answering.session, |_| Vec::new());
        while connections.drained().is_some() {}
        let now = connections.now();
        self.drop_stalled(now);
        let Self { connections, answering, .. } = self;
        while let Some(closed) = connections.gone() {
            // A half command dies with its connection.
            answering.memory.end(closed.id, closed.state.held_bytes());
        }
        answering.show(connections);
    }

    /// Closes the connections whose conversations hold the room of the others and stand still.
    fn drop_stalled(&mut self, now: Now) {
        let stalled = self.answering.memory.stalled(now);
        stalled.into_iter().for_each(|id| self.connections.close(id));
    }
}

impl Serving<Conversation> for LockstepFrontend {
    fn parts(&mut self) -> ServingParts<'_, Conversation> {
        ServingParts { connections: &mut self.connections, stopper: &self.stopper, clock: self.answering.clock }
    }

    /// Waits until there is work, for the clients or for memory that has to be given back.
    fn wait(&mut self, _limit: Option<TimeLimit>) {
        let Self { connections, answering: Answering { session, waiting, memory, clock, .. }, .. } = self;
        let time = waiting.sleep_time(session, || clock.now());
        connections.wait(Some(if memory.is_tight() { time.min(LOOK_EVERY) } else { time }), || clock.now());
        session.rest(connections.now());
    }

    fn has_waiting(&mut self) -> bool {
        !self.answering.waiting.is_empty() || self.connections.awaited().is_some()
    }
}

/// A connection's turn.
struct Turn {
    id: ConnectionId,
    /// It has waited in the queue for its first message.
    is_first: bool,
    /// When the turn began.
    now: Now,
    /// The client has fetched a large value, or has completed a large UPDATE.
    has_moved: bool,
    /// The last command that is answered.
    last: Option<LastCommand>,
}

impl Turn {
    fn new(id: ConnectionId, is_first: bool, now: Now) -> Self {
        Self { id, is_first, now, has_moved: false, last: None }
    }
}

/// The last command of a turn.
struct LastCommand {
    command: Command,
    /// Bytes of its arguments.
    request_bytes: usize,
    /// Bytes of the reply to its last argument.
    reply_bytes: u64,
}

/// The state with which the frontend answers, beside its connections.
struct Answering {
    session: Session,
    clock: Clock,
    /// Connections that are parked.
    waiting: WaitingClients<ConnectionId>,
    memory: ConversationMemory,
    metrics: Arc<LockstepMetrics>,
    slow: Arc<SlowLog>,
    /// Picks the commands that are timed from end to end.
    picker: Sampler,
    /// The table of the last command, for the slow log. Its memory is used again.
    table: Vec<u8>,
    value_max: usize,
    nul: bool,
}

impl Answering {
    /// Answers messages in their order, and counts the memory of the conversation.
    fn turn(
        &mut self,
        conversation: &mut Conversation,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        mut turn: Turn,
        context: &HandlerContext<'_>,
    ) -> TurnOutcome {
        let before = conversation.held_bytes();
        let begun = self.clock.now();
        let arrived = outbox.arrived(begun);
        let outcome = self.answer_all(conversation, messages, outbox, &mut turn, context, begun);
        let Turn { id, now, has_moved: moved, last, .. } = turn;
        if let Some(command) = last {
            self.describe(outbox, command, [arrived, begun]);
        }
        let waits = matches!(outcome, TurnOutcome::Parked(_) | TurnOutcome::Starved(_));
        self.memory.change(id, Change { before, after: conversation.held_bytes(), waits, moved }, now);
        outcome
    }

    /// Answers messages up to one that has to wait, or until the replies and the values that are copied are large
    /// together.
    fn answer_all(
        &mut self,
        conversation: &mut Conversation,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        turn: &mut Turn,
        context: &HandlerContext<'_>,
        begun: Now,
    ) -> TurnOutcome {
        let Self { session, waiting, memory, metrics, value_max, nul, picker, table, .. } = self;
        let bounds = Bounds { value_max: *value_max, room: memory.room(conversation.held_bytes()) };
        let reply_max = if outbox.is_tight() { BUFFER_KEPT_BYTES } else { usize::MAX };
        let replies_end = outbox.end() + LARGE_REPLIES_BYTES;
        let mut copied = 0;
        let mut batch = session.batch(begun);
        for (answered, message) in messages.iter().enumerate() {
            if conversation.pending_bytes() > reply_max {
                return TurnOutcome::Starved(answered);
            }
            let (command, held) = (conversation.completes(), conversation.held_bytes());
            let is_held_up = !turn.is_first && waiting.is_ahead_of(command.is_some_and(Command::may_change_elements));
            let argument = Argument::of(&message);
            let is_unread = outbox.is_unread();
            let taken = (!is_held_up).then(|| {
                conversation.take(argument, bounds, |request| {
                    // Nobody would read the value.
                    if is_unread && matches!(request, Request::Get { .. }) {
                        return Ok(Ok(None));
                    }
                    table.clear();
                    table.extend(request.table().map_or(&b""[..], TableName::name));
                    execute(request, &mut batch, context, bounds.room)
                })
            });
            let Some(Ok(answer)) = taken else {
                let lack = if is_held_up { Lack::Credits } else { batch.lack() };
                if turn.is_first {
                    waiting.stay(turn.id, lack);
                } else {
                    waiting.join(turn.id, lack);
                }
                return TurnOutcome::Parked(answered);
            };
            turn.is_first = false;
            turn.has_moved |=
                held > CONVERSATION_BYTES_MIN && (command.is_some() || matches!(answer, Answer::Second(_)));
            copied += conversation.held_bytes().saturating_sub(held) as u64;
            let reply_begin = outbox.end();
            reply(outbox, &message, &answer, *nul);
            // An error has a reason that the conversation would have to know. So the connection ends if the disk fails.
            outbox.wait_for_disk(batch.take_awaited(), reply_begin, || None);
            if let Some(command) = command {
                if picker.picks() {
                    let arrived = outbox.arrived(begun);
                    outbox.sample(command.index(), arrived);
                }
                let request_bytes = held + message.frames().map(<[u8]>::len).sum::<usize>();
                turn.last = Some(LastCommand { command, request_bytes, reply_bytes: outbox.end() - reply_begin });
            }
            metrics.requests.add(1);
            if command.is_some() || answer == Answer::Error {
                metrics.worker.count(command, conversation.reason());
            }
            if outbox.end() + copied > replies_end && answered + 1 < messages.len() {
                return TurnOutcome::Some(answered + 1);
            }
        }
        TurnOutcome::All
    }

    /// Times the last command of a turn for the slow log if it was slow. A client that waits for each reply has no other
    /// command in the turn.
    fn describe(&self, outbox: &mut ReplyBuffer, last: LastCommand, [arrived, begun]: [Now; 2]) {
        let answered = self.clock.now();
        if self.slow.is_slow(arrived.nanos_until(answered)) {
            let LastCommand { command, request_bytes, reply_bytes } = last;
            outbox.time(TimedReply {
                arrived,
                begun: Some(begun),
                answered,
                verb: command.index(),
                samples: 0,
                request_bytes,
                reply_bytes,
                table: Some(self.table.as_slice().into()),
            });
        }
    }

    /// Writes new bytes as far as the system takes them, and records how long the timed replies among them took.
    fn send(&self, connections: &mut Connections<Conversation>) {
        connections.flush();
        if connections.has_timed() {
            record_sent(connections, &self.metrics.worker, None, &self.slow, PROTOCOL, self.clock);
        }
    }

    /// Updates the metrics for STATS.
    fn show(&self, connections: &Connections<Conversation>) {
        self.metrics.traffic.show(connections);
        self.metrics.held_bytes.set(connections.bytes() + self.memory.bytes() as u64);
        self.metrics.cut_off.set(connections.cut() + self.memory.dropped());
        self.metrics.worker.waiting.set(self.waiting.len() as u64);
    }
}

/// Appends the envelope of the message and the one frame of the reply.
fn reply(outbox: &mut ReplyBuffer, message: &Message<'_>, answer: &Answer, nul: bool) {
    message.frames().take(envelope_frames(message)).for_each(|frame| outbox.push(frame, true));
    let bytes = answer.bytes();
    outbox.push_with(bytes.len() + usize::from(nul), false, |out| {
        out.extend_from_slice(bytes);
        out.extend(nul.then_some(0));
    });
}
