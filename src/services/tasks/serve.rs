//! The loop between the clients and the queue: it receives, decodes and submits requests, and sends the replies.
//!
//! ```text
//! Connections ─► messages ─► TaskResponder: decode ─► Tasks::submit, a burst at a time ═► committer
//!      ▲                           │ pending: peer, envelope, verb                            │
//!      └── ReplyBuffer ◄── ClientState: encode ◄── read the value ◄════════ deliveries ◄═══════╝
//! ```
//! While the committer is idle, this thread commits a small burst by itself (`Tasks::try_commit`).
//!
//! The thread sleeps on its connections and on a wake signal, which the committer raises. While the committer has no
//! room, the thread does not receive, and requests wait in their connections. Requests of one client wait there, too,
//! when the committer has many bytes of it or of others (`window`).
//!
//! This module does not know the bytes (`wire`), the meaning of requests (`handle`, `tasks`), or the state of one
//! client (`client_state`).

mod answers;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Receiver;

use super::calls::NamedQueues;
use super::client_state::{Abandoned, ClientState, ReplyDeadline};
pub use super::config::{SpiderqConfig, Version};
use super::metrics;
use super::pending_replies::PendingReplies;
use super::responder::{ReplyPolicy, Taken, Taking, TaskResponder};
use crate::clock::{Clock, Now, TimeLimit};
use crate::limits::{ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX, ROOM_RECHECK, SUBMIT_MAX, TASK_FRAME_BYTES_MAX};
use crate::log::WarningPace;
use crate::net::service::{BoundConnections, Service, ServiceParts};
use crate::net::sockets::{ServeError, Stopper, WakingSender};
use crate::net::zeromq::{ConnectionId, Connections, ReplyBuffer, Serving, ServingParts, TurnOutcome};
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::store;
use crate::tasks::{Committer, Delivery, ReadOutcome, Tasks};
use crate::zmtp::{MessageBounds, MessageView};

/// Period of three checks: whether answers can still come, whether replies have waited for too long, and whether the
/// committer has room without having woken it.
const SWEEP: Duration = ROOM_RECHECK;
/// Bounds of a message: the longest request, and the longest envelope that the server returns.
const BOUNDS: MessageBounds = MessageBounds {
    frame_bytes: TASK_FRAME_BYTES_MAX as u64,
    frames: ENVELOPE_FRAMES_MAX + 1,
    bytes: ENVELOPE_BYTES_MAX + TASK_FRAME_BYTES_MAX,
};

/// A frontend that listens, before there is a store. Clients wait for their handshakes.
pub struct SpiderqListener {
    bound: BoundConnections<ClientState>,
    held_bytes_max: u64,
    settings: SpiderqConfig,
    /// For STATS.
    pub metrics: Arc<ServiceMetrics>,
    slow: Arc<SlowLog>,
}

impl SpiderqListener {
    /// Listens.
    ///
    /// # Errors
    /// [`ServeError`] if the endpoint is not available, or the system has no descriptor left.
    pub fn bind(settings: &SpiderqConfig, parts: ServiceParts) -> Result<Self, ServeError> {
        let bound = parts.listen(&settings.endpoint, BOUNDS)?;
        let (settings, metrics) = (settings.clone(), metrics::metrics(settings.access));
        Ok(Self { bound, held_bytes_max: parts.held_bytes_max, settings, metrics, slow: parts.slow })
    }

    /// Registers a sink with the committer for the answers about these queues. Calls `terminated` when a client ends the
    /// server.
    pub fn serve(
        self,
        committer: &mut Committer,
        tasks: Tasks,
        queues: NamedQueues,
        terminated: Box<dyn Fn() + Send>,
    ) -> Service<SpiderqFrontend> {
        let Self { bound, held_bytes_max, settings, metrics, slow } = self;
        let BoundConnections { connections, wake_signal, budget, endpoint } = bound;
        let stopper = Stopper::new(&wake_signal);
        let (sender, deliveries) = WakingSender::new(&wake_signal);
        let clock = Clock::start();
        let sink = committer.sink(Box::new(sender));
        let front = SpiderqFrontend {
            connections,
            responder: TaskResponder::new(tasks, queues, sink, ReplyPolicy::new(&settings)),
            stopper: stopper.clone(),
            deliveries,
            reads: WakingSender::new(&wake_signal),
            terminated: Some(terminated),
            replies: PendingReplies::new(held_bytes_max / 2),
            clock,
            sweep_at: clock.now().after(SWEEP),
            closures: ClosureWarnings::default(),
            metrics,
            slow,
        };
        let budgets = vec![budget, Arc::clone(front.replies.budget()), Arc::clone(front.responder.budget())];
        Service { front, stopper, endpoint, budgets }
    }
}

