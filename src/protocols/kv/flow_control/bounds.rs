//! What the account holds clients to.

use crate::limits::{CROWDED_CLIENT_BYTES, IDLE_CLIENTS_MAX};

/// What the account holds everybody to.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocols::kv) struct Bounds {
    /// Outstanding of one client, in bytes.
    pub(super) client_bytes: u64,
    /// Outstanding of all clients and in their pipes, in bytes.
    pub(super) held_bytes: u64,
    /// What the pipe to a client may hold besides, in bytes.
    pub(super) pipe_bytes: u64,
    /// Of one client that reads, in bytes: above it nothing more is taken from it.
    pub(super) pressing_bytes: u64,
    /// The same while all clients together have more than half of what they may.
    pub(super) crowded_bytes: u64,
    /// Clients with nothing outstanding that are remembered.
    pub(super) idle_clients: usize,
    /// What a reply may have for each frame of its request, as long as nothing is known about the client, in bytes.
    pub(super) reply_bytes_per_frame: u64,
}

impl Bounds {
    /// Of a server that lets a client, and all together, have this much outstanding.
    pub(in crate::protocols::kv) fn new(client_bytes: u64, held_bytes: u64, reply_bytes_per_frame: u64) -> Self {
        Self {
            client_bytes,
            pressing_bytes: client_bytes / 2,
            crowded_bytes: CROWDED_CLIENT_BYTES.min(client_bytes / 2),
            pipe_bytes: client_bytes / 2,
            held_bytes,
            idle_clients: IDLE_CLIENTS_MAX,
            reply_bytes_per_frame,
        }
    }
}
