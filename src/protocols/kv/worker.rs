//! A worker of the proxy: it receives a batch of messages, and answers it under one guard and one reading of the clock.
//!
//! ```text
//! wait for a message or the tables ─► receive a batch ─► read the clock ─► batch ─► handle, encode, send … ─► wait
//!                                                                                     │ Busy
//!                                                          deferred: notice to the proxy, answered late
//! ```
//! The worker reads the clock after its last receive: an older reading could show an element that another worker has
//! already called expired. The worker releases the guard whenever the thread waits. A send never waits: the pipe to the
//! proxy has no bound of its own, and the proxy's flow control bounds the requests of each client that come here.
//!
//! **The worker sends exactly one reply to each message**, in the order of the messages. Or it defers the message in
//! its turn and answers it late. By this rule the proxy knows which client each reply belongs to. The worker defers a
//! request that the tables refuse as busy, and all later requests of the same client.
//!
//! The reporter is a worker too. A reply of several frames goes to the proxy as one; see `reply`.
//!
//! This module knows of a request's client only its tag, and does not choose the requests that come next.

mod deferred;
mod inbox;
mod reply;
mod timing;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::client_names::ClientNames;
use super::handle::{Busy, HandlerContext};
use super::packet::{PACKED_MAX, ReceivedMessage, Sender, unpack};
use super::permission::may_read;
use super::report::{ReportSources, WorkerMetrics};
use super::responder::{RequestParts, Responder};
use super::wire::Command;
use crate::clock::{Clock, Now};
use crate::limits::LOOK_AHEAD;
use crate::protocols::sockets::{Frame, Socket, ThreadToken, WakeSignal, wait};
use crate::security::LoginReader;
use crate::tables::{Batch, Session};
use deferred::DeferredMessages;
use inbox::BatchInbox;
use reply::ReplyWriter;
use timing::{RequestTimer, is_alone};
use users::WorkerUsers;

/// A worker, ready to run.
pub struct Worker {
    socket: Socket,
    session: Session,
    clock: Clock,
    value_max: usize,
    page_bytes_max: usize,
    metrics: Arc<WorkerMetrics>,
    report: Arc<ReportSources>,
    bell: WakeSignal,
    deferred: DeferredMessages,
    /// It is the reporter: its replies have many frames.
    is_reporter: bool,
    writer: ReplyWriter,
    timer: RequestTimer,
    users: WorkerUsers,
    /// Set by the proxy before it sends the last frame.
    stop: Arc<AtomicBool>,
    /// The last field, so it is dropped after the socket: the proxy keeps its end of the pipe as long as this token
    /// exists.
    #[expect(dead_code, reason = "what counts is when it goes")]
    present: ThreadToken,
}

/// The parts of a worker.
pub(super) struct WorkerParts {
    /// The worker's end of the pipe to the proxy.
    pub(super) socket: Socket,
    pub(super) session: Session,
    pub(super) clock: Clock,
    pub(super) value_max: usize,
    /// Bytes of the rows in one page of SCAN.
    pub(super) page_bytes_max: usize,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) report: Arc<ReportSources>,
    /// Wakes the worker when the tables have room again.
    pub(super) bell: WakeSignal,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) present: ThreadToken,
    pub(super) is_reporter: bool,
    /// For the slow log and refusals.
    pub(super) names: Arc<ClientNames>,
    /// The users of the clients, where users are named.
    pub(super) logins: Option<LoginReader>,
}

impl Worker {
    /// A worker that has deferred no message.
    pub(super) fn new(parts: WorkerParts) -> Self {
        let WorkerParts { socket, mut session, clock, value_max, page_bytes_max, metrics, report, bell, .. } = parts;
        let WorkerParts { stop, present, is_reporter, names, logins, .. } = parts;
        let deferred = DeferredMessages::new(&mut session, &bell);
        let timer = RequestTimer::new(clock, Arc::clone(&report.slow), Arc::clone(&names), logins.is_some());
        Self {
            socket,
            session,
            clock,
            value_max,
            page_bytes_max,
            metrics,
            report,
            bell,
            deferred,
            is_reporter,
            writer: ReplyWriter::default(),
            timer,
            users: WorkerUsers::new(logins, names),
            stop,
            present,
        }
    }