/// An answer whose values were read, for a pending reply.
struct ReadReply {
    peer: ConnectionId,
    number: u64,
    read: Result<ReadOutcome, store::Error>,
}

/// The frontend, to be run in the thread `tasks` or `events-queue`.
pub struct SpiderqFrontend {
    connections: Connections<ClientState>,
    responder: TaskResponder,
    stopper: Stopper,
    deliveries: Receiver<Delivery>,
    /// Where readers leave the values that they have read, and where this thread finds them.
    reads: (WakingSender<ReadReply>, Receiver<ReadReply>),
    /// Called once, by the first Terminate.
    terminated: Option<Box<dyn Fn() + Send>>,
    /// The bytes of all pending replies, and whose they are.
    replies: PendingReplies,
    clock: Clock,
    sweep_at: Now,
    closures: ClosureWarnings,
    metrics: Arc<ServiceMetrics>,
    slow: Arc<SlowLog>,
}

/// The warnings of connections that the frontend closes.
#[derive(Default)]
struct ClosureWarnings {
    /// Connections closed so far for an envelope above the limits.
    refused_ever: u64,
    refusal_warnings: WarningPace,
    overflow_warnings: WarningPace,
}

impl SpiderqFrontend {
    /// The loop of the thread. Returns after [`Stopper::stop`], when every request taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if a value cannot be read, or a change cannot be stored.
    pub fn run(mut self) -> Result<(), store::Error> {
        Serving::run(&mut self, Self::serve, Self::part)
    }

    /// Answers what was committed, and takes what has come.
    fn serve(&mut self, limit: Option<TimeLimit>) -> Result<(), store::Error> {
        self.answer()?;
        self.sweep()?;
        if self.responder.has_room() {
            self.take(limit);
        }
        match limit {
            None => self.try_commit()?,
            Some(_) => self.responder.submit(),
        }
        // After the last receiving: connections that have ended are not among them.
        metrics::show(&self.connections, &self.metrics);
        Ok(())
    }

    /// Answers every request taken, takes back the leases whose replies cannot be sent, and disconnects the clients.
    fn part(&mut self, limit: TimeLimit) -> Result<(), store::Error> {
        let clock = self.clock;
        while !(limit.is_over(clock.now()) || self.is_all_answered() && self.connections.is_all_sent()) {
            self.wait_for_answers(Some(limit));
            self.answer_and_settle()?;
        }
        // Replies that the system has not taken by now are discarded, and their leases go back.
        self.connections.discard_all();
        self.connections.disconnect_all();
        self.settle();
        self.responder.submit();
        while !self.responder.is_empty() {
            self.wait_for_answers(None);
            self.answer_and_settle()?;
        }
        Ok(())
    }

    /// Whether every request is answered and no reply is pending.
    fn is_all_answered(&mut self) -> bool {
        let Self { connections, replies, .. } = self;
        replies.late.retain(|peer| connections.connection(*peer).is_some_and(|(client, _)| client.replies_bytes() > 0));
        self.responder.is_empty() && self.replies.late.is_empty()
    }

    fn answer_and_settle(&mut self) -> Result<(), store::Error> {
        self.answer()?;
        self.sweep()?;
        self.responder.submit();
        Ok(())
    }

    /// Waits without receiving: while the frontend takes no requests, arriving ones must not wake the thread.
    fn wait_for_answers(&mut self, limit: Option<TimeLimit>) {
        let (clock, patience) = (self.clock, self.patience(limit));
        let start = clock.now();
        let raised = self.connections.wait_without_receiving(Some(patience), || clock.now());
        if !raised && start.after(ROOM_RECHECK) <= self.connections.now() {
            self.responder.count_if_overslept();
        }
    }

    fn patience(&self, limit: Option<TimeLimit>) -> Duration {
        limit.map_or(SWEEP, |limit| limit.left(self.clock.now()).min(SWEEP))
    }

    // ------------------------------------------------------------------------------------------------------- requests

    /// Takes the requests that clients have sent, until none is left, there is no room, or `limit` is over.
    fn take(&mut self, limit: Option<TimeLimit>) {
        let clock = self.clock;
        while self.responder.has_room() && !limit.is_some_and(|limit| limit.is_over(clock.now())) {
            let mut refused = None;
            if self.take_turn(&mut refused).is_none() {
                break;
            }
            if let Some(peer) = refused {
                self.refuse(peer);
            }
        }
        self.settle();
    }

