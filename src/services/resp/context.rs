//! What all connections of the service share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

use super::appending::Appending;
use super::command_info::CommandIndex;
use super::metrics::{RespMetrics, WorkersMetrics};
use super::registry::ClientRegistry;
use crate::clock::Clock;
use crate::services::tables::report::ReportSources;
use crate::services::tables::wire::FieldLimits;

/// What the handlers need beside the tables. All workers share it.
pub(crate) struct RespContext {
    pub(super) clock: Clock,
    /// The longest key and the longest value.
    pub(super) limits: FieldLimits,
    /// Bytes of the keys in one reply, and of a transaction. A longer one is refused.
    pub(super) reply_bytes_max: usize,
    /// Whether a client has to name a user.
    pub(super) has_users: bool,
    /// The port of the first endpoint. 0: it has none.
    pub(super) port: u16,
    pub(super) report: Arc<ReportSources>,
    pub(super) commands: &'static CommandIndex,
    pub(super) metrics: WorkersMetrics,
    pub(super) clients: Arc<ClientRegistry>,
    /// Ends the server.
    pub(super) terminate: Box<dyn Fn() + Send + Sync>,
    /// What is on disk of the databases.
    pub(super) appending: Appending,
    /// Random places.
    places: PlaceRng,
}

/// Draws random places of a table.
#[derive(Debug, Default)]
struct PlaceRng {
    key: RandomState,
    /// How many were drawn.
    drawn: AtomicU64,
}

impl fmt::Debug for RespContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespContext").finish_non_exhaustive()
    }
}

/// What the service is made of, beside the state that it makes itself.
pub(super) struct ContextParts {
    pub(super) limits: FieldLimits,
    pub(super) has_users: bool,
    pub(super) port: u16,
    pub(super) report: Arc<ReportSources>,
    pub(super) commands: &'static CommandIndex,
    pub(super) workers: Vec<Arc<RespMetrics>>,
    pub(super) clients: ClientRegistry,
    pub(super) terminate: Box<dyn Fn() + Send + Sync>,
}

impl RespContext {
    pub(super) fn new(parts: ContextParts) -> Self {
        let ContextParts { limits, has_users, port, report, commands, workers, clients, terminate } = parts;
        Self {
            clock: report.clock(),
            limits,
            reply_bytes_max: report.reply_bytes_max(),
            has_users,
            port,
            report,
            commands,
            metrics: WorkersMetrics::new(workers),
            clients: Arc::new(clients),
            terminate,
            appending: Appending::new(),
            places: PlaceRng::default(),
        }
    }

    /// A random number below 2^48.
    pub(super) fn random_place(&self) -> u64 {
        let PlaceRng { key, drawn } = &self.places;
        // Relaxed: the numbers differ, and nothing else depends on them.
        key.hash_one(drawn.fetch_add(1, Ordering::Relaxed)) >> 16
    }
}
