//! The loop between the clients and the queue: it receives, decodes, asks, and sends what is answered.
//!
//! ```text
//! connections ─► Peers ─► messages ─► Desk: decode ─► Tasks::ask, a burst at a time ═► committer
//!      ▲                                 │ pending: peer, envelope, tag                   │
//!      └── outboxes ◄── Seat: encode ◄── read the value ◄═════════ deliveries ◄═══════════╝
//! ```
//! The thread sleeps on its connections and a bell, which the committer rings; while the committer has too much to do it
//! does not receive, and what clients send waits in their connections.
//!
//! What is not here: the bytes (`wire`), what requests mean (`handle`, `tasks`), and what is kept for each client (`client`).

use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::client_state::{Abandoned, ClientState, PendingReply, ReplyDeadline};
use super::handle::Access;
use super::pending_replies::PendingReplies;
use super::responder::{PendingRequest, ReplyPolicy, TaskResponder};
use super::wire::tag;
use crate::clock::{Clock, Now};
use crate::limits::{
    ASK_BURST, CLIENT_BYTES_DEFAULT, ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX, LINGER, ROOM_RECHECK,
    TASK_FRAME_BYTES_MAX,
};
use crate::log::WarningPace;
use crate::protocols::native::{BoundListener, BufferBudget, ConnectionId, Connections, TurnOutcome};
use crate::protocols::sockets::{ServeError, Stopper, WakeSignal};
use crate::stats::HeldBytes;
use crate::store;
use crate::tasks::{Committer, Delivery, QueueId, ReplySink, Tasks};
use crate::zmtp::MessageBounds;

/// How often the face looks whether answers can still come, whether some wait for too long, and whether the committer has room and has not said so.
const SWEEP: Duration = ROOM_RECHECK;
/// What is kept of a message: the longest request, and an envelope of which nobody needs more.
const BOUNDS: MessageBounds = MessageBounds {
    frame_bytes: TASK_FRAME_BYTES_MAX as u64,
    frames: ENVELOPE_FRAMES_MAX + 1,
    bytes: ENVELOPE_BYTES_MAX + TASK_FRAME_BYTES_MAX,
};

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
pub struct SpiderqConfig {
    /// Where requests come in.
    pub endpoint: String,
    /// How Stats are answered.
    pub version: Version,
    /// Whether clients may end the server.
    pub terminate: bool,
    /// What they may ask.
    pub access: Access,
}

/// What runs, and where it listens.
pub struct Spiderq {
    /// For the thread `spiderq`.
    pub front: SpiderqFrontend,
    /// Tells it to take no more.
    pub stopper: Stopper,
    /// Where requests come in, with the port that the system chose.
    pub endpoint: String,
}

/// Listens, and has the committer deliver answers about `queue` here; connections and letters each take half of `held_bytes_max`.
/// `terminated` is called when a client has ended the server. Gives back as well what says how much clients have not taken.
///
/// # Errors
/// [`ServeError`] if the endpoint cannot be had, or the system has no descriptor left.
pub fn bind(
    settings: &SpiderqConfig,
    held_bytes_max: u64,
    (committer, tasks, queue): (&mut Committer, Tasks, QueueId),
    terminated: Box<dyn Fn() + Send>,
) -> Result<(Spiderq, HeldBytes), ServeError> {
    let listener = BoundListener::bind(&settings.endpoint)?;
    let endpoint = listener.endpoint().to_owned();
    let stopper = Stopper::new()?;
    let budget = BufferBudget::new(held_bytes_max / 2);
    let mut connections = Connections::new(stopper.bell(), BOUNDS, &budget).map_err(std::io::Error::from)?;
    connections.listen(listener).map_err(std::io::Error::from)?;
    let (sender, deliveries) = unbounded();
    let clock = Clock::start();
    let sink = committer.sink(Box::new(Mailbox { sender, bell: stopper.bell().clone() }));
    let front = SpiderqFrontend {
        connections,
        responder: TaskResponder::new(tasks, queue, sink, ReplyPolicy::new(settings)),
        stopper: stopper.clone(),
        deliveries,
        terminated: Some(terminated),
        late: Vec::new(),
        replies: PendingReplies::default(),
        letters_bytes_max: held_bytes_max / 2,
        clock,
        sweep_at: clock.now().after(SWEEP),
        refused_ever: 0,
        refusals_told: WarningPace::default(),
        closures_told: WarningPace::default(),
    };
    let replies = front.replies.figure();
    let held = Box::new(move || budget.held() + replies.get());
    Ok((Spiderq { front, stopper, endpoint }, held))
}

/// The committer's end. There are never more answers in it than requests are pending.
struct Mailbox {
    sender: Sender<Delivery>,
    bell: WakeSignal,
}

impl ReplySink for Mailbox {
    fn deliver(&self, delivery: Delivery) {
        // The face outlives the committer; if it has failed, the process is about to end.
        let _failed = self.sender.send(delivery);
        self.bell.ring();
    }

