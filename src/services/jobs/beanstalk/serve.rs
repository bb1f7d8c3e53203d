//! Serves beanstalkd's protocol: the conversations of the clients on the skeleton of [`TcpFrontend`], and the committer's
//! answers to them.
//!
//! ```text
//! listeners ─► accept, up to BEANSTALK_CONNECTIONS_MAX at once ─► converse ◄─► JobResponder ═► committer
//! stop request ─► accept no more ─► commands that have come are answered, waits end ─► end
//! ```
//! This module does not know the exchange with one client (`conversation`).

use std::rc::Rc;
use std::sync::Arc;

use tokio::task::spawn_local;

use super::command::Verb;
pub use super::context::{BODY_BYTES_DEFAULT, BeanstalkConfig, BeanstalkListening, DrainSwitch};
use super::context::{BeanstalkContext, ServiceLife};
use super::conversation::converse;
use super::room::CountedRooms;
use super::session::{Client, DEFAULT_TUBE};
use super::tubes::{TubeRole, Tubes};
use crate::clock::Clock;
use crate::limits::{JOB_BACKLOG, JOB_CONNECTIONS_MAX};
use crate::net::budget::Budget;
use crate::net::service::{Service, ServiceParts};
use crate::net::sockets::ServeError;
use crate::net::tcp::{
    Accepted, AnswerReceiver, ConnectionLimit, ConnectionPermit, TcpBounds, TcpFrontend, TcpProtocol,
};
use crate::security::{Fingerprint, PeerAddress, Users};
use crate::services::jobs::context::ServiceEnds;
use crate::services::jobs::responder::JobResponder;
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;
use crate::store;
use crate::tasks::{Committer, Family, Request, Tasks};

/// Connections at once. Further ones wait to be accepted.
const BOUNDS: TcpBounds = TcpBounds { backlog: JOB_BACKLOG, connections: 2 * JOB_CONNECTIONS_MAX, reserved: 0 };

/// A frontend that listens, before there is a store.
pub struct BeanstalkListener {
    tcp: TcpFrontend,
    settings: BeanstalkConfig,
    /// For STATS.
    pub metrics: Arc<ServiceMetrics>,
    slow: Arc<SlowLog>,
    users: Option<Users>,
}

impl BeanstalkListener {
    /// Listens at all addresses.
    ///
    /// # Errors
    /// [`ServeError`] if an address is not available, or the system has no descriptor left.
    pub fn bind(settings: &BeanstalkConfig, parts: ServiceParts) -> Result<Self, ServeError> {
        let users = parts.users();
        let addresses: Vec<_> = settings.listening.iter().map(|listening| listening.address.clone()).collect();
        let tcp = TcpFrontend::bind(&addresses, BOUNDS, parts.certificate)?;
        let words: Vec<&str> = Verb::ALL.into_iter().map(Verb::word).collect();
        let metrics = Arc::new(ServiceMetrics::new("beanstalk", &words));
        Ok(Self { tcp, settings: settings.clone(), metrics, slow: parts.slow, users })
    }

    /// Where it listens, with the ports that the system chose.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.tcp.addresses().map(ToString::to_string).collect()
    }

    /// Registers a sink with the committer for the answers about the queues of `family`. Larger bodies take at most
    /// `room_bytes` together, and answers as much again.
    pub fn serve(
        self,
        room_bytes: usize,
        committer: &mut Committer,
        tasks: Tasks,
        family: Family,
    ) -> Service<BeanstalkFrontend> {
        let (stopper, endpoint) = (self.tcp.stopper(), self.tcp.endpoint());
        let answers = TcpFrontend::answers(committer);
        let budget = Budget::new(2 * room_bytes as u64);
        let budgets = vec![Arc::clone(&budget)];
        let front = BeanstalkFrontend { listener: self, answers, tasks, family, room_bytes, budget };
        Service { front, stopper, endpoint, budgets }
    }
}

/// The frontend, to be run in the thread `beanstalk-io`.
pub struct BeanstalkFrontend {
    listener: BeanstalkListener,
    answers: AnswerReceiver,
    tasks: Tasks,
    family: Family,
    room_bytes: usize,
    /// What connections hold of both rooms.
    budget: Arc<Budget>,
}

impl BeanstalkFrontend {
    /// The loop of the thread. Returns after `Stopper::stop`, when every request taken is answered.
    ///
    /// # Errors
    /// [`store::Error`] if a value cannot be read, or no answer can come.
    pub fn run(self) -> Result<(), store::Error> {
        let Self { listener, answers, tasks, family, room_bytes, budget } = self;
        let BeanstalkListener { tcp, settings, metrics, slow, users } = listener;
        let (failed, clock) = (tcp.failed(), Clock::start());
        let responder = Rc::new(JobResponder::new(tasks, answers.sink, answers.room.clone(), clock));
        let (keeper, of_tubes) = (Rc::clone(&responder), family.clone());
        let keep = move |tube: &[u8], kept| keeper.submit_unasked(of_tubes.queue(tube), Request::Keep { kept });
        let tubes = Tubes::new(keep);
        let context = Rc::new(BeanstalkContext {
            _default: tubes.refer(DEFAULT_TUBE, TubeRole::Kept),
            responder,
            family,
            settings,
            users,
            clock,
            rooms: CountedRooms::new(room_bytes, budget),
            tubes,
            ends: ServiceEnds::new(failed),
            metrics,
            slow,
            life: ServiceLife::begin(clock),
        });
        tcp.run(|| BeanstalkProtocol::start(context, answers))
    }
}

/// All conversations, with their shared state.
struct BeanstalkProtocol(Rc<BeanstalkContext>);

impl BeanstalkProtocol {
    /// Starts the exchange with the committer.
    fn start(context: Rc<BeanstalkContext>, answers: AnswerReceiver) -> Self {
        context.responder.start_exchange(answers, &context.ends.failed);
        Self(context)
    }
}

/// Who the client of a listener is at first: the user of its certificate, else that of the listener.
fn client(shared: &BeanstalkContext, listener: usize, address: PeerAddress, own: Option<Fingerprint>) -> Client {
    let Some(users) = &shared.users else { return Client::Anybody };
    if let Some(user) = own.and_then(|own| users.certificate(&own, address).ok()) {
        return Client::User(user);
    }
    let bound = shared.settings.listening.get(listener).and_then(|listening| listening.user.as_deref());
    bound.and_then(|name| users.bound(name, address)).map_or(Client::Nobody, Client::User)
}

impl TcpProtocol for BeanstalkProtocol {
    fn converse(&self, accepted: Accepted, permit: ConnectionPermit) {
        let shared = Rc::clone(&self.0);
        let (listener, address) = (accepted.listener, accepted.peer());
        spawn_local(async move {
            if let Some((stream, idle)) = accepted.open(shared.ends.until_closed()).await {
                let client = client(&shared, listener, address, stream.certificate());
                converse(shared, stream, idle, client).await;
            }
            drop(permit);
        });
    }

    async fn finish(&mut self, connections: &ConnectionLimit) {
        self.0.ends.closing.give();
        connections.all_closed().await;
        self.0.responder.submit_burst();
    }

    async fn cut_short(&mut self, connections: &ConnectionLimit) {
        self.0.ends.over.give();
        self.0.responder.withdraw_leases();
        self.0.responder.submit_burst();
        connections.all_closed().await;
        self.0.responder.submit_burst();
    }
}
