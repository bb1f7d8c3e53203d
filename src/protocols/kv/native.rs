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
//! A client whose replies are large gets fewer of them in a turn, so that what it has not read stays bounded.
//!
//! What is not here: connections (`protocols/native`), and what requests mean.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Desk, Parts, TIMED_ONE_OF};
use super::handle::{Busy, Context};
use super::packet::PACKED_MAX;
use super::report::{QueueTally, Report, WorkerTally};
use super::wire::{Fault, Reason, split};
use crate::clock::Clock;
use crate::limits::{BATCH_MAX, ENVELOPE_FRAMES_MAX, LARGE_REPLIES_BYTES, LINGER, LOOK_AHEAD};
use crate::protocols::native::{Entrance, Outbox, Peers};
use crate::protocols::sockets::Stopper;
use crate::stats::Sampler;
use crate::tables::Session;
use crate::zmtp::{Message, Messages};

/// How many requests of a connection are answered in a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace(usize);

impl Default for Pace {
    /// Before anything is known of the replies.
    fn default() -> Self {
        Self(LOOK_AHEAD)
    }
}

impl Pace {
    /// After a turn with replies of so many bytes.
    fn adapt(&mut self, bytes: u64) {
        self.0 = if bytes > LARGE_REPLIES_BYTES { (self.0 / 4).max(1) } else { (self.0 * 2).min(BATCH_MAX) };
    }
}

/// What a worker answers with, beside its connections.
pub(super) struct Kitchen {
    pub(super) session: Session,
    pub(super) clock: Clock,
    pub(super) value_max: usize,
    pub(super) tally: Arc<WorkerTally>,
    pub(super) clients: Arc<QueueTally>,
    pub(super) report: Arc<Report>,
}

/// A worker that owns its connections, ready to run.
pub struct NativeWorker {
    pub(super) peers: Peers<Pace>,
    pub(super) entrance: Entrance,
    pub(super) stopper: Stopper,
    pub(super) kitchen: Kitchen,
}

impl NativeWorker {
    /// The loop of the thread. Returns when it was told to stop and what was taken is answered.
    pub fn run(mut self) {
        let report = Arc::clone(&self.kitchen.report);
        let clock = self.kitchen.clock;
        let context = Context { stats: &|| report.render(), now: &|| clock.now() };
        let mut sampler = Sampler::new(TIMED_ONE_OF);
        while !self.stopper.is_told() {
            self.peers.wait(None, || clock.now());
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
        while self.peers.has_backlog() && clock.now() < end {
            self.peers.wait(Some(Duration::ZERO), || clock.now());
            self.serve(&context, &mut sampler);
        }
        self.peers.part_all();
        while !self.peers.is_empty() && clock.now() < end {
            let left = Duration::from_nanos(end.nanos().saturating_sub(clock.now().nanos()));
            self.peers.wait(Some(left), || clock.now());
            self.serve(&context, &mut sampler);
        }
    }

    fn let_in(&mut self) {
        while let Some(descriptor) = self.entrance.next() {
            self.peers.adopt(descriptor, self.peers.now());
        }
    }

    /// Gives everybody who has sent something a turn.
    fn serve(&mut self, context: &Context<'_>, sampler: &mut Sampler) {
        let Self { peers, kitchen, entrance, .. } = self;
        loop {
            let turn = peers.receive(
                |pace| pace.0,
                |_, pace, outbox, messages, bytes| {
                    let before = outbox.end();
                    kitchen.answer_all(messages, bytes, outbox, (context, sampler));
                    pace.adapt(outbox.end() - before);
                },
            );
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
    }
}

impl Kitchen {
    /// Answers messages in their order, in as many batches as it takes.
    fn answer_all(
        &mut self,
        messages: &Messages,
        bytes: &[u8],
        outbox: &mut Outbox,
        (context, sampler): (&Context<'_>, &mut Sampler),
    ) {
        let Self { session, clock, value_max, tally, clients, .. } = self;
        clients.requests.add(messages.len() as u64);
        let desk = Desk { clock: *clock, value_max: *value_max, tally, context };
        let mut batch = session.batch(clock.now());
        let mut messages = messages.iter(bytes);
        loop {
            let mut few = [[&[][..]; PACKED_MAX]; LOOK_AHEAD];
            let mut many: [Vec<&[u8]>; LOOK_AHEAD] = [const { Vec::new() }; LOOK_AHEAD];
            let mut letters: [Option<Parts<'_, &[u8]>>; LOOK_AHEAD] = [const { None }; LOOK_AHEAD];
            let mut count = 0;
            let places = few.iter_mut().zip(&mut many);
            for ((letter, (few, many)), message) in letters.iter_mut().zip(places).zip(&mut messages) {
                *letter = Some(read(&message, few, many, *value_max));
                clients.oversized.add(u64::from(!message.is_whole()));
                count += 1;
            }
            batch.foresee(letters.iter().flatten().filter_map(Parts::element));
            for parts in letters.iter().flatten() {
                while desk.answer(parts, &mut batch, sampler, |frame, more| outbox.push(frame, more)) == Err(Busy) {
                    drop(batch);
                    session.wait();
                    batch = session.batch(clock.now());
                }
            }
            if count < LOOK_AHEAD {
                break;
            }
        }
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