    /// The loop of the thread. Returns when the proxy says that no more messages come.
    pub fn run(mut self) {
        let report = Arc::clone(&self.report);
        let clock = self.clock;
        let reply_bytes_max = report.reply_bytes_max;
        let (stats, start_wall_millis) = (&|| report.render(), clock.start_wall_millis());
        let (page_bytes_max, value_max, now) = (self.page_bytes_max, self.value_max, &|| clock.now());
        let context = HandlerContext {
            stats,
            now,
            reply_bytes_max,
            page_bytes_max,
            value_max,
            start_wall_millis,
            may_read: None,
        };
        let mut inbox = BatchInbox::new();
        loop {
            self.receive(&mut inbox);
            if self.is_told() {
                return;
            }
            self.answer_all(&mut inbox, &context);
            inbox.clear();
        }
    }

    /// Whether the worker is to end. Checked after each receive. The proxy sets the flag before it sends its last
    /// frame, so the worker sees the flag wherever that frame is in a batch. By then the proxy has given up the batch's
    /// other messages.
    fn is_told(&self) -> bool {
        // Acquire: pairs with the Release of the proxy, which sets the flag before it sends its last frame.
        self.stop.load(Ordering::Acquire)
    }

    /// Waits for messages, or until the tables may have room for deferred ones, and receives a batch.
    fn receive(&mut self, inbox: &mut BatchInbox) {
        match self.deferred.patience(&mut self.session) {
            None => inbox.wait(&self.socket, self.session.patience()),
            Some(patience) => wait(&[&self.socket], &self.bell, Some(patience)),
        }
        inbox.fill(&self.socket);
        if inbox.len() == 0 {
            self.session.rest(self.clock.now());
        }
    }

    /// Answers the deferred messages that can be answered now, and each message of the inbox.
    fn answer_all(&mut self, inbox: &mut BatchInbox, context: &HandlerContext<'_>) {
        let Self { socket, session, clock, value_max, metrics, deferred, is_reporter, writer, timer, users, .. } = self;
        let now = clock.now();
        users.renew();
        metrics.busy.begin(now.nanos());
        deferred.begin(session);
        let mut batch = session.batch(now);
        let responder = Responder { clock: *clock, value_max: *value_max, metrics, context };
        let is_reporter = *is_reporter;
        timer.begin(now);
        let mut replies =
            WorkerReplies { responder, socket, deferred, is_reporter, writer, timer, users, received: now };
        replies.answer_deferred(&mut batch);
        replies.answer_inbox(inbox, &mut batch);
        drop(batch);
        deferred.take(inbox, now);
        metrics.waiting.set(deferred.clients() as u64);
        metrics.busy.end(clock.now().nanos());
    }
}

/// The destination of a worker's replies.
struct WorkerReplies<'w> {
    responder: Responder<'w>,
    socket: &'w Socket,
    deferred: &'w mut DeferredMessages,
    is_reporter: bool,
    writer: &'w mut ReplyWriter,
    timer: &'w mut RequestTimer,
    users: &'w mut WorkerUsers,
    /// When the messages of the inbox had been received.
    received: Now,
}

impl WorkerReplies<'_> {
    /// Answers the messages of the inbox, or defers them.
    fn answer_inbox(&mut self, inbox: &BatchInbox, batch: &mut Batch<'_>) {
        for first in (0..inbox.len()).step_by(LOOK_AHEAD) {
            self.answer_some(first, LOOK_AHEAD.min(inbox.len() - first), inbox, batch);
        }
    }

    /// Decodes `count` messages, prefetches their elements together, and answers or defers each of them. Native workers
    /// have a loop of their own, which says why: `WorkerState::answer_all`.
    fn answer_some(&mut self, first: usize, count: usize, inbox: &BatchInbox, batch: &mut Batch<'_>) {
        let mut unpacked = [[&[][..]; PACKED_MAX]; LOOK_AHEAD];
        let mut decoded: [Option<WorkerMessage<'_>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
        for ((parsed, unpacked), number) in decoded.iter_mut().zip(&mut unpacked).zip(first..first + count) {
            *parsed = Some(WorkerMessage::read(inbox.message(number), unpacked, self.responder.value_max, self.users));
        }
        let fetched = batch.prefetch(decoded.iter().flatten().map(WorkerMessage::element));
        let (socket, received) = (self.socket, self.received);
        let message = |index: usize| Some((decoded.get(index)?.as_ref()?, inbox.message(first + index)));
        self.timer.restart();
        for (parsed, index) in decoded.iter().flatten().zip(0..) {
            batch.expect(&fetched, index);
            let waits = self.deferred.holds_up(parsed);
            let is_long = parsed.is_long(self.is_reporter);
            let (is_alone, is_timed) = (is_alone(parsed.command()), self.timer.picks());
            if is_alone {
                self.timer.end_stretch(received, index, message);
            }
            let (writer, users, mut bytes) = (&mut *self.writer, &*self.users, 0);
            let mut answer = || {
                let sink = |frame: &[u8], more| {
                    bytes += frame.len() as u64;
                    writer.write(socket, is_long, frame, more);
                };
                parsed.answer(&self.responder, users, batch, is_timed, sink)
            };
            if waits || answer() == Err(Busy) {
                let lacks_memory = !waits && batch.lacks_memory();
                self.deferred.defer(parsed, first + index, lacks_memory, socket);
                self.timer.note(index, None);
            } else {
                self.timer.note(index, Some(bytes));
                if is_timed {
                    self.timer.record(parsed, received, self.responder.metrics);
                }
            }
            if is_alone {
                self.timer.end_stretch(received, index + 1, message);
            }
        }
        self.timer.end_stretch(received, count, message);
    }
}

