//! Errors of an endpoint, each in one line that says what to do.

use std::io;

use thiserror::Error;

/// Why an endpoint cannot be listened at.
#[derive(Debug, Error)]
pub enum BindError {
    /// Another socket listens there.
    #[error("{endpoint} is in use: stop what listens there, or choose another endpoint")]
    InUse {
        /// As it was given.
        endpoint: String,
    },
    /// No interface of this host has that address.
    #[error(
        "{endpoint}: this host has no such address; write one of its own as a number, the name of an interface that has one, or * for all"
    )]
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
    /// A file that is no socket has that name.
    #[error("{endpoint}: there is a file of that name that is no socket")]
    NoSocket {
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
        /// The system's error.
        source: io::Error,
    },
}

/// The reason for the errno that a bind has left.
pub(crate) fn bind_error(endpoint: &str, errno: i32) -> BindError {
    let endpoint = endpoint.to_owned();
    match errno {
        libc::EADDRINUSE => BindError::InUse { endpoint },
        libc::EADDRNOTAVAIL | libc::ENODEV => BindError::NoSuchAddress { endpoint },
        libc::ENAMETOOLONG => BindError::PathTooLong { endpoint },
        libc::EINVAL | libc::EPROTONOSUPPORT => BindError::NotAnEndpoint { endpoint },
        other => BindError::System { endpoint, source: io::Error::from_raw_os_error(other) },
    }
}
