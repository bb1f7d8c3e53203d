//! What can go wrong for a client, sorted by what its user can do about it.

use std::time::Duration;

use thiserror::Error;

use crate::protocols::kv::wire::{Malformed, Reason};

/// Why there is no good answer, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// Nothing can be connected to this endpoint: correct it.
    #[error("cannot use endpoint {endpoint} ({problem}): it should look like tcp://HOST:PORT or ipc://PATH")]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: String,
        /// What libzmq says about it.
        problem: String,
    },
    /// Nobody connected or answered in time: start the server, or wait longer. Whether what was asked has been done is
    /// unknown.
    #[error("no answer from {endpoint} within {} s: is a server running there?", timeout.as_secs_f64())]
    NoAnswer {
        /// Where the server should be.
        endpoint: String,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The connection is gone: ask again. Whether what was unanswered has been done is unknown.
    #[error("lost the connection to {endpoint} with {unanswered} requests unanswered: ask again")]
    Lost {
        /// Where the server was.
        endpoint: String,
        /// Requests that were sent and not answered.
        unanswered: usize,
    },
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
    /// libzmq itself failed: it is out of sockets, descriptors or memory.
    #[error("libzmq failed ({0}): raise the limits of open files or of sockets in its context")]
    Socket(String),
}
