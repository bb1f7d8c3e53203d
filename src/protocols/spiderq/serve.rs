//! The loop between the clients and the queue: it receives, decodes, asks, and sends what is answered.
//!
//! ```text
//! ROUTER ─► split, decode ─► Tasks::ask, a burst at a time ═► committer
//!   ▲                          │ pending: envelope, kind              │
//!   └── post ◄── encode ◄── reply ◄── read the value ◄═ deliveries ◄══╝
//! ```
//! Everything takes its turn in the queue, also what is not understood: so a client that does not wait for answers gets them
//! in the order of its requests, but for Lends that block. The thread sleeps on the socket and a bell, which the committer
//! rings; while the committer has too much to do it does not receive, and what clients send waits in their connections.
//!
//! What is not here: the bytes (`wire`), what requests mean (`handle`, `tasks`), and clients that do not read (`post`).

use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use slab::Slab;

use super::handle::{asked, reply};
use super::post::{Address, Lease, Letter, Post};
use super::wire::{Counters, Fault, Field, Reply, Request, tag};
use crate::clock::{Clock, Now};
use crate::limits::{
    ASK_BURST, ASK_BURST_BYTES, ASKED_BYTES_MAX, CLIENT_BYTES_DEFAULT, ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX, LINGER,
    REPLIES_IN_PIPE, TASK_FRAME_BYTES_MAX, TASK_REQUESTS_MAX,
};
use crate::protocols::sockets::{Bell, Context, Frame, ServeError, Stopper, wait};
use crate::store;
use crate::tasks::{self, Ask, Committer, Delivery, Face, Outcome, QueueId, Tasks, Ticket};

/// How often replies are tried again that could not be sent.
const RETRY: Duration = Duration::from_millis(5);
/// How often it is looked for those who wait and have gone.
const SWEEP: Duration = Duration::from_secs(5);
/// Kinds of requests, by their tags.
const TAGS: usize = 13;

/// Which version of the protocol StatsGot is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Eight counters.
    V1_3,
    /// Ten.
    V1_4,
}

/// What the face is told to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where requests come in.
    pub endpoint: String,
    /// How Stats are answered.
    pub version: Version,
    /// Whether clients may end the server.
    pub terminate: bool,
}

/// What runs, and where it listens.
pub struct Spiderq {
    /// For the thread `spiderq`.
    pub front: Front,
    /// Tells it to take no more.
    pub stopper: Stopper,
    /// Where requests come in, with the port that the system chose.
    pub endpoint: String,
}

/// Listens, and has the committer deliver answers about `queue` here. `terminated` is called when a client has ended the server.
///
/// # Errors
/// [`ServeError`] if the endpoint cannot be had, or the system has no descriptor left.
pub fn bind(
    context: &Context,
    settings: &Settings,
    (committer, tasks, queue): (&mut Committer, Tasks, QueueId),
    terminated: Box<dyn Fn() + Send>,
) -> Result<Spiderq, ServeError> {
    let mut router = context.router_for(REPLIES_IN_PIPE, TASK_FRAME_BYTES_MAX)?;
    let endpoint = router.bind(&settings.endpoint)?;
    let stopper = Stopper::new()?;
    let (sender, deliveries) = unbounded();
    let clock = Clock::start();
    let face = committer.face(Box::new(Mailbox { sender, bell: stopper.bell().clone() }));
    let front = Front {
        post: Post::new(router, CLIENT_BYTES_DEFAULT),
        stopper: stopper.clone(),
        deliveries,
        tasks,
        queue,
        face,
        version: settings.version,
        terminate: settings.terminate,
        terminated: Some(terminated),
        pending: Slab::new(),
        pending_bytes: 0,
        clock,
        sweep_at: clock.now().after(SWEEP),
        burst: Vec::with_capacity(ASK_BURST),
        answered: [0; TAGS],
        lost: Vec::new(),
    };
    Ok(Spiderq { front, stopper, endpoint })
}

/// The committer's end. There are never more answers in it than requests are pending.
struct Mailbox {
    sender: Sender<Delivery>,
    bell: Bell,
}

impl Face for Mailbox {
    fn deliver(&self, delivery: Delivery) {
        // The face outlives the committer; if it has failed, the process is about to end.
        let _failed = self.sender.send(delivery);
        self.bell.ring();
    }
}

