//! How bytes come and go: the sockets of the server.
//!
//! ```text
//! zeromq    connections of ZeroMQ, without libzmq
//! ```
//! This floor accepts, reads, bounds, times and writes. It does not interpret the bytes of a service, and does not
//! start threads.

pub mod zeromq;
