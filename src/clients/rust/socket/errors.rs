//! Why a client has no connection: the errors of the sockets, and the errors that its user receives.

use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

/// The name of a host that has no address, as far as this system knows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no host is known by the name in {address} ({problem}): correct it, or give an address")]
pub struct UnknownHost {
    /// The address with the name.
    pub(in crate::clients::rust) address: String,
    /// The error of the system.
    pub(in crate::clients::rust) problem: String,
}

/// Why there is no connection, by the caller's remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Disconnected {
    /// This endpoint cannot be connected to: correct it.
    #[error("cannot use endpoint {endpoint} ({problem}): it should look like tcp://HOST:PORT or ipc://PATH")]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: String,
        /// The mistake in it.
        problem: String,
    },
    /// No server listens there, and the client was not to try again: start the server, or correct the endpoint.
    #[error(
        "no server listens at {0}: start one there with `spindle serve` (for tasks with --tasks), or name the endpoint of another"
    )]
    Refused(String),
    /// The name of the host has no address: correct it.
    #[error(transparent)]
    UnknownHost(UnknownHost),
    /// The server refuses this client: name a user and its password, or its key, or another user.
    #[error(
        "{0} refuses this client: its name or password is wrong, or it has none: name a user with --user, and its \
         password in SPINDLE_PASSWORD, or its key with --curve-key, and the server's with --curve-server"
    )]
    Denied(String),
    /// The server was too busy to check the password: try again.
    #[error("{0} is busy with other passwords, or slows down wrong ones: try again in some seconds")]
    Busy(String),
    /// The other end has closed the connection within the handshake: correct the endpoint, or the user.
    #[error(
        "{0} has closed the connection within the handshake: is a server of another kind there, or does it want \
         another login (--user, --curve-key with --curve-server, or none)?"
    )]
    Closed(String),
    /// No server accepted or answered in time: start the server, or wait longer. The client does not know whether its
    /// requests were done.
    #[error("no answer from {endpoint} within {} s: is a server running there?", timeout.as_secs_f64())]
    NoAnswer {
        /// Endpoint of the server.
        endpoint: String,
        /// Time that the client has waited.
        timeout: Duration,
    },
    /// The connection is lost: ask again. The client does not know whether the unanswered requests were done.
    #[error("lost the connection to {endpoint} with {unanswered} requests unanswered: ask again")]
    Lost {
        /// Endpoint of the server.
        endpoint: String,
        /// Requests that were sent and not answered.
        unanswered: usize,
    },
    /// The other end is no server of ZeroMQ for this client: correct the endpoint.
    #[error("{endpoint} is no server for this client ({problem}): is it the right endpoint?")]
    Foreign {
        /// The endpoint.
        endpoint: String,
        /// What it speaks, or does wrong.
        problem: String,
    },
    /// The system makes no connection: it is out of descriptors or memory.
    #[error("the system makes no connection ({0}): raise the limit of open files, or free memory")]
    Socket(String),
}

/// Why a connection is no longer usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum ConnectError {
    /// The time was up.
    Late,
    /// The host has not accepted the connection in time.
    Unreached,
    /// No server listens there.
    Refused,
    /// The name of the host has no address, as the system says.
    UnknownHost(String),
    /// The server refuses this client.
    Denied,
    /// The server was too busy to check the password.
    Busy,
    /// The other end has closed the connection before the handshake was over.
    Closed,
    /// The server's end is gone, and the client has read all that it sent.
    Lost,
    /// The other end is no server of ZeroMQ for this client.
    Foreign(String),
    /// This is no endpoint.
    Endpoint(String),
    /// The system failed.
    Socket(Errno),
}

impl From<Errno> for ConnectError {
    fn from(error: Errno) -> Self {
        Self::Socket(error)
    }
}
