//! The service as the native workers run it.

use std::sync::Arc;

use super::client::RespClient;
use super::commands::INDEX;
use super::context::{ContextParts, RespContext};
use super::limits::ARGUMENT_BYTES_MIN;
use super::metrics::RespMetrics;
use super::turn::RespWorker;
use crate::clock::Now;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::messages::MessageView;
use crate::net::zeromq::{ConnectionState, Connections, ReplyBuffer, TurnOutcome};
use crate::resp3::CommandBounds;
use crate::services::tables::report::ReportSources;
use crate::services::tables::turn::{ConnectionTurn, WorkerState};
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
            terminate: Box::new(|| {}),
        }
    }
}

/// The service of all workers.
pub(crate) struct RespService {
    context: Arc<RespContext>,
    bounds: CommandBounds,
}

impl RespService {
    /// The service of so many workers, at these endpoints.
    pub(crate) fn new(config: RespConfig, endpoints: &[String], report: &Arc<ReportSources>, workers: usize) -> Self {
        let RespConfig { key_max, value_max, client_bytes_max, has_users, terminate, .. } = config;
        let bounds = CommandBounds {
            argument_bytes: value_max.max(key_max).max(ARGUMENT_BYTES_MIN),
            bytes: usize::try_from(client_bytes_max).unwrap_or(usize::MAX).max(value_max + key_max),
            is_proven: true,
        };
        let port = endpoints.iter().find_map(|endpoint| endpoint.strip_prefix("tcp://")?.rsplit_once(':'));
        let verbs: Vec<&'static str> = INDEX.all.iter().map(|info| info.name).chain(["unknown"]).collect();
        let context = RespContext::new(ContextParts {
            key_max,
            value_max,
            has_users,
            port: port.and_then(|(_, port)| port.parse().ok()).unwrap_or(0),
            report: Arc::clone(report),
            commands: &INDEX,
            workers: (0..workers).map(|_| Arc::new(RespMetrics::new(&verbs))).collect(),
            terminate,
        });
        Self { context: Arc::new(context), bounds }
    }

    /// The bounds of a command.
    pub(crate) fn bounds(&self) -> CommandBounds {
        self.bounds
    }

    /// What each worker has of it.
    pub(crate) fn workers(&self) -> impl Iterator<Item = RespShared> {
        let workers = self.context.workers.iter();
        workers.map(|metrics| RespShared { context: Arc::clone(&self.context), metrics: Arc::clone(metrics) })
    }
}

/// What the connections of a worker share.
#[derive(Clone, Debug)]
pub(crate) struct RespShared {
    context: Arc<RespContext>,
    metrics: Arc<RespMetrics>,
}

impl RespShared {
    /// Answers the commands of a turn.
    pub(crate) fn answer_turn(
        &self,
        state: &mut WorkerState,
        messages: MessageView<'_>,
        outbox: &mut ReplyBuffer,
        turn: ConnectionTurn<'_, RespClient>,
        now: &dyn Fn() -> Now,
    ) -> TurnOutcome {
        let Self { context, metrics } = self;
        RespWorker { state, context, metrics, now }.answer_turn(messages, outbox, turn)
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
