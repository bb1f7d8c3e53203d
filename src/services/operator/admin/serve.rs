//! Serves the operator: requests over HTTP on the skeleton of [`TcpFrontend`], in a thread of its own.
//!
//! ```text
//! listener ─► accept, up to CONNECTIONS_MAX at once ─► http: a connection ─► routes ─► metrics, probes
//! ```
//! This module does not make the replies (`routes`).

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::spawn_local;

use super::limits::{BACKLOG, CONNECTIONS_MAX};
use super::live::Live;
use super::probe::{ProbedStores, Probes, StoreProber};
use super::queues::{AdminQueues, ServedQueues};
use super::routes::{AdminContext, is_health, needed, routes};
use super::sources::AdminSources;
use crate::clock::Clock;
use crate::lock::Mutex;
use crate::net::http::limits::HEALTH_CONNECTIONS_MAX;
use crate::net::http::{Guard, HostRule, HttpService, HttpUsers};
use crate::net::service::{Service, ServiceParts};
use crate::net::sockets::ServeError;
use crate::net::tcp::{
    Accepted, AnswerReceiver, ConnectionLimit, ConnectionPermit, FailureSender, TcpBounds, TcpFrontend, TcpProtocol,
};
use crate::security::Users;
use crate::services::events::mysql::{DatabaseProbe, WritersMetrics};
use crate::services::tables::report::ReportSources;
use crate::store;
use crate::tasks::{Committer, Tasks};

const BOUNDS: TcpBounds =
    TcpBounds { backlog: BACKLOG, connections: CONNECTIONS_MAX, reserved: HEALTH_CONNECTIONS_MAX };

/// The settings of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// The address to listen at.
    pub address: SocketAddr,
    /// Names by which requests may call the server, beside addresses and names without a dot.
    pub hosts: Vec<String>,
}

/// A service that listens, before there is anything to report. Clients wait in the backlog of the system.
pub struct AdminListener {
    tcp: TcpFrontend,
    guard: Guard,
    users: Option<Users>,
}

/// What the service reads and tries.
pub struct AdminParts {
    /// The metrics that STATS gives.
    pub report: Arc<ReportSources>,
    /// The server's own store, if there is one.
    pub tasks: Option<Tasks>,
    /// The queues in it, and where their answers come.
    pub queues: Option<(ServedQueues, QueueAnswers)>,
    /// The database of events, if there is one, and the metrics of the writers to it.
    pub database: Option<(DatabaseProbe, Arc<WritersMetrics>)>,
}

/// Receives the answers about queues.
pub struct QueueAnswers(AnswerReceiver);

impl QueueAnswers {
    /// Registers a sink with the committer.
    #[must_use]
    pub fn new(committer: &mut Committer) -> Self {
        Self(TcpFrontend::answers(committer))
    }
}

/// What is to run.
pub struct Admin {
    /// The service.
    pub service: Service<AdminFrontend>,
    /// To be run in the thread `admin-probe`, if there is a store.
    pub prober: Option<StoreProber>,
}

impl AdminListener {
    /// Listens. If users are checked, a client has to name one, but for its health.
    ///
    /// # Errors
    /// [`ServeError`] if the address is not available, or the system has no descriptor left.
    pub fn bind(config: &AdminConfig, parts: ServiceParts) -> Result<Self, ServeError> {
        let users = parts.users();
        let tcp = TcpFrontend::bind(&[config.address.into()], BOUNDS, parts.certificate)?;
        let hosts = HostRule::new(config.address.ip().is_loopback(), config.hosts.clone(), "--admin-host");
        // Users are known by their passwords, which no foreign page has.
        let hosts = if users.is_none() { hosts.strict() } else { hosts };
        let http_users = users.clone().map(|users| HttpUsers::new(users, needed));
        Ok(Self { tcp, guard: Guard { hosts, users: http_users, health: is_health }, users })
    }

    /// Prepares the service.
    #[must_use]
    pub fn serve(self, parts: AdminParts) -> Admin {
        let Self { tcp, guard, users } = self;
        let (stopper, endpoint) = (tcp.stopper(), tcp.endpoint());
        let tables = parts.report.all_tables();
        let (probe, database) = parts.database.unzip();
        let (stores, prober) = ProbedStores::new(Box::new(move || tables.log_metrics()), parts.tasks, probe);
        let sources = AdminSources { report: parts.report, database, history: Mutex::default() };
        let front = AdminFrontend { tcp, guard, users, sources, stores, queues: parts.queues };
        Admin { service: Service { front, stopper, endpoint, budgets: Vec::new() }, prober }
    }
}

/// The service, to be run in the thread `admin`.
pub struct AdminFrontend {
    tcp: TcpFrontend,
    guard: Guard,
    users: Option<Users>,
    sources: AdminSources,
    stores: ProbedStores,
    queues: Option<(ServedQueues, QueueAnswers)>,
}

impl AdminFrontend {
    /// The loop of the thread. Returns after `Stopper::stop`, when every request taken is answered.
    ///
    /// # Errors
    /// None: the prober has those of the store.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { tcp, guard, users, sources, stores, queues } = self;
        let failed = tcp.failed();
        tcp.run(|| {
            let (probes, answering) = Probes::new(stores, Clock::start());
            spawn_local(answering);
            let sources = Arc::new(sources);
            let live = Live::new(Arc::clone(&sources));
            spawn_local(Arc::clone(&live).run());
            let queues = queues.map(|(served, answers)| serve_queues(served, answers, failed));
            let context = AdminContext { sources, users, probes, live: Arc::clone(&live) };
            AdminProtocol { http: HttpService::new(routes(context, queues, guard)), live }
        })
    }
}

/// Starts the exchange about queues with the committer.
fn serve_queues(served: ServedQueues, QueueAnswers(answers): QueueAnswers, failed: FailureSender) -> AdminQueues {
    let queues = AdminQueues::new(served, &answers, failed);
    let requests = queues.requests().clone();
    spawn_local(requests.clone().submit_bursts());
    spawn_local(answers.hand_out(move |delivery| requests.receive_delivery(delivery)));
    queues
}

/// All connections.
struct AdminProtocol {
    http: HttpService,
    live: Arc<Live>,
}

impl TcpProtocol for AdminProtocol {
    fn converse(&self, accepted: Accepted, permit: ConnectionPermit) {
        self.http.accept(accepted, permit);
    }

    async fn finish(&mut self, connections: &ConnectionLimit) {
        // A reply that is live has no other end.
        self.live.close();
        self.http.finish(connections).await;
    }

    /// Requests that are not answered yet are dropped with their connections.
    async fn cut_short(&mut self, _connections: &ConnectionLimit) {}
}
