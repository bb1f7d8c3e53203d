//! The frontend without libzmq: each worker owns its connections and runs a request from socket to slot and back.
//!
//! ```text
//! acceptor ═► entrance ─► Peers ─► a turn of one connection: what is there, cut into messages
//!                           ▲        └─► read the clock ─► batch ─► decode, fetch ahead, handle ─► its outbox
//!                           └──────────── written once ◄─────────────────────────────────────────────┘
//! ```
//! No queue, no other thread, no hand-over: a connection's requests are answered in their order since one thread answers them all.
//! The clock is read after what is answered by it has been received. The guard is let go before the thread waits.
//!
//! A connection of which a request finds the tables busy is parked with it, and others go on; so is one that asks for a report, which
//! another thread makes. A turn ends when its replies are
//! large together, so what a client has not read stays bounded, whatever it asks: at most one reply comes after that.
//!
//! What is not here: connections (`protocols/native`), and what requests mean.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Desk, Parts, TIMED_ONE_OF};
use super::handle::{Busy, Context};
use super::packet::PACKED_MAX;
use super::report::{QueueTally, Report, WorkerTally};
use super::reporter::{Counter, Made};
use super::waiting::Line;
use super::wire::{Command, Fault, Reason, Reply, split};
use crate::clock::Clock;
use crate::limits::{BATCH_MAX, BUFFER_KEPT_BYTES, ENVELOPE_FRAMES_MAX, LARGE_REPLIES_BYTES, LINGER, LOOK_AHEAD};
use crate::protocols::native::{Entrance, Outbox, PeerId, Peers, Taken};
use crate::protocols::sockets::Stopper;
use crate::stats::Sampler;
use crate::tables::Session;
use crate::zmtp::{Message, Messages};

/// What a worker answers with, beside its connections.
pub(super) struct Kitchen {
    pub(super) session: Session,
    pub(super) clock: Clock,
    pub(super) value_max: usize,
    pub(super) tally: Arc<WorkerTally>,
    pub(super) clients: Arc<QueueTally>,
    pub(super) report: Arc<Report>,
    pub(super) counter: Counter,
}

/// A worker that owns its connections, ready to run.
pub struct NativeWorker {
    peers: Peers<()>,
    entrance: Entrance,
    stopper: Stopper,
    kitchen: Kitchen,
    /// Connections that are parked.
    line: Line<PeerId>,
}

impl NativeWorker {
    /// One whose connections come through `entrance`; all that wakes it rings the bell of `stopper`.
    pub(super) fn new(peers: Peers<()>, entrance: Entrance, stopper: Stopper, mut kitchen: Kitchen) -> Self {
        let line = Line::new(&mut kitchen.session, stopper.bell());
        Self { peers, entrance, stopper, kitchen, line }
    }

    /// The loop of the thread. Returns when it was told to stop and what was taken is answered.
    pub fn run(mut self) {
        let report = Arc::clone(&self.kitchen.report);
        let clock = self.kitchen.clock;
        let context = Context { stats: &|| report.render(), now: &|| clock.now() };
        let mut sampler = Sampler::new(TIMED_ONE_OF);
        while !self.stopper.is_told() {
            self.wait(clock);
            self.kitchen.tally.busy.begin(self.peers.now().nanos());
            self.let_in();
            self.serve(&context, &mut sampler);
            self.show();
            self.kitchen.tally.busy.end(clock.now().nanos());
        }
        // What has come until now is answered.
        let end = clock.now().after(LINGER);
        self.peers.wait(Some(Duration::ZERO), || clock.now());
        self.serve(&context, &mut sampler);
        self.peers.stop_receiving();
        while (self.peers.has_backlog() || !self.line.is_empty() || self.kitchen.counter.is_waiting())
            && clock.now() < end
        {
            self.wait(clock);
            self.serve(&context, &mut sampler);
        }
        self.peers.part_all();
        while !self.peers.is_empty() && clock.now() < end {
            let left = Duration::from_nanos(end.nanos().saturating_sub(clock.now().nanos()));
            self.peers.wait(Some(left), || clock.now());
            self.serve(&context, &mut sampler);
        }
    }

    /// Waits until there is something to do, for the clients or with memory.
    fn wait(&mut self, clock: Clock) {
        let session = &mut self.kitchen.session;
        let rest = session.patience();
        let patience = self.line.patience(session).map_or(rest, |patience| patience.min(rest));
        self.peers.wait(Some(patience), || clock.now());
        session.rest(self.peers.now());
    }

    fn let_in(&mut self) {
        while let Some(descriptor) = self.entrance.next() {
            self.peers.adopt(descriptor, self.peers.now());
        }
    }

    /// Gives a turn to those for whom the tables may have room again, some of them, to those whose reports have been made, and to
    /// everybody who has sent something.
    fn serve(&mut self, context: &Context<'_>, sampler: &mut Sampler) {
        let Self { peers, kitchen, entrance, line, .. } = self;
        if !line.is_empty() {
            line.begin(&mut kitchen.session);
            for _ in 0..BATCH_MAX {
                let Some(id) = line.next() else { break };
                peers.resume(id, |id, (), outbox, messages, bytes| {
                    let turn = Turn { id, line, is_first: true, made: None };
                    kitchen.answer_all((messages, bytes), outbox, turn, (context, sampler))
                });
                peers.flush();
            }
        }
        while let Some((id, made)) = kitchen.counter.next() {
            peers.resume(id, |id, (), outbox, messages, bytes| {
                let turn = Turn { id, line, is_first: false, made: Some(made) };
                kitchen.answer_all((messages, bytes), outbox, turn, (context, sampler))
            });
            peers.flush();
        }
        loop {
            let turn = peers.receive(BATCH_MAX, |id, (), outbox, messages, bytes| {
                let turn = Turn { id, line, is_first: false, made: None };
                kitchen.answer_all((messages, bytes), outbox, turn, (context, sampler))
            });
            if turn.is_none() {
                break;
            }
            peers.flush();
        }
        while peers.drained().is_some() {}
        while peers.gone().is_some() {}
        entrance.left(peers.closed());
    }

