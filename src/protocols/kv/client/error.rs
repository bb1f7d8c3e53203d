//! What can go wrong for a client, sorted by what its user can do about it.

use thiserror::Error;

use crate::protocols::client_socket::{ConnectTarget, Disconnected};
use crate::protocols::kv::wire::{Malformed, Reason};

/// Why there is no good answer, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// There is no connection, or no answer.
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
    /// The server refused, and changed nothing.
    #[error("{}", .0.text())]
    Refused(Reason),
    /// What answers is no server of this protocol: look at the endpoint.
    #[error("{endpoint} does not speak this protocol ({malformed}): is it the right endpoint?")]
    Malformed {
        /// Who answered.
        endpoint: String,
        /// What was wrong with the answer.
        malformed: Malformed,
    },
}

impl Error {
    /// Of what answers there.
    pub(super) fn malformed(target: &ConnectTarget, malformed: Malformed) -> Self {
        Self::Malformed { endpoint: target.endpoint().to_owned(), malformed }
    }
}
