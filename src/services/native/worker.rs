//! The frontend without libzmq: each worker owns its connections and runs a request from socket to slot and back.
//!
//! ```text
//! acceptor ═► handoff ─► connections ─► a turn of one connection: its received bytes, cut into messages
//!                           ▲             └─► read the clock ─► batch ─► decode, prefetch, handle ─► its send buffer
//!                           └──────────── written once ◄───────────────────────────────────────────────┘
//! ```
//! Where several connections have sent a short request each, the worker receives from up to [`LOOK_AHEAD`] of them
//! before it answers the first. It prefetches the memory of requests for elements of one table: the cache misses of a
//! single look-up would overlap with no others.
//!
//! There is no proxy and no hand-over to another thread. One thread answers all requests of a connection, so their
//! order is kept. The worker reads the clock after it has received the requests that are answered by this reading. It
//! releases the guard before the thread waits.
//!
//! A connection whose turn has to wait is parked, and the worker serves the others.
//!
//! Some connections speak RESP, and their turns are answered by `services/resp` (`client.rs`).
//!
//! This module does not manage connections; see `net/zeromq`. It does not answer requests; see `services/tables/turn.rs`.

use std::convert::Infallible;
use std::sync::Arc;

use super::client::{self, WorkerClient};
use crate::clock::TimeLimit;
use crate::limits::BATCH_MAX;
use crate::net::sockets::{Stopper, WakeSignal};
use crate::net::zeromq::{ConnectionId, ConnectionProtocol, Connections, HandoffReceiver, Serving, ServingParts};
use crate::services::resp::RespShared;
use crate::services::tables::disk_gates::{open_gates, unavailable};
use crate::services::tables::handle::HandlerContext;
use crate::services::tables::turn::{ConnectionTurn, ReplyTimes, WorkerState};
use crate::services::tables::waiting::WaitingClients;

/// A worker that owns its connections, ready to run.
pub struct NativeWorker {
    connections: Connections<WorkerClient>,
    handoff: HandoffReceiver,
    stopper: Stopper,
    state: WorkerState,
    shared: RespShared,
    times: ReplyTimes,
    /// Connections that are parked.
    waiting: WaitingClients<ConnectionId>,
}

impl NativeWorker {
    /// A worker whose connections come through `handoff`. Each of its wake-ups raises `wake_signal`, also the one by
    /// `stopper`.
    pub(super) fn new(
        mut connections: Connections<WorkerClient>,
        handoff: HandoffReceiver,
        stopper: Stopper,
        wake_signal: &WakeSignal,
        mut state: WorkerState,
        shared: RespShared,
    ) -> Self {
        connections.spin_before_sleep();
        let waiting = WaitingClients::new(&mut state.session, wake_signal);
        let times = state.reply_times();
        Self { connections, handoff, stopper, state, shared, times, waiting }
    }

    /// The loop of the thread. Returns after [`Stopper::stop`], when the requests that were taken are answered.
    pub fn run(mut self) {
        let (report, clock) = (Arc::clone(&self.state.report), self.state.clock);
        let (stats, now) = (&|| report.render(), &|| clock.now());
        let context = self.state.context(stats, now);
        let serve = |worker: &mut Self, limit: Option<TimeLimit>| {
            worker.state.metrics.busy.begin(worker.connections.now().nanos());
            if limit.is_none() {
                worker.admit();
            }
            worker.serve(&context);
            worker.show();
            worker.state.metrics.busy.end(clock.now().nanos());
            Ok::<(), Infallible>(())
        };
        let Ok(()) = Serving::run(&mut self, serve, |_, _| Ok(()));
    }

    fn admit(&mut self) {
        while let Some(arrival) = self.handoff.next() {
            let shared = &self.shared;
            self.connections.insert_arrival(arrival, self.connections.now(), |id, arrival| match arrival.protocol {
                ConnectionProtocol::Zmtp => WorkerClient::default(),
                ConnectionProtocol::Resp => WorkerClient::Resp(Box::new(shared.enter(id, arrival))),
            });
        }
        while let Some(id) = self.shared.killed() {
            self.connections.close(id);
        }
        if self.handoff.is_place_wanted() {
            self.connections.make_place();
        }
    }

    /// Delivers messages to subscribers. Then it gives turns: to some of the clients for whom the tables may have room again, to those whose reports are made,
    /// and to all that have sent bytes.
    fn serve(&mut self, context: &HandlerContext<'_>) {
        let Self { connections, state, handoff, waiting, times, shared, .. } = self;
        shared.deliver(connections, WorkerClient::resp);
        if !waiting.is_empty() {
            waiting.begin(&mut state.session, connections.now());
            for _ in 0..BATCH_MAX {
                let Some(id) = waiting.next() else { break };
                connections.resume(id, |id, client, outbox, messages| {
                    let turn = ConnectionTurn::new(id, client, waiting).tried_again();
                    client::answer_turn(shared, state, messages, outbox, turn, context)
                });
                times.send(connections, Some(shared.service()));
            }
            // The transactions that were tried share a hold.
            state.session.end_latch();
        }
        while let Some(id) = shared.next_begun() {
            connections.resume(id, |id, client, outbox, messages| {
                let turn = ConnectionTurn::new(id, client, waiting);
                client::answer_turn(shared, state, messages, outbox, turn, context)
            });
            times.send(connections, Some(shared.service()));
        }
        while let Some((id, made)) = state.reports.next() {
            connections.resume(id, |id, client, outbox, messages| {
                let turn = ConnectionTurn::new(id, client, waiting).with_report(made);
                client::answer_turn(shared, state, messages, outbox, turn, context)
            });
            times.send(connections, Some(shared.service()));
        }
        loop {
            if connections.gather(BATCH_MAX, context.now) {
                client::prefetch_first(state, connections);
            }
            let turn = connections.receive(BATCH_MAX, |id, client, outbox, messages| {
                let turn = ConnectionTurn::new(id, client, waiting);
                client::answer_turn(shared, state, messages, outbox, turn, context)
            });
            state.session.end_latch();
            times.send(connections, Some(shared.service()));
            if turn.is_none() {
                break;
            }
        }
        open_gates(connections, &state.session, unavailable);
        while connections.drained().is_some() {}
        while let Some(mut closed) = connections.gone() {
            if let Some(client) = closed.state.resp() {
                shared.leave(closed.id, client);
            }
        }
        handoff.left(connections.closed());
    }

    fn show(&self) {
        self.state.clients.show(&self.connections);
        self.shared.show(&self.connections);
        self.state.metrics.waiting.set(self.waiting.len() as u64);
    }
}

impl Serving<WorkerClient> for NativeWorker {
    fn parts(&mut self) -> ServingParts<'_, WorkerClient> {
        ServingParts { connections: &mut self.connections, stopper: &self.stopper, clock: self.state.clock }
    }

    /// Waits until there is work, for the clients or for memory that has to be given back.
    fn wait(&mut self, _limit: Option<TimeLimit>) {
        let (session, clock) = (&mut self.state.session, self.state.clock);
        let time = self.waiting.sleep_time(session, || clock.now());
        self.connections.wait(Some(time), || clock.now());
        session.rest(self.connections.now());
    }

    fn has_waiting(&mut self) -> bool {
        let waits_for_disk = self.connections.awaited().is_some();
        !self.waiting.is_empty() || self.state.reports.is_waiting() || waits_for_disk
    }
}