    fn show(&self) {
        self.kitchen.clients.clients.set(self.peers.len() as u64);
        self.kitchen.clients.held_bytes.set(self.peers.bytes());
        self.kitchen.clients.cut_off.set(self.peers.cut());
        self.kitchen.tally.waiting.set(self.line.len() as u64);
    }
}

/// A connection's turn.
struct Turn<'l> {
    id: PeerId,
    line: &'l mut Line<PeerId>,
    /// It has waited in line for its first request.
    is_first: bool,
    /// It has waited for this report, for which its first request asks.
    made: Option<Arc<Made>>,
}

impl Turn<'_> {
    /// Whether the next request has to wait without being tried.
    fn is_held_up(&self, command: Option<Command>) -> bool {
        !self.is_first && self.line.is_ahead_of(command)
    }

    /// The next request waits.
    fn wait(self, command: Option<Command>, lacks_memory: bool) {
        if self.is_first {
            self.line.stay(self.id, command, lacks_memory);
        } else {
            self.line.join(self.id, command, lacks_memory);
        }
    }
}

impl Kitchen {
    /// Answers messages in their order, up to one that has to wait, or until the replies are large together.
    fn answer_all(
        &mut self,
        (messages, bytes): (&Messages, &[u8]),
        outbox: &mut Outbox,
        mut turn: Turn<'_>,
        (context, sampler): (&Context<'_>, &mut Sampler),
    ) -> Taken {
        let Self { session, clock, value_max, tally, clients, counter, .. } = self;
        let desk = Desk { clock: *clock, value_max: *value_max, tally, context };
        let mut batch = session.batch(clock.now());
        let (is_tight, replies_end) = (outbox.is_tight(), outbox.end() + LARGE_REPLIES_BYTES);
        let mut answered = 0;
        let mut left = messages.iter(bytes);
        while answered < messages.len() {
            let mut few = [[&[][..]; PACKED_MAX]; LOOK_AHEAD];
            let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
            let mut letters: [Option<Parts<'_, &[u8]>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
            let mut is_whole = [true; LOOK_AHEAD];
            let places = letters.iter_mut().zip(&mut is_whole).zip(few.iter_mut().zip(&mut many));
            for (((letter, is_whole), (few, many)), message) in places.zip(&mut left) {
                *letter = Some(read(&message, few, many, *value_max));
                *is_whole = message.is_whole();
            }
            batch.foresee(letters.iter().flatten().filter_map(Parts::element));
            for (parts, is_whole) in letters.iter().flatten().zip(is_whole) {
                if let Some(command) = parts.report() {
                    let Some(made) = turn.made.take() else {
                        counter.order(turn.id, command);
                        return Taken::Parked(answered);
                    };
                    parts.envelope.iter().for_each(|frame| outbox.push(frame, true));
                    outbox.push_encoded(&made.frames);
                    tally.count(Some(command), made.refused);
                } else {
                    let sink = |frame: &[u8], more| outbox.push(frame, more);
                    let fits = |reply: &Reply<'_>| !is_tight || reply.bytes() <= BUFFER_KEPT_BYTES;
                    let is_held_up = turn.is_held_up(parts.command());
                    let tried = (!is_held_up).then(|| desk.answer_if(parts, &mut batch, sampler, fits, sink));
                    match tried {
                        Some(Ok(true)) => {}
                        Some(Ok(false)) => return Taken::Starved(answered),
                        Some(Err(Busy)) | None => {
                            let lacks_memory = !is_held_up && batch.lacks_memory();
                            turn.wait(parts.command(), lacks_memory);
                            return Taken::Parked(answered);
                        }
                    }
                }
                turn.is_first = false;
                answered += 1;
                clients.requests.add(1);
                clients.oversized.add(u64::from(!is_whole));
                if outbox.end() > replies_end && answered < messages.len() {
                    return Taken::Some(answered);
                }
            }
        }
        Taken::All
    }
}

/// The envelope of a message and what it asks; its frames are put where there is room for them.
fn read<'p, 'b: 'p>(
    message: &Message<'b>,
    few: &'p mut [&'b [u8]; PACKED_MAX],
    many: &'p mut Vec<&'b [u8]>,
    value_max: usize,
) -> Parts<'p, &'b [u8]> {
    let count = message.frames().len();
    let frames: &'p [&'b [u8]] = if count <= PACKED_MAX {
        few.iter_mut().zip(message.frames()).for_each(|(place, frame)| *place = frame);
        few.get(..count).unwrap_or_default()
    } else {
        many.extend(message.frames());
        many
    };
    if message.is_whole() {
        return Parts::read(frames, value_max);
    }
    // Only its beginning is there. If that has a whole envelope, who asked is told with it.
    let envelope = split(frames).envelope;
    let envelope = if envelope.len() > ENVELOPE_FRAMES_MAX { &[] } else { envelope };
    Parts { envelope, request: Err(Fault { command: None, reason: Reason::BadRequest }) }
}
