//! The clients in Rust, one for each service: for users, the command line and tests.
//!
//! ```text
//! tables     requests, notifications, the feed, mirrors    socket   a connection of ZeroMQ, without libzmq
//! tasks      tasks                                         stream   a connection of TCP, plain or with TLS
//! jobs       jobs
//! events     events
//! operator   metrics over HTTP, backups over a Unix socket
//! ```
//! A client works in the thread of its user, and has none of its own. It does not replace a lost connection unasked.

pub mod events;
pub mod jobs;
pub mod operator;
pub(crate) mod socket;
pub mod stream;
pub mod tables;
pub mod tasks;
