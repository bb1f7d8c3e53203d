//! The first lines of a server's log: its version, what listens where, and its limits.
//!
//! They are logged when everything listens. A start that fails says only why.

use super::{ElementBounds, RunningServer, ServerLimits};
use crate::allocator;
use crate::descriptors::DescriptorBudget;

/// Logs the lines.
pub(super) fn announce(running: &RunningServer, workers: usize, limits: ServerLimits) {
    let (version, allocator) = (env!("CARGO_PKG_VERSION"), allocator::in_use());
    tracing::info!(version, %allocator, process = std::process::id(), "started");
    for (service, endpoint) in running.listening() {
        tracing::info!(service, endpoint, "listens");
    }
    let ServerLimits { memory_bytes, tables, elements, client_bytes, .. } = limits;
    let ElementBounds { key_bytes, value_bytes } = elements;
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
