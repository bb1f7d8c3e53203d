//! How bytes come and go: the sockets of the server.
//!
//! ```text
//! zeromq    connections of ZeroMQ, without libzmq
//! sockets   what all share: wake-ups, the errors of endpoints, how serving stops
//! tcp       connections of plain TCP, with or without TLS, and replies of the committer to them
//! http      HTTP/1.1 on `tcp`: heads are judged, bodies read
//! budget    what clients make the server hold
//! mail      what is handed to threads for which nobody waits
//! service   what each service is given before it listens, and what is then to run
//! ```
//! This floor accepts, reads, bounds, times and writes. It does not interpret the bytes of a service, and does not
//! start threads.

pub mod budget;
pub(crate) mod http;
pub(crate) mod mail;
pub mod service;
pub mod sockets;
pub mod tcp;
pub mod zeromq;
