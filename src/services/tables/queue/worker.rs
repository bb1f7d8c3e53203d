//! A worker behind the queue: it answers the turns of a batch, and sends the batch back with the replies.
//!
//! ```text
//! wait for a batch, the tables or a report ─► late turns, then those of the batch ─► the queue
//!                                                └─► a turn that has to wait is kept here until it is tried again
//! ```
//! The first requests of several turns are decoded before any of them is answered, and what they read is fetched
//! together: most turns have a single request.
//!
//! This module does not answer requests; see `turn`. It does not know connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ahash::AHashMap;
use rustix::event::{PollFd, PollFlags, poll};

use super::Work;
use crate::limits::{BATCH_MAX, LOOK_AHEAD};
use crate::net::budget::Budget;
use crate::net::sockets::{WakeSignal, timespec};
use crate::net::zeromq::inproc::{Message, WorkerEnd};
use crate::net::zeromq::{ConnectionId, TurnBatch, TurnOut, TurnParts};
use crate::services::tables::handle::HandlerContext;
use crate::services::tables::turn::{ConnectionTurn, TableClient, WorkerState};
use crate::services::tables::waiting::WaitingClients;

/// The parts of a worker.
pub(in super::super) struct WorkerParts {
    pub(in super::super) end: WorkerEnd<Work>,
    pub(in super::super) state: WorkerState,
    /// Raised when the tables have room again, and when a report is made.
    pub(in super::super) wake_signal: WakeSignal,
    /// The memory of the clients.
    pub(in super::super) budget: Arc<Budget>,
    /// Set by the queue before its last message.
    pub(in super::super) stop: Arc<AtomicBool>,
}

/// A worker, ready to run.
pub struct QueueWorker {
    parts: WorkerParts,
    /// Connections whose turns wait for the tables.
    waiting: WaitingClients<ConnectionId>,
    /// Turns that wait for the tables or for a report.
    parked: AHashMap<ConnectionId, TurnOut<TableClient>>,
}

impl QueueWorker {
    pub(in super::super) fn new(mut parts: WorkerParts) -> Self {
        let waiting = WaitingClients::new(&mut parts.state.session, &parts.wake_signal);
        Self { parts, waiting, parked: AHashMap::new() }
    }

    /// The loop of the thread. Returns when the queue says that it sends no more.
    ///
    /// # Panics
    /// If the system cannot wait.
    pub fn run(mut self) {
        let (report, clock) = (Arc::clone(&self.parts.state.report), self.parts.state.clock);
        let (stats, now) = (&|| report.render(), &|| clock.now());
        let context = HandlerContext { may_read: None, ..self.parts.state.context(stats, now) };
        loop {
            let work = self.receive();
            // Acquire: pairs with the Release of the queue.
            if self.parts.stop.load(Ordering::Acquire) {
                break;
            }
            let metrics = Arc::clone(&self.parts.state.metrics);
            metrics.busy.begin(clock.now().nanos());
            self.answer_late(&context);
            if let Some(mut work) = work {
                self.answer(&mut work.batch, &context);
                self.parts.end.send(work);
            } else {
                self.parts.state.session.rest(clock.now());
            }
            metrics.waiting.set(self.waiting.len() as u64);
            metrics.busy.end(clock.now().nanos());
        }
        self.parts.end.send(Message::new(Work { is_late: true, is_last: true, ..Work::default() }));
    }

    /// Waits for a batch, or until a turn that waits may be tried again.
    fn receive(&mut self) -> Option<Message<Work>> {
        let Self { parts: WorkerParts { end, state, wake_signal, .. }, waiting, .. } = self;
        let time = waiting.sleep_time(&mut state.session, || state.clock.now());
        end.receive().or_else(|| {
            let mut polled = [PollFd::new(end, PollFlags::IN), PollFd::new(wake_signal, PollFlags::IN)];
            // Interrupted or not, both are looked at again.
            let _ready = poll(&mut polled, Some(&timespec(time)));
            if !polled[1].revents().is_empty() {
                wake_signal.clear();
            }
            end.receive()
        })
    }

    /// Tries the turns for which the tables may have room again, and answers those whose reports are made.
    fn answer_late(&mut self, context: &HandlerContext<'_>) {
        let Self { parts: WorkerParts { end, state, budget, .. }, waiting, parked } = self;
        if parked.is_empty() {
            return;
        }
        let mut late = TurnBatch::default();
        let mut due: Vec<_> = std::iter::from_fn(|| state.reports.next()).map(|(id, made)| (id, Some(made))).collect();
        if !waiting.is_empty() {
            waiting.begin(&mut state.session, (context.now)());
            due.extend(std::iter::from_fn(|| waiting.next()).take(BATCH_MAX).map(|id| (id, None)));
        }
        for (id, made) in due {
            let Some(turn) = parked.remove(&id) else { continue };
            let rest = late.answer_late(turn, budget, |TurnParts { id, state: client, messages, replies }| {
                let turn = ConnectionTurn::new(id, client, waiting);
                let turn = match made {
                    Some(made) => turn.with_report(made),
                    None => turn.tried_again(),
                };
                state.answer_turn(messages, replies, turn, context)
            });
            parked.extend(rest.map(|rest| (id, rest)));
        }
        if !late.is_empty() {
            end.send(Message::new(Work { batch: late, is_late: true, is_last: false }));
        }
    }

    fn answer(&mut self, batch: &mut TurnBatch<TableClient>, context: &HandlerContext<'_>) {
        let Self { parts: WorkerParts { state, budget, .. }, waiting, parked, .. } = self;
        for first in (0..batch.len()).step_by(LOOK_AHEAD) {
            let places = first..batch.len().min(first + LOOK_AHEAD);
            if places.len() > 1 {
                state.prefetch_first(batch.ahead(first).take(LOOK_AHEAD), state.clock.now());
            }
            for place in places {
                let rest = batch.answer(place, budget, |TurnParts { id, state: client, messages, replies }| {
                    let turn = ConnectionTurn::new(id, client, waiting);
                    state.answer_turn(messages, replies, turn, context)
                });
                parked.extend(rest.map(|rest| (rest.id(), rest)));
            }
        }
    }
}
