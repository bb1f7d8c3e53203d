//! The first lines of a server's log: its version, what listens where, and its limits.
//!
//! They are logged when everything listens. A start that fails says only why.

use super::{RunningServer, ServerConfig};
use crate::allocator;
use crate::descriptors::DescriptorBudget;

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartLimits {
    workers: usize,
    memory_bytes: u64,
    tables: usize,
    key_bytes: usize,
    value_bytes: usize,
    client_bytes: u64,
}

impl StartLimits {
    /// The limits in the settings.
    pub(super) fn of(config: &ServerConfig) -> Self {
        Self {
            workers: config.workers,
            memory_bytes: config.max_memory,
            tables: config.max_tables,
            key_bytes: config.max_key,
            value_bytes: config.max_value,
            client_bytes: config.client_bytes_max,
        }
    }
}

/// Logs the lines.
pub(super) fn announce(running: &RunningServer, limits: StartLimits) {
    let (version, allocator) = (env!("CARGO_PKG_VERSION"), allocator::in_use());
    tracing::info!(version, %allocator, process = std::process::id(), "started");
    for (service, endpoint) in running.listening() {
        tracing::info!(service, endpoint, "listens");
    }
    let StartLimits { workers, memory_bytes, tables, key_bytes, value_bytes, client_bytes } = limits;
    let DescriptorBudget { limit, reserve } = DescriptorBudget::now();
    let (open_files, kept_files) = (limit, reserve);
    tracing::info!(
        workers,
        memory_bytes,
        tables,
        key_bytes,
        value_bytes,
        client_bytes,
        open_files,
        kept_files,
        "limits"
    );
}