/// A decoded message, which borrows from the frames that the proxy sent.
struct WorkerMessage<'i> {
    sender: Sender,
    /// The user may not do it, so the request is its refusal.
    is_denied: bool,
    text: MessageText<'i>,
}

enum MessageText<'i> {
    Packed(RequestParts<'i, &'i [u8]>),
    AsItCame(RequestParts<'i, Frame>),
}

impl<'i> WorkerMessage<'i> {
    #[inline]
    fn read(
        message: &'i [Frame],
        unpacked: &'i mut [&'i [u8]; PACKED_MAX],
        value_max: usize,
        users: &mut WorkerUsers,
    ) -> Self {
        match ReceivedMessage::read(message, users.are_named()) {
            ReceivedMessage::AsItCame(sender, frames) => {
                let mut parts = RequestParts::read(frames, value_max);
                Self { is_denied: users.restrict(sender, &mut parts), sender, text: MessageText::AsItCame(parts) }
            }
            ReceivedMessage::Packed(sender, packet, apart) => {
                let mut parts = RequestParts::read(unpack(packet, apart, unpacked), value_max);
                Self { is_denied: users.restrict(sender, &mut parts), sender, text: MessageText::Packed(parts) }
            }
        }
    }

    fn element(&self) -> Option<(&'i [u8], &'i [u8])> {
        match &self.text {
            MessageText::Packed(parts) => parts.element(),
            MessageText::AsItCame(parts) => parts.element(),
        }
    }

    fn command(&self) -> Option<Command> {
        match &self.text {
            MessageText::Packed(parts) => parts.command(),
            MessageText::AsItCame(parts) => parts.command(),
        }
    }

    /// The table that the request is about, if it is about one.
    fn table(&self) -> Option<&[u8]> {
        match &self.text {
            MessageText::Packed(parts) => parts.table(),
            MessageText::AsItCame(parts) => parts.table(),
        }
    }

    /// Whether it has one of the replies with many frames.
    #[inline]
    fn is_long(&self, is_reporter: bool) -> bool {
        is_reporter || matches!(self.command(), Some(Command::Scan | Command::Changes))
    }

    #[inline]
    fn answer(
        &self,
        responder: &Responder<'_>,
        users: &WorkerUsers,
        batch: &mut Batch<'_>,
        is_timed: bool,
        sink: impl FnMut(&[u8], bool),
    ) -> Result<(), Busy> {
        if self.is_denied {
            users.note_denied(self.sender);
        }
        if self.command() == Some(Command::ListTables)
            && let Some(user) = users.reader_of_some(self.sender)
        {
            let may_read = |table: &[u8]| may_read(user, table);
            let context = HandlerContext { may_read: Some(&may_read), ..*responder.context };
            return self.answer_by(&Responder { context: &context, ..*responder }, batch, is_timed, sink);
        }
        self.answer_by(responder, batch, is_timed, sink)
    }

    #[inline]
    fn answer_by(
        &self,
        responder: &Responder<'_>,
        batch: &mut Batch<'_>,
        is_timed: bool,
        sink: impl FnMut(&[u8], bool),
    ) -> Result<(), Busy> {
        match &self.text {
            MessageText::Packed(parts) => responder.answer(parts, batch, is_timed, sink),
            MessageText::AsItCame(parts) => responder.answer(parts, batch, is_timed, sink),
        }
    }
}
