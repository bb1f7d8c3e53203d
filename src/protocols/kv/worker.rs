//! A worker: takes what waits, up to a batch, and answers it under one guard and one reading of the clock.
//!
//! ```text
//! wait for a message ─► take what else is there (bounded) ─► read the clock ─► batch ─► handle, encode, send … ─► wait
//!                                                               ▲                         │
//!                                                               └── wait for credits ◄────┘ Busy: the same request again
//! ```
//! The clock is read after the last receive: an older reading could show an element that another worker has already
//! called expired. The guard is let go whenever the thread waits. Sending never waits: the pipe to the queue has no
//! bound of its own, and the queue lets only so much of each client come here.
//!
//! **Each message that comes is answered by exactly one**, in the same order: the queue knows by that whose it is.
//!
//! What is not here: whom a request is from, and which requests come next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::answer::{Desk, Parts, TIMED_ONE_OF};
use super::handle::{Busy, Context};
use super::packet::{PACKED_MAX, unpack};
use super::report::{Report, WorkerTally};
use crate::clock::Clock;
use crate::limits::{BATCH_FRAMES_MAX, BATCH_MAX, LOOK_AHEAD};
use crate::protocols::sockets::{Frame, Present, Socket};
use crate::stats::Sampler;
use crate::tables::{Batch, Session};

/// Frames for which an inbox keeps its memory.
const INBOX_KEEPS: usize = 512;
/// Bytes that a frame of an inbox may keep.
const FRAME_KEEPS: usize = 2048;

/// A worker, ready to run.
pub struct Worker {
    pub(super) socket: Socket,
    pub(super) session: Session,
    pub(super) clock: Clock,
    pub(super) value_max: usize,
    /// Set by the queue before it sends the last frame.
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tally: Arc<WorkerTally>,
    pub(super) report: Arc<Report>,
    /// The last field, which goes after the socket: the queue keeps the other end of its pipe as long as this is there.
    #[expect(dead_code, reason = "what counts is when it goes")]
    pub(super) present: Present,
}

impl Worker {
    /// The loop of the thread. Returns when the queue says that nothing more will come.
    pub fn run(mut self) {
        let report = Arc::clone(&self.report);
        let clock = self.clock;
        let context = Context { stats: &|| report.render(), now: &|| clock.now() };
        let mut inbox = Inbox::new();
        let mut sampler = Sampler::new(TIMED_ONE_OF);
        loop {
            inbox.fill(&self.socket);
            if self.is_told() {
                return;
            }
            self.answer_all(&inbox, &context, &mut sampler);
            inbox.clear();
        }
    }

    /// Whether nothing more is to be answered. Asked after each receiving: wherever in a batch the last frame has come, it is seen, and the
    /// queue has let go of what came with it.
    fn is_told(&self) -> bool {
        // Acquire: pairs with the Release of the queue, which sets it before it sends a last frame.
        self.stop.load(Ordering::Acquire)
    }

    /// Answers each message of the inbox, in as many batches as it takes.
    fn answer_all(&mut self, inbox: &Inbox, context: &Context<'_>, sampler: &mut Sampler) {
        let mut next = 0;
        loop {
            let now = self.clock.now();
            self.tally.busy.begin(now.nanos());
            let mut batch = self.session.batch(now);
            let desk = Desk { clock: self.clock, value_max: self.value_max, tally: &self.tally, context };
            let post = Post { desk, socket: &self.socket };
            next = post.answer_from(next, inbox, &mut batch, sampler);
            drop(batch);
            self.tally.busy.end(self.clock.now().nanos());
            if next == inbox.len() {
                return;
            }
            self.session.wait();
            if self.is_told() {
                return;
            }
        }
    }
}

/// Where answers go.
struct Post<'w> {
    desk: Desk<'w>,
    socket: &'w Socket,
}

