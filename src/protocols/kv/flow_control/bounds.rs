//! The bounds of flow control.

use crate::limits::{CROWDED_CLIENT_BYTES, IDLE_CLIENTS_MAX, SCAN_BYTES_MAX};

/// The bounds that flow control enforces.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocols::kv) struct Bounds {
    /// Bytes that one client may have outstanding.
    pub(super) client_bytes: u64,
    /// Bytes that all clients together may have outstanding and in their pipes.
    pub(super) held_bytes: u64,
    /// Bytes that the pipe to a client may hold besides.
    pub(super) pipe_bytes: u64,
    /// Bytes outstanding above which a client that reads is held back.
    pub(super) pressing_bytes: u64,
    /// The same bound while all clients together have more than half of `held_bytes` outstanding.
    pub(super) crowded_bytes: u64,
    /// Clients with nothing outstanding whose entries are kept.
    pub(super) idle_clients: usize,
    /// Bytes of reply expected for each frame of a request, until the client's first replies are known.
    pub(super) reply_bytes_per_frame: u64,
}

/// Bytes of the rows in one page of SCAN for a client that may have `client_bytes` outstanding. A page counts as
/// outstanding while the client reads the one before, and its memory is at most twice its rows' bytes.
pub(in crate::protocols::kv) fn page_bytes_max(client_bytes: u64) -> usize {
    SCAN_BYTES_MAX.min(usize::try_from(client_bytes / 8).unwrap_or(SCAN_BYTES_MAX))
}

impl Bounds {
    /// Bounds of a server that lets one client have `client_bytes` and all clients together `held_bytes` outstanding.
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
