//! The leases that replies grant, on their way to a client. What a client never received goes back.
//!
//! This module sends nothing.

use std::sync::Arc;

use crate::tasks::{GrantedLease, Outcome, QueueName};

/// A lease that a reply grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepliedLease {
    pub(super) queue: QueueName,
    pub(super) token: u64,
    pub(super) key: Box<[u8]>,
}

/// The leases in an outcome. `names` are the queues of its request.
pub(super) fn leases_in(outcome: Outcome, names: Arc<[QueueName]>) -> impl Iterator<Item = RepliedLease> {
    let (one, many) = match outcome {
        Outcome::Leased { token, key, .. } => (Some((0, token, key)), Vec::new()),
        Outcome::LeasedMany(many) => (None, many),
        _ => (None, Vec::new()),
    };
    let many = many.into_iter().map(|GrantedLease { queue, token, key, .. }| (queue, token, key));
    let named = move |(queue, token, key)| {
        names.get(queue).map(|queue: &QueueName| RepliedLease { queue: queue.clone(), token, key })
    };
    one.into_iter().chain(many).filter_map(named)
}