impl Post<'_> {
    /// Answers the messages from this one on. Which comes next: the one after the last, or the one that is [`Busy`].
    fn answer_from(&self, first: usize, inbox: &Inbox, batch: &mut Batch<'_>, sampler: &mut Sampler) -> usize {
        let mut next = first;
        while next < inbox.len() {
            let count = LOOK_AHEAD.min(inbox.len() - next);
            let answered = self.answer_some(next, count, inbox, batch, sampler);
            next += answered;
            if answered < count {
                break;
            }
        }
        next
    }

    /// Decodes so many messages, has their elements fetched together, and answers them. How many were answered.
    fn answer_some(
        &self,
        first: usize,
        count: usize,
        inbox: &Inbox,
        batch: &mut Batch<'_>,
        sampler: &mut Sampler,
    ) -> usize {
        let mut places = [[&[][..]; PACKED_MAX]; LOOK_AHEAD];
        let mut letters: [Option<Letter<'_>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
        for ((letter, places), number) in letters.iter_mut().zip(&mut places).zip(first..first + count) {
            *letter = Some(Letter::read(inbox.message(number), places, self.desk.value_max));
        }
        let letters = || letters.iter().flatten();
        batch.foresee(letters().filter_map(Letter::element));
        let mut sink = |bytes: &[u8], more| self.socket.send_bytes(bytes, more);
        for (answered, letter) in letters().enumerate() {
            let done = match letter {
                Letter::Packed(parts) => self.desk.answer(parts, batch, sampler, &mut sink),
                Letter::AsItCame(parts) => self.desk.answer(parts, batch, sampler, &mut sink),
            };
            if done == Err(Busy) {
                return answered;
            }
        }
        count
    }
}

/// A message that has been read, from the frames that the queue sent it in.
enum Letter<'i> {
    Packed(Parts<'i, &'i [u8]>),
    AsItCame(Parts<'i, Frame>),
}

impl<'i> Letter<'i> {
    fn read(message: &'i [Frame], places: &'i mut [&'i [u8]; PACKED_MAX], value_max: usize) -> Self {
        let (first, rest) = message.split_first().expect("a message has a frame");
        if first.is_empty() {
            return Self::AsItCame(Parts::read(rest, value_max));
        }
        Self::Packed(Parts::read(unpack(first, rest, places), value_max))
    }

    fn element(&self) -> Option<(&'i [u8], &'i [u8])> {
        match self {
            Self::Packed(parts) => parts.element(),
            Self::AsItCame(parts) => parts.element(),
        }
    }
}

/// The messages of a batch, one behind the other.
struct Inbox {
    /// Frames to receive into. The first ones, up to the last end, hold the messages.
    frames: Vec<Frame>,
    /// Where each message ends in `frames`.
    ends: Vec<usize>,
}

impl Inbox {
    fn new() -> Self {
        Self { frames: Vec::with_capacity(INBOX_KEEPS), ends: Vec::with_capacity(BATCH_MAX) }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn frames_used(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn message(&self, number: usize) -> &[Frame] {
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(number);
        end.and_then(|&end| self.frames.get(start.copied().unwrap_or(0)..end)).expect("the number is below the length")
    }

    /// Waits for a message and takes what else is there.
    fn fill(&mut self, socket: &Socket) {
        socket.receive_waiting(self.place(0));
        self.take_rest(socket);
        while self.len() < BATCH_MAX && self.frames_used() < BATCH_FRAMES_MAX {
            let next = self.frames_used();
            if !socket.receive(self.place(next)) {
                break;
            }
            self.take_rest(socket);
        }
    }

    /// Takes the rest of the message of which the first frame has been received into the next place.
    fn take_rest(&mut self, socket: &Socket) {
        let mut last = self.frames_used();
        while self.place(last).more() {
            last += 1;
            socket.receive_rest(self.place(last));
        }
        self.ends.push(last + 1);
    }

    /// The frame at this place, at most one behind those that there are.
    fn place(&mut self, number: usize) -> &mut Frame {
        if number == self.frames.len() {
            self.frames.push(Frame::new());
        }
        self.frames.get_mut(number).expect("places are taken one after the other")
    }

    /// Makes room for the next batch. A worker that waits keeps nothing large of its last one.
    fn clear(&mut self) {
        self.frames.truncate(INBOX_KEEPS);
        self.frames.shrink_to(INBOX_KEEPS);
        for frame in self.frames.iter_mut().filter(|frame| frame.len() > FRAME_KEEPS) {
            *frame = Frame::new();
        }
        self.ends.clear();
    }
}