    fn go_on(&self) {
        self.bell.ring();
    }
}

/// The face, ready to run.
pub struct SpiderqFrontend {
    connections: Connections<ClientState>,
    responder: TaskResponder,
    stopper: Stopper,
    deliveries: Receiver<Delivery>,
    /// To be called once.
    terminated: Option<Box<dyn Fn() + Send>>,
    /// Clients who have letters that wait for them to read, or had.
    late: Vec<ConnectionId>,
    /// What all letters that wait take.
    replies: PendingReplies,
    /// What they may take, in bytes.
    letters_bytes_max: u64,
    clock: Clock,
    sweep_at: Now,
    /// Connections that were closed for an envelope without end.
    refused_ever: u64,
    refusals_told: WarningPace,
    closures_told: WarningPace,
}

impl SpiderqFrontend {
    /// The loop of the thread. Returns when it was told to stop and everything that was taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if a value cannot be read, or something cannot be stored.
    pub fn run(mut self) -> Result<(), store::Error> {
        while !self.stopper.is_told() {
            self.rest(None);
            self.answer()?;
            self.sweep()?;
            if self.responder.has_room() {
                self.take();
            }
            self.ask_now()?;
        }
        self.end()
    }

    /// Answers everything that was taken, takes back what reaches nobody, and parts with the clients.
    fn end(&mut self) -> Result<(), store::Error> {
        self.connections.stop_accepting();
        self.responder.tasks().dismiss();
        // What has come until now is taken.
        let clock = self.clock;
        self.connections.wait(Some(Duration::ZERO), || clock.now());
        self.take();
        self.responder.ask();
        self.connections.stop_receiving();
        let end = clock.now().after(LINGER);
        while self.connections.has_backlog() && clock.now() < end {
            self.rest(Some(end));
            self.answer_and_settle()?;
            self.take();
            self.responder.ask();
        }
        while !(self.is_all_answered() && self.connections.is_all_sent()) && clock.now() < end {
            self.wait_for_answers(Some(end));
            self.answer_and_settle()?;
        }
        // What they have not read by now goes back.
        self.connections.discard_all();
        self.connections.disconnect_all();
        self.settle();
        self.responder.ask();
        while !self.responder.is_empty() {
            self.wait_for_answers(None);
            self.answer_and_settle()?;
        }
        while !self.connections.is_empty() && clock.now() < end {
            self.connections.wait(Some(left_until(end, clock.now())), || clock.now());
            while self.connections.receive(1, |_, _, _, _, _| TurnOutcome::All).is_some() {}
        }
        Ok(())
    }

    /// Whether nothing is left to be written to anybody.
    fn is_all_answered(&mut self) -> bool {
        let Self { connections, late, .. } = self;
        late.retain(|peer| connections.connection(*peer).is_some_and(|(client, _)| client.replies_bytes() > 0));
        self.responder.is_empty() && self.late.is_empty()
    }

    fn answer_and_settle(&mut self) -> Result<(), store::Error> {
        self.answer()?;
        self.sweep()?;
        self.responder.ask();
        Ok(())
    }

    /// Sleeps until there is something to do, or it is `end`.
    fn rest(&mut self, end: Option<Now>) {
        if self.responder.has_room() {
            let idle = self.responder.is_empty() && self.late.is_empty() && end.is_none();
            let (clock, patience) = (self.clock, self.patience(end));
            self.connections.wait((!idle).then_some(patience), || clock.now());
        } else {
            self.wait_for_answers(end);
            if self.responder.has_room() {
                // Clients that have sent something meanwhile have their turns at once.
                let clock = self.clock;
                self.connections.wait(Some(Duration::ZERO), || clock.now());
            }
        }
    }

    /// As long as nothing is taken, clients that have sent something must not wake the thread.
    fn wait_for_answers(&mut self, end: Option<Now>) {
        let (clock, patience) = (self.clock, self.patience(end));
        let start = clock.now();
        let rung = self.connections.wait_without_receiving(Some(patience), || clock.now());
        if !rung && start.after(ROOM_RECHECK) <= self.connections.now() {
            self.responder.has_overslept();
        }
    }

    fn patience(&self, end: Option<Now>) -> Duration {
        end.map_or(SWEEP, |end| left_until(end, self.clock.now()).min(SWEEP))
    }

    // ------------------------------------------------------------------------------------------------------- requests

    /// Takes what clients have sent, and asks it.
    fn take(&mut self) {
        let Self { connections, responder, refused_ever, refusals_told, .. } = self;
        while responder.has_room() {
            let mut refused = None;
            let turn = connections.receive(ASK_BURST, |peer, client, _, messages, bytes| {
                let all_taken = messages.iter(bytes).all(|message| responder.take(peer, client, &message));
                refused = (!all_taken).then_some(peer);
                TurnOutcome::All
            });
            if turn.is_none() {
                break;
            }
            if let Some(peer) = refused {
                connections.refuse(peer);
                *refused_ever += 1;
                if refusals_told.is_time(connections.now()) {
                    tracing::warn!(
                        "a message about tasks has an envelope of more than {ENVELOPE_FRAMES_MAX} frames, or {ENVELOPE_BYTES_MAX} bytes: its connection is closed; \
                         {refused_ever} by now"
                    );
                }
            }
        }
        self.settle();
    }