/// A request that is not answered yet.
enum Pending {
    /// Of this tag, or not understood, from there.
    Answer(Result<u8, Fault>, Address),
    /// A lease or a wait that is taken back; nobody hears of it.
    Undo,
}

/// The face, ready to run.
pub struct Front {
    post: Post,
    stopper: Stopper,
    deliveries: Receiver<Delivery>,
    tasks: Tasks,
    queue: QueueId,
    face: usize,
    version: Version,
    terminate: bool,
    /// To be called once.
    terminated: Option<Box<dyn Fn() + Send>>,
    /// By the number of the ticket.
    pending: Slab<Pending>,
    /// What their addresses take.
    pending_bytes: u64,
    clock: Clock,
    sweep_at: Now,
    /// What is to be asked next.
    burst: Vec<Ask>,
    /// By the tag.
    answered: [u64; TAGS],
    /// Leases that have reached nobody.
    lost: Vec<Lease>,
}

impl Front {
    /// The loop of the thread. Returns when it was told to stop and everything that was taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if a value cannot be read.
    pub fn run(mut self) -> Result<(), store::Error> {
        while !self.stopper.is_told() {
            self.rest();
            self.answer()?;
            self.sweep()?;
            if self.has_room() {
                self.take();
            }
        }
        self.tasks.dismiss();
        let end = self.clock.now().after(LINGER);
        while !self.pending.is_empty() || self.post.holds() {
            self.wait_for_answers();
            self.answer()?;
            self.sweep()?;
            if self.clock.now() >= end {
                self.post.give_up(&mut self.lost);
                self.take_back();
            }
        }
        self.post.router().set_linger(LINGER);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.pending.len() < TASK_REQUESTS_MAX && self.pending_bytes < ASKED_BYTES_MAX && !self.tasks.is_full()
    }

    fn rest(&self) {
        if self.has_room() {
            let patience = if self.post.holds() { RETRY } else { SWEEP };
            let idle = self.pending.is_empty() && !self.post.holds();
            wait(&[self.post.router()], self.stopper.bell(), (!idle).then_some(patience));
        } else {
            self.wait_for_answers();
        }
    }

    fn wait_for_answers(&self) {
        wait(&[], self.stopper.bell(), Some(RETRY));
    }

    // ------------------------------------------------------------------------------------------------------- requests

    /// Takes what clients have sent, a burst at most, and asks it.
    fn take(&mut self) {
        let (mut id, mut bytes) = (Frame::new(), 0);
        for _ in 0..ASK_BURST {
            if bytes > ASK_BURST_BYTES || !self.post.router().receive(&mut id) {
                break;
            }
            bytes += self.take_one(std::mem::take(&mut id));
        }
        self.ask();
    }

    fn ask(&mut self) {
        if !self.burst.is_empty() {
            let burst = std::mem::replace(&mut self.burst, Vec::with_capacity(ASK_BURST));
            self.tasks.ask(burst);
        }
    }

    /// Takes the message of which the routing id has been received. The bytes of its request.
    fn take_one(&mut self, id: Frame) -> usize {
        let Some(mut envelope) = self.receive_rest(&id) else { return 0 };
        let Some(frame) = envelope.pop().filter(|_| !self.post.is_cut(&id)) else { return 0 };
        let decoded = Request::decode(&frame).and_then(|request| self.permitted(request));
        let request = decoded.as_ref().map_or(tasks::Request::Nothing, asked);
        let waits = matches!(request, tasks::Request::Lease { wait: true, .. });
        let address = Address::of(id, envelope, waits);
        self.pending_bytes += address.bytes();
        self.put(Pending::Answer(decoded.map(|request| request.tag()), address), request);
        frame.len()
    }

    /// The frames behind the routing id; none if the envelope is longer than anybody has use for: such a message is not answered.
    fn receive_rest(&self, id: &Frame) -> Option<Vec<Frame>> {
        let mut frames = Vec::with_capacity(2);
        let (mut more, mut bytes, mut good) = (id.more(), 0, true);
        while more {
            let mut frame = Frame::new();
            self.post.router().receive_rest(&mut frame);
            more = frame.more();
            bytes += if more { frame.len() } else { 0 };
            good &= frames.len() <= ENVELOPE_FRAMES_MAX && bytes <= ENVELOPE_BYTES_MAX;
            if good {
                frames.push(frame);
            }
        }
        good.then_some(frames)
    }

