//! The errors of a client, sorted by the user's possible reaction.

use thiserror::Error;

use crate::clients::rust::socket::{ConnectTarget, Disconnected, ReplyError};
use crate::services::tables::wire::{Malformed, Reason};

/// The reason why there is no good reply, by the caller's possible reaction.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// There is no connection, or no reply.
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
    /// The server refused the request, and changed nothing.
    #[error("{}", .0.text())]
    Refused(Reason),
    /// The server has no feed, which a mirror needs.
    #[error("the server at {endpoint} has no feed: start it with --feed")]
    FeedOff {
        /// The endpoint that answers requests.
        endpoint: String,
    },
    /// The copy of a mirror has reached its bound.
    #[error("the copy takes more than {bytes_max} bytes: allow it more, or mirror a smaller table")]
    TooLarge {
        /// The bound.
        bytes_max: u64,
    },
    /// The other end is no server of this protocol: check the endpoint.
    #[error("{endpoint} does not speak this protocol ({malformed}): is it the right endpoint?")]
    Malformed {
        /// The endpoint that sent the reply.
        endpoint: String,
        /// The fault of the reply.
        malformed: Malformed,
    },
}

impl Error {
    /// The error for a malformed reply from this target.
    pub(super) fn malformed(target: &ConnectTarget, malformed: Malformed) -> Self {
        Self::Malformed { endpoint: target.endpoint().to_owned(), malformed }
    }
}

impl From<ReplyError<Malformed>> for Error {
    fn from(error: ReplyError<Malformed>) -> Self {
        match error {
            ReplyError::Disconnected(disconnected) => Self::Disconnected(disconnected),
            ReplyError::Malformed { endpoint, malformed } => Self::Malformed { endpoint, malformed },
        }
    }
}
