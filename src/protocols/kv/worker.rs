//! A worker: takes what waits, up to a batch, and answers it under one guard and one reading of the clock.
//!
//! ```text
//! wait for a message, or for the tables ─► take what else is there (bounded) ─► read the clock ─► batch ─► handle, encode, send … ─► wait
//!                                                                                                   │ Busy
//!                                                                        deferred: said to the queue, answered late
//! ```
//! The clock is read after the last receive: an older reading could show an element that another worker has already
//! called expired. The guard is let go whenever the thread waits. Sending never waits: the pipe to the queue has no
//! bound of its own, and the queue lets only so much of each client come here.
//!
//! **Each message that comes is answered by exactly one**, in the same order, or deferred in its turn and answered late: the queue
//! knows by that whose it is. A request is deferred that the tables refuse as busy, and what its client asks after it.
//!
//! What is not here: whom a request is from, but for a tag, and which requests come next.

mod deferred;
mod inbox;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::answer::{Desk, Parts, TIMED_ONE_OF};
use super::handle::{Busy, Context};
use super::packet::{PACKED_MAX, Received, unpack};
use super::report::{Report, WorkerTally};
use super::wire::Command;
use crate::clock::Clock;
use crate::limits::LOOK_AHEAD;
use crate::protocols::sockets::{Bell, Frame, Present, Socket, wait};
use crate::stats::Sampler;
use crate::tables::{Batch, Session};
use deferred::Deferred;
use inbox::Inbox;

/// A worker, ready to run.
pub struct Worker {
    socket: Socket,
    session: Session,
    clock: Clock,
    value_max: usize,
    tally: Arc<WorkerTally>,
    report: Arc<Report>,
    bell: Bell,
    deferred: Deferred,
    /// Set by the queue before it sends the last frame.
    stop: Arc<AtomicBool>,
    /// The last field, which goes after the socket: the queue keeps the other end of its pipe as long as this is there.
    #[expect(dead_code, reason = "what counts is when it goes")]
    present: Present,
}

/// What a worker is made of.
pub(super) struct WorkerParts {
    /// Its end of the pipe to the queue.
    pub(super) socket: Socket,
    pub(super) session: Session,
    pub(super) clock: Clock,
    pub(super) value_max: usize,
    pub(super) tally: Arc<WorkerTally>,
    pub(super) report: Arc<Report>,
    /// Wakes it when the tables have room again.
    pub(super) bell: Bell,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) present: Present,
}

impl Worker {
    /// One that has deferred nothing.
    pub(super) fn new(parts: WorkerParts) -> Self {
        let WorkerParts { socket, mut session, clock, value_max, tally, report, bell, stop, present } = parts;
        let deferred = Deferred::new(&mut session, &bell);
        Self { socket, session, clock, value_max, tally, report, bell, deferred, stop, present }
    }

    /// The loop of the thread. Returns when the queue says that nothing more will come.
    pub fn run(mut self) {
        let report = Arc::clone(&self.report);
        let clock = self.clock;
        let context = Context { stats: &|| report.render(), now: &|| clock.now() };
        let mut inbox = Inbox::new();
        let mut sampler = Sampler::new(TIMED_ONE_OF);
        loop {
            self.receive(&mut inbox);
            if self.is_told() {
                return;
            }
            self.answer_all(&mut inbox, &context, &mut sampler);
            inbox.clear();
        }
    }

    /// Whether nothing more is to be answered. Asked after each receiving: wherever in a batch the last frame has come, it is seen, and the
    /// queue has let go of what came with it.
    fn is_told(&self) -> bool {
        // Acquire: pairs with the Release of the queue, which sets it before it sends a last frame.
        self.stop.load(Ordering::Acquire)
    }

    /// Waits for messages, or until the tables may have room for what was deferred, and takes what is there.
    fn receive(&mut self, inbox: &mut Inbox) {
        match self.deferred.patience(&mut self.session) {
            None => inbox.wait(&self.socket, self.session.patience()),
            Some(patience) => wait(&[&self.socket], &self.bell, Some(patience)),
        }
        inbox.fill(&self.socket);
        if inbox.len() == 0 {
            self.session.rest(self.clock.now());
        }
    }