    /// A request that the server is told to refuse is none.
    fn permitted<'r>(&self, request: Request<'r>) -> Result<Request<'r>, Fault> {
        match request {
            Request::Terminate if !self.terminate => {
                Err(Fault::Offending { field: Field::UnknownTag, offending: tag::TERMINATE })
            }
            other => Ok(other),
        }
    }

    fn put(&mut self, pending: Pending, request: tasks::Request) {
        let number = self.pending.insert(pending) as u64;
        let ticket = Ticket { face: self.face, number };
        self.burst.push(Ask { queue: self.queue, ticket, request });
    }

    // -------------------------------------------------------------------------------------------------------- answers

    /// Sends what has been answered.
    fn answer(&mut self) -> Result<(), store::Error> {
        while let Ok(delivery) = self.deliveries.try_recv() {
            for (number, outcome) in &delivery.answers {
                let number = usize::try_from(*number).expect("a ticket is a place in the slab");
                let pending = self.pending.remove(number);
                self.answer_one(pending, outcome, &delivery)?;
            }
        }
        if self.post.holds() {
            self.post.retry(&mut self.lost);
        }
        self.take_back();
        Ok(())
    }

    fn answer_one(&mut self, pending: Pending, outcome: &Outcome, delivery: &Delivery) -> Result<(), store::Error> {
        let Pending::Answer(asked, address) = pending else { return Ok(()) };
        let value = outcome.payload().map(|payload| delivery.read(payload)).transpose()?;
        let value = value.as_deref().unwrap_or_default();
        let reply = match asked {
            Err(fault) => Reply::Error(fault),
            Ok(tag) => {
                self.count(tag);
                reply(outcome, value).unwrap_or_else(|| self.own(tag))
            }
        };
        let lease = match outcome {
            Outcome::Leased { token, key, .. } => Some(Lease { token: *token, key: key.clone() }),
            _ => None,
        };
        let ends = reply == Reply::Terminated;
        let mut bytes = Vec::with_capacity(64);
        reply.encode(&mut bytes);
        self.pending_bytes -= address.bytes();
        self.post.send(Letter { address, reply: Frame::from(&*bytes), lease }, &mut self.lost);
        if let Some(terminated) = self.terminated.take_if(|_| ends) {
            terminated();
        }
        Ok(())
    }

    fn count(&mut self, tag: u8) {
        if let Some(count) = self.answered.get_mut(usize::from(tag)) {
            *count += 1;
        }
    }

    /// The reply to a request that has only waited for its turn.
    fn own(&self, asked: u8) -> Reply<'static> {
        match asked {
            tag::STATS => Reply::StatsGot(self.stats()),
            tag::TERMINATE => Reply::Terminated,
            tag::FLUSH => Reply::Flushed,
            _ => Reply::Pong,
        }
    }

    fn stats(&self) -> Counters {
        let count = |(_, tag)| self.answered.get(usize::from(tag)).copied().unwrap_or_default();
        match self.version {
            Version::V1_3 => Counters::Eight(Counters::LISTED_1_3.map(count)),
            Version::V1_4 => Counters::Ten(Counters::LISTED_1_4.map(count)),
        }
    }

    /// Looks now and then whether answers can still come; and those who wait for a task and have gone wait no more.
    fn sweep(&mut self) -> Result<(), store::Error> {
        if self.clock.now() < self.sweep_at {
            return Ok(());
        }
        self.tasks.check()?;
        self.sweep_at = self.clock.now().after(SWEEP);
        self.post.sweep();
        let is_gone = |(number, pending): (usize, &Pending)| match pending {
            Pending::Answer(Ok(tag::LEND), address) if !address.is_open() => Some(number as u64),
            _ => None,
        };
        let gone: Vec<u64> = self.pending.iter().filter_map(is_gone).collect();
        if !gone.is_empty() {
            self.put(Pending::Undo, tasks::Request::Withdraw { tickets: gone });
            self.ask();
        }
        Ok(())
    }

    /// Leases of which nobody has heard go back.
    fn take_back(&mut self) {
        for Lease { token, key } in std::mem::take(&mut self.lost) {
            self.put(Pending::Undo, tasks::Request::Undo { token, key });
        }
        self.ask();
    }
}