    /// What clients who have left had goes back.
    fn settle(&mut self) {
        let mut abandoned = Abandoned::default();
        while let Some(gone) = self.connections.gone() {
            self.replies.change(gone.id, gone.state.replies_bytes(), 0);
            gone.state.leave(gone.sent, &mut abandoned);
        }
        self.responder.settle(abandoned);
    }

    /// Asks what is to be asked, and sends what is answered at once, until nothing is left of it.
    fn ask_now(&mut self) -> Result<(), store::Error> {
        while let Some(own) = self.responder.ask_now(self.clock)? {
            // What was delivered before is older.
            self.hear_deliveries()?;
            self.hear(own)?;
            self.send_all()?;
        }
        Ok(())
    }

    // -------------------------------------------------------------------------------------------------------- answers

    /// Sends what has been answered, and what there is room for now.
    fn answer(&mut self) -> Result<(), store::Error> {
        self.hear_deliveries()?;
        self.send_all()
    }

    fn hear_deliveries(&mut self) -> Result<(), store::Error> {
        while let Ok(delivery) = self.deliveries.try_recv() {
            self.hear(delivery)?;
        }
        Ok(())
    }

    fn hear(&mut self, Delivery { answers, before }: Delivery) -> Result<(), store::Error> {
        let at = self.clock.now();
        for (ticket, outcome) in answers {
            if let PendingRequest::Answer { peer, envelope, asked, waits } = self.responder.answered(ticket) {
                let reply = PendingReply { envelope, asked, outcome, before: before.clone(), at };
                self.write(peer, waits.then_some(ticket), reply)?;
            }
        }
        Ok(())
    }

    fn send_all(&mut self) -> Result<(), store::Error> {
        self.connections.flush();
        while let Some(peer) = self.connections.drained() {
            if let Some((client, outbox)) = self.connections.connection(peer) {
                let before = client.replies_bytes();
                client.write(outbox, |tag| self.responder.policy.own(tag))?;
                self.replies.change(peer, before, client.replies_bytes());
            }
            self.connections.flush();
        }
        self.settle();
        Ok(())
    }

    /// Writes a letter, or has it wait; `waited`: its request has waited under this ticket.
    fn write(&mut self, peer: ConnectionId, waited: Option<u64>, reply: PendingReply) -> Result<(), store::Error> {
        if let Ok(tag) = reply.asked {
            self.responder.policy.count(tag);
        }
        if reply.asked == Ok(tag::TERMINATE)
            && let Some(terminated) = self.terminated.take()
        {
            terminated();
        }
        let Some((client, outbox)) = self.connections.connection(peer) else {
            reply.into_lease().into_iter().for_each(|lease| self.responder.take_back(lease));
            return Ok(());
        };
        waited.into_iter().for_each(|ticket| client.has_heard_of(ticket));
        let before = client.replies_bytes();
        client.send(reply, outbox, |tag| self.responder.policy.own(tag))?;
        let after = client.replies_bytes();
        self.replies.change(peer, before, after);
        if after > 0 && before == 0 {
            self.late.push(peer);
        }
        if after > CLIENT_BYTES_DEFAULT {
            self.close(peer, after);
        }
        while self.replies.bytes() > self.letters_bytes_max
            && let Some((largest, bytes)) = self.replies.largest()
        {
            self.close(largest, bytes);
        }
        Ok(())
    }

    /// Closes the connection of a client for whom so many bytes of letters wait; what it had goes back.
    fn close(&mut self, peer: ConnectionId, bytes: u64) {
        self.connections.close(peer);
        self.settle();
        if self.closures_told.is_time(self.clock.now()) {
            tracing::warn!(
                "a client that does not read has {bytes} bytes of answers waiting: its connection is closed"
            );
        }
    }

    /// Looks now and then whether answers can still come; and closes the connections of those who have let them wait for too long.
    fn sweep(&mut self) -> Result<(), store::Error> {
        let now = self.clock.now();
        if now < self.sweep_at {
            return Ok(());
        }
        self.sweep_at = now.after(SWEEP);
        self.responder.tasks().check()?;
        let mut late = std::mem::take(&mut self.late);
        late.sort_unstable();
        late.dedup();
        for peer in late {
            match self.connections.connection(peer).map(|(client, outbox)| client.patience(outbox, now)) {
                Some(ReplyDeadline::Over) => self.connections.close(peer),
                Some(ReplyDeadline::Some) => self.late.push(peer),
                Some(ReplyDeadline::NoNeed) | None => {}
            }
        }
        Ok(())
    }
}

fn left_until(end: Now, now: Now) -> Duration {
    Duration::from_nanos(end.nanos().saturating_sub(now.nanos()))
}
