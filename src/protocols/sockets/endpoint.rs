//! Why an endpoint cannot be had, in one line that says what to do.

use std::io;
use std::os::unix::net::UnixStream;

use thiserror::Error;

/// Why nothing listens at an endpoint.
#[derive(Debug, Error)]
pub enum BindError {
    /// Somebody else listens there.
    #[error("{endpoint} is in use: stop what listens there, or choose another endpoint")]
    InUse {
        /// As it was given.
        endpoint: String,
    },
    /// No interface of this host has that address.
    #[error("{endpoint}: this host has no such address")]
    NoSuchAddress {
        /// As it was given.
        endpoint: String,
    },
    /// A socket in the file system has a path of at most 107 bytes.
    #[error("{endpoint}: the path is too long for a socket, choose one of at most 107 bytes")]
    PathTooLong {
        /// As it was given.
        endpoint: String,
    },
    /// It is not an endpoint.
    #[error("{endpoint} is not an endpoint: write tcp://ADDRESS:PORT or ipc://PATH")]
    NotAnEndpoint {
        /// As it was given.
        endpoint: String,
    },
    /// The system refuses.
    #[error("{endpoint}: {source}")]
    System {
        /// As it was given.
        endpoint: String,
        /// What the system says.
        source: io::Error,
    },
}

/// The reason for the errno that a bind has left.
pub(super) fn bind_error(endpoint: &str, errno: i32) -> BindError {
    let endpoint = endpoint.to_owned();
    match errno {
        libc::EADDRINUSE => BindError::InUse { endpoint },
        libc::EADDRNOTAVAIL | libc::ENODEV => BindError::NoSuchAddress { endpoint },
        libc::ENAMETOOLONG => BindError::PathTooLong { endpoint },
        libc::EINVAL | libc::EPROTONOSUPPORT => BindError::NotAnEndpoint { endpoint },
        // Above this libzmq has numbers of its own, of which a bind has only "transport does not fit the socket".
        zmq_sys::errno::EFSM.. => BindError::NotAnEndpoint { endpoint },
        other => BindError::System { endpoint, source: io::Error::from_raw_os_error(other) },
    }
}

/// Whether an endpoint in the file system is alive. libzmq would take it from whoever listens there.
pub(super) fn somebody_answers_at(endpoint: &str) -> bool {
    let path = endpoint.strip_prefix("ipc://").unwrap_or_default();
    let is_a_path = !path.is_empty() && !path.starts_with(['@', '*']);
    is_a_path && UnixStream::connect(path).is_ok()
}
