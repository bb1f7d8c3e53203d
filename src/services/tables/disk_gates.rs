//! Replies that wait until what they show is on disk.
//!
//! ```text
//! handle ─► Batch::take_awaited: an epoch ─► ReplyBuffer::hold_back ─► later requests are carried out and answered behind it
//! the thread of the connections, each round ─► Session::watch_disk ─► synced: sent      failed: refused as UNAVAILABLE
//! ```
//! Only replies wait. So a connection with many requests waits for as many syncs as its requests are in epochs.
//!
//! This module does not know which epoch an answer waits for: see `tables/durable/answers.rs`.

use super::wire::{Reason, Reply};
use crate::net::zeromq::{ConnectionProtocol, ConnectionState, Connections, ReplyBuffer};
use crate::resp3::{ReplyWriter, RespVersion};
use crate::tables::Session;

/// The refusal of a command in RESP whose reply waits for a disk that has failed.
const UNAVAILABLE: &str = "UNAVAILABLE the disk has failed: what the command did is perhaps lost";

/// Lets the replies go that have waited, as far as what they show is on disk. For the others the session's waker is called
/// behind the next sync. The thread of the connections calls it before each wait.
#[inline]
pub(crate) fn open_gates<S: ConnectionState>(
    connections: &mut Connections<S>,
    session: &Session,
    refusal: impl Fn(ConnectionProtocol) -> Vec<u8>,
) {
    let Some(epoch) = connections.awaited() else { return };
    let disk = session.watch_disk(epoch);
    connections.open_gates(disk.synced);
    if disk.has_failed {
        connections.refuse_gated(refusal);
    }
}

/// The refusal of a request whose reply waits for a disk that has failed.
pub(crate) fn unavailable(protocol: ConnectionProtocol) -> Vec<u8> {
    let mut refusal = ReplyBuffer::default();
    match protocol {
        ConnectionProtocol::Zmtp => {
            Reply::Refused(Reason::Unavailable).encode(|frame: &[u8], more| refusal.push(frame, more));
        }
        ConnectionProtocol::Resp => {
            refusal.encode(|out| ReplyWriter::new(out, RespVersion::Two).error(UNAVAILABLE.as_bytes()));
        }
    }
    refusal.since(0).to_vec()
}

/// The bytes of these frames before a reply. `None`: a portion of the reply has gone before.
pub(crate) fn envelope_bytes(frames: &[&[u8]], is_rest: bool) -> Option<usize> {
    let mut envelope = ReplyBuffer::default();
    frames.iter().for_each(|frame| envelope.push(frame, true));
    (!is_rest).then(|| envelope.len())
}
