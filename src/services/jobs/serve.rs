//! Serves jobs: the conversations of the clients on the skeleton of [`TcpFrontend`], and the committer's answers to
//! them.
//!
//! ```text
//! listener ─► accept, up to JOB_CONNECTIONS_MAX at once ─► converse ◄─► JobResponder ═► committer
//! stop request ─► accept no more ─► requests end with the bytes that have come ─► the last replies ─► end
//!                                   after LINGER: leases whose replies were not sent go back ◄─┘
//! ```
//! This module does not know the exchange with one client (`conversation`), or the exchange with the committer
//! (`responder`).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::task::spawn_local;

pub use super::context::JobsConfig;
use super::context::{JobRooms, JobsContext, ServiceEnds};
use super::conversation::converse;
use super::pace::Paces;
use super::responder::JobResponder;
use super::stream::JobStream;
use super::timing::{self, JobTimer};
use crate::clock::Clock;
use crate::limits::{JOB_BACKLOG, JOB_CONNECTIONS_MAX};
use crate::net::budget::Budget;
use crate::net::service::{Service, ServiceParts};
use crate::net::sockets::ServeError;
use crate::net::tcp::{
    Accepted, AnswerReceiver, ConnectionLimit, ConnectionPermit, TcpBounds, TcpFrontend, TcpProtocol,
};
use crate::security::Users;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::store;
use crate::tasks::{Committer, Family, Tasks};

/// Bytes that are discarded at once.
const SCRAP_BYTES: usize = 64 << 10;

/// Silent clients lose their connections by their pace, and no request is answered before others.
const BOUNDS: TcpBounds = TcpBounds { backlog: JOB_BACKLOG, connections: JOB_CONNECTIONS_MAX, reserved: 0 };

/// A frontend that listens, before there is a store. Clients wait in the backlog of the system.
pub struct JobsListener {
    tcp: TcpFrontend,
    settings: JobsConfig,
    /// For STATS.
    pub metrics: Arc<ServiceMetrics>,
    slow: Arc<SlowLog>,
    users: Option<Users>,
}

impl JobsListener {
    /// Listens. If users are checked, a client has to name one.
    ///
    /// # Errors
    /// [`ServeError`] if the address is not available, or the system has no descriptor left.
    pub fn bind(settings: &JobsConfig, parts: ServiceParts) -> Result<Self, ServeError> {
        let users = parts.users();
        let tcp = TcpFrontend::bind(&[settings.address.into()], BOUNDS, parts.certificate)?;
        Ok(Self { tcp, settings: settings.clone(), metrics: timing::metrics(), slow: parts.slow, users })
    }

    /// Registers a sink with the committer for the answers about the queues of `family`. Larger requests take at most
    /// `room_bytes` together, and answers as much again (see [`crate::limits::JOB_ROOM_BYTES`]).
    pub fn serve(
        self,
        room_bytes: usize,
        committer: &mut Committer,
        tasks: Tasks,
        family: Family,
    ) -> Service<JobsFrontend> {
        let (stopper, endpoint) = (self.tcp.stopper(), self.tcp.endpoint());
        let answers = TcpFrontend::answers(committer);
        let budget = Budget::new(2 * room_bytes as u64);
        let budgets = vec![Arc::clone(&budget)];
        let front = JobsFrontend { listener: self, answers, tasks, family, room_bytes, budget };
        Service { front, stopper, endpoint, budgets }
    }
}

/// The frontend, to be run in the thread `jobs-io`.
pub struct JobsFrontend {
    listener: JobsListener,
    answers: AnswerReceiver,
    tasks: Tasks,
    family: Family,
    room_bytes: usize,
    /// What conversations hold of both rooms.
    budget: Arc<Budget>,
}

impl JobsFrontend {
    /// The acceptor of the connections.
    #[cfg(test)]
    pub(super) fn listener(&self) -> &crate::net::tcp::PausableAcceptor {
        self.listener.tcp.acceptor().expect("it listens")
    }

    /// The loop of the thread. Returns after `Stopper::stop`, when every request taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if a value cannot be read, or no answer can come.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { listener, answers, tasks, family, room_bytes, budget } = self;
        let JobsListener { tcp, settings, metrics, slow, users } = listener;
        let (failed, clock) = (tcp.failed(), Clock::start());
        let context = Rc::new(JobsContext {
            responder: Rc::new(JobResponder::new(tasks, answers.sink, answers.room.clone(), clock)),
            family,
            settings,
            users,
            clock,
            rooms: JobRooms::new(room_bytes),
            paces: Paces::new(budget),
            ends: ServiceEnds::new(failed),
            timer: JobTimer { metrics, slow, start_wall_millis: clock.start_wall_millis() },
            scrap: RefCell::new(vec![0; SCRAP_BYTES]),
        });
        tcp.run(|| JobsProtocol::start(context, answers))
    }
}

/// All conversations, with their shared state.
struct JobsProtocol(Rc<JobsContext>);

impl JobsProtocol {
    /// Starts the exchange with the committer.
    fn start(context: Rc<JobsContext>, answers: AnswerReceiver) -> Self {
        context.responder.start_exchange(answers, &context.ends.failed);
        Self(context)
    }
}

impl TcpProtocol for JobsProtocol {
    fn converse(&self, accepted: Accepted, permit: ConnectionPermit) {
        let shared = Rc::clone(&self.0);
        spawn_local(async move {
            if let Some((stream, _)) = accepted.open(shared.ends.until_closed()).await {
                converse(shared, JobStream::new(stream)).await;
            }
            drop(permit);
        });
    }

    fn make_place(&self) {
        self.0.paces.make_place(self.0.clock.now());
    }

    async fn finish(&mut self, connections: &ConnectionLimit) {
        self.0.ends.closing.give();
        connections.all_closed().await;
        self.0.responder.submit_burst();
    }

    async fn cut_short(&mut self, connections: &ConnectionLimit) {
        self.0.cut_short();
        connections.all_closed().await;
        self.0.responder.submit_burst();
    }
}
