//! The service as the native workers run it.

use std::sync::Arc;

use crossbeam::channel::Receiver;

use super::channels::Channels;
use super::client::RespClient;
use super::commands::INDEX;
use super::context::{ContextParts, RespContext};
use super::limits::ARGUMENT_BYTES_MIN;
use super::metrics::{PROTOCOL, RespMetrics};
use super::registry::{ClientAddresses, ClientRegistry};
use super::subscribers::{SubscriberMail, WorkerSubscribers};
use super::turn::RespWorker;
use crate::clock::Now;
use crate::limits::{KEY_BYTES_MAX, SUBSCRIBER_BYTES_MAX, VALUE_BYTES_MAX};
use crate::messages::MessageView;
use crate::net::budget::Budget;
use crate::net::mail::MailSize;
use crate::net::sockets::{WakeSignal, WakingSender};
use crate::net::tcp::Certificate;
use crate::net::zeromq::{Arrival, ConnectionId, ConnectionState, Connections, ReplyBuffer, TurnOutcome};
use crate::resp3::CommandBounds;
use crate::services::tables::change_mail::{ChangeInbox, WorkerMail};
use crate::services::tables::report::ReportSources;
use crate::services::tables::turn::{ConnectionTurn, WorkerState};
use crate::services::tables::wire::FieldLimits;
use crate::stats::service::ServiceMetrics;

/// The settings of the service.
pub struct RespConfig {
    /// The endpoints. Empty: off.
    pub endpoints: Vec<String>,
    /// The longest key, in bytes.
    pub key_max: usize,
    /// The longest value, in bytes.
    pub value_max: usize,
    /// Bytes that a client may have outstanding.
    pub client_bytes_max: u64,
    /// Whether clients have to name their users.
    pub has_users: bool,
    /// What connections over TCP are encrypted with. `None`: they are not.
    pub certificate: Option<Certificate>,
    /// Ends the server.
    pub terminate: Box<dyn Fn() + Send + Sync>,
}

impl Default for RespConfig {
    /// Off.
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            key_max: KEY_BYTES_MAX,
            value_max: VALUE_BYTES_MAX,
            client_bytes_max: 1 << 20,
            has_users: false,
            certificate: None,
            terminate: Box::new(|| {}),
        }
    }
}

/// The service of all workers.
pub(crate) struct RespService {
    context: Arc<RespContext>,
    bounds: CommandBounds,
    /// For each worker the connections that it has to close.
    killed: Vec<Receiver<ConnectionId>>,
    wake_signals: Vec<WakeSignal>,
}

impl RespService {
    /// The service at these endpoints. Each worker sleeps until its signal is raised.
    pub(crate) fn new(
        config: RespConfig,
        endpoints: &[String],
        report: &Arc<ReportSources>,
        workers: &[WakeSignal],
    ) -> Self {
        let RespConfig { key_max, value_max, client_bytes_max, has_users, terminate, .. } = config;
        let bounds = CommandBounds {
            argument_bytes: value_max.max(key_max).max(ARGUMENT_BYTES_MIN),
            bytes: usize::try_from(client_bytes_max).unwrap_or(usize::MAX).max(value_max + key_max),
            is_proven: true,
        };
        let port = endpoints.iter().find_map(|endpoint| endpoint.strip_prefix("tcp://")?.rsplit_once(':'));
        let (senders, killed) = workers.iter().map(WakingSender::new).unzip();
        let context = RespContext::new(ContextParts {
            limits: FieldLimits { key: key_max, value: value_max },
            has_users,
            port: port.and_then(|(_, port)| port.parse().ok()).unwrap_or(0),
            report: Arc::clone(report),
            commands: &INDEX,
            workers: metrics_of(workers.len(), report),
            clients: ClientRegistry::new(senders),
            terminate,
        });
        Self { context: Arc::new(context), bounds, killed, wake_signals: workers.to_vec() }
    }

    /// The bounds of a command.
    pub(crate) fn bounds(&self) -> CommandBounds {
        self.bounds
    }