    /// Answers what was deferred and can be answered now, and each message of the inbox.
    fn answer_all(&mut self, inbox: &mut Inbox, context: &Context<'_>, sampler: &mut Sampler) {
        let Self { socket, session, clock, value_max, tally, deferred, .. } = self;
        let now = clock.now();
        tally.busy.begin(now.nanos());
        deferred.begin(session);
        let mut batch = session.batch(now);
        let desk = Desk { clock: *clock, value_max: *value_max, tally, context };
        let mut post = Post { desk, socket, deferred };
        post.answer_deferred(&mut batch, sampler);
        post.answer_inbox(inbox, &mut batch, sampler);
        drop(batch);
        deferred.take(inbox);
        tally.waiting.set(deferred.clients() as u64);
        tally.busy.end(clock.now().nanos());
    }
}

/// Where answers go.
struct Post<'w> {
    desk: Desk<'w>,
    socket: &'w Socket,
    deferred: &'w mut Deferred,
}

impl Post<'_> {
    /// Answers the messages of the inbox, or defers them.
    fn answer_inbox(&mut self, inbox: &Inbox, batch: &mut Batch<'_>, sampler: &mut Sampler) {
        for first in (0..inbox.len()).step_by(LOOK_AHEAD) {
            self.answer_some(first, LOOK_AHEAD.min(inbox.len() - first), inbox, batch, sampler);
        }
    }

    /// Decodes so many messages, has their elements fetched together, and answers or defers each of them.
    fn answer_some(&mut self, first: usize, count: usize, inbox: &Inbox, batch: &mut Batch<'_>, sampler: &mut Sampler) {
        let mut places = [[&[][..]; PACKED_MAX]; LOOK_AHEAD];
        let mut letters: [Option<Letter<'_>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
        for ((letter, places), number) in letters.iter_mut().zip(&mut places).zip(first..first + count) {
            *letter = Some(Letter::read(inbox.message(number), places, self.desk.value_max));
        }
        let letters = || letters.iter().flatten();
        batch.foresee(letters().filter_map(Letter::element));
        let socket = self.socket;
        for (letter, number) in letters().zip(first..) {
            let waits = self.deferred.holds_up(letter);
            let mut sink = |bytes: &[u8], more| socket.send_bytes(bytes, more);
            if waits || letter.answer(&self.desk, batch, sampler, &mut sink) == Err(Busy) {
                let lacks_memory = !waits && batch.lacks_memory();
                self.deferred.defer(letter, number, lacks_memory, socket);
            }
        }
    }
}

/// A message that has been read, from the frames that the queue sent it in.
struct Letter<'i> {
    /// Of the client that it is from.
    tag: u16,
    text: Text<'i>,
}

enum Text<'i> {
    Packed(Parts<'i, &'i [u8]>),
    AsItCame(Parts<'i, Frame>),
}

impl<'i> Letter<'i> {
    #[inline]
    fn read(message: &'i [Frame], places: &'i mut [&'i [u8]; PACKED_MAX], value_max: usize) -> Self {
        match Received::read(message) {
            Received::AsItCame(tag, frames) => Self { tag, text: Text::AsItCame(Parts::read(frames, value_max)) },
            Received::Packed(tag, packet, apart) => {
                Self { tag, text: Text::Packed(Parts::read(unpack(packet, apart, places), value_max)) }
            }
        }
    }

    fn element(&self) -> Option<(&'i [u8], &'i [u8])> {
        match &self.text {
            Text::Packed(parts) => parts.element(),
            Text::AsItCame(parts) => parts.element(),
        }
    }

    fn command(&self) -> Option<Command> {
        match &self.text {
            Text::Packed(parts) => parts.command(),
            Text::AsItCame(parts) => parts.command(),
        }
    }

    #[inline]
    fn answer(
        &self,
        desk: &Desk<'_>,
        batch: &mut Batch<'_>,
        sampler: &mut Sampler,
        sink: impl FnMut(&[u8], bool),
    ) -> Result<(), Busy> {
        match &self.text {
            Text::Packed(parts) => desk.answer(parts, batch, sampler, sink),
            Text::AsItCame(parts) => desk.answer(parts, batch, sampler, sink),
        }
    }
}
