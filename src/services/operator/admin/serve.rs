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
use super::routes::{AdminContext, is_health, needed, routes};
use super::sources::AdminSources;
use crate::clock::Clock;
use crate::net::http::limits::HEALTH_CONNECTIONS_MAX;
use crate::net::http::{Guard, HostRule, HttpService, HttpUsers};
use crate::net::sockets::{ServeError, Stopper};
use crate::net::tcp::{Accepted, Certificate, ConnectionLimit, ConnectionPermit, TcpBounds, TcpFrontend, TcpProtocol};
use crate::security::Users;
use crate::services::events::mysql::{DatabaseProbe, WritersMetrics};
use crate::services::tables::report::ReportSources;
use crate::store;
use crate::tasks::Tasks;

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

/// A service that listens, before there is anything to tell. Clients wait in the backlog of the system.
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
    /// The database of events, if there is one, and the metrics of the writers to it.
    pub database: Option<(DatabaseProbe, WritersMetrics)>,
}

/// The service, its stopper and its address.
pub struct Admin {
    /// To be run in the thread `admin`.
    pub front: AdminFrontend,
    /// To be run in the thread `admin-probe`, if there is a store.
    pub prober: Option<StoreProber>,
    /// Tells the service to take no more requests.
    pub stopper: Stopper,
    /// The address that the service listens at, with the port that the system chose.
    pub address: SocketAddr,
}

impl AdminListener {
    /// Listens.
    ///
    /// # Errors
    /// [`ServeError`] if the address is not available, or the system has no descriptor left.
    pub fn bind(config: &AdminConfig) -> Result<Self, ServeError> {
        let tcp = TcpFrontend::bind(config.address, BOUNDS)?;
        let hosts = HostRule::new(config.address.ip().is_loopback(), config.hosts.clone(), "--admin-host");
        Ok(Self { tcp, guard: Guard { hosts, users: None, health: is_health }, users: None })
    }

    /// From now on connections are encrypted.
    pub fn encrypt(&mut self, certificate: &Certificate) {
        self.tcp.encrypt(certificate);
    }

    /// From now on a client has to name one of these users, but for its health.
    pub fn admit_only(&mut self, users: &Users) {
        self.guard.users = Some(HttpUsers::new(users.clone(), needed));
        self.users = Some(users.clone());
    }

    /// Prepares the service.
    #[must_use]
    pub fn serve(self, parts: AdminParts) -> Admin {
        let Self { tcp, guard, users } = self;
        let (stopper, address) = (tcp.stopper(), tcp.acceptor().address);
        let (probe, database) = parts.database.unzip();
        let (stores, prober) = ProbedStores::new(parts.tasks, probe);
        let sources = AdminSources { report: parts.report, database };
        Admin { front: AdminFrontend { tcp, guard, users, sources, stores }, prober, stopper, address }
    }
}

/// The service, ready to run.
pub struct AdminFrontend {
    tcp: TcpFrontend,
    guard: Guard,
    users: Option<Users>,
    sources: AdminSources,
    stores: ProbedStores,
}

impl AdminFrontend {
    /// The loop of the thread. Returns after the stopper was told and every request taken is answered.
    ///
    /// # Errors
    /// None: the prober has those of the store.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { tcp, guard, users, sources, stores } = self;
        tcp.run(|| {
            let (probes, answering) = Probes::new(stores, Clock::start());
            spawn_local(answering);
            let sources = Arc::new(sources);
            let live = Live::new(Arc::clone(&sources));
            spawn_local(Arc::clone(&live).run());
            let context = AdminContext { sources, users, probes, live: Arc::clone(&live) };
            AdminProtocol { http: HttpService::new(routes(context, guard)), live }
        })
    }
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