    /// What each worker has of it, and the publisher's ends of their mail. The budget is that of all workers. A subscriber
    /// may leave so many messages unread.
    pub(crate) fn workers(&self, budget: &Arc<Budget>, messages_max: usize) -> (Vec<RespShared>, Vec<WorkerMail>) {
        let bytes_max = SUBSCRIBER_BYTES_MAX.min(usize::try_from(budget.most() / 2).unwrap_or(usize::MAX));
        let unread_max = MailSize { bytes: bytes_max, items: messages_max };
        let (channels, inboxes) = Channels::new(&self.wake_signals, budget);
        let workers =
            self.context.metrics.workers.iter().zip(&self.killed).zip(&self.wake_signals).zip(inboxes).zip(0..);
        let workers = workers.map(|((((metrics, killed), wake_signal), messages), worker)| {
            let (changes, of_publisher) = ChangeInbox::new(wake_signal, budget, self.wake_signals.len());
            let mail = SubscriberMail { messages, changes, wake_signal: wake_signal.clone() };
            let subscribers = WorkerSubscribers::new(worker, &channels, mail, unread_max);
            let (context, metrics) = (Arc::clone(&self.context), Arc::clone(metrics));
            (RespShared { worker, context, metrics, subscribers, killed: killed.clone() }, of_publisher)
        });
        workers.unzip()
    }
}

/// The metrics of the verbs of one worker, for the report of all services.
pub(crate) fn service_metrics() -> Arc<ServiceMetrics> {
    let verbs: Vec<&'static str> = INDEX.all.iter().map(|info| info.name).chain(["unknown"]).collect();
    Arc::new(ServiceMetrics::new(PROTOCOL, &verbs))
}

/// The metrics of so many workers: those that the report has, if the service is on.
fn metrics_of(workers: usize, report: &ReportSources) -> Vec<Arc<RespMetrics>> {
    let mut reported = report.services_of(PROTOCOL);
    let service = |_| reported.next().map_or_else(service_metrics, Arc::clone);
    (0..workers).map(service).map(|service| Arc::new(RespMetrics::new(service))).collect()
}

/// What the connections of a worker share.
#[derive(Debug)]
pub(crate) struct RespShared {
    /// The number of the worker.
    worker: usize,
    context: Arc<RespContext>,
    metrics: Arc<RespMetrics>,
    /// Connections that the worker has to close, since clients have killed them.
    killed: Receiver<ConnectionId>,
    subscribers: WorkerSubscribers,
}

impl RespShared {
    /// The state of a connection that the worker takes over.
    pub(crate) fn enter(&self, id: ConnectionId, arrival: &Arrival) -> RespClient {
        let Self { worker, context, .. } = self;
        let addresses = ClientAddresses::of(arrival);
        RespClient::new(context.clients.enter(*worker, id, addresses, context.clock.now()))
    }

    /// A connection that the worker has to close.
    pub(crate) fn killed(&self) -> Option<ConnectionId> {
        self.killed.try_recv().ok()
    }

    /// Answers the commands of a turn.
    pub(crate) fn answer_turn(
        &mut self,
        state: &mut WorkerState,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        turn: ConnectionTurn<'_, RespClient>,
        now: &dyn Fn() -> Now,
    ) -> TurnOutcome {
        let Self { context, metrics, subscribers, .. } = self;
        RespWorker { state, context, metrics, subscribers, now, last: None }.answer_turn(messages, outbox, turn)
    }

    /// Appends messages and events of keys to the replies of those who subscribe. `of` is the state of a connection
    /// that speaks RESP.
    pub(crate) fn deliver<S: ConnectionState>(
        &mut self,
        connections: &mut Connections<S>,
        of: impl Fn(&mut S) -> Option<&mut RespClient> + Copy,
    ) {
        self.subscribers.deliver(connections, of);
    }

    /// The next connection that need not wait for the publisher any more.
    pub(crate) fn next_begun(&mut self) -> Option<ConnectionId> {
        self.subscribers.next_begun()
    }

    /// A connection has closed.
    pub(crate) fn leave(&mut self, id: ConnectionId, client: &mut RespClient) {
        if let Some(subscriptions) = client.subscriptions.take() {
            self.subscribers.leave(id, subscriptions);
        }
    }

    /// The metrics of the commands.
    pub(crate) fn service(&self) -> &ServiceMetrics {
        &self.metrics.service
    }

    /// Shows what the worker knows of its connections.
    pub(crate) fn show<S: ConnectionState>(&self, connections: &Connections<S>) {
        self.metrics.show(connections);
    }
}