    /// Runs one turn: of a connection that has waited for the window, or else of a connection that has sent requests.
    /// Sets `refused` if one of its messages is too large. `None`: no connection has a turn.
    fn take_turn(&mut self, refused: &mut Option<ConnectionId>) -> Option<()> {
        let Self { connections, responder, clock, .. } = self;
        let next = responder.window().next();
        let turn = |peer, client: &mut ClientState, outbox: &mut ReplyBuffer, messages: MessageView<'_>| {
            let (arrived, is_unread) = (outbox.arrived(clock.now()), outbox.is_unread());
            let taking = Taking { arrived, is_unread, is_next: next.is_some() };
            for (taken, message) in messages.iter().enumerate() {
                match responder.take(peer, client, &message, taking) {
                    Taken::Yes => {}
                    Taken::Later => return TurnOutcome::Parked(taken),
                    Taken::TooLarge => {
                        *refused = Some(peer);
                        break;
                    }
                }
            }
            TurnOutcome::All
        };
        match next {
            Some(peer) => {
                connections.resume(peer, turn);
                Some(())
            }
            None => connections.receive(SUBMIT_MAX, turn),
        }
    }

    /// Disconnects a client that has sent a message above the limits.
    fn refuse(&mut self, peer: ConnectionId) {
        self.connections.disconnect(peer);
        self.closures.refused_ever += 1;
        if self.closures.refusal_warnings.is_time(self.connections.now()) {
            let refused_ever = self.closures.refused_ever;
            tracing::warn!(
                "a message about tasks has an envelope of more than {ENVELOPE_FRAMES_MAX} frames, or {ENVELOPE_BYTES_MAX} bytes: its connection is closed; \
                 {refused_ever} by now"
            );
        }
    }

    /// Takes back the blocked Lends and the leases of clients that have left.
    fn settle(&mut self) {
        let mut abandoned = Abandoned::default();
        while let Some(gone) = self.connections.gone() {
            self.replies.change(gone.id, gone.state.replies_bytes(), 0);
            gone.state.leave(gone.sent, &mut abandoned);
        }
        self.responder.settle(abandoned);
    }

    /// Commits or submits the burst, and sends the answers that come at once, until no burst is left.
    fn try_commit(&mut self) -> Result<(), store::Error> {
        while let Some(own) = self.responder.try_commit(self.clock)? {
            // Answers that were delivered before are older.
            self.receive_deliveries()?;
            self.receive_delivery(own)?;
            self.send_all()?;
        }
        Ok(())
    }

    /// Once each `SWEEP`, checks that answers can still come, and closes the connections whose replies have waited for
    /// too long.
    fn sweep(&mut self) -> Result<(), store::Error> {
        let now = self.clock.now();
        if now < self.sweep_at {
            return Ok(());
        }
        self.sweep_at = now.after(SWEEP);
        self.responder.tasks().check()?;
        for peer in self.replies.take_late() {
            match self.connections.connection(peer).map(|(client, outbox)| client.patience(outbox, now)) {
                Some(ReplyDeadline::Over) => self.connections.close(peer),
                Some(ReplyDeadline::Some) => self.replies.late.push(peer),
                Some(ReplyDeadline::NoNeed) | None => {}
            }
        }
        Ok(())
    }
}

impl Serving<ClientState> for SpiderqFrontend {
    fn parts(&mut self) -> ServingParts<'_, ClientState> {
        ServingParts { connections: &mut self.connections, stopper: &self.stopper, clock: self.clock }
    }

    /// Sleeps until there is work, or until `limit` is over.
    fn wait(&mut self, limit: Option<TimeLimit>) {
        if self.responder.has_room() {
            let idle = self.responder.is_empty() && self.replies.late.is_empty() && limit.is_none();
            let (clock, patience) = (self.clock, self.patience(limit));
            let timeout = match self.responder.window().has_next() {
                true => Some(Duration::ZERO),
                false => (!idle).then_some(patience),
            };
            self.connections.wait(timeout, || clock.now());
        } else {
            self.wait_for_answers(limit);
            if self.responder.has_room() {
                // Clients that have sent requests meanwhile have their turns at once.
                let clock = self.clock;
                self.connections.wait(Some(Duration::ZERO), || clock.now());
            }
        }
    }

    fn has_waiting(&mut self) -> bool {
        self.responder.window().has_waiting()
    }

    fn stop_accepting(&mut self) {
        self.connections.stop_accepting();
        self.responder.tasks().dismiss();
    }
}
